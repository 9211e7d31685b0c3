"""What people type on a command line, as Python values."""

import ast
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

LISTS = ("formats", "grid", "set", "snapshots")
"""Options that take several values."""


def merge_repeated(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with repeated lists joined; any other option given twice is an error.

    Of an option that is given twice, the parser keeps the last and drops the others silently.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    current: list[str] = []
    by_option = {"": current}
    for word in arguments[:end]:
        option, equals, value = word.partition("=")
        # The parser takes --batch_size for --batch-size, and --no-follow turns --follow off.
        name = option.removeprefix("--").replace("_", "-").removeprefix("no-")
        if not option.startswith("--"):
            current.append(word)
        elif name not in by_option:
            current = by_option[name] = [word]
        elif name in LISTS:
            current = by_option[name]
            current += [value] if equals else []
        else:
            raise ValueError(f"--{name} is given twice: give it once")
    return [*itertools.chain(*by_option.values()), *arguments[end:]]


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


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Settings by name; one that is given twice is an error."""
    given: dict[str, Any] = {}
    for name, value in map(read_setting, texts):
        if name in given:
            raise ValueError(f"{name} is set twice, to {given[name]!r} and {value!r}: set it once")
        given[name] = value
    return given


def read_seeds(text: str) -> int | list[int]:
    """`10`, or a list: `3,` `3,5` `[3, 5]`."""
    value = read_value(text)
    return list(value) if isinstance(value, tuple) else value


def read_scales(standardise: bool, reward_scale: str | None) -> dict[str, Any]:
    """Those of the two scales that were given, as fields of a run's specification."""
    scale = None if reward_scale is None else read_value(reward_scale)
    given = {"standardise": standardise or None, "reward_scale": scale}
    return {name: value for name, value in given.items() if value is not None}
