"""Writers of data sets: npz, npy folders, CSV or Parquet with a TOML, HDF5 as in D4RL, Minari.

Files are written atomically (see `atomic_files`). Minari 0.5 or later opens the Minari folders.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
from gymnasium.envs.registration import EnvSpec

from fat2thin.atomic_files import creating, sync, writing, writing_folder
from fat2thin.columns import Column
from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset, not_a_flag
from fat2thin.data.formats import d4rl, mapped, minari
from fat2thin.data.formats.array_log import COLUMNS, DENSITY, columns_bytes, columns_to_json
from fat2thin.data.formats.npz import save_npz
from fat2thin.data.formats.table_columns import columns_lines, toml_value
from fat2thin.data.operations import episode_lengths
from fat2thin.data.row_arrays import MarkedRows, Rows, blocks, find_places

ROWS_AT_ONCE = 2**20  # rows per write of a table, and per Parquet row group
_OF_MINARI = ("observation", "action", "reward")
_MINARI_VERSION = "0.5.0"
"""The first version with this layout; Minari also reads what older versions wrote."""


def write(dataset: Dataset, out: Path, specification: EnvSpec | None = None) -> tuple[Path, ...]:
    """Write a data set and return the paths written.

    `out` is a file, whose suffix sets the format, or "minari/ID". `specification` is Gymnasium's
    specification of the task, if known; only Minari stores it.
    """
    identifier = minari_id(out)
    if identifier is not None:
        return (save_minari(dataset, minari.root(), identifier, specification, overwrite=True),)
    paths = places(out)
    FORMATS[out.suffix.lower()](dataset, out)
    return paths


def places(path: Path) -> tuple[Path, ...]:
    """Return the files that `write` would create; an unknown suffix is an error."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{path}: the suffix must be one of {', '.join(FORMATS)}")
    return (path, path.with_suffix(".toml")) if FORMATS[suffix] is write_table else (path,)


def destinations(out: Path) -> tuple[Path, ...]:
    """Return the files, or the Minari folder, that `write` would create."""
    identifier = minari_id(out)
    return places(out) if identifier is None else (minari.root() / identifier,)


def minari_id(out: Path) -> str | None:
    """Return the id in "minari/ID"; None if `out` is the path of a file."""
    named = out.as_posix().startswith(minari.PREFIX) and out.suffix.lower() not in FORMATS
    return out.as_posix().removeprefix(minari.PREFIX) if named else None


