"""The compiled loop: updates of one job in a scan, and all jobs of a pack in one program.

A job is a seed and, in a pack of runs, the numbers of some settings. On a CPU, jobs run one after
the other, so that a job's bits do not depend on the other jobs; elsewhere they run in parallel.
Every random number comes from the seed, the purpose and the number of the update, so it does not
matter where a run is cut into chunks.

`train` is training as a pure function, without a run folder: jit, vmap or differentiate it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from fat2thin.algorithms.base import Algorithm, Batch, Problem, State, with_level, with_numbers
from fat2thin.compilation import QuicklyCompiled
from fat2thin.engine.metrics import (
    BlockMetrics,
    ChunkReport,
    UpdateMetrics,
    chunk_report,
    pack_metrics,
    sum_block,
)
from fat2thin.engine.program import (
    Data,
    Jobs,
    ObservationScale,
    Program,
    largest_divisor,
    over_jobs,
    take,
)
from fat2thin.engine.selection import acting, choose, start_selection
from fat2thin.evaluation.held_out import preference, signals
from fat2thin.evaluation.returns import Evaluation, Evaluator, evaluate_policies
from fat2thin.policies import Policy
from fat2thin.policies.networks import with_precision
from fat2thin.random_streams import Stream, fold, seed_key, stream_key
from fat2thin.settings.config import whole_number

DRAWN_AHEAD = 2**21
"""Approximate number of bytes of the log that a job gathers at a time for its next updates."""
COMPILER_OPTIONS = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
"""Kernels of an update that do not wait for each other may run at the same time on a GPU."""


def initial_state(key: Key[Array, ""], program: Program) -> State:
    """Return the state that one job starts in."""
    init = program.algorithm.init
    state = init(fold(key, Stream.INITIAL_STATE), program.problem, program.config)
    state = with_precision(state, program.precision)
    # Python numbers and arrays must compile to the same program.
    return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), state)


def updates(
    state: State, key: Key[Array, ""], rows: Callable[[Int[Array, " batch"], Array], Batch],
    row_count: Int[Array, ""] | int, start: Int[Array, ""] | int,
    *, program: Program, length: int, preparing: bool = False,
) -> tuple[State, ChunkReport]:  # fmt: skip
    """Run updates `start` to `start + length - 1` of one job.

    Their batches are `rows(places, number)`, for places below `row_count`.
    """
    step, own_draws, row_draws = _phase(program.algorithm, preparing)
    batch_size = program.batch_size

    def draw(number: Int[Array, ""]) -> tuple[Batch, Key[Array, ""]]:
        places = jax.random.randint(fold(key, row_draws, number), (batch_size,), 0, row_count)
        return rows(places, number), fold(key, own_draws, number)

    def update(state: State, drawn: tuple[Batch, Array]) -> tuple[State, UpdateMetrics]:
        state, metrics = step(state, *drawn, program.problem, program.config)
        return state, pack_metrics(with_level(metrics, program.problem), batch_size)

    def block(state: State, numbers: Int[Array, " block"]) -> tuple[State, BlockMetrics]:
        state, metrics = lax.scan(update, state, jax.vmap(draw)(numbers))
        return state, sum_block(metrics, numbers[0])

    together = largest_divisor(length, drawn_ahead(program))
    numbers = start + jnp.arange(length, dtype=jnp.int32).reshape(-1, together)
    state, blocks = lax.scan(block, state, numbers)
    return state, chunk_report(blocks, state, start, length)


def _phase(algorithm: Algorithm, preparing: bool) -> tuple[Callable, Stream, Stream]:
    """Return an update, the stream of its own draws, and the stream of its choice of rows."""
    if preparing:
        if algorithm.preparation is None:
            raise ValueError(f"{algorithm.name} has no preparation")
        return algorithm.preparation.update, Stream.PREPARATION, Stream.PREPARATION_BATCH
    return algorithm.update, Stream.UPDATE, Stream.BATCH


def batch_bytes(program: Program) -> int:
    """Return the size of the rows of one update."""
    problem = program.problem
    columns = 2 * problem.observation_size + problem.action_size + 2
    columns += program.algorithm.next_action * (problem.action_size + 1)
    columns += (problem.limits is not None) * (4 * problem.action_size + 1)
    return program.batch_size * 4 * columns


def drawn_ahead(program: Program) -> int:
    """Return the number of updates whose rows a job draws at once, at least one."""
    return max(1, DRAWN_AHEAD // batch_bytes(program))


def train(
    key: Key[Array, ""], data: Batch,
    *, algorithm: Algorithm, problem: Problem, steps: int, config: Any = None,
    batch_size: int = 256, log_every: int = 250,
) -> tuple[State, dict[str, Float[Array, " chunks"]]]:  # fmt: skip
    """Learn from logged rows, and return the final state and the mean metrics of each chunk.

    `data` and `problem` come from `evaluation.batches.batch_of` and `problem_of`, `algorithm` from
    `algorithms.get`; `config` defaults to the algorithm's own. An algorithm that needs next actions
    (`Algorithm.next_action`) takes `batch_of(dataset, next_action=True)`. A chunk has `log_every`
    updates, or the largest smaller number that divides `steps`. Numbers of the config may be traced
    (`algorithms.base.with_numbers`), so that `jax.vmap` makes a sweep and `jax.grad` a derivative
    (through several updates it is NaN where a gradient is exactly zero: Adam's square root has no
    derivative there). `random_streams.seed_key(3)` makes the draws of seed 3 of a run.
    """
    for name, number in {"steps": steps, "batch_size": batch_size, "log_every": log_every}.items():
        whole_number(name, number, least=1)
    config = algorithm.config() if config is None else config
    program = Program(algorithm, problem, config, batch_size, sequential=True)
    data = jax.tree.map(jnp.asarray, data)
    count = len(data.reward)

    def rows(places: Int[Array, " batch"], number: Array) -> Batch:
        return take(data, places)

    advance = functools.partial(updates, key=key, rows=rows, row_count=count, program=program)
    state = initial_state(key, program)
    if algorithm.preparation is not None:
        length = algorithm.preparation.steps(config)
        state, _ = advance(state, start=0, length=length, preparing=True)
    length = largest_divisor(steps, log_every)

    def chunk(state: State, start: Array) -> tuple[State, dict[str, Array]]:
        state, report = advance(state, start=start, length=length)
        return state, report.metrics

    return lax.scan(chunk, state, jnp.arange(0, steps, length, dtype=jnp.int32))


@functools.partial(QuicklyCompiled, static_argnames="program", level=0)
def init(jobs: Jobs, *, program: Program) -> State:
    """Return the states that all jobs start in."""

    def one(job: Jobs) -> State:
        state = initial_state(seed_key(job.seed), _of_job(program, job))
        return start_selection(state) if program.select else state

    return over_jobs(one, program)(jobs)


@functools.partial(
    jax.jit,
    static_argnames=("program", "length", "preparing"),
    donate_argnames="states",
    compiler_options=COMPILER_OPTIONS,
)
def chunk(
    states: State, data: Data, jobs: Jobs, start: Int[Array, ""],
    active: Bool[Array, " jobs"] | None = None,
    *, program: Program, length: int, preparing: bool = False,
) -> tuple[State, ChunkReport]:  # fmt: skip
    """Run updates `start` to `start + length - 1` of every job, or of its preparation.

    A job in which something is not finite keeps the state it was given, and so does one that is
    no longer active. The other jobs are not affected.
    """

    def one(state: State, job: Jobs, data: Data, start: Array) -> tuple[State, ChunkReport]:
        own = _of_job(program, job)
        learning, report = updates(
            state.learning if program.select else state, seed_key(job.seed),
            functools.partial(data.batch, job.log), data.row_count[job.log], start,
            program=own, length=length, preparing=preparing,
        )  # fmt: skip
        if data.watched is not None and not preparing:
            end, rows = start + length, take(data.watched, job.log)
            key = stream_key(job.seed, Stream.SIGNALS, end)
            seen = signals(own.algorithm, acting(learning), rows, key, own.problem, own.config)
            report = report._replace(signals=seen)
            if program.select:
                sound = report.bad_update < 0
                score = preference(seen, data.watched.noisy[job.log])
                return choose(state, learning, score, end, sound), report
        return (state._replace(learning=learning) if program.select else learning), report

    moved, report = over_jobs(one, program, data, start)(states, jobs)
    stays = report.bad_update >= 0
    if active is not None:
        stays |= ~active

    def keep(old: Array, new: Array) -> Array:
        return jnp.where(jnp.expand_dims(stays, range(1, old.ndim)), old, new)

    return jax.tree.map(keep, states, moved), report


def _of_job(program: Program, job: Jobs) -> Program:
    """Return the program of one job, with its own numbers in the config and the problem."""
    problem = dataclasses.replace(
        program.problem, value_range=job.value_range, value_level=job.value_level
    )
    config = with_numbers(program.config, job.settings)
    return dataclasses.replace(program, problem=problem, config=config)


def _policies(state: State, job: Jobs, program: Program) -> dict[str, Policy]:
    program = _of_job(program, job)
    makers = {"actor": program.algorithm.policy, "proposal": program.algorithm.proposal}
    made = {
        name: make(acting(state), program.problem, program.config)
        for name, make in makers.items()
        if make is not None
    }
    transforms = program.problem.observation_transforms, program.problem.action_transforms
    scale, limits = job.observation_scale, program.problem.limits
    if scale is None and any(transforms):
        size = program.problem.observation_size
        scale = ObservationScale(jnp.zeros(size), jnp.ones(size))
    if scale is not None:
        made = {name: policy.on_raw(*scale, *transforms) for name, policy in made.items()}
    return {name: dataclasses.replace(policy, limits=limits) for name, policy in made.items()}


@functools.partial(jax.jit, static_argnames="program")
def policies(states: State, jobs: Jobs, *, program: Program) -> dict[str, Policy]:
    """Return the policies of all jobs: "actor" and, if the algorithm has one, "proposal"."""
    return over_jobs(lambda state, job: _policies(state, job, program), program)(states, jobs)


@functools.partial(jax.jit, static_argnames=("stream", "program", "evaluator", "episodes"))
def evaluate(
    states: State, jobs: Jobs, number: Int[Array, ""],
    *, stream: Stream, program: Program, evaluator: Evaluator, episodes: int,
) -> dict[str, Evaluation]:  # fmt: skip
    """Evaluate the policies of all jobs, on episodes that depend on (seed, stream, number)."""

    def one(state: State, job: Jobs, number: Array) -> dict[str, Evaluation]:
        key = stream_key(job.seed, stream, number)
        return evaluate_policies(_policies(state, job, program), evaluator, key, episodes)

    return over_jobs(one, program, number)(states, jobs)
