"""Recorded logs, compared with episodes by hand, a plain Gymnasium loop and the policy."""

import dataclasses

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jaxtyping import Array

from fat2thin.envs.record import from_policy, record, uniform
from fat2thin.envs.rollouts import describe
from fat2thin.policies.families import Head, Squashed
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_key

COUNTDOWN = "rollout_tasks:Countdown-v0"
ROWS = 33
FIELDS = ("observation", "action", "reward", "next_observation", "continuation")


def keys(seed):
    """Return the keys of resets and of actions; they fix the log of a seed."""
    return jax.random.split(stream_key(seed, Stream.LOG))


def reset_seed(seed, episode):
    key = jax.random.fold_in(keys(seed)[0], episode)
    return int(jax.random.randint(key, (), 0, 2**31 - 1))


def episode_and_step(observation, episode, step):
    return np.stack([episode / 100, step / 10], axis=1)


@pytest.fixture(scope="module")
def countdown():
    return describe(COUNTDOWN)


def by_hand(rows, seed):
    """Return the steps of episodes 0, 1, 2, …, each counting down from seed % 5 + 2."""
    steps, starts, episode = [], [], 0
    while len(steps) < rows:
        starts.append(len(steps))
        number = reset_seed(seed, episode)
        length = number % 5 + 2
        for step in range(length):
            left = length - step
            ends = left == 1 and number % 2 == 0
            action = (episode / 100, step / 10)
            steps.append(((left, number), action, action[0], (left - 1, number), 1.0 - ends))
        episode += 1
    columns = zip(*steps[:rows], strict=True)
    return dict(zip(FIELDS, (np.float32(column) for column in columns), strict=True)), starts


@pytest.mark.parametrize("abreast", [1, 3, 50])
def test_the_first_episodes_are_recorded(countdown, abreast):
    progress = []
    dataset = record(
        countdown, episode_and_step, ROWS, 7, workers=0, abreast=abreast, progress=progress.append
    )
    expected, starts = by_hand(ROWS, 7)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(dataset, field), expected[field])
        assert getattr(dataset, field).dtype == np.float32
    np.testing.assert_array_equal(dataset.episode_start, starts)
    assert {0.0, 1.0} == set(dataset.continuation[np.append(dataset.episode_start[1:], ROWS) - 1])
    assert (dataset.name, dataset.discount) == (COUNTDOWN, 0.99)
    assert (dataset.action_low, dataset.action_high) == ((-2.0, -2.0), (4.0, 4.0))
    assert progress == sorted(progress) and progress[-1] == ROWS


def test_no_more_steps_are_played_than_needed(countdown):
    """The episodes include true ends and cuts."""
    played = []

    def act(observation, episode, step):
        played.append((int(episode[0]), int(step[0])))
        return episode_and_step(observation, episode, step)

    record(countdown, act, ROWS, 7, workers=0, abreast=1)
    assert len(played) == ROWS and played[-1][0] > 5


def test_a_shorter_log_is_the_start_of_a_longer_one(countdown):
    expected, starts = by_hand(ROWS, 7)
    for rows in (1, 2, 9, 20):
        dataset = record(countdown, episode_and_step, rows, 7, workers=0, abreast=4)
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(dataset, field), expected[field][:rows])
        np.testing.assert_array_equal(
            dataset.episode_start, [start for start in starts if start < rows]
        )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_rows_do_not_depend_on_the_workers(countdown, workers):
    act = uniform(countdown, 3)
    expected = record(countdown, act, 200, 3, workers=0, abreast=1)
    assert record(countdown, act, 200, 3, workers=workers, abreast=5).sha256 == expected.sha256


