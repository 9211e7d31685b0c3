"""The treatment task as a Gymnasium environment; importing this module registers it.

`gymnasium.make("fat2thin.envs.gym:fat2thin/Treatment-v0")` imports it. The quadratic reward has its
own name: Gymnasium would tell users of `Treatment-v0` to upgrade to a `Treatment-v1`.
"""

from typing import Any

import gymnasium
import jax
import numpy as np

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Patient, Treatment

IDENTIFIERS = {
    "fat2thin/Treatment-v0": "treatment/cubic",
    "fat2thin/TreatmentQuadratic-v0": "treatment/quadratic",
}
"""Registered identifiers and their variants of the task."""

_reset = jax.jit(treatment.reset, static_argnames="task")
_step = jax.jit(treatment.step, static_argnames="task")


class TreatmentEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """An environment of one patient; `task` is a variant or its name ("treatment/cubic-fixed").

    Observations have shape (8,), actions shape (1,) in the units of the task. Actions outside the
    box are clipped. An episode is truncated at the horizon and never terminates. `info` has the
    fields of `treatment.Info` after a step and is empty after a reset.

    Randomness: each reset draws an integer below 2³¹ from `np_random` and makes a key of it. The
    key is split into one for `treatment.reset` and one that is folded with t = 0, 1, … for
    `treatment.step`.
    """

    def __init__(self, task: Treatment | str = "treatment/cubic") -> None:
        self.task = treatment.by_name(task) if isinstance(task, str) else task
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (treatment.OBSERVATION_SIZE,), np.float32
        )
        low, high = np.float32(self.task.dose_low), np.float32(self.task.dose_high)
        self.action_space = gymnasium.spaces.Box(low, high, (treatment.ACTION_SIZE,), np.float32)
        self._state: Patient | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode with a new patient; `options` must be empty."""
        super().reset(seed=seed)
        if options:
            raise ValueError(f"the treatment task has no reset options, got {options!r}")
        key = jax.random.key(int(self.np_random.integers(2**31)))
        reset_key, self._noise_key = jax.random.split(key)
        self._state, observation = _reset(reset_key, task=self.task)
        return np.asarray(observation, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Give one dose and return (observation, reward, False, truncated, info)."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        key = jax.random.fold_in(self._noise_key, self._state.time)
        self._state, observation, reward, info = _step(
            key, self._state, np.asarray(action, np.float32), task=self.task
        )
        truncated = int(self._state.time) >= self.task.horizon
        report = {name: value.item() for name, value in info._asdict().items()}
        return np.asarray(observation, np.float32), float(reward), False, truncated, report


def register() -> None:
    """Register the identifiers with Gymnasium, unless they are registered already."""
    for identifier, name in IDENTIFIERS.items():
        if identifier not in gymnasium.registry:
            gymnasium.register(
                identifier, entry_point="fat2thin.envs.gym:TreatmentEnv", kwargs={"task": name}
            )


register()
