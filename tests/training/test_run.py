"""Runs and their folders, on the tiny world; one with FtTPO on the treatment task."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin.random_streams import Stream, stream_key
from fat2thin.runs import files
from fat2thin.runs.folder import RunFolder
from fat2thin.training import NoRunError, OtherRunError, TrainingDiverged, load, train
from fat2thin.training.progress import Silent

OPTIONS = {
    "steps": 12, "seeds": [3, 5], "evaluate_every": 6, "log_every": 3, "batch_size": 16,
    "settings_from": "default",
}  # fmt: skip
OBSERVATION = jnp.array([0.3, -1.0, 2.0])


def tiny(dataset="tiny/own", **changes):
    return train("stand_in", dataset, **{**OPTIONS, **changes})


def test_a_run_has_metrics_evaluations_and_snapshots():
    run = tiny(snapshots=[0, 3])
    assert set(run.metrics) == {"step", "loss", "reward"}
    np.testing.assert_array_equal(run.metrics["step"], [3, 6, 9, 12])
    assert run.metrics["loss"].shape == (4, 2)
    assert run.evaluations.steps == (0, 6, 12)
    assert set(run.evaluations.policies) == {
        "actor_sampled", "actor_centre", "proposal_sampled", "proposal_centre",
    }  # fmt: skip
    assert run.evaluations["actor_centre"].returns.shape == (3, 2, 20)
    assert run.evaluations["actor_centre"].measures["first"].shape == (3, 2)
    assert sorted(run.snapshots) == [0, 3]
    assert run.about["device"].startswith(jax.default_backend())


def test_the_policy_is_that_of_its_seed():
    run = tiny()
    weight = run.states.weight[1]
    expected = 1.0 + 3.0 * jnp.tanh(OBSERVATION @ weight)
    np.testing.assert_allclose(run.policy(seed=5).act(OBSERVATION), expected, rtol=1e-5)
    np.testing.assert_allclose(run.proposal(seed=5).act(OBSERVATION), expected, rtol=1e-5)
    np.testing.assert_array_equal(
        run.policy(3).act(OBSERVATION), run.policy(seed=3).act(OBSERVATION)
    )
    low, high = run.policy(3).support(OBSERVATION)
    np.testing.assert_array_equal([low, high], [[-2.0] * 2, [4.0] * 2])


def test_seeds_of_one_log_are_one_policy_and_others_are_refused():
    run = tiny()
    same = dataclasses.replace(run, about={**run.about, "sha256": ["one"]})
    found = [same.policy(seed).act(OBSERVATION) for seed in (3, 5)]
    # The family squashes centres, and the median of two is the mean before squashing.
    unsquashed = np.mean(np.arctanh((np.asarray(found) - 1.0) / 3.0), axis=0)
    expected = 1.0 + 3.0 * np.tanh(unsquashed)
    np.testing.assert_allclose(same.policy().act(OBSERVATION), expected, rtol=1e-4)
    other = dataclasses.replace(run, about={**run.about, "sha256": ["one", "two"]})
    with pytest.raises(ValueError, match=r"different logs.*policy\(seed=3\).*data make"):
        other.policy()


def test_a_snapshot_is_the_policy_of_a_shorter_run():
    run, shorter = tiny(snapshots=[0, 6]), tiny(steps=6)
    for seed in (3, 5):
        np.testing.assert_array_equal(
            run.policy(seed, step=6).act(OBSERVATION), shorter.policy(seed).act(OBSERVATION)
        )
    weight = jax.random.uniform(stream_key(3, Stream.INITIAL_STATE), (3, 2))
    np.testing.assert_allclose(
        run.policy(3, step=0).act(OBSERVATION),
        1.0 + 3.0 * jnp.tanh(OBSERVATION @ weight),
        rtol=1e-5,
    )


def test_missing_seeds_and_steps_raise_errors_that_list_the_others():
    run = tiny(snapshots=[3])
    with pytest.raises(ValueError, match="no seed 4; there are 3, 5"):
        run.policy(seed=4)
    with pytest.raises(ValueError, match="no policy of step 4 is kept; there are 3, 12"):
        run.policy(3, step=4)


def test_an_algorithm_without_a_proposal_has_only_an_actor(tiny_world, monkeypatch):
    single = tiny_world.algorithm._replace(proposal=None)
    monkeypatch.setitem(fat2thin.algorithms._REGISTRY, "stand_in", single)
    run = tiny()
    assert set(run.evaluations.policies) == {"actor_sampled", "actor_centre"}
    with pytest.raises(ValueError, match="stand_in has no proposal"):
        run.proposal()


def test_a_seed_of_a_run_equals_the_run_of_that_seed():
    both, alone = tiny(), tiny(seeds=[5])
    np.testing.assert_array_equal(both.metrics["loss"][:, 1], alone.metrics["loss"][:, 0])
    for name in both.evaluations.policies:
        np.testing.assert_array_equal(
            both.evaluations[name].returns[:, 1], alone.evaluations[name].returns[:, 0]
        )


def test_evaluation_episodes_depend_only_on_seed_and_step():
    """The tiny task's measure depends on its observations, which no policy can influence."""
    run, other = tiny(), tiny(learning_rate=0.7, seeds=[5, 3, 8], evaluate_every=12)
    first = run.evaluations["actor_sampled"].measures["first"]
    for name in run.evaluations.policies:
        np.testing.assert_array_equal(run.evaluations[name].measures["first"], first)
    again = other.evaluations["actor_sampled"].measures["first"]
    np.testing.assert_array_equal(again[[0, -1]][:, [1, 0]], first[[0, -1]])
    assert len(np.unique(first)) == first.size


