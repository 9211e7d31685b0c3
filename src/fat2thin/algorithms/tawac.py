"""Tsallis Advantage Weighted Actor-Critic (Zhu et al. 2024): AWAC with q-exponential weights.

With slow targets of Q and temperature tau, one update minimises

    V       (V(s) - min target Q(s, a))^2 / 2                               a ~ policy
    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2                a' ~ policy
    policy  -exp_q((min Q(s, a) - V(s)) / tau) log policy(a | s)            a from the log

The weight exp_q with q < 1 is exactly zero for actions with an advantage below -tau / (1 - q).
FtTPO's proposal is learned in the same way, except that V and Q evaluate the actor.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, published, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem
from fat2thin.algorithms.losses import q_exponential_weight
from fat2thin.algorithms.steps import ValueState
from fat2thin.policies.networks import PolicyNetwork, polyak

FIXED_BY_PUBLISHED = (
    "entropic_index", "box", "weight_index", "weight_limit", "scale_low", "scale_high",
    "state_dependent_scale", "actor_decay_steps",
)  # fmt: skip
"""Settings for which `published=True` uses the authors' values."""


@dataclasses.dataclass(frozen=True)
class TAWACConfig(configs.ActorCriticConfig):
    """Settings of TAWAC."""

    temperature: float = 0.5
    """tau: the lower, the more the policy prefers the best logged actions. With weight_index below
    1, actions with an advantage below -tau / (1 - weight_index) are dropped. The FtTPO paper sweeps
    1, 0.5 and 0.01."""

    weight_index: float = 0.0
    """Index of the q-exponential weight, below 2: below 1 it drops bad actions, 1 is the
    exponential of AWAC."""

    weight_limit: float = 1e4
    """Largest weight of a logged action; the default is that of the FtTPO authors' code."""

    published: bool = False
    """Compute what the FtTPO authors' code computes for a "q_gaussian" policy (TAWAC-HT) or a
    "sparse_q_gaussian" policy (random action replacement), with its densities, samplers and
    bounds."""


def check(config: TAWACConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_regression(config)
    configs.positive(config, "temperature", "weight_limit")
    configs.between(config, "weight_index", -math.inf, 2.0)
    configs.only_with(
        config, FIXED_BY_PUBLISHED, not config.published, "published=True uses the authors' value"
    )
    if config.published and config.policy not in ("q_gaussian", "sparse_q_gaussian"):
        raise ValueError(
            "published=True supports only policy='q_gaussian' and 'sparse_q_gaussian', got "
            f"{config.policy!r}. Set published=False."
        )
    if config.published and config.outside_support == "project":
        raise ValueError("published=True needs outside_support='replace', got 'project'.")


def update(
    state: ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: TAWACConfig
) -> tuple[ValueState, Metrics]:
    """Update value, critics and policy, in this order, then the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    policy = steps.learned_policy(state.actor.network, config)

    # Value and critics: slow Q of the policy, in this state and the next.
    here, following = policy.within(batch.allowed), policy.within(batch.next_allowed)
    action = steps.sample_action(here, batch.observation, value_key)
    next_action = steps.sample_action(following, batch.next_observation, critic_key)
    value_target, next_value = steps.values_of_both(state.target_critic, batch, action, next_action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: regression on logged actions; bad ones have a weight of exactly zero.
    advantage = critic.network.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = q_exponential_weight(
        advantage, config.temperature, config.weight_index, config.weight_limit
    )
    actor, actor_metrics = steps.fit_policy(state.actor, batch, weight, actor_key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**value_metrics, **critic_metrics, **actor_metrics}
    return ValueState(actor, value, critic, target_critic), metrics


def published_update(
    state: ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: TAWACConfig
) -> tuple[ValueState, Metrics]:
    """Update as the FtTPO authors' code does (`published=True`).

    A "q_gaussian" policy is the authors' TAWAC-HT: an improper density in several dimensions, and
    Gaussian samples. A "sparse_q_gaussian" policy is their random action replacement: logged
    actions outside the support are replaced by the nearest of a hundred samples, and a log density
    that is still -inf counts as -30. Weights are at least 1e-8.
    """
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    authors_policy = published.POLICIES[config.policy]
    before = authors_policy(state.actor.network)

    action = published.sample_within(before, batch.observation, value_key)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    next_action = published.sample_within(before, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    advantage = critic.network.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = published.floored_weight(advantage, config.temperature)
    logged = jnp.clip(batch.action, -published.EDGE, published.EDGE)
    rule = "replace" if config.policy == "sparse_q_gaussian" else None
    regressed = steps.regressed_action(before, batch.observation, logged, rule, actor_key)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        policy = authors_policy(network)
        errors = -weight * published.floored_log_density(policy, batch.observation, regressed)
        return jnp.mean(errors), {"actor_loss": errors}

    actor, actor_metrics = steps.descend(state.actor, loss, config)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**actor_metrics, **value_metrics, **critic_metrics}
    metrics |= steps.watch_weight(weight) | steps.watch_policy(before, batch)
    return ValueState(actor, value, critic, target_critic), metrics


CORRECTED = Algorithm(
    name="tawac",
    summary="Tsallis AWAC: q-exponential weights that drop bad actions",
    config=TAWACConfig,
    check=check,
    init=steps.start_value_state,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    value=steps.learned_value,
    metrics={**steps.VALUE_METRICS, **steps.REGRESSION_METRICS},
    weighted_loss="actor_loss",
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.1}),
)
ALGORITHM = published.added_to(CORRECTED, update=published_update, policy=published.acting_policy)
