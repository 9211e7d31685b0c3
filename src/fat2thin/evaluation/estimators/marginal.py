"""Marginalised importance sampling with a Q: double reinforcement learning.

    score of an episode = V_H(s_0) + (episodes / rows) Σ_rows Σ_t γ^t w_t(s, a) δ_{H−t},
    δ_h = r + γ c V_{h−1}(s') − Q_h(s, a),

whose mean is the value if Q is right or w is (Kallus and Uehara 2020, 2022). w_t(s, a) is the ratio
of how often the policy and the log are at (s, a), the policy at step t. Among functions linear in φ
it is the one that balances them on the log (Uehara, Huang and Jiang 2020; Duan, Jia and Wang 2020),

    w_t = φ · α_t,   α_0 = G⁻¹ E φ_start,   α_{t+1} = G⁻¹ E[c w_t φ'],   G = E φφᵀ.

No density of logged actions is needed, and w does not multiply over the steps. Q and w of a fold
are fitted on the others, so the mean of the scores has an interval without a model of the fit.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Actions, Episodes
from fat2thin.evaluation.estimators.features import Basis, features, mean_features
from fat2thin.evaluation.estimators.fitted_q import Design, Fit, in_folds, start_values

_BLOCK = 8192  # rows whose residuals are in memory at a time


class Marginal(NamedTuple):
    """Scores of the episodes, and how many rows the estimate rests on."""

    scores: Float[Array, " episodes"]
    effective: Float[Array, " steps"]
    """Effective sample size of the weights at each step of the horizon, in rows."""
    correction: Float[Array, ""]
    """The mean of what the residuals add to V_H."""


def balancing_weights(found: Fit, horizon: int) -> Float[Array, "horizon folds features"]:
    """Return α_t for t = 0 to the horizon − 1."""

    def step(nu: Array, _: None) -> tuple[Array, Array]:
        alpha = jnp.einsum("kfg,kg->kf", found.inverse, nu)
        return jnp.einsum("kf,kfg->kg", alpha, found.onward), alpha

    with jax.default_matmul_precision("highest"):
        return lax.scan(step, found.start, None, length=horizon)[1]


def marginal_scores(
    episodes: Episodes, actions: Actions, basis: Basis, rows: Design, found: Fit,
    discount: float, bounds: Float[Array, "horizon+1 2"],
) -> Marginal:  # fmt: skip
    """Return the score of each episode."""
    horizon = len(bounds) - 1
    alpha = jnp.moveaxis(balancing_weights(found, horizon), 1, 0)  # fold, t, feature
    weights = jnp.moveaxis(found.weights, 1, 0)
    powers = discount ** jnp.arange(horizon)
    ends = bounds[:-1].T[:, None, :]

    def of_episode(model: tuple[Array, Array], one: Episodes, drawn: Array) -> tuple[Array, ...]:
        ratio_of, q_of = model
        here = features(one.observation, one.action, basis)
        following = mean_features(one.following, drawn, basis)
        value = jnp.clip(following @ q_of[:-1].T, ends[0], ends[1])  # row, h − 1
        residual = one.reward[:, None] + discount * one.continuation[:, None] * value
        residual = (residual - here @ q_of[1:].T)[:, ::-1]  # row, t = horizon − h
        ratio = here @ ratio_of.T * one.here[:, None]
        added = jnp.sum(ratio * residual * powers[None])
        return added, jnp.sum(ratio, axis=0), jnp.sum(ratio**2, axis=0)

    def of_fold(given: tuple) -> tuple[Array, ...]:
        model, ones, drawn = given
        size = max(1, _BLOCK // episodes.here.shape[1])
        return lax.map(lambda one: of_episode(model, *one), (ones, drawn), batch_size=size)

    parts = jax.tree.map(in_folds, (episodes, actions.following))
    with jax.default_matmul_precision("highest"):
        added, total, squares = lax.map(of_fold, ((alpha, weights), *parts))
    direct = start_values(rows, found, bounds)
    known = episodes.is_episode
    per_episode = jnp.sum(known) / jnp.sum(episodes.here)
    added = added.reshape(-1) * per_episode
    effective = jnp.sum(total, axis=(0, 1)) ** 2 / jnp.maximum(jnp.sum(squares, axis=(0, 1)), 1e-12)
    return Marginal(direct.scores + added, effective, jnp.sum(added * known) / jnp.sum(known))
