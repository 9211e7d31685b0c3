"""Compare every method on the treatment task with equal tuning budgets.

    python benchmarks/treatment_methods.py --run     tune and train (hours on a CPU)
    python benchmarks/treatment_methods.py           print the tables and draw the figure

Tuning tries six settings per method (two learning rates times three values of its own parameters;
six learning rates if it has none), with three seeds each that are used for nothing else. The best
setting has the highest mean return of the sampled policy over all evaluations. It is then trained
with ten new seeds. Each run has a folder in runs/treatment_methods. The numbers for the
documentation are in docs/results/treatment_methods.json. `--part 0/2` does half of the work, for
two parallel processes; `--gather` combines their results.
"""

import argparse
import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

import fat2thin
from fat2thin.envs import treatment, treatment_reference
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.report.style import BLUE, DARK, GREY, ORANGE, STYLE, save_figure
from fat2thin.training import execute_together, make_spec

RESULTS = Path("docs/results/treatment_methods.json")
PICTURE = Path("docs/images/treatment_methods.png")
RUNS = Path("runs/treatment_methods")
REWARDS = ("cubic", "quadratic")
UPDATES, EVERY = 3_000, 500
HIDDEN = (64, 64)
TUNING_SEEDS, TUNING_EPISODES = (100, 101, 102), 20
SEEDS, EPISODES = 10, 100
LEARNING_RATES = (1e-3, 3e-4)
TEMPERATURES = {"temperature": (1.0, 0.1, 0.01)}
SMALL_MODEL = {"vae_hidden": (64, 64), "vae_steps": 3_000}


class Method(NamedTuple):
    label: str
    algorithm: str
    knobs: Mapping[str, tuple[float, ...]]
    """Own parameters with three values each, which vary together."""
    settings: dict[str, Any] = {}  # noqa: RUF012


PUBLISHED = {"published": True}
METHODS = (
    Method("fttpo", "fttpo", TEMPERATURES),
    Method("fttpo-spot", "fttpo-spot", TEMPERATURES),
    Method("fttpo-sg", "fttpo-sg", TEMPERATURES),
    Method("fttpo-greedy", "fttpo-greedy", TEMPERATURES),
    Method("tawac", "tawac", TEMPERATURES),
    Method("tawac-ht", "tawac-ht", TEMPERATURES),
    Method("awac", "awac", TEMPERATURES),
    Method("iql", "iql", {"expectile": (0.7, 0.7, 0.9), "temperature": (1.0 / 3.0, 0.1, 0.1)}),
    Method("sql", "sql", TEMPERATURES),
    Method("xql", "xql",
           {"value_temperature": (2.0, 2.0, 0.5), "temperature": (1.0 / 3.0, 0.1, 0.1)}),
    Method("inac", "inac", TEMPERATURES),
    Method("td3_bc", "td3_bc", {"q_weight": (1.0, 2.5, 5.0)}),
    Method("spot", "spot", {"support_weight": (0.05, 0.2, 1.0)}, SMALL_MODEL),
    Method("bc", "bc", {}),
    Method("rar", "rar", TEMPERATURES),
    Method("sparse_reverse_kl", "sparse_reverse_kl", TEMPERATURES),
    Method("fttpo, published", "fttpo", TEMPERATURES, PUBLISHED),
    Method("tawac-ht, published", "tawac-ht", TEMPERATURES, PUBLISHED),
    Method("xql, published", "xql", {"temperature": (0.5, 0.2, 1.0 / 3.0)}, PUBLISHED),
    Method("spot, published", "spot", {"support_weight": (0.05, 0.2, 1.0)},
           SMALL_MODEL | PUBLISHED | {"policy": "squashed_gaussian"}),
    Method("rar, published", "rar", TEMPERATURES, PUBLISHED),
    Method("sparse_reverse_kl, published", "sparse_reverse_kl", TEMPERATURES, PUBLISHED),
)  # fmt: skip


def grid(method: Method) -> dict[str, list[float]]:
    """Return six settings: every learning rate with every value of the method's parameters."""
    if not method.knobs:
        return {"learning_rate": [3e-3, 2e-3, 1e-3, 6e-4, 3e-4, 1e-4]}
    knobs = {name: [*values] * len(LEARNING_RATES) for name, values in method.knobs.items()}
    return {"learning_rate": [rate for rate in LEARNING_RATES for _ in range(3)], **knobs}


