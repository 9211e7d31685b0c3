"""What algorithms have in common: the networks they start with, and one step of each of them.

A step takes a learner and a batch and gives the learner back with what it reports. What differs
between algorithms (targets, row losses, weights) is handed in.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Key

from fat2thin.algorithms import losses
from fat2thin.algorithms.base import Actions, Batch, Meaning, Metrics, Observations, Problem, Values
from fat2thin.algorithms.configs import ActorConfig, BehaviourConfig, LearningConfig, PolicyConfig
from fat2thin.policies.families import SETTINGS, make_family
from fat2thin.policies.networks import PolicyNetwork, ScalarNetwork, TwinCritic, ValueAndCritics
from fat2thin.policies.policy import Policy, unit_policy

ADAM_BETA_1 = 0.9
BEHAVIOUR_SCALES = (1e-3, 10.0)
"""Bounds of the behaviour's scale; the policy's own may be those of a narrow band."""
REPLACEMENT_SAMPLES = 100
PROJECTED_SHARE = 0.9

CRITIC_METRICS = {
    "critic_loss": Meaning(
        "half the squared error of Q against its target, both critics",
        "falls towards the noise of the rewards; far below it means the log is being learned by "
        "heart",
    ),
    "q_mean": Meaning(
        "mean Q of logged actions",
        "on the scale of discounted returns; growing without end means overestimation",
    ),
}
VALUE_METRICS = {
    "value_loss": Meaning("what V minimises, mean over the batch", "should settle; it follows Q"),
    "v_mean": Meaning(
        "mean V of logged states", "near `q_mean`; above it where the policy is better than the log"
    ),
    **CRITIC_METRICS,
}
WEIGHT_METRICS = {
    "weight_mean": Meaning(
        "mean weight of logged actions", "near zero: the policy hardly learns from the log"
    ),
    "zero_weight_share": Meaning(
        "share of logged actions with a weight of exactly zero",
        "the share that is thrown away as bad; 1 means that nothing is learned",
    ),
}
POLICY_METRICS = {
    "actor_loss": Meaning(
        "what the policy that acts minimises",
        "should settle; a regression's falls below zero once the density exceeds 1",
    ),
    "policy_scale": Meaning(
        "scale of the policy (half-width of a sparse one)",
        "shrinks with the good actions; at a bound, the bound decides",
    ),
    "logged_inside_support": Meaning(
        "share of logged actions that the policy could have taken",
        "how much of the log's behaviour is still allowed",
    ),
}
REGRESSION_METRICS = {**POLICY_METRICS, **WEIGHT_METRICS}
BEHAVIOUR_METRICS = {
    "behaviour_loss": Meaning(
        "−log behaviour(a given s) on logged actions",
        "falls towards the entropy of the log's actions",
    )
}
"""Metrics of the steps below, by what is learned."""


class Learner(NamedTuple):
    """A network and Adam's state for it."""

    network: Any
    moments: optax.ScaleByAdamState


def start(network: eqx.Module) -> Learner:
    """A learner with fresh moments."""
    return Learner(network, optax.scale_by_adam().init(network))


def descend(
    learner: Learner,
    loss: Callable[..., tuple[Float[Array, ""], Metrics]],
    config: LearningConfig,
    learning_rate: float | Float[Array, ""] | None = None,
) -> tuple[Learner, Metrics]:
    """One Adam step down `loss(network) -> (value, metrics)`; the learner, and the metrics.

    The learning rate is the config's where no other is given. Weight decay is AdamW's: apart from
    the gradient, so that Adam does not rescale it.
    """
    rate = config.learning_rate if learning_rate is None else learning_rate
    gradient, metrics = jax.grad(loss, has_aux=True)(learner.network)
    adam = optax.scale_by_adam(b1=ADAM_BETA_1, b2=config.adam_beta_2)
    direction, moments = adam.update(gradient, learner.moments)
    # A traced number is not known to be zero.
    decay = config.weight_decay
    if not (isinstance(decay, float) and decay == 0.0):
        direction = jax.tree.map(lambda d, p: d + decay * p, direction, learner.network)
    network = jax.tree.map(lambda p, d: p - rate * d, learner.network, direction)
    return Learner(network, moments), metrics


