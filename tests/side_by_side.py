"""Jobs for tests of the compiled loop without a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fat2thin.engine.metrics import divergences
from fat2thin.engine.program import Jobs


def make_jobs(
    seeds: Sequence[int],
    settings: Mapping[str, Sequence[float]] | None = None,
    logs: Sequence[int] | None = None,
) -> Jobs:
    """Return one job per seed and position in the lists of settings, the seeds varying fastest.

    `logs` holds the index of the log of each seed; by default all use the first.
    """
    columns = {name: np.asarray(values, np.float32) for name, values in (settings or {}).items()}
    (length,) = {len(values) for values in columns.values()} or {1}
    count = len(seeds) * length
    of_seeds = np.zeros(len(seeds)) if logs is None else np.asarray(logs)
    return Jobs(
        seed=jnp.asarray(np.tile(np.asarray(seeds, np.int32), length)),
        run=jnp.zeros(count, jnp.int32),
        log=jnp.asarray(np.tile(of_seeds, length), jnp.int32),
        settings={
            name: jnp.asarray(np.repeat(values, len(seeds))) for name, values in columns.items()
        },
    )


def raise_if_diverged(report, jobs, start):
    for error in divergences(report, jobs, start).values():
        raise error


def assert_same_bits(first: Any, second: Any) -> None:
    """Check that two trees have the same structure and the same bits."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)
