"""The losses, one function each, row by row: one number an example, the mean is taken outside."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fat2thin.q_math import exp_q

Rows = Float[Array, "*rows"]
Setting = float | Float[Array, ""]


def half_squared_error(prediction: Rows, target: Rows) -> Rows:
    """(prediction - target)^2 / 2."""
    return (prediction - target) ** 2 / 2.0


def temporal_difference_target(
    reward: Rows, continuation: Rows, discount: Setting, next_value: Rows
) -> Rows:
    """r + gamma * continuation * next value."""
    return reward + discount * continuation * next_value


def twin_critic_loss(values: Float[Array, "2 *rows"], target: Rows) -> Rows:
    """Mean over the twins of half the squared error."""
    return jnp.mean((values - target) ** 2 / 2.0, axis=0)


def q_exponential_weight(
    advantage: Rows,
    temperature: Setting,
    entropic_index: Setting,
    limit: Setting,
) -> Rows:
    """exp_q(advantage / temperature), at most `limit`.

    For an index below 1 it is exactly zero where advantage <= -temperature / (1 - index): the
    action is dropped.
    """
    return jnp.minimum(exp_q(advantage / temperature, entropic_index), limit)


def weighted_regression(weight: Rows, log_density: Rows) -> Rows:
    """-weight * log density; exactly zero, gradient included, where the weight is zero."""
    kept = weight > 0.0
    return jnp.where(kept, -weight * jnp.where(kept, log_density, 0.0), 0.0)
