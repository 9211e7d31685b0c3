"""Reader of HDF5 files in D4RL's layout, by name or path, and D4RL's normalised scores.

`d4rl/hopper-medium-v2` and `regenerated/hopper-medium` are searched for in the folder given by the
environment variable FAT2THIN_DATA, else in D4RL's own cache and in ./data. Only the arrays at the
top level of a file are read, not the groups `infos` and `metadata` of later versions.

A regenerated set of an unusual size has its number of rows in its name and file name:
`regenerated/hopper-medium@2000` is hopper-medium@2000.hdf5.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.array_log import Layout, read_dataset
from fat2thin.data.formats.hdf5 import open_hdf5
from fat2thin.data.operations import Box
from fat2thin.data.readers import Reader, register_reader, register_suffix
from fat2thin.data.safe_files import DataFileError, file_error
from fat2thin.terminal_text import closest_first, did_you_mean

FOLDER_VARIABLE = "FAT2THIN_DATA"
SUFFIXES = (".hdf5", ".h5")
LAYOUT = Layout(
    observation="observations",
    action="actions",
    reward="rewards",
    terminal="terminals",
    cut="timeouts",
    next_observation="next_observations",
    episode_start="",
    propensity="propensities",
)
D4RL, REGENERATED = "d4rl/", "regenerated/"
ROBOT_SETS = tuple(
    f"{robot}-{level}"
    for robot in ("halfcheetah", "hopper", "walker2d")
    for level in ("medium-expert", "medium-replay", "medium")
)
"""The robot data of the FtTPO paper; `fat2thin data make` makes regenerated ones."""
_ADDRESS = "http://rail.eecs.berkeley.edu/datasets/offline_rl"

_SETS = "random|medium|expert|medium-replay|full-replay|medium-expert"
_NAMES = re.compile(
    rf"d4rl/(?P<original>[a-z0-9]+)-(?:{_SETS})-v[012]"
    rf"|regenerated/(?P<regenerated>[a-z0-9]+)-(?:{_SETS})(?:@[1-9]\d*)?"
    r"|minari/mujoco/(?P<minari>halfcheetah|hopper|walker2d)/(?:simple|medium|expert)-v\d+"
)


class ReferenceReturns(NamedTuple):
    """Returns of D4RL's random and expert policies."""

    random: float
    expert: float


REFERENCES = {
    "halfcheetah": ReferenceReturns(-280.178953, 12135.0),
    "hopper": ReferenceReturns(-20.272305, 3234.3),
    "walker2d": ReferenceReturns(1.629008, 4592.3),
    "ant": ReferenceReturns(-325.6, 3879.7),
}
"""From d4rl/infos.py in the repository Farama-Foundation/D4RL: equal for all data sets of a robot
and for versions 0 to 2 of the MuJoCo tasks."""


def read_hdf5(
    path: str | Path,
    name: str | None = None,
    box: Box | None = None,
    memory_limit: int | None = None,
) -> Dataset:
    """Return the data set in an HDF5 file with D4RL's layout.

    `timeouts`, `next_observations` and `propensities` are optional. Without `timeouts`, an episode
    is cut where a next observation is not the observation of the row below; without both, only
    `terminals` end episodes, with a warning. The action box and the discount are those of `box`,
    else the file's attributes action_low, action_high and discount. Without either, the discount is
    0.99 and the box is ±1 for a D4RL data set (recognised by its name or file name), else the range
    of the logged actions, with a warning.
    """
    stem = Path(path).stem.replace("_", "-")
    named = name is not None and name.startswith((D4RL, REGENERATED))
    of_d4rl = named or any(robot(f"{prefix}{stem}") for prefix in (D4RL, REGENERATED))
    with open_hdf5(path, memory_limit) as file:
        return read_dataset(file, LAYOUT, str(path) if name is None else name, box, of_d4rl)


def find(name: str) -> Path:
    """Return the file of a name such as "d4rl/hopper-medium-v2"; a missing file is an error."""
    candidates = _candidates(name)
    for path in candidates:
        if path.is_file():
            return path
    raise file_error(
        candidates[0],
        f"data set {name!r} was not found, here or as {', '.join(map(str, candidates[1:]))}",
        f"{_how_to_get(name)}, or set {FOLDER_VARIABLE} to the folder that holds it.",
    )


