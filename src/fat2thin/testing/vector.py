"""Checks of distributions over vectors against importance sampling of their density.

The proposal is a mixture of three distributions fitted to samples: a Gaussian (efficient in many
dimensions), a multivariate Cauchy (heavier than elliptical densities), and a product of coordinates
with density 1 / (2 (1 + |z|) (1 + log(1 + |z|))^2), which is heavier than every power law.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from scipy import stats
from scipy.special import gammaln, logsumexp

from fat2thin.testing.study import (
    Difference,
    Elements,
    Measurement,
    Rows,
    Study,
    derivative,
    named,
    numbered,
    views,
)
from fat2thin.testing.subject import Parameters, Subject, Values, quick_jit

Vectors = Float[np.ndarray, "rows elements dimension"]

_FITTED = 2_000
_FIT_ROUNDS = 50
# With fewer effective samples an integral is unreliable or diverges.
_FEWEST_EFFECTIVE = 100.0
_RAYS = 8
_BISECTIONS = 80
# Radii of the shells in which a tail is examined, in units of the spread.
_SHELLS = (0.0, 5.0, 50.0, 500.0)
# A standard error is trusted if no single point has a larger share of the variance than this.
_LARGEST_SHARE = 0.1
# A divergent integral keeps at least this fraction from one shell to the next.
_DIVERGENT = 0.5
_WIDTH = 3.0
_LEAST_TAIL = 0.02


@dataclass(frozen=True)
class _Placement:
    """Location and shape of the distribution, fitted to samples."""

    centre: Float[np.ndarray, "elements dimension"]
    spread: Float[np.ndarray, "elements dimension"]
    frame: Float[np.ndarray, "elements dimension dimension"]
    """Triangular factor of the scatter matrix."""
    gaussian: Elements
    """Scale at which a standard Gaussian in the frame has the samples' median radius."""
    cauchy: Elements
    """The same for a standard Cauchy."""
    flat: bool
    """Whether the samples lie in a subspace and therefore have no density."""


def _place(samples: Vectors) -> _Placement:
    """Return the placement fitted to samples."""
    samples = np.nan_to_num(samples[:_FITTED])
    dimension = samples.shape[-1]
    lower, centre, upper = np.quantile(samples, [0.25, 0.5, 0.75], axis=0)
    spread = (upper - lower) / 2.0
    flat = bool(np.any(spread == 0.0))
    spread = np.where(spread > 0.0, spread, 1.0)
    z = np.clip((samples - centre) / spread, -1e4, 1e4)
    apart = z - z.mean(0)
    eigenvalues = np.linalg.eigvalsh(np.einsum("rei,rej->eij", apart, apart))
    flat = flat or bool(np.any(eigenvalues[:, 0] < 1e-10 * eigenvalues[:, -1]))
    scatter = np.broadcast_to(np.eye(dimension), (*centre.shape, dimension)).copy()
    for _ in range(_FIT_ROUNDS):
        # Fixed-point iteration of the Cauchy likelihood, which gives outliers little weight.
        radius = np.einsum("rei,eij,rej->re", z, np.linalg.inv(scatter), z)
        weight = (dimension + 1.0) / (1.0 + radius)
        scatter = np.einsum("re,rei,rej->eij", weight, z, z) / len(z)
        scatter = scatter + 1e-10 * np.eye(dimension)
    frame = np.linalg.cholesky(scatter)
    radius = np.median(np.sum(np.einsum("eij,rej->rei", np.linalg.inv(frame), z) ** 2, -1), axis=0)
    gaussian = np.sqrt(radius / stats.chi2.median(dimension))
    cauchy = np.sqrt(radius / (dimension * stats.f.median(dimension, 1)))
    return _Placement(centre, spread, spread[..., None] * frame, gaussian, cauchy, flat)


