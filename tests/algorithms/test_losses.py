"""Losses compared with results by hand, loops in Python, and their known minimisers."""

import functools
import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from fat2thin.algorithms.losses import (
    critics_huber_loss,
    critics_loss,
    expectile_loss,
    gumbel_loss,
    half_squared_error,
    log_weight,
    q_exponential_weight,
    sparse_value_loss,
    temporal_difference_target,
    weighted_regression,
)

INDICES = (0.0, 0.5, 1.0, -1.0)
DRAWS = np.random.default_rng(0).gumbel(0.3, 1.5, size=40)
"""Values of logged actions in one state."""


@pytest.fixture
def wide():
    with jax.enable_x64(True):
        yield


def slope_at(loss, prediction):
    """Return the derivative of the mean of `loss(DRAWS, prediction)` at a constant prediction."""
    targets = jnp.asarray(DRAWS)

    def mean(constant):
        return jnp.mean(loss(targets, jnp.broadcast_to(constant, targets.shape)))

    return jax.jit(jax.grad(mean))(jnp.asarray(prediction))


def test_losses_match_results_by_hand():
    assert half_squared_error(jnp.asarray(3.0), jnp.asarray(1.0)) == 2.0
    np.testing.assert_allclose(
        temporal_difference_target(jnp.asarray(1.0), jnp.asarray(1.0), 0.9, jnp.asarray(2.0)), 2.8
    )
    end = temporal_difference_target(jnp.asarray(1.0), jnp.asarray(0.0), 0.9, jnp.asarray(2.0))
    assert end == 1.0
    assert critics_loss(jnp.array([1.0, 4.0]), jnp.asarray(2.0)) == (0.5 + 2.0) / 2
    # Errors 0.5 and 3 with the limit at 1: 0.125, and 0.5 + 1 * (3 - 1).
    assert critics_huber_loss(jnp.array([2.5, -1.0]), jnp.asarray(2.0), 1.0) == (0.125 + 2.5) / 2
    np.testing.assert_allclose(expectile_loss(jnp.array([-2.0, 0.0, 3.0]), 0.75), [1.0, 0.0, 6.75])
    # z = 0, log 2, and 5 clipped to log 4 (twice): e^z - z - 1, halved by the shift in row three.
    np.testing.assert_allclose(
        gumbel_loss(
            jnp.array([0.0, 2.0 * math.log(2.0), 10.0, 10.0]),
            2.0,
            math.log(4.0),
            jnp.array([0.0, 0.0, math.log(2.0), 0.0]),
        ),
        [0.0, 0.306852819, 0.806852819, 1.613705639],
        atol=1e-6,
    )
    # 1 + (q - v) / (2 alpha) = 2, 0.5 and -1, for alpha = 0.5 and v = 1.
    np.testing.assert_allclose(
        sparse_value_loss(jnp.array([2.0, 0.5, -1.0]), jnp.ones(3), 0.5), [6.0, 2.25, 2.0]
    )


def test_losses_match_a_python_loop():
    rng = np.random.default_rng(1)
    rows = 50
    values, target, prediction = rng.normal(0, 2, (3, rows))
    other = rng.normal(0, 2, rows)
    arrays = [a.astype(np.float32) for a in (values, other, target, prediction)]

    @jax.jit
    def compute(first, second, goal, guess):
        return {
            "half": half_squared_error(guess, goal),
            "target": temporal_difference_target(guess, first, 0.9, goal),
            "twin": critics_loss(jnp.stack([first, second]), goal),
            "huber": critics_huber_loss(jnp.stack([first, second]), goal, 1.3),
            "expectile": expectile_loss(goal - guess, 0.8),
            "gumbel": gumbel_loss(goal - guess, 0.7, 4.0, jnp.full(rows, 1.5)),
            "sparse": sparse_value_loss(goal, guess, 0.6),
        }

    computed = jax.tree.map(np.asarray, compute(*arrays))
    for row in range(rows):
        q1, q2, y, v = (float(array[row]) for array in arrays)
        sizes = [abs(q1 - y), abs(q2 - y)]
        z = min((y - v) / 0.7, 4.0)
        ratio = max(0.0, 1.0 + (y - v) / 1.2)
        expected = {
            "half": 0.5 * (v - y) * (v - y),
            "target": v + 0.9 * q1 * y,
            "twin": 0.25 * (q1 - y) ** 2 + 0.25 * (q2 - y) ** 2,
            "huber": sum(d * d / 2 if d <= 1.3 else 1.3 * d - 1.3 * 1.3 / 2 for d in sizes) / 2,
            "expectile": (0.8 if y >= v else 0.2) * (y - v) ** 2,
            "gumbel": (math.exp(z) - z - 1) / math.exp(1.5),
            "sparse": ratio * ratio + v / 0.6,
        }
        for name, number in expected.items():
            np.testing.assert_allclose(
                computed[name][row], number, rtol=2e-5, atol=2e-6, err_msg=name
            )


