"""The rows of a table of value: estimates, intervals and refusals on one log."""

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
from fat2thin.evaluation.estimators.constants import best_constant, constant_actions
from fat2thin.evaluation.estimators.episodes import FOLDS, Actions, value_bounds
from fat2thin.evaluation.estimators.estimates import Estimates, draw_bases, estimates
from fat2thin.evaluation.estimators.intervals import bootstrap
from fat2thin.evaluation.estimators.practice import practice_scores
from fat2thin.evaluation.padding import Padded, actions_of, pad
from fat2thin.policies.policy import Policy

PRACTICE, CONSTANT = "practice", "best constant action"
ORDER = ("marginal", "doubly_robust", "importance", "fitted_q")
"""Estimators, the preferred one first; a row has the first that is not refused."""
CANDIDATES = 12
"""Logged actions that are tried as constants."""
_TRIED = 0.05, 0.95  # quantiles between which they are, if there is one action dimension
MOST_UNITS = 128
ROWS_PER_UNIT = 40
_SEED = 0


@dataclasses.dataclass(frozen=True)
class ValueRow:
    """One line of a table of value; numbers of a refused row are None."""

    name: str
    kind: str
    """"policy", "seed", "practice", "constant" or "run"."""
    estimator: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    """To practice, on the same episodes; None for practice itself."""
    difference_low: float | None = None
    difference_high: float | None = None
    difference_bound: float | None = None
    """The one-sided lower bound of the difference."""
    refused: str | None = None
    """Why there is no estimate."""
    action: tuple[float, ...] | None = None
    """The action of a constant, in the units of the log."""


class Question(NamedTuple):
    """What is asked of a log: the same for every row of a table."""

    padded: Padded
    horizon: int
    bounds: Any
    allowed: tuple[float, float]
    """The range of values that rewards allow."""
    practice: ndarray
    """Scores of the episodes."""
    log_behaviour: ndarray | None
    confidence: float
    cut: float
    """Share of the episodes that were cut before the horizon."""


class Judged(NamedTuple):
    """A policy on a log."""

    row: ValueRow
    """By the preferred estimator that is not refused."""
    every: tuple[ValueRow, ...]
    """By every estimator."""
    estimates: Estimates


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
_of_constants = in_double_precision(best_constant, "discount")
_intervals = in_double_precision(
    lambda scores, confidence: bootstrap(scores, jax.random.key(_SEED), confidence), "confidence"
)


