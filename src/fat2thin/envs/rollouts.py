"""Episodes of any Gymnasium task with continuous actions, many environments side by side.

The environments are stepped by worker processes, the policy is asked once for all of them. What an
episode is depends on its own seed and on its policy alone: not on the environments beside it, nor
on the number of workers.
"""

import contextlib
import dataclasses
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import numpy as np

from fat2thin.envs.block import DONE, GO, IDLE, RESET, STEP, Block, Sizes, allocate, bytes_needed
from fat2thin.envs.errors import TaskFailed

LONGEST_EPISODE = 100_000
"""Steps after which a task that sets no limit is taken to have no end."""
_PATIENCE = 5.0
"""Seconds that a worker has to end by itself."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a Gymnasium task asks and allows."""

    name: str
    options: dict[str, Any]
    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    time_limit: int | None
    """Steps after which an episode is cut, where the task says so."""
    specification: Any = dataclasses.field(repr=False, compare=False)
    """Gymnasium's own, from which the task can be made again."""

    def check(
        self, observation_size: int, low: tuple[float, ...], high: tuple[float, ...], whose: str
    ) -> None:
        """Refuse sizes and a box that are not the task's; `whose` says what has them."""
        for what, mine, other in (
            ("observations of size", self.observation_size, observation_size),
            ("actions of size", len(self.action_low), len(low)),
        ):
            if mine != other:
                raise ValueError(
                    f"{self.name} has {what} {mine}, {whose} has {other}: name the right task"
                )
        box = np.asarray([self.action_low, self.action_high])
        if not np.allclose(box, [low, high], rtol=1e-5, atol=1e-6):
            raise ValueError(
                f"the actions of {self.name} lie in {list(self.action_low)} to "
                f"{list(self.action_high)}, those of {whose} in {list(low)} to {list(high)}: the "
                "units differ"
            )


@runtime_checkable
class Act(Protocol):
    """Whoever acts, for all slots at once."""

    def __call__(self, observation: np.ndarray, episode: np.ndarray, step: np.ndarray) -> Any:
        """Actions of shape (slots, action) for observations of shape (slots, observation).

        `episode` is which of its episodes each slot is in and `step` how far, both counted from 0.
        What is answered for a slot that has no more episodes is not used.
        """
        ...


class Steps(NamedTuple):
    """One step of the slots that took one; a row each."""

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
    """What came out of the episodes of all slots."""

    returns: np.ndarray
    """Shape (slots, episodes): undiscounted sums of rewards."""
    lengths: np.ndarray
    """Shape (slots, episodes): steps."""
    terminated: np.ndarray
    """Shape (slots, episodes): whether the task itself ended the episode."""
    seconds: float

    @property
    def steps(self) -> int:
        """Steps taken, over all episodes."""
        return int(self.lengths.sum())

    @property
    def steps_a_second(self) -> float:
        """How fast that was."""
        return self.steps / max(self.seconds, 1e-9)


