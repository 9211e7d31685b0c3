"""From a log as a file has it to a data set: what ends mean, decided once for every format."""

from typing import NamedTuple

import numpy as np

from fat2thin.data.blocks import blocks
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
    propensity: np.ndarray | None = None
    """Shape (rows,): the probability of the logged action, where the file has it."""


class Box(NamedTuple):
    """The action box and the discount factor that a data set is used with."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    discount: float


def assemble(name: str, raw: RawLog, box: Box, *, reuse: bool = False) -> Dataset:
    """The data set of a log.

    A true end stops the bootstrap (continuation 0); a time limit does not. Episodes never run into
    each other. Where the file has no next observations they are the observations of the row below;
    a true end needs none and keeps its own observation in that place, and the last row of a cut
    episode, whose next observation nobody knows, is dropped. With `reuse` the other rows may close
    up in the arrays of the log itself, which saves the memory of a second copy.
    """
    terminal = np.asarray(raw.terminal, bool)
    last = terminal | np.asarray(raw.cut, bool)
    last[-1] = True
    kept = terminal | ~last if raw.next_observation is None else np.ones(len(last), bool)
    if not kept.any():
        raise ValueError(
            f"data set {name!r}: no row has a next observation; a log needs episodes of at least "
            "two rows, or a column of next observations"
        )

    def rows(array: np.ndarray) -> np.ndarray:
        array = np.asarray(array, np.float32)
        if kept.all():
            return array
        return _close_up(array, kept) if reuse else array[kept]

    observation = np.asarray(raw.observation, np.float32)
    if raw.next_observation is None:
        following = observation[np.flatnonzero(kept) + ~last[kept]]
    else:
        following = np.asarray(raw.next_observation, np.float32)
    episode = np.cumsum(np.append(True, last[:-1]))[kept]
    return Dataset(
        name=name,
        observation=rows(observation),
        action=rows(raw.action),
        reward=rows(raw.reward),
        next_observation=following,
        continuation=(~terminal[kept]).astype(np.float32),
        episode_start=np.flatnonzero(np.diff(episode, prepend=0)),
        action_low=box.low,
        action_high=box.high,
        discount=box.discount,
        propensity=None if raw.propensity is None else rows(raw.propensity),
    )


def _close_up(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The rows to keep, moved to the top of the array they are in."""
    stop = 0
    for block in blocks(array):
        part = array[block][kept[block]]
        array[stop : stop + len(part)] = part
        stop += len(part)
    return array[:stop]
