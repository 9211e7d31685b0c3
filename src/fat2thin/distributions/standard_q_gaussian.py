"""The standard q-Gaussian (location 0, scale 1): normaliser, entropy, kernel, tail, cdf, icdf.

Around q = 1 the Gamma functions of the textbook formulas have arguments of order 1 / |1 - q| and
cancel. There a series in (1 - q)^2 is used instead, accurate in value and derivative, and the tail
is computed by quadrature. Elsewhere the tail is an incomplete Beta function. The quantile is found
by Newton's method on the log tail as a function of the log distance, which is concave for every
index, so the steps converge from one side.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import digamma
from jaxtyping import Array, ArrayLike, Bool, Float
from numpyro.util import not_jax_tracer

from fat2thin.distributions.q_math import (
    incomplete_beta,
    log1p_ratio,
    log_beta,
    log_expm1_ratio,
    polynomial,
)

# Within this distance of 1 a series replaces the Gamma functions of 1 / |1 - q|, which cancel.
NEAR_GAUSSIAN = 0.1
_LOG_2_PI = math.log(2.0 * math.pi)
# Stirling's series for log(Gamma(c + 1/4) / Gamma(c + 3/4)) + log(c) / 2 in powers of 1 / c^2:
# coefficient k is E_2k / (4^(2k + 1) k) with Euler's numbers E_2k (DLMF 5.11.8 and 24.4.31).
_EULER_NUMBERS = (-1, 5, -61, 1385, -50521, 2702765, -199360981, 19391512145, -2404879675441)
_GAMMA_RATIO = (0.0, *(e / (4.0 ** (2 * k + 1) * k) for k, e in enumerate(_EULER_NUMBERS, 1)))
_STEPS = 8
_GAMMA_RATIO_SLOPE = tuple(k * a for k, a in enumerate(_GAMMA_RATIO))[1:]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
# A tail is truncated where the density has fallen by this many e-folds.
_FOLDS = 40.0
_MAX_ITERATIONS = 200

# Lower and upper end of the bracket, current point, whether any point moved, number of steps.
Search = tuple[Array, Array, Array, Array, Array]


class GammaPair(NamedTuple):
    """Arguments of Gamma(lower) / Gamma(upper), which determines normaliser and entropy."""

    near: Bool[Array, "..."]
    """Whether the index is close to 1, where the series in 1 / c^2 is used."""
    stretch: Float[Array, "..."]
    """c |1 - q|, which is 1 at q = 1."""
    inverse_square: Float[Array, "..."]
    """1 / c^2."""
    distance: Float[Array, "..."]
    """|1 - q|."""
    lower: Float[Array, "..."]
    upper: Float[Array, "..."]


def gamma_pair(entropic_index: ArrayLike) -> GammaPair:
    """Return the Gamma arguments of an index, and the series parameters used near 1."""
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
    """Return log(Gamma(x) / Gamma(x + 1/2)) by recurrence to where Stirling's series is accurate.

    A difference of two log-Gamma functions would lose three more digits in float32.
    """
    ratio = jnp.ones_like(lower)
    for step in range(_STEPS):
        ratio = ratio * (1.0 + 0.5 / (lower + step))
    centre = lower - 0.25 + _STEPS
    return jnp.log(ratio) - jnp.log(centre) / 2.0 + polynomial(_GAMMA_RATIO, centre**-2.0)


def by_closeness(
    entropic_index: Array, near: Callable[[Array], Array], far: Callable[[Array], Array]
) -> Array:
    """Return `near(index)` where the index is close to 1, `far(index)` elsewhere.

    Each function only gets indices from its own side. For a concrete index the other function is
    not computed.
    """
    if not_jax_tracer(entropic_index):
        close = np.abs(np.asarray(entropic_index) - 1.0) < NEAR_GAUSSIAN
        if np.all(close):
            return near(entropic_index)
        if not np.any(close):
            return far(entropic_index)
    mask = jnp.abs(entropic_index - 1.0) < NEAR_GAUSSIAN
    by_series = near(jnp.where(mask, entropic_index, 1.0))
    return jnp.where(mask, by_series, far(jnp.where(mask, 0.0, entropic_index)))


def _as_constant(function: Callable[[ArrayLike], Array]) -> Callable[[ArrayLike], Array]:
    """Evaluate a function of a concrete index at trace time, so it costs nothing at run time."""
    compiled = jax.jit(function)

    @wraps(function)
    def wrapped(entropic_index: ArrayLike) -> Array:
        if not not_jax_tracer(entropic_index):
            return compiled(entropic_index)
        with jax.ensure_compile_time_eval():
            return compiled(entropic_index)

    return wrapped


@_as_constant
def log_normaliser(entropic_index: ArrayLike) -> Float[Array, "..."]:
    """Return log Z_q for scale 1, smooth across q = 1."""
    pair = gamma_pair(entropic_index)
    series = -jnp.log(pair.stretch) / 2.0 + polynomial(_GAMMA_RATIO, pair.inverse_square)
    direct = _log_gamma_ratio(pair.lower) - jnp.log(pair.distance) / 2.0
    return _LOG_2_PI / 2.0 + jnp.where(pair.near, series, direct)


@_as_constant
def entropy_excess(entropic_index: ArrayLike) -> Float[Array, "..."]:
    """Return Shannon entropy minus log Z_q, which is the same for every scale; 1/2 at q = 1."""
    pair = gamma_pair(entropic_index)
    slope = pair.inverse_square * polynomial(_GAMMA_RATIO_SLOPE, pair.inverse_square)
    series = (0.5 + 2.0 * slope) / pair.stretch
    direct = (digamma(pair.upper) - digamma(pair.lower)) / pair.distance
    return jnp.where(pair.near, series, direct)


def log_kernel(
    deviation: Float[Array, "..."], entropic_index: ArrayLike, scale: ArrayLike = 1.0
) -> Float[Array, "..."]:
    """Return log exp_q(-y^2 / 2) at y = deviation / scale inside the support.

    1 - (1 - q) y^2 / 2 is clamped to at least the machine epsilon, so rounding never gives -inf
    inside the support. Where y^2 overflows, the result is -inf for q <= 1 and the power law for
    q > 1, even if y itself overflows.
    """
    info = jnp.finfo(deviation.dtype)
    standardised = deviation / scale
    magnitude = jnp.abs(standardised)
    representable = magnitude < float(np.sqrt(info.max)) / 8.0

    def tail_of(index: Array) -> tuple[Array, Array]:
        """Return where 1 + z rounds to z (z may overflow there, but not its log), and the shift."""
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
        return jnp.where(tail, 2.0 * (logarithm - jnp.log(scale)), logarithm) / (1.0 - index)

    return by_closeness(jnp.asarray(entropic_index, deviation.dtype), near, far)


def _near_log_tail(distance: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """Return the log of the upper tail at distance >= 0 for an index near 1, by quadrature.

    The density has fallen by `_FOLDS` e-folds at the point whose square is
    distance^2 exp(d) + 2 folds (exp(d) - 1) / d, with d = (q - 1) folds. For q < 1 that point lies
    inside the support.
    """
    growth = (index - 1.0) * _FOLDS
    end = jnp.sqrt(distance**2 * jnp.exp(growth) + 2.0 * _FOLDS * jnp.exp(log_expm1_ratio(growth)))
    half = (end - distance) / 2.0
    nodes = jnp.asarray(_NODES, distance.dtype).reshape(-1, *(1,) * distance.ndim)
    weights = jnp.asarray(_WEIGHTS, distance.dtype).reshape(nodes.shape)
    kernel = log_kernel(distance[None] + half[None] * (1.0 + nodes), index[None])
    top = jnp.max(kernel, axis=0)
    total = jnp.sum(weights * jnp.exp(kernel - top[None]), axis=0)
    return jnp.log(half * total) + top - log_normaliser(index)


def _far_log_tail(distance: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """Return the log of the upper tail at distance >= 0 for an index away from 1.

    The tail is I_x(c, 1/2) / 2 with x = 1 - t^2 (q < 1) or 1 / (1 + z) (q > 1).
    """
    shape = gamma_pair(index).lower
    sparse = index < 1.0
    gap = jnp.abs(index - 1.0)
    largest = float(np.sqrt(jnp.finfo(distance.dtype).max)) / 8.0
    argument = gap * jnp.minimum(distance, largest) ** 2 / 2.0
    # x and 1 - x are computed separately, so each is accurate where it is small.
    inner = jnp.where(sparse, jnp.minimum(argument, 1.0), argument / (1.0 + argument))
    outer = jnp.where(sparse, jnp.maximum(1.0 - argument, 0.0), 1.0 / (1.0 + argument))
    central = inner < 0.5
    tail = incomplete_beta(shape, 0.5, outer, inner, central) / 2.0
    # For x -> 0 the tail is x^c / (2 c B(c, 1/2)); its logarithm never underflows.
    log_outer = -(jnp.log(gap / 2.0) + 2.0 * jnp.log(jnp.maximum(distance, 1.0)))
    half = jnp.full_like(shape, 0.5)
    power_law = shape * log_outer - jnp.log(2.0 * shape) - log_beta(shape, half)
    extreme = ~sparse & (log_outer < np.log(jnp.finfo(distance.dtype).eps))
    return jnp.where(extreme, power_law, jnp.log(tail))


@jax.jit
def log_tail(distance: Float[Array, "..."], index: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log P(Y > distance) for a standard q-Gaussian Y and distance >= 0."""
    distance, index = jnp.broadcast_arrays(distance, index)
    near = gamma_pair(index).near
    close = _near_log_tail(jnp.where(near, distance, 0.0), jnp.where(near, index, 1.0))
    away = _far_log_tail(jnp.where(near, 0.0, distance), jnp.where(near, 0.0, index))
    return jnp.where(near, close, away)


