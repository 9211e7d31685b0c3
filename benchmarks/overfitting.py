"""Measure which settings keep FtTPO from overfitting 1,200 logged steps, one change at a time.

Every change is tried twice: from the default settings (with temperature 0.5) and from the settings
for small logs. A row has the actor's mean return after 2,000 and after 6,000 updates on both
treatment rewards, with the 95 % interval over seeds, each with its own log.

    python benchmarks/overfitting.py --json overfitting.json
    python benchmarks/overfitting.py --only "small+hidden" "small+nothing" --seeds 4

docs/guides/small_logs.md describes more changes, which did not help and were removed from the
package. It names the commit with their code.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.evaluation.statistics import seed_interval
from fat2thin.training import execute_together, make_spec

REWARDS = ("quadratic", "cubic")
CLOSED = {"actor_loss": "closed_form"}
USUAL: dict[str, Any] = {"temperature": 0.5}
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "hidden 256, 256": {"hidden": (256, 256)},
    "hidden 64, 64": {"hidden": (64, 64)},
    "hidden 32, 32": {"hidden": (32, 32)},
    "hidden 16, 16": {"hidden": (16, 16)},
    "no weight decay": {"weight_decay": 0.0},
    "weight decay 0.1": {"weight_decay": 0.1},
    "weight decay 1": {"weight_decay": 1.0},
    "weight decay 3": {"weight_decay": 3.0},
    "weight decay 10": {"weight_decay": 10.0},
    "Q under the proposal": {"critic_under": "proposal"},
    "band keeps 81 % (least KL)": {"kept_mass": None, **CLOSED},
    "band keeps 70 %": {"kept_mass": 0.7, **CLOSED},
    "band keeps 50 %": {"kept_mass": 0.5, **CLOSED},
    "band keeps 30 %": {"kept_mass": 0.3, **CLOSED},
    "band keeps 15 %": {"kept_mass": 0.15, **CLOSED},
}


def measure(origin: str, change: dict[str, Any], seeds: int) -> dict[str, list]:
    """Return the actor's mean returns by reward, each with shape (evaluations, seeds)."""
    settings = {**(USUAL if origin == "default" else {}), **change}
    specs = [
        make_spec(
            "fttpo", f"treatment/{reward}", steps=6000, seeds=seeds, evaluate_every=2000,
            episodes=1000, log_every=500, settings=settings, settings_from=origin,
        )
        for reward in REWARDS
    ]  # fmt: skip
    return {
        reward: run.evaluations["actor_sampled"].returns.mean(axis=-1).tolist()
        for reward, run in zip(REWARDS, execute_together(specs), strict=True)
    }


def line(found: dict[str, list]) -> str:
    """Return the cells of a row."""
    return " | ".join(
        "{:5.2f} [{:5.2f}, {:5.2f}]".format(*seed_interval(np.asarray(returns[place])[:, None]))
        for returns in found.values()
        for place in (1, 3)
    )


def main() -> None:
    """Measure, print the table, and write the numbers if --json is given."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--only", nargs="*", help="prefixes of row names, as small+nothing")
    asked = arguments.parse_args()
    found: dict[str, dict] = {}
    print("| change | quadratic 2,000 | 6,000 | cubic 2,000 | 6,000 |")
    for origin in ("default", "small"):
        for change, settings in CHANGES.items():
            name = f"{origin}+{change}"
            if asked.only and not any(name.startswith(one) for one in asked.only):
                continue
            begun = time.perf_counter()
            found[name] = measure(origin, settings, asked.seeds)
            seconds = time.perf_counter() - begun
            print(f"| {name:35s} | {line(found[name])} | {seconds:.0f} s", flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
