"""Training as a pure function: it equals a run, works under vmap, and is differentiable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin import algorithms, data, engine
from fat2thin.algorithms.base import with_numbers
from fat2thin.evaluation.batches import batch_of, problem_of
from fat2thin.random_streams import seed_key

SETTINGS = {"hidden": (8, 8)}


@pytest.fixture(scope="module")
def log():
    return data.load("treatment/quadratic@5", seed=3)


def learn(log, key, algorithm="iql", steps=6, **numbers):
    chosen = algorithms.get(algorithm)
    return engine.train(
        key,
        batch_of(log),
        algorithm=chosen,
        problem=problem_of(log),
        config=with_numbers(chosen.config(**SETTINGS), numbers),
        steps=steps,
        batch_size=16,
        log_every=3,
    )


def test_train_computes_the_same_as_a_run(log):
    run = fat2thin.train(
        "iql", "treatment/quadratic@5", steps=6, seeds=[3], batch_size=16, log_every=3,
        evaluate_every=6, task="none", settings_from="default", **SETTINGS,
    )  # fmt: skip
    state, metrics = jax.jit(lambda key: learn(log, key))(seed_key(3))
    for mine, kept in zip(jax.tree.leaves(state), jax.tree.leaves(run.states), strict=True):
        np.testing.assert_allclose(mine, kept[0], rtol=1e-5, atol=1e-6)
    for name, values in metrics.items():
        np.testing.assert_allclose(values, run.metrics[name][:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["steps", "batch_size", "log_every"])
def test_numbers_below_one_are_refused(log, name):
    options = {"steps": 6, "batch_size": 16, "log_every": 3, name: 0}
    chosen, problem = algorithms.get("bc"), problem_of(log)
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got 0"):
        engine.train(seed_key(0), batch_of(log), algorithm=chosen, problem=problem, **options)


def test_a_sweep_under_vmap_equals_separate_training(log):
    rates = jnp.asarray([1e-3, 1e-2])
    states, _ = jax.jit(jax.vmap(lambda rate: learn(log, seed_key(0), learning_rate=rate)))(rates)
    alone, _ = jax.jit(lambda rate: learn(log, seed_key(0), learning_rate=rate))(rates[1])
    for together, one in zip(jax.tree.leaves(states), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(together[1], one, rtol=1e-4, atol=1e-5)


def test_the_derivative_agrees_with_finite_differences(log):
    def likelihood(rate):
        state, _ = learn(log, seed_key(0), "bc", steps=1, learning_rate=rate)
        chosen = algorithms.get("bc")
        policy = chosen.policy(state, problem_of(log), chosen.config(**SETTINGS))
        observation, action = jnp.asarray(log.observation), jnp.asarray(log.action)
        return policy(observation).log_prob(action).mean()

    value, rate, step = jax.jit(likelihood), 3e-3, 3e-4
    slope = jax.jit(jax.grad(likelihood))(jnp.float32(rate))
    above, below = (value(jnp.float32(rate + way * step)) for way in (1, -1))
    assert slope > 0  # one step of regression makes the log more likely
    np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=0.05)
