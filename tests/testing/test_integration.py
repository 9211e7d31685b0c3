"""Tests of the quadrature against SciPy, also with edges that are misplaced for the density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist
from scipy import stats

from fat2thin.testing.integration import integrate, make_line
from fat2thin.testing.scalar import check_samples, study_scalar
from fat2thin.testing.subject import Subject

LEVELS = np.linspace(0.02, 0.98, 25)

CASES = {
    "normal": (lambda: dist.Normal(2.0, 1e-3), stats.norm(2.0, 1e-3)),
    "cauchy": (lambda: dist.Cauchy(0.0, 1e4), stats.cauchy(0.0, 1e4)),
    "student": (lambda: dist.StudentT(0.5), stats.t(0.5)),
    "gamma": (lambda: dist.Gamma(0.1, 1.0), stats.gamma(0.1)),
    "beta": (lambda: dist.Beta(0.6, 4.0), stats.beta(0.6, 4.0)),
    "laplace": (lambda: dist.Laplace(0.3, 1.0), stats.laplace(0.3)),
}


@pytest.mark.parametrize("stretch", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("name", CASES)
def test_masses_between_edges_match_scipy(name, stretch):
    make, oracle = CASES[name]
    with jax.enable_x64(True):
        subject = Subject(make(), 2_000)
        centre = np.array([oracle.median()])
        core = stretch * np.array([oracle.ppf(0.55) - oracle.ppf(0.45)])
        edges = centre + stretch * (oracle.ppf(LEVELS)[:, None] - centre)
        line = make_line(subject, edges, centre, core)
        integral = integrate(line)
    expected = np.diff(oracle.cdf(line.edges[:, 0]), prepend=0.0, append=1.0)
    np.testing.assert_allclose(integral.region_masses()[:, 0], expected, atol=2e-8)
    np.testing.assert_allclose(integral.mass, 1.0, atol=2e-8)


def test_moments_and_entropy_match_scipy():
    oracle = stats.gamma(2.5, scale=0.2)
    with jax.enable_x64(True):
        integral = study_scalar(Subject(dist.Gamma(2.5, 5.0), 10_000), jax.random.key(0)).integral
    assert integral.mean_of(integral.x) == pytest.approx(oracle.mean(), rel=1e-10)
    with np.errstate(over="ignore"):
        square = integral.x**2
    assert integral.mean_of(square) == pytest.approx(oracle.moment(2), rel=1e-10)
    assert integral.mean_of(-integral.log_density) == pytest.approx(oracle.entropy(), rel=1e-10)


def test_decay_is_the_exponent_of_the_tail():
    # The density of a Student-t falls as |x|^-(1 + freedom).
    freedom = np.array([0.1, 0.5, 1.0, 3.0])
    with jax.enable_x64(True):
        subject = Subject(dist.StudentT(jnp.asarray(freedom)), 10_000)
        integral = study_scalar(subject, jax.random.key(0)).integral
    _, rate = integral.decay(integral.log_share)
    np.testing.assert_allclose(rate, np.stack([freedom, freedom]), rtol=1e-3)


def test_an_undeclared_end_of_the_support_is_found():
    class HiddenEnd(dist.Normal):
        """Uniform on [-2, 1], although its declared support is the real line."""

        def log_prob(self, value):
            inside = (value >= -2.0) & (value <= 1.0)
            return jnp.where(inside, -jnp.log(3.0), -jnp.inf)

    subject = Subject(HiddenEnd(), 2_000)
    edges = np.array([[-1.0], [0.0], [0.5]])
    centre, core = np.array([0.0]), np.array([0.1])
    line = make_line(subject, edges, centre, core)
    np.testing.assert_allclose(line.ends[:, 0], [-2.0, 1.0], atol=1e-6)
    integral = integrate(line)
    np.testing.assert_allclose(integral.region_masses()[:, 0], [1 / 3, 1 / 3, 1 / 6, 1 / 6], 1e-6)


def test_chi_square_of_correct_samples_follows_the_chi_square_distribution():
    count = 300
    subject = Subject(dist.Normal(jnp.zeros(count), jnp.ones(count)), 20_000)
    study = study_scalar(subject, jax.random.key(5))
    (finding,) = check_samples(study)
    degrees = 1 + (np.diff(study.line.edges, axis=0) > 0.0).sum(0)
    probabilities = stats.chi2.sf(finding.error, degrees)
    assert stats.kstest(probabilities, "uniform").pvalue > 1e-4
