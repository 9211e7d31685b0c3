"""Scores of a few seeds, comparisons of them, and how far to trust both.

Intervals are percentile bootstrap intervals over seeds, with the same draws at every call. A seed
whose score is nan has stopped and is left out. With fewer than two seeds the ends of an interval
are nan; with none, so is the value. Few seeds make an interval too narrow: for the mean of normal
scores, one of 95 % holds the truth in 90 % of cases with ten seeds, in 84 % with five.

Several tasks are a mapping from a task's name to its scores of shape (seeds,). Seeds are resampled
within each task (Agarwal et al. 2021). A task with one seed leaves the whole without ends, and one
whose seeds have all stopped without a value.
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
    """A number and the interval it is believed to lie in."""

    value: float
    low: float
    high: float


class Profile(NamedTuple):
    """The share of runs above each threshold, and the band it is believed to lie in."""

    share: Float[ndarray, "thresholds"]
    low: Float[ndarray, "thresholds"]
    high: Float[ndarray, "thresholds"]


def interquartile_mean(scores: Float[ndarray, "*batch scores"]) -> Float[ndarray, "*batch"] | float:
    """Mean of the middle half along the last axis: a quarter of the scores is cut at each end.

    The cut is ⌊n/4⌋ scores an end (Agarwal et al. 2021); below four scores it is the mean.
    """
    cut = scores.shape[-1] // 4
    return np.mean(np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut], axis=-1)


def mean(scores: Float[ndarray, "*batch scores"]) -> Float[ndarray, "*batch"] | float:
    """Mean along the last axis."""
    return np.mean(scores, axis=-1)


def final_score(returns: ArrayLike, window: int = 1) -> Float[ndarray, "seeds"]:
    """A score a seed: its mean return in the last evaluations, as many as `window` says.

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
    """A score a seed: the area under its curve of mean returns, divided by the range of steps.

    So it is a mean return, by trapezoids; with one evaluation it is that one's. Steps are of shape
    (evaluations,), returns of shape (evaluations, seeds, episodes). A stopped seed's score is nan.
    """
    curves, places = _curves(returns), np.asarray(steps, np.float64)
    if places.shape != curves.shape[:1]:
        raise ValueError(
            f"steps must be one number an evaluation, of which there are {len(curves)}; got steps "
            f"of shape {places.shape}"
        )
    if not np.all(np.diff(places) > 0.0):
        raise ValueError("steps must grow from each evaluation to the next")
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

    Seeds are resampled, each with all its episodes: episodes of one seed share a log and a network,
    and are no independent evidence about either.
    """
    scores = np.mean(np.asarray(returns, np.float64), axis=-1)
    return _pooled_interval([_not_stopped(scores)], statistic, confidence, resamples)


def stratified_interval(
    scores: Mapping[str, ArrayLike],
    statistic: Callable[[ndarray], ndarray | float] = interquartile_mean,
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """A statistic of all runs of several tasks together, drawn anew within each task.

    The statistic reduces the last axis, as `mean` and `interquartile_mean` do. Every run weighs the
    same, so that a task with more seeds weighs more. Scores of tasks must be comparable
    (normalised).
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
    """The share of all runs that lie above each threshold, with a band drawn anew within tasks.

    Above is strictly above. Every run weighs the same. The band holds at each threshold by itself,
    not at all of them at once.
    """
    tasks = list(_tasks("scores", scores).values())
    levels = np.asarray(thresholds, np.float64)
    if levels.ndim != 1 or levels.size == 0 or np.any(np.isnan(levels)):
        raise ValueError("thresholds must be a list of at least one number, and none may be nan")
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
    """How likely a run of the first is better than a run of the second on the same task.

    P(X > Y) + ½ P(X = Y) of each task (Mann and Whitney's U, divided by the pairs), averaged over
    tasks, which weigh the same. Runs of both are drawn anew, within each task.
    """
    tasks, others = _tasks("first", first), _tasks("second", second)
    if tasks.keys() != others.keys():
        raise ValueError(
            "first and second must have the same tasks; one alone has "
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
    """The first's mean score less the second's, where their seeds have nothing in common.

    Scores are of shape (seeds,), and the numbers of seeds may differ. Both are drawn anew, each for
    itself.
    """
    (value, other), (drawn, others) = _both_means(first, second, resamples)
    return _interval(value - other, drawn - others, confidence)


def paired_difference(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """The mean of the first's score less the second's, seed by seed.

    For runs whose seeds share something, such as the log. Scores are of shape (seeds,), the same
    seeds in the same order. A seed that stopped in either is left out of both.
    """
    scores, others = _scores("first", first), _scores("second", second)
    if scores.shape != others.shape:
        raise ValueError(
            f"first has {len(scores)} seeds and second {len(others)}: give both the same seeds, or "
            "use difference, which does not pair them"
        )
    return _pooled_interval([_not_stopped(scores - others)], mean, confidence, resamples)


def ratio(
    first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> Interval:
    """The first's mean score divided by the second's; both are drawn anew, each for itself.

    Scores are of shape (seeds,), and the numbers of seeds may differ. Where the interval of the
    second's mean holds 0, a ratio says nothing: the value and both ends are nan. Where the second's
    mean is negative, a ratio above 1 is a lower score.
    """
    (value, divisor), drawn = _both_means(first, second, resamples)
    above, below = drawn * np.sign(divisor)
    if divisor == 0.0 or _ends(below, confidence)[0] <= 0.0:
        return Interval(np.nan, np.nan, np.nan)
    # A few draws of the divisor may lie beyond 0, where the ratio comes back from the other end of
    # the line. Angles go on growing there, so that those draws stay in the tail they belong to.
    ends = _ends(np.arctan2(above, below), confidence)
    low, high = np.where(np.abs(ends) >= np.pi / 2.0, np.copysign(np.inf, ends), np.tan(ends))
    return Interval(float(value / divisor), float(low), float(high))


def _both_means(
    first: ArrayLike, second: ArrayLike, resamples: int
) -> tuple[Float[ndarray, "2"], Float[ndarray, "2 resamples"]]:
    """Both mean scores, as they are and drawn anew; with fewer than two seeds the draws are nan."""
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
            "statistic must reduce the last axis and no other, as interquartile_mean does; it made "
            f"shape {np.shape(drawn)} of {resamples} rows"
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
    """How often each run is drawn: a mean of what is drawn is then a product of matrices."""
    draws = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return draws.astype(np.float64)


def _curves(returns: ArrayLike) -> Float[ndarray, "evaluations seeds"]:
    values = np.asarray(returns, np.float64)
    if values.ndim != 3 or values.size == 0:
        raise ValueError(
            "returns must be of shape (evaluations, seeds, episodes) with at least one of each; "
            f"got shape {values.shape}"
        )
    return np.mean(values, axis=-1)


def _scores(name: str, scores: ArrayLike) -> Float[ndarray, "seeds"]:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(
            f"{name} must be of shape (seeds,), a score a seed and at least one; got shape "
            f"{values.shape}"
        )
    if np.any(np.isinf(values)):
        raise ValueError(f"{name} must be finite, or nan for a stopped seed; one is infinite")
    return values


def _tasks(name: str, scores: Mapping[str, ArrayLike]) -> dict[str, Float[ndarray, "_"]]:
    """Sorted by name, so that the draws do not depend on the mapping's order."""
    if not scores:
        raise ValueError(f"{name} must have at least one task, and is empty")
    return {
        task: _not_stopped(_scores(f"{name} of {task!r}", scores[task])) for task in sorted(scores)
    }


def _not_stopped(scores: Float[ndarray, "seeds"]) -> Float[ndarray, "_"]:
    return scores[~np.isnan(scores)]
