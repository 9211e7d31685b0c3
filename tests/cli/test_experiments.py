"""The commands for many runs: sweep, reproduce, claims and report."""

import json
import re
import sys
from types import SimpleNamespace
from typing import get_args

import pytest

from fat2thin.cli.experiments import Preset, ScaleName, run_folders
from fat2thin.cli.main import main
from fat2thin.cli.reading import read_options, read_setting, read_value
from fat2thin.cli.train import TrainOptions
from fat2thin.evaluation.statistics import Interval
from fat2thin.experiments import sweep
from fat2thin.experiments.clusters.options import ClusterOptions
from fat2thin.paper import claims_table, reproduction
from fat2thin.paper.claims import Claim, Evidence, Verdict
from fat2thin.paper.claims_table import to_json
from fat2thin.paper.presets import SCALES
from fat2thin.tables import Table
from fat2thin.training import Run, load

SWEEP = [
    "sweep", "bc", "treatment/quadratic", "--steps", "4", "--seeds", "1",
    "--evaluate-every", "4", "--episodes", "2", "--batch-size", "8", "--set", "hidden=(4,)",
]  # fmt: skip
REPORT = ["--report-seeds", "2"]
GRID = ["--grid", "learning_rate=1e-3,1e-2"]


def output(arguments, capsys):
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def refused(arguments):
    """Return the message of a user error; check that it is one line."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code.startswith("fat2thin: ")
    assert "\n" not in end.value.code
    return end.value.code


# Reading arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1e-3", 1e-3), ("-2.5", -2.5), ("True", True), ("None", None),
        ("(8, 8)", (8, 8)), ("[3, 5]", [3, 5]), ("3,", (3,)), ("'a'", "a"), ("clip", "clip"),
        ("return_range", "return_range"), ("", ""), ("1 +", "1 +"),
        ("__import__('os')", "__import__('os')"),
    ],
)  # fmt: skip
def test_values_are_python_literals_or_text(text, value):
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("temperature=0.5", ("temperature", 0.5)),
        ("box=clip", ("box", "clip")),
        ("name=a=b", ("name", "a=b")),
        ("hidden=(4,)", ("hidden", (4,))),
        ("name=", ("name", "")),
    ],
)
def test_a_setting_is_a_name_and_a_value(text, setting):
    assert read_setting(text) == setting


def test_a_setting_without_a_value_is_refused():
    with pytest.raises(ValueError, match="a setting is written NAME=VALUE, got 'temperature'"):
        read_setting("temperature")


@pytest.mark.parametrize(
    ("text", "seeds"), [("10", 10), ("3,", [3]), ("3,5", [3, 5]), ("[3, 5]", [3, 5]), ("(7,)", [7])]
)
def test_seeds_are_a_count_or_a_list(text, seeds):
    assert read_options(TrainOptions(seeds=text))["seeds"] == seeds


# A sweep and the report of its runs


@pytest.fixture(scope="module", autouse=True)
def no_references():
    """Skip the reference rows, which take thousands of episodes and are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "known_references", lambda run: {})
        yield


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    main([*SWEEP, *GRID, *REPORT, "--out", str(folder)])
    return folder


def test_a_sweep_prints_its_settings_its_choice_and_its_cost(swept, capsys, monkeypatch):
    """Reads finished runs; two settings, two evaluations, two episodes of 24 steps each."""
    monkeypatch.setattr("fat2thin.experiments.plan.execute_together", None)
    text = output([*SWEEP, *GRID, *REPORT, "--out", swept], capsys)
    assert "bc on treatment/quadratic, 2 settings, seeds 0, 4 steps" in text
    chosen = re.search(r"^selected: (learning_rate=\S+)$", text, re.MULTILINE)[1]
    kept = json.loads((swept / "sweep.json").read_text())
    assert chosen == f"learning_rate={kept['chosen']['learning_rate']:g}"
    assert "192 steps in the environment" in text
    assert "reported on seeds 1, 2, not used for selection" in text
    assert text.endswith(f"saved in {swept}\n")
    assert sorted(path.name for path in (swept / "selection").iterdir()) == [
        "learning_rate=0.001", "learning_rate=0.01",
    ]  # fmt: skip


