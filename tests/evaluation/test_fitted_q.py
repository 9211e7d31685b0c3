"""Fitted Q evaluation against least squares, iteration in NumPy, and problems with known values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.algorithms.base import Batch
from fat2thin.data.predictability import quadratic_features
from fat2thin.evaluation.fitted_q import (
    RIDGE,
    Part,
    Scale,
    best_constant,
    constant,
    expected_features,
    features,
    fit,
    part_values,
    scale_of,
    solve,
)

KEY = jax.random.key(0)
AS_IT_IS = Scale(jnp.zeros(2), jnp.ones(2))
ANYTHING = jnp.array([-jnp.inf, jnp.inf])
"""A range of returns that excludes nothing."""


def make_part(seed, rows=60, observation=2, action=2, repeated=1):
    """Return random rows, each `repeated` times."""
    rng = np.random.default_rng(seed)
    fields = {
        "observation": rng.normal(size=(rows, observation)),
        "action": rng.uniform(-1.0, 1.0, size=(rows, action)),
        "reward": rng.normal(size=rows),
        "next_observation": rng.normal(size=(rows, observation)),
        "continuation": (rng.random(rows) < 0.8).astype(float),
    }
    again = {
        name: jnp.asarray(np.repeat(array, repeated, axis=0), jnp.float32)
        for name, array in fields.items()
    }
    return Part(Batch(**again), float(rows))


def in_numpy(part):
    return Batch(*(np.asarray(array, np.float64) for array in part.rows))


def features_by_loops(observation, action):
    rows = []
    for s, a in zip(observation, action, strict=True):
        row = [1.0, *s, *(x**2 for x in s), *a]
        row += [a[i] * a[j] for i in range(len(a)) for j in range(i, len(a))]
        row += [x * y for x in s for y in a]
        rows.append(row)
    return np.asarray(rows)


def ridge_regression(design, target, penalty):
    """Return argmin |design w − target|² / n + penalty |w[1:]|², by least squares."""
    length, size = design.shape
    free = np.eye(size)[1:] * np.sqrt(penalty)
    rows = np.concatenate([design / np.sqrt(length), free])
    wanted = np.concatenate([target / np.sqrt(length), np.zeros(size - 1)])
    return np.linalg.lstsq(rows, wanted)[0]


def linear_policy(observation, key=None):
    return jnp.stack([0.3 * observation[:, 0], -0.2 * observation[:, 1] + 0.1], axis=-1)


def test_features_equal_those_of_a_loop():
    rows = in_numpy(make_part(0, rows=5))
    mean, deviation = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    scale = Scale(jnp.asarray(mean, jnp.float32), jnp.asarray(deviation, jnp.float32))
    found = features(*(jnp.asarray(x, jnp.float32) for x in (rows.observation, rows.action)), scale)
    expected = features_by_loops((rows.observation - mean) / deviation, rows.action)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert found.shape == (5, 1 + 2 + 2 + 2 + 3 + 4)


def test_features_of_numpy_arrays_keep_their_type_and_precision():
    rows = in_numpy(make_part(0))
    made = quadratic_features(rows.observation, rows.action)
    assert isinstance(made, np.ndarray)
    assert made.dtype == np.float64
    expected = features_by_loops(rows.observation, rows.action)
    np.testing.assert_allclose(made, expected, rtol=1e-14)


def test_the_scale_is_per_column_and_never_zero():
    observation = np.stack([np.arange(10.0), np.full(10, 4.0)], axis=1)
    scale = scale_of(jnp.asarray(observation, jnp.float32))
    np.testing.assert_allclose(scale.mean, observation.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(scale.deviation, observation.std(axis=0), atol=2e-3)
    assert (np.asarray(scale.deviation) > 0).all()


def test_expected_features_are_means_over_sampled_actions():
    observation = jnp.asarray(make_part(0, rows=4000).rows.observation)

    def noisy(observation, key):
        return linear_policy(observation) + 0.5 * jax.random.normal(key, (len(observation), 2))

    found = np.asarray(expected_features(observation, noisy, KEY, AS_IT_IS)).mean(axis=0)
    mean = features_by_loops(np.asarray(observation), np.asarray(linear_policy(observation)))
    expected = mean.mean(axis=0)
    # E a² = (E a)² + variance; the other features are linear in the action.
    expected[[7, 9]] += 0.25
    np.testing.assert_allclose(found, expected, atol=0.03)


@pytest.mark.parametrize("repeated", [1, 3])
def test_with_discount_zero_the_fit_is_ridge_regression(repeated):
    part = make_part(1, repeated=repeated)
    rows = in_numpy(part)
    found = fit(part, linear_policy, KEY, 0.0, AS_IT_IS)
    design = features_by_loops(rows.observation, rows.action)
    expected = ridge_regression(design, rows.reward, RIDGE / 60)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_terminal_rows_ignore_the_next_state():
    part = make_part(1)
    over = part._replace(rows=part.rows._replace(continuation=jnp.zeros(60)))
    with_future = fit(over, linear_policy, KEY, 0.9, AS_IT_IS)
    np.testing.assert_array_equal(with_future, fit(part, linear_policy, KEY, 0.0, AS_IT_IS))
    assert not np.allclose(fit(part, linear_policy, KEY, 0.9, AS_IT_IS), with_future, atol=1e-2)


@pytest.mark.parametrize("repeated", [1, 2])
def test_the_fit_is_the_fixed_point_of_fitted_q_iteration(repeated):
    part = make_part(2, rows=200, repeated=repeated)
    rows, discount = in_numpy(part), 0.7
    design = features_by_loops(rows.observation, rows.action)
    next_action = np.asarray(linear_policy(rows.next_observation), np.float64)
    following = features_by_loops(rows.next_observation, next_action)
    weights = np.zeros(design.shape[1])
    for _ in range(300):
        target = rows.reward + discount * rows.continuation * (following @ weights)
        weights, before = ridge_regression(design, target, RIDGE / 200), weights
    assert np.abs(weights - before).max() < 1e-9
    found = fit(part, linear_policy, KEY, discount, AS_IT_IS)
    np.testing.assert_allclose(found, weights, rtol=1e-3, atol=1e-3)


# s' = 0.8 s + 0.5 a + 0.1 noise, r = -(s² + 0.5 a²); the policy is a = -0.4 s + spread · noise.
DRIFT, PUSH, NOISE, PRICE, GAIN, DISCOUNT = 0.8, 0.5, 0.1, 0.5, 0.4, 0.9


def quadratic_log(seed, rows=20_000):
    rng = np.random.default_rng(seed)
    state, action = rng.normal(0.0, 0.5, rows), rng.uniform(-1.0, 1.0, rows)
    following = DRIFT * state + PUSH * action + NOISE * rng.normal(size=rows)
    columns = [state[:, None], action[:, None], -(state**2) - PRICE * action**2]
    columns += [following[:, None], np.ones(rows)]
    # A large count of distinct rows makes the ridge, and its bias, negligible.
    return Part(Batch(*(jnp.asarray(array, jnp.float32) for array in columns)), 1e7)


def regulator(spread):
    def act(observation, key):
        return -GAIN * observation + spread * jax.random.normal(key, observation.shape)

    return act


def value_in_closed_form(state, spread):
    """Return V(s) = -p s² - c."""
    closed_loop = DRIFT - PUSH * GAIN
    p = (1.0 + PRICE * GAIN**2) / (1.0 - DISCOUNT * closed_loop**2)
    variance = NOISE**2 + (PUSH * spread) ** 2
    c = (PRICE * spread**2 + DISCOUNT * p * variance) / (1.0 - DISCOUNT)
    return -p * state**2 - c


def value_by_simulation(spread, episodes=20_000, steps=120):
    rng = np.random.default_rng(3)
    state, total = rng.normal(0.0, 0.5, episodes), np.zeros(episodes)
    for step in range(steps):
        action = -GAIN * state + spread * rng.normal(size=episodes)
        total += DISCOUNT**step * (-(state**2) - PRICE * action**2)
        state = DRIFT * state + PUSH * action + NOISE * rng.normal(size=episodes)
    return total.mean()


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_value_of_a_linear_policy_on_a_quadratic_problem_is_known(spread):
    one, other = quadratic_log(4), quadratic_log(5)
    found = part_values(one, other, regulator(spread), KEY, DISCOUNT, ANYTHING)
    for value, states in zip(found, (one, other), strict=True):
        known = value_in_closed_form(np.asarray(states.rows.observation), spread).mean()
        np.testing.assert_allclose(value, known, rtol=0.05)
    # The closed form itself is checked by simulation.
    np.testing.assert_allclose(found, value_by_simulation(spread), rtol=0.06)


def test_a_worse_policy_has_a_lower_value():
    one, other = quadratic_log(4, rows=2000), quadratic_log(5, rows=2000)
    good, bad = (
        np.asarray(part_values(one, other, act, KEY, DISCOUNT, ANYTHING))
        for act in (regulator(0.0), constant(jnp.array([0.8])))
    )
    assert (good > bad + 0.5).all()


def test_each_part_is_valued_by_the_q_of_the_other():
    one, other = make_part(6), make_part(7, rows=40)
    richer = other._replace(rows=other.rows._replace(reward=other.rows.reward + 100.0))
    by_other, by_one = part_values(one, other, linear_policy, KEY, 0.5, ANYTHING)
    moved_by_other, moved_by_one = part_values(one, richer, linear_policy, KEY, 0.5, ANYTHING)
    assert moved_by_one == by_one
    assert moved_by_other > by_other + 50.0


def bandit(key, best, noise, rows=500):
    """Return a log of one-step episodes with r = -|a - best|² + noise."""
    keys = jax.random.split(key, 3)
    observation = jax.random.normal(keys[0], (rows, 2))
    action = jax.random.uniform(keys[1], (rows, len(best)), minval=-1.0)
    reward = -jnp.sum((action - jnp.asarray([best])) ** 2, axis=-1)
    reward += noise * jax.random.normal(keys[2], (rows,))
    return Part(Batch(observation, action, reward, observation, jnp.zeros(rows)), 1e6)


GRID = jnp.arange(-9, 10, 3) / 10.0


@pytest.mark.parametrize("best", [(0.3,), (0.3, -0.6)])
def test_the_best_constant_of_a_bandit_is_found(best):
    one, other = (bandit(key, best, noise=0.1) for key in jax.random.split(KEY))
    candidates = jnp.stack(jnp.meshgrid(*[GRID] * len(best)), axis=-1).reshape(-1, len(best))
    found = jax.jit(best_constant, static_argnums=3)(one, other, candidates, 0.0, ANYTHING)
    np.testing.assert_allclose(found.action, best, atol=1e-6)
    np.testing.assert_allclose(found.value, 0.0, atol=0.03)


def test_the_value_of_the_best_constant_is_not_biased_upwards():
    """If all actions have value 0, the largest estimate is above 0; the returned value is not."""

    def of_log(key):
        one, other = (
            part._replace(rows=part.rows._replace(reward=jax.random.normal(noise, (40,))))
            for half in jax.random.split(key)
            for part, noise in [(bandit(half, (0.0,), 0.0, 40), jax.random.fold_in(half, 9))]
        )
        found = best_constant(one, other, GRID[:, None], 0.0, ANYTHING).value
        value = functools.partial(
            part_values, one, other, key=KEY, discount=0.0, reachable=ANYTHING
        )
        estimates = jax.vmap(lambda action: value(constant(action)))(GRID[:, None])
        return found, jnp.mean(jnp.max(estimates, axis=0))

    found, biased = jax.jit(jax.vmap(of_log))(jax.random.split(KEY, 200))
    error = np.std(found) / np.sqrt(200)
    assert abs(np.mean(found)) < 4.0 * error
    assert np.mean(biased) > 6.0 * error


@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_linear_systems_are_solved_like_numpy(size):
    rng = np.random.default_rng(size)
    matrix, right = rng.normal(size=(size, size)), rng.normal(size=size)
    # The first pivot is zero, so that rows must be exchanged.
    matrix[0, 0] = 0.0 if size > 1 else 1.0
    found = solve(jnp.asarray(matrix, jnp.float32), jnp.asarray(right, jnp.float32))
    wanted = np.linalg.solve(matrix, right)
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("discount", [0.5, 0.9, 0.99])
def test_a_value_at_the_end_of_the_range_of_returns_is_estimable(discount):
    """If all rewards are equal, the value is known, and equals both ends of the range."""
    one, other = (make_part(seed) for seed in (6, 7))
    alike = [
        part._replace(rows=part.rows._replace(reward=jnp.ones(60), continuation=jnp.ones(60)))
        for part in (one, other)
    ]
    known = np.float32(1.0 / (1.0 - discount))
    found = part_values(*alike, linear_policy, KEY, discount, jnp.array([known, known]))
    np.testing.assert_array_equal(found, [known, known])


def test_a_value_outside_the_range_of_returns_is_not_estimable():
    one, other = make_part(6), make_part(7)
    values = np.asarray(part_values(one, other, linear_policy, KEY, 0.9, ANYTHING))
    first, second = np.sort(values)
    middle = (first + second) / 2.0
    for reachable, expected in (
        ((first - 1.0, second + 1.0), values),
        ((middle, second + 1.0), np.where(values < middle, np.nan, values)),
        ((first - 1.0, middle), np.where(values > middle, np.nan, values)),
        ((-np.inf, middle), np.where(values > middle, np.nan, values)),
        ((second + 1.0, np.inf), [np.nan, np.nan]),
    ):
        found = part_values(one, other, linear_policy, KEY, 0.9, jnp.array(reachable))
        np.testing.assert_array_equal(found, expected)


def test_a_constant_without_an_estimable_value_is_never_chosen():
    one, other = (bandit(key, (0.3,), noise=0.1) for key in jax.random.split(KEY))
    value = functools.partial(part_values, one, other, key=KEY, discount=0.0, reachable=ANYTHING)
    estimates = np.asarray([value(constant(action)) for action in GRID[:, None]])
    # The estimates of the best two lie above the range.
    order = np.argsort(estimates.max(axis=1))
    most = (estimates.max(axis=1)[order[-3]] + estimates.max(axis=1)[order[-2]]) / 2.0
    found = best_constant(one, other, GRID[:, None], 0.0, jnp.array([-np.inf, most]))
    left = [place for place in order if estimates[place].max() <= most]
    best = max(left, key=lambda place: estimates[place].sum())
    np.testing.assert_allclose(found.action, GRID[best], atol=1e-6)
    assert found.value <= most
    none = best_constant(one, other, GRID[:, None], 0.0, jnp.array([50.0, 60.0]))
    assert np.isnan(none.value)
