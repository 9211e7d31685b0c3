"""Tables of results, printed for a terminal, a text file or a Markdown page."""

import dataclasses
import html
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from fat2thin.terminal_text import printable

_GAP = 2
_NEVER_WRAPPED = 24  # columns up to this width


@dataclasses.dataclass(frozen=True)
class Table:
    """Named rows that all have the same columns.

    `table[name]` is a row, and `pandas.DataFrame(table.rows)` makes a data frame.

    Examples:
        >>> table = Table("returns", ({"policy": "actor", "mean": 4.5, "low": 4.0, "high": 5.0},))
        >>> table["actor"]["mean"]
        4.5
        >>> print(table.text())
        returns
        <BLANKLINE>
        policy   mean    low   high
        ------  -----  -----  -----
        actor   4.500  4.000  5.000
    """

    title: str
    """Heading above the table; may be empty."""
    rows: tuple[dict[str, Any], ...]
    """Cells by column name; the first column holds the name of the row."""
    notes: tuple[str, ...] = ()
    """Lines below the table."""
    headings: bool = True
    """Whether the column names are printed."""

    def __getitem__(self, name: str) -> dict[str, Any]:
        names = [next(iter(row.values())) for row in self.rows]
        if name not in names:
            raise KeyError(f"no row {name!r}; there are {', '.join(names)}")
        return self.rows[names.index(name)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __str__(self) -> str:
        """Return the text at the width of the terminal, or with one line per row for a file."""
        terminal = sys.stdout is not None and sys.stdout.isatty()
        return self.text(shutil.get_terminal_size().columns if terminal else None)

    def text(self, width: int | None = None) -> str:
        """Return the table as text with lines of at most `width`; None means one line per row.

        Where columns do not fit, long texts wrap first; then the columns are split into blocks,
        each of which repeats the first column.
        """
        columns = list(self.rows[0]) if self.rows else []
        blocks = [self._block(block, width) for block in self._blocks(columns, width)]
        title = [printable(self.title), ""] if self.title else []
        notes = ["", *map(printable, self.notes)] if self.notes else []
        return "\n".join([*title, "\n\n".join(blocks), *notes])

    def _repr_html_(self) -> str:
        """Return the table for a notebook, with all text escaped."""
        columns = list(self.rows[0]) if self.rows else []
        cells = [self._cells(column) for column in columns]
        sides = [
            "left" if isinstance(self.rows[0].get(column), str) else "right" for column in columns
        ]
        lines = []
        for number, line in enumerate(zip(*cells, strict=True)):
            tag = "th" if self.headings and number == 0 else "td"
            drawn = (
                f'<{tag} style="text-align: {side}">{html.escape(cell)}</{tag}>'
                for cell, side in zip(line, sides, strict=True)
            )
            lines.append(f"<tr>{''.join(drawn)}</tr>")
        title = f"<p>{html.escape(printable(self.title))}</p>" if self.title else ""
        notes = "".join(f"<li>{html.escape(printable(note))}</li>" for note in self.notes)
        below = f"<ul>{notes}</ul>" if notes else ""
        return f"{title}<table>{''.join(lines)}</table>{below}"

    def markdown(self) -> str:
        """Return the table in Markdown, with intervals in brackets after their value."""
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"**{self.title}**", "", *markdown_rows(self.rows), *notes, ""])

    def _cells(self, column: str) -> list[str]:
        heading = [printable(column.replace("_", " "))] if self.headings else []
        return [*heading, *(_cell(row.get(column, math.nan)) for row in self.rows)]

    def _width(self, column: str) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, self._cells(column)))

    def _blocks(self, columns: Sequence[str], width: int | None) -> list[list[str]]:
        if width is None or not columns:
            return [list(columns)]
        least = {column: min(self._width(column), _NEVER_WRAPPED) + _GAP for column in columns}
        blocks = [[columns[0]]]
        for column in columns[1:]:
            needed = sum(least[one] for one in [*blocks[-1], column]) - _GAP
            if len(blocks[-1]) > 1 and needed > width:
                blocks.append([columns[0]])
            blocks[-1].append(column)
        return blocks

    def _block(self, columns: Sequence[str], width: int | None) -> str:
        from rich.console import Console
        from rich.rule import Rule
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(box=None, show_header=False, padding=(0, _GAP, 0, 0), pad_edge=False)
        widths = {column: self._width(column) for column in columns}
        for column, natural in widths.items():
            words = isinstance(self.rows[0].get(column), str)
            drawn.add_column(
                justify="left" if words else "right",
                overflow="fold",
                width=natural if width is None or natural <= _NEVER_WRAPPED else None,
            )
        for number, line in enumerate(zip(*map(self._cells, columns), strict=True)):
            drawn.add_row(*map(Text, line))
            if self.headings and number == 0:
                drawn.add_row(*(Rule(characters="-") for _ in columns))
        full = sum(widths.values()) + _GAP * len(widths)
        console = Console(width=width or full, color_system=None, force_jupyter=False)
        with console.capture() as captured:
            console.print(drawn)
        return "\n".join(map(str.rstrip, captured.get().splitlines()))


def listed(values: Sequence[int]) -> str:
    """Return numbers as text: "0 to 9" for consecutive ones, otherwise "1, 5, 7"."""
    if len(values) > 3 and list(values) == list(range(values[0], values[0] + len(values))):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    return "-" if math.isnan(value) else f"{value:.3f}"


def markdown_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table: text left-aligned, numbers right-aligned."""
    columns = [name for name in rows[0] if name not in ("low", "high")]
    text = {name: all(isinstance(row.get(name), str) for row in rows) for name in columns}
    return [
        f"| {' | '.join(name.replace('_', ' ') for name in columns)} |",
        f"|{'|'.join('---' if text[name] else '---:' for name in columns)}|",
        *(f"| {' | '.join(_markdown_cell(row, name) for name in columns)} |" for row in rows),
    ]


def _markdown_cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name, math.nan)
    if isinstance(value, str | int):
        return str(value)
    if math.isnan(value):
        return "–"
    text = _short(value)
    if name in ("mean", "score") and not math.isnan(row.get("low", math.nan)):
        text = f"{text} [{_short(row['low'])}, {_short(row['high'])}]"
    return text.replace("-", "−")


def _short(value: float) -> str:
    if abs(value) < 1.0:
        return f"{value:.3g}"
    return f"{value:.2f}" if abs(value) < 10.0 else f"{value:.1f}"
