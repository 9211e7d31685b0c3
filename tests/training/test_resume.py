"""An interrupted run resumes to the same bits, and logs checkpoints that it cannot use."""

import dataclasses
import json
import logging
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms.base import Preparation
from fat2thin.random_streams import Stream, stream_key
from fat2thin.runs import checkpoints, files
from fat2thin.runs.checkpoints import Place
from fat2thin.runs.lock import in_use, locked
from fat2thin.runs.verification import verify
from fat2thin.training import (
    FolderInUseError,
    Interrupted,
    NewerFormatError,
    execute,
    execute_together,
    load,
    make_spec,
)
from fat2thin.training.progress import Silent
from fat2thin.training.resuming import Timer
from fat2thin.training.run_writer import RunWriter

OPTIONS = {
    "steps": 12, "seeds": [3, 5], "evaluate_every": 6, "log_every": 3, "batch_size": 16,
    "snapshots": [0, 3, 9], "episodes": 4,
}  # fmt: skip
RESULTS = ("metrics.jsonl", "evaluations.npz", "state.safetensors")


def spec_of(algorithm="stand_in", **changes):
    return make_spec(algorithm, "tiny/own", **{**OPTIONS, **changes})


class InterruptAt(Silent):
    """Simulates the end of the process at a step (or a step of the preparation)."""

    def __init__(self, step, part=""):
        self.step, self.part = step, part

    def begin(self, steps, seeds, part=""):
        self.now = part

    def advance(self, step):
        if (self.now, step) == (self.part, self.step):
            raise KeyboardInterrupt


def interrupt(spec, folder, step, part=""):
    with pytest.raises(KeyboardInterrupt):
        execute(spec, folder, InterruptAt(step, part), checkpoint_seconds=0.0)


def resume(spec, folder):
    return execute(spec, folder, Silent(), checkpoint_seconds=0.0)


@pytest.fixture
def reference(tmp_path):
    execute(spec_of(), tmp_path / "reference", Silent())
    return tmp_path / "reference"


def assert_same_files(folder, reference):
    snapshots = [f"snapshots/{file.name}" for file in (reference / "snapshots").iterdir()]
    assert snapshots
    for name in (*RESULTS, *snapshots):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name
    assert {file.name for file in (folder / "snapshots").iterdir()} == {
        name.removeprefix("snapshots/") for name in snapshots
    }


@pytest.mark.parametrize("step", [3, 6, 9, 12])
def test_a_run_interrupted_anywhere_ends_with_the_same_bits(tmp_path, reference, caplog, step):
    interrupt(spec_of(), tmp_path / "run", step)
    run = resume(spec_of(), tmp_path / "run")
    assert_same_files(tmp_path / "run", reference)
    expected = f"step {step - 3}" if step > 3 else None
    assert run.about.get("resumed") == ([expected] if expected else None)
    assert ("resumes from" in caplog.text) == bool(expected)


def test_a_run_interrupted_several_times_ends_with_the_same_bits(tmp_path, reference):
    for step in (6, 9, 9, 12):
        interrupt(spec_of(), tmp_path / "run", step)
    run = resume(spec_of(), tmp_path / "run")
    assert run.about["resumed"] == ["step 3", "step 6", "step 6", "step 9"]
    assert_same_files(tmp_path / "run", reference)


def test_a_run_in_bfloat16_resumes_and_acts_in_float32(tmp_path):
    spec = spec_of("fttpo", settings={"hidden": (8, 8), "layer_norm": True}, precision="bfloat16")
    whole = execute(spec, tmp_path / "whole", Silent())
    interrupt(spec, tmp_path / "run", 6)
    resume(spec, tmp_path / "run")
    assert_same_files(tmp_path / "run", tmp_path / "whole")
    assert verify(tmp_path / "run").passed
    exact = execute(dataclasses.replace(spec, precision="float32"), None, Silent())
    assert not np.array_equal(whole.metrics["critic_loss"], exact.metrics["critic_loss"])
    # The shape of a policy says how it computes: both compute alike.
    policies = (run.policy(seed=3) for run in (whole, load(tmp_path / "run"), exact))
    first, *others = (jax.tree.structure(policy.network) for policy in policies)
    assert all(other == first for other in others)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_and_a_message_how_to_resume(tmp_path, reference, number):
    class Ask(Silent):
        def advance(self, step):
            if step == 6:
                signal.raise_signal(number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"after step 6.*run: run the same command again"):
        execute(spec_of(), tmp_path / "run", Ask(), checkpoint_seconds=1e9)
    assert signal.getsignal(number) == before
    (checkpoint,) = checkpoints.intact(tmp_path / "run")
    assert checkpoint.place == Place(training=True, step=6)
    assert not in_use(tmp_path / "run")
    resume(spec_of(), tmp_path / "run")
    assert_same_files(tmp_path / "run", reference)


