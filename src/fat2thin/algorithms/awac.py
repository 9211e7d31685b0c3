"""Advantage Weighted Actor-Critic (Nair et al. 2020).

There is no value network: the value of a state is the mean Q of actions of the policy. With slow
targets of Q and temperature lambda, one update minimises

    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2                a' ~ policy
    policy  -exp((min Q(s, a) - V(s)) / lambda) log policy(a | s)           a from the log
            V(s) = mean min Q(s, b)                                         b ~ policy
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem
from fat2thin.algorithms.losses import q_exponential_weight
from fat2thin.policies.networks import Critics, polyak


@dataclasses.dataclass(frozen=True)
class AWACConfig(configs.ActorCriticConfig):
    """Settings of AWAC."""

    temperature: float = 1.0
    """lambda: the lower, the more the policy prefers the best logged actions."""

    weights: str = configs.choice("exponential", ("exponential", "batch_softmax"))
    """Weights of logged actions: "exponential" as in the paper, or "batch_softmax", the same
    divided by its mean over the batch, as in the code that the FtTPO authors used."""

    weight_limit: float = 100.0
    """Largest weight of a logged action, for weights "exponential"."""

    value_samples: int = 1
    """Number of sampled actions per state whose mean Q is the value of the state."""


class AWACState(NamedTuple):
    """Training state of AWAC."""

    actor: steps.Learner
    critic: steps.Learner
    target_critic: Critics


def check(config: AWACConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_regression(config)
    configs.positive(config, "temperature", "weight_limit")
    configs.whole(config, "value_samples")
    configs.only_with(
        config, ("weight_limit",), config.weights == "exponential",
        "with weights='batch_softmax' a weight is at most the batch size",
    )  # fmt: skip


def init(key: Key[Array, ""], problem: Problem, config: AWACConfig) -> AWACState:
    """Return new networks and optimisers."""
    actor_key, critic_key = jax.random.split(key)
    critic = steps.start_critic(critic_key, problem, config)
    return AWACState(steps.start_policy(actor_key, problem, config), critic, critic.network)


def update(
    state: AWACState, batch: Batch, key: Key[Array, ""], problem: Problem, config: AWACConfig
) -> tuple[AWACState, Metrics]:
    """Update critics and policy, in this order, then the targets."""
    critic_key, value_key, actor_key = jax.random.split(key, 3)
    policy = steps.learned_policy(state.actor.network, config)

    # Critics: one logged step, then the policy.
    following = policy.within(batch.next_allowed)
    next_action = steps.sample_action(following, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: regression with exponential weights.
    keys = jax.random.split(value_key, config.value_samples)
    here = policy.within(batch.allowed)
    actions = jax.vmap(functools.partial(steps.sample_action, here, batch.observation))(keys)
    values = jax.vmap(functools.partial(critic.network.minimum, batch.observation))(actions)
    value = jnp.mean(values, axis=0)
    advantage = critic.network.minimum(batch.observation, batch.action) - value
    if config.weights == "exponential":
        weight = q_exponential_weight(advantage, config.temperature, 1.0, config.weight_limit)
    else:
        kept = batch.where_allowed(advantage / config.temperature, -jnp.inf)
        weight = advantage.size * jax.nn.softmax(kept)
    actor, actor_metrics = steps.fit_policy(state.actor, batch, weight, actor_key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {"v_mean": value, **critic_metrics, **actor_metrics}
    return AWACState(actor, critic, target_critic), metrics


ALGORITHM = Algorithm(
    name="awac",
    summary="Advantage Weighted Actor-Critic: exponential weights relative to the policy's value",
    config=AWACConfig,
    check=check,
    init=init,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    metrics={
        **steps.CRITIC_METRICS,
        "v_mean": steps.VALUE_METRICS["v_mean"],
        **steps.REGRESSION_METRICS,
    },
    weighted_loss="actor_loss",
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.05}),
)
