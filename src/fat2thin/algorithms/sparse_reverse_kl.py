"""A sparse policy learned directly, by the reverse KL to the weighted behaviour.

The target is behaviour(a | s) exp_q(A(s, a) / tau). A sparse policy cannot be regressed on the
log, but its own samples can be judged, with gradients through the action in every term:

    behaviour  -log behaviour(a | s)                                               a from the log
    V          (V(s) - min target Q(s, a))^2 / 2                                   a ~ policy
    Q          (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2                    a' ~ policy
    policy     log policy(a | s) - log behaviour(a | s) - log exp_q((min Q(s, a) - V(s)) / tau)
                                                                                   a ~ policy

exp_q is zero for bad actions and its logarithm -inf; below `weight_floor` it is continued by its
tangent, so that a sample among bad actions is pulled out of them.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, published, steps
from fat2thin.algorithms.base import Algorithm, Batch, Meaning, Metrics, Problem, SmallLogs
from fat2thin.algorithms.losses import log_weight
from fat2thin.distributions import sample_with_log_prob
from fat2thin.policies.families import covering_families, families
from fat2thin.policies.networks import PolicyNetwork, polyak

THEIRS = (
    "policy", "entropic_index", "box", "behaviour", "weight_index", "weight_floor", "scale_low",
    "scale_high", "state_dependent_scale", "actor_decay_steps",
)  # fmt: skip
"""Settings that `published=True` has values of its own for."""


@dataclasses.dataclass(frozen=True)
class SparseReverseKLConfig(configs.BehaviourConfig):
    """Settings of the sparse reverse KL."""

    policy: str = configs.choice("sparse_q_gaussian", families)
    """Family of the policy: "sparse_q_gaussian", for which this was made, or any other that has a
    density."""

    behaviour: str = configs.choice("q_gaussian", covering_families)
    """Family of the model of the log's behaviour: any that has a density wherever a logged action
    can be, so neither "sparse_q_gaussian" nor "deterministic"."""

    temperature: float = 0.5
    """tau: actions with an advantage below -tau / (1 - weight_index) have no weight."""

    weight_index: float = 0.0
    """Index of the q-exponential weight, at most 1, which is the usual exponential."""

    weight_floor: float = 0.01
    """Weight below which its logarithm is continued by the tangent."""

    published: bool = False
    """Run what the FtTPO authors' code computes: a sparse model of the behaviour, and no gradient
    but that of the policy's own log density, which is entropy maximisation."""


def check(config: SparseReverseKLConfig) -> None:
    """Refuse a setting out of range."""
    configs.check_learning(config)
    configs.check_policy(config, "the loss asks for a density, and a deterministic policy has none")
    configs.only_with(
        config, ("outside_support",), False,
        "the loss asks for no density of logged actions, so none can be outside",
    )  # fmt: skip
    configs.positive(config, "temperature")
    configs.between(config, "weight_index", -math.inf, 1.0, closed_high=True)
    configs.between(config, "weight_floor", 0.0, 1.0)
    configs.only_with(config, THEIRS, not config.published, "published=True has the authors' own")


def update(
    state: steps.BehaviourState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: SparseReverseKLConfig,
) -> tuple[steps.BehaviourState, Metrics]:
    """One update of behaviour, value, critics and policy, in this order, then of the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    policy = steps.learned_policy(state.actor.network, config)

    # Behaviour: what the log does.
    behaviour, behaviour_metrics = steps.fit_behaviour(state.behaviour, batch, config)

    # Value: what the policy gets here.
    action = steps.sample_action(policy, batch.observation, value_key)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    # Critics: one step of the log, then the policy.
    next_action = steps.sample_action(policy, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: its own samples, judged by the behaviour and by the critics.
    likelihood = steps.behaviour_policy(behaviour.network, config)(batch.observation)
    baseline = value.network(batch.observation)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        density = steps.learned_policy(network, config)(batch.observation)
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
    """One update as the FtTPO authors' code computes it (`published=True`).

    The behaviour is modelled by the same sparse family, with random action replacement, and its log
    density and the advantage are detached from the action. What is left to the gradient is
    log policy(a | s) at the policy's own samples: its entropy is maximised, whatever the log says.
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
            "share of the policy's samples whose weight is below the floor",
            "falls; near 1 the policy sits among bad actions",
        ),
    },
    small_logs=SmallLogs(noisy={"temperature": 0.1}),
)
ALGORITHM = published.added_to(CORRECTED, update=published_update, policy=published.acting_policy)
