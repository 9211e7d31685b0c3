"""How well signals choose among candidates whose true returns are known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from fat2thin.evaluation.statistics import Interval, mean, stratified_interval

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
