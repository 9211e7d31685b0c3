"""The `Dataset` class: logged steps, episode starts, action box and content hash."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fat2thin.columns import Column, Transforms, default_columns, transform, transforms_of
from fat2thin.data.row_arrays import (
    FollowingRows,
    RowArray,
    Rows,
    blocks,
    find_rows,
    following_rows,
    is_lazy,
    mapped,
)
from fat2thin.tables import Table
from fat2thin.terminal_text import printable

_SHOWN_COLUMNS = 50  # of observations, and of actions
_LONGEST_NOTE = 200

_SHAPES = {
    "observation": ("rows", "observation"),
    "action": ("rows", "action"),
    "reward": ("rows",),
    "next_observation": ("rows", "observation"),
    "continuation": ("rows",),
    "episode_start": ("episodes",),
    "propensity": ("rows",),
}


class Origin(NamedTuple):
    """The rows of the file that a data set was read from, for messages."""

    kept: np.ndarray
    """Shape (rows of the file,), bool: the rows that the data set has."""
    copies: np.ndarray
    """Numbers of the rows that were dropped and repeat the row above them."""
    shifted: bool
    """Whether next observations were taken from the row below."""
    places: Callable[[Sequence[int]], list[str]] | None = None
    """Returns the places of rows, given from 0, as text; None if rows are counted from 0."""

    def selected(self, rows: np.ndarray) -> "Origin":
        """Return the origin of the data set with only these rows, a mask."""
        kept = np.zeros_like(self.kept)
        kept[np.flatnonzero(self.kept)[rows]] = True
        return self._replace(kept=kept, copies=self.copies[:0])


class Recorded(NamedTuple):
    """The hash that a file states for its arrays, which were checked when it was written."""

    sha256: str
    fields: Mapping[str, Any]
    """The arrays, the box, the discount and the columns that the hash is about."""

    def describes(self, dataset: "Dataset") -> bool:
        """Return whether a data set has these very arrays, and equal other fields."""
        return all(
            getattr(dataset, name) is value
            if isinstance(value, RowArray | np.ndarray)
            else getattr(dataset, name) == value
            for name, value in self.fields.items()
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Logged steps in the environment's units, one per row, grouped by episode.

    Arrays become NumPy arrays, or stay `data.row_arrays.RowArray`s, which are read in parts. Next
    observations are kept only where they are not the observation of the row below. A `ValueError`
    names the first array with a wrong shape, type or value.

    Examples:
        >>> dataset = Dataset(
        ...     name="doses",
        ...     observation=[[0.0], [1.0], [0.5]], action=[[0.1], [0.2], [0.3]],
        ...     reward=[1.0, 0.0, 2.0], next_observation=[[1.0], [2.0], [0.7]],
        ...     continuation=[1.0, 0.0, 1.0], episode_start=[0, 2],
        ...     action_low=(0.0,), action_high=(1.0,), discount=0.9,
        ... )
        >>> dataset.rows, dataset.episode_start.size
        (3, 2)
    """

    name: str
    """Name or path that the data set was loaded from."""
    observation: Any
    """Shape (rows, observation)."""
    action: Any
    """Shape (rows, action), inside the action box."""
    reward: Any
    """Shape (rows,)."""
    next_observation: Any
    """Shape (rows, observation)."""
    continuation: Any
    """Shape (rows,): 0 at a true end, 1 elsewhere, including at time limits."""
    episode_start: Any
    """Shape (episodes,): the first row of each episode; starts with 0."""
    action_low: tuple[float, ...]
    """Lower end of the action box, one number per action dimension."""
    action_high: tuple[float, ...]
    """Upper end of the action box, one number per action dimension."""
    discount: float
    """Discount factor used in training."""
    propensity: Any = None
    """Shape (rows,), or None if unknown: the probability with which the logged action was chosen,
    above 0 and at most 1, or its density."""
    propensity_is_density: bool = False
    """Whether `propensity` is a density per unit of the action (the product over dimensions), which
    may exceed 1."""
    observation_columns: tuple[Column, ...] = ()
    """Names, units and transforms of the observation's columns; numbered names if not given."""
    action_columns: tuple[Column, ...] = ()
    """Names, units and transforms of the action dimensions."""
    origin: Origin | None = dataclasses.field(default=None, repr=False)
    """The rows of the file, for messages; it has no other effect and is not part of the hash."""
    recorded: Recorded | None = dataclasses.field(default=None, repr=False)
    """The hash of arrays that were checked before, and are not read again for that. It is dropped
    where a field differs."""
    allowed: Rows | None = dataclasses.field(default=None, repr=False)
    """What limits allow in each row (`evaluation.limited.with_limits`); not part of the hash."""

    @classmethod
    def from_arrays(
        cls, observation: Any, action: Any, reward: Any,
        *, terminal: Any = None, cut: Any = None, episode: Any = None, episode_start: Any = None,
        next_observation: Any = None, propensity: Any = None, action_low: Any = None,
        action_high: Any = None, discount: float = 0.99, name: str = "arrays",
        propensity_is_density: bool = False,
        observation_names: Sequence[str | Column] | None = None,
        action_names: Sequence[str | Column] | None = None,
    ) -> "Dataset":  # fmt: skip
        """Return the data set of arrays with one row per step, checked like those of a file.

        Args:
            observation: Shape (rows, observation), or (rows,) for a single column.
            action: Shape (rows, action), or (rows,).
            reward: Shape (rows,).
            terminal: Shape (rows,): the task truly ended with this step. By default it never does.
            cut: Shape (rows,): the episode stops after this row, for example at a time limit.
            episode: Shape (rows,): a label of the episode, a number or a text.
            episode_start: Shape (episodes,): the first row of each episode, instead of `episode`.
            next_observation: Shape of `observation`. By default that of the row below, and the
                last row of a cut episode is dropped.
            propensity: Shape (rows,): the probability of the logged action, or its density.
            action_low: Lower end of the action box, one number or one per dimension. By default
                the range of the logged actions is used, with a warning.
            action_high: Upper end of the action box.
            discount: Discount factor used in training.
            name: Name of the data set.
            propensity_is_density: Whether `propensity` is a density per unit of the action.
            observation_names: Names of the columns, or `fat2thin.columns.Column` objects.
            action_names: The same for the action.

        Examples:
            >>> dataset = Dataset.from_arrays(
            ...     [7.5, 6.5, 9.0, 9.5], [1.0, 0.5, 2.0, 2.0], [-1.5, -0.5, -3.0, -9.0],
            ...     episode=["A", "A", "B", "B"], terminal=[0, 0, 0, 1], action_low=0,
            ...     action_high=2, observation_names=["level"], action_names=["dose"],
            ... )
            >>> dataset
            Dataset 'arrays': 3 rows in 2 episodes, 1 observation column, 1 action column
        """
        from fat2thin.data.formats.arrays import dataset_from_arrays

        arrays = {
            "observation": observation, "action": action, "reward": reward, "terminal": terminal,
            "cut": cut, "episode": episode, "episode_start": episode_start,
            "next_observation": next_observation, "propensity": propensity,
            "action_low": action_low, "action_high": action_high, "discount": discount,
            "observation_names": observation_names, "action_names": action_names,
            "propensity_is_density": propensity_is_density or None,
        }  # fmt: skip
        return dataset_from_arrays(arrays, name)

    def __post_init__(self) -> None:
        """Convert and check the fields."""
        for field in self.arrays:
            if not isinstance(getattr(self, field), RowArray):
                object.__setattr__(self, field, np.asarray(getattr(self, field)))
        if self.episode_start.dtype.kind in "iu":
            # A fixed type, so that the hash does not depend on the file format.
            start = self.episode_start.astype(np.int64, copy=False)
            object.__setattr__(self, "episode_start", start)
        self._check_shapes()
        if self.origin is not None and np.count_nonzero(self.origin.kept) != self.rows:
            object.__setattr__(self, "origin", None)
        following = following_rows(self.observation, self.next_observation)
        object.__setattr__(self, "next_observation", following)
        self._check_columns()
        if self.recorded is not None and not self.recorded.describes(self):
            object.__setattr__(self, "recorded", None)
        self._check_numbers()
        self._check_box()
        self._check_episodes()

    def __repr__(self) -> str:
        """Return one line with the sizes."""
        named = printable(repr(self.name))
        return f"Dataset {named}: {self._sizes}"

    def _repr_html_(self) -> str:
        """Return the sizes, and the range of each column, for a notebook."""
        rows = []
        for kind in ("observation", "action"):
            low, high = extremes(getattr(self, kind))
            columns = zip(getattr(self, f"{kind}_columns"), low, high, strict=True)
            for column, lowest, highest in itertools.islice(columns, _SHOWN_COLUMNS):
                found = {"lowest": f"{lowest:.4g}", "highest": f"{highest:.4g}"}
                rows.append({"column": column.name, "unit": column.unit, "kind": kind, **found})
        more = self.observation_size + self.action_size - len(rows)
        box = f"action box {list(self.action_low)} to {list(self.action_high)}"
        notes = [f"{box[:_LONGEST_NOTE]}; discount {self.discount:g}"]
        notes += [f"{more} more columns are not shown"] if more else []
        return Table(f"{self.name}: {self._sizes}", tuple(rows), tuple(notes))._repr_html_()

    @property
    def _sizes(self) -> str:
        def counted(number: int, what: str) -> str:
            return f"{number:,} {what}{'s' * (number != 1)}"

        return (
            f"{counted(self.rows, 'row')} in {counted(self.episode_start.size, 'episode')}, "
            f"{counted(self.observation_size, 'observation column')}, "
            f"{counted(self.action_size, 'action column')}"
        )

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of all arrays; `propensity` only if it is known."""
        return tuple(field for field in _SHAPES if getattr(self, field) is not None)

    @property
    def row_arrays(self) -> tuple[str, ...]:
        """Names of the arrays that have one row per logged step."""
        return tuple(field for field in self.arrays if field != "episode_start")

    def __len__(self) -> int:
        """Number of logged steps."""
        return self.rows

    @property
    def rows(self) -> int:
        """Number of logged steps."""
        return len(self.reward)

    @property
    def observation_transforms(self) -> Transforms:
        """The transforms of the observation's columns; empty where none has one."""
        return transforms_of(self.observation_columns)

    @property
    def action_transforms(self) -> Transforms:
        """The transforms of the action's coordinates; empty where none has one."""
        return transforms_of(self.action_columns)

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
        """Hash of the arrays (names, types, shapes and bytes), the action box and the discount.

        It does not depend on the name of the data set or the byte order of the machine.
        """
        if self.recorded is not None:
            return self.recorded.sha256
        digest = hashlib.sha256()
        for field in self.arrays:
            array = getattr(self, field)
            little_endian = array.dtype.newbyteorder("<")
            digest.update(json.dumps([field, little_endian.str, array.shape]).encode() + b"\n")
            for rows in blocks(array):
                digest.update(np.ascontiguousarray(array[rows], little_endian).reshape(-1).data)
        digest.update(json.dumps([self.action_low, self.action_high, self.discount]).encode())
        if self.propensity_is_density:
            digest.update(b"density")
        # Names and units change no result. Transforms do; a log without them keeps its hash.
        transforms = self.observation_transforms, self.action_transforms
        if any(transforms):
            kept = [[one and dataclasses.astuple(one) for one in kind] for kind in transforms]
            digest.update(json.dumps(kept).encode())
        return digest.hexdigest()

    def _check_shapes(self) -> None:
        if self.reward.ndim != 1 or not self.reward.size:
            raise self._wrong("reward", f"must have shape (rows,), not {self.reward.shape}")
        if self.observation.ndim != 2 or self.action.ndim != 2:
            raise self._wrong(
                "observation and action",
                "must have shapes (rows, observation) and (rows, action), not "
                f"{self.observation.shape} and {self.action.shape}",
            )
        sizes = {
            "rows": self.rows,
            "observation": self.observation_size,
            "action": self.action_size,
            "episodes": self.episode_start.size,
        }
        for field in self.arrays:
            axes, found = _SHAPES[field], getattr(self, field).shape
            expected = tuple(sizes[axis] for axis in axes)
            if found != expected:
                meant = f"({', '.join(axes)}{',' if len(axes) == 1 else ''}) = {expected}"
                raise self._wrong(field, f"must have shape {meant}, not {found}")

    def _check_columns(self) -> None:
        for kind, size in (("observation", self.observation_size), ("action", self.action_size)):
            field = f"{kind}_columns"
            columns = tuple(getattr(self, field))
            if columns == default_columns(kind, len(columns)):
                columns = default_columns(kind, size)  # numbered names follow the width
            names = [column.name for column in columns]
            if not size:
                raise self._wrong(kind, "must have at least one column")
            if len(names) != size:
                raise self._wrong(field, f"must name {size} columns, not {len(names)}")
            name, times = collections.Counter(names).most_common(1)[0]
            if times > 1:
                raise self._wrong(field, f"has {name!r} {times} times")
            object.__setattr__(self, field, columns)

    def _check_numbers(self) -> None:
        # The rows of a mapped file were checked when it was written.
        if not is_lazy(self.observation):
            self.check_cells()
        if not 0 <= self.discount <= 1:
            raise self._wrong("discount", f"must lie in [0, 1], not {self.discount}")

    def check_cells(self) -> None:
        """Raise a `ValueError` if a number is not finite, or not possible."""
        for field in self.arrays:
            array = getattr(self, field)
            if array.dtype.kind not in "fiub":
                raise self._wrong(field, f"must hold numbers, not {array.dtype}")
            wrong = find_rows(array, not_finite)
            if wrong.number:
                cells = f"{wrong.cells} cell{'s' * (wrong.cells != 1)}"
                first = f"first in row {wrong.first[0]}"
                raise self._wrong(field, f"is not finite in {cells}, {first}")
        if self.continuation.min() < 0 or self.continuation.max() > 1:
            raise self._wrong("continuation", "must lie between 0 and 1")
        known = self.propensity
        if self.propensity_is_density and known is None:
            raise self._wrong("propensity", "is missing, although it is said to be a density")
        refused = not_a_density if self.propensity_is_density else not_a_probability
        if known is not None and find_rows(known, refused).number:
            raise self._wrong("propensity", propensity_rule(self.propensity_is_density))

    def _check_box(self) -> None:
        for field in ("action_low", "action_high"):
            object.__setattr__(self, field, tuple(map(float, getattr(self, field))))
        if not len(self.action_low) == len(self.action_high) == self.action_size:
            raise self._wrong(
                "the action box",
                f"must have a low and a high end for each of {self.action_size} action dimensions, "
                f"got {len(self.action_low)} and {len(self.action_high)}",
            )
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        if not is_box(low, high):
            raise self._wrong("the action box", f"must be finite, low below high: {low} to {high}")
        if not is_lazy(self.action):
            self.check_actions()

    def check_actions(self) -> None:
        """Raise a `ValueError` if an action leaves the box, or a transform does not allow it."""
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        outside = find_rows(self.action, lambda part: outside_box(part, low, high))
        if count := outside.number:
            in_rows = f"in {count} row{'s' * (count != 1)}, first in row {outside.first[0]}"
            raise self._wrong("action", f"leaves the box {in_rows}")
        self._check_transforms()

    def _check_transforms(self) -> None:
        """Refuse values that a logarithm does not allow; the ends of the box count as well."""
        low: Any = ()
        if self.observation_transforms:
            low = np.minimum(extremes(self.observation).low, extremes(self.next_observation).low)
        for columns, least in (
            (self.observation_columns, low),
            (self.action_columns, self.action_low),
        ):
            for column, lowest in zip(columns, least, strict=False):
                if column.transform is not None and not column.transform.allows(lowest):
                    end = "the box of" if columns is self.action_columns else "column"
                    raise self._wrong(
                        f"{end} {column.name!r}",
                        f"reaches down to {lowest:g}, and {column.transform} needs more than "
                        f"{column.transform.lowest:g}: take a larger offset",
                    )

    def _check_episodes(self) -> None:
        start = self.episode_start
        rising = start.size and start[0] == 0 and (np.diff(start) > 0).all()
        if not rising or start[-1] >= self.rows or start.dtype.kind not in "iu":
            raise self._wrong("episode_start", "must be increasing row numbers that start with 0")

    def _wrong(self, field: str, complaint: str) -> ValueError:
        return ValueError(f"data set {self.name!r}: {field} {complaint}")

    @classmethod
    def from_frame(cls, frame: Any, *, name: str = "frame", **keys: Any) -> "Dataset":
        """Return the data set of a pandas, polars or pyarrow table.

        `keys` are those of the TOML of a table: episode, observation, action, reward, action_low,
        action_high, discount and so on; `columns` is a dictionary of dictionaries. Errors count
        the rows of the frame from 0.

        Examples:
            >>> import pyarrow
            >>> doses = {"who": [1, 1, 1], "level": [7.5, 6.5, 6.0], "dose": [1.0, 0.5, 0.5]}
            >>> frame = pyarrow.table({**doses, "reward": [-1.5, -0.5, 0.0]})
            >>> dataset = Dataset.from_frame(
            ...     frame, episode="who", observation="level", action="dose", reward="reward",
            ...     action_low=0, action_high=2, discount=0.9, columns={"dose": {"unit": "mg"}},
            ... )
            >>> len(dataset), dataset.action_columns[0].label
            (2, 'dose (mg)')
        """
        # Imported here, so that Arrow is loaded only when a table is read.
        from fat2thin.data.formats.table import dataset_from_frame

        return dataset_from_frame(frame, name=name, **keys)


