"""Training from a window of a log: exact resumption, independent seeds, files, the default."""

import json

import jax
import numpy as np
import pytest
from scipy import stats

from fat2thin.data import load as load_log
from fat2thin.data import save_mapped
from fat2thin.engine import devices
from fat2thin.envs import treatment
from fat2thin.policies.policy import Sampled
from fat2thin.runs.verification import verify
from fat2thin.training import execute, make_spec, train
from fat2thin.training.progress import Silent
from side_by_side import assert_same_bits

OPTIONS = {"steps": 24, "seeds": [3, 5], "evaluate_every": 12, "log_every": 3, "batch_size": 4,
           "task": "none"}  # fmt: skip
RESULTS = ("metrics.jsonl", "state.safetensors")


class InterruptAt(Silent):
    """Simulates the end of the process at a step."""

    def __init__(self, step):
        self.step = step

    def advance(self, step):
        if step == self.step:
            raise KeyboardInterrupt


def spec_of(log="tiny/shared", **changes):
    return make_spec("stand_in", str(log), **{**OPTIONS, **changes})


@pytest.fixture
def folder(tmp_path):
    """The shared log of 40 rows as a folder that is read in parts."""
    save_mapped(load_log("tiny/shared"), tmp_path / "log.npy")
    return tmp_path / "log.npy"


def test_a_window_that_holds_the_whole_log_changes_nothing(tiny_world):
    whole, windowed = (execute(spec_of(window=rows)) for rows in (0, 1000))
    assert_same_bits(windowed.states, whole.states)
    smaller = execute(spec_of(window=20))
    assert not np.array_equal(smaller.metrics["loss"], whole.metrics["loss"])
    with pytest.raises(ValueError, match="window=15 is less than 4 batches of 4 rows"):
        spec_of(window=15)


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_a_file_and_an_array_give_the_same_bits(holdout, tiny_world, folder):
    for window in (0, 18):
        one, other = (
            execute(spec_of(log, window=window, holdout=holdout)) for log in ("tiny/shared", folder)
        )
        assert_same_bits(one.states, other.states)


@pytest.mark.parametrize("step", [3, 12, 21])
def test_a_run_from_a_window_resumes_to_the_same_bits(step, tiny_world, folder, tmp_path):
    spec = spec_of(folder, window=18)
    execute(spec, tmp_path / "whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path / "cut", InterruptAt(step), checkpoint_seconds=0.0)
    execute(spec, tmp_path / "cut", Silent(), checkpoint_seconds=0.0)
    for name in RESULTS:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    found = verify(tmp_path / "cut", replayed=24)
    assert found.passed


def test_a_seed_does_not_depend_on_the_others(tiny_world, folder):
    both, alone = (execute(spec_of(folder, window=18, seeds=seeds)) for seeds in ([3, 5], [5]))
    np.testing.assert_array_equal(both.metrics["loss"][:, 1:], alone.metrics["loss"])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["cubic@500", "quadratic@500", "cubic@1000"])
def test_a_window_of_a_tenth_gives_returns_within_the_interval_of_the_whole_log(name):
    """Student's interval at 99 % over six seeds."""
    log, task = load_log(f"treatment/{name}", 0), treatment.by_name(f"treatment/{name}")
    returns = []
    for window in (0, log.rows // 10):
        run = train(
            "fttpo", log, seeds=6, steps=1500, batch_size=128, evaluate_every=1500, task="none",
            window=window,
        )  # fmt: skip
        policies = [Sampled(run.policy(seed)) for seed in run.spec.seeds]
        found = [treatment.rollout(jax.random.key(1), one, task, 300) for one in policies]
        returns.append([float(one.returns.mean()) for one in found])
    whole, windowed = np.asarray(returns)
    allowed = stats.t.ppf(0.995, whole.size - 1) * whole.std(ddof=1) / np.sqrt(whole.size)
    assert abs(windowed.mean() - whole.mean()) < allowed


def test_a_log_above_the_share_of_the_device_gets_a_window(
    tiny_world, folder, monkeypatch, tmp_path
):
    assert execute(spec_of(folder)).spec.window is None
    monkeypatch.setenv(devices.LIMIT, str(2 * 900 / 2**30))
    run = execute(spec_of(folder), tmp_path / "run", Silent())
    assert 16 <= run.spec.window < 40
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["spec"]["window"] == run.spec.window
    assert_same_bits(run.states, execute(spec_of(folder, window=run.spec.window)).states)
    # The same command loads it again, or resumes it, on another device as well.
    with pytest.raises(KeyboardInterrupt):
        execute(spec_of(folder), tmp_path / "cut", InterruptAt(12), checkpoint_seconds=0.0)
    monkeypatch.delenv(devices.LIMIT)
    assert execute(spec_of(folder), tmp_path / "run", Silent()).spec == run.spec
    assert_same_bits(execute(spec_of(folder), tmp_path / "cut", Silent()).states, run.states)
    assert execute(spec_of(folder, window=0)).spec.window == 0
