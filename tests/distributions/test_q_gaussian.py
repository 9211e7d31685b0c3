"""Tests of QGaussian against SciPy's distributions, the Gamma formulas and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as numpyro_distributions
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fat2thin.distributions import QGaussian, sample_with_log_prob
from fat2thin.distributions.standard_q_gaussian import entropy_excess, log_normaliser
from oracles import scipy_twin

SPARSE = (-20.0, -3.0, -1.0, 0.0, 0.5, 0.8)
HEAVY = (1.2, 1.5, 2.0, 2.5)
NEAR_ONE = (0.89, 0.91, 0.99, 1.0 - 1e-3, 1.0 - 1e-5, 1.0, 1.0 + 1e-5, 1.0 + 1e-3, 1.01, 1.09, 1.11)
LEVEL = 1e-6


def gamma_formula(index):
    """Return log Z by the textbook formula with log-Gamma functions in float64, away from 1."""
    distance = abs(1.0 - index)
    exponent = 1.0 / distance
    low, high = (exponent + 1, exponent + 1.5) if index < 1 else (exponent - 0.5, exponent)
    gammaln = scipy.special.gammaln
    return 0.5 * np.log(2 * np.pi / distance) + gammaln(low) - gammaln(high)


@pytest.mark.parametrize("wide", [False, True])
def test_normaliser_matches_the_gamma_formula(wide):
    indices = np.array([*SPARSE, *HEAVY], np.float32)
    with jax.enable_x64(wide):
        values = log_normaliser(jnp.asarray(indices.astype(float)))
    expected = [gamma_formula(float(index)) for index in indices]
    np.testing.assert_allclose(values, expected, atol=1e-12 if wide else 1e-6)


def test_normaliser_at_known_indices():
    constants = {0.0: 4.0 * np.sqrt(2.0) / 3.0, 1.0: np.sqrt(2 * np.pi), 2.0: np.sqrt(2.0) * np.pi}
    for index, constant in constants.items():
        np.testing.assert_allclose(jnp.exp(log_normaliser(index)), constant, rtol=1e-6)


def test_entropy_at_known_indices():
    half_width = 0.7
    sparse = QGaussian(0.0, half_width / np.sqrt(2.0), 0.0)
    np.testing.assert_allclose(sparse.entropy(), np.log(half_width) + 5 / 3 - np.log(3), rtol=1e-5)
    cauchy = QGaussian(0.0, half_width / np.sqrt(2.0), 2.0)
    np.testing.assert_allclose(cauchy.entropy(), np.log(4 * np.pi * half_width), rtol=1e-5)


@pytest.mark.parametrize("function", [log_normaliser, entropy_excess])
@pytest.mark.parametrize("wide", [False, True])
def test_value_and_slope_are_smooth_across_one(function, wide):
    """The integral of the slope is the value: no step or kink where the series is switched on."""
    with jax.enable_x64(wide):
        indices = jnp.asarray(1.0 + np.linspace(-0.12, 0.12, 49))
        values = np.asarray(function(indices), float)
        slopes = np.asarray(jax.vmap(jax.grad(function))(indices), float)
    integrated = scipy.integrate.cumulative_simpson(slopes, x=np.asarray(indices), initial=0.0)
    np.testing.assert_allclose(values - values[0], integrated, atol=1e-7 if wide else 1e-5)


def test_slope_of_the_normaliser_at_one():
    """d log Z / dq = E[y^4] / 8 = 3/8 at q = 1: exp_q(-x) = exp(-x)(1 + (q - 1) x^2 / 2)."""
    np.testing.assert_allclose(jax.grad(log_normaliser)(1.0), 0.375, rtol=1e-5)


@pytest.mark.parametrize("wide", [False, True])
def test_density_cdf_and_icdf_match_scipy(wide):
    """The outer percents are tested in float64 only: close to the edge of a sparse support the
    result is too sensitive to rounding in float32.
    """
    indices = np.array([*SPARSE, *NEAR_ONE, *HEAVY], np.float32).astype(float)
    loc, scale = 0.3125, 2.0
    twins = [scipy_twin(loc, scale, index) for index in indices]
    shares = np.array([1e-5, 1e-3, 0.01, 0.2, 0.4999, 0.5, 0.5001, 0.7, 0.99, 0.999])
    if not wide:
        shares = shares[2:-1]
    points = np.stack([twin.ppf(shares) for twin in twins], axis=1)
    points = points if wide else points.astype(np.float32)
    with jax.enable_x64(wide):
        ours = QGaussian(loc, scale, jnp.asarray(indices))
        log_density, cumulative = ours.log_prob(points), ours.cdf(points)
        quantiles = np.asarray(ours.icdf(shares[:, None]), float)
    tolerance = 1e-8 if wide else 1e-4
    for column, twin in enumerate(twins):
        at = points[:, column].astype(float)
        close = {"rtol": tolerance, "atol": 1e-12, "err_msg": f"index {indices[column]}"}
        np.testing.assert_allclose(np.exp(log_density[:, column]), twin.pdf(at), **close)
        np.testing.assert_allclose(cumulative[:, column], twin.cdf(at), **close)
        # Compare probabilities, not quantiles: the density may be tiny there.
        np.testing.assert_allclose(twin.cdf(quantiles[:, column]), shares, **close)


def test_lower_tail_keeps_relative_precision():
    indices = np.array([0.0, 0.95, 1.0, 1.05, 2.0, 2.5])
    twins = [scipy_twin(0.0, 1.0, index) for index in indices]
    points = np.stack([twin.ppf(np.logspace(-12, -1, 12)) for twin in twins], axis=1)
    expected = np.stack([twin.cdf(p) for twin, p in zip(twins, points.T, strict=True)], axis=1)
    with jax.enable_x64(True):
        np.testing.assert_allclose(QGaussian(0.0, 1.0, indices).cdf(points), expected, rtol=1e-8)


def test_uniform_and_semicircle_limits():
    x = jnp.linspace(-1.9, 1.9, 21)
    semicircle = scipy.stats.semicircular(scale=2.0)
    np.testing.assert_allclose(
        QGaussian(0.0, 2.0, -1.0).log_prob(x), semicircle.logpdf(x), rtol=1e-4
    )
    index = -1e6
    wide = QGaussian(0.0, 2.0 / np.sqrt(2.0 / (1.0 - index)), index)
    np.testing.assert_allclose(jnp.exp(wide.log_prob(x)), 0.25, rtol=1e-4)


def test_samples_follow_scipys_distribution():
    indices = np.array([*SPARSE, *NEAR_ONE, *HEAVY])
    values = QGaussian(-1.0, 0.5, jnp.asarray(indices)).sample(jax.random.key(7), (40_000,))
    for index, column in zip(indices, np.asarray(values, float).T, strict=True):
        result = scipy.stats.kstest(column, scipy_twin(-1.0, 0.5, index).cdf)
        assert result.pvalue > LEVEL, (index, result)


@pytest.mark.parametrize("name", ["loc", "scale", "entropic_index"])
@pytest.mark.parametrize("quantity", ["sample", "log_prob"])
def test_derivatives_match_finite_differences(quantity, name):
    """Derivatives of samples and densities in each parameter, across index 1."""
    indices = np.array([-3.0, 0.0, 0.95, 1.0, 1.05, 1.5, 2.0])
    points = np.linspace(-0.6, 0.9, 16)[:, None]
    step = 1e-5

    with jax.enable_x64(True):

        @jax.jit
        def evaluate(shift):
            parameters = {"loc": 0.2, "scale": 1.5, "entropic_index": jnp.asarray(indices)}
            distribution = QGaussian(**(parameters | {name: parameters[name] + shift}))
            if quantity == "sample":
                return distribution.sample(jax.random.key(3), (500,))
            return distribution.log_prob(points)

        derivative = jax.jacfwd(evaluate)(0.0)
        difference = (np.asarray(evaluate(step)) - np.asarray(evaluate(-step))) / (2 * step)
    np.testing.assert_allclose(derivative, difference, rtol=1e-4, atol=1e-6)


def test_sample_with_log_prob_matches_log_prob():
    distribution = QGaussian(0.3, 2.0, jnp.array([-20.0, 0.0, 0.999, 1.0, 1.5, 2.5]))
    values, log_density = distribution.sample_with_log_prob(jax.random.key(5), (20_000,))
    np.testing.assert_array_equal(values, distribution.sample(jax.random.key(5), (20_000,)))
    assert np.all(np.isfinite(log_density))
    assert np.all(np.isfinite(distribution.log_prob(values)))
    np.testing.assert_allclose(log_density, distribution.log_prob(values), atol=1e-3)


@pytest.mark.parametrize("index", [-1.0, 0.0, 0.5, 2.0])
def test_log_density_of_a_reparametrised_sample_depends_only_on_the_scale(index):
    """Along the sample path d/dloc = 0 and d/dlog scale = -1."""

    def total(loc, log_scale):
        distribution = QGaussian(loc, jnp.exp(log_scale), index)
        return distribution.sample_with_log_prob(jax.random.key(1), ())[1]

    np.testing.assert_allclose(jax.grad(total, 0)(0.3, -1.0), 0.0, atol=1e-6)
    np.testing.assert_allclose(jax.grad(total, 1)(0.3, -1.0), -1.0, rtol=1e-6)


def test_samples_stay_in_the_support_even_if_it_is_narrow():
    loc, scale, index = jnp.meshgrid(
        jnp.array([0.0, 0.3, 1000.0, -1e6]),
        jnp.array([1e-4, 1.0, 1e4]),
        jnp.array([-20.0, 0.0, 0.9]),
    )
    distribution = QGaussian(loc, scale, index)
    values = distribution.sample(jax.random.key(0), (10_000,))
    with jax.numpy_rank_promotion("allow"):  # inside NumPyro's interval
        assert np.all(distribution.support(values))
    assert np.all(distribution.support_mask(values))
    assert np.all(np.isfinite(distribution.log_prob(values)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_density_and_gradients_at_the_edges(dtype):
    with jax.enable_x64(dtype is np.float64):
        index, loc = np.meshgrid(np.array([-20.0, -1.0, 0.0, 0.5, 0.99], dtype), dtype([0.0, 0.7]))
        parameters = (jnp.asarray(loc), jnp.full_like(loc, 0.3), jnp.asarray(index))
        support = QGaussian(*parameters).support
        low, high = np.asarray(support.lower_bound), np.asarray(support.upper_bound)
        inside = [low, np.nextafter(low, dtype(9)), np.nextafter(high, dtype(-9)), high]
        outside = [np.nextafter(low, dtype(-9)), low - 1, np.nextafter(high, dtype(9)), high + 1e3]

        @jax.jit
        def slopes(value):
            def total(value, *parameters):
                log_density = QGaussian(*parameters).log_prob(value)
                return jnp.sum(jnp.where(jnp.isfinite(log_density), log_density, 0.0))

            return jax.grad(total, (0, 1, 2, 3))(value, *parameters)

        distribution = QGaussian(*parameters, validate_args=False)
        assert np.all(np.isfinite(distribution.log_prob(np.stack(inside))))
        assert np.all(np.asarray(distribution.log_prob(np.stack(outside))) == -np.inf)
        for points in inside:
            assert np.all(np.isfinite(np.asarray(slopes(points))))
        for points in outside:
            assert np.all(np.asarray(slopes(points)) == 0.0)


def test_huge_values_follow_the_power_law():
    indices = np.array([1.0 + 1e-4, 1.5, 2.0, 2.5], np.float32)
    values = np.array([1e18, 1e30, 3e38, -3e38], np.float32)[:, None]
    distribution = QGaussian(0.5, 1e-3, indices)
    twins = [scipy_twin(0.5, 1e-3, float(index)) for index in indices]
    expected = np.stack([twin.logpdf(values[:, 0].astype(float)) for twin in twins], axis=1)
    np.testing.assert_allclose(distribution.log_prob(values), expected, rtol=1e-4)
    slopes = jax.grad(lambda value: jnp.sum(distribution.log_prob(value)))(jnp.asarray(values))
    assert np.all(np.isfinite(slopes))


def test_gaussian_far_out_is_minus_infinity_not_nan():
    value, slope = jax.value_and_grad(QGaussian(0.0, 1.0, 1.0).log_prob)(1e30)
    assert value == -jnp.inf
    assert np.isfinite(slope)


def test_samples_that_would_overflow_are_finite():
    with jax.enable_x64(True):
        distribution = QGaussian(0.0, 1e4, 2.995)

        def draw(scale, index):
            return QGaussian(0.0, scale, index).sample(jax.random.key(0), (2_000,))

        values = distribution.sample(jax.random.key(0), (2_000,))
        assert np.all(np.isfinite(values))
        assert np.max(np.abs(values)) > 0.99 * np.finfo(np.float64).max
        assert np.all(np.isfinite(distribution.log_prob(values)))
        assert not np.any(np.isnan(jax.jacfwd(draw, (0, 1))(1e4, 2.995)))


def test_moments_where_they_exist():
    indices = jnp.array([-1.0, 0.0, 1.0, 1.5, 5.0 / 3.0 + 1e-6, 1.9, 2.0, 2.5])
    distribution = QGaussian(0.5, 2.0, indices)
    twin = [scipy_twin(0.5, 2.0, float(index)).var() for index in indices[:4]]
    np.testing.assert_allclose(distribution.variance[:4], twin, rtol=1e-5)
    assert np.all(np.isinf(distribution.variance[4:6]))
    assert np.all(np.isnan(distribution.variance[6:]))
    np.testing.assert_array_equal(distribution.mean[:6], 0.5)
    assert np.all(np.isnan(distribution.mean[6:]))
    np.testing.assert_array_equal(distribution.mode, 0.5)


def test_support_is_a_numpyro_constraint():
    sparse = QGaussian(1.0, 2.0, 0.0)
    np.testing.assert_allclose(sparse.support.lower_bound, 1.0 - 2.0 * np.sqrt(2.0), rtol=1e-6)
    np.testing.assert_allclose(sparse.half_width, 2.0 * np.sqrt(2.0), rtol=1e-6)
    bijection = numpyro_distributions.biject_to(sparse.support)
    assert np.all(sparse.support(bijection(jnp.linspace(-5.0, 5.0, 11))))
    for heavy in (1.0, 2.0):
        assert QGaussian(1.0, 2.0, heavy).support is numpyro_distributions.constraints.real
        assert QGaussian(1.0, 2.0, heavy).half_width == jnp.inf
    traced = []
    jax.jit(lambda q: traced.append(QGaussian(0.0, 1.0, q).support) or q)(0.0)
    assert traced == [numpyro_distributions.constraints.real]


def test_cdf_is_differentiable_except_in_the_index():
    distribution = QGaussian(0.3, 2.0, 0.5)
    x = jnp.float32(1.1)
    slope = jax.grad(lambda v, m, s: QGaussian(m, s, 0.5).cdf(v), (0, 1, 2))(x, 0.3, 2.0)
    density = jnp.exp(distribution.log_prob(x))
    np.testing.assert_allclose(slope, [density, -density, -density * (x - 0.3) / 2.0], rtol=1e-5)
    quantile_slope = jax.grad(distribution.icdf)(distribution.cdf(x))
    np.testing.assert_allclose(quantile_slope, 1.0 / density, rtol=1e-4)
    for function in (QGaussian.cdf, QGaussian.icdf):
        with pytest.raises(TypeError, match="not differentiable in the entropic index"):
            jax.grad(lambda q, f=function: f(QGaussian(0.0, 1.0, q), 0.4))(0.5)


def test_quantiles_at_and_beyond_the_ends():
    sparse, heavy = QGaussian(1.0, 2.0, 0.0), QGaussian(1.0, 2.0, 2.0)
    ends = sparse.icdf(jnp.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(ends, [1.0 - sparse.half_width, 1.0, 1.0 + sparse.half_width])
    np.testing.assert_array_equal(heavy.icdf(jnp.array([0.0, 0.5, 1.0])), [-np.inf, 1.0, np.inf])
    assert np.all(np.isnan(sparse.icdf(jnp.array([-0.1, 1.1]))))
    np.testing.assert_array_equal(sparse.cdf(jnp.array([-1e9, 1e9])), [0.0, 1.0])


def test_a_sweep_over_the_index_compiles_once():
    compilations = []

    @jax.jit
    def evaluate(index):
        compilations.append(None)
        distribution = QGaussian(0.0, 1.0, index)
        return distribution.log_prob(0.3), distribution.sample(jax.random.key(0))

    for index in (-1.0, 0.0, 1.0, 2.0):
        log_density, sample = evaluate(index)
        np.testing.assert_allclose(log_density, QGaussian(0.0, 1.0, index).log_prob(0.3), rtol=1e-5)
        np.testing.assert_allclose(
            sample, QGaussian(0.0, 1.0, index).sample(jax.random.key(0)), rtol=1e-5
        )
    assert len(compilations) == 1


def test_batches_events_and_pytrees():
    distribution = QGaussian(jnp.zeros((3, 1)), jnp.ones(4), 0.0)
    assert distribution.batch_shape == (3, 4)
    assert distribution.to_event(1).event_shape == (4,)
    value, log_density = sample_with_log_prob(distribution.to_event(1), jax.random.key(0), (5,))
    assert value.shape == (5, 3, 4)
    np.testing.assert_allclose(log_density, distribution.to_event(1).log_prob(value), rtol=1e-3)
    scores = jax.jit(lambda d, x: d.log_prob(x))(distribution, jnp.zeros((3, 4)))
    np.testing.assert_allclose(scores, np.log(3 / (4 * np.sqrt(2.0))), rtol=1e-5)
    stacked = jax.vmap(lambda m: QGaussian(m, 1.0, 0.0))(jnp.arange(3.0))
    np.testing.assert_array_equal(stacked.loc, jnp.arange(3.0))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ((0.0, 0.0, 0.0), "scale"),
        ((0.0, -1.0, 0.0), "scale"),
        ((0.0, 1.0, 3.0), "entropic_index"),
        ((0.0, 1.0, np.nan), "entropic_index"),
        ((np.nan, 1.0, 0.0), "loc"),
        ((0.0, np.nan, 0.0), "scale"),
    ],
)
def test_errors_name_the_invalid_parameter(parameters, name):
    with pytest.raises(ValueError, match=name):
        QGaussian(*parameters, validate_args=True)


def test_errors_list_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"loc \(2,\), scale \(3,\)"):
        QGaussian(jnp.zeros(2), jnp.ones(3), 0.0)


@settings(deadline=None, max_examples=100)
@given(
    index=st.floats(-20.0, 2.5),
    scale=st.floats(1e-4, 1e4),
    loc=st.floats(-10.0, 10.0),
    share=st.floats(0.001, 0.999),
)
def test_symmetry_scaling_and_inverse_cdf(index, scale, loc, share):
    """Symmetry, scale equivariance, and icdf as the inverse of cdf, for any parameters."""
    with jax.enable_x64(True):
        distribution = QGaussian(loc, scale, index)
        quantile = distribution.icdf(share)
        np.testing.assert_allclose(distribution.cdf(quantile), share, rtol=1e-6)
        mirrored = 2 * loc - quantile
        np.testing.assert_allclose(distribution.cdf(mirrored), 1.0 - share, rtol=1e-5, atol=1e-9)
        standard = QGaussian(0.0, 1.0, index)
        np.testing.assert_allclose(
            distribution.log_prob(quantile),
            standard.log_prob((quantile - loc) / scale) - np.log(scale),
            rtol=1e-6,
            atol=1e-6,
        )
        np.testing.assert_allclose(
            distribution.entropy(), standard.entropy() + np.log(scale), rtol=1e-9, atol=1e-9
        )
