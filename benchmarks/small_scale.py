"""Print final scores at small scale, and FtTPO's lead over each method, seed by seed.

    python benchmarks/small_scale.py
    python benchmarks/small_scale.py --figures docs/images/paper     draws fig2, fig4 and fig6 again

It reads docs/results/reproduction_small.json, the mean returns of the runs of
`fat2thin reproduce all --scale small`. Brackets are 95 % bootstrap intervals over seeds.
"""

import argparse
import json
from collections.abc import Iterable
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fat2thin.data.formats.d4rl import normalised_score, robot
from fat2thin.envs import treatment
from fat2thin.evaluation.returns import Evaluation, TreatmentEvaluator
from fat2thin.evaluation.statistics import (
    Interval,
    area_under_curve,
    interquartile_mean,
    mean,
    paired_difference,
    ratio,
    seed_interval,
    stratified_interval,
)
from fat2thin.paper.score_figures import ablation, curves
from fat2thin.report.style import save_figures, styled
from fat2thin.runs.result import Evaluations
from fat2thin.tables import Table

RESULTS = Path("docs/results/reproduction_small.json")
TREATMENT = ("treatment-quadratic", "treatment-cubic")
ROBOTS = tuple(
    f"{name}-{level}"
    for name in ("halfcheetah", "hopper", "walker2d")
    for level in ("medium-expert", "medium-replay", "medium")
)


class Small:
    """Final scores per seed: returns on the treatment task, D4RL's scores on robots."""

    def __init__(self) -> None:
        kept = json.loads(RESULTS.read_text())
        self._runs, self._doses = kept["runs"], kept["doses"]

    def methods(self, dataset: str) -> list[str]:
        return [name.split("/")[2] for name in self._runs if name.split("/")[1] == dataset]

    def final(self, dataset: str, method: str, policy: str = "actor_sampled") -> np.ndarray:
        run = self._runs[f"curves/{dataset}/{method}"]
        returns = np.asarray(run["mean_returns"][policy][-1])
        return normalised_score(run["dataset"], returns) if robot(run["dataset"]) else returns

    def treatment_table(self, dataset: str) -> Table:
        """Return one row per method, the highest final return first."""
        rows = [self._row(dataset, method) for method in self.methods(dataset)]
        return Table(dataset, tuple(sorted(rows, key=lambda row: -row["mean"])))

    def _row(self, dataset: str, method: str) -> dict[str, Any]:
        seeds = self.final(dataset, method)
        value, low, high = seed_interval(seeds[:, None])
        run = self._runs[f"curves/{dataset}/{method}"]
        curves = np.asarray(run["mean_returns"]["actor_sampled"])[..., None]
        steps = np.arange(len(curves)) * run["evaluate_every"]
        proposal = "proposal_sampled" in run["mean_returns"]
        return {
            "method": method,
            "mean": value,
            "low": low,
            "high": high,
            "iqm": float(interquartile_mean(seeds)),
            "centre": self.final(dataset, method, "actor_centre").mean(),
            "area": area_under_curve(steps, curves).mean(),
            "proposal": self.final(dataset, method, "proposal_sampled").mean() if proposal else nan,
            **self._doses[dataset][method],
        }

    def robot_table(self) -> Table:
        """Return the mean final score of each method per data set, and a row with the means."""
        methods = self.methods(ROBOTS[0])
        rows = [
            {"data set": task, **{name: self.final(task, name).mean() for name in methods}}
            for task in ROBOTS
        ]
        means = {name: np.mean([row[name] for row in rows]) for name in methods}
        return Table("robots, final scores", (*rows, {"data set": "mean", **means}))

    def run(self, dataset: str, method: str) -> Any:
        """Return what a figure of scores reads of a run."""
        kept = self._runs[f"curves/{dataset}/{method}"]
        means: dict[str, Any] = {
            name: np.asarray(values)[..., None] for name, values in kept["mean_returns"].items()
        }
        returns = {name: Evaluation(values, {}) for name, values in means.items()}
        steps = kept["evaluate_every"] * np.arange(len(kept["mean_returns"]["actor_sampled"]))
        return SimpleNamespace(
            spec=SimpleNamespace(
                **{name: kept[name] for name in ("algorithm", "dataset", "seeds")}
            ),
            evaluations=Evaluations(tuple(steps.tolist()), returns),
            about={"stopped": kept["stopped"]},
            known_references=lambda: references(kept["dataset"]),
        )

    def runs(self, datasets: Iterable[str], methods: Iterable[str]) -> dict[str, dict[str, Any]]:
        return {name: {method: self.run(name, method) for method in methods} for name in datasets}

    def shares(self, dataset: str, methods: Iterable[str]) -> dict[str, Interval]:
        """Return final scores in per cent of FtTPO's."""
        fttpo = self.final(dataset, "fttpo")
        found = {
            name: 100.0 * np.array(ratio(self.final(dataset, name), fttpo)) for name in methods
        }
        return {name: Interval(*share) for name, share in found.items()}


def references(dataset: str) -> dict[str, Any]:
    """Return the reference rows of a treatment task; those of robots are not in the file."""
    if not treatment.is_name(dataset):
        return {}
    return dict(TreatmentEvaluator(treatment.by_name(dataset)).references())


def figures(small: Small) -> dict[str, Figure]:
    baselines = ("fttpo", "iql", "xql", "sql", "spot")
    published = ("fttpo-published", "iql", "xql-published", "sql", "spot-published")
    on_robots = ("fttpo", "iql", "inac", "tawac", "awac", "xql", "sql")
    variants = ("fttpo-spot", "fttpo-sg", "tawac-ht")
    return {
        "fig2_left": curves(small.runs(TREATMENT, baselines)),
        "fig2_left_published": curves(small.runs(TREATMENT, published), policy="proposal"),
        "fig4": curves(small.runs(ROBOTS, on_robots), normalise=normalised_score),
        "fig6": ablation({name: small.shares(name, variants) for name in ROBOTS}),
    }


def words(interval: Interval) -> str:
    return "{:6.2f} [{:6.2f}, {:6.2f}]".format(*interval)


@styled
def draw(folder: Path) -> None:
    for path in save_figures(figures(Small()), folder):
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", type=Path, help="draw into this folder instead of printing")
    folder = parser.parse_args().figures
    if folder:
        draw(folder)
        return
    small = Small()
    for dataset in TREATMENT:
        print(small.treatment_table(dataset).markdown())
    print(small.robot_table().markdown())
    for dataset in TREATMENT:
        ours = small.final(dataset, "fttpo")
        print(f"\n{dataset}: FtTPO minus ...")
        others = {name: small.final(dataset, name) for name in small.methods(dataset)}
        others["its own proposal"] = small.final(dataset, "fttpo", "proposal_sampled")
        for name, theirs in others.items():
            if name != "fttpo":
                print(f"  {name:28} {words(paired_difference(ours, theirs))}")
    print("\nmean of the nine robot data sets: FtTPO minus ...")
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
