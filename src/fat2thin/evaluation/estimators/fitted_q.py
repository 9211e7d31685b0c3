"""Fitted Q evaluation over a finite horizon (Ernst, Geurts and Wehenkel 2005; Le et al. 2019).

With h steps left, Q_h(s, a) = w_h · φ(s, a), and w_0 = 0. Step by step,

    w_h = argmin_w Σ (r + γ c V_{h−1}(s') − w · φ(s, a))² + ridge,
    V_{h−1}(s') = mean over a' ~ policy of w_{h−1} · φ(s', a'), clipped to what rewards allow.

All logged steps serve every h: what happens is assumed to depend on the state and the action, not
on the number of the step. Fold k is valued with what was fitted on the other folds.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

from fat2thin.evaluation.estimators.episodes import FOLDS, Actions, Episodes
from fat2thin.evaluation.estimators.features import Basis, features, mean_features
from fat2thin.evaluation.fitted_q import solve

RIDGE = 3.0  # the ridge is this divided by the number of rows that are fitted
MOST_ROWS = 20_000  # rows that are fitted; of a longer log, as many are drawn


class Design(NamedTuple):
    """Features of the rows of one log, with a leading axis of folds."""

    here: Float[Array, "folds rows features"]
    following: Float[Array, "folds rows features"]
    reward: Float[Array, "folds rows"]
    continuation: Float[Array, "folds rows"]
    known: Float[Array, "folds rows"]
    """1 for a logged row, 0 for padding."""
    start: Float[Array, "folds episodes features"]
    is_episode: Float[Array, "folds episodes"]


class Fit(NamedTuple):
    """What is fitted without each fold."""

    weights: Float[Array, "left folds features"]
    """w_h for h = 0 to the horizon."""
    inverse: Float[Array, "folds features features"]
    """The inverse of the mean of φφᵀ, with its ridge."""
    onward: Float[Array, "folds features features"]
    """The mean of c φ(s, a) φ'ᵀ: where the steps of the log lead to."""
    start: Float[Array, "folds features"]
    """The mean of φ in the first states."""


def in_folds(array: Shaped[Array, "episodes ..."]) -> Shaped[Array, "folds part ..."]:
    """Return an array with its episodes cut into `FOLDS` stretches."""
    return array.reshape(FOLDS, -1, *array.shape[1:])


def rows_in_folds(array: Float[Array, "episodes steps ..."]) -> Float[Array, "folds rows ..."]:
    """Return the rows of each fold, one after the other."""
    return array.reshape(FOLDS, -1, *array.shape[2:])


def design(
    episodes: Episodes, actions: Actions, basis: Basis, most_rows: int = MOST_ROWS
) -> Design:
    """Return the features that Q is fitted with, of at most `most_rows` rows of a log."""
    rows = jax.tree.map(rows_in_folds, (episodes, actions.following))
    rows = some_rows(rows, most_rows)
    kept, following = rows
    start = in_folds(episodes.observation[:, 0]), in_folds(actions.start)
    return Design(
        jax.vmap(features, (0, 0, None))(kept.observation, kept.action, basis),
        jax.vmap(mean_features, (0, 0, None))(kept.following, following, basis),
        kept.reward, kept.continuation, kept.here,
        jax.vmap(mean_features, (0, 0, None))(*start, basis),
        in_folds(episodes.is_episode),
    )  # fmt: skip


def some_rows(rows: Any, most_rows: int) -> Any:
    """Return arrays of rows in folds, with at most this many rows in all, drawn at random."""
    per_fold = jax.tree.leaves(rows)[0].shape[1]
    if per_fold * FOLDS <= most_rows:
        return rows
    chosen = np.random.default_rng(0).permutation(per_fold)[: most_rows // FOLDS]
    return jax.tree.map(lambda array: array[:, np.sort(chosen)], rows)


def fit(rows: Design, discount: float, bounds: Float[Array, "left 2"]) -> Fit:
    """Return w_h for every number of steps left, without each fold."""
    with jax.default_matmul_precision("highest"):
        weighted = rows.here * rows.known[..., None]
        count = without_each(jnp.sum(rows.known, axis=1))
        gram = without_each(jnp.einsum("krf,krg->kfg", weighted, rows.here))
        lead = weighted * rows.continuation[..., None]
        onward = without_each(jnp.einsum("krf,krg->kfg", lead, rows.following))
        size = rows.here.shape[-1]
        free = jnp.diag(jnp.ones(size).at[0].set(0.0)) * RIDGE
        gram = (gram + free[None]) / count[:, None, None]
        inverse = jax.vmap(solve, (0, None))(gram, jnp.eye(size))
        starts = jnp.sum(rows.start * rows.is_episode[..., None], axis=1)
        episodes = jnp.sum(rows.is_episode, axis=1)
        start = without_each(starts) / without_each(episodes)[:, None]

        others = (1.0 - jnp.eye(FOLDS))[:, :, None]  # fitted fold, fold of the row
        trained = others * rows.known[None] / count[:, None, None]

        def step(weights: Array, ends: Array) -> tuple[Array, Array]:
            value = jnp.clip(jnp.einsum("krf,jf->jkr", rows.following, weights), ends[0], ends[1])
            target = rows.reward[None] + discount * rows.continuation[None] * value
            right = jnp.einsum("krf,jkr->jf", rows.here, trained * target)
            found = jnp.einsum("jfg,jg->jf", inverse, right)
            return found, found

        zero = jnp.zeros((FOLDS, size))
        _, found = lax.scan(step, zero, bounds[:-1])
    weights = jnp.concatenate([zero[None], found])
    return Fit(weights, inverse, onward / count[:, None, None], start)


def without_each(parts: Float[Array, "folds ..."]) -> Float[Array, "folds ..."]:
    """Return, for each fold, the sum over the others."""
    return jnp.sum(parts, axis=0)[None] - parts


class Direct(NamedTuple):
    """The value of each episode's first state, by the Q of the other folds."""

    scores: Float[Array, " episodes"]
    clipped: Float[Array, ""]
    """Share of first states whose value was outside what rewards allow."""


def start_values(rows: Design, found: Fit, bounds: Float[Array, "left 2"]) -> Direct:
    """Return V_H of the first states, clipped to what rewards allow."""
    with jax.default_matmul_precision("highest"):
        value = jnp.einsum("kef,kf->ke", rows.start, found.weights[-1])
    low, high = bounds[-1]
    slack = 1e-4 * (high - low)
    outside = ((value < low - slack) | (value > high + slack)) * rows.is_episode
    share = jnp.sum(outside) / jnp.sum(rows.is_episode)
    return Direct(jnp.clip(value, low, high).reshape(-1), share)
