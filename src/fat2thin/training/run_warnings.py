"""Warnings about a run. During training: loss spikes and a diverging Q. At the end, from the
held-out part of the log: policies that are overfitted, hardly covered by the log, no better than a
constant, or not estimable.
"""

import collections
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from fat2thin.columns import Column, have_names, inverse_transform
from fat2thin.data.dataset import transformed
from fat2thin.data.operations import Reachable, reachable_returns
from fat2thin.engine.pack import WATCHED, LoadedLog, watched_rows
from fat2thin.evaluation.fitted_q import BestConstant, Part, best_constant
from fat2thin.evaluation.held_out import HARDLY, NOT_ESTIMABLE, TIMES, VALUE, Watched
from fat2thin.settings.spec import RunSpec

CANDIDATES = 64  # number of logged actions that are tried as constants
ERRORS = 3.0  # standard errors that a share must differ by for a warning

USUAL_ROWS = 50  # number of last rows of metrics whose median is the usual value
FEWEST_ROWS = 10
SPIKE = 100.0  # ratio of a loss to its usual value above which it is a spike
RUNAWAY = 2.0  # ratio of a mean Q to the largest possible return above which Q diverges
FEW = 0.02  # effective share of the rows below which too few decide
UNREWARDED = 1.0  # mean Q above which Q diverges if all rewards are 0; fresh networks stay below

_WIDEN = "A larger temperature or kept_mass widens the band."


class Health:
    """Checks the metrics of a run's seeds; each warning is given once per seed."""

    def __init__(self, seeds: Sequence[int], largest_return: float) -> None:
        """`largest_return` is an upper bound of discounted returns of the log's rewards."""
        self._seeds, self._largest = seeds, largest_return
        self._usual: dict[str, collections.deque[np.ndarray]] = {}
        self._given: set[tuple[int, str]] = set()

    def look(self, step: int, metrics: Mapping[str, np.ndarray]) -> list[str]:
        """Return the new warnings at a step; metrics have one number per seed, or nan."""
        return [
            sentence
            for name, values in metrics.items()
            for sentence in self._of_metric(step, name, np.abs(np.asarray(values, float)))
        ]

    def _of_metric(self, step: int, name: str, sizes: np.ndarray) -> list[str]:
        if name == "q_mean":
            return [
                f"seed {self._seeds[place]}: Q diverges. Its mean has absolute value "
                f"{sizes[place]:.3g} at step {step:,}, but no return of this log's rewards can "
                f"exceed {self._largest:.3g}. Try a smaller learning rate, a smaller polyak_rate, "
                "rewards of a smaller scale (--reward-scale), or clipped targets "
                "(--set clip_targets=True)."
                for place in self._new(name, sizes > (RUNAWAY * self._largest or UNREWARDED))
            ]
        if name == "effective_share":
            return self._of_share(step, sizes)
        if not name.endswith("_loss"):
            return []
        rows = self._usual.setdefault(name, collections.deque(maxlen=USUAL_ROWS))
        usual = np.median(rows, axis=0) if len(rows) >= FEWEST_ROWS else np.full(len(sizes), np.nan)
        rows.append(sizes)
        with np.errstate(invalid="ignore"):
            spikes = self._new(name, sizes > SPIKE * np.maximum(usual, 1e-6))
        return [
            f"seed {self._seeds[place]}: {name} rose to {sizes[place]:.3g} at step {step:,}; its "
            f"usual value was {usual[place]:.3g}. If the spike does not go away, try a smaller "
            "learning rate, or rewards and observations of a smaller scale (--reward-scale, "
            "--standardise)."
            for place in spikes
        ]

    def _of_share(self, step: int, shares: np.ndarray) -> list[str]:
        """Warn if the share stays low: after a few rows, and not of a single one."""
        rows = self._usual.setdefault("effective_share", collections.deque(maxlen=FEWEST_ROWS))
        rows.append(shares)
        low = (
            np.max(rows, axis=0) < FEW if len(rows) == FEWEST_ROWS else np.zeros(len(shares), bool)
        )
        return [
            f"seed {self._seeds[place]}: the regression uses {100 * shares[place]:.2g} % of the "
            f"rows (effective sample size of its weights, step {step:,}), so a few logged actions "
            "decide what the policy learns. Try a larger temperature, rewards of a smaller scale "
            "(--reward-scale deviation), or values that start at the log's level (--centre-values)."
            for place in self._new("effective_share", low)
        ]

    def _new(self, name: str, worrying: np.ndarray) -> list[int]:
        found = np.flatnonzero(worrying).tolist()
        places = [place for place in found if (place, name) not in self._given]
        self._given |= {(place, name) for place in places}
        return places


