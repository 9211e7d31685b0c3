"""Are critics better with targets clipped to the returns that the rewards allow (`clip_targets`)?

    python benchmarks/clip_targets.py          prints the table from docs/results/clip_targets.json
    python benchmarks/clip_targets.py --run    trains FtTPO with and without, on a large GPU

Four kinds of logs: the treatment task (1,200 rows, automatic settings), the same logs with rewards
shifted below zero, and three regenerated robot data sets (looked for in the folder that
FAT2THIN_DATA names) with standardised observations, `reward_scale="deviation"`, a closed form that
keeps 60 % and temperature 1. The score of a robot is the mean of the last two evaluations.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin import data
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.settings.spec import choose_spec
from fat2thin.tables import Table
from fat2thin.training import execute, make_spec

RESULTS = Path("docs/results/clip_targets.json")
TREATMENTS = ("treatment/quadratic", "treatment/cubic")
SHIFTS = (0.0, -10.0, -100.0)
ROBOTS = ("halfcheetah-medium-expert", "hopper-medium-replay", "walker2d-medium")
SEEDS = range(100, 120)
ROBOT_STEPS, ROBOT_SEEDS = 100_000, 5


def shifted(name: str, seed: int, shift: float) -> data.Dataset:
    log = data.load(name, seed)
    return dataclasses.replace(log, reward=(log.reward + shift).astype(np.float32))


def treatment_scores(name: str, shift: float, clip: bool) -> list[float]:
    """Return the mean return of each seed's policy as it acts, on the unshifted task."""
    load = functools.partial(shifted, shift=shift)
    spec, _ = choose_spec(
        "fttpo", name, None, {"clip_targets": clip}, load,
        seeds=SEEDS, episodes=500, evaluate_every=1500, steps=6000, centre_values=False,
    )  # fmt: skip
    run = execute(spec, load=load)
    return np.mean(run.evaluations.last()["actor_sampled"].returns, axis=-1).tolist()


def robot_scores(name: str, clip: bool) -> list[float]:
    """Return the score of each seed's policy as it acts."""
    settings = {"actor_loss": "closed_form", "kept_mass": 0.6, "temperature": 1.0}
    spec = make_spec(
        "fttpo", f"regenerated/{name}", steps=ROBOT_STEPS, seeds=ROBOT_SEEDS,
        settings={**settings, "clip_targets": clip}, standardise=True, reward_scale="deviation",
        evaluate_every=ROBOT_STEPS // 2, episodes=5, log_every=2500,
    )  # fmt: skip
    scores = execute(spec).evaluations["actor_sampled"].measures["score"]
    return np.mean(scores[-2:], axis=0).tolist()


def measure() -> Iterator[dict[str, Any]]:
    for name in TREATMENTS:
        for shift in SHIFTS:
            kind = f"rewards {shift:+g}" if shift else "as it is"
            for clip in (False, True):
                scores = treatment_scores(name, shift, clip)
                yield {"log": name, "kind": kind, "clip": clip, "scores": scores}
    for name in ROBOTS:
        for clip in (False, True):
            scores = robot_scores(name, clip)
            yield {"log": f"regenerated/{name}", "kind": "as it is", "clip": clip, "scores": scores}


def table(rows: list[dict[str, Any]]) -> Table:
    """Return one row per log, with 95 % intervals over seeds."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        cells = found.setdefault((row["log"], row["kind"]), {"log": row["log"], "": row["kind"]})
        interval = seed_interval(np.asarray(row["scores"])[:, None])
        column = "clipped" if row["clip"] else "not clipped"
        cells[column] = f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    return Table("FtTPO as it acts: return (treatment) or score (robots)", tuple(found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="train again and replace the data")
    if parser.parse_args().run:
        rows = list(measure())
        RESULTS.write_text(json.dumps({"rows": rows}, separators=(",", ":")))
    print(table(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()
