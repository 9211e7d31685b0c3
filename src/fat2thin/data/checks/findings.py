"""Findings about a log and the report of a check, with the names of columns and places of rows."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fat2thin.columns import Column, default_columns, have_names
from fat2thin.data.row_arrays import FoundRows, Rows
from fat2thin.terminal_text import printable

NAMED_COLUMNS = 4  # most columns that a finding names
_WIDE = ("observation", "action")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One error or warning about a log, however many rows it concerns."""

    code: str
    """Short name, stable between versions."""
    column: str
    """Column ("dose (mg)") or whole array that it concerns."""
    count: int
    """Number of rows, columns or episodes, as the sentence says."""
    rows: tuple[int, ...]
    """First affected rows of the file, counted from 0; empty if the finding is not about rows."""
    sentence: str
    """What is wrong; `column` is its subject."""
    way_out: str
    """What to do about it."""
    places: tuple[str, ...] = ()
    """The rows as the errors of a table show them ("row 12 (line 13)"); empty for arrays."""

    def __str__(self) -> str:
        more = self.count > len(self.rows)
        where = ""
        if self.places:
            where = f": {', '.join(self.places)}{' and more' * more}"
        elif self.rows:
            where = f" (row {', '.join(map(str, self.rows))}{', …' * more}; counted from 0)"
        what = printable(f"{self.code}: {self.column} {self.sentence}{where}")
        return f"{what}\n    {printable(self.way_out)}"


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a check; iterating yields errors, then warnings."""

    errors: tuple[Finding, ...] = ()
    """Findings that prevent training."""
    warnings: tuple[Finding, ...] = ()
    """Findings that may be harmless."""
    note: str = ""
    """How columns are numbered, if a finding concerns a column and the log has no names."""

    def __iter__(self) -> Iterator[Finding]:
        return iter((*self.errors, *self.warnings))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings, errors first."""
        return tuple(finding.code for finding in self)

    def __str__(self) -> str:
        errors, warnings = len(self.errors), len(self.warnings)
        return "\n".join((
            f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}",
            *(f"error   {finding}" for finding in self.errors),
            *(f"warning {finding}" for finding in self.warnings),
            *([self.note] if self.note else []),
        ))  # fmt: skip

    def with_places(self, places: Callable[[Sequence[int]], list[str]]) -> "Report":
        """Return the report with the places of all rows; `places` is called at most once."""
        rows = sorted({row for finding in self for row in finding.rows})
        if not rows:
            return self
        place = dict(zip(rows, places(rows), strict=True))

        def placed(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
            return tuple(
                dataclasses.replace(one, places=tuple(place[row] for row in one.rows))
                for one in findings
            )

        return dataclasses.replace(self, errors=placed(self.errors), warnings=placed(self.warnings))


class Names(NamedTuple):
    """The columns of observations and actions, numbered where the log has no names."""

    observation: tuple[Column, ...]
    action: tuple[Column, ...]

    @classmethod
    def of(cls, arrays: dict[str, Rows], given: dict[str, tuple[Column, ...]]) -> "Names":
        """Return the columns of a log; numbered names if those given do not fit."""
        sizes = {kind: arrays[kind].shape[1] if arrays[kind].ndim == 2 else 0 for kind in _WIDE}
        return cls(*(
            given[kind] if len(given[kind]) == size else default_columns(kind, size)
            for kind, size in sizes.items()
        ))  # fmt: skip

    def each(self, array: str, columns: Sequence[int] | np.ndarray) -> list[str]:
        """Return the name of each column with its unit."""
        if array == "next_observation":
            return [f"next {name}" for name in self.each("observation", columns)]
        if array not in _WIDE:
            return [array for _ in columns]
        return [getattr(self, array)[column].label for column in columns]

    def text(self, array: str, columns: np.ndarray) -> str:
        """Return the names of columns as text; of many, only the first."""
        left = max(0, len(columns) - NAMED_COLUMNS)
        names = self.each(array, columns[:NAMED_COLUMNS])
        return ", ".join(names) + (f" and {left} more" if left else "")

    def note(self, findings: Sequence[Finding]) -> str:
        """Return a sentence about numbered names, if a finding has one; else empty text."""
        without = [kind for kind in _WIDE if not have_names(kind, getattr(self, kind))]
        numbered = [kind for kind in without if any(f"{kind}_" in str(one) for one in findings)]
        if not numbered:
            return ""
        return (
            f"The log has no names for its {' and '.join(numbered)} columns: {numbered[0]}_0 is "
            "the first."
        )


def in_rows(
    code: str, column: str, found: FoundRows, sentence: str, way_out: str,
    in_file: Callable[[np.ndarray], np.ndarray] = lambda rows: rows,
) -> Iterator[Finding]:  # fmt: skip
    """Yield a finding if any row was found; the sentence may contain {count}.

    `in_file` returns the numbers of rows in the file; by default they are the same.
    """
    if found.number:
        first = tuple(in_file(found.first).tolist())
        sentence = sentence.format(count=found.number)
        yield Finding(code, column, found.number, first, sentence, way_out)
