"""Mean and variance of the coordinates of a vector, against importance sampling."""

from itertools import pairwise

import numpy as np
from scipy import stats

from fat2thin.testing.cloud import Elements, Rows
from fat2thin.testing.report import Finding
from fat2thin.testing.vector import VectorStudy, require_volume

# A tail is looked at in shells of these radii, in spreads from the centre.
_SHELLS = (0.0, 5.0, 50.0, 500.0)
# Where no single point carries more of the variance than this, the standard error is believed.
_LARGEST_SHARE = 0.1
# An integral that diverges keeps at least this share from one shell to the next.
_DIVERGENT = 0.5
_WIDTH = 3.0
_LEAST_TAIL = 0.02


def check_moments(study: VectorStudy, tolerance: float, false_alarm: float) -> list[Finding]:
    """Mean and variance are those of the density; where they are not finite, the tail says so."""
    require_volume(study)
    subject, cloud = study.subject, study.cloud
    distribution, placement = subject.distribution, study.placement
    claims = {
        "mean": subject.per_element(distribution.mean),
        "variance": subject.per_element(distribution.variance),
    }
    z = study.standardise(cloud.points)
    width = stats.norm.isf(false_alarm / (4.0 * subject.elements * subject.dimension))
    findings: list[Finding] = []
    for name, power in (("mean", 1), ("variance", 2)):
        for coordinate in range(subject.dimension):
            claimed = claims[name][:, coordinate]
            column = z[..., coordinate]
            centre = placement.centre[:, coordinate] if power == 1 else 0.0
            length = placement.spread[:, coordinate] ** power
            mean, _ = cloud.mean_of(column)
            with np.errstate(over="ignore", invalid="ignore"):
                values = column if power == 1 else (column - mean) ** 2
                expected, error = cloud.mean_of(values)
                terms = np.nan_to_num(cloud.weight * (values - expected)) ** 2
            believed = terms.max(0) <= _LARGEST_SHARE * terms.sum(0)
            findings += _compared(
                f"{name} of coordinate {coordinate}",
                claimed,
                np.where(believed, np.abs((claimed - centre) / length - expected), 0.0),
                tolerance * (1.0 + np.abs(expected)) + width * error,
                _growth(study, np.abs(column) ** power),
            )
    return findings


def _compared(
    label: str,
    claimed: Elements,
    difference: Elements,
    allowed: Elements,
    growth: tuple[Elements, Elements],
) -> list[Finding]:
    """A finite claim is near an integral that converges; any other has one that does not."""
    finite = np.isfinite(claimed)
    least, most = growth

    def tail(_: int, element: int) -> str:
        return f"{label} {claimed[element]:.6g}, growth of its integrand from decade to decade"

    return [
        Finding(
            np.where(finite, difference, 0.0)[None],
            np.where(finite, allowed, 1.0)[None],
            lambda _, element: f"{label} {claimed[element]:.6g}, in quartile distances",
        ),
        Finding(np.where(finite, least, 0.0)[None], np.ones((1, len(claimed))), tail),
        Finding(
            np.where(finite, 0.0, _DIVERGENT / np.maximum(most, 1e-9))[None],
            np.ones((1, len(claimed))),
            tail,
        ),
    ]


def _growth(study: VectorStudy, magnitude: Rows) -> tuple[Elements, Elements]:
    """How much larger an integral is over the outer than over the inner shell: bounds."""
    radius = np.sqrt(np.mean(study.standardise(study.cloud.points) ** 2, axis=-1))
    terms = study.cloud.weight * magnitude
    core, inner, outer = (
        np.where((radius > low) & (radius <= high), terms, 0.0) for low, high in pairwise(_SHELLS)
    )
    noise = _WIDTH * np.hypot(inner.std(0), outer.std(0)) / np.sqrt(len(radius))
    # A tail that hardly counts does not diverge.
    base = np.maximum(inner.mean(0), _LEAST_TAIL * core.mean(0))
    least, most = (outer.mean(0) - noise) / base, (outer.mean(0) + noise) / base
    return np.maximum(least, 0.0), most
