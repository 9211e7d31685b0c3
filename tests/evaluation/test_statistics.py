"""Statistics of scores against SciPy, closed forms and values worked out by hand."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from fat2thin.evaluation.statistics import (
    area_under_curve,
    clustered_share,
    difference,
    final_score,
    interquartile_mean,
    mean,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    ratio,
    seed_interval,
    stratified_interval,
)


def scipys_interval(samples, statistic, confidence=0.95, paired=False):
    """Return SciPy's percentile bootstrap interval; several samples are resampled independently."""
    return scipy.stats.bootstrap(
        samples,
        statistic,
        confidence_level=confidence,
        n_resamples=50_000,
        paired=paired,
        vectorized=True,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval


def assert_ends(interval, expected):
    # With 10,000 draws, an end has a standard error of about .007 of the width.
    width = expected[1] - expected[0]
    np.testing.assert_allclose(interval[1:], expected, atol=0.03 * width)


def gamma_scores(seed, count):
    return np.random.default_rng(seed).gamma(2.0, size=count)


def normal_scores(seed, count):
    return np.random.default_rng(seed).normal(size=count)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 10, 11])
def test_interquartile_mean_equals_scipys_trimmed_mean(count):
    scores = np.random.default_rng(count).normal(size=(6, count)) ** 3
    expected = scipy.stats.trim_mean(scores, 0.25, axis=-1)
    np.testing.assert_allclose(interquartile_mean(scores), expected, rtol=1e-12)


def test_interquartile_mean_by_hand():
    assert interquartile_mean(np.array([1000.0, 1.0, 2.0, -1000.0, 3.0, 4.0, 0.0, 5.0])) == 2.5


def test_two_seeds_have_a_known_interval():
    """A resample of two seeds has both once (probability 1/2) or one of them twice (1/4 each)."""
    interval = seed_interval(np.array([[1.0, 3.0], [5.0, 7.0]]))
    assert interval == (4.0, 2.0, 6.0)


def test_interval_of_many_seeds_is_close_to_the_normal_interval():
    returns = np.random.default_rng(0).normal(3.0, 2.0, size=(500, 4))
    scores = returns.mean(axis=1)
    interval = seed_interval(returns)
    error = scores.std() / np.sqrt(500)
    expected = scores.mean() + error * scipy.stats.norm.ppf([0.025, 0.975])
    assert interval.value == pytest.approx(scores.mean())
    # With 10,000 draws, a quantile itself has an error of .027 standard errors.
    np.testing.assert_allclose(interval[1:], expected, atol=0.15 * error)


@pytest.mark.parametrize("statistic", [mean, interquartile_mean])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_equals_scipys_percentile_bootstrap(statistic, confidence):
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


def test_more_episodes_per_seed_do_not_narrow_the_interval():
    """More episodes per seed do not make the interval narrower: only seeds are resampled."""
    scores = np.arange(5.0)
    few = seed_interval(scores[:, None])
    many = seed_interval(np.repeat(scores[:, None], 1000, axis=1))
    np.testing.assert_allclose(few, many, rtol=1e-12)


def test_every_call_uses_the_same_draws():
    returns = np.random.default_rng(3).normal(size=(6, 5))
    assert seed_interval(returns) == seed_interval(returns)


def test_one_seed_has_a_value_and_no_interval():
    interval = seed_interval(np.array([[1.0, 2.0]]))
    assert interval.value == 1.5
    assert np.isnan(interval.low) and np.isnan(interval.high)


def test_a_stopped_seed_is_left_out_of_the_interval():
    returns = np.array([[1.0, 3.0], [np.nan, np.nan], [5.0, 7.0]])
    assert seed_interval(returns) == seed_interval(returns[[0, 2]])


