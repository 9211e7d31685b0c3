"""Names, units and transforms of the columns of a log.

Imports nothing heavy: `xp` is `numpy` or `jax.numpy`.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

LOG, SCALE = "log", "scale"
LONGEST_UNIT = 100
_LARGEST_NUMBER = 1e38  # that of float32 is 3.4e38


def allows_unit(unit: Any) -> bool:
    """Whether a column can have this unit: a text of at most `LONGEST_UNIT` characters."""
    return isinstance(unit, str) and len(unit) <= LONGEST_UNIT


def allows_number(kind: str, number: Any) -> bool:
    """Whether a transform can have this number: one of float32, above 0 if it is a scale."""
    kinds: tuple[type, ...] = (int, float, np.integer, np.floating)
    real = isinstance(number, kinds) and not isinstance(number, bool)
    return real and bool(abs(number) < _LARGEST_NUMBER) and bool(kind != SCALE or number > 0)


@dataclasses.dataclass(frozen=True)
class Transform:
    """An increasing function of one column that a policy learns on.

    "log" is log(value + number), "scale" is value · number. Everything a user sees stays in raw
    units.
    """

    kind: str
    number: float

    def __post_init__(self) -> None:
        if self.kind not in (LOG, SCALE):
            raise ValueError(f"a transform is {LOG!r} or {SCALE!r}, not {self.kind!r}")
        if not allows_number(self.kind, self.number):
            allowed = "a positive factor" if self.kind == SCALE else "an offset"
            raise ValueError(
                f"{self.kind} needs {allowed}, a number below {_LARGEST_NUMBER:g} in size, "
                f"not {self.number!r}"
            )
        object.__setattr__(self, "number", float(self.number))

    @property
    def lowest(self) -> float:
        """The value that all values must be above."""
        return -self.number if self.kind == LOG else -math.inf

    def allows(self, value: float) -> bool:
        """Whether the transform of a value is a finite number in float32, in which policies act."""
        shifted = np.float32(value) + np.float32(self.number)
        return self.kind == SCALE or bool(shifted >= np.finfo(np.float32).tiny)

    def slope(self, values: Any) -> Any:
        """Return the derivative at values of a column."""
        return (
            np.full_like(values, self.number)
            if self.kind == SCALE
            else 1.0 / (values + self.number)
        )

    def __str__(self) -> str:
        if self.kind == SCALE:
            return f"scale {self.number:g}"
        return f"log(value + {self.number:g})" if self.number else "log(value)"


Transforms = tuple[Transform | None, ...]
"""The transform of each column, None where there is none; empty if no column has one."""


def transform(values: Any, transforms: Transforms, xp: Any = np) -> Any:
    """Return columns (the last axis of `values`) on the scale that is learned on.

    `xp` is `numpy` or `jax.numpy`. A value that a logarithm does not allow becomes nan.
    """
    return _apply(values, transforms, xp, _forward)


def inverse_transform(values: Any, transforms: Transforms, xp: Any = np) -> Any:
    """Return transformed columns in raw units; the inverse of `transform`."""
    return _apply(values, transforms, xp, _inverse)


def _apply(values: Any, transforms: Transforms, xp: Any, function: Any) -> Any:
    if not transforms:
        return values
    parts = (
        values[..., place] if one is None else function(values[..., place], one, xp)
        for place, one in enumerate(transforms)
    )
    return xp.stack([*parts], axis=-1)


def _forward(values: Any, one: Transform, xp: Any) -> Any:
    if one.kind == SCALE:
        return values * one.number
    shifted = values + one.number
    allowed = shifted > 0
    # The inner `where` keeps gradients finite where the outer one drops the value.
    return xp.where(allowed, xp.log(xp.where(allowed, shifted, 1.0)), xp.nan)


def _inverse(values: Any, one: Transform, xp: Any) -> Any:
    return values / one.number if one.kind == SCALE else xp.exp(values) - one.number


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of observations or actions."""

    name: str
    unit: str = ""
    transform: Transform | None = None

    def __post_init__(self) -> None:
        if not allows_unit(self.unit):
            raise ValueError(
                f"the unit of column {self.name!r} must be a text of at most {LONGEST_UNIT} "
                f"characters, not {self.unit!r:.40}"
            )

    @property
    def label(self) -> str:
        """The name with its unit, as figures and tables show it."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Column":
        """Return the column that `to_json` described; raise a ValueError for anything else."""
        name, unit, made = (values.get(key) for key in ("name", "unit", "transform"))
        if not isinstance(name, str) or not isinstance(unit, str):
            raise ValueError("a column must have a name and a unit")
        return cls(name, unit, None if made is None else transform_from_json(made))


def transform_from_json(values: Any) -> Transform:
    """Return the transform of plain values, checked."""
    if not isinstance(values, Mapping) or sorted(values) != ["kind", "number"]:
        raise ValueError("a transform must have a kind and a number")
    kind, number = values["kind"], values["number"]
    # JSON has integers of any size, which float() cannot convert.
    if not allows_number(kind, number):
        raise ValueError("a transform must have a kind and a number of float32")
    return Transform(kind, float(number))


def default_columns(kind: str, count: int) -> tuple[Column, ...]:
    """Return columns with the names that a file without names gets: "observation_0" and so on."""
    return tuple(Column(f"{kind}_{number}") for number in range(count))


def have_names(kind: str, columns: Sequence[Column]) -> bool:
    """Whether a file named the columns of this kind ("observation" or "action")."""
    defaults = default_columns(kind, len(columns))
    return [column.name for column in columns] != [column.name for column in defaults]


def transforms_of(columns: Iterable[Column]) -> Transforms:
    """Return the transforms of columns; empty where none has one."""
    found = tuple(column.transform for column in columns)
    return found if any(found) else ()
