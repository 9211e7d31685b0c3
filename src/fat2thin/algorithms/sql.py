"""Sparse Q-Learning (Xu et al., ICLR 2023): implicit value regularisation with a chi-square term.

The value V makes the mean weight [1 + (Q - V) / (2 alpha)]_+ of logged actions 1. The policy drops
actions with an advantage below -2 alpha. With slow targets of Q and temperature alpha, one update
minimises

    V       [1 + (min target Q(s, a) - V(s)) / (2 alpha)]_+^2 + V(s) / alpha    a from the log
    Q       (Q(s, a) - r - gamma V(s'))^2 / 2                                   a from the log
    policy  -[1 + (min target Q(s, a) - V(s)) / (2 alpha)]_+ log policy(a | s)  a from the log
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem
from fat2thin.algorithms.losses import q_exponential_weight, sparse_value_loss
from fat2thin.policies.networks import polyak


@dataclasses.dataclass(frozen=True)
class SQLConfig(configs.ActorCriticConfig):
    """Settings of SQL."""

    temperature: float = 1.0
    """alpha: the higher, the closer the policy stays to the log; actions with an advantage below
    -2 alpha are dropped."""

    weights: str = configs.choice("sparse", ("sparse", "positive_part"))
    """Weights of logged actions with advantage A: "sparse", [1 + A / (2 alpha)]_+ as derived in the
    paper, or "positive_part", max(A, 0) as in the paper's code."""

    weight_limit: float = 100.0
    """Largest weight of a logged action."""


def check(config: SQLConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_regression(config)
    configs.positive(config, "temperature", "weight_limit")


def update(
    state: steps.ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: SQLConfig
) -> tuple[steps.ValueState, Metrics]:
    """Update value, critics and policy, in this order, then the targets."""
    # Value: such that the mean sparse weight of logged actions is 1.
    logged_value = state.target_critic.minimum(batch.observation, batch.action)
    value, value_metrics = steps.fit_value(
        state.value,
        batch,
        lambda v: batch.where_allowed(sparse_value_loss(logged_value, v, config.temperature)),
        config,
    )

    # Critics: one logged step, then that value.
    next_value = steps.only_logged_value(value.network, state.target_critic, batch)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: regression with sparse weights.
    advantage = logged_value - value.network(batch.observation)
    if config.weights == "sparse":
        weight = q_exponential_weight(advantage, 2.0 * config.temperature, 0.0, config.weight_limit)
    else:
        weight = jnp.clip(advantage, 0.0, config.weight_limit)
    actor, actor_metrics = steps.fit_policy(state.actor, batch, weight, key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**value_metrics, **critic_metrics, **actor_metrics}
    return steps.ValueState(actor, value, critic, target_critic), metrics


ALGORITHM = Algorithm(
    name="sql",
    summary="Sparse Q-Learning: sparse value regularisation, and weights that drop bad actions",
    config=SQLConfig,
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
