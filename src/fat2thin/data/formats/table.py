"""Reader of CSV and Parquet files, with a small TOML that describes their columns, and of frames.

    log.toml        episode = "patient", observation = ["obs_*"], action = ["dose"], ...
    log.csv         patient,obs_weight,obs_age,dose,reward

`fat2thin.data.load("log.toml")` returns the data set. Only the columns named in the TOML are read,
in batches, straight into the arrays.
"""

import collections
import dataclasses
import functools
import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset, not_a_density, not_a_probability
from fat2thin.data.formats.array_log import PROPENSITY, float32_box
from fat2thin.data.formats.table_columns import ColumnDetails
from fat2thin.data.formats.table_files import (
    Batch,
    FrameTable,
    ParquetFile,
    TableFile,
    damaged,
    open_table,
)
from fat2thin.data.formats.table_schema import (
    Columns,
    Ends,
    TableSchema,
    read_schema,
    schema_of,
    starter,
)
from fat2thin.data.formats.table_values import (
    BadCellsError,
    Kind,
    TextCellsError,
    category_codes,
    flags,
    labels,
    numbers,
    texts_that_are_no_numbers,
    times,
)
from fat2thin.data.operations import Box, RawLog, assemble
from fat2thin.data.safe_files import (
    DataFileError,
    default_limit,
    file_error,
    refuse_too_many_columns,
    several,
)

Values = TypeVar("Values")

_KINDS: dict[str, Kind] = {"episode": "label", "time": "time", "end": "flag", "cut": "flag"}
"""Kind of the columns of each key that does not hold numbers."""
_SHOWN = 3
_MOST_CATEGORIES = 50  # different texts of a column that looks like categories
_SORT = "Sort the rows by episode, and by time within an episode."


def load(path: Path) -> Dataset:
    """Return the data set of a TOML, or of a CSV or Parquet file with such a TOML next to it."""
    raw, box, places = _read(path)
    try:
        return assemble(str(path), raw, box, reuse=True, places=places)
    except ValueError as error:
        raise file_error(path, str(error), "Correct the rows or the columns.") from None


def dataset_from_frame(frame: Any, *, name: str = "frame", **keys: Any) -> Dataset:
    """Return the data set of a pandas, polars or pyarrow table; `keys` are those of a TOML.

    Errors count the rows of the frame from 0. `columns` is a dictionary of dictionaries.
    """
    if "files" in keys:
        raise file_error(name, "files has no meaning for a frame", "Leave it out.")
    given = {key: _plain(value) for key, value in keys.items() if value is not None}
    raw, box, _ = _read_files(schema_of(Path(name), given), [FrameTable(frame, name)])
    try:
        return assemble(name, raw, box, reuse=True)
    except ValueError as error:
        raise file_error(name, str(error), "Correct the rows or the columns.") from None


