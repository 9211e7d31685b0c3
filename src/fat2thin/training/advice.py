"""What the owner of a policy should know before it acts, found on the held-out part of its log.

Said in plain words: when a policy looks overfitted, when the log hardly covers the band that it may
act in, and when a constant action is estimated to do as well or nothing can be estimated.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fat2thin.data.operations import Reachable, reachable_returns
from fat2thin.engine.jobs import WATCHED, watched_rows
from fat2thin.engine.pack import Log
from fat2thin.evaluation.fitted_q import BestConstant, Part, best_constant
from fat2thin.evaluation.held_out import NOT_ESTIMABLE, VALUE, Watched
from fat2thin.settings.spec import RunSpec

CANDIDATES = 64
"""Logged actions that are tried as constants."""
TIMES = 1.5
"""How many times what was learned from must be better than what was held out."""
ERRORS = 3.0
"""Standard errors that a share must differ by to be told of."""
HARDLY = 0.05
"""Share of the logged actions that is hardly any."""


class Found(NamedTuple):
    """What is known of each seed: arrays of shape (seeds,), nan where something is not known."""

    metrics: Mapping[str, np.ndarray]
    """Metrics and signals of the policy that acts."""
    constant_value: np.ndarray
    """Estimated value of the best constant action, in the units of `held_out_value` ..."""
    constant_action: np.ndarray
    """... and that action in the task's units, shape (seeds, action)."""
    held_out_rows: int
    reward_factor: np.ndarray
    """What rewards were multiplied by."""
    reachable: Sequence[Reachable]
    """What returns the rewards of each seed's log allow, before they were multiplied."""


def look(
    spec: RunSpec, logs: Sequence[Log], rows: Mapping[str, np.ndarray], chosen: Sequence[int]
) -> list[str]:
    """What is to be said of a run's policies: those after the step `chosen` for each seed.

    `rows` are metrics of shape (rows, seeds), with their "step".
    """
    if not spec.holdout:
        return []
    places = np.searchsorted(rows["step"], chosen)
    seeds = np.arange(len(spec.seeds))
    of_seeds = list(range(len(spec.seeds))) if len(logs) > 1 else [0] * len(spec.seeds)
    constants = [_best_constant_of(log) for log in logs]
    low, high = (np.asarray(getattr(logs[0].dataset, end)) for end in ("action_low", "action_high"))
    actions = np.stack([np.asarray(constants[log].action) for log in of_seeds])
    found = Found(
        metrics={
            name: np.where(np.asarray(chosen) > 0, values[places, seeds], np.nan)
            for name, values in rows.items()
            if name != "step"
        },
        constant_value=np.asarray([float(constants[log].value) for log in of_seeds]),
        constant_action=low + (actions + 1.0) / 2.0 * (high - low),
        held_out_rows=min(min(log.held_out.rows, WATCHED) for log in logs if log.held_out),
        reward_factor=np.asarray([logs[log].scales.reward_factor for log in of_seeds]),
        reachable=[reachable_returns(logs[log].dataset) for log in of_seeds],
    )
    return advice(spec.seeds, found)


def _best_constant_of(log: Log) -> BestConstant:
    assert log.held_out is not None
    scaled = [log.scales.apply(part) for part in (log.learned, log.held_out)]
    watched = watched_rows(scaled[:1], scaled[1:])
    return _constant_on(jax.tree.map(lambda array: array[0], watched), log.dataset.discount)


@functools.partial(jax.jit, static_argnames="discount")
def _constant_on(watched: Watched, discount: float) -> BestConstant:
    parts = Part(watched.held_out, watched.counts[0]), Part(watched.learned, watched.counts[1])
    spread = np.arange(CANDIDATES) * len(watched.learned.action) // CANDIDATES
    return best_constant(*parts, watched.learned.action[spread], discount, watched.reachable)


def advice(seeds: Sequence[int], found: Found) -> list[str]:
    """Sentences, each for all seeds that it is true of."""
    told = [_overfitted, _uncovered, _not_estimable, _constant]
    return [sentence for tell in told for sentence in tell(seeds, found)]


