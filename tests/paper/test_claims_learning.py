"""Claims about returns: scores for which each claim holds, fails and is undecided."""

import numpy as np
import pytest

from experiments.made_up_runs import (
    SPREAD,
    MadeUpKept,
    flat_run,
    judged,
    scored_run,
)
from fat2thin.experiments import comparison
from fat2thin.paper.claims import (
    CORRECTED,
    FAILS,
    HOLDS,
    NOT_RUN,
    ONLY_PUBLISHED,
    UNDECIDED,
)
from fat2thin.paper.claims_table import as_row

NAN = float("nan")
TASKS = tuple(
    f"{robot}-{level}"
    for robot in ("halfcheetah", "hopper", "walker2d")
    for level in ("medium-expert", "medium-replay", "medium")
)
REWARDS = ("treatment-quadratic", "treatment-cubic")


def everywhere(tasks, **levels):
    """Return scores by folder and method; underscores become hyphens in method names."""
    return {
        (task, label.replace("_", "-")): level for task in tasks for label, level in levels.items()
    }


def with_others(scores, **others):
    """Return the scores with one method changed on some data sets."""
    (label, (level, tasks)) = next(iter(others.items()))
    return {**scores, **{(task, label.replace("_", "-")): level for task in tasks}}


EXAMPLE = ("halfcheetah-medium-expert",)
LOUD = 50.0
"""Factor on the spread of seeds that makes a claim undecided."""


def sparse(fttpo, rar, reverse):
    scores = everywhere(EXAMPLE, fttpo=fttpo, rar=rar)
    return {**scores, (EXAMPLE[0], "sparse_reverse_kl"): reverse}


BAND = everywhere(REWARDS, fttpo=9.0, iql=3.0, xql=3.5, sql=4.0, spot=3.2)
ROBOTS = everywhere(
    TASKS, fttpo=80.0, iql=70.0, inac=60.0, tawac=50.0, awac=40.0, xql=30.0, sql=20.0
)
VARIANTS = everywhere(TASKS, fttpo=50.0, fttpo_spot=48.0, fttpo_sg=40.0, tawac_ht=51.0)
CASES = {
    "C1": (sparse(80.0, 60.0, 40.0), sparse(80.0, 85.0, 40.0), sparse(60.4, 60.0, 40.0)),
    "C2": (
        BAND,
        with_others(BAND, spot=(20.0, REWARDS[1:])),
        with_others(BAND, spot=(8.6, REWARDS[1:])),
    ),
    "C3": (
        BAND,
        with_others(BAND, xql=(-7.0, REWARDS[1:])),
        with_others(BAND, xql=(-0.6, REWARDS[1:])),
    ),
    "C10": (
        with_others(ROBOTS, fttpo=(10.0, TASKS[:4])),
        with_others(ROBOTS, fttpo=(10.0, TASKS[:5])),
        with_others(ROBOTS, fttpo=(64.0, TASKS)),
    ),
    "C12": (
        with_others(VARIANTS, fttpo_spot=(52.0, TASKS[:3])),
        with_others(VARIANTS, fttpo_spot=(52.0, TASKS[:4])),
        with_others(VARIANTS, fttpo_spot=(50.1, TASKS)),
    ),
    "C13": (
        VARIANTS,
        with_others(VARIANTS, tawac_ht=(65.0, TASKS)),
        with_others(VARIANTS, tawac_ht=(54.9, TASKS)),
    ),
    "C14": (
        with_others(VARIANTS, fttpo_sg=(60.0, ["hopper-medium-replay"])),
        with_others(VARIANTS, fttpo_sg=(60.0, ["hopper-medium"])),
        with_others(VARIANTS, fttpo_sg=(49.9, TASKS)),
    ),
    "C17": (
        VARIANTS,
        with_others(VARIANTS, fttpo_sg=(55.0, TASKS)),
        with_others(VARIANTS, fttpo_spot=(54.9, TASKS)),
    ),
    "C18": (
        VARIANTS,
        with_others(VARIANTS, tawac_ht=(35.0, TASKS)),
        with_others(VARIANTS, tawac_ht=(54.9, TASKS)),
    ),
}
"""Scores for which a claim holds, fails, and is undecided with a large spread of seeds."""
PUBLISHED = (
    "fttpo",
    "fttpo-spot",
    "fttpo-sg",
    "tawac-ht",
    "xql",
    "spot",
    "rar",
    "sparse_reverse_kl",
)
"""Methods for which the authors' code has a form of its own."""


def runs_of(scores, spreads=None):
    noise = np.random.default_rng(0)
    return {
        f"curves/{folder}/{label}": flat_run(
            folder, label, level, SPREAD if spreads is None else spreads * noise.permutation(SPREAD)
        )
        for (folder, label), level in scores.items()
    }