class HeldOutFindings(NamedTuple):
    """Results of each seed: arrays of shape (seeds,), nan where a result is not known."""

    metrics: Mapping[str, np.ndarray]
    """Metrics and signals of the policy that acts."""
    constant_value: np.ndarray
    """Estimated value of the best constant action, in the units of `held_out_value`."""
    constant_action: np.ndarray
    """The best constant action in the task's units, shape (seeds, action)."""
    held_out_rows: int
    reachable: Sequence[Reachable]
    """The range of returns that the unscaled rewards of each seed's log allow."""
    action_columns: Sequence[Column] = ()
    """Names and units of the action dimensions; empty if unknown."""
    huber_limit: float = math.inf
    """Error above which the critics' loss is linear, as in XQL."""


def look(
    spec: RunSpec, logs: Sequence[LoadedLog], rows: Mapping[str, np.ndarray], chosen: Sequence[int]
) -> list[str]:
    """Return warnings about a run's policies, those after the step `chosen` for each seed.

    `rows` are metrics of shape (rows, seeds), with their "step". The run must have a holdout.
    """
    steps, seeds = np.searchsorted(rows["step"], chosen), np.arange(len(spec.seeds))
    of_seeds = (seeds if len(logs) > 1 else 0 * seeds).tolist()
    constants = [_best_constant_of(log) for log in logs]
    box = transformed(logs[0].dataset)
    low, high = np.asarray(box.action_low), np.asarray(box.action_high)
    actions = np.stack([np.asarray(constants[log].action) for log in of_seeds])
    found = HeldOutFindings(
        metrics={
            name: np.where(np.asarray(chosen) > 0, values[steps, seeds], np.nan)
            for name, values in rows.items()
            if name != "step"
        },
        constant_value=np.asarray([float(constants[log].value) for log in of_seeds]),
        constant_action=inverse_transform(
            low + (actions + 1.0) / 2.0 * (high - low), logs[0].dataset.action_transforms
        ),
        held_out_rows=min(min(log.held_out.rows, WATCHED) for log in logs if log.held_out),
        reachable=[reachable_returns(logs[log].dataset) for log in of_seeds],
        action_columns=logs[0].dataset.action_columns,
        huber_limit=getattr(spec.config, "huber_limit", math.inf),
    )
    return advice(spec.seeds, found)


def _best_constant_of(log: LoadedLog) -> BestConstant:
    assert log.held_out is not None
    scaled = [log.scales.apply(part) for part in (log.learned, log.held_out)]
    watched = watched_rows(scaled[:1], scaled[1:], [log.scales.level])
    return _constant_on(jax.tree.map(lambda array: array[0], watched), log.dataset.discount)


@functools.partial(jax.jit, static_argnames="discount")
def _constant_on(watched: Watched, discount: float) -> BestConstant:
    parts = Part(watched.held_out, watched.counts[0]), Part(watched.learned, watched.counts[1])
    spread = np.arange(CANDIDATES) * len(watched.learned.action) // CANDIDATES
    candidates = watched.learned.action[spread]
    found = best_constant(*parts, candidates, discount, watched.value_range)
    return found._replace(value=found.value + watched.level)


def advice(seeds: Sequence[int], found: HeldOutFindings) -> list[str]:
    """Return the warnings, each for all seeds that it applies to."""
    checks = [_overfitted, _uncovered, _not_estimable, _constant]
    return [sentence for check in checks for sentence in check(seeds, found)]


