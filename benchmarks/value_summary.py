"""Coverage, false claims and refusals from the numbers of every log, for `benchmarks/value.py`."""

import dataclasses
import functools
from typing import Any

import numpy as np
import scipy.stats

from fat2thin.evaluation import refusal
from fat2thin.evaluation.value_rows import ORDER
from fat2thin.tables import Table
from value_cases import Case
from value_log import Truth
from value_study import ASSUMPTIONS, CONFIDENCE, ESTIMATORS, EVIDENCE

FALSE_ALARM = 0.05
"""Of the whole table: each binomial test has this divided by the number of tests."""
SENSITIVITY = "sensitivity"
"""The marginal estimate in the worst case of the Γ that is true."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One estimator's numbers for one policy, over all logs of one size."""

    value: np.ndarray  # (logs, 4): estimate, low, high, one-sided lower bound
    difference: np.ndarray
    evidence: dict[str, np.ndarray]
    refused: np.ndarray  # (logs,) bool


def cells_of(case: Case, rows: int, raw: dict[str, np.ndarray]) -> dict[tuple[str, str], Cell]:
    """Return the cells of all policies and estimators, and of the estimator that is shown."""
    found = {}
    names = raw["policies"].tolist()
    for place, policy in enumerate(names):
        for kind, estimator in enumerate(ESTIMATORS):
            evidence = dict(zip(EVIDENCE, raw["facts"][:, place, kind].T, strict=True))
            evidence |= dict(zip(ASSUMPTIONS, raw["assumptions"].T, strict=True))
            value, difference = raw["value"][:, place, kind], raw["difference"][:, place, kind]
            low, high = evidence["low"][:, None], evidence["high"][:, None]
            refused = refusals(estimator, value[:, 0], evidence, case.episodes(rows))
            cell = Cell(
                np.clip(value, low, high),
                np.clip(difference, low - high, high - low),
                evidence,
                refused,
            )
            found[policy, estimator] = cell
        # As in `value`: the first that is not refused.
        of_policy = [found[policy, estimator] for estimator in ORDER]
        order = np.argmin([cell.refused for cell in of_policy], axis=0)
        pick = functools.partial(_pick, of_policy, order)
        if "lost" in raw:
            found[policy, SENSITIVITY] = worst(found[policy, "marginal"], raw["lost"][:, place])
        found[policy, "shown"] = Cell(pick("value"), pick("difference"), {}, pick("refused"))
    return found


def worst(cell: Cell, lost: np.ndarray) -> Cell:
    """Return a cell with lower ends that hold in the worst case; its upper ends are not lowered."""
    ends = np.stack([lost, lost, np.zeros_like(lost), lost], axis=1)
    return dataclasses.replace(cell, value=cell.value - ends, difference=cell.difference - ends)


def _pick(cells: list[Cell], order: np.ndarray, field: str) -> np.ndarray:
    stacked = np.stack([getattr(cell, field) for cell in cells])
    return stacked[order, np.arange(len(order))]


def refusals(
    estimator: str, estimates: np.ndarray, evidence: dict[str, np.ndarray], episodes: int
) -> np.ndarray:
    """Return which estimates `fat2thin value` refuses."""
    # The other two are judged by the rules of the marginal estimator.
    rule, found = estimator if estimator in ORDER else "marginal", []
    for number, estimate in enumerate(estimates):
        facts = {name: float(of_logs[number]) for name, of_logs in evidence.items()}
        one = refusal.Evidence(
            estimate=float(estimate),
            allowed=(facts["low"], facts["high"]),
            episodes=episodes,
            effective=(facts["least_effective"],),
            surviving=(facts["surviving"],),
            clipped=facts["clipped"],
            cut=facts["cut"],
            steps=(facts["logged_steps"], facts["steps_by_states"]),
            before=facts["before"],
        )
        found.append(refusal.reason(rule, one) is not None)
    return np.array(found)


def summary(
    case: Case, rows: int, raw: dict[str, np.ndarray], truths: dict[str, Truth]
) -> list[dict[str, Any]]:
    """Return one row per policy and estimator, and one for logged practice."""
    practice, found = truths["practice"].value, []
    given = {"case": case.name, "half": case.half, "rows": rows, "logs": len(raw["practice"])}
    numbers = raw["practice"]
    few = refusal.too_few_episodes(case.episodes(rows)) is not None
    nothing = Cell(numbers, np.zeros_like(numbers), {}, np.full(len(numbers), few))
    found.append(
        given | {"policy": "practice", "estimator": "returns"} | row_of(nothing, practice, 0)
    )
    for (policy, estimator), cell in cells_of(case, rows, raw).items():
        gain = truths[policy].value - practice
        row = row_of(cell, truths[policy].value, gain)
        found.append(given | {"policy": policy, "estimator": estimator} | row)
    return found


def row_of(cell: Cell, truth: float, gain: float) -> dict[str, Any]:
    kept = ~cell.refused
    value, difference = cell.value[kept], cell.difference[kept]
    inside = (value[:, 1] <= truth) & (truth <= value[:, 2])
    within = (difference[:, 1] <= gain) & (gain <= difference[:, 2])
    claims = int(np.sum(difference[:, 3] > 0))
    return {
        "truth": truth, "gain": gain, "kept": int(kept.sum()),
        "bias": _mean(value[:, 0] - truth), "deviation": _mean(np.abs(value[:, 0] - truth)),
        "width": _mean(value[:, 2] - value[:, 1]),
        "covered": int(inside.sum()), "bounded": int(np.sum(value[:, 3] <= truth)),
        "difference_covered": int(within.sum()),
        "difference_bounded": int(np.sum(difference[:, 3] <= gain)),
        "claims": claims, "false_claims": claims if gain <= 0 else 0,
    }  # fmt: skip


