"""Conversion of command-line arguments to Python values and options."""

import ast
import contextlib
import dataclasses
import decimal
import inspect
import itertools
import math
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from fat2thin.settings.options import CHOICES, explain
from fat2thin.terminal_text import closest_first, did_you_mean, printable

_MOST_DIGITS = 15  # of a whole number that is written with an exponent
LISTS = (
    "against",
    "above",
    "at",
    "below",
    "formats",
    "grid",
    "keep",
    "set",
    "slurm",
    "snapshots",
    "table",
)  # options that take several values
LISTS_OF = {"export": ("to",)}  # those that take one value in other commands


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
        elif name in LISTS or name in LISTS_OF.get(arguments[0], ()):
            current = by_option[name]
            current += [value] if equals else []
        else:
            raise ValueError(f"--{name} is given twice: give it once")
    return [*itertools.chain(*by_option.values()), *arguments[end:]]


class Parameter(NamedTuple):
    """One argument of a command."""

    shown: str
    """The words that stand for it in help texts."""
    kind: Any
    required: bool

    def read(self, text: str, command: str) -> str:
        """Return a value for the parser, with whole numbers as digits; a wrong one is refused."""
        kinds = typing.get_args(self.kind) or (self.kind,)
        if type(None) in kinds and text == "None":
            return text
        if choices := _choices(self.kind):
            if text not in choices:
                hint = did_you_mean(text, choices)
                there = closest_first(text, choices, f"{command} --help")
                raise ValueError(f"{self.shown} cannot be {text!r}{hint}; there are {there}")
        elif int in kinds:
            return _digits(self.shown, text)
        elif float in kinds:
            try:
                float(text)
            except ValueError:
                raise ValueError(f"{self.shown} takes a number, got {text!r}") from None
        return text


def _choices(kind: Any) -> tuple[str, ...]:
    """Return the choices of `Literal["a", "b"]`, of a tuple of them, or of one that may be None."""
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    return tuple(itertools.chain(*map(_choices, typing.get_args(kind))))


def _digits(name: str, text: str) -> str:
    with contextlib.suppress(decimal.InvalidOperation):
        number = decimal.Decimal(text)
        if number.is_finite() and number.adjusted() < _MOST_DIGITS and number == int(number):
            return str(int(number))
    raise ValueError(f"{name} takes a whole number, such as 20000 or 1e5, got {text!r}")


def parameters(function: Callable[..., Any]) -> tuple[list[Parameter], dict[str, Parameter]]:
    """Return the positional arguments of a command and its options, by name without dashes.

    The fields of a dataclass of options are options of the command.
    """
    kinds = typing.get_type_hints(function, include_extras=True)
    positional: list[Parameter] = []
    options: dict[str, Parameter] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        marks = getattr(kinds[name], "__metadata__", ())
        kind = typing.get_args(kinds[name])[0] if marks else kinds[name]
        required = parameter.default is parameter.empty
        if parameter.kind is parameter.POSITIONAL_ONLY:
            shown = [mark.metavar for mark in marks if getattr(mark, "metavar", None)]
            positional.append(Parameter((*shown, name.upper())[0], kind, required))
        elif dataclasses.is_dataclass(kind):
            options |= parameters(typing.cast(Any, kind))[1]
        else:
            names = [mark.name for mark in marks if getattr(mark, "name", None)]
            option = (*names, name)[0].replace("_", "-")
            options[option] = Parameter(f"--{option}", kind, required)
    return positional, options


