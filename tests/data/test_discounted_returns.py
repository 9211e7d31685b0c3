"""Discounted returns against a double loop, and reward scaling."""

import numpy as np
import pytest

from fat2thin.data import Dataset
from fat2thin.data.operations import discounted_returns, episode_returns
from fat2thin.data.scaling import deviation_reward_scaling


def log(*episodes, discount=0.9, dtype=np.float32):
    lengths = [len(episode) for episode in episodes]
    rows = sum(lengths)
    number = np.arange(rows, dtype=np.float32)[:, None]
    ends = np.cumsum(lengths) - 1
    return Dataset(
        name="x",
        observation=number,
        action=np.zeros((rows, 1), np.float32),
        reward=np.concatenate(episodes).astype(dtype),
        next_observation=number + 1,
        # Both true ends and cuts: observed returns do not distinguish them.
        continuation=np.where(np.isin(np.arange(rows), ends[::2]), 0.0, 1.0),
        episode_start=np.cumsum([0, *lengths[:-1]]),
        action_low=(-1.0,),
        action_high=(1.0,),
        discount=discount,
    )


def by_double_loop(dataset):
    ends, reward = [*dataset.episode_start[1:].tolist(), dataset.rows], dataset.reward.tolist()
    returns = []
    for start, end in zip(dataset.episode_start.tolist(), ends, strict=True):
        for row in range(start, end):
            steps = range(row, end)
            returns.append(sum(dataset.discount ** (t - row) * reward[t] for t in steps))
    return np.asarray(returns, np.float64)


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("lengths", [(7,), (1, 1, 1), (1, 5, 2, 1, 9), (4, 1), (1, 4)])
def test_discounted_returns_agree_with_a_double_loop(lengths, discount):
    rng = np.random.default_rng(0)
    dataset = log(*(rng.normal(size=length) for length in lengths), discount=discount)
    found = discounted_returns(dataset)
    assert found.shape == (dataset.rows,) and found.dtype == np.float64
    np.testing.assert_allclose(found, by_double_loop(dataset), rtol=1e-12, atol=1e-12)
    # The first row of an episode has the return of the whole episode.
    np.testing.assert_allclose(
        found[dataset.episode_start], episode_returns(dataset, discount), rtol=1e-12, atol=1e-12
    )


def test_discounted_returns_by_hand():
    dataset = log([1, 2, 4], [8], [-1, 1], discount=0.5)
    assert discounted_returns(dataset).tolist() == [3.0, 4.0, 4.0, 8.0, -0.5, 1.0]


def test_integer_rewards_are_summed_as_floats():
    dataset = log([1, 2], [3], discount=0.5, dtype=np.int32)
    assert discounted_returns(dataset).tolist() == [2.0, 2.0, 3.0]
    assert dataset.reward.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_scaled_rewards_have_a_deviation_of_one(dtype):
    rewards = np.random.default_rng(1).normal(20.0, 50.0, size=200)
    dataset = log(rewards[:50], rewards[50:], dtype=dtype)
    scaling = deviation_reward_scaling(dataset)
    assert scaling.shift == 0.0
    np.testing.assert_allclose(scaling.factor, 1.0 / np.std(np.float64(dataset.reward)))
    scaled = scaling.apply(dataset)
    np.testing.assert_allclose(np.std(scaled.reward), 1.0, rtol=1e-4)
    np.testing.assert_allclose(scaled.reward, dataset.reward * scaling.factor, rtol=1e-6)


def test_a_deviation_much_smaller_than_the_mean():
    rewards = 1e6 + np.random.default_rng(2).choice([-1.0, 1.0], size=1000)
    scaling = deviation_reward_scaling(log(rewards, dtype=np.float32))
    np.testing.assert_allclose(scaling.factor, 1.0, rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 3, 13, 1000])
@pytest.mark.parametrize("reward", [0.0, 0.1, -7.3])
def test_equal_rewards_have_no_scale(rows, reward, dtype):
    dataset = log([reward] * rows, dtype=dtype)
    with pytest.raises(ValueError, match=rf"'x': every reward is {reward:g}.*set reward_scale"):
        deviation_reward_scaling(dataset)
