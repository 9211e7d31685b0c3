"""Checks that a run's files are complete. Each returns a description, or raises an error."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from fat2thin import algorithms
from fat2thin.algorithms.base import State
from fat2thin.data.safe_files import default_limit
from fat2thin.engine.pack import Shapes, shapes_of
from fat2thin.engine.program import chunk_lengths
from fat2thin.evaluation.held_out import SIGNALS
from fat2thin.evaluation.returns import NO_TASK, TaskError, evaluator
from fat2thin.runs import checkpoints, files
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import DamagedError, refuse_too_large
from fat2thin.runs.folder import DIVERGED, EVALUATIONS, METRICS, RUN, RUNNING, STATE, RunFolder
from fat2thin.runs.identity import RunIdentity
from fat2thin.settings.spec import RunSpec
from fat2thin.terminal_text import counted


class NotPossible(Exception):
    """Something cannot be checked; the message says why."""


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A run as its folder describes it, finished or not."""

    folder: RunFolder
    about: dict[str, Any]
    identity: RunIdentity
    checkpoints: list[Checkpoint]
    """Intact checkpoints, newest first."""

    @property
    def spec(self) -> RunSpec:
        """The specification of the run."""
        return self.identity.spec

    @property
    def over(self) -> bool:
        """Whether the run finished or diverged."""
        return self.about["status"] != RUNNING

    @functools.cached_property
    def reached(self) -> int:
        """The last step, or that of the last row so far."""
        if self.over:
            return self.about["step"]
        return max((int(row["step"]) for row in self.folder.metrics_rows()), default=0)

    @functools.cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """First update and length of every chunk, up to the last step."""
        lengths = chunk_lengths(self.spec.stops, self.spec.log_every)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        pairs = zip(starts, lengths, strict=True)
        return [(start, length) for start, length in pairs if start + length <= self.reached]

    @functools.cached_property
    def shapes(self) -> Shapes:
        """Shapes of states and policies, checked against the sizes of all files of states."""
        shapes = shapes_of(*self.identity)
        kept = [checkpoint.path / checkpoints.STATE for checkpoint in self.checkpoints]
        for path in [*kept, self.folder.path / STATE] if self.over else kept:
            files.check_tree_size(path, shapes.states)
        needed = files.tree_size((shapes.jobs, shapes.states, shapes.policies))
        refuse_too_large(self.folder.path / RUN, "spec.config and spec.seeds", needed)
        return shapes

    def state(self, checkpoint: Checkpoint | None = None) -> State:
        """Load the states of a checkpoint, or those after the last step."""
        path = checkpoint.path / checkpoints.STATE if checkpoint else self.folder.path / STATE
        return files.load_tree(path, self.shapes.states)

    def policies(self, step: int) -> Any:
        """Load the policies of the snapshot of a step."""
        return self.folder.snapshot(step, self.shapes.policies)


def refuse(wrong: Iterable[str]) -> None:
    """Raise an error that joins all sentences, if there are any."""
    if sentences := [*wrong]:
        raise DamagedError("; ".join(sentences))


def check_files(run: RecordedRun) -> str:
    """Check that the files of a run that is over are those that run.json lists."""
    run.folder.references()  # raises if it is damaged; not listed, because it may be added later
    if not run.over:
        raise NotPossible("an unfinished run has no checksums")
    # Larger files could not be loaded either, and hashing a huge sparse file would take too long.
    listed, found = run.about["files"], run.folder.stamps(default_limit())
    changed = [name for name in found if name in listed and listed[name] != found[name]]
    refuse(
        [
            *(f"{name} is missing" for name in listed if name not in found),
            *(f"{name} is present but not listed" for name in found if name not in listed),
            *(f"{name} was changed: its checksum differs" for name in changed),
        ]
    )
    if STATE not in found:
        raise DamagedError(f"there is no {STATE}")
    return f"{len(found)} of {len(listed)} as listed"


