"""Logs of the treatment task, which `fat2thin.data` reads by name: `treatment/cubic`."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from fat2thin.data.dataset import Dataset
from fat2thin.data.readers import Reader, register_reader
from fat2thin.envs import treatment
from fat2thin.envs.treatment import ACTION_SIZE, OBSERVATION_SIZE, Treatment
from fat2thin.random_streams import Stream, stream_key


class TreatmentLog(NamedTuple):
    """Logged steps, one per row, episodes one after the other."""

    observation: Float[Array, "rows 8"]
    action: Float[Array, "rows 1"]
    reward: Float[Array, " rows"]
    next_observation: Float[Array, "rows 8"]
    continuation: Float[Array, " rows"]
    """1 everywhere: a time limit is not an end."""
    episode_start: Int[Array, " episodes"]
    """The row each episode starts at."""


@functools.partial(jax.jit, static_argnames=("task", "episodes"))
def log(key: PRNGKeyArray, task: Treatment, episodes: int = treatment.TRAJECTORIES) -> TreatmentLog:
    """Draw a log of `episodes` patients under uniform doses; the key determines every number."""
    behaviour = treatment.from_observations(treatment.uniform_behaviour(task))
    episode = treatment.trajectories(key, behaviour, task, episodes)
    rows = episodes * task.horizon
    return TreatmentLog(
        observation=episode.observation.reshape(rows, OBSERVATION_SIZE),
        action=episode.info.dose.reshape(rows, ACTION_SIZE),
        reward=episode.reward.reshape(rows),
        next_observation=episode.next_observation.reshape(rows, OBSERVATION_SIZE),
        continuation=jnp.ones(rows, episode.reward.dtype),
        episode_start=task.horizon * jnp.arange(episodes),
    )


def read(name: str, seed: int) -> Dataset:
    """Return the log of this name that belongs to a seed."""
    task = treatment.by_name(name)
    key = stream_key(seed, Stream.LOG)
    return Dataset(
        name=name,
        **log(key, task, treatment.trajectories_of(name))._asdict(),
        action_low=(task.dose_low,),
        action_high=(task.dose_high,),
        discount=task.discount,
    )


register_reader(Reader("treatment/", read, lambda: tuple(treatment.VARIANTS), one_a_seed=True))
