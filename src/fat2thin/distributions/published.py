"""Densities and samplers as in the paper and in its authors' code, for comparison only.

`PaperQGaussian`, `AuthorsProposal` and their sampler are wrong and fail the conformance kit. Only
the `published` mode trains with them.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample

from fat2thin.distributions.base import at_equal_ranks, broadcast_parameters, expand_to_rank, lift
from fat2thin.distributions.multivariate import MultivariateQGaussian, student_t_parameters
from fat2thin.distributions.q_gaussian import LocationScaleIndex, QGaussian
from fat2thin.distributions.q_math import exp_q, log_q


def published_box_muller(
    key: Key[Array, ""], shape: tuple[int, ...], entropic_index: ArrayLike
) -> Float[Array, "..."]:
    """Return samples of the paper's "standard q-Gaussian".

    It is the generalised Box-Muller map with q' = (q - 1) / (3 - q); the correct index is
    (1 + q) / (3 - q). With the paper's q', q = 2 gives exactly standard normal samples, and q = 0
    gives samples with index -3.
    """
    radius_key, angle_key = jax.random.split(key)
    index = jnp.asarray(entropic_index, jnp.result_type(entropic_index, float))
    index = expand_to_rank(index, len(shape))
    first = jax.random.uniform(radius_key, shape, index.dtype, minval=jnp.finfo(index.dtype).tiny)
    second = jax.random.uniform(angle_key, shape, index.dtype)
    radius = jnp.sqrt(-2.0 * log_q(first, (index - 1.0) / (3.0 - index)))
    return radius * jnp.cos(2.0 * jnp.pi * second)


class PaperQGaussian(LocationScaleIndex):
    """The q-Gaussian as printed in the paper, with its normaliser and sampler.

    The normaliser is too small by sqrt(2), so the density integrates to sqrt(2) for every index
    except 1. Samples come from `published_box_muller` and match neither the index nor the scale of
    the density.
    """

    reparametrized_params = ["loc", "scale"]  # noqa: RUF012

    @property
    def _claimed(self) -> QGaussian:
        return QGaussian(self.loc, self.scale, self.entropic_index, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The support of the density."""
        return self._claimed.support

    @at_equal_ranks
    @validate_sample
    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the log density with the printed normaliser."""
        missing = jnp.where(jnp.asarray(self.entropic_index) == 1.0, 0.0, math.log(2.0) / 2.0)
        return self._claimed.log_prob(value) + missing

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Return loc + scale z, with z from the printed sampler."""
        standard = published_box_muller(key, self.shape(sample_shape), self.entropic_index)
        law = lift(self, standard.ndim)
        return law.loc + law.scale * standard


class AuthorsProposal(Distribution):
    """The heavy-tailed proposal of the authors' code, over vectors of n coordinates.

    The density is the kernel exp_q(-m^2 / (2 (3 - q))), m^2 = sum (a - loc)^2 / squared_scale,
    divided by the normaliser of a multivariate Student-t. For n = 1 its mass is sqrt(2); for n >= 2
    and q = 2 its mass is infinite. Coordinates are sampled independently with the printed sampler.
    """

    arg_constraints = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "squared_scale": constraints.independent(constraints.positive, 1),
        "entropic_index": constraints.interval(1.0, 3.0),
    }
    support = constraints.real_vector
    reparametrized_params = ["loc", "squared_scale"]  # noqa: RUF012

    def __init__(
        self,
        loc: ArrayLike,
        squared_scale: ArrayLike,
        entropic_index: float = 2.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        shape, _ = broadcast_parameters(loc=loc, squared_scale=squared_scale)
        self.loc = jnp.broadcast_to(jnp.asarray(loc, jnp.result_type(loc, float)), shape)
        self.squared_scale = jnp.broadcast_to(jnp.asarray(squared_scale, self.loc.dtype), shape)
        self.entropic_index = entropic_index
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @at_equal_ranks
    @validate_sample
    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the log of what the authors' code uses as the density."""
        count = self.event_shape[0]
        squared = jnp.sum((value - self.loc) ** 2 / self.squared_scale, axis=-1)
        index = jnp.asarray(self.entropic_index, self.loc.dtype)
        kernel = jnp.log(exp_q(-squared / (2.0 * (3.0 - index)), index))
        freedom, _ = student_t_parameters(index)
        constant = (
            gammaln(freedom / 2.0)
            - gammaln((freedom + count) / 2.0)
            + count / 2.0 * jnp.log(jnp.pi * freedom)
            + jnp.sum(jnp.log(self.squared_scale), axis=-1) / 2.0
        )
        return kernel - constant

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Return samples with independent coordinates from the printed sampler."""
        standard = published_box_muller(key, self.shape(sample_shape), self.entropic_index)
        law = lift(self, standard.ndim - 1)
        return law.loc + jnp.sqrt(law.squared_scale) * standard


def authors_actor(loc: ArrayLike, spread: ArrayLike) -> MultivariateQGaussian:
    """Return the sparse actor of the authors' code, a q = 0 ellipsoid with an implicit width.

    `spread` is their "scale" s_i. The semi-axis of coordinate i is c R_n sqrt(s_i), with
    R_n = (2 Gamma(n/2 + 2) / pi^(n/2))^(1/(n+2)) and c = prod(s)^(-1/(2n+4)). This is a proper
    density, but the width of a coordinate depends on all spreads. In six dimensions, s >= e^-14
    means a half-width of at least 0.18.
    """
    spread = jnp.asarray(spread, jnp.result_type(spread, float))
    count = spread.shape[-1]
    log_radius = math.log(2.0) + math.lgamma(count / 2 + 2) - count / 2 * math.log(math.pi)
    log_spread = jnp.log(spread)
    shared = -jnp.sum(log_spread, axis=-1, keepdims=True) / (2 * count + 4)
    semi_axis = jnp.exp(log_radius / (count + 2) + shared + log_spread / 2.0)
    return MultivariateQGaussian(loc, 0.0, scale_diag=semi_axis / math.sqrt(2.0))
