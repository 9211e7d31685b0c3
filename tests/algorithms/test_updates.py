"""One update of each algorithm compared with NumPy: losses, weights, gradients and targets.

After the first update, Adam's first moment is a tenth of the gradient, so it shows the gradient of
each loss. The learning rate is large, so that a network's outputs before and after its step differ.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluation.numpy_networks import network, scalar, take, twins
from fat2thin import algorithms
from fat2thin.algorithms.base import Batch, Problem, with_numbers
from fat2thin.algorithms.quasi_optimal import QuadraticCritic
from fat2thin.algorithms.steps import Learner
from fat2thin.distributions import QGaussian
from fat2thin.policies.networks import Linear, PolicyNetwork
from untrained import _shaken

PROBLEM = Problem(2, (-1.0, -1.0), (1.0, 1.0), discount=0.9)
ROWS = 16
KEY = jax.random.key(2)
POLYAK = 0.3


def make_batch():
    rng = np.random.default_rng(0)
    shapes = {"observation": (2,), "action": (2,), "reward": (), "next_observation": (2,)}
    rows = {name: rng.uniform(-0.9, 0.9, (ROWS, *shape)) for name, shape in shapes.items()}
    rows["next_action"] = rng.uniform(-0.9, 0.9, (ROWS, 2))
    marks = {"continuation": np.arange(ROWS) % 4 != 0, "next_logged": np.arange(ROWS) % 5 != 0}
    return Batch(**rows, **{name: mark.astype(float) for name, mark in marks.items()})


ROW = make_batch()


class Update(NamedTuple):
    """The states before and after one update, in float64, and its metrics."""

    before: Any
    after: Any
    metrics: dict[str, np.ndarray]


def update(name, **settings):
    algorithm = algorithms.get(name)
    targets = {"polyak_rate": POLYAK} if hasattr(algorithm.config, "polyak_rate") else {}
    config = algorithm.config(hidden=(4,), learning_rate=0.05, **targets, **settings)
    algorithm.check(config)
    fresh = algorithm.init(jax.random.key(0), PROBLEM, config)
    rng = np.random.default_rng(1)
    before = type(fresh)(*(calm(_shaken(part, rng)) for part in fresh))
    batch = jax.tree.map(lambda rows: jnp.asarray(rows, jnp.float32), ROW)
    step = jax.jit(algorithm.update, static_argnums=(3, 4))
    after, metrics = step(before, batch, KEY, PROBLEM, config)
    return Update(*jax.tree.map(np.float64, (before, after, metrics)))


def calm(part):
    """Put scales within their bounds and bands within the box, so that nothing is clipped."""
    if isinstance(part, Learner):
        return part._replace(network=calm(part.network))
    if isinstance(part, QuadraticCritic):
        return eqx.tree_at(lambda critic: critic.parabola, part, calm(part.parabola))
    if isinstance(part, PolicyNetwork):
        part = eqx.tree_at(lambda policy: policy.log_scale, part, calm(part.log_scale))
        return eqx.tree_at(lambda policy: policy.centre.weight, part, 0.3 * part.centre.weight)
    if isinstance(part, Linear):  # the head of a scale
        numbers = 0.2 * part.weight, part.bias - 1.5
        return eqx.tree_at(lambda head: (head.weight, head.bias), part, numbers)
    return part


def assert_rows(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def assert_gradient(done, learner, loss):
    """Check the gradient of `loss(network)` along a random direction by finite differences."""
    before, after = getattr(done.before, learner).network, getattr(done.after, learner)
    rng = np.random.default_rng(5)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), before)

    def at(step):
        return loss(jax.tree.map(lambda leaf, way: leaf + step * way, before, direction))

    slope = (at(1e-5) - at(-1e-5)) / 2e-5
    pairs = [*zip(jax.tree.leaves(after.moments.mu), jax.tree.leaves(direction), strict=True)]
    length = 10.0 * np.sqrt(sum(np.sum(moment**2) for moment, _ in pairs))
    found = 10.0 * sum(np.sum(moment * way) for moment, way in pairs)
    assert length > 1e-3
    np.testing.assert_allclose(found, slope, rtol=0.0, atol=1e-3 * length)


def assert_critics(done, next_value, error=lambda gap: gap**2 / 2.0, extra=lambda critic: 0.0):
    """Check the critics' loss for r + gamma next value, its gradient, and the target update.

    The critics minimise the mean of that loss plus `extra(critics)`.
    """
    goal = ROW.reward + PROBLEM.discount * ROW.continuation * next_value

    def rows(critic):
        return np.mean(error(twins(critic, ROW.observation, ROW.action) - goal), axis=0)

    assert_rows(done.metrics["critic_loss"], rows(done.before.critic.network))
    assert_gradient(done, "critic", lambda critic: np.mean(rows(critic)) + extra(critic))
    assert_followed(done.before.target_critic, done.after.critic.network, done.after.target_critic)


def assert_followed(before, online, after):
    expected = jax.tree.map(lambda old, new: old + POLYAK * (new - old), before, online)
    jax.tree.map(assert_rows, after, expected)


def assert_value(done, rows):
    """Check that V minimises the mean of `rows(V(s))`."""

    def rows_of(value):
        return rows(scalar(value, ROW.observation))

    assert_rows(done.metrics["value_loss"], rows_of(done.before.value.network))
    assert_gradient(done, "value", lambda value: np.mean(rows_of(value)))


def towards(target):
    return lambda value: (value - target) ** 2 / 2.0


def assert_policy(done, rows, learner="actor", metric="actor_loss"):
    """Check that a policy minimises the mean of `rows(policy)`."""
    assert_rows(done.metrics[metric], rows(getattr(done.before, learner).network))
    assert_gradient(done, learner, lambda policy: np.mean(rows(policy)))


def assert_regression(done, weight):
    """Check that the policy minimises the mean of -weight log density, with constant weight."""
    assert np.ptp(weight) > 0.1
    assert_rows(done.metrics["weight_mean"], weight)
    assert_policy(done, lambda policy: -weight * joint(log_squashed(policy, ROW.action)))


def smaller(critic, observation, action):
    return np.min(twins(critic, observation, action), axis=0)


def advantage_after(done):
    critic, value = done.after.critic.network, done.after.value.network
    return smaller(critic, ROW.observation, ROW.action) - scalar(value, ROW.observation)


def heads(policy, observation=ROW.observation):
    """Return the centre before squashing, and the scale."""
    layers = policy.trunk.layers
    centre = network(layers, policy.centre, observation)
    return centre, np.exp(network(layers, policy.log_scale, observation))


def joint(log_densities):
    """Return the sum over coordinates."""
    return np.sum(log_densities, axis=-1)


def log_squashed(policy, action, observation=ROW.observation):
    """Return the log density of a squashed Gaussian, per coordinate."""
    centre, scale = heads(policy, observation)
    inner = np.arctanh(action)
    normal = -(((inner - centre) / scale) ** 2) / 2.0 - np.log(np.sqrt(2.0 * np.pi) * scale)
    return normal - np.log1p(-(action**2))


def log_heavy(policy, action):
    """Return the log density of a q-Gaussian with index 2: a Cauchy of sqrt(2) times the scale."""
    centre, scale = heads(policy)
    width = np.sqrt(2.0) * scale
    return -np.log(np.pi * width * (1.0 + ((action - np.tanh(centre)) / width) ** 2))


def log_sparse(action, centre, half_width):
    """Return the log density of a sparse q-Gaussian with index 0, a parabola."""
    return np.log(0.75 / half_width * (1.0 - ((action - centre) / half_width) ** 2))


def squashed_sample(policy, observation, key):
    """Return a sample of a squashed Gaussian, and its log density."""
    noise = np.asarray(jax.random.normal(key, (ROWS, 2)), float)
    centre, scale = heads(policy, observation)
    action = np.tanh(centre + scale * noise)
    return action, joint(log_squashed(policy, action, observation))


def standard_sample(key, index, shape=()):
    """Return samples of q-Gaussians with location 0 and scale 1."""
    return np.asarray(QGaussian(jnp.zeros((ROWS, 2)), 1.0, index).sample(key, shape), float)


def sparse_sample(centre, half_width, key, shape=()):
    """Return samples of sparse q-Gaussians with index 0, of scale half-width / sqrt(2)."""
    return centre + half_width / np.sqrt(2.0) * standard_sample(key, 0.0, shape)


class FtTPO:
    """One update of FtTPO, and its quantities in NumPy, for a band inside the box."""

    def __init__(self, name="fttpo", log_proposal=log_heavy, **settings):
        self.done, self.log_proposal = update(name, **settings), log_proposal
        self.value_key, self.critic_key, self.actor_key = jax.random.split(KEY, 3)

    def band(self, proposal, width, observation):
        centre, _ = heads(proposal, observation)
        half_width = np.exp(network(proposal.trunk.layers, width, observation))
        assert np.all(np.abs(np.tanh(centre)) + half_width < 1.0)
        return np.tanh(centre), half_width

    def new_band(self, width):
        """Return the band for the updated proposal."""
        return self.band(self.done.after.proposal.network, width, ROW.observation)

    def sample(self, policy, observation, key):
        """Return a sample of the actor or the heavy-tailed proposal before the update."""
        proposal, width = self.done.before.proposal.network, self.done.before.width.network
        if policy == "centre":
            return self.band(proposal, width, observation)[0]
        if policy == "actor":
            return sparse_sample(*self.band(proposal, width, observation), key)
        centre, scale = heads(proposal, observation)
        return np.clip(np.tanh(centre) + scale * standard_sample(key, 2.0), -1.0, 1.0)

    def values(self, values, action=ROW.action):
        """Return V and both Q; the input of V has zeros in place of the action."""
        blind, seen = (
            np.concatenate([ROW.observation, of], axis=1) for of in (np.zeros_like(action), action)
        )
        value, *critics = (take(values.members, place) for place in range(3))
        return scalar(value, blind), np.stack([scalar(one, seen) for one in critics])

    def smallest(self, action):
        """Return the smaller of the updated critics' values."""
        return np.min(self.values(self.done.after.values.network, action)[1], axis=0)

    def log_new_proposal(self, action):
        return self.log_proposal(self.done.after.proposal.network, action)

    def divergence(self, width):
        """Return KL(actor || proposal) in each state, by Gauss-Legendre quadrature."""
        centre, half_width = self.new_band(width)
        nodes, weights = (of[:, None, None] for of in np.polynomial.legendre.leggauss(200))
        action = centre + half_width * nodes
        log_ratio = log_sparse(action, centre, half_width) - self.log_new_proposal(action)
        return joint(np.sum(weights * 0.75 * (1.0 - nodes**2) * log_ratio, axis=0))

    def assert_update(self, actor_rows, value_under="actor", critic_under="actor"):
        """Check value, critics and proposal, and that the width minimises `actor_rows(width)`."""
        done, target = self.done, self.done.before.target_critic
        here = self.sample(value_under, ROW.observation, self.value_key)
        following = self.sample(critic_under, ROW.next_observation, self.critic_key)
        value_rows = towards(smaller(target, ROW.observation, here))
        next_value = smaller(target, ROW.next_observation, following)
        critic_rows = towards(ROW.reward + PROBLEM.discount * ROW.continuation * next_value)

        def both(values):
            value, critics = self.values(values)
            return value_rows(value), np.mean(critic_rows(critics), axis=0)

        expected = both(done.before.values.network)
        assert_rows([done.metrics["value_loss"], done.metrics["critic_loss"]], expected)
        assert_gradient(done, "values", lambda values: sum(map(np.mean, both(values))))
        after = done.after.values.network
        critics = jax.tree.map(lambda leaf: leaf[1:], after.members)
        assert_followed(target.members, critics, done.after.target_critic.members)

        value, critics = self.values(after)
        weight = np.maximum(1.0 + (np.min(critics, axis=0) - value) / 0.5, 0.0)
        assert np.ptp(weight) > 0.1
        assert_rows(done.metrics["weight_mean"], weight)
        assert_policy(
            done, lambda proposal: -weight * joint(self.log_proposal(proposal, ROW.action)),
            "proposal", "proposal_loss",
        )  # fmt: skip
        assert_policy(done, actor_rows, "width")


