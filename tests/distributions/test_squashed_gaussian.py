"""Tests of SquashedGaussian against SciPy's normal distribution and finite differences."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints
from scipy import integrate, stats

from fat2thin.distributions.squashed_gaussian import SquashedGaussian

DTYPES = ["float32", "float64"]
FALSE_ALARM = 1e-7
BOXES = st.tuples(st.floats(-100.0, 100.0), st.floats(1e-2, 200.0))


@jax.jit
def log_prob(distribution, value):
    return distribution.log_prob(value)


@jax.jit
def moments(distribution):
    return distribution.mean, distribution.variance, distribution.entropy()


@functools.partial(jax.jit, static_argnums=2)
def sample_with_log_prob(distribution, key, count):
    return distribution.sample_with_log_prob(key, (count,))


def squashed(loc, scale, low, high):
    """Return a SquashedGaussian without NumPyro's parameter checks, which are slow."""
    return SquashedGaussian(loc, scale, low, high, validate_args=False)


def log_slope(x):
    """Return log(1 - tanh(x)²) by a numerically stable formula."""
    return 2.0 * (np.log(2.0) - np.abs(x) - np.log1p(np.exp(-2.0 * np.abs(x))))


def quadrature(loc, scale):
    """Return mean, variance and entropy on [-1, 1] by SciPy's adaptive quadrature in pieces."""
    corners = [0.0, -9.0, 9.0, *((x - loc) / scale for x in (-20, -3, -1, 0, 1, 3, 20))]
    cuts = np.unique(np.clip(corners, -12.0, 12.0))

    def expectation(function):
        def integrand(z):
            return stats.norm.pdf(z) * function(loc + scale * z)

        pieces = (
            integrate.quad(integrand, a, b, epsabs=1e-14, epsrel=1e-12)[0]
            for a, b in itertools.pairwise(cuts)
        )
        return sum(pieces)

    mean = expectation(np.tanh)
    variance = expectation(lambda x: (np.tanh(x) - mean) ** 2)
    entropy = stats.norm.entropy(scale=scale) + expectation(log_slope)
    return mean, variance, entropy


@settings(max_examples=100)
@given(
    loc=st.floats(-5.0, 5.0),
    scale=st.floats(1e-2, 10.0),
    box=BOXES,
    normalised=st.floats(-0.9999, 0.9999),
)
def test_log_prob_matches_the_change_of_variables(loc, scale, box, normalised):
    middle, half = box
    value = middle + half * normalised
    low, high = middle - half, middle + half
    with jax.enable_x64(True):
        actual = log_prob(squashed(loc, scale, low, high), value)
    x = np.arctanh(normalised)
    expected = stats.norm.logpdf(x, loc, scale) - np.log(1.0 - normalised**2) - np.log(half)
    # In a box far from 0 the action is rounded more coarsely.
    lost = 1e-15 * (abs(middle) / half + 1.0) / (1.0 - abs(normalised))
    error = 10.0 * lost * (1.0 + (1.0 + abs(x - loc)) / scale**2)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 + error)


@pytest.mark.parametrize("scale", [1e-4, 0.3, 3.0])
def test_float32_log_prob_matches_the_change_of_variables(scale):
    deviations = np.linspace(-3.0, 3.0, 41)
    value = np.tanh(scale * deviations).astype(np.float32)
    value = value[np.abs(value) < 0.9999]
    actual = log_prob(squashed(0.0, scale, -1.0, 1.0), value)
    exact = value.astype(np.float64)
    expected = stats.norm.logpdf(np.arctanh(exact), 0.0, scale) - np.log(1.0 - exact**2)
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("loc", [0.0, -1.3])
@pytest.mark.parametrize("scale", [0.05, 0.6, 2.0])
def test_mass_is_one_and_the_slope_of_the_cdf_is_the_density(loc, scale):
    low, high = -3.0, 5.0
    x = np.linspace(loc - 12 * scale, loc + 12 * scale, 4001)
    value = 1.0 + 4.0 * np.tanh(x)
    with jax.enable_x64(True):
        distribution = squashed(loc, scale, low, high)
        density = np.exp(log_prob(distribution, value))
        inside = (value > low) & (value < high) & (np.abs(np.tanh(x)) < 1 - 1e-12)
        slope = jax.jit(jax.vmap(jax.grad(distribution.cdf)))(jnp.asarray(value[inside]))
        share = jax.jit(distribution.cdf)(value[inside])
    mass = integrate.simpson(density * 4.0 * np.exp(log_slope(x)), x=x)
    np.testing.assert_allclose(mass, 1.0, atol=1e-9)
    np.testing.assert_allclose(slope, density[inside], rtol=1e-8, atol=1e-12)
    # Close to an edge of the box, rounding of the action loses digits of x.
    expected = stats.norm.cdf(np.arctanh((value[inside] - 1.0) / 4.0), loc, scale)
    np.testing.assert_allclose(share, expected, atol=1e-5)


