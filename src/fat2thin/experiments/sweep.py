"""Sweeps: select the best of a grid of settings on some seeds, and report it on others.

Selection seeds are never reported, and report seeds never select. A result includes the number of
environment steps that the selection used.
"""

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fat2thin import data
from fat2thin.atomic_files import write
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.predictability import is_noisy
from fat2thin.evaluation.held_out import NOT_ESTIMABLE, preference
from fat2thin.evaluation.returns import NO_TASK, evaluator
from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.experiments import comparison, plan
from fat2thin.experiments.plan import PlannedRun, PlanProgress
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import counted
from fat2thin.training import OtherRunError, Run, RunSpec, make_spec

POLICY = "actor_sampled"  # the policy whose returns select
BY_RETURNS = {
    "area": "mean return over all evaluations (area under the curve, as in the paper)",
    "final": "mean return of the last evaluation",
}
BY_LOG = {"offline": "estimate from the held-out part of the log, see docs/guides/small_logs.md"}
HELD_OUT = 0.2
_CRITERIA = {**BY_RETURNS, **BY_LOG}
MOST_SETTINGS = 10_000
RESULT = "sweep.json"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid of settings, the seeds that select and report, and the selection criterion."""

    base: RunSpec
    """The run specification without the settings of the grid; its seeds select."""
    grid: Mapping[str, tuple[Any, ...]]
    """Values by setting; every combination is tried."""
    report_seeds: tuple[int, ...]
    """Seeds on which the selected setting is trained and reported."""
    select: str = "area"
    """Selection criterion: "area", "final" or "offline"."""
    given: Mapping[str, Any] | None = None
    """Settings given explicitly, which every run keeps; None means all settings of `base`. Others,
    from `base.settings_from`, are dropped where a value of the grid leaves them without effect."""

    def __post_init__(self) -> None:
        if self.select not in _CRITERIA:
            known = "; ".join(f"{name}: {meaning}" for name, meaning in _CRITERIA.items())
            raise ValueError(f"select must be one of {known}; got {self.select!r}")
        if both := sorted({*self.base.seeds} & {*self.report_seeds}):
            raise ValueError(
                f"seeds {listed(both)} would both select the setting and report it: choose "
                "other report seeds"
            )
        if not self.grid or not all(self.grid.values()):
            raise ValueError("a sweep needs a grid: settings with at least one value each")
        if math.prod(map(len, self.grid.values())) > MOST_SETTINGS:
            raise ValueError(f"the grid has more than {MOST_SETTINGS:,} settings: use fewer values")

    @property
    def settings(self) -> list[dict[str, Any]]:
        """All combinations of the values of the grid."""
        return combinations(self.grid)

    def spec(self, setting: Mapping[str, Any]) -> RunSpec:
        """Return the run specification of a setting; raise an error for an invalid setting."""
        options = {**vars(self.base)}
        config = vars(options.pop("config"))
        given = config if self.given is None else self.given
        return make_spec(**options, settings={**given, **setting})

    def selection(self, name: str) -> list[PlannedRun]:
        """Return the selection runs, in the folder of this name."""
        # Selection by the log: a part of it is held out, and nothing is evaluated on a task.
        by_log = {"holdout": self.base.holdout or HELD_OUT, "task": NO_TASK}
        changes: dict[str, Any] = by_log if self.select in BY_LOG else {}
        return [
            PlannedRun(
                f"{name}/selection/{words(one)}", dataclasses.replace(self.spec(one), **changes)
            )
            for one in self.settings
        ]

    def report(self, name: str, setting: Mapping[str, Any]) -> PlannedRun:
        """Return the run of the selected setting on the report seeds."""
        spec = dataclasses.replace(self.spec(setting), seeds=self.report_seeds)
        return PlannedRun(f"{name}/report", spec)


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values of a grid, the last setting varying fastest.

    Examples:
        >>> combinations({"temperature": (1.0, 0.5), "hidden": ((64, 64),)})
        [{'temperature': 1.0, 'hidden': (64, 64)}, {'temperature': 0.5, 'hidden': (64, 64)}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


class SweepChoice(NamedTuple):
    """Scores of all settings on the selection seeds, and the selected setting."""

    setting: dict[str, Any]
    """The selected setting."""
    scores: dict[str, Interval]
    """Scores by setting, written as text; larger is better."""
    environment_steps: int | None
    """Steps of the evaluations that selected; None if the task does not measure episode lengths."""
    all_environment_steps: int | None
    """Steps of all evaluations of the selection runs, including proposals and centres."""


class SweepResult(NamedTuple):
    """The result of a sweep."""

    sweep: Sweep
    """The sweep that ran."""
    choice: SweepChoice
    """Scores and the selected setting."""
    run: Run
    """The selected setting, trained on the report seeds."""

    def table(self) -> Table:
        """Return a table with one row per setting, the best first, and the selection's cost."""
        base, choice = self.sweep.base, self.choice
        ordered = sorted(choice.scores.items(), key=lambda item: -_known(item[1].value))
        missing = any(math.isnan(score.value) for score in choice.scores.values())
        never = [f"- (never selected): {_why_none(self.sweep.select)}"] if missing else []
        return Table(
            title=f"{base.algorithm} on {base.dataset}, {counted(len(choice.scores), 'setting')}, "
            f"seeds {listed(base.seeds)}, {counted(base.steps, 'step')}: "
            f"{_CRITERIA[self.sweep.select]}",
            rows=tuple(
                {"setting": name, "score": score.value, "low": score.low, "high": score.high}
                for name, score in ordered
            ),
            notes=(
                *never,
                f"selected: {words(choice.setting)}",
                budget(choice),
                f"reported on seeds {listed(self.sweep.report_seeds)}, not used for selection",
            ),
        )


