"""The value of logged practice over a horizon: the mean return of the episodes.

An episode that was cut before the horizon has no return over it. What is missing is the value of
its last next state, by a regression of returns on states that is fitted on the other folds.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Episodes
from fat2thin.evaluation.estimators.features import Basis, features
from fat2thin.evaluation.estimators.fitted_q import (
    MOST_ROWS,
    Design,
    fit,
    in_folds,
    rows_in_folds,
    some_rows,
)


def practice_scores(
    episodes: Episodes, basis: Basis, bounds: Float[Array, "left 2"], discount: float
) -> Float[Array, " episodes"]:
    """Return the discounted return of each episode; `basis` has units of states alone."""
    horizon = len(bounds) - 1
    length = jnp.sum(episodes.here, axis=1).astype(int)
    steps = episodes.reward.shape[1]
    powers = jnp.where(jnp.arange(steps) < horizon, discount ** jnp.arange(steps), 0.0)
    seen = jnp.sum(episodes.reward * episodes.here * powers[None], axis=1)
    left = jnp.clip(horizon - length, 0)
    weights = state_values(episodes, basis, bounds, discount)
    last = jnp.maximum(length - 1, 0)[:, None]
    after = jnp.take_along_axis(episodes.following, last[..., None], axis=1)[:, 0]
    goes_on = jnp.take_along_axis(episodes.continuation, last, axis=1)[:, 0]

    def of_fold(given: tuple[Array, ...]) -> Array:
        of_steps, states, steps_left = given
        empty = jnp.zeros((len(states), 0))
        own = features(states, empty, basis)
        return jnp.sum(own * of_steps[steps_left], axis=1)

    parts = (jnp.moveaxis(weights, 1, 0), in_folds(after), in_folds(left))
    with jax.default_matmul_precision("highest"):
        missing = lax.map(of_fold, parts).reshape(-1)
    missing = jnp.clip(missing, bounds[left, 0], bounds[left, 1])
    return seen + jnp.where(left > 0, discount**length * goes_on * missing, 0.0)


def state_values(
    episodes: Episodes, basis: Basis, bounds: Float[Array, "left 2"], discount: float
) -> Float[Array, "left folds features"]:
    """Return the weights of practice's V with 0 to `horizon` steps left, without each fold."""
    rows = some_rows(jax.tree.map(rows_in_folds, episodes), MOST_ROWS)
    empty = jnp.zeros((*rows.reward.shape, 0))
    of_rows = jax.vmap(features, (0, 0, None))
    here, following = (of_rows(seen, empty, basis) for seen in (rows.observation, rows.following))
    known = in_folds(episodes.is_episode)
    start = jnp.zeros((*known.shape, here.shape[-1]))
    given = rows.reward, rows.continuation, rows.here
    return fit(Design(here, following, *given, start, known), discount, bounds).weights
