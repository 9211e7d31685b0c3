"""Commands that read hostile folders write nothing, run nothing and never hang.

A hostile folder is refused with the name of the file and what is wrong with it.
"""

import dataclasses
import json
import os
import re
import shutil
import weakref

import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.cli import main as cli
from fat2thin.data import readers
from fat2thin.runs import files
from fat2thin.runs import status as run_status
from fat2thin.runs.files import DamagedError, TooLargeError
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.lock import in_use, locked
from fat2thin.runs.status import last_metrics
from fat2thin.runs.verification import FAILED, NOT_POSSIBLE, OK, verify
from fat2thin.training import execute, load, make_spec
from fat2thin.training.progress import Silent
from fat2thin.training.runner import JobScheduler

OPTIONS = {"steps": 4, "seeds": [3, 5], "evaluate_every": 2, "log_every": 1, "snapshots": [2]}
FILES = (
    "run.json",
    "metrics.jsonl",
    "evaluations.npz",
    "state.safetensors",
    "references.json",
    "snapshots/step_000000002.safetensors",
    "checkpoints/step_000000003/manifest.json",
    "checkpoints/step_000000003/metrics.jsonl",
    "checkpoints/step_000000003/state.safetensors",
)
HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tmp_path_factory.mktemp("trained") / "run"


@pytest.fixture
def folder(trained, tmp_path):
    """A finished run with a checkpoint; the first test trains it."""
    spec = make_spec("stand_in", "tiny/own", **OPTIONS)
    execute(spec, trained, Silent(), checkpoint_seconds=0.0)
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def victim(tmp_path):
    """A file outside the folder that must not change."""
    place = tmp_path / "victim"
    place.write_text("precious")
    yield place
    assert place.read_text() == "precious"


