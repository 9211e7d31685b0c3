"""Operations on data sets: assemble from raw logs, split, subsample, join, compute returns.

Episodes always stay whole: splitting by rows would put neighbouring steps into different parts.
Results keep the episode order of the log.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fat2thin.columns import Column
from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset, Origin
from fat2thin.data.row_arrays import FollowingRows, SelectedRows, blocks, is_lazy, row_numbers


class RawLog(NamedTuple):
    """Logged steps as read from a file, one per row, grouped by episode."""

    observation: np.ndarray
    """Shape (rows, observation)."""
    action: np.ndarray
    """Shape (rows, action)."""
    reward: np.ndarray
    """Shape (rows,)."""
    terminal: np.ndarray
    """Shape (rows,), bool: the task truly ended with this step."""
    cut: np.ndarray
    """Shape (rows,), bool: the episode stops after this row, at a time limit or because the next
    row belongs to another episode."""
    next_observation: np.ndarray | None = None
    """Shape (rows, observation), or None if the file has none."""
    propensity: np.ndarray | None = None
    """Shape (rows,): the probability of the logged action, or None if unknown."""
    propensity_is_density: bool = False
    observation_columns: tuple[Column, ...] = ()
    """Names, units and transforms of the observation's columns; empty if the file has none."""
    action_columns: tuple[Column, ...] = ()
    """Names, units and transforms of the action dimensions."""


class Box(NamedTuple):
    """The action box and the discount factor of a data set."""

    low: tuple[float, ...]
    """Lower end of the box, one number per action dimension."""
    high: tuple[float, ...]
    """Upper end of the box."""
    discount: float
    """Discount factor used in training."""


def assemble(
    name: str, raw: RawLog, box: Box, *, reuse: bool = False,
    places: Callable[[Sequence[int]], list[str]] | None = None,
) -> Dataset:  # fmt: skip
    """Return the data set of a raw log; all formats share this treatment of episode ends.

    A true end stops bootstrapping (continuation 0); a time limit does not. If the log has no next
    observations, they are taken from the row below: a row with a true end repeats its own
    observation, and the last row of a cut episode, whose next observation is unknown, is dropped.
    With `reuse`, rows may be moved within the arrays of `raw`, which saves a copy. `places` is that
    of `Origin`.
    """
    terminal = np.asarray(raw.terminal, bool)
    count = len(terminal)
    last = np.logical_or(terminal, np.asarray(raw.cut, bool), out=long_work.empty((count,), bool))
    last[-1] = True
    kept = long_work.empty((count,), bool)
    kept[:] = True
    if raw.next_observation is None:
        np.logical_or(terminal, np.logical_not(last, out=kept), out=kept)
    rows = int(np.count_nonzero(kept))
    if not rows:
        raise ValueError(
            f"data set {name!r}: no row has a next observation; a log needs episodes of at least "
            "two rows, or a column of next observations"
        )
    observation = np.asarray(raw.observation, np.float32)
    if raw.next_observation is None:
        following = _rows_below(observation, last, kept, rows)
    else:
        following = np.asarray(raw.next_observation, np.float32)
    continuation = np.logical_not(terminal, out=long_work.empty((count,), np.float32))
    dropped = row_numbers(kept, np.logical_not)
    # An episode of one row that is dropped has none left.
    first = np.append(0, row_numbers(last[:-1], np.asarray) + 1)
    starts = np.unique(first - np.searchsorted(dropped, first))
    copies = _copies(raw, last, dropped)

    def left(array: np.ndarray, reuse: bool = reuse) -> np.ndarray:
        array = np.asarray(array, np.float32)
        if rows == count:
            return array
        return _close_up(array, kept) if reuse else array[kept]

    return Dataset(
        name=name,
        observation=left(observation),
        action=left(raw.action),
        reward=left(raw.reward),
        next_observation=following,
        continuation=left(continuation, reuse=True),
        episode_start=starts[starts < rows],
        action_low=box.low,
        action_high=box.high,
        discount=box.discount,
        propensity=None if raw.propensity is None else left(raw.propensity),
        propensity_is_density=raw.propensity_is_density,
        observation_columns=raw.observation_columns,
        action_columns=raw.action_columns,
        origin=Origin(kept, copies, raw.next_observation is None, places),
    )


