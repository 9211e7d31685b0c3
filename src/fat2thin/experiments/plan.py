"""Many runs as one piece of work: what can share a program does, and what is there is reused."""

import dataclasses
import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin import algorithms, data
from fat2thin.algorithms.base import Problem, shapes_program
from fat2thin.engine.pack import OWN
from fat2thin.envs import treatment
from fat2thin.evaluation.batches import problem_of
from fat2thin.experiments.plan_progress import PlanProgress, for_plan
from fat2thin.runs.folder import DIVERGED, FINISHED, RunFolder
from fat2thin.runs.lock import in_use
from fat2thin.training import (
    FolderInUseError,
    Run,
    RunSpec,
    TrainingDiverged,
    execute_together,
    load,
)

_log = logging.getLogger(__name__)
_PATIENCE = 2.0
"""Seconds between looks at what other processes are doing."""


class Planned(NamedTuple):
    """A run, and the folder below the plan's root that holds it."""

    name: str
    spec: RunSpec

    @property
    def updates(self) -> int:
        """All updates of all seeds, those of a preparation too."""
        preparation = algorithms.get(self.spec.algorithm).preparation
        before = preparation.steps(self.spec.config) if preparation else 0
        return len(self.spec.seeds) * (self.spec.steps + before)


def carry_out(
    planned: Sequence[Planned], root: str | Path, progress: PlanProgress | None = None
) -> None:
    """Compute the runs that are not below `root` yet, packed into programs.

    Whatever is wrong with a name, a setting or a data set is told before anything is computed. A
    plan that was broken off goes on where it was. Several processes may carry out one plan: what
    one of them has begun the others leave to it.
    """
    root = Path(root)
    _refuse_two_meanings(planned)
    distinct = list({one.name: one for one in planned}.values())
    missing = [one for one in distinct if not is_over(one, root)]
    packs = programs(missing)
    shown = progress or for_plan()
    with shown:
        shown.plan(
            [sum(one.updates for one in pack) for pack in packs], len(distinct) - len(missing)
        )
        left = dict(enumerate(packs))
        while left:
            before = len(left)
            for number, pack in [*left.items()]:
                if _computed(number, pack, root, shown):
                    del left[number]
            if len(left) == before:
                time.sleep(_PATIENCE)


def _computed(number: int, pack: Sequence[Planned], root: Path, shown: PlanProgress) -> bool:
    """Whether a program is done, now or before; not where another process is at it."""
    if not all(is_over(one, root) for one in pack):
        folders = [root / one.name for one in pack]
        if any(map(in_use, folders)):
            return False
        shown.next_program(number, _title(pack))
        try:
            execute_together([one.spec for one in pack], folders, shown)
        except FolderInUseError:
            return False
        except TrainingDiverged as diverged:
            # It is over as well, and so told in tables; the others are worth going on for.
            _log.warning("%s: %s", _title(pack), diverged)
    shown.program_is_done(number)
    return True


def load_runs(planned: Sequence[Planned], root: str | Path) -> dict[str, Run]:
    """Runs that were carried out, by name."""
    return {one.name: load(Path(root) / one.name) for one in planned}


def is_over(one: Planned, root: Path) -> bool:
    """Whether this very run is there already, finished or diverged; another one is refused.

    The contents of its data are not looked at: who wants to know asks `fat2thin verify`.
    """
    folder = RunFolder(root / one.name)
    if not folder.path.exists():
        return False
    about = folder.about() if (folder.path / "run.json").exists() else None
    return about is not None and folder.status(one.spec, about["sha256"]) in (FINISHED, DIVERGED)


def _refuse_two_meanings(planned: Sequence[Planned]) -> None:
    specs: dict[str, RunSpec] = {}
    for name, spec in planned:
        if specs.setdefault(name, spec) != spec:
            raise ValueError(f"a plan wants two different runs in the folder {name}")


def programs(planned: Sequence[Planned]) -> list[list[Planned]]:
    """The runs, those that can share a compiled program together."""
    packs: dict[Any, list[Planned]] = {}
    for one in planned:
        packs.setdefault(_program(one.spec), []).append(one)
    return list(packs.values())


def _program(spec: RunSpec) -> tuple:
    """What runs that share a program have in common."""
    fixed = tuple(
        (field.name, getattr(spec, field.name))
        for field in dataclasses.fields(RunSpec)
        if field.name not in OWN
    )
    shape = tuple(
        (field.name, value)
        for field in dataclasses.fields(spec.config)
        for value in [getattr(spec.config, field.name)]
        if shapes_program(field) or not isinstance(value, float)
    )
    return fixed, shape, _problem(spec.dataset, spec.seeds[0])


def _problem(dataset: str, seed: int) -> Problem:
    """Widths, box and discount of a data set; of one that is drawn for each seed, of any."""
    return _read_problem(dataset, seed if data.reader(dataset).one_a_seed else 0)


@functools.lru_cache(maxsize=64)
def _read_problem(dataset: str, seed: int) -> Problem:
    return problem_of(data.load(dataset, seed))


def _title(pack: Sequence[Planned]) -> str:
    spec = pack[0].spec
    datasets = list(dict.fromkeys(one.spec.dataset for one in pack))
    published = ", as published" if getattr(spec.config, "published", False) else ""
    where = datasets[0] if len(datasets) == 1 else f"{len(datasets)} data sets"
    return f"{spec.algorithm}{published} on {where}"


def environment_steps(run: Run) -> int:
    """Steps in the environment that the evaluations of a run took, those of all its policies."""
    return sum(steps_of(run, policy) for policy in run.evaluations.policies)


def steps_of(run: Run, policy: str) -> int:
    """Steps in the environment that the evaluations of one of its policies took.

    Those of seeds that had stopped are not counted. 0 for a task that does not report its length.
    """
    evaluation = run.evaluations[policy]
    if "length" in evaluation.measures:
        return round(float(np.nansum(evaluation.measures["length"])) * run.spec.episodes)
    if run.spec.task is not None or not treatment.is_name(run.spec.dataset):
        return 0
    episodes = int(np.sum(~np.isnan(evaluation.returns)))
    return episodes * treatment.by_name(run.spec.dataset).horizon
