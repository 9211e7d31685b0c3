"""CSV files, Parquet files and data frames, read in batches of Arrow columns."""

import csv
import io
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from fat2thin.data.formats.table_schema import SUFFIXES
from fat2thin.data.formats.table_values import Kind, refusal
from fat2thin.data.safe_files import (
    DataFileError,
    file_error,
    open_file,
    opened_path,
    refuse_too_many_columns,
    unknown_file,
)

Batch = dict[str, pa.Array]  # some rows, one array per column name

# Batches stay small compared with the arrays that are filled. Arrow holds several blocks of a CSV
# file at once; smaller blocks are slower to read.
_CSV_BLOCK_BYTES = 1 << 18
_LARGEST_CSV_BLOCK_BYTES = 1 << 24
_CSV_BLOCKS = 128  # per large CSV file, whose blocks may be larger
_PARQUET_BATCH_ROWS = 1 << 14
_FRAME_BATCH_ROWS = 1 << 16
_PARQUET_BUFFER_BYTES = 1 << 16
_OPEN_COLUMN_BYTES = 1 << 21  # per Parquet column: a page and its dictionary, 1 MiB each
_NUMBER_BYTES = 4
_SHARE_IN_FLIGHT = 1 / 16
_LONGEST_CELL = 64  # mean bytes per cell of a line, which must fit into a block
_LONGEST_RECORD = 1 << 22  # characters of a CSV record, which may take several lines
# Of a Parquet file, which opens more slowly the more columns it has.
_LEAST_COLUMNS_AT_ONCE, _MOST_PASSES = 64, 64
_LONGEST_PARQUET_LIST = 1 << 17  # most columns, or row groups, in a Parquet footer

_SAVE_AS_UTF8 = "Save it as CSV in UTF-8."
_NAME_THE_COLUMNS = "The first line of a CSV file must name its columns."


