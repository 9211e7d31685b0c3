"""Checks of a log before anything is learned from it: what is wrong, and what is odd.

An error is what no data set can be made of, or what would be learned wrongly for certain. A warning
may be right: a task that never ends has no ends. A finding is one line, however many rows it is in.
Every threshold is a constant with its reason.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fat2thin.data import checks_form
from fat2thin.data.checks_form import Arrays, Finding, Order, Report, in_rows, name_columns
from fat2thin.data.dataset import Dataset, Extremes, blocks, extremes, rows_where
from fat2thin.data.operations import Box, RawLog

__all__ = ["Finding", "Order", "Report", "check"]

OTHER_UNIT = 1.0
"""Widths of the box by which actions of another unit leave it; noise leaves it by a part of one."""
NARROW_SHARE = 0.01
"""Share of the box that is hardly used: percent against fractions is a factor of 100."""
BEYOND_SHARE = 0.25
"""Share of the box's width that lies on one side of every logged action above which the box is too
wide: doses from 0 to 1 leave half of a box of ±1 untried, and uniform actions hardly anything."""
EDGE_WIDTH = 1e-3
"""Part of the box's width that counts as its edge: a tanh in float32 does not reach ±1 exactly, and
uniform actions fall that near to an end in two of a thousand cases."""
EDGE_SHARE = 0.05
"""Share of actions at one edge from which on it is worth a word: 50 times what uniform actions have
there. A pile on a point has no density, and a policy family with one cannot fit it."""
CONSTANT_SPREAD = 1e-6
"""Range of a column, beside its magnitude, up to which it is constant: float32 has seven digits."""
DUPLICATE_SHARE = 0.01
"""Share of repeated rows from which on a file was joined to itself: by chance there are none."""
REWARD_RATIO = 1000.0
"""Largest reward over the median of those that are not 0, in size: squared errors then differ by a
million, and a critic learns the few large ones alone."""
OBSERVATION_MAGNITUDE = 1e4  # size from which on a network's first layer sees little else
OBSERVATION_RATIO = 100.0
"""Size of a column over that of the smallest other one: below it one learning rate serves both."""
CHAIN_TOLERANCE = 1e-4
"""Part of a column's range by which a next observation may differ from the row below: rounding."""
SHORT_EPISODE_SHARE = 0.01
"""Part of the median length below which an episode is very short: an interrupted recording."""
_RANGED = ("observation", "action", "reward")


class _Log(NamedTuple):
    """The finite rows of a log whose shapes and types are right."""

    row: np.ndarray  # their numbers in the log
    arrays: Arrays  # of numbers; next_observation and propensity where they are known
    extremes: dict[str, Extremes]  # of observation, action and reward
    follows: np.ndarray  # whether the row after this one, in the log, is of the same episode
    lengths: np.ndarray  # rows of the episodes of the whole log
    starts: np.ndarray  # rows that the episodes of the whole log start at
    ends: int  # number of true ends in the whole log
    low: np.ndarray  # lower end of the action box, shape (columns,); empty where there is none
    high: np.ndarray


def check(log: Dataset | RawLog, box: Box | None = None, order: Order | None = None) -> Report:
    """Return what is wrong and what is odd about a log.

    A data set brings its box; for a raw log it is given, and without it nothing is said about the
    box. `order` has the columns of a table that a raw log no longer shows.
    """
    arrays, box = _arrays(log, box)
    wrong_form = tuple(checks_form.wrong_forms(arrays, box, order))
    if wrong_form:
        return Report(wrong_form)
    errors = tuple(checks_form.wrong_values(arrays))
    prepared = _prepare(arrays, box)
    if not prepared.row.size:
        return Report(errors)
    outside = _outside_box(prepared) if box else ()
    of_box = (_narrow, _wide_box, _edges) if box else ()
    of_rows = (_chain, _duplicates, _no_end, _short_episodes, _reward_scale, _observation_scale)
    odd = (finding for find in (_constant, *of_box, *of_rows) for finding in find(prepared))
    return Report((*errors, *outside), tuple(odd))


