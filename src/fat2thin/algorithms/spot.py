"""SPOT (Wu et al., NeurIPS 2022): TD3 kept within the support of the log by a density model.

First a conditional variational autoencoder of logged actions is fitted. Its evidence lower bound
then replaces log behaviour(b | s). With weight lambda and mean |Q| as a constant, the losses are

    model   |a - decoded(s, z)|^2 / n + beta KL(encoded(z | s, a) || N(0, 1)) / m      z ~ encoded
    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2      a' = target policy(s') + noise
    policy  -Q1(s, b) / mean |Q1| + lambda model loss(s, b)       b = policy(s)

with n action coordinates and m latent ones. Up to a factor and a constant, the model loss is the
negative bound for a decoder variance beta n / (2 m). The policy and the targets are updated at
every second update.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import base, configs, published, steps, td3_bc
from fat2thin.algorithms.base import Actions, Batch, Metrics, Observations, Problem, Values
from fat2thin.policies.networks import Critics, Linear, PolicyNetwork, Trunk, polyak, rectify

LOG_DEVIATION_BOUNDS = (-4.0, 15.0)
Latents = Float[Array, "batch latent"]


@dataclasses.dataclass(frozen=True)
class SPOTConfig(td3_bc.SmoothedTargetConfig):
    """Settings of SPOT."""

    support_weight: float = 0.1
    """lambda: weight of the density model against Q; the higher, the closer the policy stays to
    logged actions. The paper uses 0.05 to 1, depending on the task."""

    vae_steps: int = 100_000
    """Number of updates of the density model, all before the first update of the policy."""

    vae_hidden: tuple[int, ...] = (750, 750)
    """Widths of the hidden layers of encoder and decoder of the density model."""

    vae_beta: float = 0.5
    """Weight of the divergence in the density model's loss."""

    vae_learning_rate: float = 1e-3
    """Adam's learning rate for the density model."""

    latent_size: int | None = None
    """Number of latent coordinates of the density model; None is twice the number of action
    coordinates."""

    actor_dropout: float = base.shaping(0.1)
    """Dropout rate of the policy's hidden units during training, from 0 to below 1."""

    published: bool = False
    """Compute what the FtTPO authors' code computes: the loss at logged actions, which has no
    gradient for the policy, so the policy never changes."""


class Bound(NamedTuple):
    """The two terms of the negative evidence lower bound, each averaged over its coordinates."""

    reconstruction: Values
    divergence: Values


class VariationalAutoencoder(eqx.Module):
    """A conditional autoencoder of actions in [-1, 1], given the observation."""

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

    def encode(self, observation: Observations, action: Actions) -> tuple[Latents, Latents]:
        """Return mean and log standard deviation of the latent variable."""
        features = self.encoder(jnp.concatenate([observation, action], axis=-1))
        log_deviation = jnp.clip(self.latent_log_deviation(features), *LOG_DEVIATION_BOUNDS)
        return self.latent_mean(features), log_deviation

    def decode(self, observation: Observations, latent: Latents) -> Actions:
        """Return the action of a latent variable."""
        features = self.decoder(jnp.concatenate([observation, latent], axis=-1))
        return jnp.tanh(self.action(features))

    def bound(self, observation: Observations, action: Actions, key: Key[Array, ""]) -> Bound:
        """Return the squared error of one decoded sample, and KL(encoded || N(0, 1))."""
        mean, log_deviation = self.encode(observation, action)
        latent = mean + jnp.exp(log_deviation) * jax.random.normal(key, mean.shape)
        decoded = self.decode(observation, latent)
        divergence = (jnp.exp(2.0 * log_deviation) + mean**2 - 1.0) / 2.0 - log_deviation
        return Bound(jnp.mean((decoded - action) ** 2, axis=-1), jnp.mean(divergence, axis=-1))


class SPOTState(NamedTuple):
    """Training state of SPOT."""

    actor: steps.Learner
    critic: steps.Learner
    target_actor: PolicyNetwork
    target_critic: Critics
    density: steps.Learner


class DroppedOut(eqx.Module):
    """A trunk with dropout: units are zero with probability `rate`, the others are scaled up."""

    trunk: Trunk
    key: Key[Array, ""]
    rate: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows features"]:
        """Return the features of each row."""
        keys = jax.random.split(self.key, len(self.trunk.layers))
        for layer, key in zip(self.trunk.layers, keys, strict=True):
            hidden = rectify(layer(x))
            kept = jax.random.bernoulli(key, 1.0 - self.rate, hidden.shape)
            x = jnp.where(kept, hidden / (1.0 - self.rate), 0.0)
        return x


