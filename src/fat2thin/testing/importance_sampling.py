"""Integrals over vectors by importance sampling.

The proposal is a mixture of three, placed by samples: a Gaussian (efficient in many dimensions),
a multivariate Cauchy (heavier than elliptical densities), and a product of coordinates with
density 1 / (2 (1 + |z|) (1 + log(1 + |z|))^2), which is heavier than every power law.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.special import gammaln, logsumexp

from fat2thin.testing.study import Elements, Rows
from fat2thin.testing.subject import Subject

Vectors = Float[np.ndarray, "rows elements dimension"]

_FITTED = 2_000
_FIT_ROUNDS = 50


@dataclass(frozen=True)
class Placement:
    """Where the distribution is: centre, spread of each coordinate, and an elliptical frame.

    `frame` is a triangular factor of the scatter, `gaussian` and `cauchy` the scales at which a
    standard Gaussian or Cauchy in that frame has the median radius of the samples. `flat` means
    that the samples lie in a subspace, so have no density.
    """

    centre: Float[np.ndarray, "elements dimension"]
    spread: Float[np.ndarray, "elements dimension"]
    frame: Float[np.ndarray, "elements dimension dimension"]
    gaussian: Elements
    cauchy: Elements
    flat: bool


def place(samples: Vectors) -> Placement:
    """Fit the placement to samples."""
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
        # The fixed point of the Cauchy likelihood: far samples hardly count.
        radius = np.einsum("rei,eij,rej->re", z, np.linalg.inv(scatter), z)
        weight = (dimension + 1.0) / (1.0 + radius)
        scatter = np.einsum("re,rei,rej->eij", weight, z, z) / len(z)
        scatter = scatter + 1e-10 * np.eye(dimension)
    frame = np.linalg.cholesky(scatter)
    radius = np.median(np.sum(np.einsum("eij,rej->rei", np.linalg.inv(frame), z) ** 2, -1), axis=0)
    gaussian = np.sqrt(radius / stats.chi2.median(dimension))
    cauchy = np.sqrt(radius / (dimension * stats.f.median(dimension, 1)))
    return Placement(centre, spread, spread[..., None] * frame, gaussian, cauchy, flat)


@dataclass(frozen=True)
class Cloud:
    """Points of the proposal with both log densities: weighted samples of the distribution."""

    points: Vectors
    log_proposal: Rows
    log_density: Rows
    has_volume: bool

    @property
    def weight(self) -> Rows:
        """Density over proposal: its mean is the mass."""
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
        """Return (sum w)^2 / sum w^2: few where the proposal does not cover a tail."""
        weight = self.weight
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.nan_to_num(weight / weight.max(0))
            return np.nan_to_num(scaled.sum(0) ** 2 / (scaled**2).sum(0))


def make_cloud(subject: Subject, placement: Placement, count: int, seed: int) -> Cloud:
    """Draw the proposal and evaluate the density; zero outside the declared support."""
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
    log_density = np.where(known, without_nan(subject.log_prob(points)), -np.inf)
    has_volume = not placement.flat and bool(known.any(0).all())
    return Cloud(points, _log_proposal(placement, points), log_density, has_volume)


def without_nan(log_density: Rows) -> Rows:
    """Treat NaN as no density; other checks find it."""
    return np.where(np.isnan(log_density), -np.inf, log_density)


def _log_proposal(placement: Placement, points: Vectors) -> Rows:
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