def test_a_plain_gymnasium_loop_agrees():
    """Replay of the recorded actions in Pendulum: 200 steps, and 50 of the cut episode."""
    dataset = record("Pendulum-v1", uniform(describe("Pendulum-v1"), 5), 250, 5, workers=0)
    np.testing.assert_array_equal(dataset.episode_start, [0, 200])
    assert (dataset.continuation == 1).all()
    environment = gymnasium.make("Pendulum-v1")
    for row in range(250):
        if row in (0, 200):
            observation, _ = environment.reset(seed=reset_seed(5, row // 200))
        np.testing.assert_array_equal(dataset.observation[row], observation)
        observation, reward, _, cut, _ = environment.step(dataset.action[row])
        np.testing.assert_array_equal(dataset.next_observation[row], observation)
        np.testing.assert_allclose(dataset.reward[row], reward, rtol=1e-6)
        assert cut == (row == 199)


def test_uniform_actions_are_uniform(countdown):
    dataset = record(countdown, uniform(countdown, 1), 2000, 1, workers=0)
    again = record(countdown, uniform(countdown, 1), 2000, 1, workers=0)
    assert dataset.sha256 == again.sha256
    other = record(countdown, uniform(countdown, 2), 2000, 1, workers=0)
    np.testing.assert_array_equal(dataset.observation, other.observation)
    assert (other.action != dataset.action).all()
    law = scipy.stats.uniform(-2.0, 6.0)
    for column in dataset.action.T:
        assert scipy.stats.kstest(column, law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(dataset.action.T)[0, 1]) < 0.1


class Linear(eqx.Module):
    weight: Array

    def __call__(self, observation):
        centre = observation @ self.weight
        return Head(centre, jnp.full_like(centre, -1.0))


@pytest.fixture(scope="module")
def policy():
    # The second observation is the seed, which can be in the billions.
    weight = jnp.asarray([[0.2, -0.1], [1e-10, 2e-10]])
    return Policy(Linear(weight), jnp.full(2, -2.0), jnp.full(2, 4.0), Squashed())


@pytest.mark.parametrize("way", ["sampled", "centre"])
def test_recorded_actions_are_those_of_the_policy(countdown, policy, way):
    dataset = record(countdown, from_policy(policy, 9, way), 20, 9, workers=0, abreast=4)
    episode = np.searchsorted(dataset.episode_start, np.arange(20), side="right") - 1
    step = np.arange(20) - dataset.episode_start[episode]
    for row in range(20):
        key = jax.random.fold_in(jax.random.fold_in(keys(9)[1], episode[row]), step[row])
        observation = jnp.asarray(dataset.observation[row])
        alone = policy.act(observation, key if way == "sampled" else None)
        np.testing.assert_allclose(dataset.action[row], alone, rtol=1e-5, atol=1e-6)
    assert np.unique(dataset.action[:, 0]).size == 20


def test_actions_are_clipped_to_the_box_before_they_are_played(countdown):
    # The float32 number nearest to 0.1 is above 0.1.
    narrow = dataclasses.replace(countdown, action_high=(0.1, 4.0))
    dataset = record(narrow, lambda observation, *_: np.full((3, 2), 9.0), 6, workers=0, abreast=3)
    below = np.nextafter(np.float32(0.1), np.float32(0))
    np.testing.assert_array_equal(dataset.action, np.float32([[below, 4.0]] * 6))
    np.testing.assert_array_equal(dataset.reward, below)


def test_an_episode_without_an_end_is_cut():
    task = describe(COUNTDOWN, never_ends=True)
    dataset = record(task, episode_and_step, 9, workers=0, abreast=4, name="long", discount=0.5)
    np.testing.assert_array_equal(np.diff(dataset.observation[:, 0]), -1)
    np.testing.assert_array_equal(dataset.episode_start, [0])
    assert (dataset.continuation == 1).all()
    assert (dataset.name, dataset.discount) == ("long", 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be at least 1, not 0"),
        ({"abreast": 0}, "abreast must be at least 1, not 0"),
        ({"seed": -1}, r"the seed must lie in \[0, 2147483647\], not -1"),
        ({"seed": 2**31}, "the seed must lie in"),
        ({"discount": 1.5}, r"the discount must lie in \[0, 1\], not 1.5"),
        ({"task": "Nowhere-v0"}, "Gymnasium cannot make 'Nowhere-v0'"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_played(countdown, options, message):
    def act(observation, episode, step):
        pytest.fail("act was called")

    with pytest.raises(ValueError, match=message):
        record(**{"task": countdown, "act": act, "rows": 5, "workers": 0, **options})


def test_invalid_ways_and_actions_are_refused(countdown, policy):
    with pytest.raises(ValueError, match="way must be one of sampled, centre, got 'boldly'"):
        from_policy(policy, 0, "boldly")
    with pytest.raises(ValueError, match=r"actions must have shape \(2, 2\), not \(2, 1\)"):
        record(countdown, lambda *_: np.zeros((2, 1)), 5, workers=0, abreast=2)
