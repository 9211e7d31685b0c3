"""The compiled program of a pack of runs, its arguments, and the lengths of its chunks."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from fat2thin.algorithms.base import Algorithm, Batch, Problem
from fat2thin.evaluation.batches import row_limits
from fat2thin.evaluation.held_out import Watched
from fat2thin.policies.networks import PRECISIONS

JOBS = "jobs"  # the device axis that jobs are sharded over


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything compiled in. Hashable, so that equal programs are compiled once."""

    algorithm: Algorithm
    problem: Problem
    config: Any
    batch_size: int
    sequential: bool
    """Whether jobs run one after the other (CPU) or in parallel."""
    devices: int = 1
    """Number of devices that share the jobs; it must divide the number of jobs."""
    precision: str = PRECISIONS[0]
    """Type of the factors of the networks' products."""
    select: bool = False
    """Whether to keep the state that scores best on held-out rows, and let it act."""


class ObservationScale(NamedTuple):
    """The networks of each job see (observation − mean) / scale."""

    mean: Float[Array, "*jobs observation"]
    scale: Float[Array, "*jobs observation"]


class Jobs(NamedTuple):
    """One seed per job, with its run, its log and the settings that differ between jobs."""

    seed: Int[Array, "*jobs"]
    run: Int[Array, "*jobs"]
    log: Int[Array, "*jobs"]
    """Index into the logs of `Data`."""
    settings: dict[str, Float[Array, "*jobs"]]
    observation_scale: ObservationScale | None = None
    """Scale of raw observations, where the logs were standardised."""
    value_range: Float[Array, "*jobs 2"] | None = None
    """Values that the rewards of each job's log allow, where targets are clipped to them."""
    value_level: Float[Array, "*jobs"] | None = None
    """The constant that critics learn the difference from, where values are centred."""


class LoggedRows(NamedTuple):
    """Logs on the device; next observations are stored only where they are not the row below."""

    observation: Float[Array, "logs states observation"]
    """Observations of all rows, and after them the next observations that are kept apart."""
    action: Float[Array, "logs rows action"]
    """Actions in half-ranges of the box."""
    reward: Float[Array, "logs rows"]
    continuation: Float[Array, "logs rows"]
    following: Int[Array, "logs rows"]
    """The place of each next observation among the observations."""
    next_logged: Float[Array, "logs rows"] | None = None
    """`Batch.next_logged`, for algorithms that need the next logged action."""
    allowed: Float[Array, "logs rows allowed"] | None = None
    """`Dataset.allowed`, for policies that learn within limits."""

    def batch(
        self, log: Int[Array, ""], places: Int[Array, " batch"], count: Int[Array, ""] | int
    ) -> Batch:
        """Return the rows at some places of a log with `count` rows."""
        rows = Batch(
            observation=self.observation[log, places],
            action=self.action[log, places],
            reward=self.reward[log, places],
            next_observation=self.observation[log, self.following[log, places]],
            continuation=self.continuation[log, places],
        )
        if self.allowed is not None:
            rows = rows._replace(limits=row_limits(self.allowed[log, places]))
        if self.next_logged is None:
            return rows
        below = (places + 1) % count
        return rows._replace(
            next_action=self.action[log, below], next_logged=self.next_logged[log, places]
        )


class WindowPlace(NamedTuple):
    """Where the window of each log is at an update, in slots of one block; see `engine.window`."""

    size: Int[Array, " logs"]
    """Rows of a block."""
    held: Int[Array, " logs"]
    """Blocks in a window."""
    updates: Int[Array, " logs"]
    """Updates that a block stays in the window."""
    slots: Int[Array, " logs"]
    """Blocks on the device. The window continues with the first slot below the last one."""

    def rows(
        self, log: Int[Array, ""], places: Int[Array, " batch"], number: Int[Array, ""]
    ) -> tuple[Int[Array, " batch"], Int[Array, ""]]:
        """Return the rows on the device that are at some places of the window, and their number."""
        size, held, updates, slots = (one[log] for one in self)
        # number * held // updates, which may be too large for 32 bits.
        first = number // updates * held % slots + number % updates * held // updates
        return (first % slots * size + places) % (slots * size), slots * size


class Data(NamedTuple):
    """The logs of all jobs on the device."""

    rows: LoggedRows
    row_count: Int[Array, " logs"]
    """Number of rows of each log that updates draw from; the rows after them are padding."""
    watched: Watched | None = None
    """Rows that signals are computed from, with a leading axis of logs, if rows are held out."""
    window: WindowPlace | None = None
    """Where the rows are that updates draw from, if the logs have more than fit on the device."""

    def batch(
        self, log: Int[Array, ""], places: Int[Array, " batch"], number: Int[Array, ""]
    ) -> Batch:
        """Return the rows at some places of a log, or of its window, for an update."""
        count = self.row_count[log]
        if self.window is not None:
            places, count = self.window.rows(log, places, number)
        return self.rows.batch(log, places, count)


def take(tree: Any, places: int | slice | np.ndarray | Array | tuple[Array, ...]) -> Any:
    """Index all arrays of a tree: often by jobs, along the leading axis."""
    return jax.tree.map(lambda leaf: leaf[places], tree)


def put(values: Any, dtype: Any) -> Array:
    """Return values as an array on the device; unlike `jnp.asarray`, this compiles nothing."""
    return jax.device_put(np.asarray(values, dtype))


def of_jobs(like: Any, count: int) -> Any:
    """Return shapes with a leading axis of `count` jobs in place of any other number."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), like
    )


def sequential_here() -> bool:
    """Whether jobs run one after the other on this machine's default device."""
    return jax.default_backend() == "cpu"


def mesh(program: Program) -> Mesh:
    """Return the devices of a program as a one-dimensional mesh."""
    return Mesh(np.asarray(jax.devices()[: program.devices]), (JOBS,))


def over_jobs(function: Callable, program: Program, *shared: Any) -> Callable:
    """Map a function of one job, and of what all jobs share, over all jobs."""

    def on_device(shared: tuple, of_jobs: tuple) -> Any:
        if program.sequential:
            return lax.map(lambda one: function(*one, *shared), of_jobs)
        return jax.vmap(lambda *one: function(*one, *shared))(*of_jobs)

    if program.devices > 1:
        # Each device runs the loop or the kernels of its own jobs; partitioned automatically, a
        # loop over jobs would visit all of them on every device.
        each = PartitionSpec(JOBS)
        on_device = jax.shard_map(
            on_device, mesh=mesh(program), in_specs=(PartitionSpec(), each), out_specs=each,
            check_vma=False,
        )  # fmt: skip
    return lambda *of_jobs: on_device(shared, of_jobs)


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number that is not above a limit."""
    return next(n for n in range(min(limit, number), 0, -1) if number % n == 0)


def chunk_lengths(stops: Sequence[int], longest: int) -> list[int]:
    """Cut a run into chunks, none longer than `longest`, that end at every stop.

    Each length is compiled separately, so all are equal where a fitting length divides the stops.
    Only where it would be less than a quarter of `longest` do remainders get their own length.
    """
    ends = sorted({stop for stop in stops if stop > 0})
    fitting = largest_divisor(math.gcd(*ends), longest)
    if 4 * fitting >= min(longest, ends[-1]):
        return [fitting] * (ends[-1] // fitting)
    lengths = []
    for begin, end in zip([0, *ends], ends, strict=False):
        whole, rest = divmod(end - begin, longest)
        lengths += [longest] * whole + [rest] * (rest > 0)
    return lengths
