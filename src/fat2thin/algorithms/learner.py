"""One network with its optimiser: parameters, Adam's moments, and a step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fat2thin.algorithms.base import Metrics
from fat2thin.algorithms.config import LearningConfig

ADAM_BETA_1 = 0.9


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
