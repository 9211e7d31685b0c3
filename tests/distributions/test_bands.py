"""Best bands against a grid search over an independent divergence, and against mass formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from numpyro.distributions import kl_divergence

from fat2thin.distributions import QGaussian
from fat2thin.distributions.bands import band_nodes, half_width_for_mass, optimal_half_width


def test_constant_of_the_paper_pair():
    np.testing.assert_allclose(optimal_half_width(0.0, 2.0), 3.2579 * np.sqrt(2.0), rtol=2e-5)


@pytest.mark.parametrize(("sparse", "heavy"), [(0.0, 1.5), (-3.0, 2.0), (0.5, 2.5), (0.0, 1.0)])
def test_it_minimises_the_registered_divergence(sparse, heavy):
    with jax.enable_x64(True):

        @jax.jit
        def divergence(log_width):
            scale = jnp.exp(log_width) * np.sqrt((1.0 - sparse) / 2.0)
            return kl_divergence(QGaussian(0.0, scale, sparse), QGaussian(0.0, 1.0, heavy))

        best = scipy.optimize.minimize_scalar(
            lambda x: float(divergence(x)), bounds=(-1.0, 4.0), options={"xatol": 1e-7}
        )
    np.testing.assert_allclose(optimal_half_width(sparse, heavy), np.exp(best.x), rtol=1e-3)


def test_mass_of_the_band():
    """For a Cauchy of scale sqrt(2) sigma the mass in +-r is (2 / pi) atan(r / (sqrt(2) sigma))."""
    for mass in (0.1, 0.5, 0.81, 0.99):
        width = half_width_for_mass(mass, 2.0)
        np.testing.assert_allclose(2 / np.pi * np.arctan(width / np.sqrt(2)), mass, rtol=1e-9)
    for index in (1.0, 1.5, 2.5):
        width = half_width_for_mass(0.6, index)
        np.testing.assert_allclose(QGaussian(0.0, 1.0, index).cdf(width), 0.8, rtol=1e-5)


def test_nodes_integrate_moments_exactly():
    """E[t^2] = 1 / (2 e + 3) for the density (1 - t^2)^e: q = 0 has 1/5."""
    for index in (-3.0, 0.0, 0.5):
        nodes, weights = band_nodes(index)
        exponent = 1.0 / (1.0 - index)
        np.testing.assert_allclose(np.sum(weights), 1.0)
        np.testing.assert_allclose(np.sum(weights * nodes**2), 1.0 / (2.0 * exponent + 3.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda: band_nodes(1.0),
        lambda: optimal_half_width(0.0, 3.0),
        lambda: half_width_for_mass(1.0, 2.0),
    ],
)
def test_values_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="must lie"):
        call()
