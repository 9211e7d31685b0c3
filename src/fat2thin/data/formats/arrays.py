"""Data sets from arrays in memory, checked like those of a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.columns import Column
from fat2thin.data.dataset import Dataset
from fat2thin.data.formats import d4rl
from fat2thin.data.formats.array_log import (
    COLUMNS,
    DENSITY,
    ArrayFile,
    Layout,
    NamedColumns,
    read_dataset,
)
from fat2thin.data.formats.npz import NEORL2
from fat2thin.terminal_text import did_you_mean

_SETTINGS = ("action_low", "action_high", "discount", DENSITY)
_EPISODE = "episode"
_NAMES = ("observation_names", "action_names")
_NOT_READ = ("infos", "metadata")
"""Groups of a D4RL file that its reader skips; in a dictionary their arrays are "infos/…"."""


def dataset_from_arrays(arrays: Mapping[str, Any], name: str = "arrays") -> Dataset:
    """Return the data set of a mapping with the array names of fat2thin, D4RL or NeoRL-2.

    The names of fat2thin are the arguments of `Dataset.from_arrays`. The arrays are copied, and
    those that are None count as missing.
    """
    given = {str(key): values for key, values in arrays.items() if values is not None}
    layout = _layout(given)
    if layout is d4rl.LAYOUT:
        given = {key: one for key, one in given.items() if key.split("/")[0] not in _NOT_READ}
    file = _Arrays(name, given, layout)
    file.refuse_unknown()
    if layout.reward in given and layout.terminal not in given:
        given[layout.terminal] = np.zeros(file.array(layout.reward).shape, bool)
    if _EPISODE in given:
        given[layout.episode_start] = file.starts()
    return read_dataset(file, layout, name)


def _layout(arrays: Mapping[str, Any]) -> Layout:
    if "observations" in arrays:
        return d4rl.LAYOUT
    return NEORL2 if "obs" in arrays and "observation" not in arrays else Layout()


class _Arrays(ArrayFile):
    """Named arrays in memory; the name of the data set takes the place of the file's."""

    resave = "Pass an array of numbers."
    give_box = "Pass the real limits as action_low and action_high"

    def __init__(self, name: str, arrays: dict[str, Any], layout: Layout) -> None:
        self.path, self._arrays, self._layout = Path(name), arrays, layout

    def refuse_unknown(self) -> None:
        """Refuse names that no array of the layout has."""
        known = [*filter(None, self._layout), *_SETTINGS]
        if self._layout == Layout():
            known += (_EPISODE, *_NAMES)
        for key in self._arrays:
            if key not in (*known, COLUMNS):
                complaint = f"is not the name of an array{did_you_mean(key, known)}"
                raise self.wrong(key, complaint, f"There are {', '.join(known)}.")

    def has(self, field: str) -> bool:
        """Return whether there is an array of this name."""
        return field in self._arrays

    def read(self, field: str, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Return a copy of an array, converted to this type; one column needs no second axis."""
        array = self.array(field)
        if array.dtype.kind not in "fiub" or np.ma.is_masked(array):
            held = "masked cells" if np.ma.is_masked(array) else str(array.dtype)
            raise self.refused(field, f"must hold plain numbers, not {held}")
        layout = self._layout
        tables = (layout.observation, layout.action, layout.next_observation)
        # Numbers too large for the type become infinite and are refused later.
        with np.errstate(over="ignore"):
            made = np.array(array, dtype, subok=False)
        return made[:, None] if made.ndim == 1 and field in tables else made

    def shape(self, field: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return self.array(field).shape

    def setting(self, name: str) -> np.ndarray | None:
        """Return an end of the action box or the discount, or None."""
        if name not in self._arrays:
            return None
        found = self.read(name, np.float64)
        self.check_setting(name, found.shape)
        return found

    def columns(self) -> NamedColumns:
        """Return the given names of the columns, else those that an .npz file had."""
        observation, action = super().columns()
        names = (self._arrays.get(key) for key in _NAMES)
        seen, done = (
            tuple(one if isinstance(one, Column) else Column(str(one)) for one in given)
            for given in ((one,) if isinstance(one, str | Column) else one or () for one in names)
        )
        return seen or observation, done or action

    def starts(self) -> np.ndarray:
        """Return the first row of each episode, from the labels of the rows."""
        if self.has(self._layout.episode_start):
            complaint = f"and {self._layout.episode_start!r} are both given"
            raise self.wrong(_EPISODE, complaint, "Give one of them.")
        labels = self.array(_EPISODE)
        rows = self.array(self._layout.reward).shape[:1] if self.has(self._layout.reward) else ()
        if labels.shape != rows or not labels.size:
            complaint = f"must have shape {rows or '(rows,)'}, not {labels.shape}"
            raise self.wrong(_EPISODE, complaint, "It has one label per row.")
        values = labels.tolist()
        if labels.dtype.kind in "fO":
            # A nan is not equal to itself.
            usable = [isinstance(one, str | int | float) and one == one for one in values]
            if not all(usable):
                row = usable.index(False)
                complaint = f"must hold numbers or texts, not {values[row]!r}"
                remedy = "Every row needs the label of its episode."
                raise self.wrong(_EPISODE, complaint, remedy, row)
        first = np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))
        seen: set[Any] = set()
        for row in first.tolist():
            if values[row] in seen:
                complaint = f"has {values[row]!r} again after another episode"
                remedy = "Sort the rows by episode, and by time within an episode."
                raise self.wrong(_EPISODE, complaint, remedy, row)
            seen.add(values[row])
        return first

    def array(self, field: str) -> np.ndarray:
        """Return an array as it was given."""
        try:
            return np.asanyarray(self._arrays[field])
        except (TypeError, ValueError, RuntimeError) as error:
            raise self.refused(field, f"cannot be made an array: {error}") from error
