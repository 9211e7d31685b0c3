"""Tests of the KL divergences against SciPy's quadrature, and of the estimators' bias."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from numpyro.distributions import Cauchy, Normal, StudentT, kl_divergence

from fat2thin.distributions import (
    QGaussian,
    SquashedGaussian,
    kl_sparse_cauchy,
    monte_carlo_k3,
    monte_carlo_kl,
)
from fat2thin.distributions.divergences import expectation
from oracles import scipy_twin


def integrated_kl(first, second):
    """Return the KL by adaptive quadrature of SciPy's densities, cut at quantiles of the first."""
    cuts = [first.ppf(p) for p in (0.0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-4, 1.0)]

    def integrand(x):
        density = first.pdf(x)
        return density * (first.logpdf(x) - second.logpdf(x)) if density > 0.0 else 0.0

    pieces = itertools.pairwise(cuts)
    return sum(scipy.integrate.quad(integrand, a, b, limit=200)[0] for a, b in pieces)


def test_closed_form_has_the_documented_minimum():
    with jax.enable_x64(True):
        best = scipy.optimize.minimize_scalar(
            lambda k: float(kl_sparse_cauchy(k, 1.0)), bounds=(1.0, 10.0), options={"xatol": 1e-9}
        )
        np.testing.assert_allclose(best.x, 3.2579, atol=5e-5)
        np.testing.assert_allclose(best.fun, 0.29594, atol=5e-6)
        narrow = float(kl_sparse_cauchy(1e-5, 1.0))
        np.testing.assert_allclose(narrow, np.log(3 * np.pi) - 5 / 3 - np.log(1e-5), rtol=1e-9)


@pytest.mark.parametrize("wide", [False, True])
def test_closed_form_equals_the_integral(wide):
    ratios = np.array([1e-3, 0.04, 0.29, 0.31, 1.0, 3.0, 50.0, 1e4])
    expected = [
        integrated_kl(scipy_twin(0, k / np.sqrt(2), 0.0), scipy_twin(0, 1 / np.sqrt(2), 2.0))
        for k in ratios
    ]
    with jax.enable_x64(wide):
        values = kl_sparse_cauchy(ratios, 1.0)
        slopes = jax.vmap(jax.grad(kl_sparse_cauchy), (0, None))(jnp.asarray(ratios), 1.0)
    np.testing.assert_allclose(values, expected, rtol=1e-8 if wide else 1e-5)
    steps = ratios * 1e-4
    with jax.enable_x64(True):
        above, below = (kl_sparse_cauchy(ratios + sign * steps, 1.0) for sign in (1, -1))
        change = np.asarray(above) - np.asarray(below)
    np.testing.assert_allclose(slopes, change / (2 * steps), rtol=1e-4, atol=1e-6)


PAIRS = [
    # (loc, scale, index) of p and of r
    ((0.0, 0.5, 0.0), (0.0, 1.0, 2.0)),
    ((0.3, 0.5, 0.0), (0.0, 1.0, 2.0)),
    ((0.0, 5.0, 0.0), (1.0, 0.01, 2.0)),
    ((0.2, 1.0, -20.0), (0.0, 0.3, 1.5)),
    ((0.0, 1.0, 0.5), (0.1, 2.0, 0.0)),
    ((0.0, 1.0, 0.93), (0.5, 1.5, 1.0)),
    ((0.0, 1.0, 0.95), (0.5, 1.5, 1.0)),
    ((0.0, 1.0, 0.99999), (0.5, 1.5, 1.0)),
    ((0.0, 1.0, 1.0), (0.5, 1.5, 2.0)),
    ((0.0, 1.0, 1.5), (0.5, 1.5, 1.0)),
    ((0.0, 1.0, 2.0), (5.0, 0.1, 2.0)),
    ((0.0, 1.0, 2.0), (0.0, 1.0, 1.2)),
    ((-3.0, 0.01, 2.0), (3.0, 1.0, 2.0)),
]


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_quadrature_matches_scipy(wide):
    first, second = (np.array(parameters).T for parameters in zip(*PAIRS, strict=True))
    expected = [integrated_kl(scipy_twin(*p), scipy_twin(*r)) for p, r in PAIRS]
    with jax.enable_x64(wide):
        values = kl_divergence(QGaussian(*first), QGaussian(*second))
    tolerance = 1e-6 if wide else 1e-4
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)


