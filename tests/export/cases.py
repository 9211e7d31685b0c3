"""Policies to export, and their answers by JAX and SciPy: what exports are compared with."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from fat2thin.columns import Column, Transform, inverse_transform, transform
from fat2thin.data import Dataset
from fat2thin.data.coverage import summarise_states
from fat2thin.export.contents import contents_of, synthetic_states
from fat2thin.export.portable import LEAST_TAIL, REASONS, Answer
from fat2thin.export.rounding import RoundingBound
from fat2thin.policies import families
from fat2thin.policies.decision import Thresholds, with_referral
from fat2thin.policies.ensemble import ensemble_of
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.plain import plain_family, plain_policy
from fat2thin.policies.policy import unit_policy
from fat2thin.report.page_policies import quantile

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


SHARES = np.array([0.0, LEAST_TAIL, 0.5, 1.0 - 2.0**-24, 1.0], np.float32)


class Case(NamedTuple):
    """A policy with states and the answers that exports must give."""

    contents: object
    states: object
    expected: Answer
    """By JAX and SciPy; the action also where the state is referred."""
    near: np.ndarray
    """States so close to a threshold or a condition that rounding decides."""
    ends_bound: np.ndarray
    action_bound: np.ndarray


def case_of(policy, count, seed=1):
    """Return the states of a policy and its answers, by JAX and SciPy alone."""
    contents = contents_of(plain_policy(policy))
    states = synthetic_states(contents, count, seed)
    states.uniform[: 2 * len(SHARES)] = np.tile(SHARES, 2)[:, None]
    with np.errstate(all="ignore"):
        decided = policy.decide(states.observation, last=states.last)
        valid = ~decided.because["invalid input"]
        last = None if states.last is None else states.last[valid]
        seen = states.observation[valid]
        centre = np.full(states.uniform.shape, np.nan)
        low, high, action = centre.copy(), centre.copy(), centre.copy()
        ends = policy.support(seen, last)
        box = np.asarray(policy.low), np.asarray(policy.high)
        low[valid], high[valid] = (np.clip(np.asarray(end), *box) for end in ends)
        centre[valid] = type(policy).act_and_agree(policy, seen, None, last)[0]
        action[valid] = _action(policy, contents, seen, states.uniform[valid].astype(float),
                                low[valid], high[valid], centre[valid])  # fmt: skip
    codes = sum(np.where(decided.because[name], code, 0) for code, name in REASONS.items())
    bounds = RoundingBound(contents).bounds(states)
    thresholds = policy.referral.thresholds
    close = np.abs(decided.distance / thresholds.distance - 1.0) <= 1e-5
    close |= np.abs(decided.disagreement / thresholds.disagreement - 1.0) <= 1e-5
    # Where a limit is open or float32 overflows there is no bound.
    near = close | ~np.isfinite(bounds[0]).all(axis=1)
    answer = Answer(action, centre, low, high, decided.referred.astype(int), codes)
    return Case(contents, states, answer, near, *bounds)


def _action(policy, contents, seen, share, low, high, centre):
    """Return quantiles by SciPy: of the band, or of the law that the head gives."""
    if not contents.settings["sampling"]["samples"]:
        return centre
    family, plain = policy.family, plain_family(policy.family)
    transforms = family.transforms if isinstance(family, families.Transformed) else ()
    tail = np.clip(np.minimum(share, 1.0 - share), LEAST_TAIL, 0.5)
    law = plain.settings()
    if plain.kind == "sparse" and plain.box == "inside":
        ends = [transform(end.astype(np.float64), transforms) for end in (low, high)]
        place, reach = (ends[0] + ends[1]) / 2.0, (ends[1] - ends[0]) / 2.0
        below = quantile(law, np.zeros_like(place), np.zeros_like(place), tail)
        drawn = place + reach * np.where(share > 0.5, -below, below)
    elif policy.limits is not None:
        head = [np.asarray(part, np.float64) for part in policy.network(jnp.asarray(seen))]
        box = [transform(np.float64(end), transforms) for end in (policy.low, policy.high)]
        ends = [transform(end.astype(np.float64), transforms) for end in (low, high)]
        drawn = _truncated(plain, contents.settings["sampling"]["edge"], head, box, ends, share)
    else:
        head = [np.asarray(part, np.float64) for part in policy.network(jnp.asarray(seen))]
        if plain.kind == "squashed":
            mirrored = np.tanh(2.0 * head[0] - np.arctanh(quantile(law, *head, tail)))
            mirrored = np.where(np.isfinite(mirrored), mirrored, 1.0)
        else:
            mirrored = 2.0 * head[0] - quantile(law, *head, tail)
        found = np.where(share > 0.5, mirrored, quantile(law, *head, tail))
        ends = [transform(np.float64(end), transforms) for end in (policy.low, policy.high)]
        drawn = (ends[0] + ends[1]) / 2.0 + (ends[1] - ends[0]) / 2.0 * found
    return np.clip(inverse_transform(drawn, transforms), low, high)


def _truncated(plain, edge, head, box, ends, share):
    """Return quantiles of laws restricted to an interval, by SciPy's log tail probabilities."""
    middle, half = (box[0] + box[1]) / 2.0, (box[1] - box[0]) / 2.0
    law, factor = standard_law(plain)
    scale = np.exp(head[1]) * factor

    def line(value):
        if plain.kind != "squashed":
            return (value - middle) / half
        least = 2.0 * half * 2.0**-23  # as the truncated law has it
        return (np.log(np.maximum(value - box[0], least))
                - np.log(np.maximum(box[1] - value, least))) / 2.0  # fmt: skip

    left, right = ((line(end) - head[0]) / scale for end in ends)
    away = truncated_quantile(law, edge, left, right, share)
    found = head[0] + scale * away
    return middle + half * (np.tanh(found) if plain.kind == "squashed" else found)


