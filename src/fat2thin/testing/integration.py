"""Integrals over the real line of densities that may be sharp, heavy-tailed or truncated.

The line is cut at `edges` into regions: those between edges and the two outer ones. Each has a
coordinate c in which algebraic tails and ends become exponentials:

    between edges, towards a finite end of the support      x = end +- exp(+-c)
    between edges otherwise                                 x = centre + core sinh(c)
    beyond the edges, towards a finite end                  x = end +- gap exp(-c), c from 0
    beyond the edges, towards infinity                      x = edge +- gap (exp(c) - 1), c from 0

Regions consist of pieces with Gauss-Legendre nodes. The least resolved pieces are halved until all
are resolved, so a density far narrower or wider than the edges suggest is not missed. Densities and
weights are multiplied as logarithms in float64.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp

from fat2thin.testing.study import Elements
from fat2thin.testing.subject import Parameters, Subject

Sides = Float[np.ndarray, "2 elements"]
Nodes = Float[np.ndarray, "nodes elements"]

_SIGNS = np.array([[-1.0], [1.0]])
# exp(-690) is smaller than any distance the quadrature has to resolve.
_DEPTH = 690.0
# Fractions of an interval that are tried together, and how often the interval is subdivided.
_FIRST_SEARCH = np.linspace(0.0, 1.0, 129)
_LATER_SEARCH = np.linspace(0.0, 1.0, 32)
_SEARCHES = 10
# A density that ends within exp(25) cores has an end; one that ends later leaves the float range.
_FAR = 25.0
_ORDER = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(_ORDER)
# Projections on the last two Legendre polynomials, which measure what is not resolved.
_UNRESOLVED = (
    np.polynomial.legendre.legvander(_NODES, _ORDER - 1)[:, -2:]
    * _WEIGHTS[:, None]
    * (np.arange(_ORDER - 2, _ORDER) + 0.5)
)
_SPLIT = 16
_ROUNDS = 40
_GOAL = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
# A tail |x|^-(1 + a) with a below this cannot be distinguished from a divergent one.
SLOWEST_DECAY = 0.004
_OUTER_CUTS = 12


@dataclass(frozen=True)
class Line:
    """A density on the real line, cut into regions 0 to len(edges) for each batch element.

    `parameters` replace the subject's own if given.
    """

    subject: Subject
    parameters: Parameters | None
    edges: Float[np.ndarray, "edges elements"]
    """Ascending cuts within the ends."""
    ends: Sides
    """Ends of the support; infinite if there is none."""
    centre: Elements
    core: Elements
    """Width of the density around the centre."""
    reach: Sides
    """Last coordinates of the two outer regions."""

    @property
    def bounded(self) -> Bool[np.ndarray, "2 elements"]:
        """Whether the support has a finite end on either side."""
        return np.isfinite(self.ends)

    @property
    def gap(self) -> Sides:
        """Unit of length of the two outer regions."""
        outermost = self.edges[[0, -1]]
        outwards = np.abs(outermost - self.centre) + self.core
        return np.where(self.bounded, np.abs(self.ends - outermost), outwards)

    def inner_coordinates(self) -> tuple[Nodes, Nodes]:
        """Return the left and right coordinates of the regions between edges."""
        side, towards_end = self._towards_end(np.arange(1, len(self.edges))[:, None])
        end = np.where(side == 0, *self.ends)
        coordinates = []
        for value in (self.edges[:-1], self.edges[1:]):
            with np.errstate(divide="ignore", invalid="ignore"):
                distance = np.maximum(np.log(np.abs(value - end)), -_DEPTH)
            spread = np.arcsinh((value - self.centre) / self.core)
            coordinates.append(np.where(towards_end, (1 - 2 * side) * distance, spread))
        return coordinates[0], coordinates[1]

    def intervals(self) -> tuple[Float[np.ndarray, "r elements"], Float[np.ndarray, "r elements"]]:
        """Return the first and last coordinate of every region, the outer ones included."""
        left, right = self.inner_coordinates()
        nought = np.zeros_like(self.reach[:1])
        stop = np.concatenate([self.reach[:1], right, self.reach[1:]])
        return np.concatenate([nought, left, nought]), stop

    def place(
        self, region: Int[np.ndarray, "*n elements"], coordinate: Float[np.ndarray, "*n elements"]
    ) -> tuple[Float[np.ndarray, "*n elements"], Float[np.ndarray, "*n elements"]]:
        """Return x and log |dx/dc| of coordinates."""
        side, towards_end = self._towards_end(region)
        end, inwards = np.where(side == 0, *self.ends), 1 - 2 * side
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            near_end = end + inwards * np.exp(inwards * coordinate)
            x = np.where(towards_end, near_end, self.centre + self.core * np.sinh(coordinate))
            log_width = np.log(self.core) + np.log(np.cosh(coordinate))
            slope = np.where(towards_end, inwards * coordinate, log_width)
            sides = zip(self.edges[[0, -1]], self.gap, self.ends, self.bounded, strict=True)
            for number, (edge, gap, end, bounded) in enumerate(sides):
                here, sign = region == number * len(self.edges), 2.0 * number - 1.0
                outwards = edge + sign * gap * np.expm1(coordinate)
                outer = np.where(bounded, end - sign * gap * np.exp(-coordinate), outwards)
                x = np.where(here, outer, x)
                stretch = np.where(bounded, -coordinate, coordinate)
                slope = np.where(here, np.log(gap) + stretch, slope)
        return x, slope

    def _towards_end(self, region: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the side of the centre (0 or 1) of inner regions, and whether it has an end."""
        right = np.clip(region, 1, len(self.edges) - 1).reshape(-1, region.shape[-1])
        right = np.broadcast_to(right, (len(right), len(self.centre)))
        edge = np.take_along_axis(self.edges, right, 0)
        edge = edge.reshape(*region.shape[:-1], len(self.centre))
        side = np.where(edge <= self.centre, 0, 1)
        return side, np.where(side == 0, *self.bounded)

    def inside(self, x: Float[np.ndarray, "*n elements"]) -> Float[np.ndarray, "*n elements"]:
        """Round values to the dtype and clip them to one step inside the ends of the support."""
        step = np.array([[1.0], [-1.0]]) * self.subject.spacing(self.ends)
        first, last = np.where(self.bounded, self.ends + step, self.ends)
        return self.subject.rounded(np.clip(x, np.minimum(first, last), last))