@pytest.mark.parametrize(("statistic", "trimmed"), [(mean, 0.0), (interquartile_mean, 0.25)])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_stratified_interval_equals_scipys_of_several_samples(statistic, trimmed, confidence):
    tasks = {"hopper": gamma_scores(0, 10), "ant": 5.0 + gamma_scores(1, 7)}
    interval = stratified_interval(tasks, statistic, confidence=confidence)
    expected = scipys_interval(
        tuple(tasks.values()),
        lambda *samples, axis: scipy.stats.trim_mean(np.concatenate(samples, -1), trimmed, axis=-1),
        confidence,
    )
    pooled = np.concatenate(list(tasks.values()))
    assert interval.value == pytest.approx(scipy.stats.trim_mean(pooled, trimmed), rel=1e-12)
    assert_ends(interval, expected)


def test_stratified_interval_of_one_task_equals_the_seed_interval():
    scores = normal_scores(0, 8)
    expected = seed_interval(scores[:, None], interquartile_mean)
    assert stratified_interval({"hopper": scores}) == expected


def test_seeds_are_resampled_within_their_task():
    """All seeds of a task agree, so the interval has no width even if tasks are far apart."""
    tasks = {"hopper": np.full(5, 1.0), "ant": np.full(5, 100.0)}
    assert stratified_interval(tasks, mean) == (50.5, 50.5, 50.5)


def test_every_run_has_the_same_weight():
    tasks = {"hopper": np.zeros(3), "ant": np.ones(9)}
    assert stratified_interval(tasks, mean).value == 0.75


def test_the_order_of_tasks_does_not_matter():
    tasks = {"hopper": normal_scores(0, 6), "ant": normal_scores(1, 5)}
    backwards = dict(reversed(tasks.items()))
    assert stratified_interval(tasks) == stratified_interval(backwards)


@pytest.mark.parametrize(
    ("statistic", "tasks", "seeds"), [(mean, 1, 5), (mean, 3, 10), (interquartile_mean, 3, 10)]
)
def test_coverage_of_the_stratified_interval(statistic, tasks, seeds):
    """Normal scores in tasks far apart, whose true pooled mean is 0 by symmetry.

    For the mean, the bootstrap distribution is nearly normal with the population's standard
    deviation, so the coverage follows from Student's t: .846 and .926, not .95. For the
    interquartile mean of three tasks, 3,000 trials found .914. The standard error of 600 trials is
    .015 and .011, and 400 draws, the same in each trial, displace the ends by as much again.
    """
    trials = 600
    places = 9.0 * (np.arange(tasks) - (tasks - 1) / 2)[:, None]
    held = 0
    for scores in places + np.random.default_rng(4).normal(size=(trials, tasks, seeds)):
        interval = stratified_interval(
            {f"task {index}": of_task for index, of_task in enumerate(scores)},
            statistic,
            resamples=400,
        )
        held += interval.low <= 0.0 <= interval.high
    reach = scipy.stats.norm.ppf(0.975) * np.sqrt((seeds - 1) / seeds)
    student = 1.0 - 2.0 * scipy.stats.t.sf(reach, tasks * (seeds - 1))
    assert held / trials == pytest.approx(student, abs=0.035)


def test_probability_of_improvement_equals_the_mann_whitney_statistic():
    first = {"hopper": np.array([1.0, 2.0, 2.0, 5.0]), "ant": gamma_scores(0, 6)}
    second = {"hopper": np.array([2.0, 0.0, 5.0]), "ant": gamma_scores(1, 9)}
    expected = [
        scipy.stats.mannwhitneyu(first[task], second[task]).statistic
        / (len(first[task]) * len(second[task]))
        for task in first
    ]
    found = probability_of_improvement(first, second, resamples=10).value
    assert found == pytest.approx(np.mean(expected), rel=1e-12)


def test_interval_of_an_improvement_equals_scipys():
    first = {"hopper": gamma_scores(0, 8), "ant": gamma_scores(1, 10)}
    second = {"hopper": gamma_scores(2, 9), "ant": 0.5 * gamma_scores(3, 7)}
    assert len(np.intersect1d(first["ant"], second["ant"])) == 0

    def improvement(one, other, another, last, axis):
        won = [
            np.mean(x[..., None] > y[..., None, :], axis=(-2, -1))
            for x, y in ((one, other), (another, last))
        ]
        return np.mean(won, axis=0)

    samples = (first["hopper"], second["hopper"], first["ant"], second["ant"])
    expected = scipys_interval(samples, improvement)
    assert_ends(probability_of_improvement(first, second), expected)


