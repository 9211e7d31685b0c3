"""Print all tables about small logs and draw the figure, from stored measurements.

    python benchmarks/small_logs.py
    python benchmarks/small_logs.py --figure docs/images/selection.png

It reads docs/results/selection.json, overfitting.json and small_logs.json. Brackets are 95 %
bootstrap intervals over seeds.
"""

import argparse
import json
from collections.abc import Mapping
from math import nan
from pathlib import Path

import matplotlib.style
import numpy as np

from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.paper import studies
from fat2thin.paper.score_figures import draw_regret
from fat2thin.report.style import STYLE, save_figure
from fat2thin.tables import Table

RESULTS = Path("docs/results")
CELL = "{:.2f} [{:.2f}, {:.2f}]"


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def of_seeds(values: list[float]) -> Interval:
    return seed_interval(np.asarray(values)[:, None])


def study() -> studies.Scores:
    """Return how well each signal selects candidates."""
    candidates = {
        dataset: [
            studies.Candidates(
                np.asarray(one["truth"]),
                {name: np.asarray(of, float) for name, of in one["signals"].items()},
            )
            for one in seeds
        ]
        for dataset, seeds in read("selection")["candidates"].items()
    }
    return studies.scores(candidates)


def method_tables() -> list[Table]:
    """Return one table per reward: every method with the settings for small logs, best first."""
    kept = read("small_logs")
    return [_method_table(kept, reward) for reward in ("quadratic", "cubic")]


def _method_table(kept: Mapping[str, Mapping], reward: str) -> Table:
    best, _, rule = kept["sizes"]["refs"][f"treatment/{reward}@50"]["best constant"]
    rows = []
    for name, run in kept["small-logs"].items():
        of, method = name.split("/")
        if of != reward:
            continue
        value, low, high = of_seeds(run["returns"]["actor_sampled"])
        rows.append({
            "method": method,
            "mean": value,
            "low": low,
            "high": high,
            "percent_of_constant": 100.0 * value / best,
            "centre": float(np.mean(run["returns"]["actor_centre"])),
            **kept["doses"][reward].get(method, {"dose_variance": nan, "dose_limit_rate": nan}),
        })  # fmt: skip
    return Table(
        f"treatment/{reward}: final return after 6,000 updates, seeds 100 to 109, "
        "1,000 episodes per seed",
        tuple(sorted(rows, key=lambda row: -row["mean"])),
        (f"the best constant dose has {best:.2f} ({rule}, 4,096 episodes)",),
    )


def print_changes() -> None:
    """Print the effect of one change at a time, from the default and the small-log settings."""
    found = read("overfitting")
    for origin in ("default", "small"):
        print(f"\n| on the {origin} settings | quadratic, 2,000 | 6,000 | cubic, 2,000 | 6,000 |")
        print("|---|---|---|---|---|")
        for change, of in found[origin].items():
            rewards = [
                of[name] for reward in ("quadratic", "cubic") for name in of if reward in name
            ]
            cells = [
                CELL.format(*of_seeds(at[step])) for at in rewards for step in ("2000", "6000")
            ]
            print(f"| {change} | {' | '.join(cells)} |")


def print_sizes() -> None:
    """Print the returns of FtTPO on logs of other sizes and on other tasks."""
    sizes = read("small_logs")["sizes"]
    references = sizes.pop("refs")
    arms = (
        "small",
        "small held out",
        "small selected",
        "usual",
        "usual held out",
        "usual selected",
    )
    print(f"\n| data set | best constant | {' | '.join(arms)} |\n|---|---|{'---|' * len(arms)}")
    for dataset in sizes["small"]:
        reward = "quadratic" if "quadratic" in dataset else "cubic"
        known = references.get(dataset, references[f"treatment/{reward}@50"])
        cells = [CELL.format(*of_seeds(sizes[arm][dataset]["actor"])) for arm in arms]
        print(f"| {dataset} | {known['best constant'][0]:.2f} | {' | '.join(cells)} |")


def print_robots(robots: Mapping[str, Mapping]) -> None:
    """Print the scores of FtTPO on small robot logs."""
    arms = ("usual", "small", "small 256", "small 256 no decay")
    print(f"\n| rows | data set | {' | '.join(arms)} |\n|---|---|{'---|' * len(arms)}")
    for rows, sets in robots.items():
        for dataset, of in sets.items():
            cells = ["{:.1f} [{:.1f}, {:.1f}]".format(*of_seeds(of[arm]["12000"])) for arm in arms]
            print(f"| {int(rows):,} | {dataset} | {' | '.join(cells)} |")


def print_robot_sets(scored: studies.Scores) -> None:
    """Print, per robot data set, the regret of each signal and the scores with weight decay."""
    ways = ("held_out_log_likelihood", "held_out_value", studies.LAST)
    kept = read("selection")
    print(f"\n| regret among checkpoints | {' | '.join(ways)} | score, no decay | decay 0.1 |")
    print(f"|---|{'---|' * (len(ways) + 2)}")
    for dataset in studies.ROBOTS:
        found = [studies.interval(scored, "checkpoints", [dataset], way, "regret") for way in ways]
        last = np.mean([one["truth"] for one in kept["candidates"][dataset]], axis=0)[:, -1]
        decayed = np.asarray([name.endswith("=0.1") for name in kept["settings"][dataset]])
        cells = [*(one.value for one in found), last[~decayed].mean(), last[decayed].mean()]
        print(f"| {dataset} | {' | '.join(f'{cell:.1f}' for cell in cells)} |")


def print_centres(centres: Mapping[str, Mapping]) -> None:
    """Print the returns of policies at their centre, each with its best setting."""
    print("\n| method, at its centre | setting | quadratic | cubic |\n|---|---|---|---|")
    ordered = sorted(centres, key=lambda name: -float(np.mean(centres[name]["quadratic"])))
    for name in ordered:
        cells = [CELL.format(*of_seeds(centres[name][reward])) for reward in ("quadratic", "cubic")]
        print(f"| {name} | {centres[name]['value']:g} | {' | '.join(cells)} |")


def print_tuning(tuning: Mapping[str, Mapping]) -> None:
    """Print the mean returns on seeds 0 to 9 for each tried value of a method's own setting."""
    print("\n| method | reward and value: mean return |\n|---|---|")
    for name, tried in tuning.items():
        print(f"| {name} | {', '.join(f'{at}: {mean:.2f}' for at, mean in tried.items())} |")


def main() -> None:
    """Print all tables, and draw the figure if --figure is given."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--figure", type=Path)
    asked = arguments.parse_args()
    for name in ("small_logs", "overfitting", "selection"):
        print(f"{name}.json: {read(name)['what']}\n")
    print("\n".join(map(Table.markdown, method_tables())))
    scored = study()
    print("\n".join(map(Table.markdown, studies.selection_tables(scored))))
    print_robot_sets(scored)
    print_changes()
    print_sizes()
    print_robots(read("small_logs")["robots"])
    print_centres(read("small_logs")["centres"])
    print_tuning(read("small_logs")["tuning"])
    if asked.figure:
        with matplotlib.style.context(STYLE):
            save_figure(draw_regret(scored), asked.figure)


if __name__ == "__main__":
    main()