def test_kl_of_a_distribution_with_itself_is_zero():
    indices = jnp.array([-20.0, -1.0, 0.0, 0.5, 0.99, 1.0, 1.5, 2.0, 2.5])
    values = kl_divergence(QGaussian(0.3, 2.0, indices), QGaussian(0.3, 2.0, indices))
    np.testing.assert_allclose(values, 0.0, atol=1e-4)


def test_kl_is_infinite_where_not_covered_or_divergent():
    assert kl_divergence(QGaussian(0.0, 1.0, 0.0), QGaussian(0.0, 0.9, 0.0)) == jnp.inf
    assert kl_divergence(QGaussian(0.0, 1.0, 2.0), QGaussian(0.0, 9.0, 0.0)) == jnp.inf
    assert kl_divergence(QGaussian(0.0, 1.0, 5 / 3), Normal(0.0, 1.0)) == jnp.inf
    assert np.isfinite(kl_divergence(QGaussian(0.0, 1.0, 1.5), Normal(0.0, 1.0)))
    assert np.isfinite(kl_divergence(QGaussian(0.0, 1.0, 2.0), QGaussian(0.0, 1.0, 1.01)))


def test_registered_kl_accepts_normal_cauchy_and_student_t():
    sparse = QGaussian(0.1, 0.5, 0.0)
    expected = {
        Normal(0.0, 2.0): scipy_twin(0.0, 2.0, 1.0),
        Cauchy(0.0, 2.0): scipy_twin(0.0, 2.0 / np.sqrt(2.0), 2.0),
        StudentT(3.0, 0.0, 2.0): scipy_twin(0.0, 2.0 * np.sqrt(0.75), 1.5),
    }
    for relative, twin in expected.items():
        value = integrated_kl(scipy_twin(0.1, 0.5, 0.0), twin)
        np.testing.assert_allclose(kl_divergence(sparse, relative), value, rtol=1e-4)
    reverse = kl_divergence(Normal(0.0, 2.0), QGaussian(0.0, 1.0, 2.0))
    twins = scipy_twin(0.0, 2.0, 1.0), scipy_twin(0.0, 1.0, 2.0)
    np.testing.assert_allclose(reverse, integrated_kl(*twins), rtol=1e-4)


def test_closed_form_is_used_only_with_a_common_centre():
    centred = kl_divergence(QGaussian(0.5, 1.0, 0.0), QGaussian(0.5, 1.0, 2.0))
    np.testing.assert_allclose(centred, kl_sparse_cauchy(1.0, 1.0), rtol=1e-6)
    offset = kl_divergence(QGaussian(0.5, 1.0, 0.0), QGaussian(0.0, 1.0, 2.0))
    twins = scipy_twin(0.5, 1.0, 0.0), scipy_twin(0.0, 1.0, 2.0)
    np.testing.assert_allclose(offset, integrated_kl(*twins), rtol=1e-5)


def test_kl_of_products_is_the_sum_over_coordinates():
    sparse = QGaussian(jnp.zeros(3), jnp.array([0.5, 1.0, 2.0]), 0.0)
    heavy = QGaussian(jnp.zeros(3), 1.0, 2.0)
    total = kl_divergence(sparse.to_event(1), heavy.to_event(1))
    np.testing.assert_allclose(total, jnp.sum(kl_divergence(sparse, heavy)), rtol=1e-6)


