"""Three studies: offline selection, learning from small logs, and the time per update.

The first holds out a fifth of each log and measures how well signals on it rank checkpoints and
settings by their true returns, and the regret of selecting by them. The second trains every method
on small logs with the settings for them, on seeds that were not used to choose settings. Neither is
in the paper. The third times an update and an action of each method, as the paper does.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import spearmanr

from fat2thin import data
from fat2thin.atomic_files import write
from fat2thin.engine.devices import JobScheduler
from fat2thin.engine.pack import make_pack
from fat2thin.evaluation.held_out import PREFIX
from fat2thin.evaluation.statistics import Interval, mean, stratified_interval
from fat2thin.experiments import comparison
from fat2thin.experiments.comparison import known_mean
from fat2thin.experiments.plan import PlannedRun
from fat2thin.experiments.sweep import combinations, words
from fat2thin.paper.presets import REWARDS, CurveSizes, Method, Reproduction, methods
from fat2thin.runs import identity
from fat2thin.settings.automatic import SMALL, SMALL_STEPS
from fat2thin.tables import Table
from fat2thin.training import Run, make_spec

HOLDOUT = 0.2
SIZES = (25, 50, 200, 1000)  # trajectories of a treatment log
EVALUATIONS, ROBOT_EVALUATIONS = 6, 4
EPISODES, SMALL_EPISODES = 4, 10
"""Factors on the scale's episodes per evaluation: the returns of checkpoints are close."""
TREATMENT_STEPS = 6_000
TREATMENT_GRID: dict[str, tuple[Any, ...]] = {
    "temperature": (0.1, 0.35, 1.0),
    "hidden": ((16, 16), (64, 64), (256, 256)),
    "learning_rate": (3e-4, 1e-3),
    "weight_decay": (0.0, 3.0),
}
ROBOTS = ("halfcheetah-medium-expert", "hopper-medium-replay", "walker2d-medium")
ROBOT_GRID: dict[str, tuple[Any, ...]] = {
    "temperature": (0.1, 1.0),
    "learning_rate": (3e-4, 1e-3),
    "weight_decay": (0.0, 0.1),
}
SIGNS = {
    "held_out_value": 1.0,
    "held_out_value_unseen": 1.0,
    "held_out_td_error": -1.0,
    "held_out_log_likelihood": 1.0,
    "held_out_inside": 1.0,
    "held_out_calibration": 1.0,
    "held_out_spread": -1.0,
}
"""Sign of each signal: 1 if larger is better."""
LAST, RANDOM = "last", "random"
"""Baselines of selection: always the last checkpoint, and a random one."""
SMALL_METHODS = methods(
    "fttpo", "iql", "xql", "sql", "inac", "tawac", "awac", "td3_bc", "spot", "bc", "fttpo-spot",
    "fttpo-sg", "fttpo-greedy", "tawac-ht", "rar", "sparse_reverse_kl", "rebrac", "edac", "sac_n",
    "quasi_optimal",
)  # fmt: skip
_USUAL = Method("fttpo-usual-settings", "fttpo")
_SELECTED = Method("fttpo-held-out-and-selected", "fttpo")
_FIRST_SMALL_SEED = 100  # settings were chosen on seeds 0 to 9
TIMED_METHODS = methods("fttpo", "inac", "tawac", "iql")
"""Methods whose hours are in the paper: 15, 8.5, 6.5 and 6. Timed on a task without a data file."""
TIMED_ON, TIMES = "treatment/quadratic", "times.json"
ACTIONS, ROUNDS = 100_000, 5


class Candidates(NamedTuple):
    """True returns and signals of all candidates, for one seed on one data set."""

    truth: np.ndarray
    """Mean return (on a robot, D4RL's score), shape (settings, checkpoints)."""
    signals: dict[str, np.ndarray]
    """Signals of the same shape, larger is better."""


class Quality(NamedTuple):
    """Quality of a selection."""

    correlation: float
    """Spearman correlation with the truth; nan if one of the two is constant."""
    regret: float
    """Best return minus chosen return."""