@pytest.mark.parametrize(("value", "critic"), [("proposal", "actor"), ("actor", "centre")])
def test_fttpo_value_and_critics_evaluate_the_configured_policies(value, critic):
    under = {"value_under": value, "critic_under": critic}
    method = FtTPO(**under)
    method.assert_update(method.divergence, **under)


def test_fttpo_with_a_squashed_proposal_uses_the_squashed_centre():
    method = FtTPO("fttpo-sg", log_squashed)
    method.assert_update(method.divergence)


def test_fttpo_spot_maximises_q_close_to_the_proposal():
    method = FtTPO("fttpo-spot")
    width = method.done.before.width.network
    action = sparse_sample(*method.new_band(width), method.actor_key)
    size = np.mean(np.abs(method.smallest(action)))

    def rows(width):
        action = sparse_sample(*method.new_band(width), method.actor_key)
        return -method.smallest(action) / size - 0.5 * joint(method.log_new_proposal(action))

    method.assert_update(rows)


def test_fttpo_greedy_learns_from_its_best_samples():
    method = FtTPO("fttpo-greedy", greedy_samples=5, greedy_share=0.4)
    width = method.done.before.width.network
    samples = sparse_sample(*method.new_band(width), method.actor_key, (5,))
    values = np.stack([method.smallest(action) for action in samples])
    best = np.argsort(values, axis=0)[-2:]
    chosen = np.stack([samples[place, np.arange(ROWS)] for place in best])

    def rows(width):
        likelihood = joint(log_sparse(chosen, *method.new_band(width)))
        return 0.5 * method.divergence(width) - np.mean(likelihood, axis=0)

    method.assert_update(rows)


