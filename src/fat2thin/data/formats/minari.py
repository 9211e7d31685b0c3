"""Reader of Minari data sets, by name or folder; the package minari is not needed.

`minari/mujoco/hopper/medium-v0` is searched for where Minari stores it: in the folder given by the
environment variable MINARI_DATASETS_PATH, else in ~/.minari/datasets. The layout is that of the
repository Farama-Foundation/Minari, versions 0.4 (metadata as attributes of the HDF5 file) and 0.5
(metadata.json next to it).
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin.columns import Column
from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.array_log import (
    COLUMNS,
    ArrayFile,
    Layout,
    NamedColumns,
    columns_from_json,
    read_dataset,
)
from fat2thin.data.formats.hdf5 import Hdf5File, open_hdf5
from fat2thin.data.operations import Box
from fat2thin.data.readers import Reader, register_folder, register_reader
from fat2thin.data.safe_files import DataFileError, file_error, read_small

FOLDER_VARIABLE = "MINARI_DATASETS_PATH"
PREFIX = "minari/"
DATA_FILE = "data/main_data.hdf5"
METADATA_FILE = "data/metadata.json"
LAYOUT = Layout(
    observation="observations",
    action="actions",
    reward="rewards",
    terminal="terminations",
    cut="truncations",
    next_observation="next_observations",
    episode_start="episode_starts",
    propensity="",
)
_LARGEST_METADATA = 2**26
_DEEPEST_SPACE = 16
_AGAIN = "Fetch or write the data set again."
_CHOOSE = "Choose a data set whose observations are numbers, or write it without this part."
_HDF5_ONLY = "Write it again with Minari and data_format='hdf5'."
_GIVE_BOX = (
    "Read it with fat2thin.data.read_minari(folder, box=Box(low, high, discount)), with the box "
    "that the actions were made for."
)


def read_minari(
    folder: str | Path,
    name: str | None = None,
    box: Box | None = None,
    memory_limit: int | None = None,
    episodes: Iterable[int] | None = None,
) -> Dataset:
    """Return the data set in a Minari folder (named after the data set, with data/ inside).

    Observations of several parts are concatenated in the order of the space; those of a Dict space
    get their names from its keys. Without `box`, the action box is that of the action space, and
    the discount that of the metadata, else 0.99. `episodes` are the numbers of those to read, in
    the order of the file; by default all.
    """
    folder = Path(folder)
    written = _written_metadata(folder)
    with open_hdf5(folder / DATA_FILE, memory_limit) as file:
        log = _MinariLog(file, _metadata(file, written), episodes)
        return read_dataset(log, LAYOUT, str(folder) if name is None else name, box)


def is_minari(data: Any) -> bool:
    """Return whether this is a `minari.MinariDataset`; the package is not needed to find out."""
    storage = getattr(data, "storage", None)
    return hasattr(storage, "data_path") and hasattr(data, "episode_indices")


def of_object(data: Any) -> str | Dataset:
    """Return the name of a `minari.MinariDataset`, or the data set if it was filtered.

    Its files are read with `read_minari`, not with the package.
    """
    place = Path(data.storage.data_path).absolute()
    # Minari gives the folder data/, and before version 0.5 the HDF5 file in it.
    folder = next((one for one in (place, *place.parents[:2]) if (one / DATA_FILE).is_file()), None)
    if folder is None:
        raise file_error(place, f"is not in a folder with {DATA_FILE}", _HDF5_ONLY)
    home = root().absolute()
    inside = folder.is_relative_to(home)
    name = PREFIX + folder.relative_to(home).as_posix() if inside else str(folder)
    chosen = sorted({int(number) for number in data.episode_indices})
    if chosen == list(range(int(data.storage.total_episodes))):
        return name
    return read_minari(folder, f"{name}[{len(chosen)} episodes]", episodes=chosen)


def root() -> Path:
    """Return the folder in which Minari stores its data sets."""
    return Path(os.environ.get(FOLDER_VARIABLE) or "~/.minari/datasets").expanduser()


def find(name: str) -> Path:
    """Return the folder of a name ("minari/mujoco/hopper/medium-v0"); a missing one is an error."""
    identifier = name.removeprefix(PREFIX)
    word = r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"
    if not re.fullmatch(rf"{word}(/{word})*", identifier):
        raise DataFileError(
            f"no data set is called {name!r}: write {PREFIX} followed by Minari's name, such as "
            "mujoco/hopper/medium-v0"
        )
    folder = root() / identifier
    if not (folder / DATA_FILE).is_file() and not (folder / METADATA_FILE).is_file():
        raise file_error(
            folder,
            f"data set {name!r} was not found here",
            f"Download it with `minari download {identifier}` (extra minari), or set "
            f"{FOLDER_VARIABLE} to another folder than {root()}.",
        )
    return folder


class _Part(NamedTuple):
    """An array of an episode, and the shape of its rows (None if the metadata lacks it)."""

    field: str
    shape: tuple[int, ...] | None


class _Metadata(NamedTuple):
    path: Path
    observation: tuple[_Part, ...]
    action: _Part
    box: tuple[np.ndarray, np.ndarray] | None
    """Ends of the action space, possibly infinite; None if the metadata has no action space."""
    episodes: int | None
    discount: float | None
    columns: NamedColumns


class _MinariLog(ArrayFile):
    """The episodes of a data set as arrays with one row per step."""

    def __init__(
        self, file: Hdf5File, metadata: _Metadata, episodes: Iterable[int] | None = None
    ) -> None:
        self.path, self._file, self._metadata = file.path, file, metadata
        self._steps = _steps(file, metadata)
        if episodes is not None:
            chosen = {f"episode_{number}" for number in episodes}
            missing = sorted(chosen - self._steps.keys())
            if missing or not chosen:
                complaint = f"has no {missing[0]}" if missing else "no episode was chosen"
                remedy = f"There are {len(self._steps)} episodes, from episode_0 on."
                raise file_error(file.path, complaint, remedy)
            self._steps = {group: n for group, n in self._steps.items() if group in chosen}

    def has(self, field: str) -> bool:
        """Return whether this is an array of the layout; every episode has all of them."""
        return field in LAYOUT

    def read(self, field: str, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Return an array over all episodes, concatenated."""
        if field == LAYOUT.episode_start:
            return np.cumsum([0, *self._steps.values()])[:-1].astype(dtype)
        whole: np.ndarray | None = None
        stop = 0
        for group, steps in self._steps.items():
            part = self._part(field, group, steps)
            if whole is None:
                whole = long_work.empty((self._rows_in_all, *part.shape[1:]), dtype)
            if part.shape[1:] != whole.shape[1:]:
                complaint = f"has rows of shape {part.shape[1:]}, not {whole.shape[1:]} as before"
                raise self.wrong(f"{group}/{field}", complaint, _AGAIN)
            whole[stop : stop + steps] = part
            stop += steps
        assert whole is not None
        return whole

    def shape(self, field: str) -> tuple[int, ...]:
        """Return the shape of an array over all episodes, as the first one declares it."""
        if field == LAYOUT.episode_start:
            return (len(self._steps),)
        if field == LAYOUT.action:
            return (self._rows_in_all, self._width(self._metadata.action))
        if field not in (LAYOUT.observation, LAYOUT.next_observation):
            return (self._rows_in_all,)
        return (self._rows_in_all, sum(map(self._width, self._metadata.observation)))

    @property
    def _rows_in_all(self) -> int:
        return sum(self._steps.values())

    def _width(self, part: _Part) -> int:
        """Return the numbers in a row of a part."""
        first = next(iter(self._steps))
        shape = part.shape or _shape(self._file, f"{first}/{part.field}")[1:]
        return math.prod(shape)

    def setting(self, name: str) -> np.ndarray | None:
        """Return an end of the action space, or the discount in the metadata."""
        path, discount, box = self._metadata.path, self._metadata.discount, self._metadata.box
        if name == "discount":
            return None if discount is None else np.array(discount)
        if box is None:
            raise file_error(path, "is missing", _GIVE_BOX, "action_space")
        end = box[0] if name == "action_low" else box[1]
        if not np.isfinite(end).all():
            complaint = f"has an infinite {name}: {end.tolist()}"
            raise file_error(path, complaint, _GIVE_BOX, "action_space")
        return end

    def columns(self) -> NamedColumns:
        """Return the names in the metadata, else those of a Dict space."""
        return self._metadata.columns

    def _part(self, field: str, group: str, steps: int) -> np.ndarray:
        if field == LAYOUT.action:
            return self._rows(self._metadata.action, group, steps)
        if field not in (LAYOUT.observation, LAYOUT.next_observation):
            return self._rows(_Part(field, ()), group, steps)[:, 0]
        parts = [self._rows(part, group, steps + 1) for part in self._metadata.observation]
        seen = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return seen[:-1] if field == LAYOUT.observation else seen[1:]

    def _rows(self, part: _Part, group: str, rows: int) -> np.ndarray:
        """Return a part of an episode with shape (rows, numbers)."""
        field = f"{group}/{part.field}"
        shape = _shape(self._file, field)
        row_shape = shape[1:] if part.shape is None else part.shape
        if shape != (rows, *row_shape):
            raise self.wrong(
                field,
                f"must have shape {(rows, *row_shape)}, not {shape}",
                f"An episode with {self._steps[group]} rewards has as many rows, and one more for "
                "observations; the metadata gives the shape of a row.",
            )
        return self._file.read(field).reshape(rows, math.prod(row_shape))