def _plain(value: Any) -> Any:
    """Return tuples and arrays as lists, and numbers of NumPy as Python's, as in a TOML."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_table(path: Path) -> tuple[RawLog, Box]:
    """Return the raw log and the action box of a TOML, or of a table with a TOML next to it.

    Without next observations, the raw log has more rows than the data set, which drops the last row
    of cut episodes.
    """
    return _read(path)[:2]


def _read(path: Path) -> tuple[RawLog, Box, "_Places"]:
    schema = read_schema(path) if path.suffix.lower() == ".toml" else _schema_of(path)
    return _read_files(schema, [open_table(file) for file in schema.find_files()])


def _read_files(schema: TableSchema, files: Sequence[TableFile]) -> tuple[RawLog, Box, "_Places"]:
    columns = _common_columns(schema, files)
    slots = _slots(schema, columns)
    box = schema.box(columns["action"])
    # A small Parquet file may declare more equal rows than fit in memory.
    packed = sum(file.row_bound for file in files if isinstance(file, ParquetFile))
    width = sum(slots[key][-1].stop for key in slots)
    size, free = packed * (4 * width + 2), long_work.free_on_disk()
    if size > (limit := default_limit() if free is None else free):
        needed = f"its files have {packed} rows, which would take {size:,} bytes"
        remedy = "Convert them with `fat2thin data convert`, or use fewer files or fewer columns."
        if free is not None:
            remedy = "That much disk space is needed where the output goes. Free some, or use "
            remedy += "another disk."
        raise schema.wrong(f"{needed}; the limit is {limit:,}", remedy)
    bound = sum(file.row_bound for file in files)
    # The columns of the files, and the numbers in checks.
    long_work.expect(bound * (len(_columns_of(columns, columns)) + 2 * width))
    log = _Filling(sum(file.row_bound for file in files), columns, slots, schema)
    order = _RowOrder(schema.episode, schema.time)
    rows, first_rows = 0, []
    for file in files:
        first_rows.append(rows)
        rows = log.append(file, rows, order, box)
        order.refuse_repeated_times(file)
    if not rows:
        raise schema.wrong("its files have no rows", "A log needs at least one.")
    places = _Places(tuple(file.path for file in files), tuple(first_rows))
    return log.raw_log(rows), box, places


@dataclasses.dataclass(frozen=True)
class _Places:
    """Returns rows of a log as places in its files, as errors show them."""

    paths: tuple[Path, ...]
    first_rows: tuple[int, ...]

    def __call__(self, rows: Sequence[int]) -> list[str]:
        """Return the places of rows of the raw log, given from 0 and in order."""
        places = []
        ends = (*self.first_rows[1:], max(rows) + 1)
        for path, first, end in zip(self.paths, self.first_rows, ends, strict=True):
            inside = [row - first for row in rows if first <= row < end]
            name = f"{path.name} " if len(self.paths) > 1 else ""
            try:
                found = open_table(path).each_place(inside) if inside else []
            except DataFileError:  # the file is gone or was changed since
                found = [f"row {row + 1}" for row in inside]
            places += [f"{name}{place}" for place in found]
        return places


def _schema_of(path: Path) -> TableSchema:
    toml = path.with_suffix(".toml")
    if not os.path.lexists(toml):
        raise file_error(
            path,
            f"a file {toml.name} next to it must describe its columns",
            f"`fat2thin data template {shlex.quote(str(path))}` writes this draft, guessed from "
            f"the column names:\n\n{draft(path)}",
        )
    schema = read_schema(toml)
    if [found.resolve() for found in schema.find_files()] != [path.resolve()]:
        raise file_error(path, f"{toml.name} next to it describes other files", f"Load {toml}.")
    return schema


def draft(path: Path, folder: Path | None = None) -> str:
    """Return a draft of the TOML of a table; `folder` is the TOML's, by default the table's."""
    file = open_table(path)
    return starter(
        path,
        file.columns,
        lambda names: _observed(file, names),
        lambda names: _categories(file, names),
        folder,
    )


def _categories(file: TableFile, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return the sorted texts of each column that holds a few different texts and no number."""
    times = collections.Counter(columns)
    found: dict[str, set[str]] = {name: set() for name in columns if times[name] == 1}
    try:
        for batch in file.batches(tuple(found)) if found else ():
            for name in tuple(found):
                texts = texts_that_are_no_numbers(batch[name])
                if texts is None or len(found[name] | texts) > _MOST_CATEGORIES:
                    del found[name]
                else:
                    found[name] |= texts
            if not found:
                break
    except (DataFileError, pa.ArrowException):
        return {}
    return {name: sorted(texts) for name, texts in found.items() if texts}


def _observed(file: TableFile, columns: Sequence[str]) -> Ends | None:
    """Return the minimum and maximum of each column; None if a cell is not a number."""
    pieces = []
    try:
        for column in columns:
            file.refuse(column, "number")
        for batch in file.batches(tuple(columns)):
            cells = [numbers(batch[column]) for column in columns]
            pieces += [[(values.min(), values.max()) for values in cells]] if len(cells[0]) else []
    except (DataFileError, BadCellsError):
        pieces = []
    if not pieces:
        return None
    ends = np.asarray(pieces, np.float32)
    low, high = ends[..., 0].min(axis=0), ends[..., 1].max(axis=0)
    # The shortest text that identifies a float32.
    return [float(str(end)) for end in low], [float(str(end)) for end in high]