def selection_plan(asked: Reproduction) -> list[PlannedRun]:
    """Return the runs of the study of offline selection."""
    treatment, robots, hidden = asked.scale.treatment, asked.scale.robots, asked.scale.hidden
    steps = asked.steps or min(TREATMENT_STEPS, treatment.steps)
    seeds, episodes = asked.seeds or treatment.seeds, EPISODES * treatment.episodes
    sizes = CurveSizes(steps, seeds, EVALUATIONS, episodes)
    planned = [
        _held_out(
            f"treatment/{reward}@{size}", f"treatment-{reward}-{size}", setting, sizes,
            reward_scale="deviation",
        )
        for reward in REWARDS
        for size in SIZES
        for setting in combinations(TREATMENT_GRID)
        if hidden is None or setting["hidden"] == TREATMENT_GRID["hidden"][0]
    ]  # fmt: skip
    steps, small = asked.steps or robots.steps, {} if hidden is None else {"hidden": hidden}
    sizes = CurveSizes(steps, min(2, robots.seeds), ROBOT_EVALUATIONS, robots.episodes)
    return planned + [
        _held_out(asked.robot_data(name), asked.robot_set(name), {**setting, **small}, sizes)
        for name in ROBOTS
        for setting in combinations(ROBOT_GRID)
    ]


