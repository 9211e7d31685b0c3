"""Recording of logs in Gymnasium tasks, with a policy or any function that acts.

Episodes are numbered, and a log holds the first ones in numerical order, not those that finish
first, which would favour short episodes. An episode depends only on its number, the seed and the
policy, not on other episodes or the number of processes.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.array_log import float32_box
from fat2thin.data.operations import Box, RawLog, assemble
from fat2thin.envs.rollouts import Act, Environments, Steps, Task, describe
from fat2thin.policies.policy import WAYS, Policy
from fat2thin.random_streams import LARGEST_SEED, Stream, stream_key

ABREAST = 32  # environments that run in parallel
DISCOUNT = 0.99  # the usual discount factor of MuJoCo tasks


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
    """Record a data set of `rows` rows: whole episodes, the last one possibly cut.

    `act` maps observations of shape (environments, observation), episode numbers and step numbers
    to actions in the task's units, which are clipped to the box. `progress` is called with the
    number of rows so far. `abreast` is the number of parallel environments. The rows do not depend
    on it or on `workers` (see `Environments`) if `act` treats each environment independently.
    """
    task = describe(task) if isinstance(task, str) else task
    for what, number in (("rows", rows), ("abreast", abreast)):
        if number < 1:
            raise ValueError(f"{what} must be at least 1, not {number}")
    if not 0 <= discount <= 1:
        raise ValueError(f"the discount must lie in [0, 1], not {discount}")
    slots = min(abreast, rows)
    # Enough, since an episode has at least one step.
    numbers = np.arange(slots * math.ceil(rows / slots)).reshape(-1, slots).T
    seeds = np.asarray(reset_seeds(_key(seed)[None], numbers.ravel())).reshape(numbers.shape)
    recorder = _Recorder(rows, slots, numbers.size, progress)
    with Environments(task, slots, workers) as environments, contextlib.suppress(_Enough):
        environments.play(_in_box(task, act, slots), seeds, recorder.watch)
    box = Box(task.action_low, task.action_high, discount)
    return assemble(task.name if name is None else name, recorder.log(), box)


def uniform(task: Task, seed: int = 0) -> Act:
    """Return a function that draws actions uniformly from the box of the task."""
    low, high = (np.asarray(end, np.float32) for end in (task.action_low, task.action_high))
    return _by_rule(jax.tree_util.Partial(_uniform_action, low, high), seed)


def from_policy(policy: Policy, seed: int = 0, way: str = "sampled") -> Act:
    """Return a function that acts with a policy, by sampling or, for "centre", without.

    The draws depend only on the seed, the episode number and the step.
    """
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, got {way!r}")
    return _by_rule(WAYS[way](policy), seed)


class _Enough(Exception):
    """Raised when the requested number of rows is recorded."""


class _Recorder:
    """Stores steps until the first episodes have enough of them."""

    def __init__(
        self, rows: int, slots: int, episodes: int, progress: Callable[[int], None] | None
    ) -> None:
        self._rows, self._slots, self._progress = rows, slots, progress
        self._parts: list[Steps] = []
        # One extra entry, for the episode after the last.
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
        """Return the first rows of the first episodes."""
        steps = Steps(*map(np.concatenate, zip(*self._parts, strict=True)))
        order = np.argsort(steps.episode, kind="stable")[: self._rows]
        steps = Steps(*(column[order] for column in steps))
        return RawLog(
            observation=steps.observation,
            action=steps.action,
            reward=steps.reward,
            terminal=steps.terminated,
            cut=steps.truncated,
            next_observation=steps.next_observation,
        )


def _uniform_action(low: Array, high: Array, key: Key[Array, ""], observation: Array) -> Array:
    return jax.random.uniform(key, low.shape, minval=low, maxval=high)


def _in_box(task: Task, act: Act, slots: int) -> Act:
    """Wrap `act` to get numbers of episodes, and clip its float32 actions to the box."""
    low, high = float32_box(np.asarray(task.action_low), np.asarray(task.action_high))
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
    """Return a function that calls `rule(key, observation)` for all environments at once."""
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


def action_key(
    key: Key[Array, ""], episode: Int[Array, ""], step: Int[Array, ""]
) -> Key[Array, ""]:
    """Return the random key of the action of a step."""
    _, acting = jax.random.split(key)
    return jax.random.fold_in(jax.random.fold_in(acting, episode), step)


@jax.jit
def reset_seeds(
    keys: Key[Array, " jobs"], number: Int[Array, " episodes"]
) -> Int[Array, "jobs episodes"]:
    """Return the reset seeds of the numbered episodes, for every key."""

    def seed(key: Key[Array, ""], episode: Int[Array, ""]) -> Int[Array, ""]:
        reset, _ = jax.random.split(key)
        return jax.random.randint(jax.random.fold_in(reset, episode), (), 0, LARGEST_SEED)

    return jax.vmap(jax.vmap(seed, (None, 0)), (0, None))(keys, number)


def processor() -> jax.Device:
    """Return the CPU device, or the default device if JAX has no CPU."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return jax.devices()[0]


def _key(seed: int) -> Key[Array, ""]:
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"the seed must lie in [0, {LARGEST_SEED}], not {seed}")
    return stream_key(seed, Stream.LOG)
