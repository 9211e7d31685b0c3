"""Tsallis Advantage Weighted Actor-Critic (Zhu et al. 2024): AWAC with q-exponential weights.

With slow targets of Q and temperature tau:

    V       (V(s) - min target Q(s, a))^2 / 2                               a ~ policy
    Q       (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2                a' ~ policy
    policy  -exp_q((min Q(s, a) - V(s)) / tau) log policy(a | s)            a from the log

The weight exp_q with q < 1 is exactly zero for actions with an advantage below -tau / (1 - q).
FtTPO's proposal is learned in the same way, beside an actor that V and Q are evaluated under.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, published, steps
from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem, SmallLogs
from fat2thin.algorithms.losses import q_exponential_weight
from fat2thin.algorithms.steps import ValueState
from fat2thin.policies.networks import PolicyNetwork, polyak

THEIRS = (
    "entropic_index", "box", "weight_index", "weight_limit", "scale_low", "scale_high",
    "state_dependent_scale", "actor_decay_steps",
)  # fmt: skip
"""Settings that `published=True` has values of its own for."""


@dataclasses.dataclass(frozen=True)
class TAWACConfig(configs.ActorCriticConfig):
    """Settings of TAWAC."""

    temperature: float = 0.5
    """tau: actions with an advantage below -tau / (1 - weight_index) are dropped; the FtTPO paper
    sweeps 1, 0.5 and 0.01."""

    weight_index: float = 0.0
    """Index of the q-exponential weight: below 1 it drops bad actions, 1 is AWAC's."""

    weight_limit: float = 1e4
    """Largest weight of a logged action, as in the FtTPO authors' code."""

    published: bool = False
    """Run what the FtTPO authors' code computes for a "q_gaussian" policy (TAWAC-HT) or a
    "sparse_q_gaussian" one (random action replacement): their densities, samplers and bounds."""


def check(config: TAWACConfig) -> None:
    """Refuse a setting out of range."""
    configs.check_regression(config)
    configs.positive(config, "temperature", "weight_limit")
    configs.between(config, "weight_index", -math.inf, 2.0)
    configs.only_with(config, THEIRS, not config.published, "published=True has the authors' own")
    if config.published and config.policy not in ("q_gaussian", "sparse_q_gaussian"):
        raise ValueError(
            f"published=True is for policy='q_gaussian' and 'sparse_q_gaussian': the authors' "
            f"{config.policy!r} policy needs no form of its own."
        )
    if config.published and config.outside_support == "project":
        raise ValueError("published=True replaces actions: use outside_support='replace'.")


def update(
    state: ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: TAWACConfig
) -> tuple[ValueState, Metrics]:
    """One update of value, critics and policy, in this order, then of the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    policy = steps.learned_policy(state.actor.network, config)

    # Value and critics: what the policy gets here and next, by the slow critics.
    action = steps.sample_action(policy, batch.observation, value_key)
    next_action = steps.sample_action(policy, batch.next_observation, critic_key)
    value_target, next_value = steps.values_of_both(state.target_critic, batch, action, next_action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: regression on logged actions, the bad ones at exactly zero weight.
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
    """One update as the FtTPO authors' code computes it (`published=True`).

    A "q_gaussian" policy is their TAWAC-HT: an improper density in several dimensions, and Gaussian
    samples. A "sparse_q_gaussian" one is their random action replacement: logged actions outside
    the support are replaced by the nearest of a hundred samples, and what is -inf even then counts
    as -30. Weights are floored at 1e-8.
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
    small_logs=SmallLogs(noisy={"temperature": 0.1}),
)
ALGORITHM = published.added_to(CORRECTED, update=published_update, policy=published.acting_policy)
