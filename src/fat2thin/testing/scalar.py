"""Checks of scalar distributions against integrals of their density.

All but `mass` divide the density by its mass first, so a wrong normaliser fails only `mass`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy import stats

from fat2thin.testing.integration import SLOWEST_DECAY, Integral, Line, Sides, integrate, make_line
from fat2thin.testing.study import (
    STEP,
    Difference,
    Elements,
    Measurement,
    Study,
    derivative,
    numbered,
    views,
)
from fat2thin.testing.subject import Parameters, Subject, Values, quick_jit

_BINS = 64
# Closer to an end than this many steps of the dtype, the density is not resolved.
_UNRESOLVED = 32.0
# Samples expected in the outermost bins, enough for the chi-square approximation.
_LEAST_EXPECTED = 50
# Quantiles where the line is cut for finite differences, well inside because the ends may move.
_DIFFERENCE_LEVELS = np.array([0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95])
# Rounding differs by a step or two between programs, so "just outside" is a few steps outside.
_JUST_OUTSIDE = 8.0
_NEAR_THE_END = np.arange(-4.0, 5.0)[:, None]
# Up to this exponent of the tail, an integral counts as divergent.
_DIVERGENT = 0.02
_LOWER_LEVELS = np.concatenate([np.geomspace(1e-4, 0.1, 10), np.linspace(0.15, 0.5, 8)])
_LEVELS = np.concatenate([_LOWER_LEVELS, 1.0 - _LOWER_LEVELS[-2::-1]])
_SUBDIVISION = 8
_SLOPES = 32
# Allowed relative error of a derivative, in tolerances.
_SLOPE_TOLERANCE = 50.0
# Below this fraction of its peak a density may underflow in float32.
_UNDERFLOW = 1e-30
# Steps of the dtype by which an icdf may decrease. XLA's tanh decreases by one, and scaling it to a
# box adds to that.
_FALL = 4.0


@dataclass(frozen=True)
class ScalarStudy(Study):
    """A scalar distribution and the integral of its density.

    The first half of the samples locates the distribution and cuts the line into bins. The second
    half is independent and is tested.
    """

    first: Float[np.ndarray, "elements samples"]
    """The first half of the samples, ascending."""
    core: Elements
    """Distance between the 45 % and 55 % quantiles."""
    integral: Integral

    @property
    def line(self) -> Line:
        """The line, cut at quantiles of the first samples."""
        return self.integral.line

    def line_at(self, edges: Float[np.ndarray, "edges elements"]) -> Line:
        """Return the line cut elsewhere."""
        return make_line(self.subject, edges, self.centre, self.core)

    def typical(self, count: int) -> Values:
        """Return quantiles of the first samples from 1 % to 99 %, not too close to the ends."""
        # float32 must resolve the distance to an end as well.
        ends = np.where(self.line.bounded, self.line.ends, 0.0).astype(np.float32)
        low, high = _within(self.line.ends, np.abs(np.spacing(ends)).astype(np.float64))
        return np.clip(_quantiles(self.first, np.linspace(0.01, 0.99, count)), low, high)

    def near_end(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Return whether values are closer to an end than the dtype resolves."""
        distance = np.abs(values - self.line.ends[:, None])
        return np.any(distance < _UNRESOLVED * self.subject.spacing(self.line.ends)[:, None], 0)

    def outside(self) -> Values:
        """Return values just outside and far outside each declared end, the centre otherwise."""
        values = []
        for end, sign in zip(self.subject.ends(), (-1.0, 1.0), strict=True):
            just = _JUST_OUTSIDE * self.subject.spacing(end)
            for distance in (just, 0.01 * self.spread, self.spread, 1e3 * self.spread):
                values.append(np.where(np.isfinite(end), end + sign * distance, self.centre))
        return self.subject.rounded(np.stack(values))

    def edge_points(self) -> Values:
        """Return values at and around the ends, the centre, the extremes, and distant values."""
        subject = self.subject
        ends = np.where(self.line.bounded, self.line.ends, self.centre)
        around = [end + _NEAR_THE_END * subject.spacing(end) for end in ends]
        extremes = _quantiles(self.first, np.array([0.0, 1.0]))
        far = self.spread * float(subject.limits.max) ** 0.25
        rest = [self.centre[None], extremes, np.stack([self.centre - far, self.centre + far])]
        if "loc" in subject.parameters:
            rest.insert(0, subject.per_element(subject.parameters["loc"])[None])
        return subject.rounded(np.concatenate([*around, *rest]))

    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Return finite differences of the features' integrals over the same pieces."""
        line = self.line_at(_quantiles(self.first, _DIFFERENCE_LEVELS))
        base = integrate(line)

        def expectations(offset: int) -> Float[np.ndarray, "features elements"]:
            moved = make_line(self.subject, line.edges, self.centre, self.core, at(offset))
            integral = base.moved(moved)
            return np.stack([integral.mean_of(value) for value in self.features(integral.x)])

        value, change = derivative(expectations)
        noise = base.noise_of(np.ones_like(base.x)) / STEP
        return Difference(value, np.zeros_like(value), np.abs(change) + 4.0 * noise + 1e-6)