def budget(choice: SweepChoice) -> str:
    """Return the cost of the selection as text."""
    used, every = choice.environment_steps, choice.all_environment_steps
    if every is None:
        spent = "unknown, the task does not measure the length of episodes"
    elif not every:
        spent = "no steps in the environment"
    else:
        spent = f"{used:,} steps in the environment ({every:,} with those of proposals and centres)"
    return f"cost of selection: {spent}"


def run_sweeps(
    sweeps: Mapping[str, Sweep], root: str | Path, progress: PlanProgress | None = None,
    carry_out: plan.CarryOut = plan.carry_out,
) -> dict[str, SweepResult]:  # fmt: skip
    """Run sweeps, each in a folder of its name below `root`; they share compiled programs.

    All selections run first, then all reports. Finished runs are reused. `carry_out` computes the
    runs; `experiments.clusters.driver.on(options)` does so on a cluster.
    """
    root = Path(root)
    for sweep in sweeps.values():
        base = sweep.base
        if sweep.select in BY_RETURNS and evaluator(base.dataset, base.task) is None:
            raise ValueError(
                f"{base.dataset!r} is a log without a task to evaluate policies on: select by the "
                f"log, with select={' or '.join(map(repr, BY_LOG))}"
            )
    selections = {name: sweep.selection(name) for name, sweep in sweeps.items()}
    carry_out([one for several in selections.values() for one in several], root, progress)
    choices = {}
    for name, sweep in sweeps.items():
        runs = plan.load_runs(selections[name], root)
        _refuse_changed_log(sweep.base, runs)
        choices[name] = _choose(sweep, runs)
    reports = {name: sweep.report(name, choices[name].setting) for name, sweep in sweeps.items()}
    carry_out([*reports.values()], root, progress)
    final = plan.load_runs([*reports.values()], root)
    results = {}
    for name, sweep in sweeps.items():
        _refuse_changed_log(sweep.base, final)
        results[name] = SweepResult(sweep, choices[name], final[reports[name].name])
    for name, result in results.items():
        _write(root / name / RESULT, result)
    return results


def _refuse_changed_log(base: RunSpec, runs: Mapping[str, Run]) -> None:
    """Raise an error if the data file has changed since the runs learned from it."""
    if data.reader(base.dataset).one_a_seed:
        return
    now = [data.load(base.dataset).sha256]
    for name, run in runs.items():
        if run.spec.dataset == base.dataset and run.about["sha256"] != now:
            raise OtherRunError(
                f"{base.dataset} has changed since the run {name} learned from it: choose another "
                "folder, or remove this one"
            )


