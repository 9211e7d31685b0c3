"""Bounded smooth functions of a sample whose expectations are compared.

A value is standardised to z, seen through a view that makes one number u of it (itself for a
scalar; projections and the squared radius for a vector), and bounded by a shape.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Standardised = Float[np.ndarray, "rows elements dimension"]
Rows = Float[np.ndarray, "rows elements"]

_LARGE = 1e100


class Shape(NamedTuple):
    """A bounded function of one number, and its derivative."""

    name: str
    value: Callable[[Rows], Rows]
    slope: Callable[[Rows], Rows]


def _bell(u: Rows) -> Rows:
    return np.exp(-np.square(np.clip(u, -30.0, 30.0)) / 2.0)


def _slow(u: Rows) -> Rows:
    return np.tanh(np.log1p(u**2) / 4.0)


SHAPES = (
    Shape("tanh(u)", np.tanh, lambda u: 1.0 - np.tanh(u) ** 2),
    Shape("exp(-u^2/2)", _bell, lambda u: -np.clip(u, -30.0, 30.0) * _bell(u)),
    Shape(
        "u exp(-u^2/2)",
        lambda u: np.clip(u, -30.0, 30.0) * _bell(u),
        lambda u: (1.0 - np.clip(u, -30.0, 30.0) ** 2) * _bell(u),
    ),
    # The one that looks into heavy tails.
    Shape("tanh(log(1+u^2)/4)", _slow, lambda u: (1.0 - _slow(u) ** 2) * u / (2.0 * (1.0 + u**2))),
)


class View(NamedTuple):
    """One number u of a standardised value; `push` takes a derivative of z along."""

    name: str
    value: Callable[[Standardised], Rows]
    push: Callable[[Standardised, Standardised], Rows]


def views(dimension: int, generator: np.random.Generator) -> tuple[View, ...]:
    """The identity for scalars; coordinates, random projections, the squared radius for vectors."""
    if dimension == 1:
        return (View("u = z", lambda z: z[..., 0], lambda z, dz: dz[..., 0]),)
    directions = generator.normal(size=(3, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    axes = np.eye(dimension)[: min(dimension, 8)]
    return (
        *(_projection(f"u = z[{number}]", axis) for number, axis in enumerate(axes)),
        *(_projection("u = a random projection of z", direction) for direction in directions),
        View(
            "u = |z|^2/n - 1",
            lambda z: np.mean(z**2, axis=-1) - 1.0,
            lambda z, dz: 2.0 * np.mean(z * dz, axis=-1),
        ),
    )


def _projection(name: str, direction: Float[np.ndarray, " dimension"]) -> View:
    return View(name, lambda z: z @ direction, lambda z, dz: dz @ direction)


def values_of(seen: tuple[View, ...], z: Standardised) -> Iterator[Rows]:
    """The features one after the other, each (rows, elements)."""
    bounded = np.clip(z, -_LARGE, _LARGE)
    for view in seen:
        u = view.value(bounded)
        for shape in SHAPES:
            yield shape.value(u)


def slopes_of(seen: tuple[View, ...], z: Standardised, dz: Standardised) -> Iterator[Rows]:
    """Derivatives of the features along dz, each (rows, elements)."""
    bounded = np.clip(z, -_LARGE, _LARGE)
    for view in seen:
        u, du = view.value(bounded), view.push(bounded, dz)
        for shape in SHAPES:
            slope = shape.slope(u)
            # Far out a vanishing slope meets an overflowing derivative.
            with np.errstate(invalid="ignore", over="ignore"):
                yield np.where(slope == 0.0, 0.0, slope * du)


def names_of(seen: tuple[View, ...]) -> list[str]:
    """What the features are called in a report, in the order of `values_of`."""
    return [f"{shape.name}, {view.name}" for view in seen for shape in SHAPES]
