"""Load data sets by name; `register_reader` adds a kind of name.

A name that ends in a known suffix (.npz) is the path of a file; `register_suffix` adds one. Any
other name may be the path of a folder; `register_folder` adds a kind of these.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fat2thin import plugins
from fat2thin.data.dataset import Dataset
from fat2thin.terminal_text import did_you_mean


class Reader(NamedTuple):
    """How data sets whose names begin with `prefix` are made."""

    prefix: str
    read: Callable[[str, int], Dataset]
    """`read(name, seed)`: the data set."""
    names: Callable[[], tuple[str, ...]] | None = None
    """The names there are; without it `read` is asked for any name with this prefix."""
    one_a_seed: bool = False
    """Whether every seed has a log of its own; otherwise `read` gets seed 0, once."""


_READERS: dict[str, Reader] = {}
_SUFFIXES: dict[str, Reader] = {}
_FOLDERS: dict[str, Reader] = {}


def register_reader(new: Reader) -> Reader:
    """Add a reader under its prefix ("hospital/"); a prefix can be taken once."""
    return _register(_READERS, new.prefix, new, f"data sets called {new.prefix}...")


def _register(registry: dict[str, Reader], key: str, new: Reader, what: str) -> Reader:
    if key in registry:
        raise ValueError(f"{what} have a reader already")
    return registry.setdefault(key, new)


def register_suffix(suffix: str, read: Callable[[str, int], Dataset]) -> None:
    """Let `load` take paths that end in `suffix` (".npz"); a suffix can be taken once."""
    if not suffix.startswith(".") or suffix != suffix.lower():
        raise ValueError(f"a suffix starts with a dot and is in lower case, unlike {suffix!r}")
    _register(_SUFFIXES, suffix, Reader("", read), f"paths that end in {suffix}")


def register_folder(inside: str, read: Callable[[str, int], Dataset]) -> None:
    """Let `load` take folders that hold the file `inside` ("data/x"); it can be taken once."""
    _register(_FOLDERS, inside, Reader("", read), f"folders that hold {inside}")


def names() -> tuple[str, ...]:
    """Return every name that `load` knows; "prefix..." for a reader that cannot list its own."""
    plugins.load()
    known = ((one.names and one.names()) or (f"{one.prefix}...",) for one in _READERS.values())
    return tuple(itertools.chain.from_iterable(known))


def reader(name: str) -> Reader:
    """Return the reader of a name or a path; a wrong name is an error that lists the right ones."""
    found = _by_name(name)
    if not found:
        plugins.load()
        found = _by_name(name)
    if not found:
        found = [reader for inside, reader in _FOLDERS.items() if (Path(name) / inside).is_file()]
    if not found or not _knows(found[0], name):
        hint, there = did_you_mean(name, names()), ", ".join(names())
        raise ValueError(
            f"no data set is called {name!r}{hint}; there are {there}, paths that "
            f"end in {', '.join(_SUFFIXES)}, and folders that hold {' or '.join(_FOLDERS)}"
        )
    return found[0]


def _by_name(name: str) -> list[Reader]:
    """Return the readers of a path by its suffix, or of a name by its prefix."""
    return [
        *(reader for suffix, reader in _SUFFIXES.items() if name.lower().endswith(suffix)),
        *(reader for prefix, reader in _READERS.items() if name.startswith(prefix)),
    ]


def _knows(reader: Reader, name: str) -> bool:
    """Whether a reader has this name among its own; what follows an @ says how much of it."""
    return not reader.names or name in reader.names() or name.partition("@")[0] in reader.names()


def load(name: str, seed: int = 0) -> Dataset:
    """Return the data set of a name or path; `seed` says which log, where each has its own."""
    return reader(name).read(name, seed)


def _table(path: str, seed: int) -> Dataset:
    # Here, so that Arrow is loaded only where a table is read.
    from fat2thin.data.formats.table import load

    return load(Path(path))


for _suffix in (".toml", ".csv", ".parquet"):
    register_suffix(_suffix, _table)
