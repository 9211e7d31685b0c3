"""How wide a sparse band is best for a heavy-tailed proposal: constants of two indices.

With a common centre the reverse KL depends on the band's half-width r and the proposal's scale
sigma through r / sigma alone, so its minimiser is one number for each pair of indices.
"""

from functools import cache

import numpy as np
import scipy.optimize
import scipy.special


@cache
def band_nodes(sparse_index: float, count: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Gegenbauer nodes in (-1, 1) and weights that add to 1 for a sparse q-Gaussian.

    E[f(centre + half_width t)] = sum of weights * f(...), exact for polynomials of degree
    2 count - 1. The density over t is proportional to (1 - t^2)^(1 / (1 - q)).
    """
    if not sparse_index < 1.0:
        raise ValueError(f"sparse_index must lie below 1, got {sparse_index}")
    exponent = 1.0 / (1.0 - sparse_index)
    nodes, weights = scipy.special.roots_gegenbauer(count, exponent + 0.5)
    return nodes, weights / np.sum(weights)


@cache
def optimal_half_width(sparse_index: float, heavy_index: float) -> float:
    """Half-width of the sparse band that minimises KL(band || proposal), for proposal scale 1.

    The root of E[y^2 / (1 + (q - 1) y^2 / 2)] = 1 with y = r t over the band; the left side
    grows with r from 0 to 2 / (q - 1). For indices 0 and 2 it is 3.2579 sqrt(2).
    """
    if not 1.0 <= heavy_index < 3.0:
        raise ValueError(f"heavy_index must lie in [1, 3), got {heavy_index}")
    nodes, weights = band_nodes(sparse_index, 400)

    def excess(log_width: float) -> float:
        squared = (np.exp(log_width) * nodes) ** 2
        return float(np.sum(weights * squared / (1.0 + (heavy_index - 1.0) / 2.0 * squared))) - 1.0

    return float(np.exp(scipy.optimize.brentq(excess, -3.0, 12.0, xtol=1e-13)))


@cache
def half_width_for_mass(mass: float, heavy_index: float) -> float:
    """Half-width of the centred band that holds this share of a proposal of scale 1."""
    if not 0.0 < mass < 1.0:
        raise ValueError(f"the share of mass to keep must lie strictly between 0 and 1, got {mass}")
    if not 1.0 <= heavy_index < 3.0:
        raise ValueError(f"heavy_index must lie in [1, 3), got {heavy_index}")
    share = (1.0 + mass) / 2.0
    if heavy_index == 1.0:
        return float(scipy.special.ndtri(share))
    freedom = (3.0 - heavy_index) / (heavy_index - 1.0)
    return float(scipy.special.stdtrit(freedom, share)) * (2.0 / (3.0 - heavy_index)) ** 0.5
