"""Base classes and helpers of the distributions: sampling, equal ranks, dtypes, action boxes.

NumPyro allows values with extra axes in front of a distribution's batch. Here the missing axes are
added explicitly, so tests can run with JAX's implicit rank promotion turned off
(`jax_numpy_rank_promotion="raise"`).
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Key
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.util import promote_shapes
from numpyro.util import not_jax_tracer

AnyDistribution = TypeVar("AnyDistribution", bound=Distribution)


def expand_to_rank(x: Any, rank: int) -> Any:
    """Prepend axes of length 1 to `x` until it has `rank` axes; scalars are returned unchanged."""
    present = np.ndim(x)
    if not 0 < present < rank:
        return x
    axes = tuple(range(rank - present))
    if not isinstance(x, jax.Array):
        return np.expand_dims(x, axes)
    # Inside a traced function, a concrete index must stay concrete.
    with jax.ensure_compile_time_eval():
        return jnp.expand_dims(x, axes)


def lift(distribution: AnyDistribution, rank: int) -> AnyDistribution:
    """Return the distribution with axes of length 1 prepended to its batch, up to `rank` axes."""
    missing = rank - len(distribution.batch_shape)
    if missing <= 0 or not distribution.shape():
        return distribution
    lifted = copy.copy(distribution)
    for name, value in distribution.get_args().items():
        setattr(lifted, name, expand_to_rank(value, np.ndim(value) + missing))
    lifted._batch_shape = (1,) * missing + distribution.batch_shape
    return lifted


def at_equal_ranks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method so that the distribution and its first argument have equal ranks."""
    name = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def aligned(self: Distribution, *arguments: Any, **named: Any) -> Any:
        value, *rest = arguments or (named.pop(name),)
        events = len(self.event_shape)
        value = expand_to_rank(value, len(self.batch_shape) + events)
        return method(lift(self, np.ndim(value) - events), value, *rest, **named)

    return aligned


@jax.custom_jvp
def clip_straight_through(
    value: Float[Array, "..."], low: ArrayLike, high: ArrayLike
) -> Float[Array, "..."]:
    """Clip `value` to [low, high]; the gradient passes through as if nothing were clipped."""
    return jnp.clip(value, low, high)


@clip_straight_through.defjvp
def _clip_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    clipped = clip_straight_through(*primals)
    return clipped, jnp.broadcast_to(tangents[0], clipped.shape)


def broadcast_parameters(**parameters: ArrayLike) -> tuple[tuple[int, ...], list[Any]]:
    """Return the broadcast shape of the parameters, and the parameters promoted to its rank.

    Raise a ValueError with their names and shapes if they do not broadcast.
    """
    shapes = {name: jnp.shape(value) for name, value in parameters.items()}
    try:
        return np.broadcast_shapes(*shapes.values()), promote_shapes(*parameters.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"Parameters do not broadcast to one shape: {listed}.") from None


class Law(Distribution):
    """A distribution that computes samples and their log densities from the same random draw.

    Subclasses define `_draw(key, sample_shape)`, which returns parameter-free random numbers,
    `_place(draw)`, which maps them to samples, and `_log_density(draw)`.
    """

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Return reparametrised samples. Rounding never moves one outside the support."""
        return self._over(sample_shape)._place(self._draw(key, sample_shape))

    def sample_with_log_prob(
        self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
    ) -> tuple[Array, Array]:
        """Return samples and their log densities, computed from the same random draw.

        The log density equals `log_prob(sample)` up to rounding. Unlike `log_prob` it is not
        clamped, and it stays finite and accurate at the edge of the support, where the rounded
        sample no longer resolves its distance to the edge.
        """
        draw, law = self._draw(key, sample_shape), self._over(sample_shape)
        return law._place(draw), law._log_density(draw)

    def _over(self, sample_shape: tuple[int, ...]) -> "Law":
        return lift(self, len(sample_shape) + len(self.batch_shape))

    def _dtype(self) -> jnp.dtype:
        return jnp.result_type(*self.get_args().values(), float)

    def _as_value(self, value: ArrayLike) -> Float[Array, "..."]:
        return jnp.asarray(value, jnp.result_type(value, self._dtype()))


class BoxLaw(Law):
    """A scalar distribution on the box [low, high], with one box per batch element.

    Subclasses also define `_quantile(share)`, the icdf for a share strictly between 0 and 1.
    """

    low: ArrayLike
    high: ArrayLike

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The box, edges included."""
        return constraints.interval(self.low, self.high)

    @at_equal_ranks
    def support_mask(self, value: ArrayLike) -> Bool[Array, "..."]:
        """Return whether each value lies in the box, edges included."""
        return (jnp.asarray(self.low) <= value) & (value <= jnp.asarray(self.high))

    def validate_args(self, strict: bool = True) -> None:
        """Run NumPyro's checks, and check that low is below high."""
        super().validate_args(strict)
        with jax.ensure_compile_time_eval():
            ordered = jnp.less(self.low, self.high)
            if not_jax_tracer(ordered) and not np.all(ordered):
                raise ValueError(
                    f"{type(self).__name__} distribution got invalid low and high parameters: "
                    "low must be below high."
                )

    @at_equal_ranks
    def icdf(self, q: ArrayLike) -> Float[Array, "..."]:
        """Return the quantile at probability `q`; NaN for q outside [0, 1]."""
        share = self._as_value(q)
        info = jnp.finfo(share.dtype)
        # At 0 and 1 the quantile on the unbounded scale is infinite, and so is its derivative.
        value = self._quantile(jnp.clip(share, float(info.tiny), 1.0 - float(info.epsneg)))
        value = jnp.where(share <= 0.0, self.low, jnp.where(share >= 1.0, self.high, value))
        return jnp.where((share >= 0.0) & (share <= 1.0), value, jnp.nan)

    def _clip(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """Move values that rounding put past an edge back to it; gradients pass through."""
        return clip_straight_through(value, self.low, self.high)

    def _half_range(self) -> Float[Array, "..."]:
        return jnp.asarray(self.high, self._dtype()) / 2.0 - jnp.asarray(self.low) / 2.0

    def _middle(self) -> Float[Array, "..."]:
        return jnp.asarray(self.low, self._dtype()) / 2.0 + jnp.asarray(self.high) / 2.0

    def _margins(self, value: Array, unit: Array, floor: float) -> tuple[Array, Array]:
        """Return the distances to low and to high divided by `unit`, each at least `floor`.

        Each is measured from its own edge, so neither loses digits close to that edge.
        """
        below = jnp.maximum((value - self.low) / unit, floor)
        above = jnp.maximum((self.high - value) / unit, floor)
        return below, above

    def _zero_outside(self, value: Array, log_density: Array) -> Array:
        """Return `log_density` in the box and -inf outside; NaN stays NaN."""
        return jnp.where((value < self.low) | (value > self.high), -jnp.inf, log_density)