def refuse_derivative(tangents: Sequence[object], what: str, parameters: str, them: str) -> None:
    """Raise a TypeError if a tangent of a parameter without a derivative is not zero."""
    if any(type(tangent) is not SymbolicZero for tangent in tangents):
        raise TypeError(
            f"The {what} is not differentiable in {parameters}. "
            f"Use sample, which is, or stop the gradient of the {them}."
        )


def _density(standardised: Array, index: Array) -> Array:
    inside = (index >= 1.0) | (standardised**2 * (1.0 - index) <= 2.0)
    kernel = log_kernel(jnp.where(inside, standardised, 0.0), index)
    return jnp.where(inside, jnp.exp(kernel - log_normaliser(index)), 0.0)


@jax.custom_jvp
@jax.jit
def standard_cdf(standardised: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """Return P(Y <= y) for a standard q-Gaussian Y; accurate to rounding in the lower tail."""
    beyond = (1.0 - index) * standardised**2 >= 2.0
    distance = jnp.where(beyond, 0.0, jnp.abs(standardised))
    tail = jnp.where(beyond, 0.0, jnp.exp(log_tail(distance, index)))
    value = jnp.where(standardised < 0.0, tail, 1.0 - tail)
    return jnp.where(jnp.isnan(standardised), jnp.nan, value)


@jax.custom_jvp
@jax.jit
def standard_icdf(share: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """Return the y with P(Y <= y) = share: the support's ends at 0 and 1, NaN outside [0, 1]."""
    share, index = jnp.broadcast_arrays(share, index)
    dtype = share.dtype
    info = jnp.finfo(dtype)
    sparse = index < 1.0
    edge = jnp.sqrt(2.0 / (1.0 - jnp.where(sparse, index, 0.0)))
    tail = jnp.minimum(share, 1.0 - share)
    solvable = (tail > 0.0) & (tail < 0.5)
    target = jnp.log(jnp.where(solvable, tail, 0.25))

    def improve(carry: Search) -> Search:
        low, high, log_distance, _, iteration = carry
        distance = jnp.exp(log_distance)
        log_share = log_tail(distance, index)
        log_slope = log_distance + log_kernel(distance, index) - log_normaliser(index) - log_share
        difference, slope = log_share - target, -jnp.exp(log_slope)
        low = jnp.where(difference > 0.0, log_distance, low)
        high = jnp.where(difference > 0.0, high, log_distance)
        newton = log_distance - difference / slope
        usable = (newton > low) & (newton < high)
        following = jnp.where(usable, newton, (low + high) / 2.0)
        resolution = 2.0 * info.eps * jnp.maximum(jnp.abs(following), 1.0)
        moved = jnp.abs(following - log_distance) > resolution
        return low, high, following, jnp.any(moved & solvable), iteration + 1

    # At smaller distances from the centre, rounding of the share dominates.
    low = jnp.full_like(share, np.log(info.eps) - 2.0)
    high = jnp.where(sparse, jnp.log(edge), np.log(info.max) - 1e-4).astype(dtype)
    start = jnp.minimum(jnp.zeros_like(share), high - 0.5)
    carry = (low, high, start, jnp.array(True), jnp.array(0))
    root = lax.while_loop(lambda c: c[3] & (c[4] < _MAX_ITERATIONS), improve, carry)[2]

    distance = jnp.where(solvable, jnp.exp(root), 0.0)
    distance = jnp.where(tail == 0.0, jnp.where(sparse, edge, jnp.inf), distance)
    signed = jnp.where(share < 0.5, -distance, distance)
    return jnp.where((share >= 0.0) & (share <= 1.0), signed, jnp.nan)


@partial(standard_cdf.defjvp, symbolic_zeros=True)
def _cdf_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    refuse_derivative(tangents[1:], "cdf of a q-Gaussian", "the entropic index", "index")
    return standard_cdf(*primals), _density(*primals) * tangents[0]


@partial(standard_icdf.defjvp, symbolic_zeros=True)
def _icdf_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    refuse_derivative(tangents[1:], "icdf of a q-Gaussian", "the entropic index", "index")
    value = standard_icdf(*primals)
    return value, tangents[0] / _density(value, primals[1])
