"""How far runs are, at any moment: one unfinished run, a table of many, or a live display."""

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
from fat2thin.runs import files, lock
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import NoRunError, RunFolder
from fat2thin.runs.result import Evaluations
from fat2thin.runs.status import Outline, Standing, Watch, newest_checkpoint
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import printable

REFRESH = 1.0
"""Seconds between looks."""
PATIENCE = 5.0
"""Seconds without a lock after which a run counts as interrupted."""
LINE_EVERY = 2.0
"""Seconds between lines, at least."""
_ROWS = 20
_LONGEST_SEEDS = 20


def describe(standing: Standing) -> str:
    """An unfinished run: how far it is, its last evaluation and metrics, stops and warnings."""
    # While a process writes and removes checkpoints they are left alone.
    checkpoint = None if standing.in_use else newest_checkpoint(standing.folder)
    outline = standing.outline.including(checkpoint) if checkpoint else standing.outline
    now = "a process is training into it now" if standing.in_use else _interrupted(checkpoint)
    parts = [f"{_title(outline)}: {_progress(standing)}\n{now}"]
    if standing.stopped:
        parts.append(f"{_stopped_seeds(standing)}; what follows leaves them out")
    steps, policies = RunFolder(standing.folder).evaluations(len(outline.seeds))
    if steps and policies:
        last = Evaluations(tuple(steps), policies).last()
        parts.append(str(make_table(f"evaluation after step {steps[-1]:,}", last, {})))
    parts.append(_metrics(standing))
    if told := [*remarks(outline)]:
        parts.append("\n".join(told))
    return "\n\n".join(parts)


def remarks(outline: Outline) -> Iterator[str]:
    """A line for each seed that stopped, and for each warning."""
    for seed, stop in outline.stopped.items():
        yield printable(
            f"seed {seed} stopped at step {stop['step']:,}: {stop['metric']} was not finite. Its "
            f"state after step {stop['last_good_step']:,} is kept."
        )
    for warning in outline.warnings:
        yield printable(f"warning: {warning}")


def overview(folders: Sequence[Path]) -> Table:
    """One row per folder, in the order given; what is no run, or damaged, has a row too."""
    return Table(f"{len(folders)} run folders", tuple(map(_row, folders)))


def _row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"folder": str(folder), "algorithm": "", "dataset": "", "seeds": ""}
    row |= {SCORE: math.nan, "status": ""}
    try:
        standing = Watch(folder).look()
        if not standing.running:
            _check_sizes(standing)
        outline, score = standing.outline, standing.score
        row |= {"algorithm": outline.algorithm, "dataset": outline.dataset}
        row |= {"seeds": _seeds(outline), SCORE: score.mean if score else math.nan}
        row["status"] = outline.status
        if standing.running and standing.in_use:
            row["status"] = f"running {standing.percent} %"
        elif standing.running:
            row["status"] = f"interrupted at step {standing.step:,}"
        if standing.stopped:
            row["status"] += f", {_stopped_seeds(standing)}"
    except (ValueError, OSError) as error:
        what = str(error).removeprefix(f"{folder}/").removeprefix(f"{folder} ")
        row["status"] = what if isinstance(error, NoRunError) else f"damaged: {what}"
    return row


def _check_sizes(standing: Standing) -> None:
    """Check that the files of a finished run have their sizes; contents are not read."""
    for name, stamp in standing.outline.files.items():
        path = standing.folder / name
        try:
            with files.opened(path) as file:
                size = files.size_of(file)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing") from None
        if size != stamp.get("bytes"):
            raise DamagedError(f"{path} is cut off or was changed")


def _title(outline: Outline) -> str:
    return printable(f"{outline.algorithm} on {outline.dataset}, seeds {_seeds(outline)}")


def _seeds(outline: Outline) -> str:
    text = listed(outline.seeds)
    return text if len(text) <= _LONGEST_SEEDS else f"{len(outline.seeds)} of them"


def _progress(standing: Standing) -> str:
    return f"step {standing.step:,} of {standing.outline.steps:,} ({standing.percent} %)"


