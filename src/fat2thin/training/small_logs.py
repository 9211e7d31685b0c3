"""Settings for small logs, where the usual ones learn the log by heart.

What each of them is worth was measured one by one on logs of 1,200 steps (docs/selection.md):
small networks, weight decay, and for FtTPO a band that keeps less of the proposal's mass. Rewards
are put on a scale of their own, so that a temperature means the same on every log.
"""

from typing import Any

from fat2thin import algorithms, data
from fat2thin.evaluation.signals import SMALL_ROWS

SMALL = "small"
AUTO = "auto"
"""The small settings where the log is small, else the algorithm's defaults."""
SMALL_STEPS = 6_000
"""Updates that are enough for one."""
OPTIONS: dict[str, Any] = {"standardise": True, "reward_scale": "deviation"}
"""What a run on a small log has besides settings of its algorithm."""

_NETWORKS = {"hidden": (16, 16), "weight_decay": 3.0, "learning_rate": 3e-4}
_OWN: dict[str, dict[str, Any]] = {
    "fttpo": {"temperature": 0.35, "actor_loss": "closed_form", "kept_mass": 0.3},
}
"""By algorithm; a variant without an entry has the networks' settings alone."""


def small_settings(algorithm: str) -> dict[str, Any]:
    """Settings of an algorithm for small logs."""
    algorithms.get(algorithm)
    return {**_NETWORKS, **_OWN.get(algorithm, {})}


def resolve(settings_from: str, dataset: str) -> str:
    """`settings_from`, with "auto" decided by the size of the log."""
    if settings_from != AUTO:
        return settings_from
    return SMALL if data.load(dataset).rows <= SMALL_ROWS else "default"


def enough_steps(steps: int | None, settings_from: str) -> int:
    """How many updates: as many as were asked for, and for a small log enough of them."""
    if steps is not None:
        return steps
    if settings_from == SMALL:
        return SMALL_STEPS
    raise ValueError(
        "say how many updates (steps, for example 100000): only settings for small logs "
        f"(settings_from={SMALL!r}) have a number of their own"
    )


def sentence(algorithm: str, dataset: str) -> str:
    """What is said to whoever gets the small settings without having asked for them."""
    rows = data.load(dataset).rows
    told = ", ".join(f"{name}={_word(value)}" for name, value in small_settings(algorithm).items())
    return (
        f"{dataset} has {rows:,} rows: settings for small logs are taken ({told}; observations and "
        "rewards are put on scales of their own). --settings-from default has the usual ones."
    )


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
