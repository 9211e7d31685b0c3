"""The rows of a table of value: estimates, intervals and refusals on one log."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy import ndarray

from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import episode_lengths
from fat2thin.evaluation import refusal
from fat2thin.evaluation.estimators.assumptions import discounted_steps, step_before
from fat2thin.evaluation.estimators.behaviour import Behaviour, behaviour_density
from fat2thin.evaluation.estimators.constants import best_constant
from fat2thin.evaluation.estimators.episodes import FOLDS, Actions, value_bounds
from fat2thin.evaluation.estimators.estimates import Estimates, estimates
from fat2thin.evaluation.estimators.features import Bases, draw_bases
from fat2thin.evaluation.estimators.intervals import unseen_weight, with_one_more
from fat2thin.evaluation.estimators.practice import practice_scores
from fat2thin.evaluation.padding import Padded, actions_of, constant_in_padding, pad
from fat2thin.policies.policy import Policy

PRACTICE, CONSTANT = "practice", "best constant action"
ORDER = ("marginal", "doubly_robust", "importance")
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


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a log: the same for every row of a table."""

    padded: Padded
    horizon: int
    bounds: Any
    rewards: tuple[float, float]
    """The lowest and the highest reward."""
    ends_early: bool
    """Whether episodes can truly end before the horizon."""
    allowed: tuple[float, float]
    """The range of values that rewards allow."""
    practice: ndarray
    """Scores of the episodes."""
    confidence: float
    cut: float
    """Share of the episodes that were cut before the horizon."""

    @property
    def known(self) -> ndarray:
        """A mask of the padded episodes that are episodes of the log."""
        return np.asarray(self.padded.episodes.here)[:, 0] > 0

    @property
    def usual_weight(self) -> ndarray:
        """How much each logged step counts in the value of practice."""
        here = np.asarray(self.padded.episodes.here)
        steps = np.arange(here.shape[1])
        return here * (self.padded.dataset.discount**steps * (steps < self.horizon))[None]

    @property
    def has_densities(self) -> bool:
        """Whether the log has the densities of its actions."""
        return self.padded.dataset.propensity_is_density

    def rows_inside(self, actions: Actions) -> int:
        """Return how many logged actions a policy with a density could have taken."""
        inside = np.isfinite(np.asarray(actions.log_density)) & (self.padded.episodes.here > 0)
        return int(inside.sum())

    @functools.cached_property
    def discounted_steps(self) -> tuple[float, float]:
        """Those of an episode of practice: as logged, and if the states explain all ends."""
        if not self.ends_early:
            return 1.0, 1.0
        logged, by_states = _of_steps(
            self.padded.episodes, bases_of(self.padded).states, horizon=self.horizon,
            discount=self.padded.dataset.discount,
        )  # fmt: skip
        return float(logged), float(by_states)

    @functools.cached_property
    def step_before(self) -> float:
        """How much the step before tells about the next observation beyond the step itself."""
        return float(_of_step_before(self.padded.episodes, bases_of(self.padded).both))

    @functools.cached_property
    def behaviour(self) -> Behaviour:
        """The estimated density of the logged actions, per unit of the padded actions."""
        return _of_behaviour(self.padded.episodes, bases_of(self.padded).states)

    @property
    def estimated(self) -> Behaviour | None:
        """The estimated density, if a policy needed one."""
        return vars(self).get("behaviour")

    @functools.cached_property
    def log_behaviour(self) -> ndarray:
        """The log density of the logged actions, in raw units."""
        if self.has_densities:
            known = np.asarray(self.padded.dataset.propensity, np.float64)
            return self.padded.pad(np.log(known))
        return np.asarray(self.behaviour.log_density) + self.padded.log_jacobian()

    @functools.cached_property
    def log_nearest(self) -> ndarray | None:
        """The same by the other estimate of the density; None where it is known."""
        if self.has_densities:
            return None
        return np.asarray(self.behaviour.log_nearest) + self.padded.log_jacobian()


