"""Untrained runs for tests of the page, so that no update has to be compiled."""

import dataclasses
import functools

import jax
import numpy as np

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data import Dataset
from fat2thin.engine import loop
from fat2thin.evaluation.returns import Evaluation
from fat2thin.runs.identity import columns_to_json
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


def hospital():
    """Return a log with names and units; a dose and an observation are learned as logarithms."""
    rng = np.random.default_rng(0)
    lactate, rate = rng.lognormal(0.7, 0.5, 90), rng.normal(90, 15, 90)
    weight = rng.normal(80, 9, 90)
    dose = np.clip(0.02 * lactate * rng.lognormal(0.0, 0.4, 90), 0.001, 2.0)
    fluids = np.clip(10.0 * lactate + rng.normal(0.0, 8.0, 90), 0.0, 120.0)
    observation = np.stack([lactate, rate, weight], axis=1).astype(np.float32)
    return Dataset(
        name="hospital", observation=observation,
        action=np.stack([dose, fluids], axis=1).astype(np.float32),
        reward=rng.normal(size=90).astype(np.float32), next_observation=np.roll(observation, -1, 0),
        continuation=np.ones(90, np.float32), episode_start=np.arange(0, 90, 15),
        action_low=(0.0, 0.0), action_high=(2.0, 120.0), discount=0.95,
        observation_columns=(
            Column("lactate", "mmol/L", Transform("log", 0.1)), Column("heart rate", "bpm"),
            Column("weight", "kg", Transform("scale", 0.01)),
        ),
        action_columns=(
            Column("noradrenaline", "µg/kg/min", Transform("log", 0.005)), Column("fluids", "mL"),
        ),
    )  # fmt: skip


def hospital_run(**changes):
    """Return an untrained run on `hospital` with two seeds."""
    log = hospital()
    run = untrained_run(
        "fttpo", "hospital.csv", seeds=[0, 4], load=lambda _: log,
        settings={"hidden": (8, 6), "half_width_high": 0.4},
    )  # fmt: skip
    metrics = {
        "step": np.array([10, 20]),
        "half_width": np.array([[0.3, 0.4], [0.12, 0.2]]),
        "logged_inside_support": np.array([[0.5, 0.6], [0.38, 0.45]]),
    }
    about = {**run.about, "columns": columns_to_json(log), **changes}
    return dataclasses.replace(run, step=20, metrics=metrics, about=about)


def run_on(log, folder, algorithm="fttpo", **settings):
    """Return an untrained run on a log that is saved in a folder."""
    path = folder / "two.npz"
    if not path.exists():
        data.save_npz(log, path)
    return untrained_run(algorithm, path, seeds=[0], settings={"hidden": (8, 6), **settings})
