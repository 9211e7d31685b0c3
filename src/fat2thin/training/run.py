"""Runs from specification to result, one alone or several in one program."""

import functools
import inspect
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fat2thin import algorithms
from fat2thin.algorithms.base import State
from fat2thin.evaluation.returns import Evaluation
from fat2thin.training import loop
from fat2thin.training.folder import DIVERGED, FINISHED, RunFolder
from fat2thin.training.jobs import Data
from fat2thin.training.judging import Judging
from fat2thin.training.loop import Report
from fat2thin.training.member import Member
from fat2thin.training.memory import LIMIT
from fat2thin.training.pack import Log, make_pack, read_logs
from fat2thin.training.progress import SCORE, Silent, for_terminal
from fat2thin.training.result import Run, load
from fat2thin.training.settings import refuse_unknown
from fat2thin.training.spec import RunSpec, make_spec
from fat2thin.training.turns import Turns

_log = logging.getLogger(__name__)


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
    task: str | None = None,
    standardise: bool = False,
    reward_scale: float | str = 1.0,
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
        task=task,
        standardise=standardise,
        reward_scale=reward_scale,
    )
    return execute(spec, out, progress)


def execute(spec: RunSpec, out: str | Path | None = None, progress: Silent | None = None) -> Run:
    """Compute what a specification says, or load it from the folder that holds it."""
    (run,) = execute_together([spec], [out], progress)
    return run


def execute_together(
    specs: Sequence[RunSpec],
    outs: Sequence[str | Path | None] | None = None,
    progress: Silent | None = None,
) -> list[Run]:
    """Compute several runs in one program, each into its own folder, or load those that are there.

    They may differ in data set (of the same widths, box and discount), seeds and settings that are
    real numbers. Where one of several diverges, the others go on; its `about` says so.
    """
    folders = [None if out is None else RunFolder(Path(out)) for out in outs or [None] * len(specs)]
    _refuse_shared(folders)
    logs = read_logs(specs)
    hashes = [[log.dataset.sha256 for log in several] for several in logs]
    # A run that diverged does so again; alone it is an error, as it was the first time.
    over = (FINISHED,) if len(specs) == 1 else (FINISHED, DIVERGED)
    runs: list[Run | None] = [
        load(folder.path) if folder and folder.status(spec, of_spec) in over else None
        for spec, of_spec, folder in zip(specs, hashes, folders, strict=True)
    ]
    missing = [number for number, run in enumerate(runs) if run is None]
    if missing:
        training = _Training(
            [specs[i] for i in missing], [logs[i] for i in missing], [folders[i] for i in missing]
        )
        with progress or for_terminal(otherwise=Silent) as shown:
            computed = training.run(shown)
        for number, run in zip(missing, computed, strict=True):
            runs[number] = run
    return [run for run in runs if run is not None]


def _refuse_shared(folders: Sequence[RunFolder | None]) -> None:
    places = [folder.path.resolve() for folder in folders if folder is not None]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"{place} cannot hold several runs: give each a folder of its own")


