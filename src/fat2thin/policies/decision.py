"""Decisions: an action, or a referral with the reasons, for every state.

`decide` never raises for the values of a state and never drops one: a state that cannot be read is
referred as well.
"""

import dataclasses
import itertools
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from numpy import ndarray

from fat2thin.columns import transform, transforms_of
from fat2thin.distributions.base import expand_to_rank
from fat2thin.policies.policy import NOT_GIVEN, Policy

OUTSIDE, DISAGREE, INVALID = "outside the log", "seeds disagree", "invalid input"
CONFLICT, FORBIDDEN = "limits conflict", "limits forbid acting"
REASONS = (OUTSIDE, DISAGREE, CONFLICT, FORBIDDEN, INVALID)
PRACTICE = "practice"
"""The fallback that does what was logged in similar states."""


@runtime_checkable
class StateDistance(Protocol):
    """What decisions need of `fat2thin.data.coverage.Coverage`."""

    def distance(self, observation: Any, xp: Any = np) -> Any:
        """Return a number per state: above 1 is outside the log."""

    def practice(self, observation: Any, xp: Any = np) -> Any:
        """Return the mean logged action near each state."""


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


class Referral(eqx.Module):
    """What a policy refers by: the summary of its log, and the thresholds."""

    coverage: Any
    """A `StateDistance`, or None if there is no summary of the log."""
    thresholds: Thresholds = eqx.field(static=True, default=Thresholds())
    without: str = eqx.field(static=True, default="")
    """Why there is no summary."""


def with_referral(
    policy: Policy, coverage: StateDistance | None = None, thresholds: Thresholds | None = None
) -> Policy:
    """Return the policy with another summary of the log, or other thresholds."""
    old = Referral(None) if policy.referral is None else policy.referral
    changed = {"coverage": coverage, "thresholds": thresholds}
    new = {name: value for name, value in changed.items() if value is not None}
    return dataclasses.replace(policy, referral=dataclasses.replace(old, **new))


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
    blocking: Bool[ndarray, "*rows limits"]
    """The limits that leave no action in a state."""
    limits: tuple[str, ...] = ()
    """Name and text of each limit of the policy."""
    binding: Bool[ndarray, "*rows limits"] | None = None
    """The limits that exclude an action that the policy could take without them; None without
    limits."""

    def reasons(self, *row: int) -> tuple[str, ...]:
        """Return the reasons of one state, given by its index; none if it was not referred."""
        return tuple(name for name, mask in self.because.items() if mask[row])

    def blocked_by(self, *row: int) -> tuple[str, ...]:
        """Return name and text of the limits that leave no action in one state."""
        return tuple(itertools.compress(self.limits, self.blocking[row]))

    def bound_by(self, *row: int) -> tuple[str, ...]:
        """Return name and text of the limits that bind in one state."""
        none = np.zeros(len(self.limits), bool)
        return tuple(
            itertools.compress(self.limits, none if self.binding is None else self.binding[row])
        )

    def shares(self) -> dict[str, float]:
        """Return the share of states that are referred, and the share of each reason."""
        masks = {"referred": self.referred, **self.because}
        return {name: float(np.mean(mask)) if mask.size else 0.0 for name, mask in masks.items()}


def decide(
    policy: Policy, observation: Any, key: Key[Array, ""] | None = None, last: Any = NOT_GIVEN
) -> Decision:
    """Return an action or a referral for each state, shape (*rows, observation).

    The action is the centre of the policy, or a sample if a key is given. `last` is the last
    action for limits that depend on it, shape (*rows, action), nan at the first step of an episode.
    A wrong number of columns raises a ValueError.
    """
    coverage, thresholds = _referral(policy)
    seen = np.asarray(observation, np.float64)
    columns = policy.observation_columns
    if not seen.ndim or (columns and seen.shape[-1] != len(columns)):
        names = ", ".join(column.name for column in columns)
        raise ValueError(
            f"a state has {len(columns)} numbers ({names}), got an array of shape {seen.shape}"
        )
    shape, rows = seen.shape[:-1], seen.reshape(-1, seen.shape[-1])
    known, valid = _usable(rows, policy)
    limits = () if policy.limits is None else policy.limits.parsed
    last = _last_rows(policy, last, shape)
    if last is not None:
        valid &= ~np.isinf(last).any(axis=1)
    action = np.full((len(rows), policy.low.size), np.nan)
    distance, disagreement = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    overlap, (blocking, binding) = (
        np.ones(len(rows), bool), np.zeros((2, len(rows), len(limits)), bool)
    )  # fmt: skip
    conflict, forbidden = np.zeros((2, len(rows)), bool)
    if valid.any():
        known = known if valid.all() else known[valid]
        before = last if last is None or valid.all() else last[valid]
        # Unbound, because Equinox makes a pytree of every bound method, which takes time.
        found = Policy.act_and_agree(policy, known, key, before)
        action[valid], disagreement[valid], overlap[valid] = map(np.asarray, found)
        distance[valid] = type(coverage).distance(coverage, known)
        if policy.limits is not None:
            interval = Policy.interval(policy, known, before)
            conflict[valid], forbidden[valid] = interval.conflict, interval.forbidden
            forbids = np.asarray([limit.forbids_acting for limit in limits])
            binds, conflicting = map(np.asarray, (interval.binds, interval.conflicting))
            blocking[valid] = conflicting | (binds & forbids)
            binding[valid] = Policy.binding(policy, known, before)
    because = {
        OUTSIDE: distance > thresholds.distance,
        DISAGREE: _apart(policy, disagreement, overlap, thresholds),
        CONFLICT: conflict,
        FORBIDDEN: forbidden,
        INVALID: ~valid,
    }
    referred = np.any([*because.values()], axis=0)
    action[referred] = np.nan
    return Decision(
        action.reshape(*shape, policy.low.size), referred.reshape(shape),
        {name: mask.reshape(shape) for name, mask in because.items()},
        distance.reshape(shape), disagreement.reshape(shape),
        blocking.reshape(*shape, len(limits)),
        tuple(f"{limit.name}: {limit.text}" for limit in limits),
        binding.reshape(*shape, len(limits)) if limits else None,
    )  # fmt: skip


