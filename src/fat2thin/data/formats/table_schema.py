"""The TOML next to a table: its files, the meaning of its columns, and the action box."""

import dataclasses
import glob
import itertools
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fat2thin.data.formats.table_columns import (
    PLAIN,
    ColumnDetails,
    column_line,
    encoding,
    read_columns,
    toml_value,
)
from fat2thin.data.operations import Box
from fat2thin.data.safe_files import DataFileError, file_error, read_small
from fat2thin.terminal_text import did_you_mean, printable

KEYS = {
    "files": "a file, a pattern such as logs/*.csv, a folder, or a list of these, relative to this "
    "TOML; by default the CSV or Parquet file of the same name",
    "episode": "the column with the label of the episode; not needed if end or cut marks the last "
    "row of each episode",
    "time": "a column of numbers or dates that increase within an episode; only checks the order",
    "observation": "the columns of the observation: names, or a prefix such as obs_*",
    "action": "the columns of the action",
    "reward": "the column of the reward",
    "end": "a column that is true in rows where the task truly ended",
    "cut": "a column that is true in rows after which a time limit stopped the episode",
    "next_observation": "the columns of the observation after the step, in the same order",
    "propensity": "the probability, above 0 and at most 1, with which the action was chosen, or "
    "its density",
    "propensity_is": 'probability, or density: per unit of the action, which may exceed 1; "'
    '"probability" by default',
    "action_low": "lower end of the action box: one number, or a list with one per action",
    "action_high": "upper end of the action box",
    "discount": "the discount factor used in training, from 0 to 1",
    "columns": "units, transforms and categories, one line per column, such as "
    'dose = { unit = "mg", log = 0.1 }',
}
"""Every key and its meaning."""

UNKNOWN = "?"
"""What a draft has in place of a name or a number that must be filled in."""
_REQUIRED = ("observation", "action", "reward", "action_low", "action_high", "discount")
_SINGLE = ("episode", "time", "reward", "end", "cut", "propensity")  # keys that name one column
_SEVERAL = ("observation", "action", "next_observation")  # keys that name columns or prefixes
# Common names of the single columns, in lower case.
_USUAL_NAMES = {
    "episode": ("episode", "episode_id", "trajectory", "trajectory_id", "patient", "patient_id"),
    "time": ("time", "timestamp", "step", "timestep", "date", "hour", "day", "t"),
    "reward": ("reward", "rewards"),
    "end": ("end", "done", "dones", "terminal", "terminals", "terminated", "died", "death"),
    "cut": ("cut", "time_limit", "timeout", "timeouts", "truncated"),
    "propensity": ("propensity", "propensities"),
}
_USUAL_PREFIXES = {
    "observation": ("obs", "state"),
    "action": ("act", "dose"),
    "next_observation": ("next_obs", "next_state"),
}
_WHICH_EPISODE = "  # the same in all rows of an episode; delete this if end marks each last row"
SUFFIXES = (".csv", ".parquet")
_TABLES = f"Tables are {' or '.join(SUFFIXES)} files."
_LARGEST_TOML = 2**20
_LONGEST_SHOWN = 200
_MOST_DOTS = 200
_DEEP_KEY = re.compile(
    rf"""(?:\.[ \t]*+(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+){{{_MOST_DOTS + 1}}}"""
)
"""Alternating dots and words, more than in any real key, number or file name."""

_MOST_LISTED = 8  # names in a list; more are written as a prefix, if they share one

Columns = dict[str, tuple[str, ...]]  # the columns of a file, by key
Ends = tuple[list[float], list[float]]  # minimum and maximum of each column


