"""SPOT (Wu et al., NeurIPS 2022): TD3 kept within the support of the log by a density model.

A conditional variational autoencoder of logged actions is learned first. Then, with its evidence
lower bound in place of log behaviour(b | s), weight lambda and mean |Q| as a constant:

    model   |a - decoded(s, z)|^2 / n + beta KL(encoded(z | s, a) || N(0, 1)) / m      z ~ encoded
    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2      a' = target policy(s') + noise
    policy  -Q1(s, b) / mean |Q1| + lambda model loss(s, b)       b = policy(s)

with n action coordinates and m latent ones: the model loss is the negative bound for a decoder
variance beta n / (2 m), but for a factor and a constant. The policy and the targets move at every
second update.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import base, configs, published, steps, td3_bc
from fat2thin.algorithms.base import Actions, Batch, Metrics, Observations, Problem, Values
from fat2thin.policies.networks import Linear, PolicyNetwork, Trunk, TwinCritic, polyak, rectify

LOG_DEVIATION_BOUNDS = (-4.0, 15.0)
Latents = Float[Array, "batch latent"]


@dataclasses.dataclass(frozen=True)
class SPOTConfig(td3_bc.SmoothedTargetConfig):
    """Settings of SPOT."""

    support_weight: float = 0.1
    """lambda: how much the density of the log counts beside Q; the paper takes 0.05 to 1, by the
    task."""

    vae_steps: int = 100_000
    """Updates of the density model, before the first of the policy."""

    vae_hidden: tuple[int, ...] = (750, 750)
    """Widths of the hidden layers of encoder and decoder."""

    vae_beta: float = 0.5
    """Weight of the divergence in the density model's loss."""

    vae_learning_rate: float = 1e-3
    """Adam's step for the density model."""

    latent_size: int | None = None
    """Latent coordinates of the density model; None is twice the action's."""

    actor_dropout: float = base.shaping(0.1)
    """Share of the policy's hidden units that are left out at random while it learns."""

    published: bool = False
    """Run what the FtTPO authors' code computes: the loss at logged actions, which no gradient
    connects with the policy."""


class Bound(NamedTuple):
    """The two terms of the negative evidence lower bound, each a mean over its coordinates."""

    reconstruction: Values
    divergence: Values


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

    def encode(self, observation: Observations, action: Actions) -> tuple[Latents, Latents]:
        """Mean and log standard deviation of the latent variable."""
        features = self.encoder(jnp.concatenate([observation, action], axis=-1))
        log_deviation = jnp.clip(self.latent_log_deviation(features), *LOG_DEVIATION_BOUNDS)
        return self.latent_mean(features), log_deviation

    def decode(self, observation: Observations, latent: Latents) -> Actions:
        """The action of a latent variable."""
        features = self.decoder(jnp.concatenate([observation, latent], axis=-1))
        return jnp.tanh(self.action(features))

    def bound(self, observation: Observations, action: Actions, key: Key[Array, ""]) -> Bound:
        """Squared error of the action decoded from one sample, and KL(encoded || N(0, 1))."""
        mean, log_deviation = self.encode(observation, action)
        latent = mean + jnp.exp(log_deviation) * jax.random.normal(key, mean.shape)
        decoded = self.decode(observation, latent)
        divergence = (jnp.exp(2.0 * log_deviation) + mean**2 - 1.0) / 2.0 - log_deviation
        return Bound(jnp.mean((decoded - action) ** 2, axis=-1), jnp.mean(divergence, axis=-1))


class SPOTState(NamedTuple):
    """Everything that changes during training."""

    actor: steps.Learner
    critic: steps.Learner
    target_actor: PolicyNetwork
    target_critic: TwinCritic
    density: steps.Learner


