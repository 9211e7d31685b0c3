"""The value of a policy from a log alone, beside logged practice, with intervals and refusals.

`value(policy, log)` returns a `PolicyValue`. Its fields, which the page and the dossier rely on:

* `rows`: a tuple of `ValueRow`, the policy first: `name`; `kind` ("policy", "seed", "practice",
  "constant" or "run"); `estimate`, `low`, `high`; `difference` to practice on the same episodes,
  `difference_low`, `difference_high`, and `difference_bound`, its one-sided lower bound;
  `estimator`; `refused`, the reason or None; `action` of a constant. Numbers of a refused row, and
  the difference of practice to itself, are None.
* `log`, `log_sha256`, `steps`, `episodes`: the episodes that it is about, after those that the
  policy has seen were left out; `seen_episodes`, how many these were.
* `horizon`, `discount`, `reward_unit`, `allowed`: the range of values that the rewards allow.
* `confidence`; `interval`: "approximate: …"; `guarantee`: a bound that is guaranteed, or None.
* `estimator`, `assumption`: of the policy's row; `answerable`, `verdict`: whether the log can
  answer, and what it says.
* `effective_sample_size`, `surviving_episodes`: of the policy's importance weights, per step;
  `marginal_sample_size`, of the marginal weights, in rows. Empty where there are none.
* `estimates`: what every estimator says about the policy, as `ValueRow`s.
* `notes`: sentences.

`to_json()` has all of this, without nan. Values are Σ γ^t r_t over the horizon from the first
states of the episodes, in the log's own units, and never outside `allowed`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy import ndarray

from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import episode_lengths
from fat2thin.evaluation import refusal
from fat2thin.evaluation.estimators.episodes import Actions, value_bounds
from fat2thin.evaluation.estimators.estimates import Estimates, draw_bases, estimates
from fat2thin.evaluation.estimators.intervals import bootstrap
from fat2thin.evaluation.estimators.practice import practice_scores
from fat2thin.evaluation.padding import Padded, actions_of, constant_actions, pad
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table

PRACTICE, CONSTANT = "practice", "best constant action"
ORDER = ("marginal", "doubly_robust", "importance", "fitted_q")
"""Estimators, the preferred one first; a row has the first that is not refused."""
ESTIMATORS = {
    "marginal": "marginalised importance sampling with a fitted Q",
    "doubly_robust": "weighted doubly robust",
    "importance": "weighted per-decision importance sampling",
    "fitted_q": "fitted Q evaluation",
    "returns": "mean return of the logged episodes",
}
ASSUMPTIONS = {
    "marginal": "the observation holds all that the logged decisions were based on, what follows "
    "depends on it and the action alone, and a small network fits Q or the weights",
    "doubly_robust": "the observation holds all that the logged decisions were based on, and the "
    "density of the logged actions is right or a small network fits Q",
    "importance": "the observation holds all that the logged decisions were based on, and the "
    "density of the logged actions is right",
    "fitted_q": "the observation holds all that the logged decisions were based on, what follows "
    "depends on it and the action alone, and a small network fits Q",
    "returns": "later episodes are like those of the log",
}
APPROXIMATE = "approximate: studentised bootstrap over episodes"
CANDIDATES = 12
"""Logged actions that are tried as constants."""
MOST_UNITS = 128
ROWS_PER_FEATURE = 10
_SEED = 0


@dataclasses.dataclass(frozen=True)
class ValueRow:
    """One line of the table; the module's docstring lists the fields."""

    name: str
    kind: str
    estimator: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    difference_bound: float | None = None
    refused: str | None = None
    action: tuple[float, ...] | None = None


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
    guarantee: dict[str, Any] | None
    estimator: str
    assumption: str
    answerable: bool
    verdict: str
    effective_sample_size: tuple[float, ...]
    surviving_episodes: tuple[int, ...]
    marginal_sample_size: tuple[float, ...]
    estimates: tuple[ValueRow, ...]
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
        return {
            name: [dataclasses.asdict(row) for row in one] if name in ("rows", "estimates")
            else list(one) if isinstance(one, tuple) else one
            for name, one in ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        }  # fmt: skip


class Question(NamedTuple):
    """What is asked of a log: the same for every row of a table."""

    padded: Padded
    horizon: int
    bounds: Any
    allowed: tuple[float, float]
    practice: ndarray
    """Scores of the episodes."""
    log_behaviour: ndarray | None
    confidence: float
    cut: float
    """Share of the episodes that were cut before the horizon."""