def ask(
    log: Dataset, horizon: int | None, reward_range: tuple[float, float] | None, confidence: float
) -> Question:
    """Return the question of the value on a log; `evaluation.value.value` has the arguments."""
    lengths = episode_lengths(log)
    longest = int(lengths.max())
    horizon = longest if horizon is None else horizon
    if not 1 <= horizon <= longest:
        raise ValueError(
            f"horizon must be from 1 to {longest}, the longest episode of {log.name}; got {horizon}"
        )
    if not 0.5 <= confidence < 1.0:
        raise ValueError(f"confidence must be from 0.5 to below 1, got {confidence}")
    observed = float(log.reward.min()), float(log.reward.max())
    low, high = observed if reward_range is None else reward_range
    if not low <= observed[0] or not observed[1] <= high:
        raise ValueError(
            f"the rewards of {log.name} are between {observed[0]:g} and {observed[1]:g}, outside "
            f"the range from {low:g} to {high:g} that was given"
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
    units = int(np.clip(padded.dataset.rows // ROWS_PER_UNIT, 16, MOST_UNITS))
    return draw_bases(jax.random.key(_SEED), padded.episodes, units)


def judge_policy(question: Question, policy: Policy, name: str, kind: str) -> Judged:
    """Return the rows of a policy."""
    return _judged(question, _estimates(question, actions_of(policy, question.padded)), name, kind)


def _estimates(question: Question, actions: Actions) -> Estimates:
    padded = question.padded
    return _of_policy(
        padded.episodes, actions, question.log_behaviour, _bases(padded).both, question.bounds,
        discount=padded.dataset.discount,
    )  # fmt: skip


def _judged(question: Question, found: Estimates, name: str, kind: str, **fields: Any) -> Judged:
    rows = tuple(
        _row(question, estimator, found, {"name": name, "kind": kind, **fields})
        for estimator in ORDER
        if getattr(found, estimator) is not None
    )
    best = next((row for row in rows if row.refused is None), rows[0])
    return Judged(best, rows, found)


def _row(
    question: Question, estimator: str, every: Estimates, fields: Mapping[str, Any]
) -> ValueRow:
    found = getattr(every, estimator)
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
        return ValueRow(estimator=estimator, refused=refused, **fields)
    numbers = _numbers(question, scores, question.practice[known])
    return ValueRow(estimator=estimator, **numbers, **fields)


def _numbers(question: Question, scores: ndarray, practice: ndarray | None) -> dict[str, Any]:
    """Return the numbers of a row: never outside what rewards allow."""
    both = np.stack([scores, scores if practice is None else scores - practice])
    found = _intervals(both, confidence=question.confidence)
    low, high = question.allowed
    ends = zip(("estimate", "low", "high"), found[:3], strict=True)
    numbers = {name: float(np.clip(end[0], low, high)) for name, end in ends}
    if practice is None:
        return numbers
    names = ("difference", "difference_low", "difference_high", "difference_bound")
    most = high - low
    return numbers | {
        name: float(np.clip(end[1], -most, most)) for name, end in zip(names, found, strict=True)
    }


def practice_row(question: Question) -> ValueRow:
    """Return the row of logged practice."""
    known = np.asarray(question.padded.episodes.is_episode) > 0
    numbers = _numbers(question, question.practice[known], None)
    return ValueRow(PRACTICE, "practice", "returns", **numbers)


def constant_row(question: Question) -> ValueRow:
    """Return the row of the best constant action: each fold's is chosen on the other folds."""
    padded = question.padded
    candidates = _candidates(np.asarray(padded.dataset.action, np.float64))
    placed = padded.standardise(candidates)
    choice = _of_constants(
        padded.episodes, placed, _bases(padded).both, question.bounds,
        discount=padded.dataset.discount,
    )  # fmt: skip
    fold = np.repeat(np.arange(FOLDS), len(padded.episodes.here) // FOLDS)
    of_episode = choice.of_fold[fold]
    joined: Any = None
    for place in np.unique(choice.of_fold):
        found = _estimates(question, constant_actions(placed[place], padded.episodes))
        joined = found if joined is None else _joined(joined, found, of_episode == place)
    action = tuple(map(float, candidates[choice.overall]))
    return _judged(question, joined, CONSTANT, "constant", action=action).row


def _joined(one: Estimates, other: Estimates, of_other: ndarray) -> Estimates:
    """Return estimates with some episodes' scores from another policy, and the worse evidence."""

    def chosen(name: str, ours: Any, theirs: Any) -> Any:
        if name == "scores":
            return np.where(of_other, theirs, ours)
        return np.maximum(ours, theirs) if name == "clipped" else np.minimum(ours, theirs)

    parts = {
        part: type(ours)(**{name: chosen(name, *both) for name, *both in _fields(ours, theirs)})
        for part in ("fitted_q", "marginal")
        for ours, theirs in [(getattr(one, part), getattr(other, part))]
    }
    return one._replace(**parts)


def _fields(ours: Any, theirs: Any) -> list[tuple[Any, ...]]:
    return [(name, getattr(ours, name), getattr(theirs, name)) for name in ours._fields]


def _candidates(actions: ndarray) -> ndarray:
    """Return logged actions to try: quantiles of one dimension, else some of all rows."""
    if actions.shape[1] == 1:
        levels = np.linspace(*_TRIED, CANDIDATES)
        found = np.quantile(actions, levels, axis=0, method="nearest")
    else:
        found = np.random.default_rng(_SEED).permutation(actions)[:CANDIDATES]
    return np.unique(found, axis=0)
