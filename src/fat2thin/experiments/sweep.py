"""Sweeps: try a grid of settings on some seeds, report the best on others, count the cost.

Selection seeds report nothing and reporting seeds choose nothing. A result includes the number of
environment steps that choosing took.
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
from fat2thin.training import OtherRunError, Run, RunSpec, make_spec

POLICY = "actor_sampled"  # whose returns choose: the policy that acts, as it acts
BY_RETURNS = {
    "area": "mean return over all evaluations (area under the curve, as in the paper)",
    "final": "mean return of the last evaluation",
}
BY_LOG = {"offline": "what the held-out part of the log says, see docs/guides/small_logs.md"}
HELD_OUT = 0.2
_CRITERIA = {**BY_RETURNS, **BY_LOG}
MOST_SETTINGS = 10_000
RESULT = "sweep.json"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is tried, on which seeds, how the best is chosen, and who reports."""

    base: RunSpec
    """Everything but the grid's settings; its seeds are those that choose."""
    grid: Mapping[str, tuple[Any, ...]]
    """Values by setting; every combination is tried."""
    report_seeds: tuple[int, ...]
    select: str = "area"
    given: Mapping[str, Any] | None = None
    """Settings that were given beside the grid; None is all those of the base. Others, which
    `base.settings_from` brings, are dropped where a value of the grid rules them out."""

    def __post_init__(self) -> None:
        if self.select not in _CRITERIA:
            known = "; ".join(f"{name}: {meaning}" for name, meaning in _CRITERIA.items())
            raise ValueError(f"select must be one of {known}; got {self.select!r}")
        if both := sorted({*self.base.seeds} & {*self.report_seeds}):
            raise ValueError(
                f"seeds {listed(both)} would choose the setting and report on it: a seed does "
                "one of both"
            )
        if not self.grid or not all(self.grid.values()):
            raise ValueError("a sweep wants a grid: settings with at least one value each")
        if math.prod(map(len, self.grid.values())) > MOST_SETTINGS:
            raise ValueError(
                f"the grid has more than {MOST_SETTINGS:,} settings: take fewer values"
            )

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the grid's values."""
        return combinations(self.grid)

    def spec(self, setting: Mapping[str, Any]) -> RunSpec:
        """The run that tries a setting; one that is no setting, or out of range, is an error."""
        options = {**vars(self.base)}
        config = vars(options.pop("config"))
        given = config if self.given is None else self.given
        return make_spec(**options, settings={**given, **setting})

    def selection(self, name: str) -> list[PlannedRun]:
        """The runs that choose, in the folder of this name."""
        # By the log: a part of it is held out, and no policy acts in any environment.
        by_log = {"holdout": self.base.holdout or HELD_OUT, "task": NO_TASK}
        changes: dict[str, Any] = by_log if self.select in BY_LOG else {}
        return [
            PlannedRun(
                f"{name}/selection/{words(one)}", dataclasses.replace(self.spec(one), **changes)
            )
            for one in self.settings
        ]

    def report(self, name: str, setting: Mapping[str, Any]) -> PlannedRun:
        """The run of the chosen setting on fresh seeds, with the options of the base."""
        spec = dataclasses.replace(self.spec(setting), seeds=self.report_seeds)
        return PlannedRun(f"{name}/report", spec)


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, the last setting varying fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


class SweepChoice(NamedTuple):
    """How the settings did on the seeds that choose, and which is taken."""

    setting: dict[str, Any]
    scores: dict[str, Interval]
    """By setting, in words; larger is better."""
    environment_steps: int | None
    """Of the returns that chose; None where the task does not say how long episodes are ..."""
    all_environment_steps: int | None
    """... and of all evaluations of these runs, those of proposals and centres too."""


class SweepResult(NamedTuple):
    """A sweep that is done."""

    sweep: Sweep
    choice: SweepChoice
    run: Run
    """The chosen setting on fresh seeds."""

    def table(self) -> Table:
        """A row a setting, the best first; below it what choosing cost."""
        base, choice = self.sweep.base, self.choice
        ordered = sorted(choice.scores.items(), key=lambda item: -_known(item[1].value))
        missing = any(math.isnan(score.value) for score in choice.scores.values())
        never = [f"- (never chosen): {_why_none(self.sweep.select)}"] if missing else []
        return Table(
            title=f"{base.algorithm} on {base.dataset}, {len(choice.scores)} settings, "
            f"seeds {listed(base.seeds)}, {base.steps:,} steps: {_CRITERIA[self.sweep.select]}",
            rows=tuple(
                {"setting": name, "score": score.value, "low": score.low, "high": score.high}
                for name, score in ordered
            ),
            notes=(
                *never,
                f"chosen: {words(choice.setting)}",
                budget(choice),
                f"reported on seeds {listed(self.sweep.report_seeds)}, which chose nothing",
            ),
        )