def _overfitted(seeds: Sequence[int], found: Found) -> list[str]:
    metrics, sentences = found.metrics, []
    remedy = (
        "Try fewer updates, or --select offline, which takes the policy on the way that held-out "
        "episodes like best; on a noisy log --settings-from small, which auto takes by itself."
    )
    if "logged_inside_support" in metrics:
        learned, unseen = metrics["learned_inside"], metrics["held_out_inside"]
        pooled = (learned + unseen) / 2.0
        error = np.sqrt(2.0 * pooled * (1.0 - pooled) / found.held_out_rows)
        worrying = (learned > TIMES * unseen) & (learned > unseen + ERRORS * error)
        if worrying.any():
            sentences.append(
                f"{who(seeds, worrying)}: the policy looks overfitted. Its band holds "
                f"{_percent(learned, worrying)} of the actions that it learned from and "
                f"{_percent(unseen, worrying)} of those that were held out. {remedy}"
            )
    if {"critic_loss", "held_out_td_error"} <= {*metrics}:
        learned, unseen = np.sqrt(2.0 * metrics["critic_loss"]), metrics["held_out_td_error"]
        worrying = unseen > TIMES * learned
        if worrying.any():
            ratio = np.nanmean((unseen / learned)[worrying])
            sentences.append(
                f"{who(seeds, worrying)}: Q looks overfitted. Its error on held-out steps is "
                f"{ratio:.1f} times that on the steps it learned from. {remedy}"
            )
    return sentences


def _uncovered(seeds: Sequence[int], found: Found) -> list[str]:
    if "logged_inside_support" not in found.metrics:
        return []
    inside = found.metrics["held_out_inside_least"]
    worrying = inside < HARDLY
    if not worrying.any():
        return []
    return [
        f"{who(seeds, worrying)}: the log hardly covers the band. {_percent(inside, worrying)} of "
        "the held-out actions lie inside (of several coordinates, in the one where they are "
        "fewest), so what the policy does was hardly ever tried, and its value is a guess. A "
        "larger temperature or kept_mass widens the band."
    ]


def _not_estimable(seeds: Sequence[int], found: Found) -> list[str]:
    # Where the rest is not known either, the seed has stopped.
    value, known = (found.metrics[name] for name in (VALUE, "held_out_inside"))
    worrying = np.isnan(value) & ~np.isnan(known)
    if not worrying.any():
        return []
    first = int(np.argmax(worrying))
    return [
        f"{who(seeds, worrying)}: the value of the policy is {NOT_ESTIMABLE} "
        f"{found.reachable[first]}, by fitted Q evaluation. Whether a constant action does as well "
        "is not known. More episodes, or fewer columns of observations, may make it estimable."
    ]


def _constant(seeds: Sequence[int], found: Found) -> list[str]:
    value = found.metrics["held_out_value"]
    worrying = found.constant_value >= value
    if not worrying.any():
        return []
    first = int(np.argmax(worrying))
    action = ", ".join(f"{x:.3g}" for x in found.constant_action[first])
    units = found.reward_factor[first]
    return [
        f"{who(seeds, worrying)}: a constant action is estimated to do as well as the policy. For "
        f"seed {seeds[first]} the best is {action}; such constants are worth "
        f"{found.constant_value[first] / units:.3g}, the policy {value[first] / units:.3g} "
        "(discounted, from the states of the log, by fitted Q evaluation: an estimate, no proof)."
    ]


def who(seeds: Sequence[int], which: np.ndarray) -> str:
    """The seeds that something is true of, in words."""
    chosen = [str(seed) for seed, one in zip(seeds, which, strict=True) if one]
    return f"seed{'s' * (len(chosen) > 1)} {', '.join(chosen)}"


def _percent(shares: np.ndarray, which: np.ndarray) -> str:
    return f"{100.0 * np.nanmean(shares[which]):.2g} %"
