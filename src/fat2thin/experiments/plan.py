"""Plans of many runs, which share compiled programs and reuse finished runs."""

import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

from fat2thin import algorithms, data
from fat2thin.algorithms.base import Problem, shapes_program
from fat2thin.engine.pack import OWN, traced_settings
from fat2thin.envs import treatment
from fat2thin.evaluation.batches import problem_of
from fat2thin.runs.folder import DIVERGED, FINISHED, RUN, RunFolder
from fat2thin.runs.lock import in_use
from fat2thin.runs.plan_file import PlanFile, read_plan
from fat2thin.terminal_text import counted
from fat2thin.training import FolderInUseError, Run, RunSpec, TrainingDiverged, load
from fat2thin.training.progress import Silent
from fat2thin.training.runner import execute_together

CarryOut = Callable[..., None]
"""`carry_out`, or the same elsewhere: called with the runs, their root and a progress or None."""

_log = logging.getLogger(__name__)
_PATIENCE = 2.0  # seconds between checks for folders that other processes use
_REPORT_SECONDS = 60.0


class PlannedRun(NamedTuple):
    """A run of a plan."""

    name: str
    """Run folder, relative to the root of the plan."""
    spec: RunSpec
    """Specification of the run."""

    @property
    def updates(self) -> int:
        """Number of updates of all seeds, including a preparation."""
        preparation = algorithms.get(self.spec.algorithm).preparation
        before = preparation.steps(self.spec.config) if preparation else 0
        return len(self.spec.seeds) * (self.spec.steps + before)


class Pack(NamedTuple):
    """Runs of a plan that are computed together, in one program."""

    runs: tuple[PlannedRun, ...]
    """The runs that are not over yet."""
    traced: tuple[str, ...]
    """Settings that differ between all runs of the program, including those that are over. They are
    arguments of the program: a compiled-in number rounds differently."""

    @property
    def updates(self) -> int:
        """Number of updates of all runs."""
        return sum(one.updates for one in self.runs)

    @property
    def title(self) -> str:
        """Algorithm and data sets, for progress and messages."""
        spec = self.runs[0].spec
        datasets = list(dict.fromkeys(one.spec.dataset for one in self.runs))
        published = ", as published" if getattr(spec.config, "published", False) else ""
        where = datasets[0] if len(datasets) == 1 else f"{len(datasets)} data sets"
        return f"{spec.algorithm}{published} on {where}"


class PlanProgress(Silent):
    """Progress of a plan that counts updates of all seeds and prints nothing."""

    def plan(self, updates: Sequence[int], reused: int) -> None:
        """Start a plan with these updates per program and this number of reused runs."""
        self._updates, self._reused = list(updates), reused
        self._finished: set[int] = set()
        self._number, self._title, self._part = -1, "", 0
        self._began = time.perf_counter()
        self.show()

    def next_program(self, number: int, title: str) -> None:
        """Start a program."""
        self._number, self._title = number, title
        self._part = self._before = self._steps = self._seeds = 0
        self.show()

    def program_is_done(self, number: int) -> None:
        """Mark a program as done, by this process or another."""
        self._finished.add(number)
        self._part = 0
        self.show()

    def begin(self, steps: int, seeds: int, part: str = "") -> None:
        """Start a part of a program: its preparation or its training."""
        self._before += self._steps * self._seeds
        self._steps, self._seeds = steps, seeds

    def advance(self, step: int) -> None:
        """Set the number of steps done in the current part."""
        self._part = min(self._before + step * self._seeds, self._updates[self._number])
        self.show()

    @property
    def _done(self) -> int:
        return sum(self._updates[number] for number in self._finished) + self._part

    @property
    def words(self) -> str:
        """Current program, speed, and time left at the mean speed so far."""
        count = len(self._updates)
        programs = counted(count, "program")
        reused = f", {counted(self._reused, 'run')} reused" if self._reused else ""
        if self._number < 0:
            return f"{programs} to run{reused}"
        if len(self._finished) == count:
            return f"{programs} done{reused}"
        where = f"program {self._number + 1} of {count}: {self._title}"
        since = time.perf_counter() - self._began
        if not self._done or since <= 0:
            return f"{where}, compiling"
        pace = self._done / since
        minutes, seconds = divmod(round((sum(self._updates) - self._done) / pace), 60)
        hours, minutes = divmod(minutes, 60)
        left = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
        return f"{where}, {pace:,.0f} updates/s, {left}:{seconds:02d} left"

    def show(self) -> None:
        """Show the progress."""


class PlanLines(PlanProgress):
    """Progress that prints a line when a program starts, and then one per minute."""

    _printed_at = 0.0

    def next_program(self, number: int, title: str) -> None:
        """Start a program and print a line immediately."""
        self._printed_at = 0.0
        super().next_program(number, title)

    def show(self) -> None:
        """Print a line unless the last one is recent."""
        now = time.perf_counter()
        if now - self._printed_at >= _REPORT_SECONDS:
            self._printed_at = now
            print(self.words, flush=True)


