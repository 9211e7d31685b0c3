"""Every verdict on runs whose answer is known."""

import json
import re
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments.made_up_runs import (
    SPREAD,
    ConstantPolicy,
    MadeUpKept,
    MadeUpPolicies,
    flat_run,
    scored_run,
)
from fat2thin import data
from fat2thin.distributions import QGaussian
from fat2thin.evaluation.first_actions import FirstActions
from fat2thin.evaluation.statistics import Interval
from fat2thin.experiments import (
    all_claims,
    claims_learning,
    claims_policies,
    claims_structure,
)
from fat2thin.experiments.claims import (
    CORRECTED,
    FAILS,
    HOLDS,
    NOT_RUN,
    ONLY_PUBLISHED,
    UNDECIDED,
    Claim,
    Finding,
    Kept,
    Verdict,
    _verdict,
    above,
    as_row,
    effect_words,
    judge,
    number,
    to_json,
    weakest,
)
from fat2thin.experiments.presets import PRESETS, Reproduction
from fat2thin.experiments.reproduction import NAMES
from fat2thin.experiments.scales import scale_of
from fat2thin.families import HeavyTailed, Sparse, Squashed
from report.page_runs import two_coordinates

NAN = float("nan")
CLAIMS = {claim.name: claim for claim in all_claims.CLAIMS}
STRUCTURAL = ("C21", "C22", "C23", "C24")
TASKS = tuple(
    f"{robot}-{level}"
    for robot in ("halfcheetah", "hopper", "walker2d")
    for level in ("medium-expert", "medium-replay", "medium")
)
REWARDS = ("treatment-quadratic", "treatment-cubic")


def judged(name, kept):
    return judge(CLAIMS[name], kept)


# Rules


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
def test_all_effects_must_be_above_zero(effects, expected):
    assert above([Interval(*effect) for effect in effects]) is expected


