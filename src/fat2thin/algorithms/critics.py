"""What the states of different algorithms have in common: critics, and a value."""

import jax
from jaxtyping import Array, Float

from fat2thin.algorithms.base import Batch, State
from fat2thin.policies.networks import TwinCritic, ValueAndCritics


def critics_of(state: State) -> TwinCritic | None:
    """The critics that learn, of one job; None for an algorithm that has none of our kind."""
    like = getattr(state, "target_critic", None)
    if not isinstance(like, TwinCritic):
        return None
    together = getattr(getattr(state, "values", None), "network", None)
    if isinstance(together, ValueAndCritics):
        return together.critic(like)
    return getattr(getattr(state, "critic", None), "network", None)


def advantage_of(state: State, batch: Batch) -> Float[Array, " batch"] | None:
    """The smaller Q less V at logged actions; None where an algorithm does not learn both."""
    together = getattr(getattr(state, "values", None), "network", None)
    if isinstance(together, ValueAndCritics):
        return together.advantage(batch.observation, batch.action)
    critics, value = critics_of(state), getattr(getattr(state, "value", None), "network", None)
    if critics is None or value is None:
        return None
    return critics.minimum(batch.observation, batch.action) - value(batch.observation)


def critics_of_job(states: State, place: int) -> TwinCritic | None:
    """The critics of one of several jobs, on the host."""
    # Cut out there: to cut a job out of every leaf on a device is to compile as many programs.
    return critics_of(jax.tree.map(lambda leaf: leaf[place], jax.device_get(states)))
