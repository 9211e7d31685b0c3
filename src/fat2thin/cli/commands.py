"""The registry of commands: their groups, names and one-line summaries for `fat2thin --help`.

A command is a function with a docstring, registered with `command("Train")` or another group. The
first line of the docstring is its line in `fat2thin --help`.
"""

import inspect
import shutil
import textwrap
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

from tyro.extras import SubcommandApp

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
        called = name or getattr(target, "__name__", "")
        _groups[group][called] = (summary or inspect.getdoc(target) or "").partition("\n")[0]
        app.command(target, name=called, help=summary)
        return target

    return register


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