def test_a_sweep_reports_on_the_seeds_after_those_that_chose(swept):
    (report,) = (path for path in run_folders(swept) if "selection" not in path.parts)
    assert load(report).spec.seeds == (1, 2)
    assert load(report).spec.config.hidden == (4,)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--grid", "learning_rate"], "a grid is written NAME=VALUE"),
        (["--grid", "rate=1,2"], "no setting 'rate'"),
        ([*GRID, "--report-seeds", "0,1"], "seeds 0 would both select the setting and report it"),
        ([*GRID, "--set", "hidden"], "a setting is written NAME=VALUE, got 'hidden'"),
        ([*GRID, "--set", "hidden=(8,)"], "hidden is set twice, to (4,) and (8,): set it once"),
        ([*GRID, "--grid", "learning_rate=1"], "the grid names learning_rate twice"),
        (["--grid", "hidden=(8,),(4,)"], "hidden is given by --set and by --grid"),
    ],
)
def test_a_user_error_in_a_sweep_is_one_line(more, message, tmp_path):
    assert message in refused([*SWEEP, *more, "--out", tmp_path / "new"])
    assert not (tmp_path / "new").exists()


def test_a_grid_drops_settings_that_have_no_effect(monkeypatch, capsys, tmp_path):
    """Settings for small, noisy logs have kept_mass=0.3, which only one of the two losses uses."""
    seen = []
    monkeypatch.setattr(
        sweep, "run_sweeps", lambda sweeps, *_: seen.append(sweeps["."]) or sys.exit(0)
    )
    grid = ["--grid", "actor_loss=exact,closed_form", "--grid", "temperature=1,2"]
    with pytest.raises(SystemExit):
        main(["sweep", "fttpo", "treatment/quadratic", "--set", "hidden=8,8", *grid])
    (wanted,) = seen
    specs = [wanted.spec(one) for one in wanted.settings]
    assert [(spec.config.actor_loss, spec.config.kept_mass) for spec in specs] == [
        ("exact", None), ("exact", None), ("closed_form", 0.3), ("closed_form", 0.3),
    ]  # fmt: skip
    for spec in specs:
        assert (spec.config.hidden, spec.config.weight_decay) == ((8, 8), 3.0)
        assert spec.settings_from == "small" and spec.standardise
    printed = capsys.readouterr().out
    assert "(weight_decay=3.0, learning_rate=0.0003, kept_mass=0.3, standardise=True, " in printed
    assert printed.endswith(" Not used, because a given setting rules them out: kept_mass=0.3.\n")


def test_a_report_contains_all_runs_below_a_folder(swept, tmp_path, capsys):
    page = tmp_path / "deeper" / "page.html"
    assert re.fullmatch(
        rf"{re.escape(str(page))}: 3 runs, \d+\.\d MB\n",
        output(["report", swept, "--out", page], capsys),
    )
    assert page.read_text().startswith("<!DOCTYPE html>")
    page.write_text("mine")
    assert "page.html exists; --overwrite replaces it" in refused(["report", swept, "--out", page])
    assert page.read_text() == "mine"
    output(["report", swept, "--out", page, "--overwrite"], capsys)
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_report_shows_claims(swept, tmp_path, capsys):
    finding = Evidence(
        False, Interval(1.0, float("nan"), float("nan")), "eggs of hares; above 1", 2
    )
    verdict = Verdict(Claim("C99", "Hares are hatched.", "", None), "does not hold", finding, None)
    (tmp_path / "claims.json").write_text(to_json([verdict], ""))
    folder = swept / "selection" / "learning_rate=0.01"
    output(
        ["report", folder, "--out", tmp_path / "page.html", "--claims", tmp_path / "claims.json"],
        capsys,
    )
    page = (tmp_path / "page.html").read_text()
    assert "Hares are hatched." in page
    assert "eggs of hares" in page


def test_a_report_without_runs_is_an_error(tmp_path):
    message = refused(["report", tmp_path, "--out", tmp_path / "page.html"])
    assert message == f"fat2thin: no finished run in or below {tmp_path}"
    assert not (tmp_path / "page.html").exists()


def test_a_report_with_a_missing_claims_file_is_an_error(swept, tmp_path):
    arguments = ["report", swept, "--out", tmp_path / "a.html", "--claims", tmp_path / "b.json"]
    assert "b.json" in refused(arguments)


def test_unfinished_runs_are_left_out_of_the_report(swept, tmp_path):
    about = json.loads((swept / "selection" / "learning_rate=0.01" / "run.json").read_text())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "status": "running"}))
    assert run_folders(tmp_path) == []
    assert run_folders(tmp_path / "run") == []