def budget(choice: SweepChoice) -> str:
    """What choosing cost, in words."""
    used, every = choice.environment_steps, choice.all_environment_steps
    if every is None:
        spent = "steps not known, the task does not measure the length of episodes"
    elif not every:
        spent = "no step in the environment"
    else:
        spent = f"{used:,} steps in the environment ({every:,} with those of proposals and centres)"
    return f"spent on choosing: {spent}"


def run_sweeps(
    sweeps: Mapping[str, Sweep], root: str | Path, progress: PlanProgress | None = None
) -> dict[str, SweepResult]:
    """Run all sweeps, each below `root` in the folder of its name; they share programs.

    First every selection, then every report. Finished runs are reused.
    """
    root = Path(root)
    for sweep in sweeps.values():
        base = sweep.base
        if sweep.select in BY_RETURNS and evaluator(base.dataset, base.task) is None:
            raise ValueError(
                f"{base.dataset!r} is a log without a task to judge policies on: choose by the "
                f"log, with select={' or '.join(map(repr, BY_LOG))}"
            )
    selections = {name: sweep.selection(name) for name, sweep in sweeps.items()}
    plan.carry_out([one for several in selections.values() for one in several], root, progress)
    choices = {}
    for name, sweep in sweeps.items():
        runs = plan.load_runs(selections[name], root)
        _refuse_changed_log(sweep.base, runs)
        choices[name] = _choose(sweep, runs)
    reports = {name: sweep.report(name, choices[name].setting) for name, sweep in sweeps.items()}
    plan.carry_out([*reports.values()], root, progress)
    final = plan.load_runs([*reports.values()], root)
    results = {}
    for name, sweep in sweeps.items():
        _refuse_changed_log(sweep.base, final)
        results[name] = SweepResult(sweep, choices[name], final[reports[name].name])
    for name, result in results.items():
        _write(root / name / RESULT, result)
    return results


def _refuse_changed_log(base: RunSpec, runs: Mapping[str, Run]) -> None:
    """Refuse runs of a file that has changed since; a log that is drawn for each seed cannot."""
    if data.reader(base.dataset).one_a_seed:
        return
    now = [data.load(base.dataset).sha256]
    for name, run in runs.items():
        if run.spec.dataset == base.dataset and run.about["sha256"] != now:
            raise OtherRunError(
                f"the run {name} learned from {base.dataset} when that had other contents: choose "
                "another folder, or remove this one"
            )


def _choose(sweep: Sweep, runs: Mapping[str, Run]) -> SweepChoice:
    """The setting with the largest mean score; one without a score for every seed never wins."""
    score = _SCORES[sweep.select]
    of_settings = {name.rsplit("/", 1)[1]: score(run) for name, run in runs.items()}
    scores = {words(one): _interval(of_settings[words(one)]) for one in sweep.settings}
    best = max(sweep.settings, key=lambda one: _known(scores[words(one)].value))
    if math.isnan(scores[words(best)].value):
        raise ValueError(
            f"no setting of {sweep.base.algorithm} on {sweep.base.dataset} has a score: "
            f"{_why_none(sweep.select)}. Take other settings"
        )
    by_returns = sweep.select in BY_RETURNS
    chose = plan.environment_steps(runs.values(), POLICY) if by_returns else 0
    return SweepChoice(best, scores, chose, plan.environment_steps(runs.values()))


def log_scores(run: Run) -> np.ndarray:
    """What the held-out part of the log says, one score per seed.

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
        # As in training: what is not a number is never selected.
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
    """Why a setting has no score."""
    return "a seed stopped" + f", or its value is {NOT_ESTIMABLE}" * (select in BY_LOG)


def _interval(scores: np.ndarray) -> Interval:
    if np.isnan(scores).any():
        return Interval(math.nan, math.nan, math.nan)
    return seed_interval(scores[:, None])


def _known(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def words(setting: Mapping[str, Any]) -> str:
    """A setting as a folder is called."""
    return ",".join(f"{name}={_word(value)}" for name, value in setting.items())


def _word(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_grid(entries: Sequence[str], values: Any) -> dict[str, tuple[Any, ...]]:
    """`["temperature=1,0.5", ...]` as values by name; `values` reads a text as a Python value."""
    grid: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        name, equals, text = entry.partition("=")
        if not equals or not text:
            raise ValueError(f"a grid is written NAME=VALUE,VALUE,..., got {entry!r}")
        if name in grid:
            raise ValueError(f"the grid names {name} twice: give all its values at once")
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
