"""Checks of distributions over vectors, against importance sampling of their own density."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy import stats

from fat2thin.testing.cloud import Cloud, Placement, make_cloud, place, without_nan
from fat2thin.testing.features import Standardised, View, names_of, values_of, views
from fat2thin.testing.parameters import Parameters
from fat2thin.testing.pathwise import check_gradients as check_pathwise
from fat2thin.testing.report import Finding
from fat2thin.testing.study import STEP, Difference
from fat2thin.testing.subject import Subject, Values, quick_jit

# With fewer effective samples an integral is not known, or does not exist.
_FEWEST_EFFECTIVE = 100.0
_RAYS = 8
_BISECTIONS = 80


@dataclass(frozen=True)
class VectorStudy:
    """A distribution over vectors, its samples, and its density at points of a proposal."""

    subject: Subject
    second: Values
    placement: Placement
    cloud: Cloud
    views: tuple[View, ...]
    rays: Float[np.ndarray, "rays dimension"]

    def typical(self, count: int) -> Values:
        """Samples of which each is near the middle of a few, so none far out."""
        count = min(count, len(self.second) // 8)
        samples = self.second[: 8 * count]
        groups = samples.reshape(count, 8, *samples.shape[1:])
        radius = np.sum(np.abs(self.standardise(samples)), axis=-1).reshape(groups.shape[:-1])
        middle = np.argsort(radius, axis=1)[:, 4]
        return np.take_along_axis(groups, middle[:, None, :, None], 1)[:, 0]

    def inwards(self, values: Values) -> Values:
        """The next representable values towards the centre, in every coordinate."""
        step = np.sign(values - self.placement.centre) * self.subject.spacing(values)
        return self.subject.rounded(values - step)

    def near_end(self, values: Values) -> Bool[np.ndarray, "rows elements"]:
        """Nowhere: vectors have no ends that are known."""
        return np.zeros(values.shape[:2], bool)

    def outside(self) -> Values:
        """Points of the proposal, of which those outside the support are tested."""
        return self.cloud.points[: 4 * self.subject.rows]

    def edge_points(self) -> Values:
        """The centre, both sides of the edge along rays, and values far away."""
        placement, subject = self.placement, self.subject
        far = float(subject.limits.max) ** 0.25

        def along(distance: Float[np.ndarray, "rays elements"]) -> Values:
            reach = distance[..., None] * self.rays[:, None] * placement.spread
            return subject.rounded(placement.centre + reach)

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
        return np.concatenate(
            [placement.centre[None], along(inside), along(outside), distant, -distant[:1]]
        )

    def standardise(self, values: Values) -> Standardised:
        """Values in units of the spread, from the centre."""
        return (values - self.placement.centre) / self.placement.spread

    def standardise_slope(self, slopes: Values) -> Standardised:
        """Derivatives of values in units of the spread."""
        return slopes / self.placement.spread

    def difference(self, at: Callable[[int], Parameters]) -> Difference:
        """Difference quotient of the features' expectations over the same points."""
        cloud = self.cloud

        def weight(offset: int) -> Float[np.ndarray, "rows elements"]:
            density = self.subject.log_prob_with(cloud.points, at(offset))
            return cloud.weight_of(without_nan(density))

        near = (weight(1) - weight(-1)) / (2.0 * STEP)
        far = (weight(2) - weight(-2)) / (4.0 * STEP)
        change = (4.0 * near - far) / 3.0
        mass = cloud.weight.mean(0)
        values, errors, slacks = [], [], []
        for feature in values_of(self.views, self.standardise(cloud.points)):
            centred = (feature - cloud.mean_of(feature)[0]) / mass
            terms = change * centred
            values.append(terms.mean(0))
            errors.append(terms.std(0) / np.sqrt(len(terms)))
            slacks.append(np.abs(((near - far) * centred).mean(0)) + 1e-3)
        return Difference(np.stack(values), np.stack(errors), np.stack(slacks))


