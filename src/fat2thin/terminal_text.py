"""Text that a terminal shows and does not obey: names in files and folders may be a stranger's."""

import contextlib
import difflib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: object) -> str:
    """The text on one line, with escapes for whatever is not a letter, a sign or a space.

    Those are control characters, new lines, marks that turn the direction of reading, and the like.
    The escapes are TOML's: `\\n`, `\\u001b`.
    """
    return "".join(
        letter if letter.isprintable() else _SHORT.get(letter, _escape(letter))
        for letter in str(text)
    )


def printable_lines(text: object) -> str:
    """The same for text of several lines, which it keeps."""
    return "\n".join(map(printable, str(text).split("\n")))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most like a wrong one, as a hint in brackets; empty without any."""
    lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" (did you mean {lower[close[0]]!r}?)" if close else ""


@contextlib.contextmanager
def plain_errors(*kinds: type[Exception]) -> Iterator[None]:
    """End the program with a printable message and status 1 where the user was wrong."""
    try:
        yield
    except kinds as error:
        sys.exit(f"fat2thin: {printable_lines(error)}")


def use_for_logs_and_warnings() -> None:
    """Print warnings on one line, and logged ones that nobody else handles as printable text."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(message)}\n"
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter())


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
