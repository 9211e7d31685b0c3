"""Every metric that an algorithm reports is explained on the page about training."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from fat2thin import algorithms
from fat2thin.algorithms import Batch, Problem

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
PROBLEM = Problem(observation_size=2, action_low=(-1.0,), action_high=(1.0,), discount=0.9)


def metrics_of(algorithm, config):
    def one_update(key):
        rows = jnp.zeros((4, 2))
        batch = Batch(rows, jnp.zeros((4, 1)), jnp.zeros(4), rows, jnp.ones(4))
        state = algorithm.init(key, PROBLEM, config)
        return algorithm.update(state, batch, key, PROBLEM, config)[1]

    return set(jax.eval_shape(one_update, jax.random.key(0)))


@pytest.mark.parametrize("published", [False, True])
def test_every_metric_of_fttpo_is_explained(published):
    fttpo = algorithms.get("fttpo")
    metrics = metrics_of(fttpo, fttpo.config(hidden=(4,), published=published))
    assert {"critic_loss", "half_width"} <= metrics
    assert {name for name in metrics if f"\n| `{name}` |" not in PAGE} == set()