def place_of(name: str) -> Path:
    """Return the file of a name, or where to write it: in the folder FAT2THIN_DATA or ./data."""
    there = next((path for path in _candidates(name) if path.is_file()), None)
    folder = Path(os.environ.get(FOLDER_VARIABLE) or "data").expanduser()
    return there or folder / f"{name.partition('/')[2]}{SUFFIXES[0]}"


def _candidates(name: str) -> list[Path]:
    """Return the places in which a data set is searched for, in this order."""
    prefix, _, identifier = name.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:@[1-9]\d*)?", identifier):
        raise DataFileError(f"no data set is called {name!r}: write {prefix}/ followed by one word")
    chosen = os.environ.get(FOLDER_VARIABLE)
    folders = (chosen,) if chosen else ("~/.d4rl/datasets", "data")
    return [
        Path(folder).expanduser() / f"{stem}{suffix}"
        for folder in folders
        for stem in _stems(identifier)
        for suffix in SUFFIXES
    ]


def _how_to_get(name: str) -> str:
    """Return what to do about a missing file."""
    if name.startswith(REGENERATED):
        known = [f"{REGENERATED}{one}" for one in ROBOT_SETS]
        if name.partition("@")[0] in known:
            return f"Make it with `fat2thin data make {name}`"
        hint, there = did_you_mean(name, known), closest_first(name, known)
        return f"`fat2thin data make` cannot make it{hint}, only {there}"
    if robot(name) and name.endswith("-v2"):
        file = f"{_stems(name.removeprefix(D4RL))[1]}{SUFFIXES[0]}"
        out = place_of(name).with_name(file)
        return f"Download it with `curl --create-dirs -o {out} {_ADDRESS}/gym_mujoco_v2/{file}`"
    return (
        f"Download it from {_ADDRESS} (d4rl/infos.py in the repository Farama-Foundation/D4RL has "
        "the address of every file)"
    )


def _stems(identifier: str) -> tuple[str, ...]:
    """Return the possible file stems: D4RL stores hopper-medium-v2 as hopper_medium-v2.hdf5."""
    words, dash, version = identifier.rpartition("-v")
    if not dash:
        return (identifier,)
    stem = words.replace("-", "_")
    return identifier, stem if version == "0" else f"{stem}-v{version}"


def robot(task: str) -> str | None:
    """Return the robot of a data set ("hopper"), or None if it has no reference scores."""
    found = _NAMES.fullmatch(task)
    name = next(filter(None, found.groups())) if found else None
    return name if name in REFERENCES else None


def published_name(name: str) -> str:
    """Return the name under which published settings are listed.

    That of D4RL for Minari's robots, and the name without the number of rows for regenerated sets.
    """
    found = _NAMES.fullmatch(name)
    if found and found["minari"]:
        *_, level = name.split("/")
        return f"{D4RL}{found['minari']}-{level.partition('-v')[0]}-v2"
    return name.partition("@")[0] if found else name


def score(scale: ReferenceReturns, returns: np.ndarray | float) -> np.ndarray:
    """Return scores 100 (return - random) / (expert - random), of any shape."""
    random, expert = scale
    return np.asarray(100 * (np.asarray(returns, np.float64) - random) / (expert - random))


def normalised_score(task: str, returns: np.ndarray | float) -> np.ndarray:
    """Return D4RL's normalised scores of a task: 0 is the random policy, 100 the expert.

    Regenerated data sets and Minari's use the reference returns of D4RL's robot, although the
    simulator differs: their scores compare with each other, not with published tables.
    """
    known = robot(task)
    if known is None:
        raise ValueError(
            f"no reference scores are known for {task!r}; there are some for "
            "d4rl/<robot>-<set>-v2, regenerated/<robot>-<set> and minari/mujoco/<robot>/<set>-v0 "
            f"with robots {', '.join(REFERENCES)}. Compare returns instead"
        )
    return score(REFERENCES[known], returns)


for _prefix in (D4RL, REGENERATED):
    register_reader(Reader(_prefix, lambda name, _: read_hdf5(find(name), name)))
for _suffix in SUFFIXES:
    register_suffix(_suffix, lambda path, _: read_hdf5(path))