def test_tawac_drops_actions_below_the_threshold():
    done = update("tawac")
    before, (value_key, critic_key, _) = done.before, jax.random.split(KEY, 3)
    actor, target = before.actor.network, before.target_critic
    here, _ = squashed_sample(actor, ROW.observation, value_key)
    following, _ = squashed_sample(actor, ROW.next_observation, critic_key)
    assert_value(done, towards(smaller(target, ROW.observation, here)))
    assert_critics(done, smaller(target, ROW.next_observation, following))
    weight = np.maximum(1.0 + advantage_after(done) / 0.5, 0.0)
    assert np.any(weight == 0.0)
    assert_regression(done, weight)


@pytest.mark.parametrize("weights", ["exponential", "batch_softmax"])
def test_the_value_in_awac_is_the_mean_q_of_several_samples(weights):
    done = update("awac", value_samples=3, weights=weights)
    before, (critic_key, value_key, _) = done.before, jax.random.split(KEY, 3)
    actor, critic = before.actor.network, done.after.critic.network
    following, _ = squashed_sample(actor, ROW.next_observation, critic_key)
    assert_critics(done, smaller(before.target_critic, ROW.next_observation, following))
    draws = (squashed_sample(actor, ROW.observation, one) for one in jax.random.split(value_key, 3))
    value = np.mean([smaller(critic, ROW.observation, action) for action, _ in draws], axis=0)
    assert_rows(done.metrics["v_mean"], value)
    weight = np.exp(smaller(critic, ROW.observation, ROW.action) - value)
    # A softmax over the batch, of mean 1.
    assert_regression(done, weight if weights == "exponential" else weight / np.mean(weight))


