"""The arrays that estimators take: episodes padded to one length, and what a policy does in them.

Episodes are in an order without meaning, because fold k is the k-th stretch of them. Observations
and actions are standardised, rewards are raw.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

FOLDS = 4
"""Number of parts of the episodes. What a part is valued with is fitted on the others."""


class Episodes(NamedTuple):
    """Logged episodes; the first step of each is step 0."""

    observation: Float[Array, "episodes steps observation"]
    action: Float[Array, "episodes steps action"]
    reward: Float[Array, "episodes steps"]
    following: Float[Array, "episodes steps observation"]
    """The next observations."""
    continuation: Float[Array, "episodes steps"]
    """0 at a true end, 1 elsewhere, also where an episode was cut."""
    here: Float[Array, "episodes steps"]
    """1 where a step was logged, 0 where there is none. An episode without a step is padding."""

    @property
    def is_episode(self) -> Float[Array, " episodes"]:
        """1 for an episode, 0 for padding."""
        return self.here[:, 0]


class Actions(NamedTuple):
    """What a policy does in the states of `Episodes`; several draws stand for an expectation."""

    start: Float[Array, "episodes draws action"]
    """In the first states."""
    following: Float[Array, "episodes steps draws action"]
    """In the next states."""
    log_density: Float[Array, "episodes steps"] | None = None
    """Log density of the logged actions, −inf outside the support; None for a policy without a
    density, such as a constant action. In the units of the logged propensity."""


def mean_score(scores: Float[Array, " episodes"], episodes: Episodes) -> Float[Array, ""]:
    """Return the mean over episodes, without padding."""
    known = episodes.is_episode
    return jnp.sum(scores * known) / jnp.sum(known)


def value_bounds(
    low: float | Array, high: float | Array, discount: float | Array, horizon: int, ends_early: bool
) -> Float[Array, "left 2"]:
    """Return the smallest and the largest value that rewards allow with 0 to `horizon` steps left.

    With S = Σ discount^t over h steps they are low S and high S or, where episodes can end early,
    min(low, low S) and max(high, high S).
    """
    powers = jnp.asarray(discount) ** jnp.arange(horizon)
    sums = jnp.concatenate([jnp.zeros(1), jnp.cumsum(powers)])
    ends = jnp.stack([low * sums, high * sums], axis=1)
    if not ends_early:
        return ends
    single = jnp.stack([jnp.asarray(low, ends.dtype), jnp.asarray(high, ends.dtype)])[None]
    ends = jnp.stack(
        [jnp.minimum(ends[:, 0], single[:, 0]), jnp.maximum(ends[:, 1], single[:, 1])], axis=1
    )
    return ends.at[0].set(0.0)
