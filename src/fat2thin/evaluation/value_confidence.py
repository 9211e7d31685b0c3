"""How far a difference to practice can be trusted: a guaranteed bound, and hidden confounding."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from fat2thin.evaluation.estimators.estimates import Estimates
from fat2thin.evaluation.estimators.importance import unweighted_scores
from fat2thin.evaluation.estimators.intervals import betting_bound
from fat2thin.evaluation.estimators.sensitivity import GAMMAS, worst_values
from fat2thin.evaluation.value_rows import (
    Question,
    ValueRow,
    bases_of,
    in_double_precision,
)

GUARANTEED = "guaranteed, if episodes are independent and the logged densities are right: betting"
NEEDED = "densities of the logged actions, --rewards, no cut episodes, and a policy with a density"


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """Lower bounds that hold for any number of episodes, whatever the model."""

    label: str
    value: float
    difference: float
    """Lower bound of the value minus that of practice."""


@dataclasses.dataclass(frozen=True)
class Confounding:
    """What is left of the difference to practice under unobserved confounding.

    Γ is the factor by which something unobserved may have made a logged action more or less likely
    at each step. With Γ = 1 nothing was unobserved.
    """

    gammas: tuple[float, ...]
    difference: tuple[float, ...]
    """In the worst case of each Γ."""
    bound: tuple[float, ...]
    """Its one-sided lower bound."""
    vanishes: float | None
    """The Γ at which the difference is 0; None if it never is above 0, or always is."""
    bound_vanishes: float | None
    """The Γ at which the lower bound is 0."""


def guarantee(question: Question, found: Estimates, unseen: bool, stated: bool) -> Guarantee | None:
    """Return guaranteed bounds, or None if a condition is not known to hold."""
    if not (unseen and stated and question.has_densities and question.cut == 0.0):
        return None
    if found.rho is None:
        return None
    low, high = question.rewards
    if question.ends_early:
        low, high = min(low, 0.0), max(high, 0.0)
    dataset, known = question.padded.dataset, question.known
    powers = dataset.discount ** np.arange(question.horizon)
    total = float(powers.sum())
    scores, practice = _scores(
        question.padded.episodes, found.rho, powers,
        discount=dataset.discount, low=low, high=high,
    )  # fmt: skip
    # All are above 0; the difference adds what practice falls short of the highest reward.
    of_value = float(_bound(scores[known], confidence=question.confidence))
    of_both = float(_bound((scores + practice)[known], confidence=question.confidence))
    lowest, highest = question.allowed
    value = float(np.clip(of_value + low * total, lowest, highest))
    most = highest - lowest
    difference = float(np.clip(of_both - (high - low) * total, -most, most))
    return Guarantee(GUARANTEED, value, difference)


def _both_scores(
    episodes: Any, rho: Any, powers: Any, discount: float, low: float, high: float
) -> tuple[Any, Any]:
    horizon = rho.shape[1]
    reward = episodes.reward[:, :horizon] * episodes.here[:, :horizon]
    short = jnp.sum((high - reward) * powers[None], axis=1)
    return unweighted_scores(episodes, rho, discount, low), short


_scores = in_double_precision(_both_scores, "discount", "low", "high")
_bound = in_double_precision(betting_bound, "confidence")
_worst = in_double_precision(worst_values, "discount")


def confounding(question: Question, actions: Any, row: ValueRow) -> Confounding | None:
    """Return how much hidden confounding the difference of a row to practice survives."""
    if row.refused is not None or row.difference is None or row.difference_bound is None:
        return None
    padded = question.padded
    found = _worst(
        padded.episodes, actions, bases_of(padded).both, question.bounds,
        discount=padded.dataset.discount,
    )  # fmt: skip
    lost = np.maximum.accumulate(found.value[0] - found.value)
    most = question.allowed[1] - question.allowed[0]
    left, bound = (
        np.clip(number - lost, -most, most) for number in (row.difference, row.difference_bound)
    )
    return Confounding(
        GAMMAS, tuple(map(float, left)), tuple(map(float, bound)), *map(_vanishes, (left, bound))
    )


def _vanishes(left: np.ndarray) -> float | None:
    """Return the Γ at which a falling number crosses 0, between two by a straight line in log Γ."""
    if left[0] <= 0 or left[-1] > 0:
        return None
    place = int(np.argmax(left <= 0))
    share = left[place - 1] / (left[place - 1] - left[place])
    logs = np.log(GAMMAS[place - 1 : place + 1])
    return float(np.exp(logs[0] + share * (logs[1] - logs[0])))
