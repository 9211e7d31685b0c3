"""Run the conformance kit: our distributions pass, published forms and injected errors fail."""

import math

import jax
import jax.numpy as jnp
import pytest

from fat2thin.distributions import (
    BoxBeta,
    MultivariateQGaussian,
    QGaussian,
    SquashedGaussian,
    multivariate_student_t,
)
from fat2thin.distributions.published import AuthorsProposal, PaperQGaussian, authors_actor
from fat2thin.testing import check_distribution

KEY = jax.random.key(7)
SAMPLES = 20_000
ACROSS_ONE = (0.9, 0.99, 0.999, 1 - 1e-5, 1.0, 1 + 1e-5, 1.001, 1.01, 1.1)
QUICK_INDICES = (-20.0, -1.0, 0.0, 0.5, *ACROSS_ONE, 1.5, 2.0, 2.5)
QUICK_SCALES = (1e-4, 1.0, 1e4)
SPARSE_INDICES = (-20.0, -10.0, -5.0, -3.0, -1.0, -0.5, 0.0, 0.3, 0.5, 0.7, 0.8, 0.85)
DENSELY_ACROSS_ONE = (
    *(1.0 - distance for distance in (0.1, 0.05, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)),
    1.0,
    *(1.0 + distance for distance in (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1)),
)
HEAVY_INDICES = (1.15, 1.2, 1.3, 1.5, 5 / 3, 1.8, 1.95, 2.0, 2.1, 2.3, 2.5)
ALL_INDICES = (*SPARSE_INDICES, *DENSELY_ACROSS_ONE, *HEAVY_INDICES)
BEYOND_FLOAT32 = (2.7, 2.8, 2.9, 2.95)
ALL_SCALES = tuple(10.0**exponent for exponent in range(-4, 5))
FACTOR = jnp.array([[1.0, 0.0, 0.0], [0.9, 1.1, 0.0], [0.0, 0.1, 0.7]])


def grid(indices, scales):
    """Return one distribution with every pair of index and scale, batch shape (indices, scales)."""
    return QGaussian(0.0, jnp.asarray(scales), jnp.asarray(indices)[:, None])


def result(report, name):
    return next(check for check in report.checks if check.name == name)


def test_a_subset_of_the_grid_passes_and_skips_no_check():
    report = check_distribution(grid(QUICK_INDICES, QUICK_SCALES), KEY, samples=SAMPLES)
    report.raise_if_failed()
    assert {check.status for check in report.checks} == {"pass"}


@pytest.mark.slow
@pytest.mark.long
def test_the_grid_passes_in_float32():
    check_distribution(grid(ALL_INDICES, ALL_SCALES), KEY).raise_if_failed()


@pytest.mark.slow
@pytest.mark.long
def test_the_grid_passes_in_float64_up_to_2_95():
    with jax.enable_x64(True):
        # Above 2.5 values leave the range of float32, so the precisions cannot be compared.
        report = check_distribution(
            grid((*ALL_INDICES, *BEYOND_FLOAT32), ALL_SCALES), KEY, skip=["precision"]
        )
    report.raise_if_failed()


