"""The results of a run, in memory or loaded from its folder."""

import contextlib
import dataclasses
import functools
import itertools
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.algorithms.base import State
from fat2thin.data import Dataset
from fat2thin.data.coverage import Coverage, summarise_states
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import LoadedLog, jobs_of, make_program, shapes_of
from fat2thin.engine.program import Jobs, Program
from fat2thin.engine.selection import acting
from fat2thin.evaluation import returns
from fat2thin.evaluation.caution import caution_table, evaluate_caution, referral_table
from fat2thin.evaluation.held_out import PREFIX as HELD_OUT
from fat2thin.evaluation.limited import LimitReport, joined, limit_report
from fat2thin.evaluation.returns import Evaluation, HostJudge, Judge, Reference
from fat2thin.evaluation.table import make_table, metrics_table
from fat2thin.policies.decision import PRACTICE, Referral, Thresholds, with_referral
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.limits import LimitRules
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_keys
from fat2thin.runs import files
from fat2thin.runs.files import DamagedError, NoRunError, refuse_too_large
from fat2thin.runs.folder import RUN, RUNNING, STATE, MetricsRow, RunFolder
from fat2thin.runs.identity import RunColumns, columns_of, identity_of, read_logs
from fat2thin.settings.config import whole_number
from fat2thin.settings.spec import RunSpec
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import counted, printable

_LONGEST_LINE = 90


