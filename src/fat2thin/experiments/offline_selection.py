"""Choosing settings from a log alone: learn from four fifths of its episodes, ask the rest."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from fat2thin import data
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.predictability import is_noisy
from fat2thin.evaluation.held_out import preference
from fat2thin.evaluation.returns import NO_TASK
from fat2thin.experiments.plan import Planned
from fat2thin.training import Run, RunSpec

CRITERIA = {"offline": "what the held-out fifth of the log says, see docs/selection.md"}
HELD_OUT = 0.2


def plan(specs: Mapping[str, RunSpec], folder: str) -> list[Planned]:
    """Runs with a part of the log held out, by setting; none is judged in any environment."""
    return [
        Planned(
            f"{folder}/{setting}",
            dataclasses.replace(spec, holdout=spec.holdout or HELD_OUT, task=NO_TASK),
        )
        for setting, spec in specs.items()
    ]


def scores(runs: Mapping[str, Run]) -> dict[str, np.ndarray]:
    """By setting: a score a seed, larger is better, of runs by the names that `plan` gave them."""
    return {name.rsplit("/", 1)[1]: _scores(run) for name, run in runs.items()}


def _scores(run: Run) -> np.ndarray:
    """One score per seed; nan for a seed that stopped or whose signal is not estimable."""
    stopped = np.asarray([str(seed) in run.about.get("stopped", {}) for seed in run.spec.seeds])
    if stopped.all():
        return np.full(len(stopped), np.nan)
    log, seed = data.load(run.spec.dataset, run.spec.seeds[0]), run.spec.seeds[0]
    of_log = seed if data.reader(run.spec.dataset).one_a_seed else 0
    learned, _ = learned_and_held_out(log, run.spec.holdout, of_log)
    noisy = is_noisy(learned)
    signals = {name: jnp.asarray(values) for name, values in run.metrics.items()}
    by_row = np.asarray(preference(signals, noisy))
    if run.spec.select == "offline":
        # As in training: what is not a number is never selected.
        known = np.isfinite(by_row)
        best = np.max(by_row, axis=0, initial=-np.inf, where=known)
        last_or_best = np.where(known.any(axis=0), best, np.nan)
    else:
        last_or_best = by_row[-1]
    return np.where(stopped, np.nan, last_or_best)
