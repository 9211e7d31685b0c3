"""Checks of a log before training; they report errors and warnings.

An error means that the log cannot be used, or that training would certainly learn something wrong.
A warning may be harmless: a task without end has no end marks. A finding covers all its rows. Each
threshold is a constant with its reason.
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
"""Excess over the box, in box widths, above which actions seem to be in another unit; noise leaves
the box by a fraction of its width."""
NARROW_SHARE = 0.01
"""Used share of the box below which the range is narrow: percent against fractions is 100 : 1."""
BEYOND_SHARE = 0.25
"""Untried share of the box on one side of all logged actions above which the box is too wide: doses
from 0 to 1 leave half of a box of ±1 untried, uniform actions almost nothing."""
EDGE_WIDTH = 1e-3
"""Share of the box's width that counts as its edge: a tanh in float32 does not reach ±1, and only
two in a thousand uniform actions are that close to an end."""
EDGE_SHARE = 0.05
"""Share of actions at one edge that is reported: 50 times that of uniform actions. Many actions at
one point have no density, so a policy with a density cannot fit them."""
CONSTANT_SPREAD = 1e-6
"""Range of a column, relative to its magnitude, that counts as constant: float32 has 7 digits."""
DUPLICATE_SHARE = 0.01
"""Share of repeated rows that suggests a file joined to itself: none repeat by chance."""
REWARD_RATIO = 1000.0
"""Largest |reward| over the median of those that are not 0: above it, squared errors differ by a
factor of a million, and a critic learns only the few large ones."""
OBSERVATION_MAGNITUDE = 1e4
"""Magnitude above which a column dominates the first layer of a network."""
OBSERVATION_RATIO = 100.0
"""Magnitude of a column over that of the smallest one: below it, one learning rate suits both."""
CHAIN_TOLERANCE = 1e-4
"""Allowed difference of a next observation from the row below, as a share of the column's range:
rounding."""
SHORT_EPISODE_SHARE = 0.01
"""Share of the median length below which an episode is very short: an interrupted recording."""
_RANGED = ("observation", "action", "reward")


class _Log(NamedTuple):
    """The finite rows of a log with valid shapes and types."""

    row: np.ndarray  # row numbers in the log
    arrays: Arrays  # numbers only; next_observation and propensity if known
    extremes: dict[str, Extremes]  # of observation, action and reward
    follows: np.ndarray  # whether the next row of the log belongs to the same episode
    lengths: np.ndarray  # rows per episode of the whole log
    starts: np.ndarray  # first row of each episode of the whole log
    ends: int  # number of true ends in the whole log
    low: np.ndarray  # lower end of the action box, shape (columns,); empty without a box
    high: np.ndarray


def check(log: Dataset | RawLog, box: Box | None = None, order: Order | None = None) -> Report:
    """Return the errors and warnings about a log.

    `box` is the action box of a raw log; without it, actions are not compared with a box. A
    `Dataset` has its own. `order` holds the episode and time columns of a table, which a raw log
    does not contain.

    Example:
        >>> from fat2thin.data import load
        >>> report = check(load("treatment/cubic@10"))
        >>> report.errors, report.codes
        ((), ())
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
    columns = ("observation_columns", "action_columns")
    present = {
        name: np.asarray(array)
        for name, array in log._asdict().items()
        if array is not None and name not in columns
    }
    return present, box


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
    """Yield errors for actions outside the box."""
    low, high, logged = log.low, log.high, log.extremes["action"]
    excess = np.maximum(low - logged.low, logged.high - high)
    far = np.flatnonzero(excess > OTHER_UNIT * (high - low))
    near = np.setdiff1d(np.flatnonzero(excess > 0), far)
    unit = "Actions and box seem to be in different units: convert one of them, or correct the box."
    mistake = (
        "Widen the box if such actions are allowed, correct them if they are mistakes; clip them "
        "only if rounding put them there."
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
        "observation": "It carries no information; leave it out, or find out why it is constant.",
        "action": "Nothing can be learned about untried actions; leave the column out, or find the "
        "one that was varied.",
        "reward": "All policies look equally good; find the right column.",
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
            f"uses at most {100 * used[narrow].max():.2g} % of the box",
            "Check that actions and box are in the same unit; if so, narrow the box to the allowed "
            "actions.",
        )  # fmt: skip