@dataclasses.dataclass(frozen=True)
class Evaluations:
    """Every evaluation of a run: raw returns, one per episode."""

    steps: tuple[int, ...]
    policies: dict[str, Evaluation]
    """By name ("actor_sampled"): returns of shape (steps, seeds, episodes), measures of shape
    (steps, seeds). Empty if there is no task to evaluate on."""

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluations of a policy in one way of acting."""
        return self.policies[name]

    def last(self) -> dict[str, Evaluation]:
        """Return the last: returns of shape (seeds, episodes), measures of shape (seeds,)."""
        return jax.tree.map(lambda values: values[-1], self.policies)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run and its results, as `fat2thin.train` and `fat2thin.load` return them.

    Examples:
        >>> import fat2thin
        >>> run = fat2thin.train("bc", "treatment/quadratic@5", steps=2, task="none", hidden=(4,))
        >>> run.policy(seed=0).act(jnp.zeros(8)).shape
        (1,)
        >>> run.metrics["step"].tolist()
        [2]
    """

    spec: RunSpec
    """The specification."""
    step: int
    """The last step: `spec.steps`, or the last good one if the run diverged."""
    metrics: dict[str, np.ndarray]
    """"step" of shape (rows,), and each metric of shape (rows, seeds): its mean over the updates
    since the previous row."""
    evaluations: Evaluations
    folder: Path | None
    """The run folder, if there is one."""
    about: dict[str, Any]
    """The contents of run.json, such as versions, hashes of the data, device and times."""
    program: Program = dataclasses.field(repr=False)
    """The compiled program."""
    jobs: Jobs = dataclasses.field(repr=False)
    """The seeds, and the scales of raw observations."""
    states: State = dataclasses.field(repr=False)
    """The algorithm's last or selected state, with a leading axis of seeds."""
    snapshots: Mapping[int, dict[str, Policy]] = dataclasses.field(repr=False)
    """Policies after the steps of `spec.snapshots`, with a leading axis of seeds."""
    measured: dict[str, Reference] | None = dataclasses.field(repr=False, default=None)
    """Results of reference policies that were measured during training."""
    data: Dataset | None = dataclasses.field(repr=False, default=None)
    """The data set if it was given in memory: its name in `spec` is valid while the run exists."""

    def __repr__(self) -> str:
        """Return a short summary."""
        facts = [(name, _one_line(text)) for name, text in self._summary()]
        width = max(len(name) for name, _ in facts)
        return "\n".join(["Run", *(f"  {name:<{width}}  {text}" for name, text in facts)])

    def _repr_html_(self) -> str:
        """Return the summary and the table, for a notebook."""
        rows = tuple({"name": name, "text": text} for name, text in self._summary())
        return Table("", rows, headings=False)._repr_html_() + self.table()._repr_html_()

    def _summary(self) -> Iterator[tuple[str, str]]:
        """Yield what `repr` shows: at most ten facts."""
        spec, stopped = self.spec, sorted(map(int, self.about.get("stopped", {})))
        yield "algorithm", spec.algorithm
        yield "data", spec.dataset
        yield "seeds", listed(spec.seeds)
        yield "steps", f"{self.step:,} of {spec.steps:,}"
        without = f", without seeds {listed(stopped)}, which stopped" if stopped else ""
        yield "status", f"{self.about['status']}{without}"
        if self.evaluations.policies:
            when = f"after step {self.evaluations.steps[-1]:,}"
            acting = (
                (name, one) for name, one in self.evaluations.last().items() if "actor" in name
            )
            for name, one in itertools.islice(acting, 2):
                yield name, f"return {_spread(np.mean(one.returns, axis=-1))} {when}"
        else:
            rows = [(name, values) for name, values in self.metrics.items() if name != "step"]
            signals = [row for row in rows if row[0].startswith(HELD_OUT)] or rows
            for name, values in signals[:3] if len(self.metrics["step"]) else ():
                yield name, _spread(values[-1])
        yield "folder", "none" if self.folder is None else str(self.folder)

    def policy(
        self, seed: int | None = None, step: int | None = None, ensemble: str | None = None
    ) -> Policy:
        """Return the policy that acts, in the environment's units.

        Without a seed it is one policy made of all seeds that did not stop, combined by the rule
        `ensemble` ("median" or "consensus", see `fat2thin.policies.ensemble`). They must have
        learned from the same log. `step` is the last, or one of `spec.snapshots`. The policy can
        `decide`, if there is a summary of the log.
        """
        if seed is not None or len(self.spec.seeds) == 1:
            return self._with_referral(self._policy("actor", seed, step))
        self._refuse_different_logs()
        stopped = self.about.get("stopped", {})
        going = [place for place, one in enumerate(self.spec.seeds) if str(one) not in stopped]
        places = np.asarray(going or range(len(self.spec.seeds)))
        stacked = self._policies(self.step if step is None else step)["actor"]
        members = jax.tree.map(lambda leaf: jnp.asarray(leaf)[places], stacked)
        return self._with_referral(self._with_columns(ensemble_of(members, ensemble)))

    def _with_referral(self, policy: Policy) -> Policy:
        try:
            referral = Referral(self.coverage)
        except (OSError, ValueError) as error:
            referral = Referral(None, without=str(error))
        return dataclasses.replace(policy, referral=referral)

    @functools.cached_property
    def coverage(self) -> Coverage:
        """The summary of the states of the log, from the folder, or of the log itself.

        It is that of the part which updates saw. There is none, and a ValueError, if the seeds
        learned from different logs or the log is too short.
        """
        if self._has_different_logs:
            raise ValueError(
                "the seeds of this run learned from different logs, so it has no summary of one "
                f"log to refer states by. To decide, {self._one_file}"
            )
        if self.folder is not None:
            found = RunFolder(self.folder).log_summary(self.program.problem)
        else:
            (logs,) = read_logs([self.spec])
            found = summary_of(logs)
        if found is None:
            raise ValueError(
                "this run has no summary of its log's states: the log is too short or too wide for "
                "one, or an earlier version wrote the run. `fat2thin.data.coverage."
                "summarise_states` makes one of a log"
            )
        return found

    def _refuse_different_logs(self) -> None:
        """Refuse to combine seeds whose logs differ: they are different experiments."""
        if self._has_different_logs:
            name, first = self.spec.dataset, self.spec.seeds[0]
            raise ValueError(
                f"the seeds of this run learned from different logs, because {name} draws one per "
                f"seed, so they are not one policy. Choose a seed, as in policy(seed={first}) or "
                f"--seed {first}, or {self._one_file}"
            )

    @property
    def _has_different_logs(self) -> bool:
        return len({*self.about.get("sha256", ())}) > 1

    @property
    def _one_file(self) -> str:
        name, algorithm = self.spec.dataset, self.spec.algorithm
        return (
            f"train on one file: `fat2thin data make {name} log.npz`, then `fat2thin train "
            f"{algorithm} log.npz`"
        )

    def with_limits(self, limits: Any) -> "Run":
        """Return this run with limits around its policies, instead of those that it learned within.

        They are a TOML file or a mapping of texts. Nothing is trained: Q and V stay those that were
        learned.
        """
        problem, columns = self.program.problem, self.columns
        box = problem.action_low, problem.action_high
        bound = LimitRules.read(limits).bind(columns.observation, columns.action, *box)

        for policy in self._policies(self.step).values():
            policy.family.check_limits()
        problem = dataclasses.replace(problem, limits=bound)
        about = {name: value for name, value in self.about.items() if name != "limits"}
        program = dataclasses.replace(self.program, problem=problem)
        return dataclasses.replace(self, program=program, about=about)

    def limits_on(self, logs: Sequence[Dataset]) -> LimitReport:
        """Return how often the limits bind the policies of all seeds on a log, or one per seed."""
        limits = self.program.problem.limits
        if limits is None:
            raise ValueError("this run has no limits; with_limits puts some around its policies")
        policies = [self._policy("actor", seed, None) for seed in self.spec.seeds]
        of_logs = [policies] if len(logs) == 1 else [[policy] for policy in policies]
        pairs = zip(logs, of_logs, strict=True)
        return joined([limit_report(log, limits, few) for log, few in pairs])

    def referrals_on(self, dataset: Dataset) -> Table:
        """Return the shares of a log's states that the policy of all seeds refers, by reason."""
        try:
            return referral_table(self.policy(), dataset)
        except ValueError as error:
            return Table(f"referrals on {dataset.name}: none, {error}", ())

    @property
    def limit_report(self) -> LimitReport | None:
        """How often the limits bind on the log that the run learned from; None without limits."""
        found = self.about.get("limits")
        return None if found is None else LimitReport.from_json(found)

    def proposal(self, seed: int | None = None, step: int | None = None) -> Policy:
        """Return the proposal, which only learns and never acts, if the algorithm has one."""
        return self._policy("proposal", seed, step)

    def _policy(self, name: str, seed: int | None, step: int | None) -> Policy:
        seed = self.spec.seeds[0] if seed is None else seed
        if seed not in self.spec.seeds:
            raise ValueError(f"the run has no seed {seed}; there are {listed(self.spec.seeds)}")
        policies = self._policies(self.step if step is None else step)
        if name not in policies:
            raise ValueError(f"{self.spec.algorithm} has no {name}")
        index = self.spec.seeds.index(seed)
        return self._with_columns(
            jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), policies[name])
        )

    def _with_columns(self, policy: Policy) -> Policy:
        columns, limits = self.columns, self.program.problem.limits
        return dataclasses.replace(
            policy, observation_columns=columns.observation, action_columns=columns.action,
            limits=limits,
        )  # fmt: skip

    @functools.cached_property
    def columns(self) -> RunColumns:
        """Names, units, transforms and observed ranges of the columns of its log."""
        return columns_of(self.about, self.program.problem)

    @functools.cached_property
    def _scheduler(self) -> JobScheduler:
        return JobScheduler(self.program, self.jobs)

    def _policies(self, step: int) -> dict[str, Policy]:
        if step == self.step:
            return self._scheduler.policies(self._scheduler.spread(self.states))
        if step not in self.snapshots:
            kept = sorted({*self.snapshots, self.step})
            raise ValueError(f"no policy of step {step} is kept; there are {listed(kept)}")
        return self.snapshots[step]

    @functools.cached_property
    def references(self) -> dict[str, Reference]:
        """Results of reference policies, from the folder or else measured on the task."""
        if (kept := self.kept_references()) is not None:
            return kept
        with self._judge() as judge:
            return judge.references()

    def keep_references(self) -> None:
        """Write measured references to the folder. Called only by commands that train into it."""
        if self.folder and "references" in vars(self) and self.kept_references() is None:
            RunFolder(self.folder).write_references(self.references)

    def known_references(self) -> dict[str, Reference]:
        """Return the references; {} if measuring them needs the task named in the run's spec.

        Making that task imports its package, which a hostile folder must not cause: only
        `evaluate` does it. The result is also {} if the task cannot be made.
        """
        kept = self.kept_references()
        if kept is not None or self.spec.task is not None:
            return kept or {}
        try:
            return self.references
        except returns.TaskError:
            return {}

    def kept_references(self) -> dict[str, Reference] | None:
        """Return the references that were measured in training or are in the folder."""
        if self.measured is not None or self.folder is None:
            return self.measured
        return RunFolder(self.folder).references()

    def table(self) -> Table:
        """Return the last evaluation and the references: `table()["actor_sampled"]["mean"]`.

        A run without a task has no evaluations: its last metrics are returned instead.
        """
        if not self.evaluations.policies:
            metrics = self.last_metrics()
            title = self._title(f"no task to evaluate on: {metrics.title}")
            return dataclasses.replace(metrics, title=title)
        when = f"after step {self.evaluations.steps[-1]:,}"
        return make_table(self._title(when), self.evaluations.last(), self.known_references())

    def evaluate(self, episodes: int = 100, draw: int = 0) -> Table:
        """Evaluate the final policies on fresh episodes, with the reference rows.

        A seed that stopped is evaluated with its last good state. The episodes depend on (seed,
        `Stream.FRESH_EVALUATION`, `draw`): they are the same at every call and for every algorithm,
        differ for another `draw`, and are never those seen in training.
        """
        number, stream = whole_number("draw", draw, least=0), Stream.FRESH_EVALUATION
        episodes = whole_number("episodes", episodes, least=1)
        with self._judge() as judge:
            if isinstance(judge, HostJudge):
                keys = stream_keys(self.jobs.seed, stream, number)
                evaluations = judge.judge(self._policies(self.step), keys, episodes)
            else:
                states, places = self._scheduler.spread(self.states), np.arange(len(self.jobs.seed))
                evaluations = self._scheduler.evaluate(
                    states, places, number, stream=stream, evaluator=judge, episodes=episodes
                )
        when = (
            f"after step {self.step:,}, {counted(episodes, 'fresh episode')} per seed (draw {draw})"
        )
        title = self._title(when, "{} with their last good state")
        return make_table(title, evaluations, self.references)

    def price_of_caution(
        self, fallback: Any, episodes: int = 1000, draw: int = 0,
        thresholds: Thresholds | None = None, seed: int | None = None,
    ) -> Table:  # fmt: skip
        """Return a table of returns with and without referrals, on the same fresh episodes.

        The policy is that of all seeds, or of one. Referred states are left to the `fallback`: an
        action, or "practice" for the mean logged action of similar states.
        """
        number, episodes = (
            whole_number("draw", draw, least=0),
            whole_number("episodes", episodes, 1),
        )
        policy = with_referral(self.policy(seed), thresholds=thresholds)
        key = stream_keys(self.jobs.seed[:1], Stream.FRESH_EVALUATION, number)[0]
        with self._judge() as judge:
            found = evaluate_caution(policy, judge, fallback, key, episodes)
        rule = getattr(policy.network, "rule", None)
        whose = f"seed {self.spec.seeds[0] if seed is None else seed}"
        whose = f"{rule} of {len(self.spec.seeds)} seeds" if rule else whose
        title = (
            f"{self.spec.algorithm} on {self.spec.dataset}, {whose}, after step {self.step:,}, "
            f"{counted(episodes, 'fresh episode')} (draw {number})"
        )
        words = "the mean logged action of similar states" if fallback == PRACTICE else fallback
        return caution_table(title, found, f"{words}")

    def last_metrics(self) -> Table:
        """Return the last row of metrics: mean, lowest and highest over the seeds."""
        steps = self.metrics["step"]
        if not len(steps):
            return Table("no metrics yet", ())
        last = {name: values[-1] for name, values in self.metrics.items() if name != "step"}
        before = steps[-2] if len(steps) > 1 else 0
        return metrics_table(f"means over steps {before + 1:,} to {steps[-1]:,}", last)

    def _title(self, when: str, of_stopped: str = "without {}, which stopped") -> str:
        spec, stopped = self.spec, sorted(map(int, self.about.get("stopped", {})))
        without = f" ({of_stopped.format(listed(stopped))})" if stopped else ""
        return f"{spec.algorithm} on {spec.dataset}, seeds {listed(spec.seeds)}{without}, {when}"

    def _judge(self) -> contextlib.AbstractContextManager[Judge]:
        judge = returns.evaluator(self.spec.dataset, self.spec.task)
        if judge is None:
            raise ValueError(
                f"{self.spec.dataset!r} is a log without a task to evaluate policies on"
            )
        if isinstance(judge, HostJudge):
            return contextlib.closing(judge)
        return contextlib.nullcontext(judge)

    def frame(self) -> dict[str, np.ndarray]:
        """Return columns "seed", "step", "quantity" and "value", for `pandas.DataFrame`.

        Quantities are the metrics, and for each policy "actor_sampled/return" (mean over episodes)
        and the task's measures.
        """
        rows = [
            (seed, step, name, float(value))
            for name, steps, values in self._quantities()
            for step, of_seeds in zip(steps, values, strict=True)
            for seed, value in zip(self.spec.seeds, of_seeds, strict=True)
        ]
        kinds = {"seed": np.int64, "step": np.int64, "quantity": np.str_, "value": np.float64}
        return {
            name: np.asarray([row[place] for row in rows], kind)
            for place, (name, kind) in enumerate(kinds.items())
        }

    def _quantities(self) -> Iterator[tuple[str, Any, Any]]:
        for name, values in self.metrics.items():
            if name != "step":
                yield name, self.metrics["step"], values
        for name, evaluation in self.evaluations.policies.items():
            yield f"{name}/return", self.evaluations.steps, np.mean(evaluation.returns, axis=-1)
            for measure, measured in evaluation.measures.items():
                yield f"{name}/{measure}", self.evaluations.steps, measured


