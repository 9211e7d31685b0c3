"""The rules by which an estimate is refused, with the reason. All are computed from the log alone.

`benchmarks/` and docs/results/ have the study that they were fixed with.
"""

import dataclasses
import math
from collections.abc import Sequence

LEAST_EPISODES = 8
"""Episodes below which there is no interval worth printing."""
LEAST_EFFECTIVE = 20.0
"""Effective sample size, in episodes, below which weights of whole histories are refused."""
LEAST_ROWS = 50.0
"""Effective sample size, in rows, below which marginal weights are refused."""
MOST_CLIPPED = 0.1
"""Share of first states whose fitted value is outside what rewards allow."""
MOST_CUT = 0.0
"""Share of episodes that were cut before the horizon, above which plain importance sampling, which
has nothing for the steps after the cut, is refused."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the rules look at, for one estimate."""

    estimate: float
    allowed: tuple[float, float]
    """The range of values that rewards allow."""
    episodes: int
    effective: Sequence[float] = ()
    """Effective sample size at each step, in episodes, or in rows for marginal weights."""
    surviving: Sequence[float] = ()
    """Episodes with a weight that is not zero, at each step."""
    clipped: float = 0.0
    cut: float = 0.0


def reason(estimator: str, evidence: Evidence) -> str | None:
    """Return why an estimate is refused, or None."""
    if evidence.episodes < LEAST_EPISODES:
        return f"{evidence.episodes} episodes are too few: at least {LEAST_EPISODES} are needed"
    if estimator in ("importance", "doubly_robust"):
        least, step = _least(evidence.effective)
        if least < LEAST_EFFECTIVE:
            left = int(evidence.surviving[-1])
            return (
                f"at step {step + 1} the weights are worth {least:.2g} episodes, below "
                f"{LEAST_EFFECTIVE:g}; {left} of {evidence.episodes} episodes have only actions "
                "that the policy could have taken"
            )
    if estimator == "importance" and evidence.cut > MOST_CUT:
        return f"{100 * evidence.cut:.2g} % of the episodes were cut before the horizon"
    if estimator == "marginal":
        least, step = _least(evidence.effective)
        if least < LEAST_ROWS:
            return (
                f"at step {step + 1} the weights are worth {least:.2g} rows, below {LEAST_ROWS:g}: "
                "the log has hardly any steps like those of the policy"
            )
    low, high = evidence.allowed
    if not math.isfinite(evidence.estimate) or not low <= evidence.estimate <= high:
        return f"the estimate is outside what the rewards allow, [{low:.4g}, {high:.4g}]"
    if estimator in ("marginal", "fitted_q") and evidence.clipped > MOST_CLIPPED:
        return (
            f"the fitted value of {100 * evidence.clipped:.2g} % of the first states is outside "
            f"what the rewards allow, [{low:.4g}, {high:.4g}]"
        )
    return None


def _least(sizes: Sequence[float]) -> tuple[float, int]:
    """Return the smallest size, and its step."""
    step = min(range(len(sizes)), key=lambda place: sizes[place])
    return float(sizes[step]), step
