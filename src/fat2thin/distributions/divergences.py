"""Kullback-Leibler divergences of the q-Gaussian family, and the best width of a sparse band.

The closed forms and quadratures are registered with `numpyro.distributions.kl_divergence`. Sampled
estimates have `monte_carlo` in their names.

The quadrature is double-exponential (Takahasi and Mori, 1974). The line is cut at the centre of the
q-Gaussian and at the feature of the integrand. In each piece the nodes are dense near both ends, so
the same nodes resolve any ratio of scales and any offset.

`optimal_half_width` and `half_width_for_mass` choose the width of a sparse band for a heavy-tailed
proposal with the same centre. KL(band || proposal) then depends on half-width / scale alone, so the
best ratio is one number per pair of indices.
"""

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import Cauchy, Distribution, Independent, Normal, StudentT
from numpyro.distributions.kl import kl_divergence
from numpyro.util import not_jax_tracer

from fat2thin.distributions.base import expand_to_rank, lift
from fat2thin.distributions.multivariate import index_from_degrees_of_freedom
from fat2thin.distributions.q_gaussian import QGaussian
from fat2thin.distributions.q_math import polynomial
from fat2thin.distributions.squashed_gaussian import SquashedGaussian

# (1 - atan(k) / k) / k^2 in powers of k^2.
_ARCTAN_SERIES = tuple((-1.0) ** n / (2 * n + 3) for n in range(18))
_ARCTAN_SERIES_BELOW = 0.3
_WIDE = 6.0
_COUNT = 81
# Nodes and weights on (0, 1): x = 1 / (1 + exp(-pi sinh t)).
_T, _STEP = np.linspace(-3.4, 3.4, _COUNT, retstep=True)
_NODES = 1.0 / (1.0 + np.exp(-np.pi * np.sinh(_T)))
_SLOPE = np.pi * np.cosh(_T) * _NODES / (1.0 + np.exp(np.pi * np.sinh(_T)))
_FINITE = _NODES, _STEP * _SLOPE
# The same on (0, inf): x = exp(pi/2 sinh t), from 1e-14 to 1e34.
_T, _STEP = np.linspace(-3.7, 4.6, _COUNT, retstep=True)
_NODES = np.exp(np.pi / 2.0 * np.sinh(_T))
_INFINITE = _NODES, _STEP * _NODES * np.pi / 2.0 * np.cosh(_T)


def kl_sparse_cauchy(half_width: ArrayLike, cauchy_scale: ArrayLike) -> Float[Array, "..."]:
    """Return KL(q = 0 || q = 2) of two q-Gaussians with a common centre, in closed form.

    `half_width` is that of the q = 0 band. `cauchy_scale` is sqrt(2) times the `scale` of the q = 2
    proposal. With k = half_width / cauchy_scale the divergence is
    log(3 pi) - 13/3 - log k + log(1 + k^2) + 3 atan(k) / k - (1 - atan(k) / k) / k^2,
    which has its minimum at k = 3.2579.

    Examples:
        >>> from fat2thin.distributions import kl_sparse_cauchy
        >>> for half_width in (2.0, 3.2579, 5.0):
        ...     print(f"{kl_sparse_cauchy(half_width, 1.0):.4f}")
        0.3754
        0.2959
        0.3537
    """
    ratio = jnp.asarray(half_width) / jnp.asarray(cauchy_scale)
    small = ratio < _ARCTAN_SERIES_BELOW
    near = jnp.where(small, ratio, 0.0) ** 2
    far = jnp.where(small, 1.0, ratio)
    direct = (1.0 - jnp.arctan(far) / far) / far**2
    deficit = jnp.where(small, polynomial(_ARCTAN_SERIES, near), direct)
    arctan_ratio = jnp.arctan(ratio) / ratio
    # log(1 + k^2) - log(k), where k^2 may overflow.
    spread = jnp.logaddexp(jnp.log(ratio), -jnp.log(ratio))
    return math.log(3.0 * math.pi) - 13.0 / 3.0 + spread + 3.0 * arctan_ratio - deficit