class CsvFile:
    """A CSV file with named columns; all cells are text."""

    row_bound: int  # upper bound on the number of rows

    def __init__(self, path: Path) -> None:
        self.path = path
        with _readable(path), open_file(path) as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise file_error(path, "is UTF-16 text", _SAVE_AS_UTF8)
            self._size = os.fstat(file.fileno()).st_size
            self.row_bound = 1 + sum(
                # All kinds of line ends; a piece that ends between \r and \n counts one too many.
                piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
                for piece in iter(lambda: file.read(1 << 20), b"")
            )
        self.columns, self._header_lines = self._header()

    def refuse(self, column: str, kind: Kind) -> None:
        """Accept any column: text is converted, or refused, cell by cell."""

    def passes(self, together: tuple[str, ...], others: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the groups of columns to read at once: one group, as a line has all columns."""
        return [together + others]

    def batches(self, columns: tuple[str, ...]) -> Iterator[Batch]:
        """Yield these columns in batches of rows, in order."""
        # Arrow refuses a file with a header but no rows as too short.
        if not any(itertools.islice(self._records(), 1, 2)):
            return
        # Named by number, as unused columns may share a name.
        place = {name: str(number) for number, name in enumerate(self.columns)}
        wanted = {name: place[name] for name in columns}
        read = arrow_csv.ReadOptions(
            use_threads=False,
            block_size=max(
                _CSV_BLOCK_BYTES,
                _LONGEST_CELL * len(self.columns),
                min(self._size // _CSV_BLOCKS, _LARGEST_CSV_BLOCK_BYTES),
            ),
            skip_rows=self._header_lines,
            column_names=[str(number) for number in range(len(self.columns))],
        )
        convert = arrow_csv.ConvertOptions(
            include_columns=list(wanted.values()),
            column_types={number: pa.string() for number in wanted.values()},
        )
        parse = arrow_csv.ParseOptions(newlines_in_values=True)
        try:
            with (
                opened_path(self.path) as path,
                arrow_csv.open_csv(path, read, parse, convert) as reader,
            ):
                for batch in reader:
                    yield {name: batch.column(number) for name, number in wanted.items()}
        except pa.ArrowInvalid as error:
            raise self._unreadable(error) from None

    def places(self, rows: list[int]) -> str:
        """Return rows, given from 0, as text that counts from 1 and names the lines of the file."""
        return ", ".join(self.each_place(rows))

    def each_place(self, rows: list[int]) -> list[str]:
        """Return the place of each row as text."""
        lines: dict[int, int] = {}
        # Lines are known only as far as the file is readable.
        with suppress(DataFileError):
            records = itertools.islice(self._records(), 1, max(rows) + 2)
            wanted = set(rows)
            lines.update((row, line) for row, (line, _) in enumerate(records) if row in wanted)
        return [
            f"row {row + 1}" + (f" (line {lines[row]})" if row in lines else "") for row in rows
        ]

    def _header(self) -> tuple[tuple[str, ...], int]:
        line, names = next(self._records(), (0, []))
        if not line:
            raise file_error(self.path, "is empty", _NAME_THE_COLUMNS)
        columns = tuple(name.strip() for name in names)
        if any("\ufffd" in name for name in columns):
            complaint = "the names of its columns are not UTF-8 text"
            raise file_error(self.path, complaint, _SAVE_AS_UTF8)
        separators = [sign for sign in ";\t|" if len(columns) == 1 and sign in columns[0]]
        if separators:
            complaint = f"its columns are separated by {separators[0]!r}"
            remedy = "Separate columns by commas, and use decimal points in numbers."
            raise file_error(self.path, complaint, remedy)
        if all(_is_number(name) for name in columns):
            raise file_error(self.path, "its first line holds numbers", _NAME_THE_COLUMNS)
        return columns, line

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and cells of each record, header included, without empty lines."""
        with _readable(self.path), open_file(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
            letters = 0

            def lines() -> Iterator[str]:
                nonlocal letters
                while line := text.readline(_LONGEST_RECORD):
                    letters += len(line)
                    if letters >= _LONGEST_RECORD:
                        place = f"the record that ends in line {reader.line_num + 1}"
                        complaint = f"{place} is longer than {_LONGEST_RECORD:,} characters"
                        remedy = "It has too many columns, or a quotation mark is missing."
                        raise file_error(self.path, complaint, remedy)
                    yield line

            reader = csv.reader(lines())
            try:
                for record in reader:
                    letters = 0
                    if record:
                        yield reader.line_num, record
            except csv.Error as error:
                complaint = f"line {reader.line_num} cannot be read ({error})"
                remedy = "A quotation mark may be missing."
                raise file_error(self.path, complaint, remedy) from None

    def _unreadable(self, error: pa.ArrowInvalid) -> DataFileError:
        """Return a helpful error for one of Arrow's."""
        if "UTF8" in str(error):
            return file_error(self.path, "is not UTF-8 text", _SAVE_AS_UTF8)
        for row, (line, record) in enumerate(itertools.islice(self._records(), 1, None)):
            if len(record) != len(self.columns):
                return file_error(
                    self.path,
                    f"row {row + 1} (line {line}) has {len(record)} cells, the header has "
                    f"{len(self.columns)}",
                    "A comma in a number or text splits a cell: use a decimal point and no "
                    "thousands separator, or put text in quotation marks.",
                )
        return damaged(self.path, str(error).partition("\n")[0])


class ParquetFile:
    """A Parquet file with named and typed columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata: arrow_parquet.FileMetaData | None = None
        with self._opened() as file:
            self._metadata = file.metadata
            self._schema = file.schema_arrow
            self.columns = tuple(self._schema.names)
            self.row_bound = file.metadata.num_rows
        if self.row_bound < 0:
            raise damaged(path, f"it declares {self.row_bound} rows")

    def refuse(self, column: str, kind: Kind) -> None:
        """Raise an error if the column's type cannot hold values of this kind."""
        reason = refusal(kind, self._schema.field(column).type)
        if reason:
            raise file_error(self.path, *reason, column)

    def passes(self, together: tuple[str, ...], others: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the groups of columns to read at once; those in `together` stay together.

        The others are read in groups, because open columns can take more memory than the rows.
        """
        size = _NUMBER_BYTES * self.row_bound * len(others)
        at_once = max(
            _LEAST_COLUMNS_AT_ONCE,
            len(others) // _MOST_PASSES,
            int(_SHARE_IN_FLIGHT * size) // _OPEN_COLUMN_BYTES,
        )
        firsts = range(0, len(others), at_once)
        return [together, *(others[first : first + at_once] for first in firsts)]

    def batches(self, columns: tuple[str, ...]) -> Iterator[Batch]:
        """Yield these columns in batches of rows, in order."""
        rows = 0
        with self._opened() as file:
            for batch in file.iter_batches(
                _PARQUET_BATCH_ROWS, columns=list(columns), use_threads=False
            ):
                rows += len(batch)
                if rows > self.row_bound:
                    break
                yield {name: batch.column(name) for name in columns}
        if rows != self.row_bound:
            raise damaged(self.path, f"it does not have the {self.row_bound} rows that it declares")

    def places(self, rows: list[int]) -> str:
        """Return rows, given from 0, as text that counts from 1."""
        return ", ".join(self.each_place(rows))

    def each_place(self, rows: list[int]) -> list[str]:
        """Return the place of each row as text."""
        return [f"row {row + 1}" for row in rows]

    @contextmanager
    def _opened(self) -> Iterator[arrow_parquet.ParquetFile]:
        with (
            _readable(self.path),
            opened_path(self.path) as path,
            # A small buffer streams the pages, as a row group may be as large as the file.
            arrow_parquet.ParquetFile(
                path,
                metadata=self._metadata,
                buffer_size=_PARQUET_BUFFER_BYTES,
                pre_buffer=False,
                thrift_container_size_limit=_LONGEST_PARQUET_LIST,
                page_checksum_verification=True,
            ) as file,
        ):
            yield file


class FrameTable:
    """A data frame of pandas, polars or pyarrow, with the interface of a table file."""

    def __init__(self, frame: Any, name: str) -> None:
        self.path = Path(name)
        self._table = _arrow_table(frame, self.path)
        self.columns = tuple(self._table.column_names)
        self.row_bound = self._table.num_rows
        refuse_too_many_columns(self.path, len(self.columns))

    def refuse(self, column: str, kind: Kind) -> None:
        """Raise an error if the column's type cannot hold values of this kind."""
        reason = refusal(kind, self._table.schema.field(column).type)
        if reason:
            raise file_error(self.path, *reason, column)

    def passes(self, together: tuple[str, ...], others: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the groups of columns to read at once: one group, as all are in memory."""
        return [together + others]

    def batches(self, columns: tuple[str, ...]) -> Iterator[Batch]:
        """Yield these columns in batches of rows, in order."""
        for batch in self._table.select(list(columns)).to_batches(_FRAME_BATCH_ROWS):
            yield {name: batch.column(name) for name in columns}

    def places(self, rows: list[int]) -> str:
        """Return rows as text that counts from 0, like the positions in a frame."""
        return f"{', '.join(f'row {row}' for row in rows)} (counted from 0)"


def _arrow_table(frame: Any, path: Path) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    try:
        # Known by its name, as pandas is no dependency. Its index is not a column.
        if type(frame).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False)
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
    except (pa.ArrowException, ValueError, TypeError) as error:
        complaint = f"cannot be converted to an Arrow table: {str(error).partition(chr(10))[0]}"
        remedy = "Give each column a name and one type."
        raise file_error(path, complaint, remedy) from None
    complaint = f"is a {type(frame).__name__}, not a table"
    raise file_error(path, complaint, "Pass a frame of pandas or polars, or a pyarrow.Table.")


TableFile = CsvFile | ParquetFile | FrameTable


def open_table(path: Path) -> CsvFile | ParquetFile:
    """Open a CSV or Parquet file; only its column names are read."""
    if (suffix := path.suffix.lower()) not in SUFFIXES and path.exists():
        raise unknown_file(path, SUFFIXES)
    table = CsvFile(path) if suffix == ".csv" else ParquetFile(path)
    refuse_too_many_columns(path, len(table.columns))
    return table


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if "Exceeded size limit" in str(error):
            complaint = f"has more than {_LONGEST_PARQUET_LIST:,} columns or row groups"
            remedy = "Keep fewer columns, or write larger row groups."
            raise file_error(path, complaint, remedy) from None
        raise damaged(path, str(error).partition("\n")[0]) from None


def damaged(path: Path, reason: str) -> DataFileError:
    """Return the error of a file that cannot be read, with the reason."""
    return file_error(path, f"cannot be read: {reason}", "Write or copy the file again.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
