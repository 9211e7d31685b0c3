"""The value of a policy from a log alone, beside logged practice, with intervals and refusals.

`value(policy, log)` returns a `PolicyValue`. Its fields, which the page and the dossier rely on:

* `rows`: a tuple of `value_rows.ValueRow`, the policy first: `name`; `kind` ("policy", "seed",
  "practice", "constant" or "run"); `estimate`, `low`, `high`; `difference` to practice on the same
  episodes, `difference_low`, `difference_high`, and `difference_bound`, its one-sided lower bound;
  `estimator`; `refused`, the reason or None; `action` of a constant. Numbers of a refused row, and
  the difference of practice to itself, are None.
* `log`, `log_sha256`, `steps`, `episodes`: the episodes that it is about, after those that the
  policy has seen were left out; `seen_episodes`, how many these were.
* `horizon`, `discount`, `reward_unit`, `allowed`: the range of values that the rewards allow.
* `confidence`; `interval`: "approximate: …"; `guarantee`: `value_confidence.Guarantee` or None.
* `confounding`: `value_confidence.Confounding`, how much hidden confounding the gain survives.
* `estimator`, `assumption`: of the policy's row; `answerable`, `verdict`: whether the log can
  answer, and what it says.
* `effective_sample_size`, `surviving_episodes`: of the policy's importance weights, per step;
  `marginal_sample_size`, of the marginal weights; all in episodes. Empty where there are none.
* `estimates`: what every estimator says about the policy, as `ValueRow`s.
* `calibration`, `gain`: `value_pictures.Calibration` of the estimated density of each action, and
  `value_pictures.GainByColumn`, where the gain comes from. Empty where there is nothing to show.
* `notes`: sentences.

`to_json()` has all of this, without nan. Values are Σ γ^t r_t over the horizon from the first
states of the episodes, in the log's own units, and never outside `allowed`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset
from fat2thin.evaluation.held_out import FinishedRun
from fat2thin.evaluation.padding import SMOOTHED
from fat2thin.evaluation.unseen import Unseen, unseen_episodes
from fat2thin.evaluation.value_confidence import (
    NEEDED,
    Confounding,
    Guarantee,
    confounding,
    guarantee,
)
from fat2thin.evaluation.value_pictures import (
    Calibration,
    GainByColumn,
    calibration,
    gain_by_column,
)
from fat2thin.evaluation.value_rows import (
    Judged,
    Question,
    ValueRow,
    ask,
    constant_row,
    judge_policy,
    practice_row,
)
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table

ESTIMATORS = {
    "marginal": "marginalised importance sampling with a fitted Q",
    "doubly_robust": "weighted doubly robust",
    "importance": "weighted per-decision importance sampling",
    "returns": "mean return of the logged episodes",
}
ASSUMPTIONS = {
    "marginal": "the observation holds all that the logged decisions were based on, what follows "
    "depends on it and the action alone, and a small network fits Q or the weights",
    "doubly_robust": "the observation holds all that the logged decisions were based on, and the "
    "density of the logged actions is right or a small network fits Q",
    "importance": "the observation holds all that the logged decisions were based on, and the "
    "density of the logged actions is right",
    "returns": "later episodes are like those of the log",
}
APPROXIMATE = "approximate: bootstrap over the episodes and one more, as bad (or good) as possible"


@dataclasses.dataclass(frozen=True)
class PolicyValue:
    """The value of a policy, of practice and of others; the module's docstring lists the fields."""

    rows: tuple[ValueRow, ...]
    log: str
    log_sha256: str
    steps: int
    episodes: int
    seen_episodes: int
    horizon: int
    discount: float
    reward_unit: str
    allowed: tuple[float, float]
    confidence: float
    interval: str
    guarantee: Guarantee | None
    confounding: Confounding | None
    estimator: str
    assumption: str
    answerable: bool
    verdict: str
    effective_sample_size: tuple[float, ...]
    surviving_episodes: tuple[int, ...]
    marginal_sample_size: tuple[float, ...]
    estimates: tuple[ValueRow, ...]
    calibration: tuple[Calibration, ...]
    gain: tuple[GainByColumn, ...]
    notes: tuple[str, ...]

    @property
    def policy(self) -> ValueRow:
        """The row of the policy."""
        return self.rows[0]

    @property
    def practice(self) -> ValueRow:
        """The row of logged practice."""
        return next(row for row in self.rows if row.kind == "practice")

    @property
    def table(self) -> Table:
        """The table that is printed."""
        rows = [
            {"policy": row.name, "value": row.estimate, "low": row.low, "high": row.high}
            | {"minus practice": row.difference, "at least": row.difference_bound}
            | {"estimator": row.estimator.replace("_", " ")}
            for row in self.rows
        ]
        known = tuple({key: np.nan if cell is None else cell for key, cell in row.items()}
                      for row in rows)  # fmt: skip
        refused = [f"{row.name}: refused, {row.refused}" for row in self.rows if row.refused]
        return Table(self._title, known, (*refused, *self.notes, f"Verdict: {self.verdict}"))

    @property
    def _title(self) -> str:
        unit = f" {self.reward_unit}" if self.reward_unit else ""
        return (
            f"value{unit} over {self.horizon} steps, discount {self.discount:g}: "
            f"{self.episodes:,} episodes of {self.log}"
        )

    def __str__(self) -> str:
        """Return the table as text."""
        return str(self.table)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return self.table._repr_html_()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values that JSON can hold."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))
        return values


