"""Jobs on several devices, simulated on a CPU: the same bits as on one.

The number of devices is fixed when JAX starts, so a new process runs this file as a script.
"""

import dataclasses
import os
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fat2thin.data import Reader, readers, register_reader
from fat2thin.engine import loop
from fat2thin.engine.devices import LIMIT
from fat2thin.evaluation.returns import register_evaluator
from fat2thin.training import execute_together, load, make_spec

LOGS = "tiny/breaking"
"""Logs of which the one of seed 3 makes training diverge."""
OPTIONS = {"steps": 4, "evaluate_every": 2, "log_every": 2, "episodes": 3, "batch_size": 16,
           "window": 0}  # fmt: skip


def breaking_logs(make_dataset):
    def read(name, seed):
        dataset = make_dataset(name, seed)
        huge = np.where(seed == 3, np.float32(1e30), dataset.observation)
        return dataclasses.replace(dataset, observation=huge)

    return Reader(LOGS, read, one_a_seed=True)


def train(*places, **options):
    """Train seeds 0 and 1, and seeds 0, 2 and 3, of which seed 3 diverges."""
    specs = [
        make_spec(
            "bc", LOGS, seeds=seeds, settings={"hidden": (8, 8), "learning_rate": rate},
            **OPTIONS | options,
        )
        for seeds, rate in (([0, 1], 1e-3), ([0, 2, 3], 2e-3))
    ]  # fmt: skip
    execute_together(specs, places)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="equal bits are promised only on a CPU")
def test_several_devices_give_the_same_bits(tmp_path, tiny_world, monkeypatch):
    # Imported here, because the new process cannot find it.
    from side_by_side import assert_same_bits

    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__, tmp_path],
        env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "they take turns, 3 at a time" in done.stderr

    monkeypatch.setitem(readers._READERS, LOGS, breaking_logs(tiny_world.dataset))
    train(tmp_path / "a one", tmp_path / "b one", snapshots=[2])
    for name, stopped in (("a", []), ("b", ["3"])):
        one, four, turns = (load(tmp_path / f"{name} {end}") for end in ("one", "four", "turns"))
        assert [*one.about.get("stopped", {})] == stopped
        assert "devices" not in one.about and four.about["devices"] == 3
        assert_same_bits(four.evaluations.policies, one.evaluations.policies)
        assert_same_bits(four.snapshots, one.snapshots)
        for other in (four, turns):
            assert [*other.about.get("stopped", {})] == stopped
            assert_same_bits(other.metrics, one.metrics)
            assert_same_bits(other.states, one.states)


def on_four_devices(folder):
    """Use three of them (0 and 1; 0 and 2; 3 and its copy), then one job each in two turns."""
    world = runpy.run_path(str(Path(__file__).parents[1] / "tiny_world.py"))
    register_reader(breaking_logs(world["make_dataset"]))
    register_evaluator("tiny/", lambda name: world["TinyTask"]())
    train(folder / "a four", folder / "b four", snapshots=[2])
    # Compiled once: the outputs of a chunk are placed as the next one expects them.
    assert loop.chunk._cache_size() == 1
    os.environ[LIMIT] = "1e-9"
    train(folder / "a turns", folder / "b turns", task="none")


if __name__ == "__main__":
    on_four_devices(Path(sys.argv[1]))
