"""What the checks of a scalar distribution start from: samples, bins, an integrated density."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fat2thin.testing.features import Standardised, View, values_of, views
from fat2thin.testing.integration import Integral, integrate, integrate_again
from fat2thin.testing.line import Elements, Line, Sides, make_line
from fat2thin.testing.parameters import Parameters
from fat2thin.testing.study import OFFSETS, STEP, Difference
from fat2thin.testing.subject import Subject, Values

_BINS = 64
# Steps of the dtype within which it does not resolve a density.
_UNRESOLVED = 32.0
# Samples expected in the outermost bins: enough for the chi-square distribution to hold.
_LEAST_EXPECTED = 50
# Where the line is cut for difference quotients: well inside, as the ends may move.
_DIFFERENCE_LEVELS = np.array([0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95])
# Rounding differs by a step or two between programs, so "just outside" is a few steps further.
_JUST_OUTSIDE = 8.0
_NEAR_THE_END = np.arange(-4.0, 5.0)[:, None]


@dataclass(frozen=True)
class ScalarStudy:
    """A scalar distribution, its samples, and the integral of its density.

    The first half of the samples says where the distribution is and cuts the line into bins; the
    second half is independent of them and is tested.
    """

    subject: Subject
    first: Float[np.ndarray, "elements samples"]
    second: Values
    centre: Elements
    core: Elements
    spread: Elements
    integral: Integral
    views: tuple[View, ...] = views(1, np.random.default_rng(0))

    @property
    def line(self) -> Line:
        """The line cut at quantiles of the first samples."""
        return self.integral.line

    def line_at(self, edges: Float[np.ndarray, "edges elements"]) -> Line:
        """The line cut elsewhere."""
        subject = self.subject
        return make_line(subject, edges, self.centre, self.core, subject.ends, subject.log_prob)

    def quantiles(self, levels: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n elements"]:
        """Quantiles of the first samples, each a sample itself."""
        return _quantiles(self.first, levels)

    def typical(self, count: int) -> Values:
        """Quantiles of the first samples from 1 % to 99 %, and not at the very ends."""
        return np.clip(
            self.quantiles(np.linspace(0.01, 0.99, count)), *self._single_precision_ends()
        )

    def _single_precision_ends(self) -> Sides:
        """Between these the ends are resolved in float32 too."""
        ends = np.where(self.line.bounded, self.line.ends, 0.0).astype(np.float32)
        return _within(self.line.ends, np.abs(np.spacing(ends)).astype(np.float64))

    def inwards(self, values: Values) -> Values:
        """The next representable values towards the centre."""
        step = np.sign(values - self.centre) * self.subject.spacing(values)
        return self.subject.rounded(values - step)

    def near_end(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Whether values are so near an end of the support that rounding decides their density."""
        distance = np.abs(values - self.line.ends[:, None])
        return np.any(distance < _UNRESOLVED * self.subject.spacing(self.line.ends)[:, None], 0)

    def outside(self) -> Values:
        """Values just and far outside a declared end of the support; the centre if it has none."""
        values = []
        for end, sign in zip(self.subject.ends, (-1.0, 1.0), strict=True):
            just = _JUST_OUTSIDE * self.subject.spacing(end)
            for distance in (just, 0.01 * self.spread, self.spread, 1e3 * self.spread):
                values.append(np.where(np.isfinite(end), end + sign * distance, self.centre))
        return self.subject.rounded(np.stack(values))

    def edge_points(self) -> Values:
        """The ends and some steps around them, the centre, the extremes, and values far away."""
        subject = self.subject
        ends = np.where(self.line.bounded, self.line.ends, self.centre)
        around = [end + _NEAR_THE_END * subject.spacing(end) for end in ends]
        extremes = self.quantiles(np.array([0.0, 1.0]))
        far = self.spread * float(subject.limits.max) ** 0.25
        rest = [self.centre[None], extremes, np.stack([self.centre - far, self.centre + far])]
        if "loc" in subject.parameters:
            rest.insert(0, subject.per_element(subject.parameters["loc"])[None])
        return subject.rounded(np.concatenate([*around, *rest]))

    def standardise(self, values: Values) -> Standardised:
        """Values in units of the spread, from the centre."""
        return ((values - self.centre) / self.spread)[..., None]

    def standardise_slope(self, slopes: Values) -> Standardised:
        """Derivatives of values in units of the spread."""
        return (slopes / self.spread)[..., None]

    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Difference quotient of the features' expectations, extrapolated from two steps."""
        subject = self.subject
        line = self.line_at(self.quantiles(_DIFFERENCE_LEVELS))
        base = integrate(subject, line, subject.log_prob)

        def expectations(parameters: Parameters) -> Float[np.ndarray, "features elements"]:
            def log_density(values: Values) -> Values:
                return subject.log_prob_with(values, parameters)

            ends = subject.support_ends(subject.rebuilt(parameters))
            moved = make_line(subject, line.edges, self.centre, self.core, ends, log_density)
            integral = integrate_again(subject, moved, log_density, base)
            features = values_of(self.views, self.standardise(integral.x))
            return np.stack([integral.mean_of(value) for value in features])

        means = {offset: expectations(at(offset)) for offset in OFFSETS}
        near = (means[1] - means[-1]) / (2.0 * STEP)
        far = (means[2] - means[-2]) / (4.0 * STEP)
        noise = base.noise_of(np.ones_like(base.x)) / STEP
        value = (4.0 * near - far) / 3.0
        return Difference(value, np.zeros_like(value), np.abs(near - far) + 4.0 * noise + 1e-6)


