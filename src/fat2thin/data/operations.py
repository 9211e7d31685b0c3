"""What one does with data sets: parts of one, several in one. Pure functions, by episode.

An episode is never torn: a split by rows would put a step into the training part and the step after
it into the other. What comes out has its episodes in the order of the log.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fat2thin.data.dataset import Dataset

_SAME_EVERYWHERE = ("observation_size", "action_size", "action_low", "action_high", "discount")


def episode_lengths(dataset: Dataset) -> np.ndarray:
    """Rows of each episode, shape (episodes,)."""
    return np.diff(dataset.episode_start, append=dataset.rows)


def episode_returns(dataset: Dataset, discount: float = 1.0) -> np.ndarray:
    """Sum of the rewards of each episode, shape (episodes,), in float64; undiscounted by default.

    A discount factor weighs the reward of an episode's step t by discount^t.
    """
    lengths = episode_lengths(dataset)
    time = np.arange(dataset.rows) - np.repeat(dataset.episode_start, lengths)
    weighted = dataset.reward.astype(np.float64) * float(discount) ** time
    return np.add.reduceat(weighted, dataset.episode_start)


def discounted_returns(dataset: Dataset) -> np.ndarray:
    """Discounted sum of rewards from each step to the end of its episode, shape (rows,)."""
    returns = dataset.reward.astype(np.float64)
    ends = {int(start) - 1 for start in dataset.episode_start} | {dataset.rows - 1}
    for row in range(dataset.rows - 2, -1, -1):
        if row not in ends:
            returns[row] += dataset.discount * returns[row + 1]
    return returns


class Reachable(NamedTuple):
    """The least and the largest discounted return that the rewards of a log allow."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.4g}, {self.high:.4g}]"


def reachable_returns(*parts: Dataset, horizon: int | None = None) -> Reachable:
    """Return between which numbers every discounted return of `horizon` steps lies.

    With S = Σ discount^t over the horizon (without one for ever) that is [r_min S, r_max S]. Where
    an episode can end early it may have one reward alone: [min(r_min, r_min S), max(r_max, r_max
    S)]. It can where some row of the log is not certain to be followed by another (a continuation
    below 1). Several data sets are parts of one log; the discount is that of the first.
    """
    least = min(float(part.reward.min()) for part in parts)
    largest = max(float(part.reward.max()) for part in parts)
    steps = _discounted_steps(parts[0].discount, horizon)
    # Rewards of 0 add up to 0, however many there are.
    low, high = (reward and reward * steps for reward in (least, largest))
    if any(part.continuation.min() < 1 for part in parts):
        low, high = min(least, low), max(largest, high)
    return Reachable(low, high)


def _discounted_steps(discount: float, horizon: int | None) -> float:
    """Σ discount^t over the horizon."""
    if horizon is None:
        return 1.0 / (1.0 - discount) if discount < 1.0 else math.inf
    if horizon < 1:
        raise ValueError(f"a horizon is at least one step, got {horizon}")
    return float(np.sum(float(discount) ** np.arange(horizon)))


