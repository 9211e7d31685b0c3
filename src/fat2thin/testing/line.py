"""The real line, cut into regions in which densities are easy to integrate.

Each region between `edges`, and each of the two beyond them, has a coordinate c in which
algebraic tails and ends are exponentials:

    between edges, towards a finite end of the support      x = end +- exp(+-c)
    between edges otherwise                                 x = centre + core sinh(c)
    beyond the edges, towards a finite end                  x = end +- gap exp(-c), c from 0
    beyond the edges, towards infinity                      x = edge +- gap (exp(c) - 1), c from 0
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from fat2thin.testing.subject import Subject

Elements = Float[np.ndarray, " elements"]
Sides = Float[np.ndarray, "2 elements"]
Nodes = Float[np.ndarray, "nodes elements"]
LogDensity = Callable[[Nodes], Nodes]

_SIGNS = np.array([[-1.0], [1.0]])
# The distance exp(-690) is below every number but zero.
_DEPTH = 690.0
# Shares of an interval that are tried at once, and how often it is cut down.
_FIRST_SEARCH = np.linspace(0.0, 1.0, 129)
_LATER_SEARCH = np.linspace(0.0, 1.0, 32)
_SEARCHES = 10
# A density that ends within exp(25) cores has an end; one that ends later leaves the float range.
_FAR = 25.0


@dataclass(frozen=True)
class Line:
    """The real line of each element, cut into regions 0 to len(edges).

    `edges` ascend within the `ends` of the support; `reach` is where the coordinates of the two
    outer regions stop.
    """

    edges: Float[np.ndarray, "edges elements"]
    ends: Sides
    centre: Elements
    core: Elements
    reach: Sides

    @property
    def bounded(self) -> Bool[np.ndarray, "2 elements"]:
        """Whether the support has a finite end on either side."""
        return np.isfinite(self.ends)

    @property
    def gap(self) -> Sides:
        """Unit of length of the two outer regions."""
        outermost = self.edges[[0, -1]]
        return np.where(
            self.bounded,
            np.abs(self.ends - outermost),
            np.abs(outermost - self.centre) + self.core,
        )

    def inner_coordinates(self) -> tuple[Nodes, Nodes]:
        """Left and right coordinates of the regions between edges."""
        left, right = self.edges[:-1], self.edges[1:]
        side, towards_end = self._towards_end(np.arange(1, len(self.edges))[:, None])
        end = np.where(side == 0, self.ends[0], self.ends[1])
        coordinates = []
        for value in (left, right):
            with np.errstate(divide="ignore", invalid="ignore"):
                distance = np.maximum(np.log(np.abs(value - end)), -_DEPTH)
            spread = np.arcsinh((value - self.centre) / self.core)
            coordinates.append(np.where(towards_end, (1 - 2 * side) * distance, spread))
        return coordinates[0], coordinates[1]

    def intervals(self) -> tuple[Float[np.ndarray, "r elements"], Float[np.ndarray, "r elements"]]:
        """First and last coordinate of every region, the outer ones included."""
        left, right = self.inner_coordinates()
        nought = np.zeros_like(self.reach[:1])
        return (
            np.concatenate([nought, left, nought]),
            np.concatenate([self.reach[:1], right, self.reach[1:]]),
        )

    def place(
        self, region: Int[np.ndarray, "*n elements"], coordinate: Float[np.ndarray, "*n elements"]
    ) -> tuple[Float[np.ndarray, "*n elements"], Float[np.ndarray, "*n elements"]]:
        """x and log |dx/dc| of coordinates."""
        side, towards_end = self._towards_end(region)
        end, inwards = np.where(side == 0, self.ends[0], self.ends[1]), 1 - 2 * side
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            x = np.where(
                towards_end,
                end + inwards * np.exp(inwards * coordinate),
                self.centre + self.core * np.sinh(coordinate),
            )
            slope = np.where(
                towards_end, inwards * coordinate, np.log(self.core) + np.log(np.cosh(coordinate))
            )
            for number, edge, gap, end, bounded, sign in zip(
                (0, len(self.edges)),
                self.edges[[0, -1]],
                self.gap,
                self.ends,
                self.bounded,
                (-1.0, 1.0),
                strict=True,
            ):
                here = region == number
                outwards = edge + sign * gap * np.expm1(coordinate)
                outer = np.where(bounded, end - sign * gap * np.exp(-coordinate), outwards)
                x = np.where(here, outer, x)
                stretch = np.where(bounded, -coordinate, coordinate)
                slope = np.where(here, np.log(gap) + stretch, slope)
        return x, slope

    def _towards_end(self, region: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """On which side of the centre an inner region is (0 or 1), and whether it has an end."""
        right = np.clip(region, 1, len(self.edges) - 1).reshape(-1, region.shape[-1])
        right = np.broadcast_to(right, (len(right), len(self.centre)))
        edge = np.take_along_axis(self.edges, right, 0)
        edge = edge.reshape(*region.shape[:-1], len(self.centre))
        side = np.where(edge <= self.centre, 0, 1)
        return side, np.where(side == 0, self.bounded[0], self.bounded[1])


def make_line(
    subject: Subject,
    edges: Float[np.ndarray, "edges elements"],
    centre: Elements,
    core: Elements,
    ends: Sides,
    log_density: LogDensity,
) -> Line:
    """The line cut at edges.

    `core` is the width of the density around `centre`, as far as it is known. Where no end is
    declared the density is asked how far it is finite: that is an end of the support, or where
    it leaves the range of numbers.
    """
    farthest = np.log(float(subject.limits.max)) - 2.0 - np.maximum(np.log(core), 0.0)
    finite_up_to = _last_finite(subject, centre, core, farthest, np.isfinite(ends), log_density)
    last = subject.rounded(centre + _SIGNS * core * np.sinh(finite_up_to))
    ends = np.where(np.isfinite(ends) | (finite_up_to > _FAR), ends, last)
    edges = np.clip(edges, ends[0], ends[1])
    line = Line(edges, ends, centre, core, np.full_like(ends, _DEPTH))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        outwards = np.log1p(np.abs(last - line.edges[[0, -1]]) / line.gap)
    reach = np.where(line.bounded, _DEPTH, np.maximum(outwards, 1e-6))
    return Line(edges, ends, centre, core, reach)


def _last_finite(
    subject: Subject,
    centre: Elements,
    core: Elements,
    farthest: Elements,
    known: Bool[np.ndarray, "2 elements"],
    log_density: LogDensity,
) -> Sides:
    """The largest c with a finite log density at centre -+ core sinh(c)."""

    def finite(coordinate: Float[np.ndarray, "tries 2 elements"]) -> np.ndarray:
        with np.errstate(over="ignore"):
            x = np.where(known, centre, centre + _SIGNS * core * np.sinh(coordinate))
        answer = log_density(subject.rounded(x).reshape(-1, len(centre)))
        return np.isfinite(answer).reshape(coordinate.shape)

    inside, outside = np.zeros(known.shape), np.broadcast_to(farthest, known.shape)
    for shares in (_FIRST_SEARCH, *(_LATER_SEARCH,) * _SEARCHES):
        tries = inside + shares[:, None, None] * (outside - inside)
        good = finite(tries)
        # The last value that is finite and the one after it; if none is, nothing is known.
        last = len(shares) - 1 - np.where(good.any(0), np.argmax(good[::-1], axis=0), 0)
        after = np.minimum(last + 1, len(shares) - 1)
        inside = np.take_along_axis(tries, last[None], 0)[0]
        outside = np.take_along_axis(tries, after[None], 0)[0]
    return inside
