"""Compute runs from their specifications, alone or several in one program."""

import contextlib
import dataclasses
import functools
import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin import algorithms
from fat2thin import data as data_sets
from fat2thin.algorithms.base import State
from fat2thin.data.memory import FRAME_KEYS, open_data
from fat2thin.engine import loop
from fat2thin.engine.devices import LIMIT, JobScheduler, share_of_logs
from fat2thin.engine.metrics import ChunkReport, divergences
from fat2thin.engine.pack import LoadedLog, make_pack, traced_settings, with_window
from fat2thin.engine.program import chunk_lengths, of_jobs
from fat2thin.engine.window import WholeLogs
from fat2thin.evaluation.returns import SCORE, Evaluation
from fat2thin.runs import checkpoints, files
from fat2thin.runs.checkpoints import START, Checkpoint, Place
from fat2thin.runs.files import DamagedError, NoRunError
from fat2thin.runs.folder import DIVERGED, FINISHED, RunFolder
from fat2thin.runs.identity import read_logs
from fat2thin.runs.lock import locked
from fat2thin.runs.result import Run
from fat2thin.runs.result import load as load_run
from fat2thin.settings.automatic import Load
from fat2thin.settings.config import refuse_unknown
from fat2thin.settings.options import option_names, takes_options
from fat2thin.settings.spec import RunSpec, choose_spec
from fat2thin.training.evaluation_queue import EvaluationQueue
from fat2thin.training.progress import Silent, for_terminal
from fat2thin.training.resuming import Interrupted, Interruption, Timer, groups
from fat2thin.training.run_writer import RunWriter

CHECKPOINT_SECONDS = 60.0  # approximate time between checkpoints

_log = logging.getLogger(__name__)


@takes_options
def train(
    algorithm: str, data: Any,
    *, out: str | Path | None = None, config: Any = None, progress: Silent | None = None,
    **settings: Any,
) -> Run:  # fmt: skip
    """Learn a policy from a data set, with one or several seeds.

    All seeds run in one compiled program; the result of a seed does not depend on the others.

    Args:
        algorithm: Name of the algorithm. `fat2thin.algorithms.names()` returns all of them.
        data: Name of a data set ("d4rl/hopper-medium-v2"; "treatment/quadratic@10" draws a log of
            10 episodes), path of a log ("doses.csv"), `fat2thin.data.Dataset`, mapping of arrays
            (with the names of `Dataset.from_arrays`, D4RL or NeoRL-2), pandas or polars DataFrame,
            Arrow table, or Minari data set. `fat2thin.data.names()` lists the names.
        out: Folder of the run. A finished run in it is loaded, an interrupted one is resumed. By
            default nothing is written.
        config: Settings of the algorithm as one object, such as `IQLConfig()`; do not combine it
            with `settings_from`.
        progress: Object that shows the progress. By default a bar is shown on a terminal.
        **settings: Settings of the algorithm by name, such as `temperature=0.5`. They override
            those from `config` or `settings_from`. `fat2thin settings fttpo` lists those of FtTPO,
            and so does its page in docs/algorithms. For a data frame also its columns, with the
            keys of a table's TOML: `observation=["level"]`, `action=["dose"]`, `reward="reward"`,
            `episode="patient"`, `action_low=0`, `action_high=2`, `discount=0.9`.

    Returns:
        The `Run`. `run.policy(seed=0)` is the policy that acts, `run.metrics` and `run.evaluations`
        hold the learning curves, and `run.table()` is the last evaluation as a table.

    Raises:
        ValueError: A name is unknown, a value is out of range, or `out` holds another run.
        TrainingDiverged: All seeds diverged. If some did, `run.about["stopped"]` lists them.

    Examples:
        Two updates of behaviour cloning on ten logged episodes, without evaluations:

        >>> import fat2thin, jax
        >>> run = fat2thin.train(
        ...     "bc", "treatment/quadratic@10", steps=2, batch_size=8, task="none",
        ...     settings_from="default", hidden=(8,),
        ... )
        >>> policy = run.policy(seed=0)
        >>> low, high = policy.support(jax.numpy.zeros(8))
        >>> print(low, high)
        [-1.] [1.]
    """
    own = [*inspect.signature(train).parameters][:-1]
    options = {name: settings.pop(name) for name in option_names() if name in settings}
    chosen = algorithms.get(algorithm)
    known = [field.name for field in dataclasses.fields(chosen.config)]
    columns = {key: settings.pop(key) for key in FRAME_KEYS if key in settings and key not in known}
    refuse_unknown(chosen, settings, also=own)
    opened, load = open_data(data, columns), functools.cache(data_sets.load)
    name = opened if isinstance(opened, str) else data_sets.remember(opened)
    in_memory = None if isinstance(opened, str) else load(name, 0)
    spec, note = choose_spec(algorithm, name, config, settings, load, **options)
    if note:
        _log.warning(note)
    run = execute(spec, out, progress, load=load)
    return run if in_memory is None else dataclasses.replace(run, data=in_memory)


