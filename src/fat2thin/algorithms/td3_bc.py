"""TD3+BC (Fujimoto and Gu, NeurIPS 2021): TD3 with a pull towards logged actions.

With slow targets of the policy and of Q, and mean |Q| over the batch as a constant:

    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2      a' = target policy(s') + noise
    policy  -alpha Q1(s, b) / mean |Q1| + (b - a)^2               b = policy(s), a from the log

The policy and the targets move at every second update. A policy that is not deterministic is
sampled for a' and b, with a gradient through the sample.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem
from fat2thin.algorithms.checks import between
from fat2thin.algorithms.config import check_learning
from fat2thin.algorithms.learner import Learner, cosine_decay, descend, keep_if
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
from fat2thin.policies.networks import PolicyNetwork, TwinCritic, polyak


@dataclasses.dataclass(frozen=True)
class TD3BCConfig(SmoothedTargetConfig):
    """Settings of TD3+BC."""

    q_weight: float = 2.5
    """alpha: how much Q counts beside the distance to logged actions; 0 is cloning."""


class State(NamedTuple):
    """Everything that changes during training."""

    actor: Learner
    critic: Learner
    target_actor: PolicyNetwork
    target_critic: TwinCritic


def check(config: TD3BCConfig) -> None:
    """Refuse a setting out of range."""
    check_learning(config)
    check_smoothed_target(config)
    between(config, "q_weight", 0.0, math.inf, closed_low=True)


def init(key: Key[Array, ""], problem: Problem, config: TD3BCConfig) -> State:
    """Fresh networks and optimisers."""
    actor_key, critic_key = jax.random.split(key)
    actor = start_policy(actor_key, problem, config)
    critic = start_critic(critic_key, problem, config)
    return State(actor, critic, actor.network, critic.network)


def update(
    state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: TD3BCConfig
) -> tuple[State, Metrics]:
    """One update of the critics and, when it is due, of the policy and the targets."""
    critic_key, actor_key = jax.random.split(key)

    # Critics: one step of the log, then the target policy with noise.
    target_policy = learned_policy(state.target_actor, config)
    next_value = smoothed_next_value(
        target_policy, state.target_critic, batch.next_observation, critic_key, config
    )
    critic, critic_metrics = fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: uphill on the first critic, not far from the log.
    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        action = learned_policy(network, config).act(batch.observation, actor_key)
        distance = jnp.mean((action - batch.action) ** 2)
        climb = scaled_value(critic.network, batch.observation, action)
        error = distance - config.q_weight * climb
        return error, {"actor_loss": error}

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
    return State(actor, critic, target_actor, target_critic), metrics


ALGORITHM = Algorithm(
    name="td3_bc",
    summary="TD3+BC: uphill on Q, with a pull towards logged actions",
    config=TD3BCConfig,
    check=check,
    init=init,
    update=update,
    policy=acting_policy,
)
