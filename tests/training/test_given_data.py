"""What `train` takes as data, and how the result is shown, on the tiny world."""

import dataclasses
import gc
import html
import warnings

import numpy as np
import pyarrow as pa
import pytest

from fat2thin import algorithms, data
from fat2thin.data import Dataset, save_npz
from fat2thin.data.formats import table
from fat2thin.data.memory import FRAME_KEYS
from fat2thin.evaluation.held_out import training_log
from fat2thin.settings.options import option_names
from fat2thin.training import OtherRunError, load, train, verify

OPTIONS = {
    "steps": 12, "seeds": [3, 5], "log_every": 3, "batch_size": 16, "settings_from": "default",
}  # fmt: skip
FRAME = {
    "patient": ["a"] * 3 + ["b"] * 3, "level": [0.0, 1, 2, 3, 4, 5], "dose": [0.5, 1, 0, 0, 1, 0.5],
    "score": [1.0, 2, 3, 4, 5, 6], "died": [False] * 5 + [True],
}  # fmt: skip
COLUMNS = {
    "episode": "patient", "observation": ["level"], "action": ["dose"], "reward": "score",
    "end": "died", "action_low": 0, "action_high": 1, "discount": 0.9,
}  # fmt: skip


def given(given_data, **changes):
    return train("stand_in", given_data, **{**OPTIONS, **changes})


def arrays_of(dataset):
    return {
        "observation": dataset.observation, "action": dataset.action, "reward": dataset.reward,
        "next_observation": dataset.next_observation, "episode_start": dataset.episode_start,
        "action_low": dataset.action_low, "action_high": dataset.action_high,
        "discount": dataset.discount,
    }  # fmt: skip


def test_every_kind_of_data_gives_the_run_of_a_file(tiny_world, tmp_path):
    dataset = tiny_world.dataset("doses")
    save_npz(dataset, tmp_path / "log.npz")
    expected = given(str(tmp_path / "log.npz"))
    for one in (tmp_path / "log.npz", dataset, arrays_of(dataset)):
        run = given(one)
        np.testing.assert_array_equal(run.metrics["loss"], expected.metrics["loss"])
        assert run.about["sha256"] == expected.about["sha256"]
    assert expected.data is None


def test_data_in_memory_can_be_loaded_while_the_run_exists(tiny_world):
    run = given(arrays_of(tiny_world.dataset()))
    gc.collect()
    assert run.spec.dataset == f"memory/arrays-{run.data.sha256[:8]}"
    assert data.load(run.spec.dataset) is run.data
    assert training_log(run).rows < run.data.rows  # a fifth is held out by default
    name = run.spec.dataset
    del run
    gc.collect()
    with pytest.raises(ValueError, match="pass the same data again"):
        data.load(name)


def test_the_same_data_load_the_run_and_other_data_are_refused(tiny_world, tmp_path):
    first = given(arrays_of(tiny_world.dataset()), out=tmp_path)
    tiny_world.traces.clear()
    again = given(arrays_of(tiny_world.dataset()), out=tmp_path)
    assert not tiny_world.traces
    np.testing.assert_array_equal(first.metrics["loss"], again.metrics["loss"])
    assert verify(tmp_path).passed and again.data is not None
    with pytest.raises(OtherRunError, match="memory/arrays-"):
        given(arrays_of(tiny_world.dataset(seed=1)), out=tmp_path)
    # Without the data the run is read, and only its data cannot be verified.
    del first, again
    gc.collect()
    assert load(tmp_path).data is None
    assert "pass the same data again" in str(verify(tmp_path))


def test_an_interrupted_run_resumes_on_the_same_data(tiny_world, tmp_path, monkeypatch):
    from fat2thin.training import runner

    class Stop(Exception):
        pass

    def broken(self, place, progress):
        pause(self, place, progress)
        raise Stop

    log = arrays_of(tiny_world.dataset())
    pause = runner._Training._pause
    monkeypatch.setattr(runner._Training, "_pause", broken)
    monkeypatch.setattr(runner.Timer, "due", lambda self, patient: True)
    with pytest.raises(Stop):
        given(log, out=tmp_path)
    monkeypatch.setattr(runner._Training, "_pause", pause)
    resumed = given(log, out=tmp_path)
    assert resumed.about["resumed"]
    np.testing.assert_array_equal(resumed.metrics["loss"], given(log).metrics["loss"])


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ("tiny/shared", "observation, reward can be given only with a data frame, not with a name"),
        ({"reward": [1]}, "not with a mapping of arrays"),
        (None, "not with data of type NoneType"),
    ],
)
def test_columns_are_refused_for_other_data(one, message):
    with pytest.raises(ValueError, match=message):
        given(one, observation=["level"], reward="score")


