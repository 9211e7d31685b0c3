"""Warnings during training: given once per seed, and not for healthy metrics."""

import numpy as np
import pytest

from fat2thin.training.run_warnings import Health


def test_a_spike_is_reported_once_per_seed():
    health, found = Health([4, 7], largest_return=100.0), []
    for step in range(30):
        critic = np.array([1.0, 3e2 if step in (20, 25) else 2.0])
        found += health.look(step, {"critic_loss": critic, "weight_mean": critic})
    (sentence,) = found
    assert sentence.startswith("seed 7: critic_loss rose to 300 at step 20; its usual value was 2.")
    assert "smaller learning rate" in sentence


@pytest.mark.parametrize("rows", [5, 9])
def test_a_spike_needs_enough_earlier_rows(rows):
    health = Health([0], largest_return=1.0)
    found = [health.look(step, {"actor_loss": np.array([1.0])}) for step in range(rows)]
    assert health.look(rows, {"actor_loss": np.array([1e6])}) == [] and not any(found)


def test_a_slowly_growing_loss_is_not_a_spike():
    health = Health([0], largest_return=1.0)
    for step, loss in enumerate(np.geomspace(1e-3, 1e3, 200)):
        sign = 1.0 if step % 2 else -1.0
        assert health.look(step, {"proposal_loss": np.array([sign * loss])}) == []


def test_a_q_above_every_possible_return_is_reported():
    health = Health([3, 4, 5], largest_return=50.0)
    assert health.look(1, {"q_mean": np.array([99.0, -99.0, 0.0])}) == []
    (sentence,) = health.look(2, {"q_mean": np.array([99.0, -101.0, np.nan])})
    assert sentence.startswith("seed 4: Q diverges. Its mean has absolute value 101 at step 2, ")
    assert "can exceed 50" in sentence
    assert health.look(3, {"q_mean": np.array([0.0, -1e9, np.nan])}) == []


def test_a_q_that_grows_without_rewards_is_reported():
    health = Health([0], largest_return=0.0)
    assert health.look(1, {"q_mean": np.array([0.9])}) == []
    (sentence,) = health.look(2, {"q_mean": np.array([1.1])})
    assert "can exceed 0" in sentence


def test_a_stopped_seed_gives_no_warning():
    health = Health([0], largest_return=1.0)
    for step in range(30):
        assert health.look(step, {"critic_loss": np.array([np.nan])}) == []
