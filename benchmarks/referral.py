"""Are states referred where acting is worse than the best constant dose?

    python benchmarks/referral.py              print the tables, draw docs/images/referral.png
    python benchmarks/referral.py --logs 10    train again: FtTPO, automatic settings, 5 seeds

On the treatment task, patients start further and further out: their latent state has a random
direction and a length of k deviations of the usual start. From there, whole episodes are played on
the same patients and noise: by the policy of all seeds, which always acts; by the best constant
dose of the task; and by the policy in the first state, then the constant dose ("once"). Only "once"
isolates the decision in the far state: the dynamics bring every patient back within one step, so
the rest of an episode is played near the log. "gain" and "gain once" are the returns minus that of
the constant dose. Returns are means over 1,000 patients per log, and intervals 95 % bootstrap
intervals over logs. Logs have 1,200 or 24,000 rows, one file each. Below the tables are the shares
of referrals among the states of 200 fresh patients of the log's own distribution, by reason.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.style
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure

import fat2thin
from fat2thin import data
from fat2thin.envs import treatment
from fat2thin.evaluation.returns import stored_references
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies.decision import DISAGREE, OUTSIDE, Cautious
from fat2thin.policies.policy import Policy
from fat2thin.report.style import BLUE, GREY, ORANGE, PURPLE, STYLE, save_figure
from fat2thin.tables import Table

RESULTS, PICTURE = Path("docs/results/referral.json"), Path("docs/images/referral.png")
CASES = {
    f"{reward}, {24 * episodes:,} rows": (reward, episodes)
    for reward in ("cubic", "quadratic")
    for episodes in (50, 1000)
}
OUT = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
USUAL = (1.0 / 3.0) ** 0.5  # deviation of the usual start, U(-1, 1)
SEEDS, STEPS, PATIENTS = 5, 2500, 1000
GAINS = {
    "acting": ("gain", "low", "high"), "once": ("gain once", "low once", "high once")
}  # fmt: skip
"""By way of acting: the columns of its return minus that of the constant dose."""


def play(
    policy: Policy, constant: float, task: treatment.Treatment, out: float
) -> dict[str, Array]:
    """Return the mean returns of both, and the shares of first states that are referred."""
    cautious = Cautious(policy, jnp.full(1, constant))

    def patient(key: Array) -> dict[str, Array]:
        reset_key, way_key, noise_key = jax.random.split(key, 3)
        way = jax.random.normal(way_key, (treatment.OBSERVATION_SIZE,))
        way = way / jnp.linalg.norm(way) * treatment.OBSERVATION_SIZE**0.5
        start, _ = treatment.reset(reset_key, task)
        start = start._replace(latent=out * USUAL * way)
        noise = jax.random.normal(jax.random.fold_in(noise_key, task.horizon), way.shape)
        first = start.latent + start.noise_factor @ noise

        def episode(act: Any) -> Array:
            def step(now: Any, time: Array) -> tuple[Any, Array]:
                state, seen = now
                key = jax.random.fold_in(noise_key, time)
                state, seen, reward, _ = treatment.step(key, state, act(seen, time), task)
                return (state, seen), reward

            return jnp.sum(jax.lax.scan(step, (start, first), jnp.arange(task.horizon))[1])

        because, dose = cautious.because(first[None]), policy.act(first[None])[0]
        return {
            "acting": episode(lambda seen, time: policy.act(seen[None])[0]),
            "once": episode(lambda seen, time: jnp.where(time == 0, dose, constant)),
            "constant": episode(lambda seen, time: jnp.full(1, constant)),
            "referred": jnp.any(jnp.stack([*because.values()])).astype(jnp.float32),
            **{name: mask[0].astype(jnp.float32) for name, mask in because.items()},
        }

    # The same patients at every distance.
    found = jax.vmap(patient)(jax.random.split(jax.random.key(7), PATIENTS))
    return jax.tree.map(jnp.mean, found)


def measure(reward: str, episodes: int, seed: int) -> dict[str, Any]:
    """Train on one log, and return what happens at every distance and in fresh episodes."""
    name = f"treatment/{reward}"
    log, task = data.load(f"{name}@{episodes}", seed), treatment.by_name(name)
    options = {"steps": STEPS, "seeds": SEEDS, "settings_from": "auto", "task": "none"}
    options["holdout"] = 0.0
    policy = fat2thin.train("fttpo", log, **options).policy()
    constant = stored_references()[task]["best constant"].measures["dose_mean"]
    at = jax.jit(lambda out: play(policy, constant, task, out))
    fresh = data.load(f"{name}@200", seed=1000 + seed)
    return {
        "out": [{key: float(value) for key, value in at(out).items()} for out in OUT],
        "held_out": policy.decide(fresh.observation).shares(),
    }


def rows_of(logs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return one row per distance: means over logs, with intervals."""
    rows = []
    for place, out in enumerate(OUT):
        of_logs = [log["out"][place] for log in logs]
        row = {"deviations": out, "constant": float(np.mean([one["constant"] for one in of_logs]))}
        for way, (gain, low, high) in GAINS.items():
            differences = np.asarray([one[way] - one["constant"] for one in of_logs])
            interval = seed_interval(differences[:, None])
            row |= {gain: interval.value, low: interval.low, high: interval.high}
        for name in ("referred", OUTSIDE, DISAGREE):
            row[name] = float(np.mean([one[name] for one in of_logs]))
        rows.append(row)
    return rows


