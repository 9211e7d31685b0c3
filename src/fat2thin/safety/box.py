"""Boxes of states: ranges of named columns, over which a certificate holds."""

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fat2thin.policies.limit_language import LAST
from fat2thin.policies.plain import PlainPolicy
from fat2thin.terminal_text import did_you_mean, printable

TABLE, FIRST_STEP = "box", "first step"
_LARGEST_FILE = 1_000_000


class BoxError(ValueError):
    """A box that cannot be used; the message names the column, and the file if there is one."""


@dataclasses.dataclass(frozen=True)
class Box:
    """Ranges of observation columns and, if limits depend on them, of the last actions."""

    names: tuple[str, ...]
    """Observation columns, then `last_` and the name of each action if limits depend on it."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    given: tuple[str, ...] = ()
    """The columns that were named; the others are free within the range of the log."""
    steps: tuple[bool, ...] = (False,)
    """Whether there is no last action: (False, True) covers later steps and the first one."""

    def with_column(self, name: str, low: float, high: float) -> "Box":
        """Return this box with another range of one column."""
        if name not in self.names:
            raise BoxError(_unknown(name, self.names))
        place = self.names.index(name)
        ends = ((*old[:place], new, *old[place + 1 :]) for old, new in
                ((self.low, float(low)), (self.high, float(high))))  # fmt: skip
        made = dataclasses.replace(
            self, low=next(ends), high=next(ends), given=tuple({*self.given, name})
        )
        _check(name, low, high)
        return made

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the range of each column."""
        return {
            name: (low, high)
            for name, low, high in zip(self.names, self.low, self.high, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Box":
        """Return the box that `to_json` described."""
        return cls(**{name: tuple(value) for name, value in values.items()})

    @property
    def sha256(self) -> str:
        """The hash of the box: its columns, ranges and steps."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_box(
    given: Any, plain: PlainPolicy, ranges: Sequence[tuple[float, float]] | None = None
) -> Box:
    """Return the box that a TOML file, a mapping or a `Box` describes, for a policy.

    A column is a number or a pair [low, high]. A column that is not named is free within `ranges`,
    the observed range of each observation column, or the action box for a last action.
    """
    if isinstance(given, Box):
        return given
    shown = ""
    if isinstance(given, str | Path):
        shown, given = f"{printable(given)}: ", _table(Path(given))
    if not isinstance(given, Mapping):
        raise BoxError(
            "a box must be the path of a TOML file or a mapping from columns to a number or a "
            f"pair [low, high], not a {type(given).__name__}"
        )
    columns = [column.name for column in plain.observations]
    known: list[tuple[float, float] | None] = [*ranges] if ranges else [None] * len(columns)
    if plain.needs_last_action:
        ends = zip(plain.low.tolist(), plain.high.tolist(), strict=True)
        known += [*ends]
        columns += [LAST + column.name for column in plain.actions]
    last = {name for name in columns[len(plain.observations) :]}
    for name in given:
        if name not in columns:
            raise BoxError(f"{shown}{_unknown(name, columns)}")
    steps = (False, True) if plain.needs_last_action and not last & {*given} else (False,)
    low, high = [], []
    for name, observed in zip(columns, known, strict=True):
        if name in given:
            found = _range(name, given[name], shown)
        elif observed is None:
            raise BoxError(
                f"{shown}the box must name {name!r}, because the range of the log is not known"
            )
        else:
            found = observed
        _check(name, *found, shown)
        low.append(float(found[0]))
        high.append(float(found[1]))
    return Box(tuple(columns), tuple(low), tuple(high), tuple(map(str, given)), steps)


def _table(path: Path) -> Mapping[str, Any]:
    shown = printable(path)
    try:
        if not path.is_file():
            raise BoxError(f"{shown}: no such file with a box")
        raw = path.read_bytes()[: _LARGEST_FILE + 1]
        if len(raw) > _LARGEST_FILE:
            raise BoxError(f"{shown}: a file with a box has at most {_LARGEST_FILE} bytes")
        table = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise BoxError(f"{shown} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BoxError(f"{shown} is not a TOML file: {printable(error)}") from error
    if not isinstance(table.get(TABLE), Mapping):
        hint = did_you_mean(TABLE, table)
        raise BoxError(
            f"{shown} has no table [{TABLE}]{hint}; add one with lines such as severity = [0, 4]"
        )
    return table[TABLE]


def _range(name: str, given: Any, shown: str) -> tuple[float, float]:
    numbers = [given, given] if _is_number(given) else given
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or len(numbers) != 2:
        numbers = [None]
    if not all(map(_is_number, numbers)):
        raise BoxError(
            f"{shown}column {printable(name)!r} must be a number or a pair [low, high], "
            f"not {printable(given)!r:.100}"
        )
    return float(numbers[0]), float(numbers[1])


def _check(name: str, low: float, high: float, shown: str = "") -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise BoxError(
            f"{shown}column {printable(name)!r} must have finite ends, the low one first, "
            f"not {low:g} to {high:g}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unknown(name: Any, columns: Sequence[str]) -> str:
    there = ", ".join(columns[:10]) + (" ..." if len(columns) > 10 else "")
    hint = did_you_mean(str(name), columns)
    return f"there is no column {printable(name)!r}{hint}; there are {there}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
