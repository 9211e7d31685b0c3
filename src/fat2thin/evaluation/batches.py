"""Convert a data set to what an algorithm takes: a `Problem` and a `Batch`."""

import jax
import jax.numpy as jnp

from fat2thin.algorithms.base import Batch, Problem
from fat2thin.data.dataset import Dataset, transformed
from fat2thin.policies import in_half_ranges


def problem_of(dataset: Dataset) -> Problem:
    """Return the sizes, action box and discount of a data set."""
    return Problem(
        observation_size=dataset.observation_size,
        action_low=dataset.action_low,
        action_high=dataset.action_high,
        discount=dataset.discount,
        observation_transforms=dataset.observation_transforms,
        action_transforms=dataset.action_transforms,
    )


def batch_of(dataset: Dataset) -> Batch:
    """Return all rows on the host, transformed; actions are in half-ranges of the box."""
    dataset = transformed(dataset)
    low, high = jnp.asarray(dataset.action_low), jnp.asarray(dataset.action_high)
    fields = {field: jnp.asarray(getattr(dataset, field), jnp.float32) for field in Batch._fields}
    fields["action"] = in_half_ranges(fields["action"], low, high)
    return jax.device_get(Batch(**fields))