@dataclass(frozen=True)
class _Cloud:
    """Samples of the proposal, with their log densities under proposal and distribution."""

    points: Vectors
    log_proposal: Rows
    log_density: Rows
    has_volume: bool

    @property
    def weight(self) -> Rows:
        """The ratio of density to proposal; its mean is the mass."""
        return self.weight_of(self.log_density)

    def weight_of(self, log_density: Rows) -> Rows:
        """Return the weights of another density at the same points."""
        with np.errstate(over="ignore"):
            return np.exp(log_density - self.log_proposal)

    def mean_of(self, values: Rows) -> tuple[Elements, Elements]:
        """Return the expectation under the density divided by its mass, and its standard error."""
        weight = self.weight
        mass = weight.mean(0)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = np.where(weight == 0.0, 0.0, weight * values).mean(0) / mass
            terms = np.where(weight == 0.0, 0.0, weight * (values - mean) / mass)
            return mean, np.sqrt(np.mean(terms**2, axis=0) / len(weight))

    def effective_samples(self) -> Elements:
        """Return (sum w)^2 / sum w^2, which is small if the proposal does not cover a tail."""
        weight = self.weight
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.nan_to_num(weight / weight.max(0))
            return np.nan_to_num(scaled.sum(0) ** 2 / (scaled**2).sum(0))


def _make_cloud(subject: Subject, placement: _Placement, count: int, seed: int) -> _Cloud:
    """Sample the proposal and evaluate the density, which is zero outside the support."""
    generator = np.random.default_rng(seed)
    shape = (count, subject.elements, subject.dimension)
    normal = generator.normal(size=shape)
    radial = np.abs(generator.normal(size=shape[:2]))
    which = generator.integers(3, size=shape[:2])
    stretch = np.where(which == 0, placement.gaussian, placement.cauchy / np.maximum(radial, 1e-30))
    elliptical = np.einsum("eij,rej->rei", placement.frame, normal * stretch[..., None])
    uniform = generator.uniform(size=shape)
    with np.errstate(over="ignore"):
        product = np.expm1(uniform / (1.0 - uniform)) * generator.choice((-1.0, 1.0), size=shape)
        offset = np.where((which == 2)[..., None], placement.spread * product, elliptical)
    exact = placement.centre + offset
    points = subject.rounded(exact)
    representable = (np.abs(exact) < float(subject.limits.max)).all(-1)
    known = representable & subject.in_support(points)
    log_density = np.where(known, _without_nan(subject.log_prob(points)), -np.inf)
    has_volume = not placement.flat and bool(known.any(0).all())
    return _Cloud(points, _log_proposal(placement, points), log_density, has_volume)


def _without_nan(log_density: Rows) -> Rows:
    """Replace NaN by zero density; other checks detect NaN."""
    return np.where(np.isnan(log_density), -np.inf, log_density)


def _log_proposal(placement: _Placement, points: Vectors) -> Rows:
    dimension = points.shape[-1]
    offset = points - placement.centre
    inverse = np.linalg.inv(placement.frame)
    with np.errstate(over="ignore", invalid="ignore"):
        radius = np.sum(np.einsum("eij,rej->rei", inverse, offset) ** 2, axis=-1)
    radius = np.nan_to_num(radius, nan=np.inf, posinf=np.inf)
    log_volume = np.log(np.abs(np.linalg.det(placement.frame)))
    gaussian = (
        -0.5 * radius / placement.gaussian**2
        - dimension * (np.log(placement.gaussian) + 0.5 * np.log(2.0 * np.pi))
        - log_volume
    )
    half = (dimension + 1.0) / 2.0
    cauchy = (
        gammaln(half)
        - half * np.log(np.pi)
        - dimension * np.log(placement.cauchy)
        - half * np.log1p(radius / placement.cauchy**2)
        - log_volume
    )
    with np.errstate(over="ignore"):
        log_distance = np.log1p(np.abs(offset) / placement.spread)
    product = -np.sum(
        np.log(2.0 * placement.spread) + log_distance + 2.0 * np.log1p(log_distance), axis=-1
    )
    return logsumexp(np.stack([gaussian, cauchy, product]), axis=0) - np.log(3.0)


