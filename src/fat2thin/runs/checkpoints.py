"""Checkpoints: what a run needs to go on after a step as if nothing had happened.

    checkpoints/step_000012000/
        manifest.json       specification, versions, hashes of the data, place, seeds, a checksum a
                            file and one of itself
        state.safetensors   networks, targets and optimisers of all seeds
        metrics.jsonl       all rows so far
        evaluations.npz     all evaluations so far, where there are any

Random numbers come from the seed, their purpose and the number of the update: the seeds and the
place are all there is to a key. A checkpoint is written beside its place, synced and renamed; the
newest whole one counts, and the newest `KEPT` are kept.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fat2thin.atomic_files import creating, remove_partial, sync, writing_folder
from fat2thin.runs import files
from fat2thin.runs import run_json as told
from fat2thin.runs.files import DamagedError

FORMAT = 1
KEPT = 2
FOLDER, MANIFEST, STATE = "checkpoints", "manifest.json", "state.safetensors"
_NAME = re.compile(r"(preparation|step)_(\d{9,18})")
_FILE = re.compile(r"[a-z_]{1,64}\.[a-z]{1,16}")
BESIDE = re.compile(r"snapshots/step_[0-9]{9,18}\.safetensors")

_log = logging.getLogger(__name__)


class NewerFormatError(ValueError):
    """A later version of fat2thin wrote this."""


class Place(NamedTuple):
    """Where a run stands: so many updates done of its preparation, or of itself."""

    training: bool
    step: int

    @property
    def name(self) -> str:
        """The folder of a checkpoint there."""
        return f"{'step' if self.training else 'preparation'}_{self.step:09d}"

    def __str__(self) -> str:
        return f"step {self.step:,}" + ("" if self.training else " of the preparation")


START = Place(training=False, step=0)


class Checkpoint(NamedTuple):
    """One that is whole."""

    path: Path
    place: Place
    manifest: dict[str, Any]

    def contents(self, name: str) -> bytes | None:
        """One of its files, None where it has no such file."""
        if name not in self.manifest["files"]:
            return None
        return files.read(self.path / name, files.LARGEST_LOG)


def write(folder: Path, place: Place, about: Mapping[str, Any], contents: dict[str, bytes]) -> None:
    """Write a checkpoint; `keep_newest` then removes those that are too many."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "place": {"training": place.training, "step": place.step},
        **about,
        "files": {name: files.stamp(of_file) for name, of_file in contents.items()},
    }
    manifest["checksum"] = _checksum(manifest)
    inside = _inside(folder)
    target = inside / place.name
    if not inside.exists():
        # No more than that: if the run's folder was removed, it must not come back.
        inside.mkdir()
        sync(folder)
    with writing_folder(target) as beside:
        for name, of_file in {**contents, MANIFEST: files.as_json(manifest)}.items():
            with creating(beside / name) as file:
                file.write(of_file)


def remove(folder: Path, place: Place) -> None:
    """Remove that of a place, where there is one."""
    shutil.rmtree(_inside(folder) / place.name, ignore_errors=True)


def keep_newest(folder: Path, count: int = KEPT) -> None:
    """Remove all checkpoints but the newest, and what half-written ones left."""
    for _, path in listed(folder)[count:]:
        shutil.rmtree(path, ignore_errors=True)
    remove_partial(_inside(folder))


def forget(folder: Path) -> None:
    """Remove them all, and nothing else that somebody may keep under that name."""
    keep_newest(folder, 0)
    with contextlib.suppress(OSError):
        (folder / FOLDER).rmdir()


def forget_later(folder: Path, place: Place) -> None:
    """Remove those beyond a place: left there, they would count among the newest that are kept."""
    for other, path in listed(folder):
        if other > place:
            shutil.rmtree(path)


def whole(folder: Path) -> list[Checkpoint]:
    """All checkpoints that can be gone on from, the newest first; others are told of by name."""
    found = []
    for place, path in listed(folder):
        try:
            found.append(read(path, place))
        except DamagedError as error:
            _log.warning("the checkpoint of %s cannot be used: %s", place, error)
    return found


def read(path: Path, place: Place | None = None) -> Checkpoint:
    """The checkpoint in a folder, once all of its files are known to be what was written."""
    try:
        manifest = files.read_json(path / MANIFEST)
    except FileNotFoundError:
        raise DamagedError(f"{path / MANIFEST} is missing") from None
    if isinstance(manifest.get("format"), int) and manifest["format"] > FORMAT:
        raise NewerFormatError(
            f"{path} has format {manifest['format']}; this version reads up to {FORMAT}. Use the "
            "version of fat2thin that wrote it, or a later one."
        )
    if manifest.get("checksum") != _checksum(manifest):
        raise DamagedError(f"{path / MANIFEST} is damaged: its checksum does not fit")
    if manifest.get("format") != FORMAT:
        raise DamagedError(
            f"{path / MANIFEST} is no checkpoint's: its format is {manifest.get('format')!r}"
        )
    written = _understood(path / MANIFEST, manifest)
    if place is not None and written != place:
        raise DamagedError(f"{path} says that it is of {written}")
    for name, expected in manifest["files"].items():
        files.check_stamp(path / name, expected)
    for name, expected in manifest.get("beside", {}).items():
        files.check_stamp(path.parent.parent / name, expected)
    return Checkpoint(path, written, manifest)


def _understood(file: Path, manifest: dict[str, Any]) -> Place:
    """The place that a manifest is of, once its fields are of the right kinds."""
    if missing := [name for name in ("place", "files") if name not in manifest]:
        raise DamagedError(f"{file} is damaged: it says nothing of {', '.join(missing)}")
    told.check(file, manifest)
    place = manifest["place"]
    if not told.fields(step=told.is_count)(place) or type(place.get("training")) is not bool:
        raise DamagedError(f"{file} is damaged: its place is {told.shown(repr(place))}")
    for names, usual in ((manifest["files"], _FILE), (manifest.get("beside", {}), BESIDE)):
        for name in names:
            if not usual.fullmatch(name):
                raise DamagedError(f"{file} names a file that is none of ours: {name[:100]!r}")
    return Place(place["training"], place["step"])


def listed(folder: Path) -> list[tuple[Place, Path]]:
    """Places and folders, the newest first."""
    found = []
    for path in _inside(folder).glob("*_*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found.append((Place(match[1] == "step", int(match[2])), path))
    return sorted(found, reverse=True)


def _inside(folder: Path) -> Path:
    """Where the checkpoints of a run are."""
    return files.own_folder(folder / FOLDER)


def _checksum(manifest: Mapping[str, Any]) -> str:
    others = {name: value for name, value in manifest.items() if name != "checksum"}
    return files.stamp(files.as_json(others))["sha256"]
