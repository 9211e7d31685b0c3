"""Settings for small logs, which the usual settings overfit.

The effect of each setting was measured separately on logs of 1,200 steps
(docs/guides/small_logs.md): small networks and weight decay if the log is noisy, and for FtTPO on
every small log a band that keeps less of the proposal's mass. Rewards are scaled by their standard
deviation, so that a temperature means the same on every log.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fat2thin import algorithms, data
from fat2thin.data.predictability import is_noisy
from fat2thin.settings.options import AUTO, CLEAR, DEFAULT, SMALL

Load = Callable[[str, int], data.Dataset]
"""`load(name, seed)` as in `data.load`, or a cached version of it."""
SMALL_ROWS = 25_000  # maximum number of rows of a small log
SMALL_STEPS = 6_000
"""Updates for a small log with a discount factor of 0.9: Q rises from zero to its level in about
1 / ((1 − discount) · polyak_rate) updates, and this is three times as many."""
MOST_STEPS = {SMALL: 100_000, CLEAR: 12_000}
"""Maximum number of updates for any discount factor; on clear logs no more were tried."""
OPTIONS: dict[str, Any] = {"standardise": True, "reward_scale": "deviation"}
"""Options of a run on a small log, besides the settings of its algorithm."""

_SIMPLE = {"hidden": (16, 16), "weight_decay": 3.0, "learning_rate": 3e-4}
"""Small networks for noisy logs; an algorithm adds its own settings (`SmallLogs`). Each value was
the best of five on seeds 0 to 9 of both treatment rewards. On clear logs only FtTPO was tried, with
the usual networks."""


def _own(algorithm: str, origin: str) -> Mapping[str, Any] | None:
    known = algorithms.get(algorithm).small_logs
    return known.noisy if origin == SMALL else known.predictable


def small_settings(algorithm: str, origin: str = SMALL) -> dict[str, Any]:
    """Return the settings of an algorithm for small logs; a ValueError if none are known."""
    own = _own(algorithm, origin)
    if own is None:
        there = ", ".join(name for name in algorithms.names() if _own(name, origin) is not None)
        raise ValueError(f"settings_from={origin!r} is known for {there}, not for {algorithm}")
    return {**(_SIMPLE if origin == SMALL else {}), **own}


def resolve(settings_from: str, algorithm: str, dataset: str, load: Load = data.load) -> str:
    """Return `settings_from`, with "auto" resolved by the size and the noise of the log."""
    if settings_from != AUTO:
        return settings_from
    log = load(dataset, 0)
    # Rewards that are all equal have no scale, and nothing can be learned from them.
    if log.rows > SMALL_ROWS or log.reward.min() == log.reward.max():
        return DEFAULT
    origin = SMALL if is_noisy(log) else CLEAR
    return DEFAULT if _own(algorithm, origin) is None else origin


def enough_steps(
    steps: int | None, settings_from: str, dataset: str, load: Load = data.load
) -> int:
    """Return the number of updates: `steps` if given, else enough of them for a small log."""
    if steps is not None:
        return steps
    if settings_from in MOST_STEPS:
        to_come = max(1.0 - load(dataset, 0).discount, 1e-9)
        most = MOST_STEPS[settings_from]
        return min(most, max(SMALL_STEPS, round(SMALL_STEPS * 0.1 / to_come)))
    raise ValueError(
        "steps, the number of updates, is missing: give it, for example 100000; only settings for "
        f"small logs (settings_from={SMALL!r} or {CLEAR!r}) have a default"
    )


def sentence(dataset: str, rows: int, origin: str, taken: str) -> str:
    """Return a sentence that says why a log gets settings for small logs, and which (`taken`)."""
    kind = "noisy" if origin == SMALL else "predictable"
    return (
        f"{dataset} has {rows:,} rows, and its next observations are {kind}: settings for such "
        f"logs are used ({taken}). Use --settings-from default for the usual ones."
    )
