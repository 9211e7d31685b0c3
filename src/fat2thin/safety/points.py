"""Ends of a policy's band at single states, in float64, to search for the worst states.

What is found here only starts a search: `fat2thin.safety.search` reports what the policy itself
does in float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.columns import Transform, inverse_transform, transform
from fat2thin.policies.ensemble import LEAST_OVERLAP
from fat2thin.policies.plain import PlainMember
from fat2thin.safety.allowed import States
from fat2thin.safety.ends import BandEnd

_ASCENTS = (0.3, 0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.02)
"""Steps of an ascent, as shares of the width of the box."""


class PointEnds:
    """Values of side · end of the band at states, to rank them."""

    def __init__(self, end: BandEnd) -> None:
        self.end, self.plain = end, end.plain
        self.count = len(end.plain.observations)

    def values(self, states: ndarray, missing: ndarray) -> ndarray:
        """Return the values at states of shape (states, columns); −inf where there is no action."""
        end, side = self.end, self.end.side
        allowed = end.allowed_over(States(states, states, missing))
        low, high = allowed.low_most, allowed.high_least
        value = high if side > 0 else -low
        if end.has_band:
            centre, width = self._band(states[:, : self.count])
            low, high = (self._to_law(part) for part in (low, high))
            box = [self._to_law(part) for part in end.box]
            half = (box[1] - box[0]) / 2.0
            middle = (box[0] + box[1]) / 2.0 + half * centre
            width = np.minimum(half * width, np.maximum(high - low, 0.0) / 2.0)
            if end.inside:
                middle = np.clip(middle, low + width, np.maximum(high - width, low + width))
            value = side * self._from_law(
                np.clip(middle + side * width, low, np.maximum(low, high))
            )
        instead = -np.inf
        if self.plain.fallback is not None:
            instead = side * self.plain.fallback[end.action]
        return np.where(allowed.never | ~np.isfinite(value), instead, value)

    def ascend(
        self, starts: ndarray, low: ndarray, high: ndarray, missing: ndarray
    ) -> tuple[ndarray, ndarray]:
        """Return better states, and their values, by steps along the signs of the slopes."""
        states, width = starts, high - low
        free = np.flatnonzero(width > 0.0)
        best, kept = self.values(states, missing), states
        for step in _ASCENTS:
            slopes = self._slopes(states, best, free, low, high, missing)
            moved = states.copy()
            moved[:, free] += step * width[free] * np.sign(slopes)
            states = np.clip(moved, low, high)
            found = self.values(states, missing)
            better = found > best
            best, kept = np.where(better, found, best), np.where(better[:, None], states, kept)
            states = kept
        return kept, best

    def _slopes(
        self, states: ndarray, values: ndarray, free: ndarray, low: ndarray, high: ndarray,
        missing: ndarray,
    ) -> ndarray:  # fmt: skip
        """Return differences of values along each free column."""
        change = 1e-3 * (high - low)[free]
        sign = np.where(states[:, free] + change > high[free], -1.0, 1.0)
        moved = np.repeat(states[:, None], len(free), axis=1)
        places = np.arange(len(free))
        moved[:, places, free] += sign * change
        flat = moved.reshape(-1, states.shape[1])
        found = self.values(flat, np.repeat(missing, len(free))).reshape(len(states), -1)
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(sign * (found - values[:, None]))

    def _band(self, observations: ndarray) -> tuple[ndarray, ndarray]:
        """Return centre and half-width of the policy, in half-ranges of the box."""
        every = [self._member(place, observations) for place in range(len(self.plain.members))]
        centres, widths = (np.stack(part) for part in zip(*every, strict=True))
        here = self.end.action if centres.shape[-1] > 1 else 0
        centre, width = np.median(centres, axis=0), np.exp(np.median(np.log(widths), axis=0))
        if self.end.consensus:
            low, high = (centres - widths).max(axis=0), (centres + widths).min(axis=0)
            common = (high - low > LEAST_OVERLAP).all(axis=-1, keepdims=True)
            centre = np.where(common, (low + high) / 2.0, centre)
            width = np.where(common, (high - low) / 2.0, width)
        width = width[:, here] if not self.end.point else np.zeros(len(observations))
        return centre[:, here], width

    def _member(self, place: int, observations: ndarray) -> tuple[ndarray, ndarray]:
        member, heads = self.plain.members[place], self.end.heads[place]
        features = hidden(member, transform(observations, self.plain.observation_transforms))
        centres, widths = [], []
        for head in heads.values():
            centre, log_width = (features @ head.affine.weight.T + head.affine.bias).T
            centre = np.tanh(centre) if head.tanh else centre
            width = np.exp(np.clip(log_width + head.offset, head.least, head.most))
            if self.end.inside and not self.end.point:
                centre = np.clip(centre, width - 1.0, 1.0 - width)
            centres.append(centre)
            widths.append(width)
        return np.stack(centres, axis=-1), np.stack(widths, axis=-1)

    def _to_law(self, values: Any) -> Any:
        """Return actions on the scale of the law."""
        return _column(values, self.end.transform, transform)

    def _from_law(self, values: Any) -> Any:
        return _column(values, self.end.transform, inverse_transform)


def _column(values: Any, one: Transform | None, function: Callable[..., Any]) -> Any:
    return values if one is None else function(np.asarray(values)[..., None], (one,))[..., 0]


def hidden(member: PlainMember, observations: ndarray) -> ndarray:
    """Return the last hidden layer's outputs at transformed observations."""
    if member.mean is not None:
        observations = (observations - member.mean) / member.scale
    for layer in member.trunk:
        weight = np.asarray(layer.weight, np.float64)
        observations = np.maximum(observations @ weight.T + layer.bias, 0.0)
    return observations
