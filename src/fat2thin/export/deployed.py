"""Decide with an export as with a policy of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.columns import Column
from fat2thin.export.portable import REASONS
from fat2thin.export.verification import load_export
from fat2thin.policies.decision import Decision


class DeployedPolicy:
    """The policy of an export folder, with the part of `Policy` that tables of decisions need.

    It decides by the NumPy arithmetic of weights.npz; no program of the folder is run.
    """

    def __init__(self, folder: Path) -> None:
        _, contents = load_export(folder)
        self._policy, settings = contents.policy(), contents.settings
        self.observation_columns = tuple(map(Column.from_json, settings["observations"]))
        self.action_columns = tuple(map(Column.from_json, settings["actions"]))
        self.needs_last_action = bool(settings["needs_last_action"])

    def decide(self, observation: Any, key: None = None, last: Any = None) -> Decision:
        """Return the decision on each state; distances are not known to an export."""
        found = self._policy(observation, 0.5, last)
        rows, unknown = len(found.refer), np.full(len(found.refer), np.nan)
        action = np.where(found.refer[:, None] == 1, np.nan, found.action)
        because = {name: (found.reason & code) != 0 for code, name in REASONS.items()}
        none = np.zeros((rows, 0), bool)
        return Decision(action, found.refer == 1, because, unknown, unknown, none)

    def support(self, observation: Any, last: Any = None) -> tuple[ndarray, ndarray]:
        """Return the lowest and the highest action of each state."""
        found = self._policy(observation, 0.5, last)
        return found.low, found.high
