"""Scores over seeds, comparisons of scores, and bootstrap intervals for both.

Intervals are percentile bootstrap intervals over seeds; every call uses the same random draws. A
seed whose score is nan has stopped and is left out. With fewer than two seeds the ends of an
interval are nan; with none, so is the value. Few seeds make an interval too narrow: for the mean of
normal scores, a 95 % interval holds the truth in 90 % of cases with ten seeds, in 84 % with five.

Scores of several tasks are a mapping from a task's name to its scores of shape (seeds,). Seeds are
resampled within each task (Agarwal et al. 2021). If one task has a single seed, the ends of the
interval are nan; if all seeds of one task have stopped, so is the value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from numpy.random import Generator
from numpy.typing import ArrayLike

RESAMPLES = 10_000
_BOOTSTRAP_SEED = 0


class Interval(NamedTuple):
    """A number and its confidence interval."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """The share of runs above each threshold, and its confidence band."""

    share: Float[ndarray, "thresholds"]
    low: Float[ndarray, "thresholds"]
    high: Float[ndarray, "thresholds"]


def interquartile_mean(scores: Float[ndarray, "*batch scores"]) -> Float[ndarray, "*batch"] | float:
    """Return the mean of the middle half of the scores, along the last axis.

    ⌊n/4⌋ scores are cut at each end (Agarwal et al. 2021); with fewer than four, it is the mean.
    """
    cut = scores.shape[-1] // 4
    return np.mean(np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut], axis=-1)


def mean(scores: Float[ndarray, "*batch scores"]) -> Float[ndarray, "*batch"] | float:
    """Return the mean along the last axis."""
    return np.mean(scores, axis=-1)


def final_score(returns: ArrayLike, window: int = 1) -> Float[ndarray, "seeds"]:
    """Return one score per seed: its mean return over the last `window` evaluations.

    Returns are of shape (evaluations, seeds, episodes). A stopped seed's score is nan.
    """
    curves = _curves(returns)
    if not 1 <= window <= len(curves):
        raise ValueError(
            f"window must be from 1 to the number of evaluations, {len(curves)}; got {window}"
        )
    return np.mean(curves[-window:], axis=0)


def area_under_curve(
    steps: ArrayLike | Sequence[int], returns: ArrayLike
) -> Float[ndarray, "seeds"]:
    """Return one score per seed: the area under its curve of mean returns, per step.

    The area is found by trapezoids and divided by the range of steps, so the score is a mean
    return; with one evaluation it is that mean return. Steps are of shape (evaluations,), returns
    of shape (evaluations, seeds, episodes). A stopped seed's score is nan.
    """
    curves, places = _curves(returns), np.asarray(steps, np.float64)
    if places.shape != curves.shape[:1]:
        raise ValueError(
            f"steps must have one number per evaluation, shape ({len(curves)},); got shape "
            f"{places.shape}"
        )
    if not np.all(np.diff(places) > 0.0):
        raise ValueError("steps must increase from each evaluation to the next")
    if len(curves) == 1:
        return curves[0]
    return np.trapezoid(curves, places, axis=0) / (places[-1] - places[0])


def seed_interval(
    returns: Float[ndarray, "seeds episodes"],
    statistic: Callable[[ndarray], ndarray | float] = mean,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return a statistic of the seeds' mean returns, with its percentile bootstrap interval.

    Seeds are resampled, each with all its episodes: the episodes of one seed share a log and a
    network, and are not independent.

    Examples:
        >>> interval = seed_interval(np.array([[1.0, 3.0], [5.0, 7.0]]))
        >>> interval.value, interval.low, interval.high
        (4.0, 2.0, 6.0)
    """
    scores = np.mean(np.asarray(returns, np.float64), axis=-1)
    return _pooled_interval([_not_stopped(scores)], statistic, confidence, resamples)


def clustered_share(
    counts: Float[ndarray, "*batch clusters"], rows: Float[ndarray, "clusters"],
    *, confidence: float = 0.95, resamples: int = RESAMPLES,
) -> Profile:  # fmt: skip
    """Return the share of rows that were counted, with its interval over clusters of rows.

    Whole clusters are resampled, such as episodes, whose rows are not independent. Where no row, or
    every row, was counted, all samples are equal: the interval is then the exact binomial one of as
    many clusters (Clopper and Pearson 1934).

    Examples:
        >>> found = clustered_share(np.array([1.0, 3.0]), np.array([2.0, 6.0]))
        >>> float(found.share), float(found.low), float(found.high)
        (0.5, 0.5, 0.5)
    """
    share = np.sum(counts, axis=-1) / np.sum(rows)
    if rows.size < 2:
        return Profile(share, np.full_like(share, np.nan), np.full_like(share, np.nan))
    drawn = _draw_counts(np.random.default_rng(_BOOTSTRAP_SEED), rows.size, resamples)
    shares = (drawn @ np.moveaxis(counts, -1, 0)) / (drawn @ rows).reshape(-1, *[1] * share.ndim)
    low, high = _ends(shares, confidence)
    most = 1.0 - ((1.0 - confidence) / 2.0) ** (1.0 / rows.size)
    return Profile(
        share, np.where(share == 1.0, 1.0 - most, low), np.where(share == 0.0, most, high)
    )


