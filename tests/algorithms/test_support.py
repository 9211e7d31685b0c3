"""Building blocks of updates: actions outside a band, Adam steps, TD3's smoothed targets."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from fat2thin.algorithms import steps as parts
from fat2thin.algorithms.base import Batch, Problem
from fat2thin.algorithms.bc import BCConfig
from fat2thin.algorithms.configs import OUTSIDE_RULES, LearningConfig
from fat2thin.algorithms.published import sparse_policy
from fat2thin.algorithms.steps import (
    cosine_decay,
    descend,
    fit_policy,
    inside_support,
    keep_if,
    learned_policy,
    regressed_action,
    start,
    start_policy,
)
from fat2thin.algorithms.td3_bc import (
    SmoothedTargetConfig,
    scaled_value,
    smoothed_next_value,
)
from fat2thin.policies.families import Deterministic, Sparse
from fat2thin.policies.networks import Critics, Linear, PolicyNetwork
from fat2thin.policies.policy import unit_policy

PROBLEM = Problem(observation_size=3, action_low=(-1.0, -1.0), action_high=(1.0, 1.0), discount=0.9)
ROWS = 40
RANDOM = np.random.default_rng(0)
OBSERVATION = RANDOM.normal(size=(ROWS, 3)).astype(np.float32)
ACTION = RANDOM.uniform(-1.0, 1.0, (ROWS, 2)).astype(np.float32)


def policy_of(family):
    network = PolicyNetwork(jax.random.key(0), 3, 2, (8,))
    return unit_policy(network, family, (0.1, 0.9))


class Regressed(NamedTuple):
    """Results of both rules for `ACTION`, and what the tests need to know of the policy."""

    box: str
    actions: dict[str, jax.Array]
    gradients: dict[str, tuple[object, jax.Array]]
    log_densities: dict[str, jax.Array]
    found_inside: jax.Array
    support: tuple[jax.Array, jax.Array]
    samples: jax.Array


@eqx.filter_jit
def compiled(policy):
    key, observation = jax.random.key(3), jnp.asarray(OBSERVATION)

    def total(arguments, rule):
        actions = regressed_action(arguments[0], observation, arguments[1], rule, key)
        return jnp.sum(actions), actions

    logged = jnp.asarray(ACTION)
    slopes = {rule: jax.grad(total, has_aux=True)((policy, logged), rule) for rule in OUTSIDE_RULES}
    return Regressed(
        box=policy.family.box,
        actions={rule: actions for rule, (_, actions) in slopes.items()},
        gradients={rule: gradient for rule, (gradient, _) in slopes.items()},
        log_densities={
            rule: policy(observation).log_prob(actions) for rule, (_, actions) in slopes.items()
        },
        found_inside=inside_support(policy, observation, logged),
        support=policy.support(observation),
        samples=policy(observation).sample(key, (100,)),
    )


@pytest.fixture(scope="module", params=["inside", "clip"])
def regressed(request):
    return compiled(policy_of(Sparse(0.0, request.param)))


def inside_rows(regressed):
    low, high = (np.asarray(end) for end in regressed.support)
    return np.array(
        [
            all(low[row, i] <= ACTION[row, i] <= high[row, i] for i in range(2))
            for row in range(ROWS)
        ]
    )


def test_without_a_rule_logged_actions_are_unchanged():
    action = jnp.asarray(ACTION)
    policy = policy_of(Sparse(0.0))
    key = jax.random.key(0)
    assert regressed_action(policy, jnp.asarray(OBSERVATION), action, None, key) is action


@pytest.mark.parametrize("rule", ["replace", "project"])
def test_only_actions_outside_the_support_are_changed_and_no_gradient_flows(regressed, rule):
    inside = inside_rows(regressed)
    # Both kinds of rows must occur.
    assert 5 < np.sum(inside) < ROWS - 5
    np.testing.assert_array_equal(regressed.found_inside, inside)
    actions = regressed.actions[rule]
    np.testing.assert_array_equal(np.any(np.asarray(actions) != ACTION, axis=1), ~inside)
    assert all(
        np.all(np.asarray(leaf) == 0.0) for leaf in jax.tree.leaves(regressed.gradients[rule])
    )
    assert np.all(np.isfinite(regressed.log_densities[rule]))


def test_regressed_actions_lie_in_the_support(regressed):
    low, high = regressed.support
    for rule, actions in regressed.actions.items():
        # With box="clip", samples of the band may lie outside the box.
        if rule == "project" or regressed.box == "inside":
            assert np.all((low <= actions) & (actions <= high))


def test_project_takes_the_nearest_point_of_the_middle_90_percent_of_the_band(regressed):
    outside = ~inside_rows(regressed)
    low, high = regressed.support
    width = high - low
    expected = np.clip(ACTION, low + 0.05 * width, high - 0.05 * width)
    actions = regressed.actions["project"]
    np.testing.assert_allclose(actions[outside], expected[outside], rtol=1e-5, atol=1e-6)


def test_replace_takes_the_nearest_of_a_hundred_samples(regressed):
    samples = np.asarray(regressed.samples)
    for row in np.flatnonzero(~inside_rows(regressed)):
        best, shortest = None, np.inf
        for sample in samples[:, row]:
            distance = sum((float(sample[i]) - float(ACTION[row, i])) ** 2 for i in range(2))
            if distance < shortest:
                best, shortest = sample, distance
        np.testing.assert_allclose(regressed.actions["replace"][row], best, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 7])
def test_the_cosine_decay_matches_optax(steps):
    learner = start(Linear(jax.random.key(0), 1, 1))
    schedule = optax.cosine_decay_schedule(0.3, steps)
    for count in (0, 1, 3, 7, 50):
        moved = learner._replace(moments=learner.moments._replace(count=jnp.asarray(count)))
        np.testing.assert_allclose(
            cosine_decay(moved, 0.3, steps), schedule(count), rtol=1e-5, atol=1e-7
        )
    assert cosine_decay(learner, 0.3, None) == 0.3


def test_keep_if_returns_either_tree_as_a_whole():
    new, old = ((jnp.full(3, number), {"b": jnp.asarray(number)}) for number in (1.0, 2.0))
    for due, chosen in ((True, 1.0), (False, 2.0)):
        kept = keep_if(jnp.asarray(due), new, old)
        assert jax.tree.structure(kept) == jax.tree.structure(old)
        assert all(np.all(np.asarray(leaf) == chosen) for leaf in jax.tree.leaves(kept))


def test_a_step_matches_optax_adam():
    """Five steps of a linear regression."""
    network = Linear(jax.random.key(0), 3, 2)

    def loss(layer):
        error = layer(jnp.asarray(OBSERVATION)) - ACTION
        return jnp.mean(error**2), {"largest": jnp.max(jnp.abs(error))}

    config = LearningConfig(learning_rate=0.05, adam_beta_2=0.95)
    adam = optax.adam(0.05, b1=0.9, b2=0.95)

    @jax.jit
    def both(learner, theirs, moments):
        learner, metrics = descend(learner, loss, config)
        gradient, expected = jax.grad(loss, has_aux=True)(theirs)
        updates, moments = adam.update(gradient, moments)
        return (
            learner,
            metrics["largest"] - expected["largest"],
            (
                optax.apply_updates(theirs, updates),
                moments,
            ),
        )

    learner, theirs, moments = start(network), network, adam.init(network)
    for count in range(1, 6):
        learner, difference, (theirs, moments) = both(learner, theirs, moments)
        np.testing.assert_allclose(difference, 0.0, atol=1e-6)
        assert learner.moments.count == count
    np.testing.assert_allclose(learner.network.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(learner.network.bias, theirs.bias, rtol=1e-5, atol=1e-6)
    assert np.min(np.abs(learner.network.bias)) > 0.01


def numpy_critic(critic, index, action):
    """Return one critic's values at `OBSERVATION`, in float64."""
    member = jax.tree.map(lambda leaf: np.asarray(leaf[index], float), critic.members)
    x = np.concatenate([np.asarray(OBSERVATION, float), action], axis=1)
    for layer in member.trunk.layers:
        x = np.maximum(x @ layer.weight.T + layer.bias, 0.0)
    return (x @ member.head.weight.T + member.head.bias)[:, 0]


