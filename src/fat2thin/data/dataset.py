"""A data set: logged steps, the bounds of their episodes, the action box, a content hash."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import numpy as np

from fat2thin.data.blocks import blocks, not_finite, rows_where

_SHAPES = {
    "observation": ("rows", "observation"),
    "action": ("rows", "action"),
    "reward": ("rows",),
    "next_observation": ("rows", "observation"),
    "continuation": ("rows",),
    "episode_start": ("episodes",),
    "propensity": ("rows",),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Logged steps, one a row, episodes one after the other, in the environment's units."""

    name: str
    observation: Any
    """Shape (rows, observation)."""
    action: Any
    """Shape (rows, action), inside the box."""
    reward: Any
    """Shape (rows,)."""
    next_observation: Any
    """Shape (rows, observation)."""
    continuation: Any
    """Shape (rows,): 0 at a true end, 1 elsewhere, time limits included."""
    episode_start: Any
    """Shape (episodes,): the row each episode starts at, the first of them 0."""
    action_low: tuple[float, ...]
    """Lower end of the action box, a number a coordinate."""
    action_high: tuple[float, ...]
    """Upper end of the action box."""
    discount: float
    """The discount factor that training uses."""
    propensity: Any = None
    """Shape (rows,), or None where nobody knows: the probability, above 0 and at most 1, with which
    the logged action was chosen in its row. An action of which only a density is known has none."""

    def __post_init__(self) -> None:
        """Turn the arrays into NumPy's and refuse what cannot be a log, naming the array."""
        for field in self.arrays:
            object.__setattr__(self, field, np.asarray(getattr(self, field)))
        if self.episode_start.dtype.kind in "iu":
            # One type, so that a log has one hash whatever file it came from.
            object.__setattr__(self, "episode_start", self.episode_start.astype(np.int64))
        self._check_shapes()
        self._check_numbers()
        self._check_box()
        self._check_episodes()

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays there are: all of them, and `propensity` where it is known."""
        return tuple(field for field in _SHAPES if getattr(self, field) is not None)

    @property
    def row_arrays(self) -> tuple[str, ...]:
        """Names of those arrays that have a row a logged step."""
        return tuple(field for field in self.arrays if field != "episode_start")

    @property
    def rows(self) -> int:
        """Number of logged steps."""
        return len(self.reward)

    @property
    def observation_size(self) -> int:
        """Number of components of an observation."""
        return self.observation.shape[1]

    @property
    def action_size(self) -> int:
        """Number of components of an action."""
        return self.action.shape[1]

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the contents: each array's name, type, shape and bytes, the box, the discount.

        The name of the data set is no part of it, nor is the machine's byte order.
        """
        digest = hashlib.sha256()
        for field in self.arrays:
            array = getattr(self, field)
            little_endian = array.dtype.newbyteorder("<")
            header = [field, little_endian.str, array.shape]
            digest.update(json.dumps(header).encode() + b"\n")
            for rows in blocks(array):
                digest.update(np.ascontiguousarray(array[rows], little_endian).reshape(-1).data)
        digest.update(json.dumps([self.action_low, self.action_high, self.discount]).encode())
        return digest.hexdigest()

    def _check_shapes(self) -> None:
        if self.reward.ndim != 1 or not self.reward.size:
            raise ValueError(
                self._wrong("reward", f"must have shape (rows,), not {self.reward.shape}")
            )
        if self.observation.ndim != 2 or self.action.ndim != 2:
            raise ValueError(
                self._wrong(
                    "observation and action",
                    "must have shapes (rows, observation) and (rows, action), not "
                    f"{self.observation.shape} and {self.action.shape}",
                )
            )
        sizes = {
            "rows": self.rows,
            "observation": self.observation_size,
            "action": self.action_size,
            "episodes": self.episode_start.size,
        }
        for field in self.arrays:
            axes = _SHAPES[field]
            expected = tuple(sizes[axis] for axis in axes)
            array = getattr(self, field)
            if array.shape != expected:
                meant = f"({', '.join(axes)}{',' if len(axes) == 1 else ''}) = {expected}"
                raise ValueError(self._wrong(field, f"must have shape {meant}, not {array.shape}"))

    def _check_numbers(self) -> None:
        for field in self.arrays:
            array = getattr(self, field)
            if array.dtype.kind not in "fiub":
                raise ValueError(self._wrong(field, f"must hold numbers, not {array.dtype}"))
            wrong = rows_where(not_finite, array)
            if wrong.any():
                count = int(not_finite(array[wrong]).sum())
                raise ValueError(
                    self._wrong(
                        field, f"is not finite {count} times, first in row {int(wrong.argmax())}"
                    )
                )
        if np.any((self.continuation < 0) | (self.continuation > 1)):
            raise ValueError(self._wrong("continuation", "must lie between 0 and 1"))
        if self.propensity is not None and not_a_probability(self.propensity).any():
            raise ValueError(self._wrong("propensity", "must be above 0 and at most 1"))
        if not 0 <= self.discount <= 1:
            raise ValueError(self._wrong("discount", f"must lie in [0, 1], not {self.discount}"))

    def _check_box(self) -> None:
        for field in ("action_low", "action_high"):
            bound = tuple(float(number) for number in getattr(self, field))
            object.__setattr__(self, field, bound)
        if not len(self.action_low) == len(self.action_high) == self.action_size:
            raise ValueError(
                self._wrong(
                    "the action box",
                    f"must have a low and a high end for each of {self.action_size} coordinates, "
                    f"got {len(self.action_low)} and {len(self.action_high)}",
                )
            )
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ValueError(
                self._wrong("the action box", f"must be finite, low below high: {low} to {high}")
            )
        outside = rows_where(lambda action: (action < low) | (action > high), self.action)
        if outside.any():
            raise ValueError(
                self._wrong(
                    "action",
                    f"leaves the box in {int(outside.sum())} rows, first in row "
                    f"{int(outside.argmax())}",
                )
            )

    def _check_episodes(self) -> None:
        start = self.episode_start
        rising = start.size and start[0] == 0 and (np.diff(start) > 0).all()
        if not rising or start[-1] >= self.rows or start.dtype.kind not in "iu":
            raise ValueError(
                self._wrong("episode_start", "must be rising row numbers that begin with 0")
            )

    def _wrong(self, field: str, complaint: str) -> str:
        return f"data set {self.name!r}: {field} {complaint}"


def not_a_probability(propensity: np.ndarray) -> np.ndarray:
    """Where the propensity of a logged action cannot be one; what never happens is not logged."""
    return ~((propensity > 0) & (propensity <= 1))
