"""The study of offline selection, on candidates whose best is known."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.made_up_runs import MadeUpRun, evaluation
from fat2thin.experiments.sweep import combinations
from fat2thin.paper import reproduction, studies
from fat2thin.paper.presets import SCALES, Reproduction
from fat2thin.paper.studies import (
    LAST,
    RANDOM,
    SIGNS,
    Candidates,
    Quality,
    among_checkpoints,
    among_settings,
    candidates,
    groups,
    interval,
    scores,
)
from fat2thin.paper.studies import selection_plan as plan
from fat2thin.paper.studies import selection_tables as tables
from fat2thin.runs.result import Evaluations

NAN = float("nan")
WAYS = (among_checkpoints, among_settings)
TRUTH = np.array([[1.0, 5.0, 3.0], [2.0, 4.0, 8.0], [9.0, 7.0, 6.0], [0.0, 2.0, 1.0]])
"""Returns of four settings with three checkpoints each; the best position differs."""
NOISE = np.random.default_rng(0).normal(size=TRUTH.shape)


def made_up(truth=TRUTH, **signals):
    return Candidates(
        np.asarray(truth, float), {name: np.asarray(s) for name, s in signals.items()}
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_perfect_signal_has_no_regret_and_a_reversed_one_the_most(way):
    found = way(made_up(perfect=3.0 * TRUTH - 1.0, cubed=TRUTH**3, reversed=-TRUTH))
    assert found["perfect"] == found["cubed"] == pytest.approx(Quality(1.0, 0.0))
    assert found["reversed"].correlation == pytest.approx(-1.0)
    worst = {
        among_checkpoints: np.mean(np.ptp(TRUTH, axis=1)),
        among_settings: np.ptp(TRUTH[:, -1]),
    }
    assert found["reversed"].regret == pytest.approx(worst[way])
    assert found["perfect"].regret < found[RANDOM].regret < found["reversed"].regret


def test_checkpoints_are_ranked_within_each_setting():
    found = among_checkpoints(made_up(noise=NOISE))
    ranked = [spearmanr(*pair).statistic for pair in zip(TRUTH, NOISE, strict=True)]
    chosen = [row[place] for row, place in zip(TRUTH, NOISE.argmax(axis=1), strict=True)]
    assert found["noise"].correlation == pytest.approx(np.mean(ranked))
    assert found["noise"].regret == pytest.approx(np.mean([5, 8, 9, 2]) - np.mean(chosen))
    assert math.isnan(found[LAST].correlation)
    # Behind the best of each setting: 5 - 3, 8 - 8, 9 - 6 and 2 - 1.
    assert found[LAST].regret == pytest.approx((2 + 0 + 3 + 1) / 4)
    assert found[RANDOM] == pytest.approx(
        Quality(0.0, np.mean([5 - 3, 8 - 14 / 3, 9 - 22 / 3, 2 - 1]))
    )


def test_settings_are_ranked_after_the_last_update():
    found = among_settings(made_up(noise=NOISE))
    assert found["noise"].correlation == pytest.approx(
        spearmanr(TRUTH[:, -1], NOISE[:, -1]).statistic
    )
    assert found["noise"].regret == pytest.approx(8.0 - TRUTH[NOISE[:, -1].argmax(), -1])
    assert found[RANDOM] == pytest.approx(Quality(0.0, 8.0 - 4.5))
    assert LAST not in found


@pytest.mark.parametrize("way", WAYS)
def test_a_constant_signal_has_no_rank_correlation(way):
    flat = way(made_up(signal=np.full_like(TRUTH, 2.0)))
    assert math.isnan(flat["signal"].correlation)
    assert flat["signal"].regret == pytest.approx(flat[RANDOM].regret) and flat[RANDOM].regret > 0
    equal = way(made_up(np.full_like(TRUTH, 4.0), signal=TRUTH))
    assert math.isnan(equal["signal"].correlation)
    assert equal["signal"].regret == equal[RANDOM].regret == 0.0


def test_ties_are_broken_at_random():
    signal = np.zeros_like(TRUTH)
    signal[[0, 2], -1] = 1.0
    # Settings 0 and 2 have 3 and 6; the best has 8.
    assert among_settings(made_up(signal=signal))["signal"].regret == pytest.approx(8.0 - 4.5)


@pytest.mark.parametrize("way", WAYS)
def test_settings_with_a_stopped_seed_are_not_candidates(way):
    going = way(made_up(noise=NOISE))
    truth = np.insert(TRUTH, 2, NAN, axis=0)
    assert way(made_up(truth, noise=np.insert(NOISE, 2, NAN, axis=0))) == going_or_nan(going)
    # The signal of a stopped run must not matter.
    assert way(made_up(truth, noise=np.insert(NOISE, 2, 99.0, axis=0))) == going_or_nan(going)


def going_or_nan(found):
    return {name: pytest.approx(one, nan_ok=True) for name, one in found.items()}


@pytest.mark.parametrize("way", WAYS)
def test_the_quality_is_nan_if_every_setting_stopped(way):
    found = way(made_up(np.full_like(TRUTH, NAN), signal=NOISE))
    assert math.isnan(found["signal"].correlation)
    assert all(math.isnan(one.regret) for one in found.values())


@pytest.mark.parametrize("way", WAYS)
def test_a_signal_without_values_selects_at_random(way):
    found = way(made_up(signal=np.full_like(TRUTH, NAN)))
    assert math.isnan(found["signal"].correlation)
    assert found["signal"].regret == pytest.approx(found[RANDOM].regret)


@pytest.mark.parametrize("way", WAYS)
def test_a_signal_without_a_value_for_the_best_has_regret(way):
    """Regret is relative to the best of all, not the best with a signal."""
    blind = np.where(TRUTH.max(axis=1, keepdims=True) == TRUTH, NAN, TRUTH)
    found = way(made_up(signal=blind))["signal"]
    expected = {
        among_checkpoints: np.mean([5 - 3, 8 - 4, 9 - 7, 2 - 1]),
        among_settings: 8.0 - 6.0,
    }
    assert found.regret == pytest.approx(expected[way])
    assert found.correlation == pytest.approx(1.0)


def run_of(spec, returns, signals, about=None, rows=slice(None)):
    """Return a run; returns and signals have shape (evaluations, seeds), untrained policy first."""
    steps = np.asarray(spec.evaluation_steps)[rows]
    return MadeUpRun(
        spec=spec,
        evaluations=Evaluations(
            tuple(steps.tolist()), {"actor_sampled": evaluation(spec.dataset, returns[rows])}
        ),
        metrics={"step": steps[1:], **{name: of[rows][1:] for name, of in signals.items()}},
        about=about or {},
    )


@pytest.fixture(scope="module")
def planned():
    return plan(Reproduction(SCALES["smoke"], seeds=2))


@pytest.fixture(scope="module")
def small(planned):
    """Return the run specifications of one data set by name."""
    return {
        name: spec for name, spec in planned if name.startswith("selection/treatment-quadratic-25/")
    }


@pytest.fixture
def known(small):
    """Return the returns by run, shape (evaluations, seeds)."""
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=(len(spec.evaluation_steps), 2)) for name, spec in small.items()}


def signals_like(returns):
    """Return signals that all rank the returns correctly."""
    return {name: sign * returns for name, sign in SIGNS.items()}


def test_the_truth_and_signals_of_each_seed_come_from_its_runs(small, known):
    runs = {
        name: run_of(spec, known[name], signals_like(known[name])) for name, spec in small.items()
    }
    (seeds,) = candidates(runs).values()
    assert len(seeds) == 2
    for place, one in enumerate(seeds):
        expected = np.stack([known[name][1:, place] for name in small])
        np.testing.assert_allclose(one.truth, expected)
        assert [*one.signals] == [*SIGNS]
        for signal in one.signals.values():
            np.testing.assert_allclose(signal, expected)
    scored = scores(candidates(runs))
    assert [*scored] == ["checkpoints", "settings"]
    for way in scored.values():
        for name in SIGNS:
            assert way["treatment-quadratic-25"][name] == [pytest.approx(Quality(1.0, 0.0))] * 2


def test_stopped_seeds_are_left_out_even_if_their_run_ended_early(small, known):
    """One seed of the first run stopped; all seeds of the second did, so it has fewer rows."""
    first, second, *_ = small
    runs = {name: run_of(small[name], known[name], signals_like(known[name])) for name in small}
    whole = candidates(runs)["treatment-quadratic-25"]
    ends = {first: ("1",), second: ("0", "1")}
    for name, seeds in ends.items():
        about = {"stopped": {seed: {"step": 40} for seed in seeds}}
        rows = slice(2) if len(seeds) == 2 else slice(None)
        runs[name] = run_of(small[name], known[name], signals_like(known[name]), about, rows)
    found = candidates(runs)["treatment-quadratic-25"]
    for one, full, stopped in zip(found, whole, ([1], [0, 1]), strict=True):
        going = np.delete(np.arange(len(small)), stopped)
        for made, there in (
            (one.truth, full.truth),
            *zip(one.signals.values(), full.signals.values(), strict=True),
        ):
            assert np.isnan(made[stopped]).all()
            np.testing.assert_array_equal(made[going], there[going])
    for way in scores({"any": found}).values():
        assert way["any"]["held_out_value"] == [pytest.approx(Quality(1.0, 0.0))] * 2


def test_the_study_gives_tables_and_a_figure(small, known):
    runs = {
        name: run_of(spec, known[name], signals_like(known[name])) for name, spec in small.items()
    }
    made, pictures = reproduction._show("selection", runs)
    assert [table.title.split(":")[0] for table in made] == [
        f"selection among {way}, small logs (25, 50)" for way in ("checkpoints", "settings")
    ]
    assert [*pictures] == ["selection"] and len(pictures["selection"].axes) == 2


def test_robots_have_d4rl_scores(planned):
    name, spec = next(one for one in planned if one.name.startswith("selection/hopper"))
    known = np.arange(2.0 * len(spec.evaluation_steps)).reshape(-1, 2)
    (seeds,) = candidates({name: run_of(spec, known, signals_like(known))}).values()
    np.testing.assert_allclose(seeds[1].truth, known[1:, 1][None])


def test_combinations_of_a_grid_by_hand():
    assert combinations({"a": (1, 2), "b": ("x", "y")}) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip


def test_the_plan_holds_out_a_fifth_of_every_log():
    planned = plan(Reproduction(SCALES["small"]))
    names = [one.name for one in planned]
    assert len(set(names)) == len(names) == 2 * 4 * 36 + 3 * 8
    setting = "temperature=0.1,hidden=16x16,learning_rate=0.0003,weight_decay=3"
    assert f"selection/treatment-cubic-1000/{setting}" in names
    for name, spec in planned:
        assert spec.holdout == 0.2 and spec.algorithm == "fttpo" and spec.select == "last"
        robot = not spec.dataset.startswith("treatment/")
        assert spec.reward_scale == (1.0 if robot else "deviation")
        assert len(spec.evaluation_steps) == (5 if robot else 7)
        assert {*spec.evaluation_steps[1:]} <= {*range(0, spec.steps + 1, spec.log_every)}
        folder = name.split("/")[1]
        assert folder == (
            spec.dataset.split("/")[1] if robot
            else spec.dataset.replace("/", "-").replace("@", "-")
        )  # fmt: skip
    sizes = {spec.dataset for _, spec in planned if spec.dataset.startswith("treatment/cubic")}
    assert sizes == {f"treatment/cubic@{size}" for size in (25, 50, 200, 1000)}


def test_a_smaller_scale_has_only_small_networks(planned):
    assert {spec.config.hidden for _, spec in planned} == {(16, 16)}
    treatment = [spec for _, spec in planned if spec.dataset.startswith("treatment/")]
    assert len(treatment) == 2 * 4 * 12 and {spec.steps for spec in treatment} == {200}
    assert {len(spec.seeds) for spec in treatment} == {2}
    more = plan(dataclasses.replace(Reproduction(SCALES["smoke"]), steps=60, seeds=3))
    assert {spec.steps for _, spec in more} == {60}
    assert {len(s.seeds) for _, s in more if s.dataset.startswith("treatment/")} == {3}


def test_groups_of_data_sets_in_a_table():
    names = [
        "treatment-quadratic-25", "treatment-cubic-50", "treatment-cubic-200",
        "treatment-quadratic-1000", "hopper-medium-replay",
    ]  # fmt: skip
    assert groups(names) == {
        "small logs (25, 50)": names[:2],
        "larger (200, 1,000)": names[2:4],
        "robots": names[4:],
    }
    assert groups(names[4:]) == {"robots": names[4:]}
    assert groups(names[:1]) == {"small logs (25, 50)": names[:1]}


def scored_by(regrets, datasets):
    """Return scores of three seeds with a known mean regret, by signal."""
    spread = np.array([-0.1, 0.0, 0.1])
    of = {
        name: [Quality(0.5 + one, regret + one) for one in spread]
        for name, regret in regrets.items()
    }
    return {way: dict.fromkeys(datasets, of) for way in studies.CHOSEN_AMONG}


def test_an_interval_ignores_nan():
    scored = scored_by({"held_out_value": 1.0}, ["hopper", "walker2d"])
    found = interval(scored, "settings", ["hopper", "walker2d"], "held_out_value", "regret")
    assert found.value == pytest.approx(1.0) and 0.89 < found.low < 1.0 < found.high < 1.11
    scored["settings"]["walker2d"] = {"held_out_value": [Quality(NAN, NAN), Quality(NAN, 7.0)]}
    both = ["hopper", "walker2d"]
    # Three seeds of mean 1 and one of 7; the second data set has no correlation.
    assert interval(scored, "settings", both, "held_out_value", "regret").value == pytest.approx(
        2.5
    )
    assert interval(
        scored, "settings", both, "held_out_value", "correlation"
    ).value == pytest.approx(0.5)
    scored["settings"] = {"hopper": {"held_out_value": [Quality(NAN, NAN)]}}
    nothing = interval(scored, "settings", ["hopper"], "held_out_value", "regret")
    assert np.isnan(nothing).all()


def test_rows_are_sorted_by_regret_with_nan_last():
    datasets = ["treatment-cubic-25", "treatment-cubic-200", "hopper-medium-replay"]
    regrets = {"held_out_value": 2.0, "held_out_spread": NAN, "held_out_inside": 1.0, RANDOM: 3.0}
    made = tables(scored_by(regrets, datasets))
    assert len(made) == 2 * 3
    for table in made:
        assert [row["signal"] for row in table] == ["inside", "value", RANDOM, "spread"]
        row = table["value"]
        assert (row["regret"], row["rank_correlation"]) == pytest.approx((2.0, 0.5))
        assert 1.89 < row["regret_low"] < 2.0 < row["regret_high"] < 2.11
        assert 0.39 < row["low"] < 0.5 < row["high"] < 0.61
    assert made[0].title.startswith("selection among checkpoints, small logs (25, 50)")
    assert made[-1].title.startswith("selection among settings, robots")
