"""Compare methods, each with one setting for nine robot data sets and one for the treatment logs.

    python benchmarks/one_setting.py                          print the tables of what was measured
    python benchmarks/one_setting.py --run fttpo iql          train on robots, on a large GPU
    python benchmarks/one_setting.py --try "fttpo, five critics"    train on the sets that chose
    python benchmarks/one_setting.py --treatment fttpo iql    train on treatment logs
    python benchmarks/one_setting.py --results docs/results/precision.json     bfloat16

The robot data sets are looked for in the folder that FAT2THIN_DATA names; `fat2thin data make
regenerated/all` makes them. Three of them chose FtTPO's setting and are marked. A score is the mean
of the last two evaluations of five episodes, of the policy as it acts and at its centre. On
treatment, with 1,200 and 24,000 rows, it is the mean return of 1,000 episodes after the last
update. What was trained replaces earlier results of the same method and number of updates in
docs/results/one_setting.json; what is missing in a table was not measured.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin import data
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.settings.spec import choose_spec
from fat2thin.tables import Table
from fat2thin.training import Run, execute_together, make_spec

RESULTS = Path("docs/results/one_setting.json")
GROUPS = (("halfcheetah", "walker2d"), ("hopper",))
"""Robots with equal network widths share a program."""
SETS = ("medium", "medium-replay", "medium-expert")
CHOSEN_ON = ("halfcheetah-medium-expert", "hopper-medium-replay", "walker2d-medium")
SHORT = {"halfcheetah": "hc", "hopper": "ho", "walker2d": "wa"}
NAMES = tuple(f"{robot}-{level}" for robot in SHORT for level in SETS)
TREATMENT = {
    f"treatment/{reward}@{episodes}": f"{reward}, {24 * episodes:,} rows"
    for episodes in (50, 1000)
    for reward in ("quadratic", "cubic")
}
ON_TREATMENT = (
    "fttpo", "fttpo-spot", "quasi_optimal", "rebrac", "edac", "td3_bc", "spot", "tawac", "iql",
    "inac", "awac", "sql", "xql", "sparse_reverse_kl", "bc", "fttpo, bfloat16",
)  # fmt: skip
DEEP = (("hidden", (256, 256, 256)), ("layer_norm", True))
"""Three hidden layers and normalised critics, as FtTPO's automatic settings have for large logs."""


class Method(NamedTuple):
    """A method and its setting."""

    algorithm: str
    settings_from: str = "large"
    settings: tuple[tuple[str, Any], ...] = ()
    note: str = "our scales, one setting"
    options: tuple[tuple[str, Any], ...] = ()
    """Options of the run, such as its batch size."""


METHODS = {
    "fttpo": Method("fttpo", note="one setting"),
    "fttpo, 60 % kept": Method("fttpo", settings=(("kept_mass", 0.6),), note="one setting"),
    "fttpo, bfloat16": Method("fttpo", note="one setting", options=(("precision", "bfloat16"),)),
    "fttpo, paper": Method("fttpo", "fttpo", note="the paper's, per set"),
    "fttpo, paper, published": Method(
        "fttpo", "fttpo", (("published", True),), note="the paper's, per set"
    ),
    "iql, paper": Method("iql", "fttpo", note="the paper's, per set"),
    "tawac, paper": Method("tawac", "fttpo", note="the paper's, per set"),
    "inac, paper": Method("inac", "fttpo", note="the paper's, per set"),
    "td3_bc": Method("td3_bc", "own", note="own, one setting"),
    "rebrac": Method("rebrac", "own", note="own, per set"),
    "iql": Method("iql", "own", note="own, one setting"),
    "tawac": Method("tawac", settings=(("temperature", 0.35),)),
    "inac": Method("inac"),
    "fttpo-spot": Method("fttpo-spot"),
    "spot": Method("spot", "own", note="own, per set"),
    "bc": Method("bc"),
    "td3_bc, deep": Method("td3_bc", "own", DEEP, note="own, FtTPO's networks"),
    "iql, deep": Method("iql", "own", DEEP, note="own, FtTPO's networks"),
    "tawac, deep": Method(
        "tawac", settings=(("temperature", 0.35), *DEEP), note="our scales, FtTPO's networks"
    ),
    "inac, deep": Method("inac", settings=DEEP, note="our scales, FtTPO's networks"),
    "fttpo-spot, deep": Method("fttpo-spot", settings=DEEP, note="our scales, FtTPO's networks"),
    "edac": Method("edac", "own", note="own, per set"),
    "edac, ten critics": Method(
        "edac", "own", (("critic_count", 10), ("diversity", 1.0)), note="own, one setting"
    ),
    "fttpo, five critics": Method("fttpo", settings=(("critic_count", 5),), note="one setting"),
    "fttpo, ten critics": Method("fttpo", settings=(("critic_count", 10),), note="one setting"),
    "fttpo, batches of 1,024": Method("fttpo", note="one setting", options=(("batch_size", 1024),)),
    "fttpo, bootstrapped from the centre": Method(
        "fttpo", settings=(("critic_under", "centre"),), note="one setting"
    ),
    "fttpo, learned band": Method(
        "fttpo", settings=(("actor_loss", "exact"), ("kept_mass", None)), note="one setting"
    ),
}
TRIED_SEEDS = [0, 1, 2, 3, 4]
"""Seeds on which settings are chosen; all others are reported."""


