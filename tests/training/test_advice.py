"""Warnings about trained policies, and exactly when they are given."""

import dataclasses
import logging

import numpy as np
import pytest

import fat2thin
from fat2thin import data
from fat2thin.algorithms.xql import XQLConfig
from fat2thin.columns import Column
from fat2thin.data.operations import Reachable, reachable_returns, split
from fat2thin.runs.identity import read_logs
from fat2thin.training import run_warnings as module
from fat2thin.training.run_warnings import ERRORS, HARDLY, TIMES, HeldOutFindings, advice

HEALTHY = {
    "critic_loss": 0.5,
    "held_out_td_error": 1.1,
    "logged_inside_support": 0.5,
    "learned_inside": 0.5,
    "held_out_inside": 0.48,
    "held_out_inside_least": 0.48,
    "held_out_value": 2.0,
}
OVERFITTED, CRITIC = "the policy looks overfitted", "Q looks overfitted"
UNCOVERED, CONSTANT = "the log hardly covers the band", "a constant action is estimated"
NAN = float("nan")


def found(
    rows=10_000, constant=1.0, action=(0.25,), without=(), seeds=1, huber=np.inf, **changes,
):  # fmt: skip
    """Return the findings of equal seeds; a list has one value per seed."""
    metrics = {name: value for name, value in (HEALTHY | changes).items() if name not in without}
    several = {name: np.broadcast_to(value, seeds).astype(float) for name, value in metrics.items()}
    return HeldOutFindings(
        metrics=several,
        constant_value=np.broadcast_to(constant, seeds).astype(float),
        constant_action=np.tile(np.asarray(action, float), (seeds, 1)),
        held_out_rows=rows,
        reachable=[Reachable(-15.8, -0.011)] * seeds,
        huber_limit=huber,
    )


def warnings(seeds=(7,), **given):
    return advice(seeds, found(seeds=len(seeds), **given))


def test_a_healthy_policy_gives_no_warning():
    assert warnings() == []


def test_a_value_that_is_not_estimable_is_reported_and_not_compared():
    (sentence,) = warnings(
        seeds=(3, 5, 8), held_out_value=[NAN, 2.0, NAN], constant=[1.0, 1.0, NAN]
    )
    assert sentence.startswith(
        "seeds 3, 8: the value of the policy is not estimable: outside what the rewards allow "
        "[-15.8, -0.011]"
    )


def test_unknown_results_give_no_warning():
    unknown = dict.fromkeys(HEALTHY, NAN)
    assert warnings(**unknown) == warnings(**unknown, constant=NAN) == warnings(constant=NAN) == []


def one(beginning, **given):
    """Return the only warning, which must begin like this."""
    (sentence,) = warnings(**given)
    assert sentence.startswith(f"seed 7: {beginning}")
    return sentence


# The share of training actions, with 0.4 of the held-out ones: 1.5 times that is 0.6.


def test_a_band_that_fits_only_the_training_actions_is_reported():
    sentence = one(OVERFITTED, learned_inside=0.6001, held_out_inside=0.4)
    assert "holds 60 % of the actions that it learned from and 40 % of those" in sentence
    assert "--settings-from small" in sentence and "--select offline" in sentence


def test_a_band_at_the_threshold_is_not_reported():
    assert warnings(learned_inside=TIMES * 0.4, held_out_inside=0.4) == []


@pytest.mark.parametrize(("rows", "said"), [(108, False), (115, True)])
def test_a_difference_below_three_standard_errors_is_not_reported(rows, said):
    """For 0.4 and 0.6 it is sqrt(2 · 0.25 / rows): at 112.5 rows three of them are 0.2."""
    assert pytest.approx(0.2) == ERRORS * np.sqrt(2 * 0.5 * 0.5 / 112.5)
    sentences = warnings(rows=rows, learned_inside=0.601, held_out_inside=0.4)
    assert (len(sentences) == 1) == said


def test_a_band_that_is_better_on_held_out_actions_is_not_reported():
    assert warnings(learned_inside=0.3, held_out_inside=0.9) == []


# critic_loss is half a mean square: 0.5 is an error of 1.


