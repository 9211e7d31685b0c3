"""Marginalised importance sampling with a Q: double reinforcement learning.

    value = mean of V_H(s_0) + Σ_t γ^t m_t (mean of δ_{H−t} over all rows, weighted by w_t),
    δ_h = r + γ c V_{h−1}(s') − Q_h(s, a),

which is right if Q is right or w is (Kallus and Uehara 2020, 2022). w_t(s, a) is how much more
often the policy is at (s, a) at step t than the log, and m_t the share of episodes that still go
on. Q and w of a fold are fitted on the others, so each episode has a score, and their mean an
interval without a model of the fit.

With the density ratio ρ = policy / behaviour, which is exactly 0 outside a band, only how often the
policy is in a state is fitted (Liu et al. 2018; Xie, Ma and Wang 2019),

    w_t = ω_t(s) ρ(s, a),   ω_t = max(0, ψ · β_t),   β_{t+1} = B⁻¹ E[c w_t ψ'],   B = E ψψᵀ,

with features ψ of the state alone. Nothing multiplies over the steps. Weights that are linear in
features of state and action instead need no density, but they miss the ends of a band: where that
was measured, their intervals missed the value too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import FOLDS, Actions, Episodes
from fat2thin.evaluation.estimators.features import Bases, Basis, features, mean_features
from fat2thin.evaluation.estimators.fitted_q import (
    MOST_ROWS,
    RIDGE,
    Design,
    Fit,
    in_folds,
    rows_in_folds,
    some_rows,
    start_values,
    without_each,
)
from fat2thin.evaluation.fitted_q import solve

_BLOCK = 8192  # rows whose residuals are in memory at a time


class Marginal(NamedTuple):
    """Scores of the episodes, and what the estimate rests on."""

    scores: Float[Array, " episodes"]
    effective: Float[Array, " steps"]
    """Effective sample size of the weights at each step of the horizon, in episodes: (Σ w)² / Σ w²
    of their sums over the rows of each."""
    correction: Float[Array, ""]
    """The mean of what the residuals add to V_H."""
    weight: Float[Array, "episodes steps"]
    """By how much the estimate, times the number of episodes, moves per unit of a step's reward."""


def state_weights(
    episodes: Episodes, of_states: Basis, rho: Float[Array, "episodes steps"], horizon: int
) -> tuple[Float[Array, "folds horizon features"], Float[Array, " horizon"]]:
    """Return β_t without each fold, and the share m_t, for t = 0 to the horizon − 1."""
    cut = jax.tree.map(rows_in_folds, (episodes, rho))
    rows, ratio = some_rows(cut, MOST_ROWS)
    here, following = (
        jax.vmap(_of_states, (0, None))(seen, of_states)
        for seen in (rows.observation, rows.following)
    )
    first = in_folds(episodes.observation[:, 0])
    starts = jax.vmap(_of_states, (0, None))(first, of_states)
    of_start = in_folds(episodes.is_episode)
    others = (1.0 - jnp.eye(FOLDS))[:, :, None]  # fitted fold, fold of the row
    with jax.default_matmul_precision("highest"):
        count = without_each(jnp.sum(rows.here, axis=1))
        gram = without_each(jnp.einsum("kr,krf,krg->kfg", rows.here, here, here))
        free = jnp.diag(jnp.ones(here.shape[-1]).at[0].set(0.0)) * RIDGE
        gram = (gram + free[None]) / count[:, None, None]
        inverse = jax.vmap(solve, (0, None))(gram, jnp.eye(here.shape[-1]))
        start = without_each(jnp.einsum("ke,kef->kf", of_start, starts))
        start = start / without_each(jnp.sum(of_start, axis=1))[:, None]
        trained = others * (rows.here * rows.continuation * ratio)[None] / count[:, None, None]
        first_mass = jnp.ones(FOLDS)
        all_rows = others * rows.here[None] / count[:, None, None]

        def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple]:
            nu, mass = carry
            beta = jnp.einsum("kfg,kg->kf", inverse, nu)
            visits = jnp.maximum(jnp.einsum("krf,jf->jkr", here, beta), 0.0)
            # The weights of all rows must add up to the share that is still there.
            total = jnp.sum(all_rows * visits * ratio[None], axis=(1, 2))
            factor = mass / jnp.maximum(total, 1e-12)
            lead = trained * visits * factor[:, None, None]
            onward = jnp.einsum("jkr,krf->jf", lead, following)
            left = jnp.sum(lead, axis=(1, 2))
            return (onward, left), (beta * factor[:, None], jnp.mean(mass))

        _, (beta, mass) = lax.scan(step, (start, first_mass), None, length=horizon)
    return jnp.moveaxis(beta, 1, 0), mass


