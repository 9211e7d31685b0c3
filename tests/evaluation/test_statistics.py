import numpy as np
import pytest
import scipy.stats

from fat2thin.evaluation.statistics import interquartile_mean, mean, seed_interval


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10, 11])
def test_interquartile_mean_is_scipys_trimmed_mean(count):
    scores = np.random.default_rng(count).normal(size=(6, count)) ** 3
    expected = scipy.stats.trim_mean(scores, 0.25, axis=-1)
    np.testing.assert_allclose(interquartile_mean(scores), expected, rtol=1e-12)


def test_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([1000.0, 1.0, 2.0, -1000.0, 3.0, 4.0, 0.0, 5.0])) == 2.5


def test_two_seeds_have_a_known_interval():
    """Drawn anew, two seeds give both once (1/2) or one of them twice (1/4 each)."""
    interval = seed_interval(np.array([[1.0, 3.0], [5.0, 7.0]]))
    assert interval == (4.0, 2.0, 6.0)


def test_interval_of_many_seeds_is_the_normal_one():
    returns = np.random.default_rng(0).normal(3.0, 2.0, size=(500, 4))
    scores = returns.mean(axis=1)
    interval = seed_interval(returns)
    error = scores.std() / np.sqrt(500)
    expected = scores.mean() + error * scipy.stats.norm.ppf([0.025, 0.975])
    assert interval.value == pytest.approx(scores.mean())
    # A quantile of 10,000 draws is itself uncertain by .027 standard errors.
    np.testing.assert_allclose(interval[1:], expected, atol=0.15 * error)


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_is_scipys_percentile_bootstrap(statistic, confidence):
    returns = np.random.default_rng(1).exponential(size=(10, 7))
    interval = seed_interval(returns, statistic, confidence=confidence)
    scipys = scipy.stats.bootstrap(
        (returns.mean(axis=1),),
        lambda scores, axis: statistic(scores),
        confidence_level=confidence,
        n_resamples=100_000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    width = scipys.high - scipys.low
    np.testing.assert_allclose(interval[1:], [scipys.low, scipys.high], atol=0.03 * width)


def test_episodes_are_no_seeds():
    """Many episodes of few seeds: the interval is as wide as the seeds say, not the episodes."""
    scores = np.arange(5.0)
    few = seed_interval(scores[:, None])
    many = seed_interval(np.repeat(scores[:, None], 1000, axis=1))
    np.testing.assert_allclose(few, many, rtol=1e-12)


def test_the_draws_are_the_same_every_time():
    returns = np.random.default_rng(3).normal(size=(6, 5))
    assert seed_interval(returns) == seed_interval(returns)


def test_one_seed_has_no_interval():
    interval = seed_interval(np.array([[1.0, 2.0]]))
    assert interval.value == 1.5
    assert np.isnan(interval.low) and np.isnan(interval.high)
