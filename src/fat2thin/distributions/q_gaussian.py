"""The scalar q-Gaussian for every entropic index below 3.

Density (location mu, scale sigma, index q):

    p(a) = exp_q(-(a - mu)^2 / (2 sigma^2)) / Z_q(sigma)

For q < 1 it is sparse (zero outside mu +- sigma sqrt(2 / (1 - q))), for q = 1 it is the Gaussian,
and for q = 2 it is the Cauchy with scale sqrt(2) sigma. `scale` is the standard deviation only for
q = 1.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Key
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import validate_sample
from numpyro.util import not_jax_tracer

from fat2thin.distributions.base import Law, at_equal_ranks, broadcast_parameters
from fat2thin.distributions.q_math import log1p_ratio, log_expm1_ratio
from fat2thin.distributions.standard_q_gaussian import (
    by_closeness,
    entropy_excess,
    log_kernel,
    log_normaliser,
    standard_cdf,
    standard_icdf,
)


class _Draw(NamedTuple):
    """The parameter-free random numbers of a sample: an Exp(1) variable and a uniform angle."""

    exponential: Float[Array, "..."]
    log_sine: Float[Array, "..."]
    log_cosine: Float[Array, "..."]
    sign: Float[Array, "..."]


@partial(jax.jit, static_argnums=(1, 2))
def _draw(key: Key[Array, ""], shape: tuple[int, ...], dtype: jnp.dtype) -> _Draw:
    words = jax.random.bits(key, (4, *shape), jnp.uint32)

    def fraction(high: Array, low: Array) -> Float[Array, "..."]:
        return high.astype(dtype) * 2.0**-32 + (low.astype(dtype) + 0.5) * 2.0**-64

    # The exponential needs full relative precision at both ends: one is the heavy tail, the other
    # the centre.
    below_half = words[0] < np.uint32(2**31)
    remainder = fraction(jnp.where(below_half, words[0], ~words[0]), words[1])
    exponential = jnp.where(below_half, -jnp.log(remainder), -jnp.log1p(-remainder))
    angle = jnp.pi * (lax.bitcast_convert_type(words[2], jnp.int32).astype(dtype) * 2.0**-32)
    angle = angle + jnp.pi * (words[3].astype(dtype) + 0.5) * 2.0**-64
    log_sine, log_cosine = (jnp.log(jnp.abs(wave(angle))) for wave in (jnp.sin, jnp.cos))
    return _Draw(exponential, log_sine, log_cosine, jnp.sign(angle))


class LocationScaleIndex(Distribution):
    """Base class with the parameters of a scalar q-Gaussian."""

    arg_constraints = {  # noqa: RUF012  (NumPyro's convention)
        "loc": constraints.real,
        "scale": constraints.positive,
        "entropic_index": constraints.less_than(3.0),
    }

    def __init__(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        entropic_index: ArrayLike = 0.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        batch_shape, (self.loc, self.scale, self.entropic_index) = broadcast_parameters(
            loc=loc, scale=scale, entropic_index=entropic_index
        )
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)


class QGaussian(LocationScaleIndex, Law):
    """Scalar q-Gaussian with location `loc`, scale `scale` and `entropic_index` below 3.

    The index may be a number or an array, and may be traced. Samples are reparametrised in all
    three parameters. `cdf` and `icdf` are differentiable in value, loc and scale; a derivative in
    the index raises a TypeError. float32 is accurate for indices up to 2.5; use float64 above. A
    sample that would overflow becomes the largest finite number.

    Examples:
        >>> import jax
        >>> from fat2thin.distributions import QGaussian
        >>> sparse = QGaussian(loc=0.0, scale=1.0, entropic_index=0.0)
        >>> print(f"{sparse.half_width:.4f} {sparse.log_prob(0.0):.4f} {sparse.cdf(1.5):.4f}")
        1.4142 -0.6343 1.0000
        >>> bool(sparse.support_mask(sparse.sample(jax.random.key(0), (1000,))).all())
        True
    """

    reparametrized_params = ["loc", "scale", "entropic_index"]  # noqa: RUF012

    @property
    def support(self) -> constraints.Constraint:
        """[loc - half_width, loc + half_width] for a concrete index below 1, else the real line."""
        if not_jax_tracer(self.entropic_index) and np.all(np.asarray(self.entropic_index) < 1.0):
            return constraints.interval(*self._ends())
        return constraints.real

    @property
    def half_width(self) -> Float[Array, "*batch"]:
        """Half the length of the support, scale * sqrt(2 / (1 - q)); inf for q >= 1."""
        index = self._index()
        sparse = index < 1.0
        factor = jnp.sqrt(2.0 / (1.0 - jnp.where(sparse, index, 0.0)))
        width = jnp.where(sparse, self.scale * factor, jnp.inf)
        return jnp.broadcast_to(width, self.batch_shape).astype(index.dtype)

    @at_equal_ranks
    def support_mask(self, value: ArrayLike) -> Bool[Array, "..."]:
        """Return whether each value lies in the support, ends included."""
        low, high = self._ends()
        return (low <= value) & (value <= high)

    @at_equal_ranks
    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list | None = None) -> Float[Array, "..."]:
        """Return the log density: exactly -inf outside the support, with a zero gradient there."""
        low, high = self._ends()
        value = self._as_value(value)
        outside = (value < low) | (value > high)
        deviation = jnp.where(outside, 0.0, value - self.loc)
        kernel = log_kernel(deviation, self.entropic_index, self.scale)
        inside = kernel - log_normaliser(self.entropic_index) - jnp.log(self.scale)
        return jnp.where(outside, -jnp.inf, inside)

    def _draw(self, key: Key[Array, ""], sample_shape: tuple[int, ...]) -> _Draw:
        return _draw(key, self.shape(sample_shape), self._dtype())

    def _log_density(self, draw: _Draw) -> Array:
        def near(index: Array) -> Array:
            energy = jnp.exp(2.0 * (_log_radius(draw.exponential, index) + draw.log_sine)) / 2.0
            return -energy * log1p_ratio((index - 1.0) * energy)

        def far(index: Array) -> Array:
            # 1 - t^2 = cos^2 + u^kappa sin^2 for the normalised radius t: no subtraction.
            shrunk = -_kappa(index) * draw.exponential + 2.0 * draw.log_sine
            return jnp.logaddexp(2.0 * draw.log_cosine, shrunk) / (1.0 - index)

        kernel = by_closeness(self._index(), near, far)
        return kernel - log_normaliser(self.entropic_index) - jnp.log(self.scale)

    @at_equal_ranks
    def cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the probability that a sample is at or below `value`."""
        standardised = (jnp.asarray(value, self._dtype()) - self.loc) / self.scale
        return standard_cdf(standardised, self._index())

    @at_equal_ranks
    def icdf(self, q: ArrayLike) -> Float[Array, "..."]:
        """Return the quantile at probability `q`, which is not the index."""
        quantile = standard_icdf(jnp.asarray(q, self._dtype()), self._index())
        return self._within(self.loc + self.scale * quantile)

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the Shannon entropy in nats."""
        excess = log_normaliser(self.entropic_index) + entropy_excess(self.entropic_index)
        return jnp.broadcast_to(excess + jnp.log(self.scale), self.batch_shape)

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The location for q < 2; undefined (NaN) for q >= 2."""
        value = jnp.where(jnp.asarray(self.entropic_index) < 2.0, self.loc, jnp.nan)
        return jnp.broadcast_to(value, self.batch_shape)

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """2 scale^2 / (5 - 3 q) for q < 5/3; infinite for q < 2; undefined (NaN) for q >= 2."""
        index = self._index()
        finite = index < 5.0 / 3.0
        value = 2.0 * jnp.square(self.scale) / (5.0 - 3.0 * jnp.where(finite, index, 0.0))
        beyond = jnp.where(index < 2.0, jnp.inf, jnp.nan)
        return jnp.broadcast_to(jnp.where(finite, value, beyond), self.batch_shape)

    @property
    def mode(self) -> Float[Array, "*batch"]:
        """The location, which is mode and median for every index."""
        return jnp.broadcast_to(jnp.asarray(self.loc, self._dtype()), self.batch_shape)

    def _index(self) -> Float[Array, "..."]:
        return jnp.asarray(self.entropic_index, self._dtype())

    def _ends(self) -> tuple[Array, Array]:
        width = self.half_width
        return self.loc - width, self.loc + width

    def _within(self, value: Array) -> Array:
        """Move values that rounding put past an end of the support back; gradients pass through."""
        low, high = self._ends()
        beyond = jnp.where(value < low, low - value, jnp.where(value > high, high - value, 0.0))
        return value + lax.stop_gradient(beyond)

    def _place(self, draw: _Draw) -> Array:
        """Return samples by the generalised Box-Muller map, exact for every index."""
        log_distance = _log_radius(draw.exponential, self._index()) + draw.log_sine
        # The margin covers the rounding of exp, so scale * exp(...) stays finite.
        largest = math.log(float(jnp.finfo(self._dtype()).max)) - 1e-4
        room = largest - lax.stop_gradient(jnp.maximum(jnp.log(self.scale), 0.0))
        distance = jnp.exp(jnp.minimum(log_distance, room))
        return self._within(self.loc + self.scale * draw.sign * distance)


def _kappa(index: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the exponent 1 - q' of the generalised Box-Muller map, q' = (1 + q) / (3 - q)."""
    return 2.0 * (1.0 - index) / (3.0 - index)


def _log_radius(exponential: Array, index: Float[Array, "..."]) -> Array:
    """Return log of sqrt(2 / (3 - q)) sqrt(-2 log_q'(u)) with u = exp(-exponential)."""
    stretch = jnp.log(4.0 / (3.0 - index)) + jnp.log(exponential)
    return (stretch + log_expm1_ratio(-_kappa(index) * exponential)) / 2.0
