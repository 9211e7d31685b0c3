"""How long something takes, on machines that do other things as well."""

import statistics
import time
from collections.abc import Callable

REPETITIONS = 5
SECONDS = 1.0
"""About how long a repetition takes."""


def repeated(step: Callable[[int], None]) -> tuple[float, float]:
    """Median seconds of one step, and the longest repetition over the shortest.

    `step(count)` takes so many steps and waits for the last.
    """
    count, took = 1, 0.0
    while took < SECONDS / 10 and count < 2**20:
        count *= 2
        began = time.perf_counter()
        step(count)
        took = time.perf_counter() - began
    count = max(1, round(count * SECONDS / took))
    found = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        step(count)
        found.append((time.perf_counter() - began) / count)
    return statistics.median(found), max(found) / min(found)
