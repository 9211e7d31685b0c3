"""Settings for small logs, where the usual ones learn the log by heart.

What each of them is worth was measured one by one on logs of 1,200 steps
(docs/guides/small_logs.md): small networks and weight decay where the log is noisy, and for FtTPO a
band that keeps less of the proposal's mass everywhere. Rewards are put on a scale of their own, so
that a temperature means the same on every log.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fat2thin import algorithms, data
from fat2thin.data.predictability import is_noisy
from fat2thin.settings.options import AUTO, CLEAR, DEFAULT, SMALL

Load = Callable[[str, int], data.Dataset]
"""`load(name, seed)` as in `data.load`, or one that remembers."""
SMALL_ROWS = 25_000  # rows of the largest log that is small
SMALL_STEPS = 6_000
"""Updates that are enough for one with a discount factor of 0.9: Q fills up from zero in some
1 / ((1 − discount) · polyak_rate) of them, and this is three times as many."""
MOST_STEPS = {SMALL: 100_000, CLEAR: 12_000}
"""Whatever the discount factor; on clear logs no more were tried."""
OPTIONS: dict[str, Any] = {"standardise": True, "reward_scale": "deviation"}
"""What a run on a small log has besides settings of its algorithm."""

_SIMPLE = {"hidden": (16, 16), "weight_decay": 3.0, "learning_rate": 3e-4}
"""Small networks for noisy logs; an algorithm adds settings of its own (`SmallLogs`). Each had its
best of five values on seeds 0 to 9 of both treatment rewards; on clear logs FtTPO alone was tried,
and networks stay as they are."""


def _own(algorithm: str, origin: str) -> Mapping[str, Any] | None:
    known = algorithms.get(algorithm).small_logs
    return known.noisy if origin == SMALL else known.predictable


def small_settings(algorithm: str, origin: str = SMALL) -> dict[str, Any]:
    """Settings of an algorithm for small logs, where some are known."""
    own = _own(algorithm, origin)
    if own is None:
        there = ", ".join(name for name in algorithms.names() if _own(name, origin) is not None)
        raise ValueError(f"settings_from={origin!r} is known of {there}, not of {algorithm}")
    return {**(_SIMPLE if origin == SMALL else {}), **own}


def resolve(settings_from: str, algorithm: str, dataset: str, load: Load = data.load) -> str:
    """Return `settings_from`, with "auto" decided by the log: its size, and how noisy it is."""
    if settings_from != AUTO:
        return settings_from
    log = load(dataset, 0)
    # Rewards that are all equal have no scale, and nothing to be learned from them.
    if log.rows > SMALL_ROWS or log.reward.min() == log.reward.max():
        return DEFAULT
    origin = SMALL if is_noisy(log) else CLEAR
    return DEFAULT if _own(algorithm, origin) is None else origin


def enough_steps(
    steps: int | None, settings_from: str, dataset: str, load: Load = data.load
) -> int:
    """Return the number of updates: the one that is given, or enough of them for a small log."""
    if steps is not None:
        return steps
    if settings_from in MOST_STEPS:
        to_come = max(1.0 - load(dataset, 0).discount, 1e-9)
        most = MOST_STEPS[settings_from]
        return min(most, max(SMALL_STEPS, round(SMALL_STEPS * 0.1 / to_come)))
    raise ValueError(
        "say how many updates (steps, for example 100000): only settings for small logs "
        f"(settings_from={SMALL!r} or {CLEAR!r}) have a number of their own"
    )


def sentence(dataset: str, rows: int, origin: str, taken: str) -> str:
    """Say why a log gets settings for small logs, and which: `taken`, in words."""
    kind = "is noisy" if origin == SMALL else "can be predicted"
    return (
        f"{dataset} has {rows:,} rows, and what comes next in it {kind}: "
        f"settings for such logs are taken ({taken}). --settings-from default has the usual ones."
    )
