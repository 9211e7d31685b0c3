"""Verification of run folders: an intact one passes, and every kind of damage is found."""

import json
import shutil

import jax
import numpy as np
import pytest

import fat2thin
from fat2thin import algorithms
from fat2thin.algorithms.base import Preparation
from fat2thin.cli import main as cli
from fat2thin.data import Reader, readers
from fat2thin.random_streams import Stream, stream_key
from fat2thin.runs import files
from fat2thin.runs.lock import locked
from fat2thin.runs.verification import verify
from fat2thin.training import TrainingDiverged, execute, execute_together, make_spec
from fat2thin.training.progress import Silent

OPTIONS = {
    "steps": 12, "seeds": [3, 5], "evaluate_every": 6, "log_every": 3, "batch_size": 16,
    "snapshots": [0, 6], "episodes": 4,
}  # fmt: skip
NAMES = [
    "run.json", "files", "checkpoints", "data", "metrics", "evaluations", "snapshots", "weights",
    "replay",
]  # fmt: skip


class Interrupt(Silent):
    """Interrupts a run after step 9."""

    def advance(self, step):
        if step == 9:
            raise KeyboardInterrupt


def tiny(out, progress=None, algorithm="stand_in", dataset="tiny/own", settings=None, **changes):
    """Train with a checkpoint after every chunk; a finished run keeps that of step 9."""
    spec = make_spec(algorithm, dataset, settings=settings or {}, **{**OPTIONS, **changes})
    return execute(spec, out, progress, checkpoint_seconds=0.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of the run that most tests copy; the first test trains it."""
    return tmp_path_factory.mktemp("trained") / "run"


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of the run for each test."""
    tiny(trained)
    return shutil.copytree(trained, tmp_path / "run")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder, replayed=None):
    found = verify(folder, replayed)
    assert [check.name for check in found.checks] == NAMES
    return {check.name: check.result for check in found.checks}


def failed(folder, replayed=None):
    return [name for name, result in results(folder, replayed).items() if result == "FAILED"]


def update_checksums(folder):
    """Update the checksums in run.json."""
    about = json.loads((folder / "run.json").read_text())
    for name in about["files"]:
        about["files"][name] = files.stamp_of(folder / name)
    (folder / "run.json").write_text(json.dumps(about))


def test_an_intact_run_passes_and_nothing_is_written(folder):
    before = contents(folder)
    found = verify(folder)
    assert found.passed
    assert {check.result for check in found.checks} == {"ok"}
    assert contents(folder) == before
    # 12 steps in chunks of 3; one chunk each from the start and from step 9 to the end.
    assert "8 rows" in found["metrics"].what
    assert "3 steps, 4 ways of acting, all seeds" in found["evaluations"].what
    replayed = found["replay"].what
    assert "3 steps from the start" in replayed
    assert "3 steps from the checkpoint of step 9 to the end" in replayed
    assert "metrics of steps 1 to 3" in replayed and "metrics of steps 10 to 12" in replayed
    assert "snapshot of step 0" in replayed and "state.safetensors" in replayed
    headings, _, *lines = str(found).splitlines()
    assert headings.split() == ["check", "result", "what"]
    assert [line.split()[:2] for line in lines] == [[name, "ok"] for name in NAMES]


