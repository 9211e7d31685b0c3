"""The checks that yield errors: types, shapes, order and cells."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fat2thin.data import long_work
from fat2thin.data.checks.findings import Finding, Names, in_rows
from fat2thin.data.dataset import (
    Dataset,
    is_box,
    not_a_density,
    not_a_flag,
    not_a_probability,
    not_finite,
)
from fat2thin.data.operations import Box
from fat2thin.data.row_arrays import FoundRows, Rows, find_rows

FLOAT32_LARGEST = float(np.finfo(np.float32).max)


class Order(NamedTuple):
    """The episode and time columns of a table."""

    episode: np.ndarray
    """Shape (rows,): episode labels of any type."""
    time: np.ndarray
    """Shape (rows,): numbers or dates that increase within an episode."""


Arrays = dict[str, Rows]  # the arrays of a log by name


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


def wrong_values(
    arrays: Arrays, names: Names, finite: bool, is_density: bool = False
) -> Iterator[Finding]:
    """Yield the errors in cells: invalid flags, numbers and propensities.

    `finite` says that all numbers are known to be finite in float32, `is_density` that propensities
    may exceed 1.
    """
    for name in ("terminal", "cut"):
        yield from in_rows(
            "flag", name, find_rows(arrays[name], not_a_flag),
            f"is neither 0 nor 1 in {{count}} of {len(arrays[name])} rows",
            "Write flags as 0 and 1, or as false and true.",
        )  # fmt: skip
    for name in () if finite else number_arrays(arrays):
        yield from _in_cells(
            "not_finite", name, arrays[name], names, not_finite, "is NaN or infinite",
            "Fill the gaps by a rule that you can justify, or leave the episodes out; a column "
            "that marks missing values can be useful.",
        )  # fmt: skip
    for name in () if finite else number_arrays(arrays):
        yield from _in_cells(
            "too_large", name, arrays[name], names,
            lambda array: np.isfinite(array) & not_in_float32(array),
            f"is beyond the float32 range of ±{FLOAT32_LARGEST:.3g}",
            "Choose a larger unit, or look for a code that marks missing values.",
        )  # fmt: skip
    refused = not_a_density if is_density else not_a_probability
    if "propensity" in arrays:
        yield from _in_cells(
            "propensity", "propensity", arrays["propensity"], names,
            lambda array: np.isfinite(array) & refused(array),
            "is not above 0" if is_density else "is not above 0 and at most 1",
            "Give the probability with which the logged action was chosen, or say that it is a "
            "density: propensity_is = \"density\".",
        )  # fmt: skip


def other_hash(log: Dataset) -> Iterator[Finding]:
    """Yield an error about files that are not those that their log.json describes."""
    if log.recorded is None:
        return
    long_work.expect(sum(getattr(log, name).size for name in log.arrays))
    if dataclasses.replace(log, recorded=None).sha256 != log.sha256:
        yield Finding(
            "other_hash", "log.json", log.rows, (),
            "has another content hash than the files next to it: they were changed",
            "Convert the log again. Training trusts this hash and does not check the rows.",
        )  # fmt: skip


def not_in_float32(array: np.ndarray) -> np.ndarray:
    """Return a mask of the numbers that are NaN, infinite or too large for float32."""
    if array.dtype == np.float32:
        return ~np.isfinite(array)
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
        "episode_order", "episode", _marked(returns),
        f"comes back after another episode has begun in {{count}} of {label.size} rows",
        "Sort the rows by episode, then by time.",
    )  # fmt: skip
    time = np.asarray(order.time)
    within = np.append(False, ~begins[1:])
    yield from in_rows(
        "time_order", "time", _marked(within & np.append(False, time[1:] < time[:-1])),
        f"falls within its episode in {{count}} of {time.size} rows",
        "Sort the rows of an episode by time.",
    )  # fmt: skip
    yield from in_rows(
        "repeated_time", "time", _marked(within & np.append(False, time[1:] == time[:-1])),
        f"repeats that of the row above in {{count}} of {time.size} rows",
        "Drop the duplicates: keep one row per time.",
    )  # fmt: skip


def _marked(mask: np.ndarray) -> FoundRows:
    return find_rows(mask, lambda part: part)


def _in_cells(
    code: str, name: str, array: Rows, names: Names,
    wrong: Callable[[np.ndarray], np.ndarray], complaint: str, way_out: str,
) -> Iterator[Finding]:  # fmt: skip
    """Yield one finding for all columns of an array with a wrong cell."""
    found = find_rows(array, wrong)
    if array.ndim == 2 and found.number:
        name = names.text(name, found.columns)
    sentence = f"{complaint} in {{count}} of {len(array)} rows"
    yield from in_rows(code, name, found, sentence, way_out)
