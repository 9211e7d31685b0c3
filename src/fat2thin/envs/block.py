"""A block of Gymnasium environments that one process steps.

Run as a module it is a worker: its rows of arrays in shared memory are its whole conversation, and
a byte each way says "go" and "done". It imports NumPy and Gymnasium and nothing else of ours.
"""

import json
import mmap
import os
import signal
import sys
import traceback
from typing import IO, Any, NamedTuple

import gymnasium
import numpy as np

IDLE, RESET, STEP = 0, 1, 2
"""What a slot is told to do."""
GO, DONE, FAILED = b"g", b"d", b"f"


class Arrays(NamedTuple):
    """What the environments are told and what they answer, a slot a row."""

    command: np.ndarray
    """IDLE, RESET or STEP."""
    seed: np.ndarray
    """Of the episode that a RESET begins."""
    action: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Sizes(NamedTuple):
    """What the shape of the arrays follows from."""

    slots: int
    observation: int
    action: int


def allocate(sizes: Sizes, memory: Any = None) -> Arrays:
    """The arrays, one after the other in `memory`, or in memory of their own."""
    shapes = _shapes(sizes)
    if memory is None:
        memory = bytearray(bytes_needed(sizes))
    arrays, offset = [], 0
    for kind, shape in shapes:
        array: np.ndarray = np.frombuffer(memory, kind, int(np.prod(shape)), offset).reshape(shape)
        arrays.append(array)
        offset += array.nbytes
    return Arrays(*arrays)


def bytes_needed(sizes: Sizes) -> int:
    """How much memory the arrays take."""
    return sum(np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in _shapes(sizes))


def _shapes(sizes: Sizes) -> list[tuple[type, tuple[int, ...]]]:
    # The widest types first, so that every array begins where its type may.
    slots = sizes.slots
    return [
        (np.int64, (slots,)),
        (np.int64, (slots,)),
        (np.float64, (slots, sizes.action)),
        (np.float64, (slots, sizes.observation)),
        (np.float64, (slots,)),
        (np.bool_, (slots,)),
        (np.bool_, (slots,)),
    ]


class Block:
    """Environments of one task, each with its row of the arrays."""

    def __init__(self, task: str, options: dict[str, Any], arrays: Arrays) -> None:
        self.arrays = arrays
        self.environments = [gymnasium.make(task, **options) for _ in arrays.command]
        space = self.environments[0].action_space
        assert isinstance(space, gymnasium.spaces.Box)
        self._actions = space

    def go(self) -> None:
        """Do what every slot is told."""
        for row in np.flatnonzero(self.arrays.command != IDLE):
            if self.arrays.command[row] == RESET:
                observation, _ = self.environments[row].reset(seed=int(self.arrays.seed[row]))
            else:
                observation = self._step(int(row))
            self.arrays.observation[row] = np.ravel(observation)

    def _step(self, row: int) -> np.ndarray:
        space = self._actions
        action = self.arrays.action[row].reshape(space.shape)
        # In the task's own precision, where a number of another may lie just outside the box.
        action = np.clip(action.astype(space.dtype), space.low, space.high)
        observation, reward, terminated, truncated, _ = self.environments[row].step(action)
        self.arrays.reward[row] = reward
        self.arrays.terminated[row] = terminated
        self.arrays.truncated[row] = truncated
        return observation

    def close(self) -> None:
        """Let the environments go."""
        for environment in self.environments:
            environment.close()


def work(order: dict[str, Any], answers: IO[bytes]) -> None:
    """Be a worker until nobody speaks any more."""
    sizes = Sizes(*order["sizes"])
    memory = mmap.mmap(order["memory"], bytes_needed(sizes))
    arrays = Arrays(*(array[order["first"] :: order["every"]] for array in allocate(sizes, memory)))
    block = Block(order["task"], order["options"], arrays)
    answers.write(DONE)
    while sys.stdin.buffer.read(1) == GO:
        block.go()
        answers.write(DONE)
    block.close()


def main() -> None:
    """Take the order from the first line that comes in."""
    # What stops a whole group of processes is for the one that trains: it may still need us.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What a task prints, in Python or in C, must not be taken for an answer: it goes to stderr.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        work(json.loads(sys.stdin.buffer.readline()), answers)
    except BrokenPipeError:
        pass  # nobody listens any more
    except BaseException as error:
        answers.write(FAILED + (str(error) or type(error).__name__).encode())
        traceback.print_exc()


if __name__ == "__main__":
    main()
