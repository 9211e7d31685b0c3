"""What scalar and vector checks share: a study of one distribution, and what a check returns.

Expectations are compared through features: a value is standardised to z, a view makes one number
u of it (z itself for a scalar; projections and the squared radius for a vector), and a bounded
smooth function is applied to u.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy import stats

from fat2thin.testing.subject import Parameters, Subject, Values

# Step of a difference quotient, in units of the parameter's natural length.
STEP = 2.0**-6
# What a distribution raises for a method it does not have.
NOT_OFFERED = (NotImplementedError, AttributeError, ImportError)
_LARGE = 1e100

Elements = Float[np.ndarray, " elements"]
Rows = Float[np.ndarray, "rows elements"]
Standardised = Float[np.ndarray, "rows elements dimension"]
Statistics = Float[np.ndarray, "features elements"]


class Measurement(NamedTuple):
    """Errors and their tolerances, one row per statistic and one column per batch element.

    One row may be given without its axis, and the tolerance is broadcast. An error above its
    tolerance fails, and so does NaN. `describe(row, element)` names what was measured.
    """

    error: Float[np.ndarray, "*statistics elements"]
    tolerance: Float[np.ndarray, "..."] | float
    describe: Callable[[int, int], str]


def named(rows: Sequence[str]) -> Callable[[int, int], str]:
    """Describe each row of a measurement by its name."""
    return lambda row, _: rows[row]


def numbered(text: str, *values: np.ndarray) -> Callable[[int, int], str]:
    """Describe each row and element by a text with its numbers; one row may lack its axis."""
    tables = [np.atleast_2d(value) for value in values]
    return lambda row, element: text.format(*(table[row, element] for table in tables))


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
    # The only one that sees heavy tails.
    Shape("tanh(log(1+u^2)/4)", _slow, lambda u: (1.0 - _slow(u) ** 2) * u / (2.0 * (1.0 + u**2))),
)


class View(NamedTuple):
    """One number u of a standardised value; `push` maps a derivative of z to one of u."""

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


class Difference(NamedTuple):
    """Derivatives of the features' expectations, standard errors, and other possible error."""

    value: Statistics
    standard_error: Statistics
    slack: Statistics


def derivative(at: Callable[[int], Rows]) -> tuple[Rows, Rows]:
    """Return the derivative of at(offset), extrapolated from two steps, and how they differ."""
    near = (at(1) - at(-1)) / (2.0 * STEP)
    far = (at(2) - at(-2)) / (4.0 * STEP)
    return (4.0 * near - far) / 3.0, near - far


@dataclass(frozen=True)
class Study(ABC):
    """A distribution, samples of it to be tested, and where it lies."""

    subject: Subject
    keys: list[Key[Array, ""]]  # for the checks that draw samples of their own
    second: Values  # the samples to be tested, independent of those that placed the study
    centre: Float[np.ndarray, "elements *dimension"]
    spread: Float[np.ndarray, "elements *dimension"]
    views: tuple[View, ...]

    @abstractmethod
    def outside(self) -> Values:
        """Return values just outside and far outside a bounded support."""

    @abstractmethod
    def edge_points(self) -> Values:
        """Return values where a density or its gradient may break; the last two are far away."""

    @abstractmethod
    def typical(self, count: int) -> Values:
        """Return values where most of the mass is."""

    @abstractmethod
    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Return the difference quotient of the features' expectations.

        `at(offset)` gives the parameters moved by `offset` steps.
        """

    def threshold(self, statistics: int) -> float:
        """Return the standard errors that chance alone exceeds in any of `statistics`."""
        return float(stats.norm.isf(self.subject.false_alarm / (2.0 * statistics)))

    def near_end(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Return whether values are so near a known end that rounding decides their density."""
        return np.zeros(values.shape[:2], bool)

    def inwards(self, values: Values) -> Values:
        """Return the next representable values towards the centre."""
        step = np.sign(values - self.centre) * self.subject.spacing(values)
        return self.subject.rounded(values - step)

    def standardise(self, values: Values) -> Standardised:
        """Return the distance from the centre in units of the spread."""
        return self.standardise_slope(values - self.centre)

    def standardise_slope(self, slopes: Values) -> Standardised:
        """Return derivatives of values in units of the spread."""
        scaled = slopes / self.spread
        return scaled[..., None] if self.subject.scalar else scaled

    def features(self, values: Values) -> Iterator[Rows]:
        """Yield the features of values one after the other, each (rows, elements)."""
        z = np.clip(self.standardise(values), -_LARGE, _LARGE)
        for view in self.views:
            u = view.value(z)
            for shape in SHAPES:
                yield shape.value(u)

    def feature_slopes(self, values: Values, slopes: Values) -> Iterator[Rows]:
        """Yield the derivatives of the features along `slopes`, each (rows, elements)."""
        z = np.clip(self.standardise(values), -_LARGE, _LARGE)
        dz = self.standardise_slope(slopes)
        for view in self.views:
            u, du = view.value(z), view.push(z, dz)
            for shape in SHAPES:
                slope = shape.slope(u)
                # Far out a vanishing slope meets an overflowing derivative.
                with np.errstate(invalid="ignore", over="ignore"):
                    yield np.where(slope == 0.0, 0.0, slope * du)

    @property
    def feature_names(self) -> list[str]:
        """Names of the features for a report, in the order of `features`."""
        return [f"{shape.name}, {view.name}" for view in self.views for shape in SHAPES]
