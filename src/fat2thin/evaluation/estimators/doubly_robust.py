"""Weighted doubly robust estimation (Jiang and Li 2016; Thomas and Brunskill 2016).

    score of an episode = V_H(s_0) + Σ_t γ^t w_t δ_t,
    δ_t = r_t + γ c_t V_{H−t−1}(s_{t+1}) − Q_{H−t}(s_t, a_t)

w are the weights of `importance`, zero outside the band; Q and V those of `fitted_q`. The mean is
the value if the weights are right, whatever Q is. Where episodes were cut, V stands for the rest.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Actions, Episodes
from fat2thin.evaluation.estimators.features import Basis, features, mean_features
from fat2thin.evaluation.estimators.fitted_q import Direct, Fit, in_folds
from fat2thin.evaluation.estimators.importance import (
    Importance,
    linear_scores,
    sample_sizes,
    step_weights,
)


def doubly_robust_scores(
    episodes: Episodes, actions: Actions, basis: Basis, found: Fit, direct: Direct,
    rho: Float[Array, "episodes horizon"], discount: float, bounds: Float[Array, "left 2"],
) -> Importance:  # fmt: skip
    """Return the score of each episode."""
    horizon = rho.shape[1]

    def residuals(q_of: Array, one: Episodes, drawn: Array) -> Array:
        here = features(one.observation, one.action, basis)
        following = mean_features(one.following, drawn, basis)
        now, later = q_of[1:][::-1], q_of[:-1][::-1]  # t steps in, horizon − t are left
        ends = bounds[:-1][::-1]
        value = jnp.clip(jnp.sum(following * later, axis=1), ends[:, 0], ends[:, 1])
        residual = one.reward + discount * one.continuation * value - jnp.sum(here * now, axis=1)
        return residual * one.here

    def of_fold(given: tuple) -> Array:
        q_of, ones, drawn = given
        return lax.map(lambda one: residuals(q_of, *one), (ones, drawn), batch_size=16)

    first = jax.tree.map(lambda array: array[:, :horizon], (episodes, actions.following))
    parts = jax.tree.map(in_folds, first)
    with jax.default_matmul_precision("highest"):
        added = lax.map(of_fold, (jnp.moveaxis(found.weights, 1, 0), *parts))
    added = added.reshape(len(rho), horizon)
    powers = discount ** jnp.arange(horizon)
    scores = direct.scores + linear_scores(rho, added, powers, episodes)
    return Importance(scores, *sample_sizes(rho), step_weights(rho, episodes, powers))
