"""Networks compared with loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.policies.networks import (
    Linear,
    PolicyNetwork,
    ScalarNetwork,
    TwinCritic,
    ValueAndCritics,
    polyak,
    rectify,
)


def numpy_forward(trunk, head, x):
    for layer in trunk.layers:
        x = np.maximum(x @ np.asarray(layer.weight).T + np.asarray(layer.bias), 0.0)
    return x @ np.asarray(head.weight).T + np.asarray(head.bias)


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


def test_networks_accept_any_leading_axes():
    network = PolicyNetwork(jax.random.key(0), 3, 2, (8,))
    value = ScalarNetwork(jax.random.key(0), 3, (8,))
    rows = jax.random.normal(jax.random.key(1), (4, 5, 3))
    assert network(rows)[0].shape == (4, 5, 2)
    assert value(rows).shape == (4, 5)
    np.testing.assert_allclose(network(rows)[1][2, 3], network(rows[2, 3])[1], rtol=1e-5, atol=1e-6)


def test_polyak_moves_targets_by_a_fraction_of_the_distance():
    start, end = (TwinCritic(jax.random.key(seed), 2, 1, (4,)) for seed in (0, 1))
    moved, first, second = (
        critic.members.head.weight for critic in (polyak(start, end, 0.25), start, end)
    )
    np.testing.assert_allclose(moved, 0.75 * first + 0.25 * second, rtol=1e-5)


def test_value_and_critics_compute_the_same_as_the_separate_networks():
    value = ScalarNetwork(jax.random.key(0), 3, (8, 8))
    critic = TwinCritic(jax.random.key(1), 3, 2, (8, 8))
    together = ValueAndCritics(value, critic)
    rng = np.random.default_rng(0)
    observation, action = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=(5, 2)))
    alone, both = value(observation), critic(observation, action)
    found, founds = together(observation, action)
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(founds, both, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        together.advantage(observation, action), np.min(both, axis=0) - alone, rtol=1e-5, atol=1e-6
    )
    for leaf, other in zip(
        jax.tree.leaves(together.critic(like=critic)), jax.tree.leaves(critic), strict=True
    ):
        np.testing.assert_array_equal(leaf, other)


def test_the_value_in_value_and_critics_does_not_depend_on_the_action():
    value = ScalarNetwork(jax.random.key(0), 3, (8,))
    together = ValueAndCritics(value, TwinCritic(jax.random.key(1), 3, 2, (8,)))
    observation, action = jnp.ones((5, 3)), jnp.ones((5, 2))

    def loss(networks):
        state_value, critics = networks(observation, action)
        return jnp.sum(state_value) + jnp.sum(critics)

    slope = jax.grad(loss)(together).members.trunk.layers[0].weight
    np.testing.assert_array_equal(slope[0, :, 3:], 0.0)
    assert np.any(slope[0, :, :3] != 0.0) and np.any(slope[1:, :, 3:] != 0.0)


def test_the_rectifier_and_its_gradient():
    x = jnp.array([-2.0, -0.0, 0.0, 1e-30, 3.0])
    np.testing.assert_array_equal(rectify(x), np.maximum(x, 0.0))
    np.testing.assert_array_equal(jax.vmap(jax.grad(rectify))(x), [0.0, 0.0, 0.0, 1.0, 1.0])
