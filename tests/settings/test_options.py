"""The options of a run are declared once, and a run does each thing once."""

import dataclasses
import inspect
import re

import jax
import numpy as np
import pytest

import fat2thin
from fat2thin.cli.main import main
from fat2thin.data import readers
from fat2thin.runs import result
from fat2thin.settings.options import RunOptions, SweepOptions, explain, option_names
from fat2thin.training import RunSpec, load, runner, train

OPTIONS = {
    "steps": 12, "seeds": [3, 5], "evaluate_every": 6, "log_every": 3, "batch_size": 16,
    "settings_from": "default",
}  # fmt: skip


@pytest.mark.parametrize("options", [RunOptions, SweepOptions])
def test_every_option_has_a_sentence(options):
    assert all(sentence.endswith(".") for _, _, sentence in explain(options))


@pytest.mark.parametrize(("command", "options"), [("train", RunOptions), ("sweep", SweepOptions)])
def test_commands_take_every_option_and_explain_it(command, options, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, _, sentence in explain(options):
        assert f"--{name.replace('_', '-')} " in shown.replace(",", " ")
        assert sentence in shown


def test_train_and_the_specification_have_every_option():
    parameters = inspect.signature(fat2thin.train).parameters
    fields = {field.name for field in dataclasses.fields(RunSpec)}
    for name, default, sentence in explain(RunOptions):
        assert parameters[name].default == default
        assert name in fields
        assert f"{name}: {sentence}" in " ".join(fat2thin.train.__doc__.split())
    assert [*parameters][-1] == "settings"
    assert {*option_names()} < {*parameters}


def test_help_explains_every_argument_in_the_order_of_the_signature():
    lines = inspect.getdoc(fat2thin.train).splitlines()
    explained = [match[1] for match in map(re.compile(r" {4}\*{0,2}(\w+): ").match, lines) if match]
    parameters = [*inspect.signature(fat2thin.train).parameters]
    assert explained == [*parameters, "ValueError", "TrainingDiverged"]
    choices = "One of 'auto', 'default', 'small', 'small-clear', 'large', 'own', 'fttpo'."
    assert choices in " ".join(" ".join(lines).split())


@pytest.fixture
def read(monkeypatch):
    """Record the names and seeds of logs that are read, and the data sets that are hashed."""
    seen, hashed = [], []
    original, hashing = readers.reader, fat2thin.data.Dataset.sha256.func

    def reader(name):
        found = original(name)

        def counted(name, seed):
            seen.append((name, seed))
            return found.read(name, seed)

        return found._replace(read=counted)

    def sha256(dataset):
        hashed.append(dataset.name)
        return hashing(dataset)

    monkeypatch.setattr(readers, "reader", reader)
    monkeypatch.setattr(fat2thin.data.Dataset.sha256, "func", sha256)
    return seen, hashed


SMALL = {"steps": 2, "evaluate_every": 2, "batch_size": 4, "hidden": (4,), "task": "none"}


def test_a_log_is_read_and_hashed_once_per_run(read, tmp_path):
    train("bc", "treatment/quadratic@50", seeds=[0, 2], out=tmp_path / "a", holdout=0.2, **SMALL)
    seen, hashed = read
    assert sorted(seen) == [("treatment/quadratic@50", seed) for seed in (0, 2)]
    assert len(hashed) == 2


def test_a_file_is_read_and_hashed_once_per_command(read, tmp_path, capsys):
    path = str(tmp_path / "log.npz")
    fat2thin.data.save_npz(fat2thin.data.load("treatment/quadratic@50"), path)
    seen, hashed = read
    seen.clear()
    main(["train", "bc", path, "--steps", "2", "--evaluate-every", "2", "--batch-size", "4",
          "--set", "hidden=4,", "--out", str(tmp_path / "run")])  # fmt: skip
    assert seen == [(path, 0)]
    assert len(hashed) == 1
    assert "settings for small noisy logs are used" in capsys.readouterr().out


def test_training_is_set_up_once_and_a_finished_run_is_not_read_back(monkeypatch, tmp_path):
    built = []

    class Counted(runner._Training):
        def __init__(self, *arguments):
            built.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(runner, "_Training", Counted)
    for name in ("state", "evaluations", "metrics_rows", "snapshot"):
        monkeypatch.setattr(result.RunFolder, name, _forbidden)
    train("stand_in", "tiny/own", out=tmp_path, snapshots=[0, 3], **OPTIONS)
    assert len(built) == 1


def _forbidden(*arguments):
    raise AssertionError("a finished run was read back")


@pytest.mark.parametrize("stopped", [False, True])
def test_the_returned_run_equals_the_one_loaded_from_its_folder(stopped, tmp_path):
    options = {**OPTIONS, "bad_identity": 5.0, "bad_update": 4.0} if stopped else OPTIONS
    run = train("stand_in", "tiny/own", out=tmp_path, snapshots=[0, 3], **options)
    kept = load(tmp_path)
    assert (run.spec, run.step, run.folder, run.about) == (
        kept.spec, kept.step, kept.folder, kept.about,
    )  # fmt: skip
    assert [*run.metrics] == [*kept.metrics]
    found = [(one.metrics, one.evaluations.policies, one.states, one.snapshots)
             for one in (run, kept)]  # fmt: skip
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype
    assert run.evaluations.steps == kept.evaluations.steps
