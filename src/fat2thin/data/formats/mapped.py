"""Logs that are read in parts: a folder `NAME.npy` of .npy files and log.json.

The files are memory-mapped, so a log may be larger than the memory. Next observations are stored
only where they are not the observation of the row below. All rows are checked when the folder is
written; reading it trusts the content hash in log.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.atomic_files import creating, writing_folder
from fat2thin.columns import default_columns
from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset, Recorded
from fat2thin.data.formats.array_log import (
    DAMAGED,
    DENSITY,
    columns_from_json,
    columns_to_json,
    write_npy,
)
from fat2thin.data.readers import register_suffix
from fat2thin.data.row_arrays import FollowingRows, Rows, StoredRows, find_places
from fat2thin.data.safe_files import DataFileError, file_error, open_file, read_small

SUFFIX = ".npy"
ABOUT = "log.json"
FORMAT = 1
_APART, _VALUES = "apart", "apart_values"
"""Row numbers of the next observations that are not the row below, and these observations."""
_LONGEST = 2**24  # bytes of log.json
_FIELDS = {"format", "action_low", "action_high", "discount", "columns", "sha256"}
_OPTIONAL = ("propensity", "next_observation", _APART, _VALUES)


def save_mapped(dataset: Dataset, path: Path) -> None:
    """Write a data set atomically to a folder, in parts; `read_mapped` returns the same hash."""
    arrays = {name: getattr(dataset, name) for name in dataset.arrays}
    for field in dataset.row_arrays:
        if arrays[field].dtype != np.float32:
            reason = f"{field} is {arrays[field].dtype}, but files store float32: convert it"
            raise ValueError(f"data set {dataset.name!r}: {reason}")
    cells = sum(array.size for array in arrays.values())
    following = arrays["next_observation"]
    if isinstance(following, FollowingRows):
        del arrays["next_observation"]
        arrays |= {_APART: following.apart, _VALUES: following.values}
    # Two checks, the files, and the hash if it is not known.
    written = sum(array.size for array in arrays.values())
    long_work.expect(cells * (1 + (dataset.recorded is None)) + dataset.action.size + written)
    dataset.check_cells()
    dataset.check_actions()
    with writing_folder(path) as folder:
        for name, array in arrays.items():
            with creating(folder / f"{name}.npy") as stream:
                write_npy(stream, array)
        about = {
            "format": FORMAT,
            "action_low": dataset.action_low,
            "action_high": dataset.action_high,
            "discount": dataset.discount,
            "columns": columns_to_json(dataset),
            "sha256": dataset.sha256,
            DENSITY: dataset.propensity_is_density,
        }
        with creating(folder / ABOUT) as stream:
            stream.write(json.dumps(about, indent=1).encode())


def read_mapped(path: str | Path) -> Dataset:
    """Return the data set in a folder; its rows are read when they are used."""
    folder = Path(path)
    about = _about(folder)
    needed = ("observation", "action", "reward", "continuation", "episode_start")
    there = [name for name in _OPTIONAL if (folder / f"{name}.npy").exists()]
    arrays = {name: _opened(folder / f"{name}.npy") for name in (*needed, *there)}
    rows: dict[str, Any] = {
        name: StoredRows(array)
        for name, array in arrays.items()
        if name not in ("episode_start", _APART, _VALUES)
    }
    if "next_observation" not in rows:
        rows["next_observation"] = _following(folder, rows["observation"], arrays)
    columns: Any = ((), ())
    try:
        if about["columns"] is not None:
            columns = columns_from_json(about["columns"])
        observed, acted = (
            named or default_columns(kind, rows[kind].shape[-1])
            for kind, named in zip(("observation", "action"), columns, strict=True)
        )
        fields = {
            **rows,
            "episode_start": _numbers(arrays["episode_start"]),
            "action_low": tuple(map(float, about["action_low"])),
            "action_high": tuple(map(float, about["action_high"])),
            "discount": float(about["discount"]),
            DENSITY: bool(about.get(DENSITY, False)),
            "observation_columns": observed,
            "action_columns": acted,
        }
        recorded = Recorded(str(about["sha256"]), fields)
        return Dataset(name=str(path), recorded=recorded, **fields)
    except (ValueError, TypeError) as error:
        raise file_error(folder, f"has no usable log: {error}", DAMAGED) from error


def _about(folder: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        remedy = f"A log that ends in {SUFFIX} is a folder, which `fat2thin data convert` makes."
        raise file_error(folder, "is not a folder", remedy)
    try:
        about = json.loads(read_small(folder / ABOUT, _LONGEST, DAMAGED))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataFileError):
            raise
        raise file_error(folder / ABOUT, "is not JSON", DAMAGED) from None
    if not isinstance(about, dict) or not about.keys() >= _FIELDS:
        raise file_error(folder / ABOUT, f"must have {', '.join(sorted(_FIELDS))}", DAMAGED)
    if about["format"] != FORMAT:
        complaint = f"has format {about['format']!r}, this version reads {FORMAT}"
        raise file_error(folder / ABOUT, complaint, "Update fat2thin, or convert the log again.")
    return about


def _opened(path: Path) -> np.memmap:
    """Map a file of plain numbers; its size must be what its header says."""
    whole = path.stem in ("episode_start", _APART)
    with open_file(path) as file:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            fits = array.offset + array.nbytes == path.stat().st_size
        except (ValueError, EOFError, OSError, AttributeError, OverflowError) as error:
            raise file_error(path, f"is damaged: {error}", DAMAGED) from None
        finally:
            file.close()
    expected = np.dtype("<i8" if whole else "<f4")
    if array.dtype != expected or not array.flags.c_contiguous or not fits:
        complaint = f"must hold {expected} and nothing else, in rows"
        raise file_error(path, complaint, DAMAGED)
    return array


def _following(folder: Path, observation: Rows, arrays: Mapping[str, np.memmap]) -> FollowingRows:
    """Return next observations from those that are stored, after a check of their places."""
    if _APART not in arrays or _VALUES not in arrays:
        missing = next(name for name in (_APART, _VALUES) if name not in arrays)
        raise file_error(folder / f"{missing}.npy", "is missing", DAMAGED)
    apart, values = _numbers(arrays[_APART]), arrays[_VALUES]
    last = len(observation) - 1
    rising = apart.ndim == 1 and apart.size and apart[0] >= 0
    if rising:
        rising = not find_places(apart[1:], lambda rows: apart[1:][rows] <= apart[rows]).number
    if not rising or apart[-1] != last or values.shape != (apart.size, *observation.shape[1:]):
        complaint = f"must be increasing row numbers up to {last}, with one next observation each"
        raise file_error(folder / f"{_APART}.npy", complaint, DAMAGED)
    return FollowingRows(observation, apart, StoredRows(values))


def _numbers(array: np.memmap) -> np.ndarray:
    """Return row numbers, in memory unless there are millions of them."""
    return np.array(array) if array.nbytes < long_work.LEAST_ON_DISK else np.asarray(array)


register_suffix(SUFFIX, lambda path, _: read_mapped(path))
