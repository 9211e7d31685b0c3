"""Parallel rollouts in Gymnasium tasks with continuous actions.

Worker processes step the environments; the policy is called once for all of them. An episode
depends only on its seed and policy, not on other environments or the number of workers.

A worker process runs this module. It shares records in memory with its driver, and single bytes
signal "go" and "done". Only NumPy and Gymnasium are imported here.
"""

import contextlib
import dataclasses
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from fat2thin.envs import TaskFailed

LONGEST_EPISODE = 100_000
"""Number of steps after which an episode without a time limit counts as endless."""
ROBOTS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker2d": "Walker2d-v5"}
"""Tasks of D4RL's robots, except the ant, whose observations have changed since D4RL."""
_PATIENCE = 5.0  # seconds before a worker that does not end is killed
_IDLE, _RESET, _STEP = 0, 1, 2  # commands to a slot
_GO, _DONE, _FAILED = b"g", b"d", b"f"  # messages to and from a worker


@dataclasses.dataclass(frozen=True)
class Task:
    """Sizes, action box and time limit of a Gymnasium task."""

    name: str
    options: dict[str, Any]
    """Arguments of `gymnasium.make`."""
    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    time_limit: int | None
    """Number of steps after which an episode is truncated, if there is a limit."""
    specification: Any = dataclasses.field(repr=False, compare=False)
    """Gymnasium's specification, from which the task can be recreated."""

    def check(
        self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...], whose: str
    ) -> None:
        """Raise a `ValueError` if sizes or box differ; `whose` names their owner in the message."""
        for what, mine, other in (
            ("observations of size", self.observation_size, observation_size),
            ("actions of size", len(self.action_low), len(low)),
        ):
            if mine != other:
                raise ValueError(
                    f"{self.name} has {what} {mine}, {whose} has {other}: give the right task"
                )
        box = np.asarray([self.action_low, self.action_high])
        if not np.allclose(box, [low, high], rtol=1e-5, atol=1e-6):
            raise ValueError(
                f"the actions of {self.name} lie in {list(self.action_low)} to "
                f"{list(self.action_high)}, those of {whose} in {list(low)} to {list(high)}: the "
                "units differ"
            )


Act = Callable[[np.ndarray, np.ndarray, np.ndarray], Any]
"""A function of observations (slots, observation), and of the episode and step number of each slot
(from 0) that returns actions (slots, action). Actions of finished slots are ignored."""


class Steps(NamedTuple):
    """One step of all active slots, one row per slot."""

    slot: np.ndarray
    episode: np.ndarray
    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """Results of the episodes of all slots."""

    returns: np.ndarray
    """Shape (slots, episodes): undiscounted sums of rewards."""
    lengths: np.ndarray
    """Shape (slots, episodes): numbers of steps."""
    terminated: np.ndarray
    """Shape (slots, episodes): whether the episode had a true end."""
    seconds: float
    """Wall-clock time."""

    @property
    def steps(self) -> int:
        """Total steps over all episodes."""
        return int(self.lengths.sum())

    @property
    def steps_a_second(self) -> float:
        """Steps per second."""
        return self.steps / max(self.seconds, 1e-9)


