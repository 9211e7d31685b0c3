"""How many jobs a device holds at a time, and how much memory a stranger's run may ask for."""

import contextlib
import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax

from fat2thin.data.limits import default_limit
from fat2thin.engine import loop
from fat2thin.engine.jobs import Jobs, take
from fat2thin.engine.loop import Program
from fat2thin.runs.folder import NoRunError

LIMIT = "FAT2THIN_MEMORY"
"""Environment variable: what a run may take of each device, in GiB."""

_METRICS = 20
"""About how many metrics of an update are kept by rows, for as many updates as are drawn ahead."""
_MARGIN = 0.1
"""Of what a device offers, left to evaluations and to the compiler's own needs."""
_STATES = 3
_OUTPUTS = 1
"""What a chunk needs at once: so many times the state, and so many times what every layer puts out
for a batch. XLA's own count on a CPU, of TD3+BC, IQL, SQL, AWAC and FtTPO with jobs side by side,
layers of 64 and 256 and batches of 256 and 1,024, is 2 states and .7 to .8 outputs; an
accelerator's compiler may keep more copies. The rows that are drawn for some updates ahead come on
top."""


def jobs_at_a_time(program: Program, jobs: Jobs, data_size: int) -> int | None:
    """How many jobs a device holds beside the logs, at least one; None where nothing limits them.

    That is what `FAT2THIN_MEMORY` says, or what the devices themselves offer.
    """
    offered = _asked_for() or _offered()
    if offered is None:
        return None
    return max(1, math.floor((offered - data_size) / chunk_size(program, jobs, 1)))


@contextlib.contextmanager
def out_of_memory_explained() -> Iterator[None]:
    """Say what helps where a device has no memory left."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(
            "the device has not enough memory for so many jobs at a time, more than was estimated. "
            f"Set {LIMIT} to what they may take of it, in GiB, and they take turns. ({error})"
        ) from error


def _asked_for() -> float | None:
    given = os.environ.get(LIMIT, "")
    if not given:
        return None
    try:
        size = float(given)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise ValueError(f"{LIMIT} must be a positive number of GiB, got {given!r}")
    return size * 2**30


def _offered() -> float | None:
    """What the device with least has free; the main memory of a CPU is not counted."""
    known = [device.memory_stats() or {} for device in jax.devices()]
    sizes = [
        stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        for stats in known
        if "bytes_limit" in stats
    ]
    return (1 - _MARGIN) * min(sizes) if sizes else None


class TooLargeError(NoRunError):
    """A run asks for more memory than reading or checking it may take on this machine."""


def refuse_too_large(file: Path, fields: str, size: int) -> None:
    """Refuse what the fields of a file ask for, where it is over half of the machine's memory."""
    limit = default_limit()
    if size > limit:
        raise TooLargeError(
            f"{file}: {fields} ask for about {size:,} bytes of memory; the limit is {limit:,}, "
            "half of what this machine has"
        )


def chunk_size(program: Program, jobs: Jobs, count: int) -> int:
    """About how many bytes it takes to move so many jobs on; `jobs` holds at least one of them."""
    init = functools.partial(loop.init, program=program)
    leaves = jax.tree.leaves(eqx.filter_eval_shape(init, take(jobs, slice(1))))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    # A layer's weights have a row an output, and its networks before that; the first axis is jobs.
    outputs = sum(
        math.prod(leaf.shape[1:-1]) * leaf.dtype.itemsize for leaf in leaves if leaf.ndim > 2
    )
    ahead = max(1, loop.DRAWN_AHEAD // loop.batch_bytes(program))
    drawn = ahead * (loop.batch_bytes(program) + _METRICS * program.batch_size * 4)
    # One after the other, they need the rest in turn.
    at_once = 1 if program.sequential else count
    rest = _OUTPUTS * program.batch_size * outputs + drawn
    return count * _STATES * state + at_once * rest
