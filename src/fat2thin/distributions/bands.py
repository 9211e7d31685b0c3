"""How wide a sparse band is best for a heavy-tailed proposal: constants of two indices.

With a common centre the reverse KL depends on the band's half-width r and the proposal's scale
sigma through r / sigma alone, so its minimiser is one number for each pair of indices.
"""

from functools import cache

import numpy as np
import scipy.optimize
import scipy.special


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