def test_improvement_over_the_same_scores_is_one_half_and_is_antisymmetric():
    scores = {"hopper": np.array([1.0, 2.0, 2.0, 7.0])}
    better = {"hopper": np.array([8.0, 9.0])}
    assert probability_of_improvement(scores, scores).value == 0.5
    assert probability_of_improvement(better, scores) == (1.0, 1.0, 1.0)
    assert probability_of_improvement(scores, better) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_performance_profile_has_the_binomial_band(confidence):
    """If k of n runs are above a threshold, Binomial(n, k/n) of a resample are, per task."""
    tasks = {"hopper": normal_scores(0, 9), "ant": 0.5 + normal_scores(1, 12)}
    thresholds = np.array([-5.0, -0.7, 0.1, tasks["ant"][3], 5.0])
    profile = performance_profile(tasks, thresholds, confidence=confidence, resamples=40_000)
    for index, threshold in enumerate(thresholds):
        counts = [sum(score > threshold for score in scores) for scores in tasks.values()]
        laws = [
            scipy.stats.binom.pmf(np.arange(len(scores) + 1), len(scores), count / len(scores))
            for scores, count in zip(tasks.values(), counts, strict=True)
        ]
        chances = np.cumsum(np.convolve(*laws))
        tail = (1.0 - confidence) / 2.0
        low, high = np.searchsorted(chances, [tail, 1.0 - tail])
        found = [of_all[index] * 21 for of_all in profile]
        np.testing.assert_allclose(found, [sum(counts), low, high], atol=1e-9)


def test_final_score_is_the_mean_of_the_last_evaluations():
    returns = np.random.default_rng(5).normal(size=(6, 3, 4))
    returns[4:, 1] = np.nan
    by_hand = [
        sum(returns[step, seed, episode] for step in (3, 4, 5) for episode in range(4)) / 12
        for seed in range(3)
    ]
    np.testing.assert_allclose(final_score(returns, window=3), by_hand, rtol=1e-12)
    np.testing.assert_allclose(final_score(returns)[[0, 2]], returns[5, [0, 2]].mean(axis=-1))
    assert np.isnan(final_score(returns)[1])


def test_area_of_a_parabola():
    """The trapezoidal rule for x² on n equal steps of [0, 1] gives 1/3 + 1/(6n²)."""
    steps = np.arange(0, 110, 10)
    returns = np.broadcast_to(((steps / 100) ** 2)[:, None, None], (11, 2, 3))
    np.testing.assert_allclose(area_under_curve(steps, returns), 1 / 3 + 1 / 600, rtol=1e-12)


def test_area_over_uneven_steps_is_the_integral_of_the_interpolated_curve():
    steps = np.array([5, 10, 30, 100])
    returns = np.random.default_rng(6).normal(size=(4, 3, 5))
    expected = [
        scipy.integrate.quad(
            lambda step, curve: np.interp(step, steps, curve),
            5,
            100,
            args=(curve,),
            points=[10, 30],
        )[0]
        / 95
        for curve in returns.mean(axis=-1).T
    ]
    np.testing.assert_allclose(area_under_curve(steps, returns), expected, rtol=1e-9)


