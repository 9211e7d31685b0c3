"""How a run or a recording shows its progress: a bar on a terminal, lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from fat2thin.evaluation.returns import SCORE
from fat2thin.terminal_text import counted

_SILENCE = 30.0  # seconds without a line after which one is printed


class Silent:
    """Shows nothing; the base class of the others."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *error: object) -> None:
        """End the display."""

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """Start a run, or a part of it, of `steps` steps for `seeds` seeds."""

    def advance(self, step: int) -> None:
        """Report that `step` steps are done."""

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Report an evaluation: mean returns by policy and way of acting."""


class _Timed(Silent):
    """Measures steps per second, without the first chunk, which includes compilation."""

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        self._steps, self._done, self._rate = steps, 0, 0.0
        self._origin: tuple[int, float] | None = None
        self._now = 0.0

    def advance(self, step: int) -> None:
        self._done, self._now = step, time.perf_counter()
        if self._origin is None:
            self._origin = (step, self._now)
            return
        since = self._now - self._origin[1]
        self._rate = (step - self._origin[0]) / since if since > 0 else 0.0

    def _pace(self) -> str:
        """Return speed and time left as text."""
        if not self._rate:
            return "compiling" if self._origin is None else ""
        minutes, seconds = divmod(round((self._steps - self._done) / self._rate), 60)
        return f"{self._rate:,.0f} steps/s, {minutes}:{seconds:02d} left"


class Lines(_Timed):
    """One line per evaluation and, without any, one every half minute, for logs."""

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """Print what starts."""
        super().begin(steps, seeds, part)
        self._printed: float | None = None
        start = f"{part}: " if part else ""
        print(f"{start}{counted(steps, 'step')}, {counted(seeds, 'seed')}", flush=True)

    def advance(self, step: int) -> None:
        """Print step, speed and time left if there was no line for a while."""
        super().advance(step)
        if self._printed is None:
            self._printed = self._now
        elif self._now - self._printed >= _SILENCE and step < self._steps:
            self._printed = self._now
            print(f"step {step:,} of {self._steps:,} ({self._pace()})", flush=True)

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Print the mean returns; the evaluation may be of an earlier step."""
        listed = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        pace = self._pace()
        tail = f" ({pace})" if pace and 0 < self._done < self._steps else ""
        print(f"step {step:,}: {listed}{tail}", flush=True)
        self._printed = self._now or None


class Bar(_Timed):
    """A bar with steps per second, time left and the actor's score."""

    def __init__(self) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn()
        pace = TextColumn("{task.fields[pace]}", markup=False, table_column=Column())
        self._bar = RichProgress(*columns, MofNCompleteColumn(), pace, console=Console(stderr=True))
        self._score = ""

    def __enter__(self) -> "Silent":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last state of the bar on the screen."""
        self._bar.stop()

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """Show an empty bar."""
        super().begin(steps, seeds, part)
        title = f"{counted(seeds, 'seed')}{', ' + part if part else ''}"
        self._task = self._bar.add_task(title, total=steps, pace="compiling")

    def advance(self, step: int) -> None:
        """Move the bar."""
        super().advance(step)
        self._show()

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Show the actor's score."""
        self._score = f", actor {scores[SCORE]:.2f}" if SCORE in scores else ""
        self._show()

    def _show(self) -> None:
        pace = self._pace() + self._score
        self._bar.update(self._task, completed=self._done, pace=pace)


@contextlib.contextmanager
def recording(title: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show the progress of a recording: rows, rows per second and time left.

    Yields the function to call with the number of rows so far.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    pace = TextColumn("{task.fields[pace]}", markup=False, table_column=Column())
    on_terminal = sys.stderr.isatty()
    began = printed = time.perf_counter()
    with RichProgress(*columns, pace, console=Console(stderr=True), disable=not on_terminal) as bar:
        task = bar.add_task(title, total=rows, pace="")

        def progress(done: int) -> None:
            nonlocal printed
            now = time.perf_counter()
            rate = done / max(now - began, 1e-9)
            minutes, seconds = divmod(round((rows - done) / rate) if rate else 0, 60)
            words = f"{rate:,.0f} rows/s, {minutes}:{seconds:02d} left" if rate else ""
            bar.update(task, completed=done, pace=words)
            if not on_terminal and words and now - printed >= _SILENCE and done < rows:
                printed = now
                print(f"{title}: {done:,} of {rows:,} rows ({words})", flush=True)

        yield progress


def for_terminal(otherwise: type[Silent]) -> Silent:
    """Return a bar on a terminal, else an `otherwise()`."""
    return Bar() if sys.stderr.isatty() else otherwise()
