"""Tables as logs: CSV and Parquet files, with a small TOML that says what the columns are.

    log.toml        episode = "patient", observation = ["obs_*"], action = ["dose"], ...
    log.csv         patient,obs_weight,obs_age,dose,reward

`fat2thin.data.load("log.toml")` gives the data set. Only the columns that the TOML names are read,
a piece at a time, straight into the arrays.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fat2thin.data.dataset import Dataset, not_a_probability
from fat2thin.data.episodes import Box, RawLog, assemble
from fat2thin.data.errors import DataFileError, file_error, several
from fat2thin.data.formats.table_files import SUFFIXES, ParquetFile, TableFile, open_table
from fat2thin.data.formats.table_order import Order, Piece
from fat2thin.data.formats.table_schema import Columns, TableSchema, find_files, read_schema
from fat2thin.data.formats.table_template import Ends, starter
from fat2thin.data.formats.table_values import BadCellsError, Kind, flags, numbers
from fat2thin.data.limits import default_limit

_KINDS: dict[str, Kind] = {"episode": "label", "time": "time", "end": "flag", "cut": "flag"}
"""What the columns of a key hold, where it is not numbers."""


class Table(NamedTuple):
    """A log as its files have it."""

    raw: RawLog
    """Without next observations it has more rows than the data set: the last of cut episodes."""
    box: Box


def load(path: Path) -> Dataset:
    """The data set of a TOML, or of a CSV or Parquet file with such a TOML beside it."""
    table = read_table(path)
    try:
        return assemble(str(path), table.raw, table.box, reuse=True)
    except ValueError as error:
        raise file_error(path, str(error), "Correct the rows or the columns.") from None


def read_table(path: Path) -> Table:
    """Read the files of a TOML, or a file with a TOML of the same name beside it."""
    schema = read_schema(path) if path.suffix.lower() == ".toml" else _schema_beside(path)
    files = [open_table(file) for file in find_files(schema, SUFFIXES)]
    columns = _common_columns(schema, files)
    box = schema.box(len(columns["action"]))
    _refuse_too_many(schema, files, columns)
    log = _Filling(sum(file.row_bound for file in files), columns, schema)
    order = Order(schema.episode, schema.time)
    rows = 0
    for file in files:
        rows = log.append(file, rows, order, box)
    if not rows:
        raise schema.wrong("its files have no rows", "A log needs some.")
    return log.table(rows, box)


def _schema_beside(path: Path) -> TableSchema:
    beside = path.with_suffix(".toml")
    file = open_table(path)
    if not os.path.lexists(beside):
        raise file_error(
            path,
            f"what its columns are must be said in {beside.name} beside it",
            "To start from, by the names of the columns:\n\n"
            + starter(path, file.columns, lambda names: _observed(file, names)),
        )
    schema = read_schema(beside)
    if [found.resolve() for found in find_files(schema, SUFFIXES)] != [path.resolve()]:
        raise file_error(path, f"{beside.name} beside it describes other files", f"Load {beside}.")
    return schema


def _observed(file: TableFile, columns: Sequence[str]) -> Ends | None:
    """The lowest and the highest number of each column; None where they are not all numbers."""
    pieces = []
    try:
        for column in columns:
            file.refuse(column, "number")
        for batch in file.batches(tuple(columns)):
            cells = [numbers(batch[column]) for column in columns]
            pieces += [[(values.min(), values.max()) for values in cells]] if len(cells[0]) else []
    except (DataFileError, BadCellsError):
        return None
    if not pieces:
        return None
    ends = np.asarray(pieces, np.float32)
    # As few digits as tell a float32 from its neighbours.
    low, high = (
        [float(str(end)) for end in several]
        for several in (ends[..., 0].min(axis=0), ends[..., 1].max(axis=0))
    )
    return low, high


def _common_columns(schema: TableSchema, files: list[TableFile]) -> Columns:
    """The columns of each key in the first file, which every other file must have as well."""
    first = schema.columns(files[0].columns, files[0].path)
    for file in files:
        for key, names in schema.columns(file.columns, file.path).items():
            different = set(names) ^ set(first[key])
            if different:
                raise file_error(
                    file.path,
                    f"its columns of {key} are not those of {files[0].path}: only one of them has "
                    f"{', '.join(sorted(different))}",
                    "Give all files the same columns, or list the names in the TOML.",
                )
            for name in names:
                file.refuse(name, _KINDS.get(key, "number"))
    return first


def _refuse_too_many(schema: TableSchema, files: list[TableFile], columns: Columns) -> None:
    """A small Parquet file may hold more rows of one value than memory does."""
    rows = sum(file.row_bound for file in files if isinstance(file, ParquetFile))
    size = rows * (4 * sum(len(names) for key, names in columns.items() if key not in _KINDS) + 2)
    if size > default_limit():
        raise schema.wrong(
            f"its files have {rows} rows, which would take {size:,} bytes; the limit is "
            f"{default_limit():,}",
            "Take fewer files, or fewer columns.",
        )


class _Filling:
    """Arrays with room for the rows that the files can have, filled from the top.

    Room that stays empty takes no memory.
    """

    def __init__(self, room: int, columns: Columns, schema: TableSchema) -> None:
        self._columns = columns
        try:
            self._numbers = {
                key: np.empty((room, len(names)), np.float32)
                for key, names in columns.items()
                if key not in _KINDS
            }
            self._terminal = np.zeros(room, bool)
            self._cut = np.zeros(room, bool)
        except (MemoryError, ValueError):
            raise schema.wrong(
                f"its files say that they have {room} rows, more than memory can hold",
                "Take fewer files, or write the damaged one again.",
            ) from None

    def append(self, file: TableFile, start: int, order: Order, box: Box) -> int:
        """Write the file from row `start` on; the row where the next one starts."""
        together = _columns_of(self._columns, _KINDS)
        others = _columns_of(self._columns, self._numbers)
        stop = start
        for columns in file.passes(together, tuple(c for c in others if c not in together)):
            stop = start
            for batch in file.batches(columns):
                piece = Piece(file, batch, stop - start)
                if piece.rows:
                    self._write_numbers(piece, stop, box)
                    if columns[0] in together:
                        self._write_order(piece, stop, order)
                stop += piece.rows
        return stop

    def _write_numbers(self, piece: Piece, start: int, box: Box) -> None:
        """Write the numbers of a piece; all columns that are wrong in it are one error."""
        errors = []
        for key, array in self._numbers.items():
            for place, column in enumerate(self._columns[key]):
                if column not in piece.batch:
                    continue
                try:
                    values = _values(piece, key, column, box, place)
                except DataFileError as error:
                    errors.append(error)
                else:
                    array[start : start + piece.rows, place] = values
        if errors:
            raise several(errors)

    def _write_order(self, piece: Piece, start: int, order: Order) -> None:
        stop = start + piece.rows
        for key, flag in (("end", self._terminal), ("cut", self._cut)):
            for column in self._columns.get(key, ()):
                flag[start:stop] = piece.read(flags, column)
        begins = order.begins(piece, self._terminal[start:stop] | self._cut[start:stop])
        self._cut[max(start - 1, 0) : stop - 1] |= begins[0 if start else 1 :]

    def table(self, rows: int, box: Box) -> Table:
        """The first rows of the arrays."""
        filled = {key: array[:rows] for key, array in self._numbers.items()}
        raw = RawLog(
            observation=filled["observation"],
            action=filled["action"],
            reward=filled["reward"][:, 0],
            terminal=self._terminal[:rows],
            cut=self._cut[:rows],
            next_observation=filled.get("next_observation"),
            propensity=filled["propensity"][:, 0] if "propensity" in filled else None,
        )
        return Table(raw, box)


def _columns_of(columns: Columns, keys: Iterable[str]) -> tuple[str, ...]:
    """The columns of these keys, each once."""
    return tuple(dict.fromkeys(name for key in keys for name in columns.get(key, ())))


def _values(piece: Piece, key: str, column: str, box: Box, place: int) -> np.ndarray:
    """A column of numbers, checked for what its key asks of it."""
    values = piece.read(numbers, column).astype(np.float32, copy=False)
    if key == "action":
        return _inside(piece, column, values, box.low[place], box.high[place])
    if key == "propensity":
        _check_propensity(piece, column, values)
    return values


def _inside(piece: Piece, column: str, values: np.ndarray, low: float, high: float) -> np.ndarray:
    """The actions of a column, refused outside the box.

    Both are compared in float32; an end of the box that float32 does not have is then rounded
    inwards, so that no action is outside by rounding.
    """
    outside = np.flatnonzero((values < np.float32(low)) | (values > np.float32(high)))
    if outside.size:
        raise piece.wrong(
            column,
            f"has {values[outside[0]]:g}, outside the action box from {low:g} to {high:g}",
            "Correct action_low and action_high, or the rows.",
            outside,
        )
    return np.clip(values, _rounded(low, np.inf), _rounded(high, -np.inf))


def _rounded(bound: float, towards: float) -> np.float32:
    rounded = np.float32(bound)
    # In float64: beside a float32 number NumPy would round a plain float as well.
    error = np.float64(rounded) - bound
    is_outside = error < 0 if towards > bound else error > 0
    return np.nextafter(rounded, np.float32(towards)) if is_outside else rounded


def _check_propensity(piece: Piece, column: str, values: np.ndarray) -> None:
    wrong = np.flatnonzero(not_a_probability(values))
    if wrong.size:
        raise piece.wrong(
            column,
            f"has {values[wrong[0]]:g}",
            "A propensity is a probability above 0 and at most 1.",
            wrong,
        )
