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
from fat2thin.terminal_text import counted

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
NO_DOSE = "it refers every state on which it was judged, so it gives no dose"

Found = Mapping[str, Any]
"""The facts of one answer."""
Facts = Mapping[int, Found]
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


class Rule(NamedTuple):
    """One rule, and how it reads the facts of one answer."""

    rule: str
    question: int
    state: Callable[[Found], str]
    measured: Callable[[Found], str]
    """What was measured, in words."""
    why: str
    unknown: str = ""
    """What is said where it is not known; empty if the words of `measured` say it."""

    def judge(self, facts: Facts) -> Finding:
        """Return the state of this rule."""
        found = facts[self.question]
        state = self.state(found)
        missing = self.unknown if state == UNKNOWN else ""
        return Finding(self.rule, state, missing or self.measured(found), self.question, self.why)


def verdict(findings: Sequence[Finding]) -> str:
    """Return the verdict that the states of the rules give."""
    states = {one.state for one in findings}
    if FAILS in states:
        return NOT_USABLE
    return READY if states == {HOLDS} else LOOK


def judge(facts: Facts) -> list[Finding]:
    """Return the state of every rule, those that matter most first."""
    return [rule.judge(facts) for rule in RULES]


def _at_least(fact: str, good: float, bad: float | None = None) -> Callable[[Found], str]:
    """Return a rule's state: it holds from `good` on, and fails below `bad`."""

    def state(found: Found) -> str:
        value = found.get(fact)
        if value is None or not math.isfinite(value):
            return UNKNOWN
        if value >= good:
            return HOLDS
        return FAILS if bad is not None and value < bad else ATTENTION

    return state


def _at_most(fact: str, good: float, bad: float | None = None) -> Callable[[Found], str]:
    """Return a rule's state: it holds up to `good`, and fails above `bad`."""
    of_negative = _at_least(fact, -good, None if bad is None else -bad)
    return lambda found: of_negative({fact: None if found.get(fact) is None else -found[fact]})


def _share(words: str, fact: str) -> Callable[[Found], str]:
    """Return words with a share in their {}."""
    return lambda found: words.format(percent(found.get(fact)))


def _gain(found: Found) -> str:
    low, high = found.get("gain_low"), found.get("gain_high")
    if low is None:
        return UNKNOWN
    return HOLDS if low > 0 else FAILS if high is not None and high < 0 else ATTENTION


def _gain_words(found: Found) -> str:
    if found.get("gain_low") is None:
        return found["why_unknown"]
    return f"one-sided {found['gain_level']} lower bound {number(found['gain_low'], found['unit'])}"


def _carried_words(found: Found) -> str:
    return (
        f"its bands contain {percent(found['covered'])} of the logged steps, and "
        f"{percent(found['carried'])} of the total {found['carried_action'] or 'dose'} given, "
        f"counted from the lowest logged one: {number(found['proportion'])} of its share"
    )


def _unseen(found: Found) -> str:
    enough = found["judged_episodes"] >= FEWEST_EPISODES
    return HOLDS if found["unseen"] and enough else ATTENTION


def _unseen_words(found: Found) -> str:
    seen = "that no update saw" if found["unseen"] else "that it learned from"
    return f"{counted(found['judged_episodes'], 'episode')} {seen}"


