"""Networks compared with loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.policies.networks import (
    Critics,
    Linear,
    PolicyNetwork,
    ScalarNetwork,
    ValueAndCritics,
    polyak,
    rectify,
    with_precision,
)


def numpy_forward(trunk, head, x):
    for number, layer in enumerate(trunk.layers):
        x = np.maximum(x @ np.asarray(layer.weight).T + np.asarray(layer.bias), 0.0)
        if trunk.norms:
            norm, centred = trunk.norms[number], x - x.mean(axis=1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
            x = x * np.asarray(norm.scale) + np.asarray(norm.shift)
    return x @ np.asarray(head.weight).T + np.asarray(head.bias)


def learned(networks):
    """Return networks with other parameters, so that scales and shifts are not 1 and 0."""
    leaves, shape = jax.tree.flatten(networks)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [
        leaf + jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(shape, moved)


@pytest.mark.parametrize(("count", "layer_norm"), [(2, False), (3, True)])
def test_critics_are_separate_networks(count, layer_norm):
    critic = learned(Critics(jax.random.key(0), 3, 2, (8, 8), count, layer_norm))
    rng = np.random.default_rng(0)
    observation, action = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    inputs = np.concatenate([observation, action], axis=1)
    values = critic(jnp.asarray(observation), jnp.asarray(action))
    assert values.shape == (count, 5)
    for index in range(count):
        member = jax.tree.map(lambda leaf, i=index: leaf[i], critic.members)
        expected = numpy_forward(member.trunk, member.head, inputs)[:, 0]
        np.testing.assert_allclose(values[index], expected, rtol=1e-4, atol=1e-4)
    assert not np.allclose(values[0], values[1])
    minimum = critic.minimum(jnp.asarray(observation), jnp.asarray(action))
    np.testing.assert_array_equal(minimum, np.min(values, axis=0))


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
    start, end = (Critics(jax.random.key(seed), 2, 1, (4,)) for seed in (0, 1))
    moved, first, second = (
        critic.members.head.weight for critic in (polyak(start, end, 0.25), start, end)
    )
    np.testing.assert_allclose(moved, 0.75 * first + 0.25 * second, rtol=1e-5)


@pytest.mark.parametrize(("count", "layer_norm"), [(2, False), (3, True)])
def test_value_and_critics_compute_the_same_as_the_separate_networks(count, layer_norm):
    value = learned(ScalarNetwork(jax.random.key(0), 3, (8, 8), layer_norm))
    critic = learned(Critics(jax.random.key(1), 3, 2, (8, 8), count, layer_norm))
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
    together = ValueAndCritics(value, Critics(jax.random.key(1), 3, 2, (8,)))
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


def rounded(x):
    return np.asarray(x, jnp.bfloat16).astype(np.float64)


def test_bfloat16_layers_multiply_rounded_factors_and_sum_in_float32():
    layer = learned(with_precision(Linear(jax.random.key(0), 24, 16), "bfloat16"))
    rng = np.random.default_rng(0)
    x, slope = (rng.normal(size=(2, 5, size)).astype(np.float32) for size in (24, 16))
    value, pull = jax.vjp(lambda layer, x: layer(x), layer, jnp.asarray(x))
    of_layer, of_x = pull(jnp.asarray(slope))
    assert {value.dtype, of_layer.weight.dtype, of_x.dtype} == {np.dtype(np.float32)}
    weight = rounded(layer.weight)
    products = rounded(x) @ weight.T
    np.testing.assert_allclose(value, products + np.asarray(layer.bias), rtol=1e-5, atol=1e-5)
    expected = np.einsum("ijo,ijk->ok", rounded(slope), rounded(x))
    np.testing.assert_allclose(of_layer.weight, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_layer.bias, slope.sum(axis=(0, 1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, rounded(rounded(slope) @ weight), rtol=5e-3, atol=5e-3)


def test_bfloat16_networks_are_near_float32_ones_and_store_float32_weights():
    exact = learned(Critics(jax.random.key(0), 3, 2, (16, 16), 2, layer_norm=True))
    rough = with_precision(exact, "bfloat16")
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(8, 3))), jnp.asarray(rng.normal(size=(8, 2)))
    assert {leaf.dtype for leaf in jax.tree.leaves(rough)} == {np.dtype(np.float32)}
    values, other = exact(*inputs), rough(*inputs)
    assert not np.array_equal(values, other)
    np.testing.assert_allclose(other, values, atol=0.05 * np.abs(values).max())
    back = with_precision(rough, "float32")
    np.testing.assert_array_equal(back(*inputs), values)
