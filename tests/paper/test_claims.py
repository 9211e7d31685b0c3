"""Verdicts, the list of claims, and their output."""

import json
import re

import pytest

from experiments.made_up_runs import (
    CLAIMS,
    MadeUpKept,
)
from fat2thin.evaluation.statistics import Interval
from fat2thin.paper import claims_policies, claims_table
from fat2thin.paper.claims import (
    AS_PUBLISHED,
    CORRECTED,
    FAILS,
    HOLDS,
    NOT_RUN,
    ONLY_PUBLISHED,
    UNDECIDED,
    Claim,
    Evidence,
    Reproduced,
    Verdict,
    _verdict,
    above,
    number,
    weakest,
)
from fat2thin.paper.claims_table import effect_words, to_json
from fat2thin.paper.presets import PRESETS, Reproduction, scale_of
from fat2thin.paper.reproduction import NAMES

NAN = float("nan")
STRUCTURAL = ("C21", "C22", "C23", "C24")


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ([(2.0, 1.0, 3.0)], True),
        ([(2.0, 1.0, 3.0), (1.0, 0.1, 2.0)], True),
        ([(2.0, 1.0, 3.0), (1.0, -0.1, 2.0)], None),
        ([(2.0, 1.0, 3.0), (-1.0, -2.0, 0.5)], None),
        ([(2.0, 1.0, 3.0), (-1.0, -2.0, -0.5)], False),
        ([(0.0, 0.0, 0.0)], None),
        ([(5.0, NAN, NAN)], None),
    ],
)
def test_a_claim_needs_all_effects_above_the_limit(effects, expected):
    assert above([Interval(*effect) for effect in effects]) is expected


def test_the_smallest_effect_decides():
    smallest = Interval(-1.0, -5.0, 9.0)
    assert weakest([Interval(2.0, -9.0, 3.0), smallest, Interval(0.0, 0.0, 0.0)]) == smallest


@pytest.mark.parametrize(
    ("corrected", "published", "expected"),
    [
        ("absent", "absent", NOT_RUN),
        (True, "absent", HOLDS),
        (True, False, HOLDS),
        (False, "absent", FAILS),
        (False, False, FAILS),
        (False, None, FAILS),
        (None, "absent", UNDECIDED),
        (None, False, UNDECIDED),
        ("absent", None, NOT_RUN),
        (False, True, ONLY_PUBLISHED),
        (None, True, UNDECIDED),
        ("absent", True, NOT_RUN),
    ],
)
def test_a_verdict_follows_from_both_modes(corrected, published, expected):
    both = (
        None if holds == "absent" else Evidence(holds, number(0.0), "")
        for holds in (corrected, published)
    )
    assert _verdict(*both) == expected


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (Interval(1.234, 0.8, 1.61), "1.23 [0.80, 1.61]"),
        (Interval(-1.234, -2.0, 0.5), "−1.23 [−2.00, 0.50]"),
        (number(0.04321), "0.0432"),
        (number(-3.0), "−3"),
        (Interval(2.5, NAN, NAN), "2.5"),
        (Interval(NAN, NAN, NAN), "–"),
    ],
)
def test_effects_as_text(effect, words):
    assert effect_words(Evidence(None, effect, "")) == words


# The list


def test_every_claim_is_listed_once_and_in_order():
    assert [claim.name for claim in claims_table.CLAIMS] == [f"C{n}" for n in range(1, 27)]
    assert {claim.preset for claim in claims_table.CLAIMS} <= {*NAMES, ""}
    assert {claim.name for claim in claims_table.CLAIMS if not claim.preset} == {*STRUCTURAL}


