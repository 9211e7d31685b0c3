"""Which combination of seeds is best, against a single seed, on treatment logs of 1,200 rows?

    python benchmarks/ensembles.py                prints the table from docs/results/ensembles.json
    python benchmarks/ensembles.py --logs 10      trains again: FtTPO, automatic settings, 5 seeds

Every log is one file that all seeds learn from. Returns are means over 1,000 fresh patients, the
same for every policy; brackets are 95 % bootstrap intervals over logs. "disjoint" is the share of
logged states in which the bands of the seeds have no action in common.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

import fat2thin
from fat2thin import data
from fat2thin.envs import treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies.ensemble import RULES
from fat2thin.policies.policy import Centred, Sampled
from fat2thin.tables import Table

RESULTS = Path("docs/results/ensembles.json")
REWARDS = ("cubic", "quadratic")
SEEDS, STEPS, PATIENTS = 5, 2500, 1000


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


def table(reward: str, rows: list[dict[str, float]]) -> Table:
    def row(name: str) -> dict[str, object]:
        values = np.asarray([one[name] for one in rows])
        way = name.partition(", ")[2]
        better = seed_interval((values - [one["one seed, sampled"] for one in rows])[:, None])
        gain = seed_interval((values - [one[f"median, {way}"] for one in rows])[:, None])
        interval = seed_interval(values[:, None])
        return {"policy": name, **interval._asdict(), "minus one seed": better.value,
                "from": better.low, "to": better.high,
                "minus median": gain.value, "from ": gain.low, "to ": gain.high}  # fmt: skip

    names = [name for name in rows[0] if name not in ("disjoint", "disagreement")]
    apart = {
        name: float(np.mean([one[name] for one in rows])) for name in ("disjoint", "disagreement")
    }
    note = "disjoint {disjoint:.3f}, mean disagreement {disagreement:.3f} of the box".format(
        **apart
    )
    return Table(f"treatment/{reward}, {len(rows)} logs", tuple(map(row, names)), (note,))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, help="number of logs per reward: train again")
    logs = parser.parse_args().logs
    if logs is not None:
        found: dict[str, list] = {reward: [] for reward in REWARDS}
        for seed in range(logs):
            for reward in REWARDS:
                found[reward].append(measure(reward, seed))
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for reward, rows in json.loads(RESULTS.read_text()).items():
        print(table(reward, rows), end="\n\n")


if __name__ == "__main__":
    main()
