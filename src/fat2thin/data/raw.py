"""From a log as a file has it to a data set: what ends mean, decided once for every format."""

from typing import NamedTuple

import numpy as np

from fat2thin.data.dataset import Dataset


class RawLog(NamedTuple):
    """Logged steps as a file has them, a row each, episodes one after the other."""

    observation: np.ndarray
    """Shape (rows, observation)."""
    action: np.ndarray
    """Shape (rows, action)."""
    reward: np.ndarray
    """Shape (rows,)."""
    terminal: np.ndarray
    """Shape (rows,), bool: the task truly ended with this step."""
    cut: np.ndarray
    """Shape (rows,), bool: the episode is over after this row, for whatever reason: a time limit,
    or because the next row belongs to another episode."""
    next_observation: np.ndarray | None = None
    """Shape (rows, observation), where the file has it."""


class Box(NamedTuple):
    """The action box and the discount factor that a data set is used with."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    discount: float


def assemble(name: str, raw: RawLog, box: Box) -> Dataset:
    """The data set of a log.

    A true end stops the bootstrap (continuation 0); a time limit does not. Episodes never run into
    each other. Where the file has no next observations they are the observations of the row below;
    a true end needs none and keeps its own observation in that place, and the last row of a cut
    episode, whose next observation nobody knows, is dropped.
    """
    terminal = np.asarray(raw.terminal, bool)
    last = terminal | np.asarray(raw.cut, bool)
    last[-1] = True
    observation = np.asarray(raw.observation, np.float32)
    kept = np.ones(len(last), bool)
    if raw.next_observation is None:
        following = np.concatenate([observation[1:], observation[-1:]])
        following[last] = observation[last]
        kept = terminal | ~last
    else:
        following = np.asarray(raw.next_observation, np.float32)
    first = np.concatenate([[True], last[:-1]])
    episode = np.cumsum(first) - 1
    if not kept.any():
        raise ValueError(
            f"data set {name!r}: no row has a next observation; a log needs episodes of at least "
            "two rows, or a column of next observations"
        )
    # Taking every row by number would copy a log that may fill half of the memory.
    rows = slice(None) if kept.all() else kept
    _, start = np.unique(episode[rows], return_index=True)
    return Dataset(
        name=name,
        observation=observation[rows],
        action=np.asarray(raw.action, np.float32)[rows],
        reward=np.asarray(raw.reward, np.float32)[rows],
        next_observation=following[rows],
        continuation=(~terminal[rows]).astype(np.float32),
        episode_start=start,
        action_low=box.low,
        action_high=box.high,
        discount=box.discount,
    )
