"""All estimates of one policy on one log, from one fit."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.doubly_robust import doubly_robust_scores
from fat2thin.evaluation.estimators.episodes import Actions, Episodes
from fat2thin.evaluation.estimators.features import Bases
from fat2thin.evaluation.estimators.fitted_q import Direct, design, fit, start_values
from fat2thin.evaluation.estimators.importance import Importance, importance_scores, weights
from fat2thin.evaluation.estimators.marginal import Marginal, marginal_scores


class Estimates(NamedTuple):
    """What each estimator says; those that need densities are None without them."""

    fitted_q: Direct
    """Has no interval of its own: the error of the fit is not in its scores."""
    marginal: Marginal | None
    importance: Importance | None
    doubly_robust: Importance | None
    rho: Float[Array, "episodes horizon"] | None
    """The product of density ratios up to each step."""
    nearest: Marginal | None = None
    """The marginal estimate with `Behaviour.log_nearest`, where the density is estimated."""


def estimates(
    episodes: Episodes, actions: Actions, log_behaviour: Float[Array, "episodes steps"] | None,
    bases: Bases, bounds: Float[Array, "left 2"], discount: float,
    log_nearest: Float[Array, "episodes steps"] | None = None,
) -> Estimates:  # fmt: skip
    """Return all estimates.

    `log_behaviour` is the log density of the logged actions; `log_nearest` is another estimate of
    it, where it is not known.
    """
    rows = design(episodes, actions, bases.both)
    found = fit(rows, discount, bounds)
    direct = start_values(rows, found, bounds)
    fitted = episodes, actions, bases.both
    if log_behaviour is None or actions.log_density is None:
        return Estimates(direct, None, None, None, None)
    inside = episodes.here * jnp.isfinite(actions.log_density)
    known = actions.log_density
    log_ratio, *others = (
        jnp.where(inside > 0, known - behaviour, -jnp.inf)
        for behaviour in (log_behaviour, log_nearest)
        if behaviour is not None
    )
    given = episodes, actions, bases, rows, found
    ratios = [jnp.exp(logs) for logs in (log_ratio, *others)]
    marginal, *nearest = marginal_scores(*given, ratios, discount, bounds)
    rho = weights(log_ratio, episodes, len(bounds) - 1)
    weighted = importance_scores(episodes, rho, discount)
    both = doubly_robust_scores(*fitted, found, direct, rho, discount, bounds)
    return Estimates(direct, marginal, weighted, both, rho, *nearest)
