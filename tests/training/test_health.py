"""Worries: told when they are new, to whom they belong, and not when all is well."""

import numpy as np
import pytest

from fat2thin.training.run_warnings import Health


def test_a_spike_is_told_once_a_seed():
    health, found = Health([4, 7], largest_return=100.0), []
    for step in range(30):
        critic = np.array([1.0, 3e2 if step in (20, 25) else 2.0])
        found += health.look(step, {"critic_loss": critic, "weight_mean": critic})
    (sentence,) = found
    assert sentence.startswith("seed 7: critic_loss rose to 300 at step 20, usually it was 2.")
    assert "smaller learning rate" in sentence


@pytest.mark.parametrize("rows", [5, 9])
def test_what_is_usual_must_be_known_first(rows):
    health = Health([0], largest_return=1.0)
    found = [health.look(step, {"actor_loss": np.array([1.0])}) for step in range(rows)]
    assert health.look(rows, {"actor_loss": np.array([1e6])}) == [] and not any(found)


def test_a_loss_may_grow_slowly_and_change_its_sign():
    health = Health([0], largest_return=1.0)
    for step, loss in enumerate(np.geomspace(1e-3, 1e3, 200)):
        sign = 1.0 if step % 2 else -1.0
        assert health.look(step, {"proposal_loss": np.array([sign * loss])}) == []


def test_a_q_beyond_every_return_is_told():
    health = Health([3, 4, 5], largest_return=50.0)
    assert health.look(1, {"q_mean": np.array([99.0, -99.0, 0.0])}) == []
    (sentence,) = health.look(2, {"q_mean": np.array([99.0, -101.0, np.nan])})
    assert sentence.startswith("seed 4: Q diverges. Its mean is 101 in size at step 2, and no")
    assert "can exceed 50" in sentence
    assert health.look(3, {"q_mean": np.array([0.0, -1e9, np.nan])}) == []


def test_a_q_that_grows_without_any_reward_is_a_warning():
    health = Health([0], largest_return=0.0)
    assert health.look(1, {"q_mean": np.array([0.9])}) == []
    (sentence,) = health.look(2, {"q_mean": np.array([1.1])})
    assert "can exceed 0" in sentence


def test_a_stopped_seed_worries_nobody():
    health = Health([0], largest_return=1.0)
    for step in range(30):
        assert health.look(step, {"critic_loss": np.array([np.nan])}) == []
