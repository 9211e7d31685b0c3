"""Networks against loops in NumPy, losses against tables worked by hand."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from fat2thin.losses import (
    half_squared_error,
    q_exponential_weight,
    temporal_difference_target,
    twin_critic_loss,
    weighted_regression,
)
from fat2thin.networks import Linear, PolicyNetwork, ScalarNetwork, TwinCritic, polyak


def numpy_forward(trunk, head, x):
    for layer in trunk.layers:
        x = np.maximum(x @ np.asarray(layer.weight) + np.asarray(layer.bias), 0.0)
    return x @ np.asarray(head.weight) + np.asarray(head.bias)


def test_twin_critic_is_two_separate_networks():
    critic = TwinCritic(jax.random.key(0), 3, 2, (8, 8))
    rng = np.random.default_rng(0)
    observation, action = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    inputs = np.concatenate([observation, action], axis=1)
    both = critic(jnp.asarray(observation), jnp.asarray(action))
    assert both.shape == (2, 5)
    for index in range(2):
        member = jax.tree.map(lambda leaf, i=index: leaf[i], critic.members)
        expected = numpy_forward(member.trunk, member.head, inputs)[:, 0]
        np.testing.assert_allclose(both[index], expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(both[0], both[1])
    minimum = critic.minimum(jnp.asarray(observation), jnp.asarray(action))
    np.testing.assert_array_equal(minimum, np.minimum(both[0], both[1]))


def test_initialisation_is_xavier_uniform_with_zero_biases():
    layer = Linear(jax.random.key(0), 300, 200)
    bound = np.sqrt(6.0 / 500)
    assert np.max(np.abs(layer.weight)) <= bound
    np.testing.assert_allclose(np.var(layer.weight), bound**2 / 3, rtol=0.02)
    np.testing.assert_array_equal(layer.bias, 0.0)


def test_leading_axes_are_rows():
    network = PolicyNetwork(jax.random.key(0), 3, 2, (8,))
    value = ScalarNetwork(jax.random.key(0), 3, (8,))
    rows = jax.random.normal(jax.random.key(1), (4, 5, 3))
    assert network(rows)[0].shape == (4, 5, 2)
    assert value(rows).shape == (4, 5)
    np.testing.assert_allclose(network(rows)[1][2, 3], network(rows[2, 3])[1], rtol=1e-5, atol=1e-6)


def test_polyak_moves_a_share_of_the_way():
    start, end = (TwinCritic(jax.random.key(seed), 2, 1, (4,)) for seed in (0, 1))
    moved, first, second = (
        critic.members.head.weight for critic in (polyak(start, end, 0.25), start, end)
    )
    np.testing.assert_allclose(moved, 0.75 * first + 0.25 * second, rtol=1e-5)


def test_losses_by_hand():
    assert half_squared_error(jnp.asarray(3.0), jnp.asarray(1.0)) == 2.0
    np.testing.assert_allclose(
        temporal_difference_target(jnp.asarray(1.0), jnp.asarray(1.0), 0.9, jnp.asarray(2.0)), 2.8
    )
    end = temporal_difference_target(jnp.asarray(1.0), jnp.asarray(0.0), 0.9, jnp.asarray(2.0))
    assert end == 1.0
    assert twin_critic_loss(jnp.array([1.0, 4.0]), jnp.asarray(2.0)) == (0.5 + 2.0) / 2


def test_shapes_that_do_not_match_are_refused():
    """A row too many would broadcast without a word and train on nonsense."""
    with pytest.raises(jaxtyping.TypeCheckError):
        half_squared_error(jnp.zeros(3), jnp.zeros((3, 1)))
    with pytest.raises(jaxtyping.TypeCheckError):
        twin_critic_loss(jnp.zeros((3, 2)), jnp.zeros(3))


def test_weights_are_zero_exactly_below_the_threshold():
    """C21: w = 0 iff A <= -tau / (1 - q_w); for q_w = 0 w is max(0, 1 + A / tau)."""
    temperature = 0.5
    advantages = jnp.array([-2.0, -0.5001, -0.5, -0.4999, 0.0, 1.0])
    weights = q_exponential_weight(advantages, temperature, 0.0, 1e4)
    np.testing.assert_allclose(weights, np.maximum(0, 1 + np.asarray(advantages) / 0.5), atol=1e-6)
    assert np.all(np.asarray(weights[:3]) == 0.0)
    assert np.all(np.asarray(weights[3:]) > 0.0)
    edge = -temperature / 2.0
    around = q_exponential_weight(
        jnp.array([edge - 1e-4, edge, edge + 1e-4]), temperature, -1.0, 1e4
    )
    np.testing.assert_array_equal(around[:2], 0.0)
    assert around[2] > 0.0
    assert q_exponential_weight(jnp.asarray(1e9), 1e-3, 0.0, 1e4) == 1e4


def test_a_zero_weight_drops_even_an_impossible_action():
    value, slope = jax.value_and_grad(lambda x: weighted_regression(jnp.asarray(0.0), x))(-jnp.inf)
    assert value == 0.0
    assert slope == 0.0
    assert weighted_regression(jnp.asarray(2.0), jnp.asarray(-1.5)) == 3.0
