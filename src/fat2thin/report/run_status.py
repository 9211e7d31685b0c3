"""Status of runs: the report of an unfinished run, a table of many, or a live display."""

import collections
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from fat2thin.evaluation.returns import SCORE
from fat2thin.evaluation.table import make_table, metrics_table
from fat2thin.runs import checkpoints, files, lock
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import DamagedError, NoRunError
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.result import Evaluations
from fat2thin.runs.status import RunOutline, RunStatus, StatusReader
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import printable

_ROWS = 20
_LONGEST_SEEDS = 20


def describe(status: RunStatus) -> str:
    """Return the progress, last evaluation, metrics, stops and warnings of an unfinished run."""
    # Checkpoints are not read while a process writes and removes them.
    checkpoint = None if status.in_use else checkpoints.newest(status.folder)
    outline = status.outline.including(checkpoint) if checkpoint else status.outline
    now = "training now" if status.in_use else _interrupted(checkpoint)
    parts = [f"{_title(outline)}: {_progress(status)}\n{now}"]
    if status.stopped:
        parts.append(f"{_stopped_seeds(status)}; the numbers below exclude them")
    steps, policies = RunFolder(status.folder).evaluations(len(outline.seeds))
    if steps and policies:
        last = Evaluations(tuple(steps), policies).last()
        parts.append(str(make_table(f"evaluation after step {steps[-1]:,}", last, {})))
    parts.append(_metrics(status))
    if lines := [*remarks(outline)]:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def remarks(outline: RunOutline) -> Iterator[str]:
    """Yield one line per stopped seed and per warning."""
    for seed, stop in outline.stopped.items():
        yield printable(
            f"seed {seed} stopped at step {stop['step']:,}: {stop['metric']} was not finite. Its "
            f"state after step {stop['last_good_step']:,} is kept."
        )
    for warning in outline.warnings:
        yield printable(f"warning: {warning}")


def overview(folders: Sequence[Path]) -> Table:
    """Return a table with one row per folder, including damaged folders and those without a run."""
    return Table(f"{len(folders)} run folders", tuple(map(_row, folders)))


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"folder": str(folder), "algorithm": "", "dataset": "", "seeds": ""}
    row |= {SCORE: math.nan, "status": ""}
    try:
        status = StatusReader(folder).read()
        if not status.running:
            _check_sizes(status)
        outline, score = status.outline, status.score
        row |= {"algorithm": outline.algorithm, "dataset": outline.dataset}
        row |= {"seeds": _seeds(outline), SCORE: score.mean if score else math.nan}
        now = f"running {status.percent} %"
        if not status.in_use:
            now = f"interrupted at step {status.step:,}"
        row["status"] = now if status.running else outline.status
        if status.stopped:
            row["status"] += f", {_stopped_seeds(status)}"
    except (ValueError, OSError) as error:
        what = str(error).removeprefix(f"{folder}/").removeprefix(f"{folder} ")
        row["status"] = what if isinstance(error, NoRunError) else f"damaged: {what}"
    return row


def _check_sizes(status: RunStatus) -> None:
    """Check that the files of a finished run have their sizes; contents are not read."""
    for name, stamp in status.outline.files.items():
        path = status.folder / name
        with files.opened(path, required=True) as file:
            size = files.size_of(file)
        if size != stamp.get("bytes"):
            raise DamagedError(f"{path} is truncated or was changed")


def _title(outline: RunOutline) -> str:
    return printable(f"{outline.algorithm} on {outline.dataset}, seeds {_seeds(outline)}")


def _seeds(outline: RunOutline) -> str:
    text = listed(outline.seeds)
    return text if len(text) <= _LONGEST_SEEDS else f"{len(outline.seeds)} in total"


def _progress(status: RunStatus) -> str:
    return f"step {status.step:,} of {status.outline.steps:,} ({status.percent} %)"


def _stopped_seeds(status: RunStatus) -> str:
    count = len(status.outline.seeds)
    return f"{status.stopped} of {count} seed{'s' if count > 1 else ''} stopped"


def _interrupted(checkpoint: Checkpoint | None) -> str:
    place = checkpoint.place if checkpoint else "the start"
    return f"interrupted: run the same command again to resume from {place}"


