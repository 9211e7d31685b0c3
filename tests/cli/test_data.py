import dataclasses
import hashlib
import os
import re
import sys
import warnings

import jax
import numpy as np
import pytest
from rich.progress import Progress as RichProgress

from fat2thin import data
from fat2thin.cli.main import main
from fat2thin.cli.working import Working
from fat2thin.columns import Column, Transform
from fat2thin.data import writers
from fat2thin.data.checks import Finding, Report
from fat2thin.data.operations import split
from fat2thin.envs import TaskFailed, regenerate, treatment
from fat2thin.envs.record import from_policy, record, uniform
from fat2thin.envs.rollouts import ROBOTS, describe
from untrained import untrained_run

COUNTDOWN = "rollout_tasks:Countdown-v0"


def output(arguments, capsys):
    main(["data", *map(str, arguments)])
    return capsys.readouterr().out


def test_info_without_a_source_lists_the_names(capsys):
    assert output(["info"], capsys).splitlines() == [*data.names()]


def test_info_by_name_and_by_file_agree(tmp_path, capsys):
    path = tmp_path / "log.npz"
    made = output(["make", "treatment/cubic", path, "--seed", "3"], capsys)
    assert made.splitlines() == [str(path), "1,200 rows in 50 episodes"]
    by_name = output(["info", "treatment/cubic", "--seed", "3"], capsys)
    by_file = output(["info", path], capsys)
    assert by_name.splitlines()[0] == "treatment/cubic"
    assert by_name.splitlines()[1:] == by_file.splitlines()[1:]
    assert data.load("treatment/cubic", 3).sha256 in by_file


def test_check_exits_with_0_without_errors(capsys):
    assert output(["check", "treatment/quadratic"], capsys) == "0 errors, 0 warnings\n"


def test_check_exits_with_1_after_errors(capsys, monkeypatch):
    finding = Finding("other_unit", "action[0]", 3, (1, 2, 4), "leaves the box", "Correct it.")
    monkeypatch.setattr("fat2thin.data.checks.check", lambda _: Report(errors=(finding,)))
    with pytest.raises(SystemExit) as end:
        main(["data", "check", "treatment/quadratic"])
    assert end.value.code == 1
    found = "error   other_unit: action[0] leaves the box (row 1, 2, 4; counted from 0)"
    assert found in capsys.readouterr().out


def test_check_of_a_table_names_its_lines(tmp_path, capsys):
    """The last row of every episode is dropped, and the second line is blank."""
    rows = [f"{row // 4},{1 + row % 3},{row * 7 % 16},{row * 5 % 16},no" for row in range(16)]
    rows[13] = "3,9000,1.5,7.5,no"
    (tmp_path / "log.csv").write_text("\n".join(["who,reward,obs,dose,end", "", *rows]))
    (tmp_path / "log.toml").write_text(
        'episode = "who"\nobservation = ["obs"]\naction = ["dose"]\nreward = "reward"\n'
        'end = "end"\naction_low = 0\naction_high = 15\ndiscount = 1\n'
    )
    printed = output(["check", tmp_path / "log.csv"], capsys)
    assert "reward_scale: reward is up to 4.5e+03 times" in printed
    assert "as its median size 2: row 14 (line 16)\n" in printed


def test_check_of_an_invalid_log_is_a_one_line_error(tmp_path):
    rows = {"observation": np.ones((3, 2)), "action": np.zeros((3, 1)), "terminal": np.zeros(3)}
    np.savez(tmp_path / "log.npz", reward=np.array([1, np.nan, 1]), **rows)
    with pytest.raises(SystemExit, match=r"fat2thin: .*log\.npz: 'reward' .*row 1"):
        main(["data", "check", str(tmp_path / "log.npz")])


def test_warnings_are_printed_on_one_line(monkeypatch):
    monkeypatch.setattr("fat2thin.engine.compilation_cache.use", lambda: None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["fat2thin", "data", "check", "treatment/quadratic"])
    main()
    assert warnings.formatwarning(UserWarning("no box"), UserWarning, "x.py", 3) == (
        "warning: no box\n"
    )


