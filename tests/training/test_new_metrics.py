"""Runs that a version without some metric began."""

import numpy as np
import pytest

import fat2thin
from fat2thin.algorithms import steps
from fat2thin.engine import loop
from fat2thin.training import execute, make_spec, verify
from fat2thin.training.progress import Silent

SPEC = {
    "steps": 40, "task": "none", "log_every": 10, "batch_size": 8,
    "settings": {"hidden": (4,)},
}  # fmt: skip


class Interrupt(Silent):
    def advance(self, step):
        if step >= 20:
            raise KeyboardInterrupt


def test_a_run_keeps_the_metrics_that_it_began_with(tmp_path, monkeypatch):
    """It can be interrupted and resumed again, loaded and verified."""
    spec, now = make_spec("iql", "treatment/quadratic@5", **SPEC), steps.watch_weight

    def before(weight):
        return {name: value for name, value in now(weight).items() if name != "effective_share"}

    monkeypatch.setattr(steps, "watch_weight", before)
    loop.chunk.clear_cache()
    with pytest.raises(KeyboardInterrupt):
        execute(spec, tmp_path, Interrupt(), checkpoint_seconds=0.0)
    monkeypatch.setattr(steps, "watch_weight", now)
    loop.chunk.clear_cache()
    run = execute(spec, tmp_path, Silent(), checkpoint_seconds=0.0)
    assert "resumed" in run.about and "effective_share" not in run.metrics
    loaded = fat2thin.load(tmp_path)
    np.testing.assert_array_equal(loaded.metrics["q_mean"], run.metrics["q_mean"])
    report = verify(tmp_path, 40)
    assert report.passed, str(report)