def make_line(
    subject: Subject,
    edges: Float[np.ndarray, "edges elements"],
    centre: Elements,
    core: Elements,
    parameters: Parameters | None = None,
) -> Line:
    """Return the line cut at `edges`, for the subject's own parameters or others.

    `core` is an estimate of the width of the density around `centre`. Where no end is declared, the
    line ends where the log density is last finite: at an end of the support, or at the limit of the
    floating-point range.
    """
    ends = subject.ends(parameters)
    known = np.isfinite(ends)
    farthest = np.log(float(subject.limits.max)) - 2.0 - np.maximum(np.log(core), 0.0)
    # Find the largest c with a finite log density at centre -+ core sinh(c), by subdivision.
    inside, outside = np.zeros(known.shape), np.broadcast_to(farthest, known.shape)
    for shares in (_FIRST_SEARCH, *(_LATER_SEARCH,) * _SEARCHES):
        tries = inside + shares[:, None, None] * (outside - inside)
        with np.errstate(over="ignore"):
            x = np.where(known, centre, centre + _SIGNS * core * np.sinh(tries))
        answer = subject.log_prob(subject.rounded(x).reshape(-1, len(centre)), parameters)
        good = np.isfinite(answer).reshape(tries.shape)
        # The last finite value and the one after it; if none is finite, the outermost value.
        place = len(shares) - 1 - np.where(good.any(0), np.argmax(good[::-1], axis=0), 0)
        after = np.minimum(place + 1, len(shares) - 1)
        inside = np.take_along_axis(tries, place[None], 0)[0]
        outside = np.take_along_axis(tries, after[None], 0)[0]
    last = subject.rounded(centre + _SIGNS * core * np.sinh(inside))
    ends = np.where(known | (inside > _FAR), ends, last)
    edges = np.clip(edges, ends[0], ends[1])
    line = Line(subject, parameters, edges, ends, centre, core, np.full_like(ends, _DEPTH))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        outwards = np.log1p(np.abs(last - line.edges[[0, -1]]) / line.gap)
    return replace(line, reach=np.where(line.bounded, _DEPTH, np.maximum(outwards, 1e-6)))


class _Pieces(NamedTuple):
    """Pieces of the regions and their nodes; the first axis of every array is the piece."""

    region: Int[np.ndarray, "pieces elements"]
    left: Float[np.ndarray, "pieces elements"]
    right: Float[np.ndarray, "pieces elements"]
    log_error: Float[np.ndarray, "pieces elements"]
    coordinate: Float[np.ndarray, "pieces order elements"]
    x: Float[np.ndarray, "pieces order elements"]
    log_weight: Float[np.ndarray, "pieces order elements"]
    log_density: Float[np.ndarray, "pieces order elements"]
    noise: Float[np.ndarray, "pieces order elements"]