class Judged(NamedTuple):
    """A policy on a log."""

    row: ValueRow
    """By the preferred estimator that is not refused."""
    every: tuple[ValueRow, ...]
    """By every estimator."""
    estimates: Estimates
    actions: Actions
    surviving: tuple[int, ...]
    """Episodes whose logged actions up to each step the policy could have taken."""


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
_of_policy = in_double_precision(
    lambda episodes, actions, densities, bases, bounds, discount: estimates(
        episodes, actions, densities[0], bases, bounds, discount, densities[1]
    ),
    "discount",
)
_of_steps = in_double_precision(discounted_steps, "horizon", "discount")
_of_step_before = in_double_precision(step_before)
_of_constants = in_double_precision(best_constant, "discount")
_of_behaviour = in_double_precision(behaviour_density)
_unseen_weight = in_double_precision(unseen_weight)
_intervals = in_double_precision(
    lambda scores, reach, confidence: with_one_more(
        scores, reach, jax.random.key(_SEED), confidence
    ),
    "confidence",
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
    scores = _of_practice(padded.episodes, bases_of(padded).states, bounds, discount=log.discount)
    return Question(
        padded, horizon, bounds, (low, high), ends_early,
        (float(bounds[-1, 0]), float(bounds[-1, 1])), scores, confidence, cut,
    )  # fmt: skip


def bases_of(padded: Padded) -> Bases:
    """Return the random units of features for a log: more for more rows."""
    units = int(np.clip(padded.dataset.rows // ROWS_PER_UNIT, 16, MOST_UNITS))
    log = padded.dataset
    return draw_bases(jax.random.key(_SEED), log.observation_size, log.action_size, units)


def judge_policy(question: Question, policy: Policy, name: str, kind: str) -> Judged:
    """Return the rows of a policy."""
    actions = actions_of(policy, question.padded)
    found = _judged(question, actions, {"name": name, "kind": kind})
    long_work.did(2 * question.padded.dataset.observation.size)
    return found


def _judged(question: Question, actions: Actions, fields: Mapping[str, Any]) -> Judged:
    refused, surviving = None, _surviving(question, actions)
    if actions.log_density is None:
        refused = "the policy clips its actions to the box, so it has no density"
    elif question.rows_inside(actions) < refusal.LEAST_INSIDE:
        refused = refusal.too_few_inside(question.rows_inside(actions))
    densities = (None, None) if refused else (question.log_behaviour, question.log_nearest)
    found = _of_policy(
        question.padded.episodes, actions, densities, bases_of(question.padded), question.bounds,
        discount=question.padded.dataset.discount,
    )  # fmt: skip
    return _rows_of(question, actions, found, fields, refused, surviving)


def _surviving(question: Question, actions: Actions) -> tuple[int, ...]:
    """Return how many episodes have only actions that the policy could have taken, by step."""
    if actions.log_density is None:
        return ()
    inside = np.isfinite(np.asarray(actions.log_density)) | (question.padded.episodes.here == 0)
    alive = np.cumprod(inside[question.known, : question.horizon], axis=1)
    return tuple(map(int, alive.sum(axis=0)))


def _rows_of(
    question: Question, actions: Actions, found: Estimates, fields: Mapping[str, Any],
    refused: str | None, surviving: tuple[int, ...],
) -> Judged:  # fmt: skip
    rows = tuple(
        ValueRow(estimator=estimator, refused=refused, **fields)
        if getattr(found, estimator) is None
        else _row(question, estimator, found, fields)
        for estimator in ORDER
    )
    best = next((row for row in rows if row.refused is None), rows[0])
    return Judged(best, rows, found, actions, surviving)


def _row(
    question: Question, estimator: str, every: Estimates, fields: Mapping[str, Any]
) -> ValueRow:
    found = getattr(every, estimator)
    every_found = [found, every.nearest] if estimator == "marginal" and every.nearest else [found]
    scores = [np.asarray(one.scores)[question.known] for one in every_found]
    effective = np.min([one.effective for one in every_found], axis=0)
    evidence = refusal.Evidence(
        estimate=float(np.mean(scores[0])),
        allowed=question.allowed,
        episodes=len(scores[0]),
        effective=tuple(map(float, effective)),
        surviving=tuple(map(float, getattr(found, "surviving", ()))),
        clipped=float(every.fitted_q.clipped),
        cut=question.cut,
        steps=question.discounted_steps,
        before=question.step_before,
    )
    refused = refusal.reason(estimator, evidence)
    if refused is not None:
        return ValueRow(estimator=estimator, refused=refused, **fields)
    weights = [np.asarray(one.weight) for one in every_found]
    numbers = _numbers(question, scores, weights)
    return ValueRow(estimator=estimator, **numbers, **fields)


def _numbers(
    question: Question, scores: Sequence[ndarray], weights: Sequence[ndarray] = ()
) -> dict[str, Any]:
    """Return the numbers of a row: never outside what rewards allow.

    `weights` are what each logged step counts; there are none for practice itself. With several
    scores the estimate is by the first, and the interval holds those of all.
    """
    usual, practice = question.usual_weight, question.practice[question.known]
    parts, apart = [*scores], [*weights] or [usual]
    if weights:
        parts += [one - practice for one in scores]
        apart += [one - usual for one in weights]
    # An event that was not seen moves a score by its weight, times the range of the rewards.
    lowest, highest = question.rewards
    reach = np.array([(highest - lowest) * _unseen_weight(one) for one in apart])
    found = _intervals(np.stack(parts), reach, confidence=question.confidence)
    several = [np.reshape(end, (-1, len(scores))) for end in found]
    mean, low, high, bound = several
    ends = mean[:, 0], low.min(axis=1), high.max(axis=1), bound.min(axis=1)
    lowest, highest = question.allowed
    of_value = zip(("estimate", "low", "high"), ends[:3], strict=True)
    numbers = {name: float(np.clip(end[0], lowest, highest)) for name, end in of_value}
    if not weights:
        return numbers
    names = ("difference", "difference_low", "difference_high", "difference_bound")
    most = highest - lowest
    return numbers | {
        name: float(np.clip(end[1], -most, most)) for name, end in zip(names, ends, strict=True)
    }


def practice_row(question: Question) -> ValueRow:
    """Return the row of logged practice."""
    scores = question.practice[question.known]
    if refused := refusal.too_few_episodes(len(scores)):
        return ValueRow(PRACTICE, "practice", "returns", refused=refused)
    return ValueRow(PRACTICE, "practice", "returns", **_numbers(question, [scores]))


def constant_row(question: Question) -> ValueRow:
    """Return the row of the best constant action: each fold's is chosen on the other folds."""
    padded = question.padded
    candidates = _candidates(np.asarray(padded.dataset.action, np.float64))
    placed = padded.standardise(candidates)
    choice = _of_constants(
        padded.episodes, placed, bases_of(padded).both, question.bounds,
        discount=padded.dataset.discount,
    )  # fmt: skip
    fold = np.repeat(np.arange(FOLDS), len(padded.episodes.here) // FOLDS)
    of_episode = choice.of_fold[fold]
    action = tuple(map(float, candidates[choice.overall]))
    fields = {"name": CONSTANT, "kind": "constant", "action": action}
    joined: Judged | None = None
    for place in np.unique(choice.of_fold):
        found = _judged(question, constant_in_padding(placed[place], padded), fields)
        if all(row.refused is not None for row in found.every):
            return found.row  # one that cannot be valued leaves folds without scores
        joined = found if joined is None else _joined(joined, found, of_episode == place)
    assert joined is not None
    return _rows_of(question, joined.actions, joined.estimates, fields, None, ()).row


def _joined(one: Judged, other: Judged, of_other: ndarray) -> Judged:
    """Return estimates with some episodes' scores from another policy, and the worse evidence."""

    def chosen(name: str, ours: Any, theirs: Any) -> Any:
        if name in ("scores", "weight"):
            rows = of_other.reshape(-1, *(1,) * (np.ndim(ours) - 1))
            return np.where(rows, theirs, ours)
        return np.maximum(ours, theirs) if name == "clipped" else np.minimum(ours, theirs)

    parts: dict[str, Any] = {}
    for part in ("fitted_q", "nearest", *ORDER):
        ours, theirs = (getattr(judged.estimates, part) for judged in (one, other))
        both = ours is not None and theirs is not None
        parts[part] = (
            both
            and type(ours)(**{name: chosen(name, *pair) for name, *pair in _fields(ours, theirs)})
        ) or None
    return one._replace(estimates=one.estimates._replace(**parts))


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
