"""Pytrees of arrays in safetensors files: numbers and their names, and nothing that could run.

The header of a file lists the leaves of the tree in their order: path, type and shape. Loading
fills a structure that the caller builds anew, and refuses a file that does not fit it.
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from fat2thin.runs.files import DamagedError, opened, size_of

FORMAT = "fat2thin tree 2"
_LONGEST_HEADER = 8 * 2**20
_TYPES = {
    "bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
"""How safetensors calls the types of arrays."""


def dump(tree: Any) -> bytes:
    """The contents of a file that holds this pytree of arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {jax.tree_util.keystr(path): np.array(leaf, order="C") for path, leaf in leaves}
    manifest = [_entry(name, array) for name, array in arrays.items()]
    # One entry alone: of several the order would be another at every call, and so would the bytes.
    return safetensors.numpy.save(arrays, metadata={FORMAT: json.dumps(manifest)})


def load(path: Path, like: Any, kind: Any = jnp) -> Any:
    """The pytree in a file; `like` is its structure, with shapes and types in place of arrays.

    The arrays are JAX's, or with `kind=np` NumPy's, which stay on the host.

    Nothing is taken of a file that does not hold just that: memory is for what `like` says.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = [_entry(jax.tree_util.keystr(where), leaf) for where, leaf in leaves]
    check_size(path, like)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            _check_contents(path, file.metadata() or {}, expected)
            for name, dtype, shape in expected:
                found = file.get_slice(name)
                if (found.get_dtype(), found.get_shape()) != (_TYPES[dtype], shape):
                    raise DamagedError(f"{path} is damaged: its {name} is not what it lists")
            arrays = [kind.asarray(file.get_tensor(name)) for name, _, _ in expected]
    except (safetensors.SafetensorError, RecursionError) as error:
        raise DamagedError(f"{path} is no safetensors file that can be read: {error}") from error
    return jax.tree_util.tree_unflatten(structure, arrays)


def size(like: Any) -> int:
    """How many bytes the arrays of a tree of shapes take."""
    leaves = jax.tree.leaves(like)
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def check_size(path: Path, like: Any) -> None:
    """Refuse a file that is too small or too large for arrays of these shapes; none is made."""
    numbers = size(like)
    try:
        with opened(path, numbers + _LONGEST_HEADER) as file:
            found = size_of(file)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    if found < numbers:
        raise DamagedError(
            f"{path} has {found:,} bytes, fewer than the {numbers:,} of the arrays that run.json "
            "asks for with spec.config, spec.seeds and problem"
        )


def _check_contents(path: Path, metadata: dict[str, str], expected: list[list]) -> None:
    if FORMAT not in metadata:
        raise ValueError(
            f"{path} is not a file of format {FORMAT!r}: it is of another program, or of another "
            "version of fat2thin. Train again into another folder"
        )
    try:
        found = json.loads(metadata[FORMAT])
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: its list of arrays cannot be read") from error
    if not isinstance(found, list):
        raise DamagedError(f"{path} is damaged: its list of arrays is none")
    if found != expected:
        wrong = next(
            (
                f"{have} instead of {want}"
                for have, want in zip(found, expected, strict=False)
                if have != want
            ),
            f"{len(found)} arrays instead of {len(expected)}",
        )
        raise ValueError(
            f"{path} does not fit: it holds {wrong[:500]}. It is of another algorithm, or another "
            "version of fat2thin wrote it: train again into another folder"
        )


def _entry(name: str, leaf: Any) -> list:
    return [name, str(leaf.dtype), list(leaf.shape)]