def stratified_interval(
    scores: Mapping[str, ArrayLike],
    statistic: Callable[[ndarray], ndarray | float] = interquartile_mean,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return a statistic of all runs of several tasks; seeds are resampled within each task.

    The statistic reduces the last axis, as `mean` and `interquartile_mean` do. Every run has the
    same weight, so a task with more seeds has more. Scores of different tasks must be comparable
    (normalised).

    Examples:
        >>> stratified_interval({"hopper": [1.0, 3.0], "walker2d": [5.0, 7.0]}, mean).value
        4.0
    """
    tasks = list(_tasks("scores", scores).values())
    return _pooled_interval(tasks, statistic, confidence, resamples)


def performance_profile(
    scores: Mapping[str, ArrayLike],
    thresholds: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Profile:
    """Return the share of all runs strictly above each threshold, with a bootstrap band.

    Seeds are resampled within each task. Every run has the same weight. The band holds at each
    threshold separately, not at all of them jointly.
    """
    tasks = list(_tasks("scores", scores).values())
    levels = np.asarray(thresholds, np.float64)
    if levels.ndim != 1 or levels.size == 0 or np.any(np.isnan(levels)):
        raise ValueError("thresholds must be a list of one or more numbers, none of them nan")
    nothing = np.full(levels.shape, np.nan)
    fewest = min(map(len, tasks))
    if fewest == 0:
        return Profile(nothing, nothing, nothing)
    above = [np.asarray(task[:, None] > levels, np.float64) for task in tasks]
    share = np.mean(np.concatenate(above), axis=0)
    if fewest == 1:
        return Profile(share, nothing, nothing)
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    drawn = [_draw_counts(generator, len(task), resamples) @ task for task in above]
    low, high = _ends(np.sum(drawn, axis=0) / sum(map(len, tasks)), confidence)
    return Profile(share, low, high)


def probability_of_improvement(
    first: Mapping[str, ArrayLike],
    second: Mapping[str, ArrayLike],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the probability that a run of the first is better than one of the second.

    It is P(X > Y) + ½ P(X = Y) on each task (the Mann-Whitney U divided by the number of pairs),
    averaged over tasks with equal weights. Runs of both are resampled within each task.
    """
    tasks, others = _tasks("first", first), _tasks("second", second)
    if tasks.keys() != others.keys():
        raise ValueError(
            "first and second must have the same tasks; only one of them has "
            f"{', '.join(sorted(tasks.keys() ^ others.keys()))}"
        )
    fewest = min(map(len, [*tasks.values(), *others.values()]))
    if fewest == 0:
        return Interval(np.nan, np.nan, np.nan)
    pairs = [(tasks[name][:, None], others[name]) for name in tasks]
    wins = [(score > other) + 0.5 * (score == other) for score, other in pairs]
    value = float(np.mean([np.mean(won) for won in wins]))
    if fewest == 1:
        return Interval(value, np.nan, np.nan)
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    shares = []
    for won in wins:
        drawn, against = (_draw_counts(generator, count, resamples) for count in won.shape)
        shares.append(np.sum((drawn @ won) * against, axis=-1) / won.size)
    return _interval(value, np.mean(shares, axis=0), confidence)


def difference(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Return the first mean score minus the second, for runs with independent seeds.

    Scores are of shape (seeds,); the numbers of seeds may differ. Both are resampled independently.
    """
    (value, other), (drawn, others) = _both_means(first, second, resamples)
    return _interval(value - other, drawn - others, confidence)


def paired_difference(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean of the first score minus the second, seed by seed.

    It is meant for runs whose seeds share something, such as the log. Scores are of shape (seeds,),
    the same seeds in the same order. A seed that stopped in one of them is left out of both.
    """
    scores, others = _scores("first", first), _scores("second", second)
    if scores.shape != others.shape:
        raise ValueError(
            f"first and second have different numbers of seeds, {len(scores)} and {len(others)}: "
            "give both the same seeds, or use difference, which does not pair them"
        )
    return _pooled_interval([_not_stopped(scores - others)], mean, confidence, resamples)


def ratio(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """Return the first mean score divided by the second; both are resampled independently.

    Scores are of shape (seeds,); the numbers of seeds may differ. If the interval of the second
    mean contains 0, the ratio is meaningless: the value and both ends are nan. If the second mean
    is negative, a ratio above 1 means a lower score.
    """
    (value, divisor), drawn = _both_means(first, second, resamples)
    above, below = drawn * np.sign(divisor)
    if divisor == 0.0 or _ends(below, confidence)[0] <= 0.0:
        return Interval(np.nan, np.nan, np.nan)
    # A few draws of the divisor may have the other sign, where the ratio jumps to the other end of
    # the real line. Angles continue to grow there, so those draws stay in the right tail.
    ends = _ends(np.arctan2(above, below), confidence)
    low, high = np.where(np.abs(ends) >= np.pi / 2.0, np.copysign(np.inf, ends), np.tan(ends))
    return Interval(float(value / divisor), float(low), float(high))


def _both_means(
    first: ArrayLike, second: ArrayLike, resamples: int
) -> tuple[Float[ndarray, "2"], Float[ndarray, "2 resamples"]]:
    """Return both mean scores, and bootstrap draws of them; nan with fewer than two seeds."""
    both = [_not_stopped(_scores("first", first)), _not_stopped(_scores("second", second))]
    values = np.array([np.mean(scores) if len(scores) else np.nan for scores in both])
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    drawn = np.full((2, resamples), np.nan)
    for row, scores in enumerate(both):
        if len(scores) > 1:
            drawn[row] = _draw_counts(generator, len(scores), resamples) @ scores / len(scores)
    return values, drawn


def _pooled_interval(
    tasks: list[Float[ndarray, "_"]],
    statistic: Callable[[ndarray], ndarray | float],
    confidence: float,
    resamples: int,
) -> Interval:
    fewest = min(map(len, tasks))
    value = float(statistic(np.concatenate(tasks))) if fewest else np.nan
    if fewest < 2:
        return Interval(value, np.nan, np.nan)
    generator = np.random.default_rng(_BOOTSTRAP_SEED)
    draws = [generator.integers(len(task), size=(resamples, len(task))) for task in tasks]
    runs = [task[drawn] for task, drawn in zip(tasks, draws, strict=True)]
    drawn = statistic(np.concatenate(runs, axis=-1))
    if np.shape(drawn) != (resamples,):
        raise ValueError(
            "statistic must reduce only the last axis, as interquartile_mean does; for "
            f"{resamples} rows it returned shape {np.shape(drawn)}"
        )
    return _interval(value, np.asarray(drawn), confidence)


def _interval(value: float, drawn: Float[ndarray, "resamples"], confidence: float) -> Interval:
    low, high = _ends(drawn, confidence)
    return Interval(float(value), float(low), float(high))


def _ends(
    drawn: Float[ndarray, "resamples *batch"], confidence: float
) -> Float[ndarray, "2 *batch"]:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if not len(drawn):
        raise ValueError("resamples must be at least 1")
    tail = (1.0 - confidence) / 2.0
    return np.quantile(drawn, [tail, 1.0 - tail], axis=0)


def _draw_counts(generator: Generator, count: int, resamples: int) -> Float[ndarray, "resamples _"]:
    """Return how often each run is drawn, so that means of the draws are a matrix product."""
    draws = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return draws.astype(np.float64)


def _curves(returns: ArrayLike) -> Float[ndarray, "evaluations seeds"]:
    values = np.asarray(returns, np.float64)
    if values.ndim != 3 or values.size == 0:
        raise ValueError(
            "returns must be of shape (evaluations, seeds, episodes), none of them 0; "
            f"got shape {values.shape}"
        )
    return np.mean(values, axis=-1)


def _scores(name: str, scores: ArrayLike) -> Float[ndarray, "seeds"]:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"{name} must be of shape (seeds,), one score per seed and at least one; got shape "
            f"{values.shape}"
        )
    if np.any(np.isinf(values)):
        raise ValueError(f"{name} must be finite, or nan for a stopped seed; a score is infinite")
    return values


def _tasks(name: str, scores: Mapping[str, ArrayLike]) -> dict[str, Float[ndarray, "_"]]:
    """Return the scores by task, sorted by name: the draws must not depend on the order."""
    if not scores:
        raise ValueError(f"{name} must have at least one task; it is empty")
    return {
        task: _not_stopped(_scores(f"{name} of {task!r}", scores[task])) for task in sorted(scores)
    }


def _not_stopped(scores: Float[ndarray, "seeds"]) -> Float[ndarray, "_"]:
    return scores[~np.isnan(scores)]
