"""Are states referred where acting is worse than the best constant dose?

    python benchmarks/referral.py              print the tables, draw docs/images/referral.png
    python benchmarks/referral.py --logs 10    train again: FtTPO, automatic settings, 5 seeds

On the treatment task, patients start further and further out: their latent state has a random
direction and a length of k deviations of the usual start. From there, whole episodes are played by
the policy of all seeds, which always acts, and by the best constant dose of the task, on the same
patients and noise. Returns are means over 1,000 patients per log, and intervals 95 % bootstrap
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
                state, seen, reward, _ = treatment.step(key, state, act(seen), task)
                return (state, seen), reward

            return jnp.sum(jax.lax.scan(step, (start, first), jnp.arange(task.horizon))[1])

        because = cautious.because(first[None])
        return {
            "acting": episode(lambda seen: policy.act(seen[None])[0]),
            "constant": episode(lambda seen: jnp.full(1, constant)),
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
        gain = np.asarray([one["acting"] - one["constant"] for one in of_logs])
        interval = seed_interval(gain[:, None])
        means = {
            name: float(np.mean([one[name] for one in of_logs]))
            for name in ("acting", "constant", "referred", OUTSIDE, DISAGREE)
        }
        rows.append(
            {"deviations": out, "acting": means["acting"], "constant": means["constant"]}
            | {"gain": interval.value, "low": interval.low, "high": interval.high}
            | {name: means[name] for name in ("referred", OUTSIDE, DISAGREE)}
        )
    return rows


def verdict(rows: list[dict[str, float]]) -> str:
    worse = [row for row in rows if row["gain"] < 0]
    if not worse:
        return "acting is nowhere worse than the best constant dose"
    least = min(worse, key=lambda row: row["referred"])
    places = ", ".join(f"{row['deviations']:g}" for row in worse)
    return (
        f"acting is worse at {places} deviations; the smallest share of referrals there is "
        f"{least['referred']:.3f}, at {least['deviations']:g}"
    )


def draw(found: dict[str, list[dict[str, Any]]]) -> Figure:
    figure = Figure(figsize=(3.6 * len(found), 5.6))
    grid = figure.subplots(2, len(found), sharex=True, sharey="row")
    for (name, logs), (above, below) in zip(found.items(), grid.T, strict=True):
        rows = rows_of(logs)
        columns = {key: np.asarray([row[key] for row in rows]) for key in rows[0]}
        out = columns["deviations"]
        above.axhline(0.0, color=GREY, linewidth=1.2, linestyle="--", label="best constant dose")
        above.fill_between(out, columns["low"], columns["high"], color=BLUE, alpha=0.2, linewidth=0)
        above.plot(out, columns["gain"], color=BLUE, label="acting minus best constant dose")
        above.set(title=name)
        for key, colour, label in (
            ("referred", "black", "referred"), (OUTSIDE, ORANGE, "outside the log"),
            (DISAGREE, PURPLE, "seeds disagree"),
        ):  # fmt: skip
            dashes = "-" if key == "referred" else (0, (4, 2))
            below.plot(
                out, columns[key], color=colour, linestyle=dashes, linewidth=1.6, label=label
            )
        below.axhline(0.95, color=GREY, linewidth=0.8, linestyle=":")
        worse = out[columns["gain"] < 0]
        for axes in (above, below):
            if worse.size:
                axes.axvspan(worse.min(), out.max(), color="#F3E3D8", linewidth=0)
        below.set(xlabel="start, in deviations of the usual one", ylim=(-0.03, 1.05))
    grid[0, 0].set_ylabel("difference of mean returns")
    grid[1, 0].set_ylabel("share of first states")
    for axes in grid[:, 0]:
        axes.legend(fontsize=8)
    figure.suptitle("Acting far from the log (shaded: from where acting is worse)")
    return figure


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
        notes = (verdict(rows), f"states of fresh patients: {held_out}")
        title = f"treatment/{name}, {len(of_case)} logs"
        print(Table(title, tuple({"k": f"{row['deviations']:g}", **row} for row in rows), notes))
        print()
    with matplotlib.style.context(STYLE):
        save_figure(draw(kept), PICTURE)


if __name__ == "__main__":
    main()