def _steps(file: Hdf5File, metadata: _Metadata) -> dict[str, int]:
    """Return the number of steps of each episode, in numerical order: 10 comes after 9."""
    found = (re.fullmatch(r"episode_(0|[1-9]\d{0,8})", name) for name in file.names())
    numbers = sorted(int(match[1]) for match in found if match)
    if not numbers:
        raise file_error(file.path, "has no episodes", "Episodes are groups named episode_0, …")
    expected = len(numbers) if metadata.episodes is None else metadata.episodes
    if len(numbers) != expected or numbers[-1] != expected - 1:
        there = f"{len(numbers)} episodes up to episode_{numbers[-1]}"
        complaint = f"has {there}, but must have {expected:g}, starting with episode_0"
        raise file_error(file.path, complaint, _AGAIN)
    steps = {}
    for group in (f"episode_{number}" for number in numbers):
        field = f"{group}/{LAYOUT.reward}"
        shape = _shape(file, field)
        if len(shape) != 1 or not shape[0]:
            complaint = f"must have shape (steps,), not {shape}"
            raise file.wrong(field, complaint, "An episode has at least one step.")
        steps[group] = shape[0]
    return steps


def _shape(file: Hdf5File, field: str) -> tuple[int, ...]:
    if not file.has(field):
        raise file.wrong(field, "is missing", _AGAIN)
    return file.shape(field)