class Asking(MadeUpKept):
    """A reproduction without runs that records which runs were requested."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def _run(self, name):
        self.names.add(name)


@pytest.fixture(scope="module")
def made():
    """Return the run folders of each preset."""
    asked = Reproduction(scale_of("smoke"))
    return {name: {one.name for one in preset(asked)} for name, preset in PRESETS.items()}


@pytest.mark.parametrize(
    "claim",
    [claim for claim in claims_table.CLAIMS if claim.preset in PRESETS],
    ids=lambda c: c.name,
)
def test_a_claim_uses_runs_of_its_preset(claim, made):
    asking = Asking()
    claim.check(asking, CORRECTED)
    assert asking.names
    assert asking.names <= made[claim.preset]


@pytest.mark.parametrize(
    "claim", [claim for claim in claims_table.CLAIMS if claim.both_modes], ids=lambda c: c.name
)
def test_a_claim_as_published_uses_runs_of_some_preset(claim, made):
    asking = Asking()
    claim.check(asking, AS_PUBLISHED)
    assert asking.names
    assert asking.names <= set().union(*made.values())


def test_a_folder_without_runs_has_no_runs(tmp_path):
    kept = Reproduced(tmp_path)
    assert kept.curve("treatment-cubic", CORRECTED.method("fttpo")) is None
    assert kept.times() is None


@pytest.fixture(scope="module")
def of_nothing(tmp_path_factory):
    """Return the verdicts on a folder without runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims_policies, "SAMPLES", 40_000)
        patch.setattr(claims_policies, "RATIOS", (3.0,))
        return claims_table.verdicts(tmp_path_factory.mktemp("empty"))


def test_without_runs_only_the_mathematical_claims_are_checked(of_nothing):
    for found in of_nothing:
        assert found.verdict == (HOLDS if found.claim.name in STRUCTURAL else NOT_RUN)


GAP = Evidence(True, Interval(-1.5, -2.0, 0.5), "a gap", 3)
OF_ONE_SEED = Evidence(None, Interval(4.0, NAN, NAN), "a gap", 1)
OF_NONE = Evidence(None, Interval(NAN, NAN, NAN), "a gap")
FOUND = [
    Verdict(Claim("C1", "one.", "fig1", None), HOLDS, GAP, None),
    Verdict(Claim("C2", "two.", "fig2", None), UNDECIDED, OF_ONE_SEED, OF_NONE),
    Verdict(Claim("C3", "three.", "", None, both_modes=False), NOT_RUN, None, None),
]


def strict(text):
    """Parse JSON as a browser does, which rejects nan."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_json_is_complete_and_without_nan():
    first, second, third = strict(to_json(FOUND, "--scale small"))
    assert first["claim"] == "C1"
    assert (first["effect"], first["low"], first["high"], first["seeds"]) == (-1.5, -2.0, 0.5, 3)
    assert first["command"] == "fat2thin reproduce fig1 --scale small"
    assert (second["effect"], second["low"], second["published_effect"]) == (4.0, None, "–")
    assert (third["verdict"], third["effect"], third["seeds"]) == (NOT_RUN, None, 0)
    assert (first["published_effect"], third["published_effect"]) == (NOT_RUN, "–")
    assert third["command"] == "fat2thin claims"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_page_has_one_row_per_claim(of_nothing):
    text = claims_table.document(of_nothing, "reproduction/small", "--scale small", ["cpu", "gpu"])
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(cells(line)) for line in (head, rule, *rows)} == {7}
    assert set(rule) <= set("|-:")
    assert [re.match(r"\*\*(C\d+)\*\* ", cells(row)[0])[1] for row in rows] == [*CLAIMS]
    assert [cells(row)[1] for row in rows] == [one.verdict for one in of_nothing]
    assert "Trained on\ncpu and gpu." in text
    assert "\nnot run: 22, holds: 4.\n" in text
    assert "{" not in text
    assert str(claims_table.table(of_nothing)).endswith("not run: 22, holds: 4")


def test_the_page_shows_effects_of_both_modes():
    first, second, third = claims_table.document(FOUND, "x", "--scale small", []).splitlines()[-3:]
    assert cells(first)[1:] == [HOLDS, "−1.50 [−2.00, 0.50]", NOT_RUN, "a gap", "3",
                                "`fat2thin reproduce fig1 --scale small`"]  # fmt: skip
    assert cells(second)[2:4] == ["4", "–"]
    assert cells(third)[1:] == [NOT_RUN, "–", "–", "–", "–", "`fat2thin claims`"]
