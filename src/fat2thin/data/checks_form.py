"""Findings and reports, and the checks that yield errors: types, shapes, order and cells."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fat2thin.data.dataset import is_box, not_a_probability, not_finite, rows_where
from fat2thin.data.operations import Box
from fat2thin.terminal_text import printable

FIRST_ROWS = 5  # most row numbers that a finding lists
FLOAT32_LARGEST = float(np.finfo(np.float32).max)
_NAMED_COLUMNS = 4


@dataclasses.dataclass(frozen=True)
class Finding:
    """One error or warning about a log, however many rows it concerns."""

    code: str
    """Short name, stable between versions."""
    column: str
    """Column ("action[0]") or whole array that it concerns."""
    count: int
    """Number of rows, columns or episodes, as the sentence says."""
    rows: tuple[int, ...]
    """First affected rows, counted from 0; empty if the finding is not about rows."""
    sentence: str
    """What is wrong; `column` is its subject."""
    way_out: str
    """What to do about it."""

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.rows) else ""
        rows = f" (row {', '.join(map(str, self.rows))}{more})" if self.rows else ""
        what = printable(f"{self.code}: {self.column} {self.sentence}{rows}")
        return f"{what}\n    {printable(self.way_out)}"


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a check; iterating yields errors, then warnings."""

    errors: tuple[Finding, ...] = ()
    """Findings that prevent training."""
    warnings: tuple[Finding, ...] = ()
    """Findings that may be harmless."""

    def __iter__(self) -> Iterator[Finding]:
        return iter((*self.errors, *self.warnings))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings, errors first."""
        return tuple(finding.code for finding in self)

    def __str__(self) -> str:
        errors, warnings = len(self.errors), len(self.warnings)
        return "\n".join((
            f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}",
            *(f"error   {finding}" for finding in self.errors),
            *(f"warning {finding}" for finding in self.warnings),
        ))  # fmt: skip


class Order(NamedTuple):
    """The episode and time columns of a table."""

    episode: np.ndarray
    """Shape (rows,): episode labels of any type."""
    time: np.ndarray
    """Shape (rows,): numbers or dates that increase within an episode."""


Arrays = dict[str, np.ndarray]  # the arrays of a log by name


def in_rows(
    code: str, column: str, wrong: np.ndarray, sentence: str, way_out: str,
    numbers: np.ndarray | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """Yield a finding if the mask `wrong` has any row; the sentence may contain {count}.

    `numbers` are the row numbers in the log; by default 0, 1, 2, …
    """
    found = np.flatnonzero(wrong)
    if found.size:
        first = found[:FIRST_ROWS] if numbers is None else numbers[found[:FIRST_ROWS]]
        sentence = sentence.format(count=found.size)
        yield Finding(code, column, found.size, tuple(first.tolist()), sentence, way_out)


def name_columns(array: str, columns: np.ndarray) -> str:
    """Return the names of columns as text; of many, only the first."""
    names = [f"{array}[{column}]" for column in columns[:_NAMED_COLUMNS]]
    left = len(columns) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")


def wrong_forms(arrays: Arrays, box: Box | None, order: Order | None) -> Iterator[Finding]:
    """Yield the errors that make other checks impossible: types, shapes, box, order of rows."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            yield Finding(
                "type", name, array.size, (), f"holds {array.dtype}, not numbers",
                "Convert words or dates to numbers, one column per category.",
            )  # fmt: skip
    yield from _lengths(arrays)
    yield from _box(arrays, box)
    if order is not None:
        yield from _order(order)


def wrong_values(arrays: Arrays) -> Iterator[Finding]:
    """Yield the errors in cells: invalid flags, numbers and propensities."""
    for name in ("terminal", "cut"):
        yield from in_rows(
            "flag", name, ~np.isin(arrays[name], (0, 1)),
            f"is neither 0 nor 1 in {{count}} of {len(arrays[name])} rows",
            "Write flags as 0 and 1, or as false and true.",
        )  # fmt: skip
    for name in number_arrays(arrays):
        yield from _in_cells(
            "not_finite", name, arrays[name], not_finite, "is NaN or infinite",
            "Fill the gaps by a rule that you can justify, or leave the episodes out; a column "
            "that marks missing values can be useful.",
        )  # fmt: skip
    for name in number_arrays(arrays):
        yield from _in_cells(
            "too_large", name, arrays[name],
            lambda array: np.isfinite(array) & not_in_float32(array),
            f"is beyond the float32 range of ±{FLOAT32_LARGEST:.3g}",
            "Choose a larger unit, or look for a code that marks missing values.",
        )  # fmt: skip
    if "propensity" in arrays:
        yield from _in_cells(
            "propensity", "propensity", arrays["propensity"],
            lambda array: np.isfinite(array) & not_a_probability(array),
            "is not above 0 and at most 1",
            "Give the probability with which the logged action was chosen, not a density.",
        )  # fmt: skip


