"""A log prepared for the checks: its usable rows, ranges, episodes, names and box."""

from typing import NamedTuple

import numpy as np

from fat2thin.data.checks import form
from fat2thin.data.checks.findings import Finding, Names
from fat2thin.data.checks.form import Arrays
from fat2thin.data.dataset import Extremes, Origin, extremes, rows_where
from fat2thin.data.operations import Box

CONSTANT_SPREAD = 1e-6
"""Range of a column, relative to its magnitude, that counts as constant: float32 has 7 digits."""
_RANGED = ("observation", "action", "reward")


class CheckedLog(NamedTuple):
    """The finite rows of a log with valid shapes and types."""

    row: np.ndarray  # row numbers in the file
    arrays: Arrays  # numbers only; next_observation and propensity if known
    names: Names
    extremes: dict[str, Extremes]  # of observation, action and reward
    follows: np.ndarray  # whether the next row of the log belongs to the same episode
    lengths: np.ndarray  # rows per episode of the whole log
    starts: np.ndarray  # first row of each episode of the whole log, as a row of the file
    ends: int  # number of true ends in the whole log
    shifted: bool  # whether next observations were taken from the row below
    copies: np.ndarray  # rows of the file without a place in the log that repeat the row above
    low: np.ndarray  # lower end of the action box, shape (columns,); empty without a box
    high: np.ndarray

    def in_columns(
        self, code: str, array: str, columns: np.ndarray, sentence: str, way_out: str
    ) -> Finding:
        """Return a finding about whole columns."""
        return Finding(code, self.names.text(array, columns), columns.size, (), sentence, way_out)


def prepare(arrays: Arrays, names: Names, box: Box | None, origin: Origin | None) -> CheckedLog:
    """Return the usable rows of a log."""
    terminal = arrays["terminal"] == 1
    last = terminal | (arrays["cut"] == 1)
    last[-1] = True
    starts = np.flatnonzero(np.append(True, last[:-1]))
    in_file = np.arange(len(last)) if origin is None else np.flatnonzero(origin.kept)
    numbers = {name: arrays[name] for name in form.number_arrays(arrays)}
    unusable = np.any(
        [rows_where(form.not_in_float32, array) for array in numbers.values()], axis=0
    )
    row = np.flatnonzero(~unusable)
    if unusable.any():
        numbers = {name: array[row] for name, array in numbers.items()}
    return CheckedLog(
        row=in_file[row],
        arrays=numbers,
        names=names,
        extremes={name: extremes(numbers[name]) for name in _RANGED if row.size},
        follows=~last[row] & np.append(np.diff(row) == 1, False)[: row.size],
        lengths=np.diff(starts, append=len(last)),
        starts=in_file[starts],
        ends=int(terminal.sum()),
        shifted=origin is not None and origin.shifted,
        copies=np.zeros(0, int) if origin is None else origin.copies,
        low=np.asarray(box.low if box else ()),
        high=np.asarray(box.high if box else ()),
    )


def never_changes(seen: Extremes) -> np.ndarray:
    """Return a mask of the constant columns, shape (columns,)."""
    return seen.high - seen.low <= CONSTANT_SPREAD * size_of(seen)


def size_of(seen: Extremes) -> np.ndarray:
    """Return the largest absolute value of each column, shape (columns,)."""
    return np.maximum(np.abs(seen.low), np.abs(seen.high))