def verdict(rows: list[dict[str, float]], way: str) -> str:
    """Return where acting is worse, and the smallest share of referrals there."""
    gain = GAINS[way][0]
    worse = [row for row in rows if row[gain] < 0]
    if not worse:
        return f"{gain}: acting is nowhere worse than the best constant dose"
    least = min(worse, key=lambda row: row["referred"])
    places = ", ".join(f"{row['deviations']:g}" for row in worse)
    return (
        f"{gain}: acting is worse at {places} deviations; the smallest share of referrals there is "
        f"{least['referred']:.3f}, at {least['deviations']:g}"
    )


def draw(found: dict[str, list[dict[str, Any]]]) -> Figure:
    figure = Figure(figsize=(3.6 * len(found), 7.6))
    grid = figure.subplots(3, len(found), sharex=True, sharey="row")
    for (name, logs), column in zip(found.items(), grid.T, strict=True):
        rows = rows_of(logs)
        columns = {key: np.asarray([row[key] for row in rows]) for key in rows[0]}
        out, below = columns["deviations"], column[-1]
        for axes, (gain, low, high) in zip(column, GAINS.values(), strict=False):
            axes.axhline(0.0, color=GREY, linewidth=1.2, linestyle="--", label="best constant dose")
            axes.fill_between(out, columns[low], columns[high], color=BLUE, alpha=0.2, linewidth=0)
            axes.plot(out, columns[gain], color=BLUE, label="acting minus best constant dose")
            for place in crossings(out, columns[gain]):
                axes.axvline(place, color="black", linewidth=0.8, linestyle=":")
        column[0].set(title=name)
        for key, colour, label in (
            ("referred", "black", "referred"), (OUTSIDE, ORANGE, "outside the log"),
            (DISAGREE, PURPLE, "seeds disagree"),
        ):  # fmt: skip
            dashes = "-" if key == "referred" else (0, (4, 2))
            below.plot(
                out, columns[key], color=colour, linestyle=dashes, linewidth=1.6, label=label
            )
        below.axhline(0.95, color=GREY, linewidth=0.8, linestyle=":")
        for axes, (gain, *_) in zip(column, GAINS.values(), strict=False):
            for start, end in intervals_below(out, columns[gain]):
                axes.axvspan(start, end, color="#F3E3D8", linewidth=0, zorder=0)
        below.set(xlabel="start, in deviations of the usual one", ylim=(-0.03, 1.05))
    grid[0, 0].set_ylabel("whole episodes:\ndifference of returns")
    grid[1, 0].set_ylabel("first decision alone:\ndifference of returns")
    grid[2, 0].set_ylabel("share of first states")
    for axes in (grid[0, 0], grid[2, 0]):
        axes.legend(fontsize=8)
    figure.suptitle("Acting far from the log (shaded: where acting is worse)")
    return figure


def crossings(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return where a line through these points crosses zero."""
    at = np.flatnonzero(np.sign(y[:-1]) * np.sign(y[1:]) < 0)
    return x[at] - y[at] * (x[at + 1] - x[at]) / (y[at + 1] - y[at])


def intervals_below(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Return the intervals in which a line through these points is below zero."""
    edges = np.concatenate([x[:1], crossings(x, y), x[-1:]])
    middle = (edges[:-1] + edges[1:]) / 2.0
    below = np.interp(middle, x, y) < 0
    return [(edges[at], edges[at + 1]) for at in np.flatnonzero(below)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, help="number of logs per case: train again")
    logs = parser.parse_args().logs
    if logs is not None:
        found: dict[str, list] = {name: [] for name in CASES}
        for seed in range(logs):
            for name, (reward, episodes) in CASES.items():
                found[name].append(measure(reward, episodes, seed))
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    kept = json.loads(RESULTS.read_text())
    for name, of_case in kept.items():
        rows = rows_of(of_case)
        shares = {
            reason: float(np.mean([log["held_out"][reason] for log in of_case]))
            for reason in ("referred", OUTSIDE, DISAGREE)
        }
        held_out = ", ".join(f"{reason} {share:.3f}" for reason, share in shares.items())
        verdicts = (verdict(rows, way) for way in GAINS)
        notes = (*verdicts, f"states of fresh patients: {held_out}")
        title = f"treatment/{name}, {len(of_case)} logs"
        print(Table(title, tuple({"k": f"{row['deviations']:g}", **row} for row in rows), notes))
        print()
    with matplotlib.style.context(STYLE):
        save_figure(draw(kept), PICTURE)


if __name__ == "__main__":
    main()