def test_a_signal_in_the_last_chunk_lets_the_run_finish(tmp_path, reference):
    class Ask(Silent):
        def advance(self, step):
            if step == 12:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="all steps are done") as stop:
        execute(spec_of(), tmp_path / "run", Ask())
    assert stop.value.status == 143
    assert_same_files(tmp_path / "run", reference)


def test_an_ignored_signal_stays_ignored(tmp_path):
    class Ask(Silent):
        def advance(self, step):
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert execute(spec_of(), tmp_path / "run", Ask()).step == 12
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_signal_stops_at_once(tmp_path):
    class Insist(Silent):
        def advance(self, step):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stop:
        execute(spec_of(), tmp_path / "run", Insist(), checkpoint_seconds=1e9)
    assert not isinstance(stop.value, Interrupted)
    assert not checkpoints.intact(tmp_path / "run")


def flip(file):
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 4
    file.write_bytes(contents)


DAMAGES = {
    "flipped state": lambda path: flip(path / "state.safetensors"),
    "flipped metrics": lambda path: flip(path / "metrics.jsonl"),
    "flipped evaluations": lambda path: flip(path / "evaluations.npz"),
    "flipped manifest": lambda path: flip(path / "manifest.json"),
    "cut": lambda path: (path / "state.safetensors").write_bytes(b"half"),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "no state": lambda path: (path / "state.safetensors").unlink(),
    "empty": lambda path: [file.unlink() for file in path.iterdir()],
    "of another place": lambda path: (
        shutil.rmtree(path), shutil.copytree(path.with_name("step_000000003"), path)
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_logged_and_skipped(tmp_path, reference, caplog, damage):
    interrupt(spec_of(), tmp_path / "run", 9)
    newest = tmp_path / "run" / "checkpoints" / "step_000000006"
    DAMAGES[damage](newest)
    run = resume(spec_of(), tmp_path / "run")
    assert f"the checkpoint of step 6 cannot be used: {newest}" in caplog.text
    assert run.about["resumed"] == ["step 3"]
    assert_same_files(tmp_path / "run", reference)


def test_a_missing_snapshot_is_computed_again(tmp_path, reference, caplog):
    interrupt(spec_of(), tmp_path / "run", 9)
    (tmp_path / "run/snapshots/step_000000003.safetensors").unlink()
    resume(spec_of(), tmp_path / "run")
    assert "step_000000003.safetensors is missing" in caplog.text
    assert_same_files(tmp_path / "run", reference)


def test_a_checkpoint_of_another_run_is_not_used(tmp_path, reference, caplog):
    interrupt(spec_of(seeds=[4, 6]), tmp_path / "other", 9)
    interrupt(spec_of(), tmp_path / "run", 9)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "run" / "checkpoints")
    shutil.copytree(
        tmp_path / "other" / "snapshots", tmp_path / "run" / "snapshots", dirs_exist_ok=True
    )
    resume(spec_of(), tmp_path / "run")
    assert "step_000000006 is of another run and is not used" in caplog.text
    assert_same_files(tmp_path / "run", reference)


def test_a_checkpoint_of_other_data_is_not_used(tmp_path, reference, caplog):
    interrupt(spec_of(), tmp_path / "run", 9)
    for file in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        manifest = json.loads(file.read_text())
        manifest["sha256"] = ["0" * 64 for _ in manifest["sha256"]]
        manifest["checksum"] = checkpoints._checksum(manifest)
        file.write_bytes(files.as_json(manifest))
    resume(spec_of(), tmp_path / "run")
    assert "step_000000006 is of other data and is not used" in caplog.text
    assert_same_files(tmp_path / "run", reference)


def test_a_checkpoint_of_a_later_version_is_refused_and_not_changed(tmp_path):
    interrupt(spec_of(), tmp_path / "run", 9)
    file = tmp_path / "run" / "checkpoints" / "step_000000006" / "manifest.json"
    manifest = json.loads(file.read_text()) | {"format": 99, "brains": True}
    file.write_text(json.dumps(manifest))
    with pytest.raises(NewerFormatError, match="format 99; this version reads up to 1"):
        resume(spec_of(), tmp_path / "run")
    assert json.loads(file.read_text()) == manifest


def test_two_checkpoints_are_kept_and_one_at_the_end(tmp_path):
    def there():
        return sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())

    interrupt(spec_of(), tmp_path / "run", 12)
    assert there() == ["step_000000006", "step_000000009"]
    resume(spec_of(), tmp_path / "run")
    assert there() == ["step_000000009"]
    assert resume(spec_of(), tmp_path / "run").step == 12


