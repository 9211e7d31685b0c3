"""What a check of a log says: findings, each counted once however often it occurs, and a report."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from fat2thin.terminal_text import printable

FIRST_ROWS = 5
"""How many rows a finding names: enough to look it up in the file, few enough to read."""

_NAMED_COLUMNS = 4


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong or odd about a log."""

    code: str
    """A short name that stays the same from version to version."""
    column: str
    """Where: "action[0]", or the name of a whole array."""
    count: int
    """How often, in rows, columns or episodes, as the sentence says."""
    rows: tuple[int, ...]
    """The first rows of it, counted from 0; empty where it is not about rows."""
    sentence: str
    way_out: str

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.rows) else ""
        rows = f" (row {', '.join(map(str, self.rows))}{more})" if self.rows else ""
        what = printable(f"{self.code}: {self.column} {self.sentence}{rows}")
        return f"{what}\n    {printable(self.way_out)}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Findings of a check: errors forbid training, warnings ask for a look."""

    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter((*self.errors, *self.warnings))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings, errors first."""
        return tuple(finding.code for finding in self)

    def __str__(self) -> str:
        errors, warnings = len(self.errors), len(self.warnings)
        lines = [
            f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}",
            *(f"error   {finding}" for finding in self.errors),
            *(f"warning {finding}" for finding in self.warnings),
        ]
        return "\n".join(lines)


def name_columns(array: str, columns: Sequence[int]) -> str:
    """Columns of an array by name, the first few of them where there are many."""
    names = [f"{array}[{column}]" for column in columns[:_NAMED_COLUMNS]]
    left = len(columns) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "")


def first_rows(wrong: np.ndarray) -> tuple[int, ...]:
    """The first row numbers at which a mask of shape (rows,) holds."""
    return tuple(np.flatnonzero(wrong)[:FIRST_ROWS].tolist())
