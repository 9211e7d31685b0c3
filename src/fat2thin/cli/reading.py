"""Conversion of command-line arguments to Python values and options."""

import ast
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import tyro

from fat2thin.settings.options import CHOICES, explain

LISTS = ("formats", "grid", "set", "snapshots")  # options that take several values


def merge_repeated(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with repeated list options joined; other repeated options are an error.

    The parser itself would keep the last occurrence and silently drop the others.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    current: list[str] = []
    by_option = {"": current}
    for word in arguments[:end]:
        option, equals, value = word.partition("=")
        # The parser treats --batch_size as --batch-size, and --no-follow turns --follow off.
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
    """Return the text as a Python literal if it is one, otherwise the text itself."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def read_setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"a setting is written NAME=VALUE, got {text!r}")
    return name, read_value(value)


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return settings by name; raise an error if one is given twice."""
    given: dict[str, Any] = {}
    for name, value in map(read_setting, texts):
        if name in given:
            raise ValueError(f"{name} is set twice, to {given[name]!r} and {value!r}: set it once")
        given[name] = value
    return given


_TEXTS = ("seeds", "report_seeds", "reward_scale")
"""Options that accept several types, such as a number or a list: parsed as text first."""
_KINDS: dict[str, Any] = {"snapshots": tuple[int, ...], "standardise": bool}
"""Options whose type on the command line differs from the type in Python."""
_METAVARS = {
    "steps": "INT",
    "seeds": "COUNT|LIST",
    "report_seeds": "COUNT|LIST",
    "batch_size": "INT",
    "task": "TASK",
    "reward_scale": "NUMBER|return_range|deviation",
}


def command_options(options: type) -> type:
    """Return a copy of a dataclass of options with command-line types and help texts."""
    helps = {name: sentence for name, _, sentence in explain(options)}
    described = []
    for field in dataclasses.fields(options):
        kind, default = _KINDS.get(field.name, field.type), field.default
        if choices := field.metadata.get(CHOICES):
            kind = Literal[choices]
        elif field.name in _TEXTS:
            kind, default = str | None, None if default is None else str(default)
        elif kind is bool:
            default = False
        argument = tyro.conf.arg(help=helps[field.name], metavar=_METAVARS.get(field.name))
        described.append((field.name, Annotated[kind, argument], default))
    return dataclasses.make_dataclass(options.__name__, described, frozen=True)


def read_options(options: Any) -> dict[str, Any]:
    """Return the given options by name, as Python values; omit those left to the settings."""
    given = dict(vars(options))
    for name in _TEXTS:
        if given.get(name) is not None:
            given[name] = read_value(given[name])
            given[name] = list(given[name]) if isinstance(given[name], tuple) else given[name]
    given["standardise"] = given["standardise"] or None
    return {name: value for name, value in given.items() if value is not None}
