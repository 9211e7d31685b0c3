"""The standard q-Gaussian (location 0, scale 1): normaliser, entropy, kernel.

Around q = 1 the Gamma functions of the textbook formulas have arguments that grow as 1 / |1 - q|
and cancel; there a series in (1 - q)^2 takes over, exact in value and derivative.
"""

import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from jaxtyping import Array, ArrayLike, Bool, Float

from fat2thin.distributions.q_math import log1p_ratio, polynomial

# Closer to 1 than this the Gamma functions of 1 / |1 - q| cancel and a series takes over.
NEAR_GAUSSIAN = 0.1
_LOG_2_PI = math.log(2.0 * math.pi)
# Stirling's series for log(Gamma(c + 1/4) / Gamma(c + 3/4)) + log(c) / 2 in powers of 1 / c^2:
# coefficient k is E_2k / (4^(2k + 1) k) with Euler's numbers E_2k (DLMF 5.11.8 and 24.4.31).
_EULER_NUMBERS = (-1, 5, -61, 1385, -50521, 2702765, -199360981, 19391512145, -2404879675441)
_GAMMA_RATIO = (0.0, *(e / (4.0 ** (2 * k + 1) * k) for k, e in enumerate(_EULER_NUMBERS, 1)))
_STEPS = 8
_GAMMA_RATIO_SLOPE = tuple(k * a for k, a in enumerate(_GAMMA_RATIO))[1:]


class GammaPair(NamedTuple):
    """What normaliser and entropy need: both are functions of Gamma(lower) / Gamma(upper)."""

    near: Bool[Array, "..."]
    stretch: Float[Array, "..."]  # c |1 - q|, which is 1 at q = 1
    inverse_square: Float[Array, "..."]  # 1 / c^2
    distance: Float[Array, "..."]  # |1 - q|
    lower: Float[Array, "..."]
    upper: Float[Array, "..."]


def gamma_pair(entropic_index: ArrayLike) -> GammaPair:
    """The Gamma arguments of an index, and the small parameters that replace them near 1."""
    index = jnp.asarray(entropic_index, jnp.result_type(entropic_index, float))
    near = jnp.abs(index - 1.0) < NEAR_GAUSSIAN
    close = jnp.where(near, index, 1.0)
    stretch = (7.0 - 3.0 * close) / 4.0
    far = jnp.where(near, 0.0, index)
    sparse = far < 1.0
    distance = jnp.abs(1.0 - far)
    lower = jnp.where(sparse, 1.0 / distance + 1.0, (3.0 - far) / (2.0 * distance))
    upper = jnp.where(sparse, 1.0 / distance + 1.5, 1.0 / distance)
    return GammaPair(near, stretch, ((close - 1.0) / stretch) ** 2, distance, lower, upper)


