"""The compiled part of a run: jobs, their states, and the programs that move them on.

A job is a seed and, in a pack of runs, the numbers of some settings. All jobs are one program. On a
CPU they run one after the other in it, so that a job's bits do not depend on the jobs beside it;
elsewhere they run side by side, and of several devices each has its share of them. Every random
number comes from the seed, the purpose and the number of the update, so neither the jobs beside it
nor where a run was cut matter either.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem, State, with_numbers
from fat2thin.engine.jobs import Data, Jobs
from fat2thin.evaluation.returns import Evaluation, Evaluator, evaluate_policies
from fat2thin.evaluation.signals import Watched, preference, signals
from fat2thin.policies.policy import Policy
from fat2thin.random_streams import Stream, stream_key

JOBS = "jobs"
"""The axis of the devices that share the jobs of a program."""
DRAWN_AHEAD = 2**21
"""About how many bytes of the log a job draws and gathers at once, for its next updates."""
COMPILER_OPTIONS = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
"""Kernels of an update that do not wait for each other may run at the same time on a GPU."""
STATE = "state"
"""What is named when every metric was finite and the parameters are not."""
NO_SCORE = float(np.finfo(np.float32).min)
"""Stands for the score of a state that no signal has judged yet: finite, as all of a state is."""


class Kept(NamedTuple):
    """A state that learns, and the one on the way that a signal of the held-out rows liked best.

    As long as no signal was a number, that is the newest.
    """

    learning: State
    best: State
    score: Float[Array, "*jobs"]
    step: Int[Array, "*jobs"]
    """After how many updates the best one was."""

    @property
    def unscored(self) -> Bool[Array, "*jobs"]:
        """Where no signal was a number so far, so that nothing could be chosen."""
        return self.score <= NO_SCORE


class Report(NamedTuple):
    """What a chunk says of each job."""

    metrics: dict[str, Float[Array, " jobs"]]
    """Means over the chunk's updates."""
    bad_update: Int[Array, " jobs"]
    """The first update (counted from 0) after which something was not finite, or -1."""
    bad_metric: Int[Array, " jobs"]
    """Which of the metrics that was, in sorted order; their number stands for the state."""
    signals: dict[str, Float[Array, " jobs"]] | None = None
    """What the held-out rows say after the chunk's last update, where there are any."""

    @property
    def row(self) -> dict[str, Any]:
        """Metrics and signals, a number a job."""
        return {**self.metrics, **(self.signals or {})}


@dataclasses.dataclass(frozen=True)
class Program:
    """What is compiled in: hashable, so that equal programs are compiled once."""

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


def _over_jobs(function: Callable, program: Program, *shared: Any) -> Callable:
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


def _config(program: Program, settings: Mapping[str, Array]) -> Any:
    return with_numbers(program.config, settings)


@functools.partial(jax.jit, static_argnames="program")
def init(jobs: Jobs, *, program: Program) -> State:
    """The states that all jobs start in."""

    def one(job: Jobs) -> State:
        key = stream_key(job.seed, Stream.INITIAL_STATE)
        state = program.algorithm.init(key, program.problem, _config(program, job.settings))
        # Whether a number was written as 0 or as an array must not matter to what is compiled.
        state = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), state)
        if program.select:
            return Kept(state, state, jnp.float32(NO_SCORE), jnp.int32(0))
        return state

    return _over_jobs(one, program)(jobs)


@functools.partial(
    jax.jit,
    static_argnames=("program", "length", "preparing"),
    donate_argnames="states",
    compiler_options=COMPILER_OPTIONS,
)
def chunk(
    states: State,
    data: Data,
    jobs: Jobs,
    start: Int[Array, ""],
    active: Bool[Array, " jobs"] | None = None,
    *,
    program: Program,
    length: int,
    preparing: bool = False,
) -> tuple[State, Report]:
    """Updates `start` to `start + length - 1` of every job, or of its preparation.

    Should anything not be finite in a job, its state comes back as it was given, and so does that
    of a job that is not active any more. The jobs beside it do not notice.
    """

    def one(state: State, job: Jobs, data: Data, start: Array) -> tuple[State, Report]:
        learning = state.learning if program.select else state
        learning, report = _updates(learning, data, job, start, program, length, preparing)
        if data.watched is not None and not preparing:
            end = start + length
            seen = _look(learning, data.watched, job, end, program)
            report = report._replace(signals=seen)
            if program.select:
                sound = report.bad_update < 0
                score = preference(seen, data.watched.noisy[job.log])
                return _choose(state, learning, score, end, sound), report
        return (state._replace(learning=learning) if program.select else learning), report

    moved, report = _over_jobs(one, program, data, start)(states, jobs)
    stays = report.bad_update >= 0
    if active is not None:
        stays |= ~active

    def keep(old: Array, new: Array) -> Array:
        return jnp.where(jnp.expand_dims(stays, range(1, old.ndim)), old, new)

    return jax.tree.map(keep, states, moved), report


