"""The registry of commands: their groups, names and one-line summaries for `fat2thin --help`.

A command is a function with a docstring, registered with `command("Train")` or another group. The
first line of the docstring is its line in `fat2thin --help`.
"""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast, get_args

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