def test_all_steps_can_be_replayed_or_none(folder):
    what = verify(folder, 100)["replay"].what
    assert "12 steps from the start" in what and "metrics of steps 1 to 12" in what
    for part in ("snapshot of step 6", "checkpoint of step 9", "state.safetensors"):
        assert part in what
    assert results(folder, 0)["replay"] == "not possible"
    with pytest.raises(ValueError, match="replay must be a whole number of at least 0"):
        verify(folder, -1)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("metrics.jsonl", {"files"}),
        ("evaluations.npz", {"files"}),
        ("state.safetensors", {"files"}),
        ("snapshots/step_000000006.safetensors", {"files", "checkpoints"}),
        ("checkpoints/step_000000009/state.safetensors", {"checkpoints"}),
        ("checkpoints/step_000000009/metrics.jsonl", {"checkpoints"}),
        ("checkpoints/step_000000009/manifest.json", {"checkpoints"}),
    ],
)
def test_one_wrong_bit_in_any_file_is_detected(folder, file, expected):
    whole = (folder / file).read_bytes()
    for place in (1, len(whole) // 2, len(whole) - 2):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        (folder / file).write_bytes(flipped)
        assert expected <= {*failed(folder, 0)}


def test_an_unreadable_run_json_fails_and_prevents_the_other_checks(folder):
    whole = bytearray((folder / "run.json").read_bytes())
    whole[0] ^= 1
    (folder / "run.json").write_bytes(whole)
    found = results(folder)
    assert found.pop("run.json") == "FAILED"
    assert {*found.values()} == {"not possible"}
    (folder / "run.json").unlink()
    assert failed(folder) == ["run.json"]


@pytest.mark.parametrize("name", ["versions", "device", "step", "files"])
def test_a_run_json_with_missing_fields_fails(folder, name):
    about = json.loads((folder / "run.json").read_text())
    del about[name]
    (folder / "run.json").write_text(json.dumps(about))
    found = verify(folder)
    assert found["run.json"].result == "FAILED" and name in found["run.json"].what


def test_missing_and_surplus_files_fail(folder):
    (folder / "snapshots/step_000000006.safetensors").rename(
        folder / "snapshots/step_000000009.safetensors"
    )
    found = verify(folder, 0)
    assert "step_000000006.safetensors is missing" in found["files"].what
    assert "step_000000009.safetensors is present but not listed" in found["files"].what
    assert found["snapshots"].result == "FAILED"
    (folder / "evaluations.npz").unlink()
    assert verify(folder, 0)["evaluations"].result == "FAILED"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:3] + lines[4:], "line 4 is of step 9, seed 3 instead of step 6"),
        (lambda lines: lines[:3] + lines[2:], "line 4 is of step 6, seed 3 instead of step 6"),
        (lambda lines: lines[:-1], "there are 7 lines instead of 8"),
        (lambda lines: lines + lines[-1:], "there are 9 lines instead of 8"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 is of step 3, seed 5"),
        (lambda lines: [*lines[:5], lines[5].replace('"loss"', '"cost"'), *lines[6:]], "line 6"),
        (lambda lines: [*lines[:5], lines[5][:50], *lines[6:]], "line 6"),
        (lambda lines: [without_loss(lines[0]), *lines[1:]], "line 1 has no numbers"),
    ],
)
def test_incomplete_or_changed_metrics_fail(folder, change, message):
    """The damage is found even if the checksums are correct."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(change(lines)) + "\n")
    update_checksums(folder)
    found = verify(folder, 0)
    assert found["files"].result == "ok"
    assert found["metrics"].result == "FAILED" and message in found["metrics"].what


def without_loss(line):
    return json.dumps(json.loads(line) | {"loss": None})


def test_evaluations_of_wrong_shape_fail(folder):
    with np.load(folder / "evaluations.npz") as file:
        arrays = dict(file)
    for name, changed in [
        ("steps", {**arrays, "steps": np.asarray([0, 6, 11])}),
        ("seeds", {name: one[:, :1] if one.ndim > 1 else one for name, one in arrays.items()}),
        ("episodes", {name: one[..., :3] if one.ndim > 2 else one for name, one in arrays.items()}),
    ]:
        np.savez(folder / "evaluations.npz", **changed)
        found = verify(folder, 0)["evaluations"]
        assert found.result == "FAILED" and name in found.what


def test_changed_data_fail_and_missing_data_cannot_be_checked(tmp_path, tiny_world, monkeypatch):
    tiny(tmp_path, dataset="tiny/shared")
    other = Reader("tiny/shared", lambda name, seed: tiny_world.dataset(name, 9))
    monkeypatch.setitem(readers._READERS, "tiny/shared", other)
    found = results(tmp_path)
    assert (found["data"], found["replay"]) == ("FAILED", "not possible")
    monkeypatch.delitem(readers._READERS, "tiny/shared")
    found = results(tmp_path)
    assert (found["data"], found["replay"]) == ("not possible", "not possible")
    assert "FAILED" not in found.values()


def change_weight(file, folder, amount):
    """Multiply one weight of seed 5 in a file, and update the checksums."""
    run = fat2thin.load(folder)
    weight = np.array(run.states.weight)
    weight[1, 2, 0] *= amount
    file.write_bytes(files.dump_tree(run.states._replace(weight=weight)))
    update_checksums(folder)


def test_only_the_replay_finds_a_changed_weight(folder):
    change_weight(folder / "state.safetensors", folder, 1 + 1e-6)
    assert failed(folder, 0) == []
    assert failed(folder) == ["replay"]
    what = verify(folder)["replay"].what
    assert "First difference: .weight of seed 5 in state.safetensors" in what
    largest = float(what.rsplit(" ", 1)[1])
    assert 5e-7 < largest < 2e-6  # one or more of the last bits, which are 6e-8 to 1.2e-7 each


def test_a_weight_that_is_not_finite_fails(folder):
    change_weight(folder / "state.safetensors", folder, np.inf)
    found = verify(folder, 0)["weights"]
    assert found.result == "FAILED" and ".weight of seed 5 in state.safetensors" in found.what


@pytest.mark.parametrize("step", [3, 12])
def test_the_replay_finds_a_changed_metric(folder, step):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if (row["step"], row["seed"]) == (step, 5)]
    row["reward"] *= 1.25
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    update_checksums(folder)
    # The checkpoint of step 9 has the first rows too.
    assert failed(folder, 0) == (["metrics"] if step == 3 else [])
    what = verify(folder)["replay"].what
    assert f"First difference: reward of seed 5 at step {step}," in what
    assert what.endswith("2.0e-01")  # a difference of 0.25 relative to the larger number, 1.25


def test_a_run_with_a_stopped_seed_passes(tmp_path):
    identity = float(jax.random.uniform(stream_key(5, Stream.INITIAL_STATE), (3, 2))[0, 0])
    tiny(tmp_path, settings={"bad_identity": identity, "bad_update": 7.0})
    found = verify(tmp_path, 12)
    assert {check.result for check in found.checks} == {"ok"}
    assert "1 of them stopped" in found["run.json"].what
    about = json.loads((tmp_path / "run.json").read_text())
    about["stopped"]["5"]["last_good_step"] = 9
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert failed(tmp_path, 0) == ["metrics"]


def test_a_run_that_diverged_passes(tmp_path):
    identity = float(jax.random.uniform(stream_key(5, Stream.INITIAL_STATE), (3, 2))[0, 0])
    with pytest.raises(TrainingDiverged):
        tiny(tmp_path, settings={"bad_identity": identity, "bad_update": 7.0}, seeds=[5])
    found = verify(tmp_path, 12)
    assert {check.result for check in found.checks} == {"ok"}
    assert "6 steps from the start" in found["replay"].what
    assert "state.safetensors" in found["replay"].what


def test_an_unfinished_run_is_verified(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tiny(tmp_path, Interrupt())
    before = contents(tmp_path)
    found = results(tmp_path, 12)
    assert found.pop("files") == "not possible"
    assert {*found.values()} == {"ok"}
    assert contents(tmp_path) == before
    state = next(tmp_path.glob("checkpoints/*6/state.safetensors"))
    whole = state.read_bytes()
    state.write_bytes(whole[:-1])
    damaged = verify(tmp_path, 0)["checkpoints"]
    assert damaged.result == "FAILED" and str(state) in damaged.what
    state.write_bytes(whole)
    with locked(tmp_path):
        assert "is training into the folder" in verify(tmp_path, 0)["run.json"].what
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 12, "seed": 3, "lo')
    assert failed(tmp_path, 0) == []
    text = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(text.replace("0.", "1.", 1))
    assert failed(tmp_path, 0) == ["metrics"]


def test_a_preparation_is_not_replayed(tmp_path, tiny_world, monkeypatch):
    prepared = tiny_world.algorithm._replace(
        name="prepared",
        preparation=Preparation(update=tiny_world.algorithm.update, steps=lambda config: 2),
    )
    monkeypatch.setitem(algorithms._REGISTRY, "prepared", prepared)
    tiny(tmp_path, algorithm="prepared")
    what = verify(tmp_path)["replay"].what
    assert "it begins with a preparation" in what
    assert "3 steps from the checkpoint of step 9 to the end" in what
    for file in sorted(tmp_path.glob("checkpoints/*/*")):
        file.unlink()
    next(tmp_path.glob("checkpoints/*")).rmdir()
    found = verify(tmp_path)["replay"]
    assert found.result == "not possible" and "it begins with a preparation" in found.what


def test_a_difference_on_another_version_proves_nothing(folder):
    change_weight(folder / "state.safetensors", folder, 1.5)
    about = json.loads((folder / "run.json").read_text())
    about["versions"]["jax"] = "0.1"
    (folder / "run.json").write_text(json.dumps(about))
    found = verify(folder)["replay"]
    assert found.result == "not possible" and "jax 0.1 then" in found.what


def test_a_run_that_shared_its_program_is_verified(tmp_path):
    """A setting that was an argument of the program is one in the replay too."""
    several = [
        make_spec(
            "stand_in", "tiny/own", settings={"noise": noise, "learning_rate": 0.3}, **OPTIONS
        )
        for noise in (0.1, 0.2)
    ]
    outs = [tmp_path / "a", tmp_path / "b"]
    for run in execute_together(several, outs, Silent(), checkpoint_seconds=0.0):
        assert run.about["traced"] == ["noise"]
        assert verify(run.folder, replayed=12).passed, str(verify(run.folder, replayed=12))


def test_the_verify_command_exits_with_1_on_failure(folder, capsys):
    cli.main(["verify", str(folder), "--replay", "0"])
    assert "not possible" in capsys.readouterr().out
    (folder / "evaluations.npz").unlink()
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", str(folder), "--replay", "0"])
    assert ended.value.code == 1
    assert "evaluations.npz is missing" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="replay must be"):
        cli.main(["verify", str(folder), "--replay", "-1"])