def transformed(dataset: Dataset) -> Dataset:
    """Return a log with its columns and its action box transformed, as algorithms see it.

    The columns keep their names and have no transform left, so doing it twice changes nothing.
    """
    seen, done = dataset.observation_transforms, dataset.action_transforms
    if not seen and not done:
        return dataset

    def on_scale(values: Any, transforms: Transforms) -> np.ndarray:
        return transform(np.asarray(values, np.float64), transforms)

    low, high = (on_scale(end, done) for end in (dataset.action_low, dataset.action_high))
    changes: dict[str, Any] = {}
    single = np.dtype(np.float32)
    if seen:
        changes |= mapped_observations(dataset, lambda rows: on_scale(rows, seen), single)
    if done:
        # Rounding must not carry an action over an end of the box.
        ends = low, high
        action = mapped(
            lambda rows: np.clip(on_scale(rows, done), *ends), dataset.action, dtype=single
        )
        low, high = np.minimum(low, action.min(axis=0)), np.maximum(high, action.max(axis=0))
        changes |= {"action": action, "action_low": tuple(low), "action_high": tuple(high)}
    for field in ("observation_columns", "action_columns"):
        columns = (dataclasses.replace(one, transform=None) for one in getattr(dataset, field))
        changes[field] = tuple(columns)
    return dataclasses.replace(dataset, **changes)


