"""Timing functions for machines with other load."""

import statistics
import time
from collections.abc import Callable, Mapping

REPETITIONS = 5
SECONDS = 1.0
"""Approximate length of a repetition by default."""


def repeated(step: Callable[[int], None], seconds: float = SECONDS) -> tuple[float, float]:
    """Return the median seconds of one step, and the ratio of longest to shortest repetition.

    `step(count)` takes `count` steps and waits for the last. A repetition takes about `seconds`.
    """
    return side_by_side({"": step}, seconds)[""]


def side_by_side(
    steps: Mapping[str, Callable[[int], None]], seconds: float = SECONDS
) -> dict[str, tuple[float, float]]:
    """Return the same for several functions, interleaved so that other load affects all."""
    counts = {name: _count(step, seconds) for name, step in steps.items()}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(REPETITIONS):
        for name, step in steps.items():
            began = time.perf_counter()
            step(counts[name])
            found[name].append((time.perf_counter() - began) / counts[name])
    return {name: (statistics.median(each), max(each) / min(each)) for name, each in found.items()}


def _count(step: Callable[[int], None], seconds: float) -> int:
    """Return how many steps take about `seconds`."""
    count, took = 1, 0.0
    while took < seconds / 10 and count < 2**20:
        count *= 2
        began = time.perf_counter()
        step(count)
        took = time.perf_counter() - began
    return max(1, round(count * seconds / took))
