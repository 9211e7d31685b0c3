"""By which rules should estimates be refused? Fixed on half of the cases, tested on the other half.

    python benchmarks/value_rules.py --raw runs/value/raw

Reads what `benchmarks/value.py --run` kept of every log. For each estimator it tries all rules of a
grid (`GRID`) on the cases marked "fix", and takes the one that keeps most estimates among those
where no binomial test tells coverage from 95 % or false claims from 5 %. It applies that one, once,
to the cases marked "test".
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.evaluation import refusal
from value import LOGS, Part, raw_numbers
from value_cases import Case, cases
from value_log import Truth
from value_study import ESTIMATORS, EVIDENCE
from value_summary import Cell, failures, row_of

GRID = {
    "episodes": (8, 20, 40, 80),
    "least_effective": (5.0, 10.0, 20.0, 30.0, 50.0, 80.0),
}
"""At least this number of episodes, and at least this effective sample size. Both depend on states
and actions alone: a rule that depends on rewards keeps the logs that happen to look precise."""


class Numbers:
    """The numbers of one estimator, one policy, one size of log and one case."""

    def __init__(self, case: Case, rows: int, raw: dict[str, np.ndarray], truth: tuple) -> None:
        place, kind, self.truth, self.gain = truth
        self.facts = dict(zip(EVIDENCE, raw["facts"][:, place, kind].T, strict=True))
        low, high = self.facts["low"][:, None], self.facts["high"][:, None]
        value = raw["value"][:, place, kind]
        self.value = np.clip(value, low, high)
        self.difference = np.clip(raw["difference"][:, place, kind], low - high, high - low)
        self.episodes = case.episodes(rows)
        self.given = {"case": case.name, "rows": rows, "logs": len(value), "half": case.half}
        self.policy = raw["policies"].tolist()[place]
        outside = ~np.isfinite(value[:, 0]) | (value[:, 0] < low[:, 0]) | (value[:, 0] > high[:, 0])
        self.always = outside | (self.facts["clipped"] > refusal.MOST_CLIPPED)
        if ESTIMATORS[kind] in ("marginal", "estimated"):
            logged, by_states, before = raw["assumptions"].T
            self.always |= before > refusal.MOST_BEFORE
            self.always |= np.abs(by_states - logged) > refusal.MOST_APART * logged

    def row(self, rule: dict[str, float], importance: bool) -> dict[str, Any]:
        """Return the summary of what a rule keeps."""
        refused = self.always | (self.facts["least_effective"] < rule["least_effective"])
        refused |= self.episodes < rule["episodes"]
        if importance:
            refused |= self.facts["cut"] > 0
        cell = Cell(self.value, self.difference, {}, refused)
        return self.given | {"policy": self.policy} | row_of(cell, self.truth, self.gain)


def parts(folder: Path, estimator: str) -> list[Numbers]:
    """Return all parts that were measured."""
    found, kind = [], ESTIMATORS.index(estimator)
    for case in cases().values():
        known = folder / Part(case.name, 0).file
        if case.half == "hidden" or not known.exists():
            continue
        truths = {name: Truth(*one) for name, one in json.loads(known.read_text()).items()}
        for rows in LOGS:
            raw = raw_numbers(folder, case, rows)
            if raw is None:
                continue
            for place, policy in enumerate(raw["policies"].tolist()):
                value = truths[policy].value
                truth = place, kind, value, value - truths["practice"].value
                found.append(Numbers(case, rows, raw, truth))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--raw", type=Path, default=Path("runs/value/raw"))
    options = parser.parse_args()
    for estimator in ESTIMATORS:
        every = parts(options.raw, estimator)
        halves = {half: [one for one in every if one.given["half"] == half]
                  for half in ("fix", "test")}  # fmt: skip
        best: tuple[int, dict[str, float]] | None = None
        for numbers in itertools.product(*GRID.values()):
            rule = dict(zip(GRID, numbers, strict=True))
            rows = [one.row(rule, estimator == "importance") for one in halves["fix"]]
            kept = sum(row["kept"] for row in rows)
            if kept and not failures(rows) and (best is None or kept > best[0]):
                best = kept, rule
        print(f"{estimator}: ", end="")
        if best is None:
            print("no rule of the grid passes")
            continue
        print(", ".join(f"{name} {number:g}" for name, number in best[1].items()))
        for half, of_half in halves.items():
            rows = [one.row(best[1], estimator == "importance") for one in of_half]
            kept = sum(row["kept"] for row in rows) / max(1, sum(row["logs"] for row in rows))
            failed = failures(rows)
            print(f"    {half}: keeps {kept:.2f}, {len(failed)} failed tests")
            for row, count, chance in failed:
                print(f"        {row['case']} {row['policy']} {row['rows']}: {count} of "
                      f"{row['kept']} (p = {chance:.1e})")  # fmt: skip


if __name__ == "__main__":
    main()