def test_area_of_one_evaluation_and_of_a_stopped_seed():
    np.testing.assert_array_equal(area_under_curve([0], [[[1.0, 3.0], [5.0, 5.0]]]), [2.0, 5.0])
    returns = np.ones((3, 2, 1))
    returns[2, 0] = np.nan
    np.testing.assert_array_equal(area_under_curve([0, 1, 2], returns), [np.nan, 1.0])


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_differences_and_ratios_equal_scipys(confidence):
    first, second = gamma_scores(0, 9), 2.0 + gamma_scores(1, 6)
    found = difference(first, second, confidence=confidence)
    expected = scipys_interval((first, second), lambda x, y, axis: mean(x) - mean(y), confidence)
    assert found.value == pytest.approx(first.mean() - second.mean(), rel=1e-12)
    assert_ends(found, expected)

    found = ratio(first, second, confidence=confidence)
    expected = scipys_interval((first, second), lambda x, y, axis: mean(x) / mean(y), confidence)
    assert found.value == pytest.approx(first.mean() / second.mean(), rel=1e-12)
    assert_ends(found, expected)


def test_paired_difference_equals_scipys():
    """For seeds that share a log, pairing makes the interval much narrower."""
    logs = 10.0 * normal_scores(0, 9)
    first, second = logs + gamma_scores(1, 9), logs + gamma_scores(2, 9)
    found = paired_difference(first, second)
    expected = scipys_interval((first, second), lambda x, y, axis: mean(x - y), paired=True)
    assert found.value == pytest.approx(np.mean(first - second), rel=1e-12)
    assert_ends(found, expected)
    unpaired = difference(first, second)
    assert unpaired.high - unpaired.low > 5.0 * (found.high - found.low)


def test_a_seed_that_stopped_in_one_run_is_left_out_of_both():
    first = np.array([1.0, np.nan, 3.0, 4.0, 9.0])
    second = np.array([0.0, 5.0, np.nan, 1.0, 3.0])
    assert paired_difference(first, second) == paired_difference([1.0, 4.0, 9.0], [0.0, 1.0, 3.0])
    assert difference(first, second) == difference([1.0, 3.0, 4.0, 9.0], [0.0, 5.0, 1.0, 3.0])


def test_ratio_of_negative_scores_equals_that_of_positive_ones():
    first, second = gamma_scores(0, 9), 1.0 + gamma_scores(1, 6)
    assert ratio(-first, -second) == ratio(first, second)


def test_draws_with_a_negative_divisor_stay_in_the_upper_tail():
    """A resample of −1, 2, 2, 2, 2 has mean .2 with three times −1, and is below 0 with more.

    The probabilities are .0512 and .0067: together more than a tail of .055, so the upper end is
    1 / .2; without the draws below 0 it would be 1 / .8.
    """
    found = ratio(np.ones(3), [-1.0, 2.0, 2.0, 2.0, 2.0], confidence=0.89, resamples=100_000)
    np.testing.assert_allclose(found, [1 / 1.4, 1 / 2.0, 1 / 0.2], rtol=1e-9)


def test_ratio_is_nan_if_the_divisor_may_be_zero():
    assert np.isnan(ratio([1.0, 2.0], [-1.0, 2.0])).all()
    assert np.isnan(ratio([1.0], [-1.0, 2.0])).all()
    assert np.isnan(ratio([1.0], [0.0])).all()
    assert np.isnan(ratio([1.0, 2.0], [1.0, -1.0])).all()


def comparisons(scores, others):
    """Return the results of every function that takes (seeds,) scores, as intervals."""
    profile = performance_profile({"hopper": scores, "ant": np.arange(3.0)}, [0.0])
    return [
        stratified_interval({"hopper": scores, "ant": np.arange(3.0)}),
        probability_of_improvement({"hopper": scores}, {"hopper": others}),
        probability_of_improvement({"hopper": others}, {"hopper": scores}),
        tuple(float(each[0]) for each in profile),
        difference(scores, others),
        difference(others, scores),
        paired_difference(scores, others),
        ratio(scores, others),
        ratio(others, scores),
    ]


def test_every_comparison_of_one_seed_has_a_value_and_no_interval():
    for value, low, high in comparisons(np.array([1.0, np.nan]), np.array([2.0, 3.0])):
        assert np.isfinite(value)
        assert np.isnan(low) and np.isnan(high)