def cosine_decay(
    counted: Learner, learning_rate: float | Float[Array, ""], steps: int | None
) -> float | Float[Array, ""]:
    """The learning rate after as many updates as `counted` has had: half a cosine to zero."""
    if steps is None:
        return learning_rate
    share = jnp.minimum(counted.moments.count / steps, 1.0)
    return learning_rate * (1.0 + jnp.cos(jnp.pi * share)) / 2.0


def keep_if(due: Array, new: Any, old: Any) -> Any:
    """`new` where it is due, else `old`, leaf by leaf."""
    return jax.tree.map(lambda fresh, kept: jnp.where(due, fresh, kept), new, old)


class ValueState(NamedTuple):
    """Everything that changes while a policy, a value and critics are learned."""

    actor: Learner
    value: Learner
    critic: Learner
    target_critic: TwinCritic


class BehaviourState(NamedTuple):
    """The same, and a model of the log's behaviour."""

    actor: Learner
    behaviour: Learner
    value: Learner
    critic: Learner
    target_critic: TwinCritic


def start_policy(key: Key[Array, ""], problem: Problem, config: LearningConfig) -> Learner:
    """A fresh policy network."""
    return start(PolicyNetwork(key, problem.observation_size, problem.action_size, config.hidden))


def start_critic(key: Key[Array, ""], problem: Problem, config: LearningConfig) -> Learner:
    """Fresh twin critics; their targets start as a copy."""
    return start(TwinCritic(key, problem.observation_size, problem.action_size, config.hidden))


def start_value(key: Key[Array, ""], problem: Problem, config: LearningConfig) -> Learner:
    """A fresh state value."""
    return start(ScalarNetwork(key, problem.observation_size, config.hidden))


def start_value_state(key: Key[Array, ""], problem: Problem, config: LearningConfig) -> ValueState:
    """Fresh networks and optimisers of a policy, a value and critics."""
    actor_key, value_key, critic_key = jax.random.split(key, 3)
    actor = start_policy(actor_key, problem, config)
    value = start_value(value_key, problem, config)
    critic = start_critic(critic_key, problem, config)
    return ValueState(actor, value, critic, critic.network)


def start_behaviour_state(
    key: Key[Array, ""], problem: Problem, config: LearningConfig
) -> BehaviourState:
    """The same, and of a model of the log's behaviour."""
    actor_key, behaviour_key, value_key, critic_key = jax.random.split(key, 4)
    actor = start_policy(actor_key, problem, config)
    behaviour = start_policy(behaviour_key, problem, config)
    value = start_value(value_key, problem, config)
    critic = start_critic(critic_key, problem, config)
    return BehaviourState(actor, behaviour, value, critic, critic.network)


def learned_policy(network: PolicyNetwork, config: PolicyConfig) -> Policy:
    """The policy of a network, in half-ranges of the box."""
    family = make_family(config.policy, **{name: getattr(config, name) for name in SETTINGS})
    # Beyond the whole box a wider band is the same band, and its gradient lost.
    widest = min(config.scale_high, 1.0) if family.reach == "band" else config.scale_high
    return unit_policy(network, family, (config.scale_low, widest), config.state_dependent_scale)


