"""Does the summary of a log cover new states as promised, and how long does it take?

    python benchmarks/coverage.py                    treatment logs, and times on made-up rows
    python benchmarks/coverage.py --insulin FOLDER   also NeoRL-2's Simglucose-high

Shares are of states of new episodes; intervals are 95 %, by a bootstrap of whole episodes, and for
treatment of whole logs. Times are for 100,000 rows of 31 columns.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from fat2thin import data
from fat2thin.data.coverage import SHARE, summarise_states
from fat2thin.data.nearest_cases import LoggedCases
from fat2thin.tables import Table

LOGS = 20
ROWS, COLUMNS, QUERIES = 100_000, 31, 1000


def interval(covered: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Return the covered share with its interval, from counts per cluster."""
    draw = np.random.default_rng(0)
    places = draw.integers(len(rows), size=(10_000, len(rows)))
    low, high = np.quantile(covered[places].sum(axis=1) / rows[places].sum(axis=1), (0.025, 0.975))
    return {"covered": covered.sum() / rows.sum(), "low": low, "high": high}


def treatment(name: str) -> dict[str, object]:
    shares = []
    for seed in range(LOGS):
        fresh = data.load(f"{name}@200", seed=1000 + seed)
        distance = summarise_states(data.load(name, seed)).distance(fresh.observation)
        shares.append(np.sum(distance <= 1.0))
    rows = np.full(LOGS, fresh.rows)
    return {"log": f"{name}, {LOGS} logs", **interval(np.asarray(shares), rows)}


def insulin(folder: Path) -> dict[str, object]:
    train, fresh = (
        data.load(str(folder / f"Simglucose-high-{part}.npz"))
        for part in ("100000-train", "20000-val")
    )
    inside = summarise_states(train).distance(fresh.observation) <= 1.0
    covered = np.add.reduceat(inside.astype(float), fresh.episode_start)
    return {"log": "insulin", **interval(covered, np.diff(fresh.episode_start, append=fresh.rows))}


def times() -> list[dict[str, object]]:
    draw = np.random.default_rng(0)
    seen = draw.normal(size=(ROWS, COLUMNS)) @ draw.normal(size=(COLUMNS, COLUMNS))
    log = data.Dataset.from_arrays(
        seen, draw.uniform(-1, 1, ROWS), np.zeros(ROWS), episode=np.arange(ROWS) // 200,
        next_observation=seen, action_low=-1, action_high=1,
    )  # fmt: skip
    began = time.perf_counter()
    cases = LoggedCases(log, summarise_states(log))
    summary = time.perf_counter() - began
    began = time.perf_counter()
    cases.nearest(seen[:QUERIES] + 0.1)
    queries = time.perf_counter() - began
    return [
        {"what": "summary", "seconds": summary},
        {"what": f"{QUERIES:,} queries", "seconds": queries},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--insulin", type=Path, help="folder with the two files of Simglucose-high")
    folder = parser.parse_args().insulin
    rows = [treatment(f"treatment/{reward}") for reward in ("cubic", "quadratic")]
    rows += [insulin(folder)] if folder else []
    print(Table(f"share of new states that are covered, nominal {SHARE:g}", tuple(rows)))
    print(Table(f"{ROWS:,} rows of {COLUMNS} columns", tuple(times())))


if __name__ == "__main__":
    main()
