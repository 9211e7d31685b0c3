"""Quasi-optimal learning against quadrature, enumeration and problems with known answers."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.spatial.distance import cdist

from fat2thin import algorithms
from fat2thin.algorithms import Batch, Problem
from fat2thin.algorithms.quasi_optimal import advantage, band_policy, kernel, kernel_loss
from fat2thin.policies.networks import PolicyNetwork

ALGORITHM = algorithms.get("quasi_optimal")
# Temperature, curvature and centre of Q = 0.7 - curvature (a - centre)^2.
PARABOLAS = [(0.1, 1.0, 0.2), (0.02, 5.0, -0.4), (1.5, 0.3, 0.0)]


def half_width(temperature, curvature):
    return np.cbrt(1.5 * temperature / curvature)


def solved(temperature, curvature, centre):
    """Return the optimal density and its regularised value, by root finding and quadrature."""

    def action_value(action):
        return 0.7 - curvature * (action - centre) ** 2

    def integral(function, threshold):
        reach = np.sqrt((0.7 - threshold) / curvature)
        return integrate.quad(function, centre - reach, centre + reach)[0]

    def density(action, threshold):
        return np.maximum(action_value(action) - threshold, 0.0) / (2.0 * temperature)

    threshold = optimize.brentq(
        lambda level: integral(lambda action: density(action, level), level) - 1.0,
        0.7 - 100.0, 0.7 - 1e-9, xtol=1e-13,
    )  # fmt: skip
    found = functools.partial(density, threshold=threshold)
    mean = integral(lambda action: found(action) * action_value(action), threshold)
    squared = integral(lambda action: found(action) ** 2, threshold)
    return action_value, found, mean + temperature * (1.0 - squared)


def q_minus_v(action, centre, width, temperature):
    rows = [jnp.full((1, 1), number, jnp.float32) for number in (action, centre, width)]
    return advantage(*rows, temperature)[0]


@pytest.mark.parametrize(("temperature", "curvature", "centre"), PARABOLAS)
def test_the_closed_form_equals_quadrature(temperature, curvature, centre):
    action_value, density, value = solved(temperature, curvature, centre)
    width = half_width(temperature, curvature)
    assert density(centre + 0.99 * width) > 0.0 == density(centre + 1.01 * width)
    for action in (-1.0, -0.3, centre, 0.8):
        found = q_minus_v(action, centre, width, temperature)
        np.testing.assert_allclose(found, action_value(action) - value, rtol=1e-4)


@pytest.mark.parametrize(("temperature", "curvature", "centre"), PARABOLAS[:2])
def test_the_policy_has_the_optimal_density(temperature, curvature, centre):
    network = jax.tree.map(jnp.zeros_like, PolicyNetwork(jax.random.key(0), 1, 1, (2,)))
    heads = jnp.arctanh(jnp.array([centre])), jnp.log(jnp.array([curvature]))
    network = eqx.tree_at(lambda made: (made.centre.bias, made.log_scale.bias), network, heads)
    density = solved(temperature, curvature, centre)[1]
    actions = jnp.array([[-0.9], [centre], [centre + 0.2], [0.9]])
    found = jnp.exp(band_policy(network, temperature)(jnp.zeros((4, 1))).log_prob(actions))
    np.testing.assert_allclose(found, density(np.asarray(actions[:, 0])), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("temperature", "curvature", "centre"), PARABOLAS)
def test_gradients_of_the_closed_form_equal_finite_differences(temperature, curvature, centre):
    """Of Q - V by quadrature, for an action outside the band."""

    def expected(middle, width):
        action_value, _, value = solved(temperature, 1.5 * temperature / width**3, middle)
        return action_value(0.9) - value

    width, small = half_width(temperature, curvature), 1e-4
    found = jax.grad(q_minus_v, argnums=(1, 2))(0.9, centre, width, temperature)
    steps = ((small, 0.0), (0.0, small))
    for slope, (sideways, wider) in zip(found, steps, strict=True):
        above = expected(centre + sideways, width + wider)
        below = expected(centre - sideways, width - wider)
        np.testing.assert_allclose(slope, (above - below) / (2.0 * small), rtol=1e-3)


def test_coordinates_are_added():
    rows = [jnp.array([pair]) for pair in ((0.5, -0.2), (0.1, 0.3), (0.4, 0.8))]
    single = [q_minus_v(*numbers, 0.3) for numbers in zip(*(row[0] for row in rows), strict=True)]
    np.testing.assert_allclose(advantage(*rows, 0.3)[0], sum(single), rtol=1e-6)


def test_the_kernel_and_the_loss_equal_an_enumeration_of_pairs():
    rng = np.random.default_rng(0)
    observation, action, residual = (
        rng.normal(size=(6, 3)),
        rng.normal(size=(6, 2)),
        rng.normal(size=6),
    )
    config = ALGORITHM.config(observation_bandwidth=2.0, action_bandwidth=0.5)
    rows = (jnp.asarray(numbers, jnp.float32) for numbers in (observation, action))
    found = kernel(*rows, config)
    far = cdist(observation, observation) ** 2 / 4.0 + cdist(action, action) ** 2 / 0.25
    np.testing.assert_allclose(found, np.exp(-far), rtol=1e-4)
    pairs = itertools.permutations(range(6), 2)
    mean = np.mean([residual[i] * residual[j] * np.exp(-far[i, j]) for i, j in pairs])
    np.testing.assert_allclose(
        kernel_loss(jnp.asarray(residual, jnp.float32), found), mean, rtol=1e-4
    )


def test_noise_of_rewards_does_not_bias_the_loss():
    """Its mean over all equally likely signs of the noise is the loss without noise."""
    rng = np.random.default_rng(1)
    rows = jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)
    near = kernel(rows, rows[:, :1], ALGORITHM.config(observation_bandwidth=1.0))
    residual = jnp.asarray(rng.normal(size=4), jnp.float32)
    noise = jnp.array([*itertools.product((-3.0, 3.0), repeat=4)])
    noisy = jax.vmap(lambda one: kernel_loss(residual + one, near))(noise)
    assert np.ptp(noisy) > 1.0
    np.testing.assert_allclose(np.mean(noisy), kernel_loss(residual, near), rtol=1e-4, atol=1e-5)


def test_one_row_has_no_pairs():
    assert kernel_loss(jnp.ones(1), jnp.ones((1, 1))) == 0.0


def test_a_bandit_with_a_quadratic_reward_has_the_band_of_the_closed_form():
    """Noisy rewards 1 - k (a - m)^2 + e, with another k and m in each of two states."""
    problem = Problem(1, (-1.0,), (1.0,), discount=0.9)
    config = ALGORITHM.config(
        temperature=0.1, observation_bandwidth=1.0, hidden=(16,), learning_rate=3e-3
    )
    curvatures, centres = jnp.array([2.0, 8.0]), jnp.array([0.3, -0.5])

    def step(state, key):
        keys = jax.random.split(key, 3)
        which = jax.random.bernoulli(keys[0], shape=(64,)).astype(int)
        action = jax.random.uniform(keys[1], (64,), minval=-1.0)
        reward = 1.0 - curvatures[which] * (action - centres[which]) ** 2
        reward += 0.3 * jax.random.normal(keys[2], (64,))
        seen = 2.0 * which[:, None].astype(float) - 1.0
        batch = Batch(seen, action[:, None], reward, seen, jnp.zeros(64))
        return ALGORITHM.update(state, batch, key, problem, config)

    state = ALGORITHM.init(jax.random.key(0), problem, config)
    keys = jax.random.split(jax.random.key(1), 3_000)
    state, metrics = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
    policy = ALGORITHM.policy(state, problem, config)
    low, high = policy.support(jnp.array([[-1.0], [1.0]]))
    np.testing.assert_allclose((low + high)[:, 0] / 2.0, centres, atol=0.05)
    expected = half_width(0.1, np.asarray(curvatures))
    np.testing.assert_allclose((high - low)[:, 0] / 2.0, expected, rtol=0.05)
    # V = 1 + 0.1 (1 - 0.9 / w) in each state, and the noise has half the variance 0.045.
    value = np.mean(1.0 + 0.1 * (1.0 - 0.9 / expected))
    np.testing.assert_allclose(np.mean(metrics["v_mean"][-500:]), value, atol=0.05)
    np.testing.assert_allclose(np.mean(metrics["critic_loss"][-500:]), 0.045, atol=0.01)