def _common_columns(schema: TableSchema, files: Sequence[TableFile]) -> Columns:
    """Return the columns of each key, which must be the same in all files."""
    first = schema.find_columns(files[0].columns, files[0].path)
    details = schema.details(first)
    for file in files:
        for key, names in schema.find_columns(file.columns, file.path).items():
            different = set(names) ^ set(first[key])
            if different:
                raise file_error(
                    file.path,
                    f"its {key} columns differ from those of {files[0].path}: only one file has "
                    f"{', '.join(sorted(different))}",
                    "Give all files the same columns, or list the names in the TOML.",
                )
            for place, name in enumerate(first[key]):
                encoded = bool(details[key][place].categories)
                kind = "label" if encoded else _KINDS.get(key, "number")
                try:
                    file.refuse(name, kind)
                except DataFileError:
                    twin = first["observation"][place] if key == "next_observation" else name
                    if hint := _text_hint(schema, file, key, name, twin):
                        raise file_error(file.path, "does not hold numbers", hint, name) from None
                    raise
    return first


def _text_hint(schema: TableSchema, file: TableFile, key: str, column: str, twin: str) -> str:
    """Return how to use a column that holds a few different texts; empty if it does not."""
    texts = _categories(file, [column]).get(column)
    if not texts:
        return ""
    such_as = f"It holds text such as {', '.join(map(repr, texts[:_SHOWN]))}."
    if key not in ("observation", "next_observation"):
        return f"{such_as} Write the {key} as numbers."
    return f"{such_as} {schema.how_to_encode(twin, texts)}"


class _Slot(NamedTuple):
    """A column of a file, and the columns of the array that it fills."""

    column: str
    twin: str
    """The observation of a next observation; otherwise the column itself."""
    details: ColumnDetails
    start: int
    stop: int


def _slots(schema: TableSchema, columns: Columns) -> dict[str, list[_Slot]]:
    """Return the columns of each key that holds numbers, with their places in its array."""
    slots = {}
    for key, details in schema.details(columns).items():
        if key in _KINDS:
            continue
        names = columns[key]
        twins = columns["observation"] if key == "next_observation" else names
        widths = [len(one.columns(name)) for name, one in zip(names, details, strict=True)]
        stops = [*itertools.accumulate(widths)]
        refuse_too_many_columns(schema.path, stops[-1], key)
        starts = [0, *stops[:-1]]
        slots[key] = [*map(_Slot, names, twins, details, starts, stops)]
    return slots


class _Piece(NamedTuple):
    """A batch of rows of a file."""

    file: TableFile
    batch: Batch
    first_row: int
    rows: int

    def read(
        self,
        convert: Callable[[pa.Array], Values],
        column: str,
        hint: Callable[[], str] = lambda: "",
    ) -> Values:
        """Return the converted column; an error names the rows of invalid cells.

        `hint` is asked how to use a column of text where numbers are needed.
        """
        try:
            return convert(self.batch[column])
        except BadCellsError as error:
            advice = hint() if isinstance(error, TextCellsError) else ""
            raise self.wrong(column, error.what, advice or error.way_out, error.offsets) from None
        except pa.ArrowException as error:
            raise damaged(self.file.path, str(error)) from None

    def wrong(self, column: str, what: str, way_out: str, offsets: np.ndarray) -> DataFileError:
        """Return an error about a column that names the first of these rows of the batch."""
        place = self.file.places([self.first_row + int(offset) for offset in offsets[:_SHOWN]])
        more = " and more" if len(offsets) > _SHOWN else ""
        return file_error(self.file.path, f"{what}: {place}{more}", way_out, column)