def _log_gamma_ratio(lower: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(Gamma(x) / Gamma(x + 1/2)): the recurrence up to where Stirling's series is exact.

    A difference of two log-Gamma functions would lose three more digits in float32.
    """
    ratio = jnp.ones_like(lower)
    for step in range(_STEPS):
        ratio = ratio * (1.0 + 0.5 / (lower + step))
    centre = lower - 0.25 + _STEPS
    return jnp.log(ratio) - jnp.log(centre) / 2.0 + polynomial(_GAMMA_RATIO, centre**-2.0)


def is_known(value: ArrayLike) -> bool:
    """Whether a value is a number now, rather than traced."""
    return not isinstance(value, jax.core.Tracer)


def by_closeness(
    entropic_index: Float[Array, "..."],
    near: Callable[[Float[Array, "..."]], Array],
    far: Callable[[Float[Array, "..."]], Array],
) -> Array:
    """`near(index)` where the index is close to 1, `far(index)` elsewhere.

    Each sees indices of its own side only. For a known index the other side is not computed.
    """
    if is_known(entropic_index):
        close = np.abs(np.asarray(entropic_index) - 1.0) < NEAR_GAUSSIAN
        if np.all(close):
            return near(entropic_index)
        if not np.any(close):
            return far(entropic_index)
    mask = jnp.abs(entropic_index - 1.0) < NEAR_GAUSSIAN
    by_series = near(jnp.where(mask, entropic_index, 1.0))
    return jnp.where(mask, by_series, far(jnp.where(mask, 0.0, entropic_index)))


def _as_constant(function: Callable[[ArrayLike], Array]) -> Callable[[ArrayLike], Array]:
    """Evaluate a function of a known index while tracing, so that it costs nothing afterwards."""
    compiled = jax.jit(function)

    @wraps(function)
    def wrapped(entropic_index: ArrayLike) -> Array:
        if not is_known(entropic_index):
            return compiled(entropic_index)
        with jax.ensure_compile_time_eval():
            return compiled(entropic_index)

    return wrapped


@_as_constant
def log_normaliser(entropic_index: ArrayLike) -> Float[Array, "..."]:
    """log Z_q for scale 1, smooth across q = 1."""
    pair = gamma_pair(entropic_index)
    series = -jnp.log(pair.stretch) / 2.0 + polynomial(_GAMMA_RATIO, pair.inverse_square)
    direct = _log_gamma_ratio(pair.lower) - jnp.log(pair.distance) / 2.0
    return _LOG_2_PI / 2.0 + jnp.where(pair.near, series, direct)


@_as_constant
def entropy_excess(entropic_index: ArrayLike) -> Float[Array, "..."]:
    """Shannon entropy minus log Z_q, the same for every scale; 1/2 at q = 1."""
    pair = gamma_pair(entropic_index)
    slope = pair.inverse_square * polynomial(_GAMMA_RATIO_SLOPE, pair.inverse_square)
    series = (0.5 + 2.0 * slope) / pair.stretch
    direct = (digamma(pair.upper) - digamma(pair.lower)) / pair.distance
    return jnp.where(pair.near, series, direct)


def log_kernel(
    deviation: Float[Array, "..."], entropic_index: ArrayLike, scale: ArrayLike = 1.0
) -> Float[Array, "..."]:
    """log exp_q(-y^2 / 2) at y = deviation / scale inside the support.

    Inside the support 1 - (1 - q) y^2 / 2 is floored at the machine epsilon, so that a point of
    the support is never -inf by rounding. Beyond float's range of y^2 the result is -inf for
    q <= 1, and the power law takes over for q > 1, even where y itself overflows.
    """
    info = jnp.finfo(deviation.dtype)
    standardised = deviation / scale
    magnitude = jnp.abs(standardised)
    representable = magnitude < float(np.sqrt(info.max)) / 8.0

    def tail_of(index: Array) -> tuple[Array, Array]:
        """Where 1 + z and z are the same number: z may overflow there, its logarithm does not."""
        heavy = index > 1.0
        shift = jnp.where(heavy, index - 1.0, 1.0)
        return heavy & (magnitude > jnp.sqrt(8.0 / (info.eps * shift))), shift

    def near(index: Array) -> Array:
        tail, shift = tail_of(index)
        log_magnitude = jnp.log(jnp.where(tail, jnp.abs(deviation), 1.0)) - jnp.log(scale)
        power_law = -(jnp.log(shift / 2.0) + 2.0 * log_magnitude) / shift
        energy = jnp.where(tail | ~representable, 0.0, standardised) ** 2 / 2.0
        argument = jnp.maximum((index - 1.0) * energy, info.eps - 1.0)
        too_far = ~tail & ~representable & ~jnp.isnan(standardised)
        inner = jnp.where(too_far, -jnp.inf, -energy * log1p_ratio(argument))
        return jnp.where(tail, power_law, inner)

    def far(index: Array) -> Array:
        tail, shift = tail_of(index)
        squared = jnp.where(tail | ~representable, 0.0, standardised) ** 2
        inner = jnp.maximum(1.0 + (index - 1.0) / 2.0 * squared, info.eps)
        outer = jnp.abs(deviation) * jnp.sqrt(shift / 2.0)
        logarithm = jnp.log(jnp.where(tail, outer, inner))
        doubled = jnp.where(tail, 2.0 * (logarithm - jnp.log(scale)), logarithm)
        return doubled / (1.0 - index)

    return by_closeness(jnp.asarray(entropic_index, deviation.dtype), near, far)
