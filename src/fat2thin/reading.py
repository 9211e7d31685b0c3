"""What people type on a command line, as Python values."""

import ast
from typing import Any


def read_value(text: str) -> Any:
    """A Python value where it reads as one, the text itself otherwise."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def read_setting(text: str) -> tuple[str, Any]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"a setting is written NAME=VALUE, got {text!r}")
    return name, read_value(value)


def read_seeds(text: str) -> int | list[int]:
    """`10`, or a list: `3,` `3,5` `[3, 5]`."""
    value = read_value(text)
    return list(value) if isinstance(value, tuple) else value


def read_scales(standardise: bool, reward_scale: str | None) -> dict[str, Any]:
    """Those of the two scales that were given, as fields of a run's specification."""
    scale = None if reward_scale is None else read_value(reward_scale)
    given = {"standardise": standardise or None, "reward_scale": scale}
    return {name: value for name, value in given.items() if value is not None}