def test_a_claim_hangs_on_its_smallest_effect():
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
        ("absent", None, UNDECIDED),
        (False, True, ONLY_PUBLISHED),
        (None, True, ONLY_PUBLISHED),
        ("absent", True, ONLY_PUBLISHED),
    ],
)
def test_a_verdict_follows_from_both_findings(corrected, published, expected):
    both = (
        None if holds == "absent" else Finding(holds, number(0.0), "")
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
def test_effects_in_words(effect, words):
    assert effect_words(Finding(None, effect, "")) == words


# The list


def test_every_claim_is_there_once_and_in_order():
    assert [claim.name for claim in all_claims.CLAIMS] == [f"C{n}" for n in range(1, 27)]
    assert {claim.preset for claim in all_claims.CLAIMS} <= {*NAMES, ""}
    assert {claim.name for claim in all_claims.CLAIMS if not claim.preset} == {*STRUCTURAL}


class Asking(MadeUpKept):
    """Has no run, and remembers what it was asked for."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def _run(self, name):
        self.names.add(name)


@pytest.mark.parametrize(
    "claim", [claim for claim in all_claims.CLAIMS if claim.preset in PRESETS], ids=lambda c: c.name
)
def test_a_claim_looks_at_runs_that_its_preset_makes(claim):
    asking = Asking()
    judge(claim, asking)
    made = {one.name for one in PRESETS[claim.preset](Reproduction(scale_of("smoke")))}
    assert asking.names
    assert asking.names <= made


def test_a_folder_without_runs_has_no_runs(tmp_path):
    kept = Kept(tmp_path)
    assert kept.curve("treatment-cubic", CORRECTED.method("fttpo")) is None
    assert kept.times() is None
    for name in CLAIMS.keys() - {*STRUCTURAL}:
        assert judged(name, kept).verdict == NOT_RUN


# Claims about returns: what would make each of them hold, fail and stay open.


def everywhere(tasks, **levels):
    """Scores by folder and method; underscores are hyphens in a method's name."""
    return {
        (task, label.replace("_", "-")): level for task in tasks for label, level in levels.items()
    }


def with_others(scores, **others):
    """The same but for a method on some sets."""
    (label, (level, tasks)) = next(iter(others.items()))
    return {**scores, **{(task, label.replace("_", "-")): level for task in tasks}}


EXAMPLE = ("halfcheetah-medium-expert",)
LOUD = 50.0
"""Times the spread of seeds where it leaves a claim open."""


def sparse(fttpo, rar, reverse):
    scores = everywhere(EXAMPLE, fttpo=fttpo, rar=rar)
    return {**scores, (EXAMPLE[0], "sparse_reverse_kl"): reverse}


BAND = everywhere(REWARDS, fttpo=9.0, iql=3.0, xql=3.5, sql=4.0, spot=3.2)
ROBOTS = everywhere(TASKS, fttpo=80.0, iql=70.0, inac=60.0, tawac=50.0, awac=40.0, xql=30.0, sql=20.0)  # fmt: skip
VARIANTS = everywhere(TASKS, fttpo=50.0, fttpo_spot=48.0, fttpo_sg=40.0, tawac_ht=51.0)
CASES = {
    "C1": (sparse(80.0, 60.0, 40.0), sparse(80.0, 85.0, 40.0), sparse(60.4, 60.0, 40.0)),
    "C2": (BAND, with_others(BAND, spot=(20.0, REWARDS[1:])), with_others(BAND, spot=(8.6, REWARDS[1:]))),
    "C3": (BAND, with_others(BAND, xql=(-7.0, REWARDS[1:])), with_others(BAND, xql=(-0.6, REWARDS[1:]))),
    "C10": (with_others(ROBOTS, fttpo=(10.0, TASKS[:4])), with_others(ROBOTS, fttpo=(10.0, TASKS[:5])), None),
    "C12": (with_others(VARIANTS, fttpo_spot=(52.0, TASKS[:3])), with_others(VARIANTS, fttpo_spot=(52.0, TASKS[:4])), None),
    "C13": (VARIANTS, with_others(VARIANTS, tawac_ht=(65.0, TASKS)), with_others(VARIANTS, tawac_ht=(54.9, TASKS))),
    "C14": (with_others(VARIANTS, fttpo_sg=(60.0, ["hopper-medium-replay"])), with_others(VARIANTS, fttpo_sg=(60.0, ["hopper-medium"])), None),
    "C17": (VARIANTS, with_others(VARIANTS, fttpo_sg=(55.0, TASKS)), with_others(VARIANTS, fttpo_spot=(54.9, TASKS))),
    "C18": (VARIANTS, with_others(VARIANTS, tawac_ht=(35.0, TASKS)), with_others(VARIANTS, tawac_ht=(54.9, TASKS))),
}  # fmt: skip
"""Scores by which a claim holds, fails, and stays open where seeds differ much."""
PUBLISHED = ("fttpo", "fttpo-spot", "fttpo-sg", "tawac-ht", "xql", "spot", "rar", "sparse_reverse_kl")  # fmt: skip
"""Methods of which the authors' code has a form of its own."""


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
def test_a_claim_holds_or_does_not(name):
    good, bad, _ = CASES[name]
    assert judged(name, MadeUpKept(runs_of(good))).verdict == HOLDS
    assert judged(name, MadeUpKept(runs_of(bad))).verdict == FAILS


@pytest.mark.parametrize("name", CASES)
def test_a_claim_holds_only_as_published(name):
    """There by the proposal's scores, and the actor's are far off."""
    good, bad, _ = CASES[name]
    found = judged(name, MadeUpKept(runs_of(bad) | runs_of(as_published(good))))
    assert found.corrected.holds is False
    assert found.verdict == ONLY_PUBLISHED


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_a_claim_stays_open(name):
    verdict = judged(name, MadeUpKept(runs_of(CASES[name][2], LOUD)))
    assert verdict.verdict == UNDECIDED
    low, high = verdict.corrected.effect[1:]
    assert low < high


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("C1", "rar"), ("C2", "spot"), ("C3", "spot"), ("C10", "awac"), ("C12", "fttpo-spot"),
        ("C13", "tawac-ht"), ("C14", "fttpo-sg"), ("C17", "fttpo-spot"), ("C18", "tawac-ht"),
    ],
)  # fmt: skip
def test_a_claim_about_all_methods_is_not_judged_by_some(name, needed):
    runs = {path: run for path, run in runs_of(CASES[name][0]).items() if path.split("/")[2] != needed}
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
def test_effects_are_what_they_are_by_hand(name, effect):
    finding = judged(name, MadeUpKept(runs_of(CASES[name][0]))).corrected
    assert finding.effect.value == pytest.approx(effect)
    assert finding.seeds == 5


