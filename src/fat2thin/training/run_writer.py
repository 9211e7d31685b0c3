"""The results of one run of a pack during training, in memory and in its folder."""

import contextlib
import logging
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from fat2thin.algorithms.base import Problem, State
from fat2thin.data.operations import reachable_returns
from fat2thin.engine.metrics import TrainingDiverged
from fat2thin.engine.pack import LoadedLog, jobs_of, make_program, shapes_of
from fat2thin.engine.program import take
from fat2thin.engine.selection import SelectedState, acting
from fat2thin.evaluation.returns import Evaluation, Reference
from fat2thin.policies.policy import Policy
from fat2thin.runs import checkpoints, files, identity
from fat2thin.runs.checkpoints import Checkpoint, Place
from fat2thin.runs.folder import (
    EVALUATIONS,
    FORMAT,
    METRICS,
    RUNNING,
    MetricsRow,
    RunFolder,
    evaluations_contents,
)
from fat2thin.runs.result import Evaluations, MetricColumns, Run, summary_of
from fat2thin.settings.spec import RunSpec, plain
from fat2thin.training import run_warnings

_CARRIED = ("stopped", "warnings", "preparation", "begun")
"""Fields of run.json that training adds; a checkpoint has them too."""
_MOST_WARNINGS = 100

_log = logging.getLogger(__name__)