def split(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Two data sets: about this share of the rows, and the rest; every episode is in one of them.

    Episodes are drawn in an order that the seed settles until the share of rows is met as closely
    as the next episode allows, so it is missed by half an episode at most. Both parts have at least
    one episode.
    """
    _require_share(share, below=1.0)
    if dataset.episode_start.size < 2:
        raise ValueError(
            f"data set {dataset.name!r} has one episode; a split, by episode, needs two"
        )
    chosen = _draw(dataset, share, seed, most=dataset.episode_start.size - 1)
    return (
        _keep(dataset, chosen, f"{_percent(share)}, seed {seed}"),
        _keep(dataset, ~chosen, f"the other {_percent(1 - share)}, seed {seed}"),
    )


def learned_and_held_out(
    dataset: Dataset, holdout: float, seed: int
) -> tuple[Dataset, Dataset | None]:
    """What is learned from, and what is held out: whole episodes."""
    if not holdout:
        return dataset, None
    if dataset.episode_start.size < 2:
        raise ValueError(
            f"holdout={holdout:g} cannot be met: data set {dataset.name!r} has one episode, and "
            "whole episodes are held out. Take holdout=0, or say where its episodes begin"
        )
    held_out, learned = split(dataset, holdout, seed)
    return learned, held_out


def subsample(
    dataset: Dataset, *, episodes: int | None = None, share: float | None = None, seed: int
) -> Dataset:
    """So many episodes, or episodes with about this share of the rows, drawn without replacement.

    The seed settles an order of the episodes, so what a smaller number gives is part of what a
    larger one gives.
    """
    if share is not None and episodes is None:
        _require_share(share)
        chosen = _draw(dataset, share, seed, most=dataset.episode_start.size)
        return _keep(dataset, chosen, f"{_percent(share)}, seed {seed}")
    if episodes is None or share is not None:
        raise ValueError("say either how many episodes or which share of the rows")
    if not 1 <= episodes <= dataset.episode_start.size:
        raise ValueError(
            f"data set {dataset.name!r} has {dataset.episode_start.size} episodes, "
            f"{episodes} cannot be drawn"
        )
    chosen = np.zeros(dataset.episode_start.size, bool)
    chosen[_order(dataset, seed)[:episodes]] = True
    return _keep(dataset, chosen, f"{episodes} episodes, seed {seed}")


def best_episodes(dataset: Dataset, share: float) -> Dataset:
    """This share of the episodes, at least one: those of the largest undiscounted return.

    Of equal ones the earlier is taken.
    """
    _require_share(share)
    count = max(1, math.floor(share * dataset.episode_start.size + 0.5))
    chosen = np.zeros(dataset.episode_start.size, bool)
    chosen[np.argsort(-episode_returns(dataset), stable=True)[:count]] = True
    return _keep(dataset, chosen, f"best {_percent(share)}")


def concatenate(datasets: Sequence[Dataset]) -> Dataset:
    """One data set of the episodes of several, in this order; widths, box and discount are equal.

    Next observations stay with their rows, so no episode runs into the one after it. Either all of
    them know the propensities of their actions, or none does.
    """
    if not datasets:
        raise ValueError("there is nothing to concatenate")
    first = datasets[0]
    for other in datasets[1:]:
        for field in _SAME_EVERYWHERE:
            ours, theirs = getattr(first, field), getattr(other, field)
            if ours != theirs:
                raise ValueError(
                    f"data sets {first.name!r} and {other.name!r} cannot be one: "
                    f"{field} is {ours} in the first and {theirs} in the second"
                )
        if first.arrays != other.arrays:
            known, unknown = (first, other) if first.propensity is not None else (other, first)
            raise ValueError(
                f"data sets {first.name!r} and {other.name!r} cannot be one: {unknown.name!r} has "
                f"no propensity; dataclasses.replace(dataset, propensity=None) forgets that of "
                f"{known.name!r}"
            )
    offsets = np.cumsum([0] + [dataset.rows for dataset in datasets[:-1]])
    starts = [
        dataset.episode_start + offset for dataset, offset in zip(datasets, offsets, strict=True)
    ]
    arrays: dict[str, Any] = {
        field: np.concatenate([getattr(dataset, field) for dataset in datasets])
        for field in first.row_arrays
    }
    return dataclasses.replace(
        first,
        name=" + ".join(dataset.name for dataset in datasets),
        episode_start=np.concatenate(starts),
        **arrays,
    )


def _draw(dataset: Dataset, share: float, seed: int, most: int) -> np.ndarray:
    """Which episodes, shape (episodes,), bool: drawn until the share of rows is best met."""
    order = _order(dataset, seed)
    rows = np.cumsum(episode_lengths(dataset)[order])[:most]
    count = int(np.argmin(np.abs(rows - share * dataset.rows))) + 1
    chosen = np.zeros(order.size, bool)
    chosen[order[:count]] = True
    return chosen


def _order(dataset: Dataset, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(dataset.episode_start.size)


def _keep(dataset: Dataset, chosen: np.ndarray, what: str) -> Dataset:
    lengths = episode_lengths(dataset)
    rows = np.repeat(chosen, lengths)
    starts = np.cumsum(lengths[chosen]) - lengths[chosen]
    return dataclasses.replace(
        dataset,
        name=f"{dataset.name}[{what}]",
        **{field: getattr(dataset, field)[rows] for field in dataset.row_arrays},
        episode_start=starts.astype(dataset.episode_start.dtype),
    )


def _require_share(share: float, below: float = math.inf) -> None:
    if not (0 < share <= 1 and share < below):
        end = "1)" if below == 1 else "1]"
        raise ValueError(f"a share must lie in (0, {end}, got {share}")


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"