def test_a_failing_effect_is_of_the_worse_reward():
    """9 - 20 on one of the two."""
    assert judged("C2", MadeUpKept(runs_of(CASES["C2"][1]))).corrected.effect.value == pytest.approx(-11)


def test_one_reward_is_enough_for_the_treatment_task():
    runs = {path: run for path, run in runs_of(BAND).items() if "quadratic" in path}
    assert judged("C2", MadeUpKept(runs)).verdict == HOLDS


def test_areas_are_of_the_curve_and_scores_of_its_end():
    """By trapezoids: (10 * 15 + 30 * 40) / 40."""
    curve = np.array([[10.0], [20.0], [60.0]])
    run = scored_run("regenerated/hopper-medium", (0, 10, 40), actor_sampled=curve)
    assert claims_learning.area(run, CORRECTED) == pytest.approx(33.75)
    assert claims_learning.final(run, CORRECTED) == pytest.approx(60.0)


def test_areas_decide_where_ends_do_not():
    """TAWAC-HT ends where FtTPO does, and is behind it on the way."""
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


def test_one_seed_decides_nothing_between_methods():
    for name in ("C1", "C2", "C3", "C13", "C17", "C18"):
        runs = {
            path: scored_run(run.spec.dataset, actor_sampled=scored_level(path, name))
            for path, run in runs_of(CASES[name][0]).items()
        }
        assert judged(name, MadeUpKept(runs)).verdict == UNDECIDED


def scored_level(path, name):
    _, folder, label = path.split("/")
    return np.full((2, 1), CASES[name][0][folder, label])


# Claims about what policies look like, by policies of a known shape.


def look(actors, proposals=None, dataset="treatment/quadratic", seeds=(0, 1), **about):
    return MadeUpPolicies(
        spec=SimpleNamespace(dataset=dataset, seeds=seeds, snapshots=(0, 400)),
        about=about, actors=actors, proposals=proposals,
    )  # fmt: skip


def on_both(label, run_on):
    return {f"curves/treatment-{reward}/{label}": run_on(reward) for reward in ("quadratic", "cubic")}


def same_on_both(label, actor, proposal=None):
    return on_both(label, lambda reward: look(actor, proposal, f"treatment/{reward}"))


def band(half_width, centre=0.0, box="inside"):
    return ConstantPolicy(Sparse(0.0, box), centre, half_width)


def squashed(scale):
    return ConstantPolicy(Squashed(), 0.0, scale)


def cauchy(scale, centre=0.0):
    """With this scale as a Cauchy distribution has it."""
    return ConstantPolicy(HeavyTailed(2.0), centre, scale / np.sqrt(2.0))


def clipped(deviation):
    return ConstantPolicy(HeavyTailed(1.0), 0.0, deviation)


def finding_of(name, runs):
    return judged(name, MadeUpKept(runs)).corrected


