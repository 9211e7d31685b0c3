"""Which constant action is worth most: chosen for each fold by fits on the others."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fat2thin.evaluation.estimators.episodes import Actions, Episodes
from fat2thin.evaluation.estimators.features import Basis
from fat2thin.evaluation.estimators.fitted_q import design, fit

FITTED_ROWS = 4000  # rows that each candidate is fitted with


class Choice(NamedTuple):
    """Places of actions among the candidates."""

    of_fold: Int[Array, " folds"]
    """The best by the Q of the other folds, in the first states of the other folds."""
    overall: Int[Array, ""]
    """The one with the largest sum of these values."""


def constant_actions(action: Float[Array, " action"], episodes: Episodes) -> Actions:
    """Return those of the policy that always takes one action, on the scale of the episodes."""
    count, steps = episodes.here.shape
    return Actions(
        jnp.broadcast_to(action, (count, 1, action.size)),
        jnp.broadcast_to(action, (count, steps, 1, action.size)),
    )


def best_constant(
    episodes: Episodes, candidates: Float[Array, "candidates action"], basis: Basis,
    bounds: Float[Array, "left 2"], discount: float,
) -> Choice:  # fmt: skip
    """Return the best of the candidates."""

    def values(action: Array) -> Float[Array, " folds"]:
        rows = design(episodes, constant_actions(action, episodes), basis, FITTED_ROWS)
        weights = fit(rows, discount, bounds).weights[-1]
        with jax.default_matmul_precision("highest"):
            value = jnp.einsum("kef,jf->jke", rows.start, weights)
        value = jnp.clip(value, *bounds[-1]) * rows.is_episode[None]
        total = jnp.sum(value, axis=(1, 2)) - jnp.einsum("jje->j", value)
        episodes_of = jnp.sum(rows.is_episode, axis=1)
        return total / (jnp.sum(episodes_of) - episodes_of)

    found = lax.map(values, candidates)
    return Choice(jnp.argmax(found, axis=0), jnp.argmax(jnp.sum(found, axis=1)))
