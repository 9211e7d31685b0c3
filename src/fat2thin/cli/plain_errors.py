"""How a command ends where its user was wrong."""

import contextlib
import sys
from collections.abc import Iterator

from fat2thin.terminal_text import printable, printable_lines


@contextlib.contextmanager
def plain_errors(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with one line, and a status that is not 0, where the user was wrong."""
    try:
        yield
    except kinds as error:
        sys.exit(f"fat2thin: {printable_lines(error)}")


def plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    line: str | None = None,
) -> str:  # fmt: skip
    """A warning as one line, without the line of the program that gave it."""
    return f"warning: {printable(message)}\n"
