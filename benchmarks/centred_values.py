"""How FtTPO's automatic settings were chosen: centred values, temperature, band and networks.

    python benchmarks/centred_values.py          prints the tables from docs/results
    python benchmarks/centred_values.py --run    trains everything again (treatment: minutes on 16
                                                 cores; robots: a large GPU, data in FAT2THIN_DATA)

Treatment: logs of 1,200 steps (seeds 0 to 9), other settings as for small noisy logs, with a number
added to every reward (`shift`). Robots: 100,000 updates, seeds 0 to 4, scaled logs; a score is the
mean of the evaluations after half of the updates and all of them.
"""

import argparse
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin import data
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.settings.spec import choose_spec, make_spec
from fat2thin.tables import Table
from fat2thin.training import execute

RESULTS = Path("docs/results/centred_values.json")
EVERY, SHOWN = 500, (500, 1000, 2500, 4000, 6000)


def shifted(name: str, seed: int, shift: float) -> data.Dataset:
    log = data.load(name, seed)
    return dataclasses.replace(log, reward=(log.reward + shift).astype(np.float32))


def train_treatment(row: dict[str, Any]) -> dict[str, Any]:
    load = functools.partial(shifted, shift=row["shift"])
    spec, _ = choose_spec(
        "fttpo", row["log"], None, row["settings"], load, seeds=range(10), episodes=500,
        evaluate_every=EVERY, steps=6000, centre_values=row["centre_values"],
    )  # fmt: skip
    returns = np.mean(execute(spec, load=load).evaluations["actor_sampled"].returns, axis=-1)
    return {**row, "means": returns.mean(axis=1).tolist(), "scores": returns[-1].tolist()}


def train_robot(row: dict[str, Any]) -> dict[str, Any]:
    settings = {name: tuple(v) if name == "hidden" else v for name, v in row["settings"].items()}
    spec = make_spec(
        "fttpo", row["log"], steps=100_000, seeds=5, settings=settings, standardise=True,
        reward_scale="deviation", centre_values=row["centre_values"], evaluate_every=50_000,
        episodes=5, log_every=2500,
    )  # fmt: skip
    scores = execute(spec).evaluations["actor_sampled"].measures["score"]
    return {**row, "scores": np.mean(scores[-2:], axis=0).tolist()}


def tables(found: dict[str, list[dict[str, Any]]]) -> list[Table]:
    treatment = [
        {**_setting(row), "shift": row["shift"]}
        | {f"{step:,}": f"{row['means'][step // EVERY]:.2f}" for step in SHOWN}
        for row in found["treatment"]
    ]
    robots = []
    for row in found["robots"]:
        score = seed_interval(np.asarray(row["scores"])[:, None])
        cell = f"{score.value:.1f} [{score.low:.0f}, {score.high:.0f}]"
        robots.append({**_setting(row), "score": cell})
    return [
        Table("Treatment: mean return as it acts, by updates", tuple(treatment)),
        Table("Robots: score as it acts, 95 % bootstrap intervals over seeds", tuple(robots)),
    ]


def _setting(row: dict[str, Any]) -> dict[str, Any]:
    words = ", ".join(f"{name}={value}" for name, value in row["settings"].items())
    return {
        "log": row["log"],
        "settings": words,
        "centred": "yes" if row["centre_values"] else "no",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="train again and replace the data")
    found = json.loads(RESULTS.read_text())
    if parser.parse_args().run:
        found = {
            "treatment": [*map(train_treatment, found["treatment"])],
            "robots": [*map(train_robot, found["robots"])],
        }
        RESULTS.write_text(json.dumps(found, separators=(",", ":")))
    for table in tables(found):
        print(table)


if __name__ == "__main__":
    main()