@settings(max_examples=60)
@given(
    loc=st.floats(-2.0, 2.0),
    scale=st.floats(1e-2, 1.0),
    box=BOXES,
    share=st.floats(1e-6, 1.0 - 1e-6),
)
def test_icdf_matches_scipy_and_inverts_the_cdf(loc, scale, box, share):
    middle, half = box
    low, high = middle - half, middle + half
    with jax.enable_x64(True):
        distribution = squashed(loc, scale, low, high)
        value, back = _there_and_back(distribution, share)
    expected = middle + half * np.tanh(stats.norm.ppf(share, loc, scale))
    np.testing.assert_allclose(value, expected, rtol=1e-11, atol=1e-11 * half)
    np.testing.assert_allclose(back, share, atol=1e-8 * (1 + abs(middle) / half) / scale)


@jax.jit
def _there_and_back(distribution, share):
    value = distribution.icdf(share)
    return value, distribution.cdf(value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cdf_and_icdf_at_the_ends(dtype):
    def both(distribution, share, value):
        return distribution.icdf(share), distribution.cdf(value)

    with jax.enable_x64(dtype == "float64"):
        distribution = squashed(jnp.asarray(0.3, dtype), 0.5, -1.0, 3.0)
        shares = jnp.asarray([0.0, 1.0, -0.1, 1.1, 0.5], dtype)
        values = jnp.asarray([-1.0, 3.0, -2.0, 4.0, 1.0 + 2.0 * np.tanh(0.3)], dtype)
        quantiles, probabilities = jax.jit(both)(distribution, shares, values)
        centre = distribution.centre
        slopes = jax.jit(
            jax.vmap(
                lambda s, v: jax.grad(lambda s, v: sum(both(distribution, s, v)), (0, 1))(s, v)
            )
        )(shares, values)
    np.testing.assert_array_equal(quantiles[:2], [-1.0, 3.0])
    assert np.all(np.isnan(quantiles[2:4]))
    np.testing.assert_allclose(quantiles[4], centre, rtol=1e-6)
    np.testing.assert_array_equal(probabilities[:4], [0.0, 1.0, 0.0, 1.0])
    np.testing.assert_allclose(probabilities[4], 0.5, atol=1e-6)
    assert not np.any(np.isnan(slopes))


def test_cdf_and_icdf_derivatives_match_finite_differences():
    def functions(loc, scale, low, high, point):
        distribution = squashed(loc, scale, low, high)
        return jnp.stack([distribution.cdf(point), distribution.icdf(point / 4.0)])

    arguments, step = np.array([0.2, 0.7, -1.0, 3.0, 1.4]), 1e-6
    with jax.enable_x64(True):
        compiled = jax.jit(lambda a: functions(*a))
        slopes = jax.jit(jax.jacfwd(lambda a: functions(*a)))(jnp.asarray(arguments))
        for axis, shift in enumerate(step * np.eye(5)):
            rise = compiled(arguments + shift) - compiled(arguments - shift)
            np.testing.assert_allclose(slopes[:, axis], rise / (2 * step), rtol=1e-6, atol=1e-8)


# Moments


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_and_entropy_have_the_documented_error(dtype):
    loc, scale = np.meshgrid([0.0, 0.3, -1.0, 3.0, -7.0, 10.0], [1e-3, 0.05, 0.5, 1.0, 2.3, 10.0])
    loc, scale = loc.astype(dtype).ravel(), scale.astype(dtype).ravel()
    with jax.enable_x64(dtype == "float64"):
        one = np.ones((), dtype)
        actual = np.stack(moments(squashed(loc, scale, -one, one))).T
    expected = np.array([quadrature(float(m), float(s)) for m, s in zip(loc, scale, strict=True)])
    error = np.max(np.abs(actual - expected), axis=0)
    stated = {"float32": [1e-6, 1e-6, 2e-5], "float64": [1e-13, 1e-13, 1e-12]}[dtype]
    # SciPy's own error is about 1e-13.
    assert np.all(error < np.add(stated, 2e-13))


def test_moments_beyond_the_documented_range():
    # A saturated loc or a huge scale puts nearly all mass at the two edges.
    with jax.enable_x64(True):
        for loc, scale in [(30.0, 2.0), (-25.0, 5.0), (4.0, 100.0), (0.0, 1e4)]:
            actual = moments(squashed(loc, scale, -1.0, 1.0))
            np.testing.assert_allclose(actual, quadrature(loc, scale), rtol=1e-9, atol=1e-11)


def test_moments_scale_with_the_box_and_are_differentiable():
    with jax.enable_x64(True):
        unit = moments(squashed(0.4, 0.8, -1.0, 1.0))
        moved = moments(squashed(0.4, 0.8, 2.0, 12.0))
        expected = (7.0 + 5.0 * unit[0], 25.0 * unit[1], unit[2] + np.log(5.0))
        np.testing.assert_allclose(moved, expected, rtol=1e-12)

        def stacked(arguments):
            return jnp.stack(moments(squashed(*arguments, 2.0, 12.0)))

        slopes = jax.jit(jax.jacfwd(stacked))(jnp.array([0.4, 0.8]))
        for axis, shift in enumerate(1e-6 * np.eye(2)):
            rise = stacked(np.array([0.4, 0.8]) + shift) - stacked(np.array([0.4, 0.8]) - shift)
            np.testing.assert_allclose(slopes[:, axis], rise / 2e-6, rtol=1e-6, atol=1e-8)


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

    def density(loc, scale, value):
        return squashed(loc, scale, low, high).log_prob(value)

    with jax.enable_x64(dtype == "float64"):
        loc, scale = jnp.asarray(0.4, dtype), jnp.asarray(0.7, dtype)
        both = jax.jit(jax.vmap(jax.value_and_grad(density, (0, 1, 2)), (None, None, 0)))
        values, gradients = both(loc, scale, jnp.asarray(np.stack(points)))
    assert values.dtype == dtype
    assert np.all(np.isfinite(values[:5]))
    assert np.all(np.asarray(values[5:]) == -np.inf)
    for gradient in gradients:
        assert np.all(np.isfinite(gradient))
        assert np.all(np.asarray(gradient[5:]) == 0.0)
    assert np.all(np.asarray(gradients[0])[[0, 2]] != 0.0)
    half = (float(high) - float(low)) / 2.0
    for position, sign in ((0, -1.0), (2, 1.0)):
        clamped = sign * np.log((2.0 - epsilon) / epsilon) / 2.0
        expected = stats.norm.logpdf(clamped, 0.4, 0.7) - np.log(epsilon * (2.0 - epsilon) * half)
        np.testing.assert_allclose(values[position], expected, rtol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_and_quantiles_stay_in_the_box(dtype):
    rng = np.random.default_rng(0)
    low = rng.normal(size=2_000).astype(dtype) * 10.0 ** rng.integers(-3, 4, 2_000)
    low = low.astype(dtype)
    high = (low + rng.uniform(0.01, 3.0, 2_000) * np.abs(low)).astype(dtype)
    loc = rng.choice([-30.0, -3.0, 0.0, 3.0, 30.0], 2_000).astype(dtype)

    @jax.jit
    def draw(distribution, key):
        everything = [distribution.sample(key, (20,)), distribution.icdf(jnp.full(2_000, 1 - 1e-9))]
        return *everything, distribution.centre, distribution.mean

    with jax.enable_x64(dtype == "float64"):
        distribution = squashed(loc, np.asarray(2.0, dtype), low, high)
        for values in draw(distribution, jax.random.key(0)):
            assert values.dtype == dtype
            assert np.all(np.asarray(values) >= low) and np.all(np.asarray(values) <= high)


# Samples


def test_gradient_of_a_saturated_action_follows_the_edge_of_its_box():
    """This includes actions that rounding moves past the edge and that are clipped."""
    rng = np.random.default_rng(0)
    low = rng.uniform(-100.0, 100.0, 2_000).astype(np.float32)
    high = (low + rng.uniform(0.1, 50.0, 2_000)).astype(np.float32)
    rounded = (low / 2 + high / 2) + (high / 2 - low / 2)
    assert np.mean(rounded > high) > 0.05
    slope = jax.grad(lambda low, high: squashed(30.0, 1.0, low, high).centre, argnums=(0, 1))
    of_low, of_high = jax.jit(jax.vmap(slope))(jnp.asarray(low), jnp.asarray(high))
    np.testing.assert_allclose(of_low, 0.0, atol=1e-6)
    np.testing.assert_allclose(of_high, 1.0, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_samples_follow_scipys_distribution_and_the_moments(dtype):
    loc, scale = np.array([0.3, -2.0]), np.array([0.8, 1.5])
    with jax.enable_x64(dtype == "float64"):
        distribution = squashed(loc, scale, -1.0, 3.0)
        values, own = sample_with_log_prob(distribution, jax.random.key(0), 50_000)
        mean, variance, entropy = (np.asarray(part, np.float64) for part in moments(distribution))
    values, own = np.asarray(values, np.float64), np.asarray(own, np.float64)
    margin = 1.0 - float(np.finfo(dtype).eps)
    before = np.arctanh(np.clip((values - 1.0) / 2.0, -margin, margin))
    for column in range(2):
        oracle = stats.norm(loc[column], scale[column])
        assert stats.kstest(before[:, column], oracle.cdf).pvalue > FALSE_ALARM
    # The entropy is the mean of -log p.
    assert np.all(np.abs(-own.mean(axis=0) - entropy) < 6.0 * own.std(axis=0) / np.sqrt(50_000))
    assert np.all(np.abs(values.mean(axis=0) - mean) < 6.0 * np.sqrt(variance / 50_000))
    fourth = np.mean((values - mean) ** 4, axis=0) - variance**2
    error = np.mean((values - mean) ** 2, axis=0) - variance
    assert np.all(np.abs(error) < 6.0 * np.sqrt(fourth / 50_000))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sample_with_log_prob_is_accurate_where_the_action_saturates(dtype):
    # At x ~ 40 the slope of tanh is 4 exp(-2 x) to the last digit, and the action is at the edge.
    scale = 0.5
    with jax.enable_x64(dtype == "float64"):
        distribution = squashed(jnp.asarray(40.0, dtype), scale, -1.0, 3.0)
        values, own = sample_with_log_prob(distribution, jax.random.key(0), 1_000)
        noise = jax.jit(lambda: jax.random.normal(jax.random.key(0), (1_000,), dtype))()
    noise = np.asarray(noise, np.float64)
    assert np.all(np.asarray(values) == 3.0)
    slope = 2.0 * np.log(2.0) - 2.0 * (40.0 + scale * noise)
    expected = stats.norm.logpdf(noise) - np.log(scale) - slope - np.log(2.0)
    np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_pathwise_derivatives_match_finite_differences():
    def draws(arguments):
        distribution = squashed(*arguments)
        value, own = distribution.sample_with_log_prob(jax.random.key(3), (32,))
        return jnp.stack([value, own, distribution.log_prob(value)])

    # In the second box every sample is clipped at an edge or one unit in the last place from it.
    with jax.enable_x64(True):
        compiled, jacobian = jax.jit(draws), jax.jit(jax.jacfwd(draws))
        arguments = np.array([0.2, 0.7, -1.0, 3.0])
        slopes = jacobian(jnp.asarray(arguments))
        for axis, shift in enumerate(1e-6 * np.eye(4)):
            rise = compiled(arguments + shift) - compiled(arguments - shift)
            np.testing.assert_allclose(slopes[..., axis], rise / 2e-6, rtol=1e-5, atol=1e-6)
        saturated = jacobian(jnp.asarray([60.0, 0.7, 0.1, 0.3]))
    np.testing.assert_allclose(saturated[0], np.tile([0.0, 0.0, 0.0, 1.0], (32, 1)), atol=1e-12)


# Shapes, transformations, errors


def test_jit_grad_and_vmap_accept_the_distribution_as_an_argument():
    high = np.array([1.0, 2.0, 3.0])
    distribution = SquashedGaussian(np.array([[0.1], [0.2]]), 0.5, -1.0, high)
    assert distribution.batch_shape == (2, 3)
    assert distribution.event_shape == ()
    assert distribution.has_rsample
    value = jnp.full((2, 3), 0.3)

    @jax.jit
    def transformed(distribution, key):
        slope = jax.grad(lambda d: jnp.sum(d.log_prob(value)))(distribution)
        event = distribution.to_event(1)
        mapped = jax.vmap(lambda loc: SquashedGaussian(loc, 0.5, -1.0, 1.0))(jnp.array([0.1, 0.2]))
        inner = jax.vmap(lambda d: d.log_prob(0.3))(mapped)
        return slope, event.log_prob(value), event.sample(key, (7,)), inner

    slope, joint, samples, inner = transformed(distribution, jax.random.key(0))
    low, half = -1.0, (high + 1.0) / 2.0
    normalised = (0.3 - (low + half)) / half
    x, loc = np.arctanh(normalised), np.array([[0.1], [0.2]])
    expected = stats.norm.logpdf(x, loc, 0.5) - np.log((1.0 - normalised**2) * half)
    np.testing.assert_allclose(joint, expected.sum(axis=-1), rtol=1e-5)
    np.testing.assert_allclose(inner, expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(slope.loc[:, 0], np.sum((x - loc) / 0.25, axis=-1), rtol=1e-5)
    assert samples.shape == (7, 2, 3)
    shapes = jax.eval_shape(lambda d: (d.mean, d.variance, d.entropy(), d.centre), distribution)
    assert all(part.shape == (2, 3) for part in shapes)


def test_support_is_the_box():
    distribution = SquashedGaussian(0.0, 1.0, np.array([-1.0, 0.0]), 2.0)
    support = distribution.support
    assert isinstance(support, constraints.Constraint)
    np.testing.assert_array_equal(support(np.array([-1.0, -1.0])), [True, False])
    np.testing.assert_array_equal(distribution.support_mask(np.array([2.0, 2.1])), [True, False])
    np.testing.assert_array_equal(support.upper_bound, 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0.0}, "invalid scale parameter"),
        ({"scale": np.nan}, "invalid scale parameter"),
        ({"loc": np.nan}, "invalid loc parameter"),
        ({"low": np.inf}, "invalid low parameter"),
        ({"high": np.nan}, "invalid high parameter"),
        ({"low": 1.0}, "invalid low and high parameters"),
        ({"low": np.array([0.0, 2.0])}, "invalid low and high parameters"),
    ],
)
def test_errors_name_the_invalid_parameter(change, message):
    arguments = {"loc": 0.0, "scale": 1.0, "low": -1.0, "high": 1.0} | change
    with pytest.raises(ValueError, match=message):
        SquashedGaussian(**arguments, validate_args=True)
    SquashedGaussian(**arguments, validate_args=False)


def test_errors_list_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"loc \(2,\).*high \(3,\)"):
        SquashedGaussian(np.zeros(2), 1.0, -1.0, np.ones(3), validate_args=False)


def test_a_value_outside_the_support_warns_with_validation():
    distribution = SquashedGaussian(0.0, 1.0, validate_args=True)
    with pytest.warns(UserWarning, match="Out-of-support"):
        assert distribution.log_prob(1.5) == -np.inf
