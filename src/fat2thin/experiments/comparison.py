"""Tables of many runs: a row a method, a table a data set; also as Markdown."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fat2thin.data.formats.d4rl import normalised_score, robot
from fat2thin.evaluation.statistics import (
    area_under_curve,
    final_score,
    interquartile_mean,
    seed_interval,
)
from fat2thin.tables import Table, listed
from fat2thin.training import Run

_MEASURES = ("dose_variance", "dose_limit_rate")


WINDOW = 11
"""Evaluations that the paper's final score is the mean of; with few evaluations it is the last."""


def scored(run: Run, policy: str) -> np.ndarray:
    """Returns of shape (evaluations, seeds, episodes); on a robot D4RL's scores of them.

    A seed that stopped has none, not even from before it did.
    """
    returns = np.array(run.evaluations[policy].returns, np.float64)
    stopped = run.about.get("stopped", {})
    returns[:, [str(seed) in stopped for seed in run.spec.seeds]] = np.nan
    return normalised_score(run.spec.dataset, returns) if robot(run.spec.dataset) else returns


def final(run: Run, policy: str) -> np.ndarray:
    """A seed's score at the end: over a trailing window where there are enough evaluations."""
    returns = scored(run, policy)
    return final_score(returns, WINDOW if len(returns) > 2 * WINDOW else 1)


def methods_table(dataset: str, runs: Mapping[str, Run]) -> Table:
    """A row a method, the best final mean first.

    Columns: the final score of the policy that acts ("mean", "low", "high": 95 % bootstrap over
    seeds; "iqm"), the same policy at its centre, the area under its curve, the proposal where there
    is one, and on the treatment task the variance of doses and the share above the dose limit.
    """
    rows = sorted(
        (_row(label, run) for label, run in runs.items()),
        key=lambda row: -row["mean"] if not math.isnan(row["mean"]) else math.inf,
    )
    any_run = next(iter(runs.values()))
    unit = "score" if robot(any_run.spec.dataset) else "return"
    return Table(
        title=f"{dataset}: final {unit} after {any_run.step:,} updates, "
        f"seeds {listed(any_run.spec.seeds)}, {any_run.spec.episodes} episodes a seed",
        rows=tuple(rows),
        notes=_stopped(runs),
    )


def _row(label: str, run: Run) -> dict:
    seeds = final(run, "actor_sampled")
    interval = seed_interval(seeds[:, None])
    row = {
        "method": label,
        "mean": interval.value,
        "low": interval.low,
        "high": interval.high,
        "iqm": _iqm(seeds[~np.isnan(seeds)]),
        "centre": _mean(run, "actor_centre"),
        "area": _known_mean(area_under_curve(run.evaluations.steps, scored(run, "actor_sampled"))),
        "proposal": _mean(run, "proposal_sampled"),
    }
    measures = run.evaluations["actor_sampled"].measures
    return row | {
        name: _known_mean(np.asarray(measures[name][-1])) for name in _MEASURES if name in measures
    }


def _mean(run: Run, policy: str) -> float:
    if policy not in run.evaluations.policies:
        return math.nan
    return _known_mean(final(run, policy))


def _iqm(scores: np.ndarray) -> float:
    return float(interquartile_mean(scores)) if scores.size else math.nan


def _known_mean(values: np.ndarray) -> float:
    """The mean over seeds that did not stop, nan where there are none."""
    known = np.asarray(values)[~np.isnan(values)]
    return float(np.mean(known)) if known.size else math.nan


def _stopped(runs: Mapping[str, Run]) -> tuple[str, ...]:
    return tuple(
        f"{label}: without seeds {listed(sorted(map(int, run.about['stopped'])))}, which stopped"
        for label, run in runs.items()
        if run.about.get("stopped")
    )


def scores_table(title: str, runs: Mapping[str, Mapping[str, Run]]) -> Table:
    """A row a data set, a column a method: final mean scores of the policy that acts; the mean."""
    labels = list(dict.fromkeys(label for of_set in runs.values() for label in of_set))
    rows = [
        {"data set": name, **{label: _final(of_set, label) for label in labels}}
        for name, of_set in runs.items()
    ]
    means = {label: float(np.mean([row[label] for row in rows])) for label in labels}
    return Table(title, (*rows, {"data set": "mean", **means}))


def _final(runs: Mapping[str, Run], label: str) -> float:
    return _mean(runs[label], "actor_sampled") if label in runs else math.nan


def markdown(table: Table) -> str:
    """A table for documentation: intervals in brackets behind their value."""
    columns = [name for name in table.rows[0] if name not in ("low", "high")]
    head = [name.replace("_", " ") for name in columns]
    lines = [
        f"| {' | '.join(head)} |",
        f"|---|{'---:|' * (len(columns) - 1)}",
        *(f"| {' | '.join(_cell(row, name) for name in columns)} |" for row in table.rows),
    ]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([f"**{table.title}**", "", *lines, *(["", *notes] if notes else []), ""])


def _cell(row: Mapping, name: str) -> str:
    value = row.get(name, math.nan)
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return "–"
    interval = name in ("mean", "score") and not math.isnan(row.get("low", math.nan))
    text = (
        f"{_short(value)} [{_short(row['low'])}, {_short(row['high'])}]"
        if interval
        else _short(value)
    )
    return text.replace("-", "−")


def _short(value: float) -> str:
    return (
        f"{value:.1f}"
        if abs(value) >= 10.0
        else f"{value:.3g}"
        if abs(value) < 1.0
        else f"{value:.2f}"
    )


def by_dataset(names: Sequence[str], runs: Mapping[str, Run]) -> dict[str, dict[str, Run]]:
    """Runs of learning curves by data set and method, from the names of their folders."""
    found: dict[str, dict[str, Run]] = {}
    for name in names:
        _, dataset, label = name.split("/")
        found.setdefault(dataset, {})[label] = runs[name]
    return found
