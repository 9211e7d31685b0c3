"""Regenerated data sets, compared with a plain loop, and what an interruption leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fat2thin import data
from fat2thin.envs import TaskFailed, regenerate
from fat2thin.envs.actor_rollouts import load_actors, plan, row_type
from fat2thin.envs.rollouts import ROBOTS, start_process

HOP = "rollout_tasks:Hop-v0"
NAMES = [f"regenerated/hopper-{level}" for level in ("medium", "medium-replay", "medium-expert")]
ROWS, SEED = 61, 5


@pytest.fixture
def hop(monkeypatch):
    """Put a task that needs no MuJoCo in the place of the hopper."""
    monkeypatch.setitem(ROBOTS, "hopper", HOP)
    monkeypatch.setattr(regenerate, "mujoco_is_installed", lambda: True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the folders of the three sets, by the number of processes, and the rows reported."""
    folders, reported = {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ROBOTS, "hopper", HOP)
        patch.setattr(regenerate, "mujoco_is_installed", lambda: True)
        for workers in (1, 2):
            folders[workers] = tmp_path_factory.mktemp("made")
            sets = regenerate.make(
                NAMES, ROWS, SEED, out=folders[workers], workers=workers, progress=reported.append
            )
            assert [one.name for one in sets] == [f"{name}@{ROWS}" for name in NAMES]
    assert reported[-1] == 3 * ROWS
    return folders


def by_hand(task, robot, rows, seed, folder):
    """Write the sets of a robot with a plain loop, in a process of one thread."""
    script = Path(__file__).with_name("plain_roll_out.py")
    path = os.pathsep.join(filter(None, sys.path))
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MUJOCO_GL": "disabled"}
    subprocess.run(
        [sys.executable, script, task, robot, str(rows), str(seed), folder],
        env={**os.environ, **one_thread, "PYTHONPATH": path}, check=True, capture_output=True,
    )  # fmt: skip


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_have_the_bytes_of_a_plain_loop(made, tmp_path):
    by_hand(HOP, "hopper", ROWS, SEED, tmp_path)
    expected = contents(tmp_path)
    assert len(expected) == 3
    assert contents(made[1]) == expected


def test_the_bytes_do_not_depend_on_the_number_of_processes(made):
    assert contents(made[1]) == contents(made[2])


def test_real_robots_have_the_bytes_of_a_plain_loop(tmp_path):
    pytest.importorskip("mujoco", reason="the extra mujoco is not installed")
    (tmp_path / "made").mkdir()
    (tmp_path / "by hand").mkdir()
    regenerate.make(NAMES, 200, SEED, out=tmp_path / "made")
    by_hand("Hopper-v5", "hopper", 200, SEED, tmp_path / "by hand")
    assert contents(tmp_path / "made") == contents(tmp_path / "by hand")


def test_a_set_is_found_by_its_name(made, monkeypatch):
    monkeypatch.setenv("FAT2THIN_DATA", str(made[1]))
    found = data.load(f"{NAMES[1]}@{ROWS}")
    assert (found.action_low, found.action_high, found.discount) == ((-1.0,) * 3, (1.0,) * 3, 0.99)
    assert found.observation.shape[1] == 11 and 30 < found.rows < ROWS
    with pytest.raises(data.DataFileError, match="data make regenerated/hopper-medium-replay`"):
        data.load(NAMES[1])


