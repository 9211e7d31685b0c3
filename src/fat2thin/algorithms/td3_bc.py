"""TD3+BC (Fujimoto and Gu, NeurIPS 2021): TD3 with a pull towards logged actions.

With slow targets of the policy and of Q, and mean |Q| over the batch as a constant, one update
minimises

    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2      a' = target policy(s') + noise
    policy  -alpha Q1(s, b) / mean |Q1| + (b - a)^2               b = policy(s), a from the log

The policy and the targets are updated at every second update. If the policy is not deterministic,
a' and b are samples, with a gradient through the sample. SPOT and ReBRAC use the same smoothed
targets, delay and scaled Q.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import (
    Actions,
    Algorithm,
    Automatic,
    Batch,
    Metrics,
    Problem,
    Values,
    from_level,
)
from fat2thin.policies.families import families
from fat2thin.policies.networks import Critics, PolicyNetwork, polyak
from fat2thin.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class SmoothedTargetConfig(configs.ActorCriticConfig):
    """Settings of an algorithm that maximises Q as TD3 does."""

    policy: str = configs.choice("deterministic", families)
    """Family of the policy: "deterministic", or a family whose samples carry a gradient:
    "squashed_gaussian", "clipped_gaussian", "q_gaussian", "student_t", "beta" or
    "sparse_q_gaussian"."""

    delay: int = 2
    """The policy and the targets are updated once per this many updates of the critics."""

    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, in half-ranges of the action
    box; 0 disables it."""

    noise_clip: float = 0.5
    """Largest noise on the target policy's actions, in half-ranges of the action box."""


def check_smoothed_target(config: SmoothedTargetConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_learning(config)
    configs.check_policy(config)
    configs.only_with(
        config, ("outside_support",), False,
        "the loss does not use the density of logged actions",
    )  # fmt: skip
    configs.whole(config, "delay")
    configs.positive(config, "target_noise", "noise_clip", zero=True)


@dataclasses.dataclass(frozen=True)
class TD3BCConfig(SmoothedTargetConfig):
    """Settings of TD3+BC."""

    q_weight: float = 2.5
    """alpha: weight of Q against the squared distance to logged actions; 0 only imitates."""


class TD3BCState(NamedTuple):
    """Training state of TD3+BC."""

    actor: steps.Learner
    critic: steps.Learner
    target_actor: PolicyNetwork
    target_critic: Critics


def check(config: TD3BCConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    check_smoothed_target(config)
    configs.positive(config, "q_weight", zero=True)


def init(key: Key[Array, ""], problem: Problem, config: SmoothedTargetConfig) -> TD3BCState:
    """Return new networks and optimisers."""
    actor_key, critic_key = jax.random.split(key)
    actor = steps.start_policy(actor_key, problem, config)
    critic = steps.start_critic(critic_key, problem, config)
    return TD3BCState(actor, critic, actor.network, critic.network)


def update(
    state: TD3BCState, batch: Batch, key: Key[Array, ""], problem: Problem, config: TD3BCConfig
) -> tuple[TD3BCState, Metrics]:
    """Update the critics and, every `delay` updates, the policy and the targets."""
    critic_key, actor_key = jax.random.split(key)

    # Policy: maximise the first critic, close to logged actions.
    def loss(network: PolicyNetwork, critic: Critics) -> tuple[Array, Metrics]:
        policy = steps.learned_policy(network, config).within(batch.allowed)
        action = policy.act(batch.observation, actor_key)
        logged = steps.nearest_allowed(batch.action, batch.allowed)
        distance = jnp.mean((action - logged) ** 2)
        value = scaled_value(critic(batch.observation, action)[0], problem)
        error = distance - config.q_weight * value
        return error, {"actor_loss": error}

    return delayed_update(state, batch, critic_key, loss, problem, config)


def delayed_update(
    state: Any,
    batch: Batch,
    key: Key[Array, ""],
    loss: Callable[[PolicyNetwork, Critics], tuple[Array, Metrics]],
    problem: Problem,
    config: SmoothedTargetConfig,
    penalty: Callable[[Actions], Values] | None = None,
) -> tuple[Any, Metrics]:
    """Update the critics and, every `delay` updates, the policy and the targets.

    The policy minimises `loss(network, critics)`. A penalty of the next actions is subtracted from
    their values.
    """
    # Critics: one logged step, then the target policy with noise.
    target_policy = steps.learned_policy(state.target_actor, config).within(batch.next_allowed)
    next_value = smoothed_next_value(
        target_policy, state.target_critic, batch.next_observation, key, config, penalty
    )
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    rate = steps.cosine_decay(state.critic, config.learning_rate, config.actor_decay_steps)
    actor, actor_metrics = steps.descend(
        state.actor, lambda network: loss(network, critic.network), config, rate
    )

    before = (state.target_actor, state.target_critic)
    moved = polyak(before, (actor.network, critic.network), config.polyak_rate)
    due = critic.moments.count % config.delay == 0
    actor, (target_actor, target_critic) = steps.keep_if(due, (actor, moved), (state.actor, before))

    watched = steps.watch_policy(steps.learned_policy(state.actor.network, config), batch)
    metrics = {**actor_metrics, **critic_metrics, **watched}
    targets = {"target_actor": target_actor, "target_critic": target_critic}
    return state._replace(actor=actor, critic=critic, **targets), metrics


def smoothed_next_value(
    policy: Policy,
    critic: Critics,
    observation: Float[Array, "batch observation"],
    key: Key[Array, ""],
    config: SmoothedTargetConfig,
    penalty: Callable[[Actions], Values] | None = None,
) -> Values:
    """Return min Q(s', a') at an action of the target policy with clipped noise, inside limits.

    With a penalty it is min Q(s', a') - penalty(a').
    """
    action_key, noise_key = jax.random.split(key)
    action = policy.act(observation, action_key)
    noise = config.target_noise * jax.random.normal(noise_key, action.shape)
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    action = steps.nearest_allowed(action + noise, policy.allowed)
    value = critic.minimum(observation, action)
    return value if penalty is None else value - penalty(action)


def scaled_value(values: Values, problem: Problem) -> Float[Array, ""]:
    """Return the mean of Q divided by the mean of |Q|, which carries no gradient."""
    values = from_level(values, problem)
    return jnp.mean(values) / lax.stop_gradient(jnp.mean(jnp.abs(values)))


ALGORITHM = Algorithm(
    name="td3_bc",
    summary="TD3+BC: maximise Q, with a penalty on the distance to logged actions",
    config=TD3BCConfig,
    check=check,
    init=init,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    metrics={**steps.CRITIC_METRICS, **steps.POLICY_METRICS},
    learns_limits=True,
    automatic=Automatic(noisy={"q_weight": 1.0}),
)
