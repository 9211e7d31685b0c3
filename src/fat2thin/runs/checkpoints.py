"""Checkpoints: everything a run needs to resume after a step with the same bits.

    checkpoints/step_000012000/
        manifest.json       specification, versions, hashes of the data, place, seeds, a checksum
                            per file and one of itself
        state.safetensors   networks, targets and optimisers of all seeds
        metrics.jsonl       all rows so far
        evaluations.npz     all evaluations so far, if there are any

Random numbers come from the seed, their purpose and the number of the update, so seeds and place
determine every key. A checkpoint is written under another name, synced and renamed. The newest
intact one counts, and the newest `KEPT` are kept.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fat2thin.atomic_files import creating, remove_partial, writing_folder
from fat2thin.runs import files
from fat2thin.runs.files import DamagedError
from fat2thin.runs.identity import check_fields

FORMAT = 1
KEPT = 2
FOLDER, MANIFEST, STATE = "checkpoints", "manifest.json", "state.safetensors"
_NAME = re.compile(r"(preparation|step)_(\d{9,18})")
_FILE = re.compile(r"[a-z_]{1,64}\.[a-z]{1,16}")
BESIDE = re.compile(r"snapshots/step_[0-9]{9,18}\.safetensors")

_log = logging.getLogger(__name__)


class NewerFormatError(ValueError):
    """A later version of fat2thin wrote the file."""


class Place(NamedTuple):
    """The position of a run: the number of updates of its preparation, or of its training."""

    training: bool
    step: int

    @property
    def name(self) -> str:
        """The name of the checkpoint's folder."""
        return f"{'step' if self.training else 'preparation'}_{self.step:09d}"

    def __str__(self) -> str:
        return f"step {self.step:,}" + ("" if self.training else " of the preparation")


START = Place(training=False, step=0)


class Checkpoint(NamedTuple):
    """An intact checkpoint."""

    path: Path
    place: Place
    manifest: dict[str, Any]

    def contents(self, name: str) -> bytes | None:
        """Return the contents of one of its files, None if it has no such file."""
        if name not in self.manifest["files"]:
            return None
        return files.read(self.path / name, files.LARGEST_LOG)


def write(folder: Path, place: Place, about: Mapping[str, Any], contents: dict[str, bytes]) -> None:
    """Write a checkpoint; `keep_newest` then removes the oldest."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "place": {"training": place.training, "step": place.step},
        **about,
        "files": {name: files.stamp(of_file) for name, of_file in contents.items()},
    }
    manifest["checksum"] = _checksum(manifest)
    inside = files.own_folder(folder / FOLDER, create=True)
    with writing_folder(inside / place.name) as beside:
        for name, of_file in {**contents, MANIFEST: files.as_json(manifest)}.items():
            with creating(beside / name) as file:
                file.write(of_file)


def remove(folder: Path, place: Place) -> None:
    """Remove the checkpoint of a place, if there is one."""
    shutil.rmtree(_inside(folder) / place.name, ignore_errors=True)


def keep_newest(folder: Path, count: int = KEPT) -> None:
    """Remove all but the `count` newest checkpoints, and half-written ones."""
    for _, path in listed(folder)[count:]:
        shutil.rmtree(path, ignore_errors=True)
    remove_partial(_inside(folder))


def forget(folder: Path) -> None:
    """Remove all checkpoints, but no other file in their folder."""
    keep_newest(folder, 0)
    with contextlib.suppress(OSError):
        (folder / FOLDER).rmdir()


def forget_later(folder: Path, place: Place) -> None:
    """Remove checkpoints after a place, which would otherwise count as the newest."""
    for other, path in listed(folder):
        if other > place:
            shutil.rmtree(path)


def intact(folder: Path) -> list[Checkpoint]:
    """Return the intact checkpoints, newest first; damaged ones are logged."""
    found = []
    for place, path in listed(folder):
        try:
            found.append(read(path, place))
        except DamagedError as error:
            _log.warning("the checkpoint of %s cannot be used: %s", place, error)
    return found


def newest(folder: Path) -> Checkpoint | None:
    """Return the checkpoint that a run resumes from, None if there is no intact one."""
    return next(iter(intact(folder)), None)


def read(path: Path, place: Place) -> Checkpoint:
    """Return the checkpoint of a place, after checking that all of its files are intact."""
    file = path / MANIFEST
    manifest = files.read_json(file, required=True)
    if isinstance(manifest.get("format"), int) and manifest["format"] > FORMAT:
        raise NewerFormatError(
            f"{path} has format {manifest['format']}; this version reads up to {FORMAT}. Use the "
            "version of fat2thin that wrote it, or a later one."
        )
    if manifest.get("checksum") != _checksum(manifest):
        raise DamagedError(f"{file} is damaged: its checksum does not match")
    if manifest.get("format") != FORMAT:
        raise DamagedError(f"{file} is damaged: its format is {manifest.get('format')!r}")
    check_fields(file, manifest, ("place", "files"))
    written = manifest["place"]
    if not files.fields(step=files.is_count, training=bool)(written):
        raise DamagedError(f"{file} is damaged: its place is {files.shortened(repr(written))}")
    if (written := Place(written["training"], written["step"])) != place:
        raise DamagedError(f"{path} is damaged: its manifest says {written}")
    for names, usual, inside in (
        (manifest["files"], _FILE, path),
        (manifest.get("beside", {}), BESIDE, path.parent.parent),
    ):
        for name, expected in names.items():
            if not usual.fullmatch(name):
                raise DamagedError(f"{file} names an unexpected file: {name[:100]!r}")
            files.check_stamp(inside / name, expected)
    return Checkpoint(path, place, manifest)


def listed(folder: Path) -> list[tuple[Place, Path]]:
    """Return places and folders of all checkpoints, newest first."""
    found = []
    for path in _inside(folder).glob("*_*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and not path.is_symlink():
            found.append((Place(match[1] == "step", int(match[2])), path))
    return sorted(found, reverse=True)


def _inside(folder: Path) -> Path:
    return files.own_folder(folder / FOLDER)


def _checksum(manifest: Mapping[str, Any]) -> str:
    others = {name: value for name, value in manifest.items() if name != "checksum"}
    return files.stamp(files.as_json(others))["sha256"]
