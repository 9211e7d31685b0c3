"""Where a data set is written to: the path of a file, or Minari's folder under minari/ID."""

import os
from pathlib import Path
from typing import Any

from fat2thin.data.dataset import Dataset
from fat2thin.data.formats import minari
from fat2thin.data.minari_writer import check_id, save_minari
from fat2thin.data.writers import FORMATS, places, write


def minari_id(out: Path) -> str | None:
    """The id in "minari/ID"; None for the path of a file, which has the suffix of a format."""
    text = out.as_posix()
    if not text.startswith(minari.PREFIX) or out.suffix.lower() in FORMATS:
        return None
    return text.removeprefix(minari.PREFIX)


def refuse(out: Path, overwrite: bool, source: str = "") -> None:
    """Refuse a place that cannot be written to, or must not."""
    identifier = minari_id(out)
    if identifier is not None:
        _refuse_minari(identifier, overwrite)
        return
    # What says what the source's columns are: written anew, the source could not be read again.
    needed = Path(source).with_suffix(".toml").resolve() if source else None
    for path in places(out):
        if path.resolve() == needed and out.resolve() != Path(source).resolve():
            raise ValueError(
                f"{path} describes {source} and would be replaced: choose another name"
            )
        if path.is_dir():
            raise ValueError(f"{path} is a folder: choose another name")
        if path.exists() and not overwrite:
            raise ValueError(f"{path} is there already; --overwrite replaces it")
    _refuse_folder(out.parent)


def write_to(dataset: Dataset, out: Path, specification: Any) -> tuple[Path, ...]:
    """Write a data set there; `specification` is how Gymnasium makes its task, if known."""
    identifier = minari_id(out)
    if identifier is None:
        return write(dataset, out)
    return (save_minari(dataset, minari.root(), identifier, specification, overwrite=True),)


def _refuse_minari(identifier: str, overwrite: bool) -> None:
    check_id(identifier)
    place = minari.root() / identifier
    if place.exists():
        if not any(
            (place / inside).is_file() for inside in (minari.DATA_FILE, minari.METADATA_FILE)
        ):
            raise ValueError(f"{place} is there and is no data set of Minari's: choose another id")
        if not overwrite:
            raise ValueError(f"{place} is there already; --overwrite replaces it")
    _refuse_folder(next(folder for folder in place.parents if folder.exists()))


def _refuse_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: make it, or choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} may not be written to: choose another place")