def expectation(
    distribution: QGaussian, function: Callable[[Array], Array], feature: ArrayLike
) -> Float[Array, "*batch"]:
    """Return E[function(X)] under a scalar q-Gaussian by quadrature.

    `function` maps (nodes, *batch) to the same shape and may be infinite where the density is 0.
    `feature` is a point where it need not be smooth; the line is also cut there. The absolute error
    is below 1e-4 in float32 and 1e-6 in float64 for functions that are smooth elsewhere and grow
    no faster than a logarithm in the tails (q <= 2.5), or than x^2 where the second moment exists
    and q <= 1.5.
    """
    feature = jnp.asarray(feature, distribution.mode.dtype)
    shape = jnp.broadcast_shapes(distribution.batch_shape, feature.shape)
    place = distribution.mode, distribution.scale, distribution.half_width
    centre, scale, width = (jnp.broadcast_to(part, shape) for part in place)
    low, high = centre - width, centre + width
    feature = jnp.clip(jnp.broadcast_to(feature, shape), low, high)
    first, second = jnp.minimum(centre, feature), jnp.maximum(centre, feature)
    # A wide support extends many scales beyond the mass: nodes spread over all of it would miss
    # the centre.
    narrow = width < _WIDE * scale
    # Nodes are the first axis.
    low, high, first, second, centre, scale, narrow = (
        part[None] for part in (low, high, first, second, centre, scale, narrow)
    )

    def column(values: np.ndarray) -> Array:
        return jnp.asarray(values, centre.dtype).reshape(_COUNT, *(1,) * len(shape))

    def outward(length: Array) -> list[Array]:
        """Return distances from a cut towards an end of the support, and their weights."""
        length = jnp.where(narrow, length, 0.0)
        return [
            jnp.where(narrow, length * column(finite), scale * column(infinite))
            for finite, infinite in zip(_FINITE, _INFINITE, strict=True)
        ]

    left, left_weights = outward(first - low)
    right, right_weights = outward(high - second)
    middle, middle_weights = ((second - first) * column(part) for part in _FINITE)
    nodes = jnp.concatenate([first - left, first + middle, second + right])
    nodes = jnp.clip(nodes, low, high)
    weights = jnp.concatenate([left_weights, middle_weights, right_weights])
    # A weight may overflow where the density underflows, so they are multiplied as logarithms.
    positive = weights > 0.0
    log_density = distribution.log_prob(nodes) + jnp.log(jnp.where(positive, weights, 1.0))
    mass = jnp.where(positive, jnp.exp(log_density), 0.0)
    reached = mass > 0.0
    values = function(jnp.where(reached, nodes, centre))
    return jnp.sum(jnp.where(reached, mass * values, 0.0), axis=0)


def _at_one_rank(p: Distribution, r: Distribution) -> tuple[Any, Any]:
    rank = max(len(p.batch_shape), len(r.batch_shape))
    return lift(p, rank), lift(r, rank)


def kl_by_quadrature(
    p: QGaussian, r: QGaussian | SquashedGaussian, divergent: ArrayLike = False
) -> Float[Array, "..."]:
    """Return KL(p || r) = E_p[-log r] - entropy(p) by quadrature.

    The result is +inf where r does not cover the support of p, and where `divergent` is true.
    The error is that of `expectation`.
    """
    p, r = _at_one_rank(p, r)
    # The log density of r has its largest curvature around this point.
    centre = r.centre if isinstance(r, SquashedGaussian) else r.mode
    low, high = p.mode - p.half_width, p.mode + p.half_width
    finite = r.support_mask(low) & r.support_mask(high) & ~jnp.asarray(divergent)

    def surprise(value: Array) -> Array:
        inside, fallback = (expand_to_rank(part, value.ndim) for part in (finite, centre))
        return -r.log_prob(jnp.where(inside, value, fallback))

    return jnp.where(finite, expectation(p, surprise, centre) - p.entropy(), jnp.inf)


