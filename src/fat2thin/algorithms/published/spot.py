"""SPOT as the FtTPO authors' code computes it (`published=True`).

The policy's loss is taken at logged actions, so that nothing in it depends on the policy: it stays
what it was at the start, whatever the critics learn.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import spot, steps
from fat2thin.algorithms.base import Batch, Metrics, Problem, with_published
from fat2thin.algorithms.spot import SPOTConfig, State, model_loss
from fat2thin.algorithms.td3_bc import scaled_value, smoothed_next_value
from fat2thin.policies.networks import polyak


def update(
    state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: SPOTConfig
) -> tuple[State, Metrics]:
    """One update of the critics; the policy's loss is reported, and moves nothing."""
    critic_key, model_key = jax.random.split(key)
    policy = steps.learned_policy(state.actor.network, config)
    next_value = smoothed_next_value(
        policy, state.target_critic, batch.next_observation, critic_key, config
    )
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    bound = state.density.network.bound(batch.observation, batch.action, model_key)
    outside = jnp.mean(model_loss(bound, config))
    climb = scaled_value(state.target_critic, batch.observation, batch.action)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {
        "actor_loss": config.support_weight * outside - climb,
        "model_loss": outside,
        **critic_metrics,
        **steps.watch_policy(policy, batch),
    }
    return state._replace(critic=critic, target_critic=target_critic), metrics


ALGORITHM = with_published(spot.ALGORITHM, update=update)
