"""Linear bounds of a network with rectifiers over boxes of inputs, in batches (CROWN).

Every value is that of the deployed network: what a layer computes differs from W x + b by at most
its rounding error, which is part of the bounds. An unstable rectifier (whose input can have both
signs) lies between a line through zero with a slope from 0 to 1 and the chord over its interval.
Sums over such lines, from the outputs back to the inputs, give a linear bound of the outputs (Zhang
et al. 2018). The slopes of the lower lines are free; `optimised` improves them by projected
gradient steps (Xu et al. 2021).

The prover's own float64 rounding is covered as well: an error of a product with W is bounded by the
sizes of its terms, like the deployed network's, so one margin per neuron holds both.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.safety.arithmetic import PROVER_UNIT, Arithmetic


class NotCertified(ValueError):
    """Raised for a policy or box that nothing can be proven about; the message says why."""


_LINE_ERROR = 8.0 * PROVER_UNIT
_LOWER, _LINEAR = 0.1, 1e-3
"""Weights in the choice of the input whose range is split; any value gives valid bounds."""


@dataclasses.dataclass(frozen=True, eq=False)
class Affine:
    """W x + b in float64, with what bounds need of W."""

    weight: ndarray
    bias: ndarray
    size: ndarray
    """Absolute values of W."""
    positive: ndarray
    negative: ndarray

    @classmethod
    def of(cls, weight: ndarray, bias: ndarray) -> "Affine":
        """Return the layer of float32 arrays."""
        weight, bias = np.asarray(weight, np.float64), np.asarray(bias, np.float64)
        return cls(weight, bias, np.abs(weight), np.maximum(weight, 0.0), np.minimum(weight, 0.0))

    def margins(self, largest: ndarray, arithmetic: Arithmetic) -> ndarray:
        """Return bounds on the rounding errors of the outputs, for inputs up to `largest`."""
        terms = self.weight.shape[1]
        sizes = largest @ self.size.T + np.abs(self.bias)
        if not (sizes < arithmetic.largest).all():
            raise NotCertified(f"not certified: {arithmetic.name} may overflow in the network")
        flushed = 2.0 * terms + 2.0 + largest.sum(axis=-1, keepdims=True) + self.size.sum(axis=1)
        prover = PROVER_UNIT * (8.0 * max(self.weight.shape) + 100.0)
        return sizes * (arithmetic.sum_error(terms) + prover) + arithmetic.tiny * flushed


class Inputs(NamedTuple):
    """Boxes of network inputs: centres and radii, shape (boxes, inputs)."""

    centre: ndarray
    radius: ndarray

    @classmethod
    def between(cls, low: ndarray, high: ndarray) -> "Inputs":
        """Return the boxes from `low` to `high`, with radii rounded up."""
        centre = low + (high - low) / 2.0
        radius = np.maximum(high - centre, centre - low)
        return cls(centre, radius * (1.0 + 4.0 * PROVER_UNIT) + 1e-300)

    @property
    def largest(self) -> ndarray:
        """The largest absolute value of each input."""
        return np.abs(self.centre) + self.radius

    def corners(self, coefficients: ndarray) -> ndarray:
        """Return the points that maximise linear functions, shape (boxes, rows, inputs)."""
        return self.centre[:, None] + np.sign(coefficients) * self.radius[:, None]


class Rectifiers(NamedTuple):
    """The inputs of one layer's rectifiers, and lines around these; shape (boxes, neurons)."""

    low: ndarray
    high: ndarray
    margin: ndarray
    """Bound on the rounding error of the inputs."""
    slope: ndarray
    """Slope of the upper line."""
    height: ndarray
    """The upper line at zero."""
    below: ndarray
    """Slope of the lower line, 0 or 1, that leaves the smaller area."""
    moves: tuple[ndarray, ndarray]
    """How much each input of the network moves `low` and `high`, by its radius; the last two axes
    are inputs and neurons."""

    @classmethod
    def of(
        cls, low: ndarray, high: ndarray, margin: ndarray, moves: tuple[ndarray, ndarray]
    ) -> "Rectifiers":
        """Return the lines for inputs from `low` to `high`."""
        unstable = (low < 0.0) & (high > 0.0)
        span = np.where(unstable, high - low, 1.0)
        active = (low >= 0.0).astype(np.float64)
        slope = np.where(unstable, np.minimum(high / span, 1.0), active)
        height = np.maximum(-low * slope, (1.0 - slope) * high) + _LINE_ERROR * span
        height = np.where(unstable, height, 0.0)
        # The margin decides ties in the same way, however the ends were rounded.
        steep = high > -low * (1.0 - 1e-6)
        below = np.where(unstable, steep.astype(np.float64), active)
        return cls(low, high, margin, slope, height, below, moves)

    @property
    def unstable(self) -> ndarray:
        """Where the input can have both signs."""
        return (self.low < 0.0) & (self.high > 0.0)


class LinearBound(NamedTuple):
    """Upper bounds of rows, and how they were reached; shapes (boxes, rows, ...)."""

    high: ndarray
    coefficients: ndarray
    """Of the inputs, in the linear upper bound."""
    rows: tuple[ndarray, ...]
    """Coefficients of the rectifiers' outputs, from the last layer to the first."""


