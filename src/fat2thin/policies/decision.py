"""Decisions: an action, or a referral with the reasons, for every state.

`decide` never raises for the values of a state and never drops one: a state that cannot be read is
referred as well.
"""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Key
from numpy import ndarray

from fat2thin.columns import transform, transforms_of
from fat2thin.policies.ensemble import agreement
from fat2thin.policies.policy import Policy

OUTSIDE, DISAGREE, INVALID = "outside the log", "seeds disagree", "invalid input"
REASONS = (OUTSIDE, DISAGREE, INVALID)


@runtime_checkable
class StateDistance(Protocol):
    """What `decide` needs of `fat2thin.data.coverage.Coverage`."""

    def distance(self, observation: Any) -> Any:
        """Return a number per state: above 1 is outside the log."""


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """When a state is referred."""

    distance: float = 1.0
    """Largest distance from the log, in calibrated thresholds: 1 refers 5 % of new states of the
    log's own distribution."""
    disagreement: float = 0.25
    """Largest distance between the centres of two seeds, as a share of the action box."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not value >= 0:
                raise ValueError(f"the threshold of {name} must be at least 0, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Decision:
    """What was decided in each state; every array has the leading axes of the states."""

    action: Float[ndarray, "*rows action"]
    """The action; nan where the state is referred."""
    referred: Bool[ndarray, "*rows"]
    because: dict[str, Bool[ndarray, "*rows"]]
    """By reason: in which states it holds. A state may have several."""
    distance: Float[ndarray, "*rows"]
    """Distance from the log, in thresholds; nan for invalid input."""
    disagreement: Float[ndarray, "*rows"]
    """Disagreement of the seeds, as a share of the action box; nan for invalid input."""

    def reasons(self, *row: int) -> tuple[str, ...]:
        """Return the reasons of one state, given by its index; none if it was not referred."""
        return tuple(name for name in REASONS if self.because[name][row])


def decide(
    policy: Policy, observation: Any, coverage: StateDistance,
    thresholds: Thresholds | None = None, key: Key[Array, ""] | None = None,
) -> Decision:  # fmt: skip
    """Return an action or a referral for each state, shape (*rows, observation).

    The action is the centre of the policy, or a sample if a key is given. A wrong number of columns
    raises a ValueError.
    """
    thresholds = Thresholds() if thresholds is None else thresholds
    seen = np.asarray(observation, np.float64)
    columns = policy.observation_columns
    if not seen.ndim or (columns and seen.shape[-1] != len(columns)):
        raise ValueError(f"a state has {len(columns)} numbers, got an array of shape {seen.shape}")
    shape, rows = seen.shape[:-1], seen.reshape(-1, seen.shape[-1])
    valid = _usable(rows, policy)
    action = np.full((len(rows), policy.low.size), np.nan)
    distance, disagreement = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    overlap = np.ones(len(rows), bool)
    if valid.any():
        known = rows[valid].astype(policy.low.dtype)
        action[valid] = policy.act(known, key)
        distance[valid] = coverage.distance(known)
        found = agreement(policy, known)
        disagreement[valid], overlap[valid] = found.disagreement, found.overlap
    consensus = getattr(policy.network, "rule", None) == "consensus"
    apart = disagreement > thresholds.disagreement
    because = {
        OUTSIDE: distance > thresholds.distance,
        DISAGREE: apart | ~overlap if consensus else apart,
        INVALID: ~valid,
    }
    referred = np.any([*because.values()], axis=0)
    action[referred] = np.nan
    return Decision(
        action.reshape(*shape, -1), referred.reshape(shape),
        {name: mask.reshape(shape) for name, mask in because.items()},
        distance.reshape(shape), disagreement.reshape(shape),
    )  # fmt: skip


def _usable(rows: ndarray, policy: Policy) -> Bool[ndarray, " rows"]:
    """Return which rows the policy can act on: finite in its precision, also transformed."""
    with np.errstate(over="ignore"):
        rounded = rows.astype(policy.low.dtype)
    seen = transform(rounded, transforms_of(policy.observation_columns))
    return np.isfinite(rounded).all(axis=1) & np.isfinite(seen).all(axis=1)
