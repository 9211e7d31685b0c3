"""Decide with an export as with a policy of a run."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy import ndarray

from fat2thin.columns import Column, Transform
from fat2thin.data.coverage import Coverage
from fat2thin.export.contents import Contents
from fat2thin.export.portable import INVALID, REASONS, Policy
from fat2thin.export.verification import load_export
from fat2thin.policies.decision import Decision
from fat2thin.policies.limits import LimitRules, Limits


class DeployedPolicy:
    """The policy of an export folder, with the part of `Policy` that tables of decisions need.

    It decides by the NumPy arithmetic of weights.npz; no program of the folder is run. Distances,
    disagreements and the names of limits are those of the policy that was exported.
    """

    def __init__(self, folder: Path) -> None:
        _, contents = load_export(folder)
        self._policy, settings = contents.policy(), contents.settings
        self.observation_columns = tuple(map(Column.from_json, settings["observations"]))
        self.action_columns = tuple(map(Column.from_json, settings["actions"]))
        self.needs_last_action = bool(settings["needs_last_action"])
        self.limits = self._limits(contents)
        # The same policy without limits says which of them bind.
        free = {**settings, "limits": [], "needs_last_action": False}
        self._free = Contents(contents.arrays, free, "").policy()
        self._coverage = _coverage(contents)

    def decide(self, observation: Any, key: None = None, last: Any = None) -> Decision:
        """Return the decision on each state."""
        found = self._policy(observation, None, last)
        action = np.where(found.refer[:, None] == 1, np.nan, found.action).astype(np.float64)
        because = {name: (found.reason & code) != 0 for code, name in REASONS.items()}
        valid, rows = found.reason & INVALID == 0, len(found.refer)
        with np.errstate(over="ignore"):
            seen = np.asarray(observation, np.float32)[valid]
        distance, disagreement = np.full((2, rows), np.nan)
        if self._coverage is not None:
            distance[valid] = self._coverage.distance(seen)
        disagreement[valid] = self._disagreement(seen)
        refer = found.refer == 1
        if self.limits is None:
            none = np.zeros((rows, 0), bool)
            return Decision(action, refer, because, distance, disagreement, none)
        blocking, binding = np.zeros((2, rows, len(self.limits.parsed)), bool)
        if valid.any():
            states, before = jnp.asarray(seen), None
            if self.needs_last_action:
                before = jnp.asarray(np.asarray(last, np.float32)[valid])
            interval = jax.tree.map(np.asarray, self.limits.interval(states, before))
            forbids = np.asarray([limit.forbids_acting for limit in self.limits.parsed])
            blocking[valid] = interval.conflicting | (interval.binds & forbids)
            free = self._free(seen)
            ends = jnp.asarray(free.low), jnp.asarray(free.high)
            each = [one.excludes(*ends, states, before) for one in self.limits.single]
            binding[valid] = np.stack(each, axis=-1)
        names = tuple(f"{limit.name}: {limit.text}" for limit in self.limits.parsed)
        return Decision(
            action, refer, because, distance, disagreement, blocking, names, binding
        )  # fmt: skip

    def support(self, observation: Any, last: Any = None) -> tuple[ndarray, ndarray]:
        """Return the lowest and the highest action of each state."""
        found = self._policy(observation, None, last)
        return found.low, found.high

    def _disagreement(self, seen: ndarray) -> ndarray:
        """Return the largest distance between the centres of two seeds, in shares of the box."""
        policy: Policy = self._policy
        with np.errstate(all="ignore"):
            placed, _ = policy._forward(seen, policy.settings["observation_transforms"])
            return np.max(policy._spread(policy._heads(placed)[0]), axis=1)

    def _limits(self, contents: Contents) -> Limits | None:
        settings, box = contents.settings, (contents.arrays["low"], contents.arrays["high"])
        if not settings["limits"]:
            return None
        rules = LimitRules(tuple((limit["name"], limit["text"]) for limit in settings["limits"]))
        ends = (np.asarray(end, np.float64).tolist() for end in box)
        return rules.bind(self.observation_columns, self.action_columns, *ends)


def _coverage(contents: Contents) -> Coverage | None:
    """Return the summary of the log as far as distances need it; None without one."""
    referral = contents.settings["referral"]
    if referral is None:
        return None
    names = ("mean", "whitening", "centroids", "radius", "threshold")
    mean, whitening, centroids, radius, threshold = (
        np.asarray(contents.arrays[f"log.{name}"]) for name in names
    )
    transforms = tuple(None if one is None else Transform(**one) for one in referral["transforms"])
    return Coverage(
        mean, whitening, centroids, radius, action=None, rows=None, levels=None, thresholds=None,
        threshold=threshold, transforms=transforms,
    )  # fmt: skip