def as_published(scores):
    return {
        (folder, f"{label}-published" if label in PUBLISHED else label): level
        for (folder, label), level in scores.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_a_claim_holds_or_fails(name):
    good, bad, _ = CASES[name]
    assert judged(name, MadeUpKept(runs_of(good))).verdict == HOLDS
    assert judged(name, MadeUpKept(runs_of(bad))).verdict == FAILS


@pytest.mark.parametrize("name", CASES)
def test_a_claim_may_hold_only_as_published(name):
    """As published, the proposal's scores count; the actor's are far off."""
    good, bad, _ = CASES[name]
    found = judged(name, MadeUpKept(runs_of(bad) | runs_of(as_published(good))))
    assert found.corrected.holds is False
    assert found.verdict == ONLY_PUBLISHED


@pytest.mark.parametrize("name", CASES)
def test_a_claim_is_undecided_with_a_large_spread_of_seeds(name):
    assert judged(name, MadeUpKept(runs_of(CASES[name][2], LOUD))).verdict == UNDECIDED


@pytest.mark.parametrize(("level", "verdict"), [(64.0, HOLDS), (62.0, FAILS)])
def test_about_as_good_is_within_a_tenth(level, verdict):
    """The best baseline has 70."""
    runs = runs_of(with_others(ROBOTS, fttpo=(level, TASKS)))
    assert judged("C10", MadeUpKept(runs)).verdict == verdict


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("C1", "rar"), ("C2", "spot"), ("C3", "spot"), ("C10", "awac"), ("C12", "fttpo-spot"),
        ("C13", "tawac-ht"), ("C14", "fttpo-sg"), ("C17", "fttpo-spot"), ("C18", "tawac-ht"),
    ],
)  # fmt: skip
def test_a_claim_about_all_methods_needs_all_of_them(name, needed):
    runs = {
        path: run for path, run in runs_of(CASES[name][0]).items() if path.split("/")[2] != needed
    }
    assert judged(name, MadeUpKept(runs)).verdict == NOT_RUN


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("C1", 20.0),  # 80 - 60 and 60 - 40
        ("C2", 5.0),  # 9 - 4
        ("C3", 4.0),  # (9 - 4) - (4 - 3)
        ("C10", (5 * 10.0 + 4 * -60.0) / 9.0),
        ("C12", 3.0),
        ("C13", 0.02),  # (51 - 50) / 50
        ("C14", 8.0),
        ("C17", -0.2),  # (40 - 50) / 50
        ("C18", 0.02),
    ],
)
def test_effects_agree_with_values_by_hand(name, effect):
    finding = judged(name, MadeUpKept(runs_of(CASES[name][0]))).corrected
    assert finding.effect.value == pytest.approx(effect)
    assert finding.seeds == 5


def test_the_worse_reward_decides_a_failure():
    """The effect is 9 - 20 on one of the two."""
    assert judged(
        "C2", MadeUpKept(runs_of(CASES["C2"][1]))
    ).corrected.effect.value == pytest.approx(-11)


def test_one_reward_is_enough_on_the_treatment_task():
    runs = {path: run for path, run in runs_of(BAND).items() if "quadratic" in path}
    assert judged("C2", MadeUpKept(runs)).verdict == HOLDS


def test_areas_use_the_curve_and_scores_its_end():
    """By trapezoids: (10 * 15 + 30 * 40) / 40."""
    curve = np.array([[10.0], [20.0], [60.0]])
    run = scored_run("regenerated/hopper-medium", (0, 10, 40), actor_sampled=curve)
    assert comparison.area(run, CORRECTED.policy(run)) == pytest.approx(33.75)
    assert comparison.final(run, CORRECTED.policy(run)) == pytest.approx(60.0)


def test_areas_may_differ_although_final_scores_agree():
    """TAWAC-HT ends where FtTPO does, but is below it before."""
    runs = runs_of(VARIANTS)
    for task in TASKS:
        late = np.stack([0.0 + SPREAD, 50.0 + SPREAD])
        runs[f"curves/{task}/tawac-ht"] = scored_run(f"regenerated/{task}", actor_sampled=late)
    assert judged("C13", MadeUpKept(runs)).verdict == HOLDS
    assert judged("C18", MadeUpKept(runs)).verdict == FAILS


def test_a_stopped_seed_is_left_out():
    scores = np.tile(60.0 + SPREAD, (2, 1))
    scores[1, 2] = NAN
    runs = runs_of(CASES["C1"][0])
    place = "curves/halfcheetah-medium-expert/rar"
    runs[place] = scored_run("regenerated/halfcheetah-medium-expert", actor_sampled=scores)
    found = judged("C1", MadeUpKept(runs))
    assert found.verdict == HOLDS
    assert found.corrected.effect.value == pytest.approx(20.0)
    assert found.corrected.seeds == 4


@pytest.mark.parametrize("name", CASES)
def test_one_seed_leaves_a_claim_undecided(name):
    runs = {
        f"curves/{folder}/{label}": flat_run(folder, label, level, np.zeros(1))
        for (folder, label), level in CASES[name][0].items()
    }
    assert judged(name, MadeUpKept(runs)).verdict == UNDECIDED


@pytest.mark.parametrize("name", ["C12", "C14"])
def test_negative_scores_are_compared_correctly(name):
    """If FtTPO's score is negative too, a ratio would reverse the claim."""
    good, bad, _ = ({place: level - 100.0 for place, level in case.items()} for case in CASES[name])
    assert judged(name, MadeUpKept(runs_of(good))).verdict == HOLDS
    assert judged(name, MadeUpKept(runs_of(bad))).verdict == FAILS


def test_an_unreadable_run_makes_a_claim_not_run_with_the_reason():
    class Broken(MadeUpKept):
        def _run(self, name):
            if "treatment" in name:
                raise ValueError("run.json is damaged")

    found = judged("C2", Broken())
    assert (found.verdict, found.why) == (NOT_RUN, "run.json is damaged")
    assert as_row(found, "--scale small")["meaning"] == "run.json is damaged"
    assert judged("C1", Broken()).why == ""
