"""Random policies of every kind that certificates cover, and attacks on them."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.columns import Column, Transform
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.families import Deterministic, Sparse, Squashed
from fat2thin.policies.limits import Limits
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import unit_policy
from fat2thin.safety import Box

OBSERVATION, ACTION = ("severity", "weight", "age"), ("dose", "rest")
LOW, HIGH = (0.25, -2.0), (1.0, 3.0)
RULES = {
    "none": None,
    "cap": {"cap": "dose <= 0.8 when severity > 2"},
    "linear": {
        "linear": "dose <= 0.01 * weight - 0.07 * severity + 0.5",
        "floor": "rest >= 0.1 * age",
    },
    "rate": {"rate": "abs(dose - last_dose) <= 0.1", "most": "rest < 2.5"},
    "stop": {
        "stop": "no action when severity < 0.1",
        "cap": "rest <= 1.5 when not (age > 0 and weight <= 60)",
    },
    "equal": {
        "equal": "dose == 0.5 when severity >= 1",
        "low": "rest >= 0 when weight + 10 * age > 80",
    },
    "fallback": {
        "cap": "dose <= 0.4 when severity > 1",
        "low": "dose >= 0.6 when age > 1",
        "fallback": {"dose": 0.25, "rest": 0.0},
    },
}
KINDS = {
    "sparse": Sparse(), "clip": Sparse(box="clip"), "deterministic": Deterministic(),
    "squashed": Squashed(),
}  # fmt: skip
MEAN, SCALE = np.array([1.5, 60.0, 0.3], np.float32), np.array([0.9, 20.0, 1.2], np.float32)


def network_of(key, hidden, sharpness, inputs=3, actions=2):
    """A network with larger weights and biases than a fresh one."""
    network = PolicyNetwork(key, inputs, action_size=actions, hidden=hidden)
    leaves, structure = jax.tree.flatten(network)
    keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
    noisy = [
        sharpness * leaf + 0.3 * jax.random.normal(one, leaf.shape)
        for one, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def policy_of(number, kind="sparse", rules="none", members=1, rule="median", hidden=(8, 8),
              sharpness=1.5, transformed=False):  # fmt: skip
    """A policy on raw observations, with a box, limits and perhaps several members."""
    observed = (Transform("log", 0.5), None, None) if transformed else ()
    acted = (Transform("log", 0.1), Transform("scale", 3.0)) if transformed else ()
    keys = jax.random.split(jax.random.key(number), members)

    def one(key):
        made = unit_policy(network_of(key, hidden, sharpness), KINDS[kind], (0.02, 0.7))
        return made.in_box(LOW, HIGH).on_raw(jnp.asarray(MEAN), jnp.asarray(SCALE), observed, acted)

    policy = one(keys[0])
    if members > 1:
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *map(one, keys))
        policy = ensemble_of(stacked, rule)
    columns = tuple(
        Column(name, "", change)
        for name, change in zip(OBSERVATION, observed or (None,) * 3, strict=True)
    )
    acting = tuple(
        Column(name, "", change) for name, change in zip(ACTION, acted or (None,) * 2, strict=True)
    )
    policy = dataclasses.replace(policy, observation_columns=columns, action_columns=acting)
    if RULES[rules] is None or kind == "clip":
        return policy
    return policy.with_limits(Limits.parse(RULES[rules], columns, acting, LOW, HIGH))


def box_of(rng, policy, size):
    """A random box of states around a random state, with one fixed column now and then."""
    middle = np.array([rng.uniform(0.0, 3.0), rng.uniform(30.0, 90.0), rng.normal(0.3, 1.2)])
    half = size * SCALE * rng.uniform(0.2, 1.0, 3) * (rng.random(3) > 0.2)
    low, high = middle - half, middle + half
    low[0], high[0] = max(low[0], 0.0), max(high[0], 0.0)
    names, steps = OBSERVATION, (False,)
    if policy.needs_last_action:
        names = (*names, *(f"last_{name}" for name in ACTION))
        low, high = np.append(low, LOW), np.append(high, HIGH)
        steps = (False, True)
    return Box(names, tuple(low.tolist()), tuple(high.tolist()), names, steps)


@eqx.filter_jit
def _ends(policy, observation, last):
    low, high = policy.support(observation, **({} if last is None else {"last": last}))
    box = policy.low[None], policy.high[None]
    return jnp.clip(low, *box), jnp.clip(high, *box)


def sampled(policy, box, rng, count):
    """States of a box: random ones, corners and edges; the last actions are nan at first steps."""
    low, high = np.asarray(box.low), np.asarray(box.high)
    share = rng.random((count, len(low)))
    corner = rng.random((count, 1)) < 0.5
    share = np.where(corner & (rng.random(share.shape) < 0.8), np.round(share), share)
    states = (low + (high - low) * share).clip(low, high)
    if True in box.steps:
        states[rng.random(count) < 0.2, len(OBSERVATION) :] = np.nan
    return states


def ends(policy, states):
    """The lowest and the highest action of the deployed float32 policy at states."""
    last = jnp.asarray(states[:, len(OBSERVATION) :], jnp.float32)
    last = last if policy.needs_last_action else None
    return _ends(policy, jnp.asarray(states[:, : len(OBSERVATION)], jnp.float32), last)


def blocks(policy, states, size=20_000):
    """Yield the most extreme actions of the policy at blocks of states."""
    for start in range(0, len(states), size):
        low, high = map(np.asarray, ends(policy, states[start : start + size]))
        if not np.isnan(low).all():
            yield np.nanmin(low, axis=0), np.nanmax(high, axis=0)


def attacked(policy, box, rng, count=256, steps=6):
    """The most extreme actions that samples, then steps along their slopes, find."""
    low, high = np.asarray(box.low), np.asarray(box.high)
    least, most = np.full(2, np.inf), np.full(2, -np.inf)
    for side in (-1.0, 1.0):
        states = sampled(policy, box, rng, count)
        for step in range(steps):
            found = [np.asarray(end, np.float64) for end in ends(policy, states)]
            if not np.isnan(found[0]).all():
                least = np.fmin(least, np.nanmin(found[0], axis=0))
                most = np.fmax(most, np.nanmax(found[1], axis=0))
            action = int(rng.integers(2))
            slopes = np.asarray(_slopes(policy, states, side, action))
            moved = states + side * 0.3 / (1 + step) * (high - low) * np.sign(np.nan_to_num(slopes))
            states = np.where(np.isnan(states), states, moved.clip(low, high))
    return least, most


def _slopes(policy, states, side, action):
    last = jnp.asarray(states[:, len(OBSERVATION) :], jnp.float32)
    seen = jnp.asarray(states[:, : len(OBSERVATION)], jnp.float32)
    made = _gradient(policy, seen, last if policy.needs_last_action else None, side > 0, action)
    return np.pad(np.asarray(made), ((0, 0), (0, states.shape[1] - made.shape[1])))


@eqx.filter_jit
def _gradient(policy, seen, last, upper, action):
    def total(one):
        low, high = _ends(policy, one, last)
        return jnp.nansum(jnp.where(upper, high, low)[:, action])

    return jax.grad(total)(seen)


CASES = [
    {"kind": "sparse", "rules": "linear"},
    {"kind": "sparse", "rules": "rate", "transformed": True},
    {"kind": "sparse", "rules": "cap", "members": 3, "rule": "consensus"},
    {"kind": "sparse", "rules": "stop", "members": 2},
    {"kind": "clip", "hidden": (5, 5, 5)},
    {"kind": "deterministic", "rules": "fallback"},
    {"kind": "squashed", "rules": "equal"},
    {"kind": "sparse", "rules": "fallback", "members": 5, "rule": "median", "transformed": True},
    {"kind": "sparse", "rules": "none", "members": 4, "rule": "consensus", "hidden": (12,)},
    {"kind": "sparse", "rules": "equal", "hidden": (16, 16)},
]


QUICK = [CASES[place] for place in (1, 2, 5)]


def named(case):
    """The name of a case in a test's id."""
    return "-".join(map(str, case.values()))