def test_iql_learns_an_expectile_and_weights_from_the_target_critics():
    done = update("iql", expectile=0.8)
    logged = smaller(done.before.target_critic, ROW.observation, ROW.action)
    assert_value(done, lambda value: np.where(logged < value, 0.2, 0.8) * (logged - value) ** 2)
    value = done.after.value.network
    assert_critics(done, scalar(value, ROW.next_observation))
    advantage = logged - scalar(value, ROW.observation)
    assert_regression(done, np.minimum(np.exp(3.0 * advantage), 100.0))


def test_sql_learns_the_sparse_value_and_weights():
    done = update("sql", temperature=0.3)
    logged = smaller(done.before.target_critic, ROW.observation, ROW.action)

    def rows(value):
        return np.maximum(1.0 + (logged - value) / 0.6, 0.0) ** 2 + value / 0.3

    assert_value(done, rows)
    value = done.after.value.network
    assert_critics(done, scalar(value, ROW.next_observation))
    assert_regression(done, np.maximum(1.0 + (logged - scalar(value, ROW.observation)) / 0.6, 0.0))


def huber(gap):
    return np.where(np.abs(gap) <= 0.5, gap**2 / 2.0, 0.5 * np.abs(gap) - 0.125)


def watched_values(done, key, random_actions):
    """Slow Q of the logged action and of random ones, all with noise of 0.1 in the box."""
    random_key, noise_key = jax.random.split(key)
    shape = (random_actions, ROWS, 2)
    drawn = np.asarray(jax.random.uniform(random_key, shape, minval=-1.0), float)
    actions = np.concatenate([ROW.action[None], drawn])
    noise = 0.1 * np.asarray(jax.random.normal(noise_key, actions.shape), float)
    actions = np.clip(actions + np.clip(noise, -0.5, 0.5), -1.0, 1.0)
    target = done.before.target_critic
    return np.stack([smaller(target, ROW.observation, action) for action in actions])


