"""Files of a run folder, which may be hostile: limits, checksums, JSON and pytrees.

A pytree of arrays is a safetensors file: numbers and their names, and no code. Its
header lists the leaves in order: path, type and shape. Loading fills a structure that the caller
builds, and refuses a file that does not fit it.
"""

import hashlib
import io
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from fat2thin.atomic_files import NotRegularFileError, open_regular, path_of_open, sync
from fat2thin.data.safe_files import default_limit

LARGEST_JSON = 64 * 2**20  # maximum size of a JSON file, in bytes; 100,000 seeds need far less
LARGEST_LOG = 2**30  # maximum size of the metrics, and of the evaluations, in bytes
DEEPEST_JSON = 32  # maximum nesting of a JSON file; ours have six levels at most
TREE_FORMAT = "fat2thin tree 2"
_LONGEST_COMPLAINT = 500
_LONGEST_HEADER = 8 * 2**20
_TYPES = {
    "bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
"""Names of array types in safetensors."""

Stamp = dict[str, Any]  # size and checksum of a file: "bytes" and "sha256"
ShapeCheck = Callable[[Any], bool]
Kind = type | ShapeCheck
"""What a value of a JSON file must be: a type, or a function that accepts the value."""


class DamagedError(ValueError):
    """A file is not as it was written: truncated, changed, or from another program."""


class NoRunError(ValueError):
    """The folder does not hold a run that can be loaded."""


class TooLargeError(NoRunError):
    """Reading or checking a run would need too much of this machine's memory."""


def refuse_too_large(file: Path, names: str, size: int) -> None:
    """Refuse a size that the fields `names` of a file imply if it exceeds half of the memory."""
    limit = default_limit()
    if size > limit:
        raise TooLargeError(
            f"{file}: {names} ask for about {size:,} bytes of memory; the limit is {limit:,}, "
            "half of what this machine has"
        )


def opened(path: Path, limit: int | None = None, *, required: bool = False) -> io.BufferedReader:
    """Open a file of a run folder for reading.

    Links, pipes, devices and files of more than `limit` bytes are refused. A missing file is
    damage if it is `required`, else a FileNotFoundError.
    """
    try:
        file = open_regular(path, follow_links=False)
    except NotRegularFileError as error:
        raise DamagedError(str(error)) from error
    except FileNotFoundError:
        if required:
            raise DamagedError(f"{path} is missing") from None
        raise
    size = size_of(file)
    if limit is not None and size > limit:
        file.close()
        raise DamagedError(f"{path} has {size:,} bytes; {limit:,} are read at most")
    return file


def size_of(file: io.BufferedReader) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read(path: Path, limit: int, *, required: bool = False) -> bytes:
    """Return the contents of a file of a run folder, at most `limit` bytes."""
    with opened(path, limit, required=required) as file:
        return file.read()


def own_folder(path: Path, *, create: bool = False) -> Path:
    """Return a folder inside a run folder; a link is refused: its target is not the run's."""
    if path.is_symlink():
        raise DamagedError(f"{path} is a symbolic link, not a folder of the run")
    if create and not path.exists():
        # Without its parents: a run folder that was removed must not come back.
        path.mkdir()
        sync(path.parent)
    return path


def stamp(contents: bytes) -> Stamp:
    """Return size and checksum of these contents."""
    return {"bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}


def stamp_of(path: Path, limit: int | None = None) -> Stamp:
    """Return size and checksum of a file of at most `limit` bytes."""
    with opened(path, limit) as file:
        return _stamp_of(file)


def _stamp_of(file: io.BufferedReader) -> Stamp:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": file.tell(), "sha256": digest}


def check_stamp(path: Path, expected: Stamp) -> None:
    """Refuse a file whose size (compared first) or checksum is not the expected one."""
    with opened(path, required=True) as file:
        if size_of(file) != expected.get("bytes"):
            raise DamagedError(
                f"{path} has {size_of(file):,} bytes instead of {expected.get('bytes')}: it is "
                "cut off or was changed"
            )
        if _stamp_of(file) != expected:
            raise DamagedError(f"{path} is damaged: its checksum does not match the recorded one")


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file; anything else raises an error that names the file."""
    contents = read(path, LARGEST_JSON, required=required)
    try:
        values = json.loads(contents)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise DamagedError(f"{path} must hold an object, not a {type(values).__name__}")
    if _depth(values) > DEEPEST_JSON:
        raise DamagedError(f"{path} is damaged: it nests deeper than {DEEPEST_JSON} levels")
    return values


def _depth(value: Any) -> int:
    """Return how deep a value nests, without recursion and at most one level too many."""
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


def as_json(value: Any) -> bytes:
    """Return the contents of an indented JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def shortened(complaint: object) -> str:
    """Return the beginning of a text that may be very long."""
    text = str(complaint)
    return text if len(text) <= _LONGEST_COMPLAINT else f"{text[:_LONGEST_COMPLAINT]} ..."


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < 2**63


def is_kind(kind: Kind, value: Any) -> bool:
    """Whether a value is of this kind."""
    return isinstance(value, kind) if isinstance(kind, type) else kind(value)


def all_of(kind: Kind, count: int | None = None) -> ShapeCheck:
    """Accept a list (of `count` values), all of this kind."""
    return lambda value: (
        isinstance(value, list)
        and count in (None, len(value))
        and all(is_kind(kind, one) for one in value)
    )


def each(kind: Kind) -> ShapeCheck:
    """Accept an object whose fields, of any names, are all of this kind."""
    are_kind = all_of(kind)
    return lambda value: isinstance(value, dict) and are_kind([*value.values()])


def fields(**kinds: Kind) -> ShapeCheck:
    """Accept an object that has at least these fields, of these kinds."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and is_kind(kind, value[name]) for name, kind in kinds.items())
    )


def dump_tree(tree: Any) -> bytes:
    """Return the contents of a file that holds this pytree of arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {jax.tree_util.keystr(path): np.array(leaf, order="C") for path, leaf in leaves}
    manifest = [_entry(name, array) for name, array in arrays.items()]
    # A single entry: the order of several entries, and so the bytes, would vary between calls.
    return safetensors.numpy.save(arrays, metadata={TREE_FORMAT: json.dumps(manifest)})


def load_tree(path: Path, like: Any, kind: Any = jnp) -> Any:
    """Return the pytree in a file; `like` is its structure, with shapes and types for arrays.

    The arrays are JAX's or, with `kind=np`, NumPy's, which stay on the host. A file that does not
    hold exactly that is refused: no more memory is used than `like` needs.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = [_entry(jax.tree_util.keystr(where), leaf) for where, leaf in leaves]
    try:
        with (
            _open_tree(path, like) as opened_file,
            safetensors.safe_open(path_of_open(opened_file, path), framework="np") as file,
        ):
            _check_contents(path, file.metadata() or {}, expected)
            for name, dtype, shape in expected:
                found = file.get_slice(name)
                if (found.get_dtype(), found.get_shape()) != (_TYPES[dtype], shape):
                    raise DamagedError(f"{path} is damaged: its {name} is not what it lists")
            arrays = [kind.asarray(file.get_tensor(name)) for name, _, _ in expected]
    except (safetensors.SafetensorError, RecursionError) as error:
        raise DamagedError(f"{path} is not a readable safetensors file: {error}") from error
    return jax.tree_util.tree_unflatten(structure, arrays)


def tree_size(like: Any) -> int:
    """Return the number of bytes of arrays with the shapes of a tree."""
    leaves = jax.tree.leaves(like)
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def check_tree_size(path: Path, like: Any) -> None:
    """Refuse a file that is too small or too large for arrays of these shapes."""
    _open_tree(path, like).close()


def _open_tree(path: Path, like: Any) -> io.BufferedReader:
    needed = tree_size(like)
    file = opened(path, needed + _LONGEST_HEADER, required=True)
    if (found := size_of(file)) < needed:
        file.close()
        raise DamagedError(
            f"{path} has {found:,} bytes, fewer than the {needed:,} of the arrays that run.json "
            "implies by spec.config, spec.seeds and problem"
        )
    return file


def _check_contents(path: Path, metadata: dict[str, str], expected: list[list]) -> None:
    if TREE_FORMAT not in metadata:
        raise ValueError(
            f"{path} does not have format {TREE_FORMAT!r}: another program or another version of "
            "fat2thin wrote it. Train again into another folder"
        )
    try:
        found = json.loads(metadata[TREE_FORMAT])
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: its list of arrays cannot be read") from error
    if not isinstance(found, list):
        raise DamagedError(f"{path} is damaged: its list of arrays is not a list")
    if found != expected:
        pairs = zip(found, expected, strict=False)
        different = (f"{have} instead of {want}" for have, want in pairs if have != want)
        wrong = next(different, f"{len(found)} arrays instead of {len(expected)}")
        raise ValueError(
            f"{path} does not fit: it holds {wrong[:500]}. Another algorithm or another version "
            "of fat2thin wrote it: train again into another folder"
        )


def _entry(name: str, leaf: Any) -> list:
    return [name, str(leaf.dtype), list(leaf.shape)]
