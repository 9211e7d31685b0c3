"""The preparation of an algorithm: its own number of updates, rows and random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import algorithms
from fat2thin.algorithms.base import Preparation
from fat2thin.random_streams import Stream, stream_key
from fat2thin.training import TrainingDiverged, load, progress, train

OPTIONS = {
    "steps": 4, "seeds": [3, 5], "evaluate_every": 4, "log_every": 2, "batch_size": 16,
    "settings_from": "default",
}  # fmt: skip
STEPS = 5


def add_up(state, batch, key, problem, config):
    """Add the mean reward of every batch to the weight, so that each batch has an effect."""
    total = jnp.mean(batch.reward) + jax.random.uniform(key)
    broken = jnp.where(config.bad_update > 0.0, jnp.nan, 0.0)
    return state._replace(weight=state.weight + total), {"total": total + broken}


@pytest.fixture
def prepared(monkeypatch, tiny_world):
    made = tiny_world.algorithm._replace(
        name="prepared",
        preparation=Preparation(update=add_up, steps=lambda config: STEPS * config.rounds),
    )
    monkeypatch.setitem(algorithms._REGISTRY, "prepared", made)
    return tiny_world


def expected_start(world, seed):
    """Return the initial weight plus what a loop over the preparation adds to it."""
    rewards = np.asarray(world.dataset("tiny/own", seed).reward)
    weight = jax.random.uniform(stream_key(seed, Stream.INITIAL_STATE), (3, 2))
    for number in range(STEPS):
        rows = jax.random.randint(
            stream_key(seed, Stream.PREPARATION_BATCH, number), (16,), 0, len(rewards)
        )
        noise = jax.random.uniform(stream_key(seed, Stream.PREPARATION, number))
        weight = weight + rewards[np.asarray(rows)].mean() + noise
    return weight


def test_the_preparation_runs_before_the_first_evaluation(prepared, tmp_path):
    run = train("prepared", "tiny/own", out=tmp_path, snapshots=[0], **OPTIONS)
    for seed in (3, 5):
        found = run.policy(seed, step=0).network.weight
        np.testing.assert_allclose(found, expected_start(prepared, seed), rtol=1e-5)
    assert run.about["preparation"]["steps"] == STEPS
    assert set(run.about["preparation"]["last"]) == {"total"}
    # Updates are counted from the first one after the preparation.
    assert run.metrics["step"].tolist() == [2, 4]
    assert "total" not in run.metrics


def test_the_preparation_is_announced(prepared, capsys):
    train("prepared", "tiny/own", progress=progress.Lines(), **OPTIONS)
    printed = capsys.readouterr().out
    assert "preparation: 5 steps, 2 seeds" in printed
    assert "\n4 steps, 2 seeds" in printed


def test_a_preparation_that_diverges_raises_an_error(prepared, tmp_path):
    with pytest.raises(TrainingDiverged, match="total is not finite at step 1"):
        train("prepared", "tiny/own", out=tmp_path, bad_update=1.0, **OPTIONS)


def test_a_run_that_diverged_in_its_preparation_is_loaded(prepared, tmp_path):
    """The second chunk of the preparation diverges, before the first step of the run."""

    def breaks_late(state, batch, key, problem, config):
        state, metrics = add_up(state, batch, key, problem, config)
        late = state.updates >= 3
        state = state._replace(updates=state.updates + 1)
        return state, {"total": jnp.where(late, jnp.nan, metrics["total"])}

    made = algorithms.get("prepared")
    broken = made._replace(preparation=made.preparation._replace(update=breaks_late))
    algorithms._REGISTRY["prepared"] = broken
    with pytest.raises(TrainingDiverged):
        train("prepared", "tiny/own", out=tmp_path, snapshots=[0, 2], **OPTIONS)
    run = load(tmp_path)
    assert run.step == 0 and not run.snapshots and run.about["status"] == "diverged"