def test_the_huber_loss_matches_scipy():
    error = np.linspace(-4.0, 4.0, 81)
    values = jnp.asarray(np.stack([error, 2.0 * error]) + 0.5, jnp.float32)
    for limit in (0.3, 1.0, 20.0):
        expected = np.mean(scipy.special.huber(limit, np.stack([error, 2.0 * error])), axis=0)
        found = critics_huber_loss(values, jnp.full(81, 0.5), limit)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.7, 0.95])
def test_the_minimiser_of_the_expectile_loss_is_the_expectile(wide, expectile):
    """The loss is convex, so the minimiser is where its slope is zero."""
    best = scipy.stats.expectile(DRAWS, expectile)
    np.testing.assert_allclose(
        slope_at(lambda q, v: expectile_loss(q - v, expectile), best), 0.0, atol=1e-12
    )


@pytest.mark.parametrize("temperature", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_the_minimiser_of_the_gumbel_loss_is_the_soft_maximum(wide, temperature, shift):
    best = temperature * (scipy.special.logsumexp(DRAWS / temperature) - math.log(DRAWS.size))
    *_, second, first = np.sort((DRAWS - best) / temperature)

    def slope(clip):
        def loss(q, v):
            return gumbel_loss(q - v, temperature, clip, jnp.full(q.shape, shift))

        return slope_at(loss, best)

    np.testing.assert_allclose(slope(first + 0.1), 0.0, atol=1e-12)
    # A clip that binds removes the gradient of the largest draw.
    lost = (np.exp(first) - 1.0) / temperature / DRAWS.size * np.exp(-shift)
    np.testing.assert_allclose(slope((first + second) / 2.0), lost, rtol=1e-9)


def test_the_shift_only_scales_the_gumbel_loss(wide):
    residual = jnp.linspace(-5.0, 5.0, 21)
    plain = gumbel_loss(residual, 0.8, 4.0, jnp.zeros(21))
    for shift in (-1.0, 2.5):
        shifted = gumbel_loss(residual, 0.8, 4.0, jnp.full(21, shift))
        np.testing.assert_allclose(shifted, np.exp(-shift) * np.asarray(plain), atol=1e-13)


def test_large_residuals_do_not_overflow_the_gumbel_loss():
    """e^1000 is far beyond float32; with a shift of 1000 the loss is 1 and its slope 1 / beta."""
    residual = jnp.array([2000.0, 1990.0, -2000.0])

    def loss(u):
        return gumbel_loss(u, 2.0, 1e4, jnp.full(3, 1000.0))

    value, pull = jax.jvp(loss, (residual,), (jnp.ones(3),))
    np.testing.assert_allclose(value, [1.0, np.exp(-5.0), 0.0], rtol=1e-5)
    np.testing.assert_allclose(pull, [0.5, np.exp(-5.0) / 2.0, 0.0], rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_the_minimiser_of_the_sparse_value_loss_has_a_mean_density_ratio_of_one(wide, temperature):
    """Compared with the maximum of sum p q - alpha sum p (p / mu - 1) over distributions p.

    The maximum is found by SLSQP (Xu et al. 2023, f(x) = x - 1). With v the minimiser of the loss,
    the best p is mu [1 + (q - v) / (2 alpha)]_+. The best value is alpha (least loss - 1), which is
    v + alpha times the variance of the ratio.
    """
    rng = np.random.default_rng(2)
    q, behaviour = rng.normal(0.0, 1.0, 6), rng.dirichlet(np.full(6, 2.0))

    compiled = jax.jit(sparse_value_loss)

    def expected_loss(v):
        rows = compiled(jnp.asarray(q), jnp.full(6, v), temperature)
        return float(behaviour @ np.asarray(rows))

    least = scipy.optimize.minimize_scalar(
        expected_loss, bounds=(q.min() - 5, q.max() + 5), method="bounded", options={"xatol": 1e-9}
    )
    ratio = np.maximum(0.0, 1.0 + (q - least.x) / (2.0 * temperature))
    np.testing.assert_allclose(behaviour @ ratio, 1.0, atol=1e-6)

    solution = scipy.optimize.minimize(
        lambda p: -p @ q + temperature * p @ (p / behaviour - 1.0),
        behaviour,
        jac=lambda p: -q + temperature * (2.0 * p / behaviour - 1.0),
        bounds=[(0.0, 1.0)] * 6,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1.0, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert solution.success
    np.testing.assert_allclose(behaviour * ratio, solution.x, atol=1e-6)
    np.testing.assert_allclose(temperature * (least.fun - 1.0), -solution.fun, rtol=1e-8)
    variance = behaviour @ ratio**2 - 1.0
    np.testing.assert_allclose(least.x + temperature * variance, -solution.fun, rtol=1e-6)
    # Low temperatures drop actions, the highest drops none.
    assert np.any(ratio == 0.0) == (temperature < 5.0)


def plain_exp_q(x, index):
    if index == 1.0:
        return np.exp(x)
    return np.maximum(0.0, 1.0 + (1.0 - index) * x) ** (1.0 / (1.0 - index))


def floor_of(index, floor):
    """Return where exp_q equals the floor, by root finding."""
    below = -50.0 if index == 1.0 else -1.0 / (1.0 - index)
    return scipy.optimize.brentq(
        lambda x: plain_exp_q(x, index) - floor, below, 1.0, xtol=1e-15, rtol=1e-14
    )


@functools.partial(jax.jit, static_argnames="floor")
def log_weight_and_slope(scaled, index, floor):
    temperature = 0.5

    def value(x):
        return log_weight(temperature * x, temperature, index, floor)

    return jax.jvp(value, (scaled,), (jnp.ones_like(scaled),))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("floor", [0.01, 0.3])
def test_log_weight_is_the_logarithm_and_its_tangent_below_the_floor(wide, index, floor):
    edge, step = floor_of(index, floor), 1e-8
    above = np.linspace(edge + 1e-3, 6.0, 50)
    around = edge + step * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    below = edge - np.array([0.1, 1.0, 100.0])
    points = np.concatenate([above, around, below])
    value, _ = log_weight_and_slope(jnp.asarray(points), index, floor)
    at_above, at_edge, at_below = np.split(value, [50, 55])

    np.testing.assert_allclose(at_above, np.log(plain_exp_q(above, index)), atol=1e-11)

    # No jump at the edge, and the same slope on both sides of it.
    np.testing.assert_allclose(at_edge[2], math.log(floor), atol=1e-9)
    slopes = np.diff(at_edge) / step
    logarithm = np.log(plain_exp_q(np.array([edge, edge + step]), index))
    np.testing.assert_allclose(slopes, np.diff(logarithm)[0] / step, rtol=1e-3)

    # Below, a straight line of that slope, also where the weight itself is zero.
    line = math.log(floor) + slopes[0] * (below - edge)
    np.testing.assert_allclose(at_below, line, rtol=1e-3)

    # The derivative matches finite differences, and is positive on both sides.
    for shift in (-0.1, 0.1):
        probes = edge + shift + 1e-6 * np.linspace(-1.0, 1.0, points.size)
        value, slope = log_weight_and_slope(jnp.asarray(probes), index, floor)
        rise = (value[-1] - value[0]) / 2e-6
        np.testing.assert_allclose(slope[points.size // 2], rise, rtol=1e-5)
        assert rise > 0.0


def test_log_weight_of_a_large_advantage_is_finite():
    value, slope = log_weight_and_slope(jnp.asarray(100.0), 1.0, 0.01)
    np.testing.assert_allclose(value, 100.0, rtol=1e-5)
    np.testing.assert_allclose(slope, 1.0, rtol=1e-5)


def test_shapes_that_do_not_match_are_errors():
    """Otherwise they would be broadcast silently."""
    with pytest.raises(jaxtyping.TypeCheckError):
        half_squared_error(jnp.zeros(3), jnp.zeros((3, 1)))
    with pytest.raises(jaxtyping.TypeCheckError):
        critics_loss(jnp.zeros((3, 2)), jnp.zeros(3))
    with pytest.raises(jaxtyping.TypeCheckError):
        critics_huber_loss(jnp.zeros((2, 3)), jnp.zeros(2), 1.0)
    with pytest.raises(jaxtyping.TypeCheckError):
        sparse_value_loss(jnp.zeros(3), jnp.zeros((1, 3)), 1.0)


def test_weights_are_exactly_zero_below_the_threshold():
    """C21: w = 0 iff A <= -tau / (1 - q_w); for q_w = 0 w is max(0, 1 + A / tau)."""
    temperature = 0.5
    advantages = jnp.array([-2.0, -0.5001, -0.5, -0.4999, 0.0, 1.0])
    weigh = jax.jit(q_exponential_weight)
    weights = weigh(advantages, temperature, 0.0, 1e4)
    np.testing.assert_allclose(weights, np.maximum(0, 1 + np.asarray(advantages) / 0.5), atol=1e-6)
    assert np.all(np.asarray(weights[:3]) == 0.0)
    assert np.all(np.asarray(weights[3:]) > 0.0)
    edge = -temperature / 2.0
    around = weigh(jnp.array([edge - 1e-4, edge, edge + 1e-4]), temperature, -1.0, 1e4)
    np.testing.assert_array_equal(around[:2], 0.0)
    assert around[2] > 0.0
    assert weigh(jnp.asarray(1e9), 1e-3, 0.0, 1e4) == 1e4


def test_a_zero_weight_drops_an_action_with_zero_density():
    value, slope = jax.value_and_grad(lambda x: weighted_regression(jnp.asarray(0.0), x))(-jnp.inf)
    assert value == 0.0
    assert slope == 0.0
    assert weighted_regression(jnp.asarray(2.0), jnp.asarray(-1.5)) == 3.0
