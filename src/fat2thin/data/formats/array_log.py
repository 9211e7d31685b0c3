"""Conversion of a file of named arrays to a data set, shared by all array formats."""

import abc
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin.columns import Column, default_columns
from fat2thin.data import long_work
from fat2thin.data.dataset import (
    Dataset,
    extremes,
    not_a_density,
    not_a_flag,
    not_a_probability,
    not_finite,
    outside_box,
)
from fat2thin.data.operations import Box, RawLog, assemble
from fat2thin.data.row_arrays import Rows, blocks, find_rows
from fat2thin.data.safe_files import DataFileError, file_error, refuse_too_many_columns, several
from fat2thin.terminal_text import counted, printable

DAMAGED = "Fetch or write the file again."
DENSITY = "propensity_is_density"
"""Name of the setting that is 1 if propensities are densities, which may exceed 1."""
PROPENSITY = (
    "A propensity is a probability above 0 and at most 1. If it is the density of a continuous "
    'action, say so: propensity_is = "density" in a TOML, propensity_is_density = 1 elsewhere.'
)
COLUMNS = "fat2thin_columns"
"""The array of bytes (JSON in UTF-8) that holds names, units and transforms of the columns."""
_LARGEST_SETTING = 4096
_PASSES = 4  # about how often each cell is read, from the file and in checks
_LONGEST_COLUMNS = 2**24  # bytes
_KINDS = ("observation", "action")

NamedColumns = tuple[tuple[Column, ...], tuple[Column, ...]]
"""The columns of the observation and of the action; empty if a file has no names."""