def test_a_second_process_in_the_folder_is_refused(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        assert in_use(folder)
        with pytest.raises(
            FolderInUseError, match=rf"{folder} is in use: process \d+ on \S+ trains"
        ):
            resume(spec_of(), folder)
        assert {path.name for path in folder.iterdir()} == {".lock"}
    assert not in_use(folder)
    assert resume(spec_of(), folder).step == 12


def test_other_versions_are_logged_on_resuming(tmp_path, caplog, monkeypatch):
    interrupt(spec_of(), tmp_path / "run", 9)
    monkeypatch.setattr("fat2thin.runs.identity.__version__", "99.0")
    run = resume(spec_of(), tmp_path / "run")
    (sentence,) = run.about["warnings"]
    assert "99.0 now): the last digits of its results" in sentence and sentence in caplog.text


def test_a_stopped_seed_stays_stopped_after_resuming(tmp_path, caplog):
    key = stream_key(5, Stream.INITIAL_STATE)
    identity = float(jax.random.uniform(key, (3, 2))[0, 0])
    spec = spec_of(settings={"bad_identity": identity, "bad_update": 4.0})
    whole = execute(spec, tmp_path / "whole", Silent())
    assert list(whole.about["stopped"]) == ["5"]
    interrupt(spec, tmp_path / "run", 12)
    run = resume(spec, tmp_path / "run")
    assert run.about["stopped"] == whole.about["stopped"]
    assert_same_files(tmp_path / "run", tmp_path / "whole")


def test_a_pack_resumes_from_the_newest_common_checkpoint(tmp_path, caplog, monkeypatch):
    """The process is killed between the checkpoints of its two runs, so one is ahead."""
    several = [spec_of(settings={"noise": noise}) for noise in (0.1, 0.2)]
    whole = execute_together(several, [tmp_path / "a", tmp_path / "b"], Silent())
    written, write = [], checkpoints.write

    def dies(folder, place, about, contents):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(place)
        write(folder, place, about, contents)

    outs = [tmp_path / "c", tmp_path / "d"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints, "write", dies)
        execute_together(several, outs, Silent(), checkpoint_seconds=0.0)
    with caplog.at_level(logging.WARNING):
        runs = execute_together(several, outs, Silent(), checkpoint_seconds=0.0)
    assert "goes back from step 6 to step 3, like the other runs of its program" in caplog.text
    for run, expected, name in zip(runs, whole, "cd", strict=True):
        assert run.about["resumed"] == ["step 3"]
        assert_same_files(tmp_path / name, expected.folder)


def test_the_unfinished_run_of_a_pack_resumes_to_the_same_bits(tmp_path, monkeypatch):
    """The setting that differed was an argument of the program, and still is."""
    several = [
        make_spec("iql", "tiny/own", settings={"hidden": (4,), "temperature": one}, **OPTIONS)
        for one in (0.1, 0.37)
    ]
    whole = execute_together(several, [tmp_path / "a", tmp_path / "b"], Silent())
    outs = [tmp_path / "c", tmp_path / "d"]
    end, ended = RunWriter.end, []

    def dies(self, *arguments, **more):
        if ended:
            raise KeyboardInterrupt
        ended.append(self)
        end(self, *arguments, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunWriter, "end", dies)
        execute_together(several, outs, Silent(), checkpoint_seconds=0.0)
    runs = execute_together(several, outs, Silent(), checkpoint_seconds=0.0)
    assert [run.about.get("resumed") for run in runs] == [None, ["step 9"]]
    for run, expected in zip(runs, whole, strict=True):
        assert_same_files(run.folder, expected.folder)
        assert verify(run.folder, replayed=12).passed


def test_a_run_together_with_a_new_one_resumes_from_its_checkpoint(tmp_path, reference, caplog):
    interrupt(spec_of(), tmp_path / "run", 9)
    new = spec_of(settings={"noise": 0.2})
    old, fresh = execute_together([spec_of(), new], [tmp_path / "run", tmp_path / "new"], Silent())
    assert old.about["resumed"] == ["step 6"] and "resumed" not in fresh.about
    assert "it starts again" not in caplog.text
    np.testing.assert_allclose(old.metrics["loss"], load(reference).metrics["loss"], rtol=1e-5)


def test_if_one_run_gets_no_checkpoint_no_run_does(tmp_path, monkeypatch):
    several = [spec_of(settings={"noise": noise}) for noise in (0.1, 0.2)]
    write = checkpoints.write

    def full(folder, place, about, contents):
        if folder.name == "b" and place.step > 3:
            raise OSError("no space left on device")
        write(folder, place, about, contents)

    class Look(InterruptAt):
        def advance(self, step):
            seen.append([len(checkpoints.listed(tmp_path / name)) for name in "ab"])
            super().advance(step)

    seen = []
    monkeypatch.setattr(checkpoints, "write", full)
    with pytest.raises(KeyboardInterrupt):
        execute_together(
            several, [tmp_path / "a", tmp_path / "b"], Look(12), checkpoint_seconds=0.0
        )
    assert seen == [[0, 0], [1, 1], [1, 1], [1, 1]]


def test_other_files_in_the_folder_are_not_removed(tmp_path):
    mine = tmp_path / "run" / "checkpoints" / "precious.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("other weights")
    (tmp_path / "run" / "snapshots").mkdir()
    (tmp_path / "run" / "snapshots" / "step_10.png").write_text("a picture")
    interrupt(spec_of(), tmp_path / "run", 9)
    run = resume(spec_of(), tmp_path / "run")
    assert run.about["resumed"] == ["step 6"]
    assert mine.read_text() == "other weights"


def test_a_preparation_resumes_too(tmp_path, tiny_world, monkeypatch):
    def add_up(state, batch, key, problem, config):
        total = jnp.mean(batch.reward) + jax.random.uniform(key)
        return state._replace(weight=state.weight + total), {"total": total}

    preparation = Preparation(update=add_up, steps=lambda config: 10)
    made = tiny_world.algorithm._replace(name="prepared", preparation=preparation)
    monkeypatch.setitem(algorithms._REGISTRY, "prepared", made)
    spec = spec_of("prepared", log_every=2)
    whole = execute(spec, tmp_path / "whole", Silent())
    for part, step in (("preparation", 6), ("preparation", 10), ("", 6)):
        interrupt(spec, tmp_path / "run", step, part)
    run = resume(spec, tmp_path / "run")
    assert run.about["resumed"] == [
        "step 4 of the preparation", "step 8 of the preparation", "step 5",
    ]  # fmt: skip
    assert run.about["preparation"] == whole.about["preparation"]
    assert_same_files(tmp_path / "run", tmp_path / "whole")


def test_a_full_disk_is_logged_and_training_continues(tmp_path, reference, monkeypatch, caplog):
    """Checkpoints that cannot be written are logged, and training continues."""

    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoints, "write", full)
    run = resume(spec_of(), tmp_path / "run")
    assert "no checkpoint could be written after step 3: no space left" in caplog.text
    assert len(run.about["warnings"]) == 3
    assert_same_files(tmp_path / "run", reference)


