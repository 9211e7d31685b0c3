"""The study of small logs: its runs and its tables."""

import numpy as np
import pytest

from experiments.made_up_runs import SPREAD, scored_run
from fat2thin import algorithms
from fat2thin.evaluation.returns import Reference
from fat2thin.paper.presets import SCALES, Reproduction
from fat2thin.paper.studies import SMALL_METHODS as METHODS
from fat2thin.paper.studies import small_log_plan as plan
from fat2thin.paper.studies import small_log_tables as tables
from fat2thin.settings.automatic import SCALES as LOG_SCALES
from fat2thin.settings.automatic import SMALL_STEPS, settings_for

BEST = Reference(mean=20.0, standard_error=0.1, measures={}, rule="a dose of 1", episodes=4000)
USUAL, SELECTED = "fttpo-usual-settings", "fttpo-held-out-and-selected"


@pytest.fixture(scope="module")
def planned():
    return dict(plan(Reproduction(SCALES["small"])))


def test_every_method_and_reward_has_its_own_folder(planned):
    folders = [*(one.folder for one in METHODS), USUAL, SELECTED]
    assert [*planned] == [
        f"small-logs/{reward}/{folder}" for reward in ("quadratic", "cubic") for folder in folders
    ]
    for name, spec in planned.items():
        _, reward, _ = name.split("/")
        assert spec.dataset == f"treatment/{reward}"
    variants = {spec.algorithm for spec in planned.values()}
    assert variants == {*algorithms.names()}


def test_no_seed_was_used_to_choose_settings(planned):
    assert {spec.seeds for spec in planned.values()} == {tuple(range(100, 110))}
    few = plan(Reproduction(SCALES["smoke"], seeds=3, steps=30))
    assert {spec.seeds for _, spec in few} == {(100, 101, 102)}
    assert {spec.steps for _, spec in few} == {30}
    assert {spec.evaluation_steps for _, spec in few} == {(0, 10, 20, 30)}


def test_all_runs_except_one_use_the_settings_for_small_logs(planned):
    for name, spec in planned.items():
        assert spec.steps == SMALL_STEPS[False]
        if name.endswith(USUAL):
            continue
        assert spec.settings_from == "small"
        assert {field: getattr(spec, field) for field in LOG_SCALES} == LOG_SCALES
        assert not spec.centre_values
        for field, value in settings_for(spec.algorithm).items():
            assert getattr(spec.config, field) == value
    usual = planned[f"small-logs/cubic/{USUAL}"]
    assert usual.config == algorithms.get("fttpo").config()
    assert (usual.standardise, usual.reward_scale) == (False, 1.0)


def test_exactly_one_run_holds_out_episodes_and_selects(planned):
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


def test_there_is_one_table_per_reward_with_the_best_first(both):
    quadratic, cubic = both
    assert quadratic.title.startswith("treatment/quadratic: final return after 20 updates")
    assert cubic.title.startswith("treatment/cubic")
    assert [row["method"] for row in quadratic] == ["fttpo", "iql", "bc"]
    assert [row["method"] for row in cubic] == ["fttpo"]


def test_shares_are_relative_to_the_best_constant_dose(both):
    shares = {row["method"]: row["percent_of_constant"] for row in both[0]}
    assert shares == pytest.approx({"fttpo": 95.0, "iql": 75.0, "bc": 50.0})
    assert [*both[0].rows[0]][:3] == ["method", "percent_of_constant", "mean"]
    assert both[0].notes == (
        "return of the best constant dose: 20.00 (a dose of 1, 4,000 episodes)",
    )


def test_stopped_seeds_are_noted_and_left_out():
    """The others have 10.1, 10, 10.2 and 10, with mean 10.075."""
    stopped = made_up(10.0, {"stopped": {"0": {"step": 5}}})
    (table,) = tables({"small-logs/cubic/sql": stopped})
    assert table.notes[0] == "sql: without stopped seed 0"
    assert len(table.notes) == 2
    assert table["sql"]["percent_of_constant"] == pytest.approx(50.375)
