"""Verify a run folder: check all of its files and recompute some steps; nothing is written."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fat2thin import data
from fat2thin.algorithms.base import State
from fat2thin.engine.devices import JobScheduler, chunk_size
from fat2thin.engine.pack import LoadedLog, data_size, jobs_of, make_pack, make_program
from fat2thin.engine.window import rows_there
from fat2thin.evaluation.batches import problem_of
from fat2thin.runs import checkpoints, folder_checks, identity, lock
from fat2thin.runs.checkpoints import Checkpoint, NewerFormatError, Place
from fat2thin.runs.files import DamagedError, TooLargeError, refuse_too_large
from fat2thin.runs.folder import FINISHED, RUN, RUNNING, STATE, MetricsRow, RunFolder
from fat2thin.runs.folder_checks import NotPossible, RecordedRun, refuse
from fat2thin.settings.config import whole_number
from fat2thin.settings.spec import MOST_ROWS, difference
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import counted

OK, FAILED, NOT_POSSIBLE = "ok", "FAILED", "not possible"
_SAID = ("versions", "device", "started")
_SAID_AT_THE_END = ("step", "seconds", "files")
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OSError)
"""Errors that reading a damaged file can raise."""


class CheckResult(NamedTuple):
    """The result of one check."""

    name: str
    result: str
    """`OK`, `FAILED` or `NOT_POSSIBLE`."""
    what: str
    """What was found, what is wrong, or why it cannot be checked."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """The results of all checks; `str` of it is a table."""

    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.result != FAILED for check in self.checks)

    def __getitem__(self, name: str) -> CheckResult:
        """Return the check with this name."""
        return next(check for check in self.checks if check.name == name)

    def __str__(self) -> str:
        rows = ({"check": one.name, "result": one.result, "what": one.what} for one in self.checks)
        return str(Table("", tuple(rows)))


def verify(folder: str | Path, replayed: int | None = None) -> Verification:
    """Check that a run folder agrees with its run.json; nothing is written.

    At least `replayed` steps from the start are recomputed, by default one chunk of updates.
    """
    most = None if replayed is None else whole_number("replay", replayed, least=0)
    return _Verifier(Path(folder), most).verification()


class _Verifier:
    """Runs the checks in order; later checks use what earlier ones read."""

    def __init__(self, folder: Path, most: int | None) -> None:
        self._folder, self._most = RunFolder(folder), most
        self._in_use = False
        self._run: RecordedRun | None = None
        self._logs: tuple[LoadedLog, ...] | None = None
        self._damaged: list[str] = []

    def verification(self) -> Verification:
        """Run all checks."""
        checks: dict[str, Callable[[RecordedRun], str]] = {
            "files": folder_checks.check_files,
            "checkpoints": self._checkpoints,
            "data": self._data,
            "metrics": folder_checks.check_metrics,
            "evaluations": folder_checks.check_evaluations,
            "snapshots": folder_checks.check_snapshots,
            "weights": folder_checks.check_weights,
            "replay": self._replay,
        }
        first = self._checked(RUN, self._read)
        return Verification((first, *(self._checked(*check) for check in checks.items())))

    def _checked(self, name: str, check: Callable[..., str]) -> CheckResult:
        try:
            if name == RUN:
                return CheckResult(name, OK, check())
            if self._run is None:
                raise NotPossible(f"{RUN} cannot be used")
            return CheckResult(name, OK, check(self._run))
        except (NotPossible, TooLargeError) as error:
            return CheckResult(name, NOT_POSSIBLE, str(error))
        except _WRONG as error:
            if self._in_use and isinstance(error, FileNotFoundError):
                return CheckResult(name, NOT_POSSIBLE, f"the run changed during the check: {error}")
            what = str(error) if isinstance(error, ValueError | OSError) else repr(error)
            return CheckResult(name, FAILED, " ".join(what.split()))

    def _read(self) -> str:
        self._in_use = lock.in_use(self._folder.path)
        about = self._folder.about()
        needed = _SAID if about["status"] == RUNNING else (*_SAID, *_SAID_AT_THE_END)
        refuse(f"it has no {name}" for name in needed if name not in about)
        found = identity.identity_of(self._folder.path / RUN, about)
        spec = found.spec
        if spec.steps / min(spec.log_every, spec.evaluate_every) > MOST_ROWS:
            raise NotPossible(f"{spec.steps:,} steps would be cut into too many chunks")
        run = RecordedRun(self._folder, about, found, self._intact_checkpoints(about))
        if about["status"] == FINISHED and about["step"] != spec.steps:
            raise DamagedError(f"it finished after step {about['step']} of {spec.steps}")
        unknown = {*about.get("stopped", {})} - {str(seed) for seed in spec.seeds}
        refuse(f"stopped seed {seed} is not a seed of the run" for seed in sorted(unknown))
        self._run = run
        stopped = f", {len(about['stopped'])} of them stopped" if "stopped" in about else ""
        now = ", and a process is training into the folder" if self._in_use else ""
        steps = counted(spec.steps, "step")
        return f"{about['status']}, {steps}, seeds {listed(spec.seeds)}{stopped}{now}"

    def _intact_checkpoints(self, about: dict[str, Any]) -> list[Checkpoint]:
        """Return the intact checkpoints, newest first, and record what is wrong with the others."""
        intact = []
        for place, path in checkpoints.listed(self._folder.path):
            try:
                found = checkpoints.read(path, place)
                manifest = found.manifest
                # An earlier version wrote specifications without options that came later.
                same_spec = "spec" in manifest and not difference(manifest["spec"], about["spec"])
                for name in ("spec", "problem", "sha256", "scales"):
                    same = same_spec if name == "spec" else manifest.get(name) == about.get(name)
                    if not same:
                        raise DamagedError(f"{path} and {RUN} do not agree on {name}")
                intact.append(found)
            except (DamagedError, NewerFormatError, FileNotFoundError) as error:
                # A training process removes old checkpoints.
                if path.exists() or not self._in_use:
                    self._damaged.append(str(error))
        return intact

    def _checkpoints(self, run: RecordedRun) -> str:
        refuse(self._damaged)
        return ", ".join(str(found.place) for found in run.checkpoints) or "none"

    def _data(self, run: RecordedRun) -> str:
        name = run.spec.dataset
        try:
            if data.reader(name).one_a_seed:
                # The logs of all seeds might not fit into memory; the size of one is checked first.
                parts, seeds = 2 if run.spec.holdout else 1, run.spec.seeds
                size = parts * data_size(data.load(name, seeds[0]))
                asking = f"spec.dataset and the {len(seeds):,} spec.seeds"
                refuse_too_large(run.folder.path / RUN, asking, len(seeds) * size)
            (logs,) = identity.read_logs([run.spec])
        except TooLargeError:
            raise
        except (OSError, ValueError) as error:
            if Path(name).exists():
                raise
            raise NotPossible(f"{name} cannot be read here: {error}") from error
        if [log.dataset.sha256 for log in logs] != run.about["sha256"]:
            raise DamagedError(f"the contents of {name} have changed")
        problem = identity.problem_to_json(problem_of(logs[0].dataset))
        if problem != run.about["problem"]:
            raise DamagedError(f"{RUN} has problem {run.about['problem']}, the data have {problem}")
        # Sums of many numbers may differ in the last digit between machines.
        scales, kept = (
            jax.tree.leaves([one.to_json() for one in several])
            for several in ([log.scales for log in logs], run.identity.scales)
        )
        if not np.allclose(scales, kept, rtol=1e-6):
            raise DamagedError(f"the scales in {RUN} are not those of the data")
        self._logs = logs
        return f"{name}: {len(logs)} log{'s' * (len(logs) > 1)}, unchanged"

    def _replay(self, run: RecordedRun) -> str:
        if self._logs is None:
            raise NotPossible("it needs the unchanged data")
        return replay(run, self._logs, self._most)


def replay(run: RecordedRun, logs: tuple[LoadedLog, ...], most: int | None) -> str:
    """Recompute at least `most` steps (or one chunk) from the start, and compare all bits.

    If the newest checkpoint is at most that many steps before the end, the steps after it are
    recomputed too.
    """
    if most == 0:
        raise NotPossible("no replay was requested")
    try:
        collections.deque(run.folder.metrics_rows(), maxlen=0)
    except DamagedError as error:
        raise NotPossible(f"there is nothing to compare with: {error}") from error
    if not run.chunks:
        raise NotPossible("no chunk of updates was completed")
    most = run.chunks[0][1] if most is None else most
    _refuse_too_large(run, logs)
    again = _Replay(run, logs)
    notes, done = ["nothing from the start, because it begins with a preparation"], 0
    if again.pack.program.algorithm.preparation is None:
        chunks = [(start, length) for start, length in run.chunks if start < most]
        again.compute(again.scheduler.init(), np.ones(len(run.spec.seeds), bool), chunks)
        done = sum(chunks[-1])
        notes = [f"{counted(done, 'step')} from the start"]
    newest = run.checkpoints[0] if run.checkpoints else None
    if run.over and done < run.reached and newest and newest.place.training:
        step = newest.place.step
        left = run.reached - step
        if 0 < left <= most:
            stopped = newest.manifest.get("stopped", {})
            active = np.asarray([str(seed) not in stopped for seed in run.spec.seeds])
            chunks = [(start, length) for start, length in run.chunks if start >= step]
            again.compute(again.scheduler.spread(run.state(newest)), active, chunks)
            notes.append(f"{counted(left, 'step')} from the checkpoint of step {step:,} to the end")
        elif left > most:
            notes.append(f"nothing at the end, which needs a replay of {counted(left, 'step')}")
    if not again.compared:
        raise NotPossible("; ".join(notes))
    again.refuse_differences("; ".join(notes))
    return f"{'; '.join(notes)}. Equal bits: {', '.join(again.compared)}"


def _refuse_too_large(run: RecordedRun, logs: tuple[LoadedLog, ...]) -> None:
    """Refuse a replay that does not fit the files, or needs too much memory."""
    try:
        _ = run.shapes
    except DamagedError as error:
        raise NotPossible(f"the saved states do not fit: {error}") from error
    spec, problem, scales = run.identity
    one = jobs_of(dataclasses.replace(spec, seeds=spec.seeds[:1]), scales[:1])
    # The logs are in memory; their scaled copies and those on the device are not yet.
    program = make_program(spec, problem)
    next_action = program.algorithm.next_action
    sizes = spec.window or 0, spec.batch_size, spec.log_every
    there = [rows_there(log.dataset.rows, *sizes) for log in logs]
    needed = 2 * sum(
        data_size(log.dataset, next_action, rows) for log, rows in zip(logs, there, strict=True)
    )
    needed += chunk_size(program, one, len(spec.seeds))
    asking = "spec.config, spec.batch_size and spec.seeds"
    refuse_too_large(run.folder.path / RUN, asking, needed)


class _Replay:
    """A recomputed run, and where it differs from the saved one."""

    def __init__(self, run: RecordedRun, logs: tuple[LoadedLog, ...]) -> None:
        self.run, known = run, vars(run.spec.config)
        named = run.about.get("traced", ())
        traced = [name for name in named if isinstance(known.get(name), float)]
        self.pack = make_pack([run.spec], [logs], traced)
        self.scheduler = JobScheduler(self.pack.program, self.pack.jobs, self.pack.data_size)
        self.compared: list[str] = []
        self._data = self.pack.data(self.scheduler.replicated)
        self._first: str | None = None
        self._largest = 0.0

    def compute(self, states: State, active: np.ndarray, chunks: Sequence[tuple[int, int]]) -> None:
        """Compute consecutive chunks, and compare each with its rows and the saved weights."""
        if chunks[0][0] == 0:
            self._compare_weights(0, states)
        rows: dict[int, dict[int, MetricsRow]] = {start + length: {} for start, length in chunks}
        for row in self.run.folder.metrics_rows():
            if row["step"] in rows:
                rows[int(row["step"])][int(row["seed"])] = row
        for start, length in chunks:
            rows_there = self._data.at(start, length)
            states, report = self.scheduler.chunk(states, rows_there, start, length, active)
            active = active & ~(np.asarray(report.bad_update) >= 0)
            end, means = start + length, jax.device_get(report.row)
            metrics = {name: np.where(active, values, np.nan) for name, values in means.items()}
            self._compare_rows(end, rows[end], metrics)
            self._compare_weights(end, states)
        first, last = chunks[0][0] + 1, sum(chunks[-1])
        self.compared.append(f"metrics of steps {first:,} to {last:,}")

    def refuse_differences(self, note: str) -> None:
        """Raise an error if bits differ; differences on another machine prove nothing."""
        if self._first is None:
            return
        sentence = (
            f"{note}. First difference: {self._first}; the largest relative difference of all is "
            f"{self._largest:.1e}"
        )
        if changed := self._elsewhere():
            raise NotPossible(f"the versions or devices of the run differ ({changed}). {sentence}")
        raise DamagedError(sentence)

    def _elsewhere(self) -> str:
        """Return how this machine differs from the one that finished the run, or started it."""
        about, named = self.run.about, ("device", "devices", "jobs_at_a_time")
        now = {"device": identity.device(), **self.scheduler.about} | identity.versions()
        for place in (about, {**about, **about.get("begun", {})}):
            then = {name: place[name] for name in named if name in place} | place["versions"]
            if changed := identity.machine_difference(then, now):
                return changed
        return ""

    def _compare_rows(
        self, step: int, rows: dict[int, MetricsRow], metrics: dict[str, np.ndarray]
    ) -> None:
        for place, seed in enumerate(self.run.spec.seeds):
            row = rows.get(seed, {})
            # Rows of an older version do not have metrics that are new.
            for name in sorted({*(row or metrics)} - {"step", "seed"}):
                kept = float(row.get(name, np.nan))
                found = float(metrics[name][place]) if name in metrics else np.nan
                where = f"{name} of seed {seed} at step {step:,}, {kept!r} became {found!r}"
                self._note(np.asarray(kept), np.asarray(found), where)

    def _compare_weights(self, step: int, states: State) -> None:
        run, gathered = self.run, self.scheduler.gathered(states)
        if step in run.folder.kept_snapshots(run.spec.snapshots):
            found = self.scheduler.policies(states)
            self._compare_trees(f"the snapshot of step {step:,}", run.policies(step), found)
        for checkpoint in run.checkpoints:
            if checkpoint.place == Place(training=True, step=step):
                name = f"the checkpoint of step {step:,}"
                self._compare_trees(name, run.state(checkpoint), gathered)
        if run.over and step == run.reached:
            self._compare_trees(STATE, run.state(), gathered)

    def _compare_trees(self, name: str, kept: Any, found: Any) -> None:
        self.compared.append(name)
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(kept))
        for (path, one), other in zip(leaves, jax.tree.leaves(jax.device_get(found)), strict=True):
            for place, seed in enumerate(self.run.spec.seeds):
                where = f"{jax.tree_util.keystr(path)} of seed {seed} in {name}"
                self._note(np.asarray(one[place]), np.asarray(other[place]), where)

    def _note(self, kept: np.ndarray, found: np.ndarray, where: str) -> None:
        """Record where two arrays first differ, and the largest relative difference."""
        if kept.tobytes() == found.tobytes() or (np.isnan(kept) & np.isnan(found)).all():
            return
        self._first = self._first or where
        pair = np.stack([kept, found]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            scale = np.abs(pair).max(axis=0, initial=np.finfo(np.float64).tiny)
            relative = np.abs(pair[0] - pair[1]) / scale
        # A number in place of nan, or the reverse, counts as an infinite difference.
        largest = np.where(np.isnan(relative), np.inf, relative).max()
        self._largest = max(self._largest, float(largest))
