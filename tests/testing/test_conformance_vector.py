"""Tests that the kit passes correct distributions over vectors and finds injected errors."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy.special import gammaln
from numpyro import distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample

from fat2thin.testing import check_distribution

KEY = jax.random.key(21)
SAMPLES = 40_000
COVARIANCE = jnp.array([[1.0, 0.9, 0.0], [0.9, 2.0, 0.1], [0.0, 0.1, 0.5]])
FACTOR = jnp.linalg.cholesky(COVARIANCE)


def failures(distribution, **options):
    return check_distribution(distribution, KEY, samples=SAMPLES, **options).failures


class UnitBall(constraints.Constraint):
    event_dim = 1

    def __call__(self, x):
        return jnp.sum(x**2, axis=-1) <= 1.0


class UniformBall(dist.Distribution):
    """Uniform on the unit disc."""

    support = UnitBall()

    def __init__(self):
        super().__init__((), (2,))

    def sample(self, key, sample_shape=()):
        normal = jax.random.normal(key, (*self.shape(sample_shape)[:-1], 4))
        # Coordinates of a point on the unit sphere in n + 2 dimensions are uniform in the n-ball.
        return normal[..., :2] / jnp.linalg.norm(normal, axis=-1, keepdims=True)

    def log_prob(self, value):
        inside = jnp.sum(value**2, axis=-1) <= 1.0
        return jnp.where(inside, -jnp.log(jnp.pi), -jnp.inf)


class LeakingBall(UniformBall):
    def log_prob(self, value):
        return jnp.full(jnp.shape(value)[:-1], -jnp.log(jnp.pi))


@pytest.mark.parametrize(
    "distribution",
    [
        pytest.param(dist.MultivariateNormal(jnp.arange(3.0), COVARIANCE), marks=pytest.mark.slow),
        dist.MultivariateNormal(jnp.zeros(3), scale_tril=FACTOR),
        pytest.param(
            dist.MultivariateStudentT(jnp.array([1.0, 3.0]), jnp.zeros(3), FACTOR),
            marks=pytest.mark.slow,
        ),
        dist.Normal(jnp.zeros((2, 3)), jnp.array([[1.0], [1e-3]])).to_event(1),
        pytest.param(
            dist.Cauchy(jnp.zeros(3), jnp.array([1e-2, 1.0, 1e2])).to_event(1),
            marks=pytest.mark.slow,
        ),
        UniformBall(),
    ],
    ids=["Covariance", "Cholesky", "StudentT", "Independent", "IndependentCauchy", "Ball"],
)
def test_correct_distributions_pass(distribution):
    check_distribution(distribution, KEY, samples=SAMPLES).raise_if_failed()


def test_integrals_are_not_checked_on_a_support_without_volume():
    report = check_distribution(dist.Dirichlet(jnp.ones(3)), KEY, samples=SAMPLES)
    status = {check.name: check.status for check in report.checks}
    assert status["mass"] == status["samples"] == "not offered"
    assert status["precision"] == "pass"


class WrongNormaliser(dist.MultivariateNormal):
    def log_prob(self, value):
        return super().log_prob(value) + 0.5 * jnp.log(2.0)


class Uncorrelated(dist.MultivariateNormal):
    def sample(self, key, sample_shape=()):
        noise = jax.random.normal(key, self.shape(sample_shape))
        return self.loc + noise * jnp.sqrt(self.variance)


class Detached(dist.MultivariateNormal):
    def sample(self, key, sample_shape=()):
        return lax.stop_gradient(super().sample(key, sample_shape))


class WrongEntropy(dist.MultivariateNormal):
    def entropy(self):
        return super().entropy() + 0.2


class WrongVariance(dist.MultivariateNormal):
    @property
    def variance(self):
        return 1.2 * super().variance


class FiniteVariance(dist.MultivariateStudentT):
    @property
    def variance(self):
        return jnp.ones(self.batch_shape + self.event_shape)


class InfiniteVariance(dist.MultivariateNormal):
    @property
    def variance(self):
        return jnp.full(self.batch_shape + self.event_shape, jnp.inf)


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (WrongNormaliser(jnp.zeros(3), scale_tril=FACTOR), ["mass"]),
        (Uncorrelated(jnp.zeros(3), scale_tril=FACTOR), ["samples", "gradients"]),
        (Detached(jnp.zeros(3), scale_tril=FACTOR), ["gradients"]),
        pytest.param(
            WrongEntropy(jnp.zeros(3), scale_tril=FACTOR), ["entropy"], marks=pytest.mark.slow
        ),
        (WrongVariance(jnp.zeros(3), scale_tril=FACTOR), ["moments"]),
        pytest.param(
            InfiniteVariance(jnp.zeros(3), scale_tril=FACTOR), ["moments"], marks=pytest.mark.slow
        ),
        pytest.param(
            FiniteVariance(1.0, jnp.zeros(3), FACTOR), ["moments"], marks=pytest.mark.slow
        ),
        (LeakingBall(), ["support"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, dist.Distribution) else "",
)
def test_an_injected_error_fails_only_its_own_check(distribution, expected):
    assert failures(distribution) == expected


class ImproperCauchy(dist.Distribution):
    """The one-dimensional Cauchy kernel in three dimensions, with a Student-t normaliser."""

    support = constraints.real_vector

    def __init__(self):
        super().__init__((), (3,))

    def sample(self, key, sample_shape=()):
        joint = dist.MultivariateStudentT(1.0, jnp.zeros(3), jnp.eye(3))
        return joint.sample(key, sample_shape)

    @validate_sample
    def log_prob(self, value):
        constant = gammaln(0.5) + 1.5 * jnp.log(jnp.pi) - gammaln(2.0)
        return -jnp.log1p(jnp.sum(value**2, axis=-1)) - constant


def test_an_improper_density_in_three_dimensions_fails_mass():
    report = check_distribution(ImproperCauchy(), KEY, samples=SAMPLES)
    mass = next(check for check in report.checks if check.name == "mass")
    assert mass.status == "FAIL"
    assert "does not converge" in mass.where
