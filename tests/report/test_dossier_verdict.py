"""The rules of the verdict, each at its thresholds."""

import numpy as np
import pytest

from fat2thin.report.dossier import verdict as rules
from fat2thin.report.dossier.verdict import (
    ATTENTION,
    FAILS,
    HOLDS,
    LOOK,
    NOT_USABLE,
    READY,
    UNKNOWN,
    judge,
    verdict,
)

GOOD = {
    1: {"proportion": 0.9, "carried": 0.4, "covered": 0.44, "carried_action": "", "moved": 0.5,
        "at_edge": 0.1, "beyond": 0.0},
    2: {"inside": True, "certified_words": "0.1 to 1.4 mg"},
    3: {},
    4: {"gain_low": 0.2, "gain_high": 0.6, "gain_level": "95 %", "unit": "points",
        "possible": 1.0, "calibration": 0.4},
    5: {"referred": 0.05},
    6: {"agree": 0.97},
    7: {"unseen": True, "judged_episodes": 40, "errors": 0, "log_warnings": 1},
    8: {"training_warnings": 0},
}  # fmt: skip


def judged(question, **changes):
    facts = {**GOOD, question: {**GOOD[question], **changes}}
    return judge(facts)


def changed(question, **changes):
    """Return the states of the rules that are not what they are for good facts."""
    before, after = judge(GOOD), judged(question, **changes)
    return [new.state for old, new in zip(before, after, strict=True) if new.state != old.state]


def test_all_rules_that_hold_make_a_policy_ready_for_review():
    found = judge(GOOD)
    assert {one.state for one in found} == {HOLDS}
    assert verdict(found) == READY


@pytest.mark.parametrize(
    ("question", "facts", "state"),
    [
        (4, {"gain_low": 0.0}, ATTENTION),
        (4, {"gain_low": -0.5, "gain_high": -0.1}, FAILS),
        (4, {"gain_low": None, "why_unknown": "too few episodes"}, UNKNOWN),
        (4, {"possible": 0.98}, ATTENTION),
        (4, {"possible": 0.49}, FAILS),
        (4, {"possible": None}, UNKNOWN),
        (4, {"calibration": 0.05}, ATTENTION),
        (4, {"calibration": None}, UNKNOWN),
        (2, {"inside": None, "certified_words": None}, UNKNOWN),
        (2, {"inside": False}, FAILS),
        (1, {"proportion": 0.49}, ATTENTION),
        (1, {"proportion": 0.2}, FAILS),
        (1, {"proportion": None}, UNKNOWN),
        (1, {"moved": 0.01}, ATTENTION),
        (1, {"at_edge": 1.0}, ATTENTION),
        (1, {"beyond": 0.05}, ATTENTION),
        (5, {"referred": 0.11}, ATTENTION),
        (5, {"referred": 0.51}, FAILS),
        (6, {"agree": 0.89}, ATTENTION),
        (6, {"agree": 0.4}, FAILS),
        (6, {"agree": None}, UNKNOWN),
        (7, {"unseen": False}, ATTENTION),
        (7, {"judged_episodes": 19}, ATTENTION),
        (7, {"errors": 1}, FAILS),
        (8, {"training_warnings": 2}, ATTENTION),
    ],
)  # fmt: skip
def test_each_rule_alone_changes_the_verdict(question, facts, state):
    assert changed(question, **facts) == [state]
    assert verdict(judged(question, **facts)) == (NOT_USABLE if state == FAILS else LOOK)


@pytest.mark.parametrize(
    ("question", "facts"),
    [
        (1, {"proportion": rules.CARRIED}), (1, {"at_edge": rules.MOST_AT_EDGE}),
        (5, {"referred": rules.MOST_REFERRED}), (6, {"agree": rules.AGREE}),
        (7, {"judged_episodes": rules.FEWEST_EPISODES}), (4, {"possible": rules.POSSIBLE}),
    ],
)  # fmt: skip
def test_a_rule_holds_at_its_threshold(question, facts):
    assert not changed(question, **facts)


def test_a_number_that_is_not_finite_is_not_known():
    assert changed(1, proportion=np.nan) == [UNKNOWN]
    assert "no logged action" in judged(1, proportion=np.nan)[2].measured