def everything(folder):
    """Return names, contents and times of all files."""
    return {
        path: (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def put(folder, place, value):
    *outer, last = place.split(".")
    about = json.loads((folder / "run.json").read_text())
    inner = about
    for name in outer:
        inner = inner[name]
    inner[last] = value
    (folder / "run.json").write_text(json.dumps(about))


def ends(*arguments):
    """Return the message of a command that must fail."""
    with pytest.raises(SystemExit) as end:
        cli.main([*map(str, arguments)])
    return str(end.value.code)


# Nothing is written


def test_commands_that_read_never_write(folder, victim, tmp_path, capsys):
    """They do not write measured reference rows, nor to the targets of links."""
    for name in ("run.json", "references.json", "evaluations.npz", "state.safetensors"):
        (folder / f".{name}.partial").symlink_to(victim)
    before = everything(folder)
    out = tmp_path / "out"
    for command in (
        ["show", folder],
        ["show", folder, folder],
        ["show", folder, "--follow"],
        ["evaluate", folder, "--episodes", "2"],
        ["verify", folder],
        ["figures", folder, "--out", out],
        ["report", folder, "--out", out / "page.html"],
        ["validate", folder, "tiny/shared"],
    ):
        cli.main([*map(str, command)])
        assert everything(folder) == before, command
    assert "nothing" in capsys.readouterr().out  # the reference row


def test_training_writes_the_references_that_it_showed(tmp_path, capsys):
    train = ["train", "stand_in", "tiny/own", "--steps", "1", "--settings-from", "default"]
    cli.main([*train, "--out", str(tmp_path / "run")])
    rows = json.loads((tmp_path / "run" / "references.json").read_text())["rows"]
    assert rows["nothing"]["mean"] == 0.0


# Links, pipes and devices


def test_a_lock_that_is_a_link_is_not_followed(folder, victim, no_hang):
    (folder / ".lock").unlink()
    for target in (victim, victim.with_name("new")):
        (folder / ".lock").unlink(missing_ok=True)
        (folder / ".lock").symlink_to(target)
        with pytest.raises(DamagedError, match=r"\.lock is a symbolic link"):
            locked(folder).__enter__()
        with pytest.raises(DamagedError, match=r"\.lock is a symbolic link"):
            in_use(folder)
    assert not victim.with_name("new").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_lock_that_is_not_a_regular_file_is_refused(folder, kind, no_hang):
    lock = folder / ".lock"
    lock.unlink()
    {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda at: at.symlink_to("/dev/zero")}[kind](
        lock
    )
    for use in (in_use, lambda folder: locked(folder).__enter__()):
        with pytest.raises(DamagedError, match="not a regular file"):
            use(folder)
    assert ".lock is a" in ends("show", folder)
    found = verify(folder, 0)
    assert found["run.json"].result == FAILED and ".lock is a" in found["run.json"].what


@pytest.mark.parametrize("kind", ["pipe", "endless", "copy"])
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_regular_are_refused(folder, tmp_path, name, kind, no_hang):
    """A link is refused even if its target has the right contents: they are not in the folder."""
    file = folder / name
    if name == "references.json":
        file.write_text('{"rows": {}}')
    moved = file.rename(tmp_path / "moved")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if kind == "endless" else moved)
    found = verify(folder, 0)
    assert not found.passed
    message = rf"{name}:? is a {'named pipe' if kind == 'pipe' else 'symbolic link'}"
    assert any(re.search(message, check.what) for check in found.checks if check.result == FAILED)
    if "checkpoints" not in name:
        assert re.search(message, ends("show", folder))


def test_subfolders_that_are_links_are_refused(folder, tmp_path):
    """Training would remove and write files in their targets."""
    for name in ("snapshots", "checkpoints"):
        outside = shutil.move(folder / name, tmp_path / name)
        (folder / name).symlink_to(outside)
        before = everything(tmp_path / name)
        put(folder, "status", "running")
        with pytest.raises(DamagedError, match=f"{name} is a symbolic link"):
            execute(make_spec("stand_in", "tiny/own", **OPTIONS), folder, Silent())
        assert everything(tmp_path / name) == before
        (folder / name).unlink()


def test_partial_files_of_a_killed_process_are_removed(folder, victim):
    put(folder, "status", "running")
    left = [
        folder / ".metrics.jsonl.00112233445566ff.partial",
        folder / "snapshots" / ".step_000000002.safetensors.00112233445566ff.partial",
        folder / "checkpoints" / ".step_000000004.00112233445566ff.partial",
    ]
    for path in left[:2]:
        path.write_text("half")
    left[2].mkdir()
    mine = folder / ".notes.partial"
    mine.write_text("mine")
    link = folder / ".run.json.00112233445566ff.partial"
    link.symlink_to(victim)
    execute(make_spec("stand_in", "tiny/own", **OPTIONS), folder, Silent())
    assert not any(map(os.path.lexists, left))
    assert mine.read_text() == "mine" and link.is_symlink()
    assert verify(folder).passed


# Sizes


@pytest.fixture
def small_limit(monkeypatch):
    """Set the memory of the machine."""

    def limit(size):
        monkeypatch.setattr(files, "default_limit", lambda: size)

    return limit


@pytest.fixture
def nothing_is_made(monkeypatch):
    """Fail if states are allocated."""

    def init(self):
        raise AssertionError("states were made")

    monkeypatch.setattr(JobScheduler, "init", init)


def test_a_state_that_is_too_small_is_not_replayed(folder, nothing_is_made, monkeypatch):
    """Settings, here `rounds`, may imply networks of any width."""
    stand_in = algorithms._REGISTRY["stand_in"]

    def init(key, problem, config):
        size = problem.observation_size * config.rounds
        return stand_in.init(key, dataclasses.replace(problem, observation_size=size), config)

    monkeypatch.setitem(algorithms._REGISTRY, "stand_in", stand_in._replace(init=init))
    assert verify(folder, 0)["weights"].result == OK
    put(folder, "spec.config.rounds", 10**9)
    found = verify(folder)
    assert found["data"].result == OK
    for name, result in (("weights", FAILED), ("replay", NOT_POSSIBLE)):
        assert found[name].result == result
        assert "state.safetensors has" in found[name].what and "run.json" in found[name].what


def test_logs_that_need_too_much_memory_are_not_made(
    folder, small_limit, nothing_is_made, monkeypatch
):
    """A log of 40 rows of eleven numbers takes 1,760 bytes: one fits, two do not."""
    small_limit(3000)
    made = []
    own = readers._READERS["tiny/own"]
    monkeypatch.setitem(
        readers._READERS,
        "tiny/own",
        own._replace(read=lambda name, seed: made.append(seed) or own.read(name, seed)),
    )
    found = verify(folder)
    assert made == [3]
    assert found["data"].result == found["replay"].result == NOT_POSSIBLE
    assert "run.json: spec.dataset and the 2 spec.seeds ask for" in found["data"].what
    assert "3,520 bytes" in found["data"].what and "the limit is 3,000" in found["data"].what


def test_a_replay_that_needs_too_much_memory_is_not_started(folder, small_limit, nothing_is_made):
    """The run is unfinished and has no checkpoint: there is no file to compare the size with."""
    put(folder, "status", "running")
    put(folder, "spec.batch_size", 10**12)
    shutil.rmtree(folder / "checkpoints")
    found = verify(folder)
    assert found["data"].result == OK and found["replay"].result == NOT_POSSIBLE
    assert "run.json: spec.config, spec.batch_size and spec.seeds ask for" in found["replay"].what


def test_a_run_that_needs_too_much_memory_is_not_loaded(folder, small_limit):
    state = files.tree_size(load(folder).states)
    small_limit(state)
    with pytest.raises(TooLargeError, match=r"run\.json: spec\.config, spec\.seeds and spec\.snap"):
        load(folder)
    assert "half of what this machine has" in ends("show", folder)
    assert verify(folder, 0)["weights"].result == NOT_POSSIBLE


def test_a_huge_sparse_file_is_not_hashed(folder, no_hang):
    os.truncate(folder / "state.safetensors", 2**42)
    found = verify(folder, 0)["files"]
    assert found.result == FAILED and "state.safetensors has 4,398,046,511,104 bytes" in found.what


def test_surplus_lines_of_metrics_are_counted_and_not_kept(folder, monkeypatch):
    line = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(f"{line}\n" for _ in range(500))
    alive, most = weakref.WeakSet(), []

    class Row(dict):
        __hash__ = object.__hash__

    def watched(folder, seeds=None, rows=RunFolder.metrics_rows):
        for row in map(Row, rows(folder, seeds)):
            alive.add(row)
            most.append(len(alive))
            yield row

    monkeypatch.setattr(RunFolder, "metrics_rows", watched)
    found = verify(folder, 0)["metrics"]
    assert found.result == FAILED and "there are 508 lines instead of 8" in found.what
    assert len(most) == 508 and max(most) < 5


def test_only_the_end_of_metrics_is_parsed(tmp_path, monkeypatch):
    """Rows of seeds that the run does not have never complete a step."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "seed": 9, "loss": 0.5}\n' * 20_000)
    parsed, parse = [], run_status.metrics_row
    monkeypatch.setattr(run_status, "metrics_row", lambda line: parsed.append(line) or parse(line))
    assert last_metrics(file, (3, 5)) is None
    assert len(parsed) <= 10


# Names


def test_control_characters_in_names_are_escaped(folder, capsys):
    """Hostile names of a data set, metric, way of acting, reference, warning and folder."""
    put(folder, "spec.dataset", f"tiny/own{HOSTILE}")
    put(folder, "warnings", [f"beware{HOSTILE}\nwarning: none"])
    lines = (folder / "metrics.jsonl").read_text()
    named = json.dumps(f"loss{HOSTILE}")
    (folder / "metrics.jsonl").write_text(lines.replace('"loss"', named))
    with np.load(folder / "evaluations.npz") as file:
        arrays = {name.replace("proposal", f"x{HOSTILE}"): file[name] for name in file.files}
    np.savez(folder / "evaluations.npz", **arrays)
    row = {"mean": 1.0, "standard_error": None, "measures": {}, "rule": f"a{HOSTILE}"}
    (folder / "references.json").write_text(json.dumps({"rows": {f"b{HOSTILE}": row}}))
    hostile = folder.rename(folder.with_name(f"run{HOSTILE}"))
    cli.main(["show", str(hostile)])
    cli.main(["show", str(hostile), str(hostile)])
    with pytest.raises(SystemExit):
        cli.main(["verify", str(hostile), "--replay", "0"])
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    escaped = r"\u001b]0;owned\u0007\u009b2J\u202e"
    for name in ("tiny/own", "beware", "loss", "x", "a", "b", "run"):
        assert f"{name}{escaped}" in shown
    assert "\nwarning: none" not in shown
    put(hostile, "status", HOSTILE)
    assert ends("show", hostile).isprintable()
