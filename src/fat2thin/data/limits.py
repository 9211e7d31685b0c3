"""How much memory the arrays of a file may take, and how many columns a log may have."""

import math
import os
from pathlib import Path

from fat2thin.data.errors import file_error

MOST_COLUMNS = 2**15
"""Of a table, of the observations, or of the actions: time and memory go up with each of them."""
_UNKNOWN_MACHINE = 4 * 2**30


class MemoryBudget:
    """Bytes that the arrays of one file may take together; half of the machine's by default."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        self._limit = default_limit() if limit is None else limit
        self._taken = 0

    def take(self, field: str, shape: tuple[int, ...], itemsize: int) -> None:
        """Set aside what an array of this shape needs; too much is an error."""
        size = math.prod(shape) * itemsize
        self.check(field, size, f"with shape {shape}")
        self._taken += size

    def check(self, field: str, size: int, reason: str) -> None:
        """Refuse a further need that goes above the limit, without setting anything aside."""
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
        raise file_error(
            path,
            f"has {count:,} columns; {MOST_COLUMNS:,} are read at most",
            "Keep the columns that a policy can learn from.",
            field,
        )


def default_limit() -> int:
    """Half of the machine's memory, in bytes; 2 GiB where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        total = _UNKNOWN_MACHINE
    return total // 2