def kl_q_gaussians(p: QGaussian, r: QGaussian) -> Float[Array, "..."]:
    """Return KL(p || r) of two scalar q-Gaussians.

    The result is +inf where r does not cover the support of p, and where the integral diverges.
    The closed form is used for concrete indices q = 0 and q = 2 with a common centre, quadrature
    otherwise.
    """
    p, r = _at_one_rank(p, r)
    indices = (p.entropic_index, 0.0), (r.entropic_index, 2.0)
    if all(not_jax_tracer(index) and np.all(np.asarray(index) == q) for index, q in indices):
        closed = kl_sparse_cauchy(p.half_width, math.sqrt(2.0) * jnp.asarray(r.scale))
        if p.loc is r.loc:
            return closed
        return jnp.where(p.mode == r.mode, closed, kl_by_quadrature(p, r))
    heavy = jnp.asarray(p.entropic_index) >= 5.0 / 3.0
    return kl_by_quadrature(p, r, heavy & (jnp.asarray(r.entropic_index) == 1.0))


def as_q_gaussian(distribution: Distribution) -> QGaussian:
    """Return the q-Gaussian equal to a Normal, Cauchy or Student-t distribution."""
    if isinstance(distribution, QGaussian):
        return distribution
    if isinstance(distribution, Normal):
        return QGaussian(distribution.loc, distribution.scale, 1.0)
    if isinstance(distribution, Cauchy):
        return QGaussian(distribution.loc, distribution.scale / math.sqrt(2.0), 2.0)
    index = index_from_degrees_of_freedom(distribution.df)
    scale = distribution.scale * jnp.sqrt((3.0 - index) / 2.0)
    return QGaussian(distribution.loc, scale, index)


for _pair in itertools.product((QGaussian, Normal, Cauchy, StudentT), repeat=2):
    if QGaussian in _pair:
        kl_divergence.add(_pair, lambda p, r: kl_q_gaussians(as_q_gaussian(p), as_q_gaussian(r)))
kl_divergence.add((QGaussian, SquashedGaussian), kl_by_quadrature)


def sample_with_log_prob(
    distribution: Distribution, key: Key[Array, ""], sample_shape: tuple[int, ...] = ()
) -> tuple[Array, Array]:
    """Return samples and their log densities for any NumPyro distribution.

    Uses the distribution's own `sample_with_log_prob` if it has one, which is more accurate at the
    edge of the support. Shapes: (*sample_shape, *batch, *event) and (*sample_shape, *batch).
    """
    if isinstance(distribution, Independent):
        values, log_density = sample_with_log_prob(distribution.base_dist, key, sample_shape)
        event = tuple(range(-distribution.reinterpreted_batch_ndims, 0))
        return values, jnp.sum(log_density, axis=event)
    if hasattr(distribution, "sample_with_log_prob"):
        return distribution.sample_with_log_prob(key, sample_shape)
    values = distribution.sample(key, sample_shape)
    return values, distribution.log_prob(values)


def _log_ratio(key: Key[Array, ""], p: Distribution, r: Distribution, samples: int) -> Array:
    """Return log r - log p at samples of p, with shape (samples, *batch)."""
    values, log_density = sample_with_log_prob(p, key, (samples,))
    return r.log_prob(values) - log_density


def monte_carlo_kl(
    key: Key[Array, ""], p: Distribution, r: Distribution, samples: int = 1_000
) -> Float[Array, "*batch"]:
    """Return the mean of log p - log r over samples of p, an unbiased estimate of KL(p || r).

    Gradients pass through both densities.
    """
    return -jnp.mean(_log_ratio(key, p, r, samples), axis=0)


def monte_carlo_k3(
    key: Key[Array, ""], p: Distribution, r: Distribution, samples: int = 1_000
) -> Float[Array, "*batch"]:
    """Return the paper's estimate of KL(p || r): the mean of ratio - 1 - log ratio, ratio = r / p.

    The mean is over samples of p. It is never negative, but biased where r has mass outside the
    support of p: its expectation is KL - (1 - M), where M is the mass of r inside that support.
    Its variance is infinite for a sparse p with index 0 or above.
    """
    log_ratio = _log_ratio(key, p, r, samples)
    return jnp.mean(jnp.expm1(log_ratio) - log_ratio, axis=0)


