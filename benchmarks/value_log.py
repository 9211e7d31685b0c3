"""What a case of `benchmarks/value.py` is made of: logs and true values."""

from typing import NamedTuple

from jax import Array


class Log(NamedTuple):
    """Raw logs, padded to the horizon."""

    observation: Array  # (episodes, steps, observation)
    action: Array
    reward: Array  # 0 where no step was logged
    following: Array
    continuation: Array
    here: Array
    log_density: Array  # of the logged actions, in raw units


class Truth(NamedTuple):
    """The value of a policy, with the standard error of a simulation (0 if it is exact)."""

    value: float
    error: float
