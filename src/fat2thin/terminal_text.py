"""Text that a terminal shows and does not obey: names in files and folders may be a stranger's."""

import logging

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


def use_for_logs() -> None:
    """Let warnings that nobody else handles reach the terminal as printable text."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Formatter())


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
