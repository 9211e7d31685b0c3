"""A sparse policy learned without a proposal, by the reverse KL to the weighted behaviour.

The target is behaviour(a | s) exp_q(A(s, a) / tau). Regression on the log fails for a sparse
policy, whose density is zero at some logged actions. Its own samples can be scored instead, with
gradients through the action in every term. One update minimises

    behaviour  -log behaviour(a | s)                                               a from the log
    V          (V(s) - min target Q(s, a))^2 / 2                                   a ~ policy
    Q          (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2                    a' ~ policy
    policy     log policy(a | s) - log behaviour(a | s) - log exp_q((min Q(s, a) - V(s)) / tau)
                                                                                   a ~ policy

For bad actions exp_q is zero and its logarithm -inf. Below `weight_floor` the logarithm is
continued by its tangent, so that a sample among bad actions still gets a gradient.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, published, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Meaning, Metrics, Problem
from fat2thin.algorithms.losses import log_weight
from fat2thin.distributions import sample_with_log_prob
from fat2thin.policies.families import covering_families, families
from fat2thin.policies.networks import PolicyNetwork, polyak

FIXED_BY_PUBLISHED = (
    "policy", "entropic_index", "box", "behaviour", "weight_index", "weight_floor", "scale_low",
    "scale_high", "state_dependent_scale", "actor_decay_steps",
)  # fmt: skip
"""Settings for which `published=True` uses the authors' values."""


@dataclasses.dataclass(frozen=True)
class SparseReverseKLConfig(configs.BehaviourConfig):
    """Settings of the sparse reverse KL."""

    policy: str = configs.choice("sparse_q_gaussian", families)
    """Family of the policy: "sparse_q_gaussian", for which the algorithm is meant, or any other
    family with a density."""

    behaviour: str = configs.choice("q_gaussian", covering_families)
    """Family of the model of the logged behaviour. It must have a density everywhere in the action
    box, so neither "sparse_q_gaussian" nor "deterministic"."""

    temperature: float = 0.5
    """tau: the lower, the more the policy prefers the best actions. With weight_index below 1,
    actions with an advantage below -tau / (1 - weight_index) have zero weight."""

    weight_index: float = 0.0
    """Index of the q-exponential weight, at most 1; 1 is the usual exponential."""

    weight_floor: float = 0.01
    """Weight below which the logarithm is continued by its tangent, between 0 and 1."""

    published: bool = False
    """Compute what the FtTPO authors' code computes: a sparse model of the behaviour, and gradients
    only of the policy's own log density, which maximises its entropy."""