def _arrays(log: Dataset | RawLog, box: Box | None) -> tuple[dict[str, np.ndarray], Box | None]:
    if isinstance(log, Dataset):
        cut = np.zeros(log.rows, bool)
        cut[np.append(log.episode_start[1:], log.rows) - 1] = True
        box = Box(log.action_low, log.action_high, log.discount)
        terminal = log.continuation == 0
        log = RawLog(
            log.observation, log.action, log.reward, terminal, cut, log.next_observation,
            log.propensity,
        )  # fmt: skip
    present = {name: array for name, array in log._asdict().items() if array is not None}
    return {name: np.asarray(array) for name, array in present.items()}, box


def _prepare(arrays: dict[str, np.ndarray], box: Box | None) -> _Log:
    terminal = arrays["terminal"] == 1
    last = terminal | (arrays["cut"] == 1)
    last[-1] = True
    starts = np.flatnonzero(np.append(True, last[:-1]))
    numbers = {name: arrays[name] for name in checks_form.number_arrays(arrays)}
    too_large = checks_form.not_in_float32
    unusable = np.any([rows_where(too_large, array) for array in numbers.values()], axis=0)
    row = np.flatnonzero(~unusable)
    if unusable.any():
        numbers = {name: array[row] for name, array in numbers.items()}
    return _Log(
        row=row,
        arrays=numbers,
        extremes={name: extremes(numbers[name]) for name in _RANGED if row.size},
        follows=~last[row] & np.append(np.diff(row) == 1, False)[: row.size],
        lengths=np.diff(starts, append=len(last)),
        starts=starts,
        ends=int(terminal.sum()),
        low=np.asarray(box.low if box else ()),
        high=np.asarray(box.high if box else ()),
    )


def _outside_box(log: _Log) -> Iterator[Finding]:
    """Yield the actions that leave the box, which are errors."""
    low, high, logged = log.low, log.high, log.extremes["action"]
    excess = np.maximum(low - logged.low, logged.high - high)
    far = np.flatnonzero(excess > OTHER_UNIT * (high - low))
    near = np.setdiff1d(np.flatnonzero(excess > 0), far)
    unit = (
        "Actions and box seem to be in different units: bring both into the same, or correct the "
        "box."
    )
    mistake = (
        "Widen the box if such actions are allowed, correct them if they are mistakes; clip them "
        "only where they are rounding."
    )
    for code, columns, way_out in (("other_unit", far, unit), ("outside_box", near, mistake)):
        if not columns.size:
            continue
        wrong = rows_where(
            lambda rows, at=columns: (rows[:, at] < low[at]) | (rows[:, at] > high[at]),
            log.arrays["action"],
        )
        yield from in_rows(
            code, name_columns("action", columns), wrong,
            f"leaves the box in {{count}} of {log.row.size} rows: logged from "
            f"{logged.low[columns].min():g} to {logged.high[columns].max():g}, box from "
            f"{low[columns].min():g} to {high[columns].max():g}",
            way_out, log.row,
        )  # fmt: skip


def _in_columns(code: str, array: str, columns: np.ndarray, sentence: str, way_out: str) -> Finding:
    return Finding(code, name_columns(array, columns), columns.size, (), sentence, way_out)


def _constant(log: _Log) -> Iterator[Finding]:
    ways_out = {
        "observation": "It tells a policy nothing; leave it out, or look why it was not recorded.",
        "action": "Nothing can be learned about what was never tried; leave it out, or look for "
        "the column that was varied.",
        "reward": "Every policy is as good as any other; look for the right column.",
    }
    for name, way_out in ways_out.items():
        columns = np.flatnonzero(never_changes(log.extremes[name]))
        if not columns.size or log.row.size == 1:
            continue
        label = "reward" if name == "reward" else name_columns(name, columns)
        first = log.arrays[name].reshape(log.row.size, -1)[0, columns[0]]
        value = f"is {first:g} in every row" if columns.size == 1 else "never change"
        yield Finding("constant", label, columns.size, (), f"{value}, to six digits", way_out)


def _narrow(log: _Log) -> Iterator[Finding]:
    logged = log.extremes["action"]
    used = (logged.high - logged.low) / (log.high - log.low)
    narrow = np.flatnonzero((used < NARROW_SHARE) & ~never_changes(logged))
    if narrow.size:
        yield _in_columns(
            "narrow_actions", "action", narrow,
            f"uses {100 * used[narrow].max():.2g} % of the box at most",
            "Look whether actions and box are in the same unit; else narrow the box to what may "
            "be done.",
        )  # fmt: skip


