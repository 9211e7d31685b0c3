"""Lines above tanh and above the half-width exp(clip(x)) on intervals.

Both return slope and height of a line that is nowhere below the function between two ends. They
were derived by hand and are widened by `_ERROR`, which covers float64 rounding.
"""

import numpy as np
from numpy import ndarray

_ERROR = 1e-13
_BISECTIONS = 40


def above_tanh(low: ndarray, high: ndarray) -> tuple[ndarray, ndarray]:
    """Return slope and height of a line above tanh from `low` to `high`.

    Right of zero tanh is concave, so every tangent is above it. Left of zero it is convex, so the
    chord is. In between, a line from the left end touches tanh at a point right of zero; every
    tangent from there on is above tanh on the interval.
    """
    span = high - low
    chord = np.where(span > 1e-9, (np.tanh(high) - np.tanh(low)) / np.where(span > 0, span, 1), 0.0)
    touch = _tangent_point(low, high)
    # The tangent at the middle is the best where it is allowed.
    touch = np.maximum((low + high) / 2.0, touch)
    is_chord = touch >= high
    touch = np.where(is_chord, high, touch)
    slope = np.where(is_chord, chord, 1.0 - np.tanh(touch) ** 2)
    slope = np.maximum(slope, 0.0)
    tangent = np.tanh(touch) - slope * touch
    ends = np.maximum(np.tanh(low) - slope * low, np.tanh(high) - slope * high)
    height = np.where(is_chord, ends, np.maximum(tangent, ends))
    error = _ERROR * (1.0 + slope * np.maximum(np.abs(low), np.abs(high)))
    # A chord of a short interval is not reliable.
    flat = ~np.isfinite(slope) | (span <= 1e-9)
    return np.where(flat, 0.0, slope), np.where(flat, np.tanh(high), height) + error


def _tangent_point(low: ndarray, high: ndarray) -> ndarray:
    """Return a point from which on tangents of tanh are above it at `low`; inf if the chord is."""
    left, right = np.zeros_like(low), np.maximum(high, 0.0)

    def reaches(at: ndarray) -> ndarray:
        return np.tanh(at) + (1.0 - np.tanh(at) ** 2) * (low - at) >= np.tanh(low)

    never = ~reaches(right)
    for _ in range(_BISECTIONS):
        middle = (left + right) / 2.0
        enough = reaches(middle)
        left, right = np.where(enough, left, middle), np.where(enough, middle, right)
    return np.where(low >= 0.0, 0.0, np.where((high <= 0.0) | never, np.inf, right))


def half_width(x: ndarray, least: float, most: float) -> ndarray:
    """Return exp(x), with x clipped to the ends `least` and `most`."""
    return np.exp(np.clip(x, least, most))


def above_half_width(
    low: ndarray, high: ndarray, least: float, most: float
) -> tuple[ndarray, ndarray]:
    """Return slope and height of a line above `half_width` from `low` to `high`.

    The function is constant, convex, then constant. A line is above it if it is at both ends and
    where the second constant begins.
    """
    corner = np.clip(most, low, high)
    bottom, top = half_width(low, least, most), half_width(high, least, most)
    rise, run = top - bottom, corner - low
    slope = np.where(run > 1e-9, rise / np.where(run > 0, run, 1.0), 0.0)
    # A constant is closer if most of the interval lies right of the corner.
    constant = (high - corner > corner - low) | ~np.isfinite(slope) | (run <= 1e-9)
    slope = np.where(constant, 0.0, slope)
    height = np.maximum(np.maximum(bottom - slope * low, top - slope * corner), top - slope * high)
    error = _ERROR * (1.0 + top + slope * np.maximum(np.abs(low), np.abs(high)))
    return slope, height + error
