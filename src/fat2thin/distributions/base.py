"""What the laws share: equal ranks, sampling from one draw, dtypes, the edges of an action box.

NumPyro lets values have axes in front of a distribution's batch. Here the missing axes are added
explicitly, so that tests can let JAX refuse shapes of unequal rank (`jax_numpy_rank_promotion`).
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
    """Put axes of length 1 in front of `x`, up to `rank` axes; a scalar stays a scalar."""
    present = np.ndim(x)
    if not 0 < present < rank:
        return x
    axes = tuple(range(rank - present))
    if not isinstance(x, jax.Array):
        return np.expand_dims(x, axes)
    # A known index stays known inside a traced function.
    with jax.ensure_compile_time_eval():
        return jnp.expand_dims(x, axes)


def lift(distribution: AnyDistribution, rank: int) -> AnyDistribution:
    """The same distribution with axes of length 1 in front of its batch, up to `rank` axes."""
    missing = rank - len(distribution.batch_shape)
    if missing <= 0 or not distribution.shape():
        return distribution
    lifted = copy.copy(distribution)
    for name, value in distribution.get_args().items():
        setattr(lifted, name, expand_to_rank(value, np.ndim(value) + missing))
    lifted._batch_shape = (1,) * missing + distribution.batch_shape
    return lifted


def at_equal_ranks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method's distribution and its first argument, the values, equal ranks."""
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
    """Clip `value` to [low, high], with the derivative of `value` as if nothing were clipped."""
    return jnp.clip(value, low, high)


@clip_straight_through.defjvp
def _clip_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    clipped = clip_straight_through(*primals)
    return clipped, jnp.broadcast_to(tangents[0], clipped.shape)


def broadcast_parameters(**parameters: ArrayLike) -> tuple[tuple[int, ...], list[Any]]:
    """Return the common shape of named parameters, and the parameters with as many axes.

    Raise a ValueError that names them and their shapes if they do not broadcast.
    """
    shapes = {name: jnp.shape(value) for name, value in parameters.items()}
    try:
        return np.broadcast_shapes(*shapes.values()), promote_shapes(*parameters.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"Parameters do not broadcast to one shape: {listed}.") from None


class Law(Distribution):
    """A distribution whose samples and their log densities come from one draw.

    Subclasses define `_draw(key, sample_shape)`, `_place(draw)` and `_log_density(draw)`.
    """

    def sample(self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()) -> Array:
        """Return exact samples, in the support despite rounding, reparametrised."""
        return self._over(sample_shape)._place(self._draw(key, sample_shape))

    def sample_with_log_prob(
        self, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
    ) -> tuple[Array, Array]:
        """Return samples and their log density, the latter from the draw itself.

        Equal to `log_prob(sample)` up to rounding, but not clamped, and finite and accurate at the
        very edge of the support, where the sample has lost its distance to it.
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
    """A scalar distribution on the box [low, high], one box per element of the batch.

    Subclasses also define `_quantile(share)`: icdf for a share strictly between 0 and 1.
    """

    low: ArrayLike
    high: ArrayLike

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The box, edges included."""
        return constraints.interval(self.low, self.high)

    @at_equal_ranks
    def support_mask(self, value: ArrayLike) -> Bool[Array, "..."]:
        """Where a value lies in the box, edges included."""
        return (jnp.asarray(self.low) <= value) & (value <= jnp.asarray(self.high))

    def validate_args(self, strict: bool = True) -> None:
        """NumPyro's checks, and that low is below high."""
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
        """Return the value below which a share `q` of the mass lies; NaN for q outside [0, 1]."""
        share = self._as_value(q)
        info = jnp.finfo(share.dtype)
        # At 0 and 1 the quantile before the box is infinite, and so would be its derivative.
        value = self._quantile(jnp.clip(share, float(info.tiny), 1.0 - float(info.epsneg)))
        value = jnp.where(share <= 0.0, self.low, jnp.where(share >= 1.0, self.high, value))
        return jnp.where((share >= 0.0) & (share <= 1.0), value, jnp.nan)

    def _clip(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """Undo rounding past an edge of the box; the gradient passes straight through."""
        return clip_straight_through(value, self.low, self.high)

    def _half_range(self) -> Float[Array, "..."]:
        return jnp.asarray(self.high, self._dtype()) / 2.0 - jnp.asarray(self.low) / 2.0

    def _middle(self) -> Float[Array, "..."]:
        return jnp.asarray(self.low, self._dtype()) / 2.0 + jnp.asarray(self.high) / 2.0

    def _margins(self, value: Array, unit: Array, floor: float) -> tuple[Array, Array]:
        """Return distances to low and to high in units of `unit`, each at least `floor`.

        Both come from a subtraction of the edge itself, so neither loses digits next to it.
        """
        below = jnp.maximum((value - self.low) / unit, floor)
        above = jnp.maximum((self.high - value) / unit, floor)
        return below, above

    def _zero_outside(self, value: Array, log_density: Array) -> Array:
        """Return `log_density` in the box and -inf outside; NaN stays NaN."""
        return jnp.where((value < self.low) | (value > self.high), -jnp.inf, log_density)