class RunWriter:
    """Collects and writes the results of a run, which has the jobs `jobs` of the pack.

    With a checkpoint the run resumes from it, otherwise it starts.
    """

    def __init__(
        self, spec: RunSpec, problem: Problem, logs: tuple[LoadedLog, ...], jobs: slice,
        folder: RunFolder | None, also: Mapping[str, Any], checkpoint: Checkpoint | None,
    ) -> None:  # fmt: skip
        """`also` has further fields of run.json."""
        self.spec, self.problem, self.logs = spec, problem, logs
        self.jobs, self.folder = jobs, folder
        self.about = _about(spec, problem, logs) | dict(also)
        self.active = np.ones(len(spec.seeds), bool)  # which seeds still learn
        self.over = False
        self._began = time.perf_counter()
        self._metrics = MetricColumns(len(spec.seeds))
        self._evaluated: dict[int, dict[str, Evaluation]] = {}
        self._snapshots: dict[int, dict[str, Policy]] = {}
        self._references: dict[str, Reference] | None = None
        self._step = 0
        self._states: State = None
        self._health = run_warnings.Health(spec.seeds, _largest_return(logs))
        if folder and checkpoint:
            self._resume_from(folder, checkpoint)
        elif folder:
            folder.begin(self.about)

    def _resume_from(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        manifest = checkpoint.manifest
        folder.go_back_to(checkpoint)
        self.about |= {name: manifest[name] for name in _CARRIED if name in manifest}
        self.about["started"] = manifest["started"]
        # Resumptions that did not reach a checkpoint are only in run.json.
        self.about["resumed"] = [*folder.about().get("resumed", []), str(checkpoint.place)]
        then, now = (
            {**about["versions"], "device": about["device"]} for about in (manifest, self.about)
        )
        if changed := identity.machine_difference(then, now):
            begun = {name: manifest[name] for name in ("device", "versions")}
            self.about.setdefault("begun", begun)
            self.warn(
                f"the run started with other versions or on another device ({changed}): the last "
                "digits of its results may differ"
            )
        self._began -= manifest["seconds"]
        stopped = self.about.get("stopped", {})
        self.active = np.asarray([str(seed) not in stopped for seed in self.spec.seeds])
        if EVALUATIONS in manifest["files"]:
            steps, policies = RunFolder(checkpoint.path).evaluations(len(self.spec.seeds))
            self._evaluated = {step: take(policies, place) for place, step in enumerate(steps)}
        self._metrics.add(RunFolder(checkpoint.path).metrics_rows(self.spec.seeds))
        seen = self._metrics.arrays()
        for row, step in enumerate(seen.pop("step")):
            self._health.look(int(step), {name: values[row] for name, values in seen.items()})
        like = shapes_of(self.spec, self.problem, [log.scales for log in self.logs]).policies
        for step in folder.kept_snapshots(self.spec.snapshots):
            self._snapshots[step] = folder.snapshot(step, like)
        folder.write_about(self.about)
        _log.warning("%s resumes from %s", folder.path, checkpoint.place)

    def warn(self, sentence: str) -> None:
        """Log a warning, and keep the first hundred in run.json."""
        _log.warning("%s on %s: %s", self.spec.algorithm, self.spec.dataset, sentence)
        kept = self.about.setdefault("warnings", [])
        if len(kept) < _MOST_WARNINGS:
            kept.append(sentence)
            self._update_about()

    def _update_about(self) -> None:
        """Update run.json; if that fails now, it is written at the end."""
        if self.folder:
            with contextlib.suppress(OSError):
                self.folder.write_about(self.about)

    def stop(self, job: int, error: TrainingDiverged, last_good_step: int) -> None:
        """Stop a seed, given by its place in the pack; its last good state is kept."""
        place = job - self.jobs.start
        self.active[place] = False
        self.about.setdefault("stopped", {})[str(self.spec.seeds[place])] = {
            "step": error.step,
            "metric": error.metric,
            "last_good_step": last_good_step,
            "why": str(error),
        }
        self._update_about()
        left = int(self.active.sum())
        others = f" {left} of its run's {len(self.spec.seeds)} seeds continue." if left else ""
        _log.warning("%s on %s: %s%s", self.spec.algorithm, self.spec.dataset, error, others)

    def prepared(self, steps: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Keep the first and the last mean metrics of the preparation, given for all jobs."""
        if self.over:
            return
        mine = take(metrics, self.jobs)
        means = {name: float(np.mean(values[self.active])) for name, values in mine.items()}
        first = self.about.get("preparation", {}).get("first", means)
        self.about["preparation"] = {"steps": steps, "first": first, "last": means}

    def keep_metrics(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Keep the means of a chunk, given for all jobs of the pack; nan for stopped seeds."""
        of_run = take(metrics, self.jobs)
        mine = {name: np.where(self.active, values, np.nan) for name, values in of_run.items()}
        # A run that an older version began keeps the metrics of its first row.
        unknown = np.full(len(self.spec.seeds), np.nan)
        kept = {name: mine.get(name, unknown) for name in self._metrics.names or mine}
        rows: list[MetricsRow] = [
            {"step": step, "seed": seed} | {name: float(kept[name][job]) for name in kept}
            for job, seed in enumerate(self.spec.seeds)
        ]
        for sentence in self._health.look(step, mine):
            self.warn(sentence)
        if self.folder:
            self.folder.append_metrics(rows)
            # As they will be read back: JSON has no infinity.
            rows = [
                {name: value if math.isfinite(value) else math.nan for name, value in row.items()}
                for row in rows
            ]
        self._metrics.add(rows)

    def keep_snapshot(self, step: int, policies: dict[str, Policy]) -> None:
        """Keep the policies of this run, given for all jobs of the pack."""
        self._snapshots[step] = take(policies, self.jobs)
        if self.folder:
            self.folder.write_snapshot(step, self._snapshots[step])

    def keep_evaluation(self, step: int, found: dict[str, Evaluation]) -> None:
        """Keep an evaluation of this run; nan for seeds that had stopped by then."""
        stopped = self.about.get("stopped", {})
        over = [
            str(seed) in stopped and stopped[str(seed)]["last_good_step"] < step
            for seed in self.spec.seeds
        ]
        self._evaluated[step] = jax.tree.map(lambda values: _blank(values, over), found)
        if self.folder:
            self.folder.write_evaluations(list(self._evaluated), self._stacked())

    def keep_references(self, references: dict[str, Reference]) -> None:
        """Keep the results of reference policies."""
        self._references = references
        if self.folder:
            self.folder.write_references(references)

    def checkpoint(self, place: Place, states: State) -> None:
        """Write what is needed to resume from here; `states` are those of the pack."""
        if self.folder is None:
            return
        contents = {
            checkpoints.STATE: files.dump_tree(take(states, self.jobs)),
            METRICS: self.folder.metrics_contents(),
        }
        if self._evaluated:
            contents[EVALUATIONS] = evaluations_contents(self._evaluated, self._stacked())
        fields = (
            "spec", "problem", "sha256", "scales", "versions", "device", "started", "traced",
            "devices", "jobs_at_a_time", *_CARRIED,
        )  # fmt: skip
        about = {name: self.about[name] for name in fields if name in self.about}
        snapshots = self.folder.snapshot_names()
        about |= {
            "seeds": list(self.spec.seeds),
            "seconds": time.perf_counter() - self._began,
            "beside": {name: files.stamp_of(self.folder.path / name) for name in snapshots},
        }
        checkpoints.write(self.folder.path, place, about, contents)

    def settle(self, place: Place, everywhere: bool) -> None:
        """Remove old checkpoints, or the new one unless all runs of the pack wrote theirs."""
        if self.folder and everywhere:
            checkpoints.keep_newest(self.folder.path)
        elif self.folder:
            checkpoints.remove(self.folder.path, place)

    def end(self, step: int, states: State, **more: Any) -> None:
        """End the run after its last (good) step; `states` are those of the pack."""
        self.over = True
        self.active[:] = False
        self._step, self._states = step, take(states, self.jobs)
        seconds = round(time.perf_counter() - self._began, 3)
        self.about |= {"step": step, "seconds": seconds, **more}
        if isinstance(self._states, SelectedState):
            chosen = np.asarray(self._states.step).tolist()
            self.about["selected"] = dict(zip(map(str, self.spec.seeds), chosen, strict=True))
        if self.folder:
            self.folder.write_state(self._states)
        self._advise()
        if self.spec.limits is not None:
            logs = [log.learned for log in self.logs]
            self.about["limits"] = self.result().limits_on(logs).to_json()
        if self.folder:
            if (summary := summary_of(self.logs)) is not None:
                self.folder.write_log_summary(summary)
            self.about["files"] = self.folder.stamps()
            self.folder.write_about(self.about)
            checkpoints.keep_newest(self.folder.path, 1)

    def _advise(self) -> None:
        """Add warnings from the held-out part of the log about the policies that will act."""
        selected = self.about.get("selected", {})
        chosen = [selected.get(str(seed), self._step) for seed in self.spec.seeds]
        if not self.spec.holdout or max(chosen) == 0:
            return
        states = self._states
        if isinstance(states, SelectedState) and np.any(unscored := np.asarray(states.unscored)):
            self.warn(
                f"{run_warnings.who(self.spec.seeds, unscored)}: no held-out signal was a number "
                "after any step, so nothing could be selected: the last policy acts"
            )
        # Not logged: only the chosen run of a sweep is of interest.
        found = run_warnings.look(self.spec, self.logs, self._metrics.arrays(), chosen)
        self.about["warnings"] = [*self.about.get("warnings", []), *found]

    def result(self) -> Run:
        """Return the run, once it has ended."""
        return Run(
            spec=self.spec,
            step=self._step,
            metrics=self._metrics.arrays(),
            evaluations=Evaluations(tuple(self._evaluated), self._stacked()),
            folder=self.folder.path if self.folder else None,
            about=plain(self.about),
            program=make_program(self.spec, self.problem),
            jobs=jobs_of(self.spec, [log.scales for log in self.logs]),
            states=acting(self._states),
            snapshots=self._snapshots,
            measured=self._references,
        )

    def _stacked(self) -> dict[str, Evaluation]:
        """Return all evaluations so far, the steps along the first axis."""
        if not self._evaluated:
            return {}
        return jax.tree.map(lambda *values: np.stack(values), *self._evaluated.values())


def _blank(values: np.ndarray, seeds: list[bool]) -> np.ndarray:
    """Return the values, with nan for some seeds."""
    if not any(seeds):
        return np.asarray(values)
    kept = np.array(values, np.result_type(values, np.float32))
    kept[seeds] = np.nan
    return kept


def _largest_return(logs: tuple[LoadedLog, ...]) -> float:
    """Return a bound of the absolute value of discounted returns of the scaled rewards."""
    scaled = [
        log.dataset if log.scales.reward is None else log.scales.reward.apply(log.dataset)
        for log in logs
    ]
    return max(abs(end) for dataset in scaled for end in reachable_returns(dataset))


def _about(spec: RunSpec, problem: Problem, logs: tuple[LoadedLog, ...]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "status": RUNNING,
        "spec": spec.to_json(),
        "problem": identity.problem_to_json(problem),
        "columns": identity.columns_to_json(logs[0].dataset),
        "sha256": [log.dataset.sha256 for log in logs],
        "scales": [log.scales.to_json() for log in logs],
        "versions": identity.versions(),
        "device": identity.device(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
