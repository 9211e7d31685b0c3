"""Distribute jobs over the devices of a machine; jobs that do not fit into memory take turns.

With one device that holds all jobs, nothing is added to the compiled loop. Otherwise copies of the
last job fill the last turn, so that every device and every turn has the same number of jobs; the
results of the copies are dropped.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from fat2thin.algorithms.base import State
from fat2thin.data.safe_files import default_limit
from fat2thin.engine import loop
from fat2thin.engine.compilation_cache import make_room
from fat2thin.engine.metrics import ChunkReport
from fat2thin.engine.program import JOBS, Data, Jobs, Program, mesh, of_jobs, put, take
from fat2thin.evaluation.returns import Evaluation, Evaluator
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream

LIMIT = "FAT2THIN_MEMORY"
"""Environment variable: the memory that a run may use on each device, in GiB."""

_METRICS = 20  # about how many metrics of an update have one number per row
_MARGIN = 0.1  # share of a device's memory left to evaluations and the compiler
_STATES = 3
_OUTPUTS = 1
"""Memory of a chunk, in copies of the state and of all layers' outputs for a batch. XLA reports 2
states and .7 to .8 outputs on a CPU, for TD3+BC, IQL, SQL, AWAC and FtTPO with jobs side by side,
layers of 64 and 256 and batches of 256 and 1,024; an accelerator's compiler may keep more copies.
The rows drawn ahead are added to that."""


class NotEnoughMemoryError(ValueError):
    """One job needs more memory than there is."""


class JobScheduler:
    """Runs the compiled loop for any number of jobs, on all devices and in turns if needed.

    The states of jobs that take turns are kept in host memory, all others on the devices; `spread`
    puts them there, and `gathered` brings them back.
    """

    def __init__(self, program: Program, jobs: Jobs, data_size: int = 0) -> None:
        """`data_size` is the number of bytes that the logs take on a device."""
        make_room((loop.init, loop.chunk, loop.policies, loop.evaluate))
        self._all = np.arange(len(jobs.seed))
        held = jobs_at_a_time(program, jobs, data_size) or self._all.size
        self.count = math.ceil(self._all.size / (held * jax.device_count()))  # number of turns
        equally_many = math.ceil(self._all.size / self.count)
        of_device = math.ceil(equally_many / jax.device_count())
        devices = math.ceil(equally_many / of_device)
        self.at_a_time = of_device * devices  # jobs per turn
        self._program = dataclasses.replace(program, devices=devices)
        self._plain = self.count == devices == 1
        self._compiling: Future[jax.stages.Compiled] | None = None
        self._jobs = self.spread(jobs)

    @property
    def about(self) -> dict[str, int]:
        """Fields of run.json: the number of devices that share the jobs, and the jobs per turn."""
        devices = {"devices": self._program.devices} if self._program.devices > 1 else {}
        turns = {"jobs_at_a_time": self.at_a_time} if self.count > 1 else {}
        return devices | turns

    def spread(self, tree: Any) -> Any:
        """Put a tree of all jobs where it is needed: on the devices, or on the host."""
        if self._plain:
            return tree
        on_host = jax.device_get(tree)
        return (
            on_host if self.count > 1 else self._placed(take(on_host, self._blocks(self._all)[0]))
        )

    def gathered(self, tree: Any) -> Any:
        """Bring a tree of all jobs back to one place."""
        return tree if self._plain or self.count > 1 else _on_host([tree], self._all.size)

    def replicated(self, data: Any) -> Any:
        """Put logs, or parts of them, on every device."""
        return data if self._program.devices == 1 else jax.device_put(data, self._sharding())

    def init(self) -> State:
        """Return the states that all jobs start in."""
        init = functools.partial(loop.init, program=self._program)
        if self.count == 1:
            return init(self._jobs)
        return self._one_by_one(init, (self._jobs,), self._all)

    def compile_ahead(self, data: Data, length: int) -> None:
        """Start to compile a chunk of this length in a thread; the next call of `chunk` waits.

        On a CPU, the programs of a short run take longer to compile than to run, and most of a
        compilation takes one core. JAX keeps the compiled program for later calls of the function.
        """
        if not (self._plain and self._program.sequential):
            return
        states = loop.init.eval_shape(self._jobs, program=self._program)
        active = put(np.ones(self._all.size), bool)
        program = loop.chunk.lower(
            states, data, self._jobs, np.int32(0), active,
            program=self._program, length=length, preparing=False,
        )  # fmt: skip
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compilation")
        self._compiling = thread.submit(program.compile)
        thread.shutdown(wait=False)

    def chunk(
        self, states: State, data: Data, start: int, length: int,
        active: np.ndarray | None = None, preparing: bool = False,
    ) -> tuple[State, ChunkReport]:  # fmt: skip
        """Run updates `start` to `start + length - 1` of every active job; see `loop.chunk`."""

        def move(states: State, jobs: Jobs, active: Array) -> tuple[State, ChunkReport]:
            try:
                return loop.chunk(
                    states, data, jobs, np.int32(start), active,
                    program=self._program, length=length, preparing=preparing,
                )  # fmt: skip
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                raise MemoryError(
                    "the device has not enough memory for this number of jobs; the estimate was "
                    f"too low. Set {LIMIT} to the GiB that they may use, so that they take turns. "
                    f"({error})"
                ) from error

        going = np.ones(self._all.size, bool) if active is None else active
        if self._compiling is not None:
            # If the compiler failed, the call below fails likewise.
            wait([self._compiling])
            self._compiling = None
        if self.count > 1:
            return self._one_by_one(move, (states, self._jobs, going), self._all)
        states, report = move(states, self._jobs, self.spread(put(going, bool)))
        return states, self.gathered(report)

    def policies(self, states: State) -> dict[str, Policy]:
        """Return the policies of all jobs; see `loop.policies`."""
        make = functools.partial(loop.policies, program=self._program)
        return self._of_jobs(make, states, self._all)

    def evaluate(
        self, states: State, jobs: np.ndarray, number: int,
        *, stream: Stream, evaluator: Evaluator, episodes: int,
    ) -> dict[str, Evaluation]:  # fmt: skip
        """Evaluate the policies of the jobs at some places; see `loop.evaluate`."""
        judge = functools.partial(
            loop.evaluate, number=np.int32(number), stream=stream,
            program=self._program, evaluator=evaluator, episodes=episodes,
        )  # fmt: skip
        return self._of_jobs(judge, states, jobs)

    def _of_jobs(self, function: Callable, states: State, places: np.ndarray) -> Any:
        if self.count == 1 and places.size == self._all.size:
            return self.gathered(function(states, self._jobs))
        if self._plain:
            return function(*take((states, self._jobs), places))
        return self._one_by_one(function, self.gathered((states, self._jobs)), places)

    def _one_by_one(self, function: Callable, of_jobs: tuple, places: np.ndarray) -> Any:
        """Call a function for the jobs at some places, turn by turn.

        A turn gets a copy of its states, so the loop may write over them.
        """
        parts = (function(*self._placed(take(of_jobs, block))) for block in self._blocks(places))
        return _on_host(parts, places.size)

    def _blocks(self, places: np.ndarray) -> list[np.ndarray]:
        """Split places into turns of the same size."""
        devices = self._program.devices
        size = min(self.at_a_time, devices * math.ceil(places.size / devices))
        missing = -places.size % size
        return np.split(np.pad(places, (0, missing), mode="edge"), (places.size + missing) // size)

    def _placed(self, tree: Any) -> Any:
        """Put a tree with a leading axis of jobs on the devices, each with its share."""
        return jax.device_put(tree, self._sharding(JOBS))

    def _sharding(self, *axes: str) -> NamedSharding:
        return NamedSharding(mesh(self._program), PartitionSpec(*axes))


def _on_host(parts: Iterable[Any], count: int) -> Any:
    """Join trees of jobs into one in host memory, and return its first `count` jobs."""
    whole, done = None, 0
    for part in parts:
        fetched = jax.device_get(part)
        if whole is None:
            whole = jax.tree.map(lambda one: np.empty((count, *one.shape[1:]), one.dtype), fetched)
        size = len(jax.tree.leaves(fetched)[0])
        for into, leaf in zip(jax.tree.leaves(whole), jax.tree.leaves(fetched), strict=True):
            rows = into[done : done + size]
            rows[...] = leaf[: len(rows)]
        done += size
    return whole


def jobs_at_a_time(program: Program, jobs: Jobs, data_size: int) -> int | None:
    """Return how many jobs a device holds along with the logs, at least one; None without a limit.

    The limit is `FAT2THIN_MEMORY`, or the free memory of the devices.
    """
    asked, free, needed = memory_limit(), free_memory(), chunk_size(program, jobs, 1)
    # On a CPU, the memory of the machine; `default_limit` is half of it.
    available = free or 2 * default_limit()
    if needed > available:
        raise NotEnoughMemoryError(
            f"batch_size={program.batch_size} needs about {needed:,} bytes of memory per seed; "
            f"there are {available:,.0f}: use a smaller batch_size, or smaller networks"
        )
    offered = asked or free
    if offered is None:
        return None
    return jobs_that_fit(program, jobs, data_size, offered)


def share_of_logs() -> float:
    """Return how many bytes of logs a device holds at most: half of the memory that it offers."""
    return 0.5 * (memory_limit() or free_memory() or 2 * default_limit())


def jobs_that_fit(program: Program, jobs: Jobs, data_size: int, memory: float) -> int:
    """Return how many jobs fit into `memory` bytes of a device, along with the logs; at least 1."""
    return max(1, math.floor((memory - data_size) / chunk_size(program, jobs, 1)))


def memory_limit() -> float | None:
    """Return the limit that `FAT2THIN_MEMORY` sets, in bytes; None if it is not set."""
    if not (given := os.environ.get(LIMIT, "")):
        return None
    try:
        size = float(given)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise ValueError(f"{LIMIT} must be a positive number of GiB, got {given!r}")
    return size * 2**30


def free_memory() -> float | None:
    """Return the smallest free memory of the devices; None on a CPU, which reports no limit."""
    known = [device.memory_stats() or {} for device in jax.devices()]
    limited = [stats for stats in known if "bytes_limit" in stats]
    sizes = [stats["bytes_limit"] - stats.get("bytes_in_use", 0) for stats in limited]
    return (1 - _MARGIN) * min(sizes) if sizes else None


def chunk_size(program: Program, jobs: Jobs, count: int) -> int:
    """Estimate the memory of a chunk of `count` jobs; `jobs` holds at least one of them."""
    leaves = jax.tree.leaves(loop.init.eval_shape(of_jobs(jobs, 1), program=program))
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    # Axes of a layer's weights: jobs, networks, outputs, inputs.
    layers = [leaf for leaf in leaves if leaf.ndim > 2]
    outputs = sum(math.prod(leaf.shape[1:-1]) * leaf.dtype.itemsize for leaf in layers)
    rows = loop.batch_bytes(program) + _METRICS * program.batch_size * 4
    rest = _OUTPUTS * program.batch_size * outputs + loop.drawn_ahead(program) * rows
    # Sequential jobs share the memory of the rest.
    return count * _STATES * state + (1 if program.sequential else count) * rest
