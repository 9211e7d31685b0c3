"""Safe terminal output: text from files and folder names cannot control the terminal."""

import contextlib
import difflib
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator

_COMPARED, _CLOSEST = 64, 5
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: object) -> str:
    """Return the text on one line, with unprintable characters escaped.

    These are control characters, line breaks, marks that change the text direction, and similar.
    The escapes are those of TOML: `\\n`, `\\u001b`.
    """
    return "".join(
        letter if letter.isprintable() else _SHORT.get(letter, _escape(letter))
        for letter in str(text)
    )


def printable_lines(text: object) -> str:
    """Return the text with unprintable characters escaped, except line breaks."""
    return "\n".join(map(printable, str(text).split("\n")))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 run", "1,200 rows"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint in brackets with the most similar known name; empty if none is similar."""
    lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" (did you mean {lower[close[0]]!r}?)" if close else ""


def closest_first(name: str, known: Iterable[str], listing: str = "") -> str:
    """Return the known names as text, the most similar first; of many, the first five.

    `listing` is the command that lists all of them.

    Examples:
        >>> names = ["steps", "task", "seeds", "holdout", "episodes", "out", "set"]
        >>> closest_first("seed", names, "x")
        'seeds, set, steps, episodes, task and 2 more (`x` lists all)'
    """
    # Cut off: the time of a comparison grows with the square of the length.
    match = difflib.SequenceMatcher(b=name.lower()[:_COMPARED])

    def similarity(other: str) -> float:
        match.set_seq1(other.lower())
        return match.ratio()

    names = sorted(sorted(known), key=similarity, reverse=True)
    if len(names) <= _CLOSEST:
        return ", ".join(names)
    lists = f" (`{listing}` lists all)" if listing else ""
    return f"{', '.join(names[:_CLOSEST])} and {len(names) - _CLOSEST} more{lists}"


@contextlib.contextmanager
def plain_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Exit with a printable message and status 1 when an error of these kinds is raised."""
    try:
        yield
    except kinds as error:
        sys.exit(f"fat2thin: {printable_lines(_plain(error))}")


def _plain(error: Exception) -> str:
    """Return the message of an error; one of the system without its number."""
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__ and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def use_for_logs_and_warnings() -> None:
    """Print warnings on one line, and log records without a handler as printable text."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(message)}\n"
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter())


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
