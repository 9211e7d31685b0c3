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
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Preparation, Problem, shaping
from fat2thin.algorithms.checks import between, layer_widths, only_with, whole
from fat2thin.algorithms.config import check_learning
from fat2thin.algorithms.learner import Learner, cosine_decay, descend, keep_if, start
from fat2thin.algorithms.steps import (
    acting_policy,
    fit_critic,
    learned_policy,
    start_critic,
    start_policy,
    watch_policy,
)
from fat2thin.algorithms.target_smoothing import (
    SmoothedTargetConfig,
    check_smoothed_target,
    scaled_value,
    smoothed_next_value,
)
from fat2thin.algorithms.variational import Bound, VariationalAutoencoder
from fat2thin.policies.networks import PolicyNetwork, TwinCritic, polyak
from fat2thin.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class SPOTConfig(SmoothedTargetConfig):
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

    actor_dropout: float = shaping(0.1)
    """Share of the policy's hidden units that are left out at random while it learns."""

    published: bool = False
    """Run what the FtTPO authors' code computes: the loss at logged actions, which no gradient
    connects with the policy."""


class State(NamedTuple):
    """Everything that changes during training."""

    actor: Learner
    critic: Learner
    target_actor: PolicyNetwork
    target_critic: TwinCritic
    density: Learner


class DroppedOut(eqx.Module):
    """A policy's network with some hidden units left out."""

    network: PolicyNetwork
    key: Key[Array, ""]
    rate: float = eqx.field(static=True)

    @property
    def log_scale(self) -> eqx.Module:
        """The head of the scale."""
        return self.network.log_scale

    def __call__(self, observation: Array) -> tuple[Array, Array]:
        """The outputs of both heads."""
        return self.network.heads(self.network.trunk.with_dropout(observation, self.key, self.rate))


def check(config: SPOTConfig) -> None:
    """Refuse a setting out of range."""
    check_learning(config)
    check_smoothed_target(config)
    between(config, "support_weight", 0.0, math.inf, closed_low=True)
    whole(config, "vae_steps")
    layer_widths(config, "vae_hidden")
    between(config, "vae_beta", 0.0, math.inf)
    between(config, "vae_learning_rate", 0.0, 1.0)
    whole(config, "latent_size")
    between(config, "actor_dropout", 0.0, 1.0, closed_low=True)
    only_with(
        config, ("delay", "actor_dropout", "actor_decay_steps"), not config.published,
        "published=True never moves the policy",
    )  # fmt: skip


def init(key: Key[Array, ""], problem: Problem, config: SPOTConfig) -> State:
    """Fresh networks and optimisers."""
    actor_key, critic_key, density_key = jax.random.split(key, 3)
    actor = start_policy(actor_key, problem, config)
    critic = start_critic(critic_key, problem, config)
    density = VariationalAutoencoder(
        density_key,
        problem.observation_size,
        problem.action_size,
        config.latent_size or 2 * problem.action_size,
        config.vae_hidden,
    )
    return State(actor, critic, actor.network, critic.network, start(density))


def prepare(
    state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[State, Metrics]:
    """One update of the density model."""

    def loss(network: VariationalAutoencoder) -> tuple[Array, Metrics]:
        bound = network.bound(batch.observation, batch.action, key)
        errors = model_loss(bound, config)
        return jnp.mean(errors), {
            "model_loss": errors,
            "reconstruction_loss": bound.reconstruction,
            "latent_divergence": bound.divergence,
        }

    density, metrics = descend(state.density, loss, config, config.vae_learning_rate)
    return state._replace(density=density), metrics


def update(
    state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[State, Metrics]:
    """One update of the critics and, when it is due, of the policy and the targets."""
    critic_key, actor_key, model_key, dropout_key = jax.random.split(key, 4)

    # Critics: one step of the log, then the target policy with noise.
    target_policy = learned_policy(state.target_actor, config)
    next_value = smoothed_next_value(
        target_policy, state.target_critic, batch.next_observation, critic_key, config
    )
    critic, critic_metrics = fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: uphill on the first critic, where the log has density.
    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        policy = with_dropout(learned_policy(network, config), dropout_key, config.actor_dropout)
        action = policy.act(batch.observation, actor_key)
        bound = state.density.network.bound(batch.observation, action, model_key)
        outside = jnp.mean(model_loss(bound, config))
        climb = scaled_value(critic.network, batch.observation, action)
        error = config.support_weight * outside - climb
        return error, {"actor_loss": error, "model_loss": outside}

    rate = cosine_decay(state.critic, config.learning_rate, config.actor_decay_steps)
    actor, actor_metrics = descend(state.actor, loss, config, rate)

    targets = (state.target_actor, state.target_critic)
    moved = polyak(targets, (actor.network, critic.network), config.polyak_rate)
    due = critic.moments.count % config.delay == 0
    actor, (target_actor, target_critic) = keep_if(due, (actor, moved), (state.actor, targets))

    metrics = {
        **actor_metrics,
        **critic_metrics,
        **watch_policy(learned_policy(state.actor.network, config), batch),
    }
    return State(actor, critic, target_actor, target_critic, state.density), metrics


def model_loss(bound: Bound, config: SPOTConfig) -> Float[Array, "*rows"]:
    """The negative evidence lower bound, but for a factor and a constant."""
    return bound.reconstruction + config.vae_beta * bound.divergence


def with_dropout(policy: Policy, key: Key[Array, ""], rate: float) -> Policy:
    """The policy with a share of its network's hidden units left out."""
    if rate == 0.0:
        return policy
    dropped = DroppedOut(policy.network.network, key, rate)
    return eqx.tree_at(lambda whole: whole.network.network, policy, dropped)


ALGORITHM = Algorithm(
    name="spot",
    summary="SPOT: uphill on Q, within the support of the log by a learned density",
    config=SPOTConfig,
    check=check,
    init=init,
    update=update,
    policy=acting_policy,
    preparation=Preparation(update=prepare, steps=lambda config: config.vae_steps),
)
