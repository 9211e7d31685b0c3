"""`fat2thin export`, and `verify` and `decide` with what it writes."""

import csv
import json

import pytest

from fat2thin.cli.main import main

pytestmark = pytest.mark.slow  # they train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a log, a run of two seeds, limits and an export."""
    here = tmp_path_factory.mktemp("export")
    main(["data", "make", "treatment/quadratic@20", str(here / "log.csv"), "--seed", "0"])
    main(["train", "bc", str(here / "log.csv"), "--task", "none", "--steps", "2", "--seeds", "2",
          "--set", "hidden=4,4", "policy=sparse_q_gaussian",
          "outside_support=project", "--out", str(here / "run")])  # fmt: skip
    (here / "limits.toml").write_text('[limits]\ncap = "action_0 <= 0.5"\n')
    options = ["--limits", str(here / "limits.toml"), "--fallback", "0.25", "--distance", "2"]
    out = ["--to", "numpy", "c", "--out", str(here / "deployed")]
    main(["export", str(here / "run"), *out, *options])
    return here


def test_the_export_has_what_the_options_say(folder, capsys):
    found = json.loads((folder / "deployed" / "metadata.json").read_text())
    assert found["limits"] == {"cap": "action_0 <= 0.5"} and found["fallback"] == [0.25]
    assert found["referral"]["distance"] == 2.0 and found["run"]["seeds"] == [0, 1]
    assert found["run"]["algorithm"] == "bc" and found["members"] == 2
    assert found["command"].startswith("fat2thin export ") and "--distance 2.0" in found["command"]
    main(["verify", str(folder / "deployed")])
    assert "1,000 states" in capsys.readouterr().out


def test_decide_takes_an_export(folder, capsys):
    def decided(source, *options):
        out = folder / f"{source}.csv"
        main(["decide", str(folder / source), str(folder / "log.csv"), "--out", str(out), *options])
        with out.open() as file:
            return [*csv.DictReader(file)]

    limits = ("--limits", str(folder / "limits.toml"), "--distance", "2")
    for one, other in zip(decided("deployed"), decided("run", *limits), strict=True):
        assert (one["decision"], one["reasons"]) == (other["decision"], other["reasons"])
        for name in ("action_0", "action_0_low", "action_0_high"):
            if other[name]:
                assert float(one[name]) == pytest.approx(float(other[name]), abs=1e-5)
        assert one["distance"] == other["distance"] or float(one["distance"]) == pytest.approx(
            float(other["distance"]), abs=1e-5
        )


def test_ensemble_chooses_the_rule(folder):
    out = folder / "median"
    main(["export", str(folder / "run"), "--ensemble", "median", "--out", str(out)])
    made = json.loads((out / "metadata.json").read_text())
    assert made["ensemble"] == "median" and "--ensemble median" in made["command"]
    usual = json.loads((folder / "deployed" / "metadata.json").read_text())
    assert usual["ensemble"] == "consensus"
    with pytest.raises(SystemExit, match="an ensemble is one of"):
        main(["export", str(folder / "run"), "--ensemble", "mean", "--out", str(folder / "no")])
    assert not (folder / "no").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["export", "run", "--to", "onxx", "--out", "new"],
            r"no format 'onxx' \(did you mean 'onnx'",
        ),
        (["export", "run", "--to", "c", "--out", "deployed"], "deployed exists: name a new folder"),
        (["export", "run", "--to", "c", "--out", "new", "--fallback", "7"], "in the action box"),
        (["export", "none", "--to", "c", "--out", "new"], "none"),
        (["export", "run", "--to", "c", "--out", "new", "--seed", "9"], "has no seed 9"),
        (
            ["export", "run", "--out", "new", "--certificate", "log.csv"],
            r"log\.csv is not a certificate of `fat2thin certify --out`",
        ),
        (["export", "run", "--out", "new", "--dossier", "limits.toml"], r"limits\.toml"),
        (
            ["decide", "deployed", "log.csv", "--seed", "0"],
            "is an export, which has its own limits",
        ),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(SystemExit, match=message) as error:
        main(words)
    assert "\n" not in str(error.value)
    assert {path.name for path in folder.iterdir()} == before


def test_a_changed_export_fails(folder, tmp_path, capsys):
    import shutil

    copy = shutil.copytree(folder / "deployed", tmp_path / "deployed")
    (copy / "policy.h").write_text("int x;\n")
    with pytest.raises(SystemExit):
        main(["verify", str(copy)])
    assert "policy.h was changed" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"policy\.h was changed"):
        main(["decide", str(copy), str(folder / "log.csv"), "--out", str(tmp_path / "out.csv")])