def not_in_float32(array: np.ndarray) -> np.ndarray:
    """Return a mask of the numbers that are NaN, infinite or too large for float32."""
    return ~(np.abs(array.astype(np.float64)) <= FLOAT32_LARGEST)


def number_arrays(arrays: Arrays) -> list[str]:
    """Return the names of the arrays that hold numbers, not flags."""
    return [name for name in arrays if name not in ("terminal", "cut")]


def _lengths(arrays: Arrays) -> Iterator[Finding]:
    rows = len(arrays["reward"]) if arrays["reward"].ndim else 0
    if not rows:
        yield Finding(
            "empty", "reward", 0, (), "has no rows", "A log needs a row for every logged step."
        )
        return
    wide = ("observation", "action", "next_observation")
    for name, array in arrays.items():
        axes = 2 if name in wide else 1
        if array.ndim != axes or len(array) != rows or (axes == 2 and not array.shape[1]):
            expected = f"({rows}, columns)" if axes == 2 else f"({rows},)"
            yield Finding(
                "length", name, abs(len(array) - rows) if array.ndim else rows, (),
                f"has shape {array.shape}, but the rewards require {expected}",
                "Every array has one row per logged step; look for a header or an extra last row.",
            )  # fmt: skip
    if "next_observation" in arrays:
        ours, theirs = arrays["observation"].shape[1:], arrays["next_observation"].shape[1:]
        if ours != theirs:
            yield Finding(
                "length", "next_observation", 1, (),
                f"has rows of shape {theirs}, observations have {ours}",
                "Name the same columns in the same order for both.",
            )  # fmt: skip


def _box(arrays: Arrays, box: Box | None) -> Iterator[Finding]:
    width = arrays["action"].shape[1] if arrays["action"].ndim == 2 else None
    if box is None or width is None:
        return
    low, high = np.asarray(box.low, float), np.asarray(box.high, float)
    if not len(low) == len(high) == width:
        complaint = f"has {width} columns, the box {len(low)} low and {len(high)} high ends"
    elif not is_box(low, high):
        complaint = f"has a box from {low} to {high}, which must be finite, low below high"
    else:
        return
    yield Finding("box", "action", width, (), complaint, "Give a low and a high end per column.")


def _order(order: Order) -> Iterator[Finding]:
    _, label = np.unique(np.asarray(order.episode), return_inverse=True)
    begins = np.append(True, label[1:] != label[:-1])
    # Rows that begin a stretch of a label, except the first stretch of each label.
    returns = begins.copy()
    starts = np.flatnonzero(begins)
    returns[starts[np.unique(label[starts], return_index=True)[1]]] = False
    yield from in_rows(
        "episode_order", "episode", returns,
        f"comes back after another episode has begun in {{count}} of {label.size} rows",
        "Sort the rows by episode, then by time.",
    )  # fmt: skip
    time = np.asarray(order.time)
    falls = np.append(False, (time[1:] <= time[:-1]) & ~begins[1:])
    yield from in_rows(
        "time_order", "time", falls,
        f"does not increase within its episode in {{count}} of {time.size} rows",
        "Sort the rows of an episode by time, and keep one row per time.",
    )  # fmt: skip


def _in_cells(
    code: str, name: str, array: np.ndarray, wrong: Callable[[np.ndarray], np.ndarray],
    complaint: str, way_out: str,
) -> Iterator[Finding]:  # fmt: skip
    """Yield one finding for all columns of an array with a wrong cell."""
    rows = rows_where(wrong, array)
    if array.ndim == 2 and rows.any():
        name = name_columns(name, np.flatnonzero(wrong(array[rows]).any(axis=0)))
    yield from in_rows(code, name, rows, f"{complaint} in {{count}} of {len(array)} rows", way_out)
