"""FtTPO on problems with known answers: the optimal half-width, and actions to exclude."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.algorithms import Batch, Problem, fttpo, fttpo_published
from fat2thin.algorithms.configs import LearningConfig
from fat2thin.algorithms.fttpo import Scene, actor_policy, proposal_policy
from fat2thin.algorithms.fttpo_config import FtTPOConfig, check
from fat2thin.algorithms.published import floored_weight, heavy_policy, sparse_policy
from fat2thin.algorithms.steps import descend, start
from fat2thin.distributions import kl_sparse_cauchy
from fat2thin.distributions.divergences import optimal_half_width
from fat2thin.policies.networks import Critics, Linear, PolicyNetwork

BEST_RATIO = 3.2579
NO_WIDTH = Linear(jax.random.key(0), 8, 1)  # the closed-form actor does not use it
PROBLEM = Problem(2, (-1.0,), (1.0,), 0.9)
NO_CRITIC = Critics(jax.random.key(0), 2, 1, (2,))  # these losses do not use it


def narrow_proposal(key, size=1):
    """Return a proposal network whose scale depends on the state, far from the edge of the box."""
    network = PolicyNetwork(key, 2, size, (8,))
    heads = jnp.full(size, -6.0), network.centre.weight / 4.0
    return eqx.tree_at(lambda n: (n.log_scale.bias, n.centre.weight), network, heads)


def learn_width(config, network, observation, steps, rate):
    """Train only the actor's width with Adam; the proposal is fixed."""
    loss = fttpo.ACTOR_LOSSES[config.actor_loss]
    fat = proposal_policy(network, config)

    @jax.jit
    def run(learner):
        def step(learner, count):
            def objective(width):
                thin = actor_policy(network, width, config)
                key = jax.random.fold_in(jax.random.key(5), count)
                rows = loss(Scene(thin, fat, NO_CRITIC, observation, key, PROBLEM), config)
                return jnp.mean(rows), {}

            # The learning rate falls, so that the noise of sampled losses averages out.
            shrinking = rate / (1.0 + 10.0 * count / steps)
            return descend(learner, objective, config, shrinking)[0], None

        return jax.lax.scan(step, learner, jnp.arange(steps))[0]

    return run(start(Linear(jax.random.key(9), 8, network.centre.bias.shape[0]))).network


# The sampled loss needs many states to average out its noise.
@pytest.mark.parametrize(
    ("kind", "rows", "tolerance"), [("exact", 64, 0.04), ("sampled", 256, 0.12)]
)
def test_the_learned_half_width_is_the_exact_solution(kind, rows, tolerance):
    """r(s) = k* gamma(s) in every state where the box does not bind."""
    config = FtTPOConfig(actor_loss=kind, proposal_scale_low=1e-4, half_width_low=1e-4)
    network = narrow_proposal(jax.random.key(0), size=2)
    observation = jax.random.normal(jax.random.key(1), (rows, 2))
    width = learn_width(config, network, observation, 6_000, 0.03)
    thin = actor_policy(network, width, config)(observation).base_dist
    fat = proposal_policy(network, config)(observation).base_dist
    gamma = np.sqrt(2.0) * np.asarray(fat.scale)
    # The box binds nowhere, and the scale differs between states.
    assert np.all(np.abs(fat.loc) + 1.2 * BEST_RATIO * gamma < 1.0)
    assert np.max(gamma) > 1.5 * np.min(gamma)
    ratio = np.asarray(thin.half_width) / gamma
    np.testing.assert_allclose(ratio, BEST_RATIO, rtol=tolerance)
    np.testing.assert_allclose(np.median(ratio), BEST_RATIO, rtol=tolerance / 10.0)


