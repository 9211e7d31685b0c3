"""The verdict of a dossier, from stated rules.

A rule holds, needs attention, fails, or is not known. One failing rule makes the verdict *do not
use*; all rules that hold make it *ready for review*; anything else *needs attention*. The
thresholds were fixed before the first dossier was made. A rule that can only need attention points
to something that may have a good reason, which a person must know.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fat2thin.report.dossier.answer import number, percent

READY, LOOK, NOT_USABLE = "ready for review", "needs attention", "do not use"
HOLDS, ATTENTION, FAILS, UNKNOWN = "holds", "needs attention", "fails", "not known"

MOST_REFERRED = 0.10
"""Share of new states that may be referred. By calibration 5 % lie outside the log; twice that
leaves room for seeds that disagree."""
MOST_STATES_REFERRED = 0.50
"""Above this, the policy decides less often than it refuses: there is little to deploy."""
AGREE = 0.90
"""Share of states in which the seeds must agree: the complement of `MOST_REFERRED`."""
HARDLY_AGREE = 0.50
"""Below this, what the policy does depends more on the random seed than on the log."""
CARRIED = 0.50
"""Of what was given, the share in the bands, relative to the share of the steps in the bands. It is
1 for a policy that leaves out doses whatever their size; at least half of that is asked for."""
HARDLY_CARRIED = 0.25
"""Below this, the policy covers the steps in which little was given, and not the doses that treat:
three quarters of what its share of the steps should carry is missing."""
POSSIBLE = 0.99
"""Share of states whose Q must lie within what rewards allow: rounding and rare states aside."""
HARDLY_POSSIBLE = 0.50
"""Below this, the values that the policy learned from are impossible in most states."""
FEWEST_EPISODES = 20
"""Held-out episodes below which an interval over episodes is too narrow: with few clusters, a
bootstrap covers too rarely (Cameron, Gelbach and Miller 2008 find it so below about 30)."""
MOST_AT_EDGE = 0.50
"""Share of states in which the band may touch the action box: beyond it, the box and not the log
sets the band in most states."""
MOST_BEYOND = 0.01
"""Share of states in which a dose outside the range of the logged ones may be possible."""
LEAST_MOVED = 0.05
"""The dose must differ between patients by this share of the spread of what was done."""
LEAST_CALIBRATION = 0.1
"""Correlation of Q with the returns that followed: below, Q explains under 1 % of them."""

Facts = Mapping[int, Mapping[str, Any]]
"""The facts of every answer, by the number of its question."""


class Finding(NamedTuple):
    """The state of one rule."""

    rule: str
    """What must be true."""
    state: str
    measured: str
    question: int
    """The number of the question whose answer has the numbers."""
    why: str
    """Why the rule and its threshold are what they are."""


def verdict(findings: Sequence[Finding]) -> str:
    """Return the verdict that the states of the rules give."""
    states = {one.state for one in findings}
    if FAILS in states:
        return NOT_USABLE
    return READY if states == {HOLDS} else LOOK


def judge(facts: Facts) -> list[Finding]:
    """Return the state of every rule, those that matter most first."""
    return [rule(facts) for rule in _RULES]


def _known(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _at_least(value: float | None, good: float, bad: float | None = None) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value >= good:
        return HOLDS
    return FAILS if bad is not None and value < bad else ATTENTION


def _at_most(value: float | None, good: float, bad: float | None = None) -> str:
    return _at_least(None if value is None else -value, -good, None if bad is None else -bad)


def _gain(facts: Facts) -> Finding:
    found = facts[4]
    low, high = found.get("gain_low"), found.get("gain_high")
    state = UNKNOWN
    if low is not None:
        state = HOLDS if low > 0 else FAILS if high is not None and high < 0 else ATTENTION
    measured = (
        f"one-sided {found['gain_level']} lower bound {number(low, found['unit'])}"
        if _known(low)
        else found.get("why_unknown") or "the value was not estimated"
    )
    return Finding(
        "It earns more than current practice: the lower bound of the gain is above 0",
        state, measured, 4,
        "Only then does the log show an advantage. The rule fails if the upper bound is below 0.",
    )  # fmt: skip


def _bounds(facts: Facts) -> Finding:
    found = facts[2]
    state = {True: HOLDS, False: FAILS, None: UNKNOWN}[found.get("inside")]
    measured = found.get("certified_words") or "no certificate was made"
    return Finding(
        "Every dose it can ever give is certified to lie inside the action box and the limits",
        state, measured, 2,
        "A certificate covers all states in the range of the log, not only those that were tried.",
    )  # fmt: skip


def _carried(facts: Facts) -> Finding:
    found = facts[1]
    share = found.get("proportion")
    action = f" of {found['carried_action']}" if found.get("carried_action") else ""
    measured = (
        f"its bands contain {percent(found['covered'])} of the logged steps, and "
        f"{percent(found['carried'])} of everything{action} that was given above the lowest logged "
        f"dose: {number(share)} of its share"
        if _known(share)
        else "its bands contain no logged action"
    )
    return Finding(
        "The doses that it can give carry what was given, and not only the small ones",
        _at_least(share, CARRIED, HARDLY_CARRIED), measured, 1,
        f"At least {CARRIED:g} of its share: a policy that leaves out doses of any size has 1. "
        f"The rule fails below {HARDLY_CARRIED:g}: the policy then leaves out the doses that "
        "treat, however many small ones it covers.",
    )  # fmt: skip


def _values(facts: Facts) -> Finding:
    share = facts[4].get("possible")
    return Finding(
        "Its values stay within what the rewards allow",
        _at_least(share, POSSIBLE, HARDLY_POSSIBLE),
        f"{percent(share)} of the held-out states, all seeds together" if _known(share)
        else "the algorithm has no Q",
        4,
        f"At least {percent(POSSIBLE)} of the states; the rule fails below "
        f"{percent(HARDLY_POSSIBLE)}. Impossible values cannot rank doses.",
    )  # fmt: skip


def _referred(facts: Facts) -> Finding:
    share = facts[5].get("referred")
    return Finding(
        f"It decides: fewer than {percent(MOST_REFERRED)} of new states are referred",
        _at_most(share, MOST_REFERRED, MOST_STATES_REFERRED),
        f"{percent(share)} of the states on which it was judged",
        5,
        f"5 % is the nominal share outside the log. The rule fails above "
        f"{percent(MOST_STATES_REFERRED)}.",
    )  # fmt: skip


def _agreement(facts: Facts) -> Finding:
    share = facts[6].get("agree")
    return Finding(
        f"Seeds agree in {percent(AGREE)} of the states",
        _at_least(share, AGREE, HARDLY_AGREE),
        f"they agree in {percent(share)}" if _known(share) else "one seed alone cannot be compared",
        6,
        "Otherwise the dose depends on the random seed. The rule fails below "
        f"{percent(HARDLY_AGREE)}.",
    )  # fmt: skip


def _unseen(facts: Facts) -> Finding:
    found = facts[7]
    enough = found["judged_episodes"] >= FEWEST_EPISODES
    count = f"{found['judged_episodes']:,} episodes"
    return Finding(
        f"It is judged on at least {FEWEST_EPISODES} episodes that no update saw",
        HOLDS if found["unseen"] and enough else ATTENTION,
        f"{count} that no update saw" if found["unseen"] else f"{count} that it learned from",
        7,
        "Numbers on its own training rows flatter a policy, and intervals over few episodes are "
        "too narrow.",
    )  # fmt: skip


def _checked(facts: Facts) -> Finding:
    errors = facts[7]["errors"]
    return Finding(
        "The log has no errors", FAILS if errors else HOLDS,
        f"{errors} errors, {facts[7]['log_warnings']} warnings (listed below)", 7,
        "An error means that something wrong was certainly learned; a warning may be harmless.",
    )  # fmt: skip


def _quiet(facts: Facts) -> Finding:
    count = facts[8]["training_warnings"]
    return Finding(
        "Training gave no warning", ATTENTION if count else HOLDS,
        f"{count} warnings" if count != 1 else "1 warning", 8,
        "Warnings are about diverging values, overfitted or poorly covered policies, and policies "
        "no better than a constant dose. A person should read each.",
    )  # fmt: skip


def _varies(facts: Facts) -> Finding:
    share = facts[1].get("moved")
    return Finding(
        "The dose depends on the patient", _at_least(share, LEAST_MOVED),
        f"its centre differs between states by {percent(share)} of the spread of what was done",
        1,
        f"Spreads are from the 5 % to the 95 % quantile; at least {percent(LEAST_MOVED)}. A single "
        "dose for all may be right, but should be intended.",
    )  # fmt: skip


def _free(facts: Facts) -> Finding:
    share = facts[1].get("at_edge")
    return Finding(
        "The log, and not the action box, sets the band", _at_most(share, MOST_AT_EDGE),
        f"the band touches an end of the box in {percent(share)} of the states", 1,
        f"At most {percent(MOST_AT_EDGE)}. More points to a box whose end is not real, or to a "
        "dose that needs a logarithm.",
    )  # fmt: skip


def _tried(facts: Facts) -> Finding:
    share = facts[1].get("beyond")
    return Finding(
        "It gives no dose outside the range of those that were given", _at_most(share, MOST_BEYOND),
        f"it could in {percent(share)} of the states", 1,
        f"At most {percent(MOST_BEYOND)}: the log says nothing about doses that nobody gave.",
    )  # fmt: skip


def _informed(facts: Facts) -> Finding:
    found = facts[4].get("calibration")
    return Finding(
        "Its Q predicts the returns that followed", _at_least(found, LEAST_CALIBRATION),
        f"correlation {number(found)} on held-out steps" if _known(found)
        else "not measured: no held-out episodes, or no Q",
        4,
        f"At least {LEAST_CALIBRATION:g}. A Q that does not predict cannot rank doses.",
    )  # fmt: skip


_RULES: tuple[Callable[[Facts], Finding], ...] = (
    _gain, _bounds, _carried, _values, _referred, _agreement, _unseen, _checked, _quiet, _varies,
    _free, _tried, _informed,
)  # fmt: skip
