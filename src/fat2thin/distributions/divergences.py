"""Kullback-Leibler divergences of the family: exact, by quadrature, and by sampling.

The exact ones are in NumPyro's registry: `numpyro.distributions.kl_divergence(p, r)`. The
sampled ones have `monte_carlo` in their names.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key
from numpyro.distributions import Cauchy, Distribution, Normal, StudentT
from numpyro.distributions.kl import kl_divergence

from fat2thin.distributions.multivariate import index_from_degrees_of_freedom
from fat2thin.distributions.q_gaussian import QGaussian
from fat2thin.distributions.q_math import polynomial
from fat2thin.distributions.quadrature import expectation
from fat2thin.distributions.ranks import expand_to_rank, lift
from fat2thin.distributions.sampling import sample_with_log_prob
from fat2thin.distributions.squashed_gaussian import SquashedGaussian
from fat2thin.distributions.standard import is_known

# (1 - atan(k) / k) / k^2 in powers of k^2.
_ARCTAN_SERIES = tuple((-1.0) ** n / (2 * n + 3) for n in range(18))
_ARCTAN_SERIES_BELOW = 0.3


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
    series = polynomial(_ARCTAN_SERIES, near)
    direct = (1.0 - jnp.arctan(far) / far) / far**2
    deficit = jnp.where(small, series, direct)
    arctan_ratio = jnp.arctan(ratio) / ratio
    # log(1 + k^2) - log(k), where k^2 may overflow.
    spread = jnp.logaddexp(jnp.log(ratio), -jnp.log(ratio))
    return math.log(3.0 * math.pi) - 13.0 / 3.0 + spread + 3.0 * arctan_ratio - deficit


def kl_by_quadrature(
    p: QGaussian, r: Distribution, centre: ArrayLike, covered: ArrayLike = True
) -> Float[Array, "..."]:
    """KL(p || r) = E_p[-log r] - entropy(p), the expectation by quadrature; +inf if not `covered`.

    `r` is any scalar distribution and `centre` the point of its support where its log density
    bends most. Error as stated in `quadrature.expectation`.
    """

    p = lift(p, jnp.ndim(centre))

    def surprise(value: Array) -> Array:
        inside, fallback = (expand_to_rank(part, value.ndim) for part in (covered, centre))
        return -r.log_prob(jnp.where(inside, value, fallback))

    return jnp.where(covered, expectation(p, surprise, centre) - p.entropy(), jnp.inf)


def kl_q_gaussians(p: QGaussian, r: QGaussian) -> Float[Array, "..."]:
    """KL(p || r) of two scalar q-Gaussians; +inf where r does not cover p or the integral diverges.

    Closed form for the numbers q = 0 against q = 2 with a common centre, quadrature otherwise.
    """
    rank = max(len(p.batch_shape), len(r.batch_shape))
    p, r = lift(p, rank), lift(r, rank)
    if _is_number(p.entropic_index, 0.0) and _is_number(r.entropic_index, 2.0):
        closed = kl_sparse_cauchy(p.half_width, math.sqrt(2.0) * jnp.asarray(r.scale))
        if p.loc is r.loc:
            return closed
        return jnp.where(p.mode == r.mode, closed, kl_by_quadrature(p, r, r.mode))
    low, high = p.mode - p.half_width, p.mode + p.half_width
    covered = r.support_mask(low) & r.support_mask(high)
    divergent = (jnp.asarray(r.entropic_index) == 1.0) & (
        jnp.asarray(p.entropic_index) >= 5.0 / 3.0
    )
    return kl_by_quadrature(p, r, r.mode, covered & ~divergent)


def _is_number(index: ArrayLike, value: float) -> bool:
    return is_known(index) and bool(np.all(np.asarray(index) == value))


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


def _register() -> None:
    relatives = (QGaussian, Normal, Cauchy, StudentT)
    for first in relatives:
        for second in relatives:
            if QGaussian in (first, second):
                kl_divergence.add(
                    (first, second), lambda p, r: kl_q_gaussians(as_q_gaussian(p), as_q_gaussian(r))
                )
    kl_divergence.add((QGaussian, SquashedGaussian), _kl_q_gaussian_squashed)


def _kl_q_gaussian_squashed(p: QGaussian, r: SquashedGaussian) -> Array:
    rank = max(len(p.batch_shape), len(r.batch_shape))
    p, r = lift(p, rank), lift(r, rank)
    low, high = p.mode - p.half_width, p.mode + p.half_width
    covered = (r.low <= low) & (high <= r.high)
    return kl_by_quadrature(p, r, r.centre, covered)


_register()


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
