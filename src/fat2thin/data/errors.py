"""Opening a data file, and what is said about one that cannot be read."""

import io
from collections.abc import Sequence
from pathlib import Path

from fat2thin.atomic_files import NotRegularFileError, open_regular
from fat2thin.terminal_text import printable, printable_lines

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


def several(errors: Sequence[DataFileError]) -> DataFileError:
    """One error that says what all of these say, a line each; of many, the first ones."""
    lines = list(dict.fromkeys(map(str, errors)))
    more = [f"And {len(lines) - _LISTED} more of this kind."] if len(lines) > _LISTED else []
    return DataFileError("\n".join(lines[:_LISTED] + more))
