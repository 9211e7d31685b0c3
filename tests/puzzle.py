"""A tiny log with known answers, that separates the algorithms.

Four states, told apart by the observation; actions lie in (-1, 1):

* CLUSTERS: half the log does -0.5 and gets 0, half does 0.5 and gets 1. Right: 0.5. The mean
  behaviour, 0, is in neither.
* PEAK: the log is uniform, the reward 1 - 4 (a - 0.3)^2. Right: 0.3.
* FORK: -0.5 ends with 0.4; 0.5 leads to LAST.
* LAST: one action in five is 0.5 and gets 1, the others are -0.5 and get 0. Right: 0.5. So right at
  FORK is 0.5 too, worth 0.9, although what the log itself gets there is 0.9 * 0.2 = 0.18 < 0.4:
  the two good halves never stand in one trajectory and have to be stitched.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.algorithms import Batch, Problem

CLUSTERS, PEAK, FORK, LAST = range(4)
PROBLEM = Problem(observation_size=4, action_low=(-1.0,), action_high=(1.0,), discount=0.9)
OBSERVATIONS = jnp.eye(4)


@functools.cache
def log(rows=1_000):
    """So many rows a state."""
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
    goes_on = (states == FORK) & good
    return Batch(
        observation=OBSERVATIONS[states],
        action=jnp.asarray(actions, jnp.float32)[:, None],
        reward=jnp.asarray(rewards, jnp.float32),
        next_observation=OBSERVATIONS[np.full(4 * rows, LAST)],
        continuation=jnp.asarray(goes_on, jnp.float32),
    )


def solve(algorithm, config, steps, batch_size=128):
    """Plain updates, the preparation first; gives the policy that acts."""
    logged = log()

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