def _rows_below(
    observation: np.ndarray, last: np.ndarray, kept: np.ndarray, count: int
) -> np.ndarray:
    """Return the next observations of the kept rows: their own one where an episode truly ends."""
    following = long_work.empty((count, observation.shape[1]), np.float32)
    stop = 0
    for part in blocks(observation):
        places = np.flatnonzero(kept[part]) + part.start
        following[stop : stop + places.size] = observation[places + ~last[places]]
        stop += places.size
    return following


def _copies(raw: RawLog, last: np.ndarray, dropped: np.ndarray) -> np.ndarray:
    """Return the numbers of the dropped rows that repeat the row above them in their episode."""
    dropped = dropped[(dropped > 0) & ~last[dropped - 1]]
    for array in (raw.observation, raw.action, raw.reward, raw.propensity):
        if array is not None:
            table = np.asarray(array).reshape(len(last), -1)
            dropped = dropped[(table[dropped] == table[dropped - 1]).all(axis=1)]
    return dropped


def episode_lengths(dataset: Dataset) -> np.ndarray:
    """Return the number of rows of each episode, shape (episodes,)."""
    return np.diff(dataset.episode_start, append=dataset.rows)


def episode_returns(dataset: Dataset, discount: float = 1.0) -> np.ndarray:
    """Return Σ discount^t reward_t of each episode, shape (episodes,), in float64."""
    start, found = dataset.episode_start, []
    for episodes in _episode_blocks(dataset):
        first, stop = start[episodes.start], _stop(dataset, episodes.stop)
        of_block = start[episodes] - first
        lengths = np.diff(of_block, append=stop - first)
        time = np.arange(stop - first) - np.repeat(of_block, lengths)
        weighted = dataset.reward[first:stop].astype(np.float64) * float(discount) ** time
        found.append(np.add.reduceat(weighted, of_block))
    return np.concatenate(found)


def _episode_blocks(dataset: Dataset, rows: int = 2**20) -> Iterator[slice]:
    """Yield slices of episodes that together have about this number of rows, at least one each."""
    first, count = 0, dataset.episode_start.size
    while first < count:
        beyond = np.searchsorted(dataset.episode_start, dataset.episode_start[first] + rows)
        yield slice(first, max(int(beyond), first + 1))
        first = max(int(beyond), first + 1)


def _stop(dataset: Dataset, episode: int) -> int:
    """Return the row before which an episode starts, or the number of rows after the last one."""
    start = dataset.episode_start
    return dataset.rows if episode >= start.size else int(start[episode])