def tune(method: Method, reward: str) -> dict[str, Any]:
    """Return the setting with the highest mean return over all evaluations, and all results."""
    settings = grid(method)
    specs = [
        make_spec(
            method.algorithm, f"treatment/{reward}", steps=UPDATES, seeds=TUNING_SEEDS,
            settings={"hidden": HIDDEN, **method.settings, **dict(zip(settings, one, strict=True))},
            evaluate_every=EVERY, episodes=TUNING_EPISODES, log_every=EVERY,
        )
        for one in zip(*settings.values(), strict=True)
    ]  # fmt: skip
    scores = np.stack(
        [run.evaluations["actor_sampled"].returns.mean(axis=-1) for run in execute_together(specs)],
        axis=1,
    )
    means = np.mean(scores, axis=(0, 2))
    # A setting with a diverged seed has mean NaN and is never the best.
    best = int(np.argmax(np.nan_to_num(means, nan=-np.inf)))
    return {
        "chosen": {name: values[best] for name, values in settings.items()},
        "tried": settings,
        "mean_returns": means.round(3).tolist(),
    }


def final(method: Method, reward: str, chosen: dict[str, float]) -> dict[str, Any]:
    """Train ten new seeds with the chosen setting and return their results."""
    folder = RUNS / reward / method.label.replace(", ", "-")
    run = fat2thin.train(
        method.algorithm, f"treatment/{reward}", steps=UPDATES, seeds=SEEDS, evaluate_every=EVERY,
        episodes=EPISODES, log_every=EVERY, out=folder, settings_from="default", hidden=HIDDEN,
        **method.settings, **chosen,
    )  # fmt: skip
    found: dict[str, Any] = {}
    for name, evaluation in run.evaluations.policies.items():
        policy, way = name.rsplit("_", 1)
        key = way if policy == "actor" else f"proposal {way}"
        curve = np.mean(evaluation.returns, axis=-1)
        measures = {m: np.round(v[-1], 5).tolist() for m, v in evaluation.measures.items()}
        found[key] = {"returns": curve[-1].round(3).tolist(), "curve": curve.round(2).tolist()}
        found[key] |= measures
    return {"final": found, "seconds": run.about["seconds"]}


def do(methods: Sequence[Method], minutes: float) -> None:
    """Tune and train what is missing, with one result file per method and reward."""
    began = time.perf_counter()
    for method in methods:
        for reward in REWARDS:
            place = RUNS / f"{method.label.replace(', ', '-')}-{reward}.json"
            if place.exists():
                continue
            if time.perf_counter() - began > 60.0 * minutes:
                print(f"stopped after {minutes:g} minutes", flush=True)
                return
            tuned = tune(method, reward)
            result = {"label": method.label, "algorithm": method.algorithm, "reward": reward,
                      "settings": method.settings, "tuning": tuned,
                      **final(method, reward, tuned["chosen"])}  # fmt: skip
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(result))
            mean = np.mean(result["final"]["sampled"]["returns"])
            elapsed = time.perf_counter() - began
            print(f"{elapsed:6.0f} s  {method.label}, {reward}: {mean:.2f} {tuned['chosen']}",
                  flush=True)  # fmt: skip


