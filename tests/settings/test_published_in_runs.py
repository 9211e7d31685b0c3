"""How published settings enter runs, on the tiny world."""

import json

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data.scaling import Scales
from fat2thin.settings import published
from fat2thin.training import OtherRunError, RunSpec, load, make_spec, train, verify

RECORDS = """
    [[settings]]
    algorithm = "stand_in"
    origin = "own"
    datasets = ["tiny/own"]
    batch_size = 8
    standardise = true
    reward_scale = "return_range"
    values = { learning_rate = 0.25, noise = 0.5, widths = [4, 4] }
    source = "The paper of the stand-in."

    [[settings]]
    algorithm = "stand_in"
    origin = "fttpo"
    datasets = ["tiny/*"]
    values = { learning_rate = 0.75 }
    source = "Another paper."
"""


@pytest.fixture(autouse=True)
def known(monkeypatch):
    records = published.parse(RECORDS)
    monkeypatch.setattr(published, "records", lambda: records)


def spec_of(**options):
    return make_spec("stand_in", "tiny/own", **{"steps": 4, **options})


def test_given_settings_override_published_ones():
    spec = spec_of(settings_from="own", settings={"noise": 0.125})
    assert (spec.config.learning_rate, spec.config.noise) == (0.25, 0.125)
    assert spec.config.widths == (4, 4)
    assert spec_of(settings_from="fttpo").config.learning_rate == 0.75
    assert spec_of().config.learning_rate == 0.1


def test_the_batch_size_is_the_given_one_the_published_one_or_256():
    assert spec_of(settings_from="own").batch_size == 8
    assert spec_of(settings_from="own", batch_size=16).batch_size == 16
    assert spec_of(settings_from="fttpo").batch_size == 256
    assert spec_of().batch_size == spec_of(batch_size=None).batch_size == 256
    with pytest.raises(ValueError, match="batch_size must be"):
        spec_of(settings_from="own", batch_size=0)


def test_the_scales_are_the_given_ones_the_published_ones_or_none():
    def scales(**options):
        spec = spec_of(**options)
        return spec.standardise, spec.reward_scale

    assert scales(settings_from="own") == (True, "return_range")
    assert scales(settings_from="own", standardise=None) == (True, "return_range")
    assert scales(settings_from="own", standardise=False) == (False, "return_range")
    assert scales(settings_from="own", reward_scale=1) == (True, 1.0)
    assert scales(settings_from="own", reward_scale="deviation") == (True, "deviation")
    assert scales(settings_from="fttpo") == scales() == (False, 1.0)


def test_a_run_learns_from_a_log_scaled_as_published():
    """The metrics of the stand-in are the mean reward and the loss of an update."""
    options = {"steps": 4, "evaluate_every": 4, "settings_from": "own"}
    run = train("stand_in", "tiny/own", **options)
    plain = train("stand_in", "tiny/own", **options, standardise=False, reward_scale=1)
    log = data.load("tiny/own", 0)
    returns = np.add.reduceat(log.reward, log.episode_start)
    factor = 1000.0 / (returns.max() - returns.min())
    np.testing.assert_allclose(run.metrics["reward"], factor * plain.metrics["reward"], rtol=1e-4)
    (scales,) = (Scales.from_json(values) for values in run.about["scales"])
    np.testing.assert_allclose(scales.observation.mean, log.observation.mean(axis=0), rtol=1e-4)
    assert plain.about["scales"] == [Scales().to_json()]
    assert not np.allclose(run.metrics["loss"], plain.metrics["loss"])


def test_a_folder_older_than_published_scales_is_loaded_and_resumed(tmp_path):
    options = {"steps": 4, "evaluate_every": 4, "out": tmp_path, "settings_from": "own"}
    older = {"standardise": False, "reward_scale": 1}
    run = train("stand_in", "tiny/own", **options, **older)
    assert load(tmp_path).spec == run.spec and not run.spec.standardise
    assert verify(tmp_path, replayed=4).passed
    values = run.spec.to_json()
    for name in older:
        del values[name]
    assert RunSpec.from_json(values) == run.spec
    with pytest.raises(OtherRunError, match=r"reward_scale: 1\.0 there, 'return_range' here"):
        train("stand_in", "tiny/own", **options)
    assert train("stand_in", "tiny/own", **options, **older).about == run.about


def test_a_run_records_where_its_settings_are_from(tmp_path):
    options = {"steps": 4, "evaluate_every": 4, "out": tmp_path, "settings_from": "own"}
    run = train("stand_in", "tiny/own", **options)
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["spec"]["settings_from"] == run.spec.settings_from == "own"
    assert about["spec"]["config"]["learning_rate"] == 0.25
    assert load(tmp_path).spec == run.spec
    with pytest.raises(OtherRunError, match="settings_from: 'own' there, 'default' here"):
        train(
            "stand_in", "tiny/own", **{**options, "settings_from": "default"},
            learning_rate=0.25, noise=0.5, widths=(4, 4), batch_size=8, standardise=True,
            reward_scale="return_range",
        )  # fmt: skip


def test_a_folder_keeps_its_settings_when_the_file_changes(monkeypatch):
    before = spec_of(settings_from="own")
    later = published.parse(RECORDS.replace("0.25", "0.5"))
    monkeypatch.setattr(published, "records", lambda: later)
    assert RunSpec.from_json(before.to_json()) == before
    monkeypatch.setattr(published, "records", lambda: ())
    assert RunSpec.from_json(before.to_json()) == before


def test_a_folder_older_than_published_settings_is_loaded(tmp_path):
    options = {"steps": 4, "evaluate_every": 4, "out": tmp_path, "settings_from": "default"}
    run = train("stand_in", "tiny/own", **options)
    about = json.loads((tmp_path / "run.json").read_text())
    del about["spec"]["settings_from"]
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert load(tmp_path).spec == run.spec
    assert train("stand_in", "tiny/own", **options).about == about


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("tiny/shared", {"settings_from": "own"}, "from 'own'; there are: 'own' on tiny/own; 'ftt"),
        (
            "tiny/own",
            {"settings_from": "paper"},
            "must be one of 'default', 'small', 'small-clear', 'large', 'own', 'fttpo', got",
        ),
        ("tiny/own", {"settings_from": "own", "noise": "x"}, "noise must be one number"),
    ],
)
def test_invalid_options_are_refused_before_data_are_read(dataset, options, message, monkeypatch):
    def read(*arguments):
        raise AssertionError("data were read")

    monkeypatch.setattr("fat2thin.data.load", read)
    with pytest.raises(ValueError, match=message):
        train("stand_in", dataset, steps=1, **options)


def test_a_config_together_with_published_settings_is_refused(tiny_world):
    with pytest.raises(ValueError, match="a config or settings_from='own', not both"):
        spec_of(settings_from="own", config=tiny_world.config())
