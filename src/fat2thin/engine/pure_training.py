"""Training as a pure function: without a run folder, to be jitted, vmapped or differentiated."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms.base import Algorithm, Batch, Problem, State
from fat2thin.engine.loop import initial_state, updates
from fat2thin.engine.program import largest_divisor


def train(
    key: Key[Array, ""],
    data: Batch,
    *,
    algorithm: Algorithm,
    problem: Problem,
    steps: int,
    config: Any = None,
    batch_size: int = 256,
    log_every: int = 250,
) -> tuple[State, dict[str, Float[Array, " chunks"]]]:
    """Learn from logged rows, and return the final state and the mean metrics of each chunk.

    `data` and `problem` come from `evaluation.batches.batch_of` and `problem_of`, `algorithm` from
    `algorithms.get`; `config` is the algorithm's default without one. A chunk has `log_every`
    updates, or the largest smaller number that divides `steps`. Numbers of the config may be
    traced (`algorithms.base.with_numbers`), so that `jax.vmap` makes a sweep and `jax.grad` a
    derivative (through several updates it is NaN where a gradient is exactly zero: Adam's
    square root has none there). With `key = random_streams.seed_key(3)` the draws are those of
    seed 3 of a run.
    """
    config = algorithm.config() if config is None else config
    data = jax.tree.map(jnp.asarray, data)
    advance = functools.partial(
        updates,
        key=key,
        rows=lambda places: jax.tree.map(lambda array: array[places], data),
        row_count=len(data.reward),
        batch_size=batch_size,
        algorithm=algorithm,
        problem=problem,
        config=config,
    )
    state = initial_state(key, algorithm, problem, config)
    if algorithm.preparation is not None:
        length = algorithm.preparation.steps(config)
        state, _ = advance(state, start=0, length=length, preparing=True)
    length = largest_divisor(steps, log_every)

    def chunk(state: State, start: Array) -> tuple[State, dict[str, Array]]:
        state, report = advance(state, start=start, length=length)
        return state, report.metrics

    return lax.scan(chunk, state, jnp.arange(0, steps, length, dtype=jnp.int32))
