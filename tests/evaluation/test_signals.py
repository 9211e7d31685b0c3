"""Signals of held-out rows against NumPy and SciPy, computed from the networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from evaluation.numpy_networks import network, scalar, take, twins
from fat2thin import algorithms
from fat2thin.algorithms.base import Batch, Problem
from fat2thin.evaluation.fitted_q import RIDGE
from fat2thin.evaluation.held_out import PREFIX, SIGNALS, Watched, preference, signals
from untrained import _shaken

# A box whose units differ from those of the actions in a batch.
PROBLEM = Problem(
    observation_size=2, action_low=(-2.0, 10.0), action_high=(4.0, 11.0), discount=0.9
)
KEY = jax.random.key(1)


def make_rows(seed, rows=64):
    rng = np.random.default_rng(seed)
    return Batch(
        observation=rng.normal(size=(rows, 2)),
        action=rng.uniform(-0.95, 0.95, size=(rows, 2)),
        reward=rng.normal(size=rows),
        next_observation=rng.normal(size=(rows, 2)),
        continuation=(rng.random(rows) < 0.7).astype(float),
    )


HELD_OUT, LEARNED = make_rows(0), make_rows(1)
RETURNS = np.random.default_rng(2).normal(size=64)


def watch(held_out=HELD_OUT, learned=LEARNED, returns=RETURNS, reachable=(-np.inf, np.inf)):
    on_device = jax.tree.map(
        lambda array: jnp.asarray(array, jnp.float32), (held_out, returns, learned)
    )
    return Watched(
        *on_device, counts=jnp.array([64.0, 64.0]), noisy=jnp.array(True),
        reachable=jnp.array(reachable), level=jnp.zeros(()),
    )  # fmt: skip


def make_state(name, noise_seed=3, **settings):
    algorithm = algorithms.get(name)
    # A learning rate at which one step of any network would change every number.
    config = algorithm.config(**{"hidden": (4,), "learning_rate": 0.1, **settings})
    algorithm.check(config)
    fresh = algorithm.init(jax.random.key(0), PROBLEM, config)
    rng = np.random.default_rng(noise_seed)
    return algorithm, type(fresh)(*(_shaken(part, rng) for part in fresh)), config


def found_by(name, watched=None, **settings):
    algorithm, state, config = make_state(name, **settings)
    look = jax.jit(lambda state, rows: signals(algorithm, state, rows, KEY, PROBLEM, config))
    return state, look(state, watch() if watched is None else watched)


@pytest.fixture(scope="module")
def iql():
    return found_by("iql")


@pytest.fixture(scope="module")
def td3_bc():
    return found_by("td3_bc")


def test_td_error_agrees_with_numpy(iql):
    state, found = iql
    next_value = scalar(state.value.network, HELD_OUT.next_observation)
    target = HELD_OUT.reward + 0.9 * HELD_OUT.continuation * next_value
    error = twins(state.critic.network, HELD_OUT.observation, HELD_OUT.action) - target
    expected = np.sqrt(np.mean(error**2))
    np.testing.assert_allclose(found["held_out_td_error"], expected, rtol=1e-4)


def test_weighted_likelihood_agrees_with_scipy(iql):
    state, found = iql
    rows = HELD_OUT
    logged = np.min(twins(state.target_critic, rows.observation, rows.action), axis=0)
    advantage = logged - scalar(state.value.network, rows.observation)
    weight = np.minimum(np.exp(3.0 * advantage), 100.0)
    actor = state.actor.network
    centre = network(actor.trunk.layers, actor.centre, rows.observation)
    scale = np.exp(network(actor.trunk.layers, actor.log_scale, rows.observation))
    normal = scipy.stats.norm(centre, np.clip(scale, 1e-3, 10.0))
    density = np.sum(normal.logpdf(np.arctanh(rows.action)) - np.log1p(-(rows.action**2)), axis=1)
    expected = np.sum(weight * density) / np.sum(weight)
    np.testing.assert_allclose(found["held_out_log_likelihood"], expected, rtol=1e-3)


def test_calibration_is_the_correlation_of_q_with_observed_returns(iql):
    state, found = iql
    logged = np.min(twins(state.critic.network, HELD_OUT.observation, HELD_OUT.action), axis=0)
    expected = np.corrcoef(logged, RETURNS)[0, 1]
    np.testing.assert_allclose(found["held_out_calibration"], expected, rtol=1e-4)


def test_calibration_with_constant_returns_is_zero():
    _, found = found_by("iql", watch(returns=np.full(64, 3.0)))
    assert found["held_out_calibration"] == 0.0


def deterministic_actions(state, observation):
    actor = state.actor.network
    return np.tanh(network(actor.trunk.layers, actor.centre, observation))


def test_spread_is_the_standard_deviation_of_the_critics(td3_bc):
    state, found = td3_bc
    action = deterministic_actions(state, HELD_OUT.observation)
    values = twins(state.critic.network, HELD_OUT.observation, action)
    expected = np.mean(np.std(values, axis=0))
    np.testing.assert_allclose(found["held_out_spread"], expected, rtol=1e-4)


def features(observation, action, mean, deviation):
    s = (observation - mean) / deviation
    first, second = action.T
    products = [first**2, first * second, second**2]
    crossed = [s[:, i] * action[:, j] for i in (0, 1) for j in (0, 1)]
    return np.column_stack([np.ones(len(s)), s, s**2, action, *products, *crossed])


def value_by(fitted, asked, act, mean, deviation):
    """Return the mean value by fitted Q iteration: repeated least squares until convergence."""
    here = features(fitted.observation, fitted.action, mean, deviation)
    following = features(fitted.next_observation, act(fitted.next_observation), mean, deviation)
    free = np.eye(here.shape[1])[1:] * np.sqrt(RIDGE)
    rows, weights = np.concatenate([here, free]), np.zeros(here.shape[1])
    for _ in range(500):
        target = fitted.reward + 0.9 * fitted.continuation * (following @ weights)
        weights = np.linalg.lstsq(rows, np.concatenate([target, np.zeros(len(free))]))[0]
    there = features(asked.observation, act(asked.observation), mean, deviation)
    return np.mean(there @ weights)


def test_the_value_equals_that_of_fitted_q_iteration(td3_bc):
    state, found = td3_bc
    both = np.concatenate([HELD_OUT.observation, LEARNED.observation])
    scale = both.mean(axis=0), both.std(axis=0) + 1e-3

    def act(observation):
        return deterministic_actions(state, observation)

    seen = value_by(LEARNED, HELD_OUT, act, *scale)
    unseen = value_by(HELD_OUT, LEARNED, act, *scale)
    np.testing.assert_allclose(found["held_out_value_unseen"], unseen, rtol=2e-3, atol=1e-3)
    np.testing.assert_allclose(found["held_out_value"], (seen + unseen) / 2, rtol=2e-3, atol=1e-3)


def test_share_of_actions_inside_a_known_band():
    """In half-ranges, the band is [0.1, 0.5] in one dimension, [-0.4, 0] in the other."""
    settings = {"policy": "sparse_q_gaussian", "outside_support": "project"}
    algorithm, state, config = make_state("bc", **settings)
    net = jax.tree.map(jnp.zeros_like, state.actor.network)
    biases = jnp.arctanh(jnp.array([0.3, -0.2])), jnp.full(2, jnp.log(0.2))
    net = eqx.tree_at(lambda net: (net.centre.bias, net.log_scale.bias), net, biases)
    state = state._replace(actor=state.actor._replace(network=net))
    action = np.tile([0.9, 0.9], (64, 1))
    action[:16] = [0.3, -0.2]
    action[16:20] = [0.11, -0.01]
    action[20:24] = [0.49, -0.39]
    # Inside in only one coordinate does not count as inside.
    action[24:32, 0] = 0.3
    action[32:40, 1] = -0.2
    rows = HELD_OUT._replace(action=action)
    look = jax.jit(lambda state, rows: signals(algorithm, state, rows, KEY, PROBLEM, config))
    found = look(state, watch(held_out=rows))
    assert found["held_out_inside"] == 24 / 64
    assert not {"held_out_td_error", "held_out_calibration", "held_out_spread"} & {*found}


def test_signals_do_not_depend_on_weight_decay_or_learning_rate(iql):
    _, usual = iql
    _, found = found_by("iql", learning_rate=1e-3, weight_decay=3.0)
    for name, value in usual.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_training_rows_affect_only_the_value(iql):
    _, usual = iql
    _, found = found_by("iql", watch(learned=make_rows(9)))
    different = {name for name, value in usual.items() if found[name] != value}
    assert different - {"learned_inside"} == {"held_out_value", "held_out_value_unseen"}
    # The held-out part has the same Q; only the states it is evaluated in differ.
    richer = LEARNED._replace(reward=LEARNED.reward + 1.0)
    _, found = found_by("iql", watch(learned=richer))
    different = {name for name, value in usual.items() if found[name] != value}
    assert different == {"held_out_value"}


def test_every_signal_has_a_description_and_the_prefix(iql):
    _, found = iql
    assert {*found} == {*SIGNALS}
    assert all(name.startswith(PREFIX) for name in SIGNALS if name != "learned_inside")


def test_fttpo_with_terminal_steps_only():
    """The target of Q is then the reward, whatever actions the actor samples."""
    over = HELD_OUT._replace(continuation=np.zeros(64))
    state, found = found_by("fttpo", watch(held_out=over))
    members = state.values.network.members
    seen = np.concatenate([over.observation, over.action], axis=1)
    values = np.stack([scalar(take(members, twin), seen) for twin in (1, 2)])
    expected = np.sqrt(np.mean((values - over.reward) ** 2))
    np.testing.assert_allclose(found["held_out_td_error"], expected, rtol=1e-4)
    calibration = np.corrcoef(np.min(values, axis=0), RETURNS)[0, 1]
    np.testing.assert_allclose(found["held_out_calibration"], calibration, rtol=1e-4)


@pytest.mark.parametrize("noisy", [True, False])
def test_selection_uses_the_value_on_noisy_logs_and_the_likelihood_on_clear_ones(noisy):
    found = {"held_out_value": jnp.float32(1.0), "held_out_log_likelihood": jnp.float32(-2.0)}
    expected = 1.0 if noisy else -2.0
    assert preference(found, noisy) == expected
    assert jax.jit(preference)(found, jnp.array(noisy)) == expected
    del found["held_out_log_likelihood"]
    assert preference(found, noisy) == 1.0


def test_values_outside_the_range_of_returns_are_not_estimable(td3_bc):
    _, usual = td3_bc
    mean, unseen = (float(usual[name]) for name in ("held_out_value", "held_out_value_unseen"))
    seen = 2.0 * mean - unseen
    assert abs(seen - unseen) > 0.01
    # The estimate of one part is possible; the mean needs both.
    between = (seen + unseen) / 2.0
    possible = (-np.inf, between) if unseen < between else (between, np.inf)
    _, found = found_by("td3_bc", watch(reachable=possible))
    assert np.isnan(found["held_out_value"]) and found["held_out_value_unseen"] == np.float32(
        unseen
    )
    _, found = found_by("td3_bc", watch(reachable=(1e6, 1e6)))
    assert np.isnan(found["held_out_value"]) and np.isnan(found["held_out_value_unseen"])
    others = {*SIGNALS} & {*usual} - {"held_out_value", "held_out_value_unseen"}
    assert all(found[name] == usual[name] for name in others)
