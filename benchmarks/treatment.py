"""Compare settings of FtTPO on the treatment task, with ten seeds each.

    python benchmarks/treatment.py --run     train (minutes on a GPU, hours on a CPU)
    python benchmarks/treatment.py           print the tables and draw the curves

Each run has a folder in runs/treatment. The numbers for the documentation are in
docs/results/treatment_fttpo.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

import fat2thin
from fat2thin.envs import treatment, treatment_reference
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.report.style import BLUE, DARK, GREY, ORANGE, STYLE, save_figure

RESULTS = Path("docs/results/treatment_fttpo.json")
CURVES = Path("docs/images/treatment_curves.png")
SEEDS, EPISODES = 10, 100
PAPER = {"learning_rate": 3e-4, "temperature": 0.01}
# Label, updates, updates between evaluations, settings.
SETTINGS: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("corrected", 40_000, 1_000, PAPER),
    ("published", 40_000, 1_000, PAPER | {"published": True}),
    ("corrected default temperature", 40_000, 1_000, {}),
    ("closed form", 40_000, 1_000, {"actor_loss": "closed_form"}),
    ("closed form, 64-wide", 8_000, 200, {"actor_loss": "closed_form", "hidden": (64, 64)}),
    ("sampled", 8_000, 200, {"actor_loss": "sampled"}),
)
POLICIES = ("actor_sampled", "actor_centre", "proposal_sampled", "proposal_centre")


def train_all() -> None:
    runs = []
    for reward in ("cubic", "quadratic"):
        for label, steps, every, settings in SETTINGS:
            folder = Path("runs/treatment") / reward / label.replace(", ", "-").replace(" ", "-")
            run = fat2thin.train(
                "fttpo", f"treatment/{reward}", steps=steps, seeds=SEEDS, evaluate_every=every,
                episodes=EPISODES, log_every=every, out=folder, settings_from="default", **settings,
            )  # fmt: skip
            runs.append(summary(label, reward, settings, run))
    device = jax.devices()[0].device_kind
    content = {
        "what": "returns[policy][evaluation][seed]: mean return over 100 episodes, seeds 0 to 9",
        "versions": {"fat2thin": fat2thin.__version__, "jax": jax.__version__},
        "device": device,
        "runs": runs,
    }
    RESULTS.write_text(json.dumps(content, separators=(",", ":")))


def summary(label: str, reward: str, settings: dict, run: fat2thin.Run) -> dict:
    evaluations = run.evaluations
    policies = evaluations.policies.items()
    return {
        "tag": label,
        "reward": reward,
        "settings": settings,
        "steps": list(evaluations.steps),
        "seconds": run.about["seconds"],
        "returns": {name: np.mean(one.returns, -1).round(2).tolist() for name, one in policies},
        "measures_at_the_end": {
            name: {key: np.round(values[-1], 5).tolist() for key, values in one.measures.items()}
            for name, one in policies
        },
        "metrics": {name: np.round(values[-1], 5).tolist() for name, values in run.metrics.items()},
    }


def cell(of_seeds: list[float]) -> str:
    interval = seed_interval(np.asarray(of_seeds)[:, None])
    return f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"


def print_tables(runs: list[dict]) -> None:
    for reward in ("cubic", "quadratic"):
        print(f"\n{reward}\n")
        print("| setting | updates |", " | ".join(POLICIES), "|")
        print("|---|---|" + "---|" * len(POLICIES))
        for run in (run for run in runs if run["reward"] == reward):
            for step in (step for step in (1_000, 8_000, 40_000) if step in run["steps"]):
                position = run["steps"].index(step)
                cells = [cell(run["returns"][name][position]) for name in POLICIES]
                print(f"| {run['tag']} | {step:,} |", " | ".join(cells), "|")
        task = treatment.by_name(f"treatment/{reward}")
        rows = treatment_reference.reference_rows(jax.random.key(0), task)
        for name, row in rows.items():
            print(f"reference, {name}: {row.mean:.2f} ± {row.standard_error:.2f}")


def print_differences(runs: list[dict]) -> None:
    """Print paired differences: seeds share logs and episodes, so pairing reduces the noise."""
    by_name = {(run["reward"], run["tag"]): run for run in runs}
    for (reward, tag), run in by_name.items():
        best = int(np.nanargmax(np.mean(run["returns"]["actor_sampled"], axis=-1)))
        print(f"{reward}, {tag}: actor best at {run['steps'][best]:,} updates")
        for step in (step for step in (1_000, 8_000, 40_000) if step in run["steps"]):
            at = run["steps"].index(step)
            ours = {name: np.asarray(run["returns"][name][at]) for name in POLICIES}
            centre = ours["actor_centre"] - ours["proposal_centre"]
            print(f"  {step:,}: actor - proposal at their centres {cell(centre.tolist())}")
            if tag == "corrected":
                theirs = by_name[reward, "published"]["returns"]["actor_sampled"][at]
                lead = ours["actor_sampled"] - np.asarray(theirs)
                print(f"  {step:,}: corrected - published actor {cell(lead.tolist())}")


def curves(runs: list[dict]) -> Figure:
    figure = Figure(figsize=(9.6, 4.8))
    axes = figure.subplots(1, 2)
    for axis, reward in zip(axes, ("cubic", "quadratic"), strict=True):
        chosen = {run["tag"]: run for run in runs if run["reward"] == reward}
        for tag, colour in (("corrected", BLUE), ("published", ORANGE)):
            for policy, dashes in (("actor_sampled", "-"), ("proposal_sampled", "--")):
                run = chosen[tag]
                thousands = np.asarray(run["steps"]) / 1_000
                of_seeds = np.asarray(run["returns"][policy])
                points = [seed_interval(row[:, None]) for row in of_seeds]
                label = f"{tag}, {policy.split('_')[0]}"
                means = [point.value for point in points]
                axis.plot(thousands, means, dashes, color=colour, label=label)
                low, high = [point.low for point in points], [point.high for point in points]
                axis.fill_between(thousands, low, high, color=colour, alpha=0.12, linewidth=0)
        rows = treatment_reference.reference_rows(
            jax.random.key(0), treatment.by_name(f"treatment/{reward}")
        )
        for name in ("uniform", "best constant"):
            axis.axhline(rows[name].mean, color=GREY, linewidth=1, linestyle=":")
            axis.annotate(
                f"{name} dose",
                (40, rows[name].mean),
                ha="right",
                va="bottom",
                color=DARK,
                fontsize=9,
            )
        bottom, top = rows["uniform"].mean - 1.5, rows["best constant"].mean + 1.5
        axis.set(title=f"treatment/{reward}", xlabel="thousand updates", ylim=(bottom, top))
    axes[0].set_ylabel("return of an episode of 24 steps")
    figure.suptitle(f"FtTPO, sampled: mean of {SEEDS} seeds with 95 % bootstrap interval")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="train first")
    if parser.parse_args().run:
        train_all()
    runs = json.loads(RESULTS.read_text())["runs"]
    print_tables(runs)
    print_differences(runs)
    with matplotlib.style.context(STYLE):
        save_figure(curves(runs), CURVES)
    print(CURVES)


if __name__ == "__main__":
    main()
