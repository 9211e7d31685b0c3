"""Read tables of states to decide on: every row is kept, and invalid cells are named.

A table has one column per observation of the policy, in any order, and may have others. A one-hot
encoded observation ("sex=f", "sex=m") may also be one column of texts ("sex").
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from numpy import ndarray

from fat2thin.columns import Column
from fat2thin.data.formats.table_columns import ColumnDetails
from fat2thin.data.formats.table_files import CsvFile, ParquetFile, damaged, open_table
from fat2thin.data.formats.table_schema import read_schema
from fat2thin.data.formats.table_values import BadCellsError, category_codes, numbers, refusal
from fat2thin.data.safe_files import default_limit, file_error
from fat2thin.terminal_text import did_you_mean

MOST_NAMED = 5
"""Rows with invalid cells that a message names one by one."""


@dataclasses.dataclass(frozen=True)
class States:
    """The states of a table, one per row."""

    observation: Float[ndarray, "rows observation"]
    """As a policy takes it; nan where a cell is invalid."""
    faults: tuple[str, ...]
    """Per row: what is wrong with its cells, empty if nothing is."""
    kept: dict[str, pa.ChunkedArray]
    """Columns that were asked for, unchanged."""
    table: CsvFile | ParquetFile
    last: Float[ndarray, "rows action"] | None = None
    """The last actions, if they were asked for: nan where there is none, inf where invalid."""

    def named_faults(self) -> list[str]:
        """Return the first invalid rows as sentences that name the file, the line and the cell."""
        bad = [row for row, fault in enumerate(self.faults) if fault]
        places = self.table.each_place(bad[:MOST_NAMED]) if bad else []
        lines = [
            f"{self.table.path}, {place}: {self.faults[row]}"
            for place, row in zip(places, bad, strict=False)
        ]
        more = len(bad) - len(lines)
        return [*lines, f"and {more:,} more rows with invalid cells"] if more else lines


def read_states(
    path: Path, columns: Sequence[Column], schema: Path | None = None, keep: Sequence[str] = (),
    last: Sequence[str] = (),
) -> States:  # fmt: skip
    """Return the states of a CSV or Parquet file for a policy with these observation columns.

    `schema` is the TOML of the log: its categories encode columns of texts. `last` are the columns
    of last actions, empty at the first step of an episode. A missing column is an error; an invalid
    cell is a fault of its row.
    """
    table = open_table(path)
    details = {} if schema is None else read_schema(schema).columns
    sources = _sources(table, columns, details)
    for name in last:
        if name not in table.columns:
            raise file_error(
                path, "is missing, and limits depend on the last action",
                "Add this column, with empty cells at the first step of an episode.", name,
            )  # fmt: skip
    for name in keep:
        if name not in table.columns:
            hint = did_you_mean(name, table.columns)
            raise file_error(path, f"has no such column{hint}", "Correct --keep.", name)
    if isinstance(table, ParquetFile):
        # A small Parquet file may declare more equal rows than fit in memory.
        size = table.row_bound * (8 * (len(columns) + len(last)) + 64)
        if size > default_limit():
            complaint = f"has {table.row_bound:,} rows, which would take {size:,} bytes"
            raise file_error(path, complaint, "Split it into several files.")
    wanted = tuple(dict.fromkeys((*(source.name for source in sources), *last, *keep)))
    blocks, faults = [np.zeros((0, len(columns)))], list[str]()
    before = [np.zeros((0, len(last)))]
    kept: dict[str, list[pa.Array]] = {name: [] for name in keep}
    try:
        for batch in table.batches(wanted):
            rows = len(batch[wanted[0]])
            block, notes = np.empty((rows, len(columns))), [list[str]() for _ in range(rows)]
            for source in sources:
                block[:, source.places] = source.read(batch[source.name], notes)
            blocks.append(block)
            before.append(np.empty((rows, len(last))))
            for place, name in enumerate(last):
                before[-1][:, place] = _last_actions(batch[name], name, notes)
            faults += ["; ".join(of_row) for of_row in notes]
            for name in keep:
                kept[name].append(batch[name])
    except pa.ArrowException as error:
        raise damaged(path, str(error)) from None
    whole = {
        name: pa.chunked_array(parts) if parts else pa.chunked_array([], pa.string())
        for name, parts in kept.items()
    }
    handed_in = np.concatenate(before) if last else None
    return States(np.concatenate(blocks), tuple(faults), whole, table, handed_in)


@dataclasses.dataclass(frozen=True)
class _Source:
    """A column of the table, and the observations that it fills."""

    name: str
    places: list[int]
    categories: tuple[str, ...] = ()
    one_hot: bool = False
    column: Column | None = None

    def read(self, cells: pa.Array, notes: list[list[str]]) -> ndarray:
        """Return the values, shape (rows, places); nan for an invalid cell, with a note."""
        values = np.full((len(cells), len(self.places)), np.nan)
        if self.categories:
            codes, good = _good_cells(
                cells, lambda part: category_codes(part, self.categories), self.name, notes
            )
            whole = codes.astype(int)
            values[good] = np.eye(len(self.categories))[whole] if self.one_hot else codes[:, None]
            return values
        read, good = _good_cells(cells, numbers, self.name, notes)
        values[good, 0] = read
        transform = self.column.transform if self.column else None
        if transform is not None:
            allowed = np.asarray([transform.allows(value) for value in values[:, 0]], bool)
            for row in np.flatnonzero(good & ~allowed):
                notes[row].append(f"{self.name} has {values[row, 0]:g}, too small for {transform}")
            values[~allowed] = np.nan
        return values


def _last_actions(cells: pa.Array, name: str, notes: list[list[str]]) -> ndarray:
    """Return last actions: nan for an empty cell, inf with a note for an invalid one."""
    known = np.asarray([not _is_empty(cell.as_py()) for cell in cells], bool)
    values, of_known = np.full(len(cells), np.nan), [notes[row] for row in np.flatnonzero(known)]
    read, good = _good_cells(cells.filter(pa.array(known)), numbers, name, of_known)
    found = np.full(len(of_known), np.inf)
    found[good] = read
    values[known] = found
    return values


def _good_cells(
    cells: pa.Array, convert: Callable[[pa.Array], ndarray], name: str, notes: list[list[str]]
) -> tuple[ndarray, ndarray]:
    """Return the values of valid cells, and a mask of them; the others get a note."""
    if refused := refusal("label", cells.type):
        for note in notes:
            note.append(f"{name} {refused[0]}")
        return np.zeros(0), np.zeros(len(cells), bool)
    good = np.ones(len(cells), bool)
    while good.any():
        try:
            part = cells if good.all() else cells.filter(pa.array(good))
            return np.asarray(convert(part), np.float64), good
        except BadCellsError as error:
            for row in np.flatnonzero(good)[error.offsets]:
                notes[row].append(f"{name} {_what(cells[int(row)], error.what)}")
                good[row] = False
    return np.zeros(0), good


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _what(cell: Any, otherwise: str) -> str:
    """Return what is wrong with one cell: errors about a column quote only its first."""
    value = cell.as_py()
    if _is_empty(value):
        return "is missing"
    if isinstance(value, str):
        shown = value if len(value) <= 40 else f"{value[:40]}…"
        return f"is {shown!r}, which cannot be used"
    return f"is {value}" if isinstance(value, int | float) else otherwise


def _sources(
    table: CsvFile | ParquetFile, columns: Sequence[Column], details: Mapping[str, ColumnDetails]
) -> list[_Source]:
    """Return what fills each observation; raise an error that names all missing columns."""
    present, found, missing = set(table.columns), list[_Source](), list[str]()
    encoded: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        name, equals, _ = column.name.rpartition("=")
        known = details.get(column.name)
        if column.name in present:
            categories = () if known is None or known.one_hot else known.categories
            found.append(_Source(column.name, [place], categories, column=column))
        elif equals and name in present:
            encoded.setdefault(name, []).append(place)
        else:
            missing.append(column.name)
    if missing:
        hint = did_you_mean(missing[0], table.columns)
        raise file_error(
            table.path, f"has no column {', '.join(map(repr, missing))}{hint}",
            f"The policy needs {', '.join(column.name for column in columns)}.",
        )  # fmt: skip
    for name, places in encoded.items():
        texts = tuple(columns[place].name.rpartition("=")[2] for place in places)
        found.append(_Source(name, places, texts, one_hot=True))
    repeated = [one.name for one in found if table.columns.count(one.name) > 1]
    if repeated:
        raise file_error(table.path, "is there twice", "Rename one of them.", repeated[0])
    return found
