"""How a run tells that it is alive: a bar on a terminal, a line an evaluation elsewhere."""

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from fat2thin.evaluation.returns import SCORE


class Silent:
    """Says nothing; the others say more."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """A run of so many steps, for so many seeds at once, starts, or a part of it."""

    def advance(self, step: int) -> None:
        """So many steps are done."""

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """The policies were judged: mean returns by name."""


class _Clock:
    """Steps per second, without the first chunk, which is compiled first."""

    def __init__(self) -> None:
        self._origin: tuple[int, float] | None = None
        self.rate = 0.0

    def advance(self, step: int) -> None:
        now = time.perf_counter()
        if self._origin is None:
            self._origin = (step, now)
            return
        since = now - self._origin[1]
        self.rate = (step - self._origin[0]) / since if since > 0 else 0.0

    def pace(self, remaining: int) -> str:
        """Speed and time left, in words."""
        if not self.rate:
            return "compiling" if self._origin is None else ""
        minutes, seconds = divmod(round(remaining / self.rate), 60)
        return f"{self.rate:,.0f} steps/s, {minutes}:{seconds:02d} left"


class Lines(Silent):
    """One line an evaluation, for logs."""

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """Say what starts."""
        self._steps, self._done, self._clock = steps, 0, _Clock()
        print(f"{part + ': ' if part else ''}{steps:,} steps, {_count(seeds)}", flush=True)

    def advance(self, step: int) -> None:
        """Take the time."""
        self._done = step
        self._clock.advance(step)

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Say how good the policies are."""
        listed = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        # What is told now may be of some steps ago.
        pace = self._clock.pace(self._steps - self._done)
        tail = f" ({pace})" if pace and 0 < self._done < self._steps else ""
        print(f"step {step:,}: {listed}{tail}", flush=True)


class _Pace(ProgressColumn):
    """Speed, time left and the score, which only the bar's owner knows."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["pace"])


class Bar(Silent):
    """A bar with steps per second, time left and the actor's score."""

    def __init__(self) -> None:
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Pace(),
            console=Console(stderr=True),
        )
        self._score = ""

    def __enter__(self) -> "Silent":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last state of the bar on the screen."""
        self._bar.stop()

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """Show an empty bar."""
        self._steps, self._done, self._clock = steps, 0, _Clock()
        title = f"{_count(seeds)}{', ' + part if part else ''}"
        self._task = self._bar.add_task(title, total=steps, pace="compiling")

    def advance(self, step: int) -> None:
        """Move the bar."""
        self._done = step
        self._clock.advance(step)
        self._show()

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Show the actor's score."""
        self._score = f", actor {scores[SCORE]:.2f}" if SCORE in scores else ""
        self._show()

    def _show(self) -> None:
        pace = self._clock.pace(self._steps - self._done)
        self._bar.update(self._task, completed=self._done, pace=pace + self._score)


def _count(seeds: int) -> str:
    return "1 seed" if seeds == 1 else f"{seeds} seeds"


def for_terminal(otherwise: type[Silent]) -> Silent:
    """A bar where somebody can see it."""
    return Bar() if sys.stderr.isatty() else otherwise()