def describe(task: str, **options: Any) -> Task:
    """Make the task once and say what it is; one that we cannot act in is refused with the reason.

    `options` go to `gymnasium.make`, and are such as JSON can hold. A name may be "module:Name-v0":
    the module is imported first.
    """
    try:
        json.dumps(options)
    except TypeError as error:
        raise ValueError(f"{task}: options must be such as JSON can hold: {error}") from error
    try:
        environment = gymnasium.make(task, **options)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(
            f"Gymnasium cannot make {task!r}: {error}. Tasks of a package of yours are called "
            '"package.module:Name-v0"; the MuJoCo robots need `pip install "fat2thin[mujoco]"`'
        ) from error
    try:
        observation, action = environment.observation_space, environment.action_space
        _check_box(task, "observation", observation)
        _check_box(task, "action", action)
        assert isinstance(observation, gymnasium.spaces.Box)
        assert isinstance(action, gymnasium.spaces.Box)
        if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
            raise ValueError(
                f"{task}: the action box must be finite, it is {action}; a wrapper such as "
                "gymnasium.wrappers.RescaleAction makes one"
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


def _check_box(task: str, what: str, space: gymnasium.Space) -> None:
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype is None:
        raise ValueError(f"{task}: the {what} must be a box of numbers, it is {space}")
    if space.dtype.kind != "f":
        raise ValueError(f"{task}: the {what} must be of real numbers, it is {space}")


class Environments:
    """So many environments of a task, ready to play; use it in a `with` statement.

    Without `workers` there is one process a processor; with `workers=0` all is done here, which
    also works for tasks that only this process knows.
    """

    def __init__(self, task: Task, slots: int, workers: int | None = None) -> None:
        if slots < 1:
            raise ValueError(f"there must be one environment at least, not {slots}")
        self.task, self.slots = task, slots
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        workers = (available or os.cpu_count() or 1) if workers is None else workers
        sizes = Sizes(slots, task.observation_size, len(task.action_low))
        self._block: Block | None = None
        self._workers: list[subprocess.Popen] = []
        # Also where nobody closes them: workers must not outlive what they work for.
        self._end = weakref.finalize(self, _end_workers, self._workers)
        if workers == 0:
            self._arrays = allocate(sizes)
            self._block = Block(task.name, task.options, self._arrays)
        else:
            self._start(sizes, min(workers, slots))

    def _start(self, sizes: Sizes, workers: int) -> None:
        # In memory where the system has a file system there; the file has no name to be left over.
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(bytes_needed(sizes))
            self._arrays = allocate(sizes, mmap.mmap(file.fileno(), bytes_needed(sizes)))
            try:
                for first in range(workers):
                    order = {
                        "task": self.task.name,
                        "options": self.task.options,
                        "sizes": sizes,
                        "memory": file.fileno(),
                        "first": first,
                        "every": workers,
                    }
                    self._workers.append(_start_worker(order, file.fileno()))
                self._wait()
            except TaskFailed as error:
                raise TaskFailed(
                    f"{error}. A task that only this process knows needs workers=0, or a name with "
                    'its module ("package.module:Name-v0")'
                ) from error
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "Environments":
        return self

    def __exit__(self, *error: object) -> None:
        """Close them."""
        self.close()

    def close(self) -> None:
        """End the workers; nothing can be played after that."""
        if self._block is not None:
            self._block.close()
            self._block = None
        self._end()

    def play(
        self, act: Act, seeds: np.ndarray, watch: Callable[[Steps], None] | None = None
    ) -> Rollouts:
        """Every slot plays one episode after the other, as many as it has `seeds`.

        `seeds` has shape (slots, episodes): what each episode is reset with. `watch` is shown every
        step that was taken.
        """
        if not self._end.alive:
            raise TaskFailed(f"{self.task.name}: these environments are closed")
        began = time.perf_counter()
        seeds = np.asarray(seeds)
        if seeds.ndim != 2 or len(seeds) != self.slots or not seeds.size:
            raise ValueError(f"seeds must have shape ({self.slots}, episodes), not {seeds.shape}")
        arrays, total = self._arrays, seeds.shape[1]
        found = Rollouts(
            returns=np.zeros(seeds.shape),
            lengths=np.zeros(seeds.shape, np.int64),
            terminated=np.zeros(seeds.shape, bool),
            seconds=0.0,
        )
        episode, step = np.zeros(self.slots, np.int64), np.zeros(self.slots, np.int64)
        arrays.command[:], arrays.seed[:] = RESET, seeds[:, 0]
        self._go()
        while (episode < total).any():
            playing = np.flatnonzero(episode < total)
            before = arrays.observation.astype(np.float32)
            action = np.asarray(act(before, episode, step))[playing]
            arrays.action[playing] = action
            arrays.command[:] = IDLE
            arrays.command[playing] = STEP
            self._go()
            where = playing, episode[playing]
            found.returns[where] += arrays.reward[playing]
            found.lengths[where] += 1
            found.terminated[where] |= arrays.terminated[playing]
            step[playing] += 1
            if watch is not None:
                watch(
                    Steps(
                        slot=playing,
                        episode=episode[playing],
                        observation=before[playing],
                        action=action,
                        reward=arrays.reward[playing],
                        next_observation=arrays.observation[playing].astype(np.float32),
                        terminated=arrays.terminated[playing],
                        truncated=arrays.truncated[playing],
                    )
                )
            self._begin_next(playing, seeds, episode, step)
        return dataclasses.replace(found, seconds=time.perf_counter() - began)

    def _begin_next(
        self, playing: np.ndarray, seeds: np.ndarray, episode: np.ndarray, step: np.ndarray
    ) -> None:
        """Reset the slots whose episode is over and that have another."""
        arrays = self._arrays
        ends = arrays.terminated[playing] | arrays.truncated[playing]
        over = playing[ends]
        longest = max(LONGEST_EPISODE, self.task.time_limit or 0)
        if (step[playing[~ends]] >= longest).any():
            raise ValueError(
                f"{self.task.name}: an episode has {longest:,} steps and does not end; register "
                "the task with max_episode_steps, or give it as an option"
            )
        if not over.size:
            return
        episode[over] += 1
        step[over] = 0
        next_ones = over[episode[over] < seeds.shape[1]]
        arrays.command[:] = IDLE
        arrays.command[next_ones] = RESET
        arrays.seed[next_ones] = seeds[next_ones, episode[next_ones]]
        if next_ones.size:
            self._go()

    def _go(self) -> None:
        """Let every slot do what it is told."""
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
                # One that is gone has said why, and that is read below.
                with contextlib.suppress(BrokenPipeError):
                    worker.stdin.write(GO)
            self._wait()
        except BaseException:
            # Somebody's answer may still be on its way: what was heard next would be the old one.
            self.close()
            raise

    def _wait(self) -> None:
        for worker in self._workers:
            assert worker.stdout is not None
            if worker.stdout.read(1) != DONE:
                reason = worker.stdout.read().decode(errors="replace")
                self.close()
                raise TaskFailed(
                    f"{self.task.name}: an environment failed in its process: "
                    f"{reason or 'it ended without a word'}"
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


def _start_worker(order: dict[str, Any], memory: int) -> subprocess.Popen:
    # One thread each: the workers themselves fill the processors.
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # The same modules as here, and none of the current folder that are not on our own path.
    known = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    display = {"MUJOCO_GL": os.environ.get("MUJOCO_GL", "disabled")}
    line = json.dumps(order).encode() + b"\n"
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "fat2thin.envs.block"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        pass_fds=(memory,),
        # An interrupt from the keyboard is for us alone; workers end when nobody speaks to them.
        start_new_session=True,
        env={**os.environ, **one_thread, **known, **display},
    )
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(line)
    return worker