def test_kl_to_a_squashed_gaussian_is_infinite_outside_its_box():
    squashed = SquashedGaussian(0.2, 0.5, -1.0, 1.0)
    inside = QGaussian(0.1, 0.3, 0.0)
    twin = scipy_twin(0.1, 0.3, 0.0)

    def integrand(x):
        log_density = -0.5 * ((np.arctanh(x) - 0.2) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
        return twin.pdf(x) * (twin.logpdf(x) - log_density + np.log1p(-(x**2)))

    width = 0.3 * np.sqrt(2)
    expected = scipy.integrate.quad(integrand, 0.1 - width + 1e-12, 0.1 + width - 1e-12)[0]
    np.testing.assert_allclose(kl_divergence(inside, squashed), expected, rtol=1e-4)
    assert kl_divergence(QGaussian(0.8, 0.3, 0.0), squashed) == jnp.inf


def test_gradients_of_the_quadrature_match_finite_differences():
    def divergence(loc, scale, index, other_scale):
        return kl_divergence(QGaussian(loc, scale, index), QGaussian(0.0, other_scale, 2.0))

    point = (0.3, 0.5, -0.5, 0.8)
    step = 1e-5
    with jax.enable_x64(True):
        divergence = jax.jit(divergence)
        slopes = jax.grad(divergence, (0, 1, 2, 3))(*point)
        for position, slope in enumerate(slopes):
            above = tuple(p + step * (i == position) for i, p in enumerate(point))
            below = tuple(p - step * (i == position) for i, p in enumerate(point))
            change = (divergence(*above) - divergence(*below)) / (2 * step)
            np.testing.assert_allclose(slope, change, rtol=1e-5, atol=1e-7)


def test_expectation_of_the_square_is_the_variance():
    indices = jnp.array([-20.0, 0.0, 0.9, 1.0, 1.2])
    distribution = QGaussian(0.5, 2.0, indices)
    values = expectation(distribution, lambda x: (x - 0.5) ** 2, jnp.float32(0.5))
    np.testing.assert_allclose(values, distribution.variance, rtol=1e-4)


def test_monte_carlo_kl_is_unbiased_and_k3_is_biased():
    """E[k3] = KL - (1 - M) with M the mass of r inside the support of p."""
    half_width, samples = 2.3009, 400_000
    sparse = QGaussian(0.0, half_width / np.sqrt(2.0), 0.0)
    cauchy = Cauchy(0.0, 1.0)
    exact = kl_sparse_cauchy(half_width, 1.0)
    covered = 2.0 / np.pi * np.arctan(half_width)
    plain = monte_carlo_kl(jax.random.key(0), sparse, cauchy, samples)
    # The standard deviation of one term is 0.24 here; allow five standard errors.
    np.testing.assert_allclose(plain, exact, atol=5 * 0.24 / np.sqrt(samples))
    k3 = monte_carlo_k3(jax.random.key(1), sparse, cauchy, samples)
    np.testing.assert_allclose(k3, exact - (1.0 - covered), atol=0.01)
    assert k3 < exact - 0.2


def test_k3_is_never_negative():
    sparse, heavy = QGaussian(0.0, 1.0, 0.0), QGaussian(0.4, 2.0, 2.0)
    keys = jax.random.split(jax.random.key(0), 2_000)
    estimates = jax.vmap(lambda key: monte_carlo_k3(key, sparse, heavy, 1))(keys)
    assert np.min(estimates) > -1e-6


def test_monte_carlo_gradients_reach_both_densities():
    def estimate(scale, other_scale):
        sparse, heavy = QGaussian(0.0, scale, 0.0), QGaussian(0.0, other_scale, 2.0)
        return monte_carlo_kl(jax.random.key(0), sparse, heavy, 200_000)

    def exact(scale, other_scale):
        return kl_sparse_cauchy(np.sqrt(2.0) * scale, np.sqrt(2.0) * other_scale)

    sampled = jax.grad(estimate, (0, 1))(0.7, 1.1)
    np.testing.assert_allclose(sampled, jax.grad(exact, (0, 1))(0.7, 1.1), atol=0.01)
