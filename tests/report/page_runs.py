"""Untrained runs for tests of the page, so that no update has to be compiled."""

import dataclasses
import functools

import jax
import numpy as np

from fat2thin import data
from fat2thin.data import Dataset
from fat2thin.engine import loop
from fat2thin.evaluation.returns import Evaluation
from fat2thin.runs.result import Evaluations
from untrained import untrained_run

SEED = 5
"""The seed that the page shows; the other seed stopped."""
STRANGE = '</script><img src=x onerror="document.title=1">{{script}}'
STOPPED = {"3": {"step": 20, "last_good_step": 20, "metric": "loss", "why": "so that 5 is shown"}}


@functools.cache
def treatment_run():
    """Return a run on the treatment task: two seeds, three saved steps, three evaluations."""
    run = untrained_run(
        "fttpo", "treatment/quadratic", seeds=[3, SEED],
        settings={"hidden": (8, 6), "half_width_high": 0.6},
    )  # fmt: skip
    snapshots = {0: _weaker_policies(run, 0.5), 10: _weaker_policies(run, 0.8)}
    rng = np.random.default_rng(0)
    names = [f"{policy}_{way}" for policy in ("actor", "proposal") for way in ("sampled", "centre")]
    returns = {name: Evaluation(rng.normal(2.0, 1.0, (3, 2, 4)), {}) for name in names}
    return dataclasses.replace(
        run,
        spec=dataclasses.replace(run.spec, steps=20, snapshots=(0, 10)),
        step=20,
        evaluations=Evaluations((0, 10, 20), returns),
        snapshots=snapshots,
        about={**run.about, "stopped": STOPPED},
    )


def _weaker_policies(run, factor):
    """Return policies with all network weights multiplied by a factor."""
    states = jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), run.states)
    return loop.policies(states, run.jobs, program=run.program)


def other(run, **changes):
    """Return the run with another specification."""
    return dataclasses.replace(run, spec=dataclasses.replace(run.spec, **changes))


def with_setting(run, **changes):
    """Return the run with other settings of its algorithm."""
    return other(run, config=dataclasses.replace(run.spec.config, **changes))


def two_coordinates():
    """Return a log with two action coordinates and a box other than [-1, 1]."""
    rng = np.random.default_rng(0)
    observation = rng.normal(3.0, 2.0, (60, 3)).astype(np.float32)
    action = rng.uniform((-2.0, 0.0), (2.0, 10.0), (60, 2)).astype(np.float32)
    still = np.zeros(60, np.float32)
    return Dataset(
        name="two", observation=observation, action=action,
        reward=still, next_observation=observation, continuation=still + 1,
        episode_start=[0, 30], action_low=(-2.0, 0.0), action_high=(2.0, 10.0), discount=0.9,
    )  # fmt: skip


def run_on(log, folder, algorithm="fttpo", **settings):
    """Return an untrained run on a log that is saved in a folder."""
    path = folder / "two.npz"
    if not path.exists():
        data.save_npz(log, path)
    return untrained_run(algorithm, path, seeds=[0], settings={"hidden": (8, 6), **settings})
