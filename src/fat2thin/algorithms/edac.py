"""EDAC and SAC-N (An et al., NeurIPS 2021): soft actor-critic with a pessimistic ensemble.

With N critics, their slow targets, and a temperature alpha that keeps the policy's entropy near
minus the number of action coordinates, one update minimises

    alpha   -log alpha (log policy(b | s) - n)                                    b ~ policy
    policy  alpha log policy(b | s) - min Q(s, b)                                 b ~ policy
    Q       (Q(s, a) - r - gamma (min target Q(s', a') - alpha log policy(a' | s')))^2 / 2
            + eta / 2 * mean over pairs i != j of cos(dQ_i/da, dQ_j/da)           a' ~ policy

at logged actions a, with n action coordinates and densities per half-range of the box (with limits:
of the allowed interval). SAC-N is eta = 0. The factor of 1/2 belongs to that of the squared error:
the authors sum the squared errors of the critics, and divide the sum of the cosines by N - 1.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import base, configs, steps
from fat2thin.algorithms.base import Actions, Batch, Metrics, Observations, Problem, Values
from fat2thin.distributions import sample_with_log_prob
from fat2thin.policies.networks import Critics, PolicyNetwork, ScalarNetwork, polyak
from fat2thin.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class EDACConfig(configs.ActorCriticConfig):
    """Settings of EDAC and SAC-N."""

    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of every network."""

    critic_count: int = 10
    """N: number of critics; the smallest of their values counts, so that more are more pessimistic.
    The paper uses 10 to 50 for EDAC and 10 to 500 for SAC-N, depending on the task."""

    diversity: float = 1.0
    """eta: weight of the similarity of the critics' gradients with respect to the action; 0 is
    SAC-N. The paper uses 1 or 5, depending on the task."""


class Temperature(eqx.Module):
    """The logarithm of the weight of the entropy."""

    log: Float[Array, ""]


class EDACState(NamedTuple):
    """Training state of EDAC."""

    actor: steps.Learner
    critic: steps.Learner
    target_critic: Critics
    temperature: steps.Learner


