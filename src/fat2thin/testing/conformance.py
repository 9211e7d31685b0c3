"""The whole examination of a distribution."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import Array, Key
from numpyro.distributions import Distribution

from fat2thin.testing import pathwise, pointwise, quantiles, scalar, vector, vector_moments
from fat2thin.testing.report import Check, Finding, Report, judge, not_offered
from fat2thin.testing.scalar_study import study_scalar
from fat2thin.testing.study import Study
from fat2thin.testing.subject import Subject

_TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-9}
_FEWEST_SAMPLES = 2_000
# Checks that compare with chance share the level of false alarm.
_STATISTICAL_SCALAR = 2
_STATISTICAL_VECTOR = 5

Examination = dict[str, Callable[[], list[Finding]]]


def check_distribution(
    distribution: Distribution,
    key: Key[Array, ""],
    *,
    samples: int = 100_000,
    false_alarm: float = 1e-6,
    tolerance: float | None = None,
    skip: Sequence[str] = (),
) -> Report:
    """Examine a continuous NumPyro distribution; a batch is examined element by element.

    The checks and what they compare (the density is divided by its mass in all but `mass`):

    - `mass`: the integral of the density is 1.
    - `samples`: samples follow the density (chi-square; means of bounded functions for vectors).
    - `cdf`: the integral of the density, 0 and 1 at the ends, the density as its derivative.
    - `icdf`: the density has mass u below icdf(u).
    - `entropy`, `moments`: -E[log p], mean, variance; not finite only where the tail diverges.
    - `gradients`: pathwise derivatives against difference quotients of the density, so a sampler
      of another law fails here as well as in `samples`.
    - `support`: samples are in it, and log_prob is exactly -inf outside.
    - `edges`: no NaN in log_prob or its gradient at, around and far from the ends.
    - `precision`: float32 against float64 from the same parameters.
    - `sample_with_log_prob`, where there is such a method: against log_prob of the samples.

    Scalar events are compared with quadrature to `tolerance` (2e-5 in float32, 1e-9 in float64,
    and what the dtype cannot resolve), vectors with importance sampling. `false_alarm` is the
    probability that chance alone fails any check, over the whole batch. `samples` are drawn per
    element (fewer for a very large batch); `skip` names checks to leave out. The same key gives
    the same report.
    """
    if samples < _FEWEST_SAMPLES:
        raise ValueError(f"samples must be at least {_FEWEST_SAMPLES}, got {samples}")
    subject = Subject(distribution, samples)
    allowed = _TOLERANCE[subject.dtype] if tolerance is None else tolerance
    examine = _scalar_checks if subject.scalar else _vector_checks
    checks = examine(subject, key, allowed, false_alarm)
    unknown = set(skip) - set(checks)
    if unknown:
        raise ValueError(f"no such checks: {', '.join(sorted(unknown))}")
    lines = tuple(_line(subject, n, check) for n, check in checks.items() if n not in skip)
    shape = f" of batch shape {subject.batch_shape}" if subject.batch_shape else ""
    return Report(f"{type(distribution).__name__}{shape}, {subject.dtype}", lines)


def _line(subject: Subject, name: str, check: Callable[[], list[Finding]]) -> Check:
    try:
        return judge(name, check(), subject.element_name)
    except pointwise.NOT_OFFERED as error:
        return not_offered(name, (str(error) or type(error).__name__).splitlines()[0])


def _scalar_checks(
    subject: Subject, key: Key[Array, ""], tolerance: float, false_alarm: float
) -> Examination:
    study_key, *keys = jax.random.split(key, 3)
    study = study_scalar(subject, study_key)
    level = false_alarm / _STATISTICAL_SCALAR
    return {
        "mass": lambda: scalar.check_mass(study, tolerance),
        "samples": lambda: scalar.check_samples(study, level),
        "cdf": lambda: quantiles.check_cdf(study, tolerance),
        "icdf": lambda: quantiles.check_icdf(study, tolerance),
        "entropy": lambda: scalar.check_entropy(study, tolerance),
        "moments": lambda: scalar.check_moments(study, tolerance),
        "gradients": lambda: pathwise.check_gradients(study, keys[0], level),
        **_pointwise_checks(study, keys[1], tolerance),
    }


def _vector_checks(
    subject: Subject, key: Key[Array, ""], tolerance: float, false_alarm: float
) -> Examination:
    study_key, *keys = jax.random.split(key, 3)
    study = vector.study_vector(subject, study_key)
    level = false_alarm / _STATISTICAL_VECTOR
    return {
        "mass": lambda: vector.check_mass(study, tolerance, level),
        "samples": lambda: vector.check_samples(study, tolerance, level),
        "entropy": lambda: vector.check_entropy(study, tolerance, level),
        "moments": lambda: vector_moments.check_moments(study, tolerance, level),
        "gradients": lambda: vector.check_gradients(study, keys[0], level),
        **_pointwise_checks(study, keys[1], tolerance),
    }


def _pointwise_checks(study: Study, key: Key[Array, ""], tolerance: float) -> Examination:
    single = _TOLERANCE[np.dtype(np.float32)]
    return {
        "support": lambda: pointwise.check_support(study),
        "edges": lambda: pointwise.check_edges(study),
        "precision": lambda: pointwise.check_precision(study, single),
        "sample_with_log_prob": lambda: pointwise.check_sample_with_log_prob(study, key, tolerance),
    }
