"""The example script runs, and agrees with the command line."""

import runpy
import sys
from pathlib import Path

import matplotlib.image
import pytest

from fat2thin import data
from fat2thin.cli.main import main
from fat2thin.data import load, remember, save_npz
from fat2thin.data.operations import split

ROOT = Path(__file__).parents[1]
SCRIPT, TABLE = ROOT / "examples" / "own_log.py", ROOT / "examples" / "own_log.toml"
INSULIN = ROOT.parent / "shared" / "data" / "neorl2"


def run_example(monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, words)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out


def numbers(printed):
    """Return the rows of the table, without the file names above it."""
    lines = printed.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("quantity "))
    return lines[first : lines.index("", first)]


def test_the_example_and_the_command_agree(monkeypatch, capsys, tmp_path):
    out = tmp_path / "own"
    printed = run_example(
        monkeypatch, capsys, "--algorithm", "iql", "--steps", "2", "--seeds", "1", "--out", out
    )
    assert "0 errors" in printed
    assert "share of logged actions that the policy could have taken: 1 held out" in printed

    # Validated on its training log, a run has the numbers of the training columns of the example.
    log = tmp_path / "training.npz"
    training, _ = split(load(str(TABLE)), share=0.8, seed=0)
    save_npz(training, log)
    remember(training)  # the run finds its log by this name
    run, pictures = out / "iql", tmp_path / "pictures"
    main(["validate", str(run), str(log), "--out", str(pictures)])
    again = capsys.readouterr().out
    of_training = [line.split()[:4] for line in numbers(printed)[2:]]
    both_parts = [line.split() for line in numbers(again)[2:]]
    assert [[row[0], *row[1:4]] for row in both_parts] == of_training
    assert [[row[0], *row[4:7]] for row in both_parts] == of_training
    for name in ("action_band.png", "action_histogram.png"):
        assert str(pictures / name) in again
        assert matplotlib.image.imread(pictures / name).std() > 0.01
        assert (run / name).is_file()
    with pytest.raises(SystemExit, match="does not fit the run: its observation_size is 8"):
        main(["validate", str(run), "treatment/cubic"])


def test_one_episode_is_one_clear_line(monkeypatch, capsys, tmp_path):
    data.save_npz(data.load("treatment/cubic@1"), tmp_path / "one.npz")
    with pytest.raises(SystemExit, match="has one episode, so none can be held out: give another"):
        run_example(monkeypatch, capsys, tmp_path / "one.npz", "--out", tmp_path / "own")


@pytest.mark.slow
@pytest.mark.long
def test_a_table_and_an_npz_of_it_give_the_same_numbers(monkeypatch, capsys, tmp_path):
    main(["data", "convert", str(TABLE), str(tmp_path / "log.npz")])
    short = ("--steps", "2", "--seeds", "2", "--out")
    of_table = run_example(monkeypatch, capsys, *short, tmp_path / "table")
    of_npz = run_example(monkeypatch, capsys, tmp_path / "log.npz", *short, tmp_path / "npz")
    assert numbers(of_table) == numbers(of_npz)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not INSULIN.is_dir(), reason="the insulin log of NeoRL-2 is missing")
def test_the_insulin_log_gives_a_narrow_band_that_holds_most_doses(monkeypatch, capsys, tmp_path):
    files = (
        INSULIN / "Simglucose-high-100000-train.npz",
        "--validation",
        INSULIN / "Simglucose-high-20000-val.npz",
    )
    printed = run_example(
        monkeypatch, capsys, *files, "--steps", "4000", "--seeds", "1", "--out", tmp_path
    )
    found = {row.split()[0]: row.split()[1:] for row in numbers(printed)[2:]}
    held_out = {name: float(row[3]) for name, row in found.items()}
    # Half of the doses lie within a thousandth of the box of each other, so a good band is narrow
    # and still contains most logged doses.
    assert held_out["support_percent"] < 5.0
    assert held_out["logged_inside_support"] > 0.5