def study_scalar(subject: Subject, key: Key[Array, ""]) -> ScalarStudy:
    """Draw samples, cut the line at quantiles of the first half, and integrate the density."""
    study_key, *later_keys = jax.random.split(key, 3)
    first_key, second_key = jax.random.split(study_key)
    half = subject.samples // 2
    drawn = subject.sample(first_key, half)
    first = np.sort(np.where(np.isfinite(drawn), drawn, np.nan).T, axis=1)
    lower, below, centre, above, upper = _quantiles(first, np.array([0.25, 0.45, 0.5, 0.55, 0.75]))
    core = np.maximum(above - below, subject.spacing(centre))
    spread = np.maximum((upper - lower) / 2.0, core)
    tail = _LEAST_EXPECTED * 2.0 ** np.arange(20) / half
    tail = tail[tail < 1.0 / _BINS]
    levels = np.concatenate([tail, np.arange(1, _BINS) / _BINS, 1.0 - tail[::-1]])
    low, high = _within(subject.ends(), subject.spacing(subject.ends()))
    edges = _apart(subject, np.clip(_quantiles(first, levels), low, high))
    integral = integrate(make_line(subject, edges, centre, core))
    second = subject.sample(second_key, half)
    seen = views(1, np.random.default_rng(0))
    return ScalarStudy(subject, later_keys, second, centre, spread, seen, first, core, integral)


