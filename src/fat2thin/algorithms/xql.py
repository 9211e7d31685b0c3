"""Extreme Q-Learning (Garg et al., ICLR 2023): the soft maximum of Q by Gumbel regression.

With slow targets of Q, Gumbel temperature beta and the policy's temperature tau, one update
minimises

    V       e^z - z - 1,  z = (min target Q(s, a) - V(s)) / beta            a from the log
    Q       Huber(Q(s, a) - r - gamma V(s'))                                a from the log
    policy  -exp((min target Q(s, a) - V(s)) / tau) log policy(a | s)       a from the log

The value loss is divided by the batch's largest e^z, treated as a constant by the gradient.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import configs, losses, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem, Values
from fat2thin.policies.networks import polyak

LEAST_SHIFT = -1.0
EXPECTILE = 0.8
RANDOM_ACTIONS = 1
ACTION_NOISE = 0.1
"""`EXPECTILE`, `RANDOM_ACTIONS` and `ACTION_NOISE` are used with `published=True`."""


@dataclasses.dataclass(frozen=True)
class XQLConfig(configs.ActorCriticConfig):
    """Settings of XQL."""

    value_temperature: float = 2.0
    """beta of the Gumbel regression: V is beta log mean e^(Q / beta) over logged actions; the
    lower, the closer to their largest Q. The paper uses 1 to 10, depending on the task."""

    value_clip: float = 7.0
    """Upper limit of the exponent z in the loss of V; the paper uses 5 or 7."""

    temperature: float = 1.0 / 3.0
    """tau: the lower, the more the policy prefers the best logged actions."""

    weight_limit: float = 100.0
    """Largest weight of a logged action."""

    huber_limit: float = 20.0
    """Limit of the critics' Huber loss: larger errors count linearly instead of quadratically."""

    action_noise: float = 0.0
    """Standard deviation of the noise (clipped at 0.5) on the actions in the loss of V."""

    random_actions: int = 0
    """Number of uniform random actions per state in the loss of V, besides the logged action."""

    published: bool = False
    """Compute what the FtTPO authors' code calls XQL: expectile regression (expectile 0.8) with one
    random action per state and noise on all actions."""


def check(config: XQLConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_regression(config)
    configs.positive(
        config, "value_temperature", "value_clip", "temperature", "weight_limit", "huber_limit"
    )
    configs.positive(config, "action_noise", zero=True)
    configs.whole(config, "random_actions", least=0)
    configs.only_with(
        config, ("value_temperature", "value_clip", "action_noise", "random_actions"),
        not config.published, "published=True uses the authors' expectile and noise",
    )  # fmt: skip


def update(
    state: steps.ValueState, batch: Batch, key: Key[Array, ""], problem: Problem, config: XQLConfig
) -> tuple[steps.ValueState, Metrics]:
    """Update value, critics and policy, in this order, then the targets."""
    value_key, actor_key = jax.random.split(key)

    # Value: the soft maximum of Q over logged actions; as published, an expectile of Q over the
    # logged action and a uniform one, both with noise.
    row_loss = expectile_rows if config.published else soft_maximum_loss
    actions = config.random_actions, config.action_noise
    actions = (RANDOM_ACTIONS, ACTION_NOISE) if config.published else actions
    watched = steps.watched_actions(batch, value_key, *actions)
    evaluate = functools.partial(state.target_critic.minimum, batch.observation)
    watched_value = jax.vmap(evaluate)(watched)
    value, value_metrics = steps.fit_value(
        state.value,
        batch,
        lambda v: batch.where_allowed(row_loss(watched_value, v, config)),
        config,
    )

    # Critics: one logged step, then that value.
    next_value = steps.only_logged_value(value.network, state.target_critic, batch)
    huber = functools.partial(losses.critics_huber_loss, limit=config.huber_limit)
    critic, critic_metrics = steps.fit_critic(
        state.critic, batch, next_value, problem, config, huber
    )

    # Policy: regression with exponential weights.
    advantage = state.target_critic.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = losses.q_exponential_weight(advantage, config.temperature, 1.0, config.weight_limit)
    actor, actor_metrics = steps.fit_policy(state.actor, batch, weight, actor_key, config)

    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)
    metrics = {**value_metrics, **critic_metrics, **actor_metrics}
    return steps.ValueState(actor, value, critic, target_critic), metrics


def soft_maximum_loss(
    values: Float[Array, "actions batch"], prediction: Values, config: XQLConfig
) -> Values:
    """Return the mean Gumbel loss of each state's actions, divided by the batch's largest e^z."""
    residual = values - prediction[None]
    largest = jnp.minimum(jnp.max(residual) / config.value_temperature, config.value_clip)
    shift = jnp.broadcast_to(lax.stop_gradient(jnp.maximum(largest, LEAST_SHIFT)), residual.shape)
    loss = losses.gumbel_loss(residual, config.value_temperature, config.value_clip, shift)
    return jnp.mean(loss, axis=0)


def expectile_rows(
    values: Float[Array, "actions batch"], prediction: Values, config: XQLConfig
) -> Values:
    """Return the mean expectile loss of each state's actions, as in the FtTPO authors' code."""
    return jnp.mean(losses.expectile_loss(values - prediction[None], EXPECTILE), axis=0)


ALGORITHM = Algorithm(
    name="xql",
    summary="Extreme Q-Learning: the soft maximum of Q by Gumbel regression",
    config=XQLConfig,
    check=check,
    init=steps.start_value_state,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    value=steps.learned_value,
    metrics={
        **steps.VALUE_METRICS,
        "critic_loss": steps.CRITIC_METRICS["critic_loss"]._replace(
            what="Huber loss of Q against its target, mean of the critics"
        ),
        **steps.REGRESSION_METRICS,
    },
    weighted_loss="actor_loss",
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.025, "value_temperature": 1.0}),
)
