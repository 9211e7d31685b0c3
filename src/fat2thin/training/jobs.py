"""What is run side by side in one program, and the logged steps on the device it learns from."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fat2thin.algorithms.base import Batch
from fat2thin.data import Dataset
from fat2thin.policies import in_half_ranges


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


class Data(NamedTuple):
    """The logs of all jobs on the device."""

    rows: Batch
    """Shape (logs, rows, ...)."""
    row_count: Int[Array, " logs"]
    """Rows that are data; what comes after them is padding."""


def take(tree: Any, jobs: slice | np.ndarray) -> Any:
    """What a tree with a leading axis of jobs holds of some of them."""
    return jax.tree.map(lambda leaf: leaf[jobs], tree)


def data_size(dataset: Dataset) -> int:
    """How many bytes of a device a log takes."""
    values = sum(getattr(dataset, field).size for field in Batch._fields)
    return values * jnp.dtype(jnp.float32).itemsize


def on_device(datasets: Sequence[Dataset]) -> Data:
    """All logs, shorter ones padded to the longest."""

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
    )