NOT_KNOWN = "whether the policy has learned from these episodes is not known"


def value(
    policy: Policy | FinishedRun, log: Dataset | None = None, *,
    against: Mapping[str, Policy | FinishedRun] | None = None, seeds: bool = False,
    horizon: int | None = None, reward_range: tuple[float, float] | None = None,
    confidence: float = 0.95, constant: bool = True,
) -> PolicyValue:  # fmt: skip
    """Return the value of a policy, or of all seeds of a run as one policy, from a log alone.

    Args:
        policy: A run, or a policy on raw observations such as `run.policy(seed=0)`.
        log: The log; by default the held-out episodes of the run. Episodes that a run has learned
            from are left out.
        against: Other runs or policies, by name, one more row each.
        seeds: Whether each seed of the run has a row.
        horizon: Steps that are counted; by default those of the longest episode.
        reward_range: The lowest and the highest reward that are possible; by default those of the
            log.
        confidence: Of the intervals and of the one-sided bound.
        constant: Whether the best constant action has a row.
    """
    subjects = {"policy": policy, **(against or {})}
    if len(subjects) != 1 + len(against or {}):
        raise ValueError("against has a policy named 'policy': give it another name")
    policies = {name: _policy_of(one) for name, one in subjects.items()}
    runs = [one for one in subjects.values() if not isinstance(one, Policy)]
    if isinstance(policy, Policy) and log is None:
        raise ValueError("a policy without its run needs a log; give the run, or a log")
    found = _episodes_of(runs, log, len(runs) == len(subjects))
    question = ask(found.dataset, horizon, reward_range, confidence)

    of_seeds = []
    if seeds and not isinstance(policy, Policy):
        of_seeds = [(f"seed {seed}", policy.policy(seed=seed)) for seed in policy.spec.seeds]
    # The log is read for every policy, which counts once, and its estimate counts as twice as much.
    cells = found.dataset.observation.size
    long_work.expect(cells * (3 * (len(policies) + len(of_seeds)) + 6 * constant))
    own = judge_policy(question, policies.pop("policy"), "policy", "policy")
    rows = [own.row]
    rows += [judge_policy(question, one, name, "seed").row for name, one in of_seeds]
    rows.append(practice_row(question))
    if constant:
        rows.append(constant_row(question))
        long_work.did(6 * cells)
    rows += [judge_policy(question, one, name, "run").row for name, one in policies.items()]
    bound = guarantee(question, own.estimates, found.unseen, reward_range is not None)
    return _report(question, tuple(rows), own, found, bound)


def _policy_of(one: Any) -> Policy:
    return one if isinstance(one, Policy) else one.policy()


def _episodes_of(runs: list[Any], log: Dataset | None, all_known: bool) -> Unseen:
    """Return the episodes that no run has learned from."""
    if not runs:
        assert log is not None
        return Unseen(log, 0, (NOT_KNOWN,), False)
    found = unseen_episodes(runs, log)
    if all_known:
        return found
    return found._replace(notes=(*found.notes, NOT_KNOWN), unseen=False)


