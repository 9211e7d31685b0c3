"""Claims about the shape of policies, checked on policies of known shape."""

import re
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments.made_up_runs import (
    ConstantPolicy,
    MadeUpKept,
    MadeUpPolicies,
    judged,
)
from fat2thin import data
from fat2thin.paper import claims_policies
from fat2thin.paper.claims import FAILS, HOLDS, ONLY_PUBLISHED, number
from fat2thin.paper.policy_figures import FirstActions
from fat2thin.policies.families import HeavyTailed, Sparse, Squashed
from report.page_runs import two_coordinates


def look(actors, proposals=None, dataset="treatment/quadratic", seeds=(0, 1), **about):
    return MadeUpPolicies(
        spec=SimpleNamespace(dataset=dataset, seeds=seeds, snapshots=(0, 400)),
        about=about, actors=actors, proposals=proposals,
    )  # fmt: skip


def on_both(label, run_on):
    return {
        f"curves/treatment-{reward}/{label}": run_on(reward) for reward in ("quadratic", "cubic")
    }


def same_on_both(label, actor, proposal=None):
    return on_both(label, lambda reward: look(actor, proposal, f"treatment/{reward}"))


def band(half_width, centre=0.0, box="inside"):
    return ConstantPolicy(Sparse(0.0, box), centre, half_width)


def squashed(scale):
    return ConstantPolicy(Squashed(), 0.0, scale)


def cauchy(scale, centre=0.0):
    """Return a proposal that is a Cauchy distribution with this scale."""
    return ConstantPolicy(HeavyTailed(2.0), centre, scale / np.sqrt(2.0))


def clipped(deviation):
    return ConstantPolicy(HeavyTailed(1.0), 0.0, deviation)


def finding_of(name, runs):
    return judged(name, MadeUpKept(runs)).corrected


@pytest.mark.parametrize(("half_width", "holds"), [(0.2, True), (1.0, False)])
def test_a_narrow_policy_covers_a_small_part_of_the_box(half_width, holds):
    found = finding_of("C4", same_on_both("fttpo", band(half_width)))
    assert (found.holds, found.seeds) == (holds, 2)
    assert found.effect.value == pytest.approx(half_width)


def test_a_policy_may_be_narrow_only_as_published():
    runs = same_on_both("fttpo", band(0.8)) | same_on_both("fttpo-published", band(0.2))
    found = judged("C4", MadeUpKept(runs))
    assert found.verdict == ONLY_PUBLISHED
    assert found.published.effect.value == pytest.approx(0.2)


def test_the_wider_reward_decides():
    widths = {"quadratic": 0.2, "cubic": 0.7}
    runs = on_both("fttpo", lambda reward: look(band(widths[reward]), None, f"treatment/{reward}"))
    assert finding_of("C4", runs).effect.value == pytest.approx(0.7)
    assert judged("C4", MadeUpKept(runs)).verdict == FAILS


def test_policies_of_stopped_seeds_are_left_out():
    def actor(seed, step):
        assert seed != 1
        return band(0.2)

    run = look(actor, seeds=(0, 1, 2), stopped={"1": {"step": 3}})
    assert finding_of("C4", {"curves/treatment-quadratic/fttpo": run}).holds


@pytest.mark.parametrize(("scale", "holds"), [(0.01, True), (0.5, False)])
def test_a_point_mass_has_a_narrow_central_range(scale, holds):
    """The central 95 % of a squashed Gaussian by SciPy."""
    found = finding_of("C5", same_on_both("sql", squashed(scale)))
    assert found.holds is holds
    assert found.effect.value == pytest.approx(
        np.tanh(scale * scipy.stats.norm.ppf(0.975)), rel=0.1
    )


@pytest.mark.parametrize(("scale", "holds"), [(0.8, True), (0.05, False)])
def test_wide_baselines_are_wider_than_the_actor(scale, holds):
    """The Epanechnikov distribution is that of 2 B - 1 with B from Beta(2, 2)."""
    runs = same_on_both("fttpo", band(0.3)) | same_on_both("iql", squashed(2.0))
    found = finding_of("C6", runs | same_on_both("xql", squashed(scale)))
    ours = 0.3 * (2.0 * scipy.stats.beta(2, 2).ppf(0.975) - 1.0)
    theirs = np.tanh(scale * scipy.stats.norm.ppf(0.975))
    assert found.holds is holds
    assert found.effect.value == pytest.approx(theirs - ours, abs=0.03)
    assert finding_of("C6", runs) is None


@pytest.mark.parametrize(("half_width", "share"), [(0.065, 1.0), (0.5, 0.0)])
def test_the_trunk_is_the_central_mass_of_the_proposal(half_width, share):
    """A Cauchy distribution of scale 0.02 has 95 % within 12.7 scales."""
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
    shown = int(re.search(r"\((\d+)%\)", found.meaning)[1])
    assert shown == pytest.approx(100.0 * outside, abs=1.5)


def test_a_squashed_baseline_is_never_beyond_the_box():
    runs = {f"evolution/treatment-quadratic/{name}": look(squashed(5.0)) for name in ("iql", "sql")}
    assert finding_of("C9", runs) == (False, number(0.0), finding_of("C9", runs).meaning, 1)
    runs["evolution/treatment-quadratic/xql"] = look(clipped(1.0))
    found = finding_of("C9", runs)
    assert found.holds
    assert found.effect.value == pytest.approx(2.0 * scipy.stats.norm.sf(1.0), abs=0.01)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return a log with two action coordinates and a box other than [-1, 1]."""
    path = tmp_path_factory.mktemp("log") / "two.npz"
    data.save_npz(two_coordinates(), path)
    return str(path)


@pytest.mark.parametrize(("last", "holds"), [((0.2, 0.1), True), ((0.1, 0.6), False)])
def test_every_coordinate_must_become_narrower(last, holds, log):
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
    """Returns are 1 - 2 |dose| on eleven doses; the narrowest band contains only the dose 0."""
    doses = np.linspace(-1.0, 1.0, 11)
    returns = (1.0 - 2.0 * np.abs(doses))[:, None] + np.array([-0.5, 0.5])
    known = FirstActions(jnp.zeros(30), doses, returns)
    monkeypatch.setattr(claims_policies, "first_action_returns", lambda actor, task: known)
    runs = {"curves/treatment-quadratic/fttpo": look(band(half_width))}
    found = judged("C16", MadeUpKept(runs))
    assert found.verdict == verdict
    assert found.corrected.effect.value == pytest.approx(least)


def test_a_band_between_two_doses_uses_the_nearest(monkeypatch):
    doses = np.array([-1.0, 0.0, 1.0])
    known = FirstActions(jnp.zeros(30), doses, np.array([[1.0], [2.0], [3.0]]))
    monkeypatch.setattr(claims_policies, "first_action_returns", lambda actor, task: known)
    runs = {"curves/treatment-quadratic/fttpo": look(band(0.1, centre=0.6))}
    assert finding_of("C16", runs).effect.value == 3.0


@pytest.mark.parametrize(("half_width", "verdict"), [(0.02, HOLDS), (1.0, FAILS)])
def test_logged_actions_in_the_band_are_counted(half_width, verdict):
    """Compared with NumPy for each seed, which has its own log."""
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
