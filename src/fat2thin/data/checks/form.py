"""Whether a data set can be made of a log at all: types, shapes, order, finite numbers."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from fat2thin.data.blocks import not_finite, rows_where
from fat2thin.data.checks.findings import Finding, first_rows, name_columns
from fat2thin.data.dataset import not_a_probability
from fat2thin.data.episodes import Box

FLOAT32_LARGEST = float(np.finfo(np.float32).max)


class Order(NamedTuple):
    """The columns of a table that say which episode a row belongs to, and when it happened."""

    episode: np.ndarray
    """Shape (rows,): labels of any type."""
    time: np.ndarray
    """Shape (rows,): numbers or dates that rise within an episode."""


def form(arrays: dict[str, np.ndarray], box: Box | None, order: Order | None) -> Iterator[Finding]:
    """What keeps any other check from being made: types, shapes, the box, the order of rows."""
    yield from _types(arrays)
    yield from _lengths(arrays)
    yield from _box(arrays, box)
    yield from _order(order)


def values(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
    """Cells that no data set can hold: flags that are none, numbers that are not finite."""
    yield from _flags(arrays)
    yield from _not_finite(arrays)
    yield from _too_large(arrays)
    yield from _probabilities(arrays)


def numbers(arrays: dict[str, np.ndarray]) -> list[str]:
    """Names of the arrays that hold numbers, not flags."""
    return [name for name in arrays if name not in ("terminal", "cut")]


def _types(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            yield Finding(
                "type", name, array.size, (), f"holds {array.dtype}, not numbers",
                "Turn its words or dates into numbers, one column a category.",
            )  # fmt: skip


def _lengths(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
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
                f"has shape {array.shape}, not {expected} as the rewards would have it",
                "Every array has one row a logged step; look for a header or a last row too many.",
            )  # fmt: skip
    if "next_observation" in arrays:
        ours, theirs = arrays["observation"].shape[1:], arrays["next_observation"].shape[1:]
        if ours != theirs:
            yield Finding(
                "length", "next_observation", 1, (),
                f"has rows of shape {theirs}, observations have {ours}",
                "Name the same columns in the same order for both.",
            )  # fmt: skip


def _box(arrays: dict[str, np.ndarray], box: Box | None) -> Iterator[Finding]:
    width = arrays["action"].shape[1] if arrays["action"].ndim == 2 else None
    if box is None or width is None:
        return
    low, high = np.asarray(box.low, float), np.asarray(box.high, float)
    if not len(low) == len(high) == width:
        complaint = f"has {width} columns, the box {len(low)} low and {len(high)} high ends"
    elif not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        complaint = f"has a box from {low} to {high}, which must be finite, low below high"
    else:
        return
    yield Finding("box", "action", width, (), complaint, "Give a low and a high end a column.")


def _order(order: Order | None) -> Iterator[Finding]:
    if order is None:
        return
    _, label = np.unique(np.asarray(order.episode), return_inverse=True)
    begins = np.append(True, label[1:] != label[:-1])
    seen: set[int] = set()
    returns = np.zeros(len(label), bool)
    for row in np.flatnonzero(begins):
        returns[row] = int(label[row]) in seen
        seen.add(int(label[row]))
    if returns.any():
        count = int(returns.sum())
        yield Finding(
            "episode_order", "episode", count, first_rows(returns),
            f"comes back {count} times after another episode has begun",
            "Sort the rows by episode, then by time.",
        )  # fmt: skip
    time = np.asarray(order.time)
    falls = np.append(False, (time[1:] <= time[:-1]) & ~begins[1:])
    if falls.any():
        count = int(falls.sum())
        yield Finding(
            "time_order", "time", count, first_rows(falls),
            f"does not rise in {count} rows of an episode",
            "Sort the rows of an episode by time, and keep one row a moment.",
        )  # fmt: skip


def _flags(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
    for name in ("terminal", "cut"):
        wrong = ~np.isin(arrays[name], (0, 1))
        if wrong.any():
            yield Finding(
                "flag", name, int(wrong.sum()), first_rows(wrong),
                f"is neither 0 nor 1 in {int(wrong.sum())} rows",
                "An end either is one or is none; make it 0 and 1, or false and true.",
            )  # fmt: skip


def _not_finite(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
    for name in numbers(arrays):
        yield from _by_row(
            "not_finite", name, arrays[name], not_finite, "is not a number, or infinite,",
            "Fill the gaps by a rule that you can defend, or leave the episodes out; a column "
            "that says where something was missing is information.",
        )  # fmt: skip


def _too_large(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
    def too_large(array: np.ndarray) -> np.ndarray:
        return np.isfinite(array) & (np.abs(array.astype(np.float64)) > FLOAT32_LARGEST)

    for name in numbers(arrays):
        yield from _by_row(
            "too_large", name, arrays[name], too_large,
            f"is beyond ±{FLOAT32_LARGEST:.3g}, which single precision ends at,",
            "Choose a larger unit, or look for a code that stands for a missing value.",
        )  # fmt: skip


def _probabilities(arrays: dict[str, np.ndarray]) -> Iterator[Finding]:
    def wrong(propensity: np.ndarray) -> np.ndarray:
        return np.isfinite(propensity) & not_a_probability(propensity)

    if "propensity" in arrays:
        yield from _by_row(
            "propensity", "propensity", arrays["propensity"], wrong,
            "is not above 0 and at most 1",
            "Give the probability with which the logged action was chosen; a density is none.",
        )  # fmt: skip


def _by_row(
    code: str,
    name: str,
    array: np.ndarray,
    wrong: Callable[[np.ndarray], np.ndarray],
    complaint: str,
    way_out: str,
) -> Iterator[Finding]:
    """One finding for all columns of an array in which it is wrong somewhere."""
    rows = rows_where(wrong, array)
    if rows.any():
        count = int(rows.sum())
        columns = np.flatnonzero(wrong(array[rows]).any(axis=0)).tolist()
        yield Finding(
            code, name_columns(name, columns) if array.ndim == 2 else name, count,
            first_rows(rows), f"{complaint} in {count} of {len(array)} rows", way_out,
        )  # fmt: skip
