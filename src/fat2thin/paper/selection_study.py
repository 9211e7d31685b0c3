"""How well signals of a log alone choose among checkpoints and settings.

FtTPO is trained with a fifth of each log held out, over several settings, and judged on the way. A
signal that is worth following ranks checkpoints and settings as their true returns do, and what it
chooses is not far behind the best.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fat2thin.evaluation.held_out import PREFIX
from fat2thin.experiments import comparison as outcomes
from fat2thin.experiments.plan import Planned
from fat2thin.experiments.sweep import words
from fat2thin.paper.presets import REWARDS, Reproduction
from fat2thin.paper.signal_quality import WAYS, Candidates, Scores, interval
from fat2thin.tables import Table
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
