"""Loading of data sets by name or path, and the registry of readers.

A name with a known suffix (.npz) is the path of a file, and one with a known prefix ("treatment/")
is passed to the reader of that prefix. Any other name may be the path of a folder.
`register_suffix`, `register_reader` and `register_folder` add to each.
"""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fat2thin import plugins
from fat2thin.data.dataset import Dataset
from fat2thin.data.safe_files import unknown_file
from fat2thin.terminal_text import closest_first, did_you_mean


class Reader(NamedTuple):
    """A reader of all data sets whose names start with `prefix`."""

    prefix: str
    """Start of the names, such as "clinic/"."""
    read: Callable[[str, int], Dataset]
    """`read(name, seed)` returns the data set."""
    names: Callable[[], tuple[str, ...]] | None = None
    """Returns all valid names; without it, any name with the prefix is passed to `read`."""
    one_a_seed: bool = False
    """Whether each seed has its own log; otherwise `read` is called once, with seed 0."""
    listed: bool = True
    """Whether `names` lists it."""


_READERS: dict[str, Reader] = {}
_SUFFIXES: dict[str, Reader] = {}
_FOLDERS: dict[str, Reader] = {}


def register_reader(new: Reader) -> Reader:
    """Register a reader under its prefix and return it; a prefix can be registered once.

    Examples:
        >>> import dataclasses
        >>> def read(name, seed):
        ...     return dataclasses.replace(load("treatment/cubic@2", seed), name=name)
        >>> _ = register_reader(Reader("clinic/", read))
        >>> load("clinic/ward-3").name
        'clinic/ward-3'
    """
    return _register(_READERS, new.prefix, new, f"data sets called {new.prefix}...")


def _register(registry: dict[str, Reader], key: str, new: Reader, what: str) -> Reader:
    if key in registry:
        raise ValueError(f"{what} already have a reader")
    return registry.setdefault(key, new)


def register_suffix(suffix: str, read: Callable[[str, int], Dataset]) -> None:
    """Register a reader of files that end in `suffix` (".npz"); a suffix can be registered once."""
    if not suffix.startswith(".") or suffix != suffix.lower():
        raise ValueError(f"a suffix must start with a dot and be lower case, got {suffix!r}")
    _register(_SUFFIXES, suffix, Reader("", read), f"paths that end in {suffix}")


def register_folder(inside: str, read: Callable[[str, int], Dataset]) -> None:
    """Register a reader of folders that contain the file `inside`, which can be registered once."""
    _register(_FOLDERS, inside, Reader("", read), f"folders that contain {inside}")


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts; "prefix..." for a reader that cannot list its names."""
    plugins.load()
    listed = (one for one in _READERS.values() if one.listed)
    known = ((one.names and one.names()) or (f"{one.prefix}...",) for one in listed)
    return tuple(itertools.chain.from_iterable(known))


def reader(name: str) -> Reader:
    """Return the reader of a name or path; for an unknown one, the error lists the known names."""
    found = _by_name(name)
    if not found:
        plugins.load()
        found = _by_name(name)
    if not found:
        found = [reader for inside, reader in _FOLDERS.items() if (Path(name) / inside).is_file()]
    if not found and os.path.lexists(name):
        raise unknown_file(name, [*_SUFFIXES])
    if not found or not _knows(found[0], name):
        hint = did_you_mean(name, names())
        there = closest_first(name, names(), "fat2thin data info")
        raise ValueError(
            f"no data set is called {name!r}{hint}; there are {there}, paths that "
            f"end in {', '.join(_SUFFIXES)}, and folders that contain {' or '.join(_FOLDERS)}"
        )
    return found[0]


def _by_name(name: str) -> list[Reader]:
    """Return the readers of a path by its suffix, or of a name by its prefix."""
    return [
        *(reader for suffix, reader in _SUFFIXES.items() if name.lower().endswith(suffix)),
        *(reader for prefix, reader in _READERS.items() if name.startswith(prefix)),
    ]


def _knows(reader: Reader, name: str) -> bool:
    """Return whether a reader accepts this name; the number after an @ is not part of it."""
    return not reader.names or name in reader.names() or name.partition("@")[0] in reader.names()


def load(name: str, seed: int = 0) -> Dataset:
    """Return the data set of a name or path.

    `seed` selects the log of names that have one log per seed ("treatment/...").

    Examples:
        >>> dataset = load("treatment/cubic@2", seed=3)
        >>> dataset.observation.shape, dataset.action.shape
        ((48, 8), (48, 1))
    """
    return reader(name).read(name, seed)


def _table(path: str, seed: int) -> Dataset:
    # Imported here, so that Arrow is loaded only when a table is read.
    from fat2thin.data.formats.table import load

    return load(Path(path))


for _suffix in (".toml", ".csv", ".parquet"):
    register_suffix(_suffix, _table)