@pytest.mark.parametrize(("half_width", "holds"), [(0.2, True), (1.0, False)])
def test_narrow_is_a_small_part_of_the_box(half_width, holds):
    runs = same_on_both("fttpo", band(half_width))
    found = finding_of("C4", runs)
    assert (found.holds, found.seeds) == (holds, 2)
    assert found.effect.value == pytest.approx(half_width)
    published = {path.replace("fttpo", "fttpo-published"): run for path, run in runs.items()}
    assert judged("C4", MadeUpKept(published)).verdict == (ONLY_PUBLISHED if holds else UNDECIDED)


def test_the_wider_reward_decides():
    widths = {"quadratic": 0.2, "cubic": 0.7}
    runs = on_both("fttpo", lambda reward: look(band(widths[reward]), None, f"treatment/{reward}"))
    assert finding_of("C4", runs).effect.value == pytest.approx(0.7)
    assert judged("C4", MadeUpKept(runs)).verdict == FAILS


def test_policies_of_stopped_seeds_are_not_looked_at():
    def actor(seed, step):
        assert seed != 1
        return band(0.2)

    run = look(actor, seeds=(0, 1, 2), stopped={"1": {"step": 3}})
    assert finding_of("C4", {"curves/treatment-quadratic/fttpo": run}).holds


@pytest.mark.parametrize(("scale", "holds"), [(0.01, True), (0.5, False)])
def test_a_point_mass_is_a_narrow_central_range(scale, holds):
    """The central 95 % of a squashed Gaussian by SciPy."""
    found = finding_of("C5", same_on_both("sql", squashed(scale)))
    assert found.holds is holds
    assert found.effect.value == pytest.approx(np.tanh(scale * scipy.stats.norm.ppf(0.975)), rel=0.1)


@pytest.mark.parametrize(("scale", "holds"), [(0.8, True), (0.05, False)])
def test_wide_baselines_are_wider_than_the_actor(scale, holds):
    """Epanechnikov's law is 2 B - 1 for B of Beta(2, 2)."""
    runs = same_on_both("fttpo", band(0.3)) | same_on_both("iql", squashed(2.0))
    found = finding_of("C6", runs | same_on_both("xql", squashed(scale)))
    ours = 0.3 * (2.0 * scipy.stats.beta(2, 2).ppf(0.975) - 1.0)
    theirs = np.tanh(scale * scipy.stats.norm.ppf(0.975))
    assert found.holds is holds
    assert found.effect.value == pytest.approx(theirs - ours, abs=0.03)
    assert finding_of("C6", runs) is None


@pytest.mark.parametrize(("half_width", "share"), [(0.065, 1.0), (0.5, 0.0)])
def test_the_trunk_is_the_central_mass_of_the_proposal(half_width, share):
    """A Cauchy law of scale 0.02 has 95 % within 12.7 scales."""
    found = finding_of("C7", same_on_both("fttpo", band(half_width), cauchy(0.02)))
    assert found.holds is (share > 0.9)
    assert found.effect.value == share


@pytest.mark.parametrize(
    ("before", "after", "scale", "holds"),
    [(0.8, 0.1, 0.05, True), (0.1, 0.8, 0.05, False), (0.8, 0.1, 1e-4, False)],
)
def test_the_actor_shrinks_and_the_proposal_keeps_its_tails(before, after, scale, holds):
    run = look(lambda seed, step: band(after if step else before), cauchy(scale))
    found = finding_of("C8", {"evolution/treatment-quadratic/fttpo": run})
    assert found.holds is holds
    assert found.effect.value == pytest.approx(after / before)
    outside = 2.0 * scipy.stats.cauchy(scale=scale).sf(after)
    told = int(re.search(r"\((\d+)%\)", found.meaning)[1])
    assert told == pytest.approx(100.0 * outside, abs=1.5)