@pytest.fixture(scope="module")
def critic():
    return Critics(jax.random.key(4), 3, 2, (8, 8))


next_value = eqx.filter_jit(smoothed_next_value)


def test_without_noise_the_next_value_is_q_of_the_policys_action(critic):
    policy = policy_of(Deterministic())
    config = SmoothedTargetConfig(target_noise=0.0)
    observation = jnp.asarray(OBSERVATION)
    found = next_value(policy, critic, observation, jax.random.key(0), config)
    action = np.tanh(np.asarray(policy.network.network(observation)[0], float))
    both = [numpy_critic(critic, index, action) for index in range(2)]
    assert not np.allclose(*both)
    np.testing.assert_allclose(found, np.minimum(*both), rtol=1e-4, atol=1e-5)


def identity_critic():
    """Return critics whose value is the action: relu(a + 10) - 10."""
    blank = jax.tree.map(jnp.zeros_like, Critics(jax.random.key(0), 1, 1, (1,)))
    layer, head = blank.members.trunk.layers[0], blank.members.head
    return eqx.tree_at(
        lambda twins: (
            twins.members.trunk.layers[0].weight,
            twins.members.trunk.layers[0].bias,
            twins.members.head.weight,
            twins.members.head.bias,
        ),
        blank,
        (
            layer.weight.at[..., 1].set(1.0),
            layer.bias + 10.0,
            head.weight + 1.0,
            head.bias - 10.0,
        ),
    )


