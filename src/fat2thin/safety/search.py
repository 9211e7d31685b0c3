"""Best-first splitting of a box of states, until the bound of an end of the band is close.

The box with the largest bound is split first. Every box is a node of a tree whose leaves cover the
whole box, so the largest bound of the leaves holds for all states, whenever the search stops.
"""

import dataclasses
import heapq
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.safety.allowed import States, thresholds
from fat2thin.safety.ends import BandEnd, EndBounds
from fat2thin.safety.points import PointEnds

LARGEST_BATCH = 64
MOST_NODES = 1_000_000
_STARTS, _MOST_THRESHOLDS, _MOST_AHEAD = 32, 256, 8.0
_STEPS, _MOST_OPTIMISED = 8, 128
"""Steps that improve slopes, for the first boxes. Later ones gain more from being split: with steps
everywhere, the same CPU time closed less of the gap."""


class Leaves(NamedTuple):
    """A split tree whose leaves cover a box, and the slopes of the leaves that have their own."""

    column: ndarray
    """By node, in the order in which they were made: the column that is split, −1 for a leaf."""
    value: ndarray
    """The largest value of the column in the first child."""
    first: ndarray
    """The first child; the second comes after it."""
    own: ndarray
    """Numbers of the leaves, in the order of nodes, that have slopes of their own."""
    slopes: tuple[ndarray, ...]
    """Slopes of these leaves' lower lines as bytes, by member and layer from the last to the first,
    with one row per leaf. The other leaves have the slope, 0 or 1, with the smaller area."""


@dataclasses.dataclass
class Worst:
    """The state with the largest value so far."""

    value: float = -np.inf
    state: ndarray | None = None
    missing: bool = False

    def offer(self, values: ndarray, states: ndarray, missing: ndarray) -> None:
        """Keep the best of these states if it is better."""
        place = int(np.argmax(values)) if len(values) else 0
        if len(values) and values[place] > self.value:
            self.value, self.state = float(values[place]), states[place].copy()
            self.missing = bool(missing[place])