def assert_rest_of_xql(done):
    value, target = done.after.value.network, done.before.target_critic
    assert_critics(done, scalar(value, ROW.next_observation), huber)
    advantage = smaller(target, ROW.observation, ROW.action) - scalar(value, ROW.observation)
    assert_regression(done, np.minimum(np.exp(3.0 * advantage), 100.0))


def test_xql_takes_the_soft_maximum_over_random_actions_too():
    done = update("xql", random_actions=2, action_noise=0.1, value_temperature=0.8, huber_limit=0.5)
    watched = watched_values(done, jax.random.split(KEY)[0], 2)
    start = scalar(done.before.value.network, ROW.observation)
    shift = max(np.max(watched - start) / 0.8, -1.0)

    def rows(value):
        z = (watched - value) / 0.8
        return np.mean((np.exp(z) - z - 1.0) * np.exp(-shift), axis=0)

    assert shift < 7.0
    assert_value(done, rows)
    assert_rest_of_xql(done)


def test_published_xql_is_an_expectile_over_logged_and_random_actions():
    done = update("xql", published=True, huber_limit=0.5)
    watched = watched_values(done, jax.random.split(KEY)[0], 1)

    def rows(value):
        return np.mean(np.where(watched < value, 0.2, 0.8) * (watched - value) ** 2, axis=0)

    assert_value(done, rows)
    assert_rest_of_xql(done)


