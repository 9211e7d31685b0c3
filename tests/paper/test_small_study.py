"""The study of small logs: what is run, and what its tables say."""

import numpy as np
import pytest

from experiments.made_up_runs import SPREAD, scored_run
from fat2thin import algorithms
from fat2thin.evaluation.returns import Reference
from fat2thin.paper.presets import SCALES, Reproduction
from fat2thin.paper.studies import SMALL_METHODS as METHODS
from fat2thin.paper.studies import small_log_plan as plan
from fat2thin.paper.studies import small_log_tables as tables
from fat2thin.settings.small_logs import OPTIONS, SMALL_STEPS, small_settings

BEST = Reference(mean=20.0, standard_error=0.1, measures={}, rule="a dose of 1", episodes=4000)
USUAL, SELECTED = "fttpo-usual-settings", "fttpo-held-out-and-selected"


@pytest.fixture(scope="module")
def planned():
    return dict(plan(Reproduction(SCALES["small"])))


def test_every_method_on_both_rewards_in_a_folder_of_its_own(planned):
    folders = [*(one.folder for one in METHODS), USUAL, SELECTED]
    assert [*planned] == [
        f"small-logs/{reward}/{folder}" for reward in ("quadratic", "cubic") for folder in folders
    ]
    for name, spec in planned.items():
        _, reward, _ = name.split("/")
        assert spec.dataset == f"treatment/{reward}"
    variants = {spec.algorithm for spec in planned.values()}
    assert variants == {*algorithms.names()}


def test_seeds_are_those_that_no_setting_was_chosen_on(planned):
    assert {spec.seeds for spec in planned.values()} == {tuple(range(100, 110))}
    few = plan(Reproduction(SCALES["smoke"], seeds=3, steps=30))
    assert {spec.seeds for _, spec in few} == {(100, 101, 102)}
    assert {spec.steps for _, spec in few} == {30}
    assert {spec.evaluation_steps for _, spec in few} == {(0, 10, 20, 30)}


def test_all_but_the_usual_one_have_the_settings_for_small_logs(planned):
    for name, spec in planned.items():
        assert spec.steps == SMALL_STEPS
        if name.endswith(USUAL):
            continue
        assert spec.settings_from == "small"
        assert {field: getattr(spec, field) for field in OPTIONS} == OPTIONS
        for field, value in small_settings(spec.algorithm).items():
            assert getattr(spec.config, field) == value
    usual = planned[f"small-logs/cubic/{USUAL}"]
    assert usual.config == algorithms.get("fttpo").config()
    assert (usual.standardise, usual.reward_scale) == (False, 1.0)


def test_one_run_is_held_out_and_selected_and_no_other(planned):
    selected = {name for name, spec in planned.items() if spec.select == "offline"}
    assert selected == {f"small-logs/{reward}/{SELECTED}" for reward in ("quadratic", "cubic")}
    for name, spec in planned.items():
        assert spec.holdout == (0.2 if name in selected else 0.0)


def made_up(level, about=None):
    run = scored_run("treatment/cubic", about=about, actor_sampled=np.tile(level + SPREAD, (2, 1)))
    object.__setattr__(run, "references", {"best constant": BEST})
    return run


@pytest.fixture(scope="module")
def both():
    levels = {
        "quadratic/bc": 10.0,
        "quadratic/fttpo": 19.0,
        "cubic/fttpo": 2.0,
        "quadratic/iql": 15.0,
    }
    return tables({f"small-logs/{name}": made_up(level) for name, level in levels.items()})


def test_a_table_each_reward_the_best_first(both):
    quadratic, cubic = both
    assert quadratic.title.startswith("treatment/quadratic: final return after 20 updates")
    assert cubic.title.startswith("treatment/cubic")
    assert [row["method"] for row in quadratic] == ["fttpo", "iql", "bc"]
    assert [row["method"] for row in cubic] == ["fttpo"]


def test_shares_are_of_the_best_constant_dose(both):
    shares = {row["method"]: row["percent_of_constant"] for row in both[0]}
    assert shares == pytest.approx({"fttpo": 95.0, "iql": 75.0, "bc": 50.0})
    assert [*both[0].rows[0]][:3] == ["method", "percent_of_constant", "mean"]
    assert both[0].notes == ("the best constant dose has 20.00 (a dose of 1, 4,000 episodes)",)


def test_seeds_that_stopped_are_noted_and_left_out():
    """The others have 10.1, 10, 10.2 and 10, of which the mean is 10.075."""
    stopped = made_up(10.0, {"stopped": {"0": {"step": 5}}})
    (table,) = tables({"small-logs/cubic/sql": stopped})
    assert table.notes[0] == "sql: without seeds 0, which stopped"
    assert len(table.notes) == 2
    assert table["sql"]["percent_of_constant"] == pytest.approx(50.375)
