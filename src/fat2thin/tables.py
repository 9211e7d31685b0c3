"""Tables of results: printable, and easy to read from."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from fat2thin.terminal_text import printable


@dataclasses.dataclass(frozen=True)
class Table:
    """Named rows, all with the same columns; `pandas.DataFrame(table.rows)` makes a frame of it."""

    title: str
    rows: tuple[dict[str, Any], ...]
    """The first column holds the name of a row."""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The row of this name."""
        names = [next(iter(row.values())) for row in self.rows]
        if name not in names:
            raise KeyError(f"no row {name!r}; there are {', '.join(names)}")
        return self.rows[names.index(name)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __str__(self) -> str:
        columns = list(self.rows[0]) if self.rows else []
        headings = [printable(column.replace("_", " ")) for column in columns]
        cells = [[_cell(row.get(column, math.nan)) for column in columns] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
        # Numbers stand below each other by their last digit, words by their first letter.
        places = [
            str.ljust if isinstance(self.rows[0].get(column), str) else str.rjust
            for column in columns
        ]
        lines = [
            "  ".join(
                place(cell, width) for place, cell, width in zip(places, line, widths, strict=True)
            ).rstrip()
            for line in [headings, ["-" * width for width in widths], *cells]
        ]
        notes = [printable(note) for note in self.notes]
        return "\n".join([printable(self.title), "", *lines, *([""] if notes else []), *notes])


def listed(values: Sequence[int]) -> str:
    """Numbers in words: "0 to 9" where they are consecutive."""
    if len(values) > 3 and list(values) == list(range(values[0], values[0] + len(values))):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    return "-" if math.isnan(value) else f"{value:.3f}"
