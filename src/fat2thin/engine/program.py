"""What a pack of runs compiles, how its jobs share devices, and where its chunks end."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fat2thin.algorithms.base import Algorithm, Problem

JOBS = "jobs"
"""The device axis that jobs are sharded over."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything compiled in. Hashable, so that equal programs are compiled once."""

    algorithm: Algorithm
    problem: Problem
    config: Any
    batch_size: int
    sequential: bool
    """Jobs one after the other (CPU) or side by side."""
    devices: int = 1
    """How many devices share the jobs; their number must be a multiple of it."""
    select: bool = False
    """Whether the state on the way that the held-out rows like best is kept, and acts."""


def sequential_here() -> bool:
    """Whether jobs run one after the other on this machine's default device."""
    return jax.default_backend() == "cpu"


def mesh(program: Program) -> Mesh:
    """The devices of a program, in a row."""
    return Mesh(np.asarray(jax.devices()[: program.devices]), (JOBS,))


def over_jobs(function: Callable, program: Program, *shared: Any) -> Callable:
    """The function of one job, and of what all jobs share, for all of them."""

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
    """The largest divisor of a number that is not above a limit."""
    return next(n for n in range(min(limit, number), 0, -1) if number % n == 0)


def chunk_lengths(stops: Sequence[int], longest: int) -> list[int]:
    """Cut a run into chunks, none longer than `longest`, that end at every stop.

    One length is one compiled program, so all are equal where a fitting length divides the stops;
    only where it would be less than a quarter of what it could be do remainders get their own.
    """
    ends = sorted({stop for stop in stops if stop > 0})
    divisor = int(np.gcd.reduce(ends))
    fitting = largest_divisor(divisor, longest)
    if 4 * fitting >= min(longest, ends[-1]):
        return [fitting] * (ends[-1] // fitting)
    lengths = []
    for begin, end in zip([0, *ends], ends, strict=False):
        whole, rest = divmod(end - begin, longest)
        lengths += [longest] * whole + [rest] * (rest > 0)
    return lengths
