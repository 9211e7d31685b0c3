"""Laws restricted to an interval: truncated and renormalised, or kept in it despite rounding.

`Truncated` integrates a density numerically, relative to its largest value in the interval. So it
is accurate however far the interval lies in a tail, where differences of a cdf would be zero, and
it is differentiable in all parameters. An interval of width zero is a point mass: its log density
is 0 at the point and -inf elsewhere, and its entropy 0, as for NumPyro's `Delta`.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import Distribution, constraints

from fat2thin.distributions.base import clip_straight_through, expand_to_rank
from fat2thin.distributions.divergences import sample_with_log_prob
from fat2thin.distributions.q_math import log1p_ratio

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
_NODES, _WEIGHTS = (_NODES + 1.0) / 2.0, _WEIGHTS / 2.0
# Panels double in width on both sides of the largest density. The first is half its length scale,
# the last begins at 65,000 length scales.
_DISTANCES = np.concatenate([(2.0 ** np.arange(18) - 1.0) / 2.0, [math.inf]])
_REFINEMENTS = 8  # steps inside a panel; 5 sufficed for all laws that were tried


class Kernel(eqx.Module):
    """A density up to a constant, on a line where it has one peak.

    `to_line` and `from_line` convert values to and from positions on that line; both are
    increasing. Functions take any leading axes.
    """

    def peak(self) -> Float[Array, "*batch"]:
        """Return the position of the largest density on the line."""
        raise NotImplementedError

    def log_ratio(self, origin: Array, distance: Array) -> Array:
        """Return the log density on the line at origin + distance, minus that at the origin."""
        raise NotImplementedError

    def to_line(self, value: Array) -> Array:
        """Return the position of a value."""
        return value

    def from_line(self, position: Array) -> Array:
        """Return the value at a position."""
        return position

    def log_slope(self, position: Array) -> Array:
        """Return log(d value / d position)."""
        return jnp.zeros_like(position)


class TailKernel(Kernel):
    """A q-Gaussian of index 1 or more: a Gaussian, a Cauchy, and every Student-t."""

    loc: Float[Array, "*batch"]
    scale: Float[Array, "*batch"]
    entropic_index: float = eqx.field(static=True)

    def peak(self) -> Array:
        """Return the location."""
        return self.loc

    def log_ratio(self, origin: Array, distance: Array) -> Array:
        """Return the difference of two log kernels, without a difference of large numbers."""
        loc, scale = (expand_to_rank(part, distance.ndim) for part in (self.loc, self.scale))
        origin = expand_to_rank(origin, distance.ndim)
        away, step = (origin - loc) / scale, distance / scale
        index = self.entropic_index
        energy = step * (step / 2.0 + away) / (1.0 + (index - 1.0) * away**2 / 2.0)
        return -energy * log1p_ratio((index - 1.0) * energy)


class SquashedKernel(TailKernel):
    """A Gaussian of artanh of the action's position in the box."""

    low: Float[Array, "*#batch"]
    high: Float[Array, "*#batch"]

    def to_line(self, value: Array) -> Array:
        """Return artanh of the position in the box."""
        return _logit(value, self.low, self.high) / 2.0

    def from_line(self, position: Array) -> Array:
        """Return the action."""
        return _from_logit(2.0 * position, self.low, self.high)

    def log_slope(self, position: Array) -> Array:
        """Return the logarithm of the slope of tanh, times the range of the box."""
        return _log_logit_slope(2.0 * position, self.low, self.high) + math.log(2.0)


