"""A bound of how far float32 arithmetic, in any order of summation, is from exact arithmetic.

The bound follows the computation of one state and adds up what each operation may err, by the
assumptions of certificates (`fat2thin.safety.arithmetic`). It is infinite where a comparison
decides between two formulas and rounding could turn it, and where float32 overflows.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.export.contents import Contents, States
from fat2thin.export.portable import LEAST_OVERLAP, Policy
from fat2thin.safety.arithmetic import ARITHMETICS

_FLOAT32 = ARITHMETICS["float32"]
_UNIT, _TINY, _FUNCTION = _FLOAT32.unit, _FLOAT32.tiny, _FLOAT32.function_error()


class RoundingBound(Policy):
    """Follows a policy in float64, with a bound of the error of float32 beside each number."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents.arrays, contents.settings, np.float64)
        self.info32 = np.finfo(np.float32)

    def bounds(self, states: States) -> tuple[ndarray, ndarray]:
        """Return bounds of the ends and the centre, and of the action; shape (rows, actions)."""
        with np.errstate(all="ignore"):
            seen = states.observation.astype(np.float64)
            last = None if states.last is None else states.last.astype(np.float64)
            ends, action = self._follow(seen, states.uniform.astype(np.float64), last)
        known = [np.where(np.isfinite(one), one, np.inf) for one in (ends, action)]
        return known[0], known[1]

    def _follow(self, raw: ndarray, uniform: ndarray, last: Any) -> tuple[ndarray, ndarray]:
        seen, _ = self._forward(raw, self.settings["observation_transforms"])
        # float32 reads a subnormal number as itself or as zero.
        error = np.where(np.abs(raw) < _TINY, _TINY, 0.0)
        for place, one in enumerate(self.settings["observation_transforms"]):
            if one is None:
                continue
            value = np.abs(seen[:, place])
            if one["kind"] == "scale":
                error[:, place] = 2 * _UNIT * value + error[:, place] * one["number"]
            else:
                shifted = raw[:, place] + one["number"]
                moved = error[:, place] + 2 * _UNIT * (np.abs(shifted) + abs(one["number"]))
                error[:, place] = -np.log1p(-moved / shifted) + _FUNCTION * value + _UNIT
        self._lost = ~np.all(np.isfinite(error), axis=1, keepdims=True)
        heads = [self._head_error(member, seen, error) for member in self._members]
        unknown = self._lost
        if self.settings["rule"] == "consensus":
            bands = [self._band(one[0], one[1]) for one in heads]
            low = self._largest([centre - width for centre, width in bands])
            high = self._smallest([centre + width for centre, width in bands])
            slack = self._largest([one[2] + one[3] for one in heads]) * 2 + 4 * _UNIT
            open_ = np.abs(high - low - LEAST_OVERLAP) <= 2 * slack
            unknown = unknown | np.any(open_, axis=1, keepdims=True)
        centre, log_scale, _ = self._head(seen)
        error_centre = self._largest([one[2] for one in heads])
        error_scale = self._largest([one[3] for one in heads])
        if self.settings["rule"] is not None:
            # Errors of both ends of a band reach its middle and its half-width.
            both = error_centre + error_scale
            width = np.exp(log_scale)
            error_centre, error_scale = (
                both + 4 * _UNIT,
                both * 1.01 + _FUNCTION * (1 + np.abs(log_scale)) * width,
            )
        return self._placed_error(
            raw, last, uniform, centre, log_scale, error_centre, error_scale, unknown
        )

    def _head_error(self, member: dict[str, Any], seen: ndarray, error: ndarray) -> tuple:
        """Return centre, log scale, and the errors of the centre and of the scale."""
        *trunk, for_centre, for_scale = member["layers"]
        x = seen
        if member["mean"] is not None:
            away = x - member["mean"]
            x = away / member["scale"]
            error = (error + _UNIT * np.abs(away)) / member["scale"] + 2 * _UNIT * np.abs(x)
        for weight, bias, norm in trunk:
            if norm:
                error = np.full((len(x), 1), np.inf)
            y, error = _product(x, error, weight, bias)
            x = np.maximum(y, 0.0)
        centre, error_centre = _product(x, error, for_centre[0], for_centre[1])
        # Where float32 overflows, the result may be no number.
        self._lost |= ~np.all(np.isfinite(error_centre), axis=1, keepdims=True)
        if member["tanh"]:
            error_centre, centre = np.minimum(error_centre + _FUNCTION, 2.0), np.tanh(centre)
        log_scale, error_log = _product(x, error, for_scale[0], for_scale[1])
        if member["fixed"] is not None:
            log_scale, error_log = member["fixed"] + 0 * centre, 0 * centre
        ends = [np.asarray(member["bounds"])]
        log_scale = np.clip(log_scale, *member["bounds"])
        if member["ratio"] is not None:
            log_scale = np.clip(log_scale + member["ratio"], *member["ratio_bounds"])
            ends.append(np.asarray(member["ratio_bounds"]))
        # A clipped number may lie between the ends only.
        error_log = np.minimum(error_log, ends[-1][1] - ends[-1][0])
        error_log = error_log + 4 * _UNIT * (1 + np.abs(np.concatenate(ends)).max())
        # JAX takes exp, log and exp again.
        error_log = error_log + 2 * _FUNCTION * (1 + np.abs(log_scale))
        error_scale = np.exp(log_scale) * np.expm1(error_log)
        return centre, log_scale, error_centre, error_scale

    def _placed_error(
        self, raw: ndarray, last: Any, uniform: ndarray, centre: ndarray, log_scale: ndarray,
        error_centre: ndarray, error_scale: ndarray, unknown: ndarray,
    ) -> tuple[ndarray, ndarray]:  # fmt: skip
        kind, transforms = self.family["kind"], self.settings["action_transforms"]
        scale, half = np.exp(log_scale), self._half
        size = np.abs(self._middle) + half
        box_error = 4 * _UNIT * size + _FUNCTION * np.abs(size)
        of_limits = np.zeros_like(centre)
        if self.limits:
            of_limits, open_ = self._limit_error(raw, last)
            unknown = unknown | open_
        if kind == "squashed":
            placed = half * np.minimum(error_centre + _FUNCTION, 2.0)
        elif kind == "sparse":
            placed = half * (error_centre + error_scale)
        else:
            placed = half * error_centre
        ends = placed + half * (error_scale if kind == "sparse" else 0.0)
        ends = ends + of_limits + 4 * box_error + 4 * _UNIT * (size + half * scale)
        if self.samples and self.limits and kind != "sparse":
            action = self._truncated_error(
                raw, last, uniform, centre, scale, error_centre, error_scale,
                of_limits + 4 * box_error,
            )  # fmt: skip
            action = action + 4 * box_error + 4 * _UNIT * half * (1 + np.abs(centre))
        elif self.samples:
            deviation = np.abs(self._quantile(uniform))
            of_table = self.settings["sampling"]["error"] + 16 * _UNIT
            of_table = of_table * np.maximum(deviation, 1.0)
            if self.settings["sampling"]["kind"] == "index 0":
                # 2u − 1 is rounded, which moves the quantile near its ends.
                moved = np.clip(uniform + 2 * _UNIT, 0.0, 1.0), np.clip(uniform - 2 * _UNIT, 0, 1)
                steps = [np.abs(np.abs(self._quantile(one)) - deviation) for one in moved]
                of_table = of_table + np.maximum(*steps)
            drawn = scale * of_table + np.minimum(error_scale * deviation, 1e30)
            drawn = drawn + 4 * _UNIT * scale * deviation
            action = ends + (half * np.minimum(drawn, 2.0) if kind == "squashed" else half * drawn)
        else:
            action = ends
        if transforms:
            ends, action = (self._raw_error(one) for one in (ends, action))
        # Nothing lies outside of the box.
        ends, action = (
            np.minimum(one, self._high - self._low)
            + 4 * _UNIT * np.maximum(np.abs(self._low), np.abs(self._high))
            for one in (ends, action)
        )
        nothing = np.where(unknown, np.inf, 0.0)
        return ends + nothing, action + nothing

    def _truncated_error(
        self, raw: ndarray, last: Any, uniform: ndarray, centre: ndarray, scale: ndarray,
        error_centre: ndarray, error_scale: ndarray, error_ends: ndarray,
    ) -> ndarray:  # fmt: skip
        """Return the error of the quantile of a truncated law, on the transformed scale.

        It is what the quantile moves when centre, scale and ends err, one after another, twice, and
        the stated error of a quantile.
        """
        raw_ends, _, _ = self._interval(raw, last)
        low, high = (self._forward(e, self.settings["action_transforms"])[0] for e in raw_ends)
        high = np.maximum(low, high)
        # Positions of the ends are rounded beside the centre, also as artanh, which is below 9.
        placed = error_centre + 16 * _UNIT * (10.0 + np.abs(centre))
        sized = error_scale + 8 * _UNIT * scale
        given = [centre, scale, low, high]

        def drawn(values: list[ndarray]) -> ndarray:
            place, size, least, most = values
            found = self._within(place, size, least, most, uniform)
            return np.clip(found, least, np.maximum(least, most))

        start, total = drawn(given), np.zeros_like(centre)
        for place, error in enumerate((placed, sized, error_ends, error_ends)):
            steps = []
            for sign in (-1.0, 1.0):
                moved = list(given)
                moved[place] = given[place] + sign * error
                if place == 1:
                    moved[place] = np.maximum(moved[place], 0.5 * scale)
                steps.append(np.abs(drawn(moved) - start))
            total = total + 2.0 * np.maximum(*steps)
        # Distances from the centre, in scales.
        if self.family["kind"] == "squashed":
            away = np.abs(self._unsquashed(start) - centre) / scale
        else:
            away = np.abs((start - self._middle) / self._half - centre) / scale
        stated = self.settings["sampling"]["error"] + 16 * _UNIT
        total = total + self._half * scale * stated * np.maximum(away, 1.0)
        return np.minimum(total, high - low) + error_ends

    def _raw_error(self, error: ndarray) -> ndarray:
        """Return the error in raw units, at the end of the box where the slope is largest."""
        found = error.copy()
        for place, one in enumerate(self.settings["action_transforms"]):
            if one is None:
                continue
            if one["kind"] == "scale":
                found[:, place] = error[:, place] / one["number"]
            else:
                most = self._high[0, place] + one["number"]
                found[:, place] = most * (
                    np.expm1(error[:, place]) + 2 * _FUNCTION * (1 + np.abs(np.log(most)))
                )
            found[:, place] += 4 * _UNIT * (np.abs(self._high[0, place]) + abs(one["number"]))
        return found

    def _limit_error(self, raw: ndarray, last: Any) -> tuple[ndarray, ndarray]:
        """Return the error of the ends that limits set, and where a condition is open."""
        count, size = len(self.observations), len(self.actions)
        state = [raw[:, place : place + 1] for place in range(count)]
        if self.needs_last_action:
            state += [last[:, place : place + 1] for place in range(size)]
        error, open_ = np.zeros((len(raw), size)), np.zeros((len(raw), 1), bool)
        for limit in self.limits:
            open_ |= self._is_open(limit["condition"], state)
            for bound in limit["bounds"]:
                _, margin = self._single(bound["end"], state)
                place = bound["action"]
                error[:, place] = np.maximum(error[:, place], margin[:, 0])
        if error.any():
            error, moved = self._on_scale(error)
            open_ = open_ | moved
        # Ends that nearly meet are one action, or none.
        low, high = np.full((2, len(raw), size), np.nan)
        holds = [self._holds(limit, state) for limit in self.limits]
        for action in range(size):
            least, most, _ = self._ends(action, holds, state)
            low[:, action], high[:, action] = np.ravel(least), np.ravel(most)
        nearly = np.abs(high - low) <= 8 * error + 16 * _UNIT * np.maximum(
            np.abs(low), np.abs(high)
        )
        return error, open_ | np.any(nearly & (low != high), axis=1, keepdims=True)

    def _on_scale(self, error: ndarray) -> tuple[ndarray, ndarray]:
        """Return errors of raw ends on the transformed scale."""
        found, moved = error.copy(), np.zeros((len(error), 1), bool)
        for place, one in enumerate(self.settings["action_transforms"]):
            if one is None:
                continue
            least = self._low[0, place] + one["number"]
            slope = one["number"] if one["kind"] == "scale" else 1.0 / least
            found[:, place] = error[:, place] * slope + (
                _FUNCTION * 20 if one["kind"] == "log" else 0.0
            )
        return found, moved

    def _single(self, end: Any, state: Any) -> tuple[ndarray, ndarray]:
        """Return a sum and how far float32 may be from it, its inward rounding included."""
        total = np.full((len(state[0]), 1), end["constant"])
        size, flushed = np.abs(total), 2 * _TINY
        for place, factor in end["terms"]:
            product = factor * np.nan_to_num(state[place])
            total, size = total + product, size + np.abs(product)
            # A subnormal number may be read as zero.
            flushed += _TINY * abs(factor)
        return total, (len(end["terms"]) + 4) * 8 * _UNIT * size + flushed

    def _is_open(self, condition: Any, state: Any) -> ndarray:
        if condition is None:
            return np.zeros((len(state[0]), 1), bool)
        if "parts" in condition:
            found = [self._is_open(part, state) for part in condition["parts"]]
            return np.any(found, axis=0)
        total, margin = self._single(condition["difference"], state)
        return np.abs(total) <= margin


def _product(x: ndarray, error: ndarray, weight: ndarray, bias: ndarray) -> tuple[ndarray, ndarray]:
    """Return x @ weight + bias and a bound of its error, for any order of summation."""
    terms, sizes = len(weight), np.abs(weight)
    largest = (np.abs(x) + error) @ sizes + np.abs(bias)
    flushed = 2.0 * terms + 2.0 + np.abs(x).sum(axis=1, keepdims=True) + sizes.sum(axis=0)
    found = error @ sizes + _FLOAT32.sum_error(terms) * largest + _TINY * flushed
    return x @ weight + bias, np.where(largest < _FLOAT32.largest, found, np.inf)