def discounted_returns(dataset: Dataset, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the discounted sum of rewards from each step to the end of its episode, shape (rows,).

    With increasing row numbers `rows`, only the sums from these are computed and returned.

    Examples:
        >>> from fat2thin.data import load
        >>> dataset = load("treatment/cubic@2")
        >>> returns = discounted_returns(dataset)
        >>> bool(np.isclose(returns[0], dataset.reward[0] + dataset.discount * returns[1]))
        True
    """
    rows = np.arange(dataset.rows) if rows is None else rows
    found = np.empty(len(rows))
    episode = np.searchsorted(dataset.episode_start, rows, side="right") - 1
    for number in np.unique(episode).tolist():
        first, last = np.searchsorted(episode, (number, number + 1))
        start = int(rows[first])
        returns = np.asarray(dataset.reward[start : _stop(dataset, number + 1)]).astype(np.float64)
        for row in range(len(returns) - 2, -1, -1):
            returns[row] += dataset.discount * returns[row + 1]
        found[first:last] = returns[rows[first:last] - start]
    return found


class Reachable(NamedTuple):
    """The smallest and the largest discounted return that the rewards of a log allow."""

    low: float
    high: float

    def __str__(self) -> str:
        # Without the sign of a zero.
        return f"[{self.low + 0.0:.4g}, {self.high + 0.0:.4g}]"


def reachable_returns(*parts: Dataset, horizon: int | None = None) -> Reachable:
    """Return the range of possible discounted returns over `horizon` steps (None: infinite).

    With S = Σ discount^t over the horizon, it is [r_min S, r_max S], or, if episodes can end early,
    [min(r_min, r_min S), max(r_max, r_max S)], because an episode may then consist of one step.
    Episodes can end early if any continuation of the log is below 1. Several data sets count as
    parts of one log; the discount is that of the first.
    """
    least = min(float(part.reward.min()) for part in parts)
    largest = max(float(part.reward.max()) for part in parts)
    discount = float(parts[0].discount)
    if horizon is None:
        steps = 1.0 / (1.0 - discount) if discount < 1.0 else math.inf
    elif horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}")
    else:
        steps = float(np.sum(discount ** np.arange(horizon)))
    # Avoids 0 · inf for rewards of 0.
    low, high = (reward and reward * steps for reward in (least, largest))
    if any(part.continuation.min() < 1 for part in parts):
        low, high = min(least, low), max(largest, high)
    return Reachable(low, high)


def split(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split by episode into about this share of the rows and the rest; neither part is empty.

    Episodes are drawn in an order fixed by the seed until the number of rows is as close as
    possible to the share, so it is off by at most half an episode.

    Examples:
        >>> from fat2thin.data import load
        >>> part, rest = split(load("treatment/cubic@10"), share=0.3, seed=0)
        >>> part.episode_start.size, rest.episode_start.size
        (3, 7)
    """
    _require_share(share, below=1.0)
    if dataset.episode_start.size < 2:
        raise ValueError(f"data set {dataset.name!r} has one episode; a split by episode needs two")
    chosen = _draw(dataset, share, seed, most=dataset.episode_start.size - 1)
    others = np.setdiff1d(np.arange(dataset.episode_start.size), chosen)
    return (
        keep_episodes(dataset, chosen, f"{_percent(share)}, seed {seed}"),
        keep_episodes(dataset, others, f"the other {_percent(1 - share)}, seed {seed}"),
    )


def learned_and_held_out(
    dataset: Dataset, holdout: float, seed: int
) -> tuple[Dataset, Dataset | None]:
    """Return the training episodes and the held-out episodes (None if `holdout` is 0)."""
    if not holdout:
        return dataset, None
    check_holdout(dataset, holdout)
    held_out, learned = split(dataset, holdout, seed)
    return learned, held_out


def check_holdout(dataset: Dataset, holdout: float) -> None:
    """Raise a ValueError if no whole episode can be held out."""
    if holdout and dataset.episode_start.size < 2:
        raise ValueError(
            f"holdout={holdout:g} cannot be met: data set {dataset.name!r} has one episode, and "
            "whole episodes are held out. Set holdout=0, or mark where episodes start"
        )


def subsample(
    dataset: Dataset, *, episodes: int | None = None, share: float | None = None, seed: int
) -> Dataset:
    """Draw a number of episodes, or about this share of the rows, without replacement.

    The seed fixes the order of the draw, so a smaller subsample is part of a larger one.
    """
    if share is not None and episodes is None:
        _require_share(share)
        chosen = _draw(dataset, share, seed, most=dataset.episode_start.size)
        return keep_episodes(dataset, chosen, f"{_percent(share)}, seed {seed}")
    if episodes is None or share is not None:
        raise ValueError("give exactly one of episodes and share")
    if not 1 <= episodes <= dataset.episode_start.size:
        there = f"data set {dataset.name!r} has {dataset.episode_start.size} episodes"
        raise ValueError(f"{there}, cannot draw {episodes}")
    return keep_episodes(
        dataset, _order(dataset, seed)[:episodes], f"{episodes} episodes, seed {seed}"
    )


def best_episodes(dataset: Dataset, share: float) -> Dataset:
    """Return this share of the episodes, those with the highest returns; at least one.

    Among equal returns, earlier episodes come first.
    """
    _require_share(share)
    count = max(1, math.floor(share * dataset.episode_start.size + 0.5))
    chosen = np.argsort(-episode_returns(dataset), stable=True)[:count]
    return keep_episodes(dataset, chosen, f"best {_percent(share)}")


def concatenate(datasets: Sequence[Dataset]) -> Dataset:
    """Join data sets with equal sizes, box and discount; all or none must have propensities."""
    if not datasets:
        raise ValueError("no data sets to concatenate")
    first = datasets[0]
    for other in datasets[1:]:
        refused = f"data sets {first.name!r} and {other.name!r} cannot be joined"
        same = ("observation_columns", "action_columns", "action_low", "action_high", "discount")
        kind = ("propensity_is_density",) if first.arrays == other.arrays else ()
        for field in ("observation_size", "action_size", *same, *kind):
            ours, theirs = getattr(first, field), getattr(other, field)
            if ours != theirs:
                raise ValueError(
                    f"{refused}: {field} is {ours} in the first and {theirs} in the second"
                )
        if first.arrays != other.arrays:
            known, unknown = (first, other) if first.propensity is not None else (other, first)
            raise ValueError(
                f"{refused}: {unknown.name!r} has no propensity; "
                f"dataclasses.replace(dataset, propensity=None) removes that of {known.name!r}"
            )
    arrays: dict[str, Any] = {
        field: np.concatenate([getattr(dataset, field) for dataset in datasets])
        for field in first.arrays
    }
    rows_above = np.cumsum([0, *(dataset.rows for dataset in datasets[:-1])])
    episodes = [dataset.episode_start.size for dataset in datasets]
    arrays["episode_start"] += np.repeat(rows_above, episodes)
    name = " + ".join(dataset.name for dataset in datasets)
    origin = first.origin if len(datasets) == 1 else None
    return dataclasses.replace(first, name=name, origin=origin, allowed=None, **arrays)


def _draw(dataset: Dataset, share: float, seed: int, most: int) -> np.ndarray:
    """Return the numbers of the drawn episodes, whose rows are closest to the share."""
    order = _order(dataset, seed)
    rows = np.cumsum(episode_lengths(dataset)[order])[:most]
    return order[: int(np.argmin(np.abs(rows - share * dataset.rows))) + 1]


def _order(dataset: Dataset, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(dataset.episode_start.size)


def keep_episodes(dataset: Dataset, episodes: np.ndarray, what: str) -> Dataset:
    """Return the data set with only these episodes, by number, in the order of the log."""
    lengths = episode_lengths(dataset)
    chosen = np.isin(np.arange(lengths.size), episodes)
    start = np.cumsum(lengths[chosen]) - lengths[chosen]
    changes: dict[str, Any] = {"name": f"{dataset.name}[{what}]", "episode_start": start}
    changes["allowed"] = None  # last actions may be those of other episodes
    if is_lazy(dataset.observation):
        changes |= _lazily_kept(dataset, dataset.episode_start[chosen], lengths[chosen])
        return dataclasses.replace(dataset, **changes)
    rows = np.repeat(chosen, lengths)
    changes |= {field: getattr(dataset, field)[rows] for field in dataset.row_arrays}
    changes["origin"] = dataset.origin and dataset.origin.selected(rows)
    return dataclasses.replace(dataset, **changes)


def _lazily_kept(dataset: Dataset, starts: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    """Return the arrays with only some stretches of rows, to be read when they are needed."""
    kept = {
        field: SelectedRows(getattr(dataset, field), starts, lengths)
        for field in dataset.row_arrays
    }
    observation, following = kept["observation"], dataset.next_observation
    if isinstance(following, FollowingRows):
        # The row below the last row of a stretch belongs to another one.
        before = np.cumsum(lengths) - lengths
        stretch = np.searchsorted(starts, following.apart, side="right") - 1
        offset = following.apart - starts[stretch]
        inside = (stretch >= 0) & (offset < lengths[stretch])
        apart = np.union1d((before[stretch] + offset)[inside], before + lengths - 1)
        values = following[observation.numbers(apart)]
        return {**kept, "next_observation": FollowingRows(observation, apart, values)}
    return kept


def _require_share(share: float, below: float = math.inf) -> None:
    if not (0 < share <= 1 and share < below):
        end = "1)" if below == 1 else "1]"
        raise ValueError(f"a share must lie in (0, {end}, got {share}")


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


def _close_up(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Move the kept rows to the top of the array, in place, and return them."""
    stop = 0
    for block in blocks(array):
        part = array[block][kept[block]]
        array[stop : stop + len(part)] = part
        stop += len(part)
    return array[:stop]