@dataclass(frozen=True)
class Integral:
    """Nodes, weights and log densities: everything an integral over a density needs."""

    line: Line
    region: Int[np.ndarray, "nodes elements"]
    coordinate: Nodes
    x: Nodes
    log_weight: Nodes
    log_density: Nodes
    noise: Nodes
    """Change of the log density to the next number of the dtype, which cannot be resolved."""

    @property
    def log_share(self) -> Nodes:
        """Log of weight times density."""
        return self.log_weight + self.log_density

    @property
    def mass(self) -> Elements:
        """The integral of the density; infinite where the tail does not decay."""
        return np.exp(self.log_share).sum(0) + self.remainder(self.log_share).sum(0)

    def region_masses(self) -> Float[np.ndarray, "regions elements"]:
        """Return the integral of the density over each region, without divergent tails."""
        masses = self._by_region(np.exp(self.log_share))
        masses[[0, -1]] += np.nan_to_num(self.remainder(self.log_share), posinf=0.0)
        return masses

    def region_noise(self) -> Float[np.ndarray, "regions elements"]:
        """Return the part of each region's mass that the dtype cannot resolve."""
        return self._by_region(np.exp(self.log_share) * np.minimum(self.noise, 1.0))

    def _by_region(self, share: Nodes) -> Float[np.ndarray, "regions elements"]:
        regions = range(len(self.line.edges) + 1)
        return np.stack([np.where(self.region == r, share, 0.0).sum(0) for r in regions])

    def mean_of(self, values: Nodes) -> Elements:
        """Return the expectation under the density divided by its mass."""
        share = np.exp(self.log_share)
        with np.errstate(invalid="ignore"):
            return np.where(share == 0.0, 0.0, share * values).sum(0) / share.sum(0)

    def noise_of(self, values: Nodes) -> Elements:
        """Return the part of E|values| that the dtype cannot resolve."""
        return self.mean_of(np.abs(values) * np.minimum(self.noise, 1.0))

    @property
    def unresolved(self) -> Elements:
        """Bound on the relative error of the mass from what the dtype cannot resolve."""
        return 4.0 * self.noise_of(np.ones_like(self.x))

    def decay(self, log_integrand: Nodes) -> tuple[Sides, Sides]:
        """Return the log integral over the last quarter of each unbounded tail, and its decay.

        The decay is the log of the ratio of the third to the last quarter per unit of coordinate
        (an e-fold of x). It is the exponent a of an integrand |x|^-(1 + a); the integral diverges
        if it is 0 or below.
        """
        quarters = np.empty((2, 2, len(self.line.centre)))
        for side, number in enumerate((0, len(self.line.edges))):
            share = self.coordinate / self.line.reach[side]
            for quarter, start in enumerate((0.5, 0.75)):
                inside = (self.region == number) & (share > start) & (share < start + 0.25)
                quarters[side, quarter] = _log_sum(np.where(inside, log_integrand, -np.inf))
        last = np.where(self.line.bounded, -np.inf, quarters[:, 1])
        with np.errstate(invalid="ignore"):
            rate = (quarters[:, 0] - last) * 4.0 / self.line.reach
        return last, np.where(np.isneginf(last), np.inf, rate)

    def remainder(self, log_integrand: Nodes) -> Sides:
        """Return the integral beyond the last nodes of each tail; inf where it does not decay."""
        last, rate = self.decay(log_integrand)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            beyond = np.exp(last) / np.expm1(rate * self.line.reach / 4.0)
        beyond = np.where(rate > SLOWEST_DECAY, beyond, np.inf)
        return np.where(last > _log_sum(log_integrand) - 40.0, beyond, 0.0)

    def moved(self, line: Line) -> "Integral":
        """Return the integral of a nearby density on a nearby line, with the same pieces."""

        def of_nodes(values: Float[np.ndarray, "regions elements"]) -> Nodes:
            return np.take_along_axis(values, self.region, 0)

        (old_start, old_stop), (start, stop) = self.line.intervals(), line.intervals()
        with np.errstate(divide="ignore", invalid="ignore"):
            stretch = np.nan_to_num((stop - start) / (old_stop - old_start), posinf=0.0)
            log_stretch = of_nodes(np.log(stretch))
            _, old_slope = self.line.place(self.region, self.coordinate)
            log_length = np.nan_to_num(self.log_weight - old_slope, nan=-np.inf, neginf=-np.inf)
        coordinate = of_nodes(start) + of_nodes(stretch) * (self.coordinate - of_nodes(old_start))
        exact, slope = line.place(self.region, coordinate)
        x, log_weight = line.inside(exact), slope + log_length + log_stretch
        density = line.subject.log_prob(x, line.parameters)
        return Integral(line, self.region, coordinate, x, log_weight, density, self.noise)