class Trunk:
    """Hidden layers with rectifiers, and bounds of their inputs over boxes."""

    def __init__(self, layers: Sequence[Affine], arithmetic: Arithmetic) -> None:
        self.layers, self.arithmetic = tuple(layers), arithmetic

    def rectifiers(self, inputs: Inputs) -> list[Rectifiers]:
        """Return bounds of all rectifiers' inputs."""
        found: list[Rectifiers] = []
        largest = inputs.largest
        for place, layer in enumerate(self.layers):
            margin = layer.margins(largest, self.arithmetic)
            if place == 0:
                middle = inputs.centre @ layer.weight.T + layer.bias
                reach = inputs.radius @ layer.size.T + margin
                low, high, moves = middle - reach, middle + reach, (layer.size.T,) * 2
            elif place == 1:
                low, high, moves = self._second(inputs, found[0], layer, margin)
            else:
                low, high, moves = self._deeper(inputs, found, layer, margin)
            if place:
                least, most = _interval(found[-1], layer, margin)
                low, high = np.maximum(low, least), np.minimum(high, most)
            found.append(Rectifiers.of(low, high, margin, moves))
            largest = np.maximum(high, 0.0)
        return found

    def _second(
        self, inputs: Inputs, first: Rectifiers, layer: Affine, margin: ndarray
    ) -> tuple[ndarray, ndarray, tuple[ndarray, ndarray]]:
        """Return the bounds of the second layer: the lines scale W of the first, per neuron.

        With s the upper slopes and b the lower ones, the coefficients of the upper and of the lower
        bound are (W (s + b) ± |W| (s - b)) / 2: two products instead of four. Neurons that are
        inactive in all boxes drop out, and those that are active in all are one linear function, so
        only the others are multiplied for each box.
        """
        of_first, boxes = self.layers[0], len(inputs.centre)
        active, mixed = (first.low >= 0.0).all(axis=0), (first.high > 0.0).any(axis=0)
        mixed &= ~active
        # Columns: W of the first layer and its bias.
        columns = np.concatenate([of_first.weight, of_first.bias[:, None]], axis=1)
        linear = (layer.weight[:, active] @ columns[active]).T
        size = layer.size[:, mixed].T
        upper, lower = first.slope[:, None, mixed], first.below[:, None, mixed]
        made = np.empty((2, boxes, *columns[mixed].T.shape))
        np.multiply(columns[mixed].T, 0.5 * (upper + lower), out=made[0])
        np.multiply(columns[mixed].T, 0.5 * (upper - lower), out=made[1])
        made[:, :, -1] += 0.5 * first.height[:, mixed]
        shape = (boxes, len(columns.T), len(layer.bias))
        stacked = made.reshape(2, boxes * len(columns.T), made.shape[-1])
        middle = (stacked[0] @ layer.weight[:, mixed].T).reshape(shape)
        middle += linear
        apart = (stacked[1] @ size).reshape(shape)
        # Both products round terms of both lines, so the margin is that of the steeper one.
        slack = np.maximum(upper, lower)[:, 0] * first.margin[:, mixed] @ size
        slack += first.margin[:, active] @ layer.size[:, active].T + margin
        ends, moves = [], []
        for sign, both in ((-1.0, middle - apart), (1.0, np.add(middle, apart, out=apart))):
            centre = (inputs.centre[:, None] @ both[:, :-1])[:, 0]
            end = centre + both[:, -1] + layer.bias
            sizes = np.abs(both[:, :-1], out=both[:, :-1])
            ends.append(end + sign * ((inputs.radius[:, None] @ sizes)[:, 0] + slack))
            moves.append(sizes)
        return ends[0], ends[1], (moves[0], moves[1])

    def _deeper(
        self, inputs: Inputs, found: list[Rectifiers], layer: Affine, margin: ndarray
    ) -> tuple[ndarray, ndarray, tuple[ndarray, ndarray]]:
        """Return the bounds of a layer after the second, by bounds of each row of its W."""
        shape = (len(inputs.centre), *layer.weight.shape)
        high, low = (
            self.bound(inputs, found, np.broadcast_to(sign * layer.weight, shape))
            for sign in (1.0, -1.0)
        )
        least, most = (np.abs(one.coefficients).swapaxes(1, 2) for one in (low, high))
        return layer.bias - low.high - margin, layer.bias + high.high + margin, (least, most)

    def bound(
        self, inputs: Inputs, found: Sequence[Rectifiers], rows: ndarray,
        slopes: Sequence[ndarray] | None = None,
    ) -> LinearBound:  # fmt: skip
        """Return upper bounds of rows · (the last layer's outputs).

        `rows` has the shape (boxes, rows, neurons), `slopes` are those of the lower lines from the
        last layer to the first, with the same shape or (boxes, 1, neurons).
        """
        high, kept = np.zeros(rows.shape[:2]), []
        for step, place in enumerate(reversed(range(len(found)))):
            lines, layer = found[place], self.layers[place]
            kept.append(rows)
            below = lines.below[:, None] if slopes is None else slopes[step]
            up = np.maximum(rows, 0.0)
            scaled = up * lines.slope[:, None] + np.minimum(rows, 0.0) * below
            high += (up @ lines.height[:, :, None])[..., 0] + scaled @ layer.bias
            high += (np.abs(scaled) @ lines.margin[:, :, None])[..., 0]
            rows = (scaled.reshape(-1, scaled.shape[-1]) @ layer.weight).reshape(
                *scaled.shape[:2], -1
            )
        size = np.abs(rows)
        high += (rows @ inputs.centre[:, :, None])[..., 0]
        high += (size @ inputs.radius[:, :, None])[..., 0]
        error = PROVER_UNIT * (4.0 * rows.shape[-1] + 16.0)
        high += error * ((size @ inputs.largest[:, :, None])[..., 0] + np.abs(high))
        return LinearBound(high, rows, tuple(kept))

    def looseness(self, found: Sequence[Rectifiers], bound: LinearBound) -> ndarray:
        """Return how fast each input's radius widens the bound through the lines of rectifiers.

        A rectifier's upper line from l to h moves with both ends: at a point in the middle by the
        squares of h / (h - l) and l / (h - l). Its lower line has one of two slopes and moves only
        when that changes, which counts as `_LOWER`.
        """
        total: ndarray | float = 0.0
        for lines, rows in zip(reversed(found), bound.rows, strict=True):
            rows = np.where(lines.unstable, rows[:, 0], 0.0)
            upper, lower = np.maximum(rows, 0.0), -_LOWER * np.minimum(rows, 0.0)
            for far, moves in ((1.0 - lines.slope, lines.moves[1]), (lines.slope, lines.moves[0])):
                total = total + (moves @ (upper * far**2 + lower)[:, :, None])[:, :, 0]
        # Where all rectifiers are stable, only the lines above tanh and exp are loose.
        return total + _LINEAR * np.abs(bound.coefficients[:, 0])

    def optimised(
        self, inputs: Inputs, found: Sequence[Rectifiers], rows: ndarray, steps: int,
        slopes: Sequence[ndarray] | None = None,
    ) -> tuple[LinearBound, list[ndarray]]:  # fmt: skip
        """Return the bounds with better slopes of the lower lines, and these slopes."""
        boxes, count = rows.shape[:2]
        if slopes is None:
            slopes = [lines.below[:, None] for lines in reversed(found)]
        current = [np.broadcast_to(one, (boxes, count, one.shape[-1])).copy() for one in slopes]
        free = [lines.unstable[:, None] for lines in reversed(found)]
        best, kept = self.bound(inputs, found, rows, current), [one.copy() for one in current]
        trial, velocity = best, [np.zeros_like(one) for one in current]
        for step in range(steps):
            rate = 0.4 / (1.0 + 0.25 * step)
            directions = self._directions(inputs, found, trial, current)
            for place, direction in enumerate(directions):
                scale = np.abs(direction).max(axis=-1, keepdims=True) + 1e-300
                velocity[place] = 0.7 * velocity[place] + direction / scale
                moved = current[place] - rate * velocity[place]
                current[place] = np.where(free[place], np.clip(moved, 0.0, 1.0), current[place])
            trial = self.bound(inputs, found, rows, current)
            better = trial.high < best.high
            if better.any():
                best = _merged(better, trial, best)
                for place, one in enumerate(current):
                    kept[place] = np.where(better[..., None], one, kept[place])
        return best, kept

    def _directions(
        self, inputs: Inputs, found: Sequence[Rectifiers], at: LinearBound,
        slopes: Sequence[ndarray],
    ) -> list[ndarray]:  # fmt: skip
        """Return the derivatives of bounds in the slopes, by a pass through the lines at the worst
        inputs."""
        values, made = inputs.corners(at.coefficients), []
        for step in reversed(range(len(found))):
            place = len(found) - 1 - step
            lines, layer, rows = found[place], self.layers[place], at.rows[step]
            values = (values.reshape(-1, values.shape[-1]) @ layer.weight.T + layer.bias).reshape(
                *values.shape[:2], -1
            )
            made.append(np.minimum(rows, 0.0) * values)
            above = lines.slope[:, None] * values + lines.height[:, None]
            values = np.where(rows > 0.0, above, slopes[step] * values)
        return made[::-1]


def _interval(before: Rectifiers, layer: Affine, margin: ndarray) -> tuple[ndarray, ndarray]:
    """Return the bounds of a layer by interval arithmetic."""
    low, high = np.maximum(before.low, 0.0), np.maximum(before.high, 0.0)
    least = low @ layer.positive.T + high @ layer.negative.T
    most = high @ layer.positive.T + low @ layer.negative.T
    return least + layer.bias - margin, most + layer.bias + margin


def _merged(better: ndarray, one: LinearBound, two: LinearBound) -> LinearBound:
    chosen = better[..., None]
    return LinearBound(
        np.where(better, one.high, two.high),
        np.where(chosen, one.coefficients, two.coefficients),
        tuple(np.where(chosen, new, old) for new, old in zip(one.rows, two.rows, strict=True)),
    )
