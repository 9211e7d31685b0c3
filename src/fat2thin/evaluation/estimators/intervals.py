"""Intervals for the mean of scores of independent episodes.

A log without a rare event looks precise, so `with_one_more` counts one episode more than it has, as
bad as an episode can be for the lower end, and as good for the upper one. Its ends are quantiles of
the mean with random weights (Bayesian bootstrap, Rubin 1981; bounds of this kind: Learned-Miller
and Thomas 2020). Where a score is one of two numbers these are the exact intervals of Clopper and
Pearson (1934); in large logs they are those of the normal law.

`betting_bound` holds for any number of episodes, without a model: it is the smallest mean of
non-negative numbers that a gambler could not get rich against (Waudby-Smith and Ramdas 2024), for a
fixed mixture of stakes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Key

RESAMPLES = 2000
STAKES = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Shares of the capital that are at stake, in equal parts."""


class MeanInterval(NamedTuple):
    """A mean, its two-sided interval, and its one-sided lower bound."""

    mean: Float[Array, "*batch"]
    low: Float[Array, "*batch"]
    high: Float[Array, "*batch"]
    bound: Float[Array, "*batch"]


def unseen_weight(weight: Float[Array, "*shape"], chance: float = 0.05) -> Float[Array, ""]:
    """Return how much one event that a log does not have can weigh.

    Rare events may have any probability q_i at each logged step, whose weight is u_i. The log has
    none of them with the probability Π (1 − q_i), which is at least `chance`. Under this condition
    Σ q_i u_i, what they cost, is largest for q_i = max(0, 1 − λ / u_i), and λ follows from the
    condition. With equal weights it is that of log(1 / chance) events: the rule of three. The
    result is this largest cost, divided by log(1 / chance).
    """
    budget = jnp.log(1.0 / chance)
    ordered = -jnp.sort(-jnp.abs(weight).reshape(-1))
    logs = jnp.where(ordered > 0, jnp.log(jnp.where(ordered > 0, ordered, 1.0)), -jnp.inf)
    places = jnp.arange(1, len(ordered) + 1)
    # log λ if the first k weights are above it; the last k where they are is the right one.
    level = (jnp.cumsum(logs) - budget) / places
    right = jnp.sum(logs > level)
    level = jnp.exp(level[jnp.maximum(right - 1, 0)])
    return jnp.sum(jnp.where(places <= right, ordered - level, 0.0)) / budget


def with_one_more(
    scores: Float[Array, "*batch episodes"], reach: Float[Array, "*batch"], key: Key[Array, ""],
    confidence: float = 0.95,
) -> MeanInterval:  # fmt: skip
    """Return an interval that counts one episode more than there are (module docstring).

    `reach` is how far from the mean an episode can be that was not seen (`unseen_weight` times the
    range of the rewards). All batches share the random weights, so their differences are paired.
    """
    count = scores.shape[-1]
    mean = jnp.mean(scores, axis=-1)
    centred = scores - mean[..., None]
    worst = jnp.minimum(jnp.min(centred, axis=-1), -reach)
    best = jnp.maximum(jnp.max(centred, axis=-1), reach)

    def weigh(one: Array) -> tuple[Array, Array]:
        drawn = jax.random.exponential(one, (count + 1,), scores.dtype)
        share = drawn / jnp.sum(drawn)
        seen = centred @ share[:-1]
        return seen + share[-1] * worst, seen + share[-1] * best

    lower, upper = lax.map(weigh, jax.random.split(key, RESAMPLES), batch_size=50)
    tail = (1.0 - confidence) / 2.0
    levels = jnp.asarray([tail, 1.0 - confidence], scores.dtype)
    low, bound = jnp.quantile(lower, levels, axis=0)
    high = jnp.quantile(upper, 1.0 - tail, axis=0)
    return MeanInterval(mean, mean + low, mean + high, mean + bound)


def betting_bound(scores: Float[Array, " episodes"], confidence: float = 0.95) -> Array:
    """Return a lower bound of the mean of non-negative, independent numbers."""
    stakes = jnp.asarray(STAKES, scores.dtype)
    needed = jnp.log(1.0 / (1.0 - confidence))

    def is_too_small(mean: Array) -> Array:
        gains = jnp.log1p(stakes[:, None] * (scores[None] / mean - 1.0))
        return logsumexp(jnp.sum(gains, axis=1)) - jnp.log(len(STAKES)) >= needed

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2.0
        smaller = is_too_small(middle)
        return jnp.where(smaller, middle, low), jnp.where(smaller, high, middle)

    top = jnp.mean(scores)
    start = jnp.zeros_like(top), jnp.maximum(top, jnp.finfo(scores.dtype).tiny)
    return lax.fori_loop(0, 60, halve, start)[0]
