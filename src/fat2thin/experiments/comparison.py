"""Tables that compare runs: one row per method, one table per data set."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from fat2thin.data.formats.d4rl import normalised_score, robot
from fat2thin.evaluation import statistics
from fat2thin.tables import Table, listed
from fat2thin.terminal_text import counted
from fat2thin.training import Run

Named = TypeVar("Named")
_MEASURES = ("dose_variance", "dose_limit_rate")
WINDOW = 11
"""Evaluations averaged for the paper's final score; with few evaluations it is the last one."""


def stopped(run: Run) -> np.ndarray:
    """Return which seeds of a run stopped, shape (seeds,)."""
    return np.asarray([str(seed) in run.about.get("stopped", {}) for seed in run.spec.seeds])


def scored(run: Run, policy: str) -> np.ndarray:
    """Return the returns, shape (evaluations, seeds, episodes); D4RL scores for robot data sets.

    A seed that stopped is nan in all evaluations, including those before it stopped.
    """
    returns = np.array(run.evaluations[policy].returns, np.float64)
    returns[:, stopped(run)] = np.nan
    return normalised_score(run.spec.dataset, returns) if robot(run.spec.dataset) else returns


def final(run: Run, policy: str) -> np.ndarray:
    """Return the final score per seed; with many evaluations, the mean of the last `WINDOW`."""
    returns = scored(run, policy)
    return statistics.final_score(returns, WINDOW if len(returns) > 2 * WINDOW else 1)


def area(run: Run, policy: str) -> np.ndarray:
    """Return the mean over the learning curve per seed."""
    return statistics.area_under_curve(run.evaluations.steps, scored(run, policy))


def known_mean(values: np.ndarray) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = np.asarray(values)[~np.isnan(values)]
    return float(np.mean(known)) if known.size else math.nan


def methods_table(dataset: str, runs: Mapping[str, Run]) -> Table:
    """Return a table with one row per method, the best final mean first.

    Columns: the final score of the policy that acts ("mean", "low", "high": 95 % bootstrap over
    seeds; "iqm"), the same policy at its centre, the area under its curve, the proposal if there is
    one, and on the treatment task the variance of doses and the share above the dose limit.
    """
    rows = sorted(
        (_row(label, run) for label, run in runs.items()),
        key=lambda row: -row["mean"] if not math.isnan(row["mean"]) else math.inf,
    )
    any_run = next(iter(runs.values()))
    unit = "score" if robot(any_run.spec.dataset) else "return"
    return Table(
        title=f"{dataset}: final {unit} after {counted(any_run.step, 'update')}, "
        f"seeds {listed(any_run.spec.seeds)}, {counted(any_run.spec.episodes, 'episode')} per seed",
        rows=tuple(rows),
        notes=tuple(
            f"{label}: without stopped seed{'s' * (len(gone) > 1)} {listed(sorted(map(int, gone)))}"
            for label, run in runs.items()
            if (gone := run.about.get("stopped"))
        ),
    )


def _row(label: str, run: Run) -> dict[str, Any]:
    seeds = final(run, "actor_sampled")
    value, low, high = statistics.seed_interval(seeds[:, None])
    known = seeds[~np.isnan(seeds)]
    kept = run.evaluations["actor_sampled"].measures
    return {
        "method": label,
        "mean": value,
        "low": low,
        "high": high,
        "iqm": float(statistics.interquartile_mean(known)) if known.size else math.nan,
        "centre": _mean(run, "actor_centre"),
        "area": known_mean(area(run, "actor_sampled")),
        "proposal": _mean(run, "proposal_sampled"),
        **{name: known_mean(np.asarray(kept[name][-1])) for name in _MEASURES if name in kept},
    }


def _mean(run: Run | None, policy: str) -> float:
    if run is None or policy not in run.evaluations.policies:
        return math.nan
    return known_mean(final(run, policy))


def scores_table(title: str, runs: Mapping[str, Mapping[str, Run]]) -> Table:
    """Return final mean scores of the policy that acts: a row per data set, a column per method."""
    labels = list(dict.fromkeys(label for of_set in runs.values() for label in of_set))
    rows = [
        {"data set": name, **{label: _mean(of.get(label), "actor_sampled") for label in labels}}
        for name, of in runs.items()
    ]
    means = {label: float(np.mean([row[label] for row in rows])) for label in labels}
    return Table(title, (*rows, {"data set": "mean", **means}))


def by_dataset(named: Mapping[str, Named]) -> dict[str, dict[str, Named]]:
    """Return the values of folders named kind/dataset/method, by data set and method."""
    found: dict[str, dict[str, Named]] = {}
    for name, value in named.items():
        _, dataset, method = name.split("/")
        found.setdefault(dataset, {})[method] = value
    return found
