"""Does a logarithm of the dose change what FtTPO learns from the insulin log?

    python benchmarks/insulin.py                   prints the table from docs/results/insulin.json
    python benchmarks/insulin.py --data FOLDER     trains again, on Simglucose-high of NeoRL-2

Doses are actions plus 1. "Large" are actions above -0.99. All numbers are means over four seeds on
the validation file, after 10,000 updates of 64 x 64 networks with `polyak_rate=0.05`.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.evaluation.held_out import held_out
from fat2thin.tables import Table
from fat2thin.training import execute, make_spec

RESULTS = Path("docs/results/insulin.json")
FILES = {"training": "Simglucose-high-100000-train", "validation": "Simglucose-high-20000-val"}
LARGE = -0.99
ACTORS: dict[str, dict[str, Any]] = {
    "learned": {},
    "95 % kept": {"actor_loss": "closed_form", "kept_mass": 0.95},
}
KEPT = (
    "logged_inside_support", "good_inside_support", "support_percent", "td_error",
    "weighted_log_likelihood", "log_likelihood", "box_binds_share", "proposal_scale",
)  # fmt: skip


def measure(folder: Path) -> list[dict[str, Any]]:
    logs = {part: data.load(str(folder / f"{name}.npz")) for part, name in FILES.items()}
    lowest = float(min(log.action.min() for log in logs.values()))
    scales = {
        "raw, box from -1": (-1.0, None),
        "log(action + 1), box from the lowest dose": (lowest, Transform("log", 1.0)),
        "log(action + 1.0005), box from -1": (-1.0, Transform("log", 1.0005)),
    }
    rows = []
    for scale, (low, transform) in scales.items():
        column = (Column("dose", transform=transform),)
        of_scale = {
            part: dataclasses.replace(log, action_low=(low,), action_columns=column)
            for part, log in logs.items()
        }
        for actor, settings in ACTORS.items():
            row = trained(of_scale, lowest, {"hidden": (64, 64), "polyak_rate": 0.05, **settings})
            rows.append({"case": scale, "actor": actor, **row})
    return rows


def trained(
    logs: dict[str, data.Dataset], lowest: float, settings: dict[str, Any]
) -> dict[str, Any]:
    name = str(Path(FILES["training"]).with_suffix(".npz"))
    spec = make_spec(
        "fttpo", name, steps=10_000, seeds=4, standardise=True, task="none", settings=settings
    )
    run = execute(spec, load=lambda name, seed: logs["training"])
    found = {part: held_out(run, logs[part]) for part in ("validation", "training")}
    return {
        "quantities": {
            name: [float(found[part][name].mean()) for part in found]
            for name in KEPT
            if name in found["validation"]
        },
        "seeds": [doses(run.policy(seed), logs["validation"], lowest) for seed in run.spec.seeds],
    }


def doses(policy: Any, log: data.Dataset, lowest: float) -> dict[str, float]:
    """Return what a policy can give, and gives, in the states of a log."""
    low, high = (np.asarray(end)[:, 0] for end in policy.support(log.observation))
    given = np.asarray(policy.act(log.observation, jax.random.key(0)))[:, 0]
    logged = log.action[:, 0]
    inside = (low <= logged) & (logged <= high)
    return {
        "large_inside": float(inside[logged > LARGE].mean()),
        "amount_inside": float(((logged + 1.0) * inside).sum() / (logged + 1.0).sum()),
        "given": float((given + 1.0).mean()),
        "logged": float((logged + 1.0).mean()),
        "below_log": float((given < lowest).mean()),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    def cells(row: dict[str, Any]) -> dict[str, Any]:
        seeds = {name: np.mean([seed[name] for seed in row["seeds"]]) for name in row["seeds"][0]
                 if not isinstance(row["seeds"][0][name], list)}  # fmt: skip
        quantities = {name: values[0] for name, values in row["quantities"].items()}
        return {
            "scale": row["case"],
            "actor": row["actor"],
            "inside": quantities["logged_inside_support"],
            "large inside": seeds["large_inside"],
            "amount inside": seeds["amount_inside"],
            "mean dose / logged": seeds["given"] / seeds["logged"],
            "below the log": seeds["below_log"],
            "box binds": quantities["box_binds_share"],
            "proposal scale": quantities["proposal_scale"],
        }

    return Table("FtTPO on the held-out insulin log", tuple(map(cells, rows)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with both files: train again")
    folder = parser.parse_args().data
    if folder is not None:
        what = "quantities are [held-out, training] means over four seeds"
        RESULTS.write_text(json.dumps({"what": what, "rows": measure(folder)}))
    print(table(json.loads(RESULTS.read_text())["rows"]))


if __name__ == "__main__":
    main()