@dataclass(frozen=True)
class VectorStudy(Study):
    """A distribution over vectors, and its density at samples of a proposal."""

    proposed: _Cloud
    rays: Float[np.ndarray, "rays dimension"]
    """Directions along which the edge of the support is searched."""

    @property
    def cloud(self) -> _Cloud:
        """The weighted samples; raises NotImplementedError if the support has no volume."""
        if not self.proposed.has_volume:
            raise NotImplementedError("the support has no volume, so integrals cannot be compared")
        return self.proposed

    def typical(self, count: int) -> Values:
        """Return samples, each the median of a few by radius, so that none is in the far tail."""
        count = min(count, len(self.second) // 8)
        samples = self.second[: 8 * count]
        groups = samples.reshape(count, 8, *samples.shape[1:])
        radius = np.sum(np.abs(self.standardise(samples)), axis=-1).reshape(groups.shape[:-1])
        middle = np.argsort(radius, axis=1)[:, 4]
        return np.take_along_axis(groups, middle[:, None, :, None], 1)[:, 0]

    def outside(self) -> Values:
        """Return samples of the proposal; only those outside the support are tested."""
        return self.proposed.points[: 4 * self.subject.rows]

    def edge_points(self) -> Values:
        """Return the centre, both sides of the edge along rays, and distant values."""
        subject, far = self.subject, float(self.subject.limits.max) ** 0.25

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
        """Return finite differences of the features' expectations over the same points."""
        cloud = self.cloud

        def weight(offset: int) -> Float[np.ndarray, "rows elements"]:
            return cloud.weight_of(_without_nan(self.subject.log_prob(cloud.points, at(offset))))

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
    """Draw samples, fit the proposal to the first half, and evaluate the density."""
    study_key, *later_keys = jax.random.split(key, 3)
    first_key, second_key, cloud_key = jax.random.split(study_key, 3)
    half = subject.samples // 2
    placement, seed = _place(subject.sample(first_key, half)), int(jax.random.bits(cloud_key))
    cloud = _make_cloud(subject, placement, half, seed)
    generator = np.random.default_rng(seed)
    axes = np.eye(subject.dimension)
    rays = np.concatenate([axes, -axes, generator.normal(size=(_RAYS, subject.dimension))])
    second, seen = subject.sample(second_key, half), views(subject.dimension, generator)
    where = placement.centre, placement.spread
    return VectorStudy(subject, later_keys, second, *where, seen, cloud, rays)


def check_mass(study: VectorStudy) -> Iterator[Measurement]:
    """Check that the density integrates to one and that the integral converges."""
    weight = study.cloud.weight
    with np.errstate(over="ignore", invalid="ignore"):
        mass = weight.mean(0)
        error = weight.std(0) / np.sqrt(len(weight))
    width = study.threshold(len(mass))
    effective = study.cloud.effective_samples()
    allowed = study.subject.tolerance + width * error
    yield Measurement(np.abs(mass - 1.0), allowed, numbered("the integral is {:.6g}", mass))
    text = "the integral is {:.3g} from {:.3g} effective points: it does not converge"
    few = _FEWEST_EFFECTIVE / np.maximum(effective, 1e-9)
    yield Measurement(few, 1.0, numbered(text, mass, effective))


def check_samples(study: VectorStudy) -> Iterator[Measurement]:
    """Check that bounded functions have the same mean over samples and under the density."""
    samples = np.nan_to_num(study.second, nan=np.inf)
    names = study.feature_names
    width = study.threshold(len(names) * study.subject.elements)
    errors, allowed = [], []
    both = study.features(samples), study.features(study.cloud.points)
    for sampled, proposed in zip(*both, strict=True):
        mean, error = study.cloud.mean_of(proposed)
        errors.append(np.abs(sampled.mean(0) - mean))
        error = np.hypot(error, sampled.std(0) / np.sqrt(len(sampled)))
        allowed.append(study.subject.tolerance + width * error)
    yield Measurement(np.stack(errors), np.stack(allowed), named([f"E[{name}]" for name in names]))


def check_entropy(study: VectorStudy) -> Iterator[Measurement]:
    """Check that the entropy is -E[log p]."""
    subject, cloud = study.subject, study.cloud
    claimed = subject.per_element(quick_jit(subject.distribution.entropy)())
    information = np.where(np.isfinite(cloud.log_density), -cloud.log_density, 0.0)
    mean, error = cloud.mean_of(information)
    entropy = mean + np.log(cloud.weight.mean(0))
    # Add the standard error of the log of the mass.
    error = error + cloud.weight.std(0) / cloud.weight.mean(0) / np.sqrt(len(information))
    width = study.threshold(subject.elements)
    allowed = study.subject.tolerance * (1.0 + np.abs(entropy)) + width * error
    text = numbered("entropy {:.6g}, integral {:.6g}", claimed, entropy)
    yield Measurement(np.abs(claimed - entropy), allowed, text)


def check_moments(study: VectorStudy) -> Iterator[Measurement]:
    """Check mean and variance against the density; they may be infinite only if it diverges."""
    subject, cloud = study.subject, study.cloud
    distribution = subject.distribution
    claims = [subject.per_element(claim) for claim in (distribution.mean, distribution.variance)]
    z = study.standardise(cloud.points)
    width = study.threshold(2 * subject.elements * subject.dimension)
    for power, coordinate in product((1, 2), range(subject.dimension)):
        label = f"{('mean', 'variance')[power - 1]} of coordinate {coordinate} {{:.6g}}, "
        claimed = claims[power - 1][:, coordinate]
        column = z[..., coordinate]
        centre = study.centre[:, coordinate] if power == 1 else 0.0
        length = study.spread[:, coordinate] ** power
        mean, _ = cloud.mean_of(column)
        with np.errstate(over="ignore", invalid="ignore"):
            values = column if power == 1 else (column - mean) ** 2
            expected, error = cloud.mean_of(values)
            terms = np.nan_to_num(cloud.weight * (values - expected)) ** 2
        # A finite value needs a convergent integral that equals it; else it must diverge.
        finite = np.isfinite(claimed)
        believed = finite & (terms.max(0) <= _LARGEST_SHARE * terms.sum(0))
        difference = np.where(believed, np.abs((claimed - centre) / length - expected), 0.0)
        allowed = subject.tolerance * (1.0 + np.abs(expected)) + width * error
        text = numbered(label + "in units of the quartile distance", claimed)
        yield Measurement(difference, np.where(finite, allowed, 1.0), text)
        least, most = _growth(study, np.abs(column) ** power)
        tail = numbered(label + "growth of the integrand from decade to decade", claimed)
        yield Measurement(np.where(finite, least, 0.0), 1.0, tail)
        yield Measurement(np.where(finite, 0.0, _DIVERGENT / np.maximum(most, 1e-9)), 1.0, tail)


def _growth(study: VectorStudy, magnitude: Rows) -> tuple[Elements, Elements]:
    """Return bounds on the ratio of an integral over the outer shell to the inner shell."""
    radius = np.sqrt(np.mean(study.standardise(study.cloud.points) ** 2, axis=-1))
    terms = study.cloud.weight * magnitude
    core, inner, outer = (
        np.where((radius > low) & (radius <= high), terms, 0.0) for low, high in pairwise(_SHELLS)
    )
    noise = _WIDTH * np.hypot(inner.std(0), outer.std(0)) / np.sqrt(len(radius))
    # A negligible tail does not diverge.
    base = np.maximum(inner.mean(0), _LEAST_TAIL * core.mean(0))
    least, most = (outer.mean(0) - noise) / base, (outer.mean(0) + noise) / base
    return np.maximum(least, 0.0), most


VECTOR_CHECKS = (check_mass, check_samples, check_entropy, check_moments)