def test_the_closed_form_half_width_is_the_exact_solution():
    config = FtTPOConfig(actor_loss="closed_form")
    network = narrow_proposal(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (64, 2))
    thin = actor_policy(network, NO_WIDTH, config)(observation).base_dist
    gamma = np.sqrt(2.0) * proposal_policy(network, config)(observation).base_dist.scale
    np.testing.assert_allclose(thin.half_width / gamma, BEST_RATIO, rtol=1e-4)
    halved = dataclasses.replace(config, kept_mass=0.5)
    ratio = actor_policy(network, NO_WIDTH, halved)(observation).base_dist.half_width / gamma
    np.testing.assert_allclose(2 / np.pi * np.arctan(ratio), 0.5, rtol=1e-4)


def test_the_closed_form_half_width_keeps_its_bounds():
    """Half-widths of 3.2579 sqrt(2) times scales from 0.007 to 0.4, bounded by 0.1 and 0.5."""
    config = FtTPOConfig(actor_loss="closed_form", half_width_low=0.1, half_width_high=0.5)
    scale = np.geomspace(0.007, 0.4, 8)

    @jax.jit
    @jax.vmap
    def width(log_scale):
        thin = actor_policy(constant_policy(log_scale), NO_WIDTH, config)
        low, high = thin.support(jnp.zeros(2))
        return (high - low)[0] / 2.0

    widths = width(jnp.asarray(np.log(scale), jnp.float32))
    expected = np.clip(BEST_RATIO * np.sqrt(2.0) * scale, 0.1, 0.5)
    assert np.sum(expected == 0.1) > 1 and np.sum(expected == 0.5) > 1
    np.testing.assert_allclose(widths, expected, rtol=1e-4)


def test_a_student_t_proposal_with_one_degree_of_freedom_is_the_cauchy():
    config = FtTPOConfig(actor_loss="closed_form", proposal_family="student_t")
    np.testing.assert_allclose(fttpo.half_width_ratio(config), BEST_RATIO, rtol=1e-4)
    plain = FtTPOConfig(actor_loss="closed_form")
    np.testing.assert_allclose(fttpo.half_width_ratio(plain), optimal_half_width(0.0, 2.0))


def test_the_exact_loss_equals_the_closed_form_divergence():
    config = FtTPOConfig()
    network = narrow_proposal(jax.random.key(0), size=3)
    observation = jax.random.normal(jax.random.key(1), (8, 2))
    width = Linear(jax.random.key(2), 8, 3)
    width = eqx.tree_at(lambda layer: layer.bias, width, jnp.full(3, -5.0))
    thin, fat = actor_policy(network, width, config), proposal_policy(network, config)
    loss = fttpo.exact_loss(
        Scene(thin, fat, NO_CRITIC, observation, jax.random.key(0), PROBLEM), config
    )
    gamma = np.sqrt(2.0) * fat(observation).base_dist.scale
    closed = kl_sparse_cauchy(thin(observation).base_dist.half_width, gamma)
    np.testing.assert_allclose(loss, jnp.sum(closed, axis=-1), rtol=1e-3)


def constant_policy(log_spread):
    """Return a policy network with centre 0 and this log spread for every observation."""
    network = PolicyNetwork(jax.random.key(0), 2, 1, (4,))
    network = jax.tree.map(jnp.zeros_like, network)
    return eqx.tree_at(lambda n: n.log_scale.bias, network, jnp.full(1, log_spread))


@pytest.mark.parametrize(
    ("shift", "expected"),
    # As published: 2.8539 sqrt(s). With only the mass corrected: the bound, (1.5)^(1/3).
    [(0.0, 2.8539 * 0.1), (-np.log(2.0) / 2.0, 1.1447)],
    ids=["published", "normaliser corrected"],
)
def test_the_published_actor_converges_to_the_derived_half_width(shift, expected):
    observation = jnp.zeros((512, 2))
    fat = heavy_policy(constant_policy(np.log(0.01)))

    @jax.jit
    def run(learner):
        def step(learner, count):
            def objective(network):
                key = jax.random.fold_in(jax.random.key(1), count)
                thin = sparse_policy(network)
                return fttpo_published.actor_loss(thin, fat, observation, key, shift), {}

            shrinking = 0.01 / (1.0 + 5.0 * count / 4_000)
            return descend(learner, objective, LearningConfig(), shrinking)[0], None

        return jax.lax.scan(step, learner, jnp.arange(4_000))[0]

    actor = sparse_policy(run(start(constant_policy(np.log(0.01)))).network)
    np.testing.assert_allclose(actor(observation[:1]).half_width, expected, rtol=0.03)


