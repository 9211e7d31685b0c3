"""A tiny log with known optimal actions, which distinguishes the algorithms.

Four states, each with its own observation; actions lie in (-1, 1):

* CLUSTERS: half of the actions are -0.5 with reward 0, half are 0.5 with reward 1. Optimal: 0.5.
  The mean action, 0, is in neither cluster.
* PEAK: the actions are uniform, the reward is 1 - 4 (a - 0.3)^2. Optimal: 0.3.
* FORK: -0.5 ends the episode with reward 0.4; 0.5 leads to LAST.
* LAST: one action in five is 0.5 with reward 1, the others are -0.5 with reward 0. Optimal: 0.5.
  So 0.5 is also optimal at FORK, with value 0.9, although the behaviour policy earns only
  0.9 * 0.2 = 0.18 < 0.4 after it: the good actions at FORK and LAST must be stitched together.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.algorithms import Batch, Problem
from fat2thin.algorithms.base import RowLimits

CLUSTERS, PEAK, FORK, LAST = range(4)
PROBLEM = Problem(observation_size=4, action_low=(-1.0,), action_high=(1.0,), discount=0.9)
OBSERVATIONS = jnp.eye(4)


@functools.cache
def log(rows=1_000):
    """Return a log with this number of rows per state."""
    rng = np.random.default_rng(0)
    states = np.repeat(np.arange(4), rows)
    good = rng.random(4 * rows) < np.repeat([0.5, 0.0, 0.5, 0.2], rows)
    actions = np.where(good, 0.5, -0.5) + rng.uniform(-0.1, 0.1, 4 * rows)
    peak = states == PEAK
    actions[peak] = rng.uniform(-1.0, 1.0, rows)
    rewards = np.where(
        peak,
        1.0 - 4.0 * (actions - 0.3) ** 2,
        np.where(states == FORK, np.where(good, 0.0, 0.4), good),
    )
    continues = (states == FORK) & good
    # A step from FORK to LAST is followed by a logged step from there.
    following = np.where(continues, np.roll(actions, -rows), 0.0)
    return Batch(
        observation=OBSERVATIONS[states],
        action=jnp.asarray(actions, jnp.float32)[:, None],
        reward=jnp.asarray(rewards, jnp.float32),
        next_observation=OBSERVATIONS[np.full(4 * rows, LAST)],
        continuation=jnp.asarray(continues, jnp.float32),
        next_action=jnp.asarray(following, jnp.float32)[:, None],
        next_logged=jnp.asarray(continues, jnp.float32),
    )


def log_within(intervals):
    """Return the log with limits: the allowed interval of each state, by state; others are free."""
    logged, ends = log(), np.tile(np.array([[-1.0], [1.0]]), 4)
    for state, interval in intervals.items():
        ends[:, state] = interval
    here = ends[:, np.argmax(logged.observation, axis=1)].astype(np.float32)
    following = ends[:, np.argmax(logged.next_observation, axis=1)].astype(np.float32)
    action = np.asarray(logged.action)[:, 0]
    allows = (here[0] <= action) & (action <= here[1]) & (here[0] < here[1])
    columns = (jnp.asarray(end)[:, None] for end in (*here, *following))
    return logged._replace(limits=RowLimits(*columns, jnp.asarray(allows, jnp.float32)))


def solve(algorithm, config, steps, batch_size=128, logged=None):
    """Run the preparation and the updates in a plain loop; return the policy that acts."""
    logged = log() if logged is None else logged

    def phase(update):
        def step(state, count):
            row_key, key = jax.random.split(jax.random.fold_in(jax.random.key(7), count))
            rows = jax.random.randint(row_key, (batch_size,), 0, logged.reward.shape[0])
            batch = jax.tree.map(lambda leaf: leaf[rows], logged)
            return update(state, batch, key, PROBLEM, config)

        return step

    @functools.partial(jax.jit, static_argnums=1)
    def run(state, count):
        if algorithm.preparation:
            before = jnp.arange(algorithm.preparation.steps(config))
            state, _ = jax.lax.scan(phase(algorithm.preparation.update), state, before)
        return jax.lax.scan(phase(algorithm.update), state, jnp.arange(count))

    state = algorithm.init(jax.random.key(0), PROBLEM, config)
    state, metrics = run(state, steps)
    assert all(np.all(np.isfinite(values)) for values in metrics.values())
    return algorithm.policy(state, PROBLEM, config)
