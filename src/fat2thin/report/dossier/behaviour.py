"""Question 1: what the policy does in typical states, next to what was done."""

from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.columns import inverse_transform
from fat2thin.data.dataset import extremes
from fat2thin.data.operations import episode_lengths
from fat2thin.report.dossier.answer import Answer, joined, number, percent
from fat2thin.report.dossier.influence import Influence
from fat2thin.report.dossier.subject import ROUNDING, Subject
from fat2thin.tables import Table

TYPICAL = 8  # states that are shown
SHOWN_COLUMNS = 6  # columns of a state that are shown: those that move the band most
FEWEST_ROWS, FEWEST_EPISODES = 20, 3
"""Of a group of logged steps whose numbers may be shown."""
ENOUGH = 100
"""Decisions of which none has the logged dose in its band only if the policy does something else:
where one in ten has, the chance of none is 3e-5."""
_TAILS = (0.05, 0.95)


def describe(subject: Subject, influence: Influence) -> Answer:
    """Return the answer to the first question."""
    policy, bands = subject.policy, subject.bands
    actions = policy.action_columns
    table, picture = _typical(subject, influence)
    facts: dict[str, Any] = {"judged_states": subject.judged.rows}
    facts |= _shares(subject)
    doses, acts = [], bands.acts
    for place, column in enumerate(actions if acts.any() else ()):
        low, high, done = bands.low[acts, place], bands.high[acts, place], bands.logged[:, place]
        inner, was = (np.quantile(of, _TAILS) for of in ((low + high) / 2.0, done))
        doses.append(
            f"For {column.name}, the centre of its band lies between {number(inner[0])} and "
            f"{number(inner[1], column.unit)} in nine of ten of these, and the band is "
            f"{number(float(np.mean(high - low)), column.unit)} wide on average. What was given "
            f"lay between {number(was[0])} and {number(was[1], column.unit)} in nine of ten steps."
        )
    sentence = (
        f"It decides in {percent(acts.mean())} of the states on which it was judged. "
        f"{' '.join(doses)} Its bands contain {percent(facts['inside'])} of the logged actions."
        if doses
        else "It refers every state on which it was judged, so it gives nothing."
    )
    how = (
        f"The policy of {_seeds(subject)} was asked in all {subject.judged.rows:,} states of "
        f"{subject.whose}. Typical states are means of at least {FEWEST_ROWS} logged steps of at "
        f"least {FEWEST_EPISODES} episodes, so no line is a patient."
    )
    tables = {"typical_states": table, "columns": influence.table(subject)}
    return Answer(sentence, how, facts, tables, picture)


def _seeds(subject: Subject) -> str:
    rule = getattr(subject.policy.network, "rule", None)
    names = {"consensus": "where all agree", "median": "in the median"}
    return f"all {subject.seeds} seeds together, {names[rule]}," if rule else "one seed"


def _typical(subject: Subject, influence: Influence) -> tuple[Table, dict[str, Any]]:
    """Return typical states, from low to high doses: what is done, and what was done."""
    policy = subject.policy
    coverage = policy.referral.coverage
    placed = coverage.mixture([0]).centres
    states = np.asarray(inverse_transform(placed, coverage.transforms), np.float64)
    span = np.ptp(np.asarray(subject.ranges), axis=1)
    states[np.abs(states) < ROUNDING * span] = 0.0  # a mean of categories, say
    found = policy.decide(states, last=None)
    low, high = (np.array(end, np.float64) for end in policy.support(states, None))
    box = np.asarray(policy.low, np.float64), np.asarray(policy.high, np.float64)
    low, high = np.clip(low, *box), np.clip(high, *box)
    middle = np.where(found.referred[:, None], np.nan, (low + high) / 2.0)
    done = _done_near(subject)
    chosen = _spread(middle[:, 0], np.asarray(coverage.rows), done["known"])
    columns = influence.most(SHOWN_COLUMNS)
    rows = []
    for count, place in enumerate(chosen.tolist(), start=1):
        labels = (policy.observation_columns[column].label for column in columns)
        state = dict(zip(labels, states[place, columns].tolist(), strict=True))
        row = joined({"state": f"{count}"}, state)
        for action, label in enumerate(column.label for column in policy.action_columns):
            row |= {
                f"{label}: lowest": low[place, action], f"{label}: centre": middle[place, action],
                f"{label}: highest": high[place, action],
                f"{label}: mean given": done["mean"][place, action],
                f"{label}: 5 % given": done["low"][place, action],
                f"{label}: 95 % given": done["high"][place, action],
            }  # fmt: skip
        rows.append({**row, "logged steps": int(done["rows"][place])})
    notes = [
        "from low to high doses; referred states are not shown; other columns are not shown"
        if len(columns) < len(policy.observation_columns)
        else "from low to high doses; referred states are not shown",
        "given: mean, 5 % and 95 % quantiles of the logged actions of the steps nearest to the "
        "state" + ("" if subject.sample is subject.log else f", of {subject.sample.rows:,} rows"),
    ]
    picture = {
        "kind": "bands",
        "actions": [column.label for column in policy.action_columns],
        "box": [[float(end[0]), float(end[1])] for end in zip(*box, strict=True)],
        "names": [str(count + 1) for count in range(len(rows))],
        "low": low[chosen], "centre": middle[chosen], "high": high[chosen],
        "mean": done["mean"][chosen], "from": done["low"][chosen], "to": done["high"][chosen],
    }  # fmt: skip
    return Table("typical states", tuple(rows), tuple(notes)), picture


