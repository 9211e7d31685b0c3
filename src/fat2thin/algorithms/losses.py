"""The losses, one function each, row by row: one number an example, the mean is taken outside."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fat2thin.distributions.q_math import exp_q, log1p_ratio, log_q

Rows = Float[Array, "*rows"]
Setting = float | Float[Array, ""]


def half_squared_error(prediction: Rows, target: Rows) -> Rows:
    """(prediction - target)^2 / 2."""
    return optax.l2_loss(prediction, target)


def temporal_difference_target(
    reward: Rows, continuation: Rows, discount: Setting, next_value: Rows
) -> Rows:
    """r + gamma * continuation * next value."""
    return reward + discount * continuation * next_value


def twin_critic_loss(values: Float[Array, "2 *rows"], target: Rows) -> Rows:
    """Mean over the twins of half the squared error."""
    return jnp.mean(optax.l2_loss(values, jnp.broadcast_to(target, values.shape)), axis=0)


def twin_huber_loss(values: Float[Array, "2 *rows"], target: Rows, limit: Setting) -> Rows:
    """Mean over the twins of Huber's loss: half the square up to `limit`, straight beyond it."""
    target = jnp.broadcast_to(target, values.shape)
    return jnp.mean(optax.huber_loss(values, target, delta=limit), axis=0)


def expectile_loss(residual: Rows, expectile: Setting) -> Rows:
    """|expectile - 1(u < 0)| u^2 for u = target - prediction (Kostrikov et al. 2022, eq. 5)."""
    return jnp.where(residual < 0.0, 1.0 - expectile, expectile) * residual**2


def gumbel_loss(residual: Rows, temperature: Setting, largest: Setting, shift: Rows) -> Rows:
    """(e^z - z - 1) e^-shift for z = residual / temperature, at most `largest`.

    Its minimiser over a constant prediction is temperature * log mean e^(target / temperature),
    where no z reaches `largest` (Garg et al. 2023, eq. 10). The shift, the same for all rows,
    keeps it in range.
    """
    scaled = jnp.minimum(residual / temperature, largest)
    return jnp.exp(scaled - shift) - (scaled + 1.0) * jnp.exp(-shift)


def sparse_value_loss(target: Rows, prediction: Rows, temperature: Setting) -> Rows:
    """[1 + (target - prediction) / (2 alpha)]_+^2 + prediction / alpha (Xu et al. 2023, eq. 12).

    At its minimum over a constant prediction the mean of [1 + (target - prediction) / (2 alpha)]_+
    is 1.
    """
    density_ratio = jnp.maximum(1.0 + (target - prediction) / (2.0 * temperature), 0.0)
    return density_ratio**2 + prediction / temperature


def log_weight(
    advantage: Rows, temperature: Setting, entropic_index: Setting, floor: Setting
) -> Rows:
    """log exp_q(advantage / temperature), q at most 1, continued by its tangent below `floor`.

    Where the weight is zero its logarithm is -inf and its slope lost; the tangent leads back.
    """
    scaled = advantage / temperature
    edge = log_q(floor, entropic_index)
    below = scaled < edge
    inner = jnp.where(below, 0.0, scaled)
    # log exp_q(x), written so that a large x does not overflow on the way.
    exact = inner * log1p_ratio((1.0 - entropic_index) * inner)
    # d/dx log exp_q(x) = exp_q(x)^(q - 1).
    tangent = jnp.log(floor) + floor ** (entropic_index - 1.0) * (scaled - edge)
    return jnp.where(below, tangent, exact)


def q_exponential_weight(
    advantage: Rows, temperature: Setting, entropic_index: Setting, limit: Setting
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
