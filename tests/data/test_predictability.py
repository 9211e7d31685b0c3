"""Predictability of logs, compared with systems where it is known."""

import dataclasses

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data import Dataset
from fat2thin.data.predictability import NOISY, is_noisy, predictability

EPISODES, LENGTH = 200, 20


def linear_log(noise, episodes=EPISODES, seed=0):
    """A log of independent observations s, with next observations s' = B s + C a + noise."""
    rng = np.random.default_rng(seed)
    rows = episodes * LENGTH
    observation, action = rng.normal(size=(rows, 3)), rng.uniform(-2.0, 2.0, size=(rows, 2))
    turn, push = np.linalg.qr(rng.normal(size=(3, 3)))[0], rng.normal(size=(2, 3))
    explained = observation @ turn.T + action @ push
    return Dataset(
        name="linear",
        observation=observation,
        action=action,
        reward=np.zeros(rows),
        next_observation=explained + noise * explained.std(axis=0) * rng.normal(size=(rows, 3)),
        continuation=np.ones(rows),
        episode_start=np.arange(0, rows, LENGTH),
        action_low=(-2.0, -2.0),
        action_high=(2.0, 2.0),
        discount=0.9,
    )


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0, 2.0])
def test_the_predictability_of_a_linear_system_is_exact(noise):
    assert predictability(linear_log(noise)) == pytest.approx(1.0 / (1.0 + noise**2), abs=0.02)


def test_a_random_log_is_unpredictable_and_noisy():
    log = linear_log(1.0)
    chance = np.random.default_rng(1).normal(size=log.next_observation.shape)
    log = dataclasses.replace(log, next_observation=chance)
    assert predictability(log) < 0.01
    assert is_noisy(log)
    assert not is_noisy(linear_log(0.5))


def test_products_of_state_and_action_are_explained():
    log = linear_log(0.0)
    product = log.observation * log.action[:, :1]
    assert predictability(dataclasses.replace(log, next_observation=product)) > 0.99


def test_predictability_does_not_depend_on_units_or_the_box():
    log = linear_log(1.0)
    scaled = dataclasses.replace(
        log,
        observation=1e4 * log.observation + 7.0,
        next_observation=1e4 * log.next_observation + 7.0,
        action=100.0 * log.action,
        action_low=(-200.0, -200.0),
        action_high=(200.0, 200.0),
    )
    assert predictability(scaled) == pytest.approx(predictability(log), abs=1e-6)


def test_the_fit_is_evaluated_on_other_episodes():
    # With as many features as rows, the error on the fitted rows would be 0.
    log = linear_log(1e6, episodes=2)
    assert predictability(log) < 0.2


def test_constant_columns_do_not_count():
    log = linear_log(1.0)
    still = np.ones((log.rows, 1))
    wider = dataclasses.replace(
        log,
        observation=np.hstack([log.observation, still]),
        next_observation=np.hstack([log.next_observation, still]),
    )
    assert predictability(wider) == pytest.approx(predictability(log), abs=1e-3)
    nothing = dataclasses.replace(log, observation=still, next_observation=still)
    assert predictability(nothing) == 0.0


@pytest.mark.parametrize("rows", [1, 2, 3, 40])
def test_a_log_of_one_episode_is_split_in_halves(rows):
    log = linear_log(0.5, episodes=2)
    fields = {name: getattr(log, name)[:rows] for name in log.row_arrays}
    short = dataclasses.replace(log, episode_start=np.array([0]), **fields)
    assert 0.0 <= predictability(short) <= 1.0


def test_the_treatment_log_is_noisy():
    # Over half of an observation's variance is noise that is independent of the next one's.
    share = predictability(data.load("treatment/quadratic"))
    assert 0.2 < share < NOISY
