"""Tests of BoxBeta against SciPy's Beta distribution, quadrature and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints
from scipy import special, stats

from fat2thin.distributions.beta import BoxBeta
from fat2thin.distributions.q_math import gamma_entropy, log_beta

DTYPES = ["float32", "float64"]
# Programs that draw samples take long to compile.
SLOW_DTYPES = ["float32", pytest.param("float64", marks=pytest.mark.slow)]
FALSE_ALARM = 1e-7
CONCENTRATIONS = st.floats(0.05, 200.0)
BOXES = st.tuples(st.floats(-100.0, 100.0), st.floats(1e-2, 200.0))


@jax.jit
def log_prob(distribution, value):
    return distribution.log_prob(value)


@jax.jit
def cdf_and_slope(distribution, value):
    return jax.jvp(distribution.cdf, (value,), (jnp.ones_like(value),))


@jax.jit
def icdf_and_slope(distribution, share):
    return jax.jvp(distribution.icdf, (share,), (jnp.ones_like(share),))


@functools.partial(jax.jit, static_argnums=2)
def sample_with_log_prob(distribution, key, count):
    return distribution.sample_with_log_prob(key, (count,))


def box_beta(*parameters):
    """Return a BoxBeta without NumPyro's parameter checks, which are slow."""
    return BoxBeta(*parameters, validate_args=False)


def scipy_beta(concentration1, concentration0, low, high):
    return stats.beta(concentration1, concentration0, loc=low, scale=high - low)


@settings(max_examples=100)
@given(
    concentration1=CONCENTRATIONS,
    concentration0=CONCENTRATIONS,
    box=BOXES,
    position=st.floats(1e-4, 1.0 - 1e-4),
)
def test_density_and_cdf_match_scipy(concentration1, concentration0, box, position):
    low, width = box
    high = low + width
    value = low + width * position
    with jax.enable_x64(True):
        distribution = box_beta(concentration1, concentration0, low, high)
        log_density = log_prob(distribution, value)
        share, slope = cdf_and_slope(distribution, jnp.asarray(value))
    oracle = scipy_beta(concentration1, concentration0, low, high)
    # In a box far from 0 the action is rounded more coarsely.
    lost = 1e-14 * (abs(low) / width + 1.0) * max(concentration1, concentration0, 1.0) / 1e-4
    np.testing.assert_allclose(log_density, oracle.logpdf(value), rtol=1e-9, atol=1e-9 + lost)
    np.testing.assert_allclose(share, oracle.cdf(value), rtol=1e-7, atol=1e-9 + lost)
    np.testing.assert_allclose(slope, oracle.pdf(value), rtol=1e-7 + 10 * lost, atol=1e-12)


