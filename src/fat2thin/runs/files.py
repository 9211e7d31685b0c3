"""Files of a run folder, which may be a stranger's: reading with limits, checksums, JSON."""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

from fat2thin.atomic_files import NotRegularFileError, open_regular

LARGEST_JSON = 64 * 2**20
"""Bytes of the largest JSON file that is read: a run of a hundred thousand seeds is far below."""
LARGEST_LOG = 2**30
"""Bytes of metrics, and of evaluations, that are read at most."""
DEEPEST_JSON = 32
"""How deep the objects and lists of a JSON file may lie in each other; ours do in six at most."""

Stamp = dict[str, Any]
"""What a file is known by: its "bytes" and its "sha256"."""


class DamagedError(ValueError):
    """A file is not what was written: cut off, changed, or of another program."""


def opened(path: Path, limit: int | None = None) -> io.BufferedReader:
    """Open a file of a run folder for reading.

    A link, a pipe or a device is refused, and so is a file of more than `limit` bytes.
    """
    try:
        file = open_regular(path, follow_links=False)
    except NotRegularFileError as error:
        raise DamagedError(str(error)) from error
    size = size_of(file)
    if limit is not None and size > limit:
        file.close()
        raise DamagedError(f"{path} has {size:,} bytes; {limit:,} are read at most")
    return file


def size_of(file: io.BufferedReader) -> int:
    """How many bytes an open file has."""
    return os.fstat(file.fileno()).st_size


def read(path: Path, limit: int) -> bytes:
    """The contents of a file of a run folder, of at most so many bytes."""
    with opened(path, limit) as file:
        return file.read()


def own_folder(path: Path) -> Path:
    """A folder inside a run folder; a link is refused, for what it leads to is not the run's."""
    if path.is_symlink():
        raise DamagedError(f"{path} is a symbolic link, not a folder of the run")
    return path


def stamp(contents: bytes) -> Stamp:
    """What these contents are known by."""
    return {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}


def stamp_of(path: Path, limit: int | None = None) -> Stamp:
    """What a file of at most `limit` bytes is known by, read in blocks."""
    with opened(path, limit) as file:
        return _stamp_of(file)


def check_stamp(path: Path, expected: Stamp) -> None:
    """Refuse a file that is not what it was; its size is asked before it is read."""
    try:
        file = opened(path)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    with file:
        if size_of(file) != expected.get("bytes"):
            raise DamagedError(
                f"{path} has {size_of(file):,} bytes instead of {expected.get('bytes')}: it is "
                "cut off or was changed"
            )
        if _stamp_of(file) != expected:
            raise DamagedError(f"{path} is damaged: its checksum is not what was written down")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; whatever else is there is an error that names the file."""
    contents = read(path, LARGEST_JSON)
    try:
        values = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is no JSON file: {error}") from error
    if not isinstance(values, dict):
        raise DamagedError(f"{path} holds no object but {type(values).__name__}")
    if _depth(values) > DEEPEST_JSON:
        raise DamagedError(f"{path} is damaged: its fields lie deeper than {DEEPEST_JSON} levels")
    return values


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


def _stamp_of(file: io.BufferedReader) -> Stamp:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": file.tell(), "sha256": digest}
