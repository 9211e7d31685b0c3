"""Policies to export: every family, with and without limits, transforms and several seeds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.columns import Column, Transform
from fat2thin.data import Dataset
from fat2thin.data.coverage import summarise_states
from fat2thin.policies import families
from fat2thin.policies.decision import Thresholds, with_referral
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import unit_policy

COLUMNS = {
    False: (
        (Column("severity"), Column("weight", "kg"), Column("rate")),
        (Column("dose"), Column("flow")),
    ),
    True: (
        (
            Column("severity", "", Transform("log", 1.5)), Column("weight", "kg"),
            Column("rate", "", Transform("scale", 0.5)),
        ),
        (Column("dose", "mg", Transform("log", 0.5)), Column("flow", "", Transform("scale", 3.0))),
    ),
}  # fmt: skip
BOX = ((0.0, -1.0), (2.0, 5.0))
LIMITS = {
    "cap": "dose <= 1.2 when severity > 1",
    "slope": "dose <= 0.3 * severity + 0.2 * weight + 1.5",
    "floor": "flow > -0.5 when rate + severity > 0 or not weight < 2",
    "rate": "abs(dose - last_dose) <= 0.4",
    "point": "flow == 1 when weight > 3",
    "stop": "no action when rate > 3",
    "fallback": {"dose": 0.5, "flow": 0.0},
}
FAMILIES = {
    "sparse": families.Sparse(),
    "sparse_half": families.Sparse(0.5),
    "sparse_flat": families.Sparse(-1.0),
    "sparse_clip": families.Sparse(0.0, "clip"),
    "gaussian": families.HeavyTailed(1.0),
    "cauchy": families.HeavyTailed(2.0),
    "student": families.HeavyStudent(3.0),
    "squashed": families.Squashed(),
    "beta": families.Beta(),
    "deterministic": families.Deterministic(),
}
VARIANTS = ("plain", "limits", "transforms", "transforms limits", "ensemble", "ensemble limits")
CASES = [
    (family, variant) for family in FAMILIES for variant in VARIANTS
    if not ("limits" in variant and family == "sparse_clip")
]  # fmt: skip


@functools.cache
def log(transformed=False, rows=400):
    """Return a log that no policy learned from: only its summary is used."""
    draw = np.random.default_rng(3)
    observation = np.stack(
        [draw.lognormal(0, 0.6, rows), draw.normal(1.0, 1.5, rows), draw.normal(0, 1.5, rows)], 1
    ).astype(np.float32)
    still = np.zeros(rows, np.float32)
    return Dataset(
        name="log", observation=observation,
        action=draw.uniform(*BOX, (rows, 2)).astype(np.float32), reward=still,
        next_observation=observation, continuation=still + 1,
        episode_start=np.arange(0, rows, 10), action_low=BOX[0], action_high=BOX[1], discount=0.9,
        observation_columns=COLUMNS[transformed][0], action_columns=COLUMNS[transformed][1],
    )  # fmt: skip


@functools.cache
def coverage(transformed):
    return summarise_states(log(transformed))


def one_policy(family, transformed, seed, hidden=(16, 16)):
    observation, action = COLUMNS[transformed]
    network = PolicyNetwork(jax.random.key(seed), 3, 2, hidden)
    draw = np.random.default_rng(seed)
    network = jax.tree.map(
        lambda leaf: leaf + jnp.asarray(draw.normal(0, 0.2, leaf.shape)), network
    )
    policy = unit_policy(network, FAMILIES[family], (0.02, 0.8))
    transforms = [
        tuple(column.transform for column in columns) if transformed else ()
        for columns in (observation, action)
    ]
    mean, scale = jnp.array([0.3, 1.0, 0.1]), jnp.array([0.8, 1.5, 1.2])
    return policy.in_box(*BOX).on_raw(mean, scale, *transforms)


@functools.cache
def policy(family="sparse", variant="plain", members=3):
    """Return a policy as `run.policy()` would, with a summary of the log."""
    import dataclasses

    transformed = "transforms" in variant
    if "ensemble" in variant:
        # Alike, so that most of their bands overlap.
        base = one_policy(family, transformed, 0)
        draw = np.random.default_rng(9)
        stacked = jax.tree.map(
            lambda leaf: jnp.stack(
                [
                    leaf + jnp.asarray(draw.normal(0, 0.03, leaf.shape)) * (leaf.ndim > 1)
                    for _ in range(members)
                ]
            ),
            base,
        )
        made = ensemble_of(stacked)
    else:
        made = one_policy(family, transformed, 0)
    observation, action = COLUMNS[transformed]
    made = dataclasses.replace(made, observation_columns=observation, action_columns=action)
    made = with_referral(made, coverage(transformed), Thresholds(1.0, 0.1))
    return made.with_limits(LIMITS) if "limits" in variant else made