def _wide_box(log: _Log) -> Iterator[Finding]:
    low, high, logged = log.low, log.high, log.extremes["action"]
    # A column that never changes, or hardly does, has a finding of its own.
    varied = ~never_changes(logged) & (logged.high - logged.low >= NARROW_SHARE * (high - low))
    for side, beyond, end in (
        ("below", (logged.low - low) / (high - low), logged.low),
        ("above", (high - logged.high) / (high - low), logged.high),
    ):
        columns = np.flatnonzero((beyond > BEYOND_SHARE) & varied)
        if columns.size:
            worst = int(columns[np.argmax(beyond[columns])])
            where = f" (action[{worst}])" if columns.size > 1 else ""
            yield _in_columns(
                "wide_box", "action", columns,
                f"was never {side} {end[worst]:g}, and {100 * beyond[worst]:.3g} % of the box from "
                f"{low[worst]:g} to {high[worst]:g} lies there{where}",
                "A policy may act where nothing was tried: write the limits that hold as the box, "
                "or narrow it to what was logged.",
            )  # fmt: skip


def _edges(log: _Log) -> Iterator[Finding]:
    action, low, high = log.arrays["action"], log.low, log.high
    margin = EDGE_WIDTH * (high - low)
    varied = ~never_changes(log.extremes["action"])
    for edge, start, stop in (("low", low, low + margin), ("high", high - margin, high)):
        at_edge = (action >= start) & (action <= stop)
        share = at_edge.mean(axis=0)
        columns = np.flatnonzero((share >= EDGE_SHARE) & varied)
        if columns.size:
            yield from in_rows(
                "at_edge", name_columns("action", columns), np.any(at_edge[:, columns], axis=1),
                f"lies at the {edge} edge of the box in {100 * share[columns].max():.3g} % of "
                "the rows",
                "Say so where results are shown: a policy whose support lies inside the box puts "
                "a band there, not a point. If actions were clipped to the box, widen it.", log.row,
            )  # fmt: skip


def _chain(log: _Log) -> Iterator[Finding]:
    if "next_observation" not in log.arrays:
        return
    observation, following = log.arrays["observation"], log.arrays["next_observation"]
    seen = log.extremes["observation"]
    allowed = CHAIN_TOLERANCE * (seen.high - seen.low)
    broken = np.zeros(log.row.size, bool)
    broken[:-1] = log.follows[:-1] & rows_where(
        lambda one, other: np.abs(one.astype(np.float64) - other) > allowed,
        following[:-1],
        observation[1:],
    )
    yield from in_rows(
        "broken_chain", "next_observation", broken,
        "is not the observation of the row below in {count} of "
        f"{int(log.follows.sum())} steps inside episodes",
        "Rows may be out of order, steps left out, or episodes joined without a mark; sort "
        "them, or mark where an episode is cut.", log.row,
    )  # fmt: skip


def _duplicates(log: _Log) -> Iterator[Finding]:
    repeated = repeated_rows(tuple(log.arrays.values()))
    if repeated.mean() >= DUPLICATE_SHARE:
        yield from in_rows(
            "duplicates", "all columns", repeated,
            f"repeat an earlier row in {100 * repeated.mean():.3g} % of the rows",
            "Look whether a file was joined to itself, and drop the copies: they count twice in "
            "every mean.", log.row,
        )  # fmt: skip


def _no_end(log: _Log) -> Iterator[Finding]:
    # A time limit makes all episodes equally long; where recording stopped, the last is shorter.
    *others, last = log.lengths.tolist()
    time_limit = len({*others}) == 1 and last <= others[0]
    if not log.ends and not time_limit:
        episodes = log.lengths.size
        yield Finding(
            "no_end", "terminal", episodes, (),
            "is never true, and no time limit explains where "
            + ("the only episode stops" if episodes == 1 else f"{episodes} episodes stop"),
            "Mark the rows with which the task truly ended: without them the value of what comes "
            "after an end is learned as if there were one. A task without ends is right as it is.",
        )  # fmt: skip


