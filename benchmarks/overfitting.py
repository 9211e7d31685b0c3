"""What keeps FtTPO from overfitting 1,200 logged steps, one change at a time.

Every change is tried twice: on the defaults, and on settings for small logs. A row is the actor's
mean return after 2,000 and after 6,000 updates on both treatment rewards, at a temperature of 0.5,
with the 95 % interval over seeds, each with a log of its own.

    python benchmarks/overfitting.py --json overfitting.json
    python benchmarks/overfitting.py --only small+dropout small+nothing --seeds 4
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from fat2thin.evaluation.statistics import seed_interval
from fat2thin.training import execute_together, make_spec

REWARDS = ("quadratic", "cubic")
TEMPERATURES = (0.25, 0.5, 1.0)
SHOWN = 0.5
CLOSED = {"actor_loss": "closed_form"}
FROM: dict[str, dict] = {
    "default": {"learning_rate": 3e-4},
    "small": {
        "learning_rate": 3e-4, "hidden": (32, 32), "kept_mass": 0.5, "weight_decay": 1.0, **CLOSED,
    },
}  # fmt: skip
CHANGES: dict[str, dict] = {
    "nothing": {},
    "hidden 64, 64": {"hidden": (64, 64)},
    "hidden 32, 32": {"hidden": (32, 32)},
    "hidden 16, 16": {"hidden": (16, 16)},
    "weight decay 0.1": {"weight_decay": 0.1},
    "weight decay 1": {"weight_decay": 1.0},
    "weight decay 3": {"weight_decay": 3.0},
    "weight decay 10": {"weight_decay": 10.0},
    "layer norm": {"layer_norm": True},
    "dropout 0.1": {"dropout": 0.1},
    "dropout 0.3": {"dropout": 0.3},
    "mean of 2 critics": {"critic_target": "mean"},
    "mean of 5 critics": {"critic_target": "mean", "critics": 5},
    "minimum of 5 critics": {"critics": 5},
    "actor averaged, rate 0.001": {"average_rate": 1e-3},
    "actor averaged, rate 0.01": {"average_rate": 1e-2},
    "8 samples for V and Q": {"value_samples": 8},
    "Q under the proposal": {"critic_under": "proposal"},
    "band keeps 70 %": {"kept_mass": 0.7, **CLOSED},
    "band keeps 50 %": {"kept_mass": 0.5, **CLOSED},
    "band keeps 30 %": {"kept_mass": 0.3, **CLOSED},
    "band keeps 15 %": {"kept_mass": 0.15, **CLOSED},
}


def measure(settings: dict, seeds: int) -> dict[str, list]:
    """Mean returns of the actor by reward and temperature, shape (evaluations, seeds)."""
    combinations = [(reward, tau) for reward in REWARDS for tau in TEMPERATURES]
    specs = [
        make_spec(
            "fttpo", f"treatment/{reward}", steps=6000, seeds=seeds, evaluate_every=1000,
            episodes=1000, log_every=500, settings={**settings, "temperature": tau},
        )
        for reward, tau in combinations
    ]  # fmt: skip
    runs = execute_together(specs)
    return {
        f"{reward} {tau}": run.evaluations["actor_sampled"].returns.mean(axis=-1).tolist()
        for (reward, tau), run in zip(combinations, runs, strict=True)
    }


def line(found: dict[str, list]) -> str:
    """The shown numbers of a row."""
    cells = []
    for reward in REWARDS:
        returns = np.asarray(found[f"{reward} {SHOWN}"])
        for evaluation in (2, 6):
            found_here = seed_interval(returns[evaluation][:, None])
            cells.append("{:5.2f} [{:5.2f}, {:5.2f}]".format(*found_here))
    return " | ".join(cells)


def main() -> None:
    """Measure, print the table, keep the numbers."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--only", nargs="*", help="rows, for example: small+nothing")
    asked = arguments.parse_args()
    found: dict[str, dict] = {}
    print(f"| {'change':39s} | quadratic 2,000 | 6,000 | cubic 2,000 | 6,000 |")
    for origin, base in FROM.items():
        for change, settings in CHANGES.items():
            name = f"{origin}+{change}"
            if asked.only and not any(name.startswith(one) for one in asked.only):
                continue
            begun = time.perf_counter()
            found[name] = measure({**base, **settings}, asked.seeds)
            seconds = time.perf_counter() - begun
            print(f"| {name:39s} | {line(found[name])} | {seconds:.0f} s", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
