"""What the folder of a run says of it, finished or not: what a check or a replay goes by."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import numpy as np

from fat2thin.algorithms.base import State
from fat2thin.training import checkpoints, loop, trees
from fat2thin.training.about import Said
from fat2thin.training.checkpoints import Checkpoint
from fat2thin.training.folder import RUNNING, MetricsRow, RunFolder
from fat2thin.training.pack import jobs_of, make_program
from fat2thin.training.spec import RunSpec


class NotPossible(Exception):
    """Something cannot be checked here and now; says why."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What a folder says of a run, finished or not."""

    folder: RunFolder
    about: dict[str, Any]
    said: Said
    checkpoints: list[Checkpoint]
    """Those that are whole, the newest first."""

    @property
    def spec(self) -> RunSpec:
        """What was asked for."""
        return self.said.spec

    @property
    def over(self) -> bool:
        """Whether it finished, or diverged."""
        return self.about["status"] != RUNNING

    @functools.cached_property
    def rows(self) -> list[MetricsRow]:
        """The rows of its metrics, read once."""
        return self.folder.metrics()

    @property
    def reached(self) -> int:
        """Its last step, or that of its last row so far."""
        if self.over:
            return self.about["step"]
        return max((int(row["step"]) for row in self.rows), default=0)

    @functools.cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """First update and length of everything that was computed, up to the last step."""
        lengths = loop.chunk_lengths(self.spec.stops, self.spec.log_every)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        pairs = zip(starts, lengths, strict=True)
        return [(start, length) for start, length in pairs if start + length <= self.reached]

    def had_stopped(self, seed: int, step: int) -> bool:
        """Whether a seed had diverged by a step."""
        stopped = self.about.get("stopped", {}).get(str(seed))
        return stopped is not None and stopped["last_good_step"] < step

    @functools.cached_property
    def shapes(self) -> tuple[Any, Any]:
        """Those of the states and of the policies of all seeds."""
        program = make_program(self.spec, self.said.problem)
        jobs = jobs_of(self.spec, self.said.scales)
        states = eqx.filter_eval_shape(functools.partial(loop.init, program=program), jobs)
        make = functools.partial(loop.policies, program=program)
        return states, eqx.filter_eval_shape(make, states, jobs)

    def kept_state(self, checkpoint: Checkpoint | None = None) -> State:
        """The states of a checkpoint, or those after the last step."""
        if checkpoint is None:
            return self.folder.state(self.shapes[0])
        return trees.load(checkpoint.path / checkpoints.STATE, self.shapes[0])

    def kept_policies(self, step: int) -> Any:
        """The policies of the snapshot of a step."""
        return self.folder.snapshot(step, self.shapes[1])