def test_other_types_are_refused_with_a_list_of_those_that_work():
    with pytest.raises(TypeError, match="data cannot be of type int: give a name, a path, a fat2"):
        given(3)


def test_keywords_for_columns_are_no_options_and_no_settings_of_an_algorithm():
    taken = {*option_names(), "algorithm", "data", "out", "config", "progress"}
    for name in algorithms.names():
        taken |= set(algorithms.get(name).config.__dataclass_fields__)
    assert not taken & set(FRAME_KEYS)


def test_a_frame_and_its_columns_reach_the_reader(tiny_world, monkeypatch):
    frame, seen = pa.table(FRAME), {}

    def read(found, **columns):
        seen.update(columns, frame=found)
        return tiny_world.dataset("frame")

    monkeypatch.setattr(table, "dataset_from_frame", read)
    run = given(frame, **COLUMNS)
    assert run.spec.dataset.startswith("memory/frame-")
    assert seen == {**COLUMNS, "frame": frame}


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
def test_a_frame_gives_the_run_of_its_arrays(library):
    module = pytest.importorskip(library)
    frame = pa.table(FRAME) if library == "pyarrow" else module.DataFrame(FRAME)
    arrays = Dataset.from_arrays(
        FRAME["level"], FRAME["dose"], FRAME["score"], episode=FRAME["patient"],
        terminal=FRAME["died"], action_low=0, action_high=1, discount=0.9,
    )  # fmt: skip
    assert Dataset.from_frame(frame, **COLUMNS).sha256 == arrays.sha256
    run = given(frame, **COLUMNS)
    assert [column.name for column in run.columns.observation] == ["level"]
    np.testing.assert_array_equal(run.metrics["loss"], given(arrays).metrics["loss"])


def test_a_run_without_a_task_has_a_table_of_its_metrics():
    run = given("bare/log")
    assert run.table()["loss"]["mean"] == pytest.approx(run.metrics["loss"][-1].mean())
    assert run.table().title == (
        "stand_in on bare/log, seeds 3, 5, no task to evaluate on: means over steps 10 to 12"
    )


def test_a_run_is_shown_in_a_few_lines(tmp_path):
    run = given("tiny/own", out=tmp_path / "run", evaluate_every=6)
    centre = run.evaluations["actor_centre"].returns[-1].mean(axis=-1)
    lines = [line.split(maxsplit=1) for line in repr(run).splitlines()]
    shown = dict(line for line in lines if len(line) == 2)
    assert lines[0] == ["Run"] and len(lines) <= 10
    assert shown["data"] == "tiny/own" and shown["seeds"] == "3, 5"
    assert (shown["steps"], shown["status"]) == ("12 of 12", "finished")
    assert shown["actor_centre"] == (
        f"return {centre.mean():.4g} ± {centre.std(ddof=1):.3g} (standard deviation of 2 seeds) "
        "after step 12"
    )
    assert repr(load(tmp_path / "run")) == repr(run)


def test_a_run_without_a_task_shows_its_held_out_signals():
    run = given("bare/log")
    signal = {"held_out_td_error": np.array([[3.0, 4.0], [1.0, np.nan]])}
    names = [line.split() for line in repr(run).splitlines()]
    assert [name for name, *_ in names if name in run.metrics] == ["loss", "reward"]
    run = dataclasses.replace(run, metrics={**run.metrics, **signal})
    names = [line.split() for line in repr(run).splitlines()]
    assert ["held_out_td_error", "1"] in names and "loss" not in repr(run)


def test_names_in_the_html_of_a_run_are_escaped(tiny_world):
    evil = "<script>alert(1)</script>"
    run = given(tiny_world.dataset(evil))
    shown = run._repr_html_()
    assert "<script" not in shown
    # In the summary and in the title of the table.
    assert shown.count(html.escape(f"memory/{evil}")) == 2
    assert "loss" in shown
    assert max(map(len, repr(given(tiny_world.dataset("x" * 500))).splitlines())) < 120


def test_no_warning_is_raised_for_complete_arrays(tiny_world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset.from_arrays(**arrays_of(tiny_world.dataset()))
