"""Checks of distributions over vectors, against importance sampling of their own density."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy import stats

from fat2thin.testing.common_checks import check_gradients
from fat2thin.testing.importance_sampling import Cloud, make_cloud, place, without_nan
from fat2thin.testing.study import Difference, Elements, Measurement, Rows, Study, derivative, views
from fat2thin.testing.subject import Parameters, Subject, Values, quick_jit

# With fewer effective samples an integral is not known, or does not exist.
_FEWEST_EFFECTIVE = 100.0
_RAYS = 8
_BISECTIONS = 80
# A tail is looked at in shells of these radii, in spreads from the centre.
_SHELLS = (0.0, 5.0, 50.0, 500.0)
# Where no single point carries more of the variance than this, the standard error is believed.
_LARGEST_SHARE = 0.1
# An integral that diverges keeps at least this share from one shell to the next.
_DIVERGENT = 0.5
_WIDTH = 3.0
_LEAST_TAIL = 0.02


@dataclass(frozen=True)
class VectorStudy(Study):
    """A distribution over vectors, and its density at points of a proposal."""

    cloud: Cloud
    rays: Float[np.ndarray, "rays dimension"]

    def typical(self, count: int) -> Values:
        """Return samples, each the middle one of a few, so that none is far out."""
        count = min(count, len(self.second) // 8)
        samples = self.second[: 8 * count]
        groups = samples.reshape(count, 8, *samples.shape[1:])
        radius = np.sum(np.abs(self.standardise(samples)), axis=-1).reshape(groups.shape[:-1])
        middle = np.argsort(radius, axis=1)[:, 4]
        return np.take_along_axis(groups, middle[:, None, :, None], 1)[:, 0]

    def outside(self) -> Values:
        """Return points of the proposal; those outside the support are tested."""
        return self.cloud.points[: 4 * self.subject.rows]

    def edge_points(self) -> Values:
        """Return the centre, both sides of the edge along rays, and far values."""
        subject = self.subject
        far = float(subject.limits.max) ** 0.25

        def along(distance: Float[np.ndarray, "rays elements"]) -> Values:
            reach = distance[..., None] * self.rays[:, None] * self.spread
            return subject.rounded(self.centre + reach)

        def finite(distance: Float[np.ndarray, "rays elements"]) -> Bool[np.ndarray, "r e"]:
            return np.isfinite(subject.log_prob(along(distance)))

        inside = np.zeros((len(self.rays), subject.elements))
        outside = np.full_like(inside, far)
        bounded = ~finite(outside)
        for _ in range(_BISECTIONS):
            middle = (inside + outside) / 2.0
            good = finite(middle)
            inside, outside = np.where(good, middle, inside), np.where(good, outside, middle)
        inside, outside = np.where(bounded, inside, 0.0), np.where(bounded, outside, 0.0)
        distant = along(np.full_like(inside, far))[:2]
        points = [self.centre[None], along(inside), along(outside), distant, -distant[:1]]
        return np.concatenate(points)

    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Return the difference quotient of the features' expectations over the same points."""
        _require_volume(self)
        cloud = self.cloud

        def weight(offset: int) -> Float[np.ndarray, "rows elements"]:
            density = self.subject.log_prob(cloud.points, at(offset))
            return cloud.weight_of(without_nan(density))

        slope, change = derivative(weight)
        mass = cloud.weight.mean(0)
        values, errors, slacks = [], [], []
        for feature in self.features(cloud.points):
            centred = (feature - cloud.mean_of(feature)[0]) / mass
            terms = slope * centred
            values.append(terms.mean(0))
            errors.append(terms.std(0) / np.sqrt(len(terms)))
            slacks.append(np.abs((change * centred).mean(0)) + 1e-3)
        return Difference(np.stack(values), np.stack(errors), np.stack(slacks))


def study_vector(subject: Subject, key: Key[Array, ""]) -> VectorStudy:
    """Draw the samples, place the proposal by the first half of them, evaluate the density."""
    study_key, *later_keys = jax.random.split(key, 3)
    first_key, second_key, cloud_key = jax.random.split(study_key, 3)
    half = subject.samples // 2
    placement = place(subject.sample(first_key, half))
    seed = int(jax.random.bits(cloud_key))
    cloud = make_cloud(subject, placement, half, seed)
    generator = np.random.default_rng(seed)
    axes = np.eye(subject.dimension)
    rays = np.concatenate([axes, -axes, generator.normal(size=(_RAYS, subject.dimension))])
    second, seen = subject.sample(second_key, half), views(subject.dimension, generator)
    where = placement.centre, placement.spread
    return VectorStudy(subject, later_keys, second, *where, seen, cloud, rays)


def _threshold(study: VectorStudy, statistics: int) -> float:
    """Standard errors that chance alone exceeds in any of the statistics at the given level."""
    return float(stats.norm.isf(study.subject.false_alarm / (2.0 * statistics)))


def _require_volume(study: VectorStudy) -> None:
    """Raise NotImplementedError if the distribution has no density in the space it lives in."""
    if not study.cloud.has_volume:
        raise NotImplementedError("the support has no volume, so there is no integral to compare")


