"""Clipping that can be undone: what has overstepped a bound is still told the way back.

With a plain clip the gradient beyond a bound is zero, and what has once got there stays there.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def clip_inward(x: Float[Array, "..."], low: Array, high: Array) -> Float[Array, "..."]:
    """Clip to fixed bounds, but let a gradient through that pulls a value back inside."""
    return jnp.clip(x, low, high)


def _clip_forward(x: Array, low: Array, high: Array) -> tuple[Array, tuple[Array, Array]]:
    return clip_inward(x, low, high), (x > high, x < low)


def _clip_backward(residual: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    above, below = residual
    blocked = (above & (gradient < 0.0)) | (below & (gradient > 0.0))
    return jnp.where(blocked, 0.0, gradient), None, None


clip_inward.defvjp(_clip_forward, _clip_backward)


@jax.custom_vjp
def slide_inside(centre: Float[Array, "..."], half_width: Array) -> Float[Array, "..."]:
    """The centre nearest to `centre` whose band of `half_width` lies within -1 and 1.

    A centre that was moved lets a gradient through that pulls it back inside; the half-width, which
    then decides where it stands, gets its own.
    """
    return jnp.clip(centre, half_width - 1.0, 1.0 - half_width)


def _slide_forward(centre: Array, half_width: Array) -> tuple[Array, tuple[Array, Array]]:
    sides = (centre > 1.0 - half_width, centre < half_width - 1.0)
    return slide_inside(centre, half_width), sides


def _slide_backward(sides: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    above, below = sides
    outward = (above & (gradient < 0.0)) | (below & (gradient > 0.0))
    of_width = jnp.where(above, -gradient, jnp.where(below, gradient, 0.0))
    return jnp.where(outward, 0.0, gradient), of_width


slide_inside.defvjp(_slide_forward, _slide_backward)