def _one_line(text: str) -> str:
    line = printable(text)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def _spread(values: np.ndarray) -> str:
    """Return the mean and the standard deviation over the seeds that did not stop."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if known.size < 2:
        return f"{known[0]:.4g}" if known.size else "unknown"
    spread = f"{known.std(ddof=1):.3g} (standard deviation of {known.size} seeds)"
    return f"{known.mean():.4g} ± {spread}"


def summary_of(logs: Sequence[LoadedLog]) -> Coverage | None:
    """Return the summary of what was learned from; None of several logs, or if there is none."""
    if len(logs) != 1:
        return None
    learned = logs[0].learned
    if learned not in _SUMMARIES:
        try:
            _SUMMARIES[learned] = summarise_states(learned)
        except ValueError:
            _SUMMARIES[learned] = None
    return _SUMMARIES[learned]


_SUMMARIES: weakref.WeakKeyDictionary[Dataset, Coverage | None] = weakref.WeakKeyDictionary()
"""Summaries of logs that are in memory: the runs of a sweep share one."""


class MetricColumns:
    """Metrics by name, collected from rows in which the seeds of a step follow each other."""

    def __init__(self, seeds: int, rows: Iterable[MetricsRow] = ()) -> None:
        self._seeds = seeds
        self._values: dict[str, array] = {"step": array("q")}
        self.add(rows)

    def add(self, rows: Iterable[MetricsRow]) -> None:
        """Append rows."""
        for row in rows:
            for name, value in row.items():
                if name != "seed":
                    self._values.setdefault(name, array("d")).append(value)

    @property
    def names(self) -> list[str]:
        """Names of the metrics; empty before the first row."""
        return [name for name in self._values if name != "step"]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return "step" of shape (steps,), and each metric of shape (steps, seeds)."""
        columns = {
            name: np.array(one).reshape(-1, self._seeds) for name, one in self._values.items()
        }
        return {**columns, "step": columns["step"][:, 0]}


