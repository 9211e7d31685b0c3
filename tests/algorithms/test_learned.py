"""`Algorithm.critics` and `Algorithm.value` return the networks whose metrics `update` reports."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms.base import Batch, Problem, with_numbers
from fat2thin.policies.networks import Critics
from untrained import _shaken

PROBLEM = Problem(observation_size=2, action_low=(-1.0,), action_high=(1.0,), discount=0.9)
SLOW = ("awac", "fttpo-greedy")
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else [])
    for name in algorithms.names()
]


def make_batch():
    rng = np.random.default_rng(0)
    shapes = {"observation": (8, 2), "action": (8, 1), "reward": (8,), "next_observation": (8, 2)}
    rows = {
        name: jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32)
        for name, shape in shapes.items()
    }
    following = {"next_action": jnp.roll(rows["action"], 1), "next_logged": jnp.ones(8)}
    return Batch(**rows, continuation=jnp.ones(8), **following)


@functools.cache
def example(name):
    """Return a state with random networks, its metrics at a learning rate of 0, and the config."""
    algorithm = algorithms.get(name)
    small = {"vae_hidden": (4,)} if name == "spot" else {}
    config = algorithm.config(hidden=(4,), **small)
    fresh = algorithm.init(jax.random.key(0), PROBLEM, config)
    rng = np.random.default_rng(1)
    state = type(fresh)(*(_shaken(part, rng) for part in fresh))
    still = with_numbers(config, {"learning_rate": 0.0})

    @jax.jit
    def report(state):
        _, metrics = algorithm.update(state, make_batch(), jax.random.key(2), PROBLEM, still)
        names = {"q_mean", "v_mean", "value_loss"} & {*metrics}
        return {name: jnp.mean(metrics[name]) for name in names}

    return state, report(state), config


def critics_of(name):
    state, _, config = example(name)
    return algorithms.get(name).critics(state, PROBLEM, config)


def advantage_of(name, batch):
    state, _, config = example(name)
    value = algorithms.get(name).value(state, PROBLEM, config)
    return critics_of(name).minimum(batch.observation, batch.action) - value(batch.observation)


@pytest.mark.parametrize("name", NAMES)
def test_critics_are_the_online_critics(name):
    state, reported, config = example(name)
    if "q_mean" not in reported:
        assert algorithms.get(name).critics is None
        return
    critics, batch = critics_of(name), make_batch()
    assert isinstance(critics, Critics)
    assert critics(batch.observation, batch.action).shape == (config.critic_count, 8)
    found = np.mean(critics(batch.observation, batch.action))
    np.testing.assert_allclose(found, reported["q_mean"], rtol=1e-5)
    slow = np.mean(state.target_critic(batch.observation, batch.action))
    assert abs(slow - found) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_value_and_the_smaller_q_give_the_advantage(name):
    _, reported, _ = example(name)
    # Without a loss there is no value network: AWAC's value is a mean of Q.
    if not {"q_mean", "value_loss"} <= {*reported}:
        assert algorithms.get(name).value is None
        return
    batch = make_batch()
    advantage = advantage_of(name, batch)
    smaller = np.min(np.asarray(critics_of(name)(batch.observation, batch.action)), axis=0)
    assert advantage.shape == (8,)
    np.testing.assert_allclose(
        np.mean(advantage), np.mean(smaller) - reported["v_mean"], rtol=1e-4, atol=1e-5
    )
    # Another action changes the advantage by the change of Q: the value depends on the state.
    again = advantage_of(name, batch._replace(action=-batch.action))
    other = np.min(np.asarray(critics_of(name)(batch.observation, -batch.action)), axis=0)
    np.testing.assert_allclose(again - advantage, other - smaller, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["fttpo", "tawac-ht"])
def test_a_published_form_returns_its_own_critics_and_value(name):
    algorithm, batch = algorithms.get(name), make_batch()
    config = algorithm.config(hidden=(4,), published=True)
    state = algorithm.init(jax.random.key(0), PROBLEM, config)
    assert algorithm.critics(state, PROBLEM, config) is state.critic.network
    value = algorithm.value(state, PROBLEM, config)(batch.observation)
    np.testing.assert_array_equal(value, state.value.network(batch.observation))
