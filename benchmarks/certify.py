"""How close are certified bounds, and how fast, against interval arithmetic and one linear pass?

    python benchmarks/certify.py                         prints docs/results/certify.json
    python benchmarks/certify.py runs/t64 runs/t256 runs/robot        measures, and saves it

The runs are trained by (the last one needs the extra mujoco):

    fat2thin data make treatment/quadratic training.csv --seed 0
    fat2thin train fttpo training.csv --seeds 1 --standardise --out runs/t64 --set hidden=64,64
    fat2thin train fttpo training.csv --seeds 1 --standardise --out runs/t256 --set hidden=256,256
    fat2thin data make regenerated/halfcheetah-medium@20000
    fat2thin train fttpo regenerated/halfcheetah-medium@20000 --standardise --steps 5000 \
        --task none --out runs/robot --set hidden=256,256

A box is around a logged state, with the same half-width in standard deviations for every column;
the robot's actions take turns. A width is the distance of the bounds of the lowest and the highest
action as a multiple of the range of actions found by a search: 1 would be exact. The gap is the
larger distance of a bound from the worst action found, as a share of that range. Times are of one
action, both ends. The search stops after the goal's seconds of CPU time, so that the load of the
machine does not matter; with OPENBLAS_NUM_THREADS=1 that is one core. Threads that wait for each
other are slow on a machine that others use.
"""

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import fat2thin
from fat2thin import atomic_files, data
from fat2thin.policies.plain import plain_policy
from fat2thin.safety.arithmetic import ARITHMETICS
from fat2thin.safety.ends import BandEnd
from fat2thin.safety.search import Search
from fat2thin.tables import Table

RESULTS = Path("docs/results/certify.json")


@dataclasses.dataclass(frozen=True)
class Goal:
    """A network, a box around states, and the gap to reach in a time."""

    run: int
    network: str
    half_width: float
    gap: float
    seconds: float


GOALS = (
    Goal(0, "8 inputs, 64 × 64", 0.5, 0.05, 2.0),
    Goal(1, "8 inputs, 256 × 256", 0.2, 0.05, 4.0),
    Goal(1, "8 inputs, 256 × 256", 0.5, 0.10, 30.0),
    Goal(2, "17 inputs, 256 × 256", 0.2, 0.10, 60.0),
)
"""What to reach; set before anything was measured."""


def interval_ends(end: BandEnd, low: np.ndarray, high: np.ndarray) -> float:
    """Return the bound of an end by interval arithmetic alone."""
    member, (head,) = end.plain.members[0], end.heads[0].values()
    low, high = ((one - member.mean) / member.scale for one in (low, high))
    for layer in (*end.trunks[0].layers, head.affine):
        least = layer.positive @ low + layer.negative @ high + layer.bias
        most = layer.positive @ high + layer.negative @ low + layer.bias
        low, high = np.maximum(least, 0.0), np.maximum(most, 0.0)
    centre = np.tanh(most[0] if end.side > 0 else -least[0])
    width = np.exp(np.clip(most[1] + head.offset, head.least, head.most))
    box = end.box
    reached = min(max(centre + width, 2.0 * width - 1.0), 1.0)
    return end.side * (box[0] + box[1]) / 2.0 + (box[1] - box[0]) / 2.0 * reached


