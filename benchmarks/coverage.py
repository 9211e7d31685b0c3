"""Does the summary of a log cover new states as promised, and how long does it take?

    python benchmarks/coverage.py                          print the tables, draw the picture
    python benchmarks/coverage.py --run                    measure the treatment task and a robot
    python benchmarks/coverage.py --run --insulin FOLDER   also NeoRL-2's Simglucose-high
    python benchmarks/coverage.py --times                  measure the times alone

Shares are of states of new episodes; intervals are 95 %, by a bootstrap of whole episodes, and for
treatment of whole logs. The robot (extra mujoco) is regenerated/hopper-medium, two logs of 20,000
rows. Times are for 100,000 rows of 31 columns on two cores: by the clock, and of both cores
together, which counts less of what other programs do. The numbers are in
docs/results/coverage.json, the picture is docs/images/coverage.png.
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from fat2thin import data
from fat2thin.data.coverage import LEVELS, SHARE, Coverage, summarise_states
from fat2thin.data.nearest_cases import LoggedCases
from fat2thin.report.style import LOOKS, STYLE, save_figure
from fat2thin.tables import Table

RESULTS, PICTURE = Path("docs/results/coverage.json"), Path("docs/images/coverage.png")
LOGS = 20
ROBOT_ROWS = 20_000
ROWS, COLUMNS, QUERIES = 100_000, 31, 1000


def interval(covered: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Return the covered share with its interval, from counts per cluster."""
    draw = np.random.default_rng(0)
    places = draw.integers(len(rows), size=(10_000, len(rows)))
    low, high = np.quantile(covered[places].sum(axis=1) / rows[places].sum(axis=1), (0.025, 0.975))
    return {"covered": float(covered.sum() / rows.sum()), "low": float(low), "high": float(high)}


def by_episode(coverage: Coverage, fresh: data.Dataset) -> list[dict[str, float]]:
    """Return the covered share at every level, with intervals over episodes."""
    rows = np.diff(fresh.episode_start, append=fresh.rows)
    return [
        {"nominal": float(level)}
        | interval(
            np.add.reduceat(
                (coverage.at(level).distance(fresh.observation) <= 1.0).astype(float),
                fresh.episode_start,
            ),
            rows,
        )
        for level in LEVELS
    ]


def treatment(name: str) -> list[dict[str, float]]:
    covered = []
    for seed in range(LOGS):
        fresh = data.load(f"{name}@200", seed=1000 + seed)
        coverage = summarise_states(data.load(name, seed))
        covered.append(
            [np.sum(coverage.at(level).distance(fresh.observation) <= 1.0) for level in LEVELS]
        )
    rows = np.full(LOGS, fresh.rows)
    return [
        {"nominal": float(level)} | interval(of_level, rows)
        for level, of_level in zip(LEVELS, np.transpose(covered), strict=True)
    ]


def insulin(folder: Path) -> list[dict[str, float]]:
    train, fresh = (
        data.load(str(folder / f"Simglucose-high-{part}.npz"))
        for part in ("100000-train", "20000-val")
    )
    return by_episode(summarise_states(train), fresh)


def robot() -> list[dict[str, float]]:
    from fat2thin.envs import regenerate

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the box is the range of the logged actions
        logs = []
        for seed in (0, 1):
            out = Path(folder) / f"{seed}.hdf5"
            regenerate.make("regenerated/hopper-medium", ROBOT_ROWS, seed, out=out)
            logs.append(data.load(str(out)))
        return by_episode(summarise_states(logs[0]), logs[1])


def times() -> dict[str, dict[str, float]]:
    draw = np.random.default_rng(0)
    seen = draw.normal(size=(ROWS, COLUMNS)) @ draw.normal(size=(COLUMNS, COLUMNS))
    log = data.Dataset.from_arrays(
        seen, draw.uniform(-1, 1, ROWS), np.zeros(ROWS), episode=np.arange(ROWS) // 200,
        next_observation=seen, action_low=-1, action_high=1,
    )  # fmt: skip
    found = {}
    for name in ("summary", f"{QUERIES:,} queries"):
        began, used = time.perf_counter(), time.process_time()
        if name == "summary":
            cases = LoggedCases(log, summarise_states(log))
        else:
            cases.nearest(seen[:QUERIES] + 0.1)
        found[name] = {
            "seconds": time.perf_counter() - began,
            "processor seconds": time.process_time() - used,
        }
    return found


def draw(found: dict[str, list[dict[str, float]]]) -> Figure:
    """Draw nominal against measured shares, on axes of the share that is not covered."""
    figure = Figure(figsize=(5.6, 4.8))
    axes = figure.subplots()
    beyond = 1.0 - np.asarray([0.5, 0.999])
    axes.plot(beyond, beyond, color="black", linewidth=1.0, label="as promised")
    for (name, rows), look in zip(found.items(), LOOKS, strict=False):
        nominal, share, low, high = (
            1.0 - np.asarray([row[key] for row in rows])
            for key in ("nominal", "covered", "low", "high")
        )
        least = 2e-4
        axes.plot(nominal, np.maximum(share, least), label=name, linewidth=1.4, **look)
        axes.fill_between(
            nominal, np.maximum(high, least), np.maximum(low, least), color=look["color"],
            alpha=0.15, linewidth=0,
        )  # fmt: skip
    axes.axvline(1.0 - SHARE, color="black", linewidth=0.8, linestyle=":", label="default")
    axes.set(
        xscale="log", yscale="log", xlabel="nominal share outside the log",
        ylabel="share of states of new episodes outside", ylim=(2e-4, 0.8),
    )  # fmt: skip
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="measure again")
    parser.add_argument("--insulin", type=Path, help="folder with the two files of Simglucose-high")
    parser.add_argument("--times", action="store_true", help="measure the times again")
    options = parser.parse_args()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"shares": {}}
    if options.run:
        for reward in ("cubic", "quadratic"):
            kept["shares"][f"treatment/{reward}, {LOGS} logs"] = treatment(f"treatment/{reward}")
        kept["shares"]["hopper-medium, 20,000 rows"] = robot()
        if options.insulin:
            kept["shares"]["insulin, 100,257 rows"] = insulin(options.insulin)
    if options.run or options.times:
        kept["seconds"] = times()
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    chosen = [
        {"log": name} | next(row for row in rows if row["nominal"] == SHARE)
        for name, rows in kept["shares"].items()
    ]
    print(Table(f"share of new states that are covered, nominal {SHARE:g}", tuple(chosen)))
    seconds = ({"what": name} | values for name, values in kept["seconds"].items())
    print("", Table(f"{ROWS:,} rows of {COLUMNS} columns", tuple(seconds)), sep="\n")
    with matplotlib.style.context(STYLE):
        save_figure(draw(kept["shares"]), PICTURE)


if __name__ == "__main__":
    main()
