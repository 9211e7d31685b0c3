"""Weight decay is that of AdamW, and applies to every network of every algorithm."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fat2thin import algorithms
from fat2thin.algorithms.base import Batch, Problem, with_numbers
from fat2thin.algorithms.configs import LearningConfig, check_learning
from fat2thin.algorithms.steps import Learner, descend, start
from fat2thin.policies.networks import ScalarNetwork

PROBLEM = Problem(observation_size=2, action_low=(-1.0,), action_high=(1.0,), discount=0.9)
QUICK = ("iql", "fttpo", "bc")
RATE = 0.01


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"observation": (8, 2), "action": (8, 1), "reward": (8,), "next_observation": (8, 2)}
    rows = {
        name: jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32)
        for name, shape in shapes.items()
    }
    following = {"next_action": jnp.roll(rows["action"], 1), "next_logged": jnp.ones(8)}
    return Batch(**rows, continuation=jnp.ones(8), **following)


def steps(config, rate=None, count=5):
    """Take `count` steps, each on other data; return first and last network, and the losses."""
    learner = start(ScalarNetwork(jax.random.key(0), 2, (4,)))

    def loss_on(batch):
        return lambda network: (jnp.mean((network(batch.observation) - batch.reward) ** 2), {})

    losses = [loss_on(make_batch(seed)) for seed in range(count)]
    network = learner.network
    for loss in losses:
        learner, _ = descend(learner, loss, config, rate)
    return network, learner.network, losses


def by_optax(optimiser, network, losses):
    state = optimiser.init(network)
    for loss in losses:
        gradient, _ = jax.grad(loss, has_aux=True)(network)
        updates, state = optimiser.update(gradient, state, network)
        network = optax.apply_updates(network, updates)
    return network


def assert_close(found, expected, **tolerance):
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, **tolerance), found, expected
    )


@pytest.mark.parametrize("decay", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("beta_2", [0.999, 0.9])
def test_steps_match_optax_adamw(decay, beta_2):
    config = LearningConfig(learning_rate=RATE, adam_beta_2=beta_2, weight_decay=decay)
    first, found, losses = steps(config)
    expected = by_optax(optax.adamw(RATE, b2=beta_2, weight_decay=decay), first, losses)
    assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_the_decay_is_scaled_by_the_given_learning_rate():
    config = LearningConfig(learning_rate=1.0, weight_decay=3.0)
    first, found, losses = steps(config, rate=RATE)
    assert_close(found, by_optax(optax.adamw(RATE, weight_decay=3.0), first, losses), rtol=1e-5)
    first, still, _ = steps(config, rate=0.0)
    assert_close(still, first, rtol=0.0)


def test_zero_decay_is_plain_adam_static_or_traced():
    config = LearningConfig(learning_rate=RATE)
    first, found, losses = steps(config)
    assert_close(found, by_optax(optax.adam(RATE), first, losses), rtol=1e-5, atol=1e-7)

    @eqx.filter_jit
    def traced(decay):
        return steps(with_numbers(config, {"weight_decay": decay}))[1]

    assert_close(traced(jnp.float32(0.0)), found, rtol=1e-6, atol=1e-8)
    decayed = steps(dataclasses.replace(config, weight_decay=3.0))[1]
    assert_close(traced(jnp.float32(3.0)), decayed, rtol=1e-5, atol=1e-7)


def learners(state):
    return {field: part for field, part in state._asdict().items() if isinstance(part, Learner)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in algorithms.names()
    ],
)
def test_every_network_decays(name):
    """With a decay of 1 / rate only Adam's first step remains, which is at most the rate."""
    algorithm = algorithms.get(name)
    fields = {field.name for field in dataclasses.fields(algorithm.config)}
    settings = {"delay": 1, "vae_hidden": (4,), "vae_learning_rate": RATE}
    config = algorithm.config(
        hidden=(4,), learning_rate=RATE, weight_decay=1.0 / RATE,
        **{field: value for field, value in settings.items() if field in fields},
    )  # fmt: skip
    algorithm.check(config)
    before = algorithm.init(jax.random.key(0), PROBLEM, config)
    after = before
    updates = [algorithm.update]
    if algorithm.preparation is not None:
        updates.insert(0, algorithm.preparation.update)
    for update in updates:
        move = jax.jit(lambda state, update=update: update(
            state, make_batch(), jax.random.key(1), PROBLEM, config
        )[0])  # fmt: skip
        after = move(after)
    assert learners(after)
    for field, learner in learners(after).items():
        if field == "temperature":  # no network: EDAC's weight of the entropy
            assert learner.network.log != 0.0
            continue
        for leaf in jax.tree.leaves(learner.network):
            assert np.abs(leaf).max() < 1.01 * RATE, field
        largest = max(
            np.abs(leaf).max() for leaf in jax.tree.leaves(learners(before)[field].network)
        )
        assert largest > 10 * RATE


@pytest.mark.parametrize("decay", [-1.0, np.nan, np.inf])
def test_an_invalid_decay_is_an_error(decay):
    with pytest.raises(ValueError, match="weight_decay"):
        check_learning(LearningConfig(weight_decay=decay))