def test_inac_divides_the_weights_by_the_behaviours_density():
    done = update("inac", temperature=2.0, weight_limit=10.0)
    before, (value_key, critic_key, _) = done.before, jax.random.split(KEY, 3)

    def soft_value(observation, key):
        action, log_density = squashed_sample(before.actor.network, observation, key)
        return smaller(before.target_critic, observation, action) - 2.0 * log_density

    def behaviour_rows(policy):
        return -joint(log_squashed(policy, ROW.action))

    assert_policy(done, behaviour_rows, "behaviour", "behaviour_loss")
    assert_value(done, towards(soft_value(ROW.observation, value_key)))
    assert_critics(done, soft_value(ROW.next_observation, critic_key))
    log_behaviour = -behaviour_rows(done.after.behaviour.network)
    weight = np.exp(advantage_after(done) / 2.0 - log_behaviour)
    assert 0.1 < np.mean(weight > 10.0) < 0.9
    assert_regression(done, np.minimum(weight, 10.0))


def centre_of(policy, observation=ROW.observation):
    return np.tanh(heads(policy, observation)[0])


def first_of(values):
    return values[0]


def assert_td3_update(done, next_key, actor_rows, pick=first_of, penalty=np.zeros_like):
    """Check TD3's critics with a smoothed target policy, and the policy's loss.

    `pick` chooses among the critics in the policy's loss, and `penalty` is one of the next actions.
    """
    before, after = done.before, done.after
    noise = 0.2 * np.asarray(jax.random.normal(jax.random.split(next_key)[1], (ROWS, 2)), float)
    following = centre_of(before.target_actor, ROW.next_observation) + np.clip(noise, -0.5, 0.5)
    following = np.clip(following, -1.0, 1.0)
    next_value = smaller(before.target_critic, ROW.next_observation, following)
    assert_critics(done, next_value - np.sum(penalty(following), axis=1))
    assert_followed(before.target_actor, after.actor.network, after.target_actor)

    def picked(policy):
        return pick(twins(after.critic.network, ROW.observation, centre_of(policy)))

    size = np.mean(np.abs(picked(before.actor.network)))

    def loss(policy):
        return np.mean(actor_rows(policy)) - np.mean(picked(policy)) / size

    assert_rows(done.metrics["actor_loss"], loss(before.actor.network))
    assert_gradient(done, "actor", loss)


def test_td3_bc_maximises_the_first_critic_close_to_logged_actions():
    done = update("td3_bc", delay=1, q_weight=1.0)
    next_key, _ = jax.random.split(KEY)
    assert_td3_update(done, next_key, lambda policy: (centre_of(policy) - ROW.action) ** 2)


def test_rebrac_penalises_the_policy_and_the_next_actions():
    """The penalties are sums over coordinates; the next action is unknown at every fifth row."""
    done = update("rebrac", delay=1, actor_penalty=0.7, critic_penalty=0.6, critic_count=3)
    assert len(done.before.critic.network.members.trunk.norms) == 1

    def smallest(values):
        assert len({*np.argmin(values, axis=0)}) > 1
        return np.min(values, axis=0)

    assert_td3_update(
        done, jax.random.split(KEY)[0],
        lambda policy: 0.7 * np.sum((centre_of(policy) - ROW.action) ** 2, axis=1),
        pick=smallest,
        penalty=lambda action: 0.6 * ROW.next_logged[:, None] * (action - ROW.next_action) ** 2,
    )  # fmt: skip
    assert_rows(
        done.metrics["logged_distance"],
        np.sum((centre_of(done.before.actor.network) - ROW.action) ** 2, axis=1),
    )


def test_rebrac_without_next_actions_is_an_error():
    algorithm = algorithms.get("rebrac")
    config = algorithm.config(hidden=(4,))
    state = algorithm.init(jax.random.key(0), PROBLEM, config)
    rows = jax.tree.map(jnp.asarray, ROW._replace(next_action=None, next_logged=None))
    with pytest.raises(ValueError, match=r"batch_of\(dataset, next_action=True\)"):
        algorithm.update(state, rows, KEY, PROBLEM, config)


