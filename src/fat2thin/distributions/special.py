"""Gamma functions in combinations whose large parts cancel, without the cancellation.

Both rest on Stirling's formula, log Gamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + r(x) with
r(x) = sum over k of B_2k / (2 k (2 k - 1) x^(2k - 1)), above a switch point, and on the
definition below it.
"""

import math

import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float

# B_2k / (2 k) for k = 1, 2, ...; with this switch, the first one left out is under 1e-16.
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_SERIES_ABOVE = 16.0
_HALF_LOG_2_PI = math.log(2.0 * math.pi) / 2.0


def _stirling_remainder(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """r(x), which is 1 / (12 x) for large x."""
    large = x > _SERIES_ABOVE
    near = jnp.where(large, 1.0, x)
    direct = gammaln(near) - (near - 0.5) * jnp.log(near) + near - _HALF_LOG_2_PI
    far = jnp.where(large, x, _SERIES_ABOVE)
    series = sum(b / (2 * k - 1) * far ** (1 - 2 * k) for k, b in enumerate(_BERNOULLI, 1))
    return jnp.where(large, series, direct)


def log_beta(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """log of the Beta function B(a, b) for a, b > 0.

    jax.scipy.special.betaln is off by 1e-6 when an argument is 8 or above, in float64 as well.
    """
    shares = -a * jnp.log1p(b / a) - b * jnp.log1p(a / b)
    spread = _HALF_LOG_2_PI + (jnp.log(a + b) - jnp.log(a) - jnp.log(b)) / 2.0
    remainder = _stirling_remainder(a) + _stirling_remainder(b) - _stirling_remainder(a + b)
    return shares + spread + remainder


def gamma_entropy(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Entropy of a Gamma(x, 1) variable, x + log Gamma(x) + (1 - x) digamma(x)."""
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