class _Training:
    """The runs of a pack being computed."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        logs: Sequence[tuple[Log, ...]],
        folders: Sequence[RunFolder | None],
    ) -> None:
        self.spec = specs[0]
        self.pack = make_pack(specs, logs)
        self.turns = Turns(self.pack.program, self.pack.jobs, self.pack.data_size)
        self.judging = Judging(specs, self.pack, self.turns)
        ends = np.cumsum([len(spec.seeds) for spec in specs]).tolist()
        self.members = [
            Member(
                spec, self.pack.program.problem, of_run, slice(end - len(spec.seeds), end), folder
            )
            for spec, of_run, end, folder in zip(specs, logs, ends, folders, strict=True)
        ]
        for member in self.members:
            member.about |= self.turns.about
        self.states: State = None

    def run(self, progress: Silent) -> list[Run]:
        """All chunks, and what is due between them."""
        if self.turns.count > 1:
            _log.warning(
                "%d jobs do not fit into the memory of the device: they take turns, %d at a time "
                "(%s says how much they may take)",
                len(self.pack.jobs.seed), self.turns.at_a_time, LIMIT,
            )  # fmt: skip
        data = self.turns.replicated(self.pack.data())
        self.states, step = self.turns.init(), 0
        try:
            self._prepare(data, progress)
            progress.begin(self.spec.steps, len(self.pack.jobs.seed))
            self._keep_policies(step, progress)
            for length in loop.chunk_lengths(self.spec.stops, self.spec.log_every):
                self.states, report = self.turns.chunk(self.states, data, step, length)
                self._end_diverged(report, step)
                step += length
                self._keep_metrics(step, report)
                progress.advance(step)
                self._keep_policies(step, progress)
            self._keep_evaluations(progress, wait=True)
            states = self.turns.gathered(self.states)
            for number, member in enumerate(self.members):
                if not member.over:
                    self._finish(number, member, step, states)
        finally:
            self.judging.close()
        return [member.result() for member in self.members]

    def _finish(self, number: int, member: Member, step: int, states: State) -> None:
        references, speed = self.judging.references(number), self.judging.speed(number)
        if references is not None:
            member.keep_references(references)
        also = {} if speed is None else {"rollouts": speed}
        member.end(step, states, status=FINISHED, **also)

    def _prepare(self, data: Data, progress: Silent) -> None:
        """What the algorithm learns first, where it does; the mean metrics go to run.json."""
        preparation = self.pack.program.algorithm.preparation
        if preparation is None:
            return
        steps, done, means = preparation.steps(self.spec.config), 0, []
        progress.begin(steps, len(self.pack.jobs.seed), "preparation")
        for length in loop.chunk_lengths([steps], self.spec.log_every):
            self.states, report = self.turns.chunk(self.states, data, done, length, preparing=True)
            # It is before the first step still, however far the preparation has come.
            self._end_diverged(report, done, kept=0)
            done += length
            means.append(jax.device_get(report.metrics))
            progress.advance(done)
        for member in self.members:
            if member.over:
                continue
            first, last = (
                {name: float(np.mean(values[member.jobs])) for name, values in one.items()}
                for one in (means[0], means[-1])
            )
            member.about["preparation"] = {"steps": steps, "first": first, "last": last}

    def _end_diverged(self, report: Report, start: int, kept: int | None = None) -> None:
        """End the runs that a chunk broke, after `kept` steps; raise where no other is left."""
        for run, error in loop.divergences(report, self.pack.jobs, start).items():
            member = self.members[run]
            if member.over:
                continue
            # What was seen before it broke belongs to the run as well.
            self._keep_evaluations(Silent(), wait=True)
            last = start if kept is None else kept
            states = self.turns.gathered(self.states)
            member.end(last, states, status=DIVERGED, diverged=str(error))
            if all(member.over for member in self.members):
                raise error
            _log.warning("%s on %s: %s", member.spec.algorithm, member.spec.dataset, error)

    def _keep_metrics(self, step: int, report: Report) -> None:
        metrics = jax.device_get(report.metrics)
        for member in self.members:
            if not member.over:
                member.keep_metrics(step, metrics)

    def _keep_policies(self, step: int, progress: Silent) -> None:
        """Snapshot and evaluation, where they are due."""
        policies = functools.cache(lambda: self.turns.policies(self.states))
        if step in self.spec.snapshots:
            for member in self.members:
                if not member.over:
                    member.keep_snapshot(step, policies())
        if step in self.spec.evaluation_steps:
            self.judging.evaluate(step, self.states, policies)
        self._keep_evaluations(progress)

    def _keep_evaluations(self, progress: Silent, wait: bool = False) -> None:
        """What has become ready."""
        for step, by_run in self.judging.ready(wait):
            scores: dict[str, float] = {}
            for run, found in by_run.items():
                if not self.members[run].over:
                    self.members[run].keep_evaluation(step, found)
                    scores |= self._scores(run, found)
            if scores:
                progress.evaluated(step, scores)

    def _scores(self, run: int, found: dict[str, Evaluation]) -> dict[str, float]:
        """What to show of an evaluation; of several runs only the policy that acts, as it acts."""
        means = {name: float(np.mean(one.returns)) for name, one in found.items()}
        if len(self.members) == 1:
            return means
        names = [member.spec.dataset for member in self.members]
        unique = names.count(names[run]) == 1
        return {names[run] if unique else f"{names[run]} ({run + 1})": means[SCORE]}