class _RowOrder:
    """Finds where episodes begin, over batches and files, and checks the order of rows.

    Without an episode column, an episode begins with every file and below every row that ends one.
    If a file starts with the label at the end of the previous file, the episode continues, unless
    its last row ended it. Otherwise labels are local to a file.
    """

    def __init__(self, episode: str | None, time: str | None) -> None:
        self._episode, self._time = episode, time
        self._label: str | None = None
        self._last_time = np.nan
        self._over = True
        self._last_row: dict[str, int] = {}
        self._repeats, self._first_repeats = 0, list[int]()  # of times, in the current file

    def begins(self, piece: _Piece, over: np.ndarray) -> np.ndarray:
        """Return a mask of the rows where an episode begins; `over` marks the rows that end one."""
        above_is_over = np.concatenate([[self._over], over[:-1]])
        if self._episode is None:
            begins = above_is_over
            begins[0] |= piece.first_row == 0
        else:
            begins = self._changes(piece, self._episode, above_is_over)
        if self._time is not None:
            time = piece.read(times, self._time)
            above = np.concatenate([[self._last_time], time[:-1]])
            falls = np.flatnonzero(~begins & (time < above))
            if falls.size:
                raise piece.wrong(self._time, "does not increase within an episode", _SORT, falls)
            repeats = piece.first_row + np.flatnonzero(~begins & (time == above))
            self._repeats += repeats.size
            self._first_repeats = [*self._first_repeats, *repeats[:_SHOWN].tolist()][:_SHOWN]
            self._last_time = time[-1]
        self._over = bool(over[-1])
        return begins

    def refuse_repeated_times(self, file: TableFile) -> None:
        """Raise an error if rows of this file, which was read, have the time of the row above."""
        if self._repeats and self._time is not None:
            rows = "1 row repeats" if self._repeats == 1 else f"{self._repeats} rows repeat"
            more = " and more" if self._repeats > _SHOWN else ""
            complaint = f"{rows} the time of the row above, in the same episode"
            place = f"{file.places(self._first_repeats)}{more}"
            remedy = "Drop the duplicates: keep one row per time."
            raise file_error(file.path, f"{complaint}: {place}", remedy, self._time)

    def _changes(self, piece: _Piece, column: str, above_is_over: np.ndarray) -> np.ndarray:
        names = piece.read(labels, column)
        below = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
        begins = np.concatenate([[names[0].as_py() != self._label], below])
        if piece.first_row == 0:
            # Single-episode files may all use label 1: only increasing time joins two files.
            begins[0] |= above_is_over[0] or self._time is None
            self._last_row = {}
        continued = np.flatnonzero(above_is_over & ~begins)
        if continued.size:
            label = names[int(continued[0])].as_py()
            complaint = f"continues episode {label!r} below the row that ended it"
            remedy = "Give the rows that follow another label, or correct the end."
            raise piece.wrong(column, complaint, remedy, continued)
        for offset in np.flatnonzero(begins).tolist():
            row, label = piece.first_row + offset, names[offset].as_py()
            if row and self._label is not None:
                self._last_row[self._label] = row - 1
            if label in self._last_row:
                ended = piece.file.places([self._last_row[label]])
                complaint = f"returns to episode {label!r}, which stopped at {ended}"
                raise piece.wrong(column, complaint, _SORT, np.array([offset]))
            self._label = label
        return begins


