"""TAWAC with the authors' heavy-tailed or sparse policy (`published=True`).

With the heavy-tailed one it is their TAWAC-HT: an improper density in several dimensions, and
Gaussian samples. With the sparse one it is their random action replacement: logged actions outside
the support are replaced by the nearest of a hundred samples, and what is -inf even then counts as
-30. Weights are floored at 1e-8.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import steps, tawac
from fat2thin.algorithms.base import Batch, Metrics, Problem, with_published
from fat2thin.algorithms.learner import descend
from fat2thin.algorithms.published.families import EDGE, heavy_policy, sparse_policy
from fat2thin.algorithms.published.fttpo import floored_weight
from fat2thin.algorithms.steps import ValueState
from fat2thin.algorithms.tawac import TAWACConfig
from fat2thin.policies.networks import PolicyNetwork, polyak
from fat2thin.policies.policy import Policy

LOG_DENSITY_FLOOR = -30.0


def update(
    state: ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: TAWACConfig
) -> tuple[ValueState, Metrics]:
    """One update of value, critics and policy, in this order, then of the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    before = unit_policy(state.actor.network, config)

    action = jnp.clip(before(batch.observation).sample(value_key), -EDGE, EDGE)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    next_action = jnp.clip(before(batch.next_observation).sample(critic_key), -EDGE, EDGE)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    advantage = critic.network.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = floored_weight(advantage, config.temperature)
    logged = jnp.clip(batch.action, -EDGE, EDGE)
    rule = "replace" if config.policy == "sparse_q_gaussian" else None
    regressed = steps.regressed_action(before, batch.observation, logged, rule, actor_key)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        policy = unit_policy(network, config)
        errors = -weight * log_density(policy, batch.observation, regressed)
        return jnp.mean(errors), {"actor_loss": errors}

    actor, actor_metrics = descend(state.actor, loss, config)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**actor_metrics, **value_metrics, **critic_metrics}
    metrics |= steps.watch_weight(weight) | steps.watch_policy(before, batch)
    return ValueState(actor, value, critic, target_critic), metrics


def log_density(
    policy: Policy, observation: Float[Array, "batch observation"], action: Array
) -> Float[Array, " batch"]:
    """The log density, -30 (without a gradient) where it is -inf."""
    found = policy(observation).log_prob(action)
    return jnp.where(jnp.isfinite(found), found, LOG_DENSITY_FLOOR)


def unit_policy(network: PolicyNetwork, config: TAWACConfig) -> Policy:
    """Their policy of either kind, in half-ranges of the box."""
    sparse = config.policy == "sparse_q_gaussian"
    return sparse_policy(network) if sparse else heavy_policy(network)


def policy(state: ValueState, problem: Problem, config: TAWACConfig) -> Policy:
    """Their policy."""
    unit = unit_policy(state.actor.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


ALGORITHM = with_published(tawac.ALGORITHM, update=update, policy=policy)