def _held_out(
    dataset: str, folder: str, setting: Mapping[str, Any], sizes: CurveSizes, **options: Any
) -> PlannedRun:
    every = max(1, sizes.steps // sizes.evaluations)
    spec = make_spec(
        "fttpo", dataset, steps=sizes.steps, seeds=sizes.seeds, settings=setting, holdout=HOLDOUT,
        evaluate_every=every, episodes=sizes.episodes, log_every=every, data_needed=False,
        **options,
    )  # fmt: skip
    return PlannedRun(f"selection/{folder}/{words(setting)}", spec)


def candidates(runs: Mapping[str, Run]) -> dict[str, list[Candidates]]:
    """Return the candidates per seed, by data set; the untrained policy is not a candidate."""
    return {
        dataset: [
            _of_seed([*several.values()], place)
            for place in range(len(next(iter(several.values())).spec.seeds))
        ]
        for dataset, several in comparison.by_dataset(runs).items()
    }


def _of_seed(runs: Sequence[Run], place: int) -> Candidates:
    steps = runs[0].spec.evaluation_steps[1:]
    truth = np.full((len(runs), len(steps)), np.nan)
    found = {name: np.full(truth.shape, np.nan) for name in SIGNS}
    for number, run in enumerate(runs):
        # A run whose seeds all stopped has fewer rows than the others.
        if comparison.stopped(run)[place]:
            continue
        truth[number] = comparison.scored(run, "actor_sampled")[1:, place].mean(axis=-1)
        rows = np.searchsorted(run.metrics["step"], steps)
        for name, sign in SIGNS.items():
            found[name][number] = sign * run.metrics[name][rows, place]
    return Candidates(truth, found)


def among_checkpoints(one: Candidates) -> dict[str, Quality]:
    """Return the quality of selection among checkpoints, averaged over settings that finished."""
    one = _not_stopped(one)
    found = {
        name: np.reshape([*map(_quality, one.truth, signal)], (-1, 2)).T
        for name, signal in one.signals.items()
    }
    best = one.truth.max(axis=1)
    return {
        **{name: Quality(*map(known_mean, of)) for name, of in found.items()},
        LAST: Quality(np.nan, known_mean(best - one.truth[:, -1])),
        RANDOM: Quality(0.0, known_mean(best - one.truth.mean(axis=1))),
    }


def among_settings(one: Candidates) -> dict[str, Quality]:
    """Return the quality of selection among settings after the last update, if not stopped."""
    one = _not_stopped(one)
    truth = one.truth[:, -1]
    found = {name: _quality(truth, signal[:, -1]) for name, signal in one.signals.items()}
    return found | {RANDOM: Quality(0.0, known_mean(truth.max(initial=-np.inf) - truth))}


def _not_stopped(one: Candidates) -> Candidates:
    finished = np.isfinite(one.truth).all(axis=1)
    return Candidates(one.truth[finished], {name: of[finished] for name, of in one.signals.items()})


def _quality(truth: np.ndarray, signal: np.ndarray) -> Quality:
    """Return the quality of selecting the largest finite signal; ties are broken at random."""
    known = np.isfinite(signal)
    best = truth.max(initial=-np.inf)
    if not known.any():
        return Quality(np.nan, known_mean(best - truth))
    seen, signal = truth[known], signal[known]
    varies = np.ptp(seen) > 0 and np.ptp(signal) > 0
    correlation = float(spearmanr(seen, signal).statistic) if varies else np.nan
    return Quality(correlation, float(best - seen[signal == signal.max()].mean()))


CHOSEN_AMONG = {"checkpoints": among_checkpoints, "settings": among_settings}
"""Kinds of selection, and the functions that measure them."""
Scores = dict[str, dict[str, dict[str, list[Quality]]]]
"""Qualities per seed, by kind of selection, data set and signal."""


def scores(found: Mapping[str, Sequence[Candidates]]) -> Scores:
    """Return the quality of every signal."""
    result: Scores = {way: {} for way in CHOSEN_AMONG}
    for way, measure in CHOSEN_AMONG.items():
        for dataset, seeds in found.items():
            several = [measure(one) for one in seeds]
            result[way][dataset] = {name: [one[name] for one in several] for name in several[0]}
    return result


def interval(scored: Scores, way: str, datasets: Sequence[str], name: str, field: str) -> Interval:
    """Return the mean over data sets and seeds with its 95 % interval, resampling seeds per set."""
    values = {
        dataset: np.asarray([getattr(one, field) for one in scored[way][dataset][name]])
        for dataset in datasets
        if name in scored[way][dataset]
    }
    known = {one: of[~np.isnan(of)] for one, of in values.items() if not np.isnan(of).all()}
    return stratified_interval(known, mean) if known else Interval(np.nan, np.nan, np.nan)


def groups(datasets: Sequence[str]) -> dict[str, list[str]]:
    """Return the data sets in the groups of the tables."""
    sizes = {"small logs (25, 50)": ("-25", "-50"), "larger (200, 1,000)": ("-200", "-1000")}
    found = {
        title: [name for name in datasets if name.startswith("treatment") and name.endswith(ends)]
        for title, ends in sizes.items()
    }
    found["robots"] = [name for name in datasets if not name.startswith("treatment")]
    return {title: names for title, names in found.items() if names}


def selection_tables(scored: Scores) -> list[Table]:
    """Return one table per kind of selection and group of data sets, the least regret first."""
    return [
        Table(
            f"selection among {way}, {title}: rank correlation with the true return, and regret "
            "(95 % intervals over seeds)",
            tuple(
                sorted(
                    (_row(scored, way, names, signal) for signal in scored[way][names[0]]),
                    key=lambda row: np.inf if np.isnan(row["regret"]) else row["regret"],
                )
            ),
        )
        for way in CHOSEN_AMONG
        for title, names in groups([*scored[way]]).items()
    ]


def _row(scored: Scores, way: str, names: Sequence[str], signal: str) -> dict[str, Any]:
    correlation = interval(scored, way, names, signal, "correlation")
    regret = interval(scored, way, names, signal, "regret")
    return {
        "signal": signal.removeprefix(PREFIX),
        **dict(zip(("rank_correlation", "low", "high"), correlation, strict=True)),
        **dict(zip(("regret", "regret_low", "regret_high"), regret, strict=True)),
    }


def small_log_plan(asked: Reproduction) -> list[PlannedRun]:
    """Return runs of all methods with small-log settings; FtTPO also in two other forms."""
    treatment = asked.scale.treatment
    steps = asked.steps or min(SMALL_STEPS[False], treatment.steps)
    count = asked.seeds or 2 * treatment.seeds
    # The study that chose these settings: critics start at zero.
    small: dict[str, Any] = {"settings_from": SMALL, "centre_values": False}
    wanted: list[tuple[Method, dict[str, Any]]] = [(one, small) for one in SMALL_METHODS]
    wanted += [(_USUAL, {}), (_SELECTED, {**small, "holdout": HOLDOUT, "select": "offline"})]
    return [
        PlannedRun(
            f"small-logs/{reward}/{one.folder}",
            make_spec(
                one.algorithm, f"treatment/{reward}", steps=steps,
                # SPOT's density model gets as many updates as the policy.
                settings={"vae_steps": steps} if one.algorithm == "spot" else {},
                seeds=range(_FIRST_SMALL_SEED, _FIRST_SMALL_SEED + count),
                evaluate_every=max(1, steps // 3), log_every=max(1, steps // 24),
                episodes=SMALL_EPISODES * treatment.episodes, data_needed=False, **more,
            ),
        )
        for reward in REWARDS
        for one, more in wanted
    ]  # fmt: skip


def small_log_tables(runs: Mapping[str, Run]) -> list[Table]:
    """Return one table per reward, the best first, with the share of the best constant dose."""
    found = []
    for reward, of in comparison.by_dataset(runs).items():
        table = comparison.methods_table(f"treatment/{reward}", of)
        best = next(iter(of.values())).references["best constant"]
        rows = tuple(
            {"method": row["method"], "percent_of_constant": 100.0 * row["mean"] / best.mean, **row}
            for row in table.rows
        )
        measured = f"{best.mean:.2f} ({best.rule}, {best.episodes:,} episodes)"
        notes = (*table.notes, f"return of the best constant dose: {measured}")
        found.append(dataclasses.replace(table, rows=rows, notes=notes))
    return found


def measure_times(asked: Reproduction, root: Path) -> dict[str, Any]:
    """Measure seconds per update and action of each method: the best of interleaved rounds."""
    planned = [asked.treatment("quadratic", one) for one in TIMED_METHODS]
    subjects = [_TimedMethod(one, asked.scale.timed_updates) for one in planned]
    for _ in range(ROUNDS):
        for subject in subjects:
            subject.round()
    found = {
        "device": identity.device(),
        "versions": identity.versions(),
        "dataset": TIMED_ON,
        "rounds": ROUNDS,
        "updates": asked.scale.timed_updates,
        "actions": ACTIONS,
        "methods": {
            subject.name: {
                "seconds_an_update": min(subject.updates),
                "seconds_an_action": min(subject.actions),
            }
            for subject in subjects
        },
    }
    root.mkdir(parents=True, exist_ok=True)
    write(root / TIMES, json.dumps(found, indent=2).encode())
    return found


class _TimedMethod:
    """A compiled method with one seed, and the times of its rounds."""

    def __init__(self, planned: PlannedRun, updates: int) -> None:
        spec = dataclasses.replace(planned.spec, seeds=(0,))
        pack = make_pack([spec], identity.read_logs([spec]))
        self.name, self._length = planned.spec.algorithm, updates
        self._scheduler = JobScheduler(pack.program, pack.jobs, pack.data_size)
        self._data = pack.data(self._scheduler.replicated).at(0, updates)
        self._states, self._step = self._scheduler.init(), 0
        self.updates: list[float] = []
        self.actions: list[float] = []
        self._learn()
        policies = self._scheduler.policies(self._states)
        policy = jax.tree.map(lambda leaf: leaf[0], policies["actor"])
        observation = data.load(TIMED_ON, 0).observation[0]
        observations = np.broadcast_to(observation, (ACTIONS, len(observation)))
        self._act = lambda key: jax.block_until_ready(_actions(policy, observations, key))
        self._act(jax.random.key(0))

    def _learn(self) -> None:
        self._states, report = self._scheduler.chunk(
            self._states, self._data, self._step, self._length, active=np.ones(1, bool)
        )
        jax.block_until_ready(report)
        self._step += self._length

    def round(self) -> None:
        """Time the updates and the actions once."""
        began = time.perf_counter()
        self._learn()
        self.updates.append((time.perf_counter() - began) / self._length)
        began = time.perf_counter()
        self._act(jax.random.key(1))
        self.actions.append((time.perf_counter() - began) / ACTIONS)


@jax.jit
def _actions(policy: Any, observations: Any, key: Any) -> Any:
    return policy(observations).sample(key)


def times_table(found: dict[str, Any]) -> Table:
    """Return a table of hours per million updates, also relative to IQL, and of action times."""
    of_iql = found["methods"]["iql"]["seconds_an_update"]
    return Table(
        f"time per update and per action, one seed, on {found['device']}",
        tuple(
            {
                "method": name,
                "hours_per_million_updates": of["seconds_an_update"] * 1e6 / 3600.0,
                "times_iql": of["seconds_an_update"] / of_iql,
                "microseconds_per_action": of["seconds_an_action"] * 1e6,
            }
            for name, of in found["methods"].items()
        ),
    )
