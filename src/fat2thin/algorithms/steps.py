"""Building blocks of algorithms: initial networks, and one training step for each kind of network.

A step takes a learner and a batch, and returns the updated learner and its metrics. What differs
between algorithms (targets, row losses, weights) is an argument.
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
from fat2thin.algorithms.configs import (
    ActorConfig,
    BehaviourConfig,
    CriticConfig,
    LearningConfig,
    PolicyConfig,
)
from fat2thin.policies.families import SETTINGS, make_family
from fat2thin.policies.networks import Critics, PolicyNetwork, ScalarNetwork, ValueAndCritics
from fat2thin.policies.policy import Policy, unit_policy

ADAM_BETA_1 = 0.9
BEHAVIOUR_SCALES = (1e-3, 10.0)
"""Bounds of the scale of the behaviour model; those of the policy may be too narrow for it."""
REPLACEMENT_SAMPLES = 100
PROJECTED_SHARE = 0.9

CRITIC_METRICS = {
    "critic_loss": Meaning(
        "half the squared error of Q against its target, mean of the critics",
        "falls towards the noise of the rewards; far below it means overfitting to the log",
    ),
    "q_mean": Meaning(
        "mean Q of logged actions",
        "on the scale of discounted returns; unbounded growth means overestimation",
    ),
}
VALUE_METRICS = {
    "value_loss": Meaning("loss of V, mean over the batch", "should settle; it follows Q"),
    "v_mean": Meaning(
        "mean V of logged states", "near `q_mean`; above it if the policy is better than the log"
    ),
    **CRITIC_METRICS,
}
WEIGHT_METRICS = {
    "weight_mean": Meaning(
        "mean weight of logged actions", "near zero means that the policy hardly learns"
    ),
    "zero_weight_share": Meaning(
        "share of logged actions with a weight of exactly zero",
        "the share that is dropped as bad; 1 means that nothing is learned",
    ),
    "effective_share": Meaning(
        "share of the batch that the regression effectively uses, (Σ weight)² / (rows · Σ weight²)",
        "1 if all weights are equal; below 0.02 a few rows decide, and a larger temperature helps",
    ),
}
POLICY_METRICS = {
    "actor_loss": Meaning(
        "loss of the policy that acts",
        "should settle; a regression loss is negative once the density exceeds 1",
    ),
    "policy_scale": Meaning(
        "scale of the policy (half-width of a sparse one)",
        "shrinks as the policy concentrates on good actions; may be limited by its bounds",
    ),
    "logged_inside_support": Meaning(
        "share of logged actions that the policy could have taken",
        "how much of the logged behaviour the policy still allows",
    ),
}
REGRESSION_METRICS = {**POLICY_METRICS, **WEIGHT_METRICS}
BEHAVIOUR_METRICS = {
    "behaviour_loss": Meaning(
        "−log behaviour(a given s) on logged actions",
        "falls towards the entropy of the logged actions",
    )
}
"""Descriptions of the metrics that the steps below report, by the network they train."""


class Learner(NamedTuple):
    """A network and its Adam state."""

    network: Any
    moments: optax.ScaleByAdamState


def start(network: eqx.Module) -> Learner:
    """Return a learner with initial moments."""
    return Learner(network, optax.scale_by_adam().init(network))


def descend(
    learner: Learner,
    loss: Callable[..., tuple[Float[Array, ""], Metrics]],
    config: LearningConfig,
    learning_rate: float | Float[Array, ""] | None = None,
) -> tuple[Learner, Metrics]:
    """Take one Adam step on `loss(network) -> (value, metrics)`; return learner and metrics.

    `learning_rate` overrides the config's. Weight decay is AdamW's: it is added after Adam has
    rescaled the gradient.
    """
    rate = config.learning_rate if learning_rate is None else learning_rate
    gradient, metrics = jax.grad(loss, has_aux=True)(learner.network)
    adam = optax.scale_by_adam(b1=ADAM_BETA_1, b2=config.adam_beta_2)
    direction, moments = adam.update(gradient, learner.moments)
    # Skip the product only for a plain zero: the value of a traced number is not known.
    decay = config.weight_decay
    if not (isinstance(decay, float) and decay == 0.0):
        direction = jax.tree.map(lambda d, p: d + decay * p, direction, learner.network)
    network = jax.tree.map(lambda p, d: p - rate * d, learner.network, direction)
    return Learner(network, moments), metrics


def cosine_decay(
    counted: Learner, learning_rate: float | Float[Array, ""], steps: int | None
) -> float | Float[Array, ""]:
    """Return the learning rate after the updates of `counted`: half a cosine down to zero."""
    if steps is None:
        return learning_rate
    share = jnp.minimum(counted.moments.count / steps, 1.0)
    return learning_rate * (1.0 + jnp.cos(jnp.pi * share)) / 2.0


def keep_if(due: Array, new: Any, old: Any) -> Any:
    """Return `new` if `due`, else `old`, for each leaf."""
    return jax.tree.map(lambda fresh, kept: jnp.where(due, fresh, kept), new, old)


class ValueState(NamedTuple):
    """Training state of a policy, a state value and critics."""

    actor: Learner
    value: Learner
    critic: Learner
    target_critic: Critics


class BehaviourState(NamedTuple):
    """Training state of a policy, a model of the logged behaviour, a state value and critics."""

    actor: Learner
    behaviour: Learner
    value: Learner
    critic: Learner
    target_critic: Critics


def start_policy(key: Key[Array, ""], problem: Problem, config: LearningConfig) -> Learner:
    """Return a learner with a new policy network."""
    return start(PolicyNetwork(key, problem.observation_size, problem.action_size, config.hidden))


def start_critic(key: Key[Array, ""], problem: Problem, config: CriticConfig) -> Learner:
    """Return a learner with new critics."""
    sizes = problem.observation_size, problem.action_size
    return start(Critics(key, *sizes, config.hidden, config.critic_count, config.layer_norm))


def start_value(key: Key[Array, ""], problem: Problem, config: CriticConfig) -> Learner:
    """Return a learner with a new state value."""
    return start(ScalarNetwork(key, problem.observation_size, config.hidden, config.layer_norm))


def start_value_state(key: Key[Array, ""], problem: Problem, config: CriticConfig) -> ValueState:
    """Return the initial state of a policy, a value and critics; targets start as a copy."""
    actor_key, value_key, critic_key = jax.random.split(key, 3)
    actor = start_policy(actor_key, problem, config)
    value = start_value(value_key, problem, config)
    critic = start_critic(critic_key, problem, config)
    return ValueState(actor, value, critic, critic.network)


def start_behaviour_state(
    key: Key[Array, ""], problem: Problem, config: CriticConfig
) -> BehaviourState:
    """Return the initial state of a policy, a behaviour model, a value and critics."""
    actor_key, behaviour_key, value_key, critic_key = jax.random.split(key, 4)
    actor = start_policy(actor_key, problem, config)
    behaviour = start_policy(behaviour_key, problem, config)
    value = start_value(value_key, problem, config)
    critic = start_critic(critic_key, problem, config)
    return BehaviourState(actor, behaviour, value, critic, critic.network)


def learned_policy(network: PolicyNetwork, config: PolicyConfig) -> Policy:
    """Return the policy of a network, in half-ranges of the box."""
    family = make_family(config.policy, **{name: getattr(config, name) for name in SETTINGS})
    # A band wider than the box equals the box, and its width would get no gradient.
    widest = min(config.scale_high, 1.0) if family.reach == "band" else config.scale_high
    return unit_policy(network, family, (config.scale_low, widest), config.state_dependent_scale)


def acting_policy(state: Any, problem: Problem, config: PolicyConfig) -> Policy:
    """Return the learned policy in the environment's units."""
    unit = learned_policy(state.actor.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


def learned_critics(state: Any, problem: Problem, config: LearningConfig) -> Critics:
    """Return the online critics of a state with a learner called `critic`."""
    return state.critic.network


def learned_value(state: Any, problem: Problem, config: LearningConfig) -> ScalarNetwork:
    """Return the online value of a state with a learner called `value`."""
    return state.value.network


def sample_action(policy: Policy, observation: Observations, key: Key[Array, ""]) -> Actions:
    """Return sampled actions in the box, without a gradient."""
    return lax.stop_gradient(policy.act(observation, key))


def values_of_both(
    critic: Critics, batch: Batch, action: Actions, next_action: Actions
) -> tuple[Values, Values]:
    """Return the smaller Q of `action` and, in the next state, of `next_action`, in one pass."""
    observations = jnp.concatenate([batch.observation, batch.next_observation])
    values = critic.minimum(observations, jnp.concatenate([action, next_action]))
    here, following = jnp.split(values, 2)
    return here, following


def only_logged_value(value: ScalarNetwork, critic: Critics, batch: Batch) -> Values:
    """Return V(s') for a V of logged actions; Q(s', a') where limits leave only one action a'."""
    next_value = value(batch.next_observation)
    if batch.next_allowed is None:
        return next_value
    low, high = batch.next_allowed
    single = jnp.all(low == high, axis=-1)
    return jnp.where(single, critic.minimum(batch.next_observation, low), next_value)


def fit_value(
    learner: Learner, batch: Batch, row_loss: Callable[[Values], Values], config: LearningConfig
) -> tuple[Learner, Metrics]:
    """Take one step on the mean of `row_loss(V(s))`."""

    def loss(network: ScalarNetwork) -> tuple[Array, Metrics]:
        prediction = network(batch.observation)
        errors = row_loss(prediction)
        return jnp.mean(errors), {"value_loss": errors, "v_mean": prediction}

    return descend(learner, loss, config)


def regress_value(
    learner: Learner, batch: Batch, target: Values, config: LearningConfig
) -> tuple[Learner, Metrics]:
    """Take one step on the mean of (V(s) - target)^2 / 2."""
    return fit_value(learner, batch, lambda value: losses.half_squared_error(value, target), config)


def critic_target(
    batch: Batch, next_value: Values, problem: Problem, config: LearningConfig
) -> Values:
    """Return r + gamma * continuation * next value.

    With `clip_targets` it is clipped to the returns that the log's rewards allow. Without a known
    range (a finished run on another log) nothing is clipped.
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
    row_loss: Callable[[Array, Array], Array] = losses.critics_loss,
    extra: Callable[[Critics], tuple[Array, Metrics]] | None = None,
) -> tuple[Learner, Metrics]:
    """Take one step of the critics towards `critic_target`.

    `extra(critics) -> (value, metrics)` is added to the loss.
    """
    target = critic_target(batch, next_value, problem, config)

    def loss(network: Critics) -> tuple[Array, Metrics]:
        values = network(batch.observation, batch.action)
        errors = row_loss(values, target)
        metrics = {"critic_loss": errors, "q_mean": jnp.mean(values, axis=0)}
        if extra is None:
            return jnp.mean(errors), metrics
        more, of_more = extra(network)
        return jnp.mean(errors) + more, {**metrics, **of_more}

    return descend(learner, loss, config)


def fit_value_and_critics(
    learner: Learner,
    batch: Batch,
    value_target: Values,
    next_value: Values,
    problem: Problem,
    config: LearningConfig,
) -> tuple[Learner, Metrics]:
    """Take one step of the value towards its target and of the critics towards theirs."""
    target = critic_target(batch, next_value, problem, config)

    def loss(network: ValueAndCritics) -> tuple[Array, Metrics]:
        value, critics = network(batch.observation, batch.action)
        value_errors = losses.half_squared_error(value, value_target)
        critic_errors = losses.critics_loss(critics, target)
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
    """Take one step of weighted regression on logged actions; those beyond limits do not count.

    The density is that without limits. Theirs would be infinite at a single allowed action.
    """
    before, weight = learned_policy(learner.network, config), batch.where_allowed(weight)
    action = regressed_action(before, batch.observation, batch.action, config.outside_support, key)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        log_density = learned_policy(network, config)(batch.observation).log_prob(action)
        # Rounding may put an action at the very end of a band outside it: leave it out.
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
    """Return the logged actions, with those outside the policy's support moved into it by `rule`.

    "replace" takes the nearest of a hundred samples of the policy (random action replacement),
    "project" the nearest point of the middle 90 % of the band, None changes nothing. The result of
    a rule carries no gradient.
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
    # The density decides, not the support: it is exact for ellipsoids and has the same rounding.
    inside = jnp.isfinite(policy(observation).log_prob(action))
    return lax.stop_gradient(jnp.where(inside[:, None], action, instead))


def behaviour_policy(network: PolicyNetwork, config: BehaviourConfig) -> Policy:
    """Return the model of the logged behaviour, in half-ranges of the box."""
    family = make_family(config.behaviour)
    return unit_policy(network, family, BEHAVIOUR_SCALES, config.state_dependent_scale)


def fit_behaviour(
    learner: Learner, batch: Batch, config: BehaviourConfig
) -> tuple[Learner, Metrics]:
    """Take one step of maximum likelihood on logged actions."""

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        errors = -behaviour_policy(network, config)(batch.observation).log_prob(batch.action)
        return jnp.mean(errors), {"behaviour_loss": errors}

    return descend(learner, loss, config)


def nearest_allowed(action: Actions, allowed: tuple[Actions, Actions] | None) -> Actions:
    """Return the nearest actions in the box, and inside limits where there are any."""
    return jnp.clip(action, *(allowed or (-1.0, 1.0)))


def relative_density(log_density: Values, allowed: tuple[Actions, Actions] | None) -> Values:
    """Return log densities per half-range of the allowed interval instead of the box.

    So the entropy of a policy does not depend on how much limits leave; a single action has none.
    """
    if allowed is None:
        return log_density
    share = (allowed[1] - allowed[0]) / 2.0
    return log_density + jnp.sum(jnp.log(jnp.where(share > 0.0, share, 1.0)), axis=-1)


def watched_actions(
    batch: Batch, key: Key[Array, ""], random_actions: int, noise: losses.Setting
) -> Float[Array, "actions batch action"]:
    """Return the logged action and `random_actions` uniform ones per state, with noise, in the box.

    The noise is Gaussian with standard deviation `noise`, clipped at 0.5. With limits, the uniform
    actions and those with noise are allowed ones.
    """
    random_key, noise_key = jax.random.split(key)
    shape = (random_actions, *batch.action.shape)
    if batch.allowed is None:
        low, high = -jnp.ones(()), jnp.ones(())
        uniform = jax.random.uniform(random_key, shape, minval=-1.0)
    else:
        low, high = (end[None] for end in batch.allowed)
        uniform = low + (high - low) * jax.random.uniform(random_key, shape)
    actions = jnp.concatenate([batch.action[None], uniform])
    shift = jnp.clip(noise * jax.random.normal(noise_key, actions.shape), -0.5, 0.5)
    return jnp.clip(actions + shift, low, high)


def inside_support(
    policy: Policy, observation: Observations, action: Array
) -> Bool[Array, " batch"]:
    """Return which actions lie between the ends of the policy's support."""
    low, high = policy.support(observation)
    return jnp.all((low <= action) & (action <= high), axis=-1)


def watch_weight(weight: Values) -> Metrics:
    """Return the metrics of the weights of logged actions."""
    # Weights are divided by the largest, because the square of a large one may overflow.
    relative = weight / jnp.maximum(jnp.max(weight), jnp.finfo(weight.dtype).tiny)
    squares = jnp.maximum(jnp.mean(relative**2), jnp.finfo(weight.dtype).tiny)
    return {
        "weight_mean": weight,
        "zero_weight_share": (weight == 0.0).astype(weight.dtype),
        "effective_share": jnp.mean(relative) ** 2 / squares,
    }


def watch_policy(policy: Policy, batch: Batch) -> Metrics:
    """Return the scale of the policy and the share of logged actions in its support."""
    if policy.family.reach == "point":
        return {}
    inside = inside_support(policy.within(batch.allowed), batch.observation, batch.action)
    scale = jnp.exp(policy.network(batch.observation).log_scale)
    return {
        "policy_scale": jnp.mean(scale, axis=-1),
        "logged_inside_support": inside.astype(scale.dtype),
    }