def test_a_squashed_baseline_is_never_beyond_the_box():
    runs = {f"evolution/treatment-quadratic/{name}": look(squashed(5.0)) for name in ("iql", "sql")}
    assert finding_of("C9", runs) == (False, number(0.0), finding_of("C9", runs).meaning, 1)
    runs["evolution/treatment-quadratic/xql"] = look(clipped(1.0))
    found = finding_of("C9", runs)
    assert found.holds
    assert found.effect.value == pytest.approx(2.0 * scipy.stats.norm.sf(1.0), abs=0.01)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log with two action coordinates, and a box that is not the unit one."""
    path = tmp_path_factory.mktemp("log") / "two.npz"
    data.save_npz(two_coordinates(), path)
    return str(path)


@pytest.mark.parametrize(("last", "holds"), [((0.2, 0.1), True), ((0.1, 0.6), False)])
def test_every_coordinate_must_get_narrower(last, holds, log):
    def actor(seed, step):
        half_widths = last if step else (0.5, 0.5)
        return ConstantPolicy(Sparse(), (0.0, 0.0), half_widths, (-2.0, 0.0), (2.0, 10.0))

    runs = {"evolution/halfcheetah-medium-expert/fttpo": look(actor, dataset=log)}
    found = finding_of("C11", runs)
    assert found.holds is holds
    assert found.effect.value == pytest.approx(max(last) / 0.5, rel=1e-5)


@pytest.mark.parametrize(("deviation", "holds"), [(2.0, True), (0.5, False)])
def test_a_wide_clipped_gaussian_lies_on_the_edge(deviation, holds):
    place = "evolution/halfcheetah-medium-expert-clipped/iql-clipped-Gaussian"
    found = finding_of("C15", {place: look(clipped(deviation))})
    assert found.holds is holds
    assert found.effect.value == pytest.approx(2.0 * scipy.stats.norm.sf(1.0 / deviation), abs=0.01)


@pytest.mark.parametrize(
    ("half_width", "least", "verdict"),
    [(0.4, 0.2, HOLDS), (0.8, -0.6, FAILS), (0.01, 1.0, HOLDS)],
)
def test_the_return_is_the_least_over_doses_in_the_band(half_width, least, verdict, monkeypatch):
    """Returns are 1 - 2 |dose| on eleven doses; the narrowest band holds the one at 0 alone."""
    doses = np.linspace(-1.0, 1.0, 11)
    returns = (1.0 - 2.0 * np.abs(doses))[:, None] + np.array([-0.5, 0.5])
    known = FirstActions(jnp.zeros(30), doses, returns)
    monkeypatch.setattr(claims_policies, "first_action_returns", lambda actor, task: known)
    runs = {"curves/treatment-quadratic/fttpo": look(band(half_width))}
    found = judged("C16", MadeUpKept(runs))
    assert found.verdict == verdict
    assert found.corrected.effect.value == pytest.approx(least)


def test_a_band_between_two_doses_is_judged_by_the_nearest(monkeypatch):
    doses = np.array([-1.0, 0.0, 1.0])
    known = FirstActions(jnp.zeros(30), doses, np.array([[1.0], [2.0], [3.0]]))
    monkeypatch.setattr(claims_policies, "first_action_returns", lambda actor, task: known)
    runs = {"curves/treatment-quadratic/fttpo": look(band(0.1, centre=0.6))}
    assert finding_of("C16", runs).effect.value == 3.0


@pytest.mark.parametrize(("half_width", "verdict"), [(0.02, HOLDS), (1.0, FAILS)])
def test_logged_actions_in_the_band_are_counted(half_width, verdict):
    """By NumPy, seed by seed, each of which has its own log."""
    found = judged("C25", MadeUpKept(same_on_both("fttpo", band(half_width))))
    shares = [
        np.mean([np.mean(np.abs(data.load(f"treatment/{reward}", seed).action) <= half_width)
                 for seed in (0, 1)])
        for reward in ("quadratic", "cubic")
    ]  # fmt: skip
    assert found.verdict == verdict
    assert found.corrected.effect.value == pytest.approx(max(shares))


def test_a_band_inside_the_box_is_never_clipped():
    found = finding_of("C26", same_on_both("fttpo", band(0.5, centre=0.99)))
    assert (found.holds, found.effect.value) == (True, 0.0)


def test_half_of_a_band_across_the_edge_is_clipped():
    found = finding_of("C26", same_on_both("fttpo", band(0.5, centre=1.0, box="clip")))
    assert found.holds is False
    assert found.effect.value == pytest.approx(0.5, abs=0.01)


# Costs


@pytest.mark.parametrize(
    ("name", "ratio", "holds"),
    [
        ("C19", 1.4, False), ("C19", 2.0, True), ("C19", 3.1, False),
        ("C20", 0.4, False), ("C20", 1.0, True), ("C20", 2.1, False),
    ],
)  # fmt: skip
def test_costs_are_against_those_of_iql(name, ratio, holds):
    kind = {"C19": "seconds_an_update", "C20": "seconds_an_action"}[name]
    times = {"seconds_an_update": 1.0, "seconds_an_action": 5.0}
    methods = {"iql": {**times, kind: 3.0}, "fttpo": {**times, kind: 3.0 * ratio}}
    found = judged(name, MadeUpKept(times={"device": "a clock", "methods": methods}))
    assert found.verdict == (HOLDS if holds else FAILS)
    assert found.corrected.effect.value == pytest.approx(ratio)


def test_times_are_read_from_the_folder(tmp_path):
    methods = {
        name: {"seconds_an_update": seconds, "seconds_an_action": 1.0}
        for name, seconds in (("iql", 1.0), ("fttpo", 2.5))
    }
    (tmp_path / "times.json").write_text(json.dumps({"device": "a clock", "methods": methods}))
    assert judged("C19", Kept(tmp_path)).corrected.effect.value == 2.5


# Mathematics: each holds, and each is seen to fail where what it checks is wrong.


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(claims_structure, "DRAWS", 40_000)


def structural(name):
    found = judged(name, MadeUpKept())
    return found.verdict, found.corrected.effect.value


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("name", STRUCTURAL)
def test_the_mathematics_holds(name):
    assert structural(name)[0] == HOLDS


def test_a_weight_with_a_floor_is_found(monkeypatch):
    """The authors' code has 1e-8 in place of zero."""
    right = claims_structure.q_exponential_weight
    monkeypatch.setattr(
        claims_structure, "q_exponential_weight", lambda *given: jnp.maximum(right(*given), 1e-8)
    )
    verdict, wrong = structural("C21")
    assert verdict == FAILS
    assert wrong > 40_000


