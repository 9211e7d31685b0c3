"""Loss functions. Each returns one number per row; the caller takes the mean."""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fat2thin.distributions.q_math import exp_q, log1p_ratio, log_q

Rows = Float[Array, "*rows"]
Setting = float | Float[Array, ""]


def half_squared_error(prediction: Rows, target: Rows) -> Rows:
    """Return (prediction - target)^2 / 2."""
    return optax.l2_loss(prediction, target)


def temporal_difference_target(
    reward: Rows, continuation: Rows, discount: Setting, next_value: Rows
) -> Rows:
    """Return reward + discount * continuation * next value.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fat2thin.algorithms.losses import temporal_difference_target
        >>> continuation = jnp.array([1.0, 0.0])  # the second row ends its episode
        >>> temporal_difference_target(jnp.ones(2), continuation, 0.5, jnp.full(2, 10.0)).tolist()
        [6.0, 1.0]
    """
    return reward + discount * continuation * next_value


def critics_loss(values: Float[Array, "critics *rows"], target: Rows) -> Rows:
    """Return half the squared error, mean over the critics."""
    return jnp.mean(optax.l2_loss(values, jnp.broadcast_to(target, values.shape)), axis=0)


def critics_huber_loss(values: Float[Array, "critics *rows"], target: Rows, limit: Setting) -> Rows:
    """Return the Huber loss (quadratic up to `limit`, then linear), mean over the critics."""
    target = jnp.broadcast_to(target, values.shape)
    return jnp.mean(optax.huber_loss(values, target, delta=limit), axis=0)


def expectile_loss(residual: Rows, expectile: Setting) -> Rows:
    """Return |expectile - 1(u < 0)| u^2 for the residual u = target - prediction.

    Kostrikov et al. 2022, eq. 5.
    """
    return jnp.where(residual < 0.0, 1.0 - expectile, expectile) * residual**2


def gumbel_loss(residual: Rows, temperature: Setting, largest: Setting, shift: Rows) -> Rows:
    """Return (e^z - z - 1) e^-shift, with z = min(residual / temperature, largest).

    Its minimiser over a constant prediction is temperature * log mean e^(target / temperature) if
    no z reaches `largest` (Garg et al. 2023, eq. 10). The shift, the same for all rows, prevents
    overflow.
    """
    scaled = jnp.minimum(residual / temperature, largest)
    return jnp.exp(scaled - shift) - (scaled + 1.0) * jnp.exp(-shift)


def sparse_value_loss(target: Rows, prediction: Rows, temperature: Setting) -> Rows:
    """Return [1 + (target - prediction) / (2 alpha)]_+^2 + prediction / alpha, alpha = temperature.

    At its minimum over a constant prediction the mean of [1 + (target - prediction) / (2 alpha)]_+
    is 1 (Xu et al. 2023, eq. 12).
    """
    density_ratio = jnp.maximum(1.0 + (target - prediction) / (2.0 * temperature), 0.0)
    return density_ratio**2 + prediction / temperature


def log_weight(
    advantage: Rows, temperature: Setting, entropic_index: Setting, floor: Setting
) -> Rows:
    """Return log exp_q(advantage / temperature), continued by its tangent below log `floor`.

    Needs q = entropic_index of at most 1. Where the weight is zero, its logarithm is -inf and has
    no useful gradient; the tangent has one.
    """
    scaled = advantage / temperature
    edge = log_q(floor, entropic_index)
    below = scaled < edge
    inner = jnp.where(below, 0.0, scaled)
    # log exp_q(x), written so that a large x does not overflow.
    exact = inner * log1p_ratio((1.0 - entropic_index) * inner)
    # d/dx log exp_q(x) = exp_q(x)^(q - 1).
    tangent = jnp.log(floor) + floor ** (entropic_index - 1.0) * (scaled - edge)
    return jnp.where(below, tangent, exact)


def q_exponential_weight(
    advantage: Rows, temperature: Setting, entropic_index: Setting, limit: Setting
) -> Rows:
    """Return exp_q(advantage / temperature), at most `limit`, with q = entropic_index.

    For an index below 1 the weight is exactly zero if advantage <= -temperature / (1 - index), so
    that the action is dropped.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fat2thin.algorithms.losses import q_exponential_weight
        >>> q_exponential_weight(jnp.array([-1.0, 0.0, 1.0]), 0.5, 0.0, limit=100.0).tolist()
        [0.0, 1.0, 3.0]
    """
    return jnp.minimum(exp_q(advantage / temperature, entropic_index), limit)


def weighted_regression(weight: Rows, log_density: Rows) -> Rows:
    """Return -weight * log density; value and gradient are exactly zero if the weight is zero."""
    kept = weight > 0.0
    return jnp.where(kept, -weight * jnp.where(kept, log_density, 0.0), 0.0)
