"""Which number that a log gives ranks policies as their true returns do?

    python benchmarks/rank_policies.py                 print what was measured
    python benchmarks/rank_policies.py --train FOLDER  train ten policies on each of three robots
    python benchmarks/rank_policies.py RUN RUN ... --jobs 3
    python benchmarks/rank_policies.py RUN ... --log "{dataset}@20000"    on another log

Runs of several methods that learned from the same log are one group; each seed is one policy. For
each group, on the runs' held-out episodes (train with --holdout 0.2, and evaluate in the task):

* the signals that training computed (held_out_..., after the last update), and `validate`'s;
* what `fat2thin value` estimates, over --horizon steps, also where it would refuse to show it.

Printed are Spearman's rank correlations with the mean return of the last evaluation. For errors and
spreads, less is better, so good correlations are negative. --choose GROUP ... names groups that
choose the best number; the line below the table says how it does on the others.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats

LESS_IS_BETTER = ("td_error", "spread")
OUT, RESULTS = Path("runs/rank_policies"), Path("docs/results/rank_policies.json")
ROBOTS = ("hopper", "halfcheetah", "walker2d")
POLICIES: dict[str, tuple[str, dict[str, Any], int]] = {
    **{f"fttpo-{heat:g}": ("fttpo", {"temperature": heat, "layer_norm": False}, 5_000)
       for heat in (0.05, 0.35, 1.0, 3.0)},
    "fttpo-short": ("fttpo", {"layer_norm": False}, 1_500),
    "tawac": ("tawac", {"temperature": 0.35}, 5_000),
    **{name: (name, {}, 5_000) for name in ("awac", "iql", "td3_bc", "bc")},
}  # fmt: skip
"""Algorithm, settings and updates of the policies that are trained, with 64 x 64 networks."""


def numbers(folders: list[str], pattern: str | None, rows: int, horizon: int) -> dict[str, Any]:
    """Return the numbers of every policy of one group, and its true return."""
    import fat2thin
    from fat2thin.data.operations import keep_episodes
    from fat2thin.evaluation.held_out import SIGNALS, held_out
    from fat2thin.evaluation.unseen import training_parts
    from fat2thin.evaluation.value_rows import ask

    runs = [fat2thin.load(folder) for folder in folders]
    dataset = runs[0].spec.dataset
    if pattern is None:
        parts = training_parts(runs[0])
        if parts is None or parts.held_out is None:
            raise SystemExit(f"{folders[0]}: no held-out episodes; train with --holdout 0.2, and "
                             f"have {dataset} here, or give --log")  # fmt: skip
        log = parts.held_out
    else:
        log = fat2thin.data.load(pattern.format(dataset=dataset))
    ends = np.append(log.episode_start[1:], log.rows)
    log = keep_episodes(log, np.flatnonzero((ends <= rows) | (np.arange(ends.size) < 8)), "first")
    longest = int(np.diff(log.episode_start, append=log.rows).max())
    question = ask(log, min(horizon, longest), None, 0.95)
    found: dict[str, dict[str, float]] = {}
    for folder, run in zip(folders, runs, strict=True):
        way = next(iter(run.evaluations.policies), None)
        if way is None:
            raise SystemExit(f"{folder}: the run was not evaluated in its task")
        returns = np.mean(run.evaluations.last()[way].returns, axis=-1)
        checked = held_out(run, log)
        for place, seed in enumerate(run.spec.seeds):
            one = {name: run.metrics[name][-1][place] for name in SIGNALS if name in run.metrics}
            one |= {f"validate: {name}": of_seeds[place] for name, of_seeds in checked.items()
                    if name in VALIDATED}  # fmt: skip
            one |= estimates(question, run.policy(seed=seed))
            one["return"] = returns[place]
            found[f"{run.spec.algorithm} {folder} seed {seed}"] = {
                name: float(number) for name, number in one.items()
            }
            print(f"{dataset}: {run.spec.algorithm}, seed {seed}", file=sys.stderr, flush=True)
    return found


VALIDATED = (
    "logged_inside_support", "good_inside_support", "td_error", "weighted_log_likelihood",
    "log_likelihood",
)  # fmt: skip
"""Quantities of `validate` that policies are ranked by."""


def estimates(question: Any, policy: Any) -> dict[str, float]:
    """Return what each estimator says about a policy, refused or not."""
    from fat2thin.evaluation.value_rows import judge_policy

    judged = judge_policy(question, policy, "policy", "policy")
    low, high = question.allowed
    found = {}
    for name in ("fitted_q", "marginal", "doubly_robust", "importance"):
        one = getattr(judged.estimates, name)
        if one is not None:
            mean = float(np.mean(np.asarray(one.scores)[question.known]))
            found[f"value: {name}"] = float(np.clip(mean, low, high))
    row = judged.row
    if row.estimate is not None and row.difference_bound is not None:
        found["value: shown"] = row.estimate
        found["value: shown, lower bound of the gain"] = row.difference_bound
    return found


def correlations(found: dict[str, dict[str, float]]) -> dict[str, tuple[float, int]]:
    """Return, per number, Spearman's correlation with the return, and of how many policies."""
    names = dict.fromkeys(name for one in found.values() for name in one if name != "return")
    result = {}
    for name in names:
        pairs = [(one[name], one["return"]) for one in found.values()
                 if np.isfinite(one.get(name, np.nan))]  # fmt: skip
        x, y = np.array(pairs).reshape(-1, 2).T
        constant = len(pairs) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0
        rho = np.nan if constant else float(scipy.stats.spearmanr(x, y).statistic)
        result[name] = rho, len(pairs)
    return result