def load(folder: str | Path) -> Run:
    """Load the run in a folder. No data are read and nothing is trained.

    Examples:
        >>> import tempfile, fat2thin
        >>> options = {"steps": 2, "task": "none", "hidden": (4,)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = fat2thin.train("bc", "treatment/quadratic@5", out=folder, **options)
        ...     fat2thin.load(folder).spec == run.spec
        True
    """
    here = RunFolder(Path(folder))
    about = here.about()
    if about["status"] == RUNNING:
        raise NoRunError(
            f"the run in {folder} is not finished: `fat2thin show` shows its progress; repeat the "
            "command that started it to resume it"
        )
    spec, problem, scales = identity_of(here.path / RUN, about)
    # Only shapes: no array is made before the sizes of the files are checked.
    shapes = shapes_of(spec, problem, scales)
    files.check_tree_size(here.path / STATE, shapes.states)
    # After the sizes: a hostile number of columns would make as many names.
    try:
        columns = columns_of(about, problem)
        if spec.limits is not None:
            box = problem.action_low, problem.action_high
            limits = spec.limits.bind(columns.observation, columns.action, *box)
            problem = dataclasses.replace(problem, limits=limits)
    except ValueError as error:
        raise DamagedError(f"{here.path / RUN} cannot be used: {error}") from error
    kept = here.kept_snapshots(spec.snapshots)
    of_policies = len(kept) * files.tree_size(shapes.policies)
    needed = files.tree_size((shapes.jobs, shapes.states)) + of_policies
    refuse_too_large(here.path / RUN, "spec.config, spec.seeds and spec.snapshots", needed)
    steps, policies = here.evaluations(len(spec.seeds))
    return Run(
        spec=spec,
        step=about["step"],
        metrics=MetricColumns(len(spec.seeds), here.metrics_rows(spec.seeds)).arrays(),
        evaluations=Evaluations(tuple(steps), policies),
        folder=here.path,
        about=about,
        program=make_program(spec, problem),
        jobs=jobs_of(spec, scales),
        states=acting(here.state(shapes.states)),
        snapshots={step: here.snapshot(step, shapes.policies) for step in kept},
    )