def value(
    policy: Policy, log: Dataset, *, against: Mapping[str, Policy] | None = None,
    horizon: int | None = None, reward_range: tuple[float, float] | None = None,
    confidence: float = 0.95, constant: bool = True,
) -> PolicyValue:  # fmt: skip
    """Return the value of a policy on a log that it has not seen.

    Args:
        policy: A policy on raw observations, such as `run.policy()`.
        log: Episodes that the policy has not learned from.
        against: Other policies, by name, one more row each.
        horizon: Steps that are counted; by default those of the longest episode.
        reward_range: The lowest and the highest reward that are possible; by default those of the
            log.
        confidence: Of the intervals and of the one-sided bound.
        constant: Whether the best constant action has a row.
    """
    question = _ask(log, horizon, reward_range, confidence)
    rows, own = _judge(question, "policy", "policy", actions_of(policy, question.padded))
    table = [rows[0], _practice_row(question)]
    if constant:
        table.append(_best_constant(question))
    for name, other in (against or {}).items():
        table.append(_judge(question, name, "run", actions_of(other, question.padded))[0][0])
    return _report(question, tuple(table), tuple(rows[1:]), own)


def _ask(
    log: Dataset, horizon: int | None, reward_range: tuple[float, float] | None, confidence: float
) -> Question:
    lengths = episode_lengths(log)
    longest = int(lengths.max())
    horizon = longest if horizon is None else horizon
    if not 1 <= horizon <= longest:
        raise ValueError(
            f"horizon must be from 1 to {longest}, the longest episode of {log.name}; got {horizon}"
        )
    observed = float(log.reward.min()), float(log.reward.max())
    low, high = observed if reward_range is None else reward_range
    if not low <= observed[0] or not observed[1] <= high:
        raise ValueError(
            f"the rewards of {log.name} are between {observed[0]:g} and {observed[1]:g}, outside "
            f"the range [{low:g}, {high:g}] that was given"
        )
    ends_early = bool(log.continuation.min() < 1)
    bounds = np.asarray(value_bounds(low, high, log.discount, horizon, ends_early))
    padded = pad(log)
    last = np.append(log.episode_start[1:], log.rows) - 1
    cut = float(np.mean((lengths < horizon) & (np.asarray(log.continuation[last]) > 0)))
    behaviour = None
    if log.propensity is not None:
        behaviour = padded.pad(np.log(np.asarray(log.propensity, np.float64)))
    scores = _of_practice(padded.episodes, _bases(padded).states, bounds, discount=log.discount)
    return Question(
        padded, horizon, bounds, (float(bounds[-1, 0]), float(bounds[-1, 1])),
        scores, behaviour, confidence, cut,
    )  # fmt: skip


def _bases(padded: Padded) -> Any:
    units = int(np.clip(padded.dataset.rows // ROWS_PER_FEATURE // 4, 16, MOST_UNITS))
    return draw_bases(jax.random.key(_SEED), padded.episodes, units)


def in_double_precision(function: Callable[..., Any], *static: str) -> Callable[..., Any]:
    """Return a compiled function that computes in float64, of arrays and static arguments by name.

    Columns of real logs are often nearly multiples of others, and float32 loses such systems.
    """
    compiled = jax.jit(function, static_argnames=static)

    def call(*arrays: Any, **settings: Any) -> Any:
        with jax.enable_x64(True):
            doubled = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), arrays)
            return jax.device_get(compiled(*doubled, **settings))

    return call


_of_practice = in_double_precision(practice_scores, "discount")
_of_policy = in_double_precision(estimates, "discount")
_intervals = in_double_precision(
    lambda scores, confidence: bootstrap(scores, jax.random.key(_SEED), confidence), "confidence"
)


def _judge(
    question: Question, name: str, kind: str, actions: Actions, **fields: Any
) -> tuple[list[ValueRow], Estimates]:
    """Return the row of a policy, one row per estimator, and the estimates."""
    padded = question.padded
    found = _of_policy(
        padded.episodes, actions, question.log_behaviour, _bases(padded).both, question.bounds,
        discount=padded.dataset.discount,
    )  # fmt: skip
    rows = [
        _row(question, name, kind, estimator, getattr(found, estimator), found, fields)
        for estimator in ORDER
        if getattr(found, estimator) is not None
    ]
    best = next((row for row in rows if row.refused is None), rows[0])
    return [best, *rows], found


