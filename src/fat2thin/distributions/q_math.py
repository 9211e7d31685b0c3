"""Special functions: q-exponential, q-logarithm, and Gamma functions without cancellation.

Every formula of the q-Gaussian family is a power that tends to an exponential as the entropic
index q tends to 1. Written with `expm1(x) / x` and `log1p(x) / x` it needs no special case at
q = 1. The ratios use a series around 0, so values *and derivatives* are accurate there in float32
as well.

Combinations of Gamma functions whose large terms cancel use Stirling's formula above a switch
point: log Gamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + r(x) with
r(x) = sum over k of B_2k / (2 k (2 k - 1) x^(2k - 1)).
"""

import math

import jax.numpy as jnp
from jax.scipy.special import betainc, digamma, gammaln
from jaxtyping import Array, ArrayLike, Bool, Float

# Coefficients in ascending powers. With the switch points below, the first omitted term is below
# 1e-17.
_ATANH_RATIO = tuple(1 / (2 * k + 1) for k in range(10))
_SINH_RATIO = tuple(1 / math.factorial(2 * k + 1) for k in range(9))
_LOG1P_SERIES_BELOW = 0.25
_EXPM1_SERIES_BELOW = 1.0
# B_2k / (2 k) for k = 1, 2, ... With this switch point, the first omitted term is below 1e-16.
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SERIES_ABOVE = 16.0
_HALF_LOG_2_PI = math.log(2.0 * math.pi) / 2.0


def polynomial(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the polynomial with these coefficients (ascending powers), by Horner's rule."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def log1p_ratio(x: ArrayLike) -> Float[Array, "..."]:
    """Return log(1 + x) / x for x > -1 (1 at x = 0), smooth in value and derivative."""
    x = jnp.asarray(x, jnp.result_type(x, float))
    small = jnp.abs(x) < _LOG1P_SERIES_BELOW
    # log(1 + x) = 2 artanh(x / (2 + x)), a series in a smaller number squared.
    near = jnp.where(small, x, 0.0)
    argument = near / (2.0 + near)
    series = 2.0 / (2.0 + near) * polynomial(_ATANH_RATIO, argument**2)
    far = jnp.where(small, 1.0, x)
    # Away from 0 the plain logarithm is accurate to the last digit; XLA's log1p loses two digits
    # around -0.414 in float64.
    return jnp.where(small, series, jnp.log(1.0 + far) / far)


def log_expm1_ratio(x: ArrayLike) -> Float[Array, "..."]:
    """Return log((exp(x) - 1) / x) (0 at x = 0); never overflows for finite x."""
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
    """Return the q-exponential [1 + (1 - q) x]_+^(1 / (1 - q)), which is exp(x) at q = 1.

    It is exactly zero for q < 1 and x <= -1 / (1 - q), and infinite for q > 1 and x >= 1 / (q - 1).

    Examples:
        >>> from fat2thin.distributions.q_math import exp_q
        >>> [round(float(exp_q(-2.0, q)), 4) for q in (0.0, 1.0, 2.0)]
        [0.0, 0.1353, 0.3333]
    """
    dtype = jnp.result_type(x, entropic_index, float)
    x, index = jnp.asarray(x, dtype), jnp.asarray(entropic_index, dtype)
    scaled = (1.0 - index) * x
    beyond = scaled <= -1.0
    safe_x = jnp.where(beyond, 0.0, x)
    value = jnp.exp(safe_x * log1p_ratio(jnp.where(beyond, 0.0, scaled)))
    return jnp.where(beyond, jnp.where(index < 1.0, 0.0, jnp.inf), value)


def log_q(x: ArrayLike, entropic_index: ArrayLike) -> Float[Array, "..."]:
    """Return the q-logarithm (x^(1 - q) - 1) / (1 - q), which is log(x) at q = 1.

    At x = 0 it is -1 / (1 - q) for q < 1 and -inf otherwise. For x < 0 it is NaN.

    Examples:
        >>> from fat2thin.distributions.q_math import log_q
        >>> [round(float(log_q(0.5, q)), 4) for q in (0.0, 1.0, 2.0)]
        [-0.5, -0.6931, -1.0]
    """
    dtype = jnp.result_type(x, entropic_index, float)
    x, index = jnp.asarray(x, dtype), jnp.asarray(entropic_index, dtype)
    positive = x > 0.0
    logarithm = jnp.log(jnp.where(positive, x, 1.0))
    value = logarithm * jnp.exp(log_expm1_ratio((1.0 - index) * logarithm))
    sparse = index < 1.0
    at_zero = jnp.where(sparse, -1.0 / (1.0 - jnp.where(sparse, index, 0.0)), -jnp.inf)
    return jnp.where(positive, value, jnp.where(x == 0.0, at_zero, jnp.nan))


def _stirling_remainder(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return r(x) of Stirling's formula, which tends to 1 / (12 x) for large x."""
    large = x > _SERIES_ABOVE
    near = jnp.where(large, 1.0, x)
    direct = gammaln(near) - (near - 0.5) * jnp.log(near) + near - _HALF_LOG_2_PI
    far = jnp.where(large, x, _SERIES_ABOVE)
    series = sum(b / (2 * k - 1) * far ** (1 - 2 * k) for k, b in enumerate(_BERNOULLI, 1))
    return jnp.where(large, series, direct)


def log_beta(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the log of the Beta function B(a, b) for a, b > 0.

    jax.scipy.special.betaln has an error of 1e-6 if an argument is 8 or above, even in float64.
    """
    shares = -a * jnp.log1p(b / a) - b * jnp.log1p(a / b)
    spread = _HALF_LOG_2_PI + (jnp.log(a + b) - jnp.log(a) - jnp.log(b)) / 2.0
    remainder = _stirling_remainder(a) + _stirling_remainder(b) - _stirling_remainder(a + b)
    return shares + spread + remainder


def incomplete_beta(
    a: ArrayLike, b: ArrayLike, x: Array, complement: Array, mirrored: Bool[Array, "..."]
) -> Float[Array, "..."]:
    """Return I_x(a, b) with complement = 1 - x; as 1 - I_complement(b, a) where `mirrored`."""
    share = betainc(
        jnp.where(mirrored, b, a), jnp.where(mirrored, a, b), jnp.where(mirrored, complement, x)
    )
    return jnp.where(mirrored, 1.0 - share, share)


def gamma_entropy(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the entropy of a Gamma(x, 1) variable, x + log Gamma(x) + (1 - x) digamma(x)."""
    large = x > _SERIES_ABOVE
    near = jnp.where(large, 1.0, x)
    direct = near + gammaln(near) + (1.0 - near) * digamma(near)
    far = jnp.where(large, x, _SERIES_ABOVE)
    correction = sum(
        b * far ** (1 - 2 * k) * (2 * k / (2 * k - 1) - 1.0 / far)
        for k, b in enumerate(_BERNOULLI, 1)
    )
    series = _HALF_LOG_2_PI + (1.0 + jnp.log(far) - 1.0 / far) / 2.0 + correction
    return jnp.where(large, series, direct)