def _wide_box(log: _Log) -> Iterator[Finding]:
    low, high, logged = log.low, log.high, log.extremes["action"]
    # Constant and narrow columns have findings of their own.
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
                f"is never {side} {end[worst]:g}, but {100 * beyond[worst]:.3g} % of the box from "
                f"{low[worst]:g} to {high[worst]:g} lies there{where}",
                "A policy may act where nothing was tried: set the box to the real limits, or to "
                "the range of the logged actions.",
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
                "Say so with your results: a policy whose support lies inside the box puts a band "
                "there, not a point. If actions were clipped to the box, widen it.", log.row,
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
        "Rows may be out of order, steps missing, or episodes joined without a mark; sort the "
        "rows, or mark where an episode is cut.", log.row,
    )  # fmt: skip


def _duplicates(log: _Log) -> Iterator[Finding]:
    repeated = repeated_rows(tuple(log.arrays.values()))
    if repeated.mean() >= DUPLICATE_SHARE:
        yield from in_rows(
            "duplicates", "all columns", repeated,
            f"repeat an earlier row in {100 * repeated.mean():.3g} % of the rows",
            "Check whether a file was joined to itself, and drop the copies: they count twice in "
            "every mean.", log.row,
        )  # fmt: skip


def _no_end(log: _Log) -> Iterator[Finding]:
    # A time limit gives all episodes the same length, except a last one that was interrupted.
    *others, last = log.lengths.tolist()
    time_limit = len({*others}) == 1 and last <= others[0]
    if not log.ends and not time_limit:
        episodes = log.lengths.size
        yield Finding(
            "no_end", "terminal", episodes, (),
            "is never true, and no time limit explains where "
            + ("the only episode stops" if episodes == 1 else f"{episodes} episodes stop"),
            "Mark the rows where the task truly ended; otherwise values are learned as if episodes "
            "continued after their end. If the task has no end, ignore this warning.",
        )  # fmt: skip


def _short_episodes(log: _Log) -> Iterator[Finding]:
    median = float(np.median(log.lengths))
    short = log.lengths <= max(1.0, SHORT_EPISODE_SHARE * median)
    if short.any():
        count, first = int(short.sum()), log.starts[short][: checks_form.FIRST_ROWS]
        longest = int(log.lengths[short].max())
        yield Finding(
            "short_episodes", "episodes", count, tuple(first.tolist()),
            f"are very short in {count} of {short.size} cases: at most {longest} "
            f"row{'s' * (longest != 1)}, the median is {median:g}",
            "Check whether recordings were interrupted or episodes marked wrongly. If the task has "
            "one step, ignore this warning.",
        )  # fmt: skip


def _reward_scale(log: _Log) -> Iterator[Finding]:
    size = np.abs(log.arrays["reward"].astype(np.float64))
    if not size.any():
        return
    median = float(np.median(size[size > 0]))
    yield from in_rows(
        "reward_scale", "reward", size > REWARD_RATIO * median,
        f"is up to {size.max() / median:.3g} times as large as its median size {median:.3g}",
        "Check whether units were mixed or a code marks missing values; otherwise scale or clip "
        "rewards, and state the rule.", log.row,
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
            f"reaches {size[large].max():.3g}, while another column stays within {smallest:.3g}",
            "Standardise the observations, or choose units with similar ranges; a time stamp or a "
            "patient number is not an observation.",
        )  # fmt: skip


def never_changes(seen: Extremes) -> np.ndarray:
    """Return a mask of the constant columns, shape (columns,)."""
    return seen.high - seen.low <= CONSTANT_SPREAD * _size(seen)


def _size(seen: Extremes) -> np.ndarray:
    return np.maximum(np.abs(seen.low), np.abs(seen.high))


def repeated_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return a mask of the rows that repeat an earlier row in all arrays, compared in float32.

    The arrays must be finite. Rows with equal 64-bit hashes are compared cell by cell, so the
    result is exact.
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
    """Return a 64-bit hash per row: its 32-bit words times random odd numbers, summed."""
    # Collisions only cost time, so any seed will do.
    draw = np.random.default_rng(0)
    hashes = np.zeros(len(tables[0]), np.uint64)
    for table in tables:
        factors = draw.integers(2**63, size=table.shape[1], dtype=np.uint64) * 2 + 1
        for rows in blocks(table):
            # Adding 0 turns −0 into 0: equal numbers with different bytes.
            words = (table[rows].astype(np.float32) + 0.0).view(np.uint32)
            hashes[rows] += words.astype(np.uint64) @ factors
    return hashes


def _equal(tables: list[np.ndarray], row: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return, per pair of row numbers, whether the two rows are equal."""
    equal = np.ones(len(row), bool)
    for table in tables:
        for pairs in blocks(np.broadcast_to(row[:, None], (len(row), table.shape[1]))):
            one, two = (table[numbers[pairs]].astype(np.float32) for numbers in (row, other))
            equal[pairs] &= (one == two).all(axis=1)
    return equal