class Cautious(eqx.Module):
    """Acts like a policy where it would decide, and by a fallback where it would refer.

    It takes the place of a `Policy` in `Sampled` and `Centred` and works inside compiled programs,
    so that tasks can evaluate it.
    """

    policy: Policy
    fallback: Array | None
    """An action of shape (action,). None is what was done: the mean logged action of similar
    states."""

    @property
    def needs_last_action(self) -> bool:
        """Whether acting needs the last action, because of a limit on changes."""
        return self.policy.needs_last_action

    def act(
        self, observation: Array, key: Key[Array, ""] | None = None, last: Any = NOT_GIVEN
    ) -> Array:
        """Return the policy's action, or that of the fallback."""
        policy = self.policy
        if self.fallback is None:
            other = _referral(policy)[0].practice(observation, jnp)
        else:
            shape = (*observation.shape[:-1], policy.low.size)
            other = jnp.broadcast_to(expand_to_rank(self.fallback, len(shape)), shape)
        refers = self.refers(observation, last)[..., None]
        return jnp.where(refers, other, policy.act(observation, key, last))

    def refers(self, observation: Array, last: Any = NOT_GIVEN) -> Bool[Array, "*rows"]:
        """Return which of these states are referred."""
        return jnp.any(jnp.stack([*self.because(observation, last).values()]), axis=0)

    def because(self, observation: Array, last: Any = NOT_GIVEN) -> dict[str, Bool[Array, "*rows"]]:
        """Return in which states each reason holds, but for invalid input."""
        policy = self.policy
        coverage, thresholds = _referral(policy)
        _, disagreement, overlap = policy.act_and_agree(observation, last=last)
        found = {
            OUTSIDE: coverage.distance(observation, jnp) > thresholds.distance,
            DISAGREE: _apart(policy, disagreement, overlap, thresholds),
        }
        if policy.limits is not None:
            interval = policy.interval(observation, last)
            found |= {CONFLICT: interval.conflict, FORBIDDEN: interval.forbidden}
        return found


def fallback_of(given: Literal["practice"] | Any, policy: Policy) -> Array | None:
    """Return a checked fallback: None for `PRACTICE`, or an action in the box, shape (action,)."""
    if isinstance(given, str) and given == PRACTICE:
        return None
    low, high = (np.asarray(end) for end in (policy.low, policy.high))
    try:
        action = np.asarray(given, low.dtype)
    except (TypeError, ValueError):
        action = np.full(1, np.nan)
    action = np.full(low.shape, action) if action.ndim == 0 else action
    if action.shape != low.shape or not ((low <= action) & (action <= high)).all():
        names = ", ".join(column.name for column in policy.action_columns)
        raise ValueError(
            f"a fallback is {PRACTICE!r}, or one number in the action box per action "
            f"({names}: {low.tolist()} to {high.tolist()}), not {given!r}"
        )
    return jnp.asarray(action)


def _referral(policy: Policy) -> tuple[StateDistance, Thresholds]:
    """Return the summary of a policy's log and its thresholds; refuse a policy without one."""
    referral = policy.referral
    if referral is None or referral.coverage is None:
        why = referral.without if referral else ""
        raise ValueError(
            why
            or "this policy has no summary of a log to decide by: take one of `run.policy()`, "
            "or add a summary with `fat2thin.policies.decision.with_referral`"
        )
    return referral.coverage, referral.thresholds


def _apart(policy: Policy, disagreement: Any, overlap: Any, thresholds: Thresholds) -> Any:
    """Return where seeds disagree: also without a common action, if only that may be taken."""
    apart = disagreement > thresholds.disagreement
    return apart | ~overlap if getattr(policy.network, "rule", None) == "consensus" else apart


def _last_rows(policy: Policy, last: Any, shape: tuple[int, ...]) -> Any:
    """Return the last actions, shape (rows, action); None if no limit needs them."""
    if policy.limits is None or not policy.limits.needs_last_action:
        return None
    if last is NOT_GIVEN:
        raise ValueError(
            "limits depend on the last action: give last=..., or last=None at the first step of an "
            "episode"
        )
    wide = (*shape, policy.low.size)
    given = np.full(wide, np.nan) if last is None else np.asarray(last, policy.low.dtype)
    if given.shape not in (wide, wide[-1:]):
        raise ValueError(f"the last action must have the shape {wide}, got {given.shape}")
    return np.broadcast_to(given, wide).reshape(-1, wide[-1])


def _usable(rows: ndarray, policy: Policy) -> tuple[ndarray, Bool[ndarray, " rows"]]:
    """Return the rows in the policy's precision, and which it can act on: all finite there."""
    with np.errstate(over="ignore"):
        rounded = rows.astype(policy.low.dtype)
    transforms = transforms_of(policy.observation_columns)
    valid = np.isfinite(rounded).all(axis=1)
    if transforms:
        valid &= np.isfinite(transform(rounded, transforms)).all(axis=1)
    return rounded, valid
