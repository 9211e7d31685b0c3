"""A data set: logged steps, the bounds of their episodes, the action box, a content hash."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import numpy as np

_SHAPES = {
    "observation": ("rows", "observation"),
    "action": ("rows", "action"),
    "reward": ("rows",),
    "next_observation": ("rows", "observation"),
    "continuation": ("rows",),
    "episode_start": ("episodes",),
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

    def __post_init__(self) -> None:
        """Turn the arrays into NumPy's and refuse what cannot be a log, naming the array."""
        for field in _SHAPES:
            object.__setattr__(self, field, np.asarray(getattr(self, field)))
        if self.episode_start.dtype.kind in "iu":
            # One type, so that a log has one hash whatever file it came from.
            object.__setattr__(self, "episode_start", self.episode_start.astype(np.int64))
        self._check_shapes()
        self._check_numbers()
        self._check_box()
        self._check_episodes()

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
        for field in _SHAPES:
            array = getattr(self, field)
            little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            header = [field, little_endian.dtype.str, array.shape]
            digest.update(json.dumps(header).encode() + b"\n")
            digest.update(little_endian.tobytes())
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
        for field, axes in _SHAPES.items():
            expected = tuple(sizes[axis] for axis in axes)
            array = getattr(self, field)
            if array.shape != expected:
                meant = f"({', '.join(axes)}{',' if len(axes) == 1 else ''}) = {expected}"
                raise ValueError(self._wrong(field, f"must have shape {meant}, not {array.shape}"))

    def _check_numbers(self) -> None:
        for field in _SHAPES:
            array = getattr(self, field)
            if array.dtype.kind not in "fiub":
                raise ValueError(self._wrong(field, f"must hold numbers, not {array.dtype}"))
            finite = np.isfinite(array)
            if not finite.all():
                row = int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
                count = int(np.sum(~finite))
                raise ValueError(
                    self._wrong(field, f"is not finite {count} times, first in row {row}")
                )
        if np.any((self.continuation < 0) | (self.continuation > 1)):
            raise ValueError(self._wrong("continuation", "must lie between 0 and 1"))
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
        outside = ((self.action < low) | (self.action > high)).any(axis=1)
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
