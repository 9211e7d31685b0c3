"""Convert a data set to what an algorithm takes: a `Problem` and a `Batch`."""

from typing import Any

import jax
import numpy as np

from fat2thin.algorithms.base import Batch, Problem, RowLimits
from fat2thin.data.dataset import Dataset, transformed
from fat2thin.data.row_arrays import FollowingRows, MappedRows, MarkedRows, Rows, is_lazy
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


def batch_of(dataset: Dataset, next_action: bool = False) -> Batch:
    """Return all rows on the host, transformed; actions are in half-ranges of the box.

    Algorithms that need the next logged action (`Algorithm.next_action`) need `next_action=True`.
    """
    dataset = transformed(dataset)
    rows = jax.tree.map(
        lambda array: np.asarray(array, np.float32), logged_rows(dataset, next_action)
    )
    return scaled_actions(rows, dataset)


def logged_rows(dataset: Dataset, next_action: bool) -> Batch:
    """Return the arrays of a data set, in its units, with next actions only if wanted.

    Limits are not split into their columns yet; `scaled_actions` does that.
    """
    limits: Any = dataset.allowed
    rows = Batch(
        observation=dataset.observation,
        action=dataset.action,
        reward=dataset.reward,
        next_observation=dataset.next_observation,
        continuation=dataset.continuation,
        limits=limits,
    )
    if not next_action:
        return rows
    # The rows below, in parts if the actions are.
    below: Any = FollowingRows(dataset.action, np.array([dataset.rows - 1]), dataset.action[:1])
    if not is_lazy(dataset.action):
        below = np.asarray(below)
    known: Any = next_logged(dataset)
    return rows._replace(next_action=below, next_logged=known)


def row_limits(allowed: Any) -> RowLimits:
    """Return the columns of `Dataset.allowed`."""
    size = allowed.shape[-1] // 4
    low, high, next_low, next_high = (
        allowed[..., place * size : (place + 1) * size] for place in range(4)
    )
    return RowLimits(low, high, next_low, next_high, allowed[..., -1])


def next_logged(dataset: Dataset) -> Rows:
    """Return 1 where the row below has the next logged action, and 0 at the ends of episodes."""
    ends = MarkedRows(dataset.rows, np.append(dataset.episode_start[1:], dataset.rows) - 1)
    known = MappedRows(np.logical_not, ends, dtype=np.dtype(np.float32))
    return known if is_lazy(dataset.action) else np.asarray(known)


def action_box(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of a data set's action box in the precision of policies."""
    return np.asarray(dataset.action_low, np.float32), np.asarray(dataset.action_high, np.float32)


def scaled_actions(rows: Batch, dataset: Dataset) -> Batch:
    """Return rows with actions in half-ranges of the data set's box, and limits by their names."""
    if rows.limits is not None:
        rows = rows._replace(limits=row_limits(rows.limits))
    box = action_box(dataset)
    rows = rows._replace(action=in_half_ranges(rows.action, *box))
    if rows.next_action is None:
        return rows
    return rows._replace(next_action=in_half_ranges(rows.next_action, *box))
