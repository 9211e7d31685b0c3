"""The rules by which an estimate is refused, with the reason. All are computed from the log alone.

`benchmarks/value.py` judges them on problems with known values.
"""

import dataclasses
import math
from collections.abc import Sequence

LEAST_EPISODES = 40
"""Episodes below which there is no interval worth printing."""
LEAST_EFFECTIVE = {"marginal": 50.0, "doubly_robust": 50.0, "importance": 50.0}
"""Effective sample size, in episodes, below which an estimator is refused."""
LEAST_INSIDE = 30
"""Logged actions inside the band below which no density is estimated."""
MOST_CLIPPED = 0.1
"""Share of first states whose fitted value is outside what rewards allow."""
MOST_APART = 0.1
"""By how much the discounted steps of practice may differ from those that its states explain."""
MOST_BEFORE = 0.01
"""How much the step before may tell about the next observation beyond the step itself."""
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
    """Effective sample size at each step, in episodes."""
    surviving: Sequence[float] = ()
    """Episodes with a weight that is not zero, at each step."""
    clipped: float = 0.0
    cut: float = 0.0
    steps: tuple[float, float] = (1.0, 1.0)
    """Discounted steps of an episode of practice: as logged, and if states explain all ends."""
    before: float = 0.0
    """The partial R² of the step before for the next observation."""


def reason(estimator: str, evidence: Evidence) -> str | None:
    """Return why an estimate is refused, or None."""
    if few := too_few_episodes(evidence.episodes):
        return few
    logged, by_states = evidence.steps
    if estimator == "marginal" and not abs(by_states - logged) <= MOST_APART * logged:
        return (
            f"the states do not explain where episodes end: by them, {by_states:.3g} discounted "
            f"steps are expected in an episode, and {logged:.3g} were logged. If episodes end by "
            "the clock, mark these ends as cut"
        )
    if estimator == "marginal" and not evidence.before <= MOST_BEFORE:
        return (
            f"the step before explains {100 * evidence.before:.2g} % of what a step leaves open "
            f"about the next observation, above {100 * MOST_BEFORE:g} %: observations do not hold "
            "all that counts, or not in a usable form. Add what is missing, such as earlier values"
        )
    least, step = _least(evidence.effective)
    needed = LEAST_EFFECTIVE[estimator]
    if least < needed:
        worth = f"at step {step + 1} the weights are worth {least:.2g} episodes, below {needed:g}"
        if estimator in ("importance", "doubly_robust"):
            return f"{worth}; {_survivors(evidence.surviving[-1], evidence.episodes)}"
        return f"{worth}: the log has hardly any steps like those of the policy"
    if estimator == "importance" and evidence.cut > MOST_CUT:
        return f"{100 * evidence.cut:.2g} % of the episodes were cut before the horizon"
    low, high = evidence.allowed
    if not math.isfinite(evidence.estimate) or not low <= evidence.estimate <= high:
        return f"the estimate is outside what the rewards allow, [{low:.4g}, {high:.4g}]"
    if estimator == "marginal" and evidence.clipped > MOST_CLIPPED:
        return (
            f"the fitted value of {100 * evidence.clipped:.2g} % of the first states is outside "
            f"what the rewards allow, [{low:.4g}, {high:.4g}]"
        )
    return None


def too_few_episodes(count: int) -> str | None:
    """Return why there is no interval for this number of episodes, or None."""
    if count >= LEAST_EPISODES:
        return None
    return f"{count} episodes are too few: at least {LEAST_EPISODES} are needed"


def too_few_inside(rows: int) -> str:
    """Return why a policy that could have taken so few logged actions has no weights."""
    return (
        f"the policy could have taken {rows} of the logged actions, and {LEAST_INSIDE} are needed"
    )


def _survivors(count: float, episodes: int) -> str:
    return f"{int(count)} of {episodes} episodes have only actions that the policy could have taken"


def _least(sizes: Sequence[float]) -> tuple[float, int]:
    """Return the smallest size, and its step."""
    step = min(range(len(sizes)), key=lambda place: sizes[place])
    return float(sizes[step]), step