def check(config: SPOTConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    td3_bc.check_smoothed_target(config)
    configs.positive(config, "support_weight", zero=True)
    configs.whole(config, "vae_steps")
    configs.layer_widths(config, "vae_hidden")
    configs.positive(config, "vae_beta")
    configs.between(config, "vae_learning_rate", 0.0, 1.0)
    configs.whole(config, "latent_size")
    configs.between(config, "actor_dropout", 0.0, 1.0, closed_low=True)
    configs.only_with(
        config, ("delay", "actor_dropout", "actor_decay_steps"), not config.published,
        "published=True never moves the policy",
    )  # fmt: skip


def init(key: Key[Array, ""], problem: Problem, config: SPOTConfig) -> SPOTState:
    """Return new networks and optimisers."""
    actor_key, critic_key, density_key = jax.random.split(key, 3)
    actor = steps.start_policy(actor_key, problem, config)
    critic = steps.start_critic(critic_key, problem, config)
    sizes = problem.observation_size, problem.action_size
    latent_size = config.latent_size or 2 * problem.action_size
    density = VariationalAutoencoder(density_key, *sizes, latent_size, config.vae_hidden)
    return SPOTState(actor, critic, actor.network, critic.network, steps.start(density))


def prepare(
    state: SPOTState, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[SPOTState, Metrics]:
    """Update the density model."""

    def loss(network: VariationalAutoencoder) -> tuple[Array, Metrics]:
        bound = network.bound(batch.observation, batch.action, key)
        errors = model_loss(bound, config)
        return jnp.mean(errors), {
            "model_loss": errors,
            "reconstruction_loss": bound.reconstruction,
            "latent_divergence": bound.divergence,
        }

    density, metrics = steps.descend(state.density, loss, config, config.vae_learning_rate)
    return state._replace(density=density), metrics


def update(
    state: SPOTState, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[SPOTState, Metrics]:
    """Update the critics and, every `delay` updates, the policy and the targets."""
    critic_key, actor_key, model_key, dropout_key = jax.random.split(key, 4)

    # Policy: maximise the first critic where the log has density.
    def loss(network: PolicyNetwork, critic: Critics) -> tuple[Array, Metrics]:
        if config.actor_dropout > 0.0:
            dropped = DroppedOut(network.trunk, dropout_key, config.actor_dropout)
            network = eqx.tree_at(lambda whole: whole.trunk, network, dropped)
        policy = steps.learned_policy(network, config).within(batch.allowed)
        action = policy.act(batch.observation, actor_key)
        bound = state.density.network.bound(batch.observation, action, model_key)
        outside = jnp.mean(model_loss(bound, config))
        value = td3_bc.scaled_value(critic(batch.observation, action)[0], problem)
        error = config.support_weight * outside - value
        return error, {"actor_loss": error, "model_loss": outside}

    return td3_bc.delayed_update(state, batch, critic_key, loss, problem, config)


def published_update(
    state: SPOTState, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[SPOTState, Metrics]:
    """Update as the FtTPO authors' code does (`published=True`).

    The policy's loss is computed at logged actions, so it does not depend on the policy. It is
    reported, and the policy keeps its initial parameters.
    """
    critic_key, model_key = jax.random.split(key)
    policy = steps.learned_policy(state.actor.network, config)
    next_value = td3_bc.smoothed_next_value(
        policy, state.target_critic, batch.next_observation, critic_key, config
    )
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    bound = state.density.network.bound(batch.observation, batch.action, model_key)
    outside = jnp.mean(model_loss(bound, config))
    value = td3_bc.scaled_value(state.target_critic(batch.observation, batch.action)[0], problem)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {
        "actor_loss": config.support_weight * outside - value,
        "model_loss": outside,
        **critic_metrics,
        **steps.watch_policy(policy, batch),
    }
    return state._replace(critic=critic, target_critic=target_critic), metrics


def model_loss(bound: Bound, config: SPOTConfig) -> Values:
    """Return the negative evidence lower bound, up to a factor and a constant."""
    return bound.reconstruction + config.vae_beta * bound.divergence


CORRECTED = base.Algorithm(
    name="spot",
    summary="SPOT: maximise Q within the support of the log, by a learned density model",
    config=SPOTConfig,
    check=check,
    init=init,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    metrics={
        "model_loss": base.Meaning(
            "loss of the density model at the policy's actions (during preparation: logged ones)",
            "far above its value at the end of preparation means that the policy leaves the log",
        ),
        "reconstruction_loss": base.Meaning(
            "squared error of actions encoded and decoded by the density model",
            "falls; the rest is what the latent variable cannot represent",
        ),
        "latent_divergence": base.Meaning(
            "KL from the encoded latent variable to the standard normal, mean over coordinates",
            "0 means that the latent variable is not used",
        ),
        **steps.CRITIC_METRICS,
        **steps.POLICY_METRICS,
    },
    learns_limits=True,
    automatic=base.Automatic(
        noisy={"support_weight": 1.0, "vae_steps": 6_000, "vae_hidden": (32, 32)}
    ),
    preparation=base.Preparation(update=prepare, steps=lambda config: config.vae_steps),
)
ALGORITHM = published.added_to(CORRECTED, update=published_update)