def test_data_are_shared_or_one_log_per_seed():
    shared, own = tiny("tiny/shared"), tiny("tiny/own")
    assert len(shared.about["sha256"]) == 1
    assert len(set(own.about["sha256"])) == 2


def test_results_do_not_depend_on_log_every():
    fine, coarse = tiny(log_every=1), tiny(log_every=6)
    np.testing.assert_allclose(
        fine.metrics["loss"].reshape(2, 6, 2).mean(axis=1), coarse.metrics["loss"], rtol=1e-5
    )
    np.testing.assert_array_equal(fine.states.weight, coarse.states.weight)


def test_a_run_compiles_once(tiny_world):
    tiny(batch_size=17, steps=3, evaluate_every=3)
    traced = len(tiny_world.traces)
    tiny(batch_size=17, steps=12, evaluate_every=3)
    assert len(tiny_world.traces) == traced


def test_the_frame_has_one_row_per_value():
    run = tiny()
    frame = run.frame()
    assert set(frame) == {"seed", "step", "quantity", "value"}
    assert {len(column) for column in frame.values()} == {2 * 4 * 2 + 4 * 2 * 3 * 2}
    chosen = (frame["seed"] == 5) & (frame["step"] == 6)
    value = frame["value"][chosen & (frame["quantity"] == "actor_centre/return")]
    assert value == pytest.approx(run.evaluations["actor_centre"].returns[1, 1].mean())
    value = frame["value"][chosen & (frame["quantity"] == "loss")]
    assert value == pytest.approx(run.metrics["loss"][1, 1])


def test_the_table_has_the_last_evaluation_and_the_references():
    run = tiny()
    table = run.table()
    assert table["nothing"]["mean"] == 0.0
    last = run.evaluations["actor_centre"].returns[-1]
    assert table["actor_centre"]["mean"] == pytest.approx(last.mean())
    assert "stand_in on tiny/own, seeds 3, 5, after step 12" in str(table)
    assert run.last_metrics()["loss"]["mean"] == pytest.approx(run.metrics["loss"][-1].mean())
    assert "steps 10 to 12" in str(run.last_metrics())


def test_fresh_evaluations_depend_on_the_draw():
    run = tiny()
    first, again, other = run.evaluate(30), run.evaluate(30), run.evaluate(30, draw=1)
    assert first.rows == again.rows
    assert first["actor_centre"]["first"] != other["actor_centre"]["first"]
    assert first["nothing"]["mean"] == 0.0
    with pytest.raises(ValueError, match="episodes must be"):
        run.evaluate(episodes=0)


def test_a_log_without_a_task_trains_and_cannot_be_evaluated(tmp_path):
    run = tiny("bare/log", out=tmp_path / "run")
    assert run.evaluations.policies == {}
    assert len(run.frame()["value"]) == 2 * 4 * 2
    assert load(tmp_path / "run").evaluations.policies == {}
    with pytest.raises(ValueError, match="a log without a task"):
        run.evaluate()


def same_run(first, second):
    assert first.about == second.about
    same_results(first, second)


