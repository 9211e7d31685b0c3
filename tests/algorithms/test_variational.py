"""SPOT's autoencoder: compared with NumPy and NumPyro, and trained on two clusters of actions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from fat2thin.algorithms.configs import LearningConfig
from fat2thin.algorithms.spot import VariationalAutoencoder
from fat2thin.algorithms.steps import descend, start

ROWS = 6


@pytest.fixture(scope="module")
def problem():
    """Return a small model with nonzero biases, observations and actions."""
    random = np.random.default_rng(0)
    model = VariationalAutoencoder(jax.random.key(0), 3, 2, 4, (5,))
    model = jax.tree.map(
        lambda leaf: jnp.asarray(leaf + 0.3 * random.normal(size=leaf.shape), jnp.float32), model
    )
    observation = jnp.asarray(random.normal(size=(ROWS, 3)), jnp.float32)
    action = jnp.asarray(random.uniform(-1.0, 1.0, (ROWS, 2)), jnp.float32)
    return model, observation, action


def numpy_heads(trunk, heads, x):
    for layer in trunk.layers:
        x = np.maximum(x @ np.asarray(layer.weight).T + np.asarray(layer.bias), 0.0)
    return [x @ np.asarray(head.weight).T + np.asarray(head.bias) for head in heads]


def test_the_bound_matches_a_numpy_loop(problem):
    model, observation, action = problem
    key = jax.random.key(5)
    bound = eqx.filter_jit(model.bound)(observation, action, key)
    noise = np.asarray(jax.random.normal(key, (ROWS, 4)))
    assert bound.reconstruction.shape == bound.divergence.shape == (ROWS,)
    divergence = jax.jit(
        lambda mean, deviation: jnp.mean(
            dist.kl_divergence(dist.Normal(mean, deviation), dist.Normal(0.0, 1.0))
        )
    )
    for row in range(ROWS):
        state, done = np.asarray(observation[row]), np.asarray(action[row])
        mean, log_deviation = numpy_heads(
            model.encoder, (model.latent_mean, model.latent_log_deviation),
            np.concatenate([state, done]),
        )  # fmt: skip
        latent = mean + np.exp(log_deviation) * noise[row]
        (raw,) = numpy_heads(model.decoder, (model.action,), np.concatenate([state, latent]))
        error = sum((np.tanh(raw[i]) - done[i]) ** 2 for i in range(2)) / 2
        np.testing.assert_allclose(bound.reconstruction[row], error, rtol=1e-4, atol=1e-6)
        closest = divergence(mean, np.exp(log_deviation))
        np.testing.assert_allclose(bound.divergence[row], closest, rtol=1e-4, atol=1e-6)


def test_the_latent_log_deviation_stays_within_bounds(problem):
    model, observation, action = problem
    for bias, bound in ((-50.0, -4.0), (50.0, 15.0)):
        moved = eqx.tree_at(lambda m: m.latent_log_deviation.bias, model, jnp.full(4, bias))
        np.testing.assert_array_equal(moved.encode(observation, action)[1], bound)


def test_the_autoencoder_learns_two_clusters_of_actions():
    """Half of the actions are near 0.8, half near -0.8: a constant has a squared error of 0.64.

    Samples decoded from the prior are in both clusters, too.
    """
    keys = jax.random.split(jax.random.key(0), 4)
    sign = jnp.where(jnp.arange(64) % 2 == 0, 1.0, -1.0)[:, None]
    action = 0.8 * sign + 0.05 * jax.random.normal(keys[0], (64, 1))
    observation = jnp.zeros((64, 1))

    @jax.jit
    def train(learner):
        def step(learner, key):
            def loss(model):
                bound = model.bound(observation, action, key)
                errors = bound.reconstruction
                return jnp.mean(errors + 0.1 * bound.divergence), {"errors": errors}

            learner, metrics = descend(learner, loss, LearningConfig(learning_rate=0.01))
            return learner, jnp.mean(metrics["errors"])

        learner, errors = jax.lax.scan(step, learner, jax.random.split(keys[1], 400))
        latent = jax.random.normal(keys[2], (200, 2))
        return errors, learner.network.decode(jnp.zeros((200, 1)), latent)

    errors, decoded = train(start(VariationalAutoencoder(keys[3], 1, 1, 2, (16,))))
    spread = float(np.var(action))
    assert errors[0] > 0.5 * spread
    assert np.mean(errors[-50:]) < 0.1 * spread
    assert np.all(np.abs(decoded) <= 1.0)
    for kind in (decoded > 0.6, decoded < -0.6):
        assert np.mean(kind) > 0.2
