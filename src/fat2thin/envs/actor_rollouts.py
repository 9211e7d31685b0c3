"""Roll-outs of the actors behind the regenerated data sets, in a worker process.

`actors/<robot>.npz` holds checkpoints of one soft actor-critic run per robot: several early ones,
one of medium skill and one expert. A worker process runs this module and writes rows to stdout.
Only NumPy and Gymnasium are imported here.
"""

import functools
import importlib.resources
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

RANDOM: Literal["random"] = "random"  # in place of an actor: uniform actions
_AT_ONCE = 500  # rows per write to the driver

Acting = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""A function of an observation and a generator that returns an action."""


class Row(NamedTuple):
    """One step, as D4RL stores it."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: float
    terminals: bool
    timeouts: bool


@functools.cache
def load_actors(robot: str) -> dict[str, np.ndarray]:
    """Return the weights of all actors of a robot, and which are early, medium and expert."""
    place = importlib.resources.files("fat2thin.envs") / "actors" / f"{robot}.npz"
    with place.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def plan(weights: Mapping[str, np.ndarray], level: str) -> list[int | Literal["random"]]:
    """Return the actors of a data set in the order in which they act, in equal shares.

    medium is one actor and medium-expert two. medium-replay is what a replay buffer holds when
    training stops at medium: uniform actions, every early actor, and the medium one.
    """
    medium, expert = int(weights["medium"]), int(weights["expert"])
    return {
        "medium": [medium],
        "medium-expert": [medium, expert],
        "medium-replay": [RANDOM, *weights["early"].tolist(), medium],
    }[level]


def row_type(weights: Mapping[str, np.ndarray]) -> np.dtype:
    """Return the type of a row; its fields are the arrays of the file."""
    observation, action = len(weights[f"{int(weights['medium'])}/0/w"]), _action_size(weights)
    return np.dtype(
        [
            ("observations", np.float32, (observation,)),
            ("actions", np.float32, (action,)),
            ("rewards", np.float32),
            ("terminals", np.bool_),
            ("timeouts", np.bool_),
        ]
    )


def _action_size(weights: Mapping[str, np.ndarray]) -> int:
    return len(weights[f"{int(weights['medium'])}/2/b"]) // 2


def acting(weights: Mapping[str, np.ndarray], which: int | Literal["random"]) -> Acting:
    """Return a function that samples the actions of an actor: a squashed Gaussian."""
    if which == RANDOM:
        size = _action_size(weights)
        return lambda observation, rng: rng.uniform(-1, 1, size)
    layers = [(weights[f"{which}/{number}/w"], weights[f"{which}/{number}/b"]) for number in (0, 1)]
    last_weight, last_bias = weights[f"{which}/2/w"], weights[f"{which}/2/b"]

    def sample(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        hidden = observation.astype(np.float32)
        for weight, bias in layers:
            hidden = np.maximum(hidden @ weight + bias, 0)
        mean, log_scale = np.split(hidden @ last_weight + last_bias, 2)
        scale = np.exp(np.clip(log_scale, -5, 2))
        return np.tanh(mean + scale * rng.standard_normal(mean.shape))

    return sample


def roll_out(
    environment: gymnasium.Env, act: Acting, rows: int, rng: np.random.Generator
) -> Iterator[Row]:
    """Yield the steps of whole episodes; the one that reaches `rows` is cut there by a time-out."""
    done = 0
    while done < rows:
        observation, _ = environment.reset(seed=int(rng.integers(2**31)))
        over = False
        while not over and done < rows:
            action = act(observation, rng).astype(np.float32)
            following, reward, terminated, truncated, _ = environment.step(action)
            done += 1
            truncated = truncated or done == rows
            yield Row(observation, action, float(reward), terminated, truncated and not terminated)
            observation, over = following, terminated or truncated


def collect(
    weights: Mapping[str, np.ndarray], task: str, level: str, rows: int, seed: int
) -> Iterator[Row]:
    """Yield the rows of a data set. One generator draws for all episodes, so they have an order."""
    environment = gymnasium.make(task, disable_env_checker=True)
    rng, actors = np.random.default_rng(seed), plan(weights, level)
    for number, which in enumerate(actors):
        share = rows * (number + 1) // len(actors) - rows * number // len(actors)
        yield from roll_out(environment, acting(weights, which), share, rng)
    environment.close()


def _work() -> None:
    """Read an order from stdin, and write the rows of its data set to stdout."""
    warnings.simplefilter("ignore")
    # Output of a task, from Python or C, goes to stderr, so that it is not taken for rows.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    weights = load_actors(order.pop("robot"))
    records, filled = np.empty(_AT_ONCE, row_type(weights)), 0
    for row in collect(weights, **order):
        records[filled] = row
        filled += 1
        if filled == _AT_ONCE:
            answers.write(records.tobytes())
            answers.flush()
            filled = 0
    answers.write(records[:filled].tobytes())
    answers.close()


if __name__ == "__main__":
    try:
        _work()
    except BrokenPipeError:
        os._exit(1)  # the driver is gone, and reads no message
