"""A conditional variational autoencoder: a density model of logged actions."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.policies.networks import Linear, Trunk

LOG_DEVIATION_BOUNDS = (-4.0, 15.0)


class Bound(NamedTuple):
    """The two terms of the negative evidence lower bound, each a mean over its coordinates."""

    reconstruction: Float[Array, "*rows"]
    divergence: Float[Array, "*rows"]


class VariationalAutoencoder(eqx.Module):
    """Encodes an action, given the observation, and decodes it again, into the box of +-1."""

    encoder: Trunk
    latent_mean: Linear
    latent_log_deviation: Linear
    decoder: Trunk
    action: Linear

    def __init__(
        self,
        key: Key[Array, ""],
        observation_size: int,
        action_size: int,
        latent_size: int,
        hidden: tuple[int, ...],
    ) -> None:
        keys = jax.random.split(key, 5)
        self.encoder = Trunk(keys[0], observation_size + action_size, hidden)
        self.latent_mean = Linear(keys[1], hidden[-1], latent_size)
        self.latent_log_deviation = Linear(keys[2], hidden[-1], latent_size)
        self.decoder = Trunk(keys[3], observation_size + latent_size, hidden)
        self.action = Linear(keys[4], hidden[-1], action_size)

    def encode(
        self, observation: Float[Array, "*rows observation"], action: Float[Array, "*rows action"]
    ) -> tuple[Float[Array, "*rows latent"], Float[Array, "*rows latent"]]:
        """Mean and log standard deviation of the latent variable."""
        features = self.encoder(jnp.concatenate([observation, action], axis=-1))
        log_deviation = jnp.clip(self.latent_log_deviation(features), *LOG_DEVIATION_BOUNDS)
        return self.latent_mean(features), log_deviation

    def decode(
        self, observation: Float[Array, "*rows observation"], latent: Float[Array, "*rows latent"]
    ) -> Float[Array, "*rows action"]:
        """The action of a latent variable."""
        features = self.decoder(jnp.concatenate([observation, latent], axis=-1))
        return jnp.tanh(self.action(features))

    def bound(
        self,
        observation: Float[Array, "*rows observation"],
        action: Float[Array, "*rows action"],
        key: Key[Array, ""],
    ) -> Bound:
        """Squared error of the action decoded from one sample, and KL(encoded || N(0, 1))."""
        mean, log_deviation = self.encode(observation, action)
        latent = mean + jnp.exp(log_deviation) * jax.random.normal(key, mean.shape)
        decoded = self.decode(observation, latent)
        divergence = (jnp.exp(2.0 * log_deviation) + mean**2 - 1.0) / 2.0 - log_deviation
        return Bound(
            reconstruction=jnp.mean((decoded - action) ** 2, axis=-1),
            divergence=jnp.mean(divergence, axis=-1),
        )
