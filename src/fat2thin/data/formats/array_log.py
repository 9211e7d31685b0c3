"""From the arrays of a file to a data set, whatever the file's format and names are."""

import warnings
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from fat2thin.data.blocks import extremes, not_finite, rows_where
from fat2thin.data.dataset import Dataset, not_a_probability
from fat2thin.data.episodes import Box, RawLog, assemble
from fat2thin.data.errors import DataFileError, file_error, several
from fat2thin.data.limits import refuse_too_many_columns
from fat2thin.terminal_text import printable

DISCOUNT = 0.99


@runtime_checkable
class ArrayFile(Protocol):
    """A file of named arrays of numbers, none of them read before it is asked for."""

    @property
    def path(self) -> Path:
        """Where the file is."""

    def has(self, field: str) -> bool:
        """Whether there is an array of this name."""

    def read(self, field: str, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """An array in this type, whatever type the file keeps it in."""

    def setting(self, name: str) -> np.ndarray | None:
        """A small array that says how the log is used (the box, the discount), if there is one."""


class Layout(NamedTuple):
    """What a format calls the columns of a log."""

    observation: str
    action: str
    reward: str
    terminal: str
    cut: str
    next_observation: str
    episode_start: str | None = None
    propensity: str | None = None


def read_dataset(
    file: ArrayFile, layout: Layout, name: str, box: Box | None = None, unit_box: bool = False
) -> Dataset:
    """The data set in a file, with the box that is given, or else the file's own.

    Without either it is ±1 for a task that is known to have that box (`unit_box`). For any other
    it is the range of the logged actions, and a warning says so.
    """
    raw = _raw_log(file, layout)
    box = box or _box(file, layout.action, raw.action, unit_box)
    _settle(file, layout.action, raw.action, box)
    try:
        return assemble(name, raw, box, reuse=True)
    except ValueError as error:
        raise file_error(file.path, f"holds no usable log: {error}", "Correct the file.") from error


def _raw_log(file: ArrayFile, layout: Layout) -> RawLog:
    columns = (layout.observation, layout.action, layout.reward, layout.terminal)
    for field in columns:
        if not file.has(field):
            raise file_error(
                file.path,
                "is missing",
                f"A log needs the arrays {', '.join(columns)}.",
                field,
            )
    observation = _table(file, layout.observation)
    rows, observation_size = observation.shape
    action = _table(file, layout.action, rows)
    reward = _column(file, layout.reward, rows)
    terminal = _flags(file, layout.terminal, rows)
    following = None
    if file.has(layout.next_observation):
        following = _table(file, layout.next_observation, rows, observation_size)
    propensity = None
    if layout.propensity and file.has(layout.propensity):
        propensity = _column(file, layout.propensity, rows)
    named = {
        layout.observation: observation,
        layout.action: action,
        layout.reward: reward,
        layout.next_observation: following,
        layout.propensity: propensity,
    }
    _check_finite(
        file, {field: array for field, array in named.items() if field and array is not None}
    )
    if layout.propensity and propensity is not None:
        _check_propensity(file, layout.propensity, propensity)
    cut = _cuts(file, layout, observation, following)
    return RawLog(observation, action, reward, terminal, cut, following, propensity)


def _cuts(
    file: ArrayFile, layout: Layout, observation: np.ndarray, following: np.ndarray | None
) -> np.ndarray:
    rows = len(observation)
    cut = np.zeros(rows, bool)
    told = False
    if file.has(layout.cut):
        told = True
        cut |= _flags(file, layout.cut, rows)
    if layout.episode_start and file.has(layout.episode_start):
        told = True
        cut[_starts(file, layout.episode_start, rows)[1:] - 1] = True
    if told:
        return cut
    if following is None:
        warnings.warn(
            f"{printable(file.path)} has neither {layout.cut!r} nor {layout.next_observation!r}: "
            f"only {layout.terminal!r} ends its episodes, and the rows on both sides of a time "
            "limit are taken for neighbours",
            stacklevel=2,
        )
    else:
        cut[:-1] = rows_where(np.not_equal, following[:-1], observation[1:])
    return cut


def _table(
    file: ArrayFile, field: str, rows: int | None = None, columns: int | None = None
) -> np.ndarray:
    array = file.read(field)
    expected = f"({'rows' if rows is None else rows}, {'columns' if columns is None else columns})"
    if array.ndim == 2:
        refuse_too_many_columns(file.path, array.shape[1], field)
    fits = array.ndim == 2 and 0 not in array.shape
    if not fits or rows not in (None, len(array)) or columns not in (None, array.shape[1]):
        raise _misshapen(file, field, expected, array)
    return array


def _column(file: ArrayFile, field: str, rows: int) -> np.ndarray:
    array = file.read(field)
    if array.shape not in ((rows,), (rows, 1)):
        raise _misshapen(file, field, f"({rows},)", array)
    return array.reshape(rows)


def _flags(file: ArrayFile, field: str, rows: int) -> np.ndarray:
    column = _column(file, field, rows)
    _check_finite(file, {field: column})
    wrong = (column != 0) & (column != 1)
    if wrong.any():
        row = int(wrong.argmax())
        raise file_error(
            file.path,
            f"must hold 0 or 1 (no or yes), not {column[row]}",
            "Write the flags as booleans.",
            field,
            row,
        )
    return column.astype(bool)


def _check_propensity(file: ArrayFile, field: str, column: np.ndarray) -> None:
    wrong = not_a_probability(column)
    if wrong.any():
        row = int(wrong.argmax())
        raise file_error(
            file.path,
            f"has {column[row]:g}",
            "A propensity is a probability above 0 and at most 1.",
            field,
            row,
        )


def _starts(file: ArrayFile, field: str, rows: int) -> np.ndarray:
    array = file.read(field, np.float64)
    if array.ndim != 1 or not 0 < array.size <= rows:
        raise _misshapen(file, field, "(episodes,)", array)
    _check_finite(file, {field: array})
    rising = array[0] == 0 and (np.diff(array) > 0).all() and array[-1] < rows
    if not rising or (array != np.floor(array)).any():
        raise file_error(
            file.path,
            f"must hold rising row numbers that begin with 0 and stay below {rows}",
            "Each number is the row that an episode starts at.",
            field,
        )
    return array.astype(np.int64)


def _check_finite(file: ArrayFile, arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays with a number that is none, all of them at once."""
    errors = []
    for field, array in arrays.items():
        wrong = rows_where(not_finite, array)
        if wrong.any():
            count = int(not_finite(array[wrong]).sum())
            errors.append(
                file_error(
                    file.path,
                    f"is NaN, infinite or beyond 32 bits {count} times",
                    "Remove the episodes that hold these rows, or fill the values in.",
                    field,
                    int(wrong.argmax()),
                )
            )
    if errors:
        raise several(errors)


def _misshapen(file: ArrayFile, field: str, expected: str, array: np.ndarray) -> DataFileError:
    return file_error(
        file.path,
        f"must have shape {expected}, not {array.shape}",
        "Every array of a log has a row a step, and at least one.",
        field,
    )


def _box(file: ArrayFile, field: str, action: np.ndarray, unit_box: bool) -> Box:
    size = action.shape[1]
    low, high = file.setting("action_low"), file.setting("action_high")
    discount = file.setting("discount")
    if (low is None) != (high is None):
        raise file_error(
            file.path,
            "is there without its other end",
            "Give both action_low and action_high, or neither.",
            "action_high" if low is None else "action_low",
        )
    if low is None or high is None:
        low, high = (
            (np.array(-1.0), np.array(1.0)) if unit_box else _observed_box(file, field, action)
        )
    for name, end in (("action_low", low), ("action_high", high)):
        if end.shape not in ((), (1,), (size,)) or not np.isfinite(end).all():
            raise file_error(
                file.path,
                f"must be one finite number or {size}, not {end.tolist()}",
                "It is an end of the action box, a number a coordinate.",
                name,
            )
    low, high = np.broadcast_to(low, size), np.broadcast_to(high, size)
    if not (low < high).all():
        raise file_error(
            file.path,
            f"{low.tolist()} must lie below action_high {high.tolist()}",
            "Correct the box in the file, or give one.",
            "action_low",
        )
    discount = np.array(DISCOUNT) if discount is None else discount
    if discount.size != 1 or not 0 <= discount.item() <= 1:
        raise file_error(
            file.path,
            f"must be one number in [0, 1], not {discount.tolist()}",
            "Correct it in the file, or give a box with a discount.",
            "discount",
        )
    return Box(tuple(low.tolist()), tuple(high.tolist()), discount.item())


def _observed_box(file: ArrayFile, field: str, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The range of the logged actions, with a warning that says so."""
    low, high = extremes(action)
    way_out = "Store the limits that hold in the file as action_low and action_high"
    shown = " to ".join(f"[{', '.join(f'{number:g}' for number in end)}]" for end in (low, high))
    if (low == high).any():
        raise file_error(
            file.path,
            f"never changes, and there is no action box (coordinate {int(np.argmax(low == high))})",
            f"{way_out}.",
            field,
        )
    warnings.warn(
        f"{file.path} does not say its action box: it is taken from the logged actions, "
        f"{shown}. {way_out}",
        stacklevel=2,
    )
    return low, high


def _settle(file: ArrayFile, field: str, action: np.ndarray, box: Box) -> None:
    """Refuse actions outside the box, and bring back what only rounding to 32 bits put there."""
    if not len(box.low) == len(box.high) == action.shape[1]:
        raise file_error(
            file.path,
            f"has {action.shape[1]} coordinates and the action box {len(box.low)} and "
            f"{len(box.high)}",
            "Give a box with a low and a high end for each coordinate.",
            field,
        )
    low, high = np.array(box.low), np.array(box.high)
    slack = np.finfo(np.float32).eps * np.maximum(abs(low), abs(high))
    with np.errstate(over="ignore"):
        outside = rows_where(lambda rows: (rows < low - slack) | (rows > high + slack), action)
        inner_low, inner_high = low.astype(np.float32), high.astype(np.float32)
    if outside.any():
        raise file_error(
            file.path,
            f"leaves the action box {low.tolist()} to {high.tolist()} in {int(outside.sum())} "
            f"rows, ranging from {action.min(axis=0).tolist()} to {action.max(axis=0).tolist()}",
            "Give the box that the actions were made for, or store it as action_low and "
            "action_high.",
            field,
            int(outside.argmax()),
        )
    inner_low = np.where(inner_low < low, np.nextafter(inner_low, np.float32(np.inf)), inner_low)
    inner_high = np.where(
        inner_high > high, np.nextafter(inner_high, np.float32(-np.inf)), inner_high
    )
    np.clip(action, inner_low, inner_high, out=action)
