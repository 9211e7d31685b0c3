"""Runs in one program: each equals the run alone, and one that diverges stops alone."""

import logging

import jax
import numpy as np
import pytest

import fat2thin
from fat2thin.data import Reader, readers
from fat2thin.engine.pack import make_pack
from fat2thin.random_streams import Stream, stream_key
from fat2thin.runs.identity import read_logs
from fat2thin.training import TrainingDiverged, execute, execute_together, make_spec

OPTIONS = {"steps": 12, "evaluate_every": 6, "log_every": 3, "episodes": 3, "batch_size": 8}


def specs(*changes, **options):
    return [
        make_spec(
            **{"algorithm": "stand_in", "dataset": "tiny/shared"} | OPTIONS | options | change
        )
        for change in changes
    ]


def assert_same_run(one, other):
    assert one.spec == other.spec
    for first, second in (
        (one.states, other.states),
        (one.evaluations.policies, other.evaluations.policies),
        (one.metrics, other.metrics),
        (one.policy(one.spec.seeds[0]), other.policy(other.spec.seeds[0])),
    ):
        assert jax.tree.structure(first) == jax.tree.structure(second)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.fixture
def other_log(tiny_world, monkeypatch):
    """A longer log of the same widths, "tiny/longer"."""
    reader = Reader("tiny/longer", lambda name, seed: tiny_world.dataset(name, 9, rows=70))
    monkeypatch.setitem(readers._READERS, "tiny/longer", reader)


def test_runs_together_equal_the_runs_alone(other_log):
    several = specs(
        {"seeds": [3], "settings": {"learning_rate": 0.3}, "dataset": "tiny/longer"},
        {"seeds": [0, 1], "settings": {"learning_rate": 0.1}, "dataset": "tiny/own"},
        {"seeds": [5], "settings": {"learning_rate": 0.2}, "reward_scale": 10.0},
    )
    for together, spec in zip(execute_together(several), several, strict=True):
        assert_same_run(together, execute(spec))


def test_a_log_shared_by_several_runs_is_on_the_device_once():
    several = specs({"settings": {"noise": 0.1}}, {"settings": {"noise": 0.2}})
    pack = make_pack(several, read_logs(several))
    assert len(pack.logs) == 1
    assert pack.jobs.log.tolist() == [0, 0] and pack.jobs.run.tolist() == [0, 1]


def test_each_run_has_its_folder_and_is_computed_once(tmp_path, tiny_world):
    several = specs({"settings": {"noise": 0.1}}, {"settings": {"noise": 0.2}})
    places = [tmp_path / "a", tmp_path / "b"]
    execute(several[0], places[0])
    runs = execute_together(several, places)
    traced = len(tiny_world.traces)
    again = execute_together(several, places)
    assert len(tiny_world.traces) == traced
    for run, other, place in zip(runs, again, places, strict=True):
        assert_same_run(run, other)
        assert_same_run(run, fat2thin.load(place))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 13}, "different steps .12 and 13. cannot share a program"),
        ({"batch_size": 9}, "different batch_size"),
        ({"standardise": True}, "different standardise"),
        ({"settings": {"widths": (9,)}}, "different widths .*only settings that are real numbers"),
        ({"dataset": "treatment/cubic"}, "tiny/shared and treatment/cubic cannot share a program"),
    ],
)
def test_runs_that_cannot_share_a_program_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        execute_together(specs({}, changes), [tmp_path / "a", tmp_path / "b"])
    assert not list(tmp_path.iterdir())


def test_different_numbers_that_shape_the_program_are_refused():
    first, second = (
        make_spec("fttpo", "treatment/cubic", steps=1, settings={"half_width_low": low})
        for low in (0.01, 0.02)
    )
    with pytest.raises(ValueError, match=r"different half_width_low \(0.01, 0.02\) cannot share"):
        execute_together([first, second])


def test_two_runs_in_one_folder_are_refused(tmp_path):
    several = specs({"settings": {"noise": 0.1}}, {"settings": {"noise": 0.2}})
    with pytest.raises(ValueError, match="cannot hold several runs"):
        execute_together(several, [tmp_path / "a", tmp_path / "b" / ".." / "a"])
    assert not list(tmp_path.iterdir())


def breaking(seed, update):
    """Return settings that make a job with this seed diverge in that update."""
    key = stream_key(seed, Stream.INITIAL_STATE)
    identity = float(jax.random.uniform(key, (3, 2))[0, 0])
    return {"bad_identity": identity, "bad_update": float(update), "bad_place": 0.0}


def test_if_one_run_diverges_the_others_continue(tmp_path, caplog):
    whole, broken = specs({"seeds": [1, 2]}, {"seeds": [2], "settings": breaking(2, update=5)})
    with caplog.at_level(logging.WARNING):
        runs = execute_together([whole, broken], [tmp_path / "a", tmp_path / "b"])
    assert "training diverged: loss is not finite at step 6 (seed 2" in caplog.text
    assert [run.about["status"] for run in runs] == ["finished", "diverged"]
    assert [run.step for run in runs] == [12, 3]
    assert_same_run(runs[0], execute(whole))
    assert runs[1].evaluations.steps == (0,)
    assert runs[1].metrics["step"].tolist() == [3]
    assert fat2thin.load(tmp_path / "b").step == 3
    again = execute_together([whole, broken], [tmp_path / "a", tmp_path / "b"])
    assert [run.about["status"] for run in again] == ["finished", "diverged"]


def test_if_all_runs_diverge_an_error_is_raised():
    several = specs(
        {"seeds": [2], "settings": breaking(seed=2, update=5)},
        {"seeds": [1], "settings": breaking(seed=1, update=9)},
    )
    with pytest.raises(TrainingDiverged, match=r"step 10 \(seed 1"):
        execute_together(several)