class _Filling:
    """Arrays with room for all rows, filled from the top; unused room takes no memory."""

    def __init__(
        self, room: int, columns: Columns, slots: dict[str, list[_Slot]], schema: TableSchema
    ) -> None:
        self._columns, self._slots, self._schema = columns, slots, schema
        try:
            self._numbers = {
                key: long_work.empty((room, places[-1].stop), np.float32)
                for key, places in slots.items()
            }
            self._terminal, self._cut = (long_work.zeros((room,), bool) for _ in range(2))
        except (MemoryError, ValueError):
            complaint = f"its files declare {room} rows, more than fit in memory"
            remedy = "Use fewer files, or write the damaged one again."
            raise schema.wrong(complaint, remedy) from None

    def append(self, file: TableFile, start: int, order: _RowOrder, box: Box) -> int:
        """Write the file to rows from `start`, and return the first row of the next file."""
        together = _columns_of(self._columns, _KINDS)
        others = [c for c in _columns_of(self._columns, self._numbers) if c not in together]
        stop = start
        for columns in file.passes(together, tuple(others)):
            stop = start
            for batch in file.batches(columns):
                piece = _Piece(file, batch, stop - start, len(batch[columns[0]]))
                if piece.rows:
                    long_work.did(piece.rows * len(columns))
                    self._write_numbers(piece, stop, box)
                    if columns[0] in together:
                        self._write_order(piece, stop, order)
                stop += piece.rows
        return stop

    def _write_numbers(self, piece: _Piece, start: int, box: Box) -> None:
        """Write the numbers of a batch; raise one error for all invalid columns."""
        errors = []
        for key, array in self._numbers.items():
            for slot in self._slots[key]:
                if slot.column not in piece.batch:
                    continue
                try:
                    values = _values(piece, key, slot, box, self._schema)
                except DataFileError as error:
                    errors.append(error)
                else:
                    rows = slice(start, start + piece.rows)
                    array[rows, slot.start : slot.stop] = values.reshape(piece.rows, -1)
        if errors:
            raise several(errors)

    def _write_order(self, piece: _Piece, start: int, order: _RowOrder) -> None:
        stop = start + piece.rows
        for key, flag in (("end", self._terminal), ("cut", self._cut)):
            for column in self._columns.get(key, ()):
                flag[start:stop] = piece.read(flags, column)
        begins = order.begins(piece, self._terminal[start:stop] | self._cut[start:stop])
        self._cut[max(start - 1, 0) : stop - 1] |= begins[0 if start else 1 :]

    def raw_log(self, rows: int) -> RawLog:
        """Return the first rows of the arrays."""
        filled: dict[str, Any] = {
            key: array[:rows, 0] if key in ("reward", "propensity") else array[:rows]
            for key, array in self._numbers.items()
        }
        for key in ("observation", "action"):
            named = (slot.details.columns(slot.column) for slot in self._slots[key])
            filled[f"{key}_columns"] = tuple(itertools.chain.from_iterable(named))
        filled |= {"terminal": self._terminal[:rows], "cut": self._cut[:rows]}
        return RawLog(propensity_is_density=self._schema.has_densities, **filled)


def _columns_of(columns: Columns, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of these keys, without duplicates."""
    return tuple(dict.fromkeys(name for key in keys for name in columns.get(key, ())))


def _values(piece: _Piece, key: str, slot: _Slot, box: Box, schema: TableSchema) -> np.ndarray:
    """Return a column of numbers, or of encoded categories with shape (rows,) or (rows, columns).

    Actions must lie in the box, and probabilities in (0, 1]. Actions and box are compared in
    float32. Actions are then clipped to the box rounded inwards to float32, so that none lies
    outside by rounding.
    """
    column, details = slot.column, slot.details
    if details.categories:
        codes = piece.read(functools.partial(category_codes, categories=details.categories), column)
        return np.eye(slot.stop - slot.start, dtype=np.float32)[codes] if details.one_hot else codes
    hint = functools.partial(_text_hint, schema, piece.file, key, column, slot.twin)
    values = piece.read(numbers, column, hint).astype(np.float32, copy=False)
    if key == "action":
        low, high = box.low[slot.start], box.high[slot.start]
        outside = np.flatnonzero((values < np.float32(low)) | (values > np.float32(high)))
        if outside.size:
            first = values[outside[0]]
            complaint = f"has {first:g}, outside the action box from {low:g} to {high:g}"
            remedy = "Correct action_low and action_high, or the rows."
            raise piece.wrong(column, complaint, remedy, outside)
        return np.clip(values, *float32_box(low, high))
    if key == "propensity":
        refused = not_a_density if schema.has_densities else not_a_probability
        wrong = np.flatnonzero(refused(values))
        if wrong.size:
            raise piece.wrong(column, f"has {values[wrong[0]]:g}", PROPENSITY, wrong)
    if details.transform is not None:
        lowest = details.transform.lowest
        wrong = np.flatnonzero(values.astype(np.float64) <= lowest)
        if wrong.size:
            complaint = f"has {values[wrong[0]]:g}, but {details.transform} needs more than"
            remedy = f"Take a larger offset for {slot.twin!r} in columns, or correct the rows."
            raise piece.wrong(column, f"{complaint} {lowest + 0.0:g}", remedy, wrong)
    return values