class BetaKernel(Kernel):
    """A Beta on the box, on the line of logits, where every Beta has one peak."""

    concentration1: Float[Array, "*batch"]
    concentration0: Float[Array, "*batch"]
    low: Float[Array, "*#batch"]
    high: Float[Array, "*#batch"]

    def peak(self) -> Array:
        """Return the logit of the mean, where the density of the logit is largest."""
        return jnp.log(self.concentration1) - jnp.log(self.concentration0)

    def log_ratio(self, origin: Array, distance: Array) -> Array:
        """Return the difference of c1 log σ(y) + c0 log σ(−y) at two positions."""
        first, second = (
            expand_to_rank(part, distance.ndim)
            for part in (self.concentration1, self.concentration0)
        )
        origin = expand_to_rank(origin, distance.ndim)

        def fall(position: Array, step: Array) -> Array:
            """log σ(position + step) − log σ(position)."""
            near = jnp.clip(step, -1.0, 1.0)
            close = -jnp.log1p(jax.nn.sigmoid(-position) * jnp.expm1(-near))
            far = jax.nn.log_sigmoid(position + step) - jax.nn.log_sigmoid(position)
            return jnp.where(jnp.abs(step) < 1.0, close, far)

        return first * fall(origin, distance) + second * fall(-origin, -distance)

    def to_line(self, value: Array) -> Array:
        """Return the logit of the position in the box."""
        return _logit(value, self.low, self.high)

    def from_line(self, position: Array) -> Array:
        """Return the action."""
        return _from_logit(position, self.low, self.high)

    def log_slope(self, position: Array) -> Array:
        """Return the logarithm of the slope of the logistic function, times the range."""
        return _log_logit_slope(position, self.low, self.high)


class DensityKernel(Kernel):
    """Any scalar law with one peak, by its log density."""

    law: Distribution
    centre: Float[Array, "*batch"]

    def peak(self) -> Array:
        """Return the centre."""
        return self.centre

    def log_ratio(self, origin: Array, distance: Array) -> Array:
        """Return the difference of two log densities."""
        origin = jnp.broadcast_to(expand_to_rank(origin, distance.ndim), distance.shape)
        return self.law.log_prob(origin + distance) - self.law.log_prob(origin)


def _logit(value: Array, low: Array, high: Array) -> Array:
    low, high = (expand_to_rank(end, value.ndim) for end in (low, high))
    # Each margin is measured from its own edge, and is never zero, so that the logit is finite.
    floor = (high - low) * float(jnp.finfo(value.dtype).eps)
    return jnp.log(jnp.maximum(value - low, floor)) - jnp.log(jnp.maximum(high - value, floor))


def _from_logit(logit: Array, low: Array, high: Array) -> Array:
    low, high = (expand_to_rank(end, logit.ndim) for end in (low, high))
    from_low = low + (high - low) * jax.nn.sigmoid(logit)
    return jnp.where(logit < 0.0, from_low, high - (high - low) * jax.nn.sigmoid(-logit))


def _log_logit_slope(logit: Array, low: Array, high: Array) -> Array:
    low, high = (expand_to_rank(end, logit.ndim) for end in (low, high))
    return jnp.log(high - low) + jax.nn.log_sigmoid(logit) + jax.nn.log_sigmoid(-logit)


class _OnInterval(Distribution):
    """A scalar law on [low, high], a point mass where high is not above low."""

    arg_constraints = {"low": constraints.real, "high": constraints.real}  # noqa: RUF012

    low: Float[Array, "*batch"]
    high: Float[Array, "*batch"]

    @property
    def support(self) -> Any:
        """The interval, ends included."""
        return constraints.interval(self.low, self.high)

    @property
    def is_point(self) -> Array:
        """Where the law is a point mass."""
        return self.high <= self.low

    def _aligned(self, value: Any) -> tuple[Array, Array, Array, Array]:
        """Return a value, the ends and `is_point` at equal ranks."""
        value = jnp.asarray(value, self.low.dtype)
        rank = max(value.ndim, self.low.ndim)
        value, low, high, point = (
            expand_to_rank(part, rank) for part in (value, self.low, self.high, self.is_point)
        )
        return value, low, high, point

    def _masked(self, value: Any, density: Any) -> Array:
        """Return log densities: those of `density(value inside)`, of a point, or -inf."""
        value, low, high, point = self._aligned(value)
        inside = (low <= value) & (value <= jnp.maximum(low, high))
        # Any value of the interval will do outside of it: it is dropped, and so is its gradient.
        found = density(jnp.where(inside & ~point, value, low + (high - low) / 2.0))
        return jnp.where(
            inside, jnp.where(point, 0.0, found), jnp.where(jnp.isnan(value), jnp.nan, -jnp.inf)
        )

    def _placed(self, value: Array) -> Array:
        """Return samples, moved into the interval where rounding put them beyond an end."""
        value, low, high, point = self._aligned(value)
        return jnp.where(point, low, clip_straight_through(value, low, jnp.maximum(low, high)))


