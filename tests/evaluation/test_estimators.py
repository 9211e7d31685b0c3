"""Estimators of value against hand-computed logs, NumPy by loops, quadrature and exact problems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from fat2thin import data
from fat2thin.data.operations import reachable_returns
from fat2thin.evaluation import refusal
from fat2thin.evaluation.estimators import importance, intervals, sensitivity
from fat2thin.evaluation.estimators.assumptions import discounted_steps, step_before
from fat2thin.evaluation.estimators.behaviour import behaviour_density
from fat2thin.evaluation.estimators.constants import best_constant, constant_actions
from fat2thin.evaluation.estimators.episodes import FOLDS, Actions, Episodes, value_bounds
from fat2thin.evaluation.estimators.estimates import estimates
from fat2thin.evaluation.estimators.features import draw_bases, features
from fat2thin.evaluation.estimators.fitted_q import RIDGE, design, fit
from fat2thin.evaluation.estimators.practice import practice_scores
from fat2thin.evaluation.value_rows import in_double_precision

FALSE_ALARM = 1e-6


def random_episodes(seed=0, episodes=8, steps=3):
    """Return episodes of random numbers: some end truly, some were cut, one is padding."""
    rng = np.random.default_rng(seed)
    here = np.ones((episodes, steps))
    continuation = np.ones((episodes, steps))
    here[1, 2:], continuation[1, 1] = 0.0, 0.0  # a true end
    here[2, 1:] = 0.0  # cut
    here[-1] = 0.0  # padding
    of_rows = {
        name: rng.normal(size=(episodes, steps, size))
        for name, size in (("observation", 2), ("action", 1), ("following", 2))
    }
    reward = rng.normal(size=(episodes, steps))
    made = Episodes(
        of_rows["observation"], of_rows["action"], reward, of_rows["following"], continuation, here
    )
    drawn = rng.normal(size=(episodes, steps, 2, 1))
    return made, Actions(rng.normal(size=(episodes, 2, 1)), drawn, rng.normal(size=here.shape))


def test_bounds_of_values_are_those_that_rewards_allow():
    for ends in (True, False):
        bounds = value_bounds(-2.0, 0.5, 0.9, 5, ends)
        log = data.Dataset.from_arrays(
            [0.0, 1.0],
            [0.1, 0.2],
            [-2.0, 0.5],
            episode_start=[0, 1],
            action_low=0.0,
            action_high=1.0,
            terminal=[ends, ends],
            next_observation=[1.0, 0.0],
            discount=0.9,
        )
        for steps in range(1, 6):
            expected = reachable_returns(log, horizon=steps)
            np.testing.assert_allclose(bounds[steps], expected, rtol=1e-5)
    np.testing.assert_array_equal(bounds[0], 0.0)


def test_fitted_q_is_ridge_regression_step_by_step_on_the_other_folds():
    episodes, actions = random_episodes()
    both = draw_bases(jax.random.key(0), 2, 1, 3).both
    bounds = np.asarray(value_bounds(-1.5, 1.0, 0.9, 3, True), np.float64)

    def weights(episodes, actions, bounds):
        return fit(design(episodes, actions, both), 0.9, bounds).weights

    found = in_double_precision(weights)(episodes, actions, bounds)

    def of(observation, action):
        with jax.enable_x64(True):
            return np.asarray(features(jnp.asarray(observation), jnp.asarray(action), both))

    per_fold = len(episodes.here) // FOLDS
    for fold in range(FOLDS):
        rows = [
            (e, t)
            for e in range(len(episodes.here))
            for t in range(3)
            if episodes.here[e, t] and e // per_fold != fold
        ]
        here = np.stack([of(episodes.observation[e, t][None], episodes.action[e, t][None])[0]
                         for e, t in rows])  # fmt: skip
        after = np.stack([
            np.mean([of(episodes.following[e, t][None], one[None])[0]
                     for one in actions.following[e, t]], axis=0) for e, t in rows
        ])  # fmt: skip
        reward, goes_on = (
            np.array([array[e, t] for e, t in rows])
            for array in (episodes.reward, episodes.continuation)
        )
        ridge = RIDGE * np.diag([0.0] + [1.0] * (here.shape[1] - 1))
        expected = np.zeros(here.shape[1])
        for left in range(1, 4):
            value = np.clip(after @ expected, *bounds[left - 1])
            target = reward + 0.9 * goes_on * value
            expected = np.linalg.solve(here.T @ here + ridge, here.T @ target)
            np.testing.assert_allclose(found[left, fold], expected, rtol=1e-6, atol=1e-9)


def by_hand():
    """Return two episodes of two steps, their ratios, and the estimates computed by hand.

    ρ of the first: 2, then 2 · 0.5 = 1. Of the second: 0.5, then exactly 0: outside the band.
    """
    ratio = np.log([[2.0, 0.5], [0.5, 1.0]])
    ratio[1, 1] = -np.inf
    reward = np.array([[1.0, 3.0], [5.0, 7.0]])
    nothing = np.zeros((2, 2, 1))
    episodes = Episodes(nothing, nothing, reward, nothing, np.ones((2, 2)), np.ones((2, 2)))
    weighted = (2.0 * 1.0 + 0.5 * 5.0) / 2.5 + 0.9 * (1.0 * 3.0 + 0.0 * 7.0) / 1.0
    return episodes, ratio, weighted


def test_importance_sampling_by_hand_gives_exact_zeros_outside_the_band():
    episodes, ratio, weighted = by_hand()
    episodes = jax.tree.map(jnp.asarray, episodes)
    rho = importance.weights(jnp.asarray(ratio), episodes, 2)
    np.testing.assert_allclose(rho, [[2.0, 1.0], [0.5, 0.0]], rtol=1e-6)
    assert rho[1, 1] == 0.0
    # Once outside, an episode never counts again.
    left = jnp.asarray([[-np.inf, 0.5], [0.5, 1.0]])
    assert importance.weights(left, episodes, 2)[0].tolist() == [0.0, 0.0]
    found = importance.importance_scores(episodes, rho, 0.9)
    np.testing.assert_allclose(np.mean(found.scores), weighted, rtol=1e-6)
    np.testing.assert_allclose(found.effective, [2.5**2 / 4.25, 1.0], rtol=1e-6)
    np.testing.assert_array_equal(found.surviving, [2.0, 1.0])
    unweighted = importance.unweighted_scores(episodes, rho, 0.9, -1.0)
    np.testing.assert_allclose(unweighted, [2 * 2 + 0.9 * 4, 0.5 * 6], rtol=1e-6)


def test_scores_of_a_weighted_mean_have_its_variance():
    """The delta method against the derivative of the weighted mean by finite differences."""
    episodes, ratio, _ = by_hand()
    ratio[1, 1] = 0.3
    there = jax.tree.map(jnp.asarray, episodes)
    found = importance.weights(jnp.asarray(ratio), there, 2)
    scores = np.asarray(importance.importance_scores(there, found, 0.9).scores)
    rho = np.asarray(found, np.float64)

    def estimate(copies):
        total = np.sum(copies[:, None] * rho * episodes.reward, axis=0)
        return np.sum([1.0, 0.9] * total / np.sum(copies[:, None] * rho, axis=0))

    for place in range(2):
        step = np.eye(2)[place] * 1e-5
        slope = (estimate(1.0 + step) - estimate(1.0 - step)) / 2e-5
        np.testing.assert_allclose((scores[place] - scores.mean()) / 2.0, slope, rtol=1e-4)


def test_practice_is_the_mean_return_and_a_cut_episode_gets_a_fitted_rest():
    episodes, _ = random_episodes()
    basis = draw_bases(jax.random.key(0), 2, 1, 3).states
    bounds = np.asarray(value_bounds(-3.0, 3.0, 0.9, 3, True))
    found = in_double_precision(practice_scores, "discount")(episodes, basis, bounds, discount=0.9)
    returns = np.sum(episodes.reward * episodes.here * 0.9 ** np.arange(3), axis=1)
    complete = [0, 1, 3, 4, 5, 6]
    np.testing.assert_allclose(found[complete], returns[complete], rtol=1e-6)
    rest = (found[2] - returns[2]) / 0.9
    assert rest != 0.0 and bounds[2, 0] <= rest <= bounds[2, 1]


def chain(key, episodes, steps=4):
    """Return a log of a problem with an exact value, and the policy that is valued on it.

    State −1 or 1; the reward is the action plus the state, and the next state is 1 with the
    probability (1 + action) / 2. Actions are uniform on (−1, 1), those of the policy on (0, 1).
    """
    keys = jax.random.split(key, 4)
    shape = episodes, steps
    action = jax.random.uniform(keys[0], shape, minval=-1.0)
    goes_up = 2.0 * (jax.random.uniform(keys[1], shape) < (1.0 + action) / 2.0) - 1.0
    first = 2.0 * jax.random.bernoulli(keys[2], 0.5, (episodes, 1)) - 1.0
    state = jnp.concatenate([first, goes_up[:, :-1]], axis=1)
    ones = jnp.ones(shape)
    log = Episodes(
        state[..., None], action[..., None], action + state, goes_up[..., None], ones, ones
    )
    middle = (jnp.arange(4) + 0.5) / 4.0
    drawn = jnp.broadcast_to(middle[:, None], (*shape, 4, 1))
    inside = jnp.where(action > 0.0, 0.0, -jnp.inf)
    return log, Actions(drawn[:, 0], drawn, inside), jnp.full(shape, jnp.log(0.5))


EXACT = sum(0.9**t * (0.5 + (0.5 if t else 0.0)) for t in range(4))
"""The mean action is ½; so is the mean state from the second step on."""
LOGS = 160


@pytest.fixture(scope="module")
def on_many_logs():
    bases = draw_bases(jax.random.key(0), 1, 1, 4)
    ends = np.asarray(value_bounds(-2.0, 2.0, 0.9, 4, False), np.float64)

    def one(key):
        bounds = jnp.asarray(ends)
        log, actions, behaviour = chain(key, 120)
        found = estimates(log, actions, behaviour, bases, bounds, 0.9)
        parts = found.marginal, found.doubly_robust, found.importance
        scores = jnp.stack([part.scores for part in parts])
        practice = practice_scores(log, bases.states, bounds, 0.9)
        both = jnp.concatenate([scores, practice[None], scores[:1] - practice[None]])
        # Rewards are between −2 and 2, and actions have a weight of 2 where the policy takes them.
        weight = jnp.concatenate([intervals.unseen_weight(part.weight)[None] for part in parts])
        reach = 4.0 * jnp.concatenate([weight, jnp.ones(1), weight[:1]])
        return jnp.stack(intervals.with_one_more(both, reach, key))

    keys = jax.random.key_data(jax.random.split(jax.random.key(1), LOGS))
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda many: jax.lax.map(
            lambda key: one(jax.random.wrap_key_data(key)), many))(keys))  # fmt: skip


@pytest.mark.parametrize("place", range(5), ids=["marginal", "dr", "is", "practice", "difference"])
def test_intervals_cover_the_exact_value(on_many_logs, place):
    """At a false-alarm rate of a millionth, binomial against 95 %."""
    # Practice earns 0 on average: its actions and states are symmetric.
    exact = {3: 0.0}.get(place, EXACT)
    mean, low, high, bound = on_many_logs[:, :, place].T
    covered = int(np.sum((low <= exact) & (exact <= high)))
    assert scipy.stats.binom.cdf(covered, LOGS, 0.95) > FALSE_ALARM
    assert scipy.stats.binom.cdf(int(np.sum(bound <= exact)), LOGS, 0.95) > FALSE_ALARM
    error = np.std(mean) / LOGS**0.5
    assert abs(np.mean(mean) - exact) < 5 * error
    # An interval that is much too wide would cover as well. Weights of whole episodes reach far.
    assert 0.7 < np.mean(high - low) / (2 * 1.96 * np.std(mean)) < (4 if place in (1, 2) else 1.6)


def test_marginal_weights_beat_products_over_steps(on_many_logs):
    spread = np.std(on_many_logs[:, 0], axis=0)
    assert spread[0] < 0.7 * spread[2]


_with_one_more = in_double_precision(
    lambda scores, reach: intervals.with_one_more(scores, reach, jax.random.key(0))
)


@pytest.mark.parametrize("by_clock", [True, False], ids=["by the clock", "by chance"])
def test_discounted_steps_show_whether_states_explain_the_ends(by_clock):
    horizon, discount, count = 8, 0.9, 4000
    log, _, _ = chain(jax.random.key(5), count, horizon)
    chance = np.random.default_rng(0).uniform(size=(count, horizon)) < 1 / horizon
    ends = np.tile(np.arange(horizon) == horizon - 1, (count, 1)) if by_clock else chance
    here = np.cumprod(np.concatenate([np.ones((count, 1)), 1.0 - ends], axis=1), axis=1)[:, :-1]
    log = log._replace(continuation=(1.0 - ends) * here, here=here)
    basis = draw_bases(jax.random.key(0), 1, 1, 4).states
    found = in_double_precision(discounted_steps, "horizon", "discount")(
        log, basis, horizon=horizon, discount=discount
    )
    powers = discount ** np.arange(horizon)
    memoryless = np.sum(powers * (1 - 1 / horizon) ** np.arange(horizon))
    logged = np.sum(powers) if by_clock else memoryless
    # A mean of 4,000 episodes: five standard errors of a number of steps below 8.
    np.testing.assert_allclose(found, (logged, memoryless), rtol=0.03)


@pytest.mark.parametrize("hidden", [0.0, 0.6], ids=["markov", "second order"])
def test_the_step_before_is_as_partial_r2_of_least_squares(hidden):
    rng = np.random.default_rng(3)
    episodes, steps, size = 300, 10, 2
    seen, done = np.zeros((episodes, steps + 2, size)), rng.normal(size=(episodes, steps, 1))
    for t in range(steps):
        noise = rng.normal(size=(episodes, size))
        seen[:, t + 2] = 0.5 * seen[:, t + 1] + hidden * seen[:, t] + done[:, t] + noise
    here = (np.arange(steps)[None] < rng.integers(2, steps + 1, episodes)[:, None]).astype(float)
    log = Episodes(seen[:, 1:-1], done, 0.0 * here, seen[:, 2:], np.ones_like(here), here)
    bases = draw_bases(jax.random.key(0), size, 1, 4)
    found = in_double_precision(step_before)(log, bases.both)
    # NumPy: residual sums of squares with and without the step before.
    kept = here[:, 1:].ravel() > 0
    rows = [part[:, 1:].reshape(-1, part.shape[-1])[kept] for part in (log.observation, done)]
    with jax.enable_x64(True):
        now = np.asarray(features(*map(jnp.asarray, rows), bases.both))
    before = np.concatenate([log.observation[:, :-1], done[:, :-1]], axis=-1).reshape(-1, 3)[kept]
    target = log.following[:, 1:].reshape(-1, size)[kept]

    def mean_square(design):
        beta = np.linalg.lstsq(design, target, rcond=None)[0]
        return np.sum((target - design @ beta) ** 2, axis=0) / (len(target) - design.shape[1])

    expected = np.mean(1.0 - mean_square(np.hstack([now, before])) / mean_square(now))
    np.testing.assert_allclose(found, expected, rtol=0.02, atol=2e-4)
    assert (found > refusal.MOST_BEFORE) == (hidden > 0.0)


@pytest.mark.parametrize("steps", [1, 2])
def test_without_a_step_before_there_is_nothing_to_explain(steps):
    log, _, _ = chain(jax.random.key(2), 60, steps)
    ends = np.arange(steps) == steps - 1
    log = log._replace(continuation=jnp.asarray(np.tile(1.0 - ends, (60, 1))))
    basis = draw_bases(jax.random.key(0), 1, 1, 4).both
    assert in_double_precision(step_before)(log, basis) == 0.0


def test_in_large_logs_intervals_are_those_of_the_normal_law():
    scores = np.random.default_rng(0).normal(size=(2, 4000))
    found = _with_one_more(scores, np.full(2, 4.0))
    expected = scipy.stats.t.interval(0.95, 3999, scores.mean(1), scipy.stats.sem(scores, axis=1))
    np.testing.assert_allclose([found.low, found.high], expected, atol=0.004)
    bound = scores.mean(1) - scipy.stats.t.ppf(0.95, 3999) * scipy.stats.sem(scores, axis=1)
    np.testing.assert_allclose(found.bound, bound, atol=0.004)


def of_two_points(count):
    """Return the intervals for 0, 1, ... `count` scores of −1 among scores of 0, low to high."""
    ones = np.arange(count)[None] < np.arange(count + 1)[:, None]
    # An episode that was not seen can be as bad as the worst: −1, and no better than 0.
    mean = ones.mean(axis=1)
    low = _with_one_more(-1.0 * ones, 1.0 - mean)
    return low.low, low.bound


def test_for_two_points_the_interval_is_that_of_clopper_and_pearson():
    count, events = 40, np.arange(41)
    low, bound = of_two_points(count)
    exact = [-scipy.stats.beta(events + 1, count - events).ppf(level) for level in (0.975, 0.95)]
    for ends, expected in zip((low, bound), exact, strict=True):
        np.testing.assert_allclose(ends[:-1], expected[:-1], atol=0.012)
    # No event among 40 is the rule of three: at most 3 / 40, to first order.
    assert bound[0] == pytest.approx(0.05 ** (1 / 40) - 1.0, abs=0.005)


@pytest.mark.parametrize("chance", [0.01, 0.03, 0.1, 0.4])
def test_coverage_of_a_rare_event_by_enumeration(chance):
    """Every log of 40 episodes is counted with its probability; 1 % is for random weights."""
    low, bound = of_two_points(40)
    probability = scipy.stats.binom(40, chance).pmf(np.arange(41))
    assert probability @ (low <= -chance) > 0.975 - 0.01
    assert probability @ (bound <= -chance) > 0.95 - 0.01
    # Without the episode that was not seen, a log without an event would be certain.
    assert probability[0] * (chance > 0) > 0 and low[0] < 0


@pytest.mark.parametrize("weight", [[5.0, 1.0, 0.5, 0.0], [1.0] * 50, [3.0], [0.0, 0.0]])
def test_an_unseen_event_costs_what_an_optimiser_finds(weight):
    """The largest Σ q u among probabilities with which a log has no event at 5 %."""
    weight = np.asarray(weight)
    found = scipy.optimize.minimize(
        lambda rate: -weight @ (1.0 - np.exp(-rate)),
        np.full(weight.size, 3.0 / weight.size),
        bounds=[(0.0, None)] * weight.size,
        constraints={"type": "ineq", "fun": lambda rate: np.log(20.0) - rate.sum()},
    )
    by_formula = in_double_precision(intervals.unseen_weight)(weight) * np.log(20.0)
    assert by_formula == pytest.approx(-found.fun, rel=1e-4, abs=1e-6)


def test_the_betting_bound_is_where_the_capital_reaches_twenty():
    scores = np.random.default_rng(0).exponential(size=200)
    bound = float(in_double_precision(intervals.betting_bound)(scores))
    stakes = np.asarray(intervals.STAKES)
    capital = np.mean(np.prod(1.0 + stakes[:, None] * (scores / bound - 1.0), axis=1))
    np.testing.assert_allclose(capital, 20.0, rtol=1e-4)
    assert 0.5 < bound < scores.mean()


def test_the_betting_bound_holds_for_heavy_tails():
    """500 samples of a law whose variance is infinite; its mean is 3."""
    draws = (np.random.default_rng(1).pareto(1.5, size=(500, 60)) + 1.0).astype(np.float64)
    many = in_double_precision(lambda rows: jax.lax.map(intervals.betting_bound, rows))(draws)
    assert scipy.stats.binom.cdf(int(np.sum(many <= 3.0)), 500, 0.95) > FALSE_ALARM
    assert np.mean(many) > 1.0


@pytest.mark.parametrize("gamma", [1.0, 1.5, 4.0])
def test_the_worst_case_of_a_mean_is_the_solution_of_its_linear_program(gamma):
    """Weights within 1/Γ and Γ with mean 1 that make the mean of the target smallest."""
    rng = np.random.default_rng(0)
    target = rng.normal(size=60)
    program = scipy.optimize.linprog(
        target / 60, A_eq=np.ones((1, 60)) / 60, b_eq=[1.0], bounds=[(1 / gamma, gamma)] * 60
    )
    mean = np.full(60, target.mean())
    found = sensitivity.worst_mean(*map(jnp.asarray, (target, mean)), jnp.float32(gamma),
                                   jnp.ones(60))  # fmt: skip
    np.testing.assert_allclose(np.mean(found), program.fun, rtol=1e-4, atol=1e-5)
    guessed = sensitivity.worst_mean(*map(jnp.asarray, (target, mean + 0.5)), jnp.float32(gamma),
                                     jnp.ones(60))  # fmt: skip
    # A wrong quantile makes the bound lower, never higher.
    assert np.mean(guessed) < program.fun + 1e-5


def test_the_worst_values_fall_and_start_with_the_fit():
    log, actions, _ = chain(jax.random.key(0), 80)
    basis = draw_bases(jax.random.key(0), 1, 1, 4).both
    bounds = np.asarray(value_bounds(-2.0, 2.0, 0.9, 4, False))
    found = in_double_precision(sensitivity.worst_values, "discount")(
        log, actions, basis, bounds, discount=0.9
    )
    assert abs(found.value[0] - EXACT) < 0.3
    assert (np.diff(found.value) < 0).all() and found.value[-1] >= bounds[-1, 0]


def test_the_behaviour_density_integrates_to_one_and_its_levels_are_uniform():
    """Levels at a false-alarm rate of a thousandth, with a fixed key."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(60, 10, 2))
    action = 0.8 * state[..., :1] + np.exp(0.3 * state[..., 1:]) * rng.normal(size=(60, 10, 1))
    ones = np.ones((60, 10))
    basis = draw_bases(jax.random.key(0), 2, 1, 8).states
    log = Episodes(state, action, ones, state, ones, ones)
    compiled = in_double_precision(behaviour_density)
    found = compiled(log, basis)
    assert np.corrcoef(found.log_density.ravel(), found.log_nearest.ravel())[0, 1] > 0.8
    assert scipy.stats.kstest(found.level.ravel(), "uniform").pvalue > 1e-3
    true = scipy.stats.norm.logpdf(action, 0.8 * state[..., :1], np.exp(0.3 * state[..., 1:]))
    assert np.corrcoef(found.log_density.ravel(), true.ravel())[0, 1] > 0.8
    # The first fold asks about one state and all actions: its own rows are fitted nowhere.
    grid = np.linspace(-12.0, 12.0, 150)
    places = action.copy()
    places[:15] = grid.reshape(15, 10, 1)
    same = state.copy()
    same[:15] = state[0, 0]
    moved = compiled(log._replace(observation=same, action=places), basis)
    for density in (moved.log_density, moved.log_nearest):
        mass = np.trapezoid(np.exp(density[:15].ravel()), grid)
        assert abs(mass - 1.0) < 0.1


def test_the_best_constant_is_found_without_the_fold_that_it_is_used_on():
    log, _, _ = chain(jax.random.key(0), 80)
    basis = draw_bases(jax.random.key(0), 1, 1, 4).both
    bounds = np.asarray(value_bounds(-2.0, 2.0, 0.9, 4, False))
    candidates = np.array([[-0.9], [0.0], [0.9], [0.3]])
    choose = in_double_precision(best_constant, "discount")
    found = choose(log, candidates, basis, bounds, discount=0.9)
    np.testing.assert_array_equal(found.of_fold, 2)
    assert found.overall == 2
    # With this fold's rewards turned around, the others' choices change, and its own does not.
    turned = np.array(log.reward)
    turned[:20] = -100.0 * np.asarray(log.action[:20, :, 0])
    wide = bounds * 100.0
    again = choose(log._replace(reward=turned), candidates, basis, wide, discount=0.9)
    assert again.of_fold[0] == 2 and (again.of_fold[1:] != 2).all()
    assert constant_actions(jnp.ones(1), log).following.shape == (80, 4, 1, 1)