def check_mass(study: VectorStudy) -> Iterator[Measurement]:
    """The integral of the density is one, and it converges."""
    _require_volume(study)
    weight = study.cloud.weight
    with np.errstate(over="ignore", invalid="ignore"):
        mass = weight.mean(0)
        error = weight.std(0) / np.sqrt(len(weight))
    width = _threshold(study, len(mass))
    effective = study.cloud.effective_samples()
    yield Measurement(
        np.abs(mass - 1.0),
        study.subject.tolerance + width * error,
        lambda _, element: f"the integral is {mass[element]:.6g}",
    )
    yield Measurement(
        _FEWEST_EFFECTIVE / np.maximum(effective, 1e-9),
        1.0,
        lambda _, element: (
            f"the integral is {mass[element]:.3g} and rests on"
            f" {effective[element]:.3g} points: it does not converge"
        ),
    )


def check_samples(study: VectorStudy) -> Iterator[Measurement]:
    """Bounded functions have the same mean over samples as under the density."""
    _require_volume(study)
    samples = np.nan_to_num(study.second, nan=np.inf)
    names = study.feature_names
    width = _threshold(study, len(names) * study.subject.elements)
    errors, allowed = [], []
    both = study.features(samples), study.features(study.cloud.points)
    for sampled, proposed in zip(*both, strict=True):
        mean, error = study.cloud.mean_of(proposed)
        errors.append(np.abs(sampled.mean(0) - mean))
        error = np.hypot(error, sampled.std(0) / np.sqrt(len(sampled)))
        allowed.append(study.subject.tolerance + width * error)
    yield Measurement(np.stack(errors), np.stack(allowed), lambda row, _: f"E[{names[row]}]")


def check_entropy(study: VectorStudy) -> Iterator[Measurement]:
    """The entropy is -E[log p]."""
    _require_volume(study)
    subject, cloud = study.subject, study.cloud
    claimed = subject.per_element(quick_jit(subject.distribution.entropy)())
    information = np.where(np.isfinite(cloud.log_density), -cloud.log_density, 0.0)
    mean, error = cloud.mean_of(information)
    entropy = mean + np.log(cloud.weight.mean(0))
    # The logarithm of the mass has an error of its own.
    error = error + cloud.weight.std(0) / cloud.weight.mean(0) / np.sqrt(len(information))
    width = _threshold(study, subject.elements)
    yield Measurement(
        np.abs(claimed - entropy),
        study.subject.tolerance * (1.0 + np.abs(entropy)) + width * error,
        lambda _, element: f"entropy {claimed[element]:.6g}, integral {entropy[element]:.6g}",
    )


def check_moments(study: VectorStudy) -> Iterator[Measurement]:
    """Mean and variance are those of the density; where they are not finite, the tail diverges."""
    _require_volume(study)
    subject, cloud = study.subject, study.cloud
    distribution = subject.distribution
    claims = [subject.per_element(claim) for claim in (distribution.mean, distribution.variance)]
    z = study.standardise(cloud.points)
    width = _threshold(study, 2 * subject.elements * subject.dimension)
    for power, name in enumerate(("mean", "variance"), 1):
        for coordinate in range(subject.dimension):
            claimed = claims[power - 1][:, coordinate]
            column = z[..., coordinate]
            centre = study.centre[:, coordinate] if power == 1 else 0.0
            length = study.spread[:, coordinate] ** power
            mean, _ = cloud.mean_of(column)
            with np.errstate(over="ignore", invalid="ignore"):
                values = column if power == 1 else (column - mean) ** 2
                expected, error = cloud.mean_of(values)
                terms = np.nan_to_num(cloud.weight * (values - expected)) ** 2
            believed = terms.max(0) <= _LARGEST_SHARE * terms.sum(0)
            yield from _moment(
                f"{name} of coordinate {coordinate}",
                claimed,
                np.where(believed, np.abs((claimed - centre) / length - expected), 0.0),
                study.subject.tolerance * (1.0 + np.abs(expected)) + width * error,
                _growth(study, np.abs(column) ** power),
            )


def _moment(
    label: str,
    claimed: Elements,
    difference: Elements,
    allowed: Elements,
    growth: tuple[Elements, Elements],
) -> Iterator[Measurement]:
    """A finite claim needs an integral that converges to it, any other claim one that diverges."""
    finite = np.isfinite(claimed)
    least, most = growth

    def tail(_: int, element: int) -> str:
        return f"{label} {claimed[element]:.6g}, growth of its integrand from decade to decade"

    yield Measurement(
        np.where(finite, difference, 0.0),
        np.where(finite, allowed, 1.0),
        lambda _, element: f"{label} {claimed[element]:.6g}, in quartile distances",
    )
    yield Measurement(np.where(finite, least, 0.0), 1.0, tail)
    yield Measurement(np.where(finite, 0.0, _DIVERGENT / np.maximum(most, 1e-9)), 1.0, tail)


def _growth(study: VectorStudy, magnitude: Rows) -> tuple[Elements, Elements]:
    """Bound how much larger an integral is over the outer than over the inner shell."""
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


VECTOR_CHECKS = (check_mass, check_samples, check_entropy, check_moments, check_gradients)
