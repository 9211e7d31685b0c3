"""Distributions of other packages, as oracles for ours."""

import numpy as np
import scipy.stats


def scipy_twin(loc, scale, index):
    """Return the same distribution in SciPy: a beta on the support, a Student-t, or a normal."""
    if index < 1.0:
        shape = 1.0 / (1.0 - index) + 1.0
        half_width = scale * np.sqrt(2.0 / (1.0 - index))
        return scipy.stats.beta(shape, shape, loc - half_width, 2.0 * half_width)
    if index > 1.0:
        freedom = (3.0 - index) / (index - 1.0)
        return scipy.stats.t(freedom, loc, scale * np.sqrt(2.0 / (3.0 - index)))
    return scipy.stats.norm(loc, scale)