def gather() -> None:
    found = [RUNS / f"{m.label.replace(', ', '-')}-{r}.json" for m in METHODS for r in REWARDS]
    missing = [str(place) for place in found if not place.exists()]
    if missing:
        print("missing results:", *missing)
    content = {
        "what": "final[way].returns[seed]: mean return over 100 episodes, seeds 0 to 9; "
        "curve[evaluation][seed]; tuning on seeds 100 to 102",
        "versions": {"fat2thin": fat2thin.__version__, "jax": jax.__version__},
        "device": jax.devices()[0].device_kind,
        "updates": UPDATES,
        "hidden": HIDDEN,
        "tuning_environment_steps_a_method": 6 * len(TUNING_SEEDS) * (UPDATES // EVERY + 1)
        * TUNING_EPISODES * treatment.by_name("treatment/cubic").horizon,
        "methods": [json.loads(place.read_text()) for place in found if place.exists()],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(content, separators=(",", ":")))


def cell(of_seeds: Sequence[float]) -> str:
    interval = seed_interval(np.asarray(of_seeds)[:, None])
    return f"{interval.value:.1f} [{interval.low:.1f}, {interval.high:.1f}]"


def print_tables(methods: list[dict]) -> None:
    for reward in REWARDS:
        print(f"\n{reward}\n")
        print("| method | sampled | at its centre | best evaluation | dose variance | above dose"
              " limit | above cumulative limit | chosen |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|")
        for method in sorted(
            (one for one in methods if one["reward"] == reward),
            key=lambda one: -np.mean(one["final"]["sampled"]["returns"]),
        ):
            ways = method["final"]
            sampled = ways["sampled"]
            chosen = ", ".join(f"{k} {v:g}" for k, v in method["tuning"]["chosen"].items())
            best = np.max(np.mean(sampled["curve"], axis=-1))
            print(
                f"| {method['label']} | {cell(sampled['returns'])} "
                f"| {cell(ways['centre']['returns'])} | {best:.1f} "
                f"| {np.mean(sampled['dose_variance']):.3f} "
                f"| {100 * np.mean(sampled['dose_limit_rate']):.1f} % "
                f"| {100 * np.mean(sampled['cumulative_limit_rate']):.1f} % | {chosen} |"
            )
        for name, row in references(reward).items():
            limits = ("dose_limit_rate", "cumulative_limit_rate")
            rates = [100 * row.measures[limit] for limit in limits]
            print(
                f"| *{name}* | {row.mean:.1f} ± {1.96 * row.standard_error:.1f} | – | – "
                f"| {row.measures['dose_variance']:.3f} | {rates[0]:.1f} % "
                f"| {rates[1]:.1f} % | – |"
            )


def print_differences(methods: list[dict]) -> None:
    """Print FtTPO minus each method, paired by seed: seeds share logs and episodes."""
    for reward in REWARDS:
        of_reward = {one["label"]: one["final"] for one in methods if one["reward"] == reward}
        for label, ways in of_reward.items():
            leads = [
                np.asarray(of_reward["fttpo"][way]["returns"]) - np.asarray(ways[way]["returns"])
                for way in ("sampled", "centre")
            ]
            print(f"{reward}: fttpo - {label}: sampled {cell(leads[0])}, centre {cell(leads[1])}")


@functools.cache
def references(reward: str) -> dict:
    return treatment_reference.reference_rows(
        jax.random.key(0), treatment.by_name(f"treatment/{reward}")
    )


def picture(methods: list[dict]) -> Figure:
    """Return a figure with one row per method, sampled and at its centre; references as lines."""
    figure = Figure(figsize=(10.0, 7.6))
    axes = figure.subplots(1, 2)
    for axis, reward in zip(axes, REWARDS, strict=True):
        rows = sorted(
            (one for one in methods if one["reward"] == reward),
            key=lambda one: np.mean(one["final"]["sampled"]["returns"]),
        )
        for way, colour, shift in (("sampled", BLUE, 0.12), ("centre", ORANGE, -0.12)):
            points = [
                seed_interval(np.asarray(one["final"][way]["returns"])[:, None]) for one in rows
            ]
            values = np.asarray([point.value for point in points])
            errors = np.abs(np.asarray([[p.low, p.high] for p in points]).T - values)
            axis.errorbar(
                values, np.arange(len(rows)) + shift, xerr=errors, fmt="o", markersize=4,
                color=colour, label="sampled" if way == "sampled" else "at its centre",
            )  # fmt: skip
        for name in ("uniform", "best constant"):
            mean = references(reward)[name].mean
            axis.axvline(mean, color=GREY, linewidth=1, linestyle=":")
            axis.annotate(f"{name.replace(' ', chr(10))}\ndose", (mean, len(rows) - 0.3),
                          ha="center", va="bottom", color=DARK, fontsize=9)  # fmt: skip
        axis.set_title(f"treatment/{reward}", pad=44)
        axis.set(xlabel="return of an episode of 24 steps", ylim=(-0.7, len(rows) - 0.3))
        axis.set_yticks(range(len(rows)), [one["label"] for one in rows])
    figure.suptitle(
        f"after {UPDATES:,} updates: mean of {SEEDS} seeds with 95 % bootstrap interval"
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", action="store_true", help="tune and train first")
    parser.add_argument("--part", default="0/1", help="part of the methods to do, as 0/4")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after this time")
    parser.add_argument("--gather", action="store_true", help="collect the results of all parts")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    if arguments.run:
        do(METHODS[part::parts], arguments.minutes)
    if arguments.gather or (arguments.run and parts == 1):
        gather()
    if not arguments.run:
        methods = json.loads(RESULTS.read_text())["methods"]
        print_tables(methods)
        print_differences(methods)
        with matplotlib.style.context(STYLE):
            save_figure(picture(methods), PICTURE)
        print(PICTURE)


if __name__ == "__main__":
    main()
