"""Limits on a log: what they allow in each row, what they exclude of the log, how often they bind.

The last action of a row is the logged action of the row above, and there is none at the start of an
episode. In the next state it is the logged action of the row itself.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy import ndarray

from fat2thin.columns import transform
from fat2thin.data.dataset import Dataset
from fat2thin.data.row_arrays import RowArray, blocks, is_lazy
from fat2thin.policies.limits import LimitFileError, LimitRules, Limits
from fat2thin.policies.policy import Policy
from fat2thin.tables import Table
from fat2thin.terminal_text import counted

MOST_STATES = 100_000
"""Logged states in which policies are compared with their limits; more are spread evenly."""


def with_limits(dataset: Dataset, limits: Limits) -> Dataset:
    """Return the data set, in raw units, with what limits allow in its rows."""
    rows = AllowedRows(dataset, limits)
    lazy = is_lazy(dataset.observation, dataset.action)
    return dataclasses.replace(dataset, allowed=rows if lazy else np.asarray(rows))


class AllowedRows(RowArray):
    """Per row: lowest, highest, next lowest and next highest allowed actions, and a flag.

    Actions are in half-ranges of the box, after their transforms. The flag is 1 where the logged
    action is allowed. Where limits leave no action, both ends are the fallback, or nan.
    """

    def __init__(self, dataset: Dataset, limits: Limits) -> None:
        self._dataset, self._limits = dataclasses.replace(dataset, allowed=None), limits
        self.shape, self.dtype = (dataset.rows, 4 * dataset.action_size + 1), np.dtype(np.float32)
        transforms = dataset.action_transforms
        box = (np.asarray(end) for end in (dataset.action_low, dataset.action_high))
        low, high = (transform(end, transforms) for end in box)
        self._middle, self._half_range = (low + high) / 2.0, (high - low) / 2.0

    def read(self, rows: slice | ndarray) -> ndarray:
        """Return rows; see `RowArray`."""
        states = states_of(self._dataset, rows)
        following = self._dataset.next_observation[rows].astype(np.float32)
        found = _programs(self._limits).allowed(*states, following)
        low, high, next_low, next_high, excluded = map(np.asarray, found)
        ends = (self._in_half_ranges(end) for end in (low, high, next_low, next_high))
        return np.concatenate([*ends, ~excluded[:, None]], axis=1).astype(np.float32)

    def _in_half_ranges(self, action: ndarray) -> ndarray:
        placed = transform(action.astype(np.float64), self._dataset.action_transforms)
        return np.clip((placed - self._middle) / self._half_range, -1.0, 1.0)


class LoggedStates(NamedTuple):
    """Raw rows of a log in the precision of policies."""

    observation: Any
    """Shape (rows, observation)."""
    last: Any
    """Shape (rows, action): the action before; nan at the first step of an episode."""
    action: Any
    """Shape (rows, action)."""


def states_of(dataset: Dataset, rows: slice | ndarray | None = None) -> LoggedStates:
    """Return rows of a log, with the last actions that limits may depend on."""
    every = np.arange(dataset.rows)
    numbers = every if rows is None else every[rows]
    last = dataset.action[np.maximum(numbers - 1, 0)].astype(np.float32)
    place = np.searchsorted(dataset.episode_start, numbers, side="right") - 1
    last[dataset.episode_start[place] == numbers] = np.nan
    rows = slice(None) if rows is None else rows
    observation, action = (
        array[rows].astype(np.float32) for array in (dataset.observation, dataset.action)
    )
    return LoggedStates(observation, last, action)


class _Programs(NamedTuple):
    """Compiled functions of rows, for one set of limits."""

    allowed: Callable[..., tuple[Array, ...]]
    """Ends of the allowed actions here and in the next state, and which actions are excluded."""
    counts: Callable[..., "_Counts"]


class _Counts(NamedTuple):
    """Per row, and per row and limit."""

    excluded: Bool[Array, " rows"]
    without_action: Bool[Array, " rows"]
    next_without: Bool[Array, " rows"]
    applies: Bool[Array, "rows limits"]
    excluded_by: Bool[Array, "rows limits"]


@functools.lru_cache(maxsize=16)
def _programs(limits: Limits) -> _Programs:
    @jax.jit
    def allowed(
        observation: Array, last: Array, action: Array, following: Array
    ) -> tuple[Array, ...]:
        ends = (*limits.ends(observation, last), *limits.ends(following, action))
        return (*ends, limits.excludes(action, action, observation, last))

    @jax.jit
    def counts(observation: Array, last: Array, action: Array, following: Array) -> _Counts:
        alone = [one.excludes(action, action, observation, last) for one in limits.single]
        return _Counts(
            limits.excludes(action, action, observation, last),
            ~limits.interval(observation, last).acts,
            ~limits.interval(following, action).acts,
            limits.applies(observation, last),
            jnp.stack(alone, axis=-1),
        )

    return _Programs(allowed, counts)


class LimitUse(NamedTuple):
    """One limit on the states of a log; all numbers are shares of its rows."""

    name: str
    text: str
    applies: float
    """States in which its condition holds."""
    excluded: float
    """Logged actions that it excludes."""
    binds: float | None
    """States in which it excludes an action that the policy could take without limits, averaged
    over policies; None if no policy was looked at."""


@dataclasses.dataclass(frozen=True)
class LimitReport:
    """How limits, a log and policies fit together."""

    rows: int
    """Logged steps."""
    excluded: int
    """Steps whose logged action is not allowed, also those in states without an allowed action."""
    without_action: int
    """Steps in whose state no action is allowed."""
    limits: tuple[LimitUse, ...]

    @property
    def excluded_words(self) -> str:
        """How many logged actions are excluded, as text."""
        share = f"{100.0 * self.excluded / self.rows:.2g} %"
        return f"{self.excluded:,} of {self.rows:,} logged actions ({share})"

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {**vars(self), "limits": [one._asdict() for one in self.limits]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LimitReport":
        """Return the report that `to_json` described."""
        uses = (LimitUse(*(one[name] for name in LimitUse._fields)) for one in values["limits"])
        rows, excluded, without = (values[n] for n in ("rows", "excluded", "without_action"))
        return cls(rows, excluded, without, tuple(uses))

    def table(self, title: str = "limits") -> Table:
        """Return a table with one row per limit."""
        rows = tuple(
            {"limit": one.name, "applies": one.applies, "excluded": one.excluded}
            | {"binds": math.nan if one.binds is None else one.binds, "text": one.text}
            for one in self.limits
        )
        states = counted(self.without_action, "logged state")
        notes = (
            "applies: share of the logged states in which the limit holds",
            "excluded: share of the logged actions that the limit excludes; together, the limits "
            f"exclude {self.excluded_words}",
            "binds: share of the logged states in which the limit excludes actions that the policy "
            "could take otherwise",
            f"no action is allowed in {states}" if self.without_action else
            "an action is allowed in every logged state",
        )  # fmt: skip
        return Table(title, rows, notes)


def limit_report(dataset: Dataset, limits: Limits, policies: Sequence[Policy] = ()) -> LimitReport:
    """Return how limits and a log fit together, and how often each limit binds the policies."""
    sums, rows = _sums(dataset, limits), dataset.rows
    binds: list[float | None] = [None] * len(limits.parsed)
    if policies:
        count = min(rows, MOST_STATES)
        seen = states_of(dataset, np.arange(count) * rows // count)
        found = [np.mean(one.binding(seen.observation, seen.last), axis=0) for one in policies]
        binds = np.mean(found, axis=0).tolist()
    uses = (
        LimitUse(limit.name, limit.text, float(applies), float(excluded), often)
        for limit, applies, excluded, often in zip(
            limits.parsed, sums.applies / rows, sums.excluded_by / rows, binds, strict=True
        )
    )
    return LimitReport(rows, sums.excluded, sums.without_action, tuple(uses))


def joined(reports: Sequence[LimitReport]) -> LimitReport:
    """Return one report of several logs with the same limits."""
    rows = [one.rows for one in reports]
    uses = []
    for several in zip(*(one.limits for one in reports), strict=True):
        means = {
            share: None if None in values else float(np.average(values, weights=rows))
            for share in ("applies", "excluded", "binds")
            for values in [[getattr(one, share) for one in several]]
        }
        uses.append(several[0]._replace(**means))
    excluded = sum(one.excluded for one in reports)
    without_action = sum(one.without_action for one in reports)
    return LimitReport(sum(rows), excluded, without_action, tuple(uses))


def bind_limits(rules: LimitRules, dataset: Dataset) -> Limits:
    """Return limits on the columns and the action box of a log that is learned from.

    Refuses limits without a fallback that leave no action in a logged state, and limits that
    exclude every logged action, from which nothing can be learned.
    """
    limits = rules.on(dataset)
    sums = _sums(dataset, limits)
    if limits.fallback is None and sums.first_without is not None:
        raise LimitFileError(
            f"the limits leave no action in {sums.first_without} of {dataset.name}. Add a table "
            f"[limits.fallback] with the action to take in such states, for example "
            f"{limits.columns.action[0]} = {limits.box_low[0]:g}"
        )
    if sums.excluded == dataset.rows:
        raise LimitFileError(
            f"the limits exclude every logged action of {dataset.name}, so nothing can be learned "
            "from it"
        )
    return limits


class _Sums(NamedTuple):
    """Numbers of rows of a log."""

    excluded: int
    without_action: int
    first_without: str | None
    """The first row in whose state, or next state, no action is allowed, and why."""
    applies: Float[ndarray, " limits"]
    excluded_by: Float[ndarray, " limits"]


def _sums(dataset: Dataset, limits: Limits) -> _Sums:
    excluded, without, first = 0, 0, None
    applies, excluded_by = np.zeros((2, len(limits.parsed)))
    for rows in blocks(dataset.observation):
        seen = states_of(dataset, rows)
        following = dataset.next_observation[rows].astype(np.float32)
        found = jax.tree.map(np.asarray, _programs(limits).counts(*seen, following))
        excluded += int(found.excluded.sum())
        without += int(found.without_action.sum())
        applies += found.applies.sum(axis=0)
        excluded_by += found.excluded_by.sum(axis=0)
        for missing, observation, last, where in (
            (found.without_action, seen.observation, seen.last, "row"),
            (found.next_without, following, seen.action, "the state after row"),
        ):
            if first is None and missing.any():
                place = int(missing.argmax())
                state = jnp.asarray(observation[place]), jnp.asarray(last[place])
                why = limits.reasons(limits.interval(*state))
                first = f"{where} {rows.start + place} ({'; '.join(why)})"
    return _Sums(excluded, without, first, applies, excluded_by)
