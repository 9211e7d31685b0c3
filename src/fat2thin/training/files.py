"""Files that are whole or not there: durable writes, checksums, and reading with limits."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST_JSON = 64 * 2**20
"""Bytes of the largest JSON file that is read: a run of a hundred thousand seeds is far below."""
DEEPEST_JSON = 32
"""How deep the objects and lists of a JSON file may lie in each other; ours do in six at most."""
_BLOCK = 2**20

Stamp = dict[str, Any]
"""What a file is known by: its "bytes" and its "sha256"."""


class DamagedError(ValueError):
    """A file is not what was written: cut off, changed, or of somebody else."""


def write(place: Path, contents: bytes) -> None:
    """Put a file in its place so that after a crash it is there whole, or as it was before."""
    beside = place.with_name(f".{place.name}.partial")
    try:
        _write_synced(beside, contents)
        beside.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync(place.parent)


def write_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """The same for a folder of files: it is there with all of them, or not at all."""
    beside = place.with_name(f".{place.name}.partial")
    try:
        if beside.exists():
            shutil.rmtree(beside)
        if not place.parent.exists():
            # No more than that: where somebody removed the run's folder, it must not come back.
            place.parent.mkdir()
            sync(place.parent.parent)
        beside.mkdir()
        for name, contents in files.items():
            _write_synced(beside / name, contents)
        sync(beside)
        beside.rename(place)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync(place.parent)


def sync(path: Path) -> None:
    """Have a file on the disk, or the names in a folder, where the file system can do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def stamp(contents: bytes) -> Stamp:
    """What these contents are known by."""
    return {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}


def stamp_of(path: Path) -> Stamp:
    """What a file is known by, read in blocks."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def check_stamp(path: Path, expected: Stamp) -> None:
    """Refuse a file that is not what it was; its size is asked before it is read."""
    if not path.is_file():
        raise DamagedError(f"{path} is missing")
    if path.stat().st_size != expected.get("bytes"):
        raise DamagedError(
            f"{path} has {path.stat().st_size:,} bytes instead of {expected.get('bytes')}: it is "
            "cut off or was changed"
        )
    if stamp_of(path) != expected:
        raise DamagedError(f"{path} is damaged: its checksum is not what was written down")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; whatever else is there is an error that names the file."""
    refuse_larger(path, LARGEST_JSON)
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is no JSON file: {error}") from error
    if not isinstance(values, dict):
        raise DamagedError(f"{path} holds no object but {type(values).__name__}")
    if _depth(values) > DEEPEST_JSON:
        raise DamagedError(f"{path} is damaged: its fields lie deeper than {DEEPEST_JSON} levels")
    return values


def refuse_larger(path: Path, limit: int) -> None:
    """Refuse what has more bytes than a limit, or is no plain file: a device never ends."""
    if not path.is_file():
        raise DamagedError(f"{path} is missing, or no plain file")
    size = path.stat().st_size
    if size > limit:
        raise DamagedError(f"{path} has {size:,} bytes; {limit:,} are read at most")


def as_json(value: Any) -> bytes:
    """Contents of a JSON file for people and programs."""
    return (json.dumps(value, indent=2) + "\n").encode()


def _depth(value: Any) -> int:
    """How deep a value nests, at most one more than is allowed; itself it does not recur."""
    depth, level = 0, [value]
    while level and depth <= DEEPEST_JSON:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth


def _write_synced(path: Path, contents: bytes) -> None:
    with path.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
