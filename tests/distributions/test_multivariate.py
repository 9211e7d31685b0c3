"""Tests of the multivariate q-Gaussian against Gamma formulas, SciPy and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.distributions import constraints
from scipy import integrate, special, stats

from fat2thin.distributions.multivariate import (
    Ellipsoid,
    MultivariateQGaussian,
    index_from_degrees_of_freedom,
    multivariate_student_t,
    student_t_parameters,
)

DTYPES = ["float32", "float64"]
FALSE_ALARM = 1e-7
LOWER = np.array([[1.5, 0.0, 0.0], [0.7, 0.4, 0.0], [-0.3, 0.2, 2.0]])
CENTRE = np.array([1.0, -2.0, 0.5])


def standard(index, dimension, **options):
    return MultivariateQGaussian(
        np.zeros(dimension), index, scale_diag=np.ones(dimension), **options
    )


@jax.jit
def log_prob(distribution, value):
    return distribution.log_prob(value)


@functools.partial(jax.jit, static_argnums=2)
def sample_with_log_prob(distribution, key, count):
    return distribution.sample_with_log_prob(key, (count,))


@functools.partial(jax.jit, static_argnums=2)
def sample(distribution, key, count):
    return distribution.sample(key, (count,))


@functools.partial(jax.jit, static_argnums=1)
def log_normaliser_and_entropy(index, dimension):
    distribution = standard(index, dimension)
    return -distribution.log_prob(jnp.zeros(dimension)), distribution.entropy()


def gamma_log_normaliser(index, dimension):
    exponent = 1.0 / (1.0 - index)
    return (
        dimension / 2 * np.log(2.0 * np.pi * exponent)
        + special.gammaln(exponent + 1.0)
        - special.gammaln(exponent + 1.0 + dimension / 2)
    )


def formula_log_density(value, loc, sigma, index):
    """Return log(exp_q(-m² / 2) / Z) by its definition in float64, for points in the support."""
    difference = np.asarray(value, np.float64) - loc
    mahalanobis = np.sum(difference * np.linalg.solve(sigma, difference.T).T, axis=-1)
    kernel = np.log(1.0 - (1.0 - index) * mahalanobis / 2.0) / (1.0 - index)
    half_determinant = np.linalg.slogdet(sigma)[1] / 2.0
    return kernel - half_determinant - gamma_log_normaliser(index, len(loc))


# Normaliser, entropy, density


@settings(max_examples=80)
@given(index=st.floats(-20.0, 0.99), dimension=st.integers(1, 7))
def test_normaliser_and_entropy_match_the_gamma_formulas(index, dimension):
    exponent = 1.0 / (1.0 - index)
    with jax.enable_x64(True):
        value, entropy = log_normaliser_and_entropy(jnp.float64(index), dimension)
    expected = gamma_log_normaliser(index, dimension)
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10)
    digammas = special.digamma(exponent + 1.0) - special.digamma(exponent + 1.0 + dimension / 2)
    np.testing.assert_allclose(entropy, expected - exponent * digammas, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
def test_float32_normaliser_and_its_slope_stay_smooth_towards_the_gaussian(dimension):
    index = np.float32(1.0) - np.array([1e-2, 1e-3, 1e-5, 1e-7], np.float32)
    gap = 1.0 - index.astype(np.float64)
    both = functools.partial(log_normaliser_and_entropy, dimension=dimension)
    (value, entropy), (slope, _) = jax.jvp(both, (jnp.asarray(index),), (jnp.ones(4),))
    # log Z = n/2 log(2 pi) - h n (n + 2) / 8 + O(h²), from the Gamma formula. The entropy falls
    # twice as fast.
    drop = dimension * (dimension + 2) / 8
    expected = dimension / 2 * np.log(2 * np.pi) - gap * drop
    assert np.all(np.abs(value - expected) < 3e-6 + dimension**3 * gap**2)
    assert np.all(np.abs(slope / drop - 1.0) < 2e-5 + 3 * dimension * gap)
    expected = dimension / 2 * np.log(2 * np.pi * np.e) - 2 * gap * drop
    assert np.all(np.abs(entropy - expected) < 5e-6 + dimension**3 * gap**2)


@settings(max_examples=40)
@given(
    index=st.floats(-20.0, 0.97),
    shrink=st.floats(0.05, 0.98),
    spread=st.floats(1e-4, 1e4),
    seed=st.integers(0, 10**6),
)
def test_log_prob_matches_the_definition_for_full_and_diagonal_scale(index, shrink, spread, seed):
    rng = np.random.default_rng(seed)
    lower = spread * (np.tril(rng.normal(size=(3, 3)), -1) + np.diag(rng.uniform(0.5, 2.0, 3)))
    loc = rng.normal(size=3)
    unit = rng.normal(size=(5, 3))
    unit *= shrink * np.sqrt(2.0 / (1.0 - index)) / np.linalg.norm(unit, axis=-1, keepdims=True)
    with jax.enable_x64(True):
        full = MultivariateQGaussian(loc, index, scale_tril=lower, validate_args=False)
        value = loc + unit @ lower.T
        expected = formula_log_density(value, loc, lower @ lower.T, index)
        np.testing.assert_allclose(log_prob(full, value), expected, rtol=1e-8, atol=1e-7)
        diagonal = MultivariateQGaussian(loc, index, scale_diag=np.diag(lower), validate_args=False)
        value = loc + unit * np.diag(lower)
        expected = formula_log_density(value, loc, np.diag(np.diag(lower) ** 2), index)
        np.testing.assert_allclose(log_prob(diagonal, value), expected, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("index", "density"),
    [
        (-1.0, stats.semicircular()),
        (0.0, stats.beta(2, 2, loc=-np.sqrt(2), scale=2 * np.sqrt(2))),
        (0.5, stats.beta(3, 3, loc=-2, scale=4)),
    ],
)
def test_one_dimension_matches_scipy(index, density, dtype):
    low, high = density.support()
    points = np.linspace(0.95 * low, 0.95 * high, 31)
    with jax.enable_x64(dtype == "float64"):
        value = log_prob(standard(index, 1), points[:, None])
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(value, density.logpdf(points), atol=tolerance)


@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
def test_mass_is_one(dimension):
    index = np.array([-20.0, -1.0, 0.0, 0.5, 0.95])
    radius = np.sqrt(2.0 / (1.0 - index))
    nodes, weights = special.roots_legendre(200)
    r = radius * (nodes[:, None] + 1.0) / 2.0
    sphere = 2.0 * np.pi ** (dimension / 2) / special.gamma(dimension / 2)
    points = np.zeros((200, 5, dimension))
    points[..., -1] = r
    with jax.enable_x64(True):
        density = np.exp(log_prob(standard(index, dimension), points))
    mass = weights @ (sphere * r ** (dimension - 1) * density) * radius / 2.0
    # The quadrature converges slowly where the density nearly jumps at the edge (index -20).
    np.testing.assert_allclose(mass, 1.0, atol=2e-3)
    np.testing.assert_allclose(mass[2:], 1.0, atol=1e-9)


def test_mass_of_a_tilted_ellipse_is_one():
    with jax.enable_x64(True):
        distribution = MultivariateQGaussian(CENTRE[:2], 0.0, scale_tril=LOWER[:2, :2])
        half_width = np.asarray(distribution.half_width)
        x, y = (np.linspace(-w, w, 1001) for w in half_width)
        grid = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1) + CENTRE[:2]
        density = np.exp(log_prob(distribution, grid))
    mass = integrate.simpson(integrate.simpson(density, x=y), x=x)
    np.testing.assert_allclose(mass, 1.0, atol=1e-4)


# Samples


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimension", [1, 2, 3, 6])
def test_samples_follow_scipys_radial_and_marginal_distributions(dimension, dtype):
    indices = np.array([-20.0, 0.0, 0.7, 0.999])
    with jax.enable_x64(dtype == "float64"):
        distribution = standard(indices, dimension)
        samples = sample_with_log_prob(distribution, jax.random.key(dimension), 20_000)[0]
    assert samples.dtype == dtype
    for column, index in enumerate(indices):
        gap, exponent = 1.0 - index, 1.0 / (1.0 - index)
        values = np.asarray(samples[:, column], np.float64)
        share = gap * np.sum(values**2, axis=-1) / 2.0
        radial = stats.kstest(share, stats.beta(dimension / 2, exponent + 1.0).cdf)
        assert radial.pvalue > FALSE_ALARM
        # One coordinate has the exponent e + (n - 1) / 2.
        shape = exponent + (dimension + 1) / 2
        coordinate = values[:, -1] * np.sqrt(gap / 2.0)
        marginal = stats.kstest(coordinate, stats.beta(shape, shape, loc=-1, scale=2).cdf)
        assert marginal.pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", ["scale_tril", "scale_diag"])
def test_moments_match_samples(scale):
    parameter = LOWER if scale == "scale_tril" else np.diag(LOWER)
    distribution = MultivariateQGaussian(CENTRE, -0.5, **{scale: parameter})
    count = 200_000
    samples = sample_with_log_prob(distribution, jax.random.key(3), count)[0]
    samples = np.asarray(samples, np.float64)
    covariance = np.asarray(distribution.covariance_matrix)
    deviations = np.sqrt(np.asarray(distribution.variance))
    np.testing.assert_allclose(np.diag(covariance), deviations**2, rtol=1e-6)
    np.testing.assert_allclose(
        (samples.mean(axis=0) - np.asarray(distribution.mean)) / deviations,
        0.0,
        atol=6.0 / np.sqrt(count),
    )
    error = (np.cov(samples.T) - covariance) / np.outer(deviations, deviations)
    np.testing.assert_allclose(error, 0.0, atol=6.0 / np.sqrt(count))
    sigma = LOWER @ LOWER.T if scale == "scale_tril" else np.diag(np.diag(LOWER) ** 2)
    np.testing.assert_allclose(covariance, sigma * 2.0 / (5.0 * 1.5 + 2.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dimension", [2, 3])
def test_sample_with_log_prob_matches_the_density_of_the_sample(dimension):
    indices = np.array([-20.0, 0.0, 0.5, 0.99, 1.0 - 1e-6])
    loc, lower = CENTRE[:dimension], LOWER[:dimension, :dimension]
    sigma = lower @ lower.T

    @jax.jit
    def draw_twice(distribution, key):
        both = distribution.sample_with_log_prob(key, (4_000,))
        return *both, distribution.sample(key, (4_000,))

    with jax.enable_x64(True):
        distribution = MultivariateQGaussian(loc, indices, scale_tril=lower)
        value, own, again = draw_twice(distribution, jax.random.key(1))
    np.testing.assert_allclose(value, again, rtol=1e-14, atol=1e-14)
    assert np.all(np.isfinite(own))
    for column, index in enumerate(indices[:-1]):
        points = np.asarray(value[:, column])
        whitened = np.linalg.solve(lower, (points - loc).T)
        # At the edge the rounded sample has lost digits that the log density still has.
        clear = 1.0 - (1.0 - index) * np.sum(whitened**2, axis=0) / 2.0 > 1e-9
        expected = formula_log_density(points[clear], loc, sigma, index)
        np.testing.assert_allclose(own[clear, column], expected, rtol=1e-5, atol=1e-5)
    gaussian = stats.multivariate_normal(loc, sigma).logpdf(value[:, -1])
    np.testing.assert_allclose(own[:, -1], gaussian, rtol=1e-3, atol=1e-3)


def test_float32_sample_with_log_prob_is_accurate_near_the_edge():
    # With e = 1/21 most of the mass is near the surface; E[-log p] is the entropy.
    distribution = standard(-20.0, 6)
    own = sample_with_log_prob(distribution, jax.random.key(0), 100_000)[1]
    own = np.asarray(own, np.float64)
    exponent = 1.0 / 21.0
    entropy = gamma_log_normaliser(-20.0, 6) - exponent * (
        special.digamma(exponent + 1.0) - special.digamma(exponent + 4.0)
    )
    assert abs(-own.mean() - entropy) < 6.0 * own.std() / np.sqrt(own.size) + 1e-5


@pytest.mark.parametrize("dimension", [2, 3])
def test_pathwise_derivatives_match_finite_differences(dimension):
    index = np.array([-5.0, 0.0, 0.9, 0.99999])
    strict_lower = np.tril(np.ones((dimension, dimension)), -1)
    step = 1e-6

    def draws(loc, index, scale_tril):
        distribution = MultivariateQGaussian(loc, index, scale_tril=scale_tril)
        value, own = distribution.sample_with_log_prob(jax.random.key(7), (16,))
        return jnp.concatenate([value, own[..., None]], axis=-1)

    with jax.enable_x64(True):
        start = (np.ones(dimension), index, np.eye(dimension) + 0.3 * strict_lower)
        moves = (np.full(dimension, 0.4), np.ones(4), np.eye(dimension) + 0.5 * strict_lower)
        derivative = jax.jit(lambda start, direction: jax.jvp(draws, start, direction))
        for which in ((1.0, 0.0, 1.0), (0.0, 1.0, 0.0)):
            direction = tuple(jnp.asarray(w * part) for w, part in zip(which, moves, strict=True))
            ahead, behind = (
                tuple(jnp.asarray(a + s * t) for a, t in zip(start, direction, strict=True))
                for s in (step, -step)
            )
            rise = derivative(ahead, direction)[0] - derivative(behind, direction)[0]
            actual = derivative(tuple(map(jnp.asarray, start)), direction)[1]
            np.testing.assert_allclose(actual, rise / (2 * step), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("dimension", [2, 3])
def test_float32_pathwise_derivative_in_the_index_matches_the_variance(dimension):
    # E[x_1²] = 2 / ((n + 2) h + 2), so d/dq E[x_1²] = 2 (n + 2) / ((n + 2) h + 2)².
    index = np.float32(1.0) - np.array([1.0, 0.1, 1e-3, 1e-6], np.float32)

    @jax.jit
    def derivative(index):
        def squares(index):
            samples = standard(index, dimension).sample(jax.random.key(5), (50_000,))
            return samples[..., 0] ** 2

        return jax.jvp(squares, (index,), (jnp.ones_like(index),))[1]

    slopes = np.asarray(derivative(jnp.asarray(index)), np.float64)
    gap = 1.0 - index.astype(np.float64)
    expected = 2.0 * (dimension + 2) / ((dimension + 2) * gap + 2.0) ** 2
    deviation = slopes.std(axis=0)
    assert np.all(np.abs(slopes.mean(axis=0) - expected) < 6.0 * deviation / np.sqrt(50_000))
    # A correct sampler that is not smooth in the index has derivatives that diverge towards 1.
    assert np.all(deviation < 20.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", ["scale_tril", "scale_diag"])
def test_rounding_never_moves_samples_outside_the_support(scale, dtype):
    parameter = LOWER if scale == "scale_tril" else np.diag(LOWER)

    @jax.jit
    def inside(loc, factor, index):
        distribution = MultivariateQGaussian(loc + CENTRE, index, **{scale: factor * parameter})
        samples = distribution.sample(jax.random.key(2), (3_000,))
        finite = jnp.isfinite(distribution.log_prob(samples))
        return jnp.all(finite & distribution.support(samples) & distribution.support_mask(samples))

    with jax.enable_x64(dtype == "float64"):
        index = jnp.array([-20.0, 0.0, 0.9])
        for loc, factor in [(1e3, 1e-4), (1e3, 1e-2), (0.0, 1e-6), (-50.0, 1e4)]:
            assert inside(loc, factor, index)


# Edges


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", ["scale_tril", "scale_diag"])
def test_density_and_gradients_at_the_edges(scale, dtype):
    parameter = LOWER if scale == "scale_tril" else np.diag(LOWER)
    lower = LOWER if scale == "scale_tril" else np.diag(np.diag(LOWER))
    direction = np.array([0.6, 0.0, -0.8])
    epsilon = float(np.finfo(dtype).eps)
    # The square of the last factor overflows.
    far = 10.0 * float(np.sqrt(np.finfo(dtype).max))
    factors = np.array([0, 0.5, 0.999, 1 - 4 * epsilon, 1, 1 + 200 * epsilon, 1.01, 50.0, far])

    @jax.jit
    def evaluate(index, points):
        def density(loc, index, parameter, value):
            distribution = MultivariateQGaussian(
                loc, index, **{scale: parameter}, validate_args=False
            )
            return distribution.log_prob(value)

        arguments = (jnp.asarray(CENTRE, dtype), index, jnp.asarray(parameter, dtype))
        both = jax.value_and_grad(density, (0, 1, 2, 3))
        return jax.vmap(both, (None, None, None, 0))(*arguments, points)

    with jax.enable_x64(dtype == "float64"):
        for index in (-20.0, 0.0, 0.5, 0.99):
            radius = np.sqrt(2.0 / (1.0 - index))
            points = CENTRE + radius * factors[:, None] * (lower @ direction)
            values, gradients = evaluate(jnp.asarray(index, dtype), jnp.asarray(points, dtype))
            assert values.dtype == dtype
            assert np.all(np.isfinite(values[:5]))
            assert np.all(np.asarray(values[5:]) == -np.inf)
            for gradient in gradients:
                assert np.all(np.isfinite(gradient))
                assert np.all(np.asarray(gradient[5:]) == 0.0)


def test_gradient_inside_matches_finite_differences():
    @jax.jit
    def density(value, index):
        return MultivariateQGaussian(CENTRE, index, scale_tril=LOWER).log_prob(value)

    step = 1e-6
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(density, (0, 1)))
        value = jnp.asarray(CENTRE + 0.6 * LOWER @ np.array([0.5, -0.4, 0.3]))
        for index in (-3.0, 0.0, 0.999, 1.0 - 1e-5):
            in_value, in_index = slope(value, index)
            for axis, shift in enumerate(step * np.eye(3)):
                rise = density(value + shift, index) - density(value - shift, index)
                np.testing.assert_allclose(in_value[axis], rise / (2 * step), rtol=1e-6, atol=1e-7)
            rise = density(value, index + step) - density(value, index - step)
            np.testing.assert_allclose(in_index, rise / (2 * step), rtol=1e-5, atol=1e-6)


def test_half_width_is_the_bounding_box():
    distribution = MultivariateQGaussian(CENTRE, 0.2, scale_tril=LOWER)
    sigma = LOWER @ LOWER.T
    radius = np.sqrt(2.0 / 0.8)
    for axis in range(3):
        # The surface point that reaches furthest along an axis.
        touch = radius * sigma[:, axis] / np.sqrt(sigma[axis, axis])
        np.testing.assert_allclose(touch[axis], distribution.half_width[axis], rtol=1e-6)
        assert distribution.support_mask(CENTRE + 0.999999 * touch)
        assert not distribution.support_mask(CENTRE + 1.00001 * touch)


def test_support_is_a_constraint_and_a_pytree():
    distribution = MultivariateQGaussian(CENTRE, 0.2, scale_tril=LOWER)
    support = distribution.support
    assert isinstance(support, constraints.Constraint)
    assert support.event_dim == 1
    assert MultivariateQGaussian.support.event_dim == 1
    leaves, structure = jax.tree.flatten(support)
    rebuilt = jax.tree.unflatten(structure, leaves)
    points = CENTRE + np.array([[0.1, 0.0, 0.0], [9.0, 0.0, 0.0]])
    np.testing.assert_array_equal(jax.jit(lambda s, v: s(v))(rebuilt, points), [True, False])
    assert support.eq(rebuilt)
    assert support == support.tree_unflatten(*reversed(support.tree_flatten()))
    assert support != distribution.support
    assert not support.eq(MultivariateQGaussian(CENTRE, 0.3, scale_tril=LOWER).support)
    assert not support.eq(MultivariateQGaussian(CENTRE, 0.2, scale_diag=np.ones(3)).support)
    assert not support.eq(constraints.real_vector)
    assert isinstance(support, Ellipsoid)
    np.testing.assert_allclose(support.feasible_like(np.zeros((4, 3)))[2], CENTRE)


# Shapes and transformations


def test_batches_broadcast():
    loc = np.random.default_rng(0).normal(size=(3, 1, 2))
    index = np.array([-2.0, 0.5])
    scale_tril = np.array([[1.0, 0.0], [0.3, 0.5]])
    distribution = MultivariateQGaussian(loc, index, scale_tril=scale_tril)
    assert distribution.batch_shape == (3, 2)
    assert distribution.event_shape == (2,)
    value, own = sample_with_log_prob(distribution, jax.random.key(0), 5)
    assert value.shape == (5, 3, 2, 2)
    log_density = log_prob(distribution, value)
    assert log_density.shape == own.shape == (5, 3, 2)
    names = ("mean", "variance", "mode", "half_width", "covariance_matrix")
    parts = jax.eval_shape(lambda d: [getattr(d, name) for name in names], distribution)
    assert [part.shape for part in parts] == [(3, 2, 2)] * 4 + [(3, 2, 2, 2)]
    assert jax.eval_shape(lambda d: d.entropy(), distribution).shape == (3, 2)
    for row in range(3):
        for column in range(2):
            expected = formula_log_density(
                value[:, row, column], loc[row, 0], scale_tril @ scale_tril.T, index[column]
            )
            np.testing.assert_allclose(log_density[:, row, column], expected, rtol=1e-4, atol=1e-4)
    isotropic = MultivariateQGaussian(np.zeros(3), 0.0, scale_diag=2.0)
    assert isotropic.event_shape == (3,)
    expected = 3 * np.log(2.0) + gamma_log_normaliser(0.0, 3)
    np.testing.assert_allclose(-isotropic.log_prob(np.zeros(3)), expected, rtol=1e-6)
    np.testing.assert_allclose(isotropic.covariance_matrix, np.eye(3) * 8.0 / 7.0, rtol=1e-6)


@pytest.mark.parametrize("scale", ["scale_tril", "scale_diag"])
def test_jit_grad_and_vmap_accept_the_distribution_as_an_argument(scale):
    parameter = LOWER if scale == "scale_tril" else np.diag(LOWER)
    sigma = LOWER @ LOWER.T if scale == "scale_tril" else np.diag(np.diag(LOWER) ** 2)
    value = CENTRE + 0.1
    indices = jnp.array([0.3, 0.1])
    distribution = MultivariateQGaussian(CENTRE, 0.3, **{scale: parameter})
    assert distribution.has_rsample

    @jax.jit
    def transformed(distribution, indices):
        slope = jax.grad(lambda d: d.log_prob(value))(distribution)
        stacked = jax.vmap(lambda q: MultivariateQGaussian(CENTRE, q, **{scale: parameter}))(
            indices
        )
        mapped = jax.vmap(lambda d: d.log_prob(value))(stacked)
        keys = jax.random.split(jax.random.key(0))
        samples = jax.vmap(lambda d, key: d.sample(key))(stacked, keys)
        expanded = distribution.expand((4,)).sample(keys[0])
        return slope, mapped, samples, expanded

    slope, mapped, samples, expanded = transformed(distribution, indices)
    for column, index in enumerate((0.3, 0.1)):
        expected = formula_log_density(value[None], CENTRE, sigma, index)[0]
        np.testing.assert_allclose(mapped[column], expected, rtol=1e-5)
    # d/d loc of the definition: Sigma^-1 (a - loc) / (1 - h m² / 2).
    pull = np.linalg.solve(sigma, value - CENTRE)
    expected = pull / (1.0 - 0.7 * pull @ (value - CENTRE) / 2.0)
    np.testing.assert_allclose(slope.loc, expected, rtol=1e-4)
    assert samples.shape == (2, 3)
    assert expanded.shape == (4, 3)


# Errors


@pytest.mark.parametrize("validate_args", [True, False, None])
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1.0, r"MultivariateNormal"),
        (1.5, r"changes with the dimension.*multivariate_student_t"),
        (5.0 / 3.0, r"no density exists.*multivariate_student_t"),
        (2.0, r"1 \+ 2/n = 1\.66667 or above no density exists"),
        ([0.0, 2.0, np.nan], r"got 2 in n = 3"),
    ],
)
def test_a_concrete_index_of_one_or_above_always_raises(index, message, validate_args):
    known = np.asarray(index)
    with pytest.raises(ValueError, match=message):
        standard(known, 3, validate_args=validate_args)
    traced = jax.jit(lambda loc: MultivariateQGaussian(loc, known, scale_diag=1.0).mean)
    with pytest.raises(ValueError, match=message):
        traced(jnp.zeros(3))


def test_a_traced_index_of_one_or_above_gives_nan():
    @jax.jit
    def everything(index):
        distribution = standard(index, 2)
        value, log_prob = distribution.sample_with_log_prob(jax.random.key(0))
        zero = jnp.zeros(2)
        return value, log_prob, distribution.entropy(), distribution.log_prob(zero)

    assert all(np.all(np.isfinite(part)) for part in everything(0.9))
    for index in (1.0, 1.5):
        value, log_prob, entropy, _ = everything(index)
        assert np.all(np.isnan(value)) and np.isnan(log_prob) and np.isnan(entropy)
    free = jax.jit(lambda index: standard(index, 2, validate_args=False).log_prob(jnp.zeros(2)))
    assert np.isnan(free(1.5))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"loc": np.array([0.0, np.nan])}, "loc"),
        ({"scale_diag": np.array([1.0, 0.0])}, "scale_diag"),
        ({"scale_diag": np.array([1.0, np.nan])}, "scale_diag"),
        ({"scale_tril": -np.eye(2), "scale_diag": None}, "scale_tril"),
        ({"scale_tril": np.ones((2, 2)), "scale_diag": None}, "scale_tril"),
        ({"entropic_index": np.nan}, "entropic_index"),
        ({"entropic_index": -np.inf}, "entropic_index"),
    ],
)
def test_errors_name_the_invalid_parameter(change, name):
    arguments = {"loc": np.zeros(2), "entropic_index": 0.0, "scale_diag": np.ones(2)} | change
    with pytest.raises(ValueError, match=f"invalid {name} parameter"):
        MultivariateQGaussian(**arguments, validate_args=True)
    MultivariateQGaussian(**arguments, validate_args=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loc": np.zeros(2), "scale_diag": np.ones(3)}, r"loc \(2,\).*scale_diag \(3,\)"),
        ({"loc": np.zeros(2), "scale_tril": np.eye(3)}, r"loc \(2,\).*scale_tril \(3, 3\)"),
        ({"loc": np.zeros(2), "scale_tril": np.eye(1)}, r"loc \(2,\).*scale_tril \(1, 1\)"),
        ({"loc": np.zeros(2), "scale_tril": np.ones((2, 3))}, r"square.*scale_tril \(2, 3\)"),
        ({"loc": np.zeros((4, 2)), "scale_diag": np.ones((3, 2))}, r"loc \(4, 2\)"),
        ({"loc": np.zeros(2)}, "exactly one"),
        ({"loc": np.zeros(2), "scale_tril": np.eye(2), "scale_diag": 1.0}, "exactly one"),
    ],
)
def test_errors_list_shapes_that_do_not_match(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultivariateQGaussian(entropic_index=0.0, **arguments, validate_args=False)


def test_a_value_of_the_wrong_dimension_raises():
    with pytest.raises(ValueError, match=r"must have length 3, got shape \(5, 1\)"):
        standard(0.0, 3).log_prob(np.zeros((5, 1)))


# The heavy-tailed counterpart


@pytest.mark.parametrize("index", [1.05, 1.5, 5.0 / 3.0, 2.0, 2.5])
def test_multivariate_student_t_has_q_gaussian_marginals(index):
    with jax.enable_x64(True):
        distribution = multivariate_student_t(CENTRE, LOWER, index, validate_args=False)
        degrees_of_freedom, factor = (float(part) for part in student_t_parameters(index))
        shape = factor**2 * LOWER @ LOWER.T
        points = CENTRE + np.random.default_rng(0).normal(size=(20, 3))
        joint = stats.multivariate_t(CENTRE, shape, df=degrees_of_freedom)
        with jax.numpy_rank_promotion("allow"):  # inside NumPyro's Student-t
            found = log_prob(distribution, points)
            samples = np.asarray(sample(distribution, jax.random.key(0), 20_000))
        np.testing.assert_allclose(found, joint.logpdf(points), rtol=1e-9)
        recovered = float(index_from_degrees_of_freedom(degrees_of_freedom))
    np.testing.assert_allclose(recovered, index, rtol=1e-12)
    # The marginal along v is exp_q(-x² / (2 s²)) / Z with s = |L' v|; its cdf by quadrature.
    direction = np.array([0.5, -1.0, 2.0])
    scale = np.linalg.norm(LOWER.T @ direction)
    exponent = 1.0 / (index - 1.0)
    log_normaliser = (
        np.log(scale)
        + 0.5 * np.log(2 * np.pi * exponent)
        + special.gammaln(exponent - 0.5)
        - special.gammaln(exponent)
    )
    x = np.linspace(-30.0, 30.0, 7) * scale
    kernel = -exponent * np.log1p(x**2 / (2 * exponent * scale**2))
    marginal = stats.t(degrees_of_freedom, scale=factor * scale)
    np.testing.assert_allclose(kernel - log_normaliser, marginal.logpdf(x), rtol=1e-10)
    projected = (samples - CENTRE) @ direction
    assert stats.kstest(projected, marginal.cdf).pvalue > FALSE_ALARM


def test_multivariate_student_t_accepts_a_batch_of_indices_between_one_and_three():
    distribution = multivariate_student_t(np.zeros(2), np.eye(2), np.array([1.5, 2.0, 2.5]))
    assert distribution.batch_shape == (3,)
    np.testing.assert_allclose(distribution.df, [3.0, 1.0, 1.0 / 3.0], rtol=1e-6)
    expected = np.sqrt(2.0 / np.array([1.5, 1.0, 0.5]))
    np.testing.assert_allclose(distribution.scale_tril[:, 0, 0], expected, rtol=1e-6)
    for index in (1.0, 0.0, 3.0):
        with pytest.raises(ValueError, match="entropic_index"):
            multivariate_student_t(np.zeros(2), np.eye(2), index)
