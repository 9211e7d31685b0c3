"""The exact nearest logged steps of a state: what was done there, and what followed.

These are rows of single episodes. They need the log, and no summary or export contains them.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fat2thin.data.coverage import Coverage
from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import discounted_returns

_GROUP = 16  # rows whose smallest distance is compared first: g, g + groups, g + 2 groups, ...
_MORE = 8  # groups looked into beyond those that are needed without rounding
_QUERIES = 128  # states at once


class NearestCases(NamedTuple):
    """Logged steps, nearest first; every field has the leading axes of the states asked for."""

    row: Int[ndarray, "*states cases"]
    """Row of the log, from 0."""
    distance: Float[ndarray, "*states cases"]
    """Euclidean distance of whitened observations, in standard deviations."""
    observation: Float[ndarray, "*states cases observation"]
    action: Float[ndarray, "*states cases action"]
    """What was done."""
    reward: Float[ndarray, "*states cases"]
    """The reward that followed."""
    later_return: Float[ndarray, "*states cases"]
    """Discounted sum of rewards from the step to the end of its episode."""
    next_observation: Float[ndarray, "*states cases observation"]

    def share_inside(self, low: Any, high: Any) -> Float[ndarray, "*states"]:
        """Return the share of these actions that lie in a band, shape (*states,)."""
        low, high = (np.asarray(end)[..., None, :] for end in (low, high))
        inside: Bool[ndarray, "*states cases"]
        inside = np.all((low <= self.action) & (self.action <= high), axis=-1)
        return inside.mean(axis=-1)


class LoggedCases:
    """A log prepared for queries, in the coordinates of its summary.

    Examples:
        >>> from fat2thin import data
        >>> from fat2thin.data.coverage import summarise_states
        >>> log = data.load("treatment/quadratic")
        >>> cases = LoggedCases(log, summarise_states(log)).nearest(log.observation[7], count=3)
        >>> int(cases.row[0]), cases.action.shape
        (7, (3, 1))
    """

    def __init__(self, dataset: Dataset, coverage: Coverage) -> None:
        self.dataset = dataset
        self._coverage = coverage
        self._placed = coverage.place(dataset.observation.astype(np.float64))
        rounded = self._placed.astype(np.float32)
        spare = -len(rounded) % _GROUP
        # Rows that fill the last group are never the nearest.
        squares = np.pad(np.square(rounded).sum(axis=1), (0, spare), constant_values=np.inf)
        self._squares, self._rounded = squares, np.pad(rounded, ((0, spare), (0, 0)))
        self._later = discounted_returns(dataset)

    def nearest(self, observation: Any, count: int = 10) -> NearestCases:
        """Return the nearest steps of each state; fewer than `count` if the log is shorter."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        observation = np.asarray(observation, np.float64)
        placed = self._coverage.place(observation.reshape(-1, observation.shape[-1]))
        count = min(count, self.dataset.rows)
        parts = [
            self._nearest(placed[start : start + _QUERIES], count)
            for start in range(0, len(placed), _QUERIES)
        ]
        empty = np.zeros((0, count))
        row = np.concatenate([part[0] for part in parts] or [empty.astype(int)])
        distance = np.concatenate([part[1] for part in parts] or [empty])
        shape, log = (*observation.shape[:-1], count), self.dataset
        row, distance = row.reshape(shape), distance.reshape(shape)
        return NearestCases(
            row, distance, log.observation[row], log.action[row], log.reward[row],
            self._later[row], log.next_observation[row],
        )  # fmt: skip

    def _nearest(self, placed: ndarray, count: int) -> tuple[ndarray, ndarray]:
        """Return rows and distances. Rounded distances only decide which rows are looked at."""
        squares = (-2.0 * placed.astype(np.float32)) @ self._rounded.T
        squares += self._squares
        lowest = squares.reshape(len(placed), _GROUP, -1).min(axis=1)
        groups = lowest.shape[1]
        members = groups * np.arange(_GROUP)
        taken = min(count + _MORE, groups)
        order = np.argpartition(lowest, taken - 1, axis=1)
        near = order[:, :taken]
        candidates = (near[:, :, None] + members).reshape(len(placed), -1)
        row, distance = self._exact(placed, candidates, count)
        if taken == groups:
            return row, distance
        rest = np.take_along_axis(lowest, order[:, taken:], axis=1).min(axis=1)
        # A row nearer than the last has |y| of at most |x| + distance. This bounds the rounding of
        # its |y|² − 2xy in float32, with the worst case of one unit per sum.
        own, last = np.sqrt(np.square(placed).sum(axis=1)), distance[:, -1]
        error = 2.0**-23 * (placed.shape[1] + 4) * np.square(own + last) * 2.0
        reach = np.square(last) - np.square(own) + error
        for place in np.flatnonzero(rest < reach):
            near = np.flatnonzero(lowest[place] <= reach[place])
            every = (near[:, None] + members).reshape(1, -1)
            found = self._exact(placed[place : place + 1], every, count)
            row[place], distance[place] = found[0][0], found[1][0]
        return row, distance

    def _exact(self, placed: ndarray, candidates: ndarray, count: int) -> tuple[ndarray, ndarray]:
        """Return the nearest candidates by differences in float64; ties go to the first row."""
        inside = np.minimum(candidates, self.dataset.rows - 1)
        squares = np.square(self._placed[inside] - placed[:, None, :]).sum(axis=2)
        squares[candidates >= self.dataset.rows] = np.inf
        near = np.argpartition(squares, count - 1, axis=1)[:, :count]
        # Everything at the last distance, so that ties go to the first row of the log.
        last = np.take_along_axis(squares, near, axis=1).max(axis=1)
        if ((squares <= last[:, None]).sum(axis=1) > count).any():
            near = np.broadcast_to(np.arange(squares.shape[1]), squares.shape)
        row, far = (np.take_along_axis(of, near, axis=1) for of in (candidates, squares))
        order = np.lexsort((row, far), axis=1)[:, :count]
        row, far = (np.take_along_axis(of, order, axis=1) for of in (row, far))
        return row, np.sqrt(far)