def test_a_file_is_made_where_its_name_is_found(hop, tmp_path, monkeypatch):
    monkeypatch.delenv("FAT2THIN_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (made,) = regenerate.make(NAMES[0], 20)
    assert made.path == Path("data/hopper-medium@20.hdf5")
    found = data.load(made.name)
    # The reader drops the last row of a cut episode, and Hop's rewards are sums of actions.
    assert made.rows == 20 and f"{made}".startswith("20 rows in ")
    assert found.reward.sum() == pytest.approx(found.action.sum(), rel=1e-5)
    before = made.path.read_bytes()
    with pytest.raises(ValueError, match=r"hopper-medium@20\.hdf5 exists; --overwrite replaces it"):
        regenerate.make(NAMES[0], 20, 1)
    assert made.path.read_bytes() == before
    regenerate.make(NAMES[0], 20, 1, overwrite=True)
    assert made.path.read_bytes() != before


@pytest.fixture
def processes(monkeypatch):
    """Return the processes that are started from here on."""
    started = []

    def start(*given, **options):
        started.append(start_process(*given, **options))
        return started[-1]

    monkeypatch.setattr(regenerate, "start_process", start)
    return started


def test_an_interruption_leaves_neither_files_nor_processes(hop, processes, tmp_path):
    def interrupt(rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regenerate.make(NAMES, 200_000, out=tmp_path, workers=2, progress=interrupt)
    assert [*tmp_path.iterdir()] == []
    assert len(processes) == 2 and all(one.poll() is not None for one in processes)


def test_an_interruption_keeps_finished_files(hop, tmp_path):
    def interrupt(rows):
        if rows > ROWS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regenerate.make(NAMES, ROWS, out=tmp_path, workers=1, progress=interrupt)
    (kept,) = tmp_path.iterdir()
    assert len(data.load(str(kept))) > 30


def test_a_failing_task_is_an_error_that_quotes_it(hop, processes, tmp_path, monkeypatch):
    monkeypatch.setitem(ROBOTS, "hopper", "rollout_tasks:Nowhere-v0")
    with pytest.raises(TaskFailed, match=r"regenerated/hopper-medium@20 cannot be made: .*Nowhere"):
        regenerate.make(NAMES[0], 20, out=tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_sizes_are_those_of_the_results_by_default():
    sets = regenerate.robot_sets(["regenerated/all", "regenerated/hopper-medium"])
    assert {one.name for one in sets} == {*regenerate.NAMES} and len(sets) == 9
    assert {one.level: one.rows for one in sets} == {
        "medium": 200_000, "medium-replay": 200_000, "medium-expert": 400_000,
    }  # fmt: skip
    assert regenerate.describe_work(sets, workers=4).startswith(
        "9 data sets, 2,400,000 rows, 206 MB, about "
    )


def test_another_size_is_part_of_the_name():
    (one,) = regenerate.robot_sets(["regenerated/walker2d-medium"], 2000)
    assert one == regenerate.robot_sets(["regenerated/walker2d-medium@2000"])[0]
    assert (one.name, one.rows) == ("regenerated/walker2d-medium@2000", 2000)
    # `load` looks for the name that was asked for, also where its number of rows is the usual one.
    (usual,) = regenerate.robot_sets(["regenerated/walker2d-medium@200000"])
    assert usual.name == "regenerated/walker2d-medium@200000"
    assert regenerate.robot_sets(["regenerated/walker2d-medium"], 200_000)[0].name == (
        "regenerated/walker2d-medium"
    )
    small = regenerate.robot_sets(["regenerated/all@2000"])
    assert len(small) == 9 and {one.rows for one in small} == {2000}


def test_one_process_per_set_is_estimated():
    (one,) = regenerate.robot_sets(["regenerated/hopper-medium"], 3000)
    assert "about 3 s in 1 process if" in regenerate.describe_work([one], workers=8)
    with pytest.raises(ValueError, match="workers must be at least 1, not -1"):
        regenerate.describe_work([one], workers=-1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"names": "regenerated/hoper-medium"}, "did you mean 'regenerated/hopper-medium'"),
        ({"names": "regenerated/hopper-medium@x"}, "no data set .*@x' can be made"),
        ({"names": []}, "name a data set to make: regenerated/"),
        ({"names": "regenerated/hopper-medium@20", "rows": 30}, "has 20 rows: leave out the 30"),
        ({"rows": 1}, "needs at least 2 rows, two per actor, and not 1"),
        ({"names": NAMES[1], "rows": 15}, "needs at least 16 rows"),
        ({"seed": -1}, "the seed must lie in"),
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"out": "log.npz"}, r"1 data set cannot be written to log.npz: name a file that .*\.hdf5"),
        ({"out": "none/log.hdf5"}, "folder none does not exist"),
        ({"names": NAMES, "out": "log.hdf5"}, "3 data sets cannot .*: name an existing folder"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(
    hop, processes, given, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        regenerate.make(**{"names": NAMES[0], **given})
    assert [*tmp_path.iterdir()] == [] and processes == []


def test_without_mujoco_the_extra_is_named(processes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(regenerate, "mujoco_is_installed", lambda: False)
    with pytest.raises(ValueError, match=r'not installed: pip install "fat2thin\[mujoco\]"'):
        regenerate.make(NAMES[0])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("robot", "sizes", "early"),
    [("halfcheetah", (17, 6), 3), ("hopper", (11, 3), 6), ("walker2d", (17, 6), 8)],
)
def test_the_actors_are_in_the_package(robot, sizes, early):
    weights = load_actors(robot)
    replay = plan(weights, "medium-replay")
    assert replay[0] == "random" and len(replay) == early + 2 and replay[1:] == sorted(replay[1:])
    assert plan(weights, "medium-expert") == [replay[-1], int(weights["expert"])]
    kind = row_type(weights)
    assert (kind["observations"].shape, kind["actions"].shape) == ((sizes[0],), (sizes[1],))
    for step in (*replay[1:], int(weights["expert"])):
        first, last = weights[f"{step}/0/w"], weights[f"{step}/2/w"]
        assert (first.shape, last.shape) == ((sizes[0], 256), (256, 2 * sizes[1]))
        assert first.dtype == np.float32
