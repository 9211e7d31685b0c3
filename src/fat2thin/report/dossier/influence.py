"""Which columns matter most: how far the band moves when one column alone changes."""

import dataclasses

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fat2thin.report.dossier.subject import ROUNDING, Subject
from fat2thin.tables import Table

STATES = 200  # logged states in which columns are changed
LEVELS = np.linspace(0.05, 0.95, 9)
"""Quantiles of the logged values that a column is set to: not its extremes."""
_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Influence:
    """How far one column alone moves the band, averaged over logged states."""

    highest: Float[ndarray, "observation action"]
    """Movement of the largest possible action, in its unit."""
    centre: Float[ndarray, "observation action"]
    """Movement of the centre of the band."""
    order: ndarray
    """Columns, those that move the band most first."""

    def most(self, count: int) -> list[int]:
        """Return the columns that move the band most."""
        return self.order[:count].tolist()

    def varied(self, subject: Subject) -> list[int]:
        """Return the columns that vary in the log, those that move the band most first."""
        return [place for place in self.order.tolist() if np.ptp(subject.ranges[place]) > 0]

    def table(self, subject: Subject) -> Table:
        """Return a table of the columns that move the band most."""
        policy = subject.policy
        rows = tuple(
            {"column": policy.observation_columns[place].label}
            | {
                f"{kind} of {action.label} moves by": float(values[place, number])
                for number, action in enumerate(policy.action_columns)
                for kind, values in (("highest", self.highest), ("centre", self.centre))
            }
            for place in self.most(_SHOWN)
        )
        notes = [
            f"mean over {min(STATES, subject.judged.rows)} judged states of the distance between "
            "the largest and the smallest value, when this column alone takes its logged "
            "quantiles from 5 % to 95 %"
        ]
        left = len(policy.observation_columns) - len(rows)
        notes += [f"{left} more columns move it less"] if left > 0 else []
        return Table("columns that move the band", rows, tuple(notes))


def measure_influence(subject: Subject) -> Influence:
    """Return how far each column moves the band. Combinations may be ones that nobody had."""
    policy, log = subject.policy, subject.judged
    rows = np.unique(np.linspace(0, log.rows - 1, min(STATES, log.rows)).astype(int))
    states = np.asarray(log.observation[rows], np.float32)
    every = np.asarray(subject.sample.observation[:], np.float32)
    box = np.asarray(policy.low, np.float64), np.asarray(policy.high, np.float64)
    highest, centre = [], []
    for column in range(states.shape[1]):
        values = np.quantile(every[:, column], LEVELS, method="nearest").astype(np.float32)
        changed = np.repeat(states[None], len(values), axis=0)
        changed[:, :, column] = values[:, None]
        low, high = (
            np.clip(np.asarray(end, np.float64), *box) for end in policy.support(changed, None)
        )
        highest.append(_mean(np.ptp(high, axis=0)))
        centre.append(_mean(np.ptp((low + high) / 2.0, axis=0)))
    width = box[1] - box[0]
    moved = [np.where(np.abs(one) > ROUNDING * width, one, 0.0) for one in (highest, centre)]
    share = ((moved[0] + moved[1]) / width).max(axis=1)
    return Influence(moved[0], moved[1], np.argsort(-share, kind="stable"))


def _mean(moved: Float[ndarray, "states action"]) -> Float[ndarray, " action"]:
    """Return the mean over the states in which limits leave an action at every value."""
    known = np.isfinite(moved)
    return np.where(known, moved, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
