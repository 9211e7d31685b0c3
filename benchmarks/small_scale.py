"""How far FtTPO is ahead at small scale, seed by seed: the differences quoted in docs/results.md.

    python benchmarks/small_scale.py

It reads docs/results/reproduction_small.json, the mean returns of the runs of
`fat2thin reproduce all --scale small`. Brackets are 95 % bootstrap intervals.
"""

import json
from pathlib import Path

import numpy as np

from fat2thin.data.formats.d4rl import normalised_score, robot
from fat2thin.evaluation.statistics import Interval, mean, paired_difference, stratified_interval

RESULTS = Path("docs/results/reproduction_small.json")
TREATMENT = ("treatment-quadratic", "treatment-cubic")
ROBOTS = tuple(
    f"{name}-{level}"
    for name in ("halfcheetah", "hopper", "walker2d")
    for level in ("medium-expert", "medium-replay", "medium")
)


class Small:
    """Final scores a seed: returns on the treatment task, D4RL's scores on robots."""

    def __init__(self) -> None:
        self._runs = json.loads(RESULTS.read_text())["runs"]

    def methods(self, dataset: str) -> list[str]:
        return [name.split("/")[2] for name in self._runs if name.split("/")[1] == dataset]

    def final(self, dataset: str, method: str, policy: str = "actor_sampled") -> np.ndarray:
        run = self._runs[f"curves/{dataset}/{method}"]
        returns = np.asarray(run["mean_returns"][policy][-1])
        return normalised_score(run["dataset"], returns) if robot(run["dataset"]) else returns


def words(interval: Interval) -> str:
    return "{:6.2f} [{:6.2f}, {:6.2f}]".format(*interval)


def main() -> None:
    small = Small()
    for dataset in TREATMENT:
        ours = small.final(dataset, "fttpo")
        print(f"\n{dataset}: FtTPO less ...")
        others = {name: small.final(dataset, name) for name in small.methods(dataset)}
        others["its own proposal"] = small.final(dataset, "fttpo", "proposal_sampled")
        for name, theirs in others.items():
            if name != "fttpo":
                print(f"  {name:28} {words(paired_difference(ours, theirs))}")
    print("\nnine robots' sets, mean: FtTPO less ...")
    for name in small.methods(ROBOTS[0]):
        if name == "fttpo" or not all(name in small.methods(dataset) for dataset in ROBOTS):
            continue
        gaps = {task: small.final(task, "fttpo") - small.final(task, name) for task in ROBOTS}
        ahead = sum(float(np.mean(gap)) > 0.0 for gap in gaps.values())
        print(f"  {name:28} {words(stratified_interval(gaps, mean))}, ahead on {ahead}")
    gaps = {
        task: small.final(task, "fttpo") - small.final(task, "fttpo", "proposal_sampled")
        for task in ROBOTS
    }
    print(f"  {'its own proposal':28} {words(stratified_interval(gaps, mean))}")


if __name__ == "__main__":
    main()