def _updates(
    state: State,
    data: Data,
    job: Jobs,
    start: Array,
    program: Program,
    length: int,
    preparing: bool,
) -> tuple[State, Report]:
    config = _config(program, job.settings)
    step, draws, choices = _phase(program.algorithm, preparing)
    row_count = data.row_count[job.log]

    def draw(number: Array) -> tuple[Batch, Array]:
        place = jax.random.randint(
            stream_key(job.seed, choices, number), (program.batch_size,), 0, row_count
        )
        batch = jax.tree.map(lambda array: array[job.log, place], data.rows)
        return batch, stream_key(job.seed, draws, number)

    def update(state: State, drawn: tuple[Batch, Array]) -> tuple[State, _Watched]:
        state, metrics = step(state, *drawn, program.problem, config)
        return state, _watch(metrics, program.batch_size)

    def block(state: State, numbers: Int[Array, " block"]) -> tuple[State, _Block]:
        state, watched = lax.scan(update, state, jax.vmap(draw)(numbers))
        return state, _sum_up(watched, numbers[0])

    together = largest_divisor(length, max(1, DRAWN_AHEAD // batch_bytes(program)))
    numbers = start + jnp.arange(length, dtype=jnp.int32).reshape(-1, together)
    state, blocks = lax.scan(block, state, numbers)
    return state, _report(blocks, state, start, length)


def _look(
    state: State, watched: Watched, job: Jobs, step: Array, program: Program
) -> dict[str, Array]:
    """The signals of a job after a step."""
    rows = jax.tree.map(lambda array: array[job.log], watched)
    key = stream_key(job.seed, Stream.SIGNALS, step)
    config = _config(program, job.settings)
    return signals(program.algorithm, state, rows, key, program.problem, config)


def _choose(kept: Kept, learning: State, score: Array, step: Array, sound: Array) -> Kept:
    """The new state beside the best one so far, which it may be itself where it is sound."""
    better = sound & jnp.isfinite(score) & (score > kept.score)
    taken = better | (sound & kept.unscored)
    best = jax.tree.map(lambda new, old: jnp.where(taken, new, old), learning, kept.best)
    return Kept(
        learning, best, jnp.where(better, score, kept.score), jnp.where(taken, step, kept.step)
    )


def acting(state: State) -> State:
    """The state whose policy acts: the best on the way where it is kept, or that which learns."""
    return state.best if isinstance(state, Kept) else state


def batch_bytes(program: Program) -> int:
    """What the rows of one update take."""
    problem = program.problem
    return program.batch_size * 4 * (2 * problem.observation_size + problem.action_size + 2)


class _Watched(eqx.Module):
    """The metrics of an update or of several: first those of one number, then those of rows.

    On a GPU the mean over a batch is slow by itself and quick for many updates together.
    """

    numbers: Float[Array, "*updates numbers"]
    rows: Float[Array, "*updates others batch"]
    names: tuple[str, ...] = eqx.field(static=True)

    def means(self) -> Float[Array, "*updates metrics"]:
        """One number a metric, in sorted order of their names."""
        values = jnp.concatenate([self.numbers, jnp.mean(self.rows, axis=-1)], axis=-1)
        return values[..., np.argsort(self.names)]


def _watch(metrics: Metrics, batch_size: int) -> _Watched:
    values = {name: jnp.asarray(value, jnp.float32) for name, value in metrics.items()}
    for name, value in values.items():
        if value.shape not in ((), (batch_size,)):
            raise ValueError(
                f"the metric {name} of an update has shape {value.shape}: it must be one number, "
                f"or one a row of the batch, ({batch_size},)"
            )
    numbers = {name: value for name, value in values.items() if value.ndim == 0}
    rows = {name: value for name, value in values.items() if value.ndim > 0}
    return _Watched(
        numbers=jnp.stack([*numbers.values()]) if numbers else jnp.zeros(0),
        rows=jnp.stack([*rows.values()]) if rows else jnp.zeros((0, 1)),
        names=(*numbers, *rows),
    )


class _Block(eqx.Module):
    """What some updates in a row come to."""

    totals: Float[Array, "*blocks metrics"]
    bad_update: Int[Array, "*blocks"]
    """The first after which a metric was not finite, or -1."""
    bad_metric: Int[Array, "*blocks"]
    names: tuple[str, ...] = eqx.field(static=True)


def _sum_up(watched: _Watched, start: Array) -> _Block:
    means = watched.means()
    bad = ~jnp.isfinite(means)
    bad_updates = jnp.any(bad, axis=1)
    seen, first = jnp.any(bad_updates), jnp.argmax(bad_updates)
    return _Block(
        totals=jnp.sum(means, axis=0),
        bad_update=jnp.where(seen, start + first, -1),
        bad_metric=jnp.where(seen, jnp.argmax(bad[first]), -1),
        names=tuple(sorted(watched.names)),
    )


def _report(blocks: _Block, state: State, start: Array, length: int) -> Report:
    """Means over a chunk's updates, and the first that was not finite."""
    names = blocks.names
    first = jnp.argmax(blocks.bad_update >= 0)
    seen, lost = blocks.bad_update[first] >= 0, ~_all_finite(state)
    at_the_end = jnp.where(lost, start + length - 1, -1), jnp.where(lost, len(names), -1)
    return Report(
        metrics=dict(zip(names, jnp.sum(blocks.totals, axis=0) / length, strict=True)),
        bad_update=jnp.where(seen, blocks.bad_update[first], at_the_end[0]),
        bad_metric=jnp.where(seen, blocks.bad_metric[first], at_the_end[1]),
    )


def _phase(algorithm: Algorithm, preparing: bool) -> tuple[Callable, Stream, Stream]:
    """An update, where its random numbers come from, and where its choice of rows does."""
    if preparing:
        if algorithm.preparation is None:
            raise ValueError(f"{algorithm.name} has no preparation")
        return algorithm.preparation.update, Stream.PREPARATION, Stream.PREPARATION_BATCH
    return algorithm.update, Stream.UPDATE, Stream.BATCH


def _all_finite(state: State) -> Bool[Array, ""]:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def _policies(state: State, job: Jobs, program: Program) -> dict[str, Policy]:
    state, config = acting(state), _config(program, job.settings)
    made = {"actor": program.algorithm.policy(state, program.problem, config)}
    if program.algorithm.proposal is not None:
        made["proposal"] = program.algorithm.proposal(state, program.problem, config)
    if job.observation_scale is None:
        return made
    return {name: policy.on_raw(*job.observation_scale) for name, policy in made.items()}


@functools.partial(jax.jit, static_argnames="program")
def policies(states: State, jobs: Jobs, *, program: Program) -> dict[str, Policy]:
    """The policies of all jobs, "actor" and (where there is one) "proposal"."""
    return _over_jobs(lambda state, job: _policies(state, job, program), program)(states, jobs)


@functools.partial(jax.jit, static_argnames=("stream", "program", "evaluator", "episodes"))
def evaluate(
    states: State,
    jobs: Jobs,
    number: Int[Array, ""],
    *,
    stream: Stream,
    program: Program,
    evaluator: Evaluator,
    episodes: int,
) -> dict[str, Evaluation]:
    """Judge the policies of all jobs, on episodes that depend on (seed, stream, number) alone."""

    def one(state: State, job: Jobs, number: Array) -> dict[str, Evaluation]:
        key = stream_key(job.seed, stream, number)
        return evaluate_policies(_policies(state, job, program), evaluator, key, episodes)

    return _over_jobs(one, program, number)(states, jobs)


class TrainingDiverged(RuntimeError):
    """Something was not finite; says in which job, after which update, and what it was."""

    def __init__(
        self, *, seed: int, settings: dict[str, float], step: int, metric: str, last_good_step: int
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.step = step
        self.metric = metric
        self.last_good_step = last_good_step
        setting = "".join(f", {name}={value:g}" for name, value in settings.items())
        super().__init__(
            f"training diverged: {metric} is not finite at step {step} (seed {seed}{setting}). "
            f"The state after step {last_good_step} is kept. Try a smaller learning rate, a larger "
            "temperature, or rewards and observations of a smaller scale."
        )


def divergences(report: Report, jobs: Jobs, start: int) -> dict[int, TrainingDiverged]:
    """By job: what went wrong first in a chunk, where something did; the earliest first."""
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