def execute(
    spec: RunSpec, out: str | Path | None = None, progress: Silent | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS, load: Load = data_sets.load,
) -> Run:  # fmt: skip
    """Compute a run, resume it, or load it from the folder that holds it.

    A checkpoint is written about every `checkpoint_seconds`, seldom enough that checkpoints take at
    most a twentieth of the time; 0 writes one after every chunk. `load` reads the log.
    """
    (run,) = execute_together([spec], [out], progress, checkpoint_seconds, load)
    return run


def execute_together(
    specs: Sequence[RunSpec], outs: Sequence[str | Path | None] | None = None,
    progress: Silent | None = None, checkpoint_seconds: float = CHECKPOINT_SECONDS,
    load: Load = data_sets.load, traced: Sequence[str] = (),
) -> list[Run]:  # fmt: skip
    """Compute several runs in one program, each into its own folder, or load the finished ones.

    They may differ in data set (of the same widths, box and discount), seeds and settings that are
    real numbers. Where one of several diverges, the others continue; its `about` says so.
    Interrupted runs resume together from the newest step that most of them have a checkpoint of;
    one without such a checkpoint resumes alone.

    Settings that differ are arguments of the program, and so are those named in `traced`: part of
    a program's runs has the same bits as all of them if given the settings that differ there.
    """
    if not checkpoint_seconds >= 0:
        raise ValueError(f"checkpoint_seconds must be at least 0, got {checkpoint_seconds:g}")
    folders = [None if out is None else RunFolder(Path(out)) for out in outs or [None] * len(specs)]
    places = [folder.path.resolve() for folder in folders if folder is not None]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"{place} cannot hold several runs: give each its own folder")
    logs = read_logs(specs, load)
    specs = [_with_stored_window(*run) for run in zip(specs, folders, strict=True)]
    specs = with_window(specs, logs, share_of_logs())
    hashes = [[log.dataset.sha256 for log in several] for several in logs]
    # A run that diverged would do so again; a single run raises the error again.
    over = (FINISHED,) if len(specs) == 1 else (FINISHED, DIVERGED)

    def missing() -> list[int]:
        runs = zip(specs, hashes, folders, strict=True)
        return [
            number
            for number, (spec, of_spec, folder) in enumerate(runs)
            if folder is None or folder.status(spec, of_spec) not in over
        ]

    def training_of(numbers: Sequence[int]) -> _Training:
        return _Training(
            [specs[i] for i in numbers], [logs[i] for i in numbers], [folders[i] for i in numbers],
            arguments, checkpoint_seconds,
        )  # fmt: skip

    computed: dict[int, Run] = {}
    # The unfinished runs of a pack keep the settings that its program takes as arguments.
    arguments = sorted({*traced_settings(specs), *traced})
    if wanted := missing():
        # Built before anything is written: specifications that cannot be trained are refused here.
        prepared = {tuple(wanted): training_of(wanted)}
        with contextlib.ExitStack() as held:
            for folder in filter(None, (folders[i] for i in wanted)):
                held.enter_context(locked(folder.path))
            # Another process may have finished some of them before it released its lock.
            wanted = missing()
            shown = held.enter_context(progress or for_terminal(otherwise=Silent))
            for group in groups([(specs[i], logs[i], folders[i]) for i in wanted]):
                together = tuple(wanted[place] for place in group)
                training = prepared.get(together) or training_of(together)
                training.begin([*group.values()])
                computed |= zip(together, training.run(shown), strict=True)
    return [
        load_run(folder.path) if folder and number not in computed else computed[number]
        for number, folder in enumerate(folders)
    ]


def _with_stored_window(spec: RunSpec, folder: RunFolder | None) -> RunSpec:
    """Return the specification with the window of its folder: it may be resumed elsewhere."""
    if spec.window is not None or folder is None:
        return spec
    with contextlib.suppress(NoRunError):
        return dataclasses.replace(spec, window=folder.about()["spec"].get("window"))
    return spec


