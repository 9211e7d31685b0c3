"""Sweeps: the grid, the selection, the report on fresh seeds, and the cost."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fat2thin import data
from fat2thin.cli.reading import read_value
from fat2thin.data.formats.npz import save_npz
from fat2thin.data.operations import learned_and_held_out
from fat2thin.experiments import sweep
from fat2thin.experiments.plan import PlanProgress
from fat2thin.experiments.sweep import Sweep, log_scores, parse_grid, run_sweeps, words
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
    """Areas are computed with NumPy from the runs."""
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
    unknown = result.choice._replace(environment_steps=None, all_environment_steps=None)
    assert "unknown, the task does not measure" in str(result._replace(choice=unknown).table())


def test_the_result_is_written_as_json(swept):
    root, _, result = swept
    kept = json.loads((root / "x" / "sweep.json").read_text())
    assert kept["chosen"] == result.choice.setting
    assert kept["selection_seeds"] == [0, 1]
    assert kept["report_seeds"] == [7, 8, 9]


def test_a_finished_sweep_is_not_computed_again(swept, monkeypatch):
    root, wanted, result = swept
    monkeypatch.setattr("fat2thin.experiments.plan.execute_together", None)
    again = run_sweeps({"x": wanted}, root, PlanProgress())["x"]
    assert again.choice == result.choice


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """Return a sweep on a file, selected by a held-out fifth of it."""
    root = tmp_path_factory.mktemp("offline")
    save_npz(data.load("treatment/quadratic", 0), root / "log.npz")
    grid = {"learning_rate": (1e-4, 1e-2)}
    wanted = Sweep(base(str(root / "log.npz"), seeds=2), grid, (5,), "offline")
    result = run_sweeps({"y": wanted}, root, PlanProgress())["y"]
    runs = {
        f"y/selection/{words(one)}": load(root / "y" / "selection" / words(one))
        for one in wanted.settings
    }
    return SimpleNamespace(root=root, wanted=wanted, result=result, runs=runs)


def test_selection_by_the_log_uses_no_environment(offline):
    """On a noisy log, the score is the fitted-Q value after the last update."""
    scores = {}
    for name, run in offline.runs.items():
        assert (run.spec.holdout, run.spec.task) == (0.2, "none")
        scores[name.removeprefix("y/selection/")] = run.metrics["held_out_value"][-1].mean()
    choice = offline.result.choice
    assert words(choice.setting) == max(scores, key=scores.get)
    for name, score in scores.items():
        assert choice.scores[name].value == pytest.approx(score, rel=1e-5)
    assert choice.all_environment_steps == 0
    assert "no steps in the environment" in str(offline.result.table())


def test_the_report_learns_from_the_whole_log(offline):
    spec = offline.result.run.spec
    assert (spec.dataset, spec.holdout, spec.seeds) == (offline.wanted.base.dataset, 0.0, (5,))


def test_settings_on_logs_without_noise_are_selected_by_likelihood(offline, monkeypatch):
    monkeypatch.setattr(sweep, "is_noisy", lambda dataset: False)
    for run in offline.runs.values():
        expected = run.metrics["held_out_log_likelihood"][-1]
        np.testing.assert_allclose(log_scores(run), expected, rtol=1e-6)


def test_only_the_training_part_decides_whether_a_log_is_noisy(offline, tmp_path):
    """With noise only in the held-out part, the score is the likelihood."""
    log = data.load("treatment/quadratic", 0)
    rng = np.random.default_rng(0)
    numbered = dataclasses.replace(log, reward=np.arange(log.rows, dtype=np.float32))
    _, held_out = learned_and_held_out(numbered, 0.5, 0)
    following = (0.9 * log.observation + log.action).astype(np.float32)
    rows = held_out.reward.astype(int)
    following[rows] = rng.normal(size=(len(rows), 8))
    save_npz(dataclasses.replace(log, next_observation=following), tmp_path / "log.npz")
    run = next(iter(offline.runs.values()))
    spec = dataclasses.replace(run.spec, dataset=str(tmp_path / "log.npz"), holdout=0.5)
    metrics = {"held_out_value": np.zeros((1, 2)), "held_out_log_likelihood": np.ones((1, 2))}
    made = dataclasses.replace(run, spec=spec, metrics=metrics)
    np.testing.assert_array_equal(log_scores(made), 1.0)


def test_a_run_with_offline_selection_has_the_score_of_its_selected_policy(offline):
    """The score is the largest of all rows instead of the last."""
    for run in offline.runs.values():
        selecting = dataclasses.replace(run.spec, select="offline")
        value = np.array([[3.0, 1.0], [2.0, 5.0]])
        made = dataclasses.replace(run, spec=selecting, metrics={"held_out_value": value})
        np.testing.assert_array_equal(log_scores(made), [3.0, 5.0])
        last = dataclasses.replace(made, spec=run.spec)
        np.testing.assert_array_equal(log_scores(last), [2, 5])


def test_a_setting_that_is_not_estimable_has_no_score_and_is_never_selected(offline):
    """With offline selection, rows without a value are ignored."""
    selecting, run = {}, next(iter(offline.runs.values()))
    for select, expected in (("offline", [3.0, np.nan]), ("last", [np.nan, np.nan])):
        spec = dataclasses.replace(run.spec, select=select)
        value = np.array([[3.0, np.nan], [2.0, np.nan], [np.nan, np.nan]])
        made = dataclasses.replace(run, spec=spec, metrics={"held_out_value": value})
        np.testing.assert_array_equal(log_scores(made), expected)
        selecting[select] = made
    others = {name: selecting["last"] for name in offline.runs}
    good = [*offline.runs][1]
    choice = sweep._choose(offline.wanted, {**others, good: offline.runs[good]})
    assert words(choice.setting) == words_of(good)
    table = str(sweep.SweepResult(offline.wanted, choice, run).table())
    assert "never selected): a seed stopped, or its value is not estimable: outside what" in table
    with pytest.raises(ValueError, match=r"has a score: a seed stopped, or .* not estimable: out"):
        sweep._choose(offline.wanted, others)


def words_of(name):
    return name.rsplit("/", 1)[1]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_stopped_seed_has_no_score(offline, rows):
    """Also if all seeds stopped before there were any metrics."""
    run = next(iter(offline.runs.values()))
    stopped = {seed: {"step": 3} for seed in ("01" if rows == 0 else "1")}
    metrics = {"held_out_value": np.array([[3.0, np.nan]])} if rows else {}
    made = dataclasses.replace(run, metrics=metrics, about={**run.about, "stopped": stopped})
    np.testing.assert_array_equal(log_scores(made), [np.nan if rows == 0 else 3.0, np.nan])


def test_a_changed_log_is_an_error(offline):
    path = Path(offline.wanted.base.dataset)
    before = path.read_bytes()
    save_npz(data.load("treatment/quadratic", 1), path)
    try:
        with pytest.raises(OtherRunError, match="has changed since the run"):
            run_sweeps({"y": offline.wanted}, offline.root, PlanProgress())
    finally:
        path.write_bytes(before)


def test_selection_seeds_by_the_log_form_one_run():
    grid = {"learning_rate": (1e-4, 1e-2)}
    for given, held_out in ({}, 0.2), ({"holdout": 0.5}, 0.5):
        planned = Sweep(base(seeds=[3, 4], **given), grid, (5,), "offline").selection("z")
        assert [(one.name, one.spec.seeds) for one in planned] == [
            (f"z/selection/learning_rate={rate}", (3, 4)) for rate in ("0.0001", "0.01")
        ]
        assert {(one.spec.holdout, one.spec.task) for one in planned} == {(held_out, "none")}


def test_a_log_without_a_task_needs_selection_by_the_log(tmp_path):
    save_npz(data.load("treatment/quadratic", 0), tmp_path / "log.npz")
    wanted = Sweep(base(str(tmp_path / "log.npz"), "bc", seeds=1), {"learning_rate": (1e-3,)}, (5,))
    with pytest.raises(ValueError, match="select by the log, with select='offline'"):
        run_sweeps({"b": wanted}, tmp_path, PlanProgress())


def test_a_seed_cannot_both_select_and_report():
    with pytest.raises(ValueError, match="seeds 1 would both select the setting and report it"):
        Sweep(base(), GRID, report_seeds=(1, 2))


def test_an_unknown_setting_is_an_error_before_anything_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("fat2thin.experiments.plan.execute_together", None)
    wanted = Sweep(base(), {"temprature": (1.0,)}, report_seeds=(7,))
    with pytest.raises(ValueError, match="no setting 'temprature'; there are temperature"):
        run_sweeps({"x": wanted}, tmp_path, PlanProgress())


def test_a_setting_with_a_stopped_seed_is_never_selected():
    best = sweep._interval(np.array([1.0, np.nan]))
    assert np.isnan(best.value)
    assert sweep._known(best.value) == -np.inf


def test_grids_are_parsed_and_invalid_ones_are_errors():
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
