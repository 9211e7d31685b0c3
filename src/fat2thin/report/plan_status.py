"""Progress of many runs, read from their folders: runs done, running and failed, and time left.

Only files are read, so any machine that sees the folder can follow a plan.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from fat2thin.report.run_status import Pace
from fat2thin.runs import lock
from fat2thin.runs.checkpoints import FOLDER as CHECKPOINTS
from fat2thin.runs.folder import DIVERGED, RUN
from fat2thin.runs.plan_file import PLAN, PlanFile, has_driver, read_plan
from fat2thin.runs.status import StatusReader
from fat2thin.terminal_text import counted, printable

_ROWS = 200  # readings that speed and time left are computed from
_LINE_SECONDS = 60.0  # between lines if no run has ended or started
_SHARE = 20  # reading takes at most this part of the time


@dataclasses.dataclass(frozen=True)
class PlanStatus:
    """How far the runs of a plan are."""

    runs: int
    done: int
    """Runs that are over, including those that diverged."""
    diverged: int
    running: int
    """Runs that a process trains now, on any machine."""
    failed: tuple[str, ...]
    """Runs that could not be computed."""
    updates_done: float
    updates: int

    @property
    def waiting(self) -> int:
        """Runs that have not started, or were interrupted."""
        return self.runs - self.done - self.running - len(self.failed)

    @property
    def over(self) -> bool:
        """Whether every run is over or has failed."""
        return self.done + len(self.failed) == self.runs

    @property
    def words(self) -> str:
        """The counts as text."""
        diverged = f" ({self.diverged} diverged)" if self.diverged else ""
        parts = [f"{self.done} of {counted(self.runs, 'run')} done{diverged}"]
        parts += [f"{self.running} running", f"{len(self.failed)} failed"]
        return ", ".join([*parts, f"{self.waiting} waiting"])


class PlanReader:
    """Reads the progress of a plan repeatedly; runs that are over are read once."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._readers: dict[str, StatusReader] = {}
        self._over: dict[str, str] = {}  # status of runs that are over

    def read(self) -> PlanStatus:
        """Return the current progress; a folder without plan.json has the runs below it."""
        plan = read_plan(self._root) or _found(self._root)
        running, done, left_out = 0, 0.0, {}
        for name, updates in plan.updates.items():
            status, share, busy = self._run(name)
            done += updates * share
            running += busy
            if not status and not busy and name in plan.failed:
                left_out[name] = plan.failed[name]
        over = [self._over[name] for name in plan.updates if name in self._over]
        return PlanStatus(
            runs=len(plan.updates),
            done=len(over),
            diverged=over.count(DIVERGED),
            running=running,
            failed=tuple(left_out),
            updates_done=done,
            updates=sum(plan.updates.values()),
        )

    def _run(self, name: str) -> tuple[str, float, bool]:
        """Return the status of a run that is over (else ""), its share done, and if it trains."""
        if name in self._over:
            return self._over[name], 1.0, False
        folder = self._root / name
        if not (folder / RUN).exists():
            return "", 0.0, lock.in_use(folder)
        try:
            status = self._readers.setdefault(name, StatusReader(folder)).read()
        except (ValueError, OSError):
            # Its files are being replaced, or are damaged: `fat2thin show RUN` says which.
            return "", 0.0, lock.in_use(folder)
        if status.running:
            return "", status.step / status.outline.steps, status.in_use
        self._over[name] = status.outline.status
        del self._readers[name]
        return self._over[name], 1.0, False


def _found(root: Path) -> PlanFile:
    """Return the runs below a folder, as equally large parts of a plan."""
    below = [path.parent.relative_to(root) for path in sorted(root.glob(f"**/{RUN}"))]
    return PlanFile({str(path): 1 for path in below if CHECKPOINTS not in path.parts})


def has_many_runs(folder: Path) -> bool:
    """Whether a folder is that of a plan, or has runs below it and holds none itself."""
    if (folder / PLAN).is_file():
        return True
    return not (folder / RUN).exists() and next(folder.glob(f"*/**/{RUN}"), None) is not None


class PlanDisplay:
    """Shows the progress of a plan: one bar on a terminal, lines elsewhere."""

    def __init__(self, root: str | Path, console: Console | None = None) -> None:
        self._reader, self._pace = PlanReader(root), Pace(_ROWS)
        self._console = console or Console(stderr=True)
        text = TextColumn("{task.description}", markup=False, table_column=Column())
        columns = (SpinnerColumn(), BarColumn(), TaskProgressColumn(), text)
        self._bar = RichProgress(*columns, console=self._console)
        self._printed, self._printed_at = "", 0.0
        self._next = 0.0
        self.status: PlanStatus | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator["PlanDisplay"]:
        """Show the bar while the context is entered; its last state stays on the screen."""
        if not self._console.is_terminal:
            yield self
            return
        with self._bar:
            self._task = self._bar.add_task("", total=1)
            yield self

    def update(self, least: float = 1.0, last: bool = False) -> PlanStatus:
        """Read and show the progress, at most once in `least` seconds and always if it is last."""
        now = time.monotonic()
        if self.status is not None and now < self._next and not last:
            return self.status
        self.status = self._reader.read()
        took = time.monotonic() - now
        self._next = now + max(least, _SHARE * took)
        self._pace.see(round(self.status.updates_done), now)
        self._show(self.status, now)
        return self.status

    def _show(self, status: PlanStatus, now: float) -> None:
        left = "" if status.over else self._pace.words(status.updates - round(status.updates_done))
        words = "; ".join(filter(None, [status.words, left.replace("steps/s", "updates/s")]))
        if self._console.is_terminal:
            total = status.updates or 1
            done = status.updates_done if status.updates else 1
            self._bar.update(self._task, total=total, completed=done, description=words)
        elif status.words != self._printed or now - self._printed_at >= _LINE_SECONDS:
            self._printed, self._printed_at = status.words, now
            print(printable(words), flush=True)


def follow_plan(
    root: Path, console: Console | None = None, *, refresh: float = 1.0, patience: float = 10.0
) -> PlanStatus | None:
    """Show a plan until no process trains its runs and no driver of a cluster works on it.

    Returns its status, or None after Ctrl-C. In seconds: `refresh` between reads, and `patience`
    for a next part of the plan to begin.
    """
    display = PlanDisplay(root, console or Console())
    last_busy = time.monotonic()
    try:
        with display.shown():
            while True:
                status = display.update(refresh)
                now = time.monotonic()
                if status.running or has_driver(root):
                    last_busy = now
                elif now - last_busy > patience:
                    return status
                time.sleep(refresh)
    except KeyboardInterrupt:
        return None


def show_plan(root: Path, follow: bool) -> None:
    """Print the progress of a plan and why runs failed, now or, with `follow`, when it ends."""
    status = follow_plan(root) if follow else PlanReader(root).read()
    if status is None:
        return
    print(printable(status.words))
    plan = read_plan(root)
    for name, why in (plan.failed if plan else {}).items():
        if name in status.failed:
            print(printable(f"{name}: {why}"))
    if follow and not status.over:
        print("interrupted: run the same command again to resume")
