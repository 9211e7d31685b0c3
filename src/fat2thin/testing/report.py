"""What a check found, and the table that tells it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

Status = Literal["pass", "FAIL", "not offered"]


class Finding(NamedTuple):
    """Errors beside their tolerances, a row a statistic and a column an element of the batch.

    An error that is not at most its tolerance fails (so a NaN fails). `describe(row, element)`
    says what was measured where.
    """

    error: Float[np.ndarray, "statistics elements"]
    tolerance: Float[np.ndarray, "statistics elements"]
    describe: Callable[[int, int], str]


@dataclass(frozen=True)
class Check:
    """One line of a report: the worst error of a check relative to what it may be."""

    name: str
    status: Status
    measured: float | None
    tolerance: float | None
    where: str


@dataclass(frozen=True)
class Report:
    """The checks of one distribution; `print(report)` shows them as a table."""

    distribution: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; what is not offered does not count."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """Names of the checks that failed."""
        return [check.name for check in self.checks if check.status == "FAIL"]

    def raise_if_failed(self) -> None:
        """Raise an AssertionError that shows the table if a check failed."""
        if not self.passed:
            raise AssertionError(f"{', '.join(self.failures)} failed\n{self}")

    def __str__(self) -> str:
        header = ("check", "result", "measured", "tolerance", "where the worst is")
        rows = [header, *map(_row, self.checks)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), where]
            )
            for *row, where in rows
        ]
        return "\n".join([self.distribution, *(line.rstrip() for line in lines)])


def _row(check: Check) -> tuple[str, ...]:
    numbers = ("" if n is None else f"{n:.3g}" for n in (check.measured, check.tolerance))
    return check.name, check.status, *numbers, check.where


def not_offered(name: str, reason: str) -> Check:
    """The line of something that the distribution does not have."""
    return Check(name, "not offered", None, None, reason)


def judge(name: str, findings: Sequence[Finding], element_name: Callable[[int], str]) -> Check:
    """The line of a check: it passes if every error is within its tolerance."""
    worst: tuple[float, Check] | None = None
    for finding in findings:
        error, tolerance = np.broadcast_arrays(finding.error, finding.tolerance)
        passed = error <= tolerance
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = error / np.maximum(tolerance, 1e-300)
        # A NaN is worse than any error.
        ratio = np.where(
            passed, np.nan_to_num(np.minimum(ratio, 1.0)), np.nan_to_num(ratio, nan=np.inf)
        )
        row, element = (int(index) for index in np.unravel_index(np.argmax(ratio), ratio.shape))
        if worst is None or ratio[row, element] > worst[0]:
            # Where nothing is off, nothing is worst.
            named = bool(error[row, element] != 0.0)
            where = (finding.describe(row, element), element_name(element)) if named else ()
            line = Check(
                name,
                "pass" if passed.all() else "FAIL",
                float(error[row, element]),
                float(tolerance[row, element]),
                ", ".join(filter(None, where)),
            )
            worst = (float(ratio[row, element]), line)
    if worst is None:
        raise ValueError(f"the check {name} measured nothing")
    return worst[1]