def test_no_comparison_of_stopped_seeds_has_a_value():
    for interval in comparisons(np.array([np.nan, np.nan]), np.array([2.0, 3.0])):
        assert np.isnan(interval).all()


def test_comparisons_are_deterministic():
    scores, others = normal_scores(0, 6), 5.0 + normal_scores(1, 6)
    assert comparisons(scores, others) == comparisons(scores, others)


@pytest.mark.parametrize("function", [stratified_interval, lambda s: performance_profile(s, [0.0])])
def test_scores_of_wrong_shape_or_value_are_refused(function):
    with pytest.raises(ValueError, match="scores must have at least one task"):
        function({})
    with pytest.raises(ValueError, match=r"scores of 'ant' must be of shape .seeds,.*shape .0,"):
        function({"hopper": np.ones(2), "ant": np.ones(0)})
    with pytest.raises(ValueError, match=r"scores of 'ant' .* got shape \(2, 3\)"):
        function({"ant": np.ones((2, 3))})
    with pytest.raises(ValueError, match="scores of 'ant' must be finite, or nan"):
        function({"ant": np.array([1.0, np.inf])})


@pytest.mark.parametrize("function", [difference, paired_difference, ratio])
def test_pairs_of_wrong_shape_are_refused(function):
    with pytest.raises(ValueError, match="first must be of shape"):
        function(np.ones((2, 1)), np.ones(2))
    with pytest.raises(ValueError, match="second must be of shape"):
        function(np.ones(2), np.ones(0))


def test_other_invalid_arguments_are_refused():
    scores = {"hopper": np.arange(3.0)}
    with pytest.raises(ValueError, match=r"the same tasks; only one of them has ant, walker$"):
        probability_of_improvement({**scores, "walker": np.ones(2)}, {**scores, "ant": np.ones(2)})
    with pytest.raises(ValueError, match=r"numbers of seeds, 3 and 2: .*use difference"):
        paired_difference(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="statistic must reduce only the last axis"):
        stratified_interval(scores, np.mean)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95"):
        stratified_interval(scores, confidence=95.0)
    with pytest.raises(ValueError, match="resamples must be at least 1"):
        difference(np.arange(2.0), np.arange(2.0), resamples=0)
    for thresholds in (np.ones((1, 1)), np.ones(0), np.array([np.nan])):
        with pytest.raises(ValueError, match="thresholds must be a list"):
            performance_profile(scores, thresholds)


def test_curves_of_wrong_shape_are_refused():
    returns = np.ones((4, 2, 3))
    for window in (0, 5):
        with pytest.raises(ValueError, match=f"evaluations, 4; got {window}"):
            final_score(returns, window)
    with pytest.raises(ValueError, match=r"returns must be of shape .* got shape \(2, 3\)"):
        final_score(returns[0])
    with pytest.raises(ValueError, match=r"episodes\), none of them 0; got shape \(4, 0, 3\)"):
        area_under_curve(range(4), returns[:, :0])
    with pytest.raises(ValueError, match=r"per evaluation, shape \(4,\); got shape \(3,\)"):
        area_under_curve([0, 1, 2], returns)
    with pytest.raises(ValueError, match="steps must increase"):
        area_under_curve([0, 2, 2, 3], returns)


@pytest.mark.parametrize("clusters", [2, 5, 180])
def test_a_share_of_none_or_all_has_the_exact_interval_of_as_many_clusters(clusters):
    """Regression: all bootstrap samples are equal there, so the interval had no width."""
    rows = np.full(clusters, 3.0)
    found = clustered_share(np.stack([0.0 * rows, rows, rows - (np.arange(clusters) == 0)]), rows)
    for place, count in ((0, 0), (1, clusters)):
        exact = scipy.stats.binomtest(count, clusters).proportion_ci(0.95, method="exact")
        assert float(found.low[place]) == pytest.approx(exact.low)
        assert float(found.high[place]) == pytest.approx(exact.high)
    assert 0 < found.low[2] < found.share[2] < 1 == found.high[2]
