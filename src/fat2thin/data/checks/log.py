"""A log prepared for the checks: its usable rows, ranges, episodes, names and box."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fat2thin.data.checks import form
from fat2thin.data.checks.findings import Finding, Names
from fat2thin.data.checks.form import Arrays
from fat2thin.data.dataset import Extremes, Origin, extremes
from fat2thin.data.operations import Box
from fat2thin.data.row_arrays import (
    FoundRows,
    MarkedRows,
    RowArray,
    Rows,
    SelectedRows,
    find_rows,
    row_numbers,
)

CONSTANT_SPREAD = 1e-6
"""Range of a column, relative to its magnitude, that counts as constant: float32 has 7 digits."""
_RANGED = ("observation", "action", "reward")


class CheckedLog(NamedTuple):
    """The finite rows of a log with valid shapes and types."""

    rows: int
    in_file: Callable[[np.ndarray], np.ndarray]  # the rows of the file that rows of the log are
    arrays: Arrays  # numbers only; next_observation and propensity if known
    names: Names
    extremes: dict[str, Extremes]  # of observation, action and reward
    breaks: np.ndarray  # rows below which is another episode, or nothing
    lengths: np.ndarray  # rows per episode of the whole log
    starts: np.ndarray  # first row of each episode of the whole log, as a row of the file
    ends: int  # number of true ends in the whole log
    shifted: bool  # whether next observations were taken from the row below
    copies: np.ndarray  # rows of the file without a place in the log that repeat the row above
    low: np.ndarray  # lower end of the action box, shape (columns,); empty without a box
    high: np.ndarray

    def follows(self, rows: slice) -> np.ndarray:
        """Return whether the row below belongs to the same episode, for some rows."""
        return ~MarkedRows(self.rows, self.breaks)[rows]

    def find(self, array: str, holds: Callable[[np.ndarray], np.ndarray]) -> FoundRows:
        """Return the rows of an array that have a cell for which `holds` is true."""
        return find_rows(self.arrays[array], holds)

    def in_columns(
        self, code: str, array: str, columns: np.ndarray, sentence: str, way_out: str
    ) -> Finding:
        """Return a finding about whole columns."""
        return Finding(code, self.names.text(array, columns), columns.size, (), sentence, way_out)


def unusable_rows(arrays: Arrays) -> np.ndarray:
    """Return the numbers of the rows with a cell that is not finite in float32."""
    names = form.number_arrays(arrays)
    found = (row_numbers(arrays[name], form.not_in_float32) for name in names)
    return np.unique(np.concatenate([*found]))


def prepare(
    arrays: Arrays, unusable: np.ndarray, names: Names, box: Box | None, origin: Origin | None
) -> CheckedLog:
    """Return the log without its unusable rows."""
    count = len(arrays["reward"])
    ends, cuts = (row_numbers(arrays[name], lambda part: part == 1) for name in ("terminal", "cut"))
    last = np.union1d(np.union1d(ends, cuts), count - 1)
    starts = np.append(0, last[:-1] + 1)
    dropped = np.zeros(0, int) if origin is None else np.flatnonzero(~origin.kept)
    rows = count - unusable.size

    def in_file(numbers: np.ndarray) -> np.ndarray:
        return _without(_without(numbers, unusable), dropped)

    # A row above an unusable one is followed by nothing.
    breaks = np.setdiff1d(np.union1d(last, unusable - 1), np.append(unusable, -1))
    numbers = {name: _left(arrays[name], unusable) for name in form.number_arrays(arrays)}
    return CheckedLog(
        rows=rows,
        in_file=in_file,
        arrays=numbers,
        names=names,
        extremes={name: extremes(numbers[name]) for name in _RANGED if rows},
        breaks=np.union1d(breaks - np.searchsorted(unusable, breaks), max(rows - 1, 0)),
        lengths=np.diff(starts, append=count),
        starts=_without(starts, dropped),
        ends=ends.size,
        shifted=origin is not None and origin.shifted,
        copies=np.zeros(0, int) if origin is None else origin.copies,
        low=np.asarray(box.low if box else ()),
        high=np.asarray(box.high if box else ()),
    )


def _without(numbers: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return the numbers that rows have in an array from which no row was removed."""
    return numbers + np.searchsorted(removed - np.arange(removed.size), numbers, side="right")


def _left(array: Rows, unusable: np.ndarray) -> Rows:
    if not unusable.size:
        return array
    if not isinstance(array, RowArray):
        return np.delete(array, unusable, axis=0)
    starts = np.append(0, unusable + 1)
    lengths = np.append(unusable, len(array)) - starts
    return SelectedRows(array, starts[lengths > 0], lengths[lengths > 0])


def never_changes(seen: Extremes) -> np.ndarray:
    """Return a mask of the constant columns, shape (columns,)."""
    return seen.high - seen.low <= CONSTANT_SPREAD * size_of(seen)


def size_of(seen: Extremes) -> np.ndarray:
    """Return the largest absolute value of each column, shape (columns,)."""
    return np.maximum(np.abs(seen.low), np.abs(seen.high))