class Bounded(_OnInterval):
    """A law whose support is [low, high] up to rounding: nothing lies outside of it."""

    pytree_data_fields = ("base", "low", "high")

    def __init__(self, base: Distribution, low: Array, high: Array) -> None:
        self.base, self.low, self.high = base, low, high
        super().__init__(jnp.shape(low), validate_args=False)

    @property
    def loc(self) -> Array:
        """The location of the base law; the point of a point mass."""
        return jnp.where(self.is_point, self.low, self.base.loc)

    @property
    def half_width(self) -> Array:
        """Half the length of the support."""
        return jnp.where(self.is_point, 0.0, self.base.half_width)

    @property
    def mean(self) -> Array:
        """The mean of the base law; the point of a point mass."""
        return jnp.where(self.is_point, self.low, self.base.mean)

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Return samples, in the interval despite rounding."""
        return self._placed(self.base.sample(key, sample_shape))

    def sample_with_log_prob(
        self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
    ) -> tuple[Array, Array]:
        """Return samples and their log densities, from the same random draw."""
        drawn, density = sample_with_log_prob(self.base, key, sample_shape)
        return self._placed(drawn), jnp.where(self._aligned(drawn)[3], 0.0, density)

    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log density, -inf outside the interval."""
        return self._masked(value, self.base.log_prob)

    def icdf(self, q: ArrayLike) -> Array:
        """Return the quantile at probability `q`."""
        return self._placed(self.base.icdf(q))

    def entropy(self) -> Array:
        """Return the entropy in nats; 0 for a point mass."""
        return jnp.where(self.is_point, 0.0, self.base.entropy())


