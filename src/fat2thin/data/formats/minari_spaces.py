"""The spaces of a Minari data set, which it keeps as JSON: what can be read of them, and where."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin.data.errors import DataFileError, file_error

_DEEPEST = 16
_CHOOSE = "Choose a data set whose observations are numbers, or write one without this part."


class Part(NamedTuple):
    """An array of an episode, and the shape of a row of it."""

    field: str
    shape: tuple[int, ...] | None
    """None where the data set has no space, and the file alone says it."""


class ActionSpace(NamedTuple):
    """What is known of the actions: their array and, with a space, their box."""

    part: Part
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def observation_parts(path: Path, space: str | None) -> tuple[Part, ...]:
    """The arrays that make up an observation, in the order of the space; `path` is for errors."""
    if space is None:
        return (Part("observations", None),)
    with _explained(path, "observation_space"):
        parts = tuple(_parts(path, "observations", json.loads(space), 0))
        if not parts:
            raise ValueError("there is nothing in it")
        return parts


def action_space(path: Path, space: str | None) -> ActionSpace:
    """The array of the actions and the ends of their box, which may be infinite."""
    if space is None:
        return ActionSpace(Part("actions", None))
    with _explained(path, "action_space"):
        about = json.loads(space)
        kind = about["type"]
        if kind != "Box" or np.dtype(about["dtype"]).kind != "f":
            described = kind if kind != "Box" else f"Box of {about['dtype']}"
            raise file_error(
                path,
                f"is a {described}: only a Box of floating-point numbers has actions between its "
                "ends",
                "Choose a data set with continuous actions.",
                "action_space",
            )
        shape = _shape(about)
        low, high = (np.array(about[end], np.float64) for end in ("low", "high"))
        if not low.shape == high.shape == shape:
            raise ValueError(f"low and high must have shape {shape}")
        return ActionSpace(Part("actions", shape), low.reshape(-1), high.reshape(-1))


def _parts(path: Path, field: str, space: dict[str, Any], depth: int) -> Iterator[Part]:
    kind = space["type"]
    if kind in ("Dict", "Tuple") and depth < _DEEPEST:
        inner = space["subspaces"]
        named = inner.items() if kind == "Dict" else _numbered(inner)
        for name, subspace in named:
            yield from _parts(path, f"{field}/{name}", subspace, depth + 1)
        return
    if kind != "Box":
        raise file_error(path, f"is a {kind}, not a Box of numbers", _CHOOSE, field)
    shape = _shape(space)
    if np.dtype(space["dtype"]) == np.uint8 and len(shape) > 1:
        raise file_error(path, f"holds images of shape {shape}", _CHOOSE, field)
    yield Part(field, shape)


def _numbered(spaces: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, space in enumerate(spaces):
        yield f"_index_{number}", space


def _shape(space: dict[str, Any]) -> tuple[int, ...]:
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
        raise file_error(
            path,
            f"is no space as Minari writes it: {type(error).__name__}: {error}",
            "Fetch or write the data set again.",
            field,
        ) from error
