"""A run from specification to result."""

import dataclasses
import importlib.metadata
import inspect
import platform
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin import __version__, algorithms, data
from fat2thin.algorithms.base import Problem, State
from fat2thin.data import Dataset
from fat2thin.evaluation.returns import Evaluation, evaluator
from fat2thin.keys import Stream
from fat2thin.policies import Policy
from fat2thin.training import loop
from fat2thin.training.folder import DIVERGED, FINISHED, FORMAT, RUNNING, MetricsRow, RunFolder
from fat2thin.training.loop import Data, Report, TrainingDiverged
from fat2thin.training.progress import Silent, for_terminal
from fat2thin.training.result import Evaluations, Run, columns, load, make_program
from fat2thin.training.settings import refuse_unknown
from fat2thin.training.spec import RunSpec, make_spec, plain

_PACKAGES = ("jax", "jaxlib", "numpy", "numpyro", "equinox", "optax", "safetensors")


def train(
    algorithm: str,
    dataset: str,
    *,
    steps: int,
    seeds: int | Iterable[int] = 1,
    out: str | Path | None = None,
    config: Any = None,
    settings_from: str = "default",
    batch_size: int | None = None,
    evaluate_every: int = 1000,
    episodes: int = 20,
    log_every: int = 250,
    snapshots: Iterable[int] = (),
    progress: Silent | None = None,
    **settings: Any,
) -> Run:
    """Learn from a data set, for one or several seeds at once.

    `seeds=10` is seeds 0 to 9, `seeds=[3]` is seed 3. `settings` are fields of the algorithm's
    config by name (`temperature=0.5`), put into `config`, into the defaults, or with
    `settings_from="own"` or `"fttpo"` into the published settings. Without a `batch_size`, that of
    the published settings is taken, or else 256. The other options are explained in `RunSpec`. With
    `out`, everything is written to that folder, and a run that is already there is loaded instead.
    Without `progress`, a bar is shown on a terminal.
    """
    options = inspect.signature(train).parameters
    refuse_unknown(algorithms.get(algorithm), settings, also=[*options][:-1])
    spec = make_spec(
        algorithm,
        dataset,
        steps=steps,
        seeds=seeds,
        config=config,
        settings=settings,
        settings_from=settings_from,
        batch_size=batch_size,
        evaluate_every=evaluate_every,
        episodes=episodes,
        log_every=log_every,
        snapshots=snapshots,
    )
    return execute(spec, out, progress)


def execute(spec: RunSpec, out: str | Path | None = None, progress: Silent | None = None) -> Run:
    """Compute what a specification says, or load it from the folder that holds it."""
    own_log = data.reader(spec.dataset).one_a_seed
    datasets = [data.load(spec.dataset, seed) for seed in (spec.seeds if own_log else (0,))]
    hashes = [dataset.sha256 for dataset in datasets]
    folder = RunFolder(Path(out)) if out is not None else None
    if folder and folder.finished(spec, hashes):
        return load(folder.path)
    training = _Training(spec, datasets[0], hashes, folder)
    on_device = loop.data_of_jobs(datasets) if own_log else loop.shared_data(datasets[0])
    with progress or for_terminal(otherwise=Silent) as shown:
        return training.run(on_device, shown)


