"""Integrals over the real line of densities that may be sharp, heavy-tailed or cut off.

Pieces of the line carry Gauss-Legendre nodes, and those whose integrand is least resolved are
halved until all are resolved: so neither a density far narrower than the edges of the line
suggest nor one far wider is missed. Densities and weights meet as logarithms in float64.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from fat2thin.testing.line import Elements, Line, LogDensity, Nodes, Sides
from fat2thin.testing.subject import Subject

_ORDER = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(_ORDER)
# Projections on the last two Legendre polynomials: what is found there is not resolved.
_UNRESOLVED = (
    np.polynomial.legendre.legvander(_NODES, _ORDER - 1)[:, -2:]
    * _WEIGHTS[:, None]
    * (np.arange(_ORDER - 2, _ORDER) + 0.5)
)
_SPLIT = 16
_ROUNDS = 40
_GOAL = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-12}
# A tail |x|^-(1 + a) with a below this cannot be told from one that does not converge.
SLOWEST_DECAY = 0.004
_OUTER_CUTS = 12


class _Pieces(NamedTuple):
    """Pieces of the coordinate and their nodes; the first axis of every array is the piece."""

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
    """Nodes of one density: everything an integral over it needs.

    `noise` is how much the log density changes to the next number of the dtype: what neither a
    node nor the density can resolve.
    """

    line: Line
    region: Int[np.ndarray, "nodes elements"]
    coordinate: Nodes
    x: Nodes
    log_weight: Nodes
    log_density: Nodes
    noise: Nodes

    @property
    def log_share(self) -> Nodes:
        """log of weight times density."""
        return self.log_weight + self.log_density

    @property
    def mass(self) -> Elements:
        """Integral of the density, infinite where its tail does not decay."""
        return np.exp(self.log_share).sum(0) + self.remainder(self.log_share).sum(0)

    def region_masses(self) -> Float[np.ndarray, "regions elements"]:
        """Integral of the density over each region, as far as it converges."""
        masses = self._by_region(np.exp(self.log_share))
        masses[[0, -1]] += np.nan_to_num(self.remainder(self.log_share), posinf=0.0)
        return masses

    def region_noise(self) -> Float[np.ndarray, "regions elements"]:
        """How much of each region's mass is below the resolution of the dtype."""
        return self._by_region(np.exp(self.log_share) * np.minimum(self.noise, 1.0))

    def _by_region(self, share: Nodes) -> Float[np.ndarray, "regions elements"]:
        regions = range(len(self.line.edges) + 1)
        return np.stack([np.where(self.region == r, share, 0.0).sum(0) for r in regions])

    def mean_of(self, values: Nodes) -> Elements:
        """Expectation under the density divided by its mass."""
        share = np.exp(self.log_share)
        with np.errstate(invalid="ignore"):
            return np.where(share == 0.0, 0.0, share * values).sum(0) / share.sum(0)

    def noise_of(self, values: Nodes) -> Elements:
        """How much of an expectation of |values| is below the resolution of the dtype."""
        return self.mean_of(np.abs(values) * np.minimum(self.noise, 1.0))

    @property
    def unresolved(self) -> Elements:
        """Share of the mass that may be off because the dtype does not resolve it."""
        return 4.0 * self.noise_of(np.ones_like(self.x))

    def decay(self, log_integrand: Nodes) -> tuple[Sides, Sides]:
        """log integral over the last quarter of each endless tail, and its decay since the third.

        The decay is the logarithm of their ratio per unit of coordinate (an e-fold of x): the
        exponent a of an integrand |x|^-(1 + a). The integral diverges if it is 0 or below.
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
        """What lies beyond the last nodes if a tail goes on as it decays; inf if it does not."""
        last, rate = self.decay(log_integrand)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            beyond = np.exp(last) / np.expm1(rate * self.line.reach / 4.0)
        beyond = np.where(rate > SLOWEST_DECAY, beyond, np.inf)
        return np.where(last > _log_sum(log_integrand) - 40.0, beyond, 0.0)


def _log_sum(values: Float[np.ndarray, "rows elements"]) -> Elements:
    with np.errstate(divide="ignore"):
        return np.asarray(logsumexp(values, axis=0))


def integrate(subject: Subject, line: Line, log_density: LogDensity) -> Integral:
    """Nodes on the line that resolve the density of every element."""
    pieces = _evaluated(subject, line, log_density, *_first_cuts(line))
    goal = np.log(_GOAL.get(subject.dtype, 1e-3))
    for _ in range(_ROUNDS):
        log_share = pieces.log_weight + pieces.log_density
        total = _log_sum(log_share.reshape(-1, subject.elements))
        if np.all(_log_sum(pieces.log_error) <= total + goal):
            break
        worst = np.argpartition(-pieces.log_error, _SPLIT, axis=0)[:_SPLIT]
        region, left, right = (np.take_along_axis(part, worst, 0) for part in pieces[:3])
        middle = (left + right) / 2.0
        halves = _evaluated(
            subject,
            line,
            log_density,
            np.concatenate([region, region]),
            np.concatenate([left, middle]),
            np.concatenate([middle, right]),
        )
        pieces = _Pieces(*(_exchanged(o, n, worst) for o, n in zip(pieces, halves, strict=True)))
    shape = pieces.x.shape
    nodes = {name: getattr(pieces, name).reshape(-1, shape[-1]) for name in pieces._fields[4:]}
    region = np.broadcast_to(pieces.region[:, None], shape).reshape(-1, shape[-1])
    return Integral(line=line, region=region, **nodes)


def integrate_again(
    subject: Subject, line: Line, log_density: LogDensity, like: Integral
) -> Integral:
    """The integral of a neighbouring density on a neighbouring line, with the same pieces."""

    def of_nodes(values: Float[np.ndarray, "regions elements"]) -> Nodes:
        return np.take_along_axis(values, like.region, 0)

    (old_start, old_stop), (start, stop) = like.line.intervals(), line.intervals()
    with np.errstate(divide="ignore", invalid="ignore"):
        stretch = np.nan_to_num((stop - start) / (old_stop - old_start), posinf=0.0)
        log_stretch = of_nodes(np.log(stretch))
        _, old_slope = like.line.place(like.region, like.coordinate)
        log_length = np.nan_to_num(like.log_weight - old_slope, nan=-np.inf, neginf=-np.inf)
    coordinate = of_nodes(start) + of_nodes(stretch) * (like.coordinate - of_nodes(old_start))
    exact, slope = line.place(like.region, coordinate)
    x = _inside(subject, line, exact)
    return replace(
        like,
        line=line,
        coordinate=coordinate,
        x=x,
        log_weight=slope + log_length + log_stretch,
        log_density=log_density(x),
    )


def _inside(
    subject: Subject, line: Line, x: Float[np.ndarray, "*n elements"]
) -> Float[np.ndarray, "*n elements"]:
    """Values rounded to the dtype, and at least a step away from the ends of the support."""
    step = np.array([[1.0], [-1.0]]) * subject.spacing(line.ends)
    first, last = np.where(line.bounded, line.ends + step, line.ends)
    return subject.rounded(np.clip(x, np.minimum(first, last), last))


def _exchanged(old: np.ndarray, new: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The first half of `new` put at `places` of `old`, the second half appended."""
    index = places if old.ndim == 2 else places[:, None]
    result = np.concatenate([old, new[len(places) :]])
    np.put_along_axis(result, index, new[: len(places)], 0)
    return result


