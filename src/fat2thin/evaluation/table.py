"""Tables of evaluations and of metrics."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fat2thin.evaluation.held_out import NOT_ESTIMABLE, VALUE
from fat2thin.evaluation.returns import Evaluation, Reference
from fat2thin.evaluation.statistics import interquartile_mean, seed_interval
from fat2thin.tables import Table

_NORMAL_95 = 1.959964


def make_table(
    title: str, evaluations: Mapping[str, Evaluation], references: Mapping[str, Reference]
) -> Table:
    """Return a table with one row per evaluation, of shape (seeds, episodes), and per reference.

    Columns: "policy", "mean", "low", "high", "iqm" (interquartile mean over seeds), the measures.
    "low" and "high" are a 95 % interval: for policies the percentile bootstrap over seeds, for
    references the normal one from the standard error. Seeds whose returns are nan have stopped,
    and are left out.
    """
    rows = [_evaluation_row(name, evaluation) for name, evaluation in evaluations.items()]
    for name, reference in references.items():
        error = math.nan if reference.standard_error is None else reference.standard_error
        low, high = reference.mean - _NORMAL_95 * error, reference.mean + _NORMAL_95 * error
        found = {"mean": reference.mean, "low": low, "high": high, "iqm": math.nan}
        rows.append({"policy": name, **found, **reference.measures})
    notes = tuple(f"{name}: {reference.rule}" for name, reference in references.items())
    return Table(title, tuple(rows), notes)


def metrics_table(title: str, metrics: Mapping[str, np.ndarray]) -> Table:
    """Return a table of metrics of shape (seeds,): mean, lowest and highest over known seeds.

    A seed that stopped has no metrics. A note counts other seeds without a held-out value.
    """
    statistics: dict[str, Callable] = {"mean": np.mean, "lowest": np.min, "highest": np.max}
    rows = []
    for metric, values in metrics.items():
        known = values[~np.isnan(values)]
        known = known if len(known) else np.array([math.nan])
        found = {name: float(of(known)) for name, of in statistics.items()}
        rows.append({"metric": metric, **found})
    stopped = np.all([np.isnan(values) for values in metrics.values()], axis=0)
    lacking = np.isnan(metrics[VALUE]) & ~stopped if VALUE in metrics else np.zeros(0)
    note = f"{VALUE}: {NOT_ESTIMABLE}, {lacking.sum()} of {lacking.size} seeds"
    return Table(title, tuple(rows), (note,) if lacking.any() else ())


def _evaluation_row(name: str, evaluation: Evaluation) -> dict[str, Any]:
    returns = np.asarray(evaluation.returns, np.float64)
    scores = returns.mean(axis=-1)
    going = ~np.isnan(scores)
    interval = seed_interval(returns)
    return {
        "policy": name,
        "mean": interval.value,
        "low": interval.low,
        "high": interval.high,
        "iqm": float(interquartile_mean(scores[going])) if going.any() else math.nan,
        **{
            measure: float(np.mean(np.asarray(values)[going])) if going.any() else math.nan
            for measure, values in evaluation.measures.items()
        },
    }