@pytest.mark.slow
@pytest.mark.long
def test_the_grid_passes_away_from_the_origin():
    location = jnp.array([-1.0, 1.0, 1e3])[:, None, None]
    indices = jnp.asarray(QUICK_INDICES)[:, None]
    check_distribution(QGaussian(location, jnp.array([0.1, 10.0]), indices), KEY).raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize(
    "distribution",
    [
        SquashedGaussian(jnp.array([-2.0, 0.0, 0.5]), jnp.array([[0.1], [1.0], [3.0]]), -2.0, 3.0),
        BoxBeta(jnp.array([0.5, 1.0, 2.0, 30.0]), jnp.array([[0.7], [5.0]]), -2.0, 3.0),
    ],
    ids=["SquashedGaussian", "BoxBeta"],
)
def test_distributions_on_a_box_pass(distribution):
    check_distribution(distribution, KEY).raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize(
    "distribution",
    [
        MultivariateQGaussian(
            jnp.zeros(3), jnp.array([-20.0, 0.0, 0.5, 0.9, 0.999]), scale_tril=FACTOR
        ),
        MultivariateQGaussian(
            jnp.ones(4), jnp.array([-1.0, 0.99]), scale_diag=jnp.array([1e-3, 1.0, 1.0, 1e3])
        ),
        multivariate_student_t(jnp.zeros(3), FACTOR, 2.0),
        QGaussian(
            jnp.zeros((3, 2)), jnp.array([1e-3, 1e3]), jnp.array([[0.0], [1.0], [2.5]])
        ).to_event(1),
        authors_actor(jnp.zeros(3), jnp.array([0.1, 1.0, 0.01])),
    ],
    ids=["Ellipsoid", "DiagonalEllipsoid", "StudentT", "Product", "AuthorsActor"],
)
def test_distributions_over_vectors_pass(distribution):
    check_distribution(distribution, KEY).raise_if_failed()


def test_the_printed_q_gaussian_fails_mass_and_samples():
    report = check_distribution(
        PaperQGaussian(0.0, 1.0, jnp.array([0.0, 1.5, 2.0])), KEY, samples=SAMPLES
    )
    assert report.failures == ["mass", "samples", "gradients"]
    assert f"the integral is {math.sqrt(2.0):.4f}" in result(report, "mass").where


def test_the_authors_proposal_has_mass_root_two_in_one_dimension():
    distribution = AuthorsProposal(jnp.zeros(1), jnp.ones(1))
    report = check_distribution(distribution, KEY, samples=SAMPLES)
    assert {"mass", "samples"} <= set(report.failures)
    assert result(report, "mass").measured == pytest.approx(math.sqrt(2.0) - 1.0, abs=0.05)


def test_the_mass_of_the_authors_proposal_diverges_in_three_dimensions():
    distribution = AuthorsProposal(jnp.zeros(3), jnp.ones(3))
    report = check_distribution(distribution, KEY, samples=SAMPLES)
    assert {"mass", "samples"} <= set(report.failures)
    assert "does not converge" in result(report, "mass").where


class WrongNormaliser(QGaussian):
    def log_prob(self, value, intermediates=None):
        return super().log_prob(value) + 0.5 * math.log(2.0)

    def sample_with_log_prob(self, key, sample_shape=()):
        value, density = super().sample_with_log_prob(key, sample_shape)
        return value, density + 0.5 * math.log(2.0)


class WrongSamplerIndex(QGaussian):
    def sample(self, key, sample_shape=()):
        index = self.entropic_index + 0.1
        return QGaussian(self.loc, self.scale, index, validate_args=False).sample(key, sample_shape)


class ScaleForVariance(QGaussian):
    def sample(self, key, sample_shape=()):
        scale = jnp.sqrt(self.scale)
        return QGaussian(self.loc, scale, self.entropic_index, validate_args=False).sample(
            key, sample_shape
        )


@pytest.mark.parametrize(
    ("family", "scale", "expected"),
    [
        (WrongNormaliser, 1.0, ["mass"]),
        (WrongSamplerIndex, 1.0, ["samples", "gradients"]),
        pytest.param(ScaleForVariance, 4.0, ["samples", "gradients"], marks=pytest.mark.slow),
    ],
    ids=["WrongNormaliser", "WrongSamplerIndex", "ScaleForVariance"],
)
def test_injected_errors_fail_only_their_own_checks(family, scale, expected):
    distribution = family(0.0, scale, jnp.array([1.0, 2.0]))
    report = check_distribution(distribution, KEY, samples=SAMPLES, skip=["icdf", "precision"])
    assert report.failures == expected


@pytest.mark.slow
def test_samples_of_a_wider_sparse_distribution_fail_the_support_check():
    report = check_distribution(
        WrongSamplerIndex(0.0, 1.0, 0.0), KEY, samples=SAMPLES, skip=["cdf", "icdf", "precision"]
    )
    assert report.failures == ["samples", "gradients", "support"]