def _choose(sweep: Sweep, runs: Mapping[str, Run]) -> SweepChoice:
    """Select the setting with the largest mean score among those with a score for every seed."""
    score = _SCORES[sweep.select]
    of_settings = {name.rsplit("/", 1)[1]: score(run) for name, run in runs.items()}
    scores = {words(one): _interval(of_settings[words(one)]) for one in sweep.settings}
    best = max(sweep.settings, key=lambda one: _known(scores[words(one)].value))
    if math.isnan(scores[words(best)].value):
        raise ValueError(
            f"no setting of {sweep.base.algorithm} on {sweep.base.dataset} has a score: "
            f"{_why_none(sweep.select)}. Try other settings"
        )
    by_returns = sweep.select in BY_RETURNS
    used = plan.environment_steps(runs.values(), POLICY) if by_returns else 0
    return SweepChoice(best, scores, used, plan.environment_steps(runs.values()))


def log_scores(run: Run) -> np.ndarray:
    """Return the score of a run on the held-out part of its log, one per seed.

    It is nan for a seed that stopped or whose signal is not estimable.
    """
    stopped = comparison.stopped(run)
    if stopped.all():
        return np.full(len(stopped), np.nan)
    seed = run.spec.seeds[0] if data.reader(run.spec.dataset).one_a_seed else 0
    learned, _ = learned_and_held_out(data.load(run.spec.dataset, seed), run.spec.holdout, seed)
    signals = {name: jnp.asarray(values) for name, values in run.metrics.items()}
    by_row = np.asarray(preference(signals, is_noisy(learned)))
    if run.spec.select == "offline":
        # As in training: a value that is not finite is never selected.
        known = np.isfinite(by_row)
        best = np.max(by_row, axis=0, initial=-np.inf, where=known)
        score = np.where(known.any(axis=0), best, np.nan)
    else:
        score = by_row[-1]
    return np.where(stopped, np.nan, score)


_SCORES: dict[str, Callable[[Run], np.ndarray]] = {
    "area": functools.partial(comparison.area, policy=POLICY),
    "final": functools.partial(comparison.final, policy=POLICY),
    "offline": log_scores,
}


def _why_none(select: str) -> str:
    """Return why a setting may have no score."""
    return "a seed stopped" + f", or its value is {NOT_ESTIMABLE}" * (select in BY_LOG)


def _interval(scores: np.ndarray) -> Interval:
    if np.isnan(scores).any():
        return Interval(math.nan, math.nan, math.nan)
    return seed_interval(scores[:, None])


def _known(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def words(setting: Mapping[str, Any]) -> str:
    """Return a setting as text, which is also the name of its folder."""
    return ",".join(f"{name}={_word(value)}" for name, value in setting.items())


def _word(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_grid(entries: Sequence[str], values: Any) -> dict[str, tuple[Any, ...]]:
    """Return `["temperature=1,0.5", ...]` as values by name; `values` parses a single value."""
    grid: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals or not text:
            raise ValueError(f"a grid is written NAME=VALUE,VALUE,..., got {entry!r}")
        if name in grid:
            raise ValueError(f"the grid names {name} twice: list all its values once")
        read = values(text)
        if isinstance(read, str):
            read = tuple(map(values, text.split(",")))
        several = read if isinstance(read, tuple | list) else (read,)
        grid[name] = tuple(tuple(one) if isinstance(one, list) else one for one in several)
        if len(set(grid[name])) < len(grid[name]):
            raise ValueError(f"the grid has a value of {name} twice: {text}")
    return grid


def _write(path: Path, result: SweepResult) -> None:
    sweep, choice = result.sweep, result.choice
    known = {
        "algorithm": sweep.base.algorithm,
        "dataset": sweep.base.dataset,
        "steps": sweep.base.steps,
        "grid": {name: list(values) for name, values in sweep.grid.items()},
        "select": sweep.select,
        "selection_seeds": list(sweep.base.seeds),
        "report_seeds": list(sweep.report_seeds),
        "chosen": choice.setting,
        "scores": {
            name: {end: None if math.isnan(x) else x for end, x in score._asdict().items()}
            for name, score in choice.scores.items()
        },
        "environment_steps": choice.environment_steps,
        "all_environment_steps": choice.all_environment_steps,
    }
    write(path, json.dumps(known, indent=2).encode())
