"""Scaling of observations, rewards and values: fit to a data set, apply, and store as JSON."""

import dataclasses
import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from fat2thin.data.column_statistics import deviation, mean
from fat2thin.data.dataset import Dataset, mapped_observations, real_type, transformed
from fat2thin.data.operations import episode_returns
from fat2thin.data.row_arrays import is_lazy, mapped

SMALLEST_SCALE = 1e-3
"""Smallest divisor of an observation column, for columns that never change in the log. TD3+BC adds
the same number to every standard deviation (sfujim/TD3_BC)."""

IQL_RETURN_RANGE = 1000.0
"""Difference between the best and the worst episode return after IQL's reward scaling
(ikostrikov/implicit_q_learning, train_offline.py)."""


@dataclasses.dataclass(frozen=True)
class Standardisation:
    """A map of observations to (observation − mean) / scale, per column."""

    mean: tuple[float, ...]
    """Mean of each column."""
    scale: tuple[float, ...]
    """Divisor of each column, positive."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.scale):
            sizes = f"{len(self.mean)} means and {len(self.scale)} scales"
            raise ValueError(f"{sizes}: give one of each per column")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all()):
            raise ValueError("means and scales must be finite")
        if not all(scale > 0 for scale in self.scale):
            raise ValueError(f"scales must be positive, got {self.scale}")

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with standardised observations and next observations."""
        if dataset.observation_size != len(self.mean):
            raise ValueError(
                f"data set {dataset.name!r} has {dataset.observation_size} observation columns, "
                f"the standardisation is for {len(self.mean)}"
            )
        mean, scale = np.array(self.mean), np.array(self.scale)
        # In float64: subtracting a large mean in float32 would lose digits.
        scaled = mapped_observations(dataset, lambda rows: (rows.astype(np.float64) - mean) / scale)
        return dataclasses.replace(dataset, name=f"{dataset.name}[standardised]", **scaled)


@dataclasses.dataclass(frozen=True)
class RewardScaling:
    """A map of rewards to (reward + shift) · factor."""

    shift: float = 0.0
    """Added to every reward."""
    factor: float = 1.0
    """Positive, so that the order of rewards stays."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.shift) and np.isfinite(self.factor) and self.factor > 0):
            raise ValueError(
                "a shift must be finite and a factor finite and positive, "
                f"got {self.shift} and {self.factor}"
            )

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with scaled rewards."""
        reward = mapped(
            lambda rows: (rows.astype(np.float64) + self.shift) * self.factor,
            dataset.reward, dtype=real_type(dataset.reward),
        )  # fmt: skip
        return dataclasses.replace(dataset, name=f"{dataset.name}[rewards scaled]", reward=reward)


def standardisation(dataset: Dataset, smallest_scale: float = SMALLEST_SCALE) -> Standardisation:
    """Return the mean and the standard deviation of each observation column."""
    scale = np.maximum(deviation(dataset.observation), smallest_scale)
    return Standardisation(tuple(mean(dataset.observation).tolist()), tuple(scale.tolist()))


def iql_reward_scaling(dataset: Dataset) -> RewardScaling:
    """Return IQL's scaling for locomotion: 1000 / (best − worst undiscounted episode return)."""
    returns = episode_returns(dataset)
    difference = float(returns.max() - returns.min())
    if not difference > 0:
        raise ValueError(
            f"data set {dataset.name!r}: every episode has the return {returns[0]:g}, so the range "
            "of returns gives no scale; set reward_scale to a number"
        )
    return RewardScaling(factor=IQL_RETURN_RANGE / difference)


def deviation_reward_scaling(dataset: Dataset) -> RewardScaling:
    """Return the scaling that gives the rewards a standard deviation of 1."""
    reward = dataset.reward
    lazy = is_lazy(reward)
    found = float(deviation(reward) if lazy else np.std(reward.astype(np.float64)))
    # A rounded mean gives equal numbers a deviation above zero.
    if reward.min() == reward.max() or not found > 0:
        raise ValueError(
            f"data set {dataset.name!r}: every reward is {reward[0]:g}, so their deviation gives "
            "no scale; set reward_scale to a number (1 leaves rewards unchanged)"
        )
    return RewardScaling(factor=1.0 / found)


