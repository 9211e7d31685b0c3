"""The critics and the value of a state are those that its own update reports on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms.base import Batch, Problem, with_numbers
from fat2thin.algorithms.critics import advantage_of, critics_of, critics_of_job
from fat2thin.policies.networks import TwinCritic
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
    return Batch(**rows, continuation=jnp.ones(8))


@functools.cache
def example(name):
    """A state whose networks all differ, and what an update that moves nothing reports of it."""
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

    return state, report(state)


@pytest.mark.parametrize("name", NAMES)
def test_the_critics_that_learn(name):
    state, reported = example(name)
    critics, batch = critics_of(state), make_batch()
    if "q_mean" not in reported:
        assert critics is None
        return
    assert isinstance(critics, TwinCritic)
    found = np.mean(critics(batch.observation, batch.action))
    np.testing.assert_allclose(found, reported["q_mean"], rtol=1e-5)
    slow = np.mean(state.target_critic(batch.observation, batch.action))
    assert abs(slow - found) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_advantage_is_the_smaller_q_less_the_value(name):
    state, reported = example(name)
    batch = make_batch()
    advantage = advantage_of(state, batch)
    # A value without a loss is not learned: AWAC's is a mean of Q.
    if not {"q_mean", "value_loss"} <= {*reported}:
        assert advantage is None
        return
    smaller = np.min(np.asarray(critics_of(state)(batch.observation, batch.action)), axis=0)
    assert advantage.shape == (8,)
    np.testing.assert_allclose(
        np.mean(advantage), np.mean(smaller) - reported["v_mean"], rtol=1e-4, atol=1e-5
    )
    # Rows differ in the same way: what is left is one value a state.
    again = advantage_of(state, batch._replace(action=-batch.action))
    other = np.min(np.asarray(critics_of(state)(batch.observation, -batch.action)), axis=0)
    np.testing.assert_allclose(again - advantage, other - smaller, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["iql", "fttpo"])
def test_the_critics_of_one_job_among_several(name):
    state, _ = example(name)
    other = jax.tree.map(lambda leaf: leaf + 1, state)
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), other, state)
    jax.tree.map(np.testing.assert_array_equal, critics_of_job(together, 1), critics_of(state))


def test_a_state_of_another_kind_has_none():
    assert critics_of((1, 2)) is None
    assert advantage_of((1, 2), make_batch()) is None
    state, _ = example("bc")
    assert critics_of_job(jax.tree.map(lambda leaf: leaf[None], state), 0) is None
