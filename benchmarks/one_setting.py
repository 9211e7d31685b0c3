"""Compare methods on the nine regenerated robot data sets, each with one setting for all of them.

    python benchmarks/one_setting.py                    print the table of what was measured
    python benchmarks/one_setting.py --run fttpo iql    train these methods, on a large GPU

The data sets are looked for in the folder that FAT2THIN_DATA names; `fat2thin data make
regenerated/all` makes them. Three of them chose FtTPO's setting and are marked. A score is the mean
of the last two evaluations of five episodes, of the policy as it acts and at its centre. What was
trained replaces earlier results of the same method and number of updates in
docs/results/one_setting.json; what is missing in the table was not measured.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin.evaluation.statistics import seed_interval
from fat2thin.tables import Table
from fat2thin.training import RunSpec, execute_together, make_spec

RESULTS = Path("docs/results/one_setting.json")
GROUPS = (("halfcheetah", "walker2d"), ("hopper",))
"""Robots with equal network widths share a program."""
SETS = ("medium", "medium-replay", "medium-expert")
CHOSEN_ON = ("halfcheetah-medium-expert", "hopper-medium-replay", "walker2d-medium")
SHORT = {"halfcheetah": "hc", "hopper": "ho", "walker2d": "wa"}
NAMES = tuple(f"{robot}-{level}" for robot in SHORT for level in SETS)


class Method(NamedTuple):
    """A method and its setting."""

    algorithm: str
    settings_from: str = "large"
    settings: tuple[tuple[str, Any], ...] = ()
    note: str = "our scales, one setting"


METHODS = {
    "fttpo": Method("fttpo", note="one setting"),
    "fttpo, 60 % kept": Method("fttpo", settings=(("kept_mass", 0.6),), note="one setting"),
    "fttpo, paper": Method("fttpo", "fttpo", note="the paper's, per set"),
    "td3_bc": Method("td3_bc", "own", note="own, one setting"),
    "rebrac": Method("rebrac", "own", note="own, per set"),
    "iql": Method("iql", "own", note="own, one setting"),
    "tawac": Method("tawac", settings=(("temperature", 0.35),)),
    "inac": Method("inac"),
    "fttpo-spot": Method("fttpo-spot"),
    "spot": Method("spot", "own", note="own, per set"),
    "bc": Method("bc"),
}


def specs(method: Method, robots: tuple[str, ...], steps: int, seeds: list[int]) -> list[RunSpec]:
    return [
        make_spec(
            method.algorithm, f"regenerated/{robot}-{level}", steps=steps, seeds=seeds,
            settings=dict(method.settings), settings_from=method.settings_from,
            evaluate_every=max(1, steps // 5), episodes=5, log_every=2500,
        )
        for robot in robots
        for level in SETS
    ]  # fmt: skip


def measure(name: str, steps: int, seeds: list[int], robots: str | None) -> Iterator[dict]:
    for group in GROUPS:
        if robots and robots not in group:
            continue
        runs = execute_together(specs(METHODS[name], group, steps, seeds))
        for run in runs:
            found = run.evaluations.policies
            yield {
                "method": name, "dataset": run.spec.dataset.removeprefix("regenerated/"),
                "steps": steps, "seeds": seeds, "sha256": run.about["sha256"],
                **{way: np.round(found[f"actor_{way}"].measures["score"], 2).tolist()
                   for way in ("sampled", "centre")},
            }  # fmt: skip


def last(row: dict, way: str) -> np.ndarray:
    """Return the scores of each seed, means of the last two evaluations."""
    return np.mean(np.asarray(row[way])[-2:], axis=0)


def table(rows: list[dict], way: str) -> Table:
    """Return one row per method and number of updates, with the means over all and unseen sets."""
    lines = []
    for name, method in METHODS.items():
        for steps in sorted({row["steps"] for row in rows if row["method"] == name}):
            found = {
                row["dataset"]: last(row, way)
                for row in rows
                if (row["method"], row["steps"]) == (name, steps)
            }
            line = {"method": name, "settings": method.note, "updates": f"{steps:,}"}
            for place in NAMES:
                robot, level = place.split("-", 1)
                label = f"{SHORT[robot]}-{''.join(word[0] for word in level.split('-'))}"
                label += "*" * (place in CHOSEN_ON)
                line[label] = _cell(found[place]) if place in found else "not run"
            for label, wanted in (("mean", NAMES), ("unseen", set(NAMES) - set(CHOSEN_ON))):
                known = [found[one].mean() for one in wanted if one in found]
                complete = len(known) == len(wanted)
                line[label] = f"{np.mean(known):.1f}" if complete else "-"
            lines.append(line)
    notes = (
        "95 % bootstrap intervals over seeds. * This set chose the setting of FtTPO; it is not in "
        "the column of unseen sets.",
    )
    how = "as it acts" if way == "sampled" else "at its centre"
    return Table(f"Scores {how}, nine regenerated data sets", tuple(lines), notes=notes)


def _cell(scores: np.ndarray) -> str:
    found = seed_interval(scores[:, None])
    return f"{found.value:.1f} [{found.low:.0f}, {found.high:.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", nargs="+", default=[], choices=[*METHODS], help="train these")
    parser.add_argument("--steps", type=int, default=100_000, help="updates per seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--robots", help="train only on this robot and those of its program")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    asked = parser.parse_args()
    rows = json.loads(asked.results.read_text()) if asked.results.exists() else []
    for name in asked.run:
        for new in measure(name, asked.steps, asked.seeds, asked.robots):
            key = new["method"], new["dataset"], new["steps"]
            rows = [row for row in rows if (row["method"], row["dataset"], row["steps"]) != key]
            rows.append(new)
            asked.results.write_text(json.dumps(rows, separators=(",", ":")))
    for way in ("sampled", "centre"):
        print(table(rows, way))


if __name__ == "__main__":
    main()
