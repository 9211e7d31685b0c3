"""Intervals for the mean of scores of independent episodes.

`bootstrap` is approximate. `betting_bound` holds for any number of episodes, without a model: it is
the smallest mean of non-negative numbers that a gambler could not get rich against (Waudby-Smith
and Ramdas 2024), for a fixed mixture of stakes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Key

RESAMPLES = 1000
STAKES = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""Shares of the capital that are at stake, in equal parts."""


class MeanInterval(NamedTuple):
    """A mean, its two-sided interval, and its one-sided lower bound."""

    mean: Float[Array, "*batch"]
    low: Float[Array, "*batch"]
    high: Float[Array, "*batch"]
    bound: Float[Array, "*batch"]


def bootstrap(
    scores: Float[Array, "*batch episodes"], key: Key[Array, ""], confidence: float = 0.95
) -> MeanInterval:
    """Return the studentised bootstrap interval over episodes (Efron and Tibshirani 1993, 12.5).

    All batches share the resampled episodes, so their differences are paired.
    """
    count = scores.shape[-1]
    mean = jnp.mean(scores, axis=-1)
    centred = scores - mean[..., None]
    error = jnp.sqrt(jnp.sum(centred**2, axis=-1) / max(count - 1, 1) / count)

    def resample(one: Array) -> Array:
        drawn = centred[..., jax.random.randint(one, (count,), 0, count)]
        middle = jnp.mean(drawn, axis=-1)
        spread = jnp.sqrt(
            jnp.sum((drawn - middle[..., None]) ** 2, axis=-1) / max(count - 1, 1) / count
        )
        # A resample of one episode again and again has no spread.
        return middle / jnp.maximum(spread, 0.1 * error + jnp.finfo(scores.dtype).tiny)

    studentised = lax.map(resample, jax.random.split(key, RESAMPLES), batch_size=50)
    tail = (1.0 - confidence) / 2.0
    levels = jnp.asarray([1.0 - tail, tail, confidence], scores.dtype)
    upper, lower, one_sided = jnp.quantile(studentised, levels, axis=0)
    return MeanInterval(mean, mean - upper * error, mean - lower * error, mean - one_sided * error)


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