def test_a_run_is_found_in_a_folder_called_checkpoints(swept, tmp_path):
    home = tmp_path / "checkpoints"
    home.mkdir()
    (home / "out").symlink_to(swept / "selection" / "learning_rate=0.01")
    assert run_folders(home / "out") == [home / "out"]


# Claims


def test_claims_of_an_empty_folder_are_not_run(tmp_path, capsys, monkeypatch):
    quick = [claim for claim in claims_table.CLAIMS if claim.name not in ("C22", "C23", "C24")]
    monkeypatch.setattr(claims_table, "CLAIMS", quick)
    folder, page, file = tmp_path / "small", tmp_path / "claims.md", tmp_path / "claims.json"
    folder.mkdir()
    text = output(["claims", folder, "--markdown", page, "--json", file], capsys)
    assert re.search(r"^C1 +not run ", text, re.MULTILINE)
    assert re.search(r"^C21 +holds ", text, re.MULTILINE)
    assert text.endswith("not run: 22, holds: 1\n")
    rows = json.loads(file.read_text())
    assert [row["claim"] for row in rows] == [claim.name for claim in quick]
    assert rows[0]["command"] == "fat2thin reproduce fig1 --scale small"
    assert page.read_text().count("\n| **C") == 23
    assert "`fat2thin reproduce fig1 --scale small`" in page.read_text()
    assert [*folder.iterdir()] == []


def test_claims_of_a_missing_folder_are_an_error(tmp_path):
    assert "nowhere is not a folder" in refused(["claims", tmp_path / "nowhere"])


# Presets


def test_the_options_list_every_preset_and_scale():
    assert get_args(Preset) == reproduction.NAMES
    assert {*get_args(ScaleName)} == {*SCALES}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["fig33"], "fig33"),
        (["fig3", "--scale", "huge"], "huge"),
        (["fig3", "--data", "minary"], "did you mean 'minari'"),
        ([], "`fat2thin reproduce` needs PRESET"),
    ],
)
def test_unknown_presets_scales_and_sources_are_errors(wrong, message):
    assert message in refused(["reproduce", *wrong])


def test_a_preset_runs_with_the_given_options(tmp_path, capsys, monkeypatch):
    seen = []

    def carry_out(name, asked, root, compute, dry_run):
        seen.append((name, asked, root, compute))
        return SimpleNamespace(
            tables=[Table("a title", ({"method": "fttpo", "mean": 1.0},))], pictures=["a.png"]
        )

    monkeypatch.setattr(reproduction, "reproduce", carry_out)
    options = ["--scale", "smoke", "--data", "d4rl", "--seeds", "3", "--steps", "7"]
    options += ["--cluster", "ray", "--workers", "3", "--retries", "2"]
    text = output(["reproduce", "fig3", *options, "--out", tmp_path], capsys)
    ((name, asked, root, compute),) = seen
    assert (name, root) == ("fig3", tmp_path)
    assert compute.keywords["options"] == ClusterOptions(cluster="ray", workers=3, retries=2)
    assert (asked.scale, asked.source, asked.seeds, asked.steps) == (SCALES["smoke"], "d4rl", 3, 7)
    assert "a title" in text and "\na.png\n" in text
    assert text.endswith(f"saved in {tmp_path}\n")


def test_the_default_folder_of_a_preset_is_named_after_its_scale(capsys, monkeypatch):
    seen = []
    nothing = SimpleNamespace(tables=[], pictures=[])
    monkeypatch.setattr(
        reproduction, "reproduce", lambda *given, **_: seen.append(given) or nothing
    )
    assert output(["reproduce", "fig1"], capsys).endswith("saved in reproduction/small\n")
    assert seen[0][2].as_posix() == "reproduction/small"


def test_missing_data_is_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setenv("FAT2THIN_DATA", str(tmp_path))
    message = refused(["reproduce", "fig5", "--data", "d4rl", "--out", tmp_path / "new"])
    assert "halfcheetah_medium_expert-v2.hdf5" in message
    assert "FAT2THIN_DATA" in message and "\n" not in message.strip()
    assert not (tmp_path / "new").exists()


def test_a_dry_run_of_a_reproduction_writes_nothing(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "fig3", "--scale", "smoke", "--dry-run", "--out", str(tmp_path / "new")])
    assert end.value.code == 0
    assert re.match(r"\d+ runs? in \d+ packs?, 0 reused\npack 1: ", capsys.readouterr().out)
    assert not [*tmp_path.iterdir()]