def test_published_weights_have_lower_and_upper_bounds():
    """1 + A / tau, clipped to between 1e-8 and 1e4."""
    advantage = np.array([-3.0, -0.5, -0.25, 0.0, 2.0, 1e5])
    found = floored_weight(jnp.asarray(advantage, jnp.float32), 0.5)
    np.testing.assert_allclose(found, [1e-8, 1e-8, 0.5, 1.0, 5.0, 1e4], rtol=1e-6)


def test_the_published_spot_loss_divides_by_the_signed_value():
    """-Q / V(s) - tau log proposal: where V(s) is negative, the actor minimises Q."""
    observation, baseline = jnp.zeros((4, 2)), jnp.array([-2.0, 0.5, 1.0, -0.1])
    thin, fat = sparse_policy(constant_policy(-6.0)), heavy_policy(constant_policy(-2.0))
    critic = Critics(jax.random.key(4), 2, 1, (4,))

    @jax.jit
    def compute(key):
        action = thin(observation).sample(key)
        loss = fttpo_published.spot_loss(thin, fat, critic, baseline, 0.3, observation, key)
        return loss, critic(observation, action), fat(observation).log_prob(action)

    loss, values, log_density = (np.asarray(part) for part in compute(jax.random.key(3)))
    expected = np.mean(-np.min(values, axis=0) / np.asarray(baseline) - 0.3 * log_density)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def train(config, problem, logged, steps):
    """Train on a fixed log, with rows drawn with replacement; return the policy."""

    @jax.jit
    def run(state):
        def step(state, count):
            row_key, key = jax.random.split(jax.random.fold_in(jax.random.key(7), count))
            rows = jax.random.randint(row_key, (64,), 0, logged.reward.shape[0])
            batch = jax.tree.map(lambda leaf: leaf[rows], logged)
            return fttpo.update(state, batch, key, problem, config)

        return jax.lax.scan(step, state, jnp.arange(steps))

    state, metrics = run(fttpo.init(jax.random.key(0), problem, config))
    assert all(np.all(np.isfinite(value)) for value in metrics.values())
    return fttpo.policy(state, problem, config)


def bandit(observation, action, reward):
    return Batch(observation, action, reward, observation, jnp.zeros_like(reward))