def study_vector(subject: Subject, key: Key[Array, ""]) -> VectorStudy:
    """Draw the samples, place the proposal by the first half of them, evaluate the density."""
    first_key, second_key, cloud_key = jax.random.split(key, 3)
    half = subject.samples // 2
    placement = place(subject.sample(first_key, half))
    seed = int(jax.random.bits(cloud_key))
    cloud = make_cloud(subject, placement, half, seed)
    generator = np.random.default_rng(seed)
    axes = np.eye(subject.dimension)
    rays = np.concatenate([axes, -axes, generator.normal(size=(_RAYS, subject.dimension))])
    second = subject.sample(second_key, half)
    return VectorStudy(subject, second, placement, cloud, views(subject.dimension, generator), rays)


def _threshold(false_alarm: float, statistics: int) -> float:
    return float(stats.norm.isf(false_alarm / (2.0 * statistics)))


def require_volume(study: VectorStudy) -> None:
    """Raise NotImplementedError where the distribution has no density in the space it lives in."""
    if study.placement.flat or not study.cloud.has_volume:
        raise NotImplementedError("the support has no volume, so there is no integral to compare")


def check_mass(study: VectorStudy, tolerance: float, false_alarm: float) -> list[Finding]:
    """The integral of the density is one, and it converges."""
    require_volume(study)
    weight = study.cloud.weight
    with np.errstate(over="ignore", invalid="ignore"):
        mass = weight.mean(0)
        error = weight.std(0) / np.sqrt(len(weight))
    width = _threshold(false_alarm, len(mass))
    effective = study.cloud.effective_samples()
    return [
        Finding(
            np.abs(mass - 1.0)[None],
            (tolerance + width * error)[None],
            lambda _, element: f"the integral is {mass[element]:.6g}",
        ),
        Finding(
            (_FEWEST_EFFECTIVE / np.maximum(effective, 1e-9))[None],
            np.ones((1, len(mass))),
            lambda _, element: (
                f"the integral is {mass[element]:.3g} and rests on"
                f" {effective[element]:.3g} points: it does not converge"
            ),
        ),
    ]


def check_samples(study: VectorStudy, tolerance: float, false_alarm: float) -> list[Finding]:
    """Bounded functions have the same mean over samples as under the density."""
    require_volume(study)
    z = study.standardise(np.nan_to_num(study.second, nan=np.inf))
    names = names_of(study.views)
    width = _threshold(false_alarm, len(names) * study.subject.elements)
    errors, allowed = [], []
    points = study.standardise(study.cloud.points)
    for sampled, proposed in zip(
        values_of(study.views, z), values_of(study.views, points), strict=True
    ):
        mean, error = study.cloud.mean_of(proposed)
        errors.append(np.abs(sampled.mean(0) - mean))
        allowed.append(tolerance + width * np.hypot(error, sampled.std(0) / np.sqrt(len(sampled))))
    return [Finding(np.stack(errors), np.stack(allowed), lambda row, _: f"E[{names[row]}]")]


def check_entropy(study: VectorStudy, tolerance: float, false_alarm: float) -> list[Finding]:
    """The entropy is -E[log p]."""
    require_volume(study)
    subject, cloud = study.subject, study.cloud
    claimed = subject.per_element(quick_jit(subject.distribution.entropy)())
    information = np.where(np.isfinite(cloud.log_density), -cloud.log_density, 0.0)
    mean, error = cloud.mean_of(information)
    entropy = mean + np.log(cloud.weight.mean(0))
    # The logarithm of the mass has an error of its own.
    error = error + cloud.weight.std(0) / cloud.weight.mean(0) / np.sqrt(len(information))
    width = _threshold(false_alarm, subject.elements)
    return [
        Finding(
            np.abs(claimed - entropy)[None],
            (tolerance * (1.0 + np.abs(entropy)) + width * error)[None],
            lambda _, element: f"entropy {claimed[element]:.6g}, integral {entropy[element]:.6g}",
        )
    ]


def check_gradients(study: VectorStudy, key: Key[Array, ""], false_alarm: float) -> list[Finding]:
    """Pathwise derivatives against difference quotients over the points of the proposal."""
    require_volume(study)
    return check_pathwise(study, key, false_alarm)