def _log_sum(values: Float[np.ndarray, "rows elements"]) -> Elements:
    with np.errstate(divide="ignore"):
        return np.asarray(logsumexp(values, axis=0))


def integrate(line: Line) -> Integral:
    """Return an integral whose nodes resolve the density of every element."""
    pieces = _evaluated(line, *_first_cuts(line))
    goal = np.log(_GOAL.get(line.subject.dtype, 1e-3))
    for _ in range(_ROUNDS):
        log_share = pieces.log_weight + pieces.log_density
        total = _log_sum(log_share.reshape(-1, line.subject.elements))
        if np.all(_log_sum(pieces.log_error) <= total + goal):
            break
        worst = np.argpartition(-pieces.log_error, _SPLIT, axis=0)[:_SPLIT]
        region, left, right = (np.take_along_axis(part, worst, 0) for part in pieces[:3])
        middle = (left + right) / 2.0
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
        halves = _evaluated(line, np.concatenate([region, region]), left, right)
        pieces = _Pieces(*(_exchanged(o, n, worst) for o, n in zip(pieces, halves, strict=True)))
    shape = pieces.x.shape
    nodes = {name: getattr(pieces, name).reshape(-1, shape[-1]) for name in pieces._fields[4:]}
    region = np.broadcast_to(pieces.region[:, None], shape).reshape(-1, shape[-1])
    return Integral(line=line, region=region, **nodes)


def _exchanged(old: np.ndarray, new: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Write the first half of `new` to `places` of `old` and append the second half."""
    index = places if old.ndim == 2 else places[:, None]
    result = np.concatenate([old, new[len(places) :]])
    np.put_along_axis(result, index, new[: len(places)], 0)
    return result


def _first_cuts(line: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return region, left and right coordinates of the initial pieces."""
    inner_left, inner_right = line.inner_coordinates()
    with np.errstate(divide="ignore", over="ignore"):
        first = np.minimum(line.core / line.gap, line.reach / 64.0)
    # Geometric spacing from the width of the core; the last two quarters show how a tail decays.
    geometric = np.geomspace(first, line.reach / 2.0, _OUTER_CUTS)
    ends = np.stack([0.75 * line.reach, line.reach])
    cuts = np.concatenate([np.zeros_like(geometric[:1]), geometric, ends])
    lower, upper = cuts[:, 0], cuts[:, 1]
    left = np.concatenate([lower[:-1], inner_left, upper[:-1]])
    right = np.concatenate([lower[1:], inner_right, upper[1:]])
    last, outer = len(line.edges), len(lower) - 1
    region = np.concatenate([np.zeros(outer, int), np.arange(1, last), np.full(outer, last)])
    return np.broadcast_to(region[:, None], left.shape), left, right


def _evaluated(line: Line, region: np.ndarray, left: np.ndarray, right: np.ndarray) -> _Pieces:
    half = (right - left)[:, None] / 2.0
    coordinate = (left + right)[:, None] / 2.0 + half * _NODES[:, None]
    exact, slope = line.place(np.broadcast_to(region[:, None], coordinate.shape), coordinate)
    x = line.inside(exact)
    inwards = line.subject.rounded(x - np.sign(x - line.centre) * line.subject.spacing(x))
    both = np.concatenate([x, inwards]).reshape(-1, x.shape[-1])
    log_density = line.subject.log_prob(both, line.parameters)
    here, next_to_it = np.split(log_density.reshape(-1, *x.shape[1:]), 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weight = slope + np.log(half * _WEIGHTS[:, None])
        noise = np.nan_to_num(np.abs(here - next_to_it), nan=0.0, posinf=1.0)
        # Closer to an end than the dtype resolves, the density is unknown.
        for end in line.ends:
            lost = np.abs(x - exact) / np.abs(exact - end)
            noise = np.maximum(noise, np.nan_to_num(lost, nan=1.0, posinf=1.0))
        log_integrand = slope + np.log(half) + here
        top = log_integrand.max(1, keepdims=True)
        scaled = np.exp(np.where(np.isfinite(top), log_integrand - top, -np.inf))
        unresolved = np.abs(np.einsum("pne,nk->pke", scaled, _UNRESOLVED)).sum(1)
        log_error = np.nan_to_num(top[:, 0] + np.log(unresolved), nan=-np.inf)
    return _Pieces(region, left, right, log_error, coordinate, x, log_weight, here, noise)
