"""Measure the time of one update of every algorithm, for several numbers of seeds.

    python benchmarks/update.py                              all algorithms, as a table
    python benchmarks/update.py --algorithms fttpo iql --seeds 1 10 --out update.json
    python benchmarks/update.py --beside ../before           compare with another checkout
    python benchmarks/update.py --algorithms iql "iql, bfloat16"     with products in bfloat16

Sizes are those of a MuJoCo robot: 17 observations, 6 actions, networks of 256 × 256, batches of
256. An update is timed inside the compiled training loop, including drawing and gathering rows,
recording metrics and checking for non-finite values. Compilation is timed separately. FLOPs and
bytes are XLA's count for one update of one seed, times the number of seeds. The share is relative
to the rate of a large matrix product in the same run.

If PyTorch is installed, FtTPO is also timed interleaved with a PyTorch version of its update:
eager, compiled, and on a GPU as a CUDA graph. Compare these rows only with each other.

On a CPU, several seeds are timed twice: one seed at a time on all cores, and with one
single-threaded device per core, each with a share of the seeds.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fat2thin
from fat2thin import algorithms
from fat2thin.algorithms.base import Problem
from fat2thin.data import Dataset
from fat2thin.engine import loop
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import on_device
from fat2thin.engine.program import Jobs, Program, sequential_here
from fat2thin.evaluation.batches import problem_of
from timing import repeated, side_by_side

OBSERVATION, ACTION, ROWS = 17, 6, 100_000
ROUNDS = 2
"""How often each of two checkouts is timed."""
CLOSED_FORM = "fttpo, closed form"
OURS = "fttpo, interleaved"
BFLOAT16 = ", bfloat16"


@dataclasses.dataclass(frozen=True)
class Timing:
    """One row of the table."""

    name: str
    seeds: int
    microseconds: float
    """Median time of an update of all seeds together."""
    spread: float
    """Ratio of the longest to the shortest repetition."""
    compile_seconds: float
    flops: float | None = None
    bytes: float | None = None

    def share(self, peak: float) -> float | None:
        """Return its FLOP rate relative to that of a large matrix product."""
        return self.flops and 1e6 * self.flops / self.microseconds / peak


def log(rows: int = ROWS) -> Dataset:
    """Return a synthetic log with the sizes of a robot."""
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
    """Return the config of every algorithm, and of FtTPO with the closed-form actor.

    With ", bfloat16" at the end of a name that is asked for, products are in bfloat16.
    """
    made = {name: algorithms.get(name).config() for name in algorithms.names()}
    made[CLOSED_FORM] = algorithms.get("fttpo").config(actor_loss="closed_form")
    made |= {
        name: made[name.removesuffix(BFLOAT16)]
        for name in asked
        if name.endswith(BFLOAT16) and name.removesuffix(BFLOAT16) in made
    }
    if unknown := set(asked) - set(made):
        raise SystemExit(f"unknown algorithms {sorted(unknown)}; choose from {sorted(made)}")
    return {name: made[name] for name in sorted(made) if not asked or name in asked}


def make_program(name: str, config: Any, problem: Problem) -> Program:
    algorithm = algorithms.get(name.partition(",")[0])
    precision = "bfloat16" if name.endswith(BFLOAT16) else "float32"
    return Program(algorithm, problem, config, 256, sequential_here(), precision=precision)


def make_jobs(seeds: int) -> Jobs:
    return Jobs(
        seed=jnp.arange(seeds), run=jnp.zeros(seeds, jnp.int32), log=jnp.zeros(seeds, jnp.int32),
        settings={},
    )  # fmt: skip


def cost(program: Program, dataset: Dataset) -> tuple[float | None, float | None]:
    """Return FLOPs and bytes of one update of one seed, as counted by XLA."""
    # One update without a loop over jobs, because XLA counts the body of a loop once.
    jobs, program = make_jobs(1), dataclasses.replace(program, sequential=False)
    states = loop.init(jobs, program=program)
    once = loop.chunk.lower(
        states, on_device([dataset]), jobs, jnp.int32(0), program=program, length=1
    )
    counted = once.compile().cost_analysis() or {}
    return counted.get("flops"), counted.get("bytes accessed")


def time_seeds(name: str, program: Program, seeds: int, dataset: Dataset, seconds: float) -> Timing:
    """Time the update of several seeds on all devices."""
    step, length, first = make_step(program, seeds, dataset)
    of_chunk, spread = repeated(step, seconds)
    return Timing(name, seeds, 1e6 * of_chunk / length, spread, first - of_chunk)


def make_step(
    program: Program, seeds: int, dataset: Dataset
) -> tuple[Callable[[int], None], int, float]:
    """Return a function that runs chunks, the updates per chunk, and the seconds of the first."""
    scheduler = JobScheduler(program, make_jobs(seeds))
    data, states = scheduler.replicated(on_device([dataset])), scheduler.init()
    length = 50 if program.sequential else 1000

    def step(chunks: int) -> None:
        nonlocal states
        for _ in range(chunks):
            states, report = scheduler.chunk(states, data, 0, length)
        jax.block_until_ready(report)

    began = time.perf_counter()
    step(1)
    return step, length, time.perf_counter() - began


def time_torch(dataset: Dataset, seconds: float) -> Iterator[Timing]:
    """Time FtTPO interleaved with its PyTorch versions."""
    import torch_twin

    program = make_program("fttpo", algorithms.get("fttpo").config(), problem_of(dataset))
    ours, length, first = make_step(program, 1, dataset)
    twins = list(torch_twin.steps(dataset))
    found = side_by_side({OURS: ours} | {name: step for name, step, _ in twins}, seconds)
    ready = {OURS: first} | {name: took for name, _, took in twins}
    for name, (of_step, spread) in found.items():
        updates = length if name == OURS else 1
        yield Timing(name, 1, 1e6 * of_step / updates, spread, ready[name])


def time_method(
    name: str, config: Any, seeds: Sequence[int], dataset: Dataset, seconds: float
) -> Iterator[Timing]:
    """Time the update of a method for each number of seeds."""
    program = make_program(name, config, problem_of(dataset))
    flops, size = cost(program, dataset)
    for count in seeds:
        timing = time_seeds(name, program, count, dataset, seconds)
        yield dataclasses.replace(
            timing, flops=flops and count * flops, bytes=size and count * size
        )


def one_device_per_core(name: str, seeds: int, seconds: float) -> Timing:
    """Time the update in a new process with one single-threaded CPU device per core."""
    flags = f"--xla_force_host_platform_device_count={os.cpu_count()}"
    environment = os.environ | {"XLA_FLAGS": f"{flags} --xla_cpu_multi_thread_eigen=false"}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        options = ["--algorithms", name, "--seeds", str(seeds), "--seconds", str(seconds)]
        subprocess.run(
            [sys.executable, __file__, *options, "--no-torch", "--no-cores", "--out", found],
            env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (timing,) = json.loads(found.read_text())["timings"]
    return dataclasses.replace(Timing(**timing), name=f"{name}, one device per core")


def compare_checkouts(there: Path, options: Sequence[str]) -> str:
    """Return a table of this checkout and another: the shortest times, measured alternately."""
    shortest: list[dict[tuple[str, int], float]] = [{}, {}]
    trees = (Path(__file__).resolve().parents[1], there.resolve())
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        for tree, times in [*zip(trees, shortest, strict=True)] * ROUNDS:
            command = [sys.executable, str(tree / "benchmarks" / "update.py"), *options]
            subprocess.run(
                [*command, "--no-torch", "--no-cores", "--out", found],
                env=os.environ | {"PYTHONPATH": str(tree / "src")}, check=True,
            )  # fmt: skip
            for one in json.loads(found.read_text())["timings"]:
                key = one["name"], one["seeds"]
                times[key] = min(times.get(key, one["microseconds"]), one["microseconds"])
    here, other = shortest
    rows = [
        f"| {name} | {seeds} | {here[name, seeds]:,.0f} | {other[name, seeds]:,.0f} "
        f"| {here[name, seeds] / other[name, seeds]:.2f} |"
        for name, seeds in here
        if (name, seeds) in other
    ]
    head = f"| update | seeds | µs here | µs in {there.name} | ratio |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def matrix_rate(size: int) -> float:
    """Return the FLOP/s of a large product of float32 matrices."""
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
        "| update | seeds | µs | spread | µs per seed | MFLOP | MB | share | compile, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in timings:
        flops = "–" if one.flops is None else f"{one.flops / 1e6:,.0f}"
        size = "–" if one.bytes is None else f"{one.bytes / 1e6:,.0f}"
        reached = one.share(peak)
        share = "–" if reached is None else f"{100 * reached:.1f} %"
        lines.append(
            f"| {one.name} | {one.seeds} | {one.microseconds:,.0f} | {one.spread:.2f} "
            f"| {one.microseconds / one.seeds:,.0f} | {flops} | {size} | {share} "
            f"| {one.compile_seconds:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="*", default=(), help="time only these")
    parser.add_argument("--seeds", nargs="*", type=int, default=(1, 10, 50))
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one repetition")
    parser.add_argument("--no-torch", action="store_true", help="skip PyTorch")
    parser.add_argument("--no-cores", action="store_true", help="skip one device per core")
    parser.add_argument("--beside", type=Path, help="compare with this checkout")
    parser.add_argument("--out", type=Path, help="JSON file, written after each row")
    arguments = parser.parse_args()
    if arguments.beside:
        options = ["--seeds", *map(str, arguments.seeds), "--seconds", str(arguments.seconds)]
        options += ["--algorithms", *arguments.algorithms] if arguments.algorithms else []
        print("\n" + compare_checkouts(arguments.beside, options))
        return
    peak = matrix_rate(1024 if sequential_here() else 8192)
    timings: list[Timing] = []
    for timing in all_timings(arguments):
        timings.append(timing)
        print(table([timing], peak).splitlines()[-1], flush=True)
        if arguments.out:
            write(arguments.out, timings, peak)
    print("\n" + table(timings, peak))


def all_timings(arguments: argparse.Namespace) -> Iterator[Timing]:
    """Yield the timings of all methods, then of PyTorch if it is installed."""
    dataset, seconds = log(), arguments.seconds
    cores = sequential_here() and not arguments.no_cores
    for name, config in methods(arguments.algorithms).items():
        yield from time_method(name, config, arguments.seeds, dataset, seconds)
        for seeds in arguments.seeds:
            if cores and seeds > 1:
                yield one_device_per_core(name, seeds, seconds)
    if importlib.util.find_spec("torch") and not arguments.no_torch:
        yield from time_torch(dataset, seconds)


def write(path: Path, timings: Sequence[Timing], peak: float) -> None:
    content = {
        "versions": {"fat2thin": fat2thin.__version__, "jax": jax.__version__},
        "device": jax.devices()[0].device_kind,
        "matrix_rate": peak,
        "timings": [dataclasses.asdict(one) for one in timings],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