def same_results(first, second):
    assert first.spec == second.spec
    for name, values in first.metrics.items():
        np.testing.assert_array_equal(values, second.metrics[name])
    assert first.evaluations.steps == second.evaluations.steps
    pairs = [
        (first.evaluations.policies, second.evaluations.policies),
        (first.states, second.states),
    ]
    for one, other in pairs:
        assert jax.tree.structure(one) == jax.tree.structure(other)
        for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(left, right)
    for step in (None, 6):
        np.testing.assert_array_equal(
            first.policy(5, step).act(OBSERVATION), second.policy(5, step).act(OBSERVATION)
        )


def test_a_saved_run_is_loaded_unchanged(tmp_path):
    run = tiny(out=tmp_path / "a" / "run", snapshots=[6])
    same_results(tiny(snapshots=[6]), run)
    same_run(run, load(tmp_path / "a" / "run"))
    files = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert files == {
        "run.json", "metrics.jsonl", "evaluations.npz", "state.safetensors", ".lock",
        "snapshots/step_000000006.safetensors",
    }  # fmt: skip
    about = json.loads((run.folder / "run.json").read_text())
    assert about["status"] == "finished" and about["step"] == 12 and about["seconds"] > 0
    assert about["versions"]["jax"] == jax.__version__


def test_references_are_written_only_on_request(tmp_path, monkeypatch):
    run = tiny(out=tmp_path)
    run.keep_references()
    assert not (tmp_path / "references.json").exists()  # they have not been measured
    expected = run.table()
    assert not (tmp_path / "references.json").exists()
    run.keep_references()
    kept = json.loads((tmp_path / "references.json").read_text())
    assert kept["seed"] == 0

    def measure(self):
        raise AssertionError("measured again")

    monkeypatch.setattr(
        type(fat2thin.evaluation.returns.evaluator("tiny/x")), "references", measure
    )
    assert load(tmp_path).table() == expected


def test_a_finished_run_is_not_computed_again(tmp_path, tiny_world, monkeypatch):
    run = tiny(out=tmp_path, snapshots=[6])

    def update(*arguments):
        raise AssertionError("computed again")

    broken = tiny_world.algorithm._replace(update=update)
    monkeypatch.setitem(fat2thin.algorithms._REGISTRY, "stand_in", broken)
    same_run(run, tiny(out=tmp_path, snapshots=[6]))