def check_arguments(
    command: str, function: Callable[..., Any], words: Sequence[str]
) -> Sequence[str]:
    """Return the arguments of a command: positional ones first, 1e5 as 100000.

    Raises a ValueError for an unknown option, a value of the wrong kind, and too many or too few
    arguments.
    """
    end = words.index("--") if "--" in words else len(words)
    if {"-h", "--help"} & {*words[:end]}:
        return words
    positional, options = parameters(function)
    free: list[str] = []  # positional arguments
    read: list[str] = []  # options and their values
    seen: set[str] = set()
    current, taking = None, 0.0  # the option that takes the next values, and how many
    for word in (*words[:end], "--"):
        if not re.match(r"--|-[^\d.]", word):
            if current and taking:
                read.append(current.read(word, command))
                taking -= 1
            else:
                free.append(word)
            continue
        if current and taking == 1:
            raise ValueError(f"{current.shown} of `{command}` needs a value")
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("_", "-")
        if word != "--":
            current = options.get(name) or options.get(name.removeprefix("no-"))
            if current is None:
                raise ValueError(_no_option(command, option, options))
            several = typing.get_origin(current.kind) is tuple
            if current.kind == bool | None and not equals:
                # The parser has no flags that may be left out: it gets their value.
                equals, option, value = "=", current.shown, str(not name.startswith("no-"))
            taking = math.inf if several else 0 if current.kind is bool or equals else 1
            read.append(f"{option}={current.read(value, command)}" if equals else word)
            seen.add(current.shown)
    free += words[end + 1 :]
    if not any("..." in one.shown for one in positional):
        if len(free) > len(positional):
            takes = " ".join(one.shown for one in positional) or "no positional arguments"
            more = free[len(positional)]
            raise ValueError(f"`{command}` takes {takes}; {more!r} is one too many")
        seen |= {one.shown for one in positional[: len(free)]}
        free = [one.read(word, command) for one, word in zip(positional, free, strict=False)]
        every = (*positional, *options.values())
        if missing := [one.shown for one in every if one.required and one.shown not in seen]:
            lacking = " and ".join(missing)
            raise ValueError(f"`{command}` needs {lacking}: see `{command} --help`")
    return [*read, "--", *free] if words[end:] else [*free, *read]


def _no_option(command: str, option: str, options: Iterable[str]) -> str:
    every = [f"--{name}" for name in (*options, "help")]
    hint = did_you_mean(option, every).replace("'", "")
    width = shutil.get_terminal_size().columns
    listed = textwrap.fill(f"Its options: {', '.join(every)}", width, break_on_hyphens=False)
    return f"`{command}` has no option {option}{hint}\n{listed}"


def read_value(text: str) -> Any:
    """Return the text as a Python literal if it is one, otherwise the text itself.

    A whole number written with an exponent is an int: 1e5 is 100000.
    """
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 10.0**_MOST_DIGITS
    return int(value) if whole and "e" in text.lower() else value


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


def read_run(folder: Path, limits: Path | None = None) -> Any:
    """Return the run of a folder, with the limits of a file around its policies."""
    from fat2thin.training import load

    run = load(folder)
    if limits is None:
        return run
    limited, learned = run.with_limits(limits), run.program.problem.limits
    if learned is not None:
        names = ", ".join(map(printable, learned.names))
        print(
            f"The limits of {printable(limits)} replace those that the run learned within: {names}",
            end="\n\n",
        )
    return limited


def refuse_file(out: Path | None) -> None:
    """Raise a ValueError if the path of a folder to write to is, or lies below, a file."""
    if out is None:
        return
    place = next((one for one in (out, *out.parents) if one.exists()), None)
    if place is not None and not place.is_dir():
        raise ValueError(f"{place} is a file: choose a folder with --out")


_TEXTS = ("seeds", "report_seeds", "reward_scale")
"""Options that accept several types, such as a number or a list: parsed as text first."""
_KINDS: dict[str, Any] = {"snapshots": tuple[int, ...], "limits": str | None}
"""Options whose type on the command line differs from the type in Python."""
_METAVARS = {
    "steps": "INT",
    "seeds": "COUNT|LIST",
    "report_seeds": "COUNT|LIST",
    "batch_size": "INT",
    "task": "TASK",
    "holdout": "FLOAT",
    "window": "INT",
    "limits": "FILE",
    "standardise": "| --no-standardise",
    "reward_scale": "NUMBER|return_range|deviation",
    "centre_values": "| --no-centre-values",
    "cluster": "ray|ray:HOST:PORT|slurm",
    "workers": "INT",
    "gpus_per_worker": "INT",
    "slurm": "NAME=VALUE ...",
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
        # The help text says what None and an empty list mean.
        hint = "" if default in (None, ()) or default is False else None
        argument = tyro.conf.arg(
            help=helps[field.name], metavar=_METAVARS.get(field.name), help_behavior_hint=hint
        )
        described.append((field.name, Annotated[kind, argument], default))
    return dataclasses.make_dataclass(options.__name__, described, frozen=True)


def read_options(options: Any) -> dict[str, Any]:
    """Return the given options by name, as Python values; omit those left to the settings."""
    given = dict(vars(options))
    for name in _TEXTS:
        if given.get(name) is not None:
            given[name] = read_value(given[name])
            given[name] = list(given[name]) if isinstance(given[name], tuple) else given[name]
    return {name: value for name, value in given.items() if value is not None}
