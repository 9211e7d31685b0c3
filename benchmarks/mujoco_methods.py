"""Compare every method on the nine regenerated MuJoCo data sets.

    python benchmarks/mujoco_methods.py --run     train what is missing (on a large GPU)
    python benchmarks/mujoco_methods.py --gather  collect the finished runs
    python benchmarks/mujoco_methods.py           print the tables and draw the learning curves

The data sets are regenerated/<robot>-<set> in the folder given by FAT2THIN_DATA; they are not
D4RL's. `fat2thin data make regenerated/all` makes them. A part is one method on all data sets of
robots with equal network widths, in one program. Each run has a folder in runs/mujoco_methods.
`--run` can be started in several processes: each part is done by one of them, and finished parts
are skipped. The numbers for the documentation are in docs/results/mujoco_methods.json.
"""

import argparse
import fcntl
import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

import fat2thin
from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.paper.score_figures import SCORE
from fat2thin.report.style import STYLE, method_looks, save_figure
from fat2thin.runs.folder import DIVERGED, FINISHED, RUNNING, RunFolder
from fat2thin.runs.result import MetricColumns
from fat2thin.training import RunSpec, execute_together, make_spec
from fat2thin.training.progress import Lines

RESULTS = Path("docs/results/mujoco_methods.json")
PICTURE = Path("docs/images/mujoco_methods.png")
RUNS = Path("runs/mujoco_methods")
WIDE, HOPPER = ("halfcheetah", "walker2d"), ("hopper",)
"""Robots with equal network widths share a program."""
SETS = ("medium", "medium-replay", "medium-expert")
UPDATES, EVERY, EPISODES, SEEDS = 100_000, 10_000, 5, 4
LAST = 3
"""A score is the mean of this many last evaluations."""


class Method(NamedTuple):
    """A method and the source of its settings."""

    algorithm: str
    settings_from: str = "fttpo"
    settings: Mapping[str, Any] = MappingProxyType({})


STEEP = {"learning_rate": 1e-3, "temperature": 0.5}
"""Learning rate and temperature in the middle of the FtTPO paper's grid, for methods without
published settings for all of these data sets."""
OF_ALL = (Method("fttpo"), Method("tawac"), Method("iql"), Method("tawac-ht"), Method("awac"))
OF_SOME = (
    Method("xql"),
    Method("inac"),
    Method("sql"),
    Method("td3_bc", "own"),
    Method("fttpo-sg"),
    Method("rar", "default", STEEP),
    Method("sparse_reverse_kl", "default", STEEP),
    Method("bc", "default", {"learning_rate": 1e-3}),
    Method("spot", "own"),
    Method("fttpo-spot"),
    Method("fttpo-greedy", "default", STEEP),
)