class Search:
    """The tree of one end of the band, and the worst state found."""

    def __init__(self, end: BandEnd, low: ndarray, high: ndarray, missing: tuple[bool, ...]):
        self.end, self.points = end, PointEnds(end)
        self.low, self.high, self.missing = low, high, missing
        self.worst = Worst()
        self._nodes = {
            name: np.empty((64, *shape), kind)
            for name, shape, kind in (
                ("low", low.shape, float), ("high", low.shape, float), ("missing", (), bool),
                ("bound", (), float), ("column", (), np.int32), ("value", (), float),
                ("first", (), np.int64), ("towards", (), np.int32), ("without", (), bool),
            )
        }  # fmt: skip
        self.count = 0
        self._open: list[tuple[float, int]] = []
        self._slopes: dict[int, list[ndarray]] = {}
        self._look()

    @property
    def bound(self) -> float:
        """The largest bound of all leaves: no state of the box is above."""
        if not self.count:
            return self.end.side * self.end.box[self.end.side > 0]
        return -self._open[0][0] if self._open else -np.inf

    @property
    def may_not_act(self) -> bool:
        """Whether limits may leave some state of the box without an action."""
        leaves = [node for _, node in self._open]
        return bool(self._nodes["without"][leaves].any())

    def start(self) -> None:
        """Bound the whole box, split where the conditions of limits change."""
        boxes = len(self.missing)
        self._add(np.tile(self.low, (boxes, 1)), np.tile(self.high, (boxes, 1)), self.missing)
        ready: list[int] = []
        left = list(range(boxes))
        cuts = self._thresholds()
        while left:
            node = left.pop()
            cut = next((cut for cut in cuts if self._cuts(node, *cut)), None)
            if cut is None or len(ready) + len(left) >= _MOST_THRESHOLDS:
                ready.append(node)
            else:
                left += self._split(*map(np.atleast_1d, (node, *cut))).tolist()
        self._measure(np.asarray(ready))

    def run(
        self, enough: Callable[[float, float], bool], deadline: float,
        each: Callable[[], None] = lambda: None,
    ) -> bool:  # fmt: skip
        """Split until `enough(bound, worst value)`; return whether it is, before the deadline."""
        if not self.count:
            self.start()
        pace = 8
        while not enough(self.bound, self.worst.value):
            if time.monotonic() > deadline or self.count > MOST_NODES:
                return False
            chosen: list[int] = []
            while self._open and len(chosen) < pace:
                if chosen and enough(-self._open[0][0], self.worst.value):
                    break
                chosen.append(heapq.heappop(self._open)[1])
            children, single = self._halve(np.asarray(chosen))
            for node in single.tolist():
                # A single state: its bound stays.
                heapq.heappush(self._open, (-float(self._nodes["bound"][node]), node))
                deadline = -np.inf
            if len(children):
                self._measure(children)
            each()
            pace = min(2 * pace, LARGEST_BATCH)
        return True

    def leaves(self, bound: float) -> Leaves:
        """Return the smallest part of the tree whose leaves all have at most this bound."""
        column: list[int] = []
        value: list[float] = []
        first: list[int] = []
        kept: list[int] = []
        queue = list(range(len(self.missing)))
        for node in queue:
            stop = self._nodes["bound"][node] <= bound or self._nodes["column"][node] < 0
            column.append(-1 if stop else int(self._nodes["column"][node]))
            value.append(np.nan if stop else float(self._nodes["value"][node]))
            first.append(-1 if stop else len(queue))
            if stop:
                kept.append(node)
            else:
                child = int(self._nodes["first"][node])
                queue += [child, child + 1]
        own = [place for place, node in enumerate(kept) if node in self._slopes]
        slopes = [self._slopes[kept[place]] for place in own]
        return Leaves(
            np.asarray(column, np.int32), np.asarray(value), np.asarray(first, np.int64),
            np.asarray(own, np.int64), tuple(map(np.stack, zip(*slopes, strict=True))),
        )  # fmt: skip

    def _look(self) -> None:
        """Search for a bad state from random states and from the middle."""
        rng = np.random.default_rng(0)
        shape = (_STARTS, len(self.low))
        starts = self.low + (self.high - self.low) * rng.random(shape)
        starts[0] = (self.low + self.high) / 2.0
        starts = np.clip(starts, self.low, self.high)
        missing = np.resize(np.asarray(self.missing), _STARTS)
        states, values = self.points.ascend(starts, self.low, self.high, missing)
        self.worst.offer(values, states, missing)

    def _add(self, low: ndarray, high: ndarray, missing: object) -> int:
        """Add boxes as leaves without a bound, and return the number of the first."""
        start, stop = self.count, self.count + len(low)
        while stop > len(self._nodes["bound"]):
            self._nodes = {
                name: np.concatenate([old, np.empty_like(old)]) for name, old in self._nodes.items()
            }
        given = {"low": low, "high": high, "missing": missing, "column": -1, "bound": np.inf}
        for name, values in given.items():
            self._nodes[name][start:stop] = values
        self.count = stop
        return start

    def _thresholds(self) -> list[tuple[int, float]]:
        """Return where conditions change: at a number for "more", just below it for "at least"."""
        kind, found = self.end.arithmetic.kind, []
        for column, number in thresholds(self.end.allowed.limits):
            near = kind(number)
            found += [(column, float(near)), (column, float(np.nextafter(near, kind(-np.inf))))]
        return found

    def _cuts(self, node: int, column: int, value: float) -> bool:
        low, high = self._nodes["low"][node, column], self._nodes["high"][node, column]
        at = self._below(value)
        return bool(low <= at < high) and not (
            self._nodes["missing"][node] and self._is_last(column)
        )

    def _is_last(self, column: int) -> bool:
        return column >= len(self.end.plain.observations)

    def _below(self, values: Any) -> ndarray:
        """Return the largest number of the arithmetic at or below each value."""
        of, values = self.end.arithmetic, np.asarray(values, np.float64)
        near = values.astype(of.kind)
        near = np.where(near <= values, near, np.nextafter(near, of.kind(-np.inf)))
        return np.where(np.abs(near) < of.tiny, 0.0, near.astype(np.float64))

    def _split(self, nodes: ndarray, columns: ndarray, values: ndarray) -> ndarray:
        """Split each box at a number of the arithmetic, and return the children in pairs.

        The second child of a pair starts at the next number.
        """
        cut, pairs = self._below(values), 2 * np.arange(len(nodes))
        low, high = (np.repeat(self._nodes[end][nodes], 2, axis=0) for end in ("low", "high"))
        high[pairs, columns], low[pairs + 1, columns] = cut, self.end.arithmetic.after(cut)
        first = self._add(low, high, np.repeat(self._nodes["missing"][nodes], 2))
        self._nodes["column"][nodes], self._nodes["value"][nodes] = columns, cut
        self._nodes["first"][nodes] = first + pairs
        return np.arange(first, self.count)

    def _halve(self, nodes: ndarray) -> tuple[ndarray, ndarray]:
        """Split boxes in the middle of the column that promises most, if it can be split, else of
        the widest that can.

        Returns the children, and the boxes that are a single state.
        """
        low, high = self._nodes["low"][nodes], self._nodes["high"][nodes]
        middle = low + (high - low) / 2.0
        at, towards = self._below(middle), self._nodes["towards"][nodes]
        can = (low <= at) & (at < high)
        first = np.arange(low.shape[1]) == towards[:, None]
        columns = np.argmax(np.where(can, np.where(first, np.inf, high - low), -1.0), axis=1)
        some = can.any(axis=1)
        values = np.take_along_axis(middle, columns[:, None], axis=1)[:, 0]
        return self._split(nodes[some], columns[some], values[some]), nodes[~some]

    def _measure(self, nodes: ndarray) -> None:
        """Bound boxes, choose where to split them, and try their worst corners."""
        low, high, missing = (self._nodes[name][nodes] for name in ("low", "high", "missing"))
        steps = _STEPS if self.count <= _MOST_OPTIMISED else 0
        found = self.end.over(States(low, high, missing), steps)
        bound = np.minimum(found.high, max(self.end.side * one for one in self.end.box))
        self._nodes["bound"][nodes], self._nodes["without"][nodes] = bound, found.without
        self._nodes["towards"][nodes] = self._directions(found, low, high)
        for one, node in zip((-bound).tolist(), nodes.tolist(), strict=True):
            heapq.heappush(self._open, (one, node))
        slopes = [
            np.rint(255.0 * one[:, 0]).astype(np.uint8)
            for member in found.members
            for one in member.slopes
        ]
        if slopes:
            self._slopes |= {
                node: [one[place] for one in slopes] for place, node in enumerate(nodes.tolist())
            }
        corners = self._corners(found, low, high)
        self.worst.offer(self.points.values(corners, missing), corners, missing)

    def _corners(self, found: EndBounds, low: ndarray, high: ndarray) -> ndarray:
        """Return the corner of each box at which the linear bound is largest."""
        corners = low + (high - low) / 2.0
        if found.members:
            count = len(self.end.plain.observations)
            towards = found.members[0].linear.coefficients[:, 0] > 0.0
            corners[:, :count] = np.where(towards, high[:, :count], low[:, :count])
        return corners

    def _directions(self, found: EndBounds, low: ndarray, high: ndarray) -> ndarray:
        """Return the column of each box whose split promises the closest bounds.

        It is that whose share in the looseness of lines and in the bound is the largest or, where
        limits that differ within the box set the bound, the widest column of the limits.
        """
        width = high - low
        scores = np.zeros_like(width)
        for member in found.members:
            loose = member.looseness
            moves = np.abs(member.linear.coefficients[:, 0]) * member.inputs.radius
            # The first factor is about what the worse half gains, the second what the better does.
            scores[:, : loose.shape[1]] += loose * (loose + 2.0 * moves)
        span = np.where(self.high > self.low, self.high - self.low, 1.0)
        share = width / span
        by_limits = np.where(self._columns_of_limits(), share, 0.0)
        least = np.take_along_axis(share, np.argmax(scores, axis=1)[:, None], axis=1)[:, 0]
        # Columns of limits come first, but not for ever: the network may set the bound as well.
        widest = by_limits.max(axis=1, initial=0.0)
        limited = found.limited & (widest > 0.0) & (_MOST_AHEAD * widest >= least)
        scores = np.where((limited | ~scores.any(axis=1))[:, None], by_limits, scores)
        return np.argmax(np.where(width > 0.0, scores, -1.0), axis=1)

    def _columns_of_limits(self) -> ndarray:
        used = np.zeros(len(self.low), bool)
        for bound in (bound for limit in self.end.allowed.limits for bound in limit.bounds):
            # Other actions count where they may have no allowed value, so that the fallback holds.
            if bound.action == self.end.action or self.end.plain.fallback is not None:
                used[[place for place, _ in bound.end.terms]] = True
        for column in self.end.allowed.condition_columns():
            used[column] = True
        return used