class PlanBar(PlanProgress):
    """Progress as one bar for the whole plan."""

    def __init__(self) -> None:
        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), BarColumn(), TaskProgressColumn(), text)
        self._bar = RichProgress(*columns, console=Console(stderr=True))
        self._entered = 0

    def __enter__(self) -> "PlanBar":
        # Reentrant: every program of the plan enters it again.
        self._entered += 1
        if self._entered == 1:
            self._bar.start()
            self._task = self._bar.add_task("", total=1)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the bar and leave its last state on the screen."""
        self._entered -= 1
        if not self._entered:
            self._bar.stop()

    def show(self) -> None:
        """Update the bar."""
        total = sum(self._updates)
        done = self._done if total else 1
        self._bar.update(self._task, total=total or 1, completed=done, description=self.words)


def carry_out(
    planned: Sequence[PlannedRun], root: str | Path, progress: PlanProgress | None = None
) -> None:
    """Compute the runs that do not exist below `root` yet, packed into programs.

    Errors in names, settings and data sets are raised before anything is computed. An interrupted
    plan resumes. Several processes may share a plan: each skips programs that another has started.
    """
    root = Path(root)
    packs, reused = missing_packs(planned, root)
    write_file(planned, root)
    left = dict(enumerate(packs))
    shown = progress or (PlanBar() if sys.stderr.isatty() else PlanLines())
    with shown:
        shown.plan([pack.updates for pack in packs], reused)
        while left:
            before = len(left)
            for number, pack in [*left.items()]:
                if _computed(number, pack, root, shown):
                    del left[number]
            if len(left) == before:
                time.sleep(_PATIENCE)


def missing_packs(planned: Sequence[PlannedRun], root: Path) -> tuple[list[Pack], int]:
    """Return the runs that are not over yet, by program, and the number of those that are.

    The settings that are arguments of a program depend on the whole plan, so that a run has the
    same bits whenever and with whichever other runs it is computed.
    """
    specs = dict[str, RunSpec]()
    for name, spec in planned:
        if specs.setdefault(name, spec) != spec:
            raise ValueError(f"the plan has two different runs for the folder {name}")
    distinct = [PlannedRun(*one) for one in specs.items()]
    missing = {one.name for one in distinct if not is_over(one, root)}
    packs = []
    for runs in programs(distinct):
        if left := tuple(one for one in runs if one.name in missing):
            packs.append(Pack(left, tuple(traced_settings([one.spec for one in runs]))))
    return packs, len(distinct) - len(missing)


def write_file(planned: Sequence[PlannedRun], root: Path) -> None:
    """Write plan.json, so that `fat2thin show ROOT --follow` knows all runs of the plan."""
    before = read_plan(root) or PlanFile({})
    # The first part of a sweep still counts while its second part is computed.
    kept = {name: count for name, count in before.updates.items() if (root / name / RUN).exists()}
    PlanFile(kept | {one.name: one.updates for one in planned}).write(root)


def _computed(number: int, pack: Pack, root: Path, shown: PlanProgress) -> bool:
    """Compute a program if needed; return False if another process is computing it."""
    if not all(is_over(one, root) for one in pack.runs):
        folders = [root / one.name for one in pack.runs]
        if any(map(in_use, folders)):
            return False
        shown.next_program(number, pack.title)
        try:
            specs = [one.spec for one in pack.runs]
            execute_together(specs, folders, shown, traced=pack.traced)
        except FolderInUseError:
            return False
        except TrainingDiverged as diverged:
            # The run has ended and tables will show it; continue with the other programs.
            _log.warning("%s: %s", pack.title, diverged)
    shown.program_is_done(number)
    return True


def load_runs(planned: Sequence[PlannedRun], root: str | Path) -> dict[str, Run]:
    """Return the finished runs of a plan by name."""
    return {one.name: load(Path(root) / one.name) for one in planned}


def is_over(one: PlannedRun, root: Path) -> bool:
    """Return whether a run has finished or diverged; raise an error if the folder has another run.

    The contents of its data are not compared; `fat2thin verify` does that.
    """
    folder = RunFolder(root / one.name)
    if not (folder.path / "run.json").exists():
        return False
    return folder.status(one.spec, folder.about()["sha256"]) in (FINISHED, DIVERGED)


def programs(planned: Sequence[PlannedRun]) -> list[list[PlannedRun]]:
    """Return the runs in groups that can share a compiled program."""
    packs: dict[Any, list[PlannedRun]] = {}
    for one in planned:
        packs.setdefault(_program(one.spec), []).append(one)
    return list(packs.values())


def _program(spec: RunSpec) -> tuple:
    """Return the key that runs must have in common to share a program."""
    fixed = tuple(value for name, value in vars(spec).items() if name not in OWN)
    shape = tuple(
        (field.name, value)
        for field in dataclasses.fields(spec.config)
        for value in [getattr(spec.config, field.name)]
        if shapes_program(field) or not isinstance(value, float)
    )
    one_a_seed = data.reader(spec.dataset).one_a_seed
    return fixed, shape, _problem(spec.dataset, spec.seeds[0] if one_a_seed else 0)


@functools.lru_cache(maxsize=64)
def _problem(dataset: str, seed: int) -> Problem:
    """Return the sizes, action box and discount of a data set."""
    return problem_of(data.load(dataset, seed))


def environment_steps(runs: Iterable[Run], policy: str | None = None) -> int | None:
    """Return the environment steps of evaluations of one or all policies, without stopped seeds.

    Returns None if a task does not measure the length of its episodes.
    """
    steps = 0
    for run in runs:
        for name in run.evaluations.policies if policy is None else [policy]:
            evaluation = run.evaluations[name]
            if "length" in evaluation.measures:
                steps += round(float(np.nansum(evaluation.measures["length"])) * run.spec.episodes)
            elif run.spec.task is None and treatment.is_name(run.spec.dataset):
                episodes = int(np.sum(~np.isnan(evaluation.returns)))
                steps += episodes * treatment.by_name(run.spec.dataset).horizon
            else:
                return None
    return steps
