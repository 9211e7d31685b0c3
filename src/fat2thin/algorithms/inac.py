"""In-sample Actor-Critic (Xiao et al., ICLR 2023): a soft maximum of Q over logged actions.

Weights are divided by a model of the behaviour, so that rare good actions count as much as frequent
ones. With slow targets of Q and temperature tau, one update minimises

    behaviour  -log behaviour(a | s)                                               a from the log
    V          (V(s) - [min target Q(s, a) - tau log policy(a | s)])^2 / 2         a ~ policy
    Q          (Q(s, a) - r - gamma [min target Q(s', a') - tau log policy(a' | s')])^2 / 2
                                                                                   a' ~ policy
    policy     -exp((min Q(s, a) - V(s)) / tau - log behaviour(a | s)) log policy(a | s)
                                                                                   a from the log

Densities are per half-range of the action box; with limits, that of the policy is per half-range of
the allowed interval.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem, Values
from fat2thin.algorithms.steps import BehaviourState
from fat2thin.distributions import sample_with_log_prob
from fat2thin.policies.networks import polyak
from fat2thin.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class InACConfig(configs.BehaviourConfig):
    """Settings of InAC."""

    temperature: float = 0.1
    """tau of the entropy and the weights: the lower, the more the policy prefers the best logged
    actions. The paper uses 0.01 to 1, depending on the task."""

    weight_limit: float = 1e4
    """Largest weight of a logged action."""


def check(config: InACConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_regression(config)
    configs.positive(config, "temperature", "weight_limit")
    reason = "InAC's values include an entropy, which the rewards do not bound"
    configs.only_with(config, ("clip_targets",), False, reason)


def update(
    state: BehaviourState, batch: Batch, key: Key[Array, ""], problem: Problem, config: InACConfig
) -> tuple[BehaviourState, Metrics]:
    """Update behaviour model, value, critics and policy, in this order, then the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    policy = steps.learned_policy(state.actor.network, config)

    # Behaviour model: maximum likelihood of logged actions.
    behaviour, behaviour_metrics = steps.fit_behaviour(state.behaviour, batch, config)

    def soft_value(
        policy: Policy, observation: Float[Array, "batch observation"], key: Key[Array, ""]
    ) -> Values:
        """Return min Q(s, a) - tau log policy(a | s) at a sample of the policy."""
        action, log_density = sample_with_log_prob(policy(observation), key)
        value = state.target_critic.minimum(observation, jnp.clip(action, -1.0, 1.0))
        relative = steps.relative_density(log_density, policy.allowed)
        return value - config.temperature * relative

    # Value: slow Q of the policy in this state, plus entropy.
    value_target = soft_value(policy.within(batch.allowed), batch.observation, value_key)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    # Critics: one logged step, then the policy, plus entropy.
    following = policy.within(batch.next_allowed)
    next_value = soft_value(following, batch.next_observation, critic_key)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Policy: regression with weights divided by the behaviour's density.
    advantage = critic.network.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    likelihood = steps.behaviour_policy(behaviour.network, config)(batch.observation)
    log_weight = advantage / config.temperature - likelihood.log_prob(batch.action)
    weight = jnp.exp(jnp.minimum(log_weight, jnp.log(config.weight_limit)))
    actor, actor_metrics = steps.fit_policy(state.actor, batch, weight, actor_key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**behaviour_metrics, **value_metrics, **critic_metrics, **actor_metrics}
    return BehaviourState(actor, behaviour, value, critic, target_critic), metrics


ALGORITHM = Algorithm(
    name="inac",
    summary="In-sample Actor-Critic: a soft maximum of Q over logged actions",
    config=InACConfig,
    check=check,
    init=steps.start_behaviour_state,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    value=steps.learned_value,
    metrics={**steps.BEHAVIOUR_METRICS, **steps.VALUE_METRICS, **steps.REGRESSION_METRICS},
    weighted_loss="actor_loss",
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.01}),
)