def _overfitted(seeds: Sequence[int], found: HeldOutFindings) -> Iterator[str]:
    metrics = found.metrics
    remedy = (
        "Try fewer updates, or --select offline, which keeps the policy that scores best on the "
        "held-out episodes; on a noisy log try --settings-from small, which auto uses by default."
    )
    if "logged_inside_support" in metrics:
        learned, unseen = metrics["learned_inside"], metrics["held_out_inside"]
        pooled = (learned + unseen) / 2.0
        error = np.sqrt(2.0 * pooled * (1.0 - pooled) / found.held_out_rows)
        worrying = (learned > TIMES * unseen) & (learned > unseen + ERRORS * error)
        if worrying.any():
            yield (
                f"{who(seeds, worrying)}: the policy looks overfitted. Its band holds "
                f"{_percent(learned, worrying)} of the actions that it learned from and "
                f"{_percent(unseen, worrying)} of those that were held out. {remedy}"
            )
    if {"critic_loss", "held_out_td_error"} <= {*metrics}:
        half_squares = metrics["critic_loss"], metrics["held_out_td_error"] ** 2 / 2.0
        learned, unseen = (_error_of(loss, found.huber_limit) for loss in half_squares)
        worrying = unseen > TIMES * learned
        if worrying.any():
            ratio = np.nanmean((unseen / learned)[worrying])
            yield (
                f"{who(seeds, worrying)}: Q looks overfitted. Its error on held-out steps is "
                f"{ratio:.1f} times that on the steps it learned from. {remedy}"
            )


def _error_of(loss: np.ndarray, limit: float) -> np.ndarray:
    """Return the error that has this Huber loss: error² / 2 up to the limit, then linear."""
    return np.where(loss <= limit**2 / 2.0, np.sqrt(2.0 * loss), loss / limit + limit / 2.0)


def _uncovered(seeds: Sequence[int], found: HeldOutFindings) -> Iterator[str]:
    if "logged_inside_support" not in found.metrics:
        return
    inside = found.metrics["held_out_inside_least"]
    worrying = inside < HARDLY
    if worrying.any():
        yield (
            f"{who(seeds, worrying)}: the log hardly covers the band. {_percent(inside, worrying)} "
            "of the held-out actions lie inside (with several coordinates, in the one with the "
            "fewest), so the policy's actions were hardly ever tried, and their value is a guess. "
            f"{_WIDEN}"
        )
    together = found.metrics["held_out_inside"]
    worrying = (together < HARDLY) & ~worrying
    if worrying.any():
        yield (
            f"{who(seeds, worrying)}: the log hardly covers the band in all action dimensions "
            f"together. {_percent(together, worrying)} of the held-out actions lie inside, "
            f"although each dimension alone is covered (the least by {_percent(inside, worrying)}):"
            f" the policy's combinations of actions were hardly ever tried. {_WIDEN}"
        )


def _not_estimable(seeds: Sequence[int], found: HeldOutFindings) -> Iterator[str]:
    # If the other signals are not known either, the seed has stopped.
    worrying = np.isnan(found.metrics[VALUE]) & ~np.isnan(found.metrics["held_out_inside"])
    if worrying.any():
        reachable = found.reachable[int(np.argmax(worrying))]
        yield (
            f"{who(seeds, worrying)}: the value of the policy is {NOT_ESTIMABLE} {reachable}, by "
            "fitted Q evaluation. Whether a constant action does as well is not known. More "
            "episodes, or fewer columns of observations, may make it estimable; `fat2thin value` "
            "uses other estimators."
        )


def _constant(seeds: Sequence[int], found: HeldOutFindings) -> Iterator[str]:
    value = found.metrics["held_out_value"]
    worrying = found.constant_value >= value
    if worrying.any():
        first = int(np.argmax(worrying))
        action = _described(found.constant_action[first], found.action_columns)
        yield (
            f"{who(seeds, worrying)}: a constant action is estimated to do as well as the policy, "
            f"by the signal held_out_value. For seed {seeds[first]} the best is {action}. What "
            "both are worth beside practice, and with which confidence: `fat2thin value`."
        )


def _described(action: np.ndarray, columns: Sequence[Column]) -> str:
    """Return an action as text, with names and units where the log has them."""
    numbers = [f"{x:.3g}" for x in action]
    if not have_names("action", columns):
        return ", ".join(numbers)
    parts = zip(columns, numbers, strict=True)
    return ", ".join(f"{column.name} {number} {column.unit}".strip() for column, number in parts)


def who(seeds: Sequence[int], which: np.ndarray) -> str:
    """Return the seeds that something applies to, as text."""
    chosen = [str(seed) for seed, one in zip(seeds, which, strict=True) if one]
    return f"seed{'s' * (len(chosen) > 1)} {', '.join(chosen)}"


def _percent(shares: np.ndarray, which: np.ndarray) -> str:
    return f"{100.0 * np.nanmean(shares[which]):.2g} %"