def check(config: EDACConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_learning(config)
    configs.check_policy(config, "the loss needs a density, and a deterministic policy has none")
    configs.only_with(
        config, ("outside_support",), False,
        "the loss does not use the density of logged actions",
    )  # fmt: skip
    configs.positive(config, "diversity", zero=True)
    if config.critic_count == 1 and config.diversity != 0.0:
        raise ValueError("diversity must be 0 if critic_count is 1: a single critic has no pairs")


def init(key: Key[Array, ""], problem: Problem, config: EDACConfig) -> EDACState:
    """Return new networks and optimisers, and a temperature of 1."""
    actor_key, critic_key = jax.random.split(key)
    actor = steps.start_policy(actor_key, problem, config)
    critic = steps.start_critic(critic_key, problem, config)
    return EDACState(actor, critic, critic.network, steps.start(Temperature(jnp.zeros(()))))


def update(
    state: EDACState, batch: Batch, key: Key[Array, ""], problem: Problem, config: EDACConfig
) -> tuple[EDACState, Metrics]:
    """Update temperature, policy and critics, in this order, then the targets."""
    temperature_key, actor_key, critic_key = jax.random.split(key, 3)
    before = steps.learned_policy(state.actor.network, config)
    allowed = batch.allowed

    # Temperature: more weight for the entropy if it is below its goal.
    _, log_density = sample(before.within(allowed), batch.observation, temperature_key)
    goal = problem.action_size if allowed is None else jnp.sum(allowed[0] < allowed[1], axis=-1)
    missing = jnp.mean(log_density - goal)

    def temperature_loss(temperature: Temperature) -> tuple[Array, Metrics]:
        error = -temperature.log * missing
        return error, {"temperature_loss": error}

    still = base.with_numbers(config, {"weight_decay": 0.0})  # a temperature is no network
    temperature, metrics = steps.descend(state.temperature, temperature_loss, still)
    alpha = jnp.exp(temperature.network.log)

    # Policy: maximise the smallest critic and the entropy.
    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        policy = steps.learned_policy(network, config).within(allowed)
        action, log_density = sample(policy, batch.observation, actor_key)
        value = state.critic.network.minimum(batch.observation, action)
        errors = alpha * log_density - value
        return jnp.mean(errors), {"actor_loss": errors, "entropy": -log_density}

    rate = steps.cosine_decay(state.actor, config.learning_rate, config.actor_decay_steps)
    actor, actor_metrics = steps.descend(state.actor, loss, config, rate)

    # Critics: one logged step, then the policy; their gradients should differ.
    following = steps.learned_policy(actor.network, config).within(batch.next_allowed)
    next_action, log_density = sample(following, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    next_value = lax.stop_gradient(next_value - alpha * log_density)

    def similarity(network: Critics) -> tuple[Array, Metrics]:
        similar = gradient_similarity(network, batch.observation, batch.action)
        return config.diversity / 2.0 * jnp.mean(similar), {"gradient_similarity": similar}

    # Skip the second derivatives only for a plain zero: the value of a traced number is not known.
    diverse = config.critic_count > 1
    if isinstance(config.diversity, float) and config.diversity == 0.0:
        diverse = False
    critic, critic_metrics = steps.fit_critic(
        state.critic, batch, next_value, problem, config, extra=similarity if diverse else None
    )

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics |= {"temperature": alpha, **actor_metrics, **critic_metrics}
    metrics |= steps.watch_policy(before, batch)
    return EDACState(actor, critic, target_critic, temperature), metrics


def sample(
    policy: Policy, observation: Observations, key: Key[Array, ""]
) -> tuple[Actions, Values]:
    """Return actions in the box, with a gradient, and their log densities."""
    action, log_density = sample_with_log_prob(policy(observation), key)
    return jnp.clip(action, -1.0, 1.0), steps.relative_density(log_density, policy.allowed)


def gradient_similarity(critic: Critics, observation: Observations, action: Actions) -> Values:
    """Return the mean cosine similarity of dQ/da over all pairs of different critics.

    The sum over pairs is |sum of the unit vectors|^2 - sum of |unit vector|^2.
    """

    def gradient(member: ScalarNetwork) -> Actions:
        def total(action: Actions) -> Float[Array, ""]:
            return jnp.sum(member(jnp.concatenate([observation, action], axis=-1)))

        return jax.grad(total)(action)

    gradients = eqx.filter_vmap(gradient)(critic.members)
    squared = jnp.sum(gradients**2, axis=-1, keepdims=True)
    # A gradient that is exactly zero has no direction; the square root has no derivative there.
    some = squared > 0.0
    unit = jnp.where(some, gradients / jnp.sqrt(jnp.where(some, squared, 1.0)), 0.0)
    count = unit.shape[0]
    of_pairs = jnp.sum(jnp.sum(unit, axis=0) ** 2, axis=-1) - jnp.sum(unit**2, axis=(0, 2))
    return of_pairs / (count * (count - 1))


ALGORITHM = base.Algorithm(
    name="edac",
    summary="EDAC: soft actor-critic with an ensemble of critics whose gradients differ",
    config=EDACConfig,
    check=check,
    init=init,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    metrics={
        "temperature": base.Meaning(
            "alpha, the weight of the entropy", "settles; it grows while the entropy is too low"
        ),
        "temperature_loss": base.Meaning(
            "loss of the temperature", "near 0 once the entropy has reached its goal"
        ),
        "entropy": base.Meaning(
            "−log density of the policy's samples",
            "settles near minus the number of action coordinates",
        ),
        "gradient_similarity": base.Meaning(
            "mean cosine of the angle between two critics' gradients at logged actions",
            "falls with a larger `diversity`; 1 means that the critics agree on the direction",
        ),
        **steps.CRITIC_METRICS,
        **steps.POLICY_METRICS,
    },
    learns_limits=True,
    automatic=base.Automatic(noisy={}),
)
