"""The Beta distribution on any action box."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import digamma, ndtri, polygamma
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import Beta, constraints
from numpyro.distributions.util import validate_sample

from fat2thin.distributions.base import BoxLaw, at_equal_ranks, broadcast_parameters
from fat2thin.distributions.q_math import gamma_entropy, incomplete_beta, log_beta
from fat2thin.distributions.standard_q_gaussian import Search, refuse_derivative

_MAX_ITERATIONS = 100
_REFUSED = "concentration1 and concentration0", "concentrations"


def _log_density(
    log_below: Array, log_above: Array, concentration1: Array, concentration0: Array
) -> Array:
    """Return the log density on [0, 1] at x, given log(x) and log(1 - x)."""
    kernel = (concentration1 - 1.0) * log_below + (concentration0 - 1.0) * log_above
    return kernel - log_beta(concentration1, concentration0)


def _mass_below(below: Array, above: Array, concentration1: Array, concentration0: Array) -> Array:
    """Return P(X <= x) on [0, 1], given below = x and above = 1 - x.

    Where most of the mass is close to 1, rounding x loses the digits that 1 - x still has.
    """
    log_density = _log_density(jnp.log(below), jnp.log(above), concentration1, concentration0)
    mirrored = (above < below) & (log_density > 0.0)
    return incomplete_beta(concentration1, concentration0, below, above, mirrored)


_unit_cdf = jax.custom_jvp(_mass_below)


@partial(_unit_cdf.defjvp, symbolic_zeros=True)
def _unit_cdf_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    refuse_derivative(tangents[2:], "cdf of a BoxBeta", *_REFUSED)
    below, above, *concentrations = primals
    floor = float(jnp.finfo(below.dtype).eps)
    log_below, log_above = (jnp.log(jnp.maximum(margin, floor)) for margin in (below, above))
    # The tangent of `above` is minus that of `below`, so only one of them is used.
    slope = jnp.exp(_log_density(log_below, log_above, *concentrations))
    return _unit_cdf(*primals), slope * tangents[0]


@jax.custom_jvp
def _unit_icdf(share: Array, concentration1: Array, concentration0: Array) -> Array:
    """Return logit(x) of the quantile x in [0, 1] at probability `share`, 0 < share < 1.

    Applies Newton's method, safeguarded by a bracket, to the logarithm of the smaller tail as a
    function of logit(x). That function is concave, so the steps converge from one side.
    """
    share, one, zero = jnp.broadcast_arrays(share, concentration1, concentration0)
    info = jnp.finfo(share.dtype)
    upper = share > 0.5
    # The upper half is the lower half of the mirrored distribution: 1 - share is exact there.
    first, second = jnp.where(upper, zero, one), jnp.where(upper, one, zero)
    log_tail = jnp.log(jnp.where(upper, 1.0 - share, share))
    normaliser = log_beta(first, second)

    def improve(carry: Search) -> Search:
        low, high, logit, _, iteration = carry
        mass = _mass_below(jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit), first, second)
        excess = jnp.log(mass) - log_tail
        low = jnp.where(excess < 0.0, logit, low)
        high = jnp.where(excess < 0.0, high, logit)
        log_slope = first * jax.nn.log_sigmoid(logit) + second * jax.nn.log_sigmoid(-logit)
        step = -excess * mass * jnp.exp(normaliser - log_slope)
        newton = logit + step
        usable = (newton > low) & (newton < high)
        # Once the error is below the rounding of the incomplete Beta function, stop.
        settled = jnp.abs(excess) <= info.eps * (4.0 + first + second)
        settled |= jnp.abs(step) <= info.eps * jnp.maximum(jnp.abs(logit), 1.0)
        following = jnp.where(settled, logit, jnp.where(usable, newton, (low + high) / 2.0))
        return low, high, following, jnp.any(following != logit), iteration + 1

    reach = math.log(float(info.max)) - 1.0
    # Start from a Gaussian with the exact mean and variance of logit(x), which is close to the
    # root unless the concentrations are small.
    spread = jnp.sqrt(polygamma(1, first) + polygamma(1, second))
    start = digamma(first) - digamma(second) + spread * ndtri(jnp.exp(log_tail))
    start = jnp.clip(start, -reach, reach)
    ends = jnp.full_like(share, -reach), jnp.full_like(share, reach)
    carry = (*ends, start, jnp.array(True), jnp.array(0))
    root = lax.while_loop(lambda c: c[3] & (c[4] < _MAX_ITERATIONS), improve, carry)[2]
    return jnp.where(upper, -root, root)


@partial(_unit_icdf.defjvp, symbolic_zeros=True)
def _unit_icdf_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    refuse_derivative(tangents[1:], "icdf of a BoxBeta", *_REFUSED)
    _, *concentrations = primals
    logit = _unit_icdf(*primals)
    log_below, log_above = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
    # d share / d logit = density(x) x (1 - x).
    log_slope = _log_density(log_below, log_above, *concentrations) + log_below + log_above
    smallest = math.log(float(jnp.finfo(logit.dtype).tiny))
    return logit, tangents[0] * jnp.exp(-jnp.maximum(log_slope, smallest))


class BoxBeta(BoxLaw):
    """Beta distribution on the box [low, high], with scalar events.

    At low, the density is zero for concentration1 > 1 and infinite for concentration1 < 1;
    concentration0 does the same at high. To give logged actions at an edge a finite log density,
    `log_prob` clamps the unit coordinate (value - low) / (high - low) to [eps, 1 - eps], where eps
    is the machine epsilon. `cdf` and `icdf` are not differentiable in the concentrations.

    Examples:
        >>> from fat2thin.distributions import BoxBeta
        >>> dose = BoxBeta(2.0, 4.0, low=0.0, high=300.0)
        >>> print(f"{dose.mean:.1f} {dose.mode:.1f} {dose.cdf(100.0):.3f}")
        100.0 75.0 0.539
    """

    arg_constraints = {  # noqa: RUF012  (NumPyro's convention)
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
        "low": constraints.real,
        "high": constraints.real,
    }
    reparametrized_params = ["concentration1", "concentration0", "low", "high"]  # noqa: RUF012

    def __init__(
        self,
        concentration1: ArrayLike,
        concentration0: ArrayLike,
        low: ArrayLike = -1.0,
        high: ArrayLike = 1.0,
        *,
        validate_args: bool | None = None,
    ) -> None:
        batch_shape, promoted = broadcast_parameters(
            concentration1=concentration1, concentration0=concentration0, low=low, high=high
        )
        self.concentration1, self.concentration0, self.low, self.high = promoted
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    @at_equal_ranks
    @validate_sample
    def log_prob(self, value: ArrayLike, intermediates: list | None = None) -> Float[Array, "..."]:
        """Return the log density: -inf outside the box, finite at its edges (see the class)."""
        value = self._as_value(value)
        below, above = self._margins(value, self._range(), float(jnp.finfo(value.dtype).eps))
        unit = _log_density(jnp.log(below), jnp.log(above), *self._concentrations())
        return self._zero_outside(value, unit - jnp.log(self._range()))

    @at_equal_ranks
    def cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the probability that a sample is at or below `value`.

        In float32 the error is about 1e-6 + 2e-7 (c1 + c0), from JAX's incomplete Beta function.
        """
        value = self._as_value(value)
        inside = self._clip(value)
        below, above = (inside - self.low) / self._range(), (self.high - inside) / self._range()
        share = _unit_cdf(below, above, *self._concentrations())
        return jnp.where(value < self.low, 0.0, jnp.where(value > self.high, 1.0, share))

    def _quantile(self, share: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._place(_unit_icdf(share, *self._concentrations()))

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean, low + (high - low) c1 / (c1 + c0)."""
        value = self.low + self._range() * self._unit_beta().mean
        return jnp.broadcast_to(self._clip(value), self.batch_shape)

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance, (high - low)² c1 c0 / ((c1 + c0)² (c1 + c0 + 1))."""
        return jnp.broadcast_to(self._range() ** 2 * self._unit_beta().variance, self.batch_shape)

    @property
    def mode(self) -> Float[Array, "*batch"]:
        """The mode, possibly at an edge of the box; NaN where there is no unique mode."""
        first, second = self._concentrations()
        interior = (first > 1.0) & (second > 1.0)
        position = (first - 1.0) / jnp.where(interior, first + second - 2.0, 1.0)
        inner = self.low + self._range() * position
        at_low = (first <= 1.0) & (second >= 1.0) & (first < second)
        at_high = (second <= 1.0) & (first >= 1.0) & (second < first)
        edge = jnp.where(at_low, self.low, jnp.where(at_high, self.high, jnp.nan))
        return jnp.broadcast_to(jnp.where(interior, inner, edge), self.batch_shape)

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the entropy, H(c1) + H(c0) - H(c1 + c0) - digamma(c1 + c0) + log(high - low).

        H is the entropy of a Gamma variable, and the unit is nats. The textbook formula loses all
        float32 digits for large concentrations.
        """
        first, second = self._concentrations()
        total = first + second
        unit = gamma_entropy(first) + gamma_entropy(second) - gamma_entropy(total)
        value = unit - digamma(total) + jnp.log(self._range())
        return jnp.broadcast_to(value, self.batch_shape)

    def _concentrations(self) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        dtype = self._dtype()
        return jnp.asarray(self.concentration1, dtype), jnp.asarray(self.concentration0, dtype)

    def _unit_beta(self) -> Beta:
        return Beta(*self._concentrations(), validate_args=False)

    def _range(self) -> Float[Array, "..."]:
        return jnp.asarray(self.high, self._dtype()) - jnp.asarray(self.low)

    def _draw(self, key: Key[Array, ""], sample_shape: tuple[int, ...]) -> Array:
        """Return log(x / (1 - x)) as a difference of log-Gamma variables, exact at both ends."""
        first, second = jax.random.split(key)
        shape, dtype = self.shape(sample_shape), self._dtype()
        concentration1, concentration0 = self._concentrations()
        numerator = jax.random.loggamma(first, concentration1, shape, dtype)
        return numerator - jax.random.loggamma(second, concentration0, shape, dtype)

    def _log_density(self, logit: Array) -> Array:
        log_below, log_above = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
        return _log_density(log_below, log_above, *self._concentrations()) - jnp.log(self._range())

    def _place(self, logit: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the point of the box with this logit, measured from the nearer edge."""
        from_low = self.low + self._range() * jax.nn.sigmoid(logit)
        from_high = self.high - self._range() * jax.nn.sigmoid(-logit)
        return self._clip(jnp.where(logit < 0.0, from_low, from_high))
