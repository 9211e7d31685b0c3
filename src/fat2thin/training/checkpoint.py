"""Pytrees of arrays in safetensors files: numbers and their names, and nothing that could run.

The header of a file lists the leaves of the tree in their order: path, type and shape. Loading
fills a structure that the caller builds anew, and refuses a file that does not fit it.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

FORMAT = "fat2thin tree 2"


def dump(tree: Any) -> bytes:
    """The contents of a file that holds this pytree of arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays = {jax.tree_util.keystr(path): np.array(leaf, order="C") for path, leaf in leaves}
    manifest = [_entry(name, array) for name, array in arrays.items()]
    return safetensors.numpy.save(arrays, metadata={"format": FORMAT, "tree": json.dumps(manifest)})


def load(path: Path, like: Any) -> Any:
    """The pytree in a file; `like` is its structure, with shapes and types in place of arrays."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = [_entry(jax.tree_util.keystr(where), leaf) for where, leaf in leaves]
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{path} is not a file of format {FORMAT!r} but of {metadata.get('format')!r}: "
                "train again into another folder"
            )
        found = json.loads(metadata["tree"])
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
                f"{path} does not fit: it holds {wrong}. It is of another algorithm, or another "
                "version of fat2thin wrote it: train again into another folder"
            )
        arrays = [jnp.asarray(file.get_tensor(name)) for name, _, _ in expected]
    return jax.tree_util.tree_unflatten(structure, arrays)


def _entry(name: str, leaf: Any) -> list:
    return [name, str(leaf.dtype), list(leaf.shape)]