@dataclasses.dataclass(frozen=True)
class TableSchema:
    """The contents of a TOML: apart from `path`, the fields are its keys (see `KEYS`)."""

    path: Path
    files: tuple[str, ...]
    observation: tuple[str, ...]
    action: tuple[str, ...]
    reward: str
    action_low: float | tuple[float, ...]
    action_high: float | tuple[float, ...]
    discount: float
    episode: str | None = None
    time: str | None = None
    end: str | None = None
    cut: str | None = None
    next_observation: tuple[str, ...] | None = None
    propensity: str | None = None
    propensity_is: str = "probability"
    columns: dict[str, ColumnDetails] = dataclasses.field(default_factory=dict)

    @property
    def has_densities(self) -> bool:
        """Whether propensities are densities, which may exceed 1."""
        return self.propensity is not None and self.propensity_is == "density"

    @property
    def source(self) -> str:
        """What messages call the keys: the name of the TOML, or the call that passed them."""
        return self.path.name if self.path.suffix.lower() == ".toml" else "the call"

    def find_columns(self, present: Sequence[str], file: Path) -> Columns:
        """Return the columns of each key, in a file with the columns `present`."""
        counted = Counter(present)
        found = {
            key: self._find(key, names, counted, file)
            for key in (*_SINGLE, *_SEVERAL)
            if (names := _names(getattr(self, key)))
        }
        if "next_observation" in found:
            self._check_pairs(found["observation"], found["next_observation"], file)
        self._check_details(found)
        return found

    def details(self, columns: Columns) -> dict[str, tuple[ColumnDetails, ...]]:
        """Return the details of the columns of each key; next observations have their twins'."""
        twins = {
            "action": "action",
            "observation": "observation",
            "next_observation": "observation",
        }
        return {
            key: tuple(self.columns.get(name, PLAIN) for name in columns[twins[key]])
            if key in twins
            else (PLAIN,) * len(names)
            for key, names in columns.items()
        }

    def how_to_encode(self, column: str, categories: Sequence[str]) -> str:
        """Return the advice that encodes a column of these texts."""
        keys = encoding(categories)
        if self.source == "the call":
            return f"To encode it, pass columns={{{column!r}: {keys}}}."
        return f"To encode it, add this line under [columns]: {column_line(column, keys)}"

    def box(self, actions: Sequence[str]) -> Box:
        """Return the action box for the columns of the actions."""
        low, high = (self._bound(key, len(actions)) for key in ("action_low", "action_high"))
        for name, lower, upper in zip(actions, low, high, strict=True):
            if not lower < upper:
                complaint = f"action_low of {name!r} is {lower:g}, not below action_high {upper:g}"
                raise self.wrong(complaint, "Write the lowest and the highest allowed action.")
        for name, end in zip(actions, low, strict=True):
            made = self.columns.get(name, PLAIN).transform
            if made is not None and end <= made.lowest:
                complaint = f"action_low of {name!r} is {end:g}, but {made} needs more than"
                remedy = "Take a larger offset, or a higher action_low."
                raise self.wrong(f"{complaint} {made.lowest + 0.0:g}", remedy)
        return Box(low, high, self.discount)

    def wrong(self, complaint: str, remedy: str) -> DataFileError:
        """Return an error about this TOML."""
        return file_error(self.path, complaint, remedy)

    def _check_details(self, found: Columns) -> None:
        """Raise an error if [columns] names a column that has no unit, transform or categories."""
        for name, details in self.columns.items():
            keys = [key for key, names in found.items() if name in names]
            if "action" in keys and details.categories:
                complaint = f"columns has categories for {name!r}, which is an action"
                raise self.wrong(complaint, "An action must be a number: write it as one.")
            if "observation" in keys or "action" in keys:
                continue
            allowed = (*found["observation"], *found["action"])
            remedy = f"Observation and action columns are {_listed(allowed)}."
            if "next_observation" in keys:
                twin = found["observation"][found["next_observation"].index(name)]
                remedy = f"Remove it: the line of {twin!r} counts for its next observation as well."
            elif "reward" in keys:
                remedy = "Remove it; the setting reward_scale scales rewards."
            is_ = f"which is the {keys[0]}" if keys else "which is no observation or action"
            hint = "" if keys else did_you_mean(name, allowed)
            raise self.wrong(f"columns names {name!r}, {is_}{hint}", remedy)

    def _find(
        self, key: str, names: Sequence[str], present: Counter[str], file: Path
    ) -> tuple[str, ...]:
        found = [column for name in names for column in self._matches(key, name, present, file)]
        for column, times in Counter(found).items():
            if present[column] > 1:
                complaint = f"is the name of {present[column]} columns"
                raise file_error(file, complaint, "Give every column its own name.", column)
            if times > 1:
                named = f"{key} names the column {column!r} {times} times"
                raise self.wrong(named, "Name it once.")
        return tuple(found)

    def _matches(self, key: str, name: str, present: Counter[str], file: Path) -> list[str]:
        if name in present:
            return [name]
        prefix = name[:-1] if name.endswith("*") and key in _SEVERAL else None
        found = [column for column in present if prefix and column.startswith(prefix)]
        if not found and name == UNKNOWN:
            complaint = f"{key} is still {name!r}: write the column of the {key} there"
            raise self.wrong(complaint, f"The columns are {_listed(list(present))}.")
        if not found:
            hint = did_you_mean(name, present)
            complaint = f"has no column {name!r}, which {self.source} gives as {key}{hint}"
            raise file_error(file, complaint, f"Its columns are {_listed(list(present))}.")
        return found

    def _check_pairs(self, seen: tuple[str, ...], following: tuple[str, ...], file: Path) -> None:
        pairs = f"observation ({_listed(seen)}) and next_observation ({_listed(following)})"
        if len(seen) != len(following):
            complaint = f"{pairs} have {len(seen)} and {len(following)} columns"
            raise file_error(file, complaint, "Both need the same columns in the same order.")
        ours, theirs = _endings(seen), _endings(following)
        by_pattern = any(name.endswith("*") for name in self.next_observation or ())
        if by_pattern and ours != theirs and sorted(ours) == sorted(theirs):
            remedy = f"List the names in {self.source}."
            raise file_error(file, f"{pairs} have different orders", remedy)

    def _bound(self, key: str, actions: int) -> tuple[float, ...]:
        bound = getattr(self, key)
        if not isinstance(bound, tuple):
            return (bound,) * actions
        if len(bound) != actions:
            complaint = f"{key} has {len(bound)} numbers for {actions} actions"
            raise self.wrong(complaint, "Give one for each, or one number for all.")
        return bound

    def find_files(self) -> tuple[Path, ...]:
        """Return the files in the order of the TOML; a pattern or folder is sorted by name."""
        if not self.files:
            same_name = [self.path.with_suffix(suffix) for suffix in SUFFIXES]
            found = [path for path in same_name if path.is_file()]
            if len(found) != 1:
                names = " and ".join(path.name for path in found) or "no table of the same name"
                raise self.wrong(f"has {names} next to it", "List the tables under the key files.")
            return tuple(found)
        paths = [path for entry in self.files for path in self._expand(entry)]
        for path, times in Counter(paths).items():
            if times > 1:
                raise self.wrong(f"files names {path} {times} times", "Name it once.")
            if path.suffix.lower() not in SUFFIXES:
                raise self.wrong(f"files names {path}", _TABLES)
        return tuple(paths)

    def _expand(self, entry: str) -> list[Path]:
        folder = self.path.parent
        path = folder / entry
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
            what = "which contains no tables"
        elif os.path.lexists(path):
            return [path]
        else:
            matches = glob.glob(entry, root_dir=folder, recursive=True)
            found = sorted(folder / match for match in matches if (folder / match).is_file())
            what = f"which does not exist{did_you_mean(entry, os.listdir(folder))}"
        if not found:
            raise self.wrong(f"files names {entry}, {what}", _TABLES)
        return found


