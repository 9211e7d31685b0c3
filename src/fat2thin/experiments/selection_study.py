"""How well signals of a log alone choose among checkpoints and settings.

FtTPO is trained with a fifth of each log held out, over several settings, and judged on the way. A
signal that is worth following ranks checkpoints and settings as their true returns do, and what it
chooses is not far behind the best.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from fat2thin.evaluation.signals import PREFIX
from fat2thin.evaluation.statistics import Interval, mean, stratified_interval
from fat2thin.evaluation.table import Table
from fat2thin.experiments import outcomes
from fat2thin.experiments.plan import Planned
from fat2thin.experiments.presets import REWARDS, Reproduction
from fat2thin.experiments.sweep import words
from fat2thin.training import Run, make_spec

HOLDOUT = 0.2
SIZES = (25, 50, 200, 1000)
"""Trajectories of a treatment log."""
EVALUATIONS, ROBOT_EVALUATIONS = 6, 4
EPISODES = 4
"""Times as many as an evaluation of the scale has: checkpoints are close to each other."""
TREATMENT_STEPS = 6_000
TREATMENT_GRID: dict[str, tuple[Any, ...]] = {
    "temperature": (0.1, 0.35, 1.0),
    "hidden": ((16, 16), (64, 64), (256, 256)),
    "learning_rate": (3e-4, 1e-3),
    "weight_decay": (0.0, 3.0),
}
ROBOTS = ("halfcheetah-medium-expert", "hopper-medium-replay", "walker2d-medium")
ROBOT_GRID: dict[str, tuple[Any, ...]] = {
    "temperature": (0.1, 1.0),
    "learning_rate": (3e-4, 1e-3),
    "weight_decay": (0.0, 0.1),
}
SIGNS = {
    "held_out_value": 1.0,
    "held_out_value_unseen": 1.0,
    "held_out_td_error": -1.0,
    "held_out_log_likelihood": 1.0,
    "held_out_inside": 1.0,
    "held_out_calibration": 1.0,
    "held_out_spread": -1.0,
}
"""Which way each signal should point."""
LAST, RANDOM = "the last one", "any one"
"""What to compare choosing with: no choice, and a choice by lot."""


class Candidates(NamedTuple):
    """What there is to choose from, for one seed on one data set."""

    truth: np.ndarray
    """Mean return (on a robot, D4RL's score), shape (settings, checkpoints)."""
    signals: dict[str, np.ndarray]
    """Signals of the same shape, larger is better."""


class Quality(NamedTuple):
    """How well a choice was made."""

    correlation: float
    """Spearman's, with the truth; nan where one of the two does not vary."""
    regret: float
    """What the best would have had besides."""


def plan(asked: Reproduction) -> list[Planned]:
    """The runs of the study."""
    steps = asked.steps or min(TREATMENT_STEPS, asked.scale.treatment_steps)
    treatment = [
        (f"treatment/{reward}@{size}", f"treatment-{reward}-{size}", setting)
        for reward in REWARDS
        for size in SIZES
        for setting in settings(TREATMENT_GRID)
    ]
    robots = [
        (asked.robot_data(name), name, setting)
        for name in ROBOTS
        for setting in settings(ROBOT_GRID)
    ]
    sizes = {} if asked.scale.hidden is None else {"hidden": asked.scale.hidden}
    planned = [
        _planned(
            dataset, folder, setting, steps, asked.seeds or asked.scale.treatment_seeds,
            EPISODES * asked.scale.treatment_episodes, EVALUATIONS, reward_scale="deviation",
        )
        for dataset, folder, setting in treatment
        if not sizes or setting["hidden"] == TREATMENT_GRID["hidden"][0]
    ]  # fmt: skip
    robot_steps = asked.steps or asked.scale.robot_steps
    return planned + [
        _planned(
            dataset, folder, {**setting, **sizes}, robot_steps, min(2, asked.scale.robot_seeds),
            asked.scale.robot_episodes, ROBOT_EVALUATIONS,
        )
        for dataset, folder, setting in robots
    ]  # fmt: skip


def settings(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _planned(
    dataset: str, folder: str, setting: Mapping[str, Any], steps: int, seeds: int, episodes: int,
    evaluations: int, **options: Any,
) -> Planned:  # fmt: skip
    every = max(1, steps // evaluations)
    spec = make_spec(
        "fttpo", dataset, steps=steps, seeds=seeds, settings=setting, holdout=HOLDOUT,
        evaluate_every=every, episodes=episodes, log_every=every, data_needed=False, **options,
    )  # fmt: skip
    return Planned(f"selection/{folder}/{words(setting)}", spec)


def candidates(runs: Mapping[str, Run]) -> dict[str, list[Candidates]]:
    """By data set, a seed each; the untrained policy is no candidate."""
    by_dataset: dict[str, list[Run]] = {}
    for name, run in runs.items():
        by_dataset.setdefault(name.split("/")[1], []).append(run)
    return {
        dataset: [_of_seed(several, place) for place in range(len(several[0].spec.seeds))]
        for dataset, several in by_dataset.items()
    }


def _of_seed(runs: Sequence[Run], place: int) -> Candidates:
    steps = runs[0].spec.evaluation_steps[1:]
    truth = np.full((len(runs), len(steps)), np.nan)
    found = {name: np.full(truth.shape, np.nan) for name in SIGNS}
    for number, run in enumerate(runs):
        # A run of which every seed stopped has fewer rows than the others.
        if str(run.spec.seeds[place]) in run.about.get("stopped", {}):
            continue
        truth[number] = outcomes.scored(run, "actor_sampled")[1:, place].mean(axis=-1)
        rows = np.searchsorted(run.metrics["step"], steps)
        for name, sign in SIGNS.items():
            found[name][number] = sign * run.metrics[name][rows, place]
    return Candidates(truth, found)


def among_checkpoints(one: Candidates) -> dict[str, Quality]:
    """Choosing among the checkpoints of each setting, the mean over settings that did not stop."""
    one = _not_stopped(one)
    found = {
        name: _mean([_quality(t, s) for t, s in zip(one.truth, signal, strict=True)])
        for name, signal in one.signals.items()
    }
    best = one.truth.max(axis=1)
    return found | {
        LAST: Quality(np.nan, _known_mean(best - one.truth[:, -1])),
        RANDOM: Quality(0.0, _known_mean(best - one.truth.mean(axis=1))),
    }


def among_settings(one: Candidates) -> dict[str, Quality]:
    """Choosing among the settings after the last update; nobody would take one that stopped."""
    one = _not_stopped(one)
    truth = one.truth[:, -1]
    found = {name: _quality(truth, signal[:, -1]) for name, signal in one.signals.items()}
    return found | {RANDOM: Quality(0.0, _known_mean(truth.max(initial=-np.inf) - truth))}


def _not_stopped(one: Candidates) -> Candidates:
    going = np.isfinite(one.truth).all(axis=1)
    return Candidates(one.truth[going], {name: of[going] for name, of in one.signals.items()})


def _quality(truth: np.ndarray, signal: np.ndarray) -> Quality:
    """A signal that says nothing of some candidates takes one of the others; of all, any one.

    So it does among those that it likes equally well.
    """
    known = np.isfinite(signal)
    best = truth.max(initial=-np.inf)
    if not known.any():
        return Quality(np.nan, _known_mean(best - truth))
    seen, signal = truth[known], signal[known]
    varies = np.ptp(seen) > 0 and np.ptp(signal) > 0
    correlation = float(spearmanr(seen, signal).statistic) if varies else np.nan
    return Quality(correlation, float(best - seen[signal == signal.max()].mean()))


def _mean(several: Sequence[Quality]) -> Quality:
    correlations, regrets = np.asarray(several, np.float64).reshape(-1, 2).T
    return Quality(_known_mean(correlations), _known_mean(regrets))


def _known_mean(values: np.ndarray) -> float:
    """The mean of what is a number, nan where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else np.nan


WAYS = {"checkpoints": among_checkpoints, "settings": among_settings}
"""What is chosen among, and how that is measured."""
Scores = dict[str, dict[str, dict[str, list[Quality]]]]
"""By what is chosen among, by data set and by signal: a seed each."""


def scores(found: Mapping[str, Sequence[Candidates]]) -> Scores:
    """Every signal's quality."""
    result: Scores = {}
    for way, measure in WAYS.items():
        for dataset, seeds in found.items():
            for one in map(measure, seeds):
                for name, quality in one.items():
                    of = result.setdefault(way, {}).setdefault(dataset, {})
                    of.setdefault(name, []).append(quality)
    return result


def interval(scored: Scores, way: str, datasets: Sequence[str], name: str, field: str) -> Interval:
    """A mean over data sets and seeds with its 95 % interval, seeds drawn anew in each data set."""
    values = {
        dataset: [getattr(one, field) for one in scored[way][dataset][name]]
        for dataset in datasets
        if name in scored[way][dataset]
    }
    known = {dataset: np.asarray(of)[~np.isnan(of)] for dataset, of in values.items()}
    known = {dataset: of for dataset, of in known.items() if len(of)}
    return stratified_interval(known, mean) if known else Interval(np.nan, np.nan, np.nan)


def groups(datasets: Sequence[str]) -> dict[str, list[str]]:
    """Data sets that a table takes together."""
    sizes = {"small logs (25, 50)": ("-25", "-50"), "larger (200, 1,000)": ("-200", "-1000")}
    found = {
        title: [name for name in datasets if name.startswith("treatment") and name.endswith(ends)]
        for title, ends in sizes.items()
    }
    found["robots"] = [name for name in datasets if not name.startswith("treatment")]
    return {title: names for title, names in found.items() if names}


def tables(scored: Scores) -> list[Table]:
    """A table each way of choosing and group of data sets, the least regret first."""
    made = []
    for way in WAYS:
        for title, names in groups([*scored[way]]).items():
            rows = [_row(scored, way, names, signal) for signal in scored[way][names[0]]]
            made.append(
                Table(
                    title=f"choosing among {way}, {title}: rank correlation with the true return, "
                    "and regret (95 % intervals over seeds)",
                    rows=tuple(sorted(rows, key=_regret_or_last)),
                )
            )
    return made


def _regret_or_last(row: Mapping[str, Any]) -> float:
    return np.inf if np.isnan(row["regret"]) else row["regret"]


def _row(scored: Scores, way: str, names: Sequence[str], signal: str) -> dict[str, Any]:
    correlation = interval(scored, way, names, signal, "correlation")
    regret = interval(scored, way, names, signal, "regret")
    return {
        "signal": signal.removeprefix(PREFIX),
        "rank_correlation": correlation.value,
        "low": correlation.low,
        "high": correlation.high,
        "regret": regret.value,
        "regret_low": regret.low,
        "regret_high": regret.high,
    }