def measure(name: str, steps: int, seeds: list[int], wanted: list[str]) -> Iterator[dict]:
    method = METHODS[name]
    for group in GROUPS:
        chosen = [
            make_spec(
                method.algorithm, f"regenerated/{place}", steps=steps, seeds=seeds,
                settings=dict(method.settings), settings_from=method.settings_from,
                evaluate_every=max(1, steps // 5), episodes=5, log_every=2500,
                **dict(method.options),
            )
            for place in wanted
            if place.startswith(group)
        ]  # fmt: skip
        for run in execute_together(chosen) if chosen else ():
            found = run.evaluations.policies
            yield about(name, run, "regenerated/") | {
                way: np.round(found[f"actor_{way}"].measures["score"], 2).tolist()
                for way in ("sampled", "centre")
            }


def about(name: str, run: Run, prefix: str = "") -> dict[str, Any]:
    return {
        "method": name, "dataset": run.spec.dataset.removeprefix(prefix), "steps": run.spec.steps,
        "seeds": [*run.spec.seeds], "sha256": run.about["sha256"],
    }  # fmt: skip


def measure_treatment(name: str, seeds: list[int]) -> Iterator[dict]:
    """Train with the automatic settings and updates, and yield the final returns of each seed."""
    method = METHODS.get(name, Method(name))
    options = {"seeds": seeds, "episodes": 1000, **dict(method.options)}
    chosen = [
        choose_spec(method.algorithm, log, None, {}, data.load, **options)[0] for log in TREATMENT
    ]
    chosen = [dataclasses.replace(spec, evaluate_every=spec.steps) for spec in chosen]
    for run in execute_together(chosen):
        found = run.evaluations.last()
        yield about(name, run) | {
            "best constant": run.references["best constant"].mean,
            **{
                way: [np.round(np.mean(found[f"actor_{way}"].returns, axis=-1), 3).tolist()]
                for way in ("sampled", "centre")
            },
        }


def last(row: dict, way: str) -> np.ndarray:
    """Return the scores of each seed, means of the last two evaluations."""
    return np.mean(np.asarray(row[way])[-2:], axis=0)


def table(rows: list[dict], way: str) -> Table:
    """Return one row per method and number of updates, with the means over all and unseen sets."""
    on_robots = [
        row for row in rows if row["dataset"] in NAMES and row["seeds"] != TRIED_SEEDS
    ]  # fmt: skip
    lines = []
    for name, method in METHODS.items():
        for steps in sorted({row["steps"] for row in on_robots if row["method"] == name}):
            found = {
                row["dataset"]: last(row, way)
                for row in on_robots
                if (row["method"], row["steps"]) == (name, steps)
            }
            line = {"method": name, "settings": method.note, "updates": f"{steps:,}"}
            line |= {_short(place): _found(found, place) for place in NAMES}
            for label, wanted in (("mean", NAMES), ("unseen", set(NAMES) - set(CHOSEN_ON))):
                known = [found[one].mean() for one in wanted if one in found]
                complete = len(known) == len(wanted)
                line[label] = f"{np.mean(known):.1f}" if complete else "-"
            lines.append(line)
    notes = (
        "95 % bootstrap intervals over seeds. * This set chose the setting of FtTPO; it is not in "
        "the column of unseen sets.",
    )
    return Table(f"Scores {_how(way)}, nine regenerated data sets", tuple(lines), notes=notes)


def tried_table(rows: list[dict], way: str) -> Table:
    """Return one row per setting of FtTPO that was tried on the sets that chose, seeds 0 to 4."""
    tried = [row for row in rows if row["dataset"] in CHOSEN_ON and row["seeds"] == TRIED_SEEDS]
    lines = []
    for name in dict.fromkeys(row["method"] for row in tried):
        found = {row["dataset"]: last(row, way) for row in tried if row["method"] == name}
        means = [found[place].mean() for place in CHOSEN_ON if place in found]
        lines.append(
            {"method": name, **{_short(place): _found(found, place) for place in CHOSEN_ON}}
            | {"mean": f"{np.mean(means):.1f}" if len(means) == len(CHOSEN_ON) else "-"}
        )
    return Table(f"Tried on the sets that chose, {_how(way)}", tuple(lines))


def precision_table(rows: list[dict]) -> Table:
    """Return one row per log with FtTPO in both precisions: the paired difference of the seeds."""
    found = {(row["method"], row["dataset"]): row for row in rows}
    lines = []
    for (name, log), row in found.items():
        if name != "fttpo" or ("fttpo, bfloat16", log) not in found:
            continue
        line: dict[str, Any] = {"log": TREATMENT.get(log, log), "seeds": f"{len(row['seeds'])}"}
        for way in ("sampled", "centre"):
            scores = [last(one, way) for one in (row, found["fttpo, bfloat16", log])]
            unit = row["best constant"] / 100 if log in TREATMENT else 1.0
            line[f"float32 {_how(way)}"] = _cell(scores[0] / unit)
            line[f"bfloat16 - float32, {_how(way)}"] = _cell((scores[1] - scores[0]) / unit, 2)
        lines.append(line)
    notes = (
        "95 % bootstrap intervals over seeds, which draw the same numbers in both precisions. "
        "Points of the score on robots, per cent of the best constant dose on treatment.",
    )
    return Table("FtTPO with products in bfloat16", tuple(lines), notes=notes)


def treatment_table(rows: list[dict], way: str) -> Table:
    """Return one row per method: returns on the treatment logs, best first on the first of them."""
    found = {(row["method"], row["dataset"]): row for row in rows if row["dataset"] in TREATMENT}
    lines = []
    for name in {method for method, _ in found}:
        line: dict[str, Any] = {"method": name}
        for log, label in TREATMENT.items():
            row = found.get((name, log))
            line[label] = "not run"
            if row is not None:
                share = np.mean(row[way][-1]) / row["best constant"]
                line[label] = f"{_cell(np.asarray(row[way][-1]), 2)} {share:.0%}"
        lines.append(line)
    first = next(iter(TREATMENT.values()))
    lines.sort(key=lambda line: float(str(line[first]).split()[0]), reverse=True)
    notes = (
        "95 % bootstrap intervals over seeds; per cent of the best constant dose. Automatic "
        "settings and updates, chosen on other logs of 1,200 rows: FtTPO's with the most effort, "
        "those of ReBRAC and EDAC not at all.",
    )
    return Table(f"Returns {_how(way)}, treatment logs", tuple(lines), notes=notes)


def _short(place: str) -> str:
    robot, level = place.split("-", 1)
    label = f"{SHORT[robot]}-{''.join(word[0] for word in level.split('-'))}"
    return label + "*" * (place in CHOSEN_ON)


def _found(found: dict[str, np.ndarray], place: str) -> str:
    return _cell(found[place]) if place in found else "not run"


def _how(way: str) -> str:
    return "as it acts" if way == "sampled" else "at its centre"


def _cell(scores: np.ndarray, digits: int = 1) -> str:
    found = seed_interval(scores[:, None])
    ends = digits - (digits == 1)
    return f"{found.value:.{digits}f} [{found.low:.{ends}f}, {found.high:.{ends}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", nargs="+", default=[], choices=[*METHODS], help="train these")
    parser.add_argument(
        "--treatment", nargs="+", default=[], choices=ON_TREATMENT, help="train on treatment logs"
    )
    parser.add_argument("--steps", type=int, default=100_000, help="updates per seed, robots")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument(
        "--try", nargs="+", default=[], choices=[*METHODS], dest="tried",
        help="train these on the sets that chose, with seeds 0 to 4",
    )  # fmt: skip
    parser.add_argument("--sets", nargs="+", default=NAMES, choices=NAMES, help="for --run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--add", type=Path, nargs="+", default=[], help="take over these files")
    asked = parser.parse_args()
    rows = json.loads(asked.results.read_text()) if asked.results.exists() else []
    new: Iterator[dict] = itertools.chain(
        *(json.loads(path.read_text()) for path in asked.add),
        *(measure(name, asked.steps, asked.seeds, asked.sets) for name in asked.run),
        *(measure(name, asked.steps, TRIED_SEEDS, [*CHOSEN_ON]) for name in asked.tried),
        *(measure_treatment(name, [*range(100, 110)]) for name in asked.treatment),
    )
    for one in new:
        rows = [row for row in rows if _key(row) != _key(one)] + [one]
        asked.results.write_text(json.dumps(rows, separators=(",", ":")))
    if (compared := precision_table(rows)).rows:
        print(compared)
    for way in ("sampled", "centre"):
        print(table(rows, way), tried_table(rows, way), treatment_table(rows, way), sep="\n")


def _key(row: dict) -> tuple[Any, ...]:
    return row["method"], row["dataset"], row["steps"], row["seeds"] == TRIED_SEEDS


if __name__ == "__main__":
    main()
