"""What a dossier is about: a run, its policy, and the logged episodes on which it is judged."""

import dataclasses
import decimal
import functools
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from fat2thin import data
from fat2thin.data import Dataset
from fat2thin.data.operations import learned_and_held_out, subsample
from fat2thin.data.row_arrays import blocks
from fat2thin.evaluation.caution import decisions_on
from fat2thin.evaluation.held_out import check_fits
from fat2thin.evaluation.limited import states_of
from fat2thin.evaluation.unseen import unseen_episodes
from fat2thin.policies.decision import Decision
from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Run

MOST_ROWS = 100_000
"""Rows on which a policy is judged or that are described; of a longer log, whole episodes are
drawn."""


ROUNDING = 1e-6
"""Share of the action box that is rounding of float32."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run and the logs that belong to it."""

    run: Run
    policy: Policy
    """The policy of all seeds, with its limits and its referrals."""
    log: Dataset
    """The whole log that was given or that the run learned from."""
    judged: Dataset
    """The episodes on which the policy is judged."""
    unseen: bool
    """Whether no update saw these episodes."""
    whose: str
    """What the judged episodes are, in words."""
    given: str | None = None
    """The name of the log, if another one than the run's was given."""
    remarks: tuple[str, ...] = ()
    """What a reader must know about the judged episodes."""

    @property
    def name(self) -> str:
        """The log that the run learned from, without its folder."""
        return Path(self.run.spec.dataset).name

    @functools.cached_property
    def sample(self) -> Dataset:
        """The log, or at most about `MOST_ROWS` rows of it, in whole episodes."""
        return _at_most(self.log)

    @functools.cached_property
    def bands(self) -> "Bands":
        """What the policy can do in the judged states."""
        return bands_of(self.policy, self.judged)

    @property
    def seeds(self) -> int:
        """Number of seeds that did not stop."""
        return len(self.run.spec.seeds) - len(self.run.about.get("stopped", {}))

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """The logged range of every column, rounded outward to three digits.

        The exact ends are values of single patients.
        """
        low, high = data.dataset.extremes(self.log.observation)
        return tuple(
            (outward(a, -1), outward(b, 1))
            for a, b in zip(low.tolist(), high.tolist(), strict=True)
        )


@dataclasses.dataclass(frozen=True)
class Bands:
    """What a policy can do in the states of a log, and what was done there."""

    decision: Decision
    low: Float[ndarray, "rows action"]
    """Lowest possible action; nan where the state is referred."""
    high: Float[ndarray, "rows action"]
    logged: Float[ndarray, "rows action"]
    rounding: Float[ndarray, " action"]
    """Distance from its band at which an action still counts as inside: logs have many doses
    exactly at an end of the action box, where a band may begin."""

    @property
    def acts(self) -> Bool[ndarray, " rows"]:
        """The states that are not referred."""
        return ~self.decision.referred

    @property
    def inside(self) -> Bool[ndarray, "rows action"]:
        """Whether the policy could have taken the logged action; False where it refers."""
        with np.errstate(invalid="ignore"):
            low, high = self.low - self.rounding, self.high + self.rounding
            return (low <= self.logged) & (self.logged <= high)


def bands_of(policy: Policy, log: Dataset) -> Bands:
    """Return decisions and bands in all states of a log, with the logged last actions."""
    decision = decisions_on(policy, log)
    parts = []
    for rows in blocks(log.observation):
        seen = states_of(log, rows)
        ends = policy.support(seen.observation, seen.last)
        parts.append([np.asarray(values, np.float64) for values in (*ends, seen.action)])
    low, high, logged = map(np.concatenate, zip(*parts, strict=True))
    box = np.asarray(policy.low, np.float64), np.asarray(policy.high, np.float64)
    # A policy without a band may have infinite support; actions are clipped to the box.
    low, high = np.clip(low, *box), np.clip(high, *box)
    low[decision.referred], high[decision.referred] = np.nan, np.nan
    return Bands(decision, low, high, logged, ROUNDING * (box[1] - box[0]))


def open_subject(run: Run, log: str | None = None, limits: Any = None) -> Subject:
    """Return what the dossier of a run is about; a ValueError says what is missing.

    Without `log` it is judged on the run's held-out episodes.
    """
    name = run.spec.dataset if log is None else log
    if data.reader(run.spec.dataset).one_a_seed:
        raise ValueError(
            f"a dossier is about one policy from one log, and {run.spec.dataset} draws a log per "
            f"seed. Train on one file: `fat2thin data make {run.spec.dataset} log.npz`, then "
            f"`fat2thin train {run.spec.algorithm} log.npz --out RUN`"
        )
    run = run if limits is None else run.with_limits(limits)
    policy = run.policy()
    if policy.referral.coverage is None:
        raise ValueError(f"a dossier needs a summary of the log: {policy.referral.without}")
    dataset = _load(run, name, given=log is not None)
    same = [dataset.sha256] == [*run.about["sha256"]]
    if not same and log is None:
        raise ValueError(
            f"{name} has changed since the run learned from it, so what it was judged on is not "
            "known: restore the file, or judge the run on another log with --log"
        )
    check_fits(run, dataset)
    remarks: tuple[str, ...] = ()
    if same:
        learned, held_out = learned_and_held_out(dataset, run.spec.holdout, seed=0)
        judged, unseen = (learned, False) if held_out is None else (held_out, True)
        whose = "the held-out episodes of its log" if unseen else "the log that it learned from"
    else:
        fresh = unseen_episodes([run], dataset)
        judged, unseen, remarks = fresh.dataset, fresh.unseen, fresh.notes
        whose = f"the episodes of {Path(name).name}"
    if judged.rows > MOST_ROWS:
        judged = _at_most(judged)
        whose = f"{judged.rows:,} rows of {whose}, in whole episodes"
    given = None if log is None else name
    return Subject(run, policy, dataset, judged, unseen, whose, given, remarks)


def _at_most(log: Dataset) -> Dataset:
    few = log.rows <= MOST_ROWS
    return log if few else subsample(log, share=MOST_ROWS / log.rows, seed=0)


def _load(run: Run, name: str, given: bool) -> Dataset:
    if not given and run.data is not None:
        return run.data
    try:
        return data.load(name)
    except OSError as error:
        way = "" if given else "; give the log, or another one to judge it on, with --log"
        raise ValueError(f"{name} cannot be read: {error.strerror or error}{way}") from error


def outward(value: float, side: int, digits: int = 3) -> float:
    """Return a number of few digits that is not below (side 1) or not above (−1) the value."""
    if not value:
        return 0.0
    exact = decimal.Decimal(value)
    last = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounding = decimal.ROUND_CEILING if side > 0 else decimal.ROUND_FLOOR
    return float(exact.quantize(last, rounding))