def _spread(dose: ndarray, rows: ndarray, known: ndarray) -> ndarray:
    """Return typical states, spread evenly over the logged steps in the order of their dose."""
    order = np.argsort(dose)
    order = order[(known & np.isfinite(dose))[order]]
    if not order.size:
        return order
    share = (np.cumsum(rows[order]) - rows[order] / 2.0) / rows[order].sum()
    wanted = (np.arange(TYPICAL) + 0.5) / TYPICAL
    return order[np.unique(np.abs(share[None] - wanted[:, None]).argmin(axis=1))]


def _done_near(subject: Subject) -> dict[str, ndarray]:
    """Return what was done in the logged steps nearest to each centroid of the log's summary."""
    coverage, log = subject.policy.referral.coverage, subject.sample
    nearest = coverage._nearest(np.asarray(log.observation[:], np.float32), np)[1]
    count = len(coverage.rows)
    order = np.argsort(nearest, kind="stable")
    ends = np.searchsorted(nearest[order], np.arange(count + 1))
    episode = np.repeat(np.arange(log.episode_start.size), episode_lengths(log))
    needed = min(FEWEST_EPISODES, log.episode_start.size)
    action = np.asarray(log.action[:], np.float64)
    found = {name: np.full((count, log.action_size), np.nan) for name in ("mean", "low", "high")}
    rows, known = np.diff(ends), np.zeros(count, bool)
    for place in range(count):
        members = order[ends[place] : ends[place + 1]]
        if len(members) < FEWEST_ROWS or np.unique(episode[members]).size < needed:
            continue
        known[place] = True
        found["mean"][place] = action[members].mean(axis=0)
        found["low"][place], found["high"][place] = np.quantile(action[members], _TAILS, axis=0)
    return {**found, "rows": rows, "known": known}


def _shares(subject: Subject) -> dict[str, Any]:
    """Return the facts that the rules about the doses read; the worst action dimension counts."""
    bands, policy = subject.bands, subject.policy
    acts = bands.acts
    names = ("proportion", "carried", "covered", "moved", "at_edge", "beyond")
    if not acts.any():
        return {**dict.fromkeys(names), "inside": 0.0, "carried_action": ""}
    box = np.asarray(policy.low, np.float64), np.asarray(policy.high, np.float64)
    range_low, range_high = extremes(subject.log.action)
    low, high, width = bands.low[acts], bands.high[acts], box[1] - box[0]
    amount, inside = bands.logged - range_low, bands.inside
    total, covered = amount.sum(axis=0), inside.mean(axis=0)
    carried = (amount * inside).sum(axis=0) / np.where(total > 0, total, 1.0)
    # Of doses that were left out at random, as large a share as of the steps.
    with np.errstate(divide="ignore", invalid="ignore"):
        proportion = np.where(total > 0, carried / covered, 1.0)
    if acts.sum() >= ENOUGH:  # a band without any logged action leaves out all doses
        proportion = np.where((total > 0) & (covered == 0), 0.0, proportion)
    middle = (low + high) / 2.0
    spread = np.diff(np.quantile(bands.logged, _TAILS, axis=0), axis=0)[0]
    moved = np.diff(np.quantile(middle, _TAILS, axis=0), axis=0)[0]
    tiny = ROUNDING * width
    at_edge = ((low <= box[0] + tiny) | (high >= box[1] - tiny)).mean(axis=0)
    beyond = ((low < range_low - tiny) | (high > range_high + tiny)).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(spread > 0, moved / spread, np.where(moved > 0, np.inf, 1.0))
    least = int(np.nan_to_num(proportion, nan=np.inf).argmin())
    several = len(carried) > 1
    return {
        "inside": float(inside.all(axis=1).mean()),
        "proportion": float(proportion[least]), "carried": float(carried[least]),
        "covered": float(covered[least]), "moved": float(min(share.max(), 1e6)),
        "carried_action": policy.action_columns[least].name if several else "",
        "at_edge": float(at_edge.max()), "beyond": float(beyond.max()),
        "largest_found": high.max(axis=0).tolist(), "smallest_found": low.min(axis=0).tolist(),
    }  # fmt: skip
