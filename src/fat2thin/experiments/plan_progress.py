"""How a plan of many runs tells how far it is: one bar over all of it, or a line a program."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

from fat2thin.training.progress import Silent

_REPORT_SECONDS = 60.0


class PlanProgress(Silent):
    """Counts updates of all seeds of all programs; says nothing."""

    def plan(self, updates: Sequence[int], reused: int) -> None:
        """What is to be computed, by program, and how many runs are there already."""
        self._updates, self._reused = list(updates), reused
        self._finished: set[int] = set()
        self._number, self._title, self._part = -1, "", 0
        self._began = time.perf_counter()
        self.show()

    def next_program(self, number: int, title: str) -> None:
        """A program starts."""
        self._number, self._title = number, title
        self._part = self._before = self._steps = self._seeds = 0
        self.show()

    def program_is_done(self, number: int) -> None:
        """A program is done, by this process or by another."""
        self._finished.add(number)
        self._part = 0
        self.show()

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """A part of a program starts: its training, or its preparation before."""
        self._before += self._steps * self._seeds
        self._steps, self._seeds = steps, seeds

    def advance(self, step: int) -> None:
        """So many steps of that part are done."""
        self._part = min(self._before + step * self._seeds, self._updates[self._number])
        self.show()

    @property
    def _done(self) -> int:
        return sum(self._updates[number] for number in self._finished) + self._part

    @property
    def _total(self) -> int:
        return sum(self._updates)

    @property
    def words(self) -> str:
        """Where it is, how fast, and how long it will take at the mean speed so far."""
        there = f", {self._reused} runs are there already" if self._reused else ""
        if self._number < 0:
            return f"{_count(len(self._updates), 'program')} to run{there}"
        if len(self._finished) == len(self._updates):
            return f"{_count(len(self._updates), 'program')} done{there}"
        where = f"program {self._number + 1} of {len(self._updates)}: {self._title}"
        since = time.perf_counter() - self._began
        if not self._done or since <= 0:
            return f"{where}, compiling"
        pace = self._done / since
        return (
            f"{where}, {pace:,.0f} updates/s, {_duration((self._total - self._done) / pace)} left"
        )

    def show(self) -> None:
        """Tell it."""


class PlanLines(PlanProgress):
    """A line when a program starts, and one a minute."""

    _told = 0.0

    def next_program(self, number: int, title: str) -> None:
        """Tell of it at once."""
        self._told = 0.0
        super().next_program(number, title)

    def show(self) -> None:
        """A line, unless there was one lately."""
        now = time.perf_counter()
        if now - self._told >= _REPORT_SECONDS:
            self._told = now
            print(self.words, flush=True)


class PlanBar(PlanProgress):
    """One bar over the whole plan."""

    def __init__(self) -> None:
        self._bar = RichProgress(
            SpinnerColumn(),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
        )
        self._entered = 0

    def __enter__(self) -> "PlanBar":
        # Every program of the plan enters it again, inside.
        self._entered += 1
        if self._entered == 1:
            self._bar.start()
            self._task = self._bar.add_task("", total=1)
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last state of the bar on the screen."""
        self._entered -= 1
        if not self._entered:
            self._bar.stop()

    def show(self) -> None:
        """Move the bar."""
        total, done = (self._total, self._done) if self._total else (1, 1)
        self._bar.update(self._task, total=total, completed=done, description=self.words)


def for_plan() -> PlanProgress:
    """A bar where somebody can see it."""
    return PlanBar() if sys.stderr.isatty() else PlanLines()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