def test_a_weight_that_drops_too_little_is_found(monkeypatch):
    right = claims_structure.q_exponential_weight
    monkeypatch.setattr(
        claims_structure, "q_exponential_weight", lambda a, *given: right(a + 0.01, *given)
    )
    # Ten of a thousand advantages a unit, for each of twelve temperatures and indices.
    assert structural("C21") == (FAILS, pytest.approx(120, abs=24))


@pytest.mark.usefixtures("few_draws")
def test_samples_that_leave_the_support_are_found(monkeypatch):
    class Leaking(QGaussian):
        def sample(self, key, sample_shape=()):
            return self.loc + 1.05 * (super().sample(key, sample_shape) - self.loc)

    monkeypatch.setattr(claims_structure, "QGaussian", Leaking)
    # Beyond 1 / 1.05 of the half-width lies this share of Epanechnikov's law, at both ends.
    share = 2.0 * scipy.stats.beta(2, 2).sf((1.0 + 1.0 / 1.05) / 2.0)
    verdict, lost = structural("C22")
    assert verdict == FAILS
    assert lost == pytest.approx(40_000 * share, rel=0.15)


@pytest.mark.usefixtures("few_draws")
def test_an_estimator_that_is_not_a_number_is_found(monkeypatch):
    monkeypatch.setattr(claims_structure, "_log_ratios", lambda ratio: np.array([0.0, NAN]))
    assert structural("C23")[0] == FAILS


