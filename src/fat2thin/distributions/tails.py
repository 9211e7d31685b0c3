"""Tail, cdf and icdf of the standard q-Gaussian (location 0, scale 1).

Far from q = 1 the tail is an incomplete beta function, near it a quadrature. The quantile is
the root of the tail in the logarithm of the distance: there the problem is concave for every
index, and Newton's steps converge from one side.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy.special import betainc
from jaxtyping import Array, Float

from fat2thin.distributions.q_math import log_expm1_ratio
from fat2thin.distributions.special import log_beta
from fat2thin.distributions.standard import gamma_pair, log_kernel, log_normaliser

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
# A tail is cut where the density has fallen by this many e-folds.
_FOLDS = 40.0
_MAX_ITERATIONS = 200

_Search = tuple[Array, Array, Array, Array, Array]


def _near_log_tail(distance: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """log of the upper tail at distance >= 0 for an index near 1, by quadrature.

    The density has fallen by `_FOLDS` e-folds at distance^2 exp(d) + 2 folds (exp(d) - 1) / d
    squared, with d = (q - 1) folds; for q < 1 that point lies inside the support.
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
    """log of the upper tail at distance >= 0 for an index away from 1.

    The tail is I_x(c, 1/2) / 2 with x = 1 - t^2 (q < 1) or 1 / (1 + z) (q > 1).
    """
    shape = gamma_pair(index).lower
    sparse = index < 1.0
    gap = jnp.abs(index - 1.0)
    largest = float(np.sqrt(jnp.finfo(distance.dtype).max)) / 8.0
    argument = gap * jnp.minimum(distance, largest) ** 2 / 2.0
    # x and 1 - x, each from the side on which it is exact.
    inner = jnp.where(sparse, jnp.minimum(argument, 1.0), argument / (1.0 + argument))
    outer = jnp.where(sparse, jnp.maximum(1.0 - argument, 0.0), 1.0 / (1.0 + argument))
    central = inner < 0.5
    share = betainc(
        jnp.where(central, 0.5, shape),
        jnp.where(central, shape, 0.5),
        jnp.where(central, inner, outer),
    )
    tail = jnp.where(central, 1.0 - share, share) / 2.0
    # For x -> 0 the tail is x^c / (2 c B(c, 1/2)), whose logarithm never underflows.
    log_outer = -(jnp.log(gap / 2.0) + 2.0 * jnp.log(jnp.maximum(distance, 1.0)))
    power_law = (
        shape * log_outer - jnp.log(2.0 * shape) - log_beta(shape, jnp.full_like(shape, 0.5))
    )
    extreme = ~sparse & (log_outer < np.log(jnp.finfo(distance.dtype).eps))
    return jnp.where(extreme, power_law, jnp.log(tail))


@jax.jit
def log_tail(distance: Float[Array, "..."], index: Float[Array, "..."]) -> Float[Array, "..."]:
    """log P(Y > distance) of a standard q-Gaussian Y, for distance >= 0."""
    distance, index = jnp.broadcast_arrays(distance, index)
    near = gamma_pair(index).near
    close = _near_log_tail(jnp.where(near, distance, 0.0), jnp.where(near, index, 1.0))
    away = _far_log_tail(jnp.where(near, 0.0, distance), jnp.where(near, 0.0, index))
    return jnp.where(near, close, away)


def _refuse_index_derivative(tangent: object, name: str) -> None:
    if type(tangent) is not SymbolicZero:
        raise TypeError(
            f"{name} of a q-Gaussian is not differentiable in the entropic index: "
            "use sample, which is, or stop the gradient of the index."
        )


def _density(standardised: Array, index: Array) -> Array:
    inside = (index >= 1.0) | (standardised**2 * (1.0 - index) <= 2.0)
    kernel = log_kernel(jnp.where(inside, standardised, 0.0), index)
    return jnp.where(inside, jnp.exp(kernel - log_normaliser(index)), 0.0)


@jax.custom_jvp
@jax.jit
def standard_cdf(standardised: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """P(Y <= y) of a standard q-Gaussian Y; accurate to rounding in the lower tail."""
    beyond = (1.0 - index) * standardised**2 >= 2.0
    distance = jnp.where(beyond, 0.0, jnp.abs(standardised))
    tail = jnp.where(beyond, 0.0, jnp.exp(log_tail(distance, index)))
    value = jnp.where(standardised < 0.0, tail, 1.0 - tail)
    return jnp.where(jnp.isnan(standardised), jnp.nan, value)


@jax.custom_jvp
@jax.jit
def standard_icdf(share: Float[Array, "..."], index: Float[Array, "..."]) -> Array:
    """The y with P(Y <= y) = share; NaN outside [0, 1], the ends of the support at 0 and 1."""
    share, index = jnp.broadcast_arrays(share, index)
    dtype = share.dtype
    info = jnp.finfo(dtype)
    sparse = index < 1.0
    edge = jnp.sqrt(2.0 / (1.0 - jnp.where(sparse, index, 0.0)))
    tail = jnp.minimum(share, 1.0 - share)
    solvable = (tail > 0.0) & (tail < 0.5)
    target = jnp.log(jnp.where(solvable, tail, 0.25))

    def gap(log_distance: Array) -> tuple[Array, Array]:
        distance = jnp.exp(log_distance)
        log_share = log_tail(distance, index)
        log_slope = log_distance + log_kernel(distance, index) - log_normaliser(index) - log_share
        return log_share - target, -jnp.exp(log_slope)

    def improve(carry: _Search) -> _Search:
        low, high, log_distance, _, iteration = carry
        difference, slope = gap(log_distance)
        low = jnp.where(difference > 0.0, log_distance, low)
        high = jnp.where(difference > 0.0, high, log_distance)
        newton = log_distance - difference / slope
        usable = (newton > low) & (newton < high)
        following = jnp.where(usable, newton, (low + high) / 2.0)
        moved = jnp.abs(following - log_distance) > 2.0 * info.eps * jnp.maximum(
            jnp.abs(following), 1.0
        )
        return low, high, following, jnp.any(moved & solvable), iteration + 1

    # Closer to the centre than this the distance is below the rounding of the share.
    low = jnp.full_like(share, np.log(info.eps) - 2.0)
    high = jnp.where(sparse, jnp.log(edge), np.log(info.max) - 1e-4).astype(dtype)
    start = jnp.minimum(jnp.zeros_like(share), high - 0.5)
    carry = (low, high, start, jnp.array(True), jnp.array(0))
    root = lax.while_loop(lambda c: c[3] & (c[4] < _MAX_ITERATIONS), improve, carry)[2]

    distance = jnp.where(solvable, jnp.exp(root), 0.0)
    distance = jnp.where(tail == 0.0, jnp.where(sparse, edge, jnp.inf), distance)
    signed = jnp.where(share < 0.5, -distance, distance)
    return jnp.where((share >= 0.0) & (share <= 1.0), signed, jnp.nan)


def _cdf_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    _refuse_index_derivative(tangents[1], "cdf")
    standardised, index = primals
    value = standard_cdf(standardised, index)
    return value, _density(standardised, index) * tangents[0]


def _icdf_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    _refuse_index_derivative(tangents[1], "icdf")
    share, index = primals
    value = standard_icdf(share, index)
    return value, tangents[0] / _density(value, index)


standard_cdf.defjvp(_cdf_jvp, symbolic_zeros=True)
standard_icdf.defjvp(_icdf_jvp, symbolic_zeros=True)
