"""Tests that the kit passes correct scalar distributions and finds each injected error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpyro import distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample

from fat2thin.distributions import SquashedGaussian
from fat2thin.testing import check_distribution

KEY = jax.random.key(20)
SAMPLES = 20_000


def failures(distribution, **options):
    return check_distribution(distribution, KEY, samples=SAMPLES, **options).failures


class Epanechnikov(dist.Distribution):
    """3/4 (1 - x^2) on [-1, 1], with a common mistake: `where` is applied after the logarithm."""

    support = constraints.interval(-1.0, 1.0)

    def sample(self, key, sample_shape=()):
        u = jax.random.uniform(key, self.shape(sample_shape), minval=-1.0)
        return 2.0 * jnp.sin(jnp.arcsin(u) / 3.0)

    def log_prob(self, value):
        inside = jnp.abs(value) < 1.0
        return jnp.where(inside, jnp.log(0.75 * (1.0 - value**2)), -jnp.inf)


class SafeEpanechnikov(Epanechnikov):
    def log_prob(self, value):
        inside = jnp.abs(value) < 1.0
        safe = jnp.where(inside, value, 0.0)
        return jnp.where(inside, jnp.log(0.75 * (1.0 - safe**2)), -jnp.inf)


@pytest.mark.parametrize(
    "distribution",
    [
        dist.Normal(3.0, 0.2),
        dist.Cauchy(jnp.array([0.0, -5.0]), jnp.array([[1e-4], [1e4]])),
        pytest.param(dist.StudentT(3.0, 1.0, 2.0), marks=pytest.mark.slow),
        dist.Uniform(-1.0, 2.0),
        pytest.param(dist.Laplace(0.3, 1.0), marks=pytest.mark.slow),
        pytest.param(dist.Gumbel(0.0, 2.0), marks=pytest.mark.slow),
        SafeEpanechnikov(),
    ],
    ids=lambda distribution: type(distribution).__name__,
)
def test_correct_distributions_pass(distribution):
    check_distribution(distribution, KEY, samples=SAMPLES).raise_if_failed()


@pytest.mark.slow
def test_float64_passes_at_the_float64_tolerance():
    with jax.enable_x64(True):
        distribution = dist.Cauchy(0.0, jnp.array([1e-3, 1.0, 1e3]))
        report = check_distribution(distribution, KEY, samples=SAMPLES)
    report.raise_if_failed()
    mass = next(check for check in report.checks if check.name == "mass")
    assert mass.tolerance < 1e-8


@pytest.mark.slow
def test_numpyro_beta_fails_only_the_edges_check():
    # Its gradient is NaN above 1; everything else is correct.
    assert failures(dist.Beta(2.0, 3.0)) == ["edges"]


def test_missing_methods_are_reported_as_not_offered():
    report = check_distribution(SafeEpanechnikov(), KEY, samples=SAMPLES)
    missing = [check.name for check in report.checks if check.status == "not offered"]
    assert missing == [
        "cdf",
        "icdf",
        "entropy",
        "moments",
        "gradients",
        "precision",
        "sample_with_log_prob",
    ]
    assert report.passed


class WrongNormaliser(dist.Normal):
    def log_prob(self, value):
        return super().log_prob(value) + 0.5 * jnp.log(2.0)


class GaussianSampler(dist.Cauchy):
    def sample(self, key, sample_shape=()):
        return self.loc + self.scale * jax.random.normal(key, self.shape(sample_shape))


class ScaleForVariance(dist.Normal):
    def sample(self, key, sample_shape=()):
        noise = jax.random.normal(key, self.shape(sample_shape))
        return self.loc + jnp.sqrt(self.scale) * noise


class TruncatedSampler(dist.Cauchy):
    """Correct except in the far tails, which contain one sample in fifty."""

    def sample(self, key, sample_shape=()):
        return jnp.clip(super().sample(key, sample_shape), -30.0, 30.0)


class ShiftedCdf(dist.Normal):
    def cdf(self, value):
        return super().cdf(value + 0.001)


class FlatCdf(dist.Normal):
    def cdf(self, value):
        return lax.stop_gradient(super().cdf(value))


class ShiftedIcdf(dist.Normal):
    def icdf(self, q):
        return super().icdf(q) + 0.001


class WrongEntropy(dist.Normal):
    def entropy(self):
        return super().entropy() + 0.001


class WrongVariance(dist.Normal):
    @property
    def variance(self):
        return 1.001 * super().variance


class InfiniteVariance(dist.Normal):
    @property
    def variance(self):
        return jnp.full(self.batch_shape, jnp.inf)


class FiniteVariance(dist.Cauchy):
    @property
    def variance(self):
        return jnp.ones(self.batch_shape)


class DetachedSampler(dist.Normal):
    def sample(self, key, sample_shape=()):
        return lax.stop_gradient(super().sample(key, sample_shape))


class HalfGradient(dist.Normal):
    """The derivative in scale is 10 % too small."""

    def sample(self, key, sample_shape=()):
        noise = jax.random.normal(key, self.shape(sample_shape))
        return self.loc + (0.9 * self.scale + 0.1 * lax.stop_gradient(self.scale)) * noise


class LeakingUniform(dist.Uniform):
    def log_prob(self, value):
        return jnp.full(jnp.shape(value), -jnp.log(self.high - self.low))


class UnstableInSinglePrecision(dist.Normal):
    """The expanded square is algebraically exact but cancels in float32."""

    def log_prob(self, value):
        half_square = 0.5 * value**2 - value * self.loc + 0.5 * self.loc**2
        return -half_square / self.scale**2 - jnp.log(self.scale) - 0.5 * jnp.log(2.0 * jnp.pi)


class Pair(dist.Normal):
    def sample_with_log_prob(self, key, sample_shape=()):
        value = self.sample(key, sample_shape)
        return value, self.log_prob(value)


class WrongPair(Pair):
    def sample_with_log_prob(self, key, sample_shape=()):
        value, density = super().sample_with_log_prob(key, sample_shape)
        return value, density + 0.001


class HalfImproper(dist.Cauchy):
    """Tails of 1 / |x|, so the mass diverges."""

    @validate_sample
    def log_prob(self, value):
        return 0.5 * super().log_prob(value)


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (WrongNormaliser(0.0, 1.0), ["mass"]),
        (ShiftedCdf(0.0, 1.0), ["cdf"]),
        pytest.param(FlatCdf(0.0, 1.0), ["cdf"], marks=pytest.mark.slow),
        (ShiftedIcdf(0.0, 1.0), ["icdf"]),
        (WrongEntropy(0.0, 1.0), ["entropy"]),
        (WrongVariance(0.0, 1.0), ["moments"]),
        pytest.param(InfiniteVariance(0.0, 1.0), ["moments"], marks=pytest.mark.slow),
        (FiniteVariance(0.0, 1.0), ["moments"]),
        (DetachedSampler(0.0, 1.0), ["gradients"]),
        pytest.param(HalfGradient(0.0, 1.0), ["gradients"], marks=pytest.mark.slow),
        (LeakingUniform(0.0, 1.0), ["support"]),
        (Epanechnikov(), ["edges"]),
        (UnstableInSinglePrecision(1.0, 0.01), ["precision"]),
        (WrongPair(0.0, 1.0), ["sample_with_log_prob"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, dist.Distribution) else "",
)
def test_an_injected_error_fails_only_its_own_check(distribution, expected):
    assert failures(distribution) == expected


@pytest.mark.parametrize(
    "distribution",
    [
        GaussianSampler(0.0, 1.0),
        pytest.param(ScaleForVariance(0.0, 2.0), marks=pytest.mark.slow),
        ScaleForVariance(0.0, 1e-4),
    ],
    ids=["GaussianSampler", "ScaleForVariance", "ScaleForVarianceFarOff"],
)
def test_a_wrong_sampler_fails_samples_and_gradients(distribution):
    # Derivatives of samples of another distribution belong to another expectation.
    assert failures(distribution) == ["samples", "gradients"]


def test_a_sampler_that_is_wrong_only_in_the_far_tails_fails():
    assert failures(TruncatedSampler(0.0, 1.0), skip=["gradients"]) == ["samples"]


def test_a_density_with_divergent_mass_fails_mass():
    report = check_distribution(HalfImproper(0.0, 1.0), KEY, samples=SAMPLES)
    mass = next(check for check in report.checks if check.name == "mass")
    assert mass.status == "FAIL"
    assert mass.measured == np.inf


def test_a_consistent_sample_with_log_prob_passes():
    assert check_distribution(Pair(0.0, 1.0), KEY, samples=SAMPLES).passed


def test_the_report_names_the_worst_batch_element():
    scale = np.ones((2, 3), np.float32)
    scale[1, 2] = 4.0
    report = check_distribution(ScaleForVariance(0.0, jnp.asarray(scale)), KEY, samples=SAMPLES)
    line = next(check for check in report.checks if check.name == "samples")
    assert line.status == "FAIL"
    assert "element (1, 2)" in line.where
    assert "scale=4" in line.where


class Jagged(SquashedGaussian):
    """Every second quantile close to the lower end is too large, so icdf is not monotone."""

    def __init__(self, above):
        super().__init__(0.0, 3.0)
        self.above = above

    def icdf(self, q):
        value, odd = super().icdf(q), jnp.arange(len(q)) % 2
        return jnp.where(value < -1.0 + 1e-6, -1.0 + odd * self.above, value)


@pytest.mark.parametrize(("above", "failed"), [(2**-22, []), (2**-20, ["icdf"])])
def test_an_icdf_may_decrease_only_by_rounding(above, failed):
    others = ["samples", "cdf", "entropy", "moments", "gradients", "edges", "precision"]
    skipped = [*others, "mass", "support", "sample_with_log_prob"]
    report = check_distribution(Jagged(above), KEY, samples=SAMPLES, skip=skipped)
    assert report.failures == failed
    if failed:
        assert report.checks[0].measured == above


def test_the_same_key_gives_the_same_report():
    quick = ["cdf", "icdf", "edges", "precision"]
    first, second = (
        check_distribution(dist.Normal(), KEY, samples=SAMPLES, skip=quick) for _ in range(2)
    )
    assert first == second
    assert str(first) == str(second)


def test_the_report_is_a_table_and_raises_on_demand():
    report = check_distribution(WrongNormaliser(0.0, 1.0), KEY, samples=SAMPLES)
    assert not report.passed
    lines = str(report).splitlines()
    assert len(lines) == 4 + len(report.checks)  # title, blank line, headings and rule
    assert any(line.startswith("mass") and "FAIL" in line and "1.41421" in line for line in lines)
    with pytest.raises(AssertionError, match="mass failed"):
        report.raise_if_failed()


def test_invalid_arguments_raise_clear_errors():
    with pytest.raises(ValueError, match="Poisson is discrete"):
        check_distribution(dist.Poisson(1.0), KEY)
    with pytest.raises(ValueError, match="at least 2000"):
        check_distribution(dist.Normal(), KEY, samples=100)
    with pytest.raises(ValueError, match="unknown checks in skip: masses; known are mass, samples"):
        check_distribution(dist.Normal(), KEY, samples=SAMPLES, skip=["masses"])