class ArrayFile(abc.ABC):
    """A file of named arrays of numbers, which are read on demand."""

    path: Path
    resave: str  # remedy for an array that is not plain numbers
    give_box: str = "Store the real limits in the file as action_low and action_high"

    @abc.abstractmethod
    def has(self, field: str) -> bool:
        """Return whether the file has an array of this name."""

    @abc.abstractmethod
    def read(self, field: str, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Return an array, converted to this type."""

    @abc.abstractmethod
    def shape(self, field: str) -> tuple[int, ...]:
        """Return the shape that an array declares."""

    @abc.abstractmethod
    def setting(self, name: str) -> np.ndarray | None:
        """Return a small array about the log (action box, discount), or None."""

    def wrong(
        self, field: str, complaint: str, remedy: str, row: int | None = None
    ) -> DataFileError:
        """Return an error that says what is wrong with an array, and the remedy."""
        return file_error(self.path, complaint, remedy, field, row)

    def refused(self, field: str, complaint: str) -> DataFileError:
        """Return an error about an array that is not plain numbers."""
        return self.wrong(field, complaint, self.resave)

    def columns(self) -> NamedColumns:
        """Return the names, units and transforms that the file holds."""
        if not self.has(COLUMNS):
            return (), ()
        array = self.read(COLUMNS)
        whole = array.ndim == 1 and array.size <= _LONGEST_COLUMNS
        if not whole or not (array == np.clip(np.nan_to_num(array), 0, 255).astype(np.uint8)).all():
            raise self.wrong(COLUMNS, "is not a text of bytes", DAMAGED)
        try:
            return columns_from_json(json.loads(array.astype(np.uint8).tobytes()))
        except (ValueError, RecursionError) as error:
            raise self.wrong(COLUMNS, f"does not describe columns: {error}", DAMAGED) from None

    def check_setting(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise an error if a setting has more numbers than an action can have dimensions."""
        if math.prod(shape) > _LARGEST_SETTING:
            raise self.wrong(name, f"has shape {shape}", "It has one number per dimension.")


def write_npy(stream: Any, array: Rows) -> None:
    """Write an array in NumPy's format, in parts and with the low byte first."""
    dtype = array.dtype.newbyteorder("<")
    header = {"descr": dtype.str, "fortran_order": False, "shape": tuple(array.shape)}
    np.lib.format.write_array_header_1_0(stream, header)
    table = array if array.ndim else np.reshape(array, 1)
    for rows in blocks(table):
        stream.write(np.ascontiguousarray(table[rows], dtype).reshape(-1).data)


def columns_to_json(dataset: Dataset) -> dict[str, list[dict[str, Any]]] | None:
    """Return names, units and transforms as plain values; None if all are the defaults."""
    both = {kind: getattr(dataset, f"{kind}_columns") for kind in _KINDS}
    if all(columns == default_columns(kind, len(columns)) for kind, columns in both.items()):
        return None
    return {kind: [column.to_json() for column in columns] for kind, columns in both.items()}


def columns_from_json(values: Any) -> NamedColumns:
    """Return the columns that `columns_to_json` described; raise a ValueError for anything else."""
    if not isinstance(values, dict) or sorted(values) != sorted(_KINDS):
        raise ValueError("it must have lists for observation and action")
    try:
        observation, action = (tuple(map(Column.from_json, values[kind])) for kind in _KINDS)
    except (TypeError, AttributeError, OverflowError):
        raise ValueError("a column must have a name, a unit and a transform or null") from None
    return observation, action


def columns_bytes(dataset: Dataset) -> np.ndarray | None:
    """Return the array `COLUMNS` of a data set; None if it has only default names."""
    values = columns_to_json(dataset)
    return None if values is None else np.frombuffer(json.dumps(values).encode(), np.uint8)


class Layout(NamedTuple):
    """Names of a format's arrays, by default those of `Dataset`; empty if the format has none."""

    observation: str = "observation"
    action: str = "action"
    reward: str = "reward"
    terminal: str = "terminal"
    cut: str = "cut"
    next_observation: str = "next_observation"
    episode_start: str = "episode_start"
    propensity: str = "propensity"


def read_dataset(
    file: ArrayFile, layout: Layout, name: str, box: Box | None = None, unit_box: bool = False
) -> Dataset:
    """Return the data set in a file.

    Its action box is `box`, else that of the file, else ±1 with `unit_box` (a task known to have
    that box), else the range of the logged actions, with a warning.
    """
    raw = _raw_log(file, layout)
    box = box or _box(file, layout.action, raw.action, unit_box)
    _settle(file, layout.action, raw.action, box)
    try:
        return assemble(name, raw, box, reuse=True)
    except ValueError as error:
        raise file_error(file.path, f"has no usable log: {error}", "Correct the file.") from error


def float32_box(low: np.ndarray | float, high: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of an action box in float32, rounded inwards."""
    with np.errstate(over="ignore"):
        lower, upper = np.asarray(low, np.float32), np.asarray(high, np.float32)
    # In float64: compared with a float32 array, NumPy would round a plain float too.
    lower_rose = lower >= np.asarray(low, np.float64)
    upper_fell = upper <= np.asarray(high, np.float64)
    return (
        np.where(lower_rose, lower, np.nextafter(lower, np.float32(np.inf))),
        np.where(upper_fell, upper, np.nextafter(upper, np.float32(-np.inf))),
    )


def _raw_log(file: ArrayFile, layout: Layout) -> RawLog:
    needed = layout[:4]
    for field in needed:
        if not file.has(field):
            raise file.wrong(field, "is missing", f"A log needs the arrays {', '.join(needed)}.")
    present = [field for field in dict.fromkeys(layout) if field and file.has(field)]
    long_work.expect(_PASSES * sum(math.prod(file.shape(field)) for field in present))
    observation = _table(file, layout.observation)
    rows, observation_size = observation.shape
    action = _table(file, layout.action, rows)
    reward = _column(file, layout.reward, rows)
    terminal = _flags(file, layout.terminal, rows)
    following = propensity = None
    if file.has(layout.next_observation):
        following = _table(file, layout.next_observation, rows, observation_size)
    if layout.propensity and file.has(layout.propensity):
        propensity = _column(file, layout.propensity, rows)
    numbers = (observation, action, reward, following, propensity)
    fields = (*layout[:3], layout.next_observation, layout.propensity)
    _check_finite(file, dict(zip(fields, numbers, strict=True)))
    of_density = file.setting(DENSITY) if propensity is not None else None
    is_density = of_density is not None and bool(of_density.any())
    if propensity is not None:
        wrong = not_a_density if is_density else not_a_probability
        _check_column(file, layout.propensity, propensity, wrong, "has {:g}", PROPENSITY)
    cut = _cuts(file, layout, observation, following)
    return RawLog(
        observation,
        action,
        reward,
        terminal,
        cut,
        following,
        propensity,
        is_density,
        *file.columns(),
    )


def _cuts(
    file: ArrayFile, layout: Layout, observation: np.ndarray, following: np.ndarray | None
) -> np.ndarray:
    rows = len(observation)
    marked = file.has(layout.cut)
    cut = _flags(file, layout.cut, rows) if marked else long_work.empty((rows,), bool)
    if not marked:
        cut[:] = False
    if layout.episode_start and file.has(layout.episode_start):
        cut[_starts(file, layout.episode_start, rows)[1:] - 1] = True
    elif not marked and following is not None:
        for part in blocks(following[:-1]):
            below = observation[part.start + 1 : part.stop + 1]
            cut[part] = (following[part] != below).any(axis=1)
    elif not marked:
        warnings.warn(
            f"{printable(file.path)} has neither {layout.cut!r} nor {layout.next_observation!r}: "
            f"only {layout.terminal!r} ends episodes, and the rows before and after a time limit "
            "are treated as one episode",
            stacklevel=2,
        )
    return cut


def _table(
    file: ArrayFile, field: str, rows: int | None = None, columns: int | None = None
) -> np.ndarray:
    array = file.read(field)
    if array.ndim == 2:
        refuse_too_many_columns(file.path, array.shape[1], field)
    fits = array.ndim == 2 and 0 not in array.shape
    if not fits or rows not in (None, len(array)) or columns not in (None, array.shape[1]):
        raise _misshapen(file, field, f"({rows or 'rows'}, {columns or 'columns'})", array)
    return array


def _column(file: ArrayFile, field: str, rows: int) -> np.ndarray:
    array = file.read(field)
    if array.shape not in ((rows,), (rows, 1)):
        raise _misshapen(file, field, f"({rows},)", array)
    return array.reshape(rows)


def _flags(file: ArrayFile, field: str, rows: int) -> np.ndarray:
    column = _column(file, field, rows)
    _check_finite(file, {field: column})
    complaint = "must hold 0 or 1 (no or yes), not {}"
    args = (not_a_flag, complaint, "Write the flags as booleans.")
    _check_column(file, field, column, *args)
    return np.equal(column, 1, out=long_work.empty((rows,), bool))


def _check_column(
    file: ArrayFile, field: str, column: np.ndarray, wrong: Callable[[np.ndarray], np.ndarray],
    complaint: str, remedy: str,
) -> None:  # fmt: skip
    """Raise an error if a column has a wrong cell; `complaint` shows the first one."""
    found = find_rows(column, wrong)
    if found.number:
        row = int(found.first[0])
        raise file.wrong(field, complaint.format(column[row]), remedy, row)


def _starts(file: ArrayFile, field: str, rows: int) -> np.ndarray:
    array = file.read(field, np.float64)
    if array.ndim != 1 or not 0 < array.size <= rows:
        raise _misshapen(file, field, "(episodes,)", array)
    _check_finite(file, {field: array})
    rising = array[0] == 0 and (np.diff(array) > 0).all() and array[-1] < rows
    if not rising or (array != np.floor(array)).any():
        complaint = f"must hold increasing row numbers that start with 0 and stay below {rows}"
        raise file.wrong(field, complaint, "Each number is the first row of an episode.")
    return array.astype(np.int64)


def _check_finite(file: ArrayFile, arrays: dict[str, np.ndarray | None]) -> None:
    """Raise one error for all arrays with numbers that are not finite."""
    errors = []
    for field, array in arrays.items():
        if array is None:
            continue
        wrong = find_rows(array, not_finite)
        if wrong.number:
            cells = f"{wrong.cells} cell{'s' * (wrong.cells != 1)}"
            complaint = f"is NaN, infinite or beyond float32 in {cells}"
            remedy = "Remove the episodes with these rows, or fill in the values."
            errors.append(file.wrong(field, complaint, remedy, int(wrong.first[0])))
    if errors:
        raise several(errors)


def _misshapen(file: ArrayFile, field: str, expected: str, array: np.ndarray) -> DataFileError:
    complaint = f"must have shape {expected}, not {array.shape}"
    return file.wrong(field, complaint, "Every array of a log has one row per step, at least one.")


def _box(file: ArrayFile, field: str, action: np.ndarray, unit_box: bool) -> Box:
    size = action.shape[1]
    low, high = file.setting("action_low"), file.setting("action_high")
    discount = file.setting("discount")
    if (low is None) != (high is None):
        there = "action_high" if low is None else "action_low"
        remedy = "Give both action_low and action_high, or neither."
        raise file.wrong(there, "is given without the other end", remedy)
    if low is None or high is None:
        unit = np.array(-1.0), np.array(1.0)
        low, high = unit if unit_box else _observed_box(file, field, action)
    for name, end in (("action_low", low), ("action_high", high)):
        if end.shape not in ((), (1,), (size,)) or not np.isfinite(end).all():
            complaint = f"must be one finite number or {size}, not {end.tolist()}"
            remedy = "It is an end of the action box, with one number per action dimension."
            raise file.wrong(name, complaint, remedy)
    low, high = np.broadcast_to(low, size), np.broadcast_to(high, size)
    if not (low < high).all():
        complaint = f"{low.tolist()} must lie below action_high {high.tolist()}"
        raise file.wrong("action_low", complaint, "Correct the box in the file, or pass one.")
    discount = np.array(0.99) if discount is None else discount
    if discount.size != 1 or not 0 <= discount.item() <= 1:
        complaint = f"must be one number in [0, 1], not {discount.tolist()}"
        remedy = "Correct it in the file, or pass a box with a discount."
        raise file.wrong("discount", complaint, remedy)
    return Box(tuple(low.tolist()), tuple(high.tolist()), discount.item())


def _observed_box(file: ArrayFile, field: str, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of the logged actions, with a warning."""
    low, high = extremes(action)
    if (low == high).any():
        still = int(np.argmax(low == high))
        complaint = f"never changes in dimension {still}, and there is no action box"
        raise file.wrong(field, complaint, f"{file.give_box}.")
    shown = " to ".join(f"[{', '.join(f'{number:g}' for number in end)}]" for end in (low, high))
    warnings.warn(
        f"{file.path} has no action box: using the range of the logged actions, {shown}. "
        f"{file.give_box}",
        stacklevel=2,
    )
    return low, high


def _settle(file: ArrayFile, field: str, action: np.ndarray, box: Box) -> None:
    """Clip actions that only rounding to float32 put outside the box; refuse any others outside."""
    if not len(box.low) == len(box.high) == action.shape[1]:
        box_ends = f"the action box {len(box.low)} and {len(box.high)}"
        complaint = f"has {action.shape[1]} dimensions and {box_ends}"
        remedy = "Give a box with a low and a high end per dimension."
        raise file.wrong(field, complaint, remedy)
    low, high = np.array(box.low), np.array(box.high)
    slack = np.finfo(np.float32).eps * np.maximum(abs(low), abs(high))
    with np.errstate(over="ignore"):
        outside = find_rows(action, lambda part: outside_box(part, low - slack, high + slack))
    if outside.number:
        raise file.wrong(
            field,
            f"leaves the action box {low.tolist()} to {high.tolist()} in "
            f"{counted(outside.number, 'row')}, ranging from {action.min(axis=0).tolist()} to "
            f"{action.max(axis=0).tolist()}",
            "Pass the box that the actions were made for, or store it as action_low and "
            "action_high.",
            int(outside.first[0]),
        )
    np.clip(action, *float32_box(low, high), out=action)