@pytest.mark.parametrize("suffix", sorted(writers.FORMATS))
def test_converting_there_and_back_keeps_the_arrays(suffix, tmp_path, capsys):
    first, between, last = (tmp_path / name for name in ("a.npz", f"b{suffix}", "c.npz"))
    output(["make", "treatment/cubic", first, "--seed", "1"], capsys)
    lines = output(["convert", first, between], capsys).splitlines()
    assert lines[:-1] == [str(path) for path in writers.places(between)]
    output(["convert", between, last], capsys)
    arrays = [np.load(path) for path in (first, last)]
    for name in arrays[0].files:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


TABLE = "patient,sex,obs_level,dose,reward\nA,f,1,0.5,1\nA,f,2,1,2\nB,m,3,1,3\nB,m,4,0.5,4\n"


def test_a_template_is_written_next_to_the_table(tmp_path, capsys):
    table, toml = tmp_path / "log.csv", tmp_path / "log.toml"
    table.write_text(TABLE)
    assert output(["template", table], capsys).splitlines()[0] == str(toml)
    assert '# sex = { categories = ["f", "m"], encode = "one-hot" }' in toml.read_text()
    assert data.load(str(table)).action_columns[0].name == "dose"
    toml.write_text("mine")
    with pytest.raises(SystemExit, match=r"log\.toml exists; --overwrite replaces it"):
        output(["template", table], capsys)
    assert toml.read_text() == "mine"
    output(["template", table, "--overwrite"], capsys)
    assert data.load(str(toml)).rows == 2


def test_a_template_elsewhere_names_the_table_by_its_relative_path(tmp_path, capsys):
    (tmp_path / "log.csv").write_text(TABLE)
    (tmp_path / "other").mkdir()
    place = tmp_path / "other" / "mine.toml"
    output(["template", tmp_path / "log.csv", "--out", place], capsys)
    assert data.load(str(place)).rows == 2


def test_convert_keeps_names_units_and_transforms(minari_folder, tmp_path, capsys):
    table = tmp_path / "log.csv"
    table.write_text(TABLE)
    output(["template", table], capsys)
    toml = table.with_suffix(".toml")
    text = toml.read_text().replace('["obs_level"]', '["sex", "obs_level"]').replace("# sex", "sex")
    toml.write_text(f'{text}dose = {{ unit = "mg", log = 0.5 }}\nobs_level = {{ scale = 2.0 }}\n')
    source, wanted = str(table), data.load(str(table))
    names = [column.label for column in (*wanted.observation_columns, *wanted.action_columns)]
    assert names == ["sex=f", "sex=m", "obs_level", "dose (mg)"]
    for out in ("a.npz", "b.hdf5", "c.parquet", "minari/d-v0", "e.csv"):
        target = out if out.startswith("minari") else str(tmp_path / out)
        output(["convert", source, target], capsys)
        found, source = data.load(target), target
        assert found.sha256 == wanted.sha256
        assert found.observation_columns == wanted.observation_columns
        assert found.action_columns == wanted.action_columns


def test_a_split_keeps_episodes_whole_and_names(tmp_path, capsys):
    log = dataclasses.replace(
        data.load("treatment/cubic"), action_columns=(Column("dose", "mg", Transform("log", 9.0)),)
    )
    data.save_npz(log, tmp_path / "log.npz")
    first, rest = tmp_path / "train.csv", tmp_path / "rest.npz"
    arguments = ["split", tmp_path / "log.npz", first, rest, "--share", "0.7", "--seed", "3"]
    lines = output(arguments, capsys).splitlines()
    assert lines == [
        str(first), str(tmp_path / "train.toml"), "840 rows in 35 episodes",
        str(rest), "360 rows in 15 episodes",
    ]  # fmt: skip
    for path, part in zip((first, rest), split(log, 0.7, 3), strict=True):
        found = data.load(str(path))
        assert found.sha256 == part.sha256
        assert found.action_columns == log.action_columns
    with pytest.raises(SystemExit, match=r"train\.csv exists; --overwrite replaces it"):
        output(arguments, capsys)
    output([*arguments, "--overwrite"], capsys)