def read_schema(path: Path) -> TableSchema:
    """Read and check a TOML; the files that it names are not opened."""
    remedy = "It needs only a few names and numbers; use a prefix such as obs_* for many columns."
    contents = read_small(path, _LARGEST_TOML, remedy)
    try:
        text = contents.decode()
        # Parsing a key takes quadratic time in its length.
        if _DEEP_KEY.search(text):
            raise ValueError(f"it has a key of more than {_MOST_DOTS} dots")
        written = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        remedy = 'Write lines such as key = "text", key = 1.5 or key = ["text", "text"].'
        raise file_error(path, f"cannot be read as TOML: {error}", remedy) from None
    return schema_of(path, written)


def schema_of(path: Path, written: Mapping[str, Any]) -> TableSchema:
    """Return the checked schema of the keys and values of a TOML; `path` is named in messages."""
    for key in written:
        if key not in KEYS:
            meant = [known for known, usual in _USUAL_NAMES.items() if key.lower() in usual]
            hint = f" (did you mean {meant[0]!r}?)" if meant else did_you_mean(key, KEYS)
            remedy = f"The keys are {', '.join(KEYS)}."
            raise file_error(path, f"unknown key {_shown(key)}{hint}", remedy)
    missing = [key for key in _REQUIRED if key not in written]
    if not {"episode", "end", "cut"} & written.keys():
        missing.insert(0, "episode")
    if missing:
        remedy = " ".join(f"{key}: {KEYS[key]}." for key in missing)
        raise file_error(path, f"lacks {', '.join(missing)}", remedy)
    values: dict[str, Any] = {"files": ()}
    for key, value in written.items():
        if key == "columns":
            values[key] = read_columns(path, value)
            continue
        check, must_be = _CHECKS[key]
        values[key] = check(value)
        if values[key] is None and isinstance(value, list) and "" in value:
            remedy = "Give every column that is used a name in the header of the table."
            raise file_error(path, f"{key} has an empty name", remedy)
        if values[key] is None:
            complaint = f"{key} must be {must_be}, not {_shown(value)}"
            raise file_error(path, complaint, f"{key}: {KEYS[key]}.")
    return TableSchema(path=path, **values)


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _names(value: Any) -> tuple[str, ...] | None:
    values = [value] if isinstance(value, str) else value
    if isinstance(values, list | tuple) and values and all(_name(name) for name in values):
        return tuple(values)
    return None


