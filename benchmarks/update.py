"""Time of one update, of every algorithm and for several seeds at once, on whatever device.

    python benchmarks/update.py                              a table, everything
    python benchmarks/update.py --algorithms fttpo iql --seeds 1 10 --out update.json

Sizes are those of a MuJoCo robot: 17 observations, 6 actions, networks of 256 × 256, batches of
256. An update is timed inside the compiled loop that training uses: rows are drawn and gathered,
metrics kept, and the check that all is finite made. What is compiled is timed apart.
Floating-point operations and bytes are XLA's own count of one update, and the share is of the rate
that a large matrix product reaches here in the same run. With PyTorch installed, a twin of FtTPO's
update runs beside it: eager, compiled, and on a GPU as a CUDA graph.
"""

import argparse
import dataclasses
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fat2thin
from fat2thin import algorithms
from fat2thin.algorithms.base import Problem
from fat2thin.data import Dataset
from fat2thin.training import loop
from fat2thin.training.jobs import Data, Jobs, on_device
from fat2thin.training.loop import Program
from timing import repeated

OBSERVATION, ACTION, ROWS = 17, 6, 100_000
CLOSED_FORM = "fttpo, closed form"


@dataclasses.dataclass(frozen=True)
class Timing:
    """One line of the table."""

    name: str
    seeds: int
    microseconds: float
    """An update of all seeds together, the median of the repetitions."""
    spread: float
    """Largest over smallest repetition."""
    compile_seconds: float
    flops: float | None = None
    bytes: float | None = None
    share: float | None = None
    """Of the rate of a large matrix product."""


def log(rows: int = ROWS) -> Dataset:
    """Numbers of a robot's widths."""
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(rows, OBSERVATION)).astype(np.float32)
    return Dataset(
        name="benchmark",
        observation=observation,
        action=generator.uniform(-1, 1, (rows, ACTION)).astype(np.float32),
        reward=generator.normal(size=rows).astype(np.float32),
        next_observation=np.roll(observation, -1, axis=0),
        continuation=np.ones(rows, np.float32),
        episode_start=np.arange(0, rows, 1000),
        action_low=(-1.0,) * ACTION,
        action_high=(1.0,) * ACTION,
        discount=0.99,
    )


def methods(asked: Sequence[str]) -> dict[str, Any]:
    """Every algorithm with its defaults, and FtTPO with the closed-form actor."""
    made = {name: algorithms.get(name).config() for name in algorithms.names()}
    made[CLOSED_FORM] = algorithms.get("fttpo").config(actor_loss="closed_form")
    return {name: made[name] for name in sorted(made) if not asked or name in asked}


def make_program(name: str, config: Any, problem: Problem) -> Program:
    algorithm = algorithms.get(name.partition(",")[0])
    return Program(algorithm, problem, config, 256, loop.sequential_here())


def make_jobs(seeds: int) -> Jobs:
    return Jobs(
        seed=jnp.arange(seeds), run=jnp.zeros(seeds, jnp.int32), log=jnp.zeros(seeds, jnp.int32),
        settings={},
    )  # fmt: skip


def cost(program: Program, jobs: Jobs, data: Data) -> tuple[float | None, float | None]:
    """Floating-point operations and bytes of one update of all jobs, by XLA's count."""

    def once(states: Any) -> Any:
        return loop.chunk(states, data, jobs, jnp.int32(0), program=program, length=1)

    # Side by side: one after the other they are a loop, whose body is counted once.
    program = dataclasses.replace(program, sequential=False)
    states = loop.init(jobs, program=program)
    counted = jax.jit(once).lower(states).compile().cost_analysis() or {}
    return counted.get("flops"), counted.get("bytes accessed")


def time_ours(name: str, config: Any, seeds: int, dataset: Dataset, peak: float) -> Timing:
    problem = loop.problem_of(dataset)
    program, jobs, data = (
        make_program(name, config, problem),
        make_jobs(seeds),
        on_device([dataset]),
    )
    states = loop.init(jobs, program=program)
    length = 50 if program.sequential else 1000
    began = time.perf_counter()
    states, _ = jax.block_until_ready(
        loop.chunk(states, data, jobs, jnp.int32(0), program=program, length=length)
    )
    first = time.perf_counter() - began

    def step(chunks: int) -> None:
        nonlocal states
        for _ in range(chunks):
            states, report = loop.chunk(
                states, data, jobs, jnp.int32(0), program=program, length=length
            )
        jax.block_until_ready(report)

    chunk_seconds, spread = repeated(step)
    update = chunk_seconds / length
    flops, size = cost(program, jobs, data)
    return Timing(
        name, seeds, 1e6 * update, spread, first - chunk_seconds, flops, size,
        None if flops is None else flops / update / peak,
    )  # fmt: skip


def matrix_rate(size: int) -> float:
    """Operations a second of a large product of single-precision matrices."""
    matrix = jnp.ones((size, size))
    product = jax.jit(lambda x: x @ x / size)
    jax.block_until_ready(product(matrix))
    best = 0.0
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(3):
            matrix = product(matrix)
        jax.block_until_ready(matrix)
        best = max(best, 3 * 2.0 * size**3 / (time.perf_counter() - began))
    return best


def table(timings: Sequence[Timing], peak: float) -> str:
    device = jax.devices()[0]
    lines = [
        f"{device.platform}: {device.device_kind}, JAX {jax.__version__}; "
        f"matrix product {peak / 1e12:.2f} TFLOP/s",
        "",
        "| update | seeds | µs | spread | µs a seed | MFLOP | MB | of matrix rate | compile, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in timings:
        flops = "–" if one.flops is None else f"{one.flops / 1e6:,.0f}"
        size = "–" if one.bytes is None else f"{one.bytes / 1e6:,.0f}"
        share = "–" if one.share is None else f"{100 * one.share:.1f} %"
        lines.append(
            f"| {one.name} | {one.seeds} | {one.microseconds:,.0f} | {one.spread:.2f} "
            f"| {one.microseconds / one.seeds:,.0f} | {flops} | {size} | {share} "
            f"| {one.compile_seconds:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="*", default=(), help="these alone")
    parser.add_argument("--seeds", nargs="*", type=int, default=(1, 10, 50))
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch's twin out")
    parser.add_argument("--out", type=Path, help="JSON file")
    arguments = parser.parse_args()
    peak = matrix_rate(1024 if loop.sequential_here() else 8192)
    dataset, timings = log(), []
    for name, config in methods(arguments.algorithms).items():
        for seeds in arguments.seeds:
            timings.append(time_ours(name, config, seeds, dataset, peak))
            print(table(timings[-1:], peak).splitlines()[-1], flush=True)
    if importlib.util.find_spec("torch") and not arguments.no_torch:
        import torch_twin

        for name, seconds, spread, first in torch_twin.measure(dataset):
            timings.append(Timing(name, 1, 1e6 * seconds, spread, first))
    print("\n" + table(timings, peak))
    if arguments.out:
        content = {
            "versions": {"fat2thin": fat2thin.__version__, "jax": jax.__version__},
            "device": jax.devices()[0].device_kind,
            "matrix_rate": peak,
            "timings": [dataclasses.asdict(one) for one in timings],
        }
        arguments.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
