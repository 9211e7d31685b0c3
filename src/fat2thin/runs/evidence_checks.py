"""Whether the files of a run hold all that they should. Each check says what it saw, or raises."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from fat2thin import algorithms
from fat2thin.data.limits import default_limit
from fat2thin.evaluation.held_out import SIGNALS
from fat2thin.evaluation.returns import NO_TASK, TaskError, evaluator
from fat2thin.runs.evidence import NotPossible, Record
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import DIVERGED, EVALUATIONS, METRICS, STATE
from fat2thin.settings.spec import RunSpec


def refuse(wrong: Iterable[str]) -> None:
    """Raise where there is something wrong, with all of it."""
    if sentences := [*wrong]:
        raise DamagedError("; ".join(sentences))


def files(record: Record) -> str:
    """The files of a run that is over are those that run.json lists."""
    record.folder.references()  # raises where it cannot be read; it may be written later
    if not record.over:
        raise NotPossible("there are no checksums before a run is over")
    # What is larger could not be loaded either; to hash it may take forever, if it is all holes.
    listed, found = record.about["files"], record.folder.stamps(default_limit())
    refuse(
        [
            *(f"{name} is missing" for name in listed if name not in found),
            *(f"{name} is here and not listed" for name in found if name not in listed),
            *(
                f"{name} is not what was written: its checksum is another"
                for name in found
                if name in listed and listed[name] != found[name]
            ),
        ]
    )
    if STATE not in found:
        raise DamagedError(f"there is no {STATE}")
    return f"{len(found)} of {len(listed)} as listed"


def metrics(record: Record) -> str:
    """Every chunk has a row for every seed, once and in order; blank where a seed had stopped."""
    count = len(record.chunks) * len(record.spec.seeds)
    expected = (
        (start + length, seed) for start, length in record.chunks for seed in record.spec.seeds
    )
    line = 0
    for line, row in enumerate(record.rows(), start=1):
        have, want = (int(row["step"]), int(row["seed"])), next(expected, None)
        if want is None:
            continue  # one too many: they are counted
        if have != want:
            raise DamagedError(f"line {line} is of {_words(*have)} instead of {_words(*want)}")
        # A signal of held-out rows need not be a number: a policy may exclude all their actions.
        metrics = [name for name in row if name not in ("step", "seed") and name not in SIGNALS]
        blank = np.isnan([row[name] for name in metrics])
        stopped = record.had_stopped(have[1], have[0])
        if not (blank.all() if stopped else not blank.any()):
            there = "should be blank: its seed had stopped" if stopped else "has no numbers"
            raise DamagedError(f"line {line} {there}")
    if line > count or (record.over and line < count):
        raise DamagedError(f"there are {line:,} lines instead of {count:,}")
    if record.checkpoints:
        newest = record.checkpoints[0]
        if not record.folder.metrics_contents().startswith(newest.contents(METRICS) or b""):
            raise DamagedError(f"they do not begin as those of the checkpoint of {newest.place}")
    return f"{line:,} rows, to step {record.reached:,}"


def evaluations(record: Record) -> str:
    """There is one after every step that one was due at, of all seeds."""
    steps, policies = record.folder.evaluations(len(record.spec.seeds))
    if not (record.folder.path / EVALUATIONS).exists():
        if _complete(record) and _judged(record.spec):
            raise DamagedError(f"there is no {EVALUATIONS}")
        return "there is none"
    due = list(record.spec.evaluation_steps)
    expected = [step for step in due if step <= record.reached]
    if steps != (expected if _complete(record) else due[: len(steps)]):
        raise DamagedError(f"they are of steps {steps[:100]} instead of {expected[:100]}")
    for name, evaluation in policies.items():
        if evaluation.returns.shape[-1] != record.spec.episodes:
            raise DamagedError(f"{name} has {evaluation.returns.shape[-1]} episodes of a seed")
    return f"{len(steps)} steps, {len(policies)} ways of acting, all seeds"


def snapshots(record: Record) -> str:
    """The policies are there of every step that was asked for and reached."""
    asked, complete = record.spec.snapshots, _complete(record)
    due = [step for step in asked if step < record.reached + complete]
    missing = {*due} - {*record.folder.kept_snapshots(due)}
    refuse(f"that of step {step:,} is missing" for step in sorted(missing))
    return f"{len(due)} of {len(asked)} asked for" if asked else "none were asked for"


def weights(record: Record) -> str:
    """All numbers of states and policies fit the algorithm and are finite."""
    count = 0
    for name, tree in _trees(record):
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(tree)):
            for seed, values in zip(record.spec.seeds, leaf, strict=True):
                if not np.isfinite(values).all():
                    where = jax.tree_util.keystr(path)
                    raise DamagedError(f"{where} of seed {seed} in {name} is not finite")
            count += leaf.size
    if not count:
        raise NotPossible("none are kept yet")
    return f"{count:,} numbers, all finite"


def _trees(record: Record) -> Iterator[tuple[str, Any]]:
    """By name: every state and every policy that is kept."""
    for checkpoint in record.checkpoints:
        yield f"the checkpoint of {checkpoint.place}", record.kept_state(checkpoint)
    for step in record.folder.kept_snapshots(record.spec.snapshots):
        yield f"the snapshot of step {step:,}", record.kept_policies(step)
    if record.over:
        yield STATE, record.kept_state()


def _complete(record: Record) -> bool:
    """Whether everything up to the last step must be there.

    A run that diverged while it was prepared never came to what is due after step 0.
    """
    prepared = algorithms.get(record.spec.algorithm).preparation is not None
    early = record.about["status"] == DIVERGED and record.reached == 0
    return record.over and not (early and prepared)


def _judged(spec: RunSpec) -> bool:
    """Whether policies are judged on a task, without making one that a stranger's file names."""
    if spec.task is not None:
        return spec.task != NO_TASK
    try:
        return evaluator(spec.dataset) is not None
    except TaskError:
        return True


def _words(step: int, seed: int) -> str:
    return f"step {step:,}, seed {seed}"