def test_a_split_never_replaces_a_file_of_its_source(tmp_path, capsys):
    log = data.load("treatment/quadratic@4")
    output(["make", "treatment/quadratic@4", tmp_path / "part.csv"], capsys)
    described = (tmp_path / "part.toml").read_text()
    (tmp_path / "all.toml").write_text(described)
    arguments = ["split", tmp_path / "all.toml", tmp_path / "part.csv", tmp_path / "rest.npz"]
    with pytest.raises(SystemExit, match="would be replaced by a part of it"):
        output([*arguments, "--overwrite"], capsys)
    assert data.load(str(tmp_path / "all.toml")).rows == log.rows


def test_a_table_may_have_the_name_of_an_array_file(tmp_path, capsys):
    output(["make", "treatment/quadratic@4", tmp_path / "log.npz"], capsys)
    output(["convert", tmp_path / "log.npz", tmp_path / "log.csv"], capsys)
    assert data.load(str(tmp_path / "log.csv")).rows == data.load(str(tmp_path / "log.npz")).rows


@pytest.mark.parametrize(
    ("first", "rest", "message"),
    [
        ("log.npz", "b.npz", "log.npz would be replaced by a part of it"),
        ("a.csv", "a.parquet", "would be written to the same file"),
        ("a.npz", "a.xlsx", "the suffix must be one of"),
        ("a.npz", "none/b.npz", "none does not exist"),
    ],
)
def test_a_split_that_cannot_be_written_writes_nothing(tmp_path, monkeypatch, first, rest, message):
    monkeypatch.chdir(tmp_path)
    data.save_npz(data.load("treatment/cubic@3"), tmp_path / "log.npz")
    before = (tmp_path / "log.npz").read_bytes()
    with pytest.raises(SystemExit, match=message):
        main(["data", "split", "log.npz", first, rest, "--overwrite"])
    assert [path.name for path in tmp_path.iterdir()] == ["log.npz"]
    assert (tmp_path / "log.npz").read_bytes() == before


def test_a_split_that_fails_half_way_removes_its_first_part(minari_folder, tmp_path):
    log = data.load("treatment/cubic@3")
    data.save_npz(dataclasses.replace(log, propensity=np.ones(log.rows, "f4")), tmp_path / "l.npz")
    with pytest.raises(SystemExit, match="Minari cannot store propensities"):
        main(["data", "split", str(tmp_path / "l.npz"), str(tmp_path / "a.csv"), "minari/b-v0"])
    assert [path.name for path in tmp_path.iterdir()] == ["l.npz"]


