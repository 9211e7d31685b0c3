"""A TOML to start from, for a table that has none."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fat2thin.data.formats.table_schema import (
    KEYS,
    REQUIRED,
    SEVERAL,
    SINGLE,
    USUAL_NAMES,
    common_beginning,
)
from fat2thin.terminal_text import printable

_USUAL_BEGINNINGS = {
    "observation": ("obs", "state"),
    "action": ("act", "dose"),
    "next_observation": ("next_obs", "next_state"),
}
_MANY = 8
_OBSERVED = "observed in the log: write the real limit"

Ends = tuple[list[float], list[float]]
"""The lowest and the highest number of each of some columns."""


def starter(
    file: Path, columns: Sequence[str], observed: Callable[[Sequence[str]], Ends | None]
) -> str:
    """A TOML for a file with these columns, as far as their names tell; the rest is yours.

    The action box is that of the logged actions, which `observed` returns for columns of numbers;
    where it is not known it is "?", which is refused.
    """
    guesses = {key: _guess(key, columns) for key in KEYS if key in (*SINGLE, *SEVERAL)}
    values: dict[str, Any] = {"files": [file.name]}
    for key, names in guesses.items():
        if names or key in REQUIRED:
            written = _folded(names, columns) or ["?"]
            values[key] = written if key in SEVERAL else written[0]
    ends = observed(guesses["action"]) if guesses["action"] else None
    low, high = ends or ("?", "?")
    values |= {"action_low": low, "action_high": high, "discount": 0.99}
    comments = dict.fromkeys(("action_low", "action_high"), f"  # {_OBSERVED}") if ends else {}
    lines = [f"{key} = {_toml(value)}{comments.get(key, '')}" for key, value in values.items()]
    used = {name for names in guesses.values() for name in names}
    unused = [name for name in columns if name not in used]
    if unused:
        lines.append(f"# not used yet: {_toml(unused)}")
    return "\n".join(lines) + "\n"


def _guess(key: str, columns: Sequence[str]) -> list[str]:
    if key in SINGLE:
        return [name for name in columns if name.lower() in USUAL_NAMES[key]][:1]
    return [name for name in columns if name.lower().startswith(_USUAL_BEGINNINGS[key])]


def _folded(names: list[str], columns: Sequence[str]) -> list[str]:
    """The names, or their common beginning where they are many and it means them alone."""
    if len(names) <= _MANY:
        return names
    beginning = common_beginning(names).rstrip("0123456789")
    meant = [name for name in columns if name.startswith(beginning)]
    return [f"{beginning}*"] if meant == names else names


def _toml(value: Any) -> str:
    # The strings, numbers and lists of JSON are those of TOML but for one control character.
    return printable(json.dumps(value, ensure_ascii=False))