def test_a_held_out_error_above_one_and_a_half_times_is_reported():
    sentence = one(CRITIC, held_out_td_error=1.5001)
    assert "is 1.5 times that on the steps it learned from" in sentence
    assert "--settings-from small" in sentence
    assert warnings(held_out_td_error=TIMES) == []
    assert "is 3.0 times" in one(CRITIC, critic_loss=2.0, held_out_td_error=6.0)
    assert warnings(critic_loss=2.0, held_out_td_error=3.0) == []


@pytest.mark.parametrize("learned", [1.0, 15.0, 19.0, 25.0, 400.0])
def test_errors_are_compared_beyond_the_limit_of_a_huber_loss(learned):
    """XQL's loss is linear there: once, errors of 400 and 800 counted as a factor of 1.4."""

    def metrics(ratio):
        size, limit = learned * np.array([1.0, ratio]), 20.0
        loss = np.where(size <= limit, size**2 / 2, limit * (size - limit / 2))
        known = {"critic_loss": loss[0], "held_out_td_error": np.sqrt(2.0 * loss[1])}
        return {**known, "huber": limit}

    assert "is 1.6 times" in one(CRITIC, **metrics(1.6))
    assert "is 2.0 times" in one(CRITIC, **metrics(2.0))
    assert warnings(**metrics(1.4)) == []


@pytest.mark.parametrize("missing", ["critic_loss", "held_out_td_error"])
def test_an_algorithm_without_critics_gives_no_warning_about_them(missing):
    assert warnings(without=(missing,), critic_loss=1e-9, held_out_td_error=9.0) == []


# In each coordinate 5 % of the held-out actions must lie inside.


def covered(share, **given):
    shares = ("learned_inside", "held_out_inside", "held_out_inside_least")
    return warnings(**dict.fromkeys(shares, share), **given)


def test_a_band_with_hardly_any_logged_action_is_reported():
    (sentence,) = covered(0.049)
    assert sentence.startswith(f"seed 7: {UNCOVERED}. 4.9 % of the held-out actions lie inside")
    assert "kept_mass" in sentence
    assert covered(HARDLY) == []


def test_the_least_covered_coordinate_counts():
    known = {"learned_inside": 0.06, "held_out_inside": 0.06, "action": (0.1, 0.2)}
    assert warnings(held_out_inside_least=0.3, **known) == []
    assert len(warnings(held_out_inside_least=0.04, **known)) == 1


def test_all_coordinates_together_count_as_well():
    """Once, a log with six actions had 0.5 % jointly inside and no warning."""
    known = {"learned_inside": 0.005, "held_out_inside_least": 0.4, "action": (0.1, 0.2)}
    (sentence,) = warnings(held_out_inside=0.005, **known)
    assert sentence.startswith(f"seed 7: {UNCOVERED} in all action dimensions together. 0.5 % of")
    assert "each dimension alone is covered (the least by 40 %)" in sentence
    assert warnings(held_out_inside=HARDLY, **known) == []
    # One seed has too little in a coordinate, the other only jointly: one sentence for each.
    first, second = warnings(
        seeds=(3, 5), learned_inside=0.01, held_out_inside=0.01, held_out_inside_least=[0.01, 0.3]
    )
    assert first.startswith("seed 3: ") and second.startswith("seed 5: ")


def test_a_few_training_actions_inside_do_not_mean_overfitting():
    sentences = warnings(rows=1024, learned_inside=0.0007, held_out_inside=0.0)
    assert not any(OVERFITTED in sentence for sentence in sentences)


def test_an_empty_band_is_reported_as_uncovered_and_not_as_overfitted():
    (sentence,) = covered(0.0)
    assert UNCOVERED in sentence and " 0 % of the held-out" in sentence


def test_an_algorithm_without_a_band_gives_no_warning_about_it():
    known = {"logged_inside_support": 0.9, "held_out_inside": 0.001}
    assert warnings(without=("logged_inside_support",), **known) == []


# The policy's value is 2.


def test_a_constant_that_is_as_good_is_reported():
    sentence = one(CONSTANT, constant=2.0)
    assert "For seed 7 the best is 0.25. What both are worth" in sentence
    assert warnings(constant=1.9999) == []


def test_a_constant_has_the_names_and_units_of_the_actions():
    columns = (Column("noradrenaline", "µg/kg/min"), Column("fluids"))
    given = found(constant=2.0, action=(0.25, -1.5))._replace(action_columns=columns)
    (sentence,) = advice((7,), given)
    assert "the best is noradrenaline 0.25 µg/kg/min, fluids -1.5. What both" in sentence


