"""The registry of commands: their groups, names and one-line summaries for `fat2thin --help`.

A command is a function with a docstring, registered with `command("Train")` or another group. The
first line of the docstring is its line in `fat2thin --help`.
"""

import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import tyro
from tyro.extras import SubcommandApp

from fat2thin.terminal_text import closest_first, did_you_mean

DESCRIPTION = (
    "Offline reinforcement learning with sparse policies: "
    "exactly zero probability outside a narrow band of actions."
)
Group = Literal["Data", "Train", "Judge", "Deploy", "Paper"]

_Command = TypeVar("_Command", bound=Callable[..., Any] | SubcommandApp)

app = SubcommandApp()
_groups: dict[Group, dict[str, str]] = {group: {} for group in get_args(Group)}


def command(
    group: Group, name: str | None = None, summary: str | None = None
) -> Callable[[_Command], _Command]:
    """Register a function, or an app of commands, under a group of `fat2thin --help`.

    The name is that of the function by default, the summary the first line of its docstring.
    """

    def register(target: _Command) -> _Command:
        called: str = name or cast(Any, target).__name__
        _groups[group][called] = (summary or inspect.getdoc(target) or "").partition("\n")[0]
        app.command(cast(Any, target), name=called, help=summary)
        return target

    return register


def find(arguments: Sequence[str]) -> tuple[list[str], Callable[..., Any] | None]:
    """Return the words that name a command, and its function; None if only help is asked for.

    An unknown command raises a ValueError with the closest ones.
    """
    path, commands = ["fat2thin"], app._subcommands
    for word in arguments:
        if word in ("-h", "--help"):
            return path, None
        name, lists = " ".join(path), f"{' '.join(path)} --help"
        if word.startswith("-"):
            raise ValueError(f"`{name}` has no option {word}; `{lists}` lists its commands")
        if word not in commands:
            hint, there = did_you_mean(word, commands), closest_first(word, commands, lists)
            raise ValueError(f"`{name}` has no command {word!r}{hint}; there are {there}")
        path.append(word)
        target = commands[word].target
        if not isinstance(target, SubcommandApp):
            return path, target
        commands = target._subcommands
    raise ValueError(f"`{' '.join(path)}` needs a command: {', '.join(commands)}")


def prepare_help(function: Callable[..., Any]) -> None:
    """Give the arguments of a command help texts of whole lines, without defaults that say nothing.

    The parser itself would keep the line breaks of the docstring, and show None.
    """
    described = _described(inspect.getdoc(function) or "")
    kinds = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, marks = kinds[name], getattr(kinds[name], "__metadata__", ())
        plain = get_args(kind)[0] if marks else kind
        if name not in described:
            continue
        shown: dict[str, Any] = {"help": described[name]}
        if parameter.default in (None, ()) or parameter.default is False:
            shown["help_behavior_hint"] = ""
        elif parameter.default is parameter.empty:
            shown["help_behavior_hint"] = "(required)"
        if parameter.default is None and not any(getattr(mark, "metavar", None) for mark in marks):
            inner = next(one for one in get_args(plain) if one is not type(None))
            choices = get_args(inner)
            shown["metavar"] = "|".join(choices) if choices else inner.__name__.upper()
        function.__annotations__[name] = Annotated[kind, tyro.conf.arg(**shown)]


def _described(docstring: str) -> dict[str, str]:
    """Return the texts below "Args:" by name, each on one line."""
    found: dict[str, str] = {}
    name = ""
    for line in docstring.partition("\nArgs:\n")[2].splitlines():
        if begins := re.match(r"    (\w+): ", line):
            name = begins[1]
        found[name] = f"{found.get(name, '')} {line.removeprefix(f'    {name}: ').strip()}".strip()
    return found


def overview() -> str:
    """Return the text of `fat2thin --help`: the commands by group, one line each."""
    width = shutil.get_terminal_size().columns
    lines = ["usage: fat2thin COMMAND ...", "", *textwrap.wrap(DESCRIPTION, width)]
    longest = max(len(name) for commands in _groups.values() for name in commands)
    for group, commands in _groups.items():
        if commands:
            lines += ["", f"{group}:"]
            lines += [f"  {name:{longest}}  {summary}" for name, summary in commands.items()]
    lines += ["", "`fat2thin COMMAND --help` explains a command, --version prints the version."]
    return "\n".join(lines)
