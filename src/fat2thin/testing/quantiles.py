"""cdf and icdf of scalar distributions, against integrals of the density."""

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.testing.integration import integrate
from fat2thin.testing.report import Finding
from fat2thin.testing.scalar_study import ScalarStudy

_LOWER_LEVELS = np.concatenate([np.geomspace(1e-4, 0.1, 10), np.linspace(0.15, 0.5, 8)])
_LEVELS = np.concatenate([_LOWER_LEVELS, 1.0 - _LOWER_LEVELS[-2::-1]])
_SUBDIVISION = 8
_SLOPES = 32
# A derivative is not as good as the function: what it may be off, in tolerances.
_SLOPE_TOLERANCE = 50.0
# Below this share of the peak a density may underflow in float32.
_UNDERFLOW = 1e-30
# Steps of the dtype, there or at the ends, by which an icdf may fall: XLA's tanh falls by one, and
# moving it to a box adds to that.
_FALL = 4.0


def check_cdf(study: ScalarStudy, tolerance: float) -> list[Finding]:
    """The cdf is the integral of the density, never falls, and has the density as its slope."""
    subject, integral, edges = study.subject, study.integral, study.line.edges
    ends = study.line.ends
    bounded = np.isfinite(ends)
    steps = np.arange(_SUBDIVISION)[:, None] / _SUBDIVISION
    fine = edges[:-1, None] + steps * np.diff(edges, axis=0)[:, None]
    fine = subject.rounded(fine.reshape(-1, subject.elements))
    values = np.concatenate([edges, fine, np.where(bounded, ends, study.centre)])
    at_edges, at_fine, at_ends = np.split(
        subject.program(subject.distribution.cdf)(values), [len(edges), len(edges) + len(fine)]
    )
    expected = np.cumsum(integral.region_masses(), 0)[:-1] / integral.mass
    return [
        Finding(
            np.abs(at_edges - expected),
            np.broadcast_to(tolerance + integral.unresolved, edges.shape),
            lambda row, element: f"cdf at {edges[row, element]:.6g}",
        ),
        Finding(
            np.where(bounded, np.abs(at_ends - np.array([[0.0], [1.0]])), 0.0),
            np.full_like(ends, tolerance),
            lambda row, element: f"cdf at the end {ends[row, element]:.6g}",
        ),
        Finding(
            np.maximum(-np.diff(at_fine, axis=0), 0.0),
            np.full_like(fine[1:], tolerance / 10.0),
            lambda row, element: f"cdf falls at {fine[row, element]:.6g}",
        ),
        *_slope(study, tolerance),
    ]


def _slope(study: ScalarStudy, tolerance: float) -> list[Finding]:
    """The derivative of the cdf between the outer edges is the density."""
    subject, edges = study.subject, study.line.edges
    edges = edges[:: max(1, len(edges) // _SLOPES)]
    cdf = subject.distribution.cdf
    slope = subject.program(lambda values: jax.jvp(cdf, (values,), (jnp.ones_like(values),))[1])(
        edges
    )
    log_density = subject.log_prob(edges)
    density = np.exp(log_density) / study.integral.mass
    with np.errstate(invalid="ignore"):
        noise = np.nan_to_num(np.abs(subject.log_prob(study.inwards(edges)) - log_density))
    relative = _SLOPE_TOLERANCE * tolerance + study.integral.unresolved + 4.0 * noise
    return [
        Finding(
            np.abs(slope - density),
            density * relative + _UNDERFLOW * density.max(0),
            lambda row, element: f"slope of the cdf at {edges[row, element]:.6g}",
        )
    ]


def check_icdf(study: ScalarStudy, tolerance: float) -> list[Finding]:
    """The mass below icdf(u) is u; icdf falls by rounding at most, and stays in the support."""
    subject = study.subject
    levels = np.repeat(subject.rounded(_LEVELS)[:, None], subject.elements, 1)
    values = subject.program(subject.distribution.icdf)(levels)
    known = np.isfinite(values)
    edges = np.maximum.accumulate(np.where(known, values, study.centre), 0)
    integral = integrate(subject, study.line_at(edges), subject.log_prob)
    share = np.cumsum(integral.region_masses(), 0)[:-1] / integral.mass
    rounding = np.exp(subject.log_prob(edges)) * subject.spacing(edges)

    ends = np.where(np.isfinite(study.line.ends), study.line.ends, 0.0)
    largest = np.maximum(np.abs(edges), np.abs(ends).max(0))
    fall = _FALL * subject.spacing(np.maximum(largest[:-1], largest[1:]))

    def name(row: int, element: int) -> str:
        return f"icdf({levels[row, element]:.6g}) = {values[row, element]:.6g}"

    return [
        Finding(
            np.where(known, np.abs(share - levels), np.nan),
            tolerance + integral.unresolved + 2.0 * np.nan_to_num(rounding, posinf=0.0),
            name,
        ),
        Finding(np.maximum(-np.diff(values, axis=0), 0.0), fall, name),
        Finding(1.0 - subject.in_support(values), np.zeros_like(values), name),
    ]