def _report(
    question: Question, rows: tuple[ValueRow, ...], own: Judged, found: Unseen,
    bound: Guarantee | None,
) -> PolicyValue:  # fmt: skip
    log, policy = question.padded.dataset, own.row
    hidden = confounding(question, own.actions, policy)
    importance, marginal = own.estimates.importance, own.estimates.marginal
    return PolicyValue(
        rows=rows,
        log=log.name,
        log_sha256=log.sha256,
        steps=log.rows,
        episodes=log.episode_start.size,
        seen_episodes=found.seen_episodes,
        horizon=question.horizon,
        discount=log.discount,
        reward_unit="",
        allowed=question.allowed,
        confidence=question.confidence,
        interval=APPROXIMATE,
        guarantee=bound,
        confounding=hidden,
        estimator=policy.estimator,
        assumption=_assumption(question, policy),
        answerable=policy.refused is None,
        verdict=_verdict(policy, question.confidence),
        effective_sample_size=() if importance is None else _numbers_of(importance.effective),
        surviving_episodes=own.surviving,
        marginal_sample_size=() if marginal is None else _numbers_of(marginal.effective),
        estimates=own.every,
        calibration=calibration(question),
        gain=gain_by_column(question, own),
        notes=(*_notes(question, rows, bound, hidden), *found.notes),
    )


def _numbers_of(array: Any) -> tuple[float, ...]:
    return tuple(map(float, np.nan_to_num(array)))


def _assumption(question: Question, policy: ValueRow) -> str:
    """Return what the estimate assumes, and whether its densities were measured."""
    found = ASSUMPTIONS[policy.estimator]
    if question.has_densities or policy.estimator == "returns":
        return found
    return (
        f"{found}; the log has no densities of its actions, so they are estimated in two ways, "
        "and intervals hold the estimates with both"
    )


def _verdict(policy: ValueRow, confidence: float) -> str:
    sure = f"{100 * confidence:g} %"
    if policy.refused is not None:
        return f"the log cannot answer: {policy.refused}."
    assert policy.difference is not None and policy.difference_bound is not None
    if policy.difference_bound > 0:
        return (
            f"better than practice by {policy.difference:.4g}, by at least "
            f"{policy.difference_bound:.4g} with {sure} confidence."
        )
    assert policy.difference_high is not None
    if policy.difference_high < 0:
        return f"worse than practice by {-policy.difference:.4g}."
    return "the log does not show that the policy is better or worse than practice."


def _notes(
    question: Question, rows: Sequence[ValueRow], bound: Guarantee | None,
    hidden: Confounding | None,
) -> tuple[str, ...]:  # fmt: skip
    policy = rows[0]
    low, high = question.allowed
    notes = [
        f"estimator: {ESTIMATORS[policy.estimator]}. Assumption: {_assumption(question, policy)}",
        f'intervals: {100 * question.confidence:g} %, {APPROXIMATE}; "at least" is the one-sided '
        "lower bound of the difference to practice on the same episodes",
        f"rewards allow values from {low:.4g} to {high:.4g}",
    ]
    if bound is not None:
        notes.append(
            f"{bound.label}: at least {bound.value:.4g}, and at least {bound.difference:.4g} more "
            f"than practice, with {100 * question.confidence:g} % confidence"
        )
    else:
        notes.append(f"no guaranteed bound: it needs {NEEDED}")
    if hidden is not None and hidden.difference[0] > 0:
        notes.append(_of_confounding(hidden))
    notes += [_of_constant(question, row) for row in rows if row.action is not None]
    if question.cut:
        notes.append(
            f"{100 * question.cut:.3g} % of the episodes were cut before step {question.horizon}; "
            "for practice, a fitted value stands for their remaining steps"
        )
    return tuple(notes)


def _of_confounding(hidden: Confounding) -> str:
    """Return how much hidden confounding the gain survives, in words."""
    most = f"above {hidden.gammas[-1]:g}"
    gone, sure = (
        most if gamma is None else f"at {gamma:.3g}"
        for gamma in (hidden.vanishes, hidden.bound_vanishes)
    )
    shown = f", its lower bound {sure}" if hidden.bound[0] > 0 else ""
    return (
        "something unobserved may have made each logged action up to Γ times more or less likely: "
        f"the gain vanishes {gone}{shown} (Γ per step)"
    )


def _of_constant(question: Question, row: ValueRow) -> str:
    """Return which action a constant is, and how it was chosen, in words."""
    columns = zip(question.padded.dataset.action_columns, row.action or (), strict=True)
    parts = (f"{column.name} {number:.3g} {column.unit}".strip() for column, number in columns)
    return (
        f"{row.name}: {', '.join(parts)}, chosen on other episodes than it is valued on. A policy "
        f"with one action per state is valued with actions up to {SMOOTHED:g} standard deviations "
        "of the logged actions away from it"
    )