def _written_metadata(folder: Path) -> dict[str, Any] | None:
    """Return metadata.json, or None if an older Minari wrote none."""
    path = folder / METADATA_FILE
    if not os.path.lexists(path):
        return None
    contents = read_small(path, _LARGEST_METADATA, _AGAIN)
    try:
        written = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise file_error(path, f"is not JSON: {error}", _AGAIN) from error
    if not isinstance(written, dict):
        raise file_error(path, "is not a JSON object", _AGAIN)
    stored_as = written.get("data_format", "hdf5")
    if stored_as != "hdf5":
        complaint = f"is {stored_as!r}, but only 'hdf5' is supported"
        raise file_error(path, complaint, _HDF5_ONLY, "data_format")
    return written


def _metadata(file: Hdf5File, written: dict[str, Any] | None) -> _Metadata:
    spaces = ("observation_space", "action_space")
    if written is None:
        path = file.path
        observation, action = (file.text(name) for name in spaces)
        count = file.setting("total_episodes")
        episodes, discount = None if count is None else count.tolist(), None
    else:
        path = file.path.with_name(Path(METADATA_FILE).name)
        observation, action = (written.get(name) for name in spaces)
        episodes, discount = written.get("total_episodes"), written.get("discount")
    for name, found, kinds, expected in (
        (spaces[0], observation, str, "a text of JSON"),
        (spaces[1], action, str, "a text of JSON"),
        ("total_episodes", episodes, int | float, "a number"),
        ("discount", discount, int | float, "a number"),
    ):
        if found is not None and (isinstance(found, bool) or not isinstance(found, kinds)):
            complaint = f"must be {expected}, not {type(found).__name__}"
            raise file_error(path, complaint, _AGAIN, name)
    parts: tuple[_Part, ...] = (_Part(LAYOUT.observation, None),)
    columns: NamedColumns = ((), ())
    if observation is not None:
        with _explained(path, "observation_space"):
            space = json.loads(observation)
            parts = tuple(_parts(path, LAYOUT.observation, space, 0))
            if not parts:
                raise ValueError("it is empty")
            columns = (_names(parts) if space["type"] == "Dict" else ()), ()
    if written is not None and COLUMNS in written:
        try:
            columns = columns_from_json(written[COLUMNS])
        except ValueError as error:
            complaint = f"does not describe columns: {error}"
            raise file_error(path, complaint, _AGAIN, COLUMNS) from None
    return _Metadata(path, parts, *_action_space(path, action), episodes, discount, columns)