class Part(NamedTuple):
    """A method and robots that are trained in one program."""

    method: Method
    robots: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name used in file names."""
        return f"{self.method.algorithm}-{'-'.join(self.robots)}"

    def specs(self, updates: int) -> list[RunSpec]:
        """Return the specifications of its runs."""
        method = self.method
        return [
            make_spec(
                method.algorithm, f"regenerated/{robot}-{level}", steps=updates, seeds=SEEDS,
                settings=method.settings, settings_from=method.settings_from,
                evaluate_every=updates * EVERY // UPDATES, episodes=EPISODES, log_every=2_500,
            )
            for robot in self.robots
            for level in SETS
        ]  # fmt: skip


PARTS = (
    *(Part(method, robots) for method in OF_ALL for robots in (WIDE, HOPPER)),
    *(Part(method, HOPPER) for method in OF_SOME),
    *(Part(method, WIDE) for method in OF_SOME),
)
"""All parts, the most important first."""


def folder(spec: RunSpec) -> Path:
    return RUNS / spec.algorithm / spec.dataset.removeprefix("regenerated/")


def finished(spec: RunSpec) -> bool:
    place = folder(spec) / "run.json"
    return place.exists() and json.loads(place.read_text())["status"] != RUNNING


def train(updates: int, minutes: float, only: Sequence[str]) -> list[str]:
    """Train all parts that no other process is training; return the names of failed parts."""
    began, failed = time.perf_counter(), []
    RUNS.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if only and part.method.algorithm not in only:
            continue
        if time.perf_counter() - began > 60.0 * minutes:
            print(f"stopped after {minutes:g} minutes", flush=True)
            break
        with (RUNS / f".{part.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            specs = part.specs(updates)
            if all(map(finished, specs)):
                continue
            print(f"{time.perf_counter() - began:6.0f} s  {part.name}", flush=True)
            try:
                execute_together(specs, list(map(folder, specs)), Lines())
            except fat2thin.TrainingDiverged as error:
                print(f"{part.name}: {error}", flush=True)
            except Exception:
                # An error in one method must not stop the others.
                traceback.print_exc()
                failed.append(part.name)
    return failed


def gather(updates: int) -> None:
    """Collect finished runs in one file, and interrupted ones past 90 % of the updates."""
    specs = [spec for part in PARTS for spec in part.specs(updates)]
    runs = [_summary(spec) for spec in specs if (folder(spec) / "evaluations.npz").exists()]
    kept = [run for run in runs if run["steps"][-1] >= 0.9 * updates or run["status"] == DIVERGED]
    content = {
        "what": "scores[policy][evaluation][seed]: mean normalised score of 5 episodes, seeds 0 to "
        "3; regenerated data, so the scores are comparable only with each other",
        "updates": updates,
        "runs": kept,
    }
    RESULTS.write_text(json.dumps(content, separators=(",", ":")))
    print(f"{RESULTS}: {len(kept)} runs")


def _summary(spec: RunSpec) -> dict[str, Any]:
    files = RunFolder(folder(spec))
    about, (steps, policies) = files.about(), files.evaluations(SEEDS)
    metrics = MetricColumns(SEEDS, files.metrics_rows()).arrays()
    config = about["spec"]["config"]
    wanted = {
        "learning_rate",
        "temperature",
        "expectile",
        "q_weight",
        "support_weight",
        "value_temperature",
    }
    names = ("status", "seconds", "rollouts", "device", "versions", "sha256", "scales")
    return {
        "algorithm": spec.algorithm,
        "dataset": spec.dataset,
        "steps": steps,
        "scores": {
            name: np.round(evaluation.measures["score"], 2).tolist()
            for name, evaluation in policies.items()
        },
        "settings": {name: config[name] for name in sorted(wanted & set(config))},
        "last_metrics": {
            name: round(float(values[-1].mean()), 4)
            for name, values in metrics.items()
            if name != "step"
        },
        **{name: about.get(name) for name in names},
    }


def last_scores(run: dict[str, Any], name: str) -> np.ndarray:
    """Return the scores of a policy's last evaluations, with shape (seeds, evaluations)."""
    return np.asarray(run["scores"][name])[-LAST:].T


def interval(run: dict[str, Any], name: str) -> Interval:
    return seed_interval(last_scores(run, name))


