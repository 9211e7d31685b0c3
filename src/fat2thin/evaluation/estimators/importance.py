"""Weighted per-decision importance sampling (Precup, Sutton and Singh 2000; Thomas 2015).

    estimate = Σ_t γ^t Σ_i w_{i,t} r_{i,t},    w_{i,t} = ρ_{i,t} / Σ_j ρ_{j,t},
    ρ_{i,t} = Π_{k ≤ t} policy(a_k | s_k) / behaviour(a_k | s_k).

A policy with a band gives an action outside of it exactly zero: from that step on the episode does
not count. Whether any episodes are left at the last step is what decides about this estimator. An
episode that has truly ended keeps its last weight, with rewards of 0.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Episodes

_LARGEST = 80.0  # logarithm of the largest weight


class Importance(NamedTuple):
    """Scores of the episodes, whose mean is the estimate, and what the weights rest on."""

    scores: Float[Array, " episodes"]
    effective: Float[Array, " steps"]
    """Effective sample size of the weights at each step, in episodes: (Σ ρ)² / Σ ρ²."""
    surviving: Float[Array, " steps"]
    """Number of episodes whose weight is not zero at each step."""
    weight: Float[Array, "episodes steps"]
    """By how much the estimate, times the number of episodes, moves per unit of a step's reward."""


def weights(
    log_ratio: Float[Array, "episodes steps"], episodes: Episodes, horizon: int
) -> Float[Array, "episodes horizon"]:
    """Return ρ for each step of the horizon; padding has the weight 0."""
    here = episodes.here[:, :horizon] > 0
    logs = jnp.where(here, log_ratio[:, :horizon], 0.0)
    # Where a factor is zero the product is exactly zero from there on.
    dead = jnp.cumsum(jnp.isneginf(logs), axis=1) > 0
    total = jnp.cumsum(jnp.where(jnp.isneginf(logs), 0.0, logs), axis=1)
    found = jnp.where(dead, 0.0, jnp.exp(jnp.minimum(total, _LARGEST)))
    return found * episodes.is_episode[:, None]


def sample_sizes(rho: Float[Array, "episodes steps"]) -> tuple[Array, Array]:
    """Return the effective sample size and the number of surviving episodes at each step."""
    largest = jnp.maximum(jnp.max(rho, axis=0, keepdims=True), 1e-30)
    scaled = rho / largest
    squares = jnp.sum(scaled**2, axis=0)
    effective = jnp.sum(scaled, axis=0) ** 2 / jnp.maximum(squares, 1e-30)
    return effective, jnp.sum(rho > 0, axis=0).astype(rho.dtype)


def normalised(rho: Float[Array, "episodes steps"], episodes: Episodes) -> Array:
    """Return weights whose mean over the episodes is 1 at each step."""
    count = jnp.sum(episodes.is_episode)
    return rho * count / jnp.maximum(jnp.sum(rho, axis=0, keepdims=True), 1e-30)


def importance_scores(
    episodes: Episodes, rho: Float[Array, "episodes horizon"], discount: float
) -> Importance:
    """Return scores that are linear in each episode: w r, and how much w moves the estimate."""
    horizon = rho.shape[1]
    powers = discount ** jnp.arange(horizon)
    reward = episodes.reward[:, :horizon] * episodes.here[:, :horizon]
    scores = linear_scores(rho, reward, powers, episodes)
    return Importance(scores, *sample_sizes(rho), step_weights(rho, episodes, powers))


def step_weights(
    rho: Float[Array, "episodes horizon"], episodes: Episodes, powers: Float[Array, " horizon"]
) -> Float[Array, "episodes steps"]:
    """Return how much each step counts; those after the horizon do not."""
    found = normalised(rho, episodes) * powers[None]
    beyond = episodes.here.shape[1] - rho.shape[1]
    return jnp.pad(found, ((0, 0), (0, beyond))) * episodes.here


def linear_scores(
    rho: Float[Array, "episodes horizon"], values: Float[Array, "episodes horizon"],
    powers: Float[Array, " horizon"], episodes: Episodes,
) -> Float[Array, " episodes"]:  # fmt: skip
    """Return per episode Σ_t γ^t (m_t + w (x − m_t)), where m_t is the weighted mean of x at t.

    Its mean is Σ_t γ^t m_t. Its spread is that of the weighted mean, to first order.
    """
    share = normalised(rho, episodes)
    count = jnp.sum(episodes.is_episode)
    means = jnp.sum(share * values, axis=0) / count
    found = means[None] + share * (values - means[None])
    return jnp.sum(found * powers[None], axis=1) * episodes.is_episode


def unweighted_scores(
    episodes: Episodes, rho: Float[Array, "episodes horizon"], discount: float, lowest: float
) -> Float[Array, " episodes"]:
    """Return Σ_t γ^t ρ_t (r_t − lowest) per episode: not negative, and unbiased for its mean.

    Steps after a true end have a reward of 0, so `lowest` must be at most 0 where there are any.
    """
    horizon = rho.shape[1]
    reward = episodes.reward[:, :horizon] * episodes.here[:, :horizon]
    return jnp.sum(rho * (reward - lowest) * discount ** jnp.arange(horizon)[None], axis=1)
