"""The squashed Gaussian on any action box: a = middle + half_range tanh(x), x ~ N(loc, scale^2)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import Normal, constraints
from numpyro.distributions.util import validate_sample

from fat2thin.distributions.base import BoxLaw, at_equal_ranks, broadcast_parameters, lift

# 16 panels with 16 Gauss-Legendre nodes each, on [0, 1].
_PANELS = 16
_RULE = np.polynomial.legendre.leggauss(16)
_NODES = ((np.arange(_PANELS)[:, None] + (_RULE[0] + 1.0) / 2.0) / _PANELS).reshape(-1)
_WEIGHTS = np.tile(_RULE[1] / (2.0 * _PANELS), _PANELS)
# The mass beyond 9 standard deviations is 1e-19; beyond |x| = 20, tanh is +-1 to 1e-17.
_DEVIATIONS = 9.0
_SATURATION = 20.0
_HALF_LOG_2_PI = math.log(2.0 * math.pi) / 2.0


def _log_slope(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(1 - tanh(x)^2), accurate for every finite x."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


class SquashedGaussian(BoxLaw):
    """The tanh of a Gaussian, scaled to the box [low, high], with scalar events.

    Use `to_event` for vectors. `loc` and `scale` are those of the Gaussian before squashing. The
    density tends to 0 at the edges of the box. There `log_prob` clamps the normalised action
    (value - middle) / half_range to +-(1 - eps), in both the Gaussian and the Jacobian, where eps
    is the machine epsilon. So a logged action at an edge has a finite log density with a gradient
    in `loc` and `scale`.

    Examples:
        >>> from fat2thin.distributions import SquashedGaussian
        >>> torque = SquashedGaussian(loc=0.0, scale=1.0, low=-2.0, high=2.0)
        >>> print(f"{torque.centre:.2f} {torque.icdf(0.975):.4f} {torque.log_prob(0.0):.4f}")
        0.00 1.9222 -1.6121
    """

    arg_constraints = {  # noqa: RUF012  (NumPyro's convention)
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.real,
        "high": constraints.real,
    }
    reparametrized_params = ["loc", "scale", "low", "high"]  # noqa: RUF012

    def __init__(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        low: ArrayLike = -1.0,
        high: ArrayLike = 1.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        batch_shape, promoted = broadcast_parameters(loc=loc, scale=scale, low=low, high=high)
        self.loc, self.scale, self.low, self.high = promoted
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    @at_equal_ranks
    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list | None = None) -> Float[Array, "..."]:
        """Return the log density: -inf outside the box, finite at its edges (see the class)."""
        value = self._as_value(value)
        below, above = self._margins(value, self._half_range(), float(jnp.finfo(value.dtype).eps))
        before = self._before_squashing(value, below, above)
        log_slope = jnp.log(below) + jnp.log(above)
        gaussian = Normal(self.loc, self.scale, validate_args=False).log_prob(before)
        return self._zero_outside(value, gaussian - log_slope - jnp.log(self._half_range()))

    @at_equal_ranks
    def cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return P(sample <= value): exactly 0 at low and 1 at high."""
        value = self._as_value(value)
        below, above = self._margins(value, self._half_range(), float(jnp.finfo(value.dtype).tiny))
        before = self._before_squashing(value, below, above)
        share = ndtr((before - self.loc) / self.scale)
        return jnp.where(value <= self.low, 0.0, jnp.where(value >= self.high, 1.0, share))

    def _quantile(self, share: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._place(ndtri(share))

    @property
    def centre(self) -> Float[Array, "*batch"]:
        """The median, middle + half_range tanh(loc)."""
        median = self._squash(jnp.asarray(self.loc, self._dtype()))
        return jnp.broadcast_to(median, self.batch_shape)

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean, by quadrature; error below 1e-6 (float32) or 1e-13 (float64) half-ranges."""
        value = self._middle() + self._half_range() * self._unit_moments()[0]
        return jnp.broadcast_to(self._clip(value), self.batch_shape)

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance, by quadrature; error below 1e-6 (float32), 1e-13 (float64) half-ranges²."""
        return jnp.broadcast_to(self._half_range() ** 2 * self._unit_moments()[1], self.batch_shape)

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the entropy in nats, that of the Gaussian plus E[log half_range (1 - tanh²)].

        Computed by quadrature, with an error below 2e-5 (float32) or 1e-12 (float64) for |loc| and
        scale up to 10.
        """
        deviation, weights, (lowest, below), (highest, above) = self._quadrature()
        law = lift(self, deviation.ndim)
        inner = jnp.sum(weights * _log_slope(law.loc + law.scale * deviation), axis=0)
        # Beyond saturation the logarithm is 2 log 2 - 2 |x|, and its integral has a closed form.
        mean_above = self.loc * above + self.scale * _density(highest)
        mean_below = self.scale * _density(lowest) - self.loc * below
        outer = 2.0 * math.log(2.0) * (below + above) - 2.0 * (mean_above + mean_below)
        gaussian = _HALF_LOG_2_PI + 0.5 + jnp.log(self.scale)
        value = gaussian + jnp.log(self._half_range()) + inner + outer
        return jnp.broadcast_to(value, self.batch_shape)

    def _draw(self, key: Key[Array, ""], sample_shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, self.shape(sample_shape), self._dtype())

    def _place(self, noise: Array) -> Array:
        return self._squash(self.loc + self.scale * noise)

    def _log_density(self, noise: Array) -> Array:
        gaussian = -(noise**2) / 2.0 - _HALF_LOG_2_PI - jnp.log(self.scale)
        log_slope = _log_slope(self.loc + self.scale * noise)
        return gaussian - log_slope - jnp.log(self._half_range())

    def _squash(self, before: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._clip(self._middle() + self._half_range() * jnp.tanh(before))

    def _before_squashing(self, value: Array, below: Array, above: Array) -> Array:
        """Return artanh of the normalised action, by the formula that is accurate there."""
        normalised = (value - self._middle()) / self._half_range()
        central = jnp.abs(normalised) < 0.5
        near_middle = jnp.arctanh(jnp.where(central, normalised, 0.0))
        near_edge = (jnp.log(below) - jnp.log(above)) / 2.0
        return jnp.where(central, near_middle, near_edge)

    def _quadrature(self) -> tuple[Array, Array, tuple[Array, Array], tuple[Array, Array]]:
        """Return nodes (in standard deviations) and weights where tanh is not constant.

        The last two results are (end, mass beyond it) below and above. Panels are at most 2.5 wide
        in x and at most 1.2 standard deviations or 2.5 wide, whichever is coarser, so both scales
        are resolved.
        """
        loc, scale = jnp.broadcast_arrays(
            jnp.asarray(self.loc, self._dtype()), jnp.asarray(self.scale, self._dtype())
        )
        bounds = (-_SATURATION - loc) / scale, (_SATURATION - loc) / scale
        lowest = jnp.clip(jnp.full_like(loc, -_DEVIATIONS), *bounds)
        highest = jnp.clip(jnp.full_like(loc, _DEVIATIONS), *bounds)
        column = (-1, *(1,) * loc.ndim)
        length = (highest - lowest)[None]
        deviation = lowest[None] + length * jnp.asarray(_NODES, loc.dtype).reshape(column)
        weights = length * jnp.asarray(_WEIGHTS, loc.dtype).reshape(column)
        below, above = (lowest, ndtr(lowest)), (highest, ndtr(-highest))
        return deviation, weights * _density(deviation), below, above

    def _unit_moments(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Return mean and variance of tanh(x)."""
        deviation, weights, (_, below), (_, above) = self._quadrature()
        law = lift(self, deviation.ndim)
        squashed = jnp.tanh(law.loc + law.scale * deviation)
        mean = jnp.sum(weights * squashed, axis=0) + above - below
        spread = jnp.sum(weights * (squashed - mean[None]) ** 2, axis=0)
        return mean, spread + above * (1.0 - mean) ** 2 + below * (1.0 + mean) ** 2


def _density(deviation: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the density of the standard Gaussian."""
    return jnp.exp(-(deviation**2) / 2.0 - _HALF_LOG_2_PI)
