"""Safe opening of untrusted data files: regular files only, size limits, helpful errors."""

import contextlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fat2thin.atomic_files import NotRegularFileError, open_regular, path_of_open
from fat2thin.data import long_work
from fat2thin.terminal_text import printable, printable_lines

MOST_COLUMNS = 2**15  # per table, observation or action: each column costs time and memory
_LISTED = 8
_COMPRESSED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".7z", ".tar", ".tgz")


class DataFileError(ValueError):
    """A data file is unusable; the message names the file, the place and the way out."""


def file_error(
    path: str | Path, complaint: str, remedy: str, field: str = "", row: int | None = None
) -> DataFileError:
    """Return an error about a file that names the field, the row and the remedy."""
    place = f" {field!r}" if field else ""
    where = "" if row is None else f" (first in row {row}, counted from 0)"
    # Messages of libraries end with a full stop of their own.
    what = printable(f"{path}:{place} {complaint.removesuffix('.')}{where}.")
    return DataFileError(f"{what} {printable_lines(remedy)}")


def unknown_file(path: str | Path, known: Sequence[str]) -> DataFileError:
    """Return the error of a file or folder that no reader takes; `known` are suffixes of files."""
    place = Path(path)
    if place.is_dir():
        return file_error(path, "is a folder that is not a data set", "Give the path of a file.")
    suffix = place.suffix.lower()
    if suffix in _COMPRESSED:
        return file_error(path, "is compressed, and is not read so", "Decompress it first.")
    ending = f"ends in {suffix!r}, which is not read here" if suffix else "has no suffix"
    remedy = f"Save a table as CSV. Files that are read end in {', '.join(known)}."
    return file_error(path, ending, remedy)


def open_file(path: Path, *, follow_links: bool = True) -> io.BufferedReader:
    """Open a data file for reading; raise an error for a pipe, a device or a folder."""
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
    """Open a regular file and yield a path to it, for libraries that open files by name."""
    with open_file(path) as file:
        yield path_of_open(file, path)


def read_small(path: Path, limit: int, remedy: str) -> bytes:
    """Return the contents of a file of at most `limit` bytes; a larger file is an error."""
    with open_file(path) as file:
        contents = file.read(limit + 1)
    if len(contents) > limit:
        raise file_error(path, f"has more than {limit:,} bytes", remedy)
    return contents


def several(errors: Sequence[DataFileError]) -> DataFileError:
    """Join errors into one, one per line; of many, show only the first."""
    lines = list(dict.fromkeys(map(str, errors)))
    more = [f"And {len(lines) - _LISTED} more."] if len(lines) > _LISTED else []
    return DataFileError("\n".join(lines[:_LISTED] + more))


class MemoryBudget:
    """A limit on the total size of the arrays of one file; by default half of the memory.

    Arrays on disk (`long_work.arrays_on_disk`) are limited by the space that is free there.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path, self._taken = path, 0
        self._limit = default_limit() if limit is None else limit
        self._disk = long_work.free_on_disk() if limit is None else None

    def take(self, field: str, shape: tuple[int, ...], itemsize: int) -> None:
        """Reserve memory for an array; raise an error above the limit."""
        size = math.prod(shape) * itemsize
        if self._disk is None:
            self.check(field, size, f"with shape {shape}")
            self._taken += size
        elif size > self._disk:
            complaint = f"with shape {shape} takes {size:,} bytes, and the disk has {self._disk:,}"
            raise file_error(self._path, complaint, "Free some space on it.", field)

    def check(self, field: str, size: int, reason: str) -> None:
        """Raise an error if `size` more bytes would exceed the limit; reserve nothing."""
        if self._taken + size > self._limit:
            raise file_error(
                self._path,
                f"{reason} would bring memory use to {self._taken + size:,} bytes; the limit is "
                f"{self._limit:,}",
                "If you trust the file, convert it with `fat2thin data convert FILE log.npy`, or "
                "raise memory_limit.",
                field,
            )


def refuse_too_many_columns(path: Path, count: int, field: str = "") -> None:
    """Raise an error if a table or an array has more than `MOST_COLUMNS` columns."""
    if count > MOST_COLUMNS:
        complaint = f"has {count:,} columns; the limit is {MOST_COLUMNS:,}"
        raise file_error(path, complaint, "Keep only the columns that a policy needs.", field)


def default_limit() -> int:
    """Return half of the machine's memory in bytes, or 2 GiB if it is unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        total = 4 * 2**30
    return total // 2