def _metrics(status: RunStatus) -> str:
    if status.row is None:
        return "no metrics yet"
    return str(metrics_table(f"metrics at step {status.step:,}", status.row.metrics))


def _news(status: RunStatus) -> list[str]:
    """Return the last score and the number of stopped seeds as text."""
    score = status.score
    news = [f"{SCORE} {score.mean:.3f} at step {score.step:,}"] if score else []
    return [*news, _stopped_seeds(status)] if status.stopped else news


class Pace:
    """Steps per second over the last `rows` metrics rows that arrived."""

    def __init__(self, rows: int = _ROWS) -> None:
        self._seen: collections.deque[tuple[float, int]] = collections.deque(maxlen=rows)
        self._step: int | None = None

    def see(self, step: int, now: float) -> None:
        """Record the number of steps done at the time `now`."""
        if self._step is not None and step < self._step:
            self._seen.clear()
        # The time at which the first observed step was reached is unknown.
        elif self._step is not None and step > self._step:
            self._seen.append((now, step))
        self._step = step

    def words(self, remaining: int) -> str:
        """Return speed and time left as text; empty if not known yet."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return ""
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (ended - began)
        minutes, seconds = divmod(round(remaining / rate), 60)
        return f"{rate:,.0f} steps/s, {minutes}:{seconds:02d} left"


class _Lines:
    """Display that prints a line when something is new, but not too often."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._shown: tuple[int, int] | None = None
        self._when = -math.inf

    def show(self, status: RunStatus, pace: str) -> None:
        news = status.step, status.score.step if status.score else -1
        now = time.monotonic()
        if news == self._shown or now - self._when < self._every:
            return
        self._shown, self._when = news, now
        rows = metrics_table("", status.row.metrics) if status.row else ()
        losses = [row for row in rows if row["metric"].endswith("loss")]
        values = [f"{printable(row['metric'])} {row['mean']:.4g}" for row in losses]
        parts = [_progress(status), *values, *_news(status), pace]
        print("; ".join(filter(None, parts)), flush=True)


class _Screen:
    """Display with a progress bar and the last metrics below it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, status: RunStatus, pace: str) -> None:
        done = ProgressBar(total=status.outline.steps, completed=status.step, width=40)
        bar = Columns([done, Text(_progress(status)), Text(pace)])
        texts = filter(None, ["; ".join(_news(status)), _metrics(status)])
        shown = Group(Text(_title(status.outline)), bar, Text("\n".join(texts)))
        self._live.update(shown, refresh=True)


def follow(
    folder: Path, console: Console | None = None, *, refresh: float = 1.0, patience: float = 5.0,
    line_every: float = 2.0,
) -> bool:  # fmt: skip
    """Show a run until it ends; return False if it was interrupted, or on Ctrl-C.

    In seconds: `refresh` between reads, at least `line_every` between lines, and `patience` without
    a lock after which a run counts as interrupted.
    """
    console = console or Console()
    live = Live(console=console, auto_refresh=False, transient=True)
    display = _Screen(live) if console.is_terminal else _Lines(line_every)
    watch, pace = StatusReader(folder), Pace()
    last_held = time.monotonic()
    try:
        with live if console.is_terminal else contextlib.nullcontext():
            while (status := wait_for_status(watch, folder, refresh, patience)).running:
                now = time.monotonic()
                if status.in_use:
                    last_held = now
                elif now - last_held > patience:
                    break
                pace.see(status.step, now)
                display.show(status, pace.words(status.outline.steps - status.step))
                time.sleep(refresh)
    except KeyboardInterrupt:
        return False
    if status.running:
        print(f"{_progress(status)}; {_interrupted(checkpoints.newest(folder))}")
    return not status.running


def wait_for_status(
    watch: StatusReader, folder: Path, refresh: float, patience: float
) -> RunStatus:
    """Return the status of the run; wait while a starting run writes its first files."""
    began = time.monotonic()
    while True:
        try:
            return watch.read()
        except (ValueError, OSError) as error:
            waiting = isinstance(error, NoRunError) or time.monotonic() - began < patience
            if not (waiting and lock.in_use(folder)):
                raise
        time.sleep(refresh)