def test_spot_maximises_the_first_critic_within_the_support_of_the_model():
    done = update("spot", delay=1, actor_dropout=0.0, vae_hidden=(4,), vae_beta=0.4)
    next_key, _, model_key, _ = jax.random.split(KEY, 4)
    model, noise = done.before.density.network, jax.random.normal(model_key, (ROWS, 4))

    def rows(policy):
        action = centre_of(policy)
        inputs = np.concatenate([ROW.observation, action], axis=1)
        mean = network(model.encoder.layers, model.latent_mean, inputs)
        log_deviation = network(model.encoder.layers, model.latent_log_deviation, inputs)
        latent = mean + np.exp(log_deviation) * np.asarray(noise, float)
        inputs = np.concatenate([ROW.observation, latent], axis=1)
        decoded = np.tanh(network(model.decoder.layers, model.action, inputs))
        divergence = (np.exp(2.0 * log_deviation) + mean**2 - 1.0) / 2.0 - log_deviation
        errors = np.mean((decoded - action) ** 2, axis=1) + 0.4 * np.mean(divergence, axis=1)
        return 0.1 * errors

    assert_td3_update(done, next_key, rows)


def gradient_cosines(critic):
    """Return the mean cosine of dQ/da over pairs of critics with one hidden layer, per row."""
    units = []
    for place in range(critic.members.head.bias.shape[0]):
        member = take(critic.members, place)
        (layer,) = member.trunk.layers
        hidden = np.concatenate([ROW.observation, ROW.action], axis=1) @ layer.weight.T + layer.bias
        slopes = ((hidden > 0.0) * member.head.weight) @ layer.weight[:, 2:]
        lengths = np.linalg.norm(slopes, axis=1, keepdims=True)
        units.append(slopes / np.where(lengths > 0.0, lengths, 1.0))
    pairs = [(one, two) for one in range(len(units)) for two in range(one)]
    return np.mean([np.sum(units[one] * units[two], axis=1) for one, two in pairs], axis=0)


@pytest.mark.parametrize(("name", "diversity"), [("edac", 0.8), ("sac_n", 0.0)])
def test_edac_is_soft_pessimistic_and_diverse(name, diversity):
    done = update(name, critic_count=3, **({"diversity": diversity} if diversity else {}))
    before, after = done.before, done.after
    temperature_key, actor_key, critic_key = jax.random.split(KEY, 3)

    # The entropy should be -2, for two coordinates.
    _, log_density = squashed_sample(before.actor.network, ROW.observation, temperature_key)

    def temperature_loss(temperature):
        return -temperature.log * (np.mean(log_density) - 2.0)

    assert_rows(done.metrics["temperature_loss"], temperature_loss(before.temperature.network))
    assert_gradient(done, "temperature", temperature_loss)
    alpha = np.exp(after.temperature.network.log)
    assert_rows(done.metrics["temperature"], alpha)
    assert abs(alpha - np.exp(before.temperature.network.log)) > 0.01

    def actor_rows(policy):
        action, log_density = squashed_sample(policy, ROW.observation, actor_key)
        return alpha * log_density - smaller(before.critic.network, ROW.observation, action)

    assert_policy(done, actor_rows)
    following, log_density = squashed_sample(after.actor.network, ROW.next_observation, critic_key)
    next_value = smaller(before.target_critic, ROW.next_observation, following)
    assert_critics(
        done, next_value - alpha * log_density,
        extra=lambda critic: diversity / 2.0 * np.mean(gradient_cosines(critic)),
    )  # fmt: skip
    if diversity:
        cosines = gradient_cosines(before.critic.network)
        assert_rows(done.metrics["gradient_similarity"], cosines)
        assert np.ptp(cosines) > 0.5
    else:
        assert "gradient_similarity" not in done.metrics