@settings(max_examples=100)
@given(
    concentration1=st.floats(0.05, 2e3),
    concentration0=st.floats(0.05, 2e3),
    box=BOXES,
    share=st.floats(1e-6, 1.0 - 1e-6),
)
def test_icdf_matches_scipy(concentration1, concentration0, box, share):
    low, width = box
    with jax.enable_x64(True):
        distribution = box_beta(concentration1, concentration0, low, low + width)
        value, slope = icdf_and_slope(distribution, jnp.asarray(share))
    oracle = scipy_beta(concentration1, concentration0, low, low + width)
    expected = oracle.ppf(share)
    np.testing.assert_allclose(value, expected, rtol=1e-13, atol=2e-10 * width)
    # Close to an edge, rounding of the action dominates SciPy's density.
    if min(expected - low, low + width - expected) > 1e-4 * width:
        np.testing.assert_allclose(slope, 1.0 / oracle.pdf(expected), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_icdf_keeps_relative_precision_at_both_edges(dtype):
    # On [0, 1] a quantile may be as small as 1e-30; mirrored, the distance to the high edge is.
    concentration1 = np.array([0.1, 0.1, 0.5, 2.0, 30.0], dtype)
    shares = np.array([1e-3, 0.4, 1e-6, 1e-6, 1e-6], dtype)
    with jax.enable_x64(dtype == "float64"):
        three = np.full(5, 3.0, dtype)
        straight = box_beta(concentration1, three, 0.0, 1.0)
        low_end = icdf_and_slope(straight, jnp.asarray(shares))[0]
        mirrored = box_beta(three, concentration1, -1.0, 0.0)
        high_end = icdf_and_slope(mirrored, jnp.asarray(1 - shares))[0]
        exact = 1.0 - np.asarray(1 - shares, np.float64)
    tolerance = {"float32": 2e-5, "float64": 1e-11}[dtype]
    oracle = stats.beta(concentration1.astype(np.float64), 3.0)
    np.testing.assert_allclose(low_end, oracle.ppf(shares.astype(np.float64)), rtol=tolerance)
    np.testing.assert_allclose(-np.asarray(high_end), oracle.ppf(exact), rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_icdf_inverts_the_cdf(dtype):
    grid = np.array([0.05, 0.5, 1.0, 2.0, 20.0, 500.0], dtype)
    shares = np.array([1e-5, 0.01, 0.3, 0.5, 0.7, 0.99], dtype)
    concentration1, concentration0, share = np.meshgrid(grid, grid, shares, indexing="ij")

    @jax.jit
    def there_and_back(distribution, share):
        value = distribution.icdf(share)
        return value, distribution.cdf(value)

    with jax.enable_x64(dtype == "float64"):
        one = np.ones((), dtype)
        distribution = box_beta(concentration1, concentration0, 0 * one, one)
        value, back = there_and_back(distribution, jnp.asarray(share))
    assert value.dtype == dtype
    value, back = np.asarray(value, np.float64), np.asarray(back, np.float64)
    share, first, second = (
        part.astype(np.float64) for part in (share, concentration1, concentration0)
    )
    oracle = stats.beta(first, second)
    # Allow for the error of the incomplete Beta function and for rounding of the action.
    epsilon = float(np.finfo(dtype).eps)
    error = {"float32": 5e-6 + 5e-7 * (first + second), "float64": 1e-11}[dtype]
    clear = (value > 1e-30) & (value < 1.0)
    rounding = 4.0 * epsilon * value * oracle.pdf(np.where(clear, value, 0.5))
    assert np.all(np.abs(back - share)[clear] < (error + rounding)[clear])
    steepness = np.maximum(oracle.pdf(np.clip(oracle.ppf(share), 1e-30, 1 - epsilon)), 1.0)
    assert np.all(np.abs(value - oracle.ppf(share)) < 4.0 * epsilon + 4.0 * error / steepness)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cdf_and_icdf_at_the_ends(dtype):
    concentrations = [(0.3, 0.3), (1.0, 1.0), (4.0, 2.5)]
    with jax.enable_x64(dtype == "float64"):
        shares = jnp.asarray([0.0, 1.0, -0.1, 1.1], dtype)
        values = jnp.asarray([-1.0, 3.0, -2.0, 4.0], dtype)
        for concentration1, concentration0 in concentrations:
            distribution = box_beta(concentration1, concentration0, -1.0, 3.0)
            quantiles, quantile_slopes = icdf_and_slope(distribution, shares)
            probabilities, slopes = cdf_and_slope(distribution, values)
            np.testing.assert_array_equal(quantiles[:2], [-1.0, 3.0])
            assert np.all(np.isnan(quantiles[2:]))
            np.testing.assert_array_equal(probabilities, [0.0, 1.0, 0.0, 1.0])
            assert np.all(np.isfinite(slopes)) and np.all(np.isfinite(quantile_slopes[:2]))
            assert np.all(np.asarray(slopes[2:]) == 0.0)


def test_cdf_and_icdf_are_differentiable_except_in_the_concentrations():
    def functions(point, low, high):
        distribution = box_beta(2.0, 3.5, low, high)
        return jnp.stack([distribution.cdf(point), distribution.icdf(point / 4.0)])

    arguments = np.array([1.4, -1.0, 3.0])
    with jax.enable_x64(True):
        compiled = jax.jit(lambda a: functions(*a))
        slopes = jax.jit(jax.jacrev(lambda a: functions(*a)))(jnp.asarray(arguments))
        for axis, shift in enumerate(1e-6 * np.eye(3)):
            rise = compiled(arguments + shift) - compiled(arguments - shift)
            np.testing.assert_allclose(slopes[:, axis], rise / 2e-6, rtol=1e-6, atol=1e-8)
    for name in ("cdf", "icdf"):
        for position in (0, 1):

            def function(first, second, name=name):
                return getattr(box_beta(first, second, 0.0, 1.0), name)(0.3)

            with pytest.raises(TypeError, match=f"{name} of a BoxBeta.*concentration1"):
                jax.grad(function, position)(2.0, 3.0)
            with pytest.raises(TypeError, match=f"{name} of a BoxBeta.*concentration1"):
                jax.grad(jax.jit(function), position)(2.0, 3.0)


# Moments


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma_functions_match_scipy(dtype):
    grid = np.array([1e-4, 0.05, 0.5, 1.0, 7.9, 8.1, 15.9, 16.1, 300.0, 1e4, 1e6], dtype)
    first, second = np.meshgrid(grid, grid)
    tolerance = {"float32": 4e-6, "float64": 1e-13}[dtype]
    with jax.enable_x64(dtype == "float64"):
        beta = jax.jit(log_beta)(jnp.asarray(first), jnp.asarray(second))
        entropy = jax.jit(gamma_entropy)(jnp.asarray(grid))
    expected = special.betaln(first.astype(np.float64), second.astype(np.float64))
    # SciPy subtracts log-Gamma functions and has their rounding error.
    rounding = 1e-15 * np.abs(special.gammaln(first.astype(np.float64) + second))
    error = np.abs(np.asarray(beta, np.float64) - expected)
    assert np.all(error < tolerance * (1.0 + np.abs(expected)) + rounding)
    expected = stats.gamma(grid.astype(np.float64)).entropy()
    np.testing.assert_allclose(entropy, expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=60)
@given(concentration1=CONCENTRATIONS, concentration0=CONCENTRATIONS, box=BOXES)
def test_moments_and_entropy_match_scipy(concentration1, concentration0, box):
    low, width = box
    with jax.enable_x64(True):
        mean, variance, entropy = _moments(
            box_beta(concentration1, concentration0, low, low + width)
        )
    oracle = scipy_beta(concentration1, concentration0, low, low + width)
    np.testing.assert_allclose(mean, oracle.mean(), rtol=1e-12, atol=1e-12 * width)
    np.testing.assert_allclose(variance, oracle.var(), rtol=1e-10)
    np.testing.assert_allclose(entropy, oracle.entropy(), rtol=1e-9, atol=1e-8)


@jax.jit
def _moments(distribution):
    return distribution.mean, distribution.variance, distribution.entropy()


def test_float32_entropy_keeps_its_digits_for_large_concentrations():
    grid = np.array([0.1, 1.0, 15.9, 16.1, 300.0, 1e4, 1e6], np.float32)
    first, second = np.meshgrid(grid, grid)
    entropy = _moments(box_beta(first, second, np.float32(-1.0), np.float32(1.0)))[2]
    assert entropy.dtype == np.float32
    expected = stats.beta(first.astype(np.float64), second.astype(np.float64)).entropy()
    np.testing.assert_allclose(entropy, expected + np.log(2.0), atol=3e-5)


@pytest.mark.parametrize(
    ("concentration1", "concentration0", "expected"),
    [
        (3.0, 2.0, 1.0 + 4.0 * 2.0 / 3.0),
        (1.0, 2.0, 1.0),
        (0.5, 1.0, 1.0),
        (0.5, 3.0, 1.0),
        (2.0, 1.0, 5.0),
        (1.0, 0.5, 5.0),
        (1.0, 1.0, np.nan),
        (0.5, 0.5, np.nan),
    ],
)
def test_mode_is_where_the_density_peaks(concentration1, concentration0, expected):
    distribution = box_beta(concentration1, concentration0, 1.0, 5.0)
    np.testing.assert_allclose(distribution.mode, expected, rtol=1e-6)
    grid = np.linspace(1.0, 5.0, 3001)[1:-1]
    density = scipy_beta(concentration1, concentration0, 1.0, 5.0).pdf(grid)
    if np.isfinite(expected):
        np.testing.assert_allclose(grid[np.argmax(density)], expected, atol=3e-3)
    else:
        assert np.ptp(density) < 1e-12 or np.all(density[[0, -1]] > density[1500])


# Edges


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("box", [(-1.0, 1.0), (0.0, 1.0), (0.1, 0.3), (-100.0, 250.0)])
def test_log_prob_at_the_edges_is_finite_and_clamped_as_documented(box, dtype):
    low, high = (np.asarray(edge, dtype) for edge in box)
    epsilon = float(np.finfo(dtype).eps)
    wide = np.asarray(1e3, dtype)
    points = [low, np.nextafter(low, high), high, np.nextafter(high, low), (low + high) / 2]
    # Compiled code flushes subnormal numbers to zero: use the smallest normal one next to zero.
    before_low = np.nextafter(low, -wide) if low else -np.finfo(dtype).tiny
    points += [before_low, np.nextafter(high, wide), low - wide, high + wide]

    def density(concentration1, concentration0, value):
        return box_beta(concentration1, concentration0, low, high).log_prob(value)

    width = float(high) - float(low)
    with jax.enable_x64(dtype == "float64"):
        both = jax.jit(jax.vmap(jax.value_and_grad(density, (0, 1, 2)), (None, None, 0)))
        for first, second in [(3.0, 2.0), (1.0, 1.0), (0.4, 0.7)]:
            values, gradients = both(
                jnp.asarray(first, dtype), jnp.asarray(second, dtype), jnp.asarray(np.stack(points))
            )
            assert values.dtype == dtype
            assert np.all(np.isfinite(values[:5]))
            assert np.all(np.asarray(values[5:]) == -np.inf)
            for gradient in gradients:
                assert np.all(np.isfinite(gradient))
                assert np.all(np.asarray(gradient[5:]) == 0.0)
            unit = stats.beta(first, second)
            at_low, at_high = unit.logpdf(epsilon), stats.beta(second, first).logpdf(epsilon)
            expected = np.array([at_low, at_high]) - np.log(width)
            np.testing.assert_allclose(np.asarray(values)[[0, 2]], expected, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", SLOW_DTYPES)
def test_samples_and_quantiles_stay_in_the_box(dtype):
    rng = np.random.default_rng(0)
    low = (rng.normal(size=500) * 10.0 ** rng.integers(-3, 4, 500)).astype(dtype)
    high = (low + rng.uniform(0.01, 3.0, 500) * np.abs(low)).astype(dtype)
    concentration1, concentration0 = (
        rng.choice([1e-2, 0.3, 1.0, 50.0], 500).astype(dtype) for _ in range(2)
    )

    @jax.jit
    def draw(distribution, key):
        value, own = distribution.sample_with_log_prob(key, (40,))
        quantiles = distribution.icdf(jnp.tile(jnp.array([[1e-7], [0.9999999]]), 500))
        return (value, quantiles, distribution.mean), own

    with jax.enable_x64(dtype == "float64"):
        distribution = box_beta(concentration1, concentration0, low, high)
        everything, own = draw(distribution, jax.random.key(0))
    for values in everything:
        assert values.dtype == dtype
        assert np.all(np.asarray(values) >= low) and np.all(np.asarray(values) <= high)
    assert np.all(np.isfinite(own))


# Samples


@pytest.mark.parametrize("dtype", SLOW_DTYPES)
def test_samples_follow_scipys_distribution(dtype):
    concentration1, concentration0 = np.array([0.3, 2.0, 40.0]), np.array([0.6, 3.0, 9.0])
    with jax.enable_x64(dtype == "float64"):
        distribution = box_beta(concentration1, concentration0, -1.0, 3.0)
        values, own = sample_with_log_prob(distribution, jax.random.key(1), 50_000)
    own = np.asarray(own, np.float64)
    for column in range(3):
        oracle = scipy_beta(concentration1[column], concentration0[column], -1.0, 3.0)
        sample = np.asarray(values[:, column], np.float64)
        assert stats.kstest(sample, oracle.cdf).pvalue > FALSE_ALARM
        log_density = own[:, column]
        error = 6.0 * log_density.std() / np.sqrt(50_000)
        assert abs(-log_density.mean() - oracle.entropy()) < error
        inner = (sample > -0.99) & (sample < 2.99)
        tolerance = {"float32": 2e-3, "float64": 1e-10}[dtype]
        np.testing.assert_allclose(
            log_density[inner], oracle.logpdf(sample[inner]), atol=tolerance, rtol=tolerance
        )


def test_mean_pathwise_derivatives_match_those_of_the_mean():
    # d mean / d c1 = c0 / (c1 + c0)², d mean / d c0 = -c1 / (c1 + c0)², times the width.
    first, second = np.array([0.5, 2.0, 30.0]), np.array([0.8, 3.0, 10.0])

    def draws(shift):
        distribution = box_beta(first + shift[0], second + shift[1], -1.0, 3.0)
        return distribution.sample(jax.random.key(2), (20_000,))

    slopes = np.asarray(jax.jit(jax.jacfwd(draws))(jnp.zeros(2)), np.float64)
    expected = 4.0 / (first + second)[:, None] ** 2 * np.stack([second, -first], axis=-1)
    error = 6.0 * slopes.std(axis=0) / np.sqrt(20_000)
    assert np.all(np.abs(slopes.mean(axis=0) - expected) < error)


def test_pathwise_derivatives_in_the_box_match_finite_differences():
    def draws(box):
        value, own = box_beta(2.0, 3.0, *box).sample_with_log_prob(jax.random.key(3), (32,))
        return jnp.stack([value, own])

    box = np.array([-1.0, 3.0])
    with jax.enable_x64(True):
        derivative = jax.jit(lambda box, direction: jax.jvp(draws, (box,), (direction,)))
        for direction in np.eye(2):
            ahead, behind = (derivative(box + s * direction, direction)[0] for s in (1e-6, -1e-6))
            slope = derivative(box, direction)[1]
            np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-6, atol=1e-8)


# Shapes, transformations, errors


def test_jit_grad_and_vmap_accept_the_distribution_as_an_argument():
    high = np.array([1.0, 2.0, 3.0])
    concentration1 = np.array([[2.0], [0.7]])
    distribution = BoxBeta(concentration1, 3.0, -1.0, high)
    assert distribution.batch_shape == (2, 3)
    assert distribution.event_shape == ()
    assert distribution.has_rsample
    value = jnp.full((2, 3), 0.3)

    @jax.jit
    def transformed(distribution):
        slope = jax.grad(lambda d: jnp.sum(d.log_prob(value)))(distribution)
        event = distribution.to_event(1)
        mapped = jax.vmap(lambda c: BoxBeta(c, 3.0, -1.0, 1.0))(jnp.array([2.0, 0.7]))
        inner = jax.vmap(lambda d: d.log_prob(0.3))(mapped)
        quantiles = jax.vmap(lambda d: d.icdf(0.3))(mapped)
        return slope, event.log_prob(value), inner, quantiles

    slope, joint, inner, quantiles = transformed(distribution)
    oracle = scipy_beta(concentration1, 3.0, -1.0, high)
    expected = oracle.logpdf(0.3)
    np.testing.assert_allclose(joint, expected.sum(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(inner, expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(quantiles, oracle.ppf(0.3)[:, 0], rtol=1e-5)
    step = 1e-6
    rise = [
        scipy_beta(concentration1 + s, 3.0, -1.0, high).logpdf(0.3).sum(axis=-1)
        for s in (step, -step)
    ]
    np.testing.assert_allclose(slope.concentration1[:, 0], (rise[0] - rise[1]) / 2e-6, rtol=1e-4)
    key = jax.random.key(0)
    samples = jax.eval_shape(lambda d: d.to_event(1).sample(key, (7,)), distribution)
    assert samples.shape == (7, 2, 3)
    shapes = jax.eval_shape(lambda d: (d.mean, d.variance, d.entropy(), d.mode), distribution)
    assert all(part.shape == (2, 3) for part in shapes)


def test_support_is_the_box():
    distribution = BoxBeta(2.0, 2.0, np.array([-1.0, 0.0]), 2.0)
    assert isinstance(distribution.support, constraints.Constraint)
    np.testing.assert_array_equal(distribution.support(np.array([-1.0, -1.0])), [True, False])
    np.testing.assert_array_equal(distribution.support_mask(np.array([2.0, 2.1])), [True, False])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concentration1": 0.0}, "invalid concentration1 parameter"),
        ({"concentration0": np.nan}, "invalid concentration0 parameter"),
        ({"low": -np.inf}, "invalid low parameter"),
        ({"high": np.nan}, "invalid high parameter"),
        ({"low": 1.0}, "invalid low and high parameters"),
    ],
)
def test_errors_name_the_invalid_parameter(change, message):
    arguments = {"concentration1": 2.0, "concentration0": 2.0, "low": -1.0, "high": 1.0} | change
    with pytest.raises(ValueError, match=message):
        BoxBeta(**arguments, validate_args=True)
    BoxBeta(**arguments, validate_args=False)


def test_errors_list_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"concentration1 \(2,\).*high \(3,\)"):
        BoxBeta(np.ones(2), 1.0, -1.0, np.ones(3), validate_args=False)