def test_another_run_in_the_folder_is_refused(tmp_path):
    tiny(out=tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(OtherRunError, match=r"config.noise: 0.01 there, 0.5 here"):
        tiny(out=tmp_path, noise=0.5)
    assert (tmp_path / "run.json").read_bytes() == before


def test_changed_data_under_the_same_name_are_refused(tmp_path, tiny_world, monkeypatch):
    tiny("tiny/shared", out=tmp_path)
    reader = fat2thin.data.reader("tiny/shared")
    changed = reader._replace(read=lambda name, seed: tiny_world.dataset(name, 9))
    monkeypatch.setitem(fat2thin.data.readers._READERS, "tiny/shared", changed)
    with pytest.raises(OtherRunError, match="contents of the data set have changed"):
        tiny("tiny/shared", out=tmp_path)


def test_an_unfinished_run_without_a_checkpoint_starts_again(tmp_path, caplog):
    class Interrupt(Silent):
        def advance(self, step):
            if step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny(out=tmp_path, snapshots=[0, 6], progress=Interrupt())
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "running"
    with pytest.raises(NoRunError, match="is not finished"):
        load(tmp_path)
    run = tiny(out=tmp_path, snapshots=[0, 6])
    assert "holds an unfinished run without a usable checkpoint: it starts again" in caplog.text
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4 * 2
    same_run(run, load(tmp_path))


def test_loading_a_folder_without_a_run_raises_an_error(tmp_path):
    with pytest.raises(NoRunError, match=r"holds no run: there is no run.json"):
        load(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(NoRunError, match="format 99, this version reads 1"):
        load(tmp_path)


def breaking(seed, update):
    """Return settings that make this seed diverge in that update."""
    key = stream_key(seed, Stream.INITIAL_STATE)
    identity = float(jax.random.uniform(key, (3, 2))[0, 0])
    return {"bad_identity": identity, "bad_update": float(update)}


def test_a_run_that_diverges_saves_its_last_good_state(tmp_path):
    bad = {**breaking(seed=5, update=7), "seeds": [5]}
    with pytest.raises(TrainingDiverged, match=r"loss is not finite at step 8 \(seed 5\)"):
        tiny(out=tmp_path, **bad, snapshots=[3, 9])
    about = json.loads((tmp_path / "run.json").read_text())
    assert (about["status"], about["step"]) == ("diverged", 6)
    assert "step 8" in about["diverged"]
    kept, good = load(tmp_path), tiny(steps=6, **bad)
    np.testing.assert_array_equal(kept.states.weight, good.states.weight)
    np.testing.assert_array_equal(kept.metrics["step"], [3, 6])
    assert kept.evaluations.steps == (0, 6)
    assert list(kept.snapshots) == [3]


@pytest.mark.parametrize("kept", [True, False])
def test_a_seed_that_diverges_stops_alone(tmp_path, caplog, kept):
    """Seed 5 diverges at step 8: the others are not affected, and all results show it."""
    options = {"seeds": [3, 5, 6], "snapshots": [6, 9]}
    whole = tiny(**options)
    run = tiny(out=tmp_path if kept else None, **options, **breaking(seed=5, update=7))
    assert "loss is not finite at step 8 (seed 5)" in caplog.text
    assert "2 of its run's 3 seeds continue" in caplog.text
    stopped = run.about["stopped"]["5"]
    assert (run.about["status"], run.step) == ("finished", 12)
    assert (stopped["step"], stopped["metric"], stopped["last_good_step"]) == (8, "loss", 6)
    for name, values in run.metrics.items():
        expected = np.array(whole.metrics[name])
        if name != "step":
            expected[2:, 1] = np.nan
        np.testing.assert_array_equal(values, expected)
    assert run.evaluations.steps == whole.evaluations.steps == (0, 6, 12)
    for name, evaluation in run.evaluations.policies.items():
        expected = np.array(whole.evaluations[name].returns)
        expected[2, 1] = np.nan
        np.testing.assert_array_equal(evaluation.returns, expected)
    for seed in (3, 6):
        same = whole.policy(seed).act(OBSERVATION)
        np.testing.assert_array_equal(run.policy(seed).act(OBSERVATION), same)
    last_good = whole.policy(5, step=6).act(OBSERVATION)
    np.testing.assert_array_equal(run.policy(5).act(OBSERVATION), last_good)
    # The table is of the other seeds.
    row = run.table()["actor_sampled"]
    returns = whole.evaluations["actor_sampled"].returns[-1, [0, 2]]
    np.testing.assert_allclose(row["mean"], returns.mean(), rtol=1e-6)
    assert "without 5, which stopped" in run.table().title
    np.testing.assert_allclose(
        run.last_metrics()["loss"]["mean"], whole.metrics["loss"][-1, [0, 2]].mean(), rtol=1e-6
    )


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    tiny(out=tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
    before = (tmp_path / "run.json").read_bytes()

    def full_disk(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        RunFolder(tmp_path).write_about({"format": 1, "status": "lost"})
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_checkpoint_keeps_every_kind_of_array(tmp_path):
    tree = {
        "b": [jnp.arange(6.0).reshape(2, 3).T, jnp.int32(4)],
        "a": (jnp.array([True, False]), jnp.zeros((0, 2))),
    }
    file = tmp_path / "x.safetensors"
    file.write_bytes(files.dump_tree(tree))
    like = jax.eval_shape(lambda: tree)
    back = files.load_tree(file, like)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(back), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": jnp.zeros(3)}, r"\['a'\].*\[2\].*instead of.*\[3\]"),
        ({"a": jnp.zeros(2, jnp.int32)}, "float32.*instead of.*int32"),
        ({"b": jnp.zeros(2)}, r"\['a'\].*instead of.*\['b'\]"),
        ({"a": jnp.zeros(2), "b": jnp.zeros(2)}, "1 arrays instead of 2"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, like, message):
    file = tmp_path / "x.safetensors"
    file.write_bytes(files.dump_tree({"a": jnp.zeros(2)}))
    with pytest.raises(ValueError, match=f"does not fit: it holds .*{message}"):
        files.load_tree(file, jax.eval_shape(lambda: like))


def test_training_and_loading_import_no_plotting_cli_or_gymnasium(tmp_path):
    program = f"""
import sys, fat2thin
options = dict(steps=2, hidden=(4,), batch_size=4, episodes=2, out={str(tmp_path / "run")!r})
fat2thin.train("bc", "treatment/quadratic", **options)
fat2thin.load({str(tmp_path / "run")!r}).policy()
print(*{{name.split(".")[0] for name in sys.modules}})
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = set(result.stdout.decode().split())
    assert "numpyro" in loaded
    assert not loaded & {"matplotlib", "plotly", "tyro", "gymnasium", "pandas"}
