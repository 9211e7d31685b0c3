"""Logs of whoever acts in a Gymnasium task.

Episodes have numbers, and a log holds the first ones in the order of their numbers, whichever of
the environments side by side was done first: else it would hold too many short ones. What an
episode is depends on its number, on the seed and on whoever acts.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import Box, RawLog, assemble
from fat2thin.envs.episode_keys import action_key, processor, reset_seed
from fat2thin.envs.rollouts import Act, Environments, Steps, Task, describe
from fat2thin.policies.policy import WAYS, Policy
from fat2thin.random_streams import LARGEST_SEED, Stream, stream_key

ABREAST = 32
"""Environments side by side."""
DISCOUNT = 0.99
"""What MuJoCo's robots are mostly learned with."""


def record(
    task: Task | str,
    act: Act,
    rows: int,
    seed: int = 0,
    *,
    name: str | None = None,
    discount: float = DISCOUNT,
    workers: int | None = None,
    abreast: int = ABREAST,
    progress: Callable[[int], None] | None = None,
) -> Dataset:
    """A log of so many rows: whole episodes, the last of them cut where there are enough.

    `act` gets observations of shape (environments, observation), the numbers of their episodes and
    how far each is, and answers with actions in the task's units; what lies outside the box is
    clipped before it is played. `progress` is told how many rows there are so far. The rows depend
    neither on `workers` (see `Environments`) nor on `abreast`, if what `act` answers an environment
    does not depend on those beside it.
    """
    task = describe(task) if isinstance(task, str) else task
    _check(rows, discount, abreast)
    slots = min(abreast, rows)
    # An episode has a step at least, so that these are enough.
    numbers = np.arange(slots * math.ceil(rows / slots)).reshape(-1, slots).T
    seeds = np.asarray(_reset_seeds(_key(seed), numbers))
    recorder = _Recorder(rows, slots, numbers.size, progress)
    with Environments(task, slots, workers) as environments, contextlib.suppress(_Enough):
        environments.play(_in_box(task, act, slots), seeds, recorder.watch)
    box = Box(task.action_low, task.action_high, discount)
    return assemble(task.name if name is None else name, recorder.log(), box)


def uniform(task: Task, seed: int = 0) -> Act:
    """Acts at random: every action drawn uniformly from the box of the task."""
    low, high = (np.asarray(end, np.float32) for end in (task.action_low, task.action_high))
    return _by_rule(_Uniform(low, high), seed)


def from_policy(policy: Policy, seed: int = 0, way: str = "sampled") -> Act:
    """Acts as a policy does, by a sample or at its centre ("centre").

    What is drawn depends on the seed, the number of the episode and the step alone.
    """
    if way not in WAYS:
        raise ValueError(f"a policy acts in the ways {', '.join(WAYS)}, not {way!r}")
    return _by_rule(WAYS[way](policy), seed)


class _Enough(Exception):
    """There are as many rows as were asked for."""


class _Recorder:
    """Keeps the steps it is shown until the first episodes have enough of them."""

    def __init__(
        self, rows: int, slots: int, episodes: int, progress: Callable[[int], None] | None
    ) -> None:
        self._rows, self._slots, self._progress = rows, slots, progress
        self._parts: list[Steps] = []
        # One more than there are, for the look at the episode after the last.
        self._lengths = np.zeros(episodes + 1, np.int64)
        self._over = np.zeros(episodes + 1, bool)
        self._taken, self._whole, self._rows_of_whole = 0, 0, 0

    def watch(self, steps: Steps) -> None:
        number = steps.slot + self._slots * steps.episode
        self._parts.append(steps._replace(episode=number))
        self._lengths[number] += 1
        self._over[number] = steps.terminated | steps.truncated
        while self._over[self._whole]:
            self._rows_of_whole += int(self._lengths[self._whole])
            self._whole += 1
        self._taken += number.size
        if self._progress is not None:
            self._progress(min(self._taken, self._rows))
        if self._rows_of_whole + self._lengths[self._whole] >= self._rows:
            raise _Enough

    def log(self) -> RawLog:
        """The first rows of the first episodes."""
        order = np.argsort(self._all("episode"), kind="stable")[: self._rows]
        return RawLog(
            observation=self._all("observation")[order],
            action=self._all("action")[order],
            reward=self._all("reward")[order],
            terminal=self._all("terminated")[order],
            cut=self._all("truncated")[order],
            next_observation=self._all("next_observation")[order],
        )

    def _all(self, field: str) -> np.ndarray:
        return np.concatenate([getattr(part, field) for part in self._parts])


class _Uniform(eqx.Module):
    low: Any
    high: Any

    def __call__(self, key: Key[Array, ""], observation: Array) -> Array:
        return jax.random.uniform(key, self.low.shape, minval=self.low, maxval=self.high)


def _check(rows: int, discount: float, abreast: int) -> None:
    for what, number in (("rows", rows), ("abreast", abreast)):
        if number < 1:
            raise ValueError(f"{what} must be at least 1, not {number}")
    if not 0 <= discount <= 1:
        raise ValueError(f"the discount must lie in [0, 1], not {discount}")


def _in_box(task: Task, act: Act, slots: int) -> Act:
    """The same, for numbers of episodes instead of places in a slot, and in float32 in the box."""
    # Rounded into the box, whose ends may be no numbers of float32.
    low, high = (np.asarray(end, np.float32) for end in (task.action_low, task.action_high))
    low = np.where(low < task.action_low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > task.action_high, np.nextafter(high, np.float32(-np.inf)), high)
    first = np.arange(slots)

    def clipped(observation: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        action = np.asarray(act(observation, first + slots * episode, step), np.float32)
        if action.shape != (slots, low.size):
            raise ValueError(
                f"{task.name}: actions must have shape {(slots, low.size)}, not {action.shape}"
            )
        return np.clip(action, low, high)

    return clipped


def _by_rule(rule: Any, seed: int) -> Act:
    """Whoever acts by a rule `rule(key, observation)`, all environments in one compiled call."""
    rule, key = jax.device_put((rule, _key(seed)), processor())

    def act(observation: np.ndarray, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        return np.asarray(_actions(rule, key, observation, episode, step))

    return act


@jax.jit
def _actions(
    rule: Any,
    key: Key[Array, ""],
    observation: Float[Array, "slots observation"],
    episode: Int[Array, " slots"],
    step: Int[Array, " slots"],
) -> Float[Array, "slots action"]:
    def one(observation: Array, episode: Array, step: Array) -> Array:
        return rule(action_key(key, episode, step), observation)

    return jax.vmap(one)(observation, episode, step)


@jax.jit
def _reset_seeds(
    key: Key[Array, ""], number: Int[Array, "slots episodes"]
) -> Int[Array, "slots episodes"]:
    """What the episodes are reset with."""
    return jax.vmap(jax.vmap(reset_seed, (None, 0)), (None, 0))(key, number)


def _key(seed: int) -> Key[Array, ""]:
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"the seed must lie in [0, {LARGEST_SEED}], not {seed}")
    return stream_key(seed, Stream.LOG)
