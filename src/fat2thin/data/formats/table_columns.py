"""The table [columns] of a TOML: units, transforms and categories of single columns.

[columns]
dose = { unit = "mg", log = 0.1 }
sex = { categories = ["f", "m"], encode = "one-hot" }
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fat2thin.columns import LOG, SCALE, Column, Transform, allows_number, allows_unit
from fat2thin.data.safe_files import DataFileError, file_error
from fat2thin.terminal_text import did_you_mean, printable

KEYS = {
    "unit": "a text that is shown with the name, such as mg",
    LOG: "a number: the column is learned as log(value + number)",
    SCALE: "a number above 0: the column is learned as value times number",
    "categories": "a list of the texts that the column holds, each once, at most 1,000",
    "encode": "one-hot (a column of 0 and 1 per category) or ordinal (0, 1, ... in the order of "
    "categories)",
}
"""Every key of a column and its meaning."""

ONE_HOT, ORDINAL = "one-hot", "ordinal"
_MOST_CATEGORIES = 1000
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclasses.dataclass(frozen=True)
class ColumnDetails:
    """What [columns] says about one column of a file."""

    unit: str = ""
    transform: Transform | None = None
    categories: tuple[str, ...] = ()
    """The texts of the column; empty if it holds numbers."""
    one_hot: bool = False

    def columns(self, name: str) -> tuple[Column, ...]:
        """Return the columns of the data set that the column of this name becomes."""
        if self.one_hot:
            return tuple(Column(f"{name}={category}") for category in self.categories)
        return (Column(name, self.unit, self.transform),)


PLAIN = ColumnDetails()
"""A column of numbers, without a unit or a transform."""


def read_columns(path: Path, written: Any) -> dict[str, ColumnDetails]:
    """Return the details of each column; raise an error that names the column and the key."""
    if not isinstance(written, Mapping):
        complaint = "columns must be a table with one line per column"
        raise file_error(path, complaint, 'Write lines such as dose = { unit = "mg" } below it.')
    return {name: _details(path, name, given) for name, given in written.items()}


def _details(path: Path, name: str, given: Any) -> ColumnDetails:
    def wrong(complaint: str, remedy: str) -> DataFileError:
        return file_error(path, f"in columns {complaint}", remedy, name)

    known = f"The keys of a column are {', '.join(KEYS)}."
    if not isinstance(given, Mapping) or not given:
        raise wrong("must be a table with at least one key", known)
    for key, value in given.items():
        if key not in KEYS:
            raise wrong(f"has the unknown key {key!r}{did_you_mean(str(key), KEYS)}", known)
        if not _CHECKS[key](value):
            raise wrong(f"has an invalid {key}", f"{key}: {KEYS[key]}.")
    if LOG in given and SCALE in given:
        raise wrong("has both log and scale", "Keep one of them.")
    if ("categories" in given) != ("encode" in given):
        there, missing = sorted(("categories", "encode"), key=lambda key: key not in given)
        raise wrong(f"has {there} without {missing}", f"{missing}: {KEYS[missing]}.")
    number = [key for key in ("unit", LOG, SCALE) if key in given]
    if "encode" in given and number:
        raise wrong(f"has categories and {number[0]}", "A category has no unit and no transform.")
    transform = next(
        (Transform(key, float(given[key])) for key in (LOG, SCALE) if key in given), None
    )
    categories = tuple(given.get("categories", ()))
    return ColumnDetails(
        given.get("unit", ""), transform, categories, given.get("encode") == ONE_HOT
    )


def _are_categories(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MOST_CATEGORIES
        # Cells are compared without spaces around them.
        and all(isinstance(text, str) and text and text == text.strip() for text in value)
        and len(set(value)) == len(value)
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "unit": lambda value: value != "" and allows_unit(value),
    LOG: functools.partial(allows_number, LOG),
    SCALE: functools.partial(allows_number, SCALE),
    "categories": _are_categories,
    "encode": lambda value: value in (ONE_HOT, ORDINAL),
}


def columns_lines(columns: Sequence[Column]) -> list[str]:
    """Return the lines of [columns], its header included; none if there is nothing to write."""
    lines = []
    for column in columns:
        keys: dict[str, Any] = {"unit": column.unit} if column.unit else {}
        if column.transform is not None:
            keys |= {column.transform.kind: column.transform.number}
        lines += [column_line(column.name, keys)] if keys else []
    return ["[columns]", *dict.fromkeys(lines)] if lines else []


def encoding(categories: Sequence[str]) -> dict[str, Any]:
    """Return the keys that encode a column of these texts."""
    return {"categories": list(categories), "encode": ONE_HOT}


def column_line(name: str, keys: Mapping[str, Any]) -> str:
    """Return the line of [columns] for one column."""
    key = name if _BARE_KEY.fullmatch(name) else toml_value(name)
    return f"{key} = {{ {', '.join(f'{word} = {toml_value(keys[word])}' for word in keys)} }}"


def toml_value(value: Any) -> str:
    """Return a text, a finite number, or a list of these, as TOML."""
    # Strings, numbers and lists of JSON are valid TOML except for one control character.
    return printable(json.dumps(value, ensure_ascii=False))
