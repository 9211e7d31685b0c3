"""Data sets as files: npz, CSV and Parquet with the TOML that explains them, HDF5 as D4RL has it.

A file of that name is always a whole one (see `atomic_files`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet

from fat2thin.atomic_files import writing
from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.npz import save_npz
from fat2thin.data.operations import episode_lengths

ROWS_AT_ONCE = 2**20
"""Of a table that is written: the rows of a row group, as Parquet files mostly have them."""


def write(dataset: Dataset, path: Path) -> tuple[Path, ...]:
    """Write a data set in the format that the suffix names; the paths of what was written."""
    return writer(path)(dataset, path)


def writer(path: Path) -> Callable[[Dataset, Path], tuple[Path, ...]]:
    """What writes the format that the suffix names; a wrong suffix is an error with the right."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: the suffix says the format, and there are {', '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()]


def places(path: Path) -> tuple[Path, ...]:
    """Every file that `write` would make."""
    return (path, description(path)) if writer(path) in (write_csv, write_parquet) else (path,)


def write_npz(dataset: Dataset, path: Path) -> tuple[Path, ...]:
    """Write an .npz file, which alone keeps everything that the content hash covers."""
    save_npz(dataset, path)
    return (path,)


def write_csv(dataset: Dataset, path: Path) -> tuple[Path, ...]:
    """Write a CSV file, and beside it the TOML that says what its columns are; both paths."""
    return _write_table(dataset, path, arrow_csv.CSVWriter)


def write_parquet(dataset: Dataset, path: Path) -> tuple[Path, ...]:
    """Write a Parquet file, and beside it the TOML that says what its columns are; both paths."""
    return _write_table(dataset, path, arrow_parquet.ParquetWriter)


def write_hdf5(dataset: Dataset, path: Path) -> tuple[Path, ...]:
    """Write an HDF5 file with D4RL's names, and the box and the discount as attributes of it."""
    end, cut = last_rows(dataset)
    arrays = {
        "observations": dataset.observation,
        "actions": dataset.action,
        "rewards": dataset.reward,
        "next_observations": dataset.next_observation,
        "terminals": end,
        "timeouts": cut,
    }
    if dataset.propensity is not None:
        arrays["propensities"] = dataset.propensity
    with writing(path) as stream, h5py.File(stream, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
        for name in ("action_low", "action_high", "discount"):
            file.attrs[name] = np.asarray(getattr(dataset, name), np.float64)
    return (path,)


FORMATS: dict[str, Callable[[Dataset, Path], tuple[Path, ...]]] = {
    ".npz": write_npz,
    ".csv": write_csv,
    ".parquet": write_parquet,
    ".hdf5": write_hdf5,
}
"""The formats there are, by suffix."""


def description(path: Path) -> Path:
    """The TOML beside a table."""
    return path.with_suffix(".toml")


def _write_table(
    dataset: Dataset, path: Path, opened: Callable[[IO[bytes], pa.Schema], Any]
) -> tuple[Path, ...]:
    columns, roles = _columns(dataset)
    about = {
        "files": [path.name],
        **roles,
        "action_low": list(dataset.action_low),
        "action_high": list(dataset.action_high),
        "discount": dataset.discount,
    }
    # A TOML value looks like a JSON one for texts, finite numbers and lists of them.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in about.items())
    beside = description(path)
    with writing(beside) as toml, writing(path) as table:
        toml.write("".join(lines).encode())
        # Arrow copies the columns, so it gets a part of the rows at a time.
        schema = pa.table({name: column[:1] for name, column in columns.items()}).schema
        with opened(table, schema) as file:
            for start in range(0, dataset.rows, ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                file.write_table(pa.table({name: part[rows] for name, part in columns.items()}))
    return path, beside


def _columns(dataset: Dataset) -> tuple[dict[str, np.ndarray], dict[str, str | list[str]]]:
    """The columns of a table, and which of them are what."""
    end, cut = last_rows(dataset)
    lengths = episode_lengths(dataset)
    columns = {
        "episode": np.repeat(np.arange(lengths.size), lengths),
        "time": np.arange(dataset.rows) - np.repeat(dataset.episode_start, lengths),
    }
    roles: dict[str, str | list[str]] = {}
    for field in ("observation", "action", "next_observation"):
        array = getattr(dataset, field)
        names = [f"{field}_{number}" for number in range(array.shape[1])]
        columns |= dict(zip(names, array.T, strict=True))
        roles[field] = names
    columns |= {"reward": dataset.reward, "end": end, "cut": cut}
    single = ["episode", "time", "reward", "end", "cut"]
    if dataset.propensity is not None:
        columns["propensity"] = dataset.propensity
        single.append("propensity")
    return columns, {**{field: field for field in single}, **roles}


def last_rows(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Where an episode truly ended, and where it was cut; shape (rows,) and bool, both."""
    last = np.zeros(dataset.rows, bool)
    last[dataset.episode_start + episode_lengths(dataset) - 1] = True
    end = dataset.continuation == 0
    between = (dataset.continuation > 0) & (dataset.continuation < 1)
    for wrong, what in (
        (between, "a continuation between 0 and 1"),
        (end & ~last, "a true end inside an episode"),
    ):
        if wrong.any():
            raise ValueError(
                f"data set {dataset.name!r} has {what}, in row {int(wrong.argmax())}; this format "
                "cannot hold that"
            )
    return end, last & ~end