def _quantiles(
    ordered: Float[np.ndarray, "elements samples"], levels: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n elements"]:
    """Return quantiles of ascending samples with NaNs last; 0 if all are NaN."""
    count = ordered.shape[1] - np.isnan(ordered).sum(1)
    index = np.floor(levels[:, None] * np.maximum(count - 1, 0)).astype(int)
    return np.nan_to_num(np.take_along_axis(ordered, index.T, 1).T)


def _within(ends: Sides, spacing: Sides) -> Sides:
    """Return the ends moved inwards to where the density is resolved."""
    inwards = np.where(np.isfinite(ends), _UNRESOLVED * spacing, 0.0)
    return ends + np.array([[1.0], [-1.0]]) * inwards


def _apart(subject: Subject, edges: Values) -> Values:
    """Merge edges that are too close in the dtype, so that their bin has no width."""
    apart = edges.copy()
    for row in range(1, len(edges)):
        near = edges[row] - apart[row - 1] < _UNRESOLVED * subject.spacing(edges[row])
        apart[row] = np.where(near, apart[row - 1], edges[row])
    return apart


def check_mass(study: ScalarStudy) -> Iterator[Measurement]:
    """Check that the density integrates to one."""
    integral, mass = study.integral, study.integral.mass
    beyond = np.nan_to_num(integral.remainder(integral.log_share), posinf=0.0).sum(0)
    allowed = study.subject.tolerance + integral.unresolved + beyond
    yield Measurement(np.abs(mass - 1.0), allowed, numbered("the integral is {:.6g}", mass))


def check_samples(study: ScalarStudy) -> Iterator[Measurement]:
    """Check the counts of samples in bins against the density by Pearson's chi-square test."""
    edges, integral, count = study.line.edges, study.integral, len(study.second)
    masses = integral.region_masses()
    share = count / masses.sum(0)
    observed = [
        np.bincount(np.searchsorted(bins, column), minlength=len(edges) + 1)
        for bins, column in zip(edges.T, study.second.T, strict=True)
    ]
    excess = np.abs(np.stack(observed, axis=1) - share * masses)
    excess = np.maximum(excess - 2.0 * share * integral.region_noise(), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        terms = np.where(excess == 0.0, 0.0, excess**2 / (share * masses))
    bins = 2 + (np.diff(edges, axis=0) > 0.0).sum(0)
    limit = stats.chi2.isf(study.subject.false_alarm / study.subject.elements, bins - 1)
    yield Measurement(terms.sum(0), limit, numbered("chi-square of {} bins", bins))


def check_entropy(study: ScalarStudy) -> Iterator[Measurement]:
    """Check that the entropy is -E[log p]."""
    subject, integral = study.subject, study.integral
    claimed = subject.per_element(quick_jit(subject.distribution.entropy)())
    information = np.where(np.isfinite(integral.log_density), -integral.log_density, 0.0)
    entropy = integral.mean_of(information) + np.log(integral.mass)
    with np.errstate(divide="ignore"):
        beyond = integral.remainder(integral.log_share + np.log(np.abs(information))).sum(0)
    noise = integral.noise_of(1.0 + np.abs(information))
    allowed = study.subject.tolerance * (1.0 + np.abs(entropy)) + 4.0 * noise + 2.0 * beyond
    allowed = np.where(np.isfinite(allowed), allowed, 0.0)
    text = numbered("entropy {:.6g}, integral {:.6g}", claimed, entropy)
    yield Measurement(np.abs(claimed - entropy), allowed, text)


def check_moments(study: ScalarStudy) -> Iterator[Measurement]:
    """Check mean and variance against the density; they may be infinite only if it diverges."""
    subject, integral = study.subject, study.integral
    scaled = (integral.x - study.centre) / study.spread
    mean = integral.mean_of(scaled)
    rounding = subject.spacing(study.centre) / study.spread
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for power, name in enumerate(("mean", "variance"), 1):
            claimed = subject.per_element(getattr(subject.distribution, name))
            expected = mean if power == 1 else integral.mean_of(scaled**2) - mean**2
            origin = study.centre if power == 1 else 0.0
            difference = np.abs((claimed - origin) / study.spread**power - expected)
            log_size = power * np.log(np.abs(scaled))
            size = np.exp(log_size)
            log_integrand = integral.log_share + log_size
            relative = study.subject.tolerance + integral.unresolved
            allowed = relative * (1.0 + integral.mean_of(size)) + 4.0 * integral.noise_of(size)
            beyond = integral.remainder(log_integrand).sum(0)
            allowed = allowed + 4.0 * rounding + 2.0 * beyond
            slowest = integral.decay(log_integrand)[1].min(0)
            # A finite value needs a convergent integral that equals it; else it must diverge.
            finite, converges = np.isfinite(claimed), slowest > SLOWEST_DECAY
            error = np.where(finite, np.where(converges, difference, np.inf), 0.0)
            text = numbered(name + " {:.6g}, in units of the quartile distance", claimed)
            yield Measurement(error, np.where(finite & converges, allowed, 0.0), text)
            tail = numbered(name + " {:.6g}, exponent of the tail", claimed)
            yield Measurement(np.where(finite, 0.0, slowest), _DIVERGENT, tail)


def check_cdf(study: ScalarStudy) -> Iterator[Measurement]:
    """Check that the cdf is the density's integral, never decreases, and has it as its slope."""
    subject, integral, tolerance = study.subject, study.integral, study.subject.tolerance
    edges, ends, bounded = study.line.edges, study.line.ends, study.line.bounded
    steps = np.arange(_SUBDIVISION)[:, None] / _SUBDIVISION
    fine = edges[:-1, None] + steps * np.diff(edges, axis=0)[:, None]
    fine = subject.rounded(fine.reshape(-1, subject.elements))
    values = np.concatenate([edges, fine, np.where(bounded, ends, study.centre)])
    found = subject.program(subject.distribution.cdf)(values)
    at_edges, at_fine, at_ends = np.split(found, [len(edges), len(edges) + len(fine)])
    expected = np.cumsum(integral.region_masses(), 0)[:-1] / integral.mass
    error, allowed = np.abs(at_edges - expected), tolerance + integral.unresolved
    yield Measurement(error, allowed, numbered("cdf at {:.6g}", edges))
    error = np.where(bounded, np.abs(at_ends - np.array([[0.0], [1.0]])), 0.0)
    yield Measurement(error, tolerance, numbered("cdf at the end {:.6g}", ends))
    fall = np.maximum(-np.diff(at_fine, axis=0), 0.0)
    yield Measurement(fall, tolerance / 10.0, numbered("cdf decreases at {:.6g}", fine))
    yield _cdf_slope(study)


def _cdf_slope(study: ScalarStudy) -> Measurement:
    """Compare the derivative of the cdf between the outer edges with the density."""
    subject, edges = study.subject, study.line.edges
    edges = edges[:: max(1, len(edges) // _SLOPES)]
    cdf = subject.distribution.cdf
    slope = subject.program(lambda values: jax.jvp(cdf, (values,), (jnp.ones_like(values),))[1])
    log_density = subject.log_prob(edges)
    density = np.exp(log_density) / study.integral.mass
    with np.errstate(invalid="ignore"):
        noise = np.nan_to_num(np.abs(subject.log_prob(study.inwards(edges)) - log_density))
    relative = _SLOPE_TOLERANCE * study.subject.tolerance + study.integral.unresolved + 4.0 * noise
    allowed = density * relative + _UNDERFLOW * density.max(0)
    text = numbered("slope of the cdf at {:.6g}", edges)
    return Measurement(np.abs(slope(edges) - density), allowed, text)


def check_icdf(study: ScalarStudy) -> Iterator[Measurement]:
    """Check that icdf(u) has mass u below it, is monotone up to rounding, and in the support."""
    subject, tolerance = study.subject, study.subject.tolerance
    levels = np.repeat(subject.rounded(_LEVELS)[:, None], subject.elements, 1)
    values = subject.program(subject.distribution.icdf)(levels)
    known = np.isfinite(values)
    edges = np.maximum.accumulate(np.where(known, values, study.centre), 0)
    integral = integrate(study.line_at(edges))
    share = np.cumsum(integral.region_masses(), 0)[:-1] / integral.mass
    rounding = np.exp(subject.log_prob(edges)) * subject.spacing(edges)

    ends = np.where(study.line.bounded, study.line.ends, 0.0)
    largest = np.maximum(np.abs(edges), np.abs(ends).max(0))
    fall = _FALL * subject.spacing(np.maximum(largest[:-1], largest[1:]))
    text = numbered("icdf({:.6g}) = {:.6g}", levels, values)
    allowed = tolerance + integral.unresolved + 2.0 * np.nan_to_num(rounding, posinf=0.0)
    yield Measurement(np.where(known, np.abs(share - levels), np.nan), allowed, text)
    yield Measurement(np.maximum(-np.diff(values, axis=0), 0.0), fall, text)
    yield Measurement(1.0 - subject.in_support(values), 0.0, text)


SCALAR_CHECKS = (check_mass, check_samples, check_cdf, check_icdf, check_entropy, check_moments)