def _stopped_seeds(standing: Standing) -> str:
    count = len(standing.outline.seeds)
    return f"{standing.stopped} of {count} seed{'s' if count > 1 else ''} stopped"


def _interrupted(checkpoint: Checkpoint | None) -> str:
    place = checkpoint.place if checkpoint else "the start"
    return f"interrupted: run the same command again to resume from {place}"


def _metrics(standing: Standing) -> str:
    if standing.row is None:
        return "no metrics yet"
    return str(metrics_table(f"metrics at step {standing.step:,}", standing.row.metrics))


def _news(standing: Standing) -> list[str]:
    """The last score, and how many seeds stopped."""
    told = []
    if score := standing.score:
        told.append(f"{SCORE} {score.mean:.3f} at step {score.step:,}")
    if standing.stopped:
        told.append(_stopped_seeds(standing))
    return told


class Pace:
    """Steps per second over the last rows of metrics that were seen to arrive."""

    def __init__(self) -> None:
        self._seen: collections.deque[tuple[float, int]] = collections.deque(maxlen=_ROWS)
        self._step: int | None = None

    def see(self, step: int, now: float) -> None:
        """Note the number of steps done now."""
        if self._step is not None and step < self._step:
            self._seen.clear()
        # When the first step that is seen was reached is not known.
        elif self._step is not None and step > self._step:
            self._seen.append((now, step))
        self._step = step

    def words(self, remaining: int) -> str:
        """Speed and time left; empty where not known yet."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return ""
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        rate = (last - first) / (ended - began)
        minutes, seconds = divmod(round(remaining / rate), 60)
        return f"{rate:,.0f} steps/s, {minutes}:{seconds:02d} left"


class _Lines:
    """Prints a line when something is new, but not too often."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._told: tuple[int, int] | None = None
        self._when = -math.inf

    def show(self, standing: Standing, pace: str) -> None:
        news = standing.step, standing.score.step if standing.score else -1
        now = time.monotonic()
        if news == self._told or now - self._when < self._every:
            return
        self._told, self._when = news, now
        rows = metrics_table("", standing.row.metrics) if standing.row else ()
        losses = [
            f"{printable(row['metric'])} {row['mean']:.4g}"
            for row in rows
            if row["metric"].endswith("loss")
        ]
        parts = [_progress(standing), *losses, *_news(standing), pace]
        print("; ".join(filter(None, parts)), flush=True)


class _Screen:
    """Shows a bar, and the last metrics below it."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, standing: Standing, pace: str) -> None:
        done = ProgressBar(total=standing.outline.steps, completed=standing.step, width=40)
        bar = Columns([done, Text(_progress(standing)), Text(pace)])
        texts = filter(None, ["; ".join(_news(standing)), _metrics(standing)])
        shown = Group(Text(_title(standing.outline)), bar, Text("\n".join(texts)))
        self._live.update(shown, refresh=True)


def follow(
    folder: Path, console: Console | None = None, *, refresh: float = REFRESH,
    patience: float = PATIENCE, line_every: float = LINE_EVERY,
) -> bool:  # fmt: skip
    """Show a run until it is over; return False if it was interrupted, or on Ctrl-C."""
    console = console or Console()
    live = Live(console=console, auto_refresh=False, transient=True)
    display = _Screen(live) if console.is_terminal else _Lines(line_every)
    watch, pace = Watch(folder), Pace()
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
        print(f"{_progress(standing)}; {_interrupted(newest_checkpoint(folder))}")
    return not standing.running


def _look(watch: Watch, folder: Path, refresh: float, patience: float) -> Standing:
    """How far the run is; a run that is just starting gets time to write its files."""
    began = time.monotonic()
    while True:
        try:
            return watch.look()
        except (ValueError, OSError) as error:
            waiting = isinstance(error, NoRunError) or time.monotonic() - began < patience
            if not (waiting and lock.in_use(folder)):
                raise
        time.sleep(refresh)
