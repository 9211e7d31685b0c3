"""What a setting may be, and the sentence that refuses what it may not."""

import dataclasses
import functools
import numbers
import typing
from typing import Any

_CHOICES = "choices"


def between(
    config: Any,
    name: str,
    low: float,
    high: float,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> None:
    """Refuse a number outside the interval; None passes where the field allows it."""
    value = getattr(config, name)
    if value is None and _may_be_none(config, name):
        return
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    above = number and (value >= low if closed_low else value > low)
    below = number and (value <= high if closed_high else value < high)
    if not (above and below):
        brackets = f"{'[' if closed_low else '('}{low}, {high}{']' if closed_high else ')'}"
        raise ValueError(f"{name} must lie in {brackets}, got {value!r}")


def choice(default: str | None, choices: tuple[str, ...]) -> Any:
    """A field of a config that is one of several words, or None where its type allows it."""
    return dataclasses.field(default=default, metadata={_CHOICES: choices})


def choices_of(config: Any) -> dict[str, tuple[str, ...]]:
    """Return the words that each `choice` of a config, or of its class, may be."""
    fields = dataclasses.fields(config)
    return {field.name: field.metadata[_CHOICES] for field in fields if _CHOICES in field.metadata}


def check_choices(config: Any) -> None:
    """Refuse a word that is no choice; None passes where the field allows it."""
    for name, choices in choices_of(config).items():
        value = getattr(config, name)
        if value not in choices and not (value is None and _may_be_none(config, name)):
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def whole(config: Any, name: str, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`; None passes as above."""
    value = getattr(config, name)
    if value is None and _may_be_none(config, name):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def layer_widths(config: Any, name: str) -> None:
    """Refuse what is no list of positive layer widths."""
    value = getattr(config, name)
    listed = isinstance(value, tuple | list) and len(value) > 0
    if not listed or not all(type(width) is int and width > 0 for width in value):
        raise ValueError(f"{name} must be positive layer widths, got {value}")


def only_with(config: Any, names: tuple[str, ...], holds: bool, reason: str) -> None:
    """Refuse settings that were given although they have no effect; `reason` says why."""
    for name in names:
        if not holds and getattr(config, name) != _default(config, name):
            raise ValueError(f"{name}={getattr(config, name)!r} has no effect: {reason}.")


def _may_be_none(config: Any, name: str) -> bool:
    kind: Any = type(config)
    return type(None) in typing.get_args(_types(kind)[name])


@functools.cache
def _types(config: Any) -> dict[str, Any]:
    """The fields' types by name; to find them takes longer than all other checks together."""
    return typing.get_type_hints(config)


def _default(config: Any, name: str) -> Any:
    return next(field.default for field in dataclasses.fields(config) if field.name == name)
