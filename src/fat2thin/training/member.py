"""One run of a pack while it is computed: what it has found so far, in memory and in its folder."""

import dataclasses
import importlib.metadata
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from fat2thin import __version__
from fat2thin.algorithms.base import Problem, State
from fat2thin.evaluation.returns import Evaluation, Reference
from fat2thin.policies import Policy
from fat2thin.training.folder import FORMAT, RUNNING, MetricsRow, RunFolder
from fat2thin.training.jobs import take
from fat2thin.training.pack import Log, jobs_of, make_program
from fat2thin.training.result import Evaluations, Run, columns
from fat2thin.training.spec import RunSpec, plain

_PACKAGES = ("jax", "jaxlib", "numpy", "numpyro", "equinox", "optax", "safetensors")


class Member:
    """A run, the places of its jobs in the pack, and its folder."""

    def __init__(
        self, spec: RunSpec, problem: Problem, logs: tuple[Log, ...], jobs: slice,
        folder: RunFolder | None,
    ) -> None:  # fmt: skip
        self.spec, self.problem, self.logs = spec, problem, logs
        self.jobs, self.folder = jobs, folder
        self.about = _about(spec, problem, logs)
        self.over = False
        self._began = time.perf_counter()
        self._rows: list[MetricsRow] = []
        self._evaluated: dict[int, dict[str, Evaluation]] = {}
        self._snapshots: dict[int, dict[str, Policy]] = {}
        self._references: dict[str, Reference] | None = None
        self._step, self._states = 0, None
        if folder:
            folder.begin(self.about)

    def keep_metrics(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Keep the means of a chunk, given for all jobs of the pack."""
        rows: list[MetricsRow] = [
            {"step": step, "seed": seed}
            | {name: float(values[self.jobs][job]) for name, values in metrics.items()}
            for job, seed in enumerate(self.spec.seeds)
        ]
        self._rows += rows
        if self.folder:
            self.folder.append_metrics(rows)

    def keep_snapshot(self, step: int, policies: dict[str, Policy]) -> None:
        """Keep the policies of this run, given for all jobs of the pack."""
        self._snapshots[step] = take(policies, self.jobs)
        if self.folder:
            self.folder.write_snapshot(step, self._snapshots[step])

    def keep_evaluation(self, step: int, found: dict[str, Evaluation]) -> None:
        """Keep what an evaluation of this run found."""
        self._evaluated[step] = found
        if self.folder:
            self.folder.write_evaluations(list(self._evaluated), self._stacked())

    def keep_references(self, references: dict[str, Reference]) -> None:
        """Keep what the run is compared with."""
        self._references = references
        if self.folder:
            self.folder.write_references(references)

    def end(self, step: int, states: State, **more: Any) -> None:
        """The last step was taken, or the last good one; `states` are those of the pack."""
        self.over = True
        self._step, self._states = step, take(states, self.jobs)
        seconds = round(time.perf_counter() - self._began, 3)
        self.about |= {"step": step, "seconds": seconds, **more}
        if self.folder:
            self.folder.write_state(self._states)
            self.folder.write_about(self.about)

    def result(self) -> Run:
        """The run, once it has ended."""
        return Run(
            spec=self.spec,
            step=self._step,
            metrics=columns(self._rows, len(self.spec.seeds)),
            evaluations=Evaluations(tuple(self._evaluated), self._stacked()),
            folder=self.folder.path if self.folder else None,
            about=self.about,
            program=make_program(self.spec, self.problem),
            jobs=jobs_of(self.spec, [log.scales for log in self.logs]),
            states=self._states,
            snapshots=self._snapshots,
            measured=self._references,
        )

    def _stacked(self) -> dict[str, Evaluation]:
        """All evaluations so far, the steps along the first axis."""
        if not self._evaluated:
            return {}
        return jax.tree.map(lambda *values: np.stack(values), *self._evaluated.values())


def _about(spec: RunSpec, problem: Problem, logs: tuple[Log, ...]) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "format": FORMAT,
        "status": RUNNING,
        "spec": spec.to_json(),
        "problem": plain(dataclasses.asdict(problem)),
        "sha256": [log.dataset.sha256 for log in logs],
        "scales": [log.scales.to_json() for log in logs],
        "versions": {
            "python": platform.python_version(),
            "fat2thin": __version__,
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        "device": f"{device.platform}: {device.device_kind}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