def _short_episodes(log: _Log) -> Iterator[Finding]:
    median = float(np.median(log.lengths))
    short = log.lengths <= max(1.0, SHORT_EPISODE_SHARE * median)
    if short.any():
        count, first = int(short.sum()), log.starts[short][: checks_form.FIRST_ROWS]
        yield Finding(
            "short_episodes", "episodes", count, tuple(first.tolist()),
            f"are very short {count} times of {short.size}: {int(log.lengths[short].max())} rows "
            f"or fewer, the median is {median:g}",
            "Look whether recordings were interrupted or episodes marked wrongly; a task of one "
            "step is right as it is.",
        )  # fmt: skip


def _reward_scale(log: _Log) -> Iterator[Finding]:
    size = np.abs(log.arrays["reward"].astype(np.float64))
    if not size.any():
        return
    median = float(np.median(size[size > 0]))
    yield from in_rows(
        "reward_scale", "reward", size > REWARD_RATIO * median,
        f"is up to {size.max() / median:.3g} times as large as its median size {median:.3g}",
        "Look whether units were mixed or a code stands for a missing value; else scale or "
        "clip rewards by a rule that you state.", log.row,
    )  # fmt: skip


def _observation_scale(log: _Log) -> Iterator[Finding]:
    seen = log.extremes["observation"]
    size = _size(seen)
    varied = ~never_changes(seen)
    if not varied.any():
        return
    smallest = size[varied].min()
    bound = max(OBSERVATION_MAGNITUDE, OBSERVATION_RATIO * smallest)
    large = np.flatnonzero(varied & (size > bound))
    if large.size:
        yield _in_columns(
            "observation_scale", "observation", large,
            f"reaches {size[large].max():.3g}, another column {smallest:.3g} at most",
            "Standardise the observations, or choose units that make the columns alike; a time "
            "stamp or a number of a patient is no observation.",
        )  # fmt: skip


def never_changes(seen: Extremes) -> np.ndarray:
    """Return which columns are constant, shape (columns,)."""
    return seen.high - seen.low <= CONSTANT_SPREAD * _size(seen)


def _size(seen: Extremes) -> np.ndarray:
    return np.maximum(np.abs(seen.low), np.abs(seen.high))


def repeated_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Shape (rows,), bool: in float32 the row equals one above it, in all of these finite arrays.

    Rows of one 64-bit hash are compared with the first of them, and those that differ from it once
    more among themselves, so that the answer is exact.
    """
    tables = [array.reshape(len(array), -1) for array in arrays]
    hashes = _hashes(tables)
    repeated = np.zeros(len(hashes), bool)
    left = np.arange(len(hashes))
    while left.size:
        order = left[np.argsort(hashes[left], stable=True)]
        begins = np.append(True, np.diff(hashes[order]) != 0)
        first = order[begins][np.cumsum(begins) - 1]
        row, first = order[~begins], first[~begins]
        equal = _equal(tables, row, first)
        repeated[row[equal]] = True
        left = np.sort(row[~equal])
    return repeated


def _hashes(tables: list[np.ndarray]) -> np.ndarray:
    """Return 64 bits for each row: its words of 32 bits times random odd numbers."""
    # Different rows with the same hash cost time, not truth, so any seed will do.
    draw = np.random.default_rng(0)
    hashes = np.zeros(len(tables[0]), np.uint64)
    for table in tables:
        factors = draw.integers(2**63, size=table.shape[1], dtype=np.uint64) * 2 + 1
        for rows in blocks(table):
            # The sum turns −0 into 0: equal numbers, different bytes.
            words = (table[rows].astype(np.float32) + 0.0).view(np.uint32)
            hashes[rows] += words.astype(np.uint64) @ factors
    return hashes


def _equal(tables: list[np.ndarray], row: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return whether the rows of these two numbers are equal, pair by pair."""
    equal = np.ones(len(row), bool)
    for table in tables:
        for pairs in blocks(np.broadcast_to(row[:, None], (len(row), table.shape[1]))):
            one, two = (table[numbers[pairs]].astype(np.float32) for numbers in (row, other))
            equal[pairs] &= (one == two).all(axis=1)
    return equal
