"""The conformance check of a distribution, and its report."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Key
from numpyro.distributions import Distribution

from fat2thin.tables import Table
from fat2thin.testing.common_checks import COMMON_CHECKS
from fat2thin.testing.scalar import SCALAR_CHECKS, study_scalar
from fat2thin.testing.study import NOT_OFFERED, Measurement, Study
from fat2thin.testing.subject import Subject
from fat2thin.testing.vector import VECTOR_CHECKS, study_vector

_FEWEST_SAMPLES = 2_000


@dataclass(frozen=True)
class ConformanceCheck:
    """One line of a report: the worst error of a check relative to its tolerance."""

    name: str
    status: Literal["pass", "FAIL", "not offered"]
    measured: float | None
    tolerance: float | None
    where: str


@dataclass(frozen=True)
class ConformanceReport:
    """The checks of one distribution; `print(report)` shows them as a table."""

    distribution: str
    checks: tuple[ConformanceCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; a method that is not offered does not count."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """Names of the checks that failed."""
        return [check.name for check in self.checks if check.status == "FAIL"]

    def raise_if_failed(self) -> None:
        """Raise an AssertionError with the table if a check failed."""
        if not self.passed:
            raise AssertionError(f"{', '.join(self.failures)} failed\n{self}")

    def __str__(self) -> str:
        rows = [
            {
                "check": check.name,
                "result": check.status,
                "measured": _number(check.measured),
                "tolerance": _number(check.tolerance),
                "where the worst is": check.where,
            }
            for check in self.checks
        ]
        return str(Table(self.distribution, tuple(rows)))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def check_distribution(
    distribution: Distribution,
    key: Key[Array, ""],
    *,
    samples: int = 100_000,
    false_alarm: float = 1e-6,
    tolerance: float | None = None,
    skip: Sequence[str] = (),
) -> ConformanceReport:
    """Check a continuous NumPyro distribution; a batch is checked element by element.

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
    plus what the dtype cannot resolve), vectors with importance sampling. `false_alarm` is the
    probability that chance alone fails any check, over the whole batch. `samples` are drawn per
    element (fewer for a very large batch); `skip` names checks to leave out. The same key gives
    the same report.
    """
    if samples < _FEWEST_SAMPLES:
        raise ValueError(f"samples must be at least {_FEWEST_SAMPLES}, got {samples}")
    subject = Subject(distribution, samples, tolerance, false_alarm)
    functions = (*(SCALAR_CHECKS if subject.scalar else VECTOR_CHECKS), *COMMON_CHECKS)
    checks = {function.__name__.removeprefix("check_"): function for function in functions}
    unknown = set(skip) - set(checks)
    if unknown:
        raise ValueError(f"no such checks: {', '.join(sorted(unknown))}")
    study: Study = (study_scalar if subject.scalar else study_vector)(subject, key)
    lines = tuple(_run(study, n, check) for n, check in checks.items() if n not in skip)
    shape = f" of batch shape {subject.batch_shape}" if subject.batch_shape else ""
    return ConformanceReport(f"{type(distribution).__name__}{shape}, {subject.dtype}", lines)


def _run(study: Any, name: str, check: Callable[[Any], Iterator[Measurement]]) -> ConformanceCheck:
    """Run a check; it passes if every error is within its tolerance."""
    try:
        measurements = list(check(study))
    except NOT_OFFERED as missing:
        reason = (str(missing) or type(missing).__name__).splitlines()[0]
        return ConformanceCheck(name, "not offered", None, None, reason)
    worst = -np.inf
    line: ConformanceCheck | None = None
    for measurement in measurements:
        errors = np.atleast_2d(measurement.error)
        error, tolerance = np.broadcast_arrays(errors, measurement.tolerance)
        passed = error <= tolerance
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = error / np.maximum(tolerance, 1e-300)
        # A NaN is worse than any error.
        ratio = np.where(
            passed, np.nan_to_num(np.minimum(ratio, 1.0)), np.nan_to_num(ratio, nan=np.inf)
        )
        row, element = (int(index) for index in np.unravel_index(np.argmax(ratio), ratio.shape))
        if ratio[row, element] > worst:
            # Without any error there is no worst place to name.
            where: tuple[str, ...] = ()
            if error[row, element] != 0.0:
                where = (measurement.describe(row, element), study.subject.element_name(element))
            worst = ratio[row, element]
            line = ConformanceCheck(
                name,
                "pass" if passed.all() else "FAIL",
                float(error[row, element]),
                float(tolerance[row, element]),
                ", ".join(filter(None, where)),
            )
    if line is None:
        raise ValueError(f"the check {name} measured nothing")
    return line
