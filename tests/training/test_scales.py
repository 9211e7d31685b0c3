"""Scales of a log are part of the run: its policies take raw observations."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fat2thin
from fat2thin.data import Reader, readers
from fat2thin.data.scaling import Scales, find_scales

OPTIONS = {
    "steps": 6, "evaluate_every": 6, "episodes": 2, "batch_size": 8, "seeds": 2,
    "settings_from": "default",
}  # fmt: skip


@pytest.fixture
def worlds(tiny_world, monkeypatch):
    """Register "tiny/far", with other means and scales, and "tiny/near", the same standardised."""
    near = tiny_world.dataset()
    mean, scale = near.observation.mean(axis=0), near.observation.std(axis=0)
    observation, following = ((x - mean) / scale for x in (near.observation, near.next_observation))
    near = dataclasses.replace(near, observation=observation, next_observation=following)
    shift, stretch = np.float32([100.0, 0.0, -5.0]), np.float32([1000.0, 1.0, 0.01])
    far = dataclasses.replace(
        near,
        observation=observation * stretch + shift,
        next_observation=following * stretch + shift,
    )
    for name, dataset in (("tiny/far", far), ("tiny/near", near)):
        reader = Reader(name, lambda name, seed, dataset=dataset: dataset)
        monkeypatch.setitem(readers._READERS, name, reader)
    return near, far


def test_standardising_equals_training_on_standardised_data(worlds):
    near, far = worlds
    run = fat2thin.train("stand_in", "tiny/far", standardise=True, **OPTIONS)
    plain = fat2thin.train("stand_in", "tiny/near", **OPTIONS)
    for one, other in zip(jax.tree.leaves(run.states), jax.tree.leaves(plain.states), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for seed in (0, 1):
        for mine, yours in (
            (run.policy(seed), plain.policy(seed)),
            (run.proposal(seed), plain.proposal(seed)),
        ):
            raw, standard = (
                mine.act(jnp.asarray(far.observation)),
                yours.act(jnp.asarray(near.observation)),
            )
            np.testing.assert_allclose(raw, standard, rtol=1e-3, atol=1e-3)
            assert not np.allclose(yours.act(jnp.asarray(far.observation)), standard, atol=1e-2)


def test_scales_are_saved_and_loaded(worlds, tmp_path):
    _, far = worlds
    run = fat2thin.train(
        "stand_in", "tiny/far", standardise=True, reward_scale="return_range", snapshots=[0, 6],
        out=tmp_path, **OPTIONS,
    )  # fmt: skip
    (kept,) = json.loads((tmp_path / "run.json").read_text())["scales"]
    np.testing.assert_allclose(
        kept["observation"]["mean"], far.observation.mean(axis=0), rtol=1e-4, atol=1e-6
    )
    returns = np.add.reduceat(far.reward, far.episode_start)
    factor = 1000.0 / (returns.max() - returns.min())
    np.testing.assert_allclose(kept["reward"]["factor"], factor, rtol=1e-5)
    loaded = fat2thin.load(tmp_path)
    for step in (0, 6):
        mine, yours = (one.policy(seed=1, step=step) for one in (run, loaded))
        raw = jnp.asarray(far.observation)
        np.testing.assert_array_equal(mine.act(raw), yours.act(raw))


def test_every_log_has_its_own_scales():
    run = fat2thin.train("stand_in", "tiny/own", standardise=True, **OPTIONS)
    first, second = (Scales.from_json(values) for values in run.about["scales"])
    assert first != second
    logs = [fat2thin.data.load("tiny/own", seed) for seed in (0, 1)]
    for log, scales in zip(logs, (first, second), strict=True):
        scaled = scales.apply(log)
        np.testing.assert_allclose(scaled.observation.mean(axis=0), 0.0, atol=1e-6)
        np.testing.assert_allclose(scaled.observation.std(axis=0), 1.0, rtol=1e-5)


def test_rewards_are_multiplied():
    plain, scaled = (
        fat2thin.train("stand_in", "tiny/shared", reward_scale=factor, **OPTIONS)
        for factor in (1.0, 7.0)
    )
    np.testing.assert_allclose(scaled.metrics["reward"], 7.0 * plain.metrics["reward"], rtol=1e-5)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "much", True])
def test_an_invalid_reward_scale_is_refused(value, without_type_checks):
    with pytest.raises(ValueError, match="reward_scale must be"):
        fat2thin.train("stand_in", "tiny/shared", reward_scale=value, **OPTIONS)


def test_scales_survive_json(tiny_world):
    for scales in (Scales(), find_scales(tiny_world.dataset(), True, 3.0)):
        assert Scales.from_json(json.loads(json.dumps(scales.to_json()))) == scales
