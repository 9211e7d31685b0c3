"""Selection of the best state so far by a held-out signal, while training continues."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fat2thin.algorithms.base import State
from fat2thin.policies.networks import PRECISIONS, with_precision

NO_SCORE = float(np.finfo(np.float32).min)
"""Score before any signal; finite, because every number of a state must be."""


class SelectedState(NamedTuple):
    """The learning state, and the state with the best signal so far.

    Until a signal is a number, the best state is the newest.
    """

    learning: State
    best: State
    score: Float[Array, "*jobs"]
    step: Int[Array, "*jobs"]
    """Number of updates after which the best state was reached."""

    @property
    def unscored(self) -> Bool[Array, "*jobs"]:
        """Jobs for which no signal has been a number, so that nothing could be chosen."""
        return self.score <= NO_SCORE


def start_selection(state: State) -> SelectedState:
    """Return the initial selection, before any signal."""
    return SelectedState(state, state, jnp.float32(NO_SCORE), jnp.int32(0))


def choose(
    kept: SelectedState, learning: State, score: Array, step: Array, sound: Array
) -> SelectedState:
    """Keep the new state, and the better of it (if it is sound) and the best so far."""
    better = sound & jnp.isfinite(score) & (score > kept.score)
    taken = better | (sound & kept.unscored)
    best = jax.tree.map(lambda new, old: jnp.where(taken, new, old), learning, kept.best)
    return SelectedState(
        learning, best, jnp.where(better, score, kept.score), jnp.where(taken, step, kept.step)
    )


def acting(state: State) -> State:
    """Return the state whose policy acts: the best one if selection is on, else the newest.

    It computes in float32, whatever it was trained in.
    """
    state = state.best if isinstance(state, SelectedState) else state
    return with_precision(state, PRECISIONS[0])
