"""CSV and Parquet files as columns of Arrow batches, a piece at a time."""

import csv
import io
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from fat2thin.data.formats.table_values import Kind, refusal
from fat2thin.data.safe_files import (
    DataFileError,
    file_error,
    open_file,
    opened_path,
    refuse_too_many_columns,
)

Batch = dict[str, pa.Array]  # a few rows: an array a column, by its name

# What is in flight stays small beside the arrays that are filled. Arrow keeps several blocks of a
# CSV file at once; smaller ones take longer to read.
_CSV_BLOCK_BYTES = 1 << 18
_LARGEST_CSV_BLOCK_BYTES = 1 << 24
_CSV_BLOCKS = 128  # of a large CSV file, whose blocks may be larger and are still small beside it
_PARQUET_BATCH_ROWS = 1 << 14
_PARQUET_BUFFER_BYTES = 1 << 16
_OPEN_COLUMN_BYTES = 1 << 21  # of Parquet: a page and its dictionary, a megabyte each
_NUMBER_BYTES = 4
_SHARE_IN_FLIGHT = 1 / 16
_LONGEST_CELL = 64  # bytes, on average over a line: a line must fit into a block
_LONGEST_RECORD = 1 << 22  # letters of a line of a CSV file, or of the lines that one record takes
# Of a Parquet file: to open it takes longer, the more columns it has.
_LEAST_COLUMNS_AT_ONCE, _MOST_PASSES = 64, 64
_LONGEST_PARQUET_LIST = 1 << 17  # columns, or groups of rows, that a Parquet footer may list

_SAVE_AS_UTF8 = "Save it as CSV in UTF-8."
_NAME_THE_COLUMNS = "The first line of a CSV file must name its columns."


class CsvFile:
    """A CSV file: rows and named columns, with text in all cells."""

    row_bound: int  # at least the number of rows

    def __init__(self, path: Path) -> None:
        self.path = path
        with _readable(path), open_file(path) as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise file_error(path, "is UTF-16 text", _SAVE_AS_UTF8)
            self._size = os.fstat(file.fileno()).st_size
            self.row_bound = 1 + sum(
                # Line ends of every kind; a piece that ends between \r and \n counts one too many.
                piece.count(b"\n") + piece.count(b"\r") - piece.count(b"\r\n")
                for piece in iter(lambda: file.read(1 << 20), b"")
            )
        self.columns, self._header_lines = self._header()

    def refuse(self, column: str, kind: Kind) -> None:
        """Nothing to refuse: text is read as what it should be, or refused cell by cell."""

    def passes(self, together: tuple[str, ...], others: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return which columns to read at once: all, since a line has all of them."""
        return [together + others]

    def batches(self, columns: tuple[str, ...]) -> Iterator[Batch]:
        """The rows from top to bottom, these columns alone."""
        # Arrow takes a header without rows for a file that is too short.
        if not any(itertools.islice(self._records(), 1, 2)):
            return
        # Named by number: the file may use a name twice where nobody asks for it.
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
        """Return rows (the first is 0) as people count them, with the lines of a text editor."""
        lines: dict[int, int] = {}
        # Lines are known only up to where the file can be read.
        with suppress(DataFileError):
            records = itertools.islice(self._records(), 1, max(rows) + 2)
            lines.update((row, line) for row, (line, _) in enumerate(records) if row in rows)
        return ", ".join(
            f"row {row + 1}" + (f" (line {lines[row]})" if row in lines else "") for row in rows
        )

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
            remedy = "Save it with commas between columns and points in numbers."
            raise file_error(self.path, complaint, remedy)
        if all(_is_number(name) for name in columns):
            raise file_error(self.path, "its first line holds numbers", _NAME_THE_COLUMNS)
        return columns, line

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield every record, header included, with the line it ends at; no empty lines."""
        with _readable(self.path), open_file(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
            letters = 0

            def lines() -> Iterator[str]:
                nonlocal letters
                while line := text.readline(_LONGEST_RECORD):
                    letters += len(line)
                    if letters >= _LONGEST_RECORD:
                        place = f"what ends in line {reader.line_num + 1}"
                        complaint = f"{place} is longer than {_LONGEST_RECORD:,} letters"
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
        """Return an error that says what to do about Arrow's complaint."""
        if "UTF8" in str(error):
            return file_error(self.path, "is not UTF-8 text", _SAVE_AS_UTF8)
        for row, (line, record) in enumerate(itertools.islice(self._records(), 1, None)):
            if len(record) != len(self.columns):
                return file_error(
                    self.path,
                    f"row {row + 1} (line {line}) has {len(record)} cells, the header has "
                    f"{len(self.columns)}",
                    "A comma inside a number or a text makes two cells of one: write a decimal "
                    "point, put text in quotation marks.",
                )
        return damaged(self.path, str(error).partition("\n")[0])


class ParquetFile:
    """A Parquet file: rows and named columns with types."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metadata: arrow_parquet.FileMetaData | None = None
        with self._opened() as file:
            self._metadata = file.metadata
            self._schema = file.schema_arrow
            self.columns = tuple(self._schema.names)
            self.row_bound = file.metadata.num_rows
        if self.row_bound < 0:
            raise damaged(path, f"it says that it has {self.row_bound} rows")

    def refuse(self, column: str, kind: Kind) -> None:
        """Raise where the column's type cannot hold values of this kind."""
        reason = refusal(kind, self._schema.field(column).type)
        if reason:
            raise file_error(self.path, *reason, column)

    def passes(self, together: tuple[str, ...], others: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return which columns to read at once, where `together` must be and the others need not.

        Those of a small file are read a few at a time: all open would take more than its rows.
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
        """The rows from top to bottom, these columns alone."""
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
            raise damaged(self.path, f"it says that it has {self.row_bound} rows, and has not")

    def places(self, rows: list[int]) -> str:
        """Return rows (the first is 0) as people count them."""
        return ", ".join(f"row {row + 1}" for row in rows)

    @contextmanager
    def _opened(self) -> Iterator[arrow_parquet.ParquetFile]:
        with (
            _readable(self.path),
            opened_path(self.path) as path,
            # Pages are streamed through a small buffer: a row group may be as large as the file.
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


TableFile = CsvFile | ParquetFile


def open_table(path: Path) -> TableFile:
    """Open a CSV or Parquet file; only the names of its columns are read."""
    table = CsvFile(path) if path.suffix.lower() == ".csv" else ParquetFile(path)
    refuse_too_many_columns(path, len(table.columns))
    return table


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if "Exceeded size limit" in str(error):
            complaint = f"lists more than {_LONGEST_PARQUET_LIST:,} columns or groups of rows"
            remedy = "Keep fewer columns, or write larger groups."
            raise file_error(path, complaint, remedy) from None
        raise damaged(path, str(error).partition("\n")[0]) from None


def damaged(path: Path, reason: str) -> DataFileError:
    """Return the error of a file that cannot be read, not for its cells but for this reason."""
    return file_error(path, f"cannot be read: {reason}", "Write or copy the file again.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
