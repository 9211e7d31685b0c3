"""Gymnasium tasks whose episodes can be computed by hand; worker processes import them by name.

`gymnasium.make("rollout_tasks:Countdown-v0")`
"""

import os

import gymnasium
import numpy as np


class Countdown(gymnasium.Env):
    """Starts at `seed % 5 + 2` and counts down by one; the reward is the first action.

    At 0 the episode terminates, or is truncated if the seed is odd. The second observation is the
    seed.
    """

    def __init__(self, fails_at=None, never_ends=False, fails_to_start=False, noisy=False):
        if noisy:
            print("tasks may print", flush=True)
            os.write(1, b"even from C\n")
        if fails_to_start:
            raise RuntimeError("no pump at all")
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2.0, 4.0, (2,), np.float32)
        self.fails_at, self.never_ends = fails_at, never_ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.left = seed, seed % 5 + 2
        return self._observation(), {}

    def step(self, action):
        assert action.shape == (2,) and action.dtype == np.float32
        self.left -= 1
        if self.left == self.fails_at:
            raise RuntimeError("the pump is empty")
        over = self.left <= 0 and not self.never_ends
        odd = self.seed % 2 == 1
        return self._observation(), float(action[0]), over and not odd, over and odd, {}

    def _observation(self):
        return np.asarray([self.left, self.seed], np.float32)


class Precise(gymnasium.Env):
    """Has an action box whose ends are not exact in float32, and rejects actions outside it."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return np.zeros(2, np.float32), float(action[0]), True, False, {}


class Hop(gymnasium.Env):
    """Has the sizes of the hopper; actions move its observation, and a large one is the end."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=11)
        self.steps = 0
        return self.state.copy(), {}

    def step(self, action):
        assert action.shape == (3,) and action.dtype == np.float32
        self.state = 0.9 * self.state + np.resize(action, 11) * self.np_random.normal(size=11)
        self.steps += 1
        over = bool(np.abs(self.state).max() > 2.0)
        return self.state.copy(), np.float64(action.sum()), over, self.steps == 6, {}


class Choice(gymnasium.Env):
    """Has discrete actions instead of a box."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)


class Unbounded(gymnasium.Env):
    """Has an unbounded action box."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


for _task in (Countdown, Precise, Hop, Choice, Unbounded):
    gymnasium.register(f"{_task.__name__}-v0", entry_point=_task, disable_env_checker=True)
