"""How long something takes, on machines that do other things as well."""

import statistics
import time
from collections.abc import Callable, Mapping

REPETITIONS = 5
SECONDS = 1.0
"""About how long a repetition takes, unless told otherwise."""


def repeated(step: Callable[[int], None], seconds: float = SECONDS) -> tuple[float, float]:
    """Median seconds of one step, and the longest repetition over the shortest.

    `step(count)` takes so many steps and waits for the last; a repetition takes about `seconds`.
    """
    return side_by_side({"": step}, seconds)[""]


def side_by_side(
    steps: Mapping[str, Callable[[int], None]], seconds: float = SECONDS
) -> dict[str, tuple[float, float]]:
    """The same of several, in turn, so that what slows the machine slows all of them."""
    counts = {name: _count(step, seconds) for name, step in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(REPETITIONS):
        for name, step in steps.items():
            began = time.perf_counter()
            step(counts[name])
            found[name].append((time.perf_counter() - began) / counts[name])
    return {name: (statistics.median(each), max(each) / min(each)) for name, each in found.items()}


def _count(step: Callable[[int], None], seconds: float) -> int:
    """How many steps take about so long."""
    count, took = 1, 0.0
    while took < seconds / 10 and count < 2**20:
        count *= 2
        began = time.perf_counter()
        step(count)
        took = time.perf_counter() - began
    return max(1, round(count * seconds / took))
