"""Referrals on a log, and the price of caution: returns with a fallback in referred states."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key
from numpy import ndarray

from fat2thin.data.dataset import Dataset
from fat2thin.data.operations import episode_lengths
from fat2thin.data.row_arrays import blocks
from fat2thin.evaluation.limited import states_of
from fat2thin.evaluation.returns import REFERRED, Evaluation, HostJudge, Judge
from fat2thin.evaluation.statistics import Profile, clustered_share, seed_interval
from fat2thin.policies.decision import (
    CONFLICT,
    FORBIDDEN,
    OUTSIDE,
    REASONS,
    Cautious,
    Decision,
    Thresholds,
    fallback_of,
    with_referral,
)
from fat2thin.policies.policy import WAYS, Policy
from fat2thin.tables import Table

ACTS, REFERS, FALLBACK = "always acts", "refers", "always the fallback"
"""Rows of the table: the policy without referrals, with them, and the fallback alone."""
_ALL = Thresholds(distance=0.0, disagreement=0.0)  # every state is farther than 0 from the log


def referral_table(policy: Policy, dataset: Dataset) -> Table:
    """Return the share of a log's states that a policy refers, and of each reason.

    Intervals are 95 % bootstrap intervals over episodes. The last action is the logged one.
    """
    found = decisions_on(policy, dataset)
    referral = policy.referral
    thresholds, coverage = referral.thresholds, referral.coverage
    rows = []
    for name, mask in {REFERRED: found.referred, **found.because}.items():
        if name not in (CONFLICT, FORBIDDEN) or policy.limits is not None:
            share = share_of(mask, dataset)
            ends = {"low": float(share.low), "high": float(share.high)}
            rows.append({"reason": name, "share": float(share.share), **ends})
    notes = [
        f"shares of {dataset.rows:,} states; intervals: 95 %, bootstrap over episodes; a state may "
        "have several reasons",
        f"thresholds: distance {thresholds.distance:g}, "
        f"disagreement {thresholds.disagreement:g} of the box",
    ]
    if thresholds.distance == 1.0:
        nominal = 1.0 - coverage.share
        notes.append(f"{OUTSIDE}: nominal share {nominal:.3g}, for states like those of the log")
    return Table(f"referrals on {dataset.name}", tuple(rows), tuple(notes))


def decisions_on(policy: Policy, dataset: Dataset) -> Decision:
    """Return what is decided in every state of a log, with the logged last actions."""
    parts = [
        policy.decide(seen.observation, last=seen.last)
        for rows in blocks(dataset.observation)
        for seen in [states_of(dataset, rows)]
    ]
    whole = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in dataclasses.fields(Decision)
        if isinstance(getattr(parts[0], field.name), np.ndarray)
    }
    because = {
        name: np.concatenate([part.because[name] for part in parts]) for name in parts[0].because
    }
    return dataclasses.replace(parts[0], **whole, because=because)


def share_of(mask: Bool[ndarray, "*batch rows"], dataset: Dataset) -> Profile:
    """Return the share of a log's rows, with its interval over episodes."""
    counts = np.add.reduceat(mask.astype(float), dataset.episode_start, axis=-1)
    return clustered_share(counts, episode_lengths(dataset).astype(float))


def evaluate_caution(
    policy: Policy, judge: Judge, fallback: Any, key: Key[Array, ""], episodes: int
) -> dict[str, Evaluation]:
    """Return the results of acting always, with referrals, and by the fallback alone.

    All play the same episodes: returns have the shape (episodes,). Names are those of the rows,
    with the way of acting. `fallback` is as in `policies.decision.fallback_of`. Steps referred are
    measures of tasks in JAX from this package and of Gymnasium tasks.
    """
    action = fallback_of(fallback, policy)
    acting: dict[str, Any] = {
        ACTS: policy,
        REFERS: Cautious(policy, action),
        FALLBACK: Cautious(with_referral(policy, thresholds=_ALL), action),
    }
    if isinstance(judge, HostJudge):
        stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], acting)
        found = judge.judge(stacked, key[None], episodes)
        return {
            f"{name}, {way}": jax.tree.map(lambda values: values[0], found[f"{name}_{way}"])
            for name in acting
            for way in _ways(name)
        }
    evaluate = eqx.filter_jit(lambda act: judge.evaluate(act, key, episodes))
    return {
        f"{name}, {way}": jax.device_get(evaluate(WAYS[way](one)))
        for name, one in acting.items()
        for way in _ways(name)
    }


def _ways(name: str) -> list[str]:
    # A fallback has one action per state, so both ways of acting are the same.
    return [*WAYS][:1] if name == FALLBACK else [*WAYS]


def caution_table(title: str, found: Mapping[str, Evaluation], rule: str) -> Table:
    """Return a table of `evaluate_caution`, with the price of caution.

    "price" is the mean return of acting always minus that of the row, on the same episodes.
    Intervals are 95 % bootstrap intervals over episodes.
    """
    rows = []
    for name, one in found.items():
        row, _, way = name.partition(", ")
        returns = np.asarray(one.returns, np.float64)[:, None]
        always = np.asarray(found[f"{ACTS}, {way}"].returns, np.float64)[:, None]
        interval, price = seed_interval(returns), seed_interval(always - returns)
        counted = float(one.measures.get(REFERRED, np.nan))
        referred = {FALLBACK: 1.0, ACTS: 0.0}.get(row, counted)
        rows.append(
            {"policy": name, "mean": interval.value, "low": interval.low, "high": interval.high}
            | {"referred": referred, "price": price.value, "from": price.low, "to": price.high}
        )
    notes = [
        "referred: share of the steps; price: what caution costs in mean return, acting always "
        "minus this row on the same episodes (below 0, caution pays)",
        "intervals: 95 %, bootstrap over episodes",
        f"fallback: {rule}",
    ]
    for name, one in found.items():
        shares = [f"{key} {float(one.measures[key]):.3f}" for key in REASONS if key in one.measures]
        if shares and name.startswith(f"{REFERS},"):
            notes.append(f"{name}, by reason: {', '.join(shares)}")
    return Table(title, tuple(rows), tuple(notes))