def _row(
    question: Question, name: str, kind: str, estimator: str, found: Any, every: Estimates,
    fields: Mapping[str, Any],
) -> ValueRow:  # fmt: skip
    known = np.asarray(question.padded.episodes.is_episode) > 0
    scores = np.asarray(found.scores)[known]
    evidence = refusal.Evidence(
        estimate=float(np.mean(scores)),
        allowed=question.allowed,
        episodes=int(known.sum()),
        effective=tuple(map(float, getattr(found, "effective", ()))),
        surviving=tuple(map(float, getattr(found, "surviving", ()))),
        clipped=float(every.fitted_q.clipped),
        cut=question.cut,
    )
    refused = refusal.reason(estimator, evidence)
    if refused is not None:
        return ValueRow(name, kind, estimator, refused=refused, **fields)
    return ValueRow(
        name, kind, estimator, **_numbers(question, scores, question.practice[known]), **fields
    )


def _numbers(question: Question, scores: ndarray, practice: ndarray | None) -> dict[str, Any]:
    """Return the numbers of a row: never outside what rewards allow."""
    both = np.stack([scores, scores if practice is None else scores - practice])
    found = _intervals(both, confidence=question.confidence)
    low, high = question.allowed
    ends = dict(zip(("estimate", "low", "high"), (x[0] for x in found[:3]), strict=True))
    numbers = {key: float(np.clip(end, low, high)) for key, end in ends.items()}
    if practice is None:
        return numbers
    names = ("difference", "difference_low", "difference_high", "difference_bound")
    most = high - low
    of_difference = {
        key: float(np.clip(x[1], -most, most)) for key, x in zip(names, found, strict=True)
    }
    return numbers | of_difference


def _practice_row(question: Question) -> ValueRow:
    known = np.asarray(question.padded.episodes.is_episode) > 0
    numbers = _numbers(question, question.practice[known], None)
    return ValueRow(PRACTICE, "practice", "returns", **numbers)


def _best_constant(question: Question) -> ValueRow:
    """Return the row of the logged action that is worth most as a constant."""
    actions = np.unique(np.asarray(question.padded.dataset.action, np.float64), axis=0)
    spread = np.linspace(0, len(actions) - 1, CANDIDATES).round().astype(int)
    rows = []
    for action in actions[np.unique(spread)]:
        of_action = constant_actions(action, question.padded)
        fields = {"action": tuple(map(float, action))}
        rows.append(_judge(question, CONSTANT, "constant", of_action, **fields)[0][0])
    known = [row for row in rows if row.estimate is not None]
    return max(known, key=lambda row: row.estimate or 0.0) if known else rows[0]


def _report(
    question: Question, rows: tuple[ValueRow, ...], each: tuple[ValueRow, ...], own: Estimates
) -> PolicyValue:
    log, policy = question.padded.dataset, rows[0]
    importance = own.importance
    return PolicyValue(
        rows=rows,
        log=log.name,
        log_sha256=log.sha256,
        steps=log.rows,
        episodes=log.episode_start.size,
        seen_episodes=0,
        horizon=question.horizon,
        discount=log.discount,
        reward_unit="",
        allowed=question.allowed,
        confidence=question.confidence,
        interval=APPROXIMATE,
        guarantee=None,
        estimator=policy.estimator,
        assumption=ASSUMPTIONS[policy.estimator],
        answerable=policy.refused is None,
        verdict=_verdict(policy, question),
        effective_sample_size=() if importance is None else _numbers_of(importance.effective),
        surviving_episodes=()
        if importance is None
        else tuple(int(one) for one in importance.surviving),
        marginal_sample_size=_numbers_of(own.marginal.effective),
        estimates=each,
        notes=_notes(question, policy),
    )


def _numbers_of(array: Any) -> tuple[float, ...]:
    return tuple(map(float, array))


def _verdict(policy: ValueRow, question: Question) -> str:
    sure = f"{100 * question.confidence:g} %"
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


def _notes(question: Question, policy: ValueRow) -> tuple[str, ...]:
    low, high = question.allowed
    notes = [
        f"estimator: {ESTIMATORS[policy.estimator]}. Assumption: {ASSUMPTIONS[policy.estimator]}",
        f'intervals: {100 * question.confidence:g} %, {APPROXIMATE}; "at least" is the one-sided '
        "lower bound of the difference to practice on the same episodes",
        f"rewards allow values from {low:.4g} to {high:.4g}",
    ]
    if question.cut:
        notes.append(
            f"{100 * question.cut:.3g} % of the episodes were cut before step {question.horizon}; "
            "for practice, a fitted value stands for their remaining steps"
        )
    return tuple(notes)
