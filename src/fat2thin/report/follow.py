"""A run while it is trained, by whichever process: a live display, or lines for logs."""

import collections
import contextlib
import math
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from fat2thin.evaluation.returns import SCORE
from fat2thin.evaluation.table import metrics_table
from fat2thin.report.status_table import broken_off, progress, stopped_seeds, title
from fat2thin.runs import checkpoints, lock
from fat2thin.runs.files import NoRunError
from fat2thin.runs.status import RunStatus, StatusReader
from fat2thin.terminal_text import printable

REFRESH = 1.0
"""Seconds between looks."""
PATIENCE = 5.0
"""Seconds that nobody holds the lock of a run that was broken off."""
LINE_EVERY = 2.0
"""Seconds between lines, at least."""
_ROWS = 20


class Pace:
    """Steps a second over the last rows of metrics that were seen to come."""

    def __init__(self) -> None:
        self._seen: collections.deque[tuple[float, int]] = collections.deque(maxlen=_ROWS)
        self._step: int | None = None

    def see(self, step: int, now: float) -> None:
        """So many steps are done now."""
        if self._step is not None and step < self._step:
            self._seen.clear()
        # When the first step that is seen was reached, nobody knows.
        elif self._step is not None and step > self._step:
            self._seen.append((now, step))
        self._step = step

    def words(self, remaining: int) -> str:
        """Speed and time left; nothing where it is not known yet."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return ""
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (ended - began)
        minutes, seconds = divmod(round(remaining / rate), 60)
        return f"{rate:,.0f} steps/s, {minutes}:{seconds:02d} left"


class _Lines:
    """A line whenever something is new, but not too often."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._told: tuple[int, int] | None = None
        self._when = -math.inf

    def show(self, standing: RunStatus, pace: str) -> None:
        news = standing.step, standing.score.step if standing.score else -1
        now = time.monotonic()
        if news == self._told or now - self._when < self._every:
            return
        self._told, self._when = news, now
        parts = [progress(standing), *_losses(standing), *_news(standing), pace]
        print("; ".join(filter(None, parts)), flush=True)


class _Screen:
    """A bar, and the last metrics below it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, standing: RunStatus, pace: str) -> None:
        bar = Grid.grid(padding=(0, 1))
        done = ProgressBar(total=standing.outline.steps, completed=standing.step, width=40)
        bar.add_row(done, Text(progress(standing)), Text(pace))
        texts = filter(None, ["; ".join(_news(standing)), _metrics(standing)])
        shown = Group(Text(title(standing.outline)), bar, Text("\n".join(texts)))
        self._live.update(shown, refresh=True)


def follow(
    folder: Path,
    console: Console | None = None,
    *,
    refresh: float = REFRESH,
    patience: float = PATIENCE,
    line_every: float = LINE_EVERY,
) -> bool:
    """Show a run until it is over; False where it was broken off, which is said, or by Ctrl-C."""
    console = console or Console()
    live = Live(console=console, auto_refresh=False, transient=True)
    display = _Screen(live) if console.is_terminal else _Lines(line_every)
    watch, pace = StatusReader(folder), Pace()
    last_held = time.monotonic()
    try:
        with live if console.is_terminal else contextlib.nullcontext():
            while (standing := _look(watch, folder, refresh, patience)).running:
                now = time.monotonic()
                if standing.in_use:
                    last_held = now
                elif now - last_held > patience:
                    break
                pace.see(standing.step, now)
                display.show(standing, pace.words(standing.outline.steps - standing.step))
                time.sleep(refresh)
    except KeyboardInterrupt:
        return False
    if standing.running:
        print(f"{progress(standing)}; {broken_off(checkpoints.newest(folder))}")
    return not standing.running


def _look(watch: StatusReader, folder: Path, refresh: float, patience: float) -> RunStatus:
    """How far the run is; a run that is just being begun gets time to write its files."""
    began = time.monotonic()
    while True:
        try:
            return watch.read()
        except (ValueError, OSError) as error:
            waiting = isinstance(error, NoRunError) or time.monotonic() - began < patience
            if not (waiting and lock.in_use(folder)):
                raise
        time.sleep(refresh)


def _metrics(standing: RunStatus) -> str:
    if standing.row is None:
        return "no metrics yet"
    return str(metrics_table(f"metrics at step {standing.step:,}", standing.row.metrics))


def _losses(standing: RunStatus) -> list[str]:
    rows = metrics_table("", standing.row.metrics) if standing.row else ()
    losses = [row for row in rows if row["metric"].endswith("loss")]
    return [f"{printable(row['metric'])} {row['mean']:.4g}" for row in losses]


def _news(standing: RunStatus) -> list[str]:
    """The last score, and how many seeds stopped."""
    told = []
    if score := standing.score:
        told.append(f"{SCORE} {score.mean:.3f} at step {score.step:,}")
    if standing.stopped:
        told.append(stopped_seeds(standing))
    return told