def test_files_are_overwritten_only_on_request(tmp_path, capsys):
    path = tmp_path / "log.npz"
    arguments = ["make", "treatment/cubic", path]
    output(arguments, capsys)
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(SystemExit, match=r"fat2thin: .*log\.npz exists; --overwrite"):
        output([*arguments, "--seed", "1"], capsys)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    output([*arguments, "--seed", "1", "--overwrite"], capsys)
    assert data.load(str(path)).sha256 == data.load("treatment/cubic", 1).sha256
    (tmp_path / "other.toml").touch()
    with pytest.raises(SystemExit, match=r"other\.toml exists"):
        output(["make", "treatment/cubic", tmp_path / "other.csv"], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "treatment/cubc"], "did you mean 'treatment/cubic'"),
        (["check", "nowhere.npz"], "nowhere.npz"),
        (["template", "nowhere.csv"], "nowhere.csv: there is no such file"),
        (["template", "gone.npz"], "gone.npz: there is no such file. Correct the path"),
        (["template", "log.csv", "--out", "x.csv"], "x.csv: the suffix must be .toml"),
        (["template", "log.csv", "--out", "none/x.toml"], "choose a file in an existing folder"),
        (
            ["make", "treatment/cubic", "log.xlsx"],
            "must be one of .npz, .npy, .csv, .parquet, .hdf5",
        ),
        (
            ["convert", "treatment/cubic", "folder/there/is/none.npz"],
            "folder folder/there/is does not exist",
        ),
        (["make", "nowhere.npz", "log.npz"], "nowhere.npz cannot be created, only read"),
        (["make", "treatment/cubc", "log.npz"], "did you mean 'treatment/cubic'"),
        (["make", "Hoper", "log.npz"], "Gymnasium task ends with a version, as in Hopper-v5"),
        (["make", "Nowhere-v0", "log.npz"], "Gymnasium cannot make 'Nowhere-v0'"),
        (
            ["make", "treatment/cubic", "log.npz", "--rows", "9"],
            "--rows has no effect for treatment/",
        ),
        (["make", "treatment/cubic", "x.npz", "--policy", "uniform"], "--policy has no effect"),
        (["make", "treatment/cubic", "x.npz", "--way", "centre"], "--way has no effect"),
        (["make", "treatment/cubic", "x.npz", "--discount", "1"], "--discount has no effect"),
        (["make", "Pendulum-v1", "log.xlsx"], "must be one of .npz, .npy, .csv, .parquet, .hdf5"),
        (["make", "Pendulum-v1", "none/log.npz"], "folder none does not exist"),
        (["make", "Pendulum-v1", "log.npz", "--rows", "0"], "rows must be at least 1, not 0"),
        (["make", "Pendulum-v1", "log.npz", "--seed", "-1"], "the seed must lie in"),
        (["make", "Pendulum-v1", "log.npz", "--discount", "2"], "the discount must lie in"),
        (["make", "Pendulum-v1", "log.npz", "--policy", "none"], "none holds no run"),
        (["make", "Pendulum-v1", "log.npz", "--way", "centre"], "--way needs the policy of a run"),
        (["make", "Pendulum-v1", "minari/pendulum"], "'pendulum' is not a Minari id"),
        (["convert", "treatment/cubic", "minari/a/../b-v0"], "is not a Minari id"),
        (["make", COUNTDOWN, "minari/log-v0"], "Register the task with a text entry_point"),
        (["make"], "name a data set or a Gymnasium task: see `fat2thin data make --help`"),
        (["make", "treatment/cubic"], "name the file for treatment/cubic, for example"),
        (["make", "treatment/cubic", "a.npz", "b.npz"], "'b.npz' is one too many"),
        (["make", "treatment/cubic", "a.npz", "--out", "b.npz"], "'a.npz' is one too many"),
        (["make", "treatment/cubic", "x.npz", "--workers", "2"], "--workers has no effect"),
        (["make", "regenerated/hoper-medium"], "did you mean 'regenerated/hopper-medium'"),
        (["make", "regenerated/hopper-medium", "x.npz"], "cannot be written to x.npz: name a file"),
        (["make", "regenerated/hopper-medium", "--way", "centre"], "--way has no effect"),
        (["make", "Hopper-v5", "regenerated/hopper-medium"], "make it alone"),
        (["make", "regenerated/all"], 'pip install "fat2thin[mujoco]"'),
    ],
)
def test_a_user_error_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("fat2thin.envs.record.Environments", None)
    monkeypatch.setattr(regenerate, "mujoco_is_installed", lambda: False)
    with pytest.raises(SystemExit) as end:
        main(["data", *arguments])
    text = str(end.value.code)
    assert text.startswith("fat2thin: ") and message in text
    assert "\n" not in text
    assert not list(tmp_path.iterdir())


@pytest.fixture
def hopping(tmp_path, monkeypatch):
    """Make regenerated sets of the hopper with a task that needs no MuJoCo, in a new folder."""
    monkeypatch.setitem(ROBOTS, "hopper", "rollout_tasks:Hop-v0")
    monkeypatch.setattr(regenerate, "mujoco_is_installed", lambda: True)
    monkeypatch.setenv("FAT2THIN_DATA", str(tmp_path / "new"))


