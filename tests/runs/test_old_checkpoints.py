"""Runs resume from checkpoints of earlier formats; one folder per format is next to this file.

WRITE_CHECKPOINT=1 pytest tests/runs/test_old_checkpoints.py -n 0 writes the folder of the current
format: once, when the format is new. Older folders never change.
"""

import os
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.runs import checkpoints
from fat2thin.training import execute, load, make_spec, verify
from fat2thin.training.progress import Silent

KEPT = Path(__file__).with_name("checkpoints")
OPTIONS = {
    "steps": 9, "seeds": [3, 5], "evaluate_every": 3, "log_every": 3, "batch_size": 16,
    "snapshots": [3], "episodes": 4, "settings": {"hidden": (3,)},
}  # fmt: skip


def spec():
    return make_spec("bc", "tiny/shared", **OPTIONS)


class Interrupt(Silent):
    def advance(self, step):
        if step == 9:
            raise KeyboardInterrupt


@pytest.mark.skipif(not os.environ.get("WRITE_CHECKPOINT"), reason="writes a file of the tests")
def test_write_a_folder_of_the_current_format():
    folder = KEPT / f"format_{checkpoints.FORMAT}"
    with pytest.raises(KeyboardInterrupt):
        execute(spec(), folder, Interrupt(), checkpoint_seconds=0.0)
    (folder / ".lock").unlink()


@pytest.mark.parametrize("number", range(1, checkpoints.FORMAT + 1))
def test_a_run_resumes_from_every_earlier_format(tmp_path, number, caplog):
    folder = tmp_path / "run"
    shutil.copytree(KEPT / f"format_{number}", folder)
    assert verify(folder, 0).passed, str(verify(folder, 0))
    run = execute(spec(), folder, Silent())
    assert run.about["resumed"] == ["step 6"], caplog.text
    assert verify(folder, 0).passed, str(verify(folder, 0))
    assert load(folder).spec == spec()
    whole = execute(spec(), None, Silent())
    # An older run keeps the metrics that it began with.
    assert {*whole.metrics} - {*run.metrics} == {"effective_share"}
    for name in run.metrics:
        np.testing.assert_allclose(run.metrics[name], whole.metrics[name], rtol=1e-4)
    observation = jnp.array([0.3, -1.0, 2.0])
    for step in (3, 9):
        np.testing.assert_allclose(
            run.policy(5, step).act(observation), whole.policy(5, step).act(observation), rtol=1e-4
        )