def _mean(values: np.ndarray) -> float | None:
    return float(np.mean(values)) if values.size else None


COUNTS = ("covered", "bounded", "difference_covered", "difference_bounded")


Test = tuple[dict[str, Any], str, float]


def failures(rows: list[dict[str, Any]]) -> list[Test]:
    """Return the rows whose coverage, or false claims, a binomial test tells from what is promised.

    The level is `FALSE_ALARM` divided by the number of tests (Bonferroni).
    """
    every = tests(rows)
    return [test for test in every if test[2] < FALSE_ALARM / len(every)]


def tests(rows: list[dict[str, Any]]) -> list[Test]:
    """Return the row, the count and the p-value of each test."""
    found: list[Test] = []
    for row in rows:
        if row["kept"]:
            for count in COUNTS[: 2 if row["policy"] == "practice" else 4]:
                test = scipy.stats.binomtest(row[count], row["kept"], CONFIDENCE, "less")
                found.append((row, count, float(test.pvalue)))
        if row["gain"] < 0:
            many = scipy.stats.binomtest(row["claims"], row["logs"], 1 - CONFIDENCE, "greater")
            found.append((row, "false_claims", float(many.pvalue)))
    return found


def table(rows: list[dict[str, Any]], case: str) -> Table:
    """Return the table of one case."""
    shown = []
    for row in rows:
        if row["case"] == case:
            kept = row["kept"]
            shown.append(
                {"rows": row["rows"], "policy": row["policy"], "estimator": row["estimator"],
                 "truth": row["truth"], "refused": 1 - kept / row["logs"]}
                | {name: np.nan if row[name] is None else row[name] for name in ("bias", "width")}
                | {name: row[name] / kept if kept else np.nan for name in COUNTS}
                | {"claims": row["claims"] / row["logs"],
                   "false": row["false_claims"] / row["logs"]}
            )  # fmt: skip
    return Table(case, tuple(shown))


LEAST_KEPT = 50  # estimates below which a policy has no coverage in the overview


def overview(rows: list[dict[str, Any]]) -> Table:
    """Return a line per case, size and estimator: the worst policy of each."""
    shown, cells = [], [(row["case"], row["rows"]) for row in rows]
    for case, size in dict.fromkeys(cells):
        for estimator in ("returns", *ESTIMATORS, SENSITIVITY):
            own = [row for row, cell in zip(rows, cells, strict=True)
                   if cell == (case, size) and row["estimator"] == estimator]  # fmt: skip
            logs = own[0]["logs"] if own else 0
            known = [row for row in own if row["kept"] >= min(LEAST_KEPT, max(1, logs))]
            if not known:
                continue
            line: dict[str, Any] = {"case": case, "rows": size, "logs": logs}
            line |= {"estimator": estimator, "policies": f"{len(known)} of {len(own)}"}
            line |= {name.replace("_", " "): min(row[name] / row["kept"] for row in known)
                     for name in COUNTS}  # fmt: skip
            line["false claims"] = max(row["false_claims"] / logs for row in own)
            line["bias"] = max((row["bias"] for row in known), key=abs)
            line["width"] = float(np.mean([row["width"] for row in known]))
            shown.append(line)
    note = (
        f"the lowest coverage among policies with {LEAST_KEPT} estimates that are kept (all, of "
        "fewer logs), their largest bias, and the mean width of their intervals"
    )
    return Table("coverage, by the worst policy", tuple(shown), (note,))


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return, per half and estimator, whether the binomial tests pass, and each one that fails."""
    lines = []
    for half in ("fix", "test"):
        for estimator in ("returns", *ESTIMATORS, "shown"):
            own = [row for row in rows if row["half"] == half and row["estimator"] == estimator]
            failed = failures(own)
            kept = sum(row["kept"] for row in own) / max(1, sum(row["logs"] for row in own))
            word = "FAILS" if failed else "passes" if kept else "shows nothing"
            lines.append(f"{half:5} {estimator:14} {word}: {len(failed)} of {len(tests(own))} "
                         f"tests fail, {100 * kept:.0f} % of the estimates are kept")  # fmt: skip
            for row, count, chance in failed:
                of = row["logs"] if count == "false_claims" else row["kept"]
                name = "claims" if count == "false_claims" else count
                lines.append(f"      {row['case']} {row['policy']}, {row['rows']} rows: {count} "
                             f"{row[name]} of {of} (p = {chance:.1e})")  # fmt: skip
    return lines


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the overview and the verdicts for the documentation."""
    names = {"covered": "value", "bounded": "lower bound", "difference covered": "difference",
             "difference bounded": "its bound"}  # fmt: skip
    lines = overview(rows).rows
    if not lines:
        return "Nothing was measured.\n"
    head = [names.get(name, name) for name in lines[0]]
    made = [f"| {' | '.join(head)} |", "|---" * 2 + "|---:" * (len(head) - 2) + "|"]
    for line in lines:
        cells = [f"{cell:.3f}" if isinstance(cell, float) else f"{cell:,}"
                 if isinstance(cell, int) else str(cell) for cell in line.values()]  # fmt: skip
        if line["estimator"] == "returns":
            cells[-5:-2] = ["–"] * 3
        made.append(f"| {' | '.join(cells)} |")
    tests_of = "\n".join(f"    {line}" for line in verdicts(rows))
    return "\n".join(made) + f"\n\nThe binomial tests:\n\n{tests_of}\n"


def show(rows: list[dict[str, Any]], whole: bool = True) -> None:
    """Print all tables and the tests."""
    print(f"{overview(rows)}\n")
    for case in dict.fromkeys(row["case"] for row in rows if whole):
        print(f"{table(rows, case)}\n")
    print("\n".join(verdicts(rows)))
