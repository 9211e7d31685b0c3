"""Progress of work on logs: a bar on a terminal, lines elsewhere. Does not import JAX."""

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from fat2thin.data import long_work
from fat2thin.terminal_text import printable

_REFRESH, _SILENCE = 0.1, 30.0  # seconds between two states of the bar, and between two lines
_MEGABYTES = 4e-6  # of a cell


class Working(long_work.Display):
    """Shows how far work on a log is: MB of float32 per second, and the time left."""

    def __init__(self, title: str, bar: RichProgress, on_terminal: bool) -> None:
        super().__init__()
        self._title, self._bar, self._on_terminal = title, bar, on_terminal
        self._task = bar.add_task(title, total=None, pace="")
        self._began = self._shown = time.perf_counter()

    def did(self, cells: int) -> None:
        """Count cells, and show the progress from time to time."""
        super().did(cells)
        now = time.perf_counter()
        if now - self._shown < (_REFRESH if self._on_terminal else _SILENCE):
            return
        self._shown = now
        total = max(self.expected, self.done)
        rate = self.done / (now - self._began)
        minutes, seconds = divmod(round((total - self.done) / rate), 60)
        words = f"{rate * _MEGABYTES:,.0f} MB/s, {minutes}:{seconds:02d} left"
        if self._on_terminal:
            self._bar.update(self._task, total=total, completed=self.done, pace=words)
        elif self.done < total:
            print(f"{self._title}: {100 * self.done / total:.0f} % ({words})", flush=True)


@contextlib.contextmanager
def working(title: str) -> Iterator[None]:
    """Show the progress of work on logs: a bar that vanishes at the end, lines for a file.

    Ctrl-C ends the command.
    """
    text = TextColumn("{task.description}", markup=False)
    pace = TextColumn("{task.fields[pace]}", markup=False, table_column=Column())
    columns = SpinnerColumn(), text, BarColumn(), TaskProgressColumn(), pace
    on_terminal, console = sys.stderr.isatty(), Console(stderr=True)
    try:
        with (
            RichProgress(*columns, console=console, disable=not on_terminal, transient=True) as bar,
            long_work.watched(Working(printable(title), bar, on_terminal)),
        ):
            yield
    except KeyboardInterrupt:
        print("fat2thin: Interrupted. Only finished files were kept.", file=sys.stderr)
        sys.exit(130)
