"""What the distributions on an action box have in common: its checks and its edges."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float
from numpyro.distributions import Distribution, constraints
from numpyro.util import not_jax_tracer

from fat2thin.distributions.ranks import at_equal_ranks


@jax.custom_jvp
def clip_straight_through(
    value: Float[Array, "..."], low: ArrayLike, high: ArrayLike
) -> Float[Array, "..."]:
    """`value` clipped to [low, high]; the derivative is that of `value`, as if nothing were cut."""
    return jnp.clip(value, low, high)


@clip_straight_through.defjvp
def _clip_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    clipped = clip_straight_through(*primals)
    return clipped, jnp.broadcast_to(tangents[0], clipped.shape)


class BoxDistribution(Distribution):
    """A scalar distribution on the box [low, high], one box per element of the batch."""

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

    def _dtype(self) -> jnp.dtype:
        return jnp.result_type(*(getattr(self, name) for name in self.arg_constraints), float)

    def _as_value(self, value: ArrayLike) -> Float[Array, "..."]:
        return jnp.asarray(value, jnp.result_type(value, self._dtype()))

    def _half_range(self) -> Float[Array, "..."]:
        return jnp.asarray(self.high, self._dtype()) / 2.0 - jnp.asarray(self.low) / 2.0

    def _middle(self) -> Float[Array, "..."]:
        return jnp.asarray(self.low, self._dtype()) / 2.0 + jnp.asarray(self.high) / 2.0

    def _margins(
        self, value: Float[Array, "..."], unit: Float[Array, "..."], floor: float
    ) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Distances to low and to high in units of `unit`, each at least `floor`.

        Both come from a subtraction of the edge itself, so neither loses digits next to it.
        """
        below = jnp.maximum((value - self.low) / unit, floor)
        above = jnp.maximum((self.high - value) / unit, floor)
        return below, above

    def _zero_outside(
        self, value: Float[Array, "..."], log_density: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """`log_density` in the box and -inf outside; NaN stays NaN."""
        outside = (value < self.low) | (value > self.high)
        return jnp.where(outside, -jnp.inf, log_density)