class Truncated(_OnInterval):
    """The law of a kernel given that it lies in [low, high], with scalar events.

    Samples carry the exact gradient in the kernel's parameters, by the implicit function theorem.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> gaussian = TailKernel(jnp.array(0.0), jnp.array(1.0), 1.0)
        >>> tail = Truncated(gaussian, jnp.array(30.0), jnp.array(40.0))
        >>> print(f"{tail.log_prob(30.0):.4f} {tail.mean:.4f}")  # a Gaussian beyond 30 deviations
        3.4023 30.0333
    """

    pytree_data_fields = ("kernel", "low", "high")

    def __init__(self, kernel: Kernel, low: Array, high: Array) -> None:
        self.kernel, self.low, self.high = kernel, low, high
        super().__init__(jnp.shape(low), validate_args=False)

    def _ends(self) -> tuple[Array, Array]:
        """Return the ends on the kernel's line; those of a point mass are apart, and not used."""
        low = lax.stop_gradient(self.kernel.to_line(self.low))
        high = lax.stop_gradient(self.kernel.to_line(self.high))
        return low, jnp.where(
            self.is_point | (high <= low), low + jnp.maximum(jnp.abs(low), 1.0), high
        )

    def _origin_and_edges(self) -> tuple[Array, Array]:
        """Return where the density is largest, and the edges of the panels relative to it."""
        low, high = self._ends()
        fixed = lax.stop_gradient(self.kernel)
        origin = jnp.clip(fixed.peak(), low, high)

        def slope(distance: Array) -> Array:
            return jax.jvp(lambda d: fixed.log_ratio(origin, d), (distance,), (unit,))[1]

        unit, zero = jnp.ones_like(origin), jnp.zeros_like(origin)
        steepness, curvature = jax.jvp(slope, (zero,), (unit,))
        rate = jnp.sqrt(steepness**2 + jnp.abs(curvature))
        usable = jnp.isfinite(rate) & (rate > 0.0)
        length = jnp.where(usable, 1.0 / jnp.where(usable, rate, 1.0), high - low)
        column = (-1, *(1,) * origin.ndim)
        steps = length[None] * jnp.asarray(_DISTANCES[:-1], origin.dtype).reshape(column)

        def side(room: Array) -> Array:
            return jnp.concatenate([jnp.minimum(steps, room[None]), room[None]])

        left, right = side(origin - low), side(high - origin)
        return origin, lax.stop_gradient(jnp.concatenate([-left[:0:-1], right]))

    def _integrals(
        self, origin: Array, begin: Array, end: Array, weigh: Any = None
    ) -> Float[Array, "..."]:
        """Return the integral of the kernel (relative to the origin) over pieces of the line.

        `weigh(log ratio, position)` is a factor of the integrand.
        """
        shape = (-1, *(1,) * begin.ndim)
        nodes, weights = (
            jnp.asarray(part, begin.dtype).reshape(shape) for part in (_NODES, _WEIGHTS)
        )
        length = (end - begin)[None]
        distance = begin[None] + length * nodes
        log_ratio = self.kernel.log_ratio(origin, distance)
        found = jnp.exp(log_ratio)
        if weigh is not None:
            position = expand_to_rank(origin, distance.ndim) + distance
            # 0 · log 0 is 0 here.
            found = found * weigh(jnp.where(found > 0.0, log_ratio, 0.0), position)
        return jnp.sum(weights * length * found, axis=0)

    def _panels(self) -> tuple[Array, Array, Array]:
        """Return the origin, the edges of the panels and the mass of each, relative to it."""
        origin, edges = self._origin_and_edges()
        return origin, edges, self._integrals(origin, edges[:-1], edges[1:])

    def log_prob(self, value: ArrayLike) -> Array:
        """Return the log density: that of the kernel divided by its mass, -inf outside."""
        origin, _, masses = self._panels()
        return self._masked(value, lambda inside: self._density(inside, origin, masses))

    def _density(self, value: Array, origin: Array, masses: Array) -> Array:
        position = self.kernel.to_line(value)
        log_ratio = self.kernel.log_ratio(origin, position - expand_to_rank(origin, value.ndim))
        log_mass = expand_to_rank(jnp.log(jnp.sum(masses, axis=0)), value.ndim)
        return log_ratio - log_mass - self.kernel.log_slope(position)

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Return samples by inversion, with a gradient."""
        share = jax.random.uniform(key, self.shape(sample_shape), self.low.dtype)
        return self._quantile(share, *self._panels())

    def sample_with_log_prob(
        self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
    ) -> tuple[Array, Array]:
        """Return samples and their log densities."""
        drawn = self.sample(key, sample_shape)
        return drawn, self.log_prob(drawn)

    def icdf(self, q: ArrayLike) -> Array:
        """Return the quantile at probability `q`; nan for q outside [0, 1]."""
        share = expand_to_rank(jnp.asarray(q, self.low.dtype), self.low.ndim)
        share = jnp.broadcast_to(share, jnp.broadcast_shapes(share.shape, self.low.shape))
        found = self._quantile(share, *self._panels())
        _, low, high, _ = self._aligned(share)
        # Exactly the ends, also where the density there is zero in this precision.
        found = jnp.where(share <= 0.0, low, jnp.where(share >= 1.0, high, found))
        return jnp.where((share >= 0.0) & (share <= 1.0), found, jnp.nan)

    def _quantile(self, share: Array, origin: Array, edges: Array, masses: Array) -> Array:
        fixed = lax.stop_gradient(self)
        start = lax.stop_gradient(origin)
        none = jnp.zeros_like(masses[:1])
        below = jnp.concatenate([none, jnp.cumsum(masses, axis=0)])
        above = jnp.concatenate([jnp.cumsum(masses[::-1], axis=0)[::-1], none])
        extra = share.ndim - origin.ndim

        def wide(part: Array) -> Array:
            return jnp.expand_dims(part, tuple(range(1, 1 + extra)))

        def at(table: Array, place: Array) -> Array:
            """Return entries of a table (panels, *batch) at places (*sample, *batch)."""
            table = jnp.broadcast_to(wide(table), (len(table), *place.shape))
            return jnp.take_along_axis(table, place[None], axis=0)[0]

        # Measured from the nearer side, where probabilities are small and have their digits.
        upper = share > 0.5
        total = expand_to_rank(below[-1], share.ndim)
        target = jnp.where(upper, 1.0 - share, share) * lax.stop_gradient(total)
        from_above, from_below = target[None] < wide(above[1:-1]), target[None] >= wide(below[1:-1])
        panel = jnp.sum(jnp.where(upper[None], from_above, from_below), axis=0, dtype=jnp.int32)
        begin, end = at(edges, panel), at(edges, panel + 1)
        anchor = jnp.where(upper, end, begin)
        outside = jnp.where(upper, -at(above, panel + 1), at(below, panel))
        # The signed integral from the anchor to the quantile.
        wanted = jnp.where(upper, -target, target) - lax.stop_gradient(outside)

        def log_ratio(place: Array) -> Array:
            return fixed.kernel.log_ratio(start, place)

        def improve(carry: tuple, _: None) -> tuple[tuple, None]:
            low, high, place = carry
            excess = fixed._integrals(start, anchor, place) - wanted
            low, high = jnp.where(excess < 0, place, low), jnp.where(excess < 0, high, place)
            # The step is exact for a density that is exponential from here on.
            height, slope = jax.jvp(log_ratio, (place,), (jnp.ones_like(place),))
            height = jnp.exp(height)
            missing = -excess / jnp.where(height > 0.0, height, 1.0)
            room = slope * missing
            step = missing * log1p_ratio(jnp.where(room > -1.0, room, 0.0))
            # A step that rounding makes zero stays in the bracket: the quantile is found.
            usable = (place + step >= low) & (place + step <= high) & (height > 0.0)
            usable = usable & (room > -1.0)
            return (low, high, jnp.where(usable, place + step, low + (high - low) / 2.0)), None

        share_of_panel = jnp.abs(wanted) / jnp.maximum(at(lax.stop_gradient(masses), panel), 1e-37)
        first = anchor + jnp.where(upper, begin - end, end - begin) * jnp.clip(
            share_of_panel, 0.0, 1.0
        )
        (_, _, place), _ = lax.scan(improve, (begin, end, first), None, _REFINEMENTS)
        place = lax.stop_gradient(place)
        # F(place; parameters) = share gives d place = −dF / density, as a gradient of value zero.
        shift = (outside + self._integrals(origin, anchor, place)) / total
        height = lax.stop_gradient(jnp.exp(self.kernel.log_ratio(origin, place)) / total)
        moved = (shift - lax.stop_gradient(shift)) / jnp.where(height > 0.0, height, 1.0)
        position = expand_to_rank(start, share.ndim) + place
        return self._placed(self.kernel.from_line(position - jnp.where(height > 0.0, moved, 0.0)))

    @property
    def mean(self) -> Array:
        """The mean."""
        origin, edges, masses = self._panels()
        sums = self._integrals(
            origin, edges[:-1], edges[1:], lambda _, position: self.kernel.from_line(position)
        )
        found = jnp.sum(sums, axis=0) / jnp.sum(masses, axis=0)
        return jnp.where(self.is_point, self.low, found)

    def entropy(self) -> Array:
        """Return the entropy in nats, by quadrature; 0 for a point mass."""
        origin, edges, masses = self._panels()

        def surprise(log_ratio: Array, position: Array) -> Array:
            return self.kernel.log_slope(position) - log_ratio

        sums = self._integrals(origin, edges[:-1], edges[1:], surprise)
        total = jnp.sum(masses, axis=0)
        return jnp.where(self.is_point, 0.0, jnp.sum(sums, axis=0) / total + jnp.log(total))
