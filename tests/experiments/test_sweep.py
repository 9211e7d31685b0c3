"""A grid, a choice, fresh seeds, and what it cost."""

import json
import shutil

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data.npz_files import read_npz, save_npz
from fat2thin.evaluation.held_out import held_out
from fat2thin.experiments import offline_selection, sweep
from fat2thin.experiments.plan_progress import PlanProgress
from fat2thin.experiments.sweep import Sweep, parse_grid, run_sweeps, words
from fat2thin.reading import read_value
from fat2thin.training import OtherRunError, load, make_spec

GRID = {"learning_rate": (1e-4, 1e-2), "temperature": (1.0, 0.1)}


def base(dataset="treatment/quadratic", algorithm="iql", **options):
    sizes = {"steps": 30, "seeds": 2, "batch_size": 16, "evaluate_every": 15, "episodes": 4}
    return make_spec(
        algorithm, dataset, settings={"hidden": (4,)}, log_every=15, **{**sizes, **options}
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    wanted = Sweep(base(), GRID, report_seeds=(7, 8, 9))
    return root, wanted, run_sweeps({"x": wanted}, root, PlanProgress())["x"]


def test_the_best_setting_is_the_one_with_the_largest_area(swept):
    """Areas by NumPy from the runs themselves."""
    root, wanted, result = swept
    areas = {}
    for one in wanted.settings:
        run = load(root / "x" / "selection" / words(one))
        curve = run.evaluations["actor_sampled"].returns.mean(axis=(1, 2))
        areas[words(one)] = np.trapezoid(curve, run.evaluations.steps) / 30.0
    assert words(result.choice.setting) == max(areas, key=areas.get)
    for name, area in areas.items():
        assert result.choice.scores[name].value == pytest.approx(area, rel=1e-5)


def test_the_report_has_fresh_seeds_and_the_chosen_setting(swept):
    _, wanted, result = swept
    assert result.run.spec.seeds == (7, 8, 9)
    assert wanted.base.seeds == (0, 1)
    for name, value in result.choice.setting.items():
        assert getattr(result.run.spec.config, name) == value


def test_the_budget_is_counted_and_printed(swept):
    """Four settings, two seeds, three evaluations, four episodes of 24 steps, in two ways."""
    _, _, result = swept
    assert result.choice.environment_steps == 4 * 2 * 3 * 4 * 24
    assert result.choice.all_environment_steps == 2 * result.choice.environment_steps
    assert "2,304 steps in the environment (4,608" in str(result.table())


def test_the_result_is_kept_as_json(swept):
    root, _, result = swept
    kept = json.loads((root / "x" / "sweep.json").read_text())
    assert kept["chosen"] == result.choice.setting
    assert kept["selection_seeds"] == [0, 1]
    assert kept["report_seeds"] == [7, 8, 9]


def test_a_sweep_that_is_done_is_not_computed_again(swept, monkeypatch):
    root, wanted, result = swept
    monkeypatch.setattr("fat2thin.experiments.plan.execute_together", None)
    again = run_sweeps({"x": wanted}, root, PlanProgress())["x"]
    assert again.choice == result.choice


def test_a_log_alone_chooses_without_any_environment(tmp_path):
    log, grid = tmp_path / "log.npz", {"learning_rate": (1e-4, 1e-2)}
    save_npz(data.load("treatment/quadratic", 0), log)
    for select, quantity, sign in (
        ("td_error", "td_error", -1.0),
        ("likelihood", "weighted_log_likelihood", 1.0),
    ):
        wanted = Sweep(base(str(log), "iql", seeds=1), grid, report_seeds=(5,), select=select)
        # Another choice wants another report.
        shutil.rmtree(tmp_path / "y" / "report", ignore_errors=True)
        result = run_sweeps({"y": wanted}, tmp_path, PlanProgress())["y"]
        place = tmp_path / "y" / "selection"
        validation = read_npz(place / "data" / "log" / "validation.npz")
        training = read_npz(place / "data" / "log" / "training.npz")
        assert validation.rows + training.rows == 50 * 24
        assert validation.rows == pytest.approx(0.2 * 50 * 24, abs=24)
        scores = {
            rate: sign
            * held_out(load(place / "log" / f"learning_rate={rate:g}"), validation)[quantity].mean()
            for rate in grid["learning_rate"]
        }
        assert result.choice.setting["learning_rate"] == max(scores, key=scores.get)
        assert result.choice.all_environment_steps == 0
        assert "no step in the environment" in str(result.table())
        # The report learns from the whole log.
        assert result.run.spec.dataset == str(log)

    save_npz(data.load("treatment/quadratic", 1), log)
    with pytest.raises(OtherRunError, match="is a part of another log"):
        run_sweeps({"y": wanted}, tmp_path, PlanProgress())


def test_every_seed_with_its_own_log_has_its_own_parts(tmp_path):
    specs = {"one": base(seeds=[3, 4])}
    planned = offline_selection.plan(specs, tmp_path, "z")
    assert [(one.name, one.spec.seeds) for one in planned] == [
        ("z/seed_3/one", (3,)), ("z/seed_4/one", (4,)),
    ]  # fmt: skip
    assert {one.spec.task for one in planned} == {"none"}
    logs = [read_npz(one.spec.dataset).sha256 for one in planned]
    assert logs[0] != logs[1]


def test_an_algorithm_without_critics_cannot_be_chosen_by_them(tmp_path):
    wanted = Sweep(base(algorithm="bc", seeds=1), {"learning_rate": (1e-3,)}, (5,), "td_error")
    with pytest.raises(ValueError, match="bc has no td error: choose by another of likelihood"):
        run_sweeps({"b": wanted}, tmp_path, PlanProgress())


def test_a_log_without_a_task_must_be_chosen_by_the_log(tmp_path):
    save_npz(data.load("treatment/quadratic", 0), tmp_path / "log.npz")
    wanted = Sweep(base(str(tmp_path / "log.npz"), "bc", seeds=1), {"learning_rate": (1e-3,)}, (5,))
    with pytest.raises(ValueError, match="choose by the log, with select='likelihood' or"):
        run_sweeps({"b": wanted}, tmp_path, PlanProgress())


def test_seeds_that_choose_do_not_report():
    with pytest.raises(ValueError, match="seeds 1 would choose the setting and report on it"):
        Sweep(base(), GRID, report_seeds=(1, 2))


def test_a_wrong_setting_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("fat2thin.experiments.plan.execute_together", None)
    wanted = Sweep(base(), {"temprature": (1.0,)}, report_seeds=(7,))
    with pytest.raises(ValueError, match="no setting 'temprature'; there are temperature"):
        run_sweeps({"x": wanted}, tmp_path, PlanProgress())


def test_a_setting_of_which_a_seed_stopped_is_not_taken():
    best = sweep._interval(np.array([1.0, np.nan]))
    assert np.isnan(best.value)
    assert sweep._known(best.value) == -np.inf


def test_grids_are_read_as_they_are_written():
    read = parse_grid(["temperature=1,0.5", "hidden=(64,64),(8,)", "box=inside,clip"], read_value)
    assert read == {
        "temperature": (1, 0.5), "hidden": ((64, 64), (8,)), "box": ("inside", "clip"),
    }  # fmt: skip
    assert parse_grid(["learning_rate=3e-4"], read_value) == {"learning_rate": (3e-4,)}
    for wrong in ("temperature", "temperature=", "temperature=1,1"):
        with pytest.raises(ValueError):
            parse_grid([wrong], read_value)
    with pytest.raises(ValueError, match="twice"):
        parse_grid(["temperature=1", "temperature=2"], read_value)