def _names(parts: tuple[_Part, ...]) -> tuple[Column, ...]:
    """Return columns named by the keys of a Dict space; none if a name would occur twice."""
    names: list[str] = []
    for part in parts:
        key = part.field.removeprefix(f"{LAYOUT.observation}/").replace("/_index_", "/")
        size = math.prod(part.shape or ())
        names += [key] if size == 1 else [f"{key}_{number}" for number in range(size)]
    return tuple(map(Column, names)) if len(set(names)) == len(names) else ()


def _action_space(
    path: Path, space: str | None
) -> tuple[_Part, tuple[np.ndarray, np.ndarray] | None]:
    """Return the array of the actions and the ends of their box."""
    if space is None:
        return _Part("actions", None), None
    with _explained(path, "action_space"):
        about = json.loads(space)
        kind = about["type"]
        if kind != "Box" or np.dtype(about["dtype"]).kind != "f":
            described = f"Box of {about['dtype']}" if kind == "Box" else kind
            needed = "only a Box of floating-point numbers is supported"
            remedy = "Choose a data set with continuous actions."
            raise file_error(path, f"is a {described}: {needed}", remedy, "action_space")
        shape = _space_shape(about)
        low, high = (np.array(about[end], np.float64) for end in ("low", "high"))
        if not low.shape == high.shape == shape:
            raise ValueError(f"low and high must have shape {shape}")
        return _Part("actions", shape), (low.reshape(-1), high.reshape(-1))


def _parts(path: Path, field: str, space: dict[str, Any], depth: int) -> Iterator[_Part]:
    """Yield the arrays that make up an observation, in the order of the space."""
    kind = space["type"]
    if kind in ("Dict", "Tuple") and depth < _DEEPEST_SPACE:
        inner = space["subspaces"]
        if kind == "Tuple":
            inner = {f"_index_{number}": subspace for number, subspace in enumerate(inner)}
        for name, subspace in inner.items():
            yield from _parts(path, f"{field}/{name}", subspace, depth + 1)
        return
    if kind != "Box":
        raise file_error(path, f"is a {kind}, not a Box of numbers", _CHOOSE, field)
    shape = _space_shape(space)
    if np.dtype(space["dtype"]) == np.uint8 and len(shape) > 1:
        raise file_error(path, f"holds images of shape {shape}", _CHOOSE, field)
    yield _Part(field, shape)


def _space_shape(space: dict[str, Any]) -> tuple[int, ...]:
    shape = tuple(space["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a shape cannot be {shape}")
    return shape


@contextlib.contextmanager
def _explained(path: Path, field: str) -> Iterator[None]:
    try:
        yield
    except DataFileError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        complaint = f"is not a space in Minari's format: {type(error).__name__}: {error}"
        raise file_error(path, complaint, _AGAIN, field) from error


register_reader(Reader(PREFIX, lambda name, _: read_minari(find(name), name)))
for _inside in (DATA_FILE, METADATA_FILE):
    register_folder(_inside, lambda folder, _: read_minari(folder))