def _of_states(observation: Float[Array, "rows observation"], basis: Basis) -> Array:
    return features(observation, jnp.zeros((len(observation), 0)), basis)


def marginal_scores(
    episodes: Episodes, actions: Actions, bases: Bases, rows: Design, found: Fit,
    rhos: Sequence[Float[Array, "episodes steps"]], discount: float, bounds: Float[Array, "left 2"],
) -> tuple[Marginal, ...]:  # fmt: skip
    """Return, for each density ratio, the score of each episode, by the weights and Q of its fold.

    All ratios share the residuals of Q.
    """
    horizon = len(bounds) - 1
    models = [state_weights(episodes, bases.states, rho, horizon) for rho in rhos]
    beta = jnp.stack([one[0] for one in models], axis=1)  # fold, ratio, step, feature
    ratios = jnp.stack(rhos, axis=1)
    ends = bounds[:-1].T[:, None, :]
    powers = discount ** jnp.arange(horizon)

    def of_episode(model: tuple[Array, Array], given: tuple) -> tuple[Array, Array, Array]:
        visits_of, q_of = model
        one, drawn, of_ratios = given
        here = features(one.observation, one.action, bases.both)
        following = mean_features(one.following, drawn, bases.both)
        value = jnp.clip(following @ q_of[:-1].T, ends[0], ends[1])  # row, h − 1
        residual = one.reward[:, None] + discount * one.continuation[:, None] * value
        residual = (residual - here @ q_of[1:].T)[:, ::-1]  # row, t = horizon − h
        states = _of_states(one.observation, bases.states)

        def sums(given: tuple[Array, Array]) -> tuple[Array, Array, Array]:
            of_steps, ratio = given
            share = jnp.maximum(states @ of_steps.T, 0.0) * (ratio * one.here)[:, None]
            return jnp.sum(share, axis=0), jnp.sum(share * residual, axis=0), share @ powers

        return lax.map(sums, (visits_of, of_ratios))

    def of_fold(given: tuple) -> tuple[Array, Array, Array]:
        model, several = given
        size = max(1, _BLOCK // episodes.here.shape[1])
        return lax.map(lambda one: of_episode(model, one), several, batch_size=size)

    parts = jax.tree.map(in_folds, (episodes, actions.following, ratios))
    with jax.default_matmul_precision("highest"):
        sums = lax.map(of_fold, ((beta, jnp.moveaxis(found.weights, 1, 0)), parts))
    direct = start_values(rows, found, bounds).scores
    return tuple(
        _of_sums([array[:, :, place] for array in sums], episodes, direct, mass * powers)
        for place, (_, mass) in enumerate(models)
    )


def _of_sums(
    sums: Sequence[Array], episodes: Episodes, direct: Array, counts: Float[Array, " horizon"]
) -> Marginal:
    """Return the scores from each episode's sums of weights, of weighted residuals, and weights."""
    total, added = (array.reshape(-1, len(counts)) for array in sums[:2])
    known = episodes.is_episode
    # To first order, a weighted mean of residuals: each row counts by how far it is from the mean.
    summed = jnp.sum(total, axis=0)
    safe = jnp.where(jnp.abs(summed) > 1e-9, summed, jnp.inf)
    mean = jnp.sum(added, axis=0) / safe
    centred = (added - mean[None] * total) * jnp.sum(known) / safe[None]
    corrections = jnp.sum((centred + mean[None]) * counts[None], axis=1) * known
    effective = jnp.sum(total, axis=0) ** 2 / jnp.maximum(jnp.sum(total**2, axis=0), 1e-12)
    # The sums of the folds differ a little: all together must be what the policy has.
    weight = sums[2].reshape(episodes.here.shape)
    weight = weight * jnp.sum(known) * jnp.sum(counts) / jnp.maximum(jnp.sum(weight), 1e-12)
    mean_correction = jnp.sum(corrections) / jnp.sum(known)
    return Marginal(direct + corrections, effective, mean_correction, weight)
