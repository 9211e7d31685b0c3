"""What is said about a data file that cannot be read."""

from collections.abc import Sequence
from pathlib import Path

_LISTED = 8


class DataFileError(ValueError):
    """A data file is not what it must be; the message names the file, the place, the way out."""


def file_error(
    path: str | Path, complaint: str, remedy: str, field: str = "", row: int | None = None
) -> DataFileError:
    """The error that says what is wrong with a file, with its field and row where known."""
    place = f" {field!r}" if field else ""
    where = "" if row is None else f" (first in row {row}, counted from 0)"
    return DataFileError(f"{path}:{place} {complaint}{where}. {remedy}")


def several(errors: Sequence[DataFileError]) -> DataFileError:
    """One error that says what all of these say, a line each; of many, the first ones."""
    lines = list(dict.fromkeys(map(str, errors)))
    more = [f"And {len(lines) - _LISTED} more of this kind."] if len(lines) > _LISTED else []
    return DataFileError("\n".join(lines[:_LISTED] + more))