LOSSES = [
    "exact",
    pytest.param("sampled", marks=pytest.mark.slow),
    pytest.param("closed_form", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_the_best_action_is_found_in_a_gap_of_the_data(kind):
    """No logged action is near the best; bad actions get a probability of exactly 0."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1.0, 1.0, (4_000, 1))
    action = jnp.asarray(action[np.abs(action[:, 0] - 0.2) > 0.1])
    reward = -4.0 * (action[:, 0] - 0.2) ** 2
    logged = bandit(jnp.ones((len(action), 2)), action, reward)
    problem = Problem(2, (-1.0,), (1.0,), 0.9)
    config = FtTPOConfig(learning_rate=1e-3, temperature=0.1, actor_loss=kind, hidden=(32, 32))
    policy = train(config, problem, logged, 2_500)
    observation = jnp.ones(2)
    np.testing.assert_allclose(policy.act(observation), 0.2, atol=0.15)
    bad = jnp.array([[-1.0], [-0.6], [-0.5], [0.9], [1.0]])
    density = jnp.exp(policy(observation).log_prob(bad))
    assert np.all(np.asarray(density) == 0.0)
    base = policy(observation).base_dist
    assert base.cdf(jnp.array([-0.5]))[0] == 0.0
    assert base.cdf(jnp.array([0.9]))[0] == 1.0


@pytest.mark.parametrize("kind", LOSSES)
def test_state_dependent_bad_actions_get_zero_probability(kind):
    """The good half of the actions depends on the state; the other half has zero probability."""
    rng = np.random.default_rng(1)
    side = rng.choice([-1.0, 1.0], 4_000)
    action = rng.uniform(-1.0, 1.0, 4_000)
    reward = np.where(side * action < 0.0, -5.0, 1.0 - 4.0 * (side * action - 0.5) ** 2)
    observation = jnp.asarray(np.stack([side, np.ones_like(side)], axis=1))
    logged = bandit(observation, jnp.asarray(action)[:, None], jnp.asarray(reward))
    # The box is +-100, so that units differ from half-ranges.
    problem = Problem(2, (-100.0,), (100.0,), 0.9)
    config = FtTPOConfig(learning_rate=1e-3, temperature=0.1, actor_loss=kind, hidden=(32, 32))
    policy = train(config, problem, logged, 2_500)
    patients = jnp.array([[-1.0, 1.0], [1.0, 1.0]])
    low, high = policy.support(patients)
    assert high[0, 0] < 0.0 < low[1, 0]
    base = policy(patients).base_dist
    mass = jnp.array([1.0 - base.cdf(jnp.zeros((2, 1)))[0, 0], base.cdf(jnp.zeros((2, 1)))[1, 0]])
    assert np.all(np.asarray(mass) == 0.0)
    np.testing.assert_allclose(policy.act(patients)[:, 0], [-50.0, 50.0], atol=15.0)


def test_the_actors_loss_has_no_gradient_for_the_proposal():
    network, width = narrow_proposal(jax.random.key(0)), Linear(jax.random.key(2), 8, 1)
    observation = jax.random.normal(jax.random.key(1), (4, 2))
    config = FtTPOConfig()

    def loss(network, width):
        fat = proposal_policy(network, config)
        fat = jax.tree.map(jax.lax.stop_gradient, fat)
        scene = Scene(
            actor_policy(network, width, config),
            fat,
            NO_CRITIC,
            observation,
            jax.random.key(0),
            PROBLEM,
        )
        return jnp.mean(fttpo.exact_loss(scene, config))

    of_network, of_width = jax.jit(jax.grad(loss, argnums=(0, 1)))(network, width)
    assert all(np.all(np.asarray(leaf) == 0.0) for leaf in jax.tree.leaves(of_network))
    assert all(np.any(np.asarray(leaf) != 0.0) for leaf in jax.tree.leaves(of_width))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"temperature": -1.0}, "temperature"),
        ({"proposal_index": 3.0}, "proposal_index"),
        ({"actor_index": 1.0}, "actor_index"),
        ({"kept_mass": 1.5, "actor_loss": "closed_form"}, "kept_mass"),
        ({"kept_mass": 0.5}, "kept_mass=0.5 has no effect: it is a setting of"),
        ({"greedy_samples": 3}, "greedy_samples=3 has no effect"),
        ({"degrees_of_freedom": 3.0}, "degrees_of_freedom=3.0 has no effect"),
        ({"proposal_family": "beta", "proposal_index": 1.5}, "proposal_index=1.5 has no effect"),
        ({"proposal_family": "beta", "actor_loss": "closed_form"}, "closed_form"),
        ({"published": True, "box": "clip"}, "box='clip' has no effect: published=True"),
        ({"published": True, "actor_loss": "greedy"}, "published=True supports only actor_loss"),
        ({"actor_loss": "best"}, "actor_loss must be one of"),
        ({"hidden": ()}, "hidden"),
        ({"proposal_scale_low": 20.0}, "proposal_scale_low"),
        ({"temperature": float("nan")}, "temperature"),
        ({"proposal_family": "squashed_gaussian", "actor_loss": "closed_form"}, "closed_form"),
        ({"proposal_family": "squashed_gaussian", "box": "clip"}, "box='clip'"),
    ],
)
def test_settings_out_of_range_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        check(FtTPOConfig(**settings))
