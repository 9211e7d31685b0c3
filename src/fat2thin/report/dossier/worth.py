"""Question 4: how much better than current practice the policy is, and how sure we are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.data.operations import reachable_returns
from fat2thin.data.scaling import Scales
from fat2thin.evaluation.held_out import run_batch
from fat2thin.report.dossier.subject import Subject

MOST_STATES = 20_000  # states in which Q is compared with what rewards allow


def value_facts(subject: Subject) -> dict[str, Any]:
    """Return how far Q stays within what rewards allow, and how well it predicts returns."""
    return {"possible": _possible(subject), "calibration": _calibration(subject)}


def _calibration(subject: Subject) -> float | None:
    """Return the correlation of Q with held-out returns at the end of training, over seeds."""
    measured = subject.run.metrics.get("held_out_calibration")
    if measured is None or not len(measured):
        return None
    last = np.asarray(measured[-1], np.float64)
    return float(np.median(last[np.isfinite(last)])) if np.isfinite(last).any() else None


def _possible(subject: Subject) -> float | None:
    """Return the share of judged states and seeds whose Q is a possible discounted return."""
    run = subject.run
    algorithm, problem = run.program.algorithm, run.program.problem
    if algorithm.critics is None:
        return None
    bounds = reachable_returns(subject.log)
    shares = []
    for place in range(len(run.spec.seeds)):
        rows = run_batch(run, subject.judged, place)
        count = len(rows.reward)
        chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_STATES)).astype(int))
        state = jax.tree.map(lambda leaf, place=place: jnp.asarray(leaf)[place], run.states)
        critics = algorithm.critics(state, problem, run.program.config)
        scales = _scales(run.about, place)
        values = np.asarray(
            critics.minimum(rows.observation[chosen], rows.action[chosen]), np.float64
        )
        shift = 0.0 if scales.reward is None else scales.reward.shift
        values = (values + scales.level) / scales.reward_factor
        # A shifted reward shifts every return by its sum over the steps that are left.
        low, high = bounds.low, bounds.high
        if shift:
            left = 1.0 / max(1.0 - problem.discount, 1e-9)
            low, high = low + min(shift, shift * left), high + max(shift, shift * left)
        reach = 0.01 * (high - low)
        shares.append(np.mean((values >= low - reach) & (values <= high + reach)))
    return float(np.mean(shares))


def _scales(about: Any, place: int) -> Scales:
    scales = about.get("scales") or [Scales().to_json()]
    return Scales.from_json(scales[place if len(scales) > 1 else 0])
