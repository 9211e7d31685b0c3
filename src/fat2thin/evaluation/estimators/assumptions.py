"""What shows in a log that its states do not explain what follows, as marginal estimates assume.

Rewards play no part, so a rule about these numbers cannot pick the logs that look good by luck.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Episodes
from fat2thin.evaluation.estimators.features import Basis, features
from fat2thin.evaluation.estimators.marginal import state_weights
from fat2thin.evaluation.fitted_q import solve

_MOST_ROWS = 20_000
_RIDGE = 1e-7
"""Only so that columns may depend on each other: more would leave something to the step before."""
_LEAST_VARIANCE = 1e-6
"""Of a standardised column after the regression, below which it is known already."""


def discounted_steps(
    episodes: Episodes, of_states: Basis, horizon: int, discount: float
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the discounted number of steps of an episode of practice: as logged, and by states.

    The first is that of Kaplan and Meier (1958): cut episodes count as long as they are there. The
    second follows the weights of practice itself, for which an end depends on the state alone.
    """
    here = episodes.here[:, :horizon]
    staying = jnp.sum(here * episodes.continuation[:, :horizon], axis=0)
    stays = staying / jnp.maximum(jnp.sum(here, axis=0), 1.0)
    logged = jnp.concatenate([jnp.ones_like(stays[:1]), jnp.cumprod(stays)[:-1]])
    _, by_states = state_weights(episodes, of_states, episodes.here, horizon)
    powers = discount ** jnp.arange(horizon)
    return jnp.sum(logged * powers), jnp.sum(by_states * powers)


def step_before(episodes: Episodes, of_both: Basis) -> Float[Array, ""]:
    """Return how much the step before tells about the next observation beyond the step itself.

    It is the adjusted partial R² (Theil 1961) of linear regressions, the mean over the columns: 0
    if the observation holds all that counts.
    """
    if episodes.here.shape[1] == 1:
        return jnp.zeros(())  # no step has one before it
    here = episodes.here[:, 1:] * episodes.continuation[:, 1:]
    before = jnp.concatenate([episodes.observation[:, :-1], episodes.action[:, :-1]], axis=-1)
    now = episodes.observation[:, 1:], episodes.action[:, 1:]
    stride = max(1, here.size // _MOST_ROWS)
    known, *rows = jax.tree.map(
        lambda array: array.reshape(here.size, -1)[::stride],
        (here, *now, before, episodes.following[:, 1:]),
    )
    observation, action, before, following = rows
    with jax.default_matmul_precision("highest"):
        design = features(observation, action, of_both) * known
        ridge = _RIDGE * jnp.maximum(jnp.sum(known), 1.0)
        gram = design.T @ design + ridge * jnp.eye(design.shape[1])

        def left(columns: Array) -> Array:
            return (columns - design @ solve(gram, design.T @ columns)) * known

        before, following = left(before * known), left(following * known)
        own = before.T @ before + ridge * jnp.eye(before.shape[1])
        unexplained = jnp.sum((following - before @ solve(own, before.T @ following)) ** 2, axis=0)
    total, count = jnp.sum(following**2, axis=0), jnp.sum(known)
    more = count - design.shape[1]
    degrees = jnp.maximum((more - before.shape[1]) / jnp.maximum(more, 1.0), 1e-3)
    random = total > _LEAST_VARIANCE * count
    shares = jnp.where(random, 1.0 - unexplained / jnp.where(random, total, 1.0) / degrees, 0.0)
    return jnp.sum(shares) / jnp.maximum(jnp.sum(random), 1)
