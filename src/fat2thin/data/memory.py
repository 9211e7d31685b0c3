"""Data sets in memory, which `fat2thin.train` takes besides names and paths.

A data set in memory gets a name, so that everything that loads a log by its name works. The name is
valid while the data set exists.
"""

import os
import weakref
from collections.abc import Mapping
from typing import Any

from fat2thin.data.dataset import Dataset
from fat2thin.data.formats import minari
from fat2thin.data.formats.arrays import dataset_from_arrays
from fat2thin.data.readers import Reader, register_reader
from fat2thin.data.safe_files import DataFileError

PREFIX = "memory/"
FRAME_KEYS = (
    "episode", "time", "observation", "action", "reward", "end", "cut", "next_observation",
    "propensity", "propensity_is", "action_low", "action_high", "discount", "columns",
)  # fmt: skip
"""Keywords that describe the columns of a data frame, with the meanings of the TOML's keys."""

_NAMES: weakref.WeakKeyDictionary[Dataset, str] = weakref.WeakKeyDictionary()
"""The names of data sets that still exist, the newest last; equal ones have the same name."""


def remember(dataset: Dataset) -> str:
    """Return a name under which `load` returns this data set, or an equal one, while it exists.

    Examples:
        >>> from fat2thin.data import load
        >>> dataset = Dataset.from_arrays(
        ...     [0.0, 1.0], [0.1, 0.2], [1, 2], episode=[0, 0], terminal=[0, 1], action_low=0,
        ...     action_high=1,
        ... )
        >>> name = remember(dataset)
        >>> name == f"memory/arrays-{dataset.sha256[:8]}", load(name) is dataset
        (True, True)
    """
    _NAMES.pop(dataset, None)
    _NAMES[dataset] = f"{PREFIX}{dataset.name.lstrip('/')}-{dataset.sha256[:8]}"
    return _NAMES[dataset]


def _recall(name: str, seed: int) -> Dataset:
    found = [dataset for dataset, its_name in _NAMES.items() if its_name == name]
    if not found:
        raise DataFileError(
            f"data set {name!r} was in the memory of a program and no longer exists: pass the same "
            "data again, or write them with fat2thin.data.save_npz and train on the file"
        )
    return found[-1]


def open_data(data: Any, columns: Mapping[str, Any] | None = None) -> str | Dataset:
    """Return the name of a log that can be loaded by it, and the data set of any other data.

    `columns` (see `FRAME_KEYS`) describe a data frame; for other data they are refused.
    """
    if is_frame(data):
        # Imported here, so that Arrow is loaded only when a table is read.
        from fat2thin.data.formats.table import dataset_from_frame

        return dataset_from_frame(data, **(columns or {}))
    if columns:
        raise ValueError(
            f"{', '.join(columns)} can be given only with a data frame, not with {_kind(data)}"
        )
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping):
        return dataset_from_arrays(data)
    if minari.is_minari(data):
        return minari.of_object(data)
    raise TypeError(
        f"data cannot be of type {type(data).__name__}: give a name, a path, a "
        "fat2thin.data.Dataset, a mapping of arrays, a pandas or polars DataFrame, or a Minari "
        "data set"
    )


def is_frame(data: Any) -> bool:
    """Return whether this is a data frame of pandas, polars or Arrow; none of them is imported."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__")


def _kind(data: Any) -> str:
    if isinstance(data, str | os.PathLike):
        return "a name or path (a TOML describes the columns of a table)"
    if isinstance(data, Mapping):
        return "a mapping of arrays (put them into the mapping)"
    return f"data of type {type(data).__name__}"


register_reader(Reader(PREFIX, _recall, listed=False))
