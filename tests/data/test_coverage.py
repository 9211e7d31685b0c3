"""The summary of a log's states, its calibration, and the exact nearest logged cases."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data.coverage import (
    FEWEST_EPISODES,
    FEWEST_ROWS,
    coverage_from_arrays,
    summarise_states,
)
from fat2thin.data.nearest_cases import LoggedCases

LOG = data.load("treatment/quadratic")
COVERAGE = summarise_states(LOG)


def normal_log(seed, episodes=40, length=25, scale=(1.0, 50.0, 1e-4)):
    """A log of independent normal observations with a level per episode."""
    draw = np.random.default_rng(seed)
    level = np.repeat(draw.normal(size=(episodes, 3)), length, axis=0)
    seen = (level + draw.normal(size=level.shape)) * np.asarray(scale)
    action = draw.uniform(-1, 1, (len(seen), 1))
    return data.Dataset.from_arrays(
        seen, action, np.zeros(len(seen)), episode=np.repeat(np.arange(episodes), length),
        next_observation=seen, action_low=-1, action_high=1, name="normal",
    )  # fmt: skip


def test_no_centroid_stands_for_few_rows_or_one_episode():
    assert COVERAGE.rows.sum() == LOG.rows
    assert COVERAGE.rows.min() >= FEWEST_ROWS
    placed = COVERAGE.place(LOG.observation.astype(np.float64))
    nearest = np.linalg.norm(placed[:, None] - COVERAGE.centroids[None], axis=2)
    assert nearest.min() > 1e-3  # no centroid is a row
    episode = np.repeat(np.arange(LOG.episode_start.size), 24)
    of_centroid = [np.unique(episode[nearest.argmin(axis=1) == one]).size for one in range(5)]
    assert min(of_centroid) >= FEWEST_EPISODES


def test_new_episodes_of_the_same_distribution_are_covered():
    # Over 30 logs: the mean share must be at least .95 − 3 standard errors (false alarm .001).
    shares = [
        np.mean(
            summarise_states(normal_log(seed)).distance(normal_log(1000 + seed).observation) <= 1
        )
        for seed in range(30)
    ]
    error = np.std(shares, ddof=1) / 30**0.5
    assert np.mean(shares) > 0.95 - 3.0 * error
    assert np.mean(shares) < 0.99  # and the threshold is not simply far away


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.99])
def test_nominal_shares_hold_on_fresh_patients(share):
    fresh = data.load("treatment/quadratic@400", seed=7)
    covered = np.mean(COVERAGE.at(share).distance(fresh.observation) <= 1)
    assert share - 0.03 < covered < share + 0.05


def test_distance_does_not_depend_on_units_and_knows_correlations():
    one, other = (
        summarise_states(normal_log(0, scale=scale)) for scale in ((1, 1, 1), (9, 1e-5, 1e4))
    )
    seen = normal_log(1, scale=(1, 1, 1)).observation
    np.testing.assert_allclose(
        one.distance(seen), other.distance(seen * np.array([9, 1e-5, 1e4])), rtol=1e-3
    )
    draw = np.random.default_rng(0).normal(size=(2000, 1))
    pair = np.concatenate(
        [draw, draw + 0.1 * np.random.default_rng(1).normal(size=(2000, 1))], axis=1
    )
    log = data.Dataset.from_arrays(
        pair, np.zeros(2000), np.zeros(2000), episode=np.arange(2000) // 20, next_observation=pair,
        action_low=-1, action_high=1,
    )  # fmt: skip
    found = summarise_states(log).distance(np.array([[1.5, 1.5], [1.5, -1.5]]))
    assert found[0] < 1 < found[1]


def test_constant_columns_transforms_and_extreme_states():
    seen = np.stack([np.exp(np.random.default_rng(0).normal(size=800)), np.full(800, 7.0)], axis=1)
    log = data.Dataset.from_arrays(
        seen, np.zeros(800), np.zeros(800), episode=np.arange(800) // 20, next_observation=seen,
        action_low=-1, action_high=1,
        observation_names=[Column("dose", transform=Transform("log", 0.0)), Column("ward")],
    )  # fmt: skip
    coverage = summarise_states(log)
    states = np.array([[1.0, 7.0], [1.0, 8.0], [1e30, 7.0], [-1.0, 7.0], [np.nan, 7.0]])
    assert (coverage.distance(states) > 1).tolist() == [False, True, True, True, True]
    with jax.numpy_rank_promotion("raise"):
        compiled = jax.jit(lambda rows: coverage.distance(rows, jnp))(jnp.asarray(states))
    assert (np.asarray(compiled) > 1).tolist() == [False, True, True, True, True]


def test_numpy_and_jax_agree_on_distances_and_practice():
    rows = LOG.observation[:60].reshape(3, 20, 8)
    np.testing.assert_allclose(
        COVERAGE.distance(rows), COVERAGE.distance(jnp.asarray(rows), jnp), rtol=1e-3
    )
    practice = COVERAGE.practice(jnp.asarray(rows), jnp)
    np.testing.assert_array_equal(COVERAGE.practice(rows), practice)
    assert practice.shape == (3, 20, 1)
    mean = np.average(COVERAGE.action[:, 0], weights=COVERAGE.rows)
    assert mean == pytest.approx(LOG.action.mean(), abs=1e-6)


def test_the_summary_is_plain_arrays():
    kept = json.loads(json.dumps({name: one.tolist() for name, one in COVERAGE.arrays().items()}))
    arrays = {name: np.asarray(kept[name], one.dtype) for name, one in COVERAGE.arrays().items()}
    again = coverage_from_arrays(arrays, COVERAGE.episodes, COVERAGE.transforms)
    np.testing.assert_array_equal(
        again.distance(LOG.observation), COVERAGE.distance(LOG.observation)
    )
    for name, wrong in (
        ("radius", np.zeros_like(arrays["radius"])),
        ("mean", arrays["mean"][:-1]),
        ("centroids", np.full_like(arrays["centroids"], np.nan)),
        ("levels", arrays["levels"][::-1]),
    ):
        with pytest.raises(ValueError):
            coverage_from_arrays({**arrays, name: wrong}, COVERAGE.episodes)


def test_the_mixture_of_one_centroid_is_a_gaussian_with_its_conditional_means():
    """Against SciPy, and the formula for the conditional mean of a Gaussian."""
    log = normal_log(3, scale=(1.0, 50.0, 1.0))
    seen = log.observation.astype(np.float64) @ np.array([[1, 0.2, 0], [0, 1, 0.01], [0.5, 0, 1]])
    coverage = summarise_states(dataclasses.replace(log, observation=seen, next_observation=seen))
    one = dataclasses.replace(
        coverage, centroids=np.zeros((1, 3)), radius=np.array([3.0**0.5]), rows=np.array([1000]),
        action=np.zeros((1, 1)),
    )  # fmt: skip
    covariance = np.cov(seen.T, bias=True)
    points = np.array([[0.3, 20.0], [-2.0, 90.0]])
    mixture, mean = one.mixture([0, 1]), seen.mean(axis=0)
    part = covariance[:2, :2]
    exact = stats.multivariate_normal(mean[:2], part).logpdf(points)
    np.testing.assert_allclose(mixture.log_density(points), exact, rtol=1e-4)
    found = mixture.typical(points)
    rest = mean[2] + (points - mean[:2]) @ np.linalg.solve(part, covariance[:2, 2])
    np.testing.assert_allclose(found, np.column_stack([points, rest]), rtol=1e-4, atol=1e-4)


def test_a_mixture_integrates_to_one_and_blends_conditional_means():
    columns = (Column("dose", transform=Transform("log", 1.0)), Column("age"))
    draw = np.random.default_rng(0)
    group = np.repeat(draw.integers(2, size=60), 20)
    seen = np.exp(
        np.stack([2.0 * group, np.zeros(1200)], axis=1) + 0.1 * draw.normal(size=(1200, 2))
    )
    seen[:, 1] = 30.0 * group + draw.normal(size=1200)
    log = data.Dataset.from_arrays(
        seen, np.zeros(1200), np.zeros(1200), episode=np.arange(1200) // 20, next_observation=seen,
        action_low=-1, action_high=1, observation_names=columns,
    )  # fmt: skip
    mixture = summarise_states(log).mixture([0])
    scale = np.linspace(-1.0, 5.0, 4001)
    density = np.exp(mixture.log_density(np.expm1(scale)[:, None]))
    assert integrate.simpson(density, x=scale) == pytest.approx(1.0, abs=1e-3)
    found = mixture.typical(np.array([[1.0], [np.exp(2.0)]]))
    np.testing.assert_allclose(found[:, 1], [0.0, 30.0], atol=1.5)


def test_a_log_of_few_rows_is_refused_and_one_episode_works():
    with pytest.raises(ValueError, match="needs at least 40"):
        summarise_states(data.load("treatment/quadratic@1"))
    one = normal_log(0, episodes=1, length=400)
    assert 0.8 < np.mean(summarise_states(one).distance(one.observation) <= 1) <= 1


def test_nearest_cases_are_those_of_brute_force():
    log = data.load("treatment/quadratic@200")
    coverage = summarise_states(log)
    states = np.concatenate([data.load("treatment/quadratic", seed=3).observation[:40],
                             log.observation[:5], np.full((1, 8), 1e3)])  # fmt: skip
    found = LoggedCases(log, coverage).nearest(states, count=7)
    placed = coverage.place(log.observation.astype(np.float64))
    squares = [
        np.square(placed - one).sum(axis=1) for one in coverage.place(states.astype(np.float64))
    ]
    np.testing.assert_array_equal(found.row, [np.argsort(one, stable=True)[:7] for one in squares])
    np.testing.assert_allclose(found.distance, [np.sort(one)[:7] ** 0.5 for one in squares])
    np.testing.assert_array_equal(found.action, log.action[found.row])
    assert found.row[40:45, 0].tolist() == [0, 1, 2, 3, 4]


def test_nearest_cases_among_equal_rows_come_in_the_order_of_the_log():
    seen = np.repeat(np.arange(4.0), 300)[:, None]
    action = np.linspace(-1, 1, 1200)
    log = data.Dataset.from_arrays(
        seen, action, np.ones(1200), episode=np.arange(1200) // 10, next_observation=seen,
        action_low=-1, action_high=1, discount=0.5,
    )  # fmt: skip
    found = LoggedCases(log, summarise_states(log)).nearest(np.array([[2.0]]), count=5)
    assert found.row.tolist() == [[600, 601, 602, 603, 604]]
    assert found.later_return[0, 0] == pytest.approx(2.0 - 0.5**9)
    low, high = np.array([[-1.0]]), np.array([[float(log.action[602, 0])]])
    assert found.share_inside(low, high) == pytest.approx(0.6)


@pytest.mark.parametrize(("episodes", "share"), [(1, 5 / 6), (4, 0.8), (9, 0.9), (40, 0.95)])
def test_a_summary_states_no_larger_share_than_its_episodes_can_calibrate(episodes, share):
    """A new episode is one of n + 1: the largest of n distances covers n / (n + 1) of them.

    A single episode is cut into five parts.
    Regression: the largest of the shares with the same threshold was stated, 99.9 %.
    """
    found = summarise_states(normal_log(0, episodes, 80))
    assert found.share == pytest.approx(share)
    assert found.at(0.5).share == pytest.approx(0.5)