@pytest.mark.parametrize(("centre", "deviation", "limit"), [(0.1, 0.2, 0.3), (0.8, 0.4, 0.5)])
def test_target_noise_is_a_clipped_gaussian_and_actions_stay_in_the_box(centre, deviation, limit):
    """A clipped normal has an atom at each limit; the box clips what lies beyond 1."""
    network = jax.tree.map(jnp.zeros_like, PolicyNetwork(jax.random.key(0), 1, 1, (1,)))
    network = eqx.tree_at(lambda net: net.centre.bias, network, jnp.array([np.arctanh(centre)]))
    config = SmoothedTargetConfig(target_noise=deviation, noise_clip=limit)
    rows = 20_000
    action = np.asarray(
        next_value(
            unit_policy(network, Deterministic(), (0.1, 1.0)),
            identity_critic(),
            jnp.zeros((rows, 1)),
            jax.random.key(0),
            config,
        )
    )
    low, high = centre - limit, min(centre + limit, 1.0)
    np.testing.assert_allclose([action.min(), action.max()], [low, high], atol=1e-5)
    noise = scipy.stats.norm(centre, deviation)
    for end, share in ((low, noise.cdf(low)), (high, noise.sf(high))):
        found = np.mean(np.abs(action - end) < 1e-5)
        assert abs(found - share) < 5 * np.sqrt(share * (1 - share) / rows)
    between = action[(action > low + 1e-4) & (action < high - 1e-4)]
    ends = noise.cdf([low + 1e-4, high - 1e-4])
    result = scipy.stats.kstest(between, lambda x: (noise.cdf(x) - ends[0]) / (ends[1] - ends[0]))
    assert result.pvalue > 1e-4