def _first_cuts(line: Line) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Region, left and right coordinate of the first pieces."""
    inner_left, inner_right = line.inner_coordinates()
    lower, upper = (
        _outer_cuts(gap, line.core, reach) for gap, reach in zip(line.gap, line.reach, strict=True)
    )
    left = np.concatenate([lower[:-1], inner_left, upper[:-1]])
    right = np.concatenate([lower[1:], inner_right, upper[1:]])
    last, outer = len(line.edges), len(lower) - 1
    region = np.concatenate([np.zeros(outer, int), np.arange(1, last), np.full(outer, last)])
    return np.broadcast_to(region[:, None], left.shape), left, right


def _outer_cuts(
    gap: Elements, core: Elements, reach: Elements
) -> Float[np.ndarray, "cuts elements"]:
    """From a core's width on in equal factors; the last two quarters show how a tail decays."""
    with np.errstate(divide="ignore", over="ignore"):
        first = np.minimum(core / gap, reach / 64.0)
    geometric = np.geomspace(first, reach / 2.0, _OUTER_CUTS)
    return np.concatenate([np.zeros_like(geometric[:1]), geometric, [0.75 * reach, reach]])


def _evaluated(
    subject: Subject,
    line: Line,
    log_density: LogDensity,
    region: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
) -> _Pieces:
    half = (right - left)[:, None] / 2.0
    coordinate = (left + right)[:, None] / 2.0 + half * _NODES[:, None]
    exact, slope = line.place(np.broadcast_to(region[:, None], coordinate.shape), coordinate)
    x = _inside(subject, line, exact)
    inwards = subject.rounded(x - np.sign(x - line.centre) * subject.spacing(x))
    both = np.concatenate([x, inwards]).reshape(-1, x.shape[-1])
    here, next_to_it = np.split(log_density(both).reshape(-1, *x.shape[1:]), 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_weight = slope + np.log(half * _WEIGHTS[:, None])
        noise = np.nan_to_num(np.abs(here - next_to_it), nan=0.0, posinf=1.0)
        # Nearer to an end than the dtype can tell, nothing is known of the density.
        for end in line.ends:
            lost = np.abs(x - exact) / np.abs(exact - end)
            noise = np.maximum(noise, np.nan_to_num(lost, nan=1.0, posinf=1.0))
        log_integrand = slope + np.log(half) + here
        top = log_integrand.max(1, keepdims=True)
        scaled = np.exp(np.where(np.isfinite(top), log_integrand - top, -np.inf))
        unresolved = np.abs(np.einsum("pne,nk->pke", scaled, _UNRESOLVED)).sum(1)
        log_error = np.nan_to_num(top[:, 0] + np.log(unresolved), nan=-np.inf)
    return _Pieces(region, left, right, log_error, coordinate, x, log_weight, here, noise)
