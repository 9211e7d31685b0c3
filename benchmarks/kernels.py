"""Count the GPU kernels of one update and their time.

    python benchmarks/kernels.py --algorithm "fttpo, closed form" --seeds 10

The numbers come from JAX's profiler over one chunk of the compiled training loop. Kernels that run
concurrently are each counted with their own time, so the sum may exceed the time of an update.
Profiling makes all kernels a little slower.
"""

import argparse
import collections
import tempfile
from pathlib import Path

import jax
from jax.profiler import ProfileData

import update
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import on_device
from fat2thin.evaluation.batches import problem_of

LENGTH = 1000
KINDS = {
    "gemm": "matrix products",
    "reduce": "reductions",
    "transpose": "transposes",
    "memcpy": "copies",
}
"""Kind of a kernel by a substring of its name; the first match counts."""
OTHERS = "elementwise, including Adam"


def kernels(folder: Path) -> list[tuple[str, int]]:
    """Return name and nanoseconds of every kernel in a profile."""
    (path,) = folder.rglob("*.xplane.pb")
    return [
        (event.name, event.duration_ns)
        for plane in ProfileData.from_file(str(path)).planes
        if "GPU" in plane.name
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def kind(name: str) -> str:
    return next((words for part, words in KINDS.items() if part in name.lower()), OTHERS)


def table(found: list[tuple[str, int]], longest: int) -> str:
    """Return a table of the kernels of one update: by kind, then the longest by name."""
    counts: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for name, nanoseconds in found:
        for label in ("all", kind(name), f"`{name[:60]}`"):
            counts[label] += 1
            times[label] += nanoseconds
    kinds = ["all", *KINDS.values(), OTHERS]
    names = [name for name, _ in times.most_common() if name not in kinds][:longest]
    lines = ["| kernels | per update | µs | share |", "|---|---|---|---|"]
    for label in [*kinds, *names]:
        share = 100 * times[label] / times["all"]
        lines.append(
            f"| {label} | {counts[label] / LENGTH:.1f} | {times[label] / LENGTH / 1e3:.1f} "
            f"| {share:.0f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="fttpo", help="a name in the table of update.py")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--longest", type=int, default=15, help="kernels to list by name")
    options = parser.parse_args()
    if jax.default_backend() != "gpu":
        parser.error("no GPU found: kernels can be counted on a GPU only")
    dataset, config = update.log(), update.methods([options.algorithm])[options.algorithm]
    program = update.make_program(options.algorithm, config, problem_of(dataset))
    scheduler, data = JobScheduler(program, update.make_jobs(options.seeds)), on_device([dataset])
    states, _ = scheduler.chunk(scheduler.init(), data, 0, LENGTH)
    jax.block_until_ready(states)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(scheduler.chunk(states, data, LENGTH, LENGTH))
        print(table(kernels(Path(folder)), options.longest))


if __name__ == "__main__":
    main()