def test_checkpoints_are_due_after_their_interval_and_at_most_a_twentieth_of_the_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fat2thin.training.resuming.time.monotonic", lambda: now[0])
    timer = Timer(60.0)
    for seconds, due, high_time in ((59.0, False, False), (61.0, True, False), (121.0, True, True)):
        now[0] = 100.0 + seconds
        assert (timer.due(patient=False), timer.due(patient=True)) == (due, high_time)
    with timer:
        now[0] += 10.0
    # Writing took 10 s, which is a twentieth of 200 s.
    now[0] += 199.0
    assert not timer.due(patient=False)
    now[0] += 2.0
    assert timer.due(patient=False)


def test_the_command_line_says_how_to_resume(tmp_path, monkeypatch, capsys):
    from fat2thin import training
    from fat2thin.cli.main import main

    def interrupted(*_):
        raise Interrupted("interrupted after step 3: run it again")

    monkeypatch.setattr(training, "execute", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["train", "stand_in", "tiny/own", "--steps", "12"])
    assert end.value.code == 130  # the exit status of Ctrl-C
    assert capsys.readouterr().err == "fat2thin: interrupted after step 3: run it again\n"


def test_without_a_folder_the_first_ctrl_c_interrupts(tmp_path):
    class Ask(Silent):
        def advance(self, step):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stop:
        execute(spec_of(), None, Ask())
    assert not isinstance(stop.value, Interrupted)


def test_a_finished_run_is_loaded_and_its_folder_not_changed(tmp_path, reference):
    before = {file: file.read_bytes() for file in reference.rglob("*") if file.is_file()}
    run = resume(spec_of(), reference)
    assert run.step == load(reference).step == 12
    np.testing.assert_array_equal(run.metrics["step"], [3, 6, 9, 12])
    after = {file: file.read_bytes() for file in reference.rglob("*") if file.is_file()}
    assert after == before