def check_metrics(run: RecordedRun) -> str:
    """Check that every chunk has one row per seed, in order, and blank after the seed stopped."""
    count = len(run.chunks) * len(run.spec.seeds)
    expected = ((start + length, seed) for start, length in run.chunks for seed in run.spec.seeds)
    line = 0
    for line, row in enumerate(run.folder.metrics_rows(), start=1):
        step, seed = have = int(row["step"]), int(row["seed"])
        want = next(expected, None)
        if want is None:
            continue  # a surplus line; the count is checked below
        if have != want:
            found, due = (f"step {step:,}, seed {seed}" for step, seed in (have, want))
            raise DamagedError(f"line {line} is of {found} instead of {due}")
        # A held-out signal need not be finite: a policy may exclude all held-out actions.
        metrics = [name for name in row if name not in ("step", "seed") and name not in SIGNALS]
        blank = np.isnan([row[name] for name in metrics])
        stop = run.about.get("stopped", {}).get(str(seed))
        stopped = stop is not None and stop["last_good_step"] < step
        if not (blank.all() if stopped else not blank.any()):
            there = "should be blank: its seed had stopped" if stopped else "has no numbers"
            raise DamagedError(f"line {line} {there}")
    if line > count or (run.over and line < count):
        raise DamagedError(f"there are {line:,} lines instead of {count:,}")
    if run.checkpoints:
        newest = run.checkpoints[0]
        if not run.folder.metrics_contents().startswith(newest.contents(METRICS) or b""):
            raise DamagedError(f"they do not begin with those of the checkpoint of {newest.place}")
    return f"{counted(line, 'row')}, to step {run.reached:,}"


def check_evaluations(run: RecordedRun) -> str:
    """Check that there is an evaluation of all seeds after every step that needs one."""
    steps, policies = run.folder.evaluations(len(run.spec.seeds))
    if not (run.folder.path / EVALUATIONS).exists():
        if _complete(run) and _has_task(run.spec):
            raise DamagedError(f"there is no {EVALUATIONS}")
        return "none"
    due = list(run.spec.evaluation_steps)
    expected = [step for step in due if step <= run.reached]
    if steps != (expected if _complete(run) else due[: len(steps)]):
        raise DamagedError(f"the steps are {steps[:100]} instead of {expected[:100]}")
    for name, evaluation in policies.items():
        if evaluation.returns.shape[-1] != run.spec.episodes:
            raise DamagedError(f"{name} has {evaluation.returns.shape[-1]} episodes per seed")
    return f"{counted(len(steps), 'step')}, {len(policies)} ways of acting, all seeds"


def check_snapshots(run: RecordedRun) -> str:
    """Check that there are policies of every requested step that was reached."""
    asked, complete = run.spec.snapshots, _complete(run)
    due = [step for step in asked if step < run.reached + complete]
    missing = {*due} - {*run.folder.kept_snapshots(due)}
    refuse(f"the snapshot of step {step:,} is missing" for step in sorted(missing))
    return f"{len(due)} of {len(asked)} requested" if asked else "none requested"


def check_weights(run: RecordedRun) -> str:
    """Check that all numbers of states and policies fit the algorithm and are finite."""
    count = 0
    for name, tree in _trees(run):
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(tree)):
            for seed, values in zip(run.spec.seeds, leaf, strict=True):
                if not np.isfinite(values).all():
                    where = jax.tree_util.keystr(path)
                    raise DamagedError(f"{where} of seed {seed} in {name} is not finite")
            count += leaf.size
    if not count:
        raise NotPossible("none are saved yet")
    return f"{count:,} numbers, all finite"


def _trees(run: RecordedRun) -> Iterator[tuple[str, Any]]:
    """Yield names and contents of all states and policies in the folder."""
    for checkpoint in run.checkpoints:
        yield f"the checkpoint of {checkpoint.place}", run.state(checkpoint)
    for step in run.folder.kept_snapshots(run.spec.snapshots):
        yield f"the snapshot of step {step:,}", run.policies(step)
    if run.over:
        yield STATE, run.state()


def _complete(run: RecordedRun) -> bool:
    """Whether all files up to the last step must exist."""
    # A run that diverged in its preparation never evaluated step 0.
    prepared = algorithms.get(run.spec.algorithm).preparation is not None
    early = run.about["status"] == DIVERGED and run.reached == 0
    return run.over and not (early and prepared)


def _has_task(spec: RunSpec) -> bool:
    """Whether policies are evaluated on a task; a task that the run names is not made."""
    if spec.task is not None:
        return spec.task != NO_TASK
    try:
        return evaluator(spec.dataset) is not None
    except TaskError:
        return True
