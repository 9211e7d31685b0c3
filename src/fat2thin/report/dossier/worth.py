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
SLACK = 0.01
"""Share of the possible range by which Q may leave it: networks are not exact."""


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
    shares = []
    for place in range(len(run.spec.seeds)):
        kept = run.about.get("scales") or [Scales().to_json()]
        scales = Scales.from_json(kept[place if len(kept) > 1 else 0])
        log = subject.log if scales.reward is None else scales.reward.apply(subject.log)
        bounds = reachable_returns(log)
        rows = run_batch(run, subject.judged, place)
        chosen = np.unique(np.linspace(0, len(rows.reward) - 1, MOST_STATES).astype(int))
        state = jax.tree.map(lambda leaf, place=place: jnp.asarray(leaf)[place], run.states)
        critics = algorithm.critics(state, problem, run.program.config)
        values = critics.minimum(rows.observation[chosen], rows.action[chosen])
        found = np.asarray(values, np.float64) + scales.level
        slack = SLACK * (bounds.high - bounds.low)
        shares.append(np.mean((bounds.low - slack <= found) & (found <= bounds.high + slack)))
    return float(np.mean(shares))
