"""What the pictures of a value show: calibration of the density, and where the gain comes from."""

import dataclasses
from typing import Any

import numpy as np

from fat2thin.evaluation.estimators.gains import gains
from fat2thin.evaluation.value_rows import Judged, Question, bases_of, in_double_precision

BINS = 20
PARTS = 5
SHOWN = 6
"""Columns of which the gain is shown, those where it differs most."""


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How often logged actions lie at each level of the estimated density of one action.

    Levels are uniform on (0, 1) if the density is right, so that all shares are equal.
    """

    action: str
    shares: tuple[float, ...]
    error: float
    """The largest difference to the uniform distribution function."""


@dataclasses.dataclass(frozen=True)
class GainByColumn:
    """The gain over practice, by fifths of the logged steps in the order of one column."""

    column: str
    ends: tuple[float, ...]
    """Values of the column between the parts, and its smallest and largest."""
    gain: tuple[float, ...]
    """Discounted gain per episode in the steps of each part; the parts add up to the whole."""


_of_gains = in_double_precision(gains, "discount")


def calibration(question: Question) -> tuple[Calibration, ...]:
    """Return the calibration of each action's density; empty if none was estimated."""
    found = question.estimated
    if found is None:
        return ()
    logged = np.asarray(question.padded.episodes.here) > 0
    columns = question.padded.dataset.action_columns
    return tuple(
        _calibrated(column.label, np.asarray(found.level)[logged, place])
        for place, column in enumerate(columns)
    )


def _calibrated(name: str, levels: np.ndarray) -> Calibration:
    counts, _ = np.histogram(levels, BINS, (0.0, 1.0))
    ordered = np.sort(levels)
    uniform = (np.arange(len(levels)) + 0.5) / len(levels)
    shares = tuple(map(float, counts / len(levels)))
    return Calibration(name, shares, float(np.max(np.abs(ordered - uniform))))


def gain_by_column(question: Question, judged: Judged) -> tuple[GainByColumn, ...]:
    """Return where the gain of a policy comes from; empty if its estimate is refused."""
    if judged.row.refused is not None:
        return ()
    padded = question.padded
    found = _of_gains(
        padded.episodes, judged.actions, bases_of(padded), question.bounds,
        discount=padded.dataset.discount,
    )  # fmt: skip
    step = padded.place[:, 1]
    counted = step < question.horizon
    gain = found[padded.place[counted, 0], step[counted]]
    seen = np.asarray(padded.dataset.observation, np.float64)[counted]
    episodes = int(question.known.sum())
    columns = padded.dataset.observation_columns
    parts = [
        _by_parts(column.label, seen[:, place], gain / episodes)
        for place, column in enumerate(columns)
        if np.ptp(seen[:, place]) > 0
    ]
    parts.sort(key=lambda one: -float(np.ptp(one.gain)))
    return tuple(parts[:SHOWN])


def _by_parts(name: str, values: np.ndarray, gain: np.ndarray) -> GainByColumn:
    ends = np.unique(np.quantile(values, np.linspace(0.0, 1.0, PARTS + 1)))
    part = np.clip(np.searchsorted(ends, values, side="right") - 1, 0, len(ends) - 2)
    sums: Any = np.bincount(part, gain, minlength=len(ends) - 1)
    return GainByColumn(name, tuple(map(float, ends)), tuple(map(float, sums)))
