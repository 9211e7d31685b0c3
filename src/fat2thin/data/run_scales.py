"""The scales that a run puts its log on, and keeps, so that its policies can act on raw input."""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from fat2thin.data import Dataset
from fat2thin.data.scaling import (
    RewardScaling,
    Standardisation,
    deviation_reward_scaling,
    iql_reward_scaling,
    standardisation,
)

RETURN_RANGE, DEVIATION = "return_range", "deviation"
BY_LOG = {RETURN_RANGE: iql_reward_scaling, DEVIATION: deviation_reward_scaling}
"""Scales of rewards that a log has of its own, by name."""


@dataclasses.dataclass(frozen=True)
class Scales:
    """What was done to a log before anything was learned from it."""

    observation: Standardisation | None = None
    reward: RewardScaling | None = None

    @property
    def reward_factor(self) -> float:
        """What rewards were multiplied by."""
        return 1.0 if self.reward is None else self.reward.factor

    def apply(self, dataset: Dataset) -> Dataset:
        """Another log on the same scales."""
        for scale in (self.observation, self.reward):
            dataset = dataset if scale is None else scale.apply(dataset)
        return dataset

    def to_json(self) -> dict[str, Any]:
        """Plain values for run.json."""
        return {
            field: None if value is None else value.to_json()
            for field, value in (("observation", self.observation), ("reward", self.reward))
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Scales":
        """What `to_json` was called on."""
        observation, reward = values["observation"], values["reward"]
        return cls(
            observation=None if observation is None else Standardisation.from_json(observation),
            reward=None if reward is None else RewardScaling.from_json(reward),
        )


def find_scales(dataset: Dataset, standardise: bool, reward_scale: float | str) -> Scales:
    """The scales of a log, as a run asks for them."""
    reward = None
    if isinstance(reward_scale, str):
        reward = BY_LOG[reward_scale](dataset)
    elif reward_scale != 1.0:
        reward = RewardScaling(factor=reward_scale)
    return Scales(standardisation(dataset) if standardise else None, reward)


def check_reward_scale(value: Any) -> float | str:
    """The value as a specification holds it, or an error that names it."""
    if isinstance(value, str) and value in BY_LOG:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        names = " or ".join(map(repr, BY_LOG))
        raise ValueError(f"reward_scale must be a number, {names}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"reward_scale must be positive and finite, got {value!r}")
    return number
