"""Measure the speed of the q-Gaussian compared with NumPyro's Normal and StudentT.

Each task (n samples; n log densities) is compiled first, and the compile time is reported
separately. The repetitions of all distributions are interleaved, so that other load on the machine
affects them equally. The table has medians and the ratio to StudentT.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro
from jaxtyping import Array
from numpyro.distributions import Distribution, Normal, StudentT
from rich.console import Console
from rich.table import Table

from fat2thin.distributions import QGaussian

REFERENCE = "StudentT, 3 degrees of freedom"


@dataclass(frozen=True)
class Contestant:
    """A distribution made from traced arrays, so that its parameters are not constant-folded."""

    name: str
    make: Callable[[Array, Array, Array], Distribution]
    index: float = 0.0


@dataclass(frozen=True)
class Timing:
    name: str
    task: str
    compile_milliseconds: float
    median_milliseconds: float
    ratio_to_student_t: float


def q_gaussian(index: float) -> Contestant:
    """Return the q-Gaussian with an index known at compile time."""
    return Contestant(
        f"QGaussian, q = {index:g}",
        lambda loc, scale, _: QGaussian(loc, scale, index, validate_args=False),
    )


def contestants() -> list[Contestant]:
    """Return the two references, the q-Gaussian at fixed indices, and with a traced index."""
    return [
        Contestant("Normal", lambda loc, scale, _: Normal(loc, scale, validate_args=False)),
        Contestant(REFERENCE, lambda loc, scale, _: StudentT(3.0, loc, scale, validate_args=False)),
        *(q_gaussian(index) for index in (0.0, 0.5, 1.0, 1.5, 2.0)),
        Contestant(
            "QGaussian, q traced (1.5)",
            lambda loc, scale, index: QGaussian(loc, scale, index, validate_args=False),
            index=1.5,
        ),
    ]


def compiled_task(
    contestant: Contestant, task: str, count: int
) -> tuple[Callable[[], Array], float]:
    """Return the task as a call without arguments, and its compile time in seconds."""
    loc, scale, index = jnp.asarray(0.1), jnp.asarray(1.3), jnp.asarray(contestant.index)
    key = jax.random.key(0)
    # Inside the support of every distribution, so that none takes a shortcut.
    values = jax.random.uniform(key, (count,), minval=-1.0, maxval=1.0)

    def sample(loc: Array, scale: Array, index: Array, key: Array) -> Array:
        return contestant.make(loc, scale, index).sample(key, (count,))

    def log_prob(loc: Array, scale: Array, index: Array, values: Array) -> Array:
        return contestant.make(loc, scale, index).log_prob(values)

    function, last = (sample, key) if task == "sample" else (log_prob, values)
    start = time.perf_counter()
    compiled = jax.jit(function).lower(loc, scale, index, last).compile()
    seconds = time.perf_counter() - start
    return lambda: compiled(loc, scale, index, last), seconds


def measure(count: int, repetitions: int) -> list[Timing]:
    """Time every distribution on both tasks."""
    timings = []
    for task in ("sample", "log_prob"):
        tasks = {c.name: compiled_task(c, task, count) for c in contestants()}
        seconds: dict[str, list[float]] = {name: [] for name in tasks}
        for run, _ in tasks.values():
            run().block_until_ready()
        for _ in range(repetitions):
            for name, (run, _) in tasks.items():
                start = time.perf_counter()
                run().block_until_ready()
                seconds[name].append(time.perf_counter() - start)
        reference = statistics.median(seconds[REFERENCE])
        for name, (_, compile_seconds) in tasks.items():
            median = statistics.median(seconds[name])
            timings.append(
                Timing(name, task, 1e3 * compile_seconds, 1e3 * median, median / reference)
            )
    return timings


def show(timings: list[Timing], count: int, repetitions: int) -> None:
    """Print one table per task."""
    for task in ("sample", "log_prob"):
        table = Table(
            title=f"{task}: {count:,} values, median of {repetitions}, {jax.devices()[0]}"
        )
        table.add_column("distribution")
        for heading in ("compile, ms", "run, ms", "ratio to StudentT"):
            table.add_column(heading, justify="right")
        for timing in timings:
            if timing.task == task:
                table.add_row(
                    timing.name,
                    f"{timing.compile_milliseconds:.0f}",
                    f"{timing.median_milliseconds:.3f}",
                    f"{timing.ratio_to_student_t:.2f}",
                )
        Console(width=100).print(table)


def main(count: int = 1_000_000, repetitions: int = 15, json_file: Path | None = None) -> None:
    """Measure and print the tables, and write the numbers to a JSON file if given.

    Args:
        count: Values per call.
        repetitions: Timed calls per distribution and task.
        json_file: JSON file for the numbers.
    """
    timings = measure(count, repetitions)
    show(timings, count, repetitions)
    if json_file is not None:
        result = {
            "device": str(jax.devices()[0]),
            "jax": jax.__version__,
            "count": count,
            "repetitions": repetitions,
            "timings": [asdict(timing) for timing in timings],
        }
        json_file.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