class _Training:
    """The runs of a pack being computed."""

    def __init__(
        self, specs: Sequence[RunSpec], logs: Sequence[tuple[LoadedLog, ...]],
        folders: Sequence[RunFolder | None], traced: Sequence[str], checkpoint_seconds: float,
    ) -> None:  # fmt: skip
        self.specs, self.logs, self.folders = specs, logs, folders
        self.spec = specs[0]
        self.pack = make_pack(specs, logs, traced)
        self.scheduler = JobScheduler(self.pack.program, self.pack.jobs, self.pack.data_size)
        self.evaluations = EvaluationQueue(specs, self.pack, self.scheduler)
        self._checkpoint_seconds = checkpoint_seconds

    def begin(self, found: Sequence[Checkpoint | None]) -> None:
        """Prepare the folders, or reset them to where all of them resume."""
        self.timer = Timer(self._checkpoint_seconds)
        self.place = found[0].place if found[0] else START
        self.data = self.pack.data(self.scheduler.replicated)
        self._compile_ahead()
        self.states = self._first_states(found)
        also: dict[str, Any] = dict(self.scheduler.about)
        if self.pack.jobs.settings:
            # A compiled-in number rounds differently from an argument; a replay must know which.
            also["traced"] = sorted(self.pack.jobs.settings)
        problem, end = self.pack.program.problem, 0
        self.writers = []
        runs = zip(self.specs, self.logs, self.folders, found, strict=True)
        for spec, logs, folder, checkpoint in runs:
            jobs = slice(end, end + len(spec.seeds))
            self.writers.append(RunWriter(spec, problem, logs, jobs, folder, also, checkpoint))
            end = jobs.stop

    def _compile_ahead(self) -> None:
        """Compile the first chunk of updates while the initial states are made and evaluated."""
        done = self.place.step if self.place.training else 0
        left = _left(chunk_lengths(self.spec.stops, self.spec.log_every), done)
        if left and isinstance(self.data, WholeLogs):
            self.scheduler.compile_ahead(self.data.data, left[0])

    def _first_states(self, found: Sequence[Checkpoint | None]) -> State:
        """Return the states of the checkpoints, or fresh ones."""
        like = loop.init.eval_shape(self.pack.jobs, program=self.pack.program)
        parts = [
            files.load_tree(checkpoint.path / checkpoints.STATE, of_jobs(like, len(spec.seeds)), np)
            for spec, checkpoint in zip(self.specs, found, strict=True)
            if checkpoint
        ]
        if not parts:
            return self.scheduler.init()
        whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        # States of jobs that take turns stay on the host.
        whole = whole if self.scheduler.count > 1 else jax.tree.map(jnp.asarray, whole)
        return self.scheduler.spread(whole)

    @property
    def active(self) -> np.ndarray:
        """Which jobs still learn."""
        return np.concatenate([writer.active for writer in self.writers])

    @property
    def _unfinished(self) -> list[RunWriter]:
        return [writer for writer in self.writers if not writer.over]

    def run(self, progress: Silent) -> list[Run]:
        """Run all chunks, with evaluations, snapshots and checkpoints between them."""
        if self.scheduler.count > 1:
            _log.warning(
                "%d jobs do not fit into the memory of the device: they take turns, %d at a time "
                "(%s sets the memory limit)",
                len(self.pack.jobs.seed), self.scheduler.at_a_time, LIMIT,
            )  # fmt: skip
        listening = any(writer.folder for writer in self.writers)
        try:
            with Interruption(listening) as self.interruption:
                self._prepare(progress)
                self._train(progress)
            self._keep_evaluations(progress, wait=True)
            states = self.scheduler.gathered(self.states)
            for number, writer in enumerate(self.writers):
                if writer.over:
                    continue
                if (references := self.evaluations.references(number)) is not None:
                    writer.keep_references(references)
                speed = self.evaluations.speed(number)
                also = {} if speed is None else {"rollouts": speed}
                writer.end(self.spec.steps, states, status=FINISHED, **also)
        finally:
            self.data.close()
            self.evaluations.close()
        if self.interruption.asked:
            raise Interrupted(
                f"interrupted in the last chunk: all steps are done, and in {self._places()}",
                self.interruption.number,
            )
        return [writer.result() for writer in self.writers]

    def _train(self, progress: Silent) -> None:
        step = self.place.step
        progress.begin(self.spec.steps, len(self.pack.jobs.seed))
        if step == 0:
            self._keep_policies(step, progress)
        else:
            progress.advance(step)
        for length in _left(chunk_lengths(self.spec.stops, self.spec.log_every), step):
            rows = self.data.at(step, length)
            self.states, report = self.scheduler.chunk(self.states, rows, step, length, self.active)
            self._stop_diverged(report, step, kept=step)
            step += length
            metrics = jax.device_get(report.row)
            for writer in self._unfinished:
                writer.keep_metrics(step, metrics)
            progress.advance(step)
            self._keep_policies(step, progress)
            if step < self.spec.steps:
                self._pause(Place(training=True, step=step), progress)

    def _pause(self, place: Place, progress: Silent) -> None:
        """Write a checkpoint if one is due; stop if a signal asked for it."""
        asked = self.interruption.asked
        # A checkpoint includes the evaluations on the host: they get some time to become ready.
        if not asked and not self.timer.due(patient=self.evaluations.busy):
            return
        self._keep_evaluations(progress, wait=True)
        with self.timer:
            states, writers = self.scheduler.gathered(self.states), self._unfinished
            written = [self._checkpoint(writer, place, states, must=asked) for writer in writers]
            for writer in writers:
                writer.settle(place, all(written))
        if asked:
            raise Interrupted(
                f"interrupted after {place}. Everything so far is in {self._places()}: run the "
                "same command again to resume.", self.interruption.number,
            )  # fmt: skip

    def _places(self) -> str:
        return ", ".join(str(writer.folder.path) for writer in self.writers if writer.folder)

    def _checkpoint(self, writer: RunWriter, place: Place, states: State, must: bool) -> bool:
        try:
            writer.checkpoint(place, states)
        except OSError as error:
            if must:
                raise
            # The previous one still exists.
            writer.warn(f"no checkpoint could be written after {place}: {error}")
            return False
        return True

    def _prepare(self, progress: Silent) -> None:
        """Run the algorithm's preparation, if it has one; its mean metrics go to run.json."""
        preparation = self.pack.program.algorithm.preparation
        if preparation is None or self.place.training:
            return
        steps, done = preparation.steps(self.spec.config), self.place.step
        progress.begin(steps, len(self.pack.jobs.seed), "preparation")
        for length in _left(chunk_lengths([steps], self.spec.log_every), done):
            self.states, report = self.scheduler.chunk(
                self.states, self.data.at(done, length), done, length, self.active, preparing=True
            )
            # The whole preparation is before the first step.
            self._stop_diverged(report, done, kept=0)
            done += length
            means = jax.device_get(report.metrics)
            for writer in self.writers:
                writer.prepared(steps, means)
            progress.advance(done)
            if done < steps:
                self._pause(Place(training=False, step=done), progress)
        self.place = Place(training=True, step=0)

    def _stop_diverged(self, report: ChunkReport, start: int, kept: int) -> None:
        """Stop the seeds that diverged, and runs without other seeds; raise if no run is left.

        `kept` is the last good step.
        """
        active = self.active
        for job, error in divergences(report, self.pack.jobs, start).items():
            if not active[job]:
                continue
            # Evaluations from before the divergence belong to the run too.
            self._keep_evaluations(Silent(), wait=True)
            writer = self.writers[int(self.pack.jobs.run[job])]
            writer.stop(job, error, kept)
            if not writer.active.any():
                states = self.scheduler.gathered(self.states)
                writer.end(kept, states, status=DIVERGED, diverged=str(error))
            if all(writer.over for writer in self.writers):
                raise error

    def _keep_policies(self, step: int, progress: Silent) -> None:
        """Make the snapshots and evaluations that are due."""
        policies = functools.cache(lambda: self.scheduler.policies(self.states))
        if step in self.spec.snapshots:
            for writer in self._unfinished:
                writer.keep_snapshot(step, policies())
        if step in self.spec.evaluation_steps:
            self.evaluations.evaluate(step, self.states, policies)
        self._keep_evaluations(progress)

    def _keep_evaluations(self, progress: Silent, wait: bool = False) -> None:
        for step, by_run in self.evaluations.ready(wait):
            scores: dict[str, float] = {}
            for run, found in by_run.items():
                if not self.writers[run].over:
                    self.writers[run].keep_evaluation(step, found)
                    scores |= self._scores(run, found)
            if scores:
                progress.evaluated(step, scores)

    def _scores(self, run: int, found: dict[str, Evaluation]) -> dict[str, float]:
        """Return the scores to show: all of a single run, or `SCORE` of each of several."""
        means = {name: float(np.mean(one.returns)) for name, one in found.items()}
        if len(self.writers) == 1:
            return means
        names = [writer.spec.dataset for writer in self.writers]
        unique = names.count(names[run]) == 1
        return {names[run] if unique else f"{names[run]} ({run + 1})": means[SCORE]}


def _left(lengths: Sequence[int], done: int) -> list[int]:
    """Return the chunks after `done` updates; one of the chunks must end there."""
    ends = np.cumsum(lengths)
    if done and done not in ends:
        raise DamagedError(
            f"the checkpoint of step {done:,} is not at the end of a chunk of this run"
        )
    return [length for length, end in zip(lengths, ends, strict=True) if end > done]
