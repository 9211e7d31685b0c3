"""What is run side by side in one program, and the logged steps on the device it learns from."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fat2thin.algorithms.base import Batch
from fat2thin.data import Dataset
from fat2thin.data.operations import discounted_returns, reachable_returns
from fat2thin.data.predictability import is_noisy
from fat2thin.evaluation.held_out import Watched
from fat2thin.policies.policy import in_half_ranges


class ObservationScale(NamedTuple):
    """What the networks of each job see is (observation − mean) / scale."""

    mean: Float[Array, "*jobs observation"]
    scale: Float[Array, "*jobs observation"]


class Jobs(NamedTuple):
    """A seed each, the run it belongs to, its log, and a number for every setting that varies."""

    seed: Int[Array, "*jobs"]
    run: Int[Array, "*jobs"]
    log: Int[Array, "*jobs"]
    """Which of the logs in `Data`."""
    settings: dict[str, Float[Array, "*jobs"]]
    observation_scale: ObservationScale | None = None
    """Where the logs were standardised: what raw observations must go through."""


WATCHED = 1024
"""Rows of each part of a log that signals are computed from. A part that has fewer is gone through
several times: a job must not notice the logs beside its own."""


class Data(NamedTuple):
    """The logs of all jobs on the device."""

    rows: Batch
    """Shape (logs, rows, ...)."""
    row_count: Int[Array, " logs"]
    """Rows that are data; what comes after them is padding."""
    watched: Watched | None = None
    """Where a part of every log is held out: rows to look at, a leading axis of logs."""


def take(tree: Any, jobs: slice | np.ndarray) -> Any:
    """What a tree with a leading axis of jobs holds of some of them."""
    return jax.tree.map(lambda leaf: leaf[jobs], tree)


def data_size(dataset: Dataset) -> int:
    """How many bytes of a device a log takes."""
    values = sum(getattr(dataset, field).size for field in Batch._fields)
    return values * jnp.dtype(jnp.float32).itemsize


def on_device(datasets: Sequence[Dataset], held_out: Sequence[Dataset] = ()) -> Data:
    """All logs, shorter ones padded to the longest; and what is held out of each, if anything."""

    def stacked(field: str) -> Array:
        arrays = [getattr(dataset, field) for dataset in datasets]
        if len(arrays) == 1:
            return jnp.asarray(arrays[0][None], jnp.float32)
        longest = max(map(len, arrays))
        together = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), np.float32)
        for place, array in zip(together, arrays, strict=True):
            place[: len(array)] = array
        return jnp.asarray(together)

    low, high = (jnp.asarray(getattr(datasets[0], end)) for end in ("action_low", "action_high"))
    fields = {field: stacked(field) for field in Batch._fields}
    fields["action"] = in_half_ranges(fields["action"], low, high)
    return Data(
        rows=Batch(**fields),
        row_count=jnp.asarray([dataset.rows for dataset in datasets], jnp.int32),
        watched=watched_rows(datasets, held_out) if held_out else None,
    )


def watched_rows(datasets: Sequence[Dataset], held_out: Sequence[Dataset]) -> Watched:
    """Rows spread evenly over both parts of each log, equally many of every log."""
    returns = [discounted_returns(dataset)[_spread(dataset)] for dataset in held_out]
    pairs = list(zip(held_out, datasets, strict=True))
    counts = [[min(one.rows, WATCHED) for one in pair] for pair in pairs]
    return Watched(
        held_out=_even_rows(held_out),
        observed_return=jnp.asarray(np.stack(returns), jnp.float32),
        learned=_even_rows(datasets),
        counts=jnp.asarray(counts, jnp.float32),
        noisy=jnp.asarray([is_noisy(dataset) for dataset in datasets]),
        reachable=jnp.asarray([reachable_returns(*pair) for pair in pairs], jnp.float32),
    )


def _even_rows(datasets: Sequence[Dataset]) -> Batch:
    parts = [
        {field: getattr(dataset, field)[_spread(dataset)] for field in Batch._fields}
        for dataset in datasets
    ]
    fields = {
        field: jnp.asarray(np.stack([part[field] for part in parts]), jnp.float32)
        for field in Batch._fields
    }
    low, high = (jnp.asarray(getattr(datasets[0], end)) for end in ("action_low", "action_high"))
    fields["action"] = in_half_ranges(fields["action"], low, high)
    return Batch(**fields)


def _spread(dataset: Dataset) -> np.ndarray:
    """Places of rows spread evenly over a log, each about equally often where they are few."""
    return np.arange(WATCHED) * dataset.rows // WATCHED