def refuse(out: Path, overwrite: bool, source: str = "") -> None:
    """Raise a `ValueError` if `out` cannot or must not be written.

    `source` is the path of the data set to convert; its own TOML is never replaced.
    """
    identifier = minari_id(out)
    if identifier is not None:
        check_id(identifier)
        place = minari.root() / identifier
        files = (place / minari.DATA_FILE, place / minari.METADATA_FILE)
        if place.exists() and not any(file.is_file() for file in files):
            raise ValueError(f"{place} exists and is not a Minari data set: choose another id")
        paths: tuple[Path, ...] = (place,)
        folder = next(above for above in place.parents if above.exists())
    else:
        paths, folder = places(out), out.parent
    # Replacing the TOML that describes the source's columns would make the source unreadable.
    described = source and Path(source).suffix.lower() in (".csv", ".parquet", ".toml")
    needed = Path(source).with_suffix(".toml").resolve() if described and not identifier else None
    for path in paths:
        if path.resolve() == needed:
            reason = f"{path} describes {source} and would be replaced"
            raise ValueError(f"{reason}: choose another name")
        replaceable = out.suffix.lower() == mapped.SUFFIX and (path / mapped.ABOUT).is_file()
        if path.is_dir() and not identifier and not replaceable:
            raise ValueError(f"{path} is a folder: choose another name")
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists; --overwrite replaces it")
    if not folder.is_dir():
        raise ValueError(f"folder {folder} does not exist: create it, or choose another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"folder {folder} is not writable: choose another one")


def write_hdf5(dataset: Dataset, path: Path) -> None:
    """Write an HDF5 file in D4RL's layout, with the action box and the discount as attributes."""
    flags = dict(zip(("terminal", "cut"), last_rows(dataset), strict=True))
    kept = ("observation", "action", "reward", "next_observation", *flags, "propensity")
    arrays = {field: flags.get(field, getattr(dataset, field, None)) for field in kept}
    long_work.expect(sum(array.size for array in arrays.values() if array is not None))
    with writing(path) as stream, h5py.File(stream, "w") as file:
        for field, array in arrays.items():
            if array is not None:
                name = getattr(d4rl.LAYOUT, field)
                stored = file.create_dataset(name, array.shape, array.dtype)
                for rows in blocks(array):
                    stored[rows] = array[rows]
        if (named := columns_bytes(dataset)) is not None:
            file.create_dataset(COLUMNS, data=named)
        for name in ("action_low", "action_high", "discount"):
            file.attrs[name] = np.asarray(getattr(dataset, name), np.float64)
        if dataset.propensity_is_density:
            file.attrs[DENSITY] = np.asarray(1.0)


def write_table(dataset: Dataset, path: Path) -> None:
    """Write a CSV or Parquet file, and next to it a TOML that describes its columns."""
    columns, roles, details = _columns(dataset)
    flags = dict(zip(("end", "cut"), last_rows(dataset), strict=True))
    long_work.expect(dataset.rows * len(columns))
    about = {
        "files": [path.name],
        **roles,
        "action_low": list(dataset.action_low),
        "action_high": list(dataset.action_high),
        "discount": dataset.discount,
    }
    if dataset.propensity_is_density:
        about["propensity_is"] = "density"
    lines = [f"{key} = {toml_value(value)}" for key, value in about.items()]
    lines += columns_lines(details)
    csv = path.suffix.lower() == ".csv"
    table_writer = arrow_csv.CSVWriter if csv else arrow_parquet.ParquetWriter
    with writing(path.with_suffix(".toml")) as toml, writing(path) as table:
        toml.write("".join(f"{line}\n" for line in lines).encode())
        with table_writer(table, _batch(dataset, flags, columns, slice(0, 1)).schema) as file:
            for start in range(0, dataset.rows, ROWS_AT_ONCE):
                rows = slice(start, min(start + ROWS_AT_ONCE, dataset.rows))
                file.write_table(_batch(dataset, flags, columns, rows))
                long_work.did((rows.stop - rows.start) * len(columns))


FORMATS: dict[str, Callable[[Dataset, Path], None]] = {
    ".npz": save_npz,
    mapped.SUFFIX: mapped.save_mapped,
    ".csv": write_table,
    ".parquet": write_table,
    ".hdf5": write_hdf5,
}
"""Writer of each suffix; only .npz and .npy keep everything that the content hash covers."""


_Place = tuple[str, int]
"""An array of the data set and a column of it, or one of the columns "episode", "time", …"""


def _columns(
    dataset: Dataset,
) -> tuple[dict[str, _Place], dict[str, str | list[str]], list[Column]]:
    """Return where each column of a table comes from, its names by key, units and transforms.

    The names are those of the data set. Where two would be the same, the later one gets a `_`.
    """
    seen, done = dataset.observation_columns, dataset.action_columns
    columns: dict[str, _Place] = {}
    roles: dict[str, str | list[str]] = {}
    details = []

    def added(name: str, place: _Place) -> str:
        # The reader removes spaces around names.
        name = name.strip() or "_"
        while name in columns:
            name += "_"
        columns[name] = place
        return name

    for field, named, before in (
        ("observation", seen, ""),
        ("action", done, ""),
        ("next_observation", seen, "next_"),
    ):
        headers = [added(before + one.name, (field, at)) for at, one in enumerate(named)]
        roles[field] = headers
        if not before:
            details += [
                dataclasses.replace(one, name=header)
                for one, header in zip(named, headers, strict=True)
            ]
    single = ["episode", "time", "reward", "end", "cut"]
    single += ["propensity"] * (dataset.propensity is not None)
    named_once = {key: added(key, (key, 0)) for key in single}
    first = (named_once["episode"], named_once["time"])
    columns = {name: columns[name] for name in (*first, *columns)}
    return columns, {**named_once, **roles}, details


def _batch(
    dataset: Dataset, flags: dict[str, Rows], columns: dict[str, _Place], rows: slice
) -> pa.Table:
    """Return some rows as a table."""
    number = np.arange(rows.start, rows.stop)
    episode = np.searchsorted(dataset.episode_start, number, side="right") - 1
    parts = {field: getattr(dataset, field)[rows] for field in dataset.row_arrays}
    parts |= {"episode": episode, "time": number - dataset.episode_start[episode]}
    parts |= {name: mask[rows] for name, mask in flags.items()}
    return pa.table(
        {
            name: parts[field][:, at] if parts[field].ndim == 2 else parts[field]
            for name, (field, at) in columns.items()
        }
    )


def last_rows(dataset: Dataset) -> tuple[Rows, Rows]:
    """Return two masks of shape (rows,): true ends, and rows after which an episode was cut."""
    lasts, continuation = dataset.episode_start + episode_lengths(dataset) - 1, dataset.continuation
    last = MarkedRows(dataset.rows, lasts)
    for wrong, what in (
        (lambda rows: not_a_flag(continuation[rows]), "a continuation between 0 and 1"),
        (lambda rows: (continuation[rows] == 0) & ~last[rows], "a true end inside an episode"),
    ):
        found = find_places(continuation, wrong)
        if found.number:
            raise ValueError(
                f"data set {dataset.name!r} has {what}, in row {found.first[0]}; this format "
                "cannot store that"
            )
    true_end = continuation[lasts] == 0
    return MarkedRows(dataset.rows, lasts[true_end]), MarkedRows(dataset.rows, lasts[~true_end])


def save_minari(
    dataset: Dataset,
    folder: str | Path,
    dataset_id: str,
    env_spec: EnvSpec | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a Minari data set below `folder` and return the path of the data set's own folder.

    If MINARI_DATASETS_PATH is `folder`, `minari.load_dataset(dataset_id)` opens it. An id such as
    "own/doses/log-v0" is words separated by slashes, with a version at the end. With `env_spec`,
    Minari can recover the environment. With `overwrite`, an old folder is kept until the new one is
    complete.
    """
    check_id(dataset_id)
    if dataset.propensity is not None:
        raise ValueError(
            f"data set {dataset.name!r}: Minari cannot store propensities; "
            "dataclasses.replace(dataset, propensity=None) removes them"
        )
    place = Path(folder) / dataset_id
    if place.exists() and not overwrite:
        raise FileExistsError(f"{place} exists: remove it, or choose another version")
    end, cut = last_rows(dataset)
    observation, following = dataset.observation, dataset.next_observation

    def broken(rows: slice) -> np.ndarray:
        below = observation[rows.start + 1 : rows.stop + 1]
        inside = slice(rows.start, rows.start + len(below))
        wrong = (following[inside] != below).any(axis=1) & ~(end[inside] | cut[inside])
        return np.append(wrong, np.zeros(rows.stop - inside.stop, bool))

    # Minari stores the observation between two steps once.
    long_work.expect(observation.size + sum(getattr(dataset, name).size for name in _OF_MINARI))
    if (found := find_places(observation, broken)).number:
        raise ValueError(
            f"data set {dataset.name!r}: the next_observation of row {found.first[0]} is not "
            "the observation of the row below; Minari stores the two as one"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    # Minari ignores folders whose names start with a dot.
    with writing_folder(place) as unfinished:
        data_file = unfinished / minari.DATA_FILE
        data_file.parent.mkdir()
        with creating(data_file) as stream, h5py.File(stream, "w") as file:
            _write_episodes(file, dataset, end, cut)
        about = _metadata(dataset, dataset_id, env_spec)
        about["dataset_size"] = round(data_file.stat().st_size / 1e6, 1)
        with creating(unfinished / minari.METADATA_FILE) as stream:
            stream.write(json.dumps(about).encode())
        sync(data_file.parent)
    return place


def check_id(dataset_id: str) -> None:
    """Raise a `ValueError` if Minari would not accept the id."""
    word = "[A-Za-z0-9_][A-Za-z0-9_-]"
    if not re.fullmatch(rf"(?:{word}+/)*{word}*-v\d+", dataset_id):
        raise ValueError(
            f"{dataset_id!r} is not a Minari id: write words of letters, digits, - and _, "
            "separated by slashes, with a version at the end, such as own/doses/log-v0"
        )


def _write_episodes(file: h5py.File, dataset: Dataset, end: Rows, cut: Rows) -> None:
    ends = np.append(dataset.episode_start[1:], dataset.rows)
    for number, bounds in enumerate(zip(dataset.episode_start, ends, strict=True)):
        rows = slice(*bounds)
        last = dataset.next_observation[rows][-1:]
        group = file.create_group(f"episode_{number}")
        group.attrs["id"] = number
        group.attrs["total_steps"] = len(dataset.reward[rows])
        for name, array in (
            (minari.LAYOUT.observation, np.concatenate([dataset.observation[rows], last])),
            (minari.LAYOUT.action, dataset.action[rows]),
            (minari.LAYOUT.reward, dataset.reward[rows]),
            (minari.LAYOUT.terminal, end[rows]),
            (minari.LAYOUT.cut, cut[rows]),
        ):
            # Minari writes resizable arrays, and relies on that when it extends an episode.
            group.create_dataset(name, data=array, chunks=True, maxshape=(None, *array.shape[1:]))
            long_work.did(array.size)


def _metadata(dataset: Dataset, dataset_id: str, env_spec: EnvSpec | None) -> dict[str, Any]:
    size = dataset.observation_size
    about = {
        "dataset_id": dataset_id,
        "minari_version": _MINARI_VERSION,
        "data_format": "hdf5",
        "total_episodes": len(dataset.episode_start),
        "total_steps": dataset.rows,
        "observation_space": _box([-math.inf] * size, [math.inf] * size),
        "action_space": _box(list(dataset.action_low), list(dataset.action_high)),
        # Not a key of Minari's, which keeps unknown keys.
        "discount": dataset.discount,
    }
    if (named := columns_to_json(dataset)) is not None:
        about[COLUMNS] = named
    return about if env_spec is None else about | {"env_spec": env_spec.to_json()}


def _box(low: list[float], high: list[float]) -> str:
    box = {"type": "Box", "dtype": "float32", "shape": [len(low)], "low": low, "high": high}
    return json.dumps(box)