def check(config: SparseReverseKLConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_learning(config)
    configs.check_policy(config, "the loss needs a density, and a deterministic policy has none")
    configs.only_with(
        config, ("outside_support",), False,
        "the loss does not use the density of logged actions",
    )  # fmt: skip
    configs.positive(config, "temperature")
    configs.between(config, "weight_index", -math.inf, 1.0, closed_high=True)
    configs.between(config, "weight_floor", 0.0, 1.0)
    configs.only_with(
        config, FIXED_BY_PUBLISHED, not config.published, "published=True uses the authors' value"
    )


def update(
    state: steps.BehaviourState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: SparseReverseKLConfig,
) -> tuple[steps.BehaviourState, Metrics]:
    """Update behaviour model, value, critics and policy, in this order, then the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    policy = steps.learned_policy(state.actor.network, config)

    # Behaviour model: maximum likelihood of logged actions.
    behaviour, behaviour_metrics = steps.fit_behaviour(state.behaviour, batch, config)

    # Value: slow Q of the policy in this state.
    here, following = policy.within(batch.allowed), policy.within(batch.next_allowed)
    action = steps.sample_action(here, batch.observation, value_key)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    # Critics: one logged step, then the policy.
    next_action = steps.sample_action(following, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: its own samples, scored by the behaviour model and the critics.
    likelihood = steps.behaviour_policy(behaviour.network, config)(batch.observation)
    baseline = value.network(batch.observation)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        density = steps.learned_policy(network, config).within(batch.allowed)(batch.observation)
        action, log_density = sample_with_log_prob(density, actor_key)
        in_box = jnp.clip(action, -1.0, 1.0)
        advantage = critic.network.minimum(batch.observation, in_box) - baseline
        weight = log_weight(advantage, config.temperature, config.weight_index, config.weight_floor)
        errors = log_density - likelihood.log_prob(in_box) - weight
        dropped = (weight < jnp.log(config.weight_floor)).astype(errors.dtype)
        return jnp.mean(errors), {"actor_loss": errors, "samples_below_floor": dropped}

    rate = steps.cosine_decay(state.actor, config.learning_rate, config.actor_decay_steps)
    actor, actor_metrics = steps.descend(state.actor, loss, config, rate)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**actor_metrics, **behaviour_metrics, **value_metrics, **critic_metrics}
    metrics |= steps.watch_policy(policy, batch)
    return steps.BehaviourState(actor, behaviour, value, critic, target_critic), metrics


def published_update(
    state: steps.BehaviourState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: SparseReverseKLConfig,
) -> tuple[steps.BehaviourState, Metrics]:
    """Update as the FtTPO authors' code does (`published=True`).

    The behaviour is modelled by the same sparse family, with random action replacement, and its log
    density and the advantage are detached from the action. The only remaining gradient is that of
    log policy(a | s) at the policy's own samples: it maximises the entropy and ignores the log.
    """
    behaviour_key, value_key, critic_key, actor_key = jax.random.split(key, 4)
    before = published.sparse_policy(state.actor.network)

    logged = jnp.clip(batch.action, -published.EDGE, published.EDGE)
    model = published.sparse_policy(state.behaviour.network)
    regressed = steps.regressed_action(model, batch.observation, logged, "replace", behaviour_key)

    def behaviour_loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        model = published.sparse_policy(network)
        errors = -published.floored_log_density(model, batch.observation, regressed)
        return jnp.mean(errors), {"behaviour_loss": errors}

    behaviour, behaviour_metrics = steps.descend(state.behaviour, behaviour_loss, config)

    action = published.sample_within(before, batch.observation, value_key)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    next_action = published.sample_within(before, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        policy = published.sparse_policy(network)
        action = published.sample_within(policy, batch.observation, actor_key)
        detached = lax.stop_gradient(action)
        advantage = critic.network.minimum(batch.observation, detached)
        advantage -= value.network(batch.observation)
        weight = published.floored_weight(advantage, config.temperature)
        counts = weight > published.WEIGHT_BOUNDS[0]
        model = published.sparse_policy(behaviour.network)
        reference = published.floored_log_density(model, batch.observation, detached)
        own = published.floored_log_density(policy, batch.observation, action)
        kept = jnp.where(counts, own - (reference + jnp.log(weight)), 0.0)
        error = jnp.sum(kept) / jnp.maximum(jnp.sum(counts), 1)
        return error, {"actor_loss": error, "samples_below_floor": 1.0 - jnp.mean(counts)}

    actor, actor_metrics = steps.descend(state.actor, loss, config)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**actor_metrics, **behaviour_metrics, **value_metrics, **critic_metrics}
    metrics |= steps.watch_policy(before, batch)
    return steps.BehaviourState(actor, behaviour, value, critic, target_critic), metrics


CORRECTED = Algorithm(
    name="sparse_reverse_kl",
    summary="A sparse policy by the reverse KL to the weighted behaviour, without a proposal",
    config=SparseReverseKLConfig,
    check=check,
    init=steps.start_behaviour_state,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    value=steps.learned_value,
    metrics={
        **steps.BEHAVIOUR_METRICS,
        **steps.VALUE_METRICS,
        **steps.POLICY_METRICS,
        "samples_below_floor": Meaning(
            "share of the policy's samples with a weight below the floor",
            "falls; near 1 means that most of the policy's samples are bad actions",
        ),
    },
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.1}),
)
ALGORITHM = published.added_to(CORRECTED, update=published_update, policy=published.acting_policy)
