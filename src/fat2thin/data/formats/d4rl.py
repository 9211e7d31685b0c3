"""Reader of HDF5 files in D4RL's layout, by name or path, and D4RL's normalised scores.

`d4rl/hopper-medium-v2` and `regenerated/hopper-medium` are searched for in the folder given by the
environment variable FAT2THIN_DATA, else in D4RL's own cache and in ./data. Only the arrays at the
top level of a file are read, not the groups `infos` and `metadata` of later versions.
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
_HOW_TO_GET = {
    "d4rl/": (
        "Fetch it from rail.eecs.berkeley.edu/datasets/offline_rl (d4rl/infos.py in the "
        "repository Farama-Foundation/D4RL has the address of every file)"
    ),
    "regenerated/": (
        "Roll out policies of that skill on Gymnasium's HalfCheetah-v5, Hopper-v5 or Walker2d-v5 "
        f"and write {', '.join(LAYOUT[:5])} with h5py, one row per step"
    ),
}

_SETS = "random|medium|expert|medium-replay|full-replay|medium-expert"
_NAMES = re.compile(
    rf"(?:d4rl/(?P<original>[a-z0-9]+)-(?:{_SETS})-v[012]"
    rf"|regenerated/(?P<regenerated>[a-z0-9]+)-(?:{_SETS}))"
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
    named = name is not None and name.startswith(tuple(_HOW_TO_GET))
    of_d4rl = named or any(robot(f"{prefix}{stem}") for prefix in _HOW_TO_GET)
    with open_hdf5(path, memory_limit) as file:
        return read_dataset(file, LAYOUT, str(path) if name is None else name, box, of_d4rl)


def find(name: str) -> Path:
    """Return the file of a name such as "d4rl/hopper-medium-v2"; a missing file is an error."""
    prefix, _, identifier = name.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", identifier):
        raise DataFileError(f"no data set is called {name!r}: write {prefix}/ followed by one word")
    chosen = os.environ.get(FOLDER_VARIABLE)
    folders = (chosen,) if chosen else ("~/.d4rl/datasets", "data")
    candidates = [
        Path(folder).expanduser() / f"{stem}{suffix}"
        for folder in folders
        for stem in _stems(identifier)
        for suffix in SUFFIXES
    ]
    for path in candidates:
        if path.is_file():
            return path
    raise file_error(
        candidates[0],
        f"data set {name!r} was not found, here or as {', '.join(map(str, candidates[1:]))}",
        f"{_HOW_TO_GET[f'{prefix}/']}, and put it in one of these places or in the folder given by "
        f"{FOLDER_VARIABLE}.",
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
    name = (found["original"] or found["regenerated"]) if found else None
    return name if name in REFERENCES else None


def score(scale: ReferenceReturns, returns: np.ndarray | float) -> np.ndarray:
    """Return scores 100 (return - random) / (expert - random), of any shape."""
    random, expert = scale
    return np.asarray(100 * (np.asarray(returns, np.float64) - random) / (expert - random))


def normalised_score(task: str, returns: np.ndarray | float) -> np.ndarray:
    """Return D4RL's normalised scores of a task: 0 is the random policy, 100 the expert.

    A regenerated data set uses the reference returns of the D4RL data set that it reproduces,
    although the simulator differs: its scores compare with each other, not with published tables.
    """
    known = robot(task)
    if known is None:
        raise ValueError(
            f"no reference scores are known for {task!r}; there are some for d4rl/<robot>-<set>-v2 "
            f"and regenerated/<robot>-<set> with robots {', '.join(REFERENCES)}. Compare returns "
            "instead"
        )
    return score(REFERENCES[known], returns)


for _prefix in _HOW_TO_GET:
    register_reader(Reader(_prefix, lambda name, _: read_hdf5(find(name), name)))
for _suffix in SUFFIXES:
    register_suffix(_suffix, lambda path, _: read_hdf5(path))