@pytest.mark.usefixtures("few_draws")
def test_a_wrong_divergence_is_found(monkeypatch):
    right = claims_structure.kl_sparse_cauchy
    monkeypatch.setattr(claims_structure, "kl_sparse_cauchy", lambda *given: right(*given) + 0.05)
    assert structural("C24") == (FAILS, pytest.approx(-0.05, abs=0.02))


@pytest.mark.usefixtures("few_draws")
def test_the_published_normaliser_would_be_found(monkeypatch):
    """A proposal that is too heavy by the root of 2 moves the mean of -ln r."""

    class Published(QGaussian):
        def log_prob(self, value):
            heavy = 0.5 * np.log(2.0) if self.entropic_index == 2.0 else 0.0
            return super().log_prob(value) + heavy

    monkeypatch.setattr(claims_structure, "QGaussian", Published)
    assert structural("C24") == (FAILS, pytest.approx(-0.5 * np.log(2.0), abs=0.02))


# What is written


FOUND = [
    Verdict(Claim("C1", "one.", "fig1", None), HOLDS, Finding(True, Interval(-1.5, -2.0, 0.5), "a gap", 3), None),
    Verdict(Claim("C2", "two.", "fig2", None), UNDECIDED, Finding(None, Interval(4.0, NAN, NAN), "a gap", 1),
            Finding(None, Interval(NAN, NAN, NAN), "b")),
    Verdict(Claim("C3", "three.", "", None), NOT_RUN, None, None),
]  # fmt: skip


def strict(text):
    """JSON as a browser reads it, to which nan is not known."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_json_is_plain_and_whole():
    first, second, third = strict(to_json(FOUND, "small"))
    assert first["claim"] == "C1"
    assert (first["effect"], first["low"], first["high"], first["seeds"]) == (-1.5, -2.0, 0.5, 3)
    assert first["command"] == "fat2thin reproduce fig1 --scale small"
    assert (second["effect"], second["low"], second["published_effect"]) == (4.0, None, "–")
    assert (third["verdict"], third["effect"], third["seeds"]) == (NOT_RUN, None, 0)
    assert third["command"] == "fat2thin claims"


def test_a_verdict_shows_the_published_finding_where_there_is_no_other():
    published = Finding(True, number(7.0), "b", 4)
    row = as_row(Verdict(FOUND[0].claim, ONLY_PUBLISHED, None, published), "small")
    assert (row["effect"], row["seeds"], row["meaning"]) == (7.0, 4, "b")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@pytest.mark.usefixtures("few_draws")
def test_the_page_has_a_row_a_claim(tmp_path):
    found = all_claims.verdicts(tmp_path)
    text = all_claims.document(found, "reproduction/small", "small", ["cpu", "gpu"])
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(cells(line)) for line in (head, rule, *rows)} == {7}
    assert set(rule) <= set("|-:")
    assert [re.match(r"\*\*(C\d+)\*\* ", cells(row)[0])[1] for row in rows] == [*CLAIMS]
    for row in rows:
        expected = HOLDS if re.search(r"C2[1-4]\*\*", row) else NOT_RUN
        assert cells(row)[1] == expected
    assert "Trained on\ncpu and gpu." in text
    assert "\nnot run: 22, holds: 4.\n" in text
    assert "{" not in text
    assert str(all_claims.table(found)).endswith("not run: 22, holds: 4")


def test_the_page_tells_effects_of_both_modes():
    first, second, third = all_claims.document(FOUND, "x", "small", []).splitlines()[-3:]
    assert cells(first)[1:] == [HOLDS, "−1.50 [−2.00, 0.50]", "–", "a gap", "3",
                                "`fat2thin reproduce fig1 --scale small`"]  # fmt: skip
    assert cells(second)[2:4] == ["4", "–"]
    assert cells(third)[1:] == [NOT_RUN, "–", "–", "–", "–", "`fat2thin claims`"]