def test_the_gradient_of_the_scaled_value_treats_mean_abs_q_as_a_constant(critic):
    """Finite differences of mean Q1, divided by mean |Q1| at the given actions."""
    value, gradient = jax.jit(
        jax.value_and_grad(
            lambda action: scaled_value(critic(jnp.asarray(OBSERVATION), action)[0], PROBLEM)
        )
    )(jnp.asarray(ACTION))
    action = np.asarray(ACTION, float)
    here = numpy_critic(critic, 0, action)
    size = np.mean(np.abs(here))
    assert np.any(here > 0.0) and np.any(here < 0.0)
    np.testing.assert_allclose(value, np.mean(here) / size, rtol=1e-4)
    step = 1e-6
    for row, column in [(0, 0), (7, 1), (39, 0), (20, 1)]:
        ahead, behind = action.copy(), action.copy()
        ahead[row, column] += step
        behind[row, column] -= step
        rise = np.mean(numpy_critic(critic, 0, ahead)) - np.mean(numpy_critic(critic, 0, behind))
        np.testing.assert_allclose(
            gradient[row, column], rise / (2 * step) / size, rtol=1e-3, atol=1e-7
        )


@pytest.mark.parametrize("rule", OUTSIDE_RULES)
def test_the_loss_is_finite_for_actions_at_the_ends_of_a_band(rule):
    """The ends of the support and of the density may differ by rounding."""
    config = BCConfig(hidden=(8,), policy="sparse_q_gaussian", outside_support=rule)
    learner = start_policy(jax.random.key(3), PROBLEM, config)
    policy = learned_policy(learner.network, config)
    observation = jax.random.normal(jax.random.key(4), (4_000, 3))
    low, high = eqx.filter_jit(policy.support)(observation)
    # The first coordinate is at one of the ends, the second in the middle.
    action = jnp.stack([jnp.where(observation[:, 0] > 0.0, high[:, 0], low[:, 0]),
                        (low[:, 1] + high[:, 1]) / 2.0], axis=-1)  # fmt: skip
    rows = jnp.ones(len(action))
    batch = Batch(observation, action, rows, observation, rows)
    moved, metrics = jax.jit(fit_policy, static_argnums=4)(
        learner, batch, rows, jax.random.key(5), config
    )
    assert np.all(np.isfinite(metrics["actor_loss"]))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(moved.network))


def test_an_action_with_zero_density_is_left_out_of_the_update(monkeypatch):
    """As if it were not in the batch, except that the mean still divides by all rows."""
    config = BCConfig(hidden=(8,), policy="sparse_q_gaussian", outside_support="project")
    learner = start_policy(jax.random.key(3), PROBLEM, config)
    low, high = learned_policy(learner.network, config).support(jnp.asarray(OBSERVATION))
    outside = np.arange(ROWS) % 3 == 0
    middle = (low + high) / 2.0
    beyond = jnp.where(outside[:, None], high + 0.1, middle)
    # Leave some actions outside the band, as rounding errors could.
    monkeypatch.setattr(parts, "regressed_action", lambda policy, observation, action, *_: action)

    @jax.jit
    def moments(action, weight):
        batch = Batch(jnp.asarray(OBSERVATION), action, weight, jnp.asarray(OBSERVATION), weight)
        moved, metrics = fit_policy(learner, batch, weight, jax.random.key(5), config)
        return moved.moments.mu, metrics["actor_loss"]

    found, losses = moments(beyond, jnp.ones(ROWS))
    np.testing.assert_array_equal(np.asarray(losses)[outside], 0.0)
    expected, _ = moments(middle, jnp.asarray(~outside, jnp.float32))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other), found, expected)


def test_actions_with_zero_density_inside_the_bounding_box_are_replaced():
    """The density is zero at the corners of the published ellipsoid's bounding box."""
    network = PolicyNetwork(jax.random.key(0), 3, 2, (8,))
    policy = sparse_policy(network)
    observation = jnp.asarray(OBSERVATION)
    low, high = policy.support(observation)
    corner = low + 0.98 * (high - low)
    assert np.all(np.asarray(inside_support(policy, observation, corner)))
    chosen = regressed_action(policy, observation, corner, "replace", jax.random.key(1))
    assert np.all(np.isfinite(policy(observation).log_prob(chosen)))
