"""Make an algorithm's config from names and values, and check it."""

import dataclasses
import itertools
import math
import numbers
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from fat2thin.algorithms.base import Algorithm
from fat2thin.terminal_text import closest_first

LONGEST_LIST = 256
"""Maximum length of a list: every layer of a network is traced."""
LARGEST_NUMBER = 2**31 - 1
"""Maximum of a whole number: sizes and updates are counted in 32 bits."""


def make_config(
    algorithm: Algorithm, config: Any, settings: Mapping[str, Any],
    brought: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Return the config with the given settings, checked by the algorithm.

    `brought` are other defaults: `settings` override them, and those that the check refuses
    together with `settings` are dropped.
    """
    if config is not None and not isinstance(config, algorithm.config):
        raise ValueError(
            f"config must be a {algorithm.config.__name__} for {algorithm.name!r}, "
            f"got a {type(config).__name__}"
        )
    values = {**(brought or {}), **settings}
    refuse_unknown(algorithm, values)
    kinds = typing.get_type_hints(algorithm.config)
    values = {name: _convert(name, value, kinds[name]) for name, value in values.items()}
    base: Any = algorithm.config() if config is None else config
    if brought:
        given = {name: values.pop(name) for name in settings}
        values = _compatible(algorithm, base, given, values)
    return _checked(algorithm, base, values)


def _compatible(
    algorithm: Algorithm, base: Any, given: dict[str, Any], brought: dict[str, Any]
) -> dict[str, Any]:
    """Return the given settings, with as many of the brought ones as the check accepts.

    Some settings are valid only in pairs, so they are added one or two at a time.
    """
    if _takes(algorithm, base, {**brought, **given}):
        return {**brought, **given}
    values, least = given, 0
    while True:
        left = [item for item in brought.items() if item[0] not in values]
        groups = itertools.chain(*(itertools.combinations(left, size) for size in range(least, 3)))
        larger = ({**values, **dict(group)} for group in groups)
        found = next((one for one in larger if _takes(algorithm, base, one)), None)
        if found is None:
            return values
        values, least = found, 1


def _takes(algorithm: Algorithm, base: Any, values: Mapping[str, Any]) -> bool:
    try:
        _checked(algorithm, base, values)
    except ValueError:
        return False
    return True


def _checked(algorithm: Algorithm, base: Any, values: Mapping[str, Any]) -> Any:
    made = dataclasses.replace(base, **values)
    for field in dataclasses.fields(made):
        value = getattr(made, field.name)
        if isinstance(value, tuple | list) and len(value) > LONGEST_LIST:
            count = len(value)
            raise ValueError(f"{field.name} must have at most {LONGEST_LIST} entries, got {count}")
    algorithm.check(made)
    return made


def refuse_unknown(algorithm: Algorithm, settings: Iterable[str], also: Iterable[str] = ()) -> None:
    """Raise a ValueError for an unknown setting; it lists the closest names, also of `also`."""
    fields = [field.name for field in dataclasses.fields(algorithm.config)]
    for name in settings:
        if name not in fields:
            there = closest_first(name, [*fields, *also], f"fat2thin settings {algorithm.name}")
            raise ValueError(f"{algorithm.name} has no setting {name!r}; there are {there}")


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Return the value in the type of its field: a list as a tuple, 1 as 1.0 for a float."""
    options = typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is type(None) and value is None:
            return None
        if origin is tuple and isinstance(value, list | tuple):
            item = typing.get_args(option)[0]
            return tuple(_convert(name, entry, item) for entry in value)
        if origin is typing.Literal and value in typing.get_args(option):
            return value
        # A bool is an int to Python, but never a valid number here.
        flag = isinstance(value, bool) and origin is not bool
        if origin in _SCALARS and isinstance(value, _SCALARS[origin]) and not flag:
            if isinstance(value, int) and abs(value) > _LARGEST.get(origin, math.inf):
                raise ValueError(f"{name} must not be larger than {_LARGEST[origin]}")
            return origin(value)
    described = _WORDS.get(kind, str(kind).replace("typing.", ""))
    raise ValueError(f"{name} must be {described}, got {value!r}{_as_list(name, value, kind)}")


def _as_list(name: str, value: Any, kind: Any) -> str:
    """Return how to write a list that was written as 64x64, or as one number."""
    entries = str(value).lower().split("x")
    if kind != tuple[int, ...] or not all(entry.isdecimal() for entry in entries):
        return ""
    return f": write {name}={','.join(entries)}{',' * (len(entries) == 1)}"


_UNIONS = (typing.Union, types.UnionType)
_LARGEST: dict[Any, float] = {int: LARGEST_NUMBER, float: sys.float_info.max}
_SCALARS: dict[Any, Any] = {bool: bool, int: numbers.Integral, float: numbers.Real, str: str}
_WORDS: dict[Any, str] = {
    float: "one number",
    int: "a whole number",
    bool: "True or False",
    str: "a string",
    tuple[int, ...]: "a list of whole numbers",
}


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return the value as an int; raise a ValueError that names it if it is out of range."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    number = int(value)
    if most is not None and number > most:
        raise ValueError(f"{name} must be a whole number of at most {most}, got {value!r}")
    return number