def mapped_observations(
    dataset: Dataset, function: Callable[[np.ndarray], np.ndarray], dtype: np.dtype | None = None
) -> dict[str, Any]:
    """Return a function of the observations and of the next observations, by field.

    Their type is `dtype`, by default that of the observations if they are floating-point.
    """
    following, real = dataset.next_observation, dtype or real_type(dataset.observation)
    observation = mapped(function, dataset.observation, dtype=real)
    if isinstance(following, FollowingRows) and following.array is dataset.observation:
        new: Rows = following.mapped(observation, lambda rows: function(rows).astype(real))
    else:
        new = mapped(function, following, dtype=dtype or real_type(following))
    return {"observation": observation, "next_observation": new}


def real_type(array: Rows) -> np.dtype:
    """Return the array's type if it is floating-point, else float32."""
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float32)


class Extremes(NamedTuple):
    """Minimum and maximum of each column, shape (columns,), in float64."""

    low: np.ndarray
    high: np.ndarray


def extremes(array: Rows) -> Extremes:
    """Return the range of each column of an array with shape (rows, columns) or (rows,)."""
    ends = (
        np.reshape(end, -1).astype(np.float64) for end in (array.min(axis=0), array.max(axis=0))
    )
    return Extremes(*ends)


def not_finite(array: np.ndarray) -> np.ndarray:
    """Return a mask of the cells that are NaN or infinite."""
    return ~np.isfinite(array)


def outside_box(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return a mask of the cells outside the action box."""
    return (action < low) | (action > high)


def not_a_flag(array: np.ndarray) -> np.ndarray:
    """Return a mask of the cells that are neither 0 nor 1."""
    return (array != 0) & (array != 1)


def not_a_probability(propensity: np.ndarray) -> np.ndarray:
    """Return a mask of the values outside (0, 1]; a logged action cannot have probability 0."""
    return ~((propensity > 0) & (propensity <= 1))


def not_a_density(propensity: np.ndarray) -> np.ndarray:
    """Return a mask of the values that are not above 0."""
    return ~(propensity > 0)


def propensity_rule(is_density: bool) -> str:
    """Return what propensities must be, as text."""
    if is_density:
        return "must be above 0"
    return "must be above 0 and at most 1; a density may exceed 1, and must be said to be one"


def is_box(low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether both ends are finite and `low` is below `high` in every dimension."""
    return bool(np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all())
