"""Every method on small logs with the settings for them, on seeds that no setting was chosen on."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fat2thin.experiments import comparison as outcomes
from fat2thin.experiments.plan import Planned
from fat2thin.paper.presets import REWARDS, Method, Reproduction, method
from fat2thin.settings.small_logs import SMALL, SMALL_STEPS
from fat2thin.tables import Table
from fat2thin.training import Run, make_spec

FIRST_SEED = 100
"""Settings were chosen on seeds 0 to 9."""
EPISODES = 10
"""Times as many as an evaluation of the scale has."""
METHODS = (
    method("fttpo"), method("iql"), method("xql"), method("sql"), method("inac"), method("tawac"),
    method("awac"), method("td3_bc"), method("spot"), method("bc"), method("fttpo-spot"),
    method("fttpo-sg"), method("fttpo-greedy"), method("tawac-ht"), method("rar"),
    method("sparse_reverse_kl"),
)  # fmt: skip
USUAL = Method("fttpo, usual settings", "fttpo")
SELECTED = Method("fttpo, held out and selected", "fttpo")


def plan(asked: Reproduction) -> list[Planned]:
    """The runs: each method with the small settings; FtTPO with the usual ones, and selected."""
    small: dict[str, Any] = {"settings_from": SMALL}
    wanted: list[tuple[Method, dict[str, Any]]] = [(one, small) for one in METHODS]
    wanted += [(USUAL, {}), (SELECTED, {**small, "holdout": 0.2, "select": "offline"})]
    return [
        Planned(f"small-logs/{reward}/{one.folder}", _spec(asked, reward, one, **more))
        for reward in REWARDS
        for one, more in wanted
    ]


def _spec(asked: Reproduction, reward: str, one: Method, **more: Any) -> Any:
    steps = asked.steps or min(SMALL_STEPS, asked.scale.treatment_steps)
    count = asked.seeds or 2 * asked.scale.treatment_seeds
    # SPOT's density model gets as many updates as the policy.
    settings = {"vae_steps": steps} if one.algorithm == "spot" else {}
    return make_spec(
        one.algorithm, f"treatment/{reward}", steps=steps, settings=settings,
        seeds=range(FIRST_SEED, FIRST_SEED + count), evaluate_every=max(1, steps // 3),
        episodes=EPISODES * asked.scale.treatment_episodes, log_every=max(1, steps // 24),
        data_needed=False, **more,
    )  # fmt: skip


def tables(runs: Mapping[str, Run]) -> list[Table]:
    """A table a reward, the best first, with the share of the best constant dose that it is."""
    by_reward: dict[str, dict[str, Run]] = {}
    for name, run in runs.items():
        _, reward, folder = name.split("/")
        by_reward.setdefault(reward, {})[folder] = run
    return [_with_shares(reward, of) for reward, of in by_reward.items()]


def _with_shares(reward: str, runs: Mapping[str, Run]) -> Table:
    table = outcomes.methods_table(f"treatment/{reward}", runs)
    best = next(iter(runs.values())).references["best constant"]
    rows = [
        {"method": row["method"], "percent_of_constant": 100.0 * row["mean"] / best.mean, **row}
        for row in table.rows
    ]
    told = f"the best constant dose has {best.mean:.2f} ({best.rule}, {best.episodes:,} episodes)"
    return dataclasses.replace(table, rows=tuple(rows), notes=(*table.notes, told))
