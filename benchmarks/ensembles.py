"""Which combination of seeds is best, against a single seed, on treatment logs of 1,200 rows?

    python benchmarks/ensembles.py                prints the table from docs/results/ensembles.json
    python benchmarks/ensembles.py --logs 10      trains again: FtTPO, automatic settings, 5 seeds
    python benchmarks/ensembles.py --robots       trains on three robots again (extra mujoco)

Every log is one file that all seeds learn from. Returns are means over 1,000 fresh patients, the
same for every policy; brackets are 95 % bootstrap intervals over logs. "disjoint" is the share of
logged states in which the bands of the seeds have no action in common.

The robots are regenerated/ROBOT-medium, one log each, in the folder that FAT2THIN_DATA names:
`fat2thin data make regenerated/hopper-medium --seed 12` makes one. FtTPO has automatic settings,
five seeds and 100,000 updates, on a GPU. Scores are D4RL's, of 20 episodes with the same starts for
every policy; brackets are 95 % bootstrap intervals over episodes, so they do not include the
variation of logs.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fat2thin
from fat2thin import data
from fat2thin.data.formats import d4rl
from fat2thin.envs import treatment
from fat2thin.evaluation.gymnasium_tasks import judge_for
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies.ensemble import RULES
from fat2thin.policies.policy import Centred, Sampled
from fat2thin.tables import Table

RESULTS = Path("docs/results/ensembles.json")
REWARDS = ("cubic", "quadratic")
SEEDS, STEPS, PATIENTS = 5, 2500, 1000
ROBOTS = tuple(f"regenerated/{robot}-medium" for robot in ("halfcheetah", "hopper", "walker2d"))
ROBOT_STEPS, EPISODES = 100_000, 20
ONE, APART = "one seed", ("disjoint", "disagreement")


def measure(reward: str, seed: int) -> dict[str, float]:
    """Return mean returns by policy and way of acting, and how far the seeds agree."""
    name = f"treatment/{reward}"
    log, task = data.load(name, seed), treatment.by_name(name)
    options = {"steps": STEPS, "seeds": SEEDS, "settings_from": "auto", "task": "none"}
    options["holdout"] = 0.0
    run = fat2thin.train("fttpo", log, **options)

    def score(policy: fat2thin.policies.Policy, way: type) -> float:
        found = treatment.rollout(jax.random.key(1), way(policy), task, PATIENTS)
        return float(found.returns.mean())

    found = {}
    for way in (Sampled, Centred):
        of_seeds = [score(run.policy(one), way) for one in run.spec.seeds]
        found[f"one seed, {way.__name__.lower()}"] = float(np.mean(of_seeds))
        for rule in RULES:
            combined = run.policy(ensemble=rule)
            found[f"{rule}, {way.__name__.lower()}"] = score(combined, way)
    agreed = combined.agreement(log.observation)
    found["disjoint"] = float(np.mean(~np.asarray(agreed.overlap)))
    found["disagreement"] = float(np.mean(agreed.disagreement))
    return found


def measure_robot(name: str) -> dict[str, Any]:
    """Return the scores of all episodes by policy and way of acting, and how far seeds agree."""
    run = fat2thin.train("fttpo", name, steps=ROBOT_STEPS, seeds=SEEDS, task="none")
    policies = {rule: run.policy(ensemble=rule) for rule in RULES}
    judge, key = judge_for(name), jax.random.key(1)[None]
    assert judge is not None and judge.scale is not None
    scale = judge.scale

    def scores(policy: fat2thin.policies.Policy) -> dict[str, np.ndarray]:
        stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], policy)
        found = judge.judge({"it": stacked}, key, EPISODES)
        ways = {"sampled": "it_sampled", "centred": "it_centre"}
        return {
            way: d4rl.score(scale, np.asarray(found[it].returns)[0]) for way, it in ways.items()
        }

    of_seeds = [scores(run.policy(seed)) for seed in run.spec.seeds]
    found: dict[str, Any] = {}
    for way in ("sampled", "centred"):
        found[f"{ONE}, {way}"] = np.mean([one[way] for one in of_seeds], axis=0).tolist()
    for rule, policy in policies.items():
        found |= {f"{rule}, {way}": one.tolist() for way, one in scores(policy).items()}
    judge.close()
    seen = data.load(name).observation
    agreed = policies["consensus"].agreement(seen[:: max(1, len(seen) // 5000)])
    apart = ~np.asarray(agreed.overlap), np.asarray(agreed.disagreement)
    return found | dict(zip(APART, map(float, map(np.mean, apart)), strict=True))


def table(title: str, columns: dict[str, np.ndarray], apart: dict[str, float]) -> Table:
    """Return a table of one row per policy; `columns` are its returns by log or by episode."""

    def row(name: str) -> dict[str, object]:
        values, way = columns[name], name.partition(", ")[2]
        better = seed_interval((values - columns[f"{ONE}, sampled"])[:, None])
        gain = seed_interval((values - columns[f"median, {way}"])[:, None])
        interval = seed_interval(values[:, None])
        return {"policy": name, **interval._asdict(), "minus one seed": better.value,
                "from": better.low, "to": better.high,
                "minus median": gain.value, "from ": gain.low, "to ": gain.high}  # fmt: skip

    note = "disjoint {disjoint:.3f}, mean disagreement {disagreement:.3f} of the box"
    return Table(title, tuple(map(row, columns)), (note.format(**apart),))


def tables(kept: dict[str, Any]) -> Iterator[Table]:
    for reward in REWARDS:
        rows = kept[reward]
        columns = {name: np.asarray([one[name] for one in rows]) for name in rows[0]}
        apart = {name: float(np.mean(columns.pop(name))) for name in APART}
        yield table(f"treatment/{reward}, {len(rows)} logs", columns, apart)
    for robot, found in kept.get("robots", {}).items():
        columns = {name: np.asarray(found[name]) for name in found if name not in APART}
        title = f"{robot}, {SEEDS} seeds, {EPISODES} episodes"
        yield table(title, columns, {name: found[name] for name in APART})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, help="number of logs per reward: train again")
    parser.add_argument("--robots", action="store_true", help="train on robots again")
    options = parser.parse_args()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.logs is not None:
        kept |= {reward: [] for reward in REWARDS}
        for seed in range(options.logs):
            for reward in REWARDS:
                kept[reward].append(measure(reward, seed))
                RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    if options.robots:
        kept["robots"] = {}
        for name in ROBOTS:
            kept["robots"][name] = measure_robot(name)
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    for one in tables(kept):
        print(one, end="\n\n")


if __name__ == "__main__":
    main()
