"""Mass, samples, entropy and moments of scalar distributions, against integrals of the density.

All but `mass` divide the density by its mass first, so that a wrong normaliser fails `mass` alone.
"""

import numpy as np
from scipy import stats

from fat2thin.testing.integration import SLOWEST_DECAY
from fat2thin.testing.line import Elements
from fat2thin.testing.report import Finding
from fat2thin.testing.scalar_study import ScalarStudy
from fat2thin.testing.subject import quick_jit

# An integral is believed to diverge up to this exponent, beyond which a tail visibly decays.
_DIVERGENT = 0.02


def check_mass(study: ScalarStudy, tolerance: float) -> list[Finding]:
    """The integral of the density is one."""
    integral = study.integral
    mass = integral.mass
    beyond = np.nan_to_num(integral.remainder(integral.log_share), posinf=0.0).sum(0)
    return [
        Finding(
            np.abs(mass - 1.0)[None],
            (tolerance + integral.unresolved + beyond)[None],
            lambda _, element: f"the integral is {mass[element]:.6g}",
        )
    ]


def check_samples(study: ScalarStudy, false_alarm: float) -> list[Finding]:
    """Counts of samples in bins follow the density: Pearson's chi-square."""
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
    level = false_alarm / study.subject.elements
    return [
        Finding(
            terms.sum(0)[None],
            stats.chi2.isf(level, bins - 1)[None],
            lambda _, element: f"chi-square of {bins[element]} bins",
        )
    ]


def check_entropy(study: ScalarStudy, tolerance: float) -> list[Finding]:
    """The entropy is -E[log p]."""
    subject, integral = study.subject, study.integral
    claimed = subject.per_element(quick_jit(subject.distribution.entropy)())
    information = -integral.log_density
    information = np.where(np.isfinite(information), information, 0.0)
    entropy = integral.mean_of(information) + np.log(integral.mass)
    with np.errstate(divide="ignore"):
        beyond = integral.remainder(integral.log_share + np.log(np.abs(information))).sum(0)
    noise = integral.noise_of(1.0 + np.abs(information))
    allowed = tolerance * (1.0 + np.abs(entropy)) + 4.0 * noise + 2.0 * beyond
    return [
        Finding(
            np.abs(claimed - entropy)[None],
            np.where(np.isfinite(allowed), allowed, 0.0)[None],
            lambda _, element: f"entropy {claimed[element]:.6g}, integral {entropy[element]:.6g}",
        )
    ]


def check_moments(study: ScalarStudy, tolerance: float) -> list[Finding]:
    """Mean and variance are those of the density; where they are not finite, the tail says so."""
    subject, integral = study.subject, study.integral
    distribution = subject.distribution
    scaled = (integral.x - study.centre) / study.spread
    mean = integral.mean_of(scaled)
    claimed_mean = subject.per_element(distribution.mean)
    claimed_variance = subject.per_element(distribution.variance)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = integral.mean_of(scaled**2) - mean**2
        off_mean = (claimed_mean - study.centre) / study.spread - mean
        off_variance = claimed_variance / study.spread**2 - variance
    return [
        *_moment(study, "mean", 1, claimed_mean, off_mean, tolerance),
        *_moment(study, "variance", 2, claimed_variance, off_variance, tolerance),
    ]


def _moment(
    study: ScalarStudy,
    name: str,
    power: int,
    claimed: Elements,
    difference: Elements,
    tolerance: float,
) -> list[Finding]:
    """A claim and its difference from the integral, in units of the spread.

    A finite claim needs an integral that converges to it, any other claim one that does not.
    """
    integral = study.integral
    with np.errstate(divide="ignore", over="ignore"):
        log_size = power * np.log(np.abs(integral.x - study.centre) / study.spread)
        size = np.exp(log_size)
    log_integrand = integral.log_share + log_size
    slowest = integral.decay(log_integrand)[1].min(0)
    finite = np.isfinite(claimed)
    beyond = integral.remainder(log_integrand).sum(0)
    rounding = study.subject.spacing(study.centre) / study.spread
    with np.errstate(over="ignore", invalid="ignore"):
        relative = tolerance + integral.unresolved
        allowed = relative * (1.0 + integral.mean_of(size)) + 4.0 * integral.noise_of(size)
    allowed = allowed + 4.0 * rounding + 2.0 * beyond
    converges = slowest > SLOWEST_DECAY
    return [
        Finding(
            np.where(finite, np.where(converges, np.abs(difference), np.inf), 0.0)[None],
            np.where(finite & converges, allowed, 0.0)[None],
            lambda _, element: f"{name} {claimed[element]:.6g}, in quartile distances",
        ),
        Finding(
            np.where(finite, 0.0, slowest)[None],
            np.full((1, len(claimed)), _DIVERGENT),
            lambda _, element: f"{name} {claimed[element]:.6g}, exponent of its tail",
        ),
    ]