def test_a_regenerated_set_is_made_where_it_is_read(hopping, tmp_path, capsys):
    name = "regenerated/hopper-medium"
    main(["data", "make", name, "--rows", "30", "--seed", "1", "--workers", "1"])
    printed = capsys.readouterr()
    path = tmp_path / "new" / "hopper-medium@30.hdf5"
    assert printed.out.startswith(f"{path}: {name}@30, 30 rows in ")
    assert printed.err.startswith("1 data set, 30 rows, 1 MB, about ")
    assert data.load(f"{name}@30").rows <= 30
    with pytest.raises(SystemExit, match=r"hopper-medium@30\.hdf5 exists; --overwrite replaces it"):
        main(["data", "make", f"{name}@30"])
    main(["data", "make", name, str(tmp_path / "own.hdf5"), "--rows", "30", "--seed", "1"])
    assert (tmp_path / "own.hdf5").read_bytes() == path.read_bytes()


def test_an_interrupted_set_is_not_written(hopping, tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(regenerate._Maker, "receive", interrupt)
    with pytest.raises(SystemExit) as end:
        main(["data", "make", "regenerated/hopper-medium", "--rows", "30"])
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith("Interrupted. Only finished files were kept.\n")
    assert not [*(tmp_path / "new").iterdir()]


def test_help_lists_the_formats(capsys):
    with pytest.raises(SystemExit) as end:
        main(["data", "convert", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(suffix in text for suffix in writers.FORMATS)


def test_progress_without_a_terminal_is_a_line_every_half_minute_until_all_is_done(
    monkeypatch, capsys
):
    clock = [0.0]
    monkeypatch.setattr("fat2thin.cli.working.time.perf_counter", lambda: clock[0])
    with RichProgress(disable=True) as bar:
        shown = Working("reading log.csv", bar, on_terminal=False)
        shown.expect(1_000_000)
        for now, cells in ((10, 250_000), (40, 250_000), (50, 250_000), (90, 250_000)):
            clock[0] = now
            shown.did(cells)
    # 500,000 cells of 4 bytes in 40 seconds; after 90 seconds nothing is left.
    assert capsys.readouterr().out == "reading log.csv: 50 % (0 MB/s, 0:40 left)\n"


@pytest.mark.parametrize("suffix", writers.FORMATS)
def test_ctrl_c_while_a_log_is_written_leaves_nothing(suffix, tmp_path, monkeypatch, capsys):
    def interrupted(display, cells):
        if any((tmp_path / "out").iterdir()):
            raise KeyboardInterrupt

    data.save_npz(data.load("treatment/cubic@5"), tmp_path / "log.npz")
    (tmp_path / "out").mkdir()
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(Working, "did", interrupted)
        main(["data", "convert", str(tmp_path / "log.npz"), str(tmp_path / "out" / f"x{suffix}")])
    assert end.value.code == 130
    assert capsys.readouterr().err == "fat2thin: Interrupted. Only finished files were kept.\n"
    assert not [*(tmp_path / "out").iterdir()]


def test_convert_never_replaces_its_source_or_the_description(tmp_path, capsys):
    """The table has a column that no data set keeps."""
    source, toml = tmp_path / "log.csv", tmp_path / "log.toml"
    output(["make", "treatment/cubic@2", source], capsys)
    lines = [f"{line},x" for line in source.read_text().splitlines()]
    source.write_text("\n".join(lines))
    (tmp_path / "both.toml").write_text(f'files = ["log.csv"]\n{toml.read_text()[20:]}')
    before = source.read_text(), toml.read_text()
    for asked, out in (
        ("log.csv", "log.csv"),
        ("log.csv", "log.parquet"),
        ("both.toml", "log.csv"),
    ):
        arguments = [str(tmp_path / asked), str(tmp_path / out), "--overwrite"]
        with pytest.raises(SystemExit, match=f"{asked} would be replaced by its conversion: choo"):
            main(["data", "convert", *arguments])
        assert (source.read_text(), toml.read_text()) == before


@pytest.fixture(scope="module")
def recorded():
    """Return 25 recorded steps of the countdown task."""
    task = describe(COUNTDOWN)
    return record(task, uniform(task, 3), 25, 3, discount=0.9, workers=0)


MAKE = ["make", COUNTDOWN, "--rows", "25", "--seed", "3", "--discount", "0.9"]


@pytest.mark.parametrize("suffix", sorted(writers.FORMATS))
def test_a_task_is_recorded_in_every_format(recorded, suffix, tmp_path, capfd):
    path = tmp_path / f"log{suffix}"
    main(["data", *MAKE, str(path)])
    lines = capfd.readouterr().out.splitlines()
    assert lines[:-1] == [str(place) for place in writers.places(path)]
    episodes = recorded.episode_start.size
    assert re.fullmatch(rf"25 rows in {episodes} episodes, [\d,]+ rows per second", lines[-1])
    found = data.load(str(path))
    for name in recorded.arrays:
        np.testing.assert_array_equal(getattr(found, name), getattr(recorded, name))
    assert found.sha256 == recorded.sha256 or suffix != ".npz"


def test_a_recording_overwrites_files_only_on_request(recorded, tmp_path, monkeypatch):
    path = tmp_path / "log.npz"
    path.write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr("fat2thin.envs.record.Environments", None)
        with pytest.raises(SystemExit, match=r"log\.npz exists; --overwrite replaces it"):
            main(["data", *MAKE, str(path)])
        (tmp_path / "folder.npz").mkdir()
        with pytest.raises(SystemExit, match=r"folder\.npz is a folder: choose another name"):
            main(["data", *MAKE, str(tmp_path / "folder.npz"), "--overwrite"])
    assert path.read_text() == "mine"
    main(["data", *MAKE, str(path), "--overwrite"])
    assert data.load(str(path)).sha256 == recorded.sha256


def test_a_failing_task_is_a_one_line_error(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise TaskFailed("the pump is empty")

    monkeypatch.setattr("fat2thin.envs.record.Environments", fails)
    with pytest.raises(SystemExit, match=r"^fat2thin: the pump is empty$"):
        main(["data", *MAKE, str(tmp_path / "log.npz")])
    assert not list(tmp_path.iterdir())


RUN = "runs/x"


@pytest.fixture(scope="module")
def untrained(recorded, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.npz"
    data.save_npz(recorded, path)
    return untrained_run("fttpo", path, seeds=[4], task="none", settings={"hidden": (4, 4)})


@pytest.fixture
def run(untrained, monkeypatch):
    """Return the run on the countdown task that the folder `RUN` holds."""
    monkeypatch.setattr("fat2thin.training.load", {RUN: untrained}.__getitem__)
    return untrained


@pytest.mark.parametrize("way", ["sampled", "centre", "proposal", None])
def test_the_policy_of_a_run_is_recorded(run, way, tmp_path):
    path = tmp_path / "log.npz"
    main(["data", *MAKE, str(path), "--policy", RUN, *(["--way", way] if way else [])])
    found = data.load(str(path))
    policy = run.proposal() if way == "proposal" else run.policy(run.spec.seeds[0])
    if way == "centre":
        alone = policy.act(jax.numpy.asarray(found.observation))
        np.testing.assert_allclose(found.action, alone, rtol=1e-5)
    act = from_policy(policy, 3, "centre" if way == "centre" else "sampled")
    expected = record(COUNTDOWN, act, 25, 3, discount=0.9, workers=0)
    for name in expected.arrays:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6)


def test_a_run_of_another_task_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fat2thin.envs.record.Environments", None)

    def refused(task, match):
        with pytest.raises(SystemExit, match=match):
            main(["data", "make", task, str(tmp_path / "log.npz"), "--policy", RUN])
        assert not list(tmp_path.iterdir())

    refused(
        "Pendulum-v1", "has observations of size 3, the run in runs/x has 2: give the right task"
    )
    countdown = describe(COUNTDOWN)
    for changes, match in (
        ({"action_low": (0.0,), "action_high": (1.0,)}, r"actions of size 1, .* has 2"),
        ({"action_low": (-1.0, -1.0)}, "the units differ"),
    ):
        task = dataclasses.replace(countdown, **changes)
        monkeypatch.setattr("fat2thin.envs.rollouts.describe", lambda _, task=task: task)
        refused(COUNTDOWN, match)


PENDULUM = "minari/own/pendulum/uniform-v0"


@pytest.fixture
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def test_a_recording_is_written_as_a_minari_data_set(minari_folder, capfd):
    arguments = ["make", "Pendulum-v1", PENDULUM, "--rows", "210"]
    printed = output(arguments, capfd).splitlines()
    assert printed[0] == str(minari_folder / "own" / "pendulum" / "uniform-v0")
    assert printed[1].startswith("210 rows in 2 episodes, ")
    task = describe("Pendulum-v1")
    expected = record(task, uniform(task), 210, workers=0)
    found = data.load(PENDULUM)
    assert found.sha256 == expected.sha256
    with pytest.raises(SystemExit, match="uniform-v0 exists; --overwrite replaces it"):
        output([*arguments, "--seed", "1"], capfd)
    output([*arguments, "--seed", "1", "--overwrite"], capfd)
    assert data.load(PENDULUM).sha256 == record(task, uniform(task, 1), 210, 1, workers=0).sha256
    assert [place.name for place in minari_folder.glob("own/pendulum/*")] == ["uniform-v0"]

    package = pytest.importorskip("minari", reason="the extra minari is not installed")
    opened = package.load_dataset("own/pendulum/uniform-v0")
    assert (opened.total_episodes, opened.total_steps) == (2, 210)
    environment = opened.recover_environment()
    assert environment.spec.id == "Pendulum-v1"
    first, second = opened.iterate_episodes()
    np.testing.assert_array_equal(first.actions, data.load(PENDULUM).action[:200])
    np.testing.assert_array_equal(
        second.observations[1:], data.load(PENDULUM).next_observation[200:]
    )
    assert first.truncations[-1] and second.truncations[-1]
    environment.close()


def test_converting_to_minari_and_back_keeps_the_hash(minari_folder, tmp_path, capsys):
    output(["convert", "treatment/quadratic", "minari/own-v0"], capsys)
    assert data.load("minari/own-v0").sha256 == data.load("treatment/quadratic").sha256
    output(["convert", "minari/own-v0", tmp_path / "back.npz"], capsys)
    assert data.load(str(tmp_path / "back.npz")).sha256 == data.load("treatment/quadratic").sha256

    package = pytest.importorskip("minari", reason="the extra minari is not installed")
    environment = package.load_dataset("own-v0").recover_environment()
    assert environment.unwrapped.task == treatment.by_name("treatment/quadratic")
    environment.close()


def test_a_folder_that_is_not_a_data_set_is_not_replaced(minari_folder):
    (minari_folder / "own-v0" / "other-v0").mkdir(parents=True)
    with pytest.raises(SystemExit, match="own-v0 exists and is not a Minari data set"):
        main(["data", "make", "treatment/cubic", "minari/own-v0", "--overwrite"])
    assert (minari_folder / "own-v0" / "other-v0").is_dir()


def test_a_path_in_a_folder_called_minari_is_not_a_minari_id(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "minari").mkdir()
    output(["make", "treatment/cubic", "minari/log.npz"], capsys)
    assert data.load("./minari/log.npz").rows == 1200


@pytest.mark.parametrize("command", ["info", "template"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("log.csv.gz", "log.csv.gz: is compressed, and is not read so. Decompress it first."),
        (
            "log.XLSX",
            "log.XLSX: ends in '.xlsx', which is not read here. Save a table as CSV.",
        ),
        ("log", "log: has no suffix. Save a table as CSV. Files that are read end in"),
        ("logs", "logs: is a folder that is not a data set. Give the path of a file."),
    ],
)
def test_a_file_of_an_unknown_kind_has_a_way_out(tmp_path, monkeypatch, command, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for file in ("log.csv.gz", "log.XLSX", "log"):
        (tmp_path / file).write_bytes(b"who,reward\n")
    with pytest.raises(SystemExit) as end:
        main(["data", command, name])
    assert end.value.code.startswith(f"fat2thin: {message}")
    assert len(end.value.code.splitlines()) == 1


@pytest.mark.parametrize("command", ["info", "check"])
def test_a_draft_that_is_not_filled_in_says_what_is_left(tmp_path, command, capsys):
    (tmp_path / "log.csv").write_text("patient,age,dose,reward\n1,50,2,1\n1,50,1,1\n")
    output(["template", tmp_path / "log.csv"], capsys)
    with pytest.raises(SystemExit) as end:
        main(["data", command, str(tmp_path / "log.csv")])
    left = "log.toml: observation is still '?': write the column of the observation there."
    assert f"{left} The columns are patient, age, dose, reward." in end.value.code


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".toml", ".npz", ".hdf5", ".h5"])
def test_pipes_and_devices_are_errors_without_blocking(tmp_path, suffix, no_hang):
    pipe, endless = tmp_path / f"pipe{suffix}", tmp_path / f"endless{suffix}"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path, kind in [(pipe, "named pipe"), (endless, "device")]:
        for command in ("info", "check"):
            with pytest.raises(SystemExit, match=rf"{path}: is a {kind}, not a regular file"):
                main(["data", command, str(path)])
    with pytest.raises(SystemExit, match="/dev/zero: has no suffix"):
        main(["data", "info", "/dev/zero"])


def test_pipes_as_parts_of_a_log_are_errors_without_blocking(tmp_path, no_hang):
    """The TOML of a table, a table named by a TOML, the metadata of a Minari data set."""
    (tmp_path / "a.csv").write_text("who,reward\n")
    os.mkfifo(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text(
        'files = ["b.csv"]\nepisode = "who"\nobservation = ["o"]\naction = ["a"]\n'
        'reward = "r"\naction_low = 0\naction_high = 1\ndiscount = 1\n'
    )
    os.mkfifo(tmp_path / "b.csv")
    (tmp_path / "minari" / "data").mkdir(parents=True)
    (tmp_path / "minari" / "data" / "main_data.hdf5").write_bytes(b"")
    os.mkfifo(tmp_path / "minari" / "data" / "metadata.json")
    for source, named in [("a.csv", "a.toml"), ("b.toml", "b.csv"), ("minari", "metadata.json")]:
        with pytest.raises(SystemExit, match=rf"{named}: is a named pipe, not a regular file"):
            main(["data", "info", str(tmp_path / source)])


def test_a_link_to_a_log_is_read(tmp_path, capsys):
    output(["make", "treatment/cubic", tmp_path / "log.npz"], capsys)
    (tmp_path / "link.npz").symlink_to("log.npz")
    assert "1,200 rows" in output(["info", tmp_path / "link.npz"], capsys)


def test_too_many_columns_are_an_error(tmp_path):
    rows = {"action": np.zeros((2, 1)), "reward": np.zeros(2), "terminal": np.array([0, 1])}
    np.savez_compressed(tmp_path / "log.npz", observation=np.zeros((2, 2**15 + 1)), **rows)
    with pytest.raises(SystemExit, match=r"'observation' has 32,769 columns; the limit is 32,768"):
        main(["data", "info", str(tmp_path / "log.npz")])


def test_control_characters_in_names_are_escaped(tmp_path, capsys):
    hostile = "\x1b]0;owned\x07\x9b2J\u202e"
    path = tmp_path / f"log{hostile}.csv"
    path.write_text(f'episode,"obs{hostile}\nfat2thin: all is well",reward,dose\n1,2,3,4\n')
    with pytest.raises(SystemExit) as end:
        main(["data", "info", str(path)])
    message = str(end.value.code)
    assert message.replace("\n", "").isprintable() and r"obs\u001b]0;owned" in message
    assert "\nfat2thin: all is well" not in message
    toml = path.with_suffix(".toml")
    toml.write_text(
        'episode = "episode"\nobservation = ["o"]\naction = ["dose"]\nreward = "reward"\n'
        "action_low = 0\naction_high = 9\ndiscount = 1\n"
    )
    with pytest.raises(SystemExit) as end:
        main(["data", "check", str(toml)])
    message = str(end.value.code)
    assert message.isprintable() and "Its columns are episode, obs" in message
    named = tmp_path / f"log{hostile}.npz"
    assert output(["make", "treatment/cubic", named], capsys).replace("\n", "").isprintable()
    for command in ("info", "check"):
        assert output([command, named], capsys).replace("\n", "").isprintable()