class DroppedOut(eqx.Module):
    """A trunk with each hidden unit left out with probability `rate`, the others scaled up."""

    trunk: Trunk
    key: Key[Array, ""]
    rate: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows features"]:
        """The features of each row."""
        keys = jax.random.split(self.key, len(self.trunk.layers))
        for layer, key in zip(self.trunk.layers, keys, strict=True):
            hidden = rectify(layer(x))
            kept = jax.random.bernoulli(key, 1.0 - self.rate, hidden.shape)
            x = jnp.where(kept, hidden / (1.0 - self.rate), 0.0)
        return x


def check(config: SPOTConfig) -> None:
    """Refuse a setting out of range."""
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
    """Fresh networks and optimisers."""
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
    """One update of the density model."""

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
    """One update of the critics and, when it is due, of the policy and the targets."""
    critic_key, actor_key, model_key, dropout_key = jax.random.split(key, 4)

    # Policy: uphill on the first critic, where the log has density.
    def loss(network: PolicyNetwork, critic: TwinCritic) -> tuple[Array, Metrics]:
        if config.actor_dropout > 0.0:
            dropped = DroppedOut(network.trunk, dropout_key, config.actor_dropout)
            network = eqx.tree_at(lambda whole: whole.trunk, network, dropped)
        action = steps.learned_policy(network, config).act(batch.observation, actor_key)
        bound = state.density.network.bound(batch.observation, action, model_key)
        outside = jnp.mean(model_loss(bound, config))
        climb = td3_bc.scaled_value(critic, batch.observation, action)
        error = config.support_weight * outside - climb
        return error, {"actor_loss": error, "model_loss": outside}

    return td3_bc.delayed_update(state, batch, critic_key, loss, problem, config)


def published_update(
    state: SPOTState, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[SPOTState, Metrics]:
    """One update as the FtTPO authors' code computes it (`published=True`).

    The policy's loss is taken at logged actions, so nothing in it depends on the policy: it is
    reported, and the policy stays what it was at the start.
    """
    critic_key, model_key = jax.random.split(key)
    policy = steps.learned_policy(state.actor.network, config)
    next_value = td3_bc.smoothed_next_value(
        policy, state.target_critic, batch.next_observation, critic_key, config
    )
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    bound = state.density.network.bound(batch.observation, batch.action, model_key)
    outside = jnp.mean(model_loss(bound, config))
    climb = td3_bc.scaled_value(state.target_critic, batch.observation, batch.action)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {
        "actor_loss": config.support_weight * outside - climb,
        "model_loss": outside,
        **critic_metrics,
        **steps.watch_policy(policy, batch),
    }
    return state._replace(critic=critic, target_critic=target_critic), metrics


def model_loss(bound: Bound, config: SPOTConfig) -> Values:
    """The negative evidence lower bound, but for a factor and a constant."""
    return bound.reconstruction + config.vae_beta * bound.divergence


CORRECTED = base.Algorithm(
    name="spot",
    summary="SPOT: uphill on Q, within the support of the log by a learned density",
    config=SPOTConfig,
    check=check,
    init=init,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    metrics={
        "model_loss": base.Meaning(
            "the density model's loss, at the policy's actions (in the preparation: logged ones)",
            "far above its value at the end of the preparation: the policy leaves the log",
        ),
        "reconstruction_loss": base.Meaning(
            "squared error of actions that the density model encodes and decodes",
            "falls; what is left is what the latent variable cannot hold",
        ),
        "latent_divergence": base.Meaning(
            "KL of the encoded latent variable to the standard normal, mean over its coordinates",
            "0 means that the latent variable is not used",
        ),
        **steps.CRITIC_METRICS,
        **steps.POLICY_METRICS,
    },
    small_logs=base.SmallLogs(
        noisy={"support_weight": 1.0, "vae_steps": 6_000, "vae_hidden": (32, 32)}
    ),
    preparation=base.Preparation(update=prepare, steps=lambda config: config.vae_steps),
)
ALGORITHM = published.added_to(CORRECTED, update=published_update)
