"""The summary of a log's states in a run folder, and decisions of the loaded policy."""

import numpy as np
import pytest

import fat2thin
from fat2thin import data
from fat2thin.policies.decision import INVALID, OUTSIDE
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import LOG_SUMMARY, RunFolder


@pytest.fixture(scope="module")
def log():
    return data.load("treatment/quadratic@20", seed=3)


@pytest.fixture(scope="module")
def run(log, tmp_path_factory):
    options = {"steps": 2, "seeds": 2, "task": "none", "settings_from": "default", "hidden": (4,)}
    return fat2thin.train("fttpo", log, out=tmp_path_factory.mktemp("run"), **options)


def test_a_loaded_policy_decides_as_the_trained_one(run, log):
    loaded = fat2thin.load(run.folder).policy()
    found, expected = loaded.decide(log.observation), run.policy().decide(log.observation)
    np.testing.assert_array_equal(found.referred, expected.referred)
    np.testing.assert_array_equal(found.distance, expected.distance)
    far = loaded.decide(np.full(8, 50.0))
    assert OUTSIDE in far.reasons() and np.isnan(far.action).all()
    assert loaded.decide(np.full(8, np.nan)).reasons() == (INVALID,)
    one = fat2thin.load(run.folder).policy(seed=1)
    assert not one.decide(log.observation).because["seeds disagree"].any()


def test_the_summary_holds_no_single_row(run, log):
    coverage = fat2thin.load(run.folder).coverage
    assert coverage.rows.min() >= 20
    seen = coverage.place(log.observation)
    gaps = np.abs(seen[:, None] - coverage.centroids[None]).max(axis=-1)
    assert gaps.min() > 1e-3


def test_a_damaged_summary_is_refused_by_decisions_only(run, log):
    file = run.folder / LOG_SUMMARY
    kept = file.read_bytes()
    try:
        file.write_bytes(kept[:100])
        with pytest.raises(DamagedError, match=r"log_summary\.safetensors is damaged"):
            RunFolder(run.folder).log_summary(run.program.problem)
        policy = fat2thin.load(run.folder).policy()
        assert policy.act(log.observation[0]).shape == (1,)
        with pytest.raises(ValueError, match="is damaged"):
            policy.decide(log.observation[0])
        file.unlink()
        with pytest.raises(ValueError, match="no summary of its log"):
            fat2thin.load(run.folder).policy().decide(log.observation[0])
    finally:
        file.write_bytes(kept)


def test_seeds_with_different_logs_have_no_summary():
    options = {"steps": 1, "seeds": 2, "task": "none", "settings_from": "default", "hidden": (4,)}
    run = fat2thin.train("bc", "treatment/quadratic@3", **options)
    with pytest.raises(ValueError, match=r"no summary of one.*data make treatment/quadratic@3"):
        run.policy(seed=1).decide(np.zeros(8))
