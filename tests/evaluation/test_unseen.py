"""Which held-out episodes count as seen: copies of whole episodes, and not equal single rows."""

import numpy as np

import fat2thin
from fat2thin import data
from fat2thin.data.operations import episode_lengths, learned_and_held_out
from fat2thin.evaluation.unseen import shared_episodes, unseen_episodes

OPTIONS = {"steps": 2, "hidden": (4,), "holdout": 0.3, "task": "none"}


def discrete_log(copies=0, noise=0.0, episodes=60, length=5):
    """Episodes of whole numbers, of which many rows are equal by chance; the first are copied."""
    draw = np.random.default_rng(3)
    parts = [draw.integers(0, high, (episodes, length)) for high in (9, 7, 5)]
    parts[2] = parts[2] + draw.normal(0.0, noise, parts[2].shape)
    seen, action, reward = (np.concatenate([part, part[:copies]]).ravel() for part in parts)
    number = np.repeat(np.arange(episodes + copies), length)
    cut = np.append(np.diff(number) > 0, True)
    return data.Dataset.from_arrays(
        seen.astype(float), action.astype(float), reward.astype(float), episode=number, cut=cut,
        next_observation=seen.astype(float), action_low=0.0, action_high=6.0, discount=0.9,
    )  # fmt: skip


def test_held_out_episodes_are_not_left_out_for_rows_that_are_equal_by_chance():
    """Regression: half of the held-out episodes of a log of whole numbers counted as learned."""
    log = discrete_log()
    run = fat2thin.train("bc", log, **OPTIONS)
    learned, held_out = learned_and_held_out(log, 0.3, 0)
    assert shared_episodes(held_out, learned).sum() >= 3  # so the rows alone would say
    found = unseen_episodes([run], None)
    assert found.seen_episodes == 0 and found.unseen
    assert found.dataset.episode_start.size == held_out.episode_start.size
    # For a log from elsewhere, equal rows are all there is to go by.
    other = data.Dataset.from_arrays(
        held_out.observation, held_out.action, held_out.reward + 0.0, episode=np.repeat(
            np.arange(held_out.episode_start.size), episode_lengths(held_out)
        ), next_observation=held_out.next_observation, action_low=0.0, action_high=6.0,
        discount=0.5,
    )  # fmt: skip
    assert unseen_episodes([run], other).seen_episodes >= 3


def test_a_copy_of_a_learned_episode_is_left_out():
    log = discrete_log(copies=30, noise=0.1)
    run = fat2thin.train("bc", log, **OPTIONS)
    learned, held_out = learned_and_held_out(log, 0.3, 0)
    starts = set(learned.reward[learned.episode_start].tolist())
    copied = [one in starts for one in held_out.reward[held_out.episode_start].tolist()]
    assert 0 < sum(copied) < len(copied)
    found = unseen_episodes([run], None)
    assert found.seen_episodes == sum(copied)
    assert not starts & {*found.dataset.reward[found.dataset.episode_start].tolist()}
