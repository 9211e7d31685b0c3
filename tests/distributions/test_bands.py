"""Tests of the band widths against a numerical minimum of the KL and formulas for the mass."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from numpyro.distributions import kl_divergence

from fat2thin.distributions import QGaussian
from fat2thin.distributions.divergences import band_nodes, half_width_for_mass, optimal_half_width


def test_optimal_half_width_for_the_indices_of_the_paper():
    np.testing.assert_allclose(optimal_half_width(0.0, 2.0), 3.2579 * np.sqrt(2.0), rtol=2e-5)


@pytest.mark.parametrize(("sparse", "heavy"), [(0.0, 1.5), (-3.0, 2.0), (0.5, 2.5), (0.0, 1.0)])
def test_optimal_half_width_minimises_the_registered_kl(sparse, heavy):
    with jax.enable_x64(True):

        @jax.jit
        def divergence(log_width):
            scale = jnp.exp(log_width) * np.sqrt((1.0 - sparse) / 2.0)
            return kl_divergence(QGaussian(0.0, scale, sparse), QGaussian(0.0, 1.0, heavy))

        best = scipy.optimize.minimize_scalar(
            lambda x: float(divergence(x)), bounds=(-1.0, 4.0), options={"xatol": 1e-7}
        )
    np.testing.assert_allclose(optimal_half_width(sparse, heavy), np.exp(best.x), rtol=1e-3)


@pytest.mark.parametrize("sparse", [-20.0, 0.0, 0.9, 0.9999])
@pytest.mark.parametrize("heavy", [1.0, 1.0 + 1e-9, 2.0, 2.9, 2.95, 2.99, 2.999999, 3.0 - 2**-51])
def test_optimal_half_width_is_accurate_up_to_index_three(sparse, heavy):
    """At the best width E[1 / (1 + (q - 1) y^2 / 2)] = (3 - q) / 2, integrated here by SciPy."""
    exponent, width = 1.0 / (1.0 - sparse), optimal_half_width(sparse, heavy)

    def integral(function):
        def integrand(log_t):
            t = np.exp(log_t)
            return t * np.exp(exponent * np.log1p(-t * t)) * function((width * t) ** 2)

        cuts = np.concatenate([np.arange(-np.log(width) - 40.0, -1e-3, 2.0), [-1e-16]])
        return sum(
            scipy.integrate.quad(integrand, low, high, epsabs=0.0, epsrel=1e-12)[0]
            for low, high in itertools.pairwise(cuts)
        )

    if heavy > 1.5:
        found = integral(lambda square: 1.0 / (1.0 + (heavy - 1.0) / 2.0 * square))
        expected = (3.0 - heavy) / 2.0
    else:
        found = integral(lambda square: square / (1.0 + (heavy - 1.0) / 2.0 * square))
        expected = 1.0
    np.testing.assert_allclose(found / integral(lambda _: 1.0), expected, rtol=1e-9)


def test_optimal_half_width_near_index_three():
    """For sparse index 0 it is (3 pi / 2) / (3 - q) to leading order."""
    np.testing.assert_allclose(optimal_half_width(0.0, 2.99), 471.14367, rtol=1e-7)
    np.testing.assert_allclose(optimal_half_width(0.0, 3.0 - 1e-9), 1.5e9 * np.pi, rtol=1e-6)


def test_half_width_for_mass_contains_the_mass():
    """For a Cauchy of scale sqrt(2) sigma the mass in +-r is (2 / pi) atan(r / (sqrt(2) sigma))."""
    for mass in (0.1, 0.5, 0.81, 0.99):
        width = half_width_for_mass(mass, 2.0)
        np.testing.assert_allclose(2 / np.pi * np.arctan(width / np.sqrt(2)), mass, rtol=1e-9)
    for index in (1.0, 1.5, 2.5):
        width = half_width_for_mass(0.6, index)
        np.testing.assert_allclose(QGaussian(0.0, 1.0, index).cdf(width), 0.8, rtol=1e-5)


def test_band_nodes_integrate_moments_exactly():
    """E[t^2] = 1 / (2 e + 3) for the density (1 - t^2)^e, which is 1/5 for q = 0."""
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
        lambda: optimal_half_width(1.0, 2.0),
        lambda: half_width_for_mass(1.0, 2.0),
    ],
)
def test_out_of_range_values_raise(call):
    with pytest.raises(ValueError, match="must be"):
        call()
