"""The value under unobserved confounding: per-step marginal sensitivity, by a robust fit.

What was unobserved may have made a logged action up to Γ times more or less likely than its density
given the observation. The worst case of the mean of a target y given (s, a) is then

    E y / Γ + (1 − 1/Γ) CVaR_p(y),   p = 1 / (1 + Γ),

where CVaR_p is the mean of the worst share p (Kallus and Zhou 2020; Bruns-Smith and Zhou 2023). It
is taken at every step of fitted Q evaluation. The quantile of y is that of all residuals, which
makes the worst case worse, never better.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Actions, Episodes
from fat2thin.evaluation.estimators.features import Basis
from fat2thin.evaluation.estimators.fitted_q import RIDGE, design
from fat2thin.evaluation.fitted_q import solve

GAMMAS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)
FITTED_ROWS = 4000


class Sensitivity(NamedTuple):
    """The value in the worst case of each Γ."""

    value: Float[Array, " gammas"]


def worst_mean(
    target: Float[Array, " rows"], mean: Float[Array, " rows"], gamma: Float[Array, ""],
    known: Float[Array, " rows"],
) -> Float[Array, " rows"]:  # fmt: skip
    """Return what is regressed on (s, a) instead of the target, for its worst case."""
    share = 1.0 / (1.0 + gamma)
    residual = target - mean
    order = jnp.argsort(jnp.where(known > 0, residual, jnp.inf))
    place = jnp.ceil(share * jnp.sum(known)).astype(int) - 1
    quantile = residual[order[jnp.maximum(place, 0)]]
    tail = mean + quantile + jnp.minimum(residual - quantile, 0.0) / share
    return target / gamma + (1.0 - 1.0 / gamma) * tail


def worst_values(
    episodes: Episodes, actions: Actions, basis: Basis, bounds: Float[Array, "left 2"],
    discount: float,
) -> Sensitivity:  # fmt: skip
    """Return the mean of V_H in the first states, in the worst case of each of `GAMMAS`."""
    rows = design(episodes, actions, basis, FITTED_ROWS)
    flat = [array.reshape(-1, *array.shape[2:]) for array in rows]
    here, following, reward, goes_on, known, start, is_episode = flat
    with jax.default_matmul_precision("highest"):
        weighted = here * known[:, None]
        size = here.shape[1]
        free = jnp.diag(jnp.ones(size).at[0].set(0.0)) * RIDGE
        gram = weighted.T @ here + free
        to_weights = solve(gram, weighted.T)

        def of_gamma(gamma: Array) -> Array:
            def step(weights: Array, ends: Array) -> tuple[Array, None]:
                value = jnp.clip(following @ weights, ends[0], ends[1])
                target = reward + discount * goes_on * value
                mean = here @ (to_weights @ target)
                return to_weights @ worst_mean(target, mean, gamma, known), None

            weights, _ = lax.scan(step, jnp.zeros(size), bounds[:-1])
            value = jnp.clip(start @ weights, bounds[-1, 0], bounds[-1, 1])
            return jnp.sum(value * is_episode) / jnp.sum(is_episode)

        return Sensitivity(lax.map(of_gamma, jnp.asarray(GAMMAS, here.dtype)))
