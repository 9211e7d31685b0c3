"""The allowed interval of an action over boxes of states, for the checker of certificates."""

from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.policies.limit_language import Comparison

Ends = tuple[ndarray, ndarray]


def interval(
    limits: Any, action: int, box: tuple[float, float], observations: int, unit: float, tiny: float,
    low: ndarray, high: ndarray, missing: ndarray,
) -> tuple[Ends, Ends, ndarray, ndarray]:  # fmt: skip
    """Return ranges of both ends, and whether some and whether all states have no action.

    A range contains the end in every state of a box. States have the observation's columns and
    then the last actions, which are not there where `missing`.
    """

    kind = np.float32 if unit > 2.0**-53 else np.float64

    def sums(linear: Any) -> tuple[ndarray, ndarray, ndarray]:
        least = most = np.full(len(low), linear.constant)
        size, flushed = np.abs(least), 1.0
        for place, factor in linear.terms:
            a, b = factor * low[:, place], factor * high[:, place]
            least, most = least + np.minimum(a, b), most + np.maximum(a, b)
            size = size + np.maximum(np.abs(a), np.abs(b))
            flushed += 1.0 + abs(factor)
        margin = 16.0 * (len(linear.terms) + 4) * unit * size + 16.0 * flushed * tiny
        margin = np.where(size < float(np.finfo(kind).max) / 16.0, margin, np.inf)  # may overflow
        own = 1e-13 * size if linear.terms else 0.0 * size
        return least - own, most + own, margin

    def needs_last(terms: Any) -> ndarray:
        return missing & any(place >= observations for place, _ in terms)

    def truth(condition: Any) -> Ends:
        """Return whether a condition holds in all states, and whether in some."""
        if not isinstance(condition, Comparison):
            parts = [truth(part) for part in condition.parts]
            join = np.all if condition.every else np.any
            return join([part[0] for part in parts], axis=0), join([p[1] for p in parts], axis=0)
        difference = condition.difference
        least, most, margin = sums(difference)
        least, most = least - margin, most + margin
        if len(difference.terms) == 1 and abs(difference.terms[0][1]) == 1.0:
            # A column is compared exactly with a number of its type; an end at zero may be
            # subnormal.
            ((place, factor),) = difference.terms
            a = np.where(low[:, place] == 0.0, -tiny, low[:, place])
            b = np.where(high[:, place] == 0.0, tiny, high[:, place])
            number = float(kind(-difference.constant))
            least = np.minimum(factor * a, factor * b)
            most = np.maximum(factor * a, factor * b)
            least, most = (np.sign((end > number) * 1.0 - (end < number)) for end in (least, most))
        there = ~needs_last(difference.terms)
        if condition.strict:
            return (least > 0.0) & there, (most > 0.0) & there
        return (least >= 0.0) & there, (most >= 0.0) & there

    # By row: ends that surely hold, the same with rounding, and ends that may hold.
    bottom, top = np.full((3, len(low)), box[0]), np.full((3, len(low)), box[1])
    some, every = np.full(len(low), False), np.full(len(low), False)
    for limit in limits:
        everywhere = np.full(len(low), True)
        surely, maybe = (everywhere,) * 2 if limit.condition is None else truth(limit.condition)
        there = ~needs_last([term for bound in limit.bounds for term in bound.end.terms])
        surely, maybe = surely & there, maybe & there
        if not limit.bounds:
            some, every = some | maybe, every | surely
        for bound in limit.bounds:
            if bound.action != action:
                continue
            (least, most, margin), holds = sums(bound.end), np.stack([surely, surely, maybe])
            if bound.upper:
                end = np.stack([most, most + margin, least - margin])
                top = np.where(holds, np.minimum(top, end), top)
            else:
                end = np.stack([least, least - margin, most + margin])
                bottom = np.where(holds, np.maximum(bottom, end), bottom)
    # The policy rounds ends inward; where they cross, an action between them may be left.
    crossing = ~(bottom[2] <= top[2])
    first, last = (np.where(crossing, end[1], end[0]) for end in (bottom, top))
    return (first, bottom[2]), (top[2], last), some | crossing, every | (bottom[1] > top[1])
