"""The sparse reverse KL as the FtTPO authors' code computes it (`published=True`).

The behaviour is modelled by the same sparse family, with random action replacement, and its log
density and the advantage are detached from the action. What is left to the gradient is
log policy(a | s) at the policy's own samples: its entropy is maximised, whatever the log says.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fat2thin.algorithms import sparse_reverse_kl, steps
from fat2thin.algorithms.base import Batch, Metrics, Problem, with_published
from fat2thin.algorithms.learner import descend
from fat2thin.algorithms.published.families import EDGE, WEIGHT_BOUNDS, sparse_policy
from fat2thin.algorithms.published.fttpo import floored_weight
from fat2thin.algorithms.published.tawac import log_density
from fat2thin.algorithms.sparse_reverse_kl import SparseReverseKLConfig
from fat2thin.algorithms.steps import BehaviourState
from fat2thin.policies.networks import PolicyNetwork, polyak
from fat2thin.policies.policy import Policy


def update(
    state: BehaviourState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: SparseReverseKLConfig,
) -> tuple[BehaviourState, Metrics]:
    """One update of behaviour, value, critics and policy, in this order, then of the targets."""
    behaviour_key, value_key, critic_key, actor_key = jax.random.split(key, 4)
    before = sparse_policy(state.actor.network)

    logged = jnp.clip(batch.action, -EDGE, EDGE)
    model = sparse_policy(state.behaviour.network)
    regressed = steps.regressed_action(model, batch.observation, logged, "replace", behaviour_key)

    def behaviour_loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        errors = -log_density(sparse_policy(network), batch.observation, regressed)
        return jnp.mean(errors), {"behaviour_loss": errors}

    behaviour, behaviour_metrics = descend(state.behaviour, behaviour_loss, config)

    action = jnp.clip(before(batch.observation).sample(value_key), -EDGE, EDGE)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    next_action = jnp.clip(before(batch.next_observation).sample(critic_key), -EDGE, EDGE)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        policy = sparse_policy(network)
        action = jnp.clip(policy(batch.observation).sample(actor_key), -EDGE, EDGE)
        detached = lax.stop_gradient(action)
        advantage = critic.network.minimum(batch.observation, detached)
        advantage -= value.network(batch.observation)
        weight = floored_weight(advantage, config.temperature)
        counts = weight > WEIGHT_BOUNDS[0]
        model = sparse_policy(behaviour.network)
        reference = log_density(model, batch.observation, detached) + jnp.log(weight)
        terms = log_density(policy, batch.observation, action) - reference
        kept = jnp.where(counts, terms, 0.0)
        error = jnp.sum(kept) / jnp.maximum(jnp.sum(counts), 1)
        return error, {"actor_loss": error, "samples_below_floor": 1.0 - jnp.mean(counts)}

    actor, actor_metrics = descend(state.actor, loss, config)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**actor_metrics, **behaviour_metrics, **value_metrics, **critic_metrics}
    metrics |= steps.watch_policy(before, batch)
    return BehaviourState(actor, behaviour, value, critic, target_critic), metrics


def policy(state: BehaviourState, problem: Problem, config: SparseReverseKLConfig) -> Policy:
    """Their policy."""
    return sparse_policy(state.actor.network).in_box(problem.action_low, problem.action_high)


ALGORITHM = with_published(sparse_reverse_kl.ALGORITHM, update=update, policy=policy)
