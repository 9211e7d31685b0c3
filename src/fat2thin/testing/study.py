"""The base class of scalar and vector studies, and the measurements that a check returns.

Expectations are compared through features: a value is standardised to z, a view maps it to one
number u (z itself for a scalar; projections and the squared radius for a vector), and a bounded
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

# Step of a finite difference, in units of the parameter's natural length.
STEP = 2.0**-6
# Exceptions that mean that the distribution lacks a method.
NOT_OFFERED = (NotImplementedError, AttributeError, ImportError)
_LARGE = 1e100

Elements = Float[np.ndarray, " elements"]
Rows = Float[np.ndarray, "rows elements"]
Standardised = Float[np.ndarray, "rows elements dimension"]
Statistics = Float[np.ndarray, "features elements"]


class Measurement(NamedTuple):
    """Errors and tolerances, with one row per statistic and one column per batch element.

    A single row may omit its axis, and the tolerance is broadcast. An error fails if it is NaN or
    above its tolerance.
    """

    error: Float[np.ndarray, "*statistics elements"]
    tolerance: Float[np.ndarray, "..."] | float
    describe: Callable[[int, int], str]
    """Returns what was measured, given row and element."""


def named(rows: Sequence[str]) -> Callable[[int, int], str]:
    """Return a function that describes each row of a measurement by its name."""
    return lambda row, _: rows[row]


def numbered(text: str, *values: np.ndarray) -> Callable[[int, int], str]:
    """Return a function that formats `text` with the values of a row and element."""
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
    # The only shape that is sensitive to heavy tails.
    Shape("tanh(log(1+u^2)/4)", _slow, lambda u: (1.0 - _slow(u) ** 2) * u / (2.0 * (1.0 + u**2))),
)


class View(NamedTuple):
    """A map of a standardised value z to one number u; `push` maps derivatives of z to u."""

    name: str
    value: Callable[[Standardised], Rows]
    push: Callable[[Standardised, Standardised], Rows]


def views(dimension: int, generator: np.random.Generator) -> tuple[View, ...]:
    """Return the identity for scalars; coordinates, projections and squared radius for vectors."""
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
    """Derivatives of the features' expectations by finite differences."""

    value: Statistics
    standard_error: Statistics
    slack: Statistics
    """Allowance for the errors of discretisation and rounding."""


def derivative(at: Callable[[int], Rows]) -> tuple[Rows, Rows]:
    """Return the derivative of at(offset), extrapolated from two steps, and their difference."""
    near = (at(1) - at(-1)) / (2.0 * STEP)
    far = (at(2) - at(-2)) / (4.0 * STEP)
    return (4.0 * near - far) / 3.0, near - far


@dataclass(frozen=True)
class Study(ABC):
    """A distribution, its centre and spread, and samples to test."""

    subject: Subject
    keys: list[Key[Array, ""]]
    """Random keys of the checks that draw their own samples."""
    second: Values
    """The samples to test, independent of those that determined centre and spread."""
    centre: Float[np.ndarray, "elements *dimension"]
    spread: Float[np.ndarray, "elements *dimension"]
    views: tuple[View, ...]

    @abstractmethod
    def outside(self) -> Values:
        """Return values just outside and far outside a bounded support."""

    @abstractmethod
    def edge_points(self) -> Values:
        """Return values where log_prob or its gradient may fail; the last two are far away."""

    @abstractmethod
    def typical(self, count: int) -> Values:
        """Return values where most of the mass is."""

    @abstractmethod
    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Return finite differences of the features' expectations.

        `at(offset)` returns the parameters shifted by `offset` steps.
        """

    def threshold(self, statistics: int) -> float:
        """Return how many standard errors to allow so that chance rarely fails any statistic."""
        return float(stats.norm.isf(self.subject.false_alarm / (2.0 * statistics)))

    def near_end(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Return whether values are so close to a known end that rounding dominates."""
        return np.zeros(values.shape[:2], bool)

    def inwards(self, values: Values) -> Values:
        """Return the next representable values towards the centre."""
        step = np.sign(values - self.centre) * self.subject.spacing(values)
        return self.subject.rounded(values - step)

    def standardise(self, values: Values) -> Standardised:
        """Return the distance from the centre in units of the spread."""
        return self.standardise_slope(values - self.centre)

    def standardise_slope(self, slopes: Values) -> Standardised:
        """Return derivatives of values divided by the spread."""
        scaled = slopes / self.spread
        return scaled[..., None] if self.subject.scalar else scaled

    def features(self, values: Values) -> Iterator[Rows]:
        """Yield the features of values, each with shape (rows, elements)."""
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
                # In the far tails the slope underflows while the derivative overflows.
                with np.errstate(invalid="ignore", over="ignore"):
                    yield np.where(slope == 0.0, 0.0, slope * du)

    @property
    def feature_names(self) -> list[str]:
        """Names of the features in the order of `features`."""
        return [f"{shape.name}, {view.name}" for view in self.views for shape in SHAPES]
