"""The best state so far, by a signal of the held-out rows, beside the one that learns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fat2thin.algorithms.base import State

NO_SCORE = float(np.finfo(np.float32).min)
"""Stands for the score of a state that no signal has judged yet: finite, as all of a state is."""


class SelectedState(NamedTuple):
    """A state that learns, and the one on the way that a signal of the held-out rows liked best.

    As long as no signal was a number, that is the newest.
    """

    learning: State
    best: State
    score: Float[Array, "*jobs"]
    step: Int[Array, "*jobs"]
    """After how many updates the best one was."""

    @property
    def unscored(self) -> Bool[Array, "*jobs"]:
        """Where no signal was a number so far, so that nothing could be chosen."""
        return self.score <= NO_SCORE


def start_selection(state: State) -> SelectedState:
    """Return the pair to start with: no signal has been seen."""
    return SelectedState(state, state, jnp.float32(NO_SCORE), jnp.int32(0))


def choose(
    kept: SelectedState, learning: State, score: Array, step: Array, sound: Array
) -> SelectedState:
    """The new state beside the best one so far, which it may be itself where it is sound."""
    better = sound & jnp.isfinite(score) & (score > kept.score)
    taken = better | (sound & kept.unscored)
    best = jax.tree.map(lambda new, old: jnp.where(taken, new, old), learning, kept.best)
    return SelectedState(
        learning, best, jnp.where(better, score, kept.score), jnp.where(taken, step, kept.step)
    )


def acting(state: State) -> State:
    """The state whose policy acts: the best on the way where it is kept, or that which learns."""
    return state.best if isinstance(state, SelectedState) else state
