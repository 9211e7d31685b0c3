"""Data sets as Minari keeps them, from version 0.5 on, so that its own reader opens them."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium.envs.registration import EnvSpec

from fat2thin.atomic_files import creating, sync, writing_folder
from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.minari import DATA_FILE, LAYOUT, METADATA_FILE
from fat2thin.data.operations import episode_lengths
from fat2thin.data.writers import last_rows

# The first version with this layout; a reader accepts what versions before its own wrote.
_VERSION = "0.5.0"


def save_minari(
    dataset: Dataset,
    folder: str | Path,
    dataset_id: str,
    env_spec: EnvSpec | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a data set below a folder of Minari data sets; the path of its own folder.

    Where MINARI_DATASETS_PATH names `folder`, `minari.load_dataset(dataset_id)` opens it. An id
    ("own/doses/log-v0") is words between slashes and ends in a version. With `env_spec` Minari can
    recover the environment. All of the folder is there when it gets its name, or there is none;
    with `overwrite` an old one stays until then.
    """
    check_id(dataset_id)
    if dataset.propensity is not None:
        raise ValueError(
            f"data set {dataset.name!r}: Minari has no place for propensities; "
            "dataclasses.replace(dataset, propensity=None) forgets them"
        )
    place = Path(folder) / dataset_id
    if place.exists() and not overwrite:
        raise FileExistsError(f"{place} is there already: remove it, or choose another version")
    end, cut = last_rows(dataset)
    _check_joined(dataset, end | cut)
    place.parent.mkdir(parents=True, exist_ok=True)
    # Minari passes over folders whose names begin with a dot.
    with writing_folder(place) as beside:
        (beside / DATA_FILE).parent.mkdir()
        with creating(beside / DATA_FILE) as stream, h5py.File(stream, "w") as file:
            for number, arrays in enumerate(_episodes(dataset, end, cut)):
                _write_episode(file, number, arrays)
        about = _metadata(dataset, dataset_id, env_spec)
        about["dataset_size"] = round((beside / DATA_FILE).stat().st_size / 1e6, 1)
        with creating(beside / METADATA_FILE) as stream:
            stream.write(json.dumps(about).encode())
        sync((beside / DATA_FILE).parent)
    return place


def check_id(dataset_id: str) -> None:
    """Refuse what Minari would not take for an id."""
    if not re.fullmatch(
        r"(?:[A-Za-z0-9_][A-Za-z0-9_-]+/)*[A-Za-z0-9_][A-Za-z0-9_-]*-v\d+", dataset_id
    ):
        raise ValueError(
            f"{dataset_id!r} is no id of Minari's: words of letters, digits, - and _ between "
            "slashes, and a version at the end, as in own/doses/log-v0"
        )


def _check_joined(dataset: Dataset, last: np.ndarray) -> None:
    """Refuse steps that do not follow each other: the observation between two is kept once."""
    broken = (dataset.next_observation[:-1] != dataset.observation[1:]).any(axis=1) & ~last[:-1]
    if broken.any():
        raise ValueError(
            f"data set {dataset.name!r}: after row {int(broken.argmax())} the episode goes on with "
            "another observation than that row's next_observation; Minari keeps the two as one"
        )


def _episodes(
    dataset: Dataset, end: np.ndarray, cut: np.ndarray
) -> Iterator[dict[str, np.ndarray]]:
    for start, length in zip(dataset.episode_start, episode_lengths(dataset), strict=True):
        rows = slice(start, start + length)
        last = dataset.next_observation[rows][-1:]
        yield {
            LAYOUT.observation: np.concatenate([dataset.observation[rows], last]),
            LAYOUT.action: dataset.action[rows],
            LAYOUT.reward: dataset.reward[rows],
            LAYOUT.terminal: end[rows],
            LAYOUT.cut: cut[rows],
        }


def _write_episode(file: h5py.File, number: int, arrays: dict[str, np.ndarray]) -> None:
    group = file.create_group(f"episode_{number}")
    group.attrs["id"] = number
    group.attrs["total_steps"] = len(arrays[LAYOUT.reward])
    for name, array in arrays.items():
        # Minari itself makes arrays that can grow, and relies on it when it adds to an episode.
        group.create_dataset(name, data=array, chunks=True, maxshape=(None, *array.shape[1:]))


def _metadata(dataset: Dataset, dataset_id: str, env_spec: EnvSpec | None) -> dict[str, Any]:
    size = dataset.observation_size
    about = {
        "dataset_id": dataset_id,
        "minari_version": _VERSION,
        "data_format": "hdf5",
        "total_episodes": len(dataset.episode_start),
        "total_steps": dataset.rows,
        "observation_space": _box([-math.inf] * size, [math.inf] * size),
        "action_space": _box(list(dataset.action_low), list(dataset.action_high)),
        # Minari has no place for it and leaves what it does not know alone.
        "discount": dataset.discount,
    }
    return about if env_spec is None else about | {"env_spec": env_spec.to_json()}


def _box(low: list[float], high: list[float]) -> str:
    box = {"type": "Box", "dtype": "float32", "shape": [len(low)], "low": low, "high": high}
    return json.dumps(box)