def rows(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield label, algorithm and policy of every row of the table."""
    for method in (*OF_ALL, *OF_SOME):
        found = [run for run in runs if run["algorithm"] == method.algorithm]
        for policy in ("actor", "proposal"):
            if any(f"{policy}_sampled" in run["scores"] for run in found):
                label = method.algorithm + (", proposal" if policy == "proposal" else "")
                yield label, method.algorithm, policy


def print_tables(runs: Sequence[dict[str, Any]]) -> None:
    found = {(run["algorithm"], run["dataset"].removeprefix("regenerated/")): run for run in runs}
    for robots in (WIDE[:1], HOPPER, WIDE[1:]):
        names = [f"{robot}-{level}" for robot in robots for level in SETS]
        print(f"\n| method | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for label, algorithm, policy in rows(runs):
            cells = [
                _cell(found[algorithm, name], policy) if (algorithm, name) in found else "–"
                for name in names
            ]
            if set(cells) != {"–"}:
                print(f"| {label} | {' | '.join(cells)} |")
    print()
    for other in ("tawac-ht", "tawac", "awac", "iql", "xql"):
        for way in ("sampled", "centre"):
            leads = {
                name: _mean(found["fttpo", name], way) - _mean(found[other, name], way)
                for algorithm, name in found
                if algorithm == "fttpo" and (other, name) in found
            }
            print(
                f"fttpo - {other}, {way}: mean {np.mean(list(leads.values())):+.1f}; "
                + ", ".join(f"{name} {lead:+.1f}" for name, lead in leads.items())
            )


def print_findings(runs: Sequence[dict[str, Any]]) -> None:
    """Print what else the documentation states: the loss by sampling, and final metrics."""
    for method in OF_ALL:
        lost = [
            _mean(run, "centre") - _mean(run, "sampled")
            for run in runs
            if run["algorithm"] == method.algorithm
        ]
        print(f"{method.algorithm}: centre - sampled {np.mean(lost):+.1f} over {len(lost)} sets")
    shown = ("q_mean", "zero_weight_share", "half_width", "policy_scale", "logged_inside_support")
    for run in runs:
        found = [
            f"{name} {run['last_metrics'][name]:g}" for name in shown if name in run["last_metrics"]
        ]
        print(f"{run['algorithm']} on {run['dataset']}: {', '.join(found)}")
    programs = {(run["algorithm"], run["dataset"].split("/")[1][:2] == "ho"): run for run in runs}
    seconds = sum(run["seconds"] or 0.0 for run in programs.values())
    print(f"{len(programs)} programs, {seconds / 60:.0f} minutes in total")


def _mean(run: dict[str, Any], way: str) -> float:
    return float(last_scores(run, f"actor_{way}").mean())


def _cell(run: dict[str, Any], policy: str) -> str:
    """Return the sampled score with its interval, then the score at the centre."""
    if run["status"] == DIVERGED:
        return "diverged"
    sampled, centre = (interval(run, f"{policy}_{way}") for way in ("sampled", "centre"))
    early = "" if run["status"] == FINISHED else f" (at {run['steps'][-1]:,})"
    return (
        f"{sampled.value:.0f} [{sampled.low:.0f}, {sampled.high:.0f}] · {centre.value:.0f}{early}"
    )


def picture(runs: Sequence[dict[str, Any]]) -> Figure:
    """Return learning curves: one panel per data set, mean and range of the seeds."""
    looks = method_looks(["fttpo", "tawac", "tawac-ht", "awac", "iql"])
    thin = looks["fttpo"] | {"linestyle": ":", "marker": "", "linewidth": 1.3}
    shown = [(name, "actor_sampled", name, look) for name, look in looks.items()]
    shown.insert(1, ("fttpo", "proposal_sampled", "fttpo, its proposal", thin))
    figure = Figure(figsize=(10.5, 9.0))
    axes = figure.subplots(3, 3, sharex=True)
    for line, robot in zip(axes, ("halfcheetah", "hopper", "walker2d"), strict=True):
        for axis, level in zip(line, SETS, strict=True):
            for algorithm, policy, label, look in shown:
                for run in runs:
                    if (run["algorithm"], run["dataset"]) != (
                        algorithm, f"regenerated/{robot}-{level}"
                    ):  # fmt: skip
                        continue
                    steps, scores = (
                        np.asarray(run["steps"]) / 1000,
                        np.asarray(run["scores"][policy]),
                    )
                    line = {"linewidth": 1.6} | look
                    axis.plot(steps, scores.mean(axis=1), **line, label=label)
                    if look is not thin:
                        axis.fill_between(
                            steps, scores.min(axis=1), scores.max(axis=1), color=look["color"],
                            alpha=0.12, linewidth=0,
                        )  # fmt: skip
            axis.set_title(f"{robot}-{level}")
            axis.set_ylim(bottom=-3)
    for axis in axes[-1]:
        axis.set_xlabel("thousand updates")
    figure.supylabel(SCORE, fontsize=10)
    figure.suptitle(
        f"sampled policies on regenerated data: mean of {SEEDS} seeds\n"
        "ribbon: lowest to highest seed",
        fontsize=11,
    )
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="train what is missing")
    parser.add_argument("--only", nargs="*", default=(), help="train only these methods")
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no part after this time")
    parser.add_argument("--gather", action="store_true", help="collect the finished runs")
    arguments = parser.parse_args()
    if arguments.run:
        failed = train(arguments.updates, arguments.minutes, arguments.only)
        sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
    if arguments.gather:
        gather(arguments.updates)
        return
    runs = json.loads(RESULTS.read_text())["runs"]
    print_tables(runs)
    print_findings(runs)
    with matplotlib.style.context(STYLE):
        save_figure(picture(runs), PICTURE)
    print(PICTURE)


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", ".cache/jax")
    main()
