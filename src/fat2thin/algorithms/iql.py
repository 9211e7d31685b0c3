"""Implicit Q-Learning (Kostrikov, Nair and Levine, ICLR 2022).

The value of a state is an upper expectile of Q over logged actions, so Q is never evaluated at
actions outside the log. With slow targets of Q, expectile kappa and temperature tau, one update
minimises

    V       |kappa - 1(u < 0)| u^2,  u = min target Q(s, a) - V(s)          a from the log
    Q       (Q(s, a) - r - gamma V(s'))^2 / 2                               a from the log
    policy  -exp((min target Q(s, a) - V(s)) / tau) log policy(a | s)       a from the log
"""

import dataclasses

from jaxtyping import Array, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem
from fat2thin.algorithms.losses import expectile_loss, q_exponential_weight
from fat2thin.policies.networks import polyak


@dataclasses.dataclass(frozen=True)
class IQLConfig(configs.ActorCriticConfig):
    """Settings of IQL."""

    expectile: float = 0.7
    """kappa, between 0 and 1: V is this expectile of Q over logged actions. 0.5 is their mean;
    towards 1 it approaches the best of them."""

    temperature: float = 1.0 / 3.0
    """tau: the lower, the more the policy prefers the best logged actions; 1 / beta in the
    paper."""

    weight_limit: float = 100.0
    """Largest weight of a logged action."""


def check(config: IQLConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_regression(config)
    configs.between(config, "expectile", 0.0, 1.0)
    configs.positive(config, "temperature", "weight_limit")


def update(
    state: steps.ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: IQLConfig
) -> tuple[steps.ValueState, Metrics]:
    """Update value, critics and policy, in this order, then the targets."""
    # Value: an upper expectile of Q over the logged actions.
    logged_value = state.target_critic.minimum(batch.observation, batch.action)
    value, value_metrics = steps.fit_value(
        state.value,
        batch,
        lambda v: batch.where_allowed(expectile_loss(logged_value - v, config.expectile)),
        config,
    )

    # Critics: one logged step, then that value.
    next_value = steps.only_logged_value(value.network, state.target_critic, batch)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: regression with exponential weights.
    advantage = logged_value - value.network(batch.observation)
    weight = q_exponential_weight(advantage, config.temperature, 1.0, config.weight_limit)
    actor, actor_metrics = steps.fit_policy(state.actor, batch, weight, key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**value_metrics, **critic_metrics, **actor_metrics}
    return steps.ValueState(actor, value, critic, target_critic), metrics


ALGORITHM = Algorithm(
    name="iql",
    summary="Implicit Q-Learning: an expectile of Q, and exponential weights",
    config=IQLConfig,
    check=check,
    init=steps.start_value_state,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    value=steps.learned_value,
    metrics={**steps.VALUE_METRICS, **steps.REGRESSION_METRICS},
    weighted_loss="actor_loss",
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.025}),
)