def show(groups: dict[str, dict[str, dict[str, float]]], choose: list[str]) -> None:
    """Print the table, and how the number that the chosen groups prefer does on the others."""
    tables = {group: correlations(found) for group, found in groups.items()}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    widths = [max(22, len(group)) for group in tables]
    print(f"{'rank correlation (policies)':45s}", *map(str.rjust, tables, widths), "     mean")
    means = {}
    for name in names:
        cells = [tables[group].get(name, (np.nan, 0)) for group in tables]
        rhos = [cell[0] for cell in cells]
        means[name] = float(np.mean(rhos)) if np.isfinite(rhos).all() else np.nan
        texts = (f"{rho:6.2f} ({count})" for rho, count in cells)
        print(f"{name:45s}", *map(str.rjust, texts, widths), f"   {means[name]:6.2f}")
    if not choose:
        return
    sign = {name: -1.0 if any(word in name for word in LESS_IS_BETTER) else 1.0 for name in names}

    def score(name: str, of_groups: list[str]) -> float:
        if any(tables[group].get(name, (0, 0))[1] < len(groups[group]) for group in tables):
            return -np.inf  # not known for every policy
        rhos = [sign[name] * tables[group].get(name, (np.nan, 0))[0] for group in of_groups]
        return float(np.mean(rhos)) if np.isfinite(rhos).all() else -np.inf

    others = [group for group in tables if group not in choose]
    best = max(names, key=lambda name: score(name, choose))
    print(f"\nchosen on {', '.join(choose)}: {best} ({score(best, choose):.2f}); "
          f"on {', '.join(others)}: {score(best, others):.2f}")  # fmt: skip


def train(folder: Path) -> None:
    """Train the policies on regenerated/ROBOT-medium, with held-out episodes, and evaluate them."""
    import fat2thin

    for robot in ROBOTS:
        for name, (algorithm, settings, steps) in POLICIES.items():
            own = algorithm in ("iql", "td3_bc")
            fat2thin.train(
                algorithm, f"regenerated/{robot}-medium", steps=steps, seeds=1, holdout=0.2,
                settings_from="own" if own else "large", evaluate_every=steps, episodes=20,
                hidden=(64, 64), out=folder / f"{robot}-medium" / name, **settings,
            )  # fmt: skip


def main() -> None:
    """Compute one group per process, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", help="run folders")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="train policies to rank")
    parser.add_argument("--log", help="a log by name, where {dataset} is that of the runs")
    parser.add_argument("--rows", type=int, default=20_000, help="about how many rows are used")
    parser.add_argument(
        "--horizon", type=int, default=100, help="steps that values are summed over"
    )
    parser.add_argument("--jobs", type=int, default=3, help="processes at a time")
    parser.add_argument("--choose", nargs="*", default=[], help="groups that choose the number")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the numbers")
    parser.add_argument("--group", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:
        found = numbers(options.runs, options.log, options.rows, options.horizon)
        options.group.write_text(json.dumps(found, indent=1) + "\n")
        return
    if options.train:
        train(options.train)
        return
    if not options.runs:
        show(json.loads(RESULTS.read_text()), options.choose)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    groups: dict[str, list[str]] = {}
    for folder in options.runs:
        about = json.loads((Path(folder) / "run.json").read_text())
        groups.setdefault(about["spec"]["dataset"], []).append(folder)
    files = {group: options.out / f"{group.replace('/', '-')}.json" for group in groups}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // min(options.jobs, len(groups)))
    waiting, good = list(groups), True
    running: dict[subprocess.Popen, int] = {}
    places = [*range(options.jobs)]
    while waiting or running:
        while waiting and places:
            group, place = waiting.pop(0), places.pop(0)
            command = [sys.executable, __file__, *groups[group], "--group", str(files[group])]
            command += ["--rows", str(options.rows), "--horizon", str(options.horizon)]
            command += ["--log", options.log] if options.log else []
            process = subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"})
            own = {cores[(place * share + core) % len(cores)] for core in range(share)}
            os.sched_setaffinity(process.pid, own)
            running[process] = place
        process = next(iter(running))
        good &= process.wait() == 0
        places.append(running.pop(process))
    if not good:
        sys.exit("some groups failed: see above")
    read = {group: json.loads(file.read_text()) for group, file in files.items()}
    show(read, options.choose)


if __name__ == "__main__":
    main()
