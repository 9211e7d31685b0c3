"""Kullback-Leibler divergences of the family: exact, by quadrature, and by sampling.

The exact ones are in NumPyro's registry: `numpyro.distributions.kl_divergence(p, r)`. The
sampled ones have `monte_carlo` in their names.

Quadrature is double-exponential. The line is cut at the q-Gaussian's centre and at a second point
(where the integrand has its own feature), and each piece gets nodes that crowd at its ends
(Takahasi and Mori, 1974): any ratio of scales and any offset is resolved with the same nodes.

The last functions say how wide a sparse band is best for a heavy-tailed proposal. With a common
centre its reverse KL depends on half-width / scale alone: one number for each pair of indices.
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
    """KL(q = 0 || q = 2) with a common centre, in closed form.

    With k = half_width / cauchy_scale (so cauchy_scale = sqrt(2) sigma of the proposal):
    log(3 pi) - 13/3 - log k + log(1 + k^2) + 3 atan(k) / k - (1 - atan(k) / k) / k^2.
    Its minimum over k is at 3.2579.
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
    """E[function(X)] under a scalar q-Gaussian, with one more cut at `feature`.

    `function` maps (nodes, *batch) to the same shape and may be infinite where the density is 0.
    Absolute error below 1e-4 in float32 and 1e-6 in float64 for functions that are smooth but
    for `feature` and grow no faster than a logarithm in the tails (q <= 2.5), or than x^2 where
    the second moment exists and q <= 1.5.
    """
    feature = jnp.asarray(feature, distribution.mode.dtype)
    shape = jnp.broadcast_shapes(distribution.batch_shape, feature.shape)
    place = distribution.mode, distribution.scale, distribution.half_width
    centre, scale, width = (jnp.broadcast_to(part, shape) for part in place)
    low, high = centre - width, centre + width
    feature = jnp.clip(jnp.broadcast_to(feature, shape), low, high)
    first, second = jnp.minimum(centre, feature), jnp.maximum(centre, feature)
    # A wide support ends where nothing is left of the density, many scales away: nodes spread
    # over all of it would miss the centre.
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
    # The weight may overflow where the density underflows, so they meet as logarithms.
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
    """KL(p || r) = E_p[-log r] - entropy(p); +inf where r does not cover p, or if `divergent`.

    Error as stated in `expectation`.
    """
    p, r = _at_one_rank(p, r)
    # The point of r's support where its log density bends most.
    centre = r.centre if isinstance(r, SquashedGaussian) else r.mode
    low, high = p.mode - p.half_width, p.mode + p.half_width
    finite = r.support_mask(low) & r.support_mask(high) & ~jnp.asarray(divergent)

    def surprise(value: Array) -> Array:
        inside, fallback = (expand_to_rank(part, value.ndim) for part in (finite, centre))
        return -r.log_prob(jnp.where(inside, value, fallback))

    return jnp.where(finite, expectation(p, surprise, centre) - p.entropy(), jnp.inf)


def kl_q_gaussians(p: QGaussian, r: QGaussian) -> Float[Array, "..."]:
    """KL(p || r) of two scalar q-Gaussians; +inf where r does not cover p or the integral diverges.

    Closed form for the numbers q = 0 against q = 2 with a common centre, quadrature otherwise.
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
    """The q-Gaussian that is the same law as a Normal, Cauchy or Student-t."""
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
    """Return samples and their log density, by the distribution's own stable method if any."""
    if isinstance(distribution, Independent):
        values, log_density = sample_with_log_prob(distribution.base_dist, key, sample_shape)
        event = tuple(range(-distribution.reinterpreted_batch_ndims, 0))
        return values, jnp.sum(log_density, axis=event)
    if hasattr(distribution, "sample_with_log_prob"):
        return distribution.sample_with_log_prob(key, sample_shape)
    values = distribution.sample(key, sample_shape)
    return values, distribution.log_prob(values)


def _log_ratio(key: Key[Array, ""], p: Distribution, r: Distribution, samples: int) -> Array:
    """log r - log p at samples of p; shape (samples, *batch)."""
    values, log_density = sample_with_log_prob(p, key, (samples,))
    return r.log_prob(values) - log_density


def monte_carlo_kl(
    key: Key[Array, ""], p: Distribution, r: Distribution, samples: int = 1_000
) -> Float[Array, "*batch"]:
    """Mean of log p - log r over samples of p: unbiased, gradients through both densities."""
    return -jnp.mean(_log_ratio(key, p, r, samples), axis=0)


