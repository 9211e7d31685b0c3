"""What the FtTPO authors' code calls XQL (`published=True`): expectile regression.

V is an expectile (0.8) of the target critics over the logged action and one uniform action a
state, both with noise; the Gumbel loss is never reached. Critics and policy are as in `xql`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import xql
from fat2thin.algorithms.base import Batch, Metrics, Problem
from fat2thin.algorithms.losses import expectile_loss, q_exponential_weight, twin_huber_loss
from fat2thin.algorithms.steps import ValueState, fit_critic, fit_policy, fit_value, watched_actions
from fat2thin.algorithms.xql import XQLConfig
from fat2thin.policies.networks import polyak

EXPECTILE = 0.8
RANDOM_ACTIONS = 1
ACTION_NOISE = 0.1


def update(
    state: ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: XQLConfig
) -> tuple[ValueState, Metrics]:
    """One update of value, critics and policy, in this order, then of the targets."""
    value_key, actor_key = jax.random.split(key)

    watched = watched_actions(batch.action, value_key, RANDOM_ACTIONS, ACTION_NOISE)
    values = jax.vmap(functools.partial(state.target_critic.minimum, batch.observation))(watched)
    value, value_metrics = fit_value(
        state.value,
        batch,
        lambda prediction: jnp.mean(expectile_loss(values - prediction[None], EXPECTILE), axis=0),
        config,
    )

    next_value = value.network(batch.next_observation)
    row_loss = functools.partial(twin_huber_loss, limit=config.huber_limit)
    critic, critic_metrics = fit_critic(state.critic, batch, next_value, problem, config, row_loss)

    advantage = state.target_critic.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = q_exponential_weight(advantage, config.temperature, 1.0, config.weight_limit)
    actor, actor_metrics = fit_policy(state.actor, batch, weight, actor_key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**value_metrics, **critic_metrics, **actor_metrics}
    return ValueState(actor, value, critic, target_critic), metrics


ALGORITHM = xql.ALGORITHM._replace(update=update)