def test_a_warning_names_the_seeds_it_applies_to():
    values = [2.0, 0.5, 0.7, NAN]
    unknown, sentence = warnings(seeds=(3, 5, 8, 9), held_out_value=values)
    assert unknown.startswith("seed 9: ")
    assert sentence.startswith("seeds 5, 8: a constant action")
    assert "For seed 5 the best is 0.25. " in sentence


def test_percentages_are_over_the_named_seeds():
    (sentence,) = warnings(
        seeds=(3, 5, 8), learned_inside=[0.8, 0.5, 0.9], held_out_inside=[0.2, 0.48, 0.3]
    )
    assert sentence.startswith(f"seeds 3, 8: {OVERFITTED}")
    assert "holds 85 % of" in sentence and " 25 % of those" in sentence


def test_all_warnings_together_are_in_order():
    sentences = warnings(
        learned_inside=0.5,
        held_out_inside=0.01,
        held_out_inside_least=0.01,
        held_out_td_error=9.0,
        constant=5.0,
    )
    assert len(sentences) == 4
    for sentence, words in zip(sentences, (OVERFITTED, CRITIC, UNCOVERED, CONSTANT), strict=True):
        assert words in sentence


LOG = "treatment/quadratic@8"
OPTIONS = {
    "steps": 4, "seeds": 2, "hidden": (4,), "batch_size": 8, "evaluate_every": 4, "episodes": 2,
    "log_every": 2, "holdout": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A policy that has hardly learned anything, so that a constant is better."""
    return fat2thin.train("bc", LOG, out=tmp_path_factory.mktemp("advised") / "run", **OPTIONS)


def test_warnings_are_saved_with_the_run(run):
    (sentence,) = run.about["warnings"]
    assert CONSTANT in sentence and sentence.startswith(("seed 0: ", "seeds 0, 1: "))
    assert fat2thin.load(run.folder).about["warnings"] == [sentence]


@pytest.fixture
def known(run, monkeypatch):
    """The findings of the first seed after the last row, and of the second after the first."""
    seen = []
    monkeypatch.setattr(module, "advice", lambda seeds, found: seen.append(found) or ["said"])
    assert module.look(run.spec, read_logs([run.spec])[0], run.metrics, [4, 2]) == ["said"]
    return seen[0]


def test_warnings_use_the_metrics_of_the_chosen_step(run, known):
    assert "held_out_value" in known.metrics
    for name, values in known.metrics.items():
        rows = run.metrics[name]
        np.testing.assert_array_equal(values, [rows[1, 0], rows[0, 1]])


def test_warnings_use_the_huber_limit_of_the_run(run, known, monkeypatch):
    assert known.huber_limit == np.inf
    monkeypatch.setattr(module, "advice", lambda seeds, found: [f"{found.huber_limit}"])
    spec = dataclasses.replace(run.spec, algorithm="xql", config=XQLConfig(huber_limit=3.0))
    assert module.look(spec, read_logs([run.spec])[0], run.metrics, [4, 2]) == ["3.0"]


def test_the_constant_is_a_logged_action_with_a_possible_value(known):
    """Each seed has its own log; it learns from six episodes and holds out two."""
    parts = [split(data.load(LOG, seed), 0.2, seed) for seed in (0, 1)]
    assert known.held_out_rows == min(held_out.rows for held_out, _ in parts)
    for (held_out, learned), action, value in zip(
        parts, known.constant_action, known.constant_value, strict=True
    ):
        assert np.min(np.abs(learned.action - action)) < 1e-5
        factor = 1.0 / np.std(learned.reward)
        # No policy has a value above that of the best reward at every step.
        rewards = np.concatenate([held_out.reward, learned.reward])
        assert abs(value) < factor * np.abs(rewards).max() / (1.0 - learned.discount)
    for seed, reachable in enumerate(known.reachable):
        assert reachable == reachable_returns(data.load(LOG, seed))


def test_a_run_without_a_holdout_gets_no_warnings(caplog, monkeypatch):
    monkeypatch.setattr(module, "advice", lambda *_: ["never"])
    options = {"steps": 2, "evaluate_every": 2, "settings_from": "default"}
    with caplog.at_level(logging.WARNING):
        run = fat2thin.train("stand_in", "tiny/own", **options)
    assert not caplog.records and "warnings" not in run.about