class _Training:
    """One run being computed: what it has found so far, in memory and in its folder."""

    def __init__(
        self, spec: RunSpec, dataset: Dataset, hashes: list[str], folder: RunFolder | None
    ) -> None:
        problem = loop.problem_of(dataset)
        self.spec, self.folder = spec, folder
        self.program = make_program(spec, problem)
        self.jobs = loop.make_jobs(spec.seeds)
        self.evaluator = evaluator(spec.dataset)
        self.about = _about(spec, problem, hashes)
        self.states: State = None
        self.rows: list[MetricsRow] = []
        self.evaluated: dict[int, dict[str, Evaluation]] = {}
        self.snapshots: dict[int, dict[str, Policy]] = {}
        if folder:
            folder.begin(self.about)

    def run(self, on_device: Data, progress: Silent) -> Run:
        """All chunks, and what is due between them."""
        began = time.perf_counter()
        self.states, step = loop.init(self.jobs, program=self.program), 0
        try:
            self._prepare(on_device, progress)
            progress.begin(self.spec.steps, len(self.spec.seeds))
            self._keep_policies(step, progress)
            for length in loop.chunk_lengths(self.spec.stops, self.spec.log_every):
                self.states, report = loop.chunk(
                    self.states, on_device, self.jobs, jnp.int32(step),
                    program=self.program, length=length,
                )  # fmt: skip
                loop.raise_if_diverged(report, self.jobs, step)
                step += length
                self._keep_metrics(step, report)
                progress.advance(step)
                self._keep_policies(step, progress)
        except TrainingDiverged as error:
            self._end(step, began, status=DIVERGED, diverged=str(error))
            raise
        self._end(step, began, status=FINISHED)
        return Run(
            spec=self.spec,
            step=step,
            metrics=columns(self.rows, len(self.spec.seeds)),
            evaluations=Evaluations(tuple(self.evaluated), self._stacked()),
            folder=self.folder.path if self.folder else None,
            about=self.about,
            program=self.program,
            states=self.states,
            snapshots=self.snapshots,
        )

    def _prepare(self, on_device: Data, progress: Silent) -> None:
        """What the algorithm learns first, where it does; the mean metrics go to run.json."""
        preparation = self.program.algorithm.preparation
        if preparation is None:
            return
        steps, done, means = preparation.steps(self.spec.config), 0, []
        progress.begin(steps, len(self.spec.seeds), "preparation")
        for length in loop.chunk_lengths([steps], self.spec.log_every):
            self.states, report = loop.chunk(
                self.states, on_device, self.jobs, jnp.int32(done),
                program=self.program, length=length, preparing=True,
            )  # fmt: skip
            loop.raise_if_diverged(report, self.jobs, done)
            done += length
            found = jax.device_get(report.metrics)
            means.append({name: float(np.mean(values)) for name, values in found.items()})
            progress.advance(done)
        self.about["preparation"] = {"steps": steps, "first": means[0], "last": means[-1]}

    def _keep_metrics(self, step: int, report: Report) -> None:
        metrics = jax.device_get(report.metrics)
        rows: list[MetricsRow] = [
            {"step": step, "seed": seed}
            | {name: float(values[job]) for name, values in metrics.items()}
            for job, seed in enumerate(self.spec.seeds)
        ]
        self.rows += rows
        if self.folder:
            self.folder.append_metrics(rows)

    def _keep_policies(self, step: int, progress: Silent) -> None:
        """Snapshot and evaluation, where they are due."""
        if step in self.spec.snapshots:
            self.snapshots[step] = loop.policies(self.states, self.jobs, program=self.program)
            if self.folder:
                self.folder.write_snapshot(step, self.snapshots[step])
        if self.evaluator is not None and step in self.spec.evaluation_steps:
            found = loop.evaluate(
                self.states, self.jobs, jnp.int32(step), stream=Stream.EVALUATION,
                program=self.program, evaluator=self.evaluator, episodes=self.spec.episodes,
            )  # fmt: skip
            self.evaluated[step] = jax.device_get(found)
            if self.folder:
                self.folder.write_evaluations(list(self.evaluated), self._stacked())
            scores = {name: float(np.mean(one.returns)) for name, one in found.items()}
            progress.evaluated(step, scores)

    def _stacked(self) -> dict[str, Evaluation]:
        """All evaluations so far, the steps along the first axis."""
        if not self.evaluated:
            return {}
        return jax.tree.map(lambda *values: np.stack(values), *self.evaluated.values())

    def _end(self, step: int, began: float, **status: str) -> None:
        self.about |= {"step": step, "seconds": round(time.perf_counter() - began, 3), **status}
        if self.folder:
            self.folder.write_state(self.states)
            self.folder.write_about(self.about)


def _about(spec: RunSpec, problem: Problem, hashes: list[str]) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "format": FORMAT,
        "status": RUNNING,
        "spec": spec.to_json(),
        "problem": plain(dataclasses.asdict(problem)),
        "sha256": hashes,
        "versions": {
            "python": platform.python_version(),
            "fat2thin": __version__,
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
        "device": f"{device.platform}: {device.device_kind}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
