"""What the folder of a run says of it, finished or not: what a check or a replay goes by."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fat2thin.algorithms.base import State
from fat2thin.engine.pack import Shapes, shapes_of
from fat2thin.engine.program import chunk_lengths
from fat2thin.runs import checkpoints, trees
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.folder import RUN, RUNNING, STATE, MetricsRow, RunFolder, refuse_too_large
from fat2thin.runs.run_json import Said
from fat2thin.settings.spec import RunSpec


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

    def rows(self) -> Iterator[MetricsRow]:
        """The rows of its metrics, one at a time: there may be more than memory could hold."""
        return self.folder.metrics_rows()

    @functools.cached_property
    def reached(self) -> int:
        """Its last step, or that of its last row so far."""
        if self.over:
            return self.about["step"]
        return max((int(row["step"]) for row in self.rows()), default=0)

    @functools.cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """First update and length of everything that was computed, up to the last step."""
        lengths = chunk_lengths(self.spec.stops, self.spec.log_every)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        pairs = zip(starts, lengths, strict=True)
        return [(start, length) for start, length in pairs if start + length <= self.reached]

    def had_stopped(self, seed: int, step: int) -> bool:
        """Whether a seed had diverged by a step."""
        stopped = self.about.get("stopped", {}).get(str(seed))
        return stopped is not None and stopped["last_good_step"] < step

    @functools.cached_property
    def shapes(self) -> Shapes:
        """Those of states and policies, once all files of states are known to be as large."""
        shapes = shapes_of(self.spec, self.said.problem, self.said.scales)
        kept = [checkpoint.path / checkpoints.STATE for checkpoint in self.checkpoints]
        for path in [*kept, self.folder.path / STATE] if self.over else kept:
            trees.check_size(path, shapes.states)
        needed = trees.size((shapes.jobs, shapes.states, shapes.policies))
        refuse_too_large(self.folder.path / RUN, "spec.config and spec.seeds", needed)
        return shapes

    def kept_state(self, checkpoint: Checkpoint | None = None) -> State:
        """The states of a checkpoint, or those after the last step."""
        if checkpoint is None:
            return self.folder.state(self.shapes.states)
        return trees.load(checkpoint.path / checkpoints.STATE, self.shapes.states)

    def kept_policies(self, step: int) -> Any:
        """The policies of the snapshot of a step."""
        return self.folder.snapshot(step, self.shapes.policies)
