"""How much of the next observation a log explains, against systems where that is known."""

import dataclasses

import numpy as np
import pytest

from fat2thin import data
from fat2thin.data import Dataset
from fat2thin.data.predictability import NOISY, is_noisy, predictability

EPISODES, LENGTH = 200, 20


def linear_log(noise, episodes=EPISODES, seed=0):
    """Observations that are drawn anew at every step, and next ones s' = B s + C a + noise."""
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
def test_the_share_is_that_of_a_linear_system(noise):
    assert predictability(linear_log(noise)) == pytest.approx(1.0 / (1.0 + noise**2), abs=0.02)


def test_pure_chance_explains_nothing_and_is_noisy():
    log = linear_log(1.0)
    chance = np.random.default_rng(1).normal(size=log.next_observation.shape)
    log = dataclasses.replace(log, next_observation=chance)
    assert predictability(log) < 0.01
    assert is_noisy(log)
    assert not is_noisy(linear_log(0.5))


def test_products_of_state_and_action_are_seen():
    log = linear_log(0.0)
    product = log.observation * log.action[:, :1]
    assert predictability(dataclasses.replace(log, next_observation=product)) > 0.99


def test_units_and_the_box_do_not_matter():
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


def test_what_is_fitted_is_not_what_is_judged():
    # With as many features as rows a fit to itself would be perfect.
    log = linear_log(1e6, episodes=2)
    assert predictability(log) < 0.2


def test_columns_that_never_change_do_not_count():
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
def test_a_log_of_one_episode_is_judged_by_its_halves(rows):
    log = linear_log(0.5, episodes=2)
    fields = {name: getattr(log, name)[:rows] for name in log.row_arrays}
    short = dataclasses.replace(log, episode_start=np.array([0]), **fields)
    assert 0.0 <= predictability(short) <= 1.0


def test_the_treatment_task_is_noisy_by_its_own_equations():
    # Half of an observation's variance and more is noise that the next one has none of.
    share = predictability(data.load("treatment/quadratic"))
    assert 0.2 < share < NOISY