def value_level(dataset: Dataset) -> float:
    """Return the constant Q that fits a log best: mean reward / (1 − discount · continuation).

    The continuation is the mean over the log. With it, the error Q − (reward + discount ·
    continuation · Q) is zero on average. Without discount and ends of episodes it is 0.

    Examples:
        >>> from fat2thin.data import load
        >>> log = load("treatment/quadratic")
        >>> bool(abs(centred(log, value_level(log)).reward.mean()) < 1e-5)
        True
    """
    left = 1.0 - float(dataset.discount) * float(mean(dataset.continuation))
    return float(mean(dataset.reward)) / left if left > 1e-9 else 0.0


def centred(dataset: Dataset, level: float) -> Dataset:
    """Return the data set whose Q is lower by `level` in every state, for every policy.

    Each reward is lowered by level · (1 − discount · continuation). This is reward shaping with a
    constant potential (Ng et al. 1999), so advantages and best policies stay the same.
    """
    if not level:
        return dataset
    discount = float(dataset.discount)
    reward = mapped(
        lambda rewards, continuation: (
            rewards.astype(np.float64) - level * (1.0 - discount * continuation.astype(np.float64))
        ),
        dataset.reward, dataset.continuation, dtype=real_type(dataset.reward),
    )  # fmt: skip
    return dataclasses.replace(dataset, name=f"{dataset.name}[centred]", reward=reward)


BY_LOG = {"return_range": iql_reward_scaling, "deviation": deviation_reward_scaling}
"""Reward scalings that are computed from the log, by name."""


@dataclasses.dataclass(frozen=True)
class Scales:
    """The scalings applied to a log before training; None where there is none."""

    observation: Standardisation | None = None
    reward: RewardScaling | None = None
    level: float = 0.0
    """Critics learn the difference from this value, in units of the scaled rewards. `apply` does
    not subtract it: see `centred`."""

    @property
    def reward_factor(self) -> float:
        """The factor of the rewards."""
        return 1.0 if self.reward is None else self.reward.factor

    def apply(self, dataset: Dataset) -> Dataset:
        """Return a data set with its columns transformed and these scalings applied."""
        dataset = transformed(dataset)
        for scale in (self.observation, self.reward):
            dataset = dataset if scale is None else scale.apply(dataset)
        return dataset

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with lists in place of tuples, and a level only if there is one."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        return {name: value for name, value in values.items() if value or name != "level"}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Scales":
        """Return the scales that `to_json` was called on."""
        seen, reward = values["observation"], values["reward"]
        return cls(
            None if seen is None else Standardisation(*map(tuple, (seen["mean"], seen["scale"]))),
            None if reward is None else RewardScaling(reward["shift"], reward["factor"]),
            values.get("level", 0.0),
        )


def find_scales(
    dataset: Dataset, standardise: bool, reward_scale: float | str, centre_values: bool = False
) -> Scales:
    """Return the scales of a log, after the transforms of its columns, for these run options.

    `reward_scale` is a factor or a key of `BY_LOG`.
    """
    dataset, reward = transformed(dataset), None
    if isinstance(reward_scale, str):
        reward = BY_LOG[reward_scale](dataset)
    elif reward_scale != 1.0:
        reward = RewardScaling(factor=reward_scale)
    scales = Scales(standardisation(dataset) if standardise else None, reward)
    if not centre_values:
        return scales
    return dataclasses.replace(scales, level=value_level(Scales(reward=reward).apply(dataset)))


def check_reward_scale(value: Any) -> float | str:
    """Return a valid `reward_scale` as a float or a key of `BY_LOG`; else raise a `ValueError`."""
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
