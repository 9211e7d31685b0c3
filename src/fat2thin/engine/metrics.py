"""Metrics of compiled updates: packed, averaged over a chunk, and checked to be finite."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fat2thin.algorithms.base import Metrics, State
from fat2thin.engine.program import Jobs

STATE = "state"
"""Reported in place of a metric if all metrics are finite and the parameters are not."""


class ChunkReport(NamedTuple):
    """Metrics of a chunk, and the first number that is not finite, per job."""

    metrics: dict[str, Float[Array, " jobs"]]
    """Means over the chunk's updates."""
    bad_update: Int[Array, " jobs"]
    """The first update (from 0) after which something is not finite, or -1."""
    bad_metric: Int[Array, " jobs"]
    """Index of that metric in sorted order; the number of metrics means the state."""
    signals: dict[str, Float[Array, " jobs"]] | None = None
    """Signals of the held-out rows after the last update, if rows are held out."""

    @property
    def row(self) -> dict[str, Any]:
        """Metrics and signals, one number per job."""
        return {**self.metrics, **(self.signals or {})}


class UpdateMetrics(eqx.Module):
    """The metrics of one or several updates: scalars first, then those with one number per row.

    On a GPU, the mean over a batch is slow for one update and fast for many updates together.
    """

    numbers: Float[Array, "*updates numbers"]
    rows: Float[Array, "*updates others batch"]
    names: tuple[str, ...] = eqx.field(static=True)

    def means(self) -> Float[Array, "*updates metrics"]:
        """Return one number per metric, in sorted order of their names."""
        values = jnp.concatenate([self.numbers, jnp.mean(self.rows, axis=-1)], axis=-1)
        return values[..., np.argsort(self.names)]


def pack_metrics(metrics: Metrics, batch_size: int) -> UpdateMetrics:
    """Stack the metrics of an update; each must be one number, or one per row."""
    values = {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}
    for name, value in values.items():
        if value.shape not in ((), (batch_size,)):
            raise ValueError(
                f"the metric {name} of an update has shape {value.shape}: it must be one number, "
                f"or one per row of the batch, ({batch_size},)"
            )
    numbers = {name: value for name, value in values.items() if value.ndim == 0}
    rows = {name: value for name, value in values.items() if value.ndim > 0}
    return UpdateMetrics(
        numbers=jnp.stack([*numbers.values()]) if numbers else jnp.zeros(0),
        rows=jnp.stack([*rows.values()]) if rows else jnp.zeros((0, 1)),
        names=(*numbers, *rows),
    )


class BlockMetrics(eqx.Module):
    """Summed metrics of consecutive updates."""

    totals: Float[Array, "*blocks metrics"]
    bad_update: Int[Array, "*blocks"]
    """The first update after which a metric is not finite, or -1."""
    bad_metric: Int[Array, "*blocks"]
    names: tuple[str, ...] = eqx.field(static=True)


def sum_block(metrics: UpdateMetrics, start: Array) -> BlockMetrics:
    """Sum the mean metrics of consecutive updates, the first of them number `start`."""
    means = metrics.means()
    bad = ~jnp.isfinite(means)
    bad_updates = jnp.any(bad, axis=1)
    seen, first = jnp.any(bad_updates), jnp.argmax(bad_updates)
    return BlockMetrics(
        totals=jnp.sum(means, axis=0),
        bad_update=jnp.where(seen, start + first, -1),
        bad_metric=jnp.where(seen, jnp.argmax(bad[first]), -1),
        names=tuple(sorted(metrics.names)),
    )


def chunk_report(
    blocks: BlockMetrics, state: State, start: Array | int, length: int
) -> ChunkReport:
    """Return the means over a chunk's updates, and the first that is not finite."""
    names = blocks.names
    first = jnp.argmax(blocks.bad_update >= 0)
    numbers = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in numbers])
    seen, lost = blocks.bad_update[first] >= 0, ~jnp.all(finite)
    at_the_end = jnp.where(lost, start + length - 1, -1), jnp.where(lost, len(names), -1)
    return ChunkReport(
        metrics=dict(zip(names, jnp.sum(blocks.totals, axis=0) / length, strict=True)),
        bad_update=jnp.where(seen, blocks.bad_update[first], at_the_end[0]),
        bad_metric=jnp.where(seen, blocks.bad_metric[first], at_the_end[1]),
    )


class TrainingDiverged(RuntimeError):
    """A metric or a parameter is not finite; names the job, the update and the metric."""

    def __init__(
        self, *, seed: int, settings: dict[str, float], step: int, metric: str, last_good_step: int
    ) -> None:
        self.seed, self.settings = seed, settings
        self.step, self.metric, self.last_good_step = step, metric, last_good_step
        setting = "".join(f", {name}={value:g}" for name, value in settings.items())
        super().__init__(
            f"training diverged: {metric} is not finite at step {step} (seed {seed}{setting}). "
            f"The state after step {last_good_step} is kept. Try a smaller learning rate, a larger "
            "temperature, or rewards and observations of a smaller scale."
        )


def divergences(report: ChunkReport, jobs: Jobs, start: int) -> dict[int, TrainingDiverged]:
    """Return the jobs that diverged in a chunk, with the first error of each; earliest first."""
    bad, names = np.asarray(report.bad_update), [*sorted(report.metrics), STATE]
    return {
        int(job): TrainingDiverged(
            seed=int(jobs.seed[job]),
            settings={name: float(values[job]) for name, values in jobs.settings.items()},
            step=int(bad[job]) + 1,
            metric=names[int(report.bad_metric[job])],
            last_good_step=start,
        )
        for job in sorted(np.flatnonzero(bad >= 0), key=lambda job: bad[job])
    }