@cache
def band_nodes(sparse_index: float) -> tuple[np.ndarray, np.ndarray]:
    """Return 32 Gauss-Gegenbauer nodes in (-1, 1) and their weights for a sparse q-Gaussian.

    The weights sum to 1, and sum(weights * f(centre + half_width * nodes)) is the expectation of f,
    exact for polynomials up to degree 63. The density of a node t is proportional to
    (1 - t^2)^(1 / (1 - q)).
    """
    nodes, weights = scipy.special.roots_gegenbauer(32, _exponent(sparse_index) + 0.5)
    return nodes, weights / np.sum(weights)


def _exponent(sparse_index: float) -> float:
    if not sparse_index < 1.0:
        raise ValueError(f"sparse_index must be below 1, got {sparse_index}")
    return 1.0 / (1.0 - sparse_index)


@cache
def optimal_half_width(sparse_index: float, heavy_index: float) -> float:
    """Return the half-width of the sparse band that minimises KL(band || proposal).

    `sparse_index` (below 1) is the index of the band, `heavy_index` (1 <= q < 3) that of the
    proposal, which has scale 1 and the same centre. The half-width r is the root of
    E[y^2 / (1 + (q - 1) y^2 / 2)] = 1, where y = r t over the band and q is the heavy index; the
    left side grows with r from 0 to 2 / (q - 1). For indices 0 and 2, r = 3.2579 sqrt(2). As q
    approaches 3, r grows like 1 / (3 - q). The relative error is below 1e-12 for every pair.

    Examples:
        >>> from fat2thin.distributions.divergences import optimal_half_width
        >>> print(f"{optimal_half_width(0.0, 2.0) / 2**0.5:.4f}")
        3.2579
    """
    if not 1.0 <= heavy_index < 3.0:
        raise ValueError(f"heavy_index must be in [1, 3), got {heavy_index}")
    exponent = _exponent(sparse_index)
    gaussian_log_width = 0.5 * np.log(2.0 * exponent + 3.0)
    # With t = 1 / sqrt(1 + exp(-2 s)) the integrand decays exponentially in both directions of s
    # and is smooth for every r. Equal steps in s reach rounding error; nodes in t can miss a
    # narrow peak.
    steps = np.arange(-gaussian_log_width - 80.0, 20.0, 0.1)
    squared_nodes = scipy.special.expit(2.0 * steps)
    log_rest = -np.logaddexp(0.0, 2.0 * steps)
    weights = np.sqrt(squared_nodes) * np.exp((exponent + 1.0) * log_rest)

    def excess(log_width: float) -> float:
        squared = np.exp(2.0 * log_width) * squared_nodes
        # E[...] - 1 as one fraction: near q = 3 the two terms would cancel.
        fraction = (3.0 - heavy_index) / 2.0 * squared - 1.0
        return float(np.sum(weights * fraction / (1.0 + (heavy_index - 1.0) / 2.0 * squared)))

    # A Gaussian proposal has the narrowest best band; that of index 3 - 2^-51 is e^36 times wider.
    low, high = gaussian_log_width - 1.0, gaussian_log_width + 40.0
    return float(np.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-13)))


@cache
def half_width_for_mass(mass: float, heavy_index: float) -> float:
    """Return the half-width of the centred band that contains a share `mass` of a proposal.

    The proposal has index `heavy_index` and scale 1. The result is correct up to 1e150 (a mass of
    0.8 at index 2.99); for wider bands it saturates at about 1e153.
    """
    if not 0.0 < mass < 1.0:
        raise ValueError(f"mass must be strictly between 0 and 1, got {mass}")
    if not 1.0 <= heavy_index < 3.0:
        raise ValueError(f"heavy_index must be in [1, 3), got {heavy_index}")
    share = (1.0 + mass) / 2.0
    if heavy_index == 1.0:
        return float(scipy.special.ndtri(share))
    freedom = (3.0 - heavy_index) / (heavy_index - 1.0)
    return float(scipy.special.stdtrit(freedom, share)) * (2.0 / (3.0 - heavy_index)) ** 0.5