def test_diversity_turns_the_gradients_of_the_critics_apart():
    """Its weight is traced, so that one program learns with and without it."""
    algorithm = algorithms.get("edac")
    config = algorithm.config(hidden=(8,), learning_rate=0.01, critic_count=3)
    batch = jax.tree.map(lambda rows: jnp.asarray(rows, jnp.float32), ROW)

    @jax.jit
    @jax.vmap
    def learn(diversity):
        own = with_numbers(config, {"diversity": diversity})
        state = algorithm.init(jax.random.key(0), PROBLEM, config)

        def step(state, key):
            state, metrics = algorithm.update(state, batch, key, PROBLEM, own)
            return state, jnp.mean(metrics["gradient_similarity"])

        return jax.lax.scan(step, state, jax.random.split(KEY, 200))[1]

    without, much = np.asarray(learn(jnp.array([0.0, 5.0])))
    assert without[0] == pytest.approx(much[0], abs=1e-6)
    # Three unit vectors have a mean cosine of at least -1/2.
    assert -0.5 <= much[-1] < min(without[-1], much[0]) - 0.2


def test_sparse_reverse_kl_scores_the_policys_own_samples():
    done = update("sparse_reverse_kl", temperature=1.0, weight_floor=0.3)
    before, (value_key, critic_key, actor_key) = done.before, jax.random.split(KEY, 3)
    target = before.target_critic

    def band(policy, observation=ROW.observation):
        centre, half_width = heads(policy, observation)
        assert np.all(np.abs(np.tanh(centre)) + half_width < 1.0)
        return np.tanh(centre), half_width

    def next_value(observation, key):
        action = sparse_sample(*band(before.actor.network, observation), key)
        return smaller(target, observation, action)

    assert_policy(
        done, lambda policy: -joint(log_heavy(policy, ROW.action)), "behaviour", "behaviour_loss"
    )
    assert_value(done, towards(next_value(ROW.observation, value_key)))
    assert_critics(done, next_value(ROW.next_observation, critic_key))
    baseline = scalar(done.after.value.network, ROW.observation)

    def rows(policy):
        centre, half_width = band(policy)
        action = sparse_sample(centre, half_width, actor_key)
        scaled = smaller(done.after.critic.network, ROW.observation, action) - baseline
        # log(1 + x); below the floor, its tangent at x = -0.7.
        kept = np.log(np.maximum(1.0 + scaled, 0.3))
        log_weight = np.where(scaled < -0.7, np.log(0.3) + (scaled + 0.7) / 0.3, kept)
        behaviour = log_heavy(done.after.behaviour.network, action)
        return joint(log_sparse(action, centre, half_width) - behaviour) - log_weight

    assert_policy(done, rows)


def test_quasi_optimal_minimises_the_kernel_loss_through_the_next_value():
    done = update("quasi_optimal", temperature=0.3, observation_bandwidth=0.8, action_bandwidth=0.6)
    inputs = np.concatenate([ROW.observation / 0.8, ROW.action / 0.6], axis=1)
    near = np.exp(-np.sum((inputs[:, None] - inputs[None]) ** 2, axis=-1))
    np.fill_diagonal(near, 0.0)

    def errors(critic):
        centre, curvature = heads(critic.parabola)
        gain = 0.3 * (1.0 - 0.9 / np.cbrt(0.45 / curvature))
        peak = scalar(critic.value, ROW.observation) - joint(gain)
        fall = curvature * (ROW.action - np.tanh(centre)) ** 2
        following = scalar(critic.value, ROW.next_observation)
        goal = ROW.reward + PROBLEM.discount * ROW.continuation * following
        return goal - (peak - joint(fall))

    def loss(critic):
        return errors(critic) @ near @ errors(critic) / (ROWS * (ROWS - 1))

    assert_rows(done.metrics["kernel_loss"], loss(done.before.critic.network))
    assert_rows(done.metrics["critic_loss"], errors(done.before.critic.network) ** 2 / 2.0)
    assert_gradient(done, "critic", loss)