def standard_law(plain):
    """Return a Gaussian or a Student-t of SciPy, and how many of its scales are one of the law."""
    if plain.kind == "student":
        return stats.t(plain.freedom), 1.0
    if plain.kind == "squashed" or plain.index == 1.0:
        return stats.norm, 1.0
    return stats.t((3.0 - plain.index) / (plain.index - 1.0)), np.sqrt(2.0 / (3.0 - plain.index))


def truncated_quantile(law, edge, left, right, share):
    """Return quantiles of a standard law on [left, right], by bisection of log tails."""
    left, right = np.nan_to_num(left), np.nan_to_num(right)
    mirrored = left + right < 0.0
    begin, end = np.where(mirrored, -right, left), np.where(mirrored, -left, right)
    share, rest = np.where(mirrored, 1.0 - share, share), np.where(mirrored, share, 1.0 - share)
    with np.errstate(divide="ignore"):
        shares = np.log(rest), np.log(share)
    above, below = (
        np.logaddexp(shares[0] + log_share(begin), shares[1] + log_share(end))
        for log_share in (law.logsf, law.logcdf)
    )
    # Of the two probabilities on both sides, the smaller one has the digits.
    downward = below < above
    # A tail below the least counts as it: of the law, or of what the interval has of it.
    least = np.log(LEAST_TAIL)
    above = np.maximum(above, np.where(begin > edge, law.logsf(begin) + least, least))
    least, most = begin.copy(), np.maximum(begin, end)
    for _ in range(80):
        middle = least + (most - least) / 2.0
        lower = np.where(downward, law.logcdf(middle) < below, law.logsf(middle) > above)
        least, most = np.where(lower, middle, least), np.where(lower, most, middle)
    found = np.clip(np.maximum(least, -law.isf(LEAST_TAIL)), begin, np.maximum(begin, end))
    return np.where(mirrored, -found, found)


def check(case, found):
    """Raise an AssertionError where an answer is not that of the policy; return what was compared.

    The result is the largest difference as a share of the bound, and the number of states in which
    rounding may decide on a referral.
    """
    expected, valid = case.expected, case.expected.reason & 16 == 0
    differs = found.refer != expected.refer
    assert not (differs & ~case.near).any(), np.flatnonzero(differs & ~case.near)[:5]
    assert ((found.reason != 0) == (found.refer == 1)).all()
    assert (found.refer[~valid] == 1).all() and (found.reason[~valid] == 16).all()
    acts = (found.refer == 0) & (expected.refer == 0)
    assert ((found.low <= found.action) & (found.action <= found.high))[found.refer == 0].all()
    fallback = case.contents.settings["fallback"]
    referred = found.action[found.refer == 1]
    if fallback is None:
        assert np.isnan(referred).all()
    else:
        assert (np.float32(referred) == np.float32(fallback)).all()
    largest = 0.0
    for name in ("low", "high", "centre", "action"):
        rows = acts if name == "action" else valid & (found.reason != 16)
        bound = (case.action_bound if name == "action" else case.ends_bound)[rows]
        one, other = (np.asarray(getattr(answer, name))[rows] for answer in (found, expected))
        with np.errstate(invalid="ignore"):
            share = np.abs(one - other) / bound
        known = np.isfinite(bound)
        assert (np.isnan(one) == np.isnan(other))[known].all(), name
        share = share[known & ~np.isnan(one)]
        assert (share <= 1.0).all(), (name, share.max())
        largest = max(largest, float(share.max(initial=0.0)))
    return largest, int(case.near.sum())