RULES = (
    Rule(
        "It earns more than current practice: the lower bound of the gain is above 0",
        4, _gain, _gain_words,
        "Only then does the log show an advantage. The rule fails if the upper bound is below 0.",
    ),
    Rule(
        "Every dose it can ever give is certified to lie inside the action box and the limits",
        2, lambda found: {True: HOLDS, False: FAILS, None: UNKNOWN}[found.get("inside")],
        lambda found: found.get("certified_words") or "no certificate was made",
        "A certificate covers all states in the range of the log, not only those that were tried.",
    ),
    Rule(
        "The doses that it can give carry what was given, and not only the small ones",
        1, _at_least("proportion", CARRIED, HARDLY_CARRIED), _carried_words,
        f"At least {CARRIED:g} of its share: a policy that leaves out doses of any size has 1. "
        f"The rule fails below {HARDLY_CARRIED:g}: the policy then leaves out the doses that "
        "treat, however many small ones it covers.",
        "its bands contain no logged action",
    ),
    Rule(
        "Its learned values (Q) stay within what the rewards allow",
        4, _at_least("possible", POSSIBLE, HARDLY_POSSIBLE),
        _share("{} of the judged states, all seeds together", "possible"),
        f"At least {percent(POSSIBLE)} of the states; the rule fails below "
        f"{percent(HARDLY_POSSIBLE)}. Impossible values cannot rank doses.",
        "the algorithm has no Q",
    ),
    Rule(
        f"It decides: fewer than {percent(MOST_REFERRED)} of new states are referred",
        5, _at_most("referred", MOST_REFERRED, MOST_STATES_REFERRED),
        _share("{} of the states on which it was judged", "referred"),
        f"5 % is the nominal share outside the log. The rule fails above "
        f"{percent(MOST_STATES_REFERRED)}.",
    ),
    Rule(
        f"Seeds agree in {percent(AGREE)} of the states",
        6, _at_least("agree", AGREE, HARDLY_AGREE), _share("they agree in {}", "agree"),
        "Otherwise the dose depends on the random seed. The rule fails below "
        f"{percent(HARDLY_AGREE)}.",
        "one seed alone cannot be compared",
    ),
    Rule(
        f"It is judged on at least {FEWEST_EPISODES} episodes that no update saw",
        7, _unseen, _unseen_words,
        "Numbers on its own training rows flatter a policy, and intervals over few episodes are "
        "too narrow.",
    ),
    Rule(
        "The log has no errors",
        7, lambda found: FAILS if found["errors"] else HOLDS,
        lambda found: f"{counted(found['errors'], 'error')}, "
        f"{counted(found['log_warnings'], 'warning')} (listed below)",
        "An error means that something wrong was certainly learned; a warning may be harmless.",
    ),
    Rule(
        "Training gave no warning",
        8, lambda found: ATTENTION if found["training_warnings"] else HOLDS,
        lambda found: counted(found["training_warnings"], "warning"),
        "Warnings are about diverging values, overfitted or poorly covered policies, and policies "
        "no better than a constant dose. A person should read each.",
    ),
    Rule(
        "The dose depends on the patient",
        1, _at_least("moved", LEAST_MOVED),
        _share("its centre differs between states by {} of the spread of what was done", "moved"),
        f"Spreads are from the 5 % to the 95 % quantile; at least {percent(LEAST_MOVED)}. A single "
        "dose for all may be right, but should be intended.",
        NO_DOSE,
    ),
    Rule(
        "The log, and not the action box, sets the band",
        1, _at_most("at_edge", MOST_AT_EDGE),
        _share("the band touches an end of the box in {} of the states", "at_edge"),
        f"At most {percent(MOST_AT_EDGE)}. More points to a box whose end is not real, or to a "
        "dose that needs a logarithm.",
        NO_DOSE,
    ),
    Rule(
        "It gives no dose outside the range of those that were given",
        1, _at_most("beyond", MOST_BEYOND), _share("it could in {} of the states", "beyond"),
        f"At most {percent(MOST_BEYOND)}: the log says nothing about doses that nobody gave.",
        NO_DOSE,
    ),
    Rule(
        "Its learned values (Q) predict the returns that followed",
        4, _at_least("calibration", LEAST_CALIBRATION),
        lambda found: f"correlation {number(found['calibration'])} on held-out steps",
        f"At least {LEAST_CALIBRATION:g}. A Q that does not predict cannot rank doses.",
        "not measured: no held-out episodes, or no Q",
    ),
)  # fmt: skip
"""Those that matter most first."""