def _number(value: Any) -> float | None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    # The box must fit in float32, like the actions; this also excludes NaN.
    return float(value) if real and abs(value) < 1e38 else None


def _discount(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _kind_of_propensity(value: Any) -> str | None:
    return value if value in ("probability", "density") else None


def _bounds(value: Any) -> float | tuple[float, ...] | None:
    if not isinstance(value, list):
        return _number(value)
    numbers = tuple(number for number in map(_number, value) if number is not None)
    return numbers if numbers and len(numbers) == len(value) else None


_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "files": (_names, "a name or a list of names"),
    **{key: (_name, "a column name") for key in _SINGLE},
    **{key: (_names, "a list of column names") for key in _SEVERAL},
    "action_low": (_bounds, "a finite number or a list of them"),
    "action_high": (_bounds, "a finite number or a list of them"),
    "discount": (_discount, "a number from 0 to 1"),
    "propensity_is": (_kind_of_propensity, '"probability" or "density"'),
}


def _shown(value: Any) -> str:
    """Return a value as text, shortened if it is very long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number with thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(map(printable, names[:12])) + more


def _endings(names: Sequence[str]) -> list[str]:
    start = len(_common_prefix(names))
    return [name[start:] for name in names]


def _common_prefix(names: Sequence[str]) -> str:
    # In sorted order all names lie between the first and the last.
    letters = zip(min(names), max(names), strict=False)
    return "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], letters))


def starter(
    file: Path,
    columns: Sequence[str],
    observed: Callable[[Sequence[str]], Ends | None],
    texts: Callable[[Sequence[str]], dict[str, list[str]]] = lambda names: {},
    folder: Path | None = None,
) -> str:
    """Return a draft of a TOML for a file, guessed from its column names.

    The action box is the range of the logged actions, as returned by `observed`. Unknown values are
    "?", which `read_schema` refuses. `texts` returns the categories of columns that hold few
    different texts. `folder` is that of the TOML, by default the folder of the file.
    """
    guesses = {key: _guess(key, columns) for key in KEYS if key in (*_SINGLE, *_SEVERAL)}
    listed = file.name if folder is None else os.path.relpath(file, folder)
    values: dict[str, Any] = {"files": [listed]}
    for key, names in guesses.items():
        if names or key in ("episode", *_REQUIRED):
            written = _folded(names, columns) or ["?"]
            values[key] = written if key in _SEVERAL else written[0]
    ends = observed(guesses["action"]) if guesses["action"] else None
    low, high = ends or ("?", "?")
    note = "  # observed in the log: replace by the real limit" if ends else ""
    box = (f"action_low = {toml_value(low)}{note}", f"action_high = {toml_value(high)}{note}")
    notes = {} if guesses["episode"] else {"episode": _WHICH_EPISODE}
    lines = [
        *(f"{key} = {toml_value(value)}{notes.get(key, '')}" for key, value in values.items()),
        *box,
        "discount = 0.99",
    ]
    used = {name for names in guesses.values() for name in names}
    unused = [name for name in columns if name not in used]
    if unused:
        lines.append(f"# not used yet: {toml_value(unused)}")
    found = texts([*guesses["observation"], *unused])
    encoded = {name: column_line(name, encoding(words)) for name, words in found.items()}
    if encoded:
        lines += ["", "[columns]"]
        lines += [("# " if name in unused else "") + line for name, line in encoded.items()]
    return "\n".join(lines) + "\n"


def _guess(key: str, columns: Sequence[str]) -> list[str]:
    if key in _SINGLE:
        return [name for name in columns if name.lower() in _USUAL_NAMES[key]][:1]
    return [name for name in columns if name.lower().startswith(_USUAL_PREFIXES[key])]


def _folded(names: list[str], columns: Sequence[str]) -> list[str]:
    """Return the names, or one prefix pattern if they are many and it matches only them."""
    if len(names) <= _MOST_LISTED:
        return names
    prefix = _common_prefix(names).rstrip("0123456789")
    meant = [name for name in columns if name.startswith(prefix)]
    return [f"{prefix}*"] if meant == names else names