def monte_carlo_k3(
    key: Key[Array, ""], p: Distribution, r: Distribution, samples: int = 1_000
) -> Float[Array, "*batch"]:
    """The paper's estimator: mean of ratio - 1 - log ratio, ratio = r / p, over samples of p.

    Never negative, but biased where r has mass outside the support of p: its expectation is
    KL - (1 - M) with M the mass of r inside that support. Its variance is infinite for a sparse
    p with index 0 or above.
    """
    log_ratio = _log_ratio(key, p, r, samples)
    return jnp.mean(jnp.expm1(log_ratio) - log_ratio, axis=0)


@cache
def band_nodes(sparse_index: float) -> tuple[np.ndarray, np.ndarray]:
    """32 Gauss-Gegenbauer nodes in (-1, 1) and weights that add to 1 for a sparse q-Gaussian.

    E[f(centre + half_width t)] = sum of weights * f(...), exact for polynomials of degree 63.
    The density over t is proportional to (1 - t^2)^(1 / (1 - q)).
    """
    nodes, weights = scipy.special.roots_gegenbauer(32, _exponent(sparse_index) + 0.5)
    return nodes, weights / np.sum(weights)


def _exponent(sparse_index: float) -> float:
    if not sparse_index < 1.0:
        raise ValueError(f"sparse_index must lie below 1, got {sparse_index}")
    return 1.0 / (1.0 - sparse_index)


@cache
def optimal_half_width(sparse_index: float, heavy_index: float) -> float:
    """Half-width of the sparse band that minimises KL(band || proposal), for proposal scale 1.

    The root of E[y^2 / (1 + (q - 1) y^2 / 2)] = 1 with y = r t over the band; the left side
    grows with r from 0 to 2 / (q - 1). For indices 0 and 2 it is 3.2579 sqrt(2); towards a heavy
    index of 3 it grows like 1 / (3 - q). Relative error below 1e-12 for every pair of indices.
    """
    if not 1.0 <= heavy_index < 3.0:
        raise ValueError(f"heavy_index must lie in [1, 3), got {heavy_index}")
    exponent = _exponent(sparse_index)
    gaussian_log_width = 0.5 * np.log(2.0 * exponent + 3.0)
    # With t = 1 / sqrt(1 + exp(-2 s)) the integrand falls exponentially to both sides of s, and is
    # smooth at every r: equal steps reach rounding error, where nodes in t miss a narrow peak.
    steps = np.arange(-gaussian_log_width - 80.0, 20.0, 0.1)
    squared_nodes = scipy.special.expit(2.0 * steps)
    log_rest = -np.logaddexp(0.0, 2.0 * steps)
    weights = np.sqrt(squared_nodes) * np.exp((exponent + 1.0) * log_rest)

    def excess(log_width: float) -> float:
        squared = np.exp(2.0 * log_width) * squared_nodes
        # E[...] - 1 as one fraction: near q = 3 the difference of the two would cancel.
        fraction = (3.0 - heavy_index) / 2.0 * squared - 1.0
        return float(np.sum(weights * fraction / (1.0 + (heavy_index - 1.0) / 2.0 * squared)))

    # The best band of a Gaussian proposal is the narrowest; that of 3 - 2^-51 is e^36 times wider.
    low, high = gaussian_log_width - 1.0, gaussian_log_width + 40.0
    return float(np.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-13)))


@cache
def half_width_for_mass(mass: float, heavy_index: float) -> float:
    """Half-width of the centred band that holds this share of a proposal of scale 1.

    Right up to 1e150 (a mass of 0.8 at index 2.99); wider bands come out as about 1e153.
    """
    if not 0.0 < mass < 1.0:
        raise ValueError(f"the share of mass to keep must lie strictly between 0 and 1, got {mass}")
    if not 1.0 <= heavy_index < 3.0:
        raise ValueError(f"heavy_index must lie in [1, 3), got {heavy_index}")
    share = (1.0 + mass) / 2.0
    if heavy_index == 1.0:
        return float(scipy.special.ndtri(share))
    freedom = (3.0 - heavy_index) / (heavy_index - 1.0)
    return float(scipy.special.stdtrit(freedom, share)) * (2.0 / (3.0 - heavy_index)) ** 0.5