def study_scalar(subject: Subject, key: Key[Array, ""]) -> ScalarStudy:
    """Draw the samples, place the line by the first half of them, integrate the density."""
    first_key, second_key = jax.random.split(key)
    half = subject.samples // 2
    drawn = subject.sample(first_key, half)
    first = np.sort(np.where(np.isfinite(drawn), drawn, np.nan).T, axis=1)
    lower, below, centre, above, upper = _quantiles(first, np.array([0.25, 0.45, 0.5, 0.55, 0.75]))
    core = np.maximum(above - below, subject.spacing(centre))
    spread = np.maximum((upper - lower) / 2.0, core)
    tail = _LEAST_EXPECTED * 2.0 ** np.arange(20) / half
    tail = tail[tail < 1.0 / _BINS]
    levels = np.concatenate([tail, np.arange(1, _BINS) / _BINS, 1.0 - tail[::-1]])
    edges = np.clip(
        _quantiles(first, levels), *_within(subject.ends, subject.spacing(subject.ends))
    )
    edges = _apart(subject, edges)
    line = make_line(subject, edges, centre, core, subject.ends, subject.log_prob)
    integral = integrate(subject, line, subject.log_prob)
    second = subject.sample(second_key, half)
    return ScalarStudy(subject, first, second, centre, core, spread, integral)


def _quantiles(
    ordered: Float[np.ndarray, "elements samples"], levels: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "n elements"]:
    """Quantiles of ascending samples whose NaNs come last; 0 where there are only NaNs."""
    count = ordered.shape[1] - np.isnan(ordered).sum(1)
    index = np.floor(levels[:, None] * np.maximum(count - 1, 0)).astype(int)
    return np.nan_to_num(np.take_along_axis(ordered, index.T, 1).T)


def _within(ends: Sides, spacing: Sides) -> Sides:
    """The ends, moved inwards as far as the density beside them is not resolved."""
    return ends + np.array([[1.0], [-1.0]]) * np.where(
        np.isfinite(ends), _UNRESOLVED * spacing, 0.0
    )


def _apart(subject: Subject, edges: Values) -> Values:
    """Edges that are hardly apart in the dtype fall together: their bin has no width."""
    apart = edges.copy()
    for row in range(1, len(edges)):
        near = edges[row] - apart[row - 1] < _UNRESOLVED * subject.spacing(edges[row])
        apart[row] = np.where(near, apart[row - 1], edges[row])
    return apart