def acting_policy(state: Any, problem: Problem, config: PolicyConfig) -> Policy:
    """The learned policy in the environment's units."""
    unit = learned_policy(state.actor.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


def learned_critics(state: Any, problem: Problem, config: LearningConfig) -> TwinCritic:
    """The critics of a state that has them as a learner of their own."""
    return state.critic.network


def learned_value(state: Any, problem: Problem, config: LearningConfig) -> ScalarNetwork:
    """The value of a state that has it as a learner of its own."""
    return state.value.network


def sample_action(policy: Policy, observation: Observations, key: Key[Array, ""]) -> Actions:
    """Actions in the box for critics to judge, without a gradient."""
    return lax.stop_gradient(policy.act(observation, key))


def values_of_both(
    critic: TwinCritic, batch: Batch, action: Actions, next_action: Actions
) -> tuple[Values, Values]:
    """The smaller Q of an action here and of another in the next state, in one pass."""
    observations = jnp.concatenate([batch.observation, batch.next_observation])
    values = critic.minimum(observations, jnp.concatenate([action, next_action]))
    here, following = jnp.split(values, 2)
    return here, following


def fit_value(
    learner: Learner, batch: Batch, row_loss: Callable[[Values], Values], config: LearningConfig
) -> tuple[Learner, Metrics]:
    """One step down the mean of `row_loss(V(s))`."""

    def loss(network: ScalarNetwork) -> tuple[Array, Metrics]:
        prediction = network(batch.observation)
        errors = row_loss(prediction)
        return jnp.mean(errors), {"value_loss": errors, "v_mean": prediction}

    return descend(learner, loss, config)


def regress_value(
    learner: Learner, batch: Batch, target: Values, config: LearningConfig
) -> tuple[Learner, Metrics]:
    """One step down the mean of (V(s) - target)^2 / 2."""
    return fit_value(learner, batch, lambda value: losses.half_squared_error(value, target), config)


def critic_target(
    batch: Batch, next_value: Values, problem: Problem, config: LearningConfig
) -> Values:
    """Return r + gamma * next value, clipped to what rewards allow if `clip_targets` is set.

    Without a known range (a finished run on another log) nothing is clipped.
    """
    target = losses.temporal_difference_target(
        batch.reward, batch.continuation, problem.discount, next_value
    )
    if not getattr(config, "clip_targets", False) or problem.value_range is None:
        return target
    return jnp.clip(target, problem.value_range[0], problem.value_range[1])


def fit_critic(
    learner: Learner,
    batch: Batch,
    next_value: Values,
    problem: Problem,
    config: LearningConfig,
    row_loss: Callable[[Array, Array], Array] = losses.twin_critic_loss,
) -> tuple[Learner, Metrics]:
    """One step of both critics towards r + gamma * next value."""
    target = critic_target(batch, next_value, problem, config)

    def loss(network: TwinCritic) -> tuple[Array, Metrics]:
        values = network(batch.observation, batch.action)
        errors = row_loss(values, target)
        return jnp.mean(errors), {"critic_loss": errors, "q_mean": jnp.mean(values, axis=0)}

    return descend(learner, loss, config)


def fit_value_and_critics(
    learner: Learner,
    batch: Batch,
    value_target: Values,
    next_value: Values,
    problem: Problem,
    config: LearningConfig,
) -> tuple[Learner, Metrics]:
    """One step of the value towards its target, and of both critics towards r + gamma * next."""
    target = critic_target(batch, next_value, problem, config)

    def loss(network: ValueAndCritics) -> tuple[Array, Metrics]:
        value, critics = network(batch.observation, batch.action)
        value_errors = losses.half_squared_error(value, value_target)
        critic_errors = losses.twin_critic_loss(critics, target)
        return jnp.mean(value_errors) + jnp.mean(critic_errors), {
            "value_loss": value_errors,
            "v_mean": value,
            "critic_loss": critic_errors,
            "q_mean": jnp.mean(critics, axis=0),
        }

    return descend(learner, loss, config)


def fit_policy(
    learner: Learner, batch: Batch, weight: Values, key: Key[Array, ""], config: ActorConfig
) -> tuple[Learner, Metrics]:
    """One step of weighted regression on logged actions."""
    before = learned_policy(learner.network, config)
    action = regressed_action(before, batch.observation, batch.action, config.outside_support, key)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        log_density = learned_policy(network, config)(batch.observation).log_prob(action)
        # An action at the very end of a band may be outside it by rounding: it sits this one out.
        counts = jnp.isfinite(log_density) if config.outside_support else True
        errors = losses.weighted_regression(jnp.where(counts, weight, 0.0), log_density)
        return jnp.mean(errors), {"actor_loss": errors}

    rate = cosine_decay(learner, config.learning_rate, config.actor_decay_steps)
    learner, metrics = descend(learner, loss, config, rate)
    return learner, {**metrics, **watch_weight(weight), **watch_policy(before, batch)}


def regressed_action(
    policy: Policy,
    observation: Observations,
    action: Actions,
    rule: str | None,
    key: Key[Array, ""],
) -> Actions:
    """The actions whose likelihood is raised: the logged ones, but for those outside the support.

    "replace" takes the nearest of a hundred samples of the policy (random action replacement),
    "project" the nearest point of the middle 90 % of the band. Neither carries a gradient.
    """
    if rule is None:
        return action
    if rule == "replace":
        samples = policy(observation).sample(key, (REPLACEMENT_SAMPLES,))
        nearest = jnp.argmin(jnp.sum((samples - action[None]) ** 2, axis=-1), axis=0)
        instead = jnp.take_along_axis(samples, nearest[None, :, None], axis=0)[0]
    else:
        low, high = policy.support(observation)
        centre, reach = (low + high) / 2.0, PROJECTED_SHARE * (high - low) / 2.0
        instead = jnp.clip(action, centre - reach, centre + reach)
    # The density itself is asked: it knows an ellipsoid from its box, and its own rounding.
    inside = jnp.isfinite(policy(observation).log_prob(action))
    return lax.stop_gradient(jnp.where(inside[:, None], action, instead))


def behaviour_policy(network: PolicyNetwork, config: BehaviourConfig) -> Policy:
    """The model of the log's behaviour, in half-ranges of the box."""
    family = make_family(config.behaviour)
    return unit_policy(network, family, BEHAVIOUR_SCALES, config.state_dependent_scale)


def fit_behaviour(
    learner: Learner, batch: Batch, config: BehaviourConfig
) -> tuple[Learner, Metrics]:
    """One step of maximum likelihood on logged actions."""

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        errors = -behaviour_policy(network, config)(batch.observation).log_prob(batch.action)
        return jnp.mean(errors), {"behaviour_loss": errors}

    return descend(learner, loss, config)


def watched_actions(
    action: Actions, key: Key[Array, ""], random_actions: int, noise: losses.Setting
) -> Float[Array, "actions batch action"]:
    """The logged action and so many uniform ones a state, all with noise cut at 0.5, in the box."""
    random_key, noise_key = jax.random.split(key)
    uniform = jax.random.uniform(random_key, (random_actions, *action.shape), minval=-1.0)
    actions = jnp.concatenate([action[None], uniform])
    shift = jnp.clip(noise * jax.random.normal(noise_key, actions.shape), -0.5, 0.5)
    return jnp.clip(actions + shift, -1.0, 1.0)


def inside_support(
    policy: Policy, observation: Observations, action: Array
) -> Bool[Array, " batch"]:
    """Which actions lie between the ends of the policy's support."""
    low, high = policy.support(observation)
    return jnp.all((low <= action) & (action <= high), axis=-1)


def watch_weight(weight: Values) -> Metrics:
    """How much of the log counts."""
    return {"weight_mean": weight, "zero_weight_share": (weight == 0.0).astype(weight.dtype)}


def watch_policy(policy: Policy, batch: Batch) -> Metrics:
    """How wide a policy is, and how much of the log it could have done."""
    if policy.family.reach == "point":
        return {}
    inside = inside_support(policy, batch.observation, batch.action)
    scale = jnp.exp(policy.network(batch.observation).log_scale)
    return {
        "policy_scale": jnp.mean(scale, axis=-1),
        "logged_inside_support": inside.astype(scale.dtype),
    }
