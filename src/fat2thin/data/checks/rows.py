"""Checks of rows and episodes: order, repeated rows, ends and lengths."""

from collections.abc import Iterator, Sequence

import numpy as np

from fat2thin.data.checks.findings import FIRST_ROWS, Finding, in_rows
from fat2thin.data.checks.log import CheckedLog
from fat2thin.data.dataset import rows_where
from fat2thin.data.row_arrays import blocks

DUPLICATE_SHARE = 0.01
"""Share of repeated rows that suggests a file joined to itself: none repeat by chance."""
CHAIN_TOLERANCE = 1e-4
"""Allowed difference of a next observation from the row below, as a share of the column's range:
rounding."""
SHORT_EPISODE_SHARE = 0.01
"""Share of the median length below which an episode is very short: an interrupted recording."""


def chain(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about next observations that are not those of the row below."""
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


def duplicates(log: CheckedLog) -> Iterator[Finding]:
    """Yield warnings about rows that repeat the row above, and about many other repeated rows."""
    above = _repeats_above(log)
    repeated = repeated_rows(tuple(log.arrays.values())) & ~above
    rows = np.union1d(log.row[above], log.copies)
    if rows.size:
        yield Finding(
            "repeats_above", "observation, action and reward", rows.size,
            tuple(rows[:FIRST_ROWS].tolist()),
            f"repeat those of the row above in {rows.size} of {log.row.size + log.copies.size} "
            "rows",
            "Drop the rows that were entered twice: they count twice in every mean, and as steps "
            "on which nothing changed. Rows of different times may be equal if values are carried "
            "forward.",
        )  # fmt: skip
    if repeated.mean() >= DUPLICATE_SHARE:
        yield from in_rows(
            "duplicates", "all columns", repeated,
            f"repeat an earlier row in {100 * repeated.mean():.3g} % of the rows",
            "Check whether a file was joined to itself, and drop the copies: they count twice in "
            "every mean.", log.row,
        )  # fmt: skip


def _repeats_above(log: CheckedLog) -> np.ndarray:
    """Return a mask of the rows equal to the row above in their episode, compared in float32.

    Next observations taken from the row below are not compared: those of a row and of its copy
    differ. Where they were logged, a step on which nothing changed is not a copy.
    """
    arrays = dict(log.arrays)
    following = arrays.pop("next_observation", None)
    repeats = np.append(False, log.follows[:-1])
    if following is not None and not log.shifted:
        arrays["next_observation"] = following
        repeats &= _differ(following, arrays["observation"])
    for array in arrays.values():
        repeats[1:] &= ~_differ(array[1:], array[:-1])
    return repeats


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that differ in float32."""
    return rows_where(lambda x, y: x.astype(np.float32) != y.astype(np.float32), one, other)


def no_end(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about a log without a true end, unless a time limit explains it."""
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


def one_episode(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about a log with a single episode."""
    if log.lengths.size == 1:
        yield Finding(
            "one_episode", "log", 1, (), "has only one episode",
            "Nothing can be held out, and no interval over episodes can be given. Check the "
            "column that labels episodes, or mark where they end.",
        )  # fmt: skip


def short_episodes(log: CheckedLog) -> Iterator[Finding]:
    """Yield a warning about episodes much shorter than the others."""
    median = float(np.median(log.lengths))
    short = log.lengths <= max(1.0, SHORT_EPISODE_SHARE * median)
    if short.any():
        count, first = int(short.sum()), log.starts[short][:FIRST_ROWS]
        longest = int(log.lengths[short].max())
        yield Finding(
            "short_episodes", "episodes", count, tuple(first.tolist()),
            f"are very short in {count} of {short.size} cases: at most {longest} "
            f"row{'s' * (longest != 1)}, the median is {median:g}",
            "Check whether recordings were interrupted or episodes marked wrongly. If the task has "
            "one step, ignore this warning.",
        )  # fmt: skip


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