def describe(task: str, **options: Any) -> Task:
    """Return the description of a task; raise a `ValueError` if its spaces are not supported.

    `options` are passed to `gymnasium.make` and must be JSON-serialisable. For a name such as
    "module:Name-v0", the module is imported first.
    """
    try:
        json.dumps(options)
    except TypeError as error:
        raise ValueError(f"{task}: options must be JSON-serialisable: {error}") from error
    try:
        environment = gymnasium.make(task, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(
            f"Gymnasium cannot make {task!r}: {str(error).rstrip('.?')}. Name a task of your own "
            'package "package.module:Name-v0"; MuJoCo tasks need `pip install "fat2thin[mujoco]"`'
        ) from error
    try:
        observation = _real_box(task, "observation", environment.observation_space)
        action = _real_box(task, "action", environment.action_space)
        if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
            raise ValueError(
                f"{task}: the action box must be finite, but is {action}; use a wrapper such as "
                "gymnasium.wrappers.RescaleAction"
            )
        return Task(
            name=task,
            options=options,
            observation_size=math.prod(observation.shape),
            action_low=tuple(np.ravel(action.low).astype(float).tolist()),
            action_high=tuple(np.ravel(action.high).astype(float).tolist()),
            time_limit=environment.spec.max_episode_steps if environment.spec else None,
            specification=environment.spec,
        )
    finally:
        environment.close()


def _real_box(task: str, what: str, space: gymnasium.Space) -> gymnasium.spaces.Box:
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype is None:
        raise ValueError(f"{task}: the {what} space must be a box of numbers, but is {space}")
    if space.dtype.kind != "f":
        raise ValueError(f"{task}: the {what} space must have real numbers, but is {space}")
    return space


def _slot_type(observation: int, action: int) -> np.dtype:
    """Return the type of the record that a slot shares with the driver."""
    return np.dtype(
        [
            ("command", np.int64),  # _IDLE, _RESET or _STEP
            ("seed", np.int64),  # of the episode that a _RESET starts
            ("action", np.float64, (action,)),
            ("observation", np.float64, (observation,)),
            ("reward", np.float64),
            ("terminated", np.bool_),
            ("truncated", np.bool_),
        ],
        align=True,
    )


class _Block:
    """Environments of one task, one per slot."""

    def __init__(self, task: str, options: dict[str, Any], slots: np.ndarray) -> None:
        self.slots = slots
        self.environments = [gymnasium.make(task, **options) for _ in slots]

    def go(self) -> None:
        """Execute the command of every slot."""
        for row in np.flatnonzero(self.slots["command"] != _IDLE):
            slot, environment = self.slots[row], self.environments[row]
            if slot["command"] == _RESET:
                observation, _ = environment.reset(seed=int(slot["seed"]))
            else:
                space = environment.action_space
                assert isinstance(space, gymnasium.spaces.Box)
                # Clipped in the task's precision: rounding may put a float64 outside the box.
                action = slot["action"].reshape(space.shape).astype(space.dtype)
                observation, slot["reward"], slot["terminated"], slot["truncated"], _ = (
                    environment.step(np.clip(action, space.low, space.high))
                )
            slot["observation"] = np.ravel(observation)

    def close(self) -> None:
        """Close the environments."""
        for environment in self.environments:
            environment.close()


class Environments(contextlib.AbstractContextManager):
    """Parallel environments of a task; use it in a `with` statement.

    By default there is one worker process per CPU. `workers=0` steps everything in this process,
    which also works for tasks that are registered only here.
    """

    def __init__(self, task: Task, slots: int, workers: int | None = None) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.task, self.slots = task, slots
        workers = processors() if workers is None else workers
        self._block: _Block | None = None
        self._workers: list[subprocess.Popen] = []
        # Workers must not outlive this object, even if it is never closed.
        self._end = weakref.finalize(self, _end_workers, self._workers)
        sizes = task.observation_size, len(task.action_low)
        if workers == 0:
            self._records = np.zeros(slots, _slot_type(*sizes))
            self._block = _Block(task.name, task.options, self._records)
        else:
            self._start(sizes, min(workers, slots))

    def _start(self, sizes: tuple[int, int], workers: int) -> None:
        # In shared memory if possible; unnamed, so that nothing is left behind.
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        kind = _slot_type(*sizes)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(self.slots * kind.itemsize)
            memory = mmap.mmap(file.fileno(), self.slots * kind.itemsize)
            self._records = np.frombuffer(memory, kind)
            try:
                order = {
                    "task": self.task.name,
                    "options": self.task.options,
                    "sizes": sizes,
                    "slots": self.slots,
                    "memory": file.fileno(),
                    "every": workers,
                }
                for first in range(workers):
                    self._workers.append(_start_worker({**order, "first": first}))
                self._wait()
            except TaskFailed as error:
                raise TaskFailed(
                    f"{error}. A task that is registered only in this process needs workers=0, or "
                    'a name with its module ("package.module:Name-v0")'
                ) from error
            except BaseException:
                self.close()
                raise

    def __exit__(self, *error: object) -> None:
        """Close the environments."""
        self.close()

    def close(self) -> None:
        """End the workers; `play` cannot be called afterwards."""
        if self._block is not None:
            self._block.close()
            self._block = None
        self._end()

    def play(
        self, act: Act, seeds: np.ndarray, watch: Callable[[Steps], None] | None = None
    ) -> Rollouts:
        """Play one episode per seed in every slot and return the results.

        `seeds` has shape (slots, episodes); each episode is reset with its seed. `watch` is called
        after every step.
        """
        if not self._end.alive:
            raise TaskFailed(f"{self.task.name}: these environments are closed")
        began = time.perf_counter()
        seeds = np.asarray(seeds)
        if seeds.ndim != 2 or len(seeds) != self.slots or not seeds.size:
            raise ValueError(f"seeds must have shape ({self.slots}, episodes), not {seeds.shape}")
        records, total = self._records, seeds.shape[1]
        returns, lengths = np.zeros(seeds.shape), np.zeros(seeds.shape, np.int64)
        terminated = np.zeros(seeds.shape, bool)
        episode, step = np.zeros(self.slots, np.int64), np.zeros(self.slots, np.int64)
        longest = max(LONGEST_EPISODE, self.task.time_limit or 0)
        records["seed"] = seeds[:, 0]
        self._go(_RESET, np.arange(self.slots))
        while (episode < total).any():
            playing = np.flatnonzero(episode < total)
            before = records["observation"].astype(np.float32)
            action = np.asarray(act(before, episode, step))[playing]
            records["action"][playing] = action
            self._go(_STEP, playing)
            where = playing, episode[playing]
            ends = tuple(records[name][playing] for name in ("terminated", "truncated"))
            reward, after = (records[name][playing] for name in ("reward", "observation"))
            returns[where] += reward
            lengths[where] += 1
            terminated[where] |= ends[0]
            step[playing] += 1
            if watch is not None:
                after = after.astype(np.float32)
                watch(Steps(*where, before[playing], action, reward, after, *ends))
            ended = ends[0] | ends[1]
            over = playing[ended]
            if (step[playing[~ended]] >= longest).any():
                raise ValueError(
                    f"{self.task.name}: an episode has {longest:,} steps and does not end; set "
                    "max_episode_steps when the task is registered, or as an option"
                )
            episode[over] += 1
            step[over] = 0
            following = over[episode[over] < total]
            if following.size:
                records["seed"][following] = seeds[following, episode[following]]
                self._go(_RESET, following)
        return Rollouts(returns, lengths, terminated, time.perf_counter() - began)

    def _go(self, command: int, slots: np.ndarray) -> None:
        """Execute a command in these slots."""
        self._records["command"] = _IDLE
        self._records["command"][slots] = command
        if self._block is not None:
            try:
                self._block.go()
            except Exception as error:
                self.close()
                raise TaskFailed(f"{self.task.name}: an environment failed: {error}") from error
            return
        try:
            for worker in self._workers:
                assert worker.stdin is not None
                # A dead worker has written the reason, which is read below.
                with contextlib.suppress(BrokenPipeError):
                    worker.stdin.write(_GO)
            self._wait()
        except BaseException:
            # A pending answer would be mistaken for the next one.
            self.close()
            raise

    def _wait(self) -> None:
        for worker in self._workers:
            assert worker.stdout is not None
            if worker.stdout.read(1) != _DONE:
                reason = worker.stdout.read().decode(errors="replace")
                self.close()
                raise TaskFailed(
                    f"{self.task.name}: an environment failed in its process: "
                    f"{reason or 'it ended without a message'}"
                )


def _end_workers(workers: list[subprocess.Popen]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
    for worker in workers:
        try:
            worker.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


def processors() -> int:
    """Return the number of CPUs that this process may use."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return available or os.cpu_count() or 1


def start_process(module: str, order: dict[str, Any], **options: Any) -> subprocess.Popen:
    """Start a worker process that runs a module and reads its order, a line of JSON, from stdin.

    `options` are those of `subprocess.Popen`.
    """
    # One thread per worker, as there is one worker per CPU. It also fixes the order of sums.
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # The same modules as here; the current folder only if it is on our path.
    known = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    display = {"MUJOCO_GL": os.environ.get("MUJOCO_GL", "disabled")}
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        # Only the driver handles a keyboard interrupt; workers end when their pipe closes.
        start_new_session=True,
        env={**os.environ, **one_thread, **known, **display},
        **options,
    )
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(order).encode() + b"\n")
    return worker


def _start_worker(order: dict[str, Any]) -> subprocess.Popen:
    return start_process("fat2thin.envs.rollouts", order, pass_fds=(order["memory"],))


def _work() -> None:
    """Run a worker: read its task from stdin, then step until the driver closes the pipe."""
    # The driver handles signals to the process group, and may still need this worker.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Output of a task, from Python or C, goes to stderr, so that it is not taken as an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        order = json.loads(sys.stdin.buffer.readline())
        kind = _slot_type(*order["sizes"])
        memory = mmap.mmap(order["memory"], order["slots"] * kind.itemsize)
        slots = np.frombuffer(memory, kind)[order["first"] :: order["every"]]
        block = _Block(order["task"], order["options"], slots)
        answers.write(_DONE)
        while sys.stdin.buffer.read(1) == _GO:
            block.go()
            answers.write(_DONE)
        block.close()
    except BrokenPipeError:
        pass  # the driver is gone
    except BaseException as error:
        answers.write(_FAILED + (str(error) or type(error).__name__).encode())
        traceback.print_exc()


if __name__ == "__main__":
    _work()