def measure(goal: Goal, run: fat2thin.training.Run, number: int) -> dict[str, float]:
    """Return widths, gaps and times for one state and action."""
    plain, rng = plain_policy(run.policy()), np.random.default_rng(number)
    seen = np.asarray(data.load(run.spec.dataset).observation, np.float64)
    state = seen[rng.integers(len(seen))]
    half = goal.half_width * np.asarray(plain.members[0].scale, np.float64)
    arithmetic, action = ARITHMETICS["float32"], number % len(plain.low)
    low, high = arithmetic.cast(state - half, state + half)
    began, cpu = time.perf_counter(), time.process_time()
    ends = [BandEnd(plain, action, side, arithmetic) for side in (-1, 1)]
    searches = [Search(end, low, high, (False,)) for end in ends]
    found = sum(search.worst.value for search in searches)
    for search in searches:
        search.start()
    linear, pending = [search.bound for search in searches], [*searches]
    for _ in range(2):  # an end that closes early leaves its time to the other
        for place, search in enumerate(pending):
            left = cpu + goal.seconds - time.process_time()
            stop = time.process_time() + left / (len(pending) - place)
            while time.process_time() < stop:
                deadline = time.monotonic() + 0.2
                if search.run(lambda bound, worst: bound - worst <= goal.gap * found, deadline):
                    break
        pending = [one for one in pending if one.bound - one.worst.value > goal.gap * found]
    seconds = time.perf_counter() - began
    found = sum(search.worst.value for search in searches)
    return {
        "state": number, "action": action, "range": found,
        "interval": sum(interval_ends(end, low, high) for end in ends) / found,
        "linear": sum(linear) / found,
        "split": sum(search.bound for search in searches) / found,
        "gap": max(search.bound - search.worst.value for search in searches) / found,
        "boxes": sum(search.count for search in searches),
        "seconds": seconds, "cpu_seconds": time.process_time() - cpu,
    }  # fmt: skip


def table(results: list[dict]) -> Table:
    """Return a row per goal: medians over states, and how many reached the gap in time."""
    rows = []
    for one in results:
        goal, measured = Goal(**one["goal"]), one["measured"]
        middle = {name: float(np.median([row[name] for row in measured])) for name in measured[0]}
        reached = sum(row["gap"] <= goal.gap for row in measured)
        rows.append(
            {
                "network": goal.network, "half_width": goal.half_width,
                "interval": middle["interval"], "linear": middle["linear"],
                "split": middle["split"], "gap_percent": 100.0 * middle["gap"],
                "seconds": middle["seconds"], "cpu_seconds": middle["cpu_seconds"],
                "goal": f"{100 * goal.gap:.0f} % in {goal.seconds:.0f} s",
                "reached": f"{reached} of {len(measured)}",
            }
        )  # fmt: skip
    notes = ("medians; widths as multiples of the range found",)
    return Table("certified bounds: width, gap and time", tuple(rows), notes)


def main() -> None:
    """Measure if there are runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="three run folders")
    parser.add_argument("--states", type=int, default=6, help="boxes per goal")
    parser.add_argument("--goals", type=int, nargs="*", help="numbers of goals, from 0; all else")
    parser.add_argument(
        "--seconds", type=float, help="CPU seconds per box, if less than the goal's"
    )
    given = parser.parse_args()
    if given.runs:
        runs = [fat2thin.load(folder) for folder in given.runs]
        results: list[dict[str, Any]] = []
        for goal in GOALS if given.goals is None else map(GOALS.__getitem__, given.goals):
            hurried = dataclasses.replace(goal, seconds=given.seconds or goal.seconds)
            measured = [measure(hurried, runs[goal.run], one) for one in range(given.states)]
            results.append({"goal": dataclasses.asdict(goal), "measured": measured})
            print(table(results[-1:]), flush=True)
        threads = os.environ.get("OPENBLAS_NUM_THREADS", "all")
        if given.goals is not None and RESULTS.exists():
            new = [one["goal"] for one in results]
            old = json.loads(RESULTS.read_text())["results"]
            results = [one for one in old if one["goal"] not in new] + results
            order = [dataclasses.asdict(goal) for goal in GOALS]
            results.sort(key=lambda one: order.index(one["goal"]))
        about = {"processors": os.cpu_count(), "threads": threads, "results": results}
        atomic_files.write(RESULTS, json.dumps(about, indent=1).encode() + b"\n")
    print(table(json.loads(RESULTS.read_text())["results"]))


if __name__ == "__main__":
    main()
