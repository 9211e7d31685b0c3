"""What a handful of seeds says: a mean and how far to trust it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

RESAMPLES = 10_000
_BOOTSTRAP_SEED = 0


class Interval(NamedTuple):
    """A number and the interval it is believed to lie in."""

    value: float
    low: float
    high: float


def interquartile_mean(
    scores: Float[ndarray, "*batch scores"],
) -> Float[ndarray, "*batch"] | float:
    """Mean of the middle half along the last axis: a quarter of the scores is cut at each end.

    The cut is ⌊n/4⌋ scores an end (Agarwal et al. 2021); below four scores it is the mean.
    """
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    return np.mean(ordered[..., cut : scores.shape[-1] - cut], axis=-1)


def mean(scores: Float[ndarray, "*batch scores"]) -> Float[ndarray, "*batch"] | float:
    """Mean along the last axis."""
    return np.mean(scores, axis=-1)


def seed_interval(
    returns: Float[ndarray, "seeds episodes"],
    statistic: Callable[[ndarray], ndarray | float] = mean,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """A statistic of the seeds' mean returns, with its percentile bootstrap interval.

    What is drawn anew is seeds, each with all its episodes: episodes of one seed share a log and a
    network, and are no independent evidence about either. The draws are the same at every call.
    With one seed there is no interval: both ends are nan. A seed whose returns are nan has stopped,
    and is left out.
    """
    scores = np.mean(np.asarray(returns, np.float64), axis=-1)
    scores = scores[~np.isnan(scores)]
    value = float(statistic(scores)) if len(scores) else np.nan
    if len(scores) < 2:
        return Interval(value, np.nan, np.nan)
    draws = np.random.default_rng(_BOOTSTRAP_SEED).integers(
        len(scores), size=(resamples, len(scores))
    )
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(statistic(scores[draws]), [tail, 1.0 - tail])
    return Interval(value, float(low), float(high))
