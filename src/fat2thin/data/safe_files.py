"""Open data files from anywhere: regular files only, limits on their size, errors that help."""

import contextlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fat2thin.atomic_files import NotRegularFileError, open_regular, path_of_open
from fat2thin.terminal_text import printable, printable_lines

MOST_COLUMNS = 2**15  # of a table, of observations or of actions: each costs time and memory
_LISTED = 8


class DataFileError(ValueError):
    """A data file is not what it must be; the message names the file, the place, the way out."""


def file_error(
    path: str | Path, complaint: str, remedy: str, field: str = "", row: int | None = None
) -> DataFileError:
    """The error that says what is wrong with a file, with its field and row where known."""
    place = f" {field!r}" if field else ""
    where = "" if row is None else f" (first in row {row}, counted from 0)"
    what = printable(f"{path}:{place} {complaint}{where}.")
    return DataFileError(f"{what} {printable_lines(remedy)}")


def open_file(path: Path, *, follow_links: bool = True) -> io.BufferedReader:
    """Open a data file for reading; a pipe, a device or a folder is refused at once."""
    try:
        return open_regular(path, follow_links=follow_links)
    except (FileNotFoundError, NotADirectoryError):
        raise file_error(path, "there is no such file", "Correct the path.") from None
    except NotRegularFileError as error:
        complaint = str(error).removeprefix(f"{path} ")
        raise file_error(path, complaint, "Give the path of a file.") from None
    except OSError as error:
        raise file_error(path, f"cannot be opened: {error.strerror}", "Check it.") from None


@contextlib.contextmanager
def opened_path(path: Path) -> Iterator[Path]:
    """Yield a path for a library that opens files by name: that of the regular file opened here."""
    with open_file(path) as file:
        yield path_of_open(file, path)


def read_small(path: Path, limit: int, remedy: str) -> bytes:
    """Read a whole file of at most `limit` bytes; a larger one is refused."""
    with open_file(path) as file:
        contents = file.read(limit + 1)
    if len(contents) > limit:
        raise file_error(path, f"has more than {limit:,} bytes", remedy)
    return contents


def several(errors: Sequence[DataFileError]) -> DataFileError:
    """Join errors into one, one per line; of many, only the first ones."""
    lines = list(dict.fromkeys(map(str, errors)))
    more = [f"And {len(lines) - _LISTED} more of this kind."] if len(lines) > _LISTED else []
    return DataFileError("\n".join(lines[:_LISTED] + more))


class MemoryBudget:
    """Bytes that the arrays of one file may take together; half of the machine's by default."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path, self._taken = path, 0
        self._limit = default_limit() if limit is None else limit

    def take(self, field: str, shape: tuple[int, ...], itemsize: int) -> None:
        """Reserve memory for an array of this shape; too much is an error."""
        size = math.prod(shape) * itemsize
        self.check(field, size, f"with shape {shape}")
        self._taken += size

    def check(self, field: str, size: int, reason: str) -> None:
        """Refuse a further need that goes above the limit, without reserving it."""
        if self._taken + size > self._limit:
            raise file_error(
                self._path,
                f"{reason} would bring the memory taken to {self._taken + size:,} bytes; the "
                f"limit is {self._limit:,}",
                "Raise memory_limit if the file can be trusted, or keep fewer rows.",
                field,
            )


def refuse_too_many_columns(path: Path, count: int, field: str = "") -> None:
    """Refuse a table or an array that has more columns than a log may have."""
    if count > MOST_COLUMNS:
        complaint = f"has {count:,} columns; {MOST_COLUMNS:,} are read at most"
        raise file_error(path, complaint, "Keep the columns that a policy can learn from.", field)


def default_limit() -> int:
    """Half of the machine's memory, in bytes; 2 GiB where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        total = 4 * 2**30
    return total // 2
