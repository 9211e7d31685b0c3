"""The q-exponential, the q-logarithm, and the two ratios that keep them smooth at q = 1.

Every formula of the q-Gaussian family is a power that tends to an exponential as the entropic
index q tends to 1. Written with `expm1(x) / x` and `log1p(x) / x` it crosses q = 1 without a
switch; the ratios themselves use a series around 0, so that values *and derivatives* are right
there in float32 as well.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

# Coefficients in ascending powers; with the switch points below, the first one left out is
# under 1e-17.
_ATANH_RATIO = tuple(1 / (2 * k + 1) for k in range(10))
_SINH_RATIO = tuple(1 / math.factorial(2 * k + 1) for k in range(9))
_LOG1P_SERIES_BELOW = 0.25
_EXPM1_SERIES_BELOW = 1.0


def polynomial(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The polynomial with these coefficients, in ascending powers, by Horner's rule."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def log1p_ratio(x: ArrayLike) -> Float[Array, "..."]:
    """log(1 + x) / x for x > -1, equal to 1 at 0, smooth in value and derivative."""
    x = jnp.asarray(x, jnp.result_type(x, float))
    small = jnp.abs(x) < _LOG1P_SERIES_BELOW
    # log(1 + x) = 2 artanh(x / (2 + x)): a series in the square of a smaller number.
    near = jnp.where(small, x, 0.0)
    argument = near / (2.0 + near)
    series = 2.0 / (2.0 + near) * polynomial(_ATANH_RATIO, argument**2)
    far = jnp.where(small, 1.0, x)
    # Away from 0 the plain logarithm is right to the last digit; XLA's log1p loses two digits
    # around -0.414 in float64.
    return jnp.where(small, series, jnp.log(1.0 + far) / far)


def log_expm1_ratio(x: ArrayLike) -> Float[Array, "..."]:
    """log((exp(x) - 1) / x), equal to 0 at 0; never overflows for finite x."""
    x = jnp.asarray(x, jnp.result_type(x, float))
    small = jnp.abs(x) < _EXPM1_SERIES_BELOW
    # (exp(x) - 1) / x = exp(x / 2) sinh(x / 2) / (x / 2).
    half = jnp.where(small, x, 0.0) / 2.0
    series = half + jnp.log(polynomial(_SINH_RATIO, half**2))
    far = jnp.where(small, 1.0, x)
    magnitude = jnp.abs(far)
    direct = jnp.maximum(far, 0.0) + jnp.log(-jnp.expm1(-magnitude)) - jnp.log(magnitude)
    return jnp.where(small, series, direct)


def exp_q(x: ArrayLike, entropic_index: ArrayLike) -> Float[Array, "..."]:
    """The q-exponential [1 + (1 - q) x]_+^(1 / (1 - q)); exp(x) at q = 1.

    Exactly zero for q < 1 and x <= -1 / (1 - q); infinite for q > 1 and x >= 1 / (q - 1).
    """
    dtype = jnp.result_type(x, entropic_index, float)
    x, index = jnp.asarray(x, dtype), jnp.asarray(entropic_index, dtype)
    scaled = (1.0 - index) * x
    beyond = scaled <= -1.0
    safe_x = jnp.where(beyond, 0.0, x)
    value = jnp.exp(safe_x * log1p_ratio(jnp.where(beyond, 0.0, scaled)))
    return jnp.where(beyond, jnp.where(index < 1.0, 0.0, jnp.inf), value)


def log_q(x: ArrayLike, entropic_index: ArrayLike) -> Float[Array, "..."]:
    """The q-logarithm (x^(1 - q) - 1) / (1 - q); log(x) at q = 1; NaN for x < 0.

    At x = 0 it is -1 / (1 - q) for q < 1 and -inf otherwise.
    """
    dtype = jnp.result_type(x, entropic_index, float)
    x, index = jnp.asarray(x, dtype), jnp.asarray(entropic_index, dtype)
    positive = x > 0.0
    logarithm = jnp.log(jnp.where(positive, x, 1.0))
    value = logarithm * jnp.exp(log_expm1_ratio((1.0 - index) * logarithm))
    sparse = index < 1.0
    at_zero = jnp.where(sparse, -1.0 / (1.0 - jnp.where(sparse, index, 0.0)), -jnp.inf)
    return jnp.where(positive, value, jnp.where(x == 0.0, at_zero, jnp.nan))
