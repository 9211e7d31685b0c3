"""Scales of observations and rewards: computed from a log, applied to one, kept as plain values."""

import dataclasses
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from fat2thin.data.dataset import Dataset, blocks, transformed
from fat2thin.data.operations import episode_returns

SMALLEST_SCALE = 1e-3
"""What a column of observations is divided by at least: one that never changes in the log has no
scale of its own. TD3+BC adds the same number to every standard deviation (sfujim/TD3_BC)."""

IQL_RETURN_RANGE = 1000.0
"""Difference between the best and the worst return of an episode after IQL's scaling of rewards
(ikostrikov/implicit_q_learning, train_offline.py)."""


@dataclasses.dataclass(frozen=True)
class Standardisation:
    """Observations become (observation − mean) / scale, column by column."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.scale):
            sizes = f"{len(self.mean)} means and {len(self.scale)} scales"
            raise ValueError(f"{sizes} do not go together")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all()):
            raise ValueError("means and scales must be finite")
        if not all(scale > 0 for scale in self.scale):
            raise ValueError(f"scales must be positive, got {self.scale}")

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with observations and next observations on the new scale."""
        if dataset.observation_size != len(self.mean):
            raise ValueError(
                f"data set {dataset.name!r} has observations of {dataset.observation_size} "
                f"columns, the standardisation is for {len(self.mean)}"
            )
        return dataclasses.replace(
            dataset,
            name=f"{dataset.name}[standardised]",
            observation=self._observations(dataset.observation),
            next_observation=self._observations(dataset.next_observation),
        )

    def _observations(self, observation: np.ndarray) -> np.ndarray:
        scaled = np.empty(observation.shape, _real(observation))
        mean, scale = np.array(self.mean), np.array(self.scale)
        for rows in blocks(observation):
            # In float64, for a large mean would take the digits that the difference needs.
            scaled[rows] = (observation[rows].astype(np.float64) - mean) / scale
        return scaled


@dataclasses.dataclass(frozen=True)
class RewardScaling:
    """Rewards become (reward + shift) · factor; a positive factor keeps the better the better."""

    shift: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.shift) and np.isfinite(self.factor) and self.factor > 0):
            raise ValueError(
                "a shift must be finite and a factor finite and positive, "
                f"got {self.shift} and {self.factor}"
            )

    def apply(self, dataset: Dataset) -> Dataset:
        """The data set with rewards on the new scale."""
        scaled = (dataset.reward.astype(np.float64) + self.shift) * self.factor
        name, reward = f"{dataset.name}[rewards scaled]", scaled.astype(_real(dataset.reward))
        return dataclasses.replace(dataset, name=name, reward=reward)


def standardisation(dataset: Dataset, smallest_scale: float = SMALLEST_SCALE) -> Standardisation:
    """Mean and standard deviation of every column of the observations of a log."""
    observation = dataset.observation
    mean = observation.mean(axis=0, dtype=np.float64)
    # In blocks, for the deviations of a large log would be twice as large as the log itself.
    squares = sum(np.square(observation[rows] - mean).sum(axis=0) for rows in blocks(observation))
    scale = np.maximum(np.sqrt(squares / len(observation)), smallest_scale)
    return Standardisation(tuple(mean.tolist()), tuple(scale.tolist()))


def iql_reward_scaling(dataset: Dataset) -> RewardScaling:
    """IQL's factor for locomotion: 1000 / (best − worst undiscounted return of an episode)."""
    returns = episode_returns(dataset)
    difference = float(returns.max() - returns.min())
    if not difference > 0:
        raise ValueError(
            f"data set {dataset.name!r}: every episode has the return {returns[0]:g}, so rewards "
            "have no scale in the best and the worst; give a factor of your own"
        )
    return RewardScaling(factor=IQL_RETURN_RANGE / difference)


def deviation_reward_scaling(dataset: Dataset) -> RewardScaling:
    """The factor that gives the rewards of a log a standard deviation of 1."""
    reward = dataset.reward.astype(np.float64)
    deviation = float(np.std(reward))
    # That of equal numbers is above zero where their mean is rounded.
    if reward.min() == reward.max() or not deviation > 0:
        raise ValueError(
            f"data set {dataset.name!r}: every reward is {reward[0]:g}, so rewards have no scale "
            "of their own; give a factor (reward_scale=1 leaves them as they are)"
        )
    return RewardScaling(factor=1.0 / deviation)


def _real(array: np.ndarray) -> np.dtype:
    """The array's own type where it holds fractions, float32 for integers."""
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float32)


BY_LOG = {"return_range": iql_reward_scaling, "deviation": deviation_reward_scaling}
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
        """Another log on the same scales, after the transforms of its columns."""
        dataset = transformed(dataset)
        for scale in (self.observation, self.reward):
            dataset = dataset if scale is None else scale.apply(dataset)
        return dataset

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as run.json gives them back: with lists in place of tuples."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Scales":
        """Return what `to_json` was called on."""
        seen, reward = values["observation"], values["reward"]
        return cls(
            None if seen is None else Standardisation(*map(tuple, (seen["mean"], seen["scale"]))),
            None if reward is None else RewardScaling(reward["shift"], reward["factor"]),
        )


def find_scales(dataset: Dataset, standardise: bool, reward_scale: float | str) -> Scales:
    """The scales of a log, as a run asks for them; of transformed columns where it has some."""
    dataset, reward = transformed(dataset), None
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
