import hashlib

import numpy as np
import pytest

from fat2thin import data
from fat2thin.cli import main
from fat2thin.data import writers
from fat2thin.data.findings import Finding, Report


def output(arguments, capsys):
    main(["data", *map(str, arguments)])
    return capsys.readouterr().out


def test_info_by_name_and_by_file_say_the_same(tmp_path, capsys):
    path = tmp_path / "log.npz"
    made = output(["make", "treatment/cubic", path, "--seed", "3"], capsys)
    assert made.splitlines() == [str(path), "1,200 rows in 50 episodes"]
    by_name = output(["info", "treatment/cubic", "--seed", "3"], capsys)
    by_file = output(["info", path], capsys)
    assert by_name.splitlines()[0] == "treatment/cubic"
    assert by_name.splitlines()[1:] == by_file.splitlines()[1:]
    assert data.load("treatment/cubic", 3).sha256 in by_file


def test_check_ends_with_0_where_all_is_well(capsys):
    assert output(["check", "treatment/quadratic"], capsys) == "0 errors, 0 warnings\n"


def test_check_ends_with_1_where_something_is_wrong(capsys, monkeypatch):
    finding = Finding("other_unit", "action[0]", 3, (1, 2, 4), "leaves the box", "Correct it.")
    monkeypatch.setattr("fat2thin.data.checks.check", lambda _: Report(errors=(finding,)))
    with pytest.raises(SystemExit) as end:
        main(["data", "check", "treatment/quadratic"])
    assert end.value.code == 1
    assert "error   other_unit: action[0] leaves the box (row 1, 2, 4)" in capsys.readouterr().out


def test_check_of_a_file_that_is_no_log_ends_with_a_line(tmp_path):
    rows = {"observation": np.ones((3, 2)), "action": np.zeros((3, 1)), "terminal": np.zeros(3)}
    np.savez(tmp_path / "log.npz", reward=np.array([1, np.nan, 1]), **rows)
    with pytest.raises(SystemExit, match=r"fat2thin: .*log\.npz: 'reward' .*row 1"):
        main(["data", "check", str(tmp_path / "log.npz")])


@pytest.mark.parametrize("suffix", sorted(writers.FORMATS))
def test_there_and_back_again(suffix, tmp_path, capsys):
    first, between, last = (tmp_path / name for name in ("a.npz", f"b{suffix}", "c.npz"))
    output(["make", "treatment/cubic", first, "--seed", "1"], capsys)
    lines = output(["convert", first, between], capsys).splitlines()
    assert lines[:-1] == [str(path) for path in writers.places(between)]
    output(["convert", between, last], capsys)
    arrays = [np.load(path) for path in (first, last)]
    for name in arrays[0].files:
        np.testing.assert_array_equal(arrays[0][name], arrays[1][name])


def test_nothing_is_overwritten_unasked(tmp_path, capsys):
    path = tmp_path / "log.npz"
    arguments = ["make", "treatment/cubic", path]
    output(arguments, capsys)
    before = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(SystemExit, match=r"fat2thin: .*log\.npz is there already; --overwrite"):
        output([*arguments, "--seed", "1"], capsys)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    output([*arguments, "--seed", "1", "--overwrite"], capsys)
    assert data.load(str(path)).sha256 == data.load("treatment/cubic", 1).sha256
    (tmp_path / "other.toml").touch()
    with pytest.raises(SystemExit, match=r"other\.toml is there already"):
        output(["make", "treatment/cubic", tmp_path / "other.csv"], capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "treatment/cubc"], "did you mean 'treatment/cubic'"),
        (["check", "nowhere.npz"], "nowhere.npz"),
        (["make", "treatment/cubic", "log.xlsx"], "there are .npz, .csv, .parquet, .hdf5"),
        (["convert", "treatment/cubic", "folder/there/is/none.npz"], "No such file or directory"),
        (["make", "nowhere.npz", "log.npz"], "nowhere.npz is not made by us"),
    ],
)
def test_mistakes_end_with_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["data", *arguments])
    text = str(end.value.code)
    assert text.startswith("fat2thin: ") and message in text
    assert "\n" not in text
    assert not list(tmp_path.iterdir())


def test_help_lists_the_formats(capsys):
    with pytest.raises(SystemExit) as end:
        main(["data", "convert", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(suffix in text for suffix in writers.FORMATS)


def test_convert_never_replaces_what_describes_its_source(tmp_path, capsys):
    source = tmp_path / "log.csv"
    output(["make", "treatment/cubic", source], capsys)
    before = (tmp_path / "log.toml").read_text()
    with pytest.raises(SystemExit, match=r"log\.toml describes .*log\.csv and would be replaced"):
        main(["data", "convert", str(source), str(tmp_path / "log.parquet"), "--overwrite"])
    assert (tmp_path / "log.toml").read_text() == before
