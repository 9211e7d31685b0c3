"""Bounds of the allowed interval of an action over boxes of states.

A limit may hold in all states of a box, in some or in none. An end that holds everywhere cuts the
interval; one that may hold counts only where that makes the result wider.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.policies.limit_language import Comparison, Condition, Limit, Linear
from fat2thin.safety.arithmetic import Arithmetic


class States(NamedTuple):
    """Boxes of states: the observation's columns, then the last actions."""

    low: ndarray
    """Shape (boxes, columns)."""
    high: ndarray
    missing: ndarray
    """Whether there is no last action, as at the first step of an episode; shape (boxes,)."""


class Allowed(NamedTuple):
    """Bounds of the ends of the allowed interval of an action, per box of states."""

    low_least: ndarray
    low_most: ndarray
    high_least: ndarray
    high_most: ndarray
    without: ndarray
    """Whether some state of the box may have no allowed action."""
    never: ndarray
    """Whether no state of the box has an allowed action."""


@dataclasses.dataclass(frozen=True)
class AllowedActions:
    """The allowed interval of one action over boxes of states."""

    limits: tuple[Limit, ...]
    action: int
    low: float
    high: float
    observations: int
    """Number of observation columns; later columns are last actions."""
    arithmetic: Arithmetic

    @property
    def bounded(self) -> bool:
        """Whether a limit bounds this action."""
        ends = (bound for limit in self.limits for bound in limit.bounds)
        return any(bound.action == self.action for bound in ends)

    def over(self, states: States) -> Allowed:
        """Return bounds of the interval's ends over each box.

        The policy rounds ends inward, so they never leave the exact interval, except where rounded
        ends cross and one action is left between them.
        """
        boxes = len(states.low)
        low, high = np.full((3, boxes), self.low), np.full((3, boxes), self.high)
        without, never = np.zeros((2, boxes), bool)
        for limit in self.limits:
            surely, maybe = self._holds(limit, states)
            if limit.forbids_acting:
                without, never = without | maybe, never | surely
                continue
            for bound in limit.bounds:
                if bound.action != self.action:
                    continue
                least, most, margin = self._linear(bound.end, states)
                # Rows: the end if it surely holds, the same with rounding, and if it may hold.
                if bound.upper:
                    values = most, most + margin, least - margin
                    holds = np.stack([surely, surely, maybe])
                    high = np.where(holds, np.minimum(high, np.stack(values)), high)
                else:
                    values = least, least - margin, most + margin
                    holds = np.stack([surely, surely, maybe])
                    low = np.where(holds, np.maximum(low, np.stack(values)), low)
        crossing = ~(low[2] <= high[2])
        low_least, high_most = (np.where(crossing, end[1], end[0]) for end in (low, high))
        return Allowed(
            low_least, low[2], high[2], high_most, without | crossing, never | (low[1] > high[1])
        )

    def condition_columns(self) -> set[int]:
        """Return the columns that conditions of limits depend on."""
        return {
            place
            for limit in self.limits
            for comparison in _comparisons(limit)
            for place, _ in comparison.difference.terms
        }

    def _linear(self, linear: Linear, states: States) -> tuple[ndarray, ndarray, ndarray]:
        """Return bounds of a sum, and by how much rounded values, also inward, may miss it."""
        least = np.full(len(states.low), linear.constant)
        most, size = least.copy(), np.abs(least)
        flushed = len(linear.terms) + 1.0 + sum(abs(factor) for _, factor in linear.terms)
        for place, factor in linear.terms:
            ends = factor * states.low[:, place], factor * states.high[:, place]
            least, most = least + np.minimum(*ends), most + np.maximum(*ends)
            size = size + np.maximum(*map(np.abs, ends))
        share = 16.0 * (len(linear.terms) + 4) * self.arithmetic.unit
        own = (2e-13 if linear.terms else 0.0) * size
        margin = share * size + 16.0 * flushed * self.arithmetic.tiny
        # Where the policy may overflow, the end or the sign is unknown.
        return least - own, most + own, np.where(size < self.arithmetic.largest, margin, np.inf)

    def _holds(self, limit: Limit, states: States) -> tuple[ndarray, ndarray]:
        """Return whether a limit holds in all states, and whether in some."""
        boxes = len(states.low)
        surely, maybe = np.ones((2, boxes), bool)
        if limit.condition is not None:
            surely, maybe = self._true(limit.condition, states)
        if any(self._is_last(end for bound in limit.bounds for end, _ in bound.end.terms)):
            surely, maybe = surely & ~states.missing, maybe & ~states.missing
        return surely, maybe

    def _is_last(self, places: Iterable[int]) -> list[bool]:
        return [place >= self.observations for place in places]

    def _true(self, condition: Comparison | Condition, states: States) -> tuple[ndarray, ndarray]:
        """Return whether a condition is true in all states, and whether in some."""
        if isinstance(condition, Condition):
            parts = [self._true(part, states) for part in condition.parts]
            combine = np.logical_and if condition.every else np.logical_or
            surely, maybe = (combine.reduce([part[side] for part in parts]) for side in (0, 1))
            return surely, maybe
        difference, strict = condition.difference, condition.strict
        missing = np.zeros(len(states.low), bool)
        if any(self._is_last(place for place, _ in difference.terms)):
            missing = states.missing
        least, most = self._compared(difference, states)
        surely, maybe = (least > 0.0, most > 0.0) if strict else (least >= 0.0, most >= 0.0)
        return surely & ~missing, maybe & ~missing

    def _compared(self, difference: Linear, states: States) -> tuple[ndarray, ndarray]:
        """Return bounds of a difference whose sign decides a comparison.

        One column against a number is compared exactly, after the number is rounded to the type; a
        subnormal number may count as zero.
        """
        if len(difference.terms) == 1 and abs(difference.terms[0][1]) == 1.0:
            ((place, factor),) = difference.terms
            low, high = states.low[:, place], states.high[:, place]
            low = np.where(low == 0.0, -self.arithmetic.tiny, low)
            high = np.where(high == 0.0, self.arithmetic.tiny, high)
            ends = factor * low, factor * high
            exact = np.minimum(*ends), np.maximum(*ends)
            # Compared with the number and not added to it: a sum would be rounded.
            number = float(self.arithmetic.kind(-difference.constant))
            return tuple(  # type: ignore[return-value]
                np.sign(end + 0.0) if not number else _sign(end, number) for end in exact
            )
        least, most, margin = self._linear(difference, states)
        return least - margin, most + margin


def _sign(value: ndarray, number: float) -> ndarray:
    return np.where(value > number, 1.0, np.where(value < number, -1.0, 0.0))


def thresholds(limits: Sequence[Limit]) -> list[tuple[int, float]]:
    """Return column and number of each comparison of one column with a number, in conditions."""
    found: set[tuple[int, float]] = set()
    for comparison in (one for limit in limits for one in _comparisons(limit)):
        if len(comparison.difference.terms) == 1:
            ((place, factor),) = comparison.difference.terms
            found.add((place, -comparison.difference.constant / factor))
    return sorted(found)


def _comparisons(limit: Limit) -> list[Comparison]:
    found: list[Comparison] = []
    left = [limit.condition]
    while left:
        part = left.pop()
        if isinstance(part, Condition):
            left.extend(part.parts)
        elif part is not None:
            found.append(part)
    return found
