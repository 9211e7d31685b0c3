"""A decision policy that needs NumPy alone: raw observations in, an action or a referral out.

    from policy import load
    policy = load("weights.npz")
    found = policy([[0.5, 1.2]], uniform=[[0.5]])
    found.action, found.centre, found.low, found.high, found.refer, found.reason

Observations are raw, in the order of `policy.observations`. `uniform` is one number in [0, 1] per
action: the action is the quantile of the policy at that share. Without it the action is the centre,
as for `fat2thin decide`. Limits on changes need `last`, the last action, nan at the first step of
an episode. A state is referred for the reasons in `REASONS`, whose codes are added up in `reason`.
A referred state gets the fallback, or nan without one. A number that is missing or not finite is a
reason.

    python policy.py states.csv

prints the same for every row of a CSV file as CSV.
"""

import csv
import json
import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np

OUTSIDE, DISAGREE, CONFLICT, FORBIDDEN, INVALID = 1, 2, 4, 8, 16
REASONS = {
    OUTSIDE: "outside the log",
    DISAGREE: "seeds disagree",
    CONFLICT: "limits conflict",
    FORBIDDEN: "limits forbid acting",
    INVALID: "invalid input",
}
NORM_EPSILON = 1e-6  # added to the variance by a layer norm
LEAST_OVERLAP = 1e-6  # bands that overlap by less, in half-ranges of the box, count as disjoint
FARTHEST = 1e6  # whitened coordinates are clipped here
LEAST_TAIL = 2.0**-126  # a smaller tail probability counts as this one
MOST_SCALES = 1e15  # ends of a truncated law are at most this far from its centre
NEAREST = 2.0**-23  # of the box: ends of a squashed law closer to those of the box count as there


class Answer(NamedTuple):
    """What the policy does in each state; arrays of shape (rows, actions) or (rows,)."""

    action: Any
    """The action: the fallback, or nan, where the state is referred."""
    centre: Any
    """The middle of what the policy can do; nan for invalid input."""
    low: Any
    """The lowest action that the policy can take in this state."""
    high: Any
    """The highest."""
    refer: Any
    """1 where the state is referred, else 0."""
    reason: Any
    """Sum of the codes of the reasons; 0 where the state is not referred."""


class Policy:
    """A policy from arrays and settings, computed in `dtype` with `xp`.

    `xp` is NumPy, or a module with the same functions. Every array has two axes, rows and columns.
    """

    def __init__(self, arrays: Any, settings: Any, dtype: Any = np.float32, xp: Any = np) -> None:
        self.arrays, self.settings, self.xp = dict(arrays), settings, xp
        self.dtype = np.dtype(dtype).type
        self.observations = [column["name"] for column in settings["observations"]]
        self.actions = [column["name"] for column in settings["actions"]]
        self.family = settings["family"]
        self.needs_last_action = settings["needs_last_action"]
        self._info = np.finfo(self.dtype)
        self._prepare_limits()
        self._members = [self._member(place) for place in range(len(settings["members"]))]
        self._low, self._high = self._row(self.arrays["low"]), self._row(self.arrays["high"])
        box = [self._forward_numbers(end) for end in (self.arrays["low"], self.arrays["high"])]
        self._box = [self._row(end) for end in box]
        self._middle, self._half = (
            (self._box[0] + self._box[1]) / 2,
            (self._box[1] - self._box[0]) / 2,
        )
        nothing = [float("nan")] * len(self.actions)
        self._fallback = self._row(
            nothing if settings["fallback"] is None else settings["fallback"]
        )
        self._prepare_referral()
        self._prepare_quantiles()

    def __call__(self, observation: Any, uniform: Any = None, last: Any = None) -> Answer:
        """Return what the policy does in each row; without `uniform` it acts at the centre."""
        seen = np.asarray(observation)
        if seen.ndim != 2 or seen.shape[1] != len(self.observations):
            names = ", ".join(self.observations)
            raise ValueError(
                f"observations must have the shape (rows, {len(self.observations)}), one column "
                f"each for {names}; got {seen.shape}"
            )
        with np.errstate(all="ignore"):
            seen = seen.astype(self.dtype)
            shape = (len(seen), len(self.actions))
            share = np.asarray(0.5 if uniform is None else uniform, self.dtype)
            share = share if share.shape == shape else np.broadcast_to(share, shape)
            if last is not None:
                last = np.asarray(last, self.dtype)
                last = last if last.shape == shape else np.broadcast_to(last, shape)
            elif self.needs_last_action:
                raise ValueError(
                    "limits depend on the last action: give last=..., nan at the first step"
                )
            action, centre, low, high, refer, reason = self.decide(seen, share, last)
            if uniform is None:
                action = np.where(refer, action, centre)
            codes = (code[:, 0].astype(np.int32) for code in (refer, reason))
            return Answer(action, centre, low, high, *codes)

    # All of the arithmetic follows; `observation`, `uniform` and `last` have shape (rows, columns).

    def decide(self, observation: Any, uniform: Any, last: Any = None) -> tuple[Any, ...]:
        """Return action, centre, low, high, refer (true or false) and reason, a sum of codes."""
        xp = self.xp
        # Zero times a number that is not finite is not a number.
        valid = self._sum(observation * self.dtype(0.0)) == self.dtype(0.0)
        valid = valid & self._all(abs(uniform - self.dtype(0.5)) <= self.dtype(0.5))
        if self.needs_last_action:
            # nan is the first step of an episode.
            valid = valid & ~self._any(abs(last) > self._info.max)
        raw = xp.where(valid, observation, self.dtype(0.0))
        uniform = xp.where(valid, uniform, self.dtype(0.5))
        seen, allowed = self._forward(raw, self.settings["observation_transforms"])
        valid = valid if allowed is None else valid & allowed
        centre, log_scale, apart = self._head(seen)
        # A network that overflowed gives no action.
        whole = centre + log_scale
        valid = valid & self._all(whole == whole)
        box, conflict, forbidden = self._box, None, None
        raw_box = [self._low, self._high]
        if self.limits:
            raw_box, conflict, forbidden = self._interval(raw, last)
            box = [self._forward(end, self.settings["action_transforms"])[0] for end in raw_box]
        centre, low, high, sample = self._law(centre, log_scale, box, uniform)
        if self.settings["action_transforms"]:
            centre, low, high, sample = self._back(centre, low, high, sample, box, raw_box)
        found = [(OUTSIDE, self._outside(seen)), (DISAGREE, apart)]
        found += [(CONFLICT, conflict), (FORBIDDEN, forbidden)]
        return self._answer(valid, found, centre, low, high, sample)

    def _answer(
        self, valid: Any, found: Any, centre: Any, low: Any, high: Any, sample: Any
    ) -> tuple[Any, ...]:
        xp, zero, nan = self.xp, self.dtype(0.0), self.dtype("nan")
        found = [(code, mask) for code, mask in found if mask is not None]
        codes = None
        for code, mask in found:
            part = xp.where(mask, self.dtype(code), zero)
            codes = part if codes is None else codes + part
        reason = xp.where(valid, zero if codes is None else codes, self.dtype(INVALID))
        refer, shown = reason > zero, valid
        if self.limits and self.settings["limit_fallback"] is None:
            for code, mask in found:
                shown = shown & ~mask if code in (CONFLICT, FORBIDDEN) else shown
        centre, low, high = (xp.where(shown, part, nan) for part in (centre, low, high))
        action, low, high = self._clipped(sample, low, high)
        action = xp.where(refer, self._fallback, action)
        return action, centre, low, high, refer, reason

    def _clipped(self, sample: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        """Return the sample clipped to the ends, and the ends."""
        return self._clip(sample, low, high), low, high

    # Networks

    def _member(self, place: int) -> dict[str, Any]:
        given, name = self.settings["members"][place], f"member{place}."
        mine = {
            key[len(name) :]: self.dtype(array)
            for key, array in self.arrays.items()
            if key.startswith(name)
        }
        member: dict[str, Any] = {**given, "layers": []}
        for layer in [f"trunk{number}" for number in range(len(mine))] + ["centre", "log_scale"]:
            if f"{layer}.weight" in mine:
                weight = np.ascontiguousarray(mine[f"{layer}.weight"].T)
                norm = [mine[f"{layer}.norm_{one}"][None] for one in ("scale", "shift")
                        if f"{layer}.norm_{one}" in mine]  # fmt: skip
                member["layers"].append((weight, mine[f"{layer}.bias"][None], norm))
        for key in ("mean", "scale", "fixed"):
            member[key] = mine[key][None] if key in mine else None
        return member

    def _network(self, member: dict[str, Any], seen: Any) -> tuple[Any, Any]:
        """Return centre and log scale of one member, in half-ranges of the box."""
        xp = self.xp
        *trunk, for_centre, for_scale = member["layers"]
        x = seen if member["mean"] is None else (seen - member["mean"]) / member["scale"]
        for weight, bias, norm in trunk:
            x = xp.maximum(xp.matmul(x, weight) + bias, self.dtype(0.0))
            if norm:
                width = self.dtype(weight.shape[1])
                away = x - self._sum(x) / width
                variance = self._sum(away * away) / width
                x = away / xp.sqrt(variance + self.dtype(NORM_EPSILON)) * norm[0] + norm[1]
        centre = xp.matmul(x, for_centre[0]) + for_centre[1]
        centre = xp.tanh(centre) if member["tanh"] else centre
        if member["fixed"] is None:
            log_scale = xp.matmul(x, for_scale[0]) + for_scale[1]
        else:
            log_scale = centre * self.dtype(0.0) + member["fixed"]
        log_scale = self._clip(log_scale, *map(self.dtype, member["bounds"]))
        if member["ratio"] is not None:
            log_scale = log_scale + self.dtype(member["ratio"])
            log_scale = self._clip(log_scale, *map(self.dtype, member["ratio_bounds"]))
        return centre, log_scale

    def _head(self, seen: Any) -> tuple[Any, Any, Any]:
        """Return the combined centre and log scale, and where the members disagree."""
        xp, rule = self.xp, self.settings["rule"]
        centres, log_scales = self._heads(seen)
        if rule is None:
            return centres[0], log_scales[0], None
        centre, log_scale = self._median(centres), self._median(log_scales)
        spread = self._spread(centres)
        # Without a summary of the log there are no thresholds; only a missing overlap is left.
        given = self.settings["referral"]
        apart = None
        if given is not None:
            apart = self._any(spread > self.dtype(given["thresholds"]["disagreement"]))
        if rule == "consensus":
            widths = [xp.exp(one) for one in log_scales]
            low = self._largest([one - width for one, width in zip(centres, widths, strict=True)])
            high = self._smallest([one + width for one, width in zip(centres, widths, strict=True)])
            common = self._all(high - low > self.dtype(LEAST_OVERLAP))
            apart = ~common if apart is None else apart | ~common
            two, one = self.dtype(2.0), self.dtype(1.0)
            centre = xp.where(common, (low + high) / two, centre)
            width = xp.log(xp.where(common, (high - low) / two, one))
            log_scale = xp.where(common, width, log_scale)
        return centre, log_scale, apart

    def _heads(self, seen: Any) -> tuple[Any, Any]:
        """Return the centres and the log scales of all members; bands are fitted to the box."""
        heads = [self._network(member, seen) for member in self._members]
        if self.settings["rule"] is not None and self.family["kind"] == "sparse":
            bands = [self._band(*head) for head in heads]
            heads = [(centre, self.xp.log(width)) for centre, width in bands]
        centres, log_scales = zip(*heads, strict=True)
        return centres, log_scales

    def _spread(self, centres: Any) -> Any:
        """Return the distance between the lowest and the highest centre, in shares of the box."""
        if self.family["kind"] == "squashed":
            centres = [self.xp.tanh(one) for one in centres]
        return (self._largest(centres) - self._smallest(centres)) / self.dtype(2.0)

    def _band(self, centre: Any, log_scale: Any) -> tuple[Any, Any]:
        """Return centre and half-width of a band, in half-ranges, fitted to the box."""
        width = self.xp.exp(log_scale)
        if self.family["box"] == "clip":
            return centre, width
        one = self.dtype(1.0)
        width = self.xp.minimum(width, one)
        return self._clip(centre, width - one, one - width), width

    # Laws

    def _law(self, centre: Any, log_scale: Any, box: Any, uniform: Any) -> tuple[Any, ...]:
        """Return centre, low, high and the sample, on the transformed scale."""
        xp, kind, limited = self.xp, self.family["kind"], bool(self.limits)
        bottom, top = box
        if kind == "sparse":
            centre, width = self._band(centre, log_scale)
            middle, reach = self._middle + self._half * centre, self._half * width
            if limited:
                reach = xp.minimum(reach, (top - bottom) / self.dtype(2.0))
                middle = self._clip(middle, bottom + reach, top - reach)
                middle = self._clip(middle, bottom, xp.maximum(bottom, top))
            low = self._clip(middle - reach, bottom, top)
            high = self._clip(middle + reach, bottom, top)
            return (
                self._clip(middle, low, high),
                low,
                high,
                middle + reach * self._quantile(uniform),
            )
        scale = xp.exp(log_scale)
        place = centre if kind != "squashed" else xp.tanh(centre)
        middle = self._middle + self._half * place
        least, most = (bottom, xp.maximum(bottom, top)) if limited else self._box
        inside = self._clip(middle, least, most)
        if kind == "deterministic":
            return inside, inside, inside, inside
        low, high = (end + xp.zeros_like(inside) for end in (least, most))
        if not self.samples:
            return inside, low, high, inside
        if limited:
            return inside, low, high, self._within(centre, scale, low, high, uniform)
        deviation = self._quantile(uniform)
        if kind == "squashed":
            drawn = self._middle + self._half * xp.tanh(centre + scale * deviation)
        else:
            drawn = middle + self._half * scale * deviation
        return inside, low, high, drawn

    @property
    def samples(self) -> bool:
        """Whether the action depends on `uniform`; otherwise it is the centre."""
        return bool(self.settings["sampling"]["samples"])

    def _prepare_quantiles(self) -> None:
        given = self.settings["sampling"]
        table = np.asarray(self.arrays.get("quantiles", np.zeros((0, 0))), np.float64)
        self._pieces = [self.dtype(column) for column in table.T]
        self._sampling = given
        table = np.asarray(self.arrays.get("folds", np.zeros((0, 0))), np.float64)
        self._fold_pieces = [self.dtype(column) for column in table.T]

    def _quantile(self, uniform: Any) -> Any:
        """Return the quantile of the standard law: of half-width 1 for a band, else of scale 1."""
        xp, given, real = self.xp, self._sampling, self.dtype
        one, two = real(1.0), real(2.0)
        if given["kind"] == "index 0":
            return two * xp.sin(xp.arcsin(two * uniform - one) / real(3.0))
        upper, tail = uniform > real(0.5), xp.minimum(uniform, one - uniform)
        away = self._away(tail)
        return xp.where(upper, away, -away)

    def _away(self, tail: Any) -> Any:
        """Return the distance from the centre beyond which the law has a tail probability."""
        xp, given, real = self.xp, self._sampling, self.dtype
        one, two = real(1.0), real(2.0)
        none = tail < real(LEAST_TAIL)
        folds = -xp.log(two * xp.maximum(tail, real(LEAST_TAIL)))
        folds = xp.maximum(folds, real(0.0))
        shape = self._looked_up(self._pieces, xp.sqrt(folds) / real(given["width"]))
        if given["kind"] == "band":
            away = one - shape * xp.exp(-folds * real(given["rate"]))
            return xp.where(none, one, xp.maximum(away, real(0.0)))
        growth = xp.exp(xp.minimum(folds * real(given["rate"]), real(85.0)))
        return xp.maximum(shape, real(0.0)) * growth

    def _looked_up(self, pieces: Any, place: Any) -> Any:
        """Return the piecewise polynomials at a place, which counts pieces."""
        xp = self.xp
        piece = xp.minimum(xp.floor(place), self.dtype(len(pieces[0]) - 1))
        inside = place - piece
        number = piece.astype(np.int32)
        shape = xp.take(pieces[-1], number)
        for column in pieces[-2::-1]:
            shape = shape * inside + xp.take(column, number)
        return shape

    # Laws that limits truncate. Distances are in scales of a Student-t or a Gaussian, and the side
    # of the centre on which most of the interval lies is mirrored to be the upper one. There the
    # tail probability S gives L = -log(2 S): from a table up to "edge", by an asymptotic series
    # beyond. An interval that begins beyond "edge" is sampled by differences of L alone.

    def _within(self, centre: Any, scale: Any, low: Any, high: Any, uniform: Any) -> Any:
        """Return the quantile of the law truncated to the ends, on the transformed scale."""
        xp, real = self.xp, self.dtype
        squashed, factor = self.family["kind"] == "squashed", real(self._sampling["factor"])
        ends = []
        for end in (low, high):
            place = self._unsquashed(end) if squashed else (end - self._middle) / self._half
            end = (place - centre) / (scale * factor)
            # Where there is no interval, any will do: the action is missing.
            end = xp.where(end == end, end, real(0.0))
            ends.append(self._clip(end, real(-MOST_SCALES), real(MOST_SCALES)))
        away = self._deviation(ends[0], ends[1], uniform)
        if squashed:
            return self._middle + self._half * xp.tanh(centre + scale * away)
        return self._middle + self._half * (centre + scale * factor * away)

    def _unsquashed(self, value: Any) -> Any:
        """Return artanh of the position in the box."""
        xp, (bottom, top) = self.xp, self._box
        least = (top - bottom) * self.dtype(NEAREST)
        above, below = (xp.maximum(one, least) for one in (value - bottom, top - value))
        return (xp.log(above) - xp.log(below)) / self.dtype(2.0)

    def _deviation(self, left: Any, right: Any, uniform: Any) -> Any:
        """Return the quantile of the standard law truncated to [left, right]."""
        xp, real = self.xp, self.dtype
        edge, rest = real(self._sampling["edge"]), real(1.0) - uniform
        mirrored = left + right < real(0.0)
        begin, end = xp.where(mirrored, -right, left), xp.where(mirrored, -left, right)
        share, rest = xp.where(mirrored, rest, uniform), xp.where(mirrored, uniform, rest)
        far = xp.maximum(begin, edge)
        away = xp.where(
            begin > edge,
            self._far_quantile(far, xp.maximum(end, far), share, rest),
            self._near_quantile(begin, end, share, rest),
        )
        away = self._clip(away, begin, xp.maximum(begin, end))
        return xp.where(mirrored, -away, away)

    def _near_quantile(self, begin: Any, end: Any, share: Any, rest: Any) -> Any:
        """Return the quantile from the probabilities above and below it, neither a difference."""
        xp, real = self.xp, self.dtype
        one, two = real(1.0), real(2.0)
        tails = [xp.exp(-self._folds(abs(value))) / two for value in (begin, end)]
        below = begin < real(0.0)
        upper, lower = (xp.where(side, one - tails[0], tails[0]) for side in (below, ~below))
        upper = rest * upper + share * tails[1]
        lower = rest * lower + share * (one - tails[1])
        away = self._away(xp.minimum(upper, lower)) / real(self._sampling["factor"])
        return xp.where(lower < upper, -away, away)

    def _far_quantile(self, begin: Any, end: Any, share: Any, rest: Any) -> Any:
        """Return the quantile in a tail: growth and series are L, and differences of it suffice."""
        xp, real, rate = self.xp, self.dtype, self._sampling["rate"]
        square, start = begin * begin, self._series(begin)
        if rate:
            room = real(1.0) + real(rate) * square
            growth = xp.log((real(1.0) + real(rate) * (end * end)) / room) / real(2.0 * rate)
        else:
            growth = (end - begin) * (end + begin) / real(2.0)
        left = xp.exp(-(growth + self._series(end) - start))
        wanted = -xp.log(xp.maximum(rest + share * left, real(LEAST_TAIL)))
        found = begin
        for _ in range(4):  # each of which divides the error by the square of the distance
            risen = xp.maximum(wanted - (self._series(found) - start), real(0.0))
            if rate:
                most = xp.exp(xp.minimum(risen * real(2.0 * rate), real(85.0)))
                squared = (room * most - real(1.0)) / real(rate)
            else:
                squared = square + real(2.0) * risen
            found = self._clip(xp.sqrt(xp.maximum(squared, real(0.0))), begin, end)
        return found

    def _folds(self, away: Any) -> Any:
        """Return L at a distance from the centre."""
        xp, real, given = self.xp, self.dtype, self._sampling
        edge, rate = real(given["edge"]), given["rate"]
        near, far = xp.minimum(away, edge), xp.maximum(away, edge)
        place = xp.log(real(1.0) + near) / real(given["fold_width"])
        table = xp.maximum(self._looked_up(self._fold_pieces, place), real(0.0))
        growth = far * far
        growth = xp.log(real(1.0) + real(rate) * growth) / real(rate) if rate else growth
        beyond = growth / real(2.0) + self._series(far) + real(given["constant"])
        return xp.where(away > edge, beyond, table)

    def _series(self, away: Any) -> Any:
        """Return what L has beside its growth, up to a constant, far from the centre."""
        xp, real, rate = self.xp, self.dtype, self._sampling["rate"]
        small, sizes, size = real(1.0) / (away * away), [], 1.0
        for number in (1, 2, 3, 4):
            # Of 2F1(1, 1/2; n/2 + 1; -n / away^2), which the incomplete beta function contains.
            size *= -(2 * number - 1) / (1.0 + 2 * number * rate)
            sizes.append(size)
        total = real(sizes[-1])
        for size in [*sizes[-2::-1], 1.0]:
            total = total * small + real(size)
        return -(xp.log(small + real(rate)) / real(2.0) + xp.log(total))

    def _back(
        self, centre: Any, low: Any, high: Any, sample: Any, box: Any, raw_box: Any
    ) -> tuple[Any, ...]:
        """Return centre, low, high and sample in raw units; an end of the box is kept exactly."""
        xp, (bottom, top), (raw_bottom, raw_top) = self.xp, box, raw_box
        made = [self._inverse(part) for part in (centre, low, high, sample)]
        if self.family["kind"] != "deterministic":
            kept = [self._clip(end, raw_bottom, raw_top) for end in made[1:3]]
            made[1] = xp.where(low == bottom, raw_bottom, kept[0])
            made[2] = xp.where(high == top, raw_top, kept[1])
        else:
            made[1] = made[2] = self._clip(made[0], raw_bottom, xp.maximum(raw_bottom, raw_top))
        made[0] = self._clip(made[0], made[1], xp.maximum(made[1], made[2]))
        return tuple(made)

    # Referral

    def _prepare_referral(self) -> None:
        given = self.settings["referral"]
        if given is None:
            return
        log = {
            name: np.asarray(self.arrays[f"log.{name}"], np.float64)
            for name in ("mean", "whitening", "centroids", "radius", "threshold")
        }
        # [x, |x|^2] @ slopes + levels is the squared distance to each centroid in squared radii.
        square = np.square(log["radius"])
        parts = [-2.0 * log["centroids"].T, np.ones((1, len(square)))]
        self._slopes = self.dtype(np.concatenate(parts) / square)
        self._levels = self._row(np.square(log["centroids"]).sum(axis=1) / square)
        self._log_mean, self._whitening = self._row(log["mean"]), self.dtype(log["whitening"])
        self._edge = self.dtype((log["threshold"] * given["thresholds"]["distance"]) ** 2)

    def _outside(self, seen: Any) -> Any:
        """Return where a state is farther from the log than the threshold; None if unknown."""
        if self.settings["referral"] is None:
            return None
        xp, far = self.xp, self.dtype(FARTHEST)
        x = self._clip(xp.matmul(seen - self._log_mean, self._whitening), -far, far)
        extended = xp.concatenate([x, self._sum(x * x)], axis=1)
        squares = xp.matmul(extended, self._slopes) + self._levels
        return ~(self._min(squares) <= self._edge)

    # Limits. What does not depend on the state is computed once, when the policy is made.

    def _prepare_limits(self) -> None:
        count = len(self.observations)
        self.limits = []
        for limit in self.settings["limits"]:
            bounds = [{**bound, **self._fixed(bound)} for bound in limit["bounds"]]
            places = {place for bound in bounds for place, _ in bound["end"]["terms"]}
            ready = {"bounds": bounds, "last": sorted(one for one in places if one >= count)}
            condition = limit["condition"]
            if condition is not None:
                condition = self._ready_condition(condition)
            self.limits.append({**limit, **ready, "condition": condition})
        self._bounds = [self._of_action(action) for action in range(len(self.actions))]

    def _of_action(self, action: int) -> Any:
        """Return the box, the bounds of an action, and what must be known where ends cross.

        Ends that cross by rounding mean one action if both are numbers, or of one limit. That is
        followed only where it is not clear: for each side whether all its ends are numbers, and
        whether a limit sets both sides.
        """
        box = [self.dtype(self.arrays[end][action]) for end in ("low", "high")]
        bounds = [
            (number, bound)
            for number, limit in enumerate(self.limits) for bound in limit["bounds"]
            if bound["action"] == action
        ]  # fmt: skip
        sides = [[one for one in bounds if one[1]["upper"] == upper] for upper in (False, True)]
        fixed = [all(bound["ends"] for _, bound in side) for side in sides]
        shared = {number for number, _ in sides[0]} & {number for number, _ in sides[1]}
        return box, bounds, fixed, bool(shared) and not all(fixed)

    def _fixed(self, bound: Any) -> Any:
        """Return the rounded ends of a bound that is a number, or its sum with numbers ready."""
        if bound["end"]["terms"]:
            return {"end": self._ready_sum(bound["end"]), "ends": None}
        sign = -1.0 if bound["upper"] else 1.0
        below, above = self._neighbours(bound["end"]["constant"])
        inward, outward = (below, above) if bound["upper"] else (above, below)
        if bound["strict"]:
            # At 0 a normal number, because others are rounded to 0.
            further = np.nextafter(inward, self.dtype(sign * np.inf))
            tiny = self.dtype(sign * self._info.tiny)
            inward = outward = tiny if inward == 0.0 else further
        # The very same number, so that it need not be compared twice.
        return {"ends": (inward, inward if inward == outward else outward)}

    def _ready_sum(self, linear: Any) -> Any:
        terms = linear["terms"]
        return {
            **linear,
            "start": self.dtype(linear["constant"]),
            "factors": [(place, self.dtype(factor)) for place, factor in terms],
            "exact": linear["constant"] == 0.0 and [abs(factor) for _, factor in terms] == [1.0],
            "share": self.dtype((len(terms) + 3) * float(self._info.eps)),
            "tiny": self.dtype(len(terms) * float(self._info.tiny)),
        }

    def _ready_condition(self, condition: Any) -> Any:
        if "parts" in condition:
            return {**condition, "parts": [*map(self._ready_condition, condition["parts"])]}
        difference, number = self._ready_sum(condition["difference"]), None
        if len(difference["terms"]) == 1:
            # One column against a number, which is rounded as the column is.
            number = self._nearest(-difference["constant"] / difference["terms"][0][1])
        return {**condition, "difference": difference, "number": number}

    def _interval(self, raw: Any, last: Any) -> tuple[list[Any], Any, Any]:
        """Return the allowed interval of each action, and where limits conflict or forbid acting.

        The masks are None where that cannot be. Without an allowed action, both ends are the
        fallback, or nan without one.
        """
        xp, count, size = self.xp, len(self.observations), len(self.actions)
        state = [raw[:, place : place + 1] for place in range(count)]
        if self.needs_last_action:
            state += [last[:, place : place + 1] for place in range(size)]
        holds = [self._holds(limit, state) for limit in self.limits]
        lows, highs, conflict, forbidden = [], [], None, None
        for action in range(size):
            low, high, empty = self._ends(action, holds, state)
            if empty is None:
                low, high = (end + xp.zeros_like(state[0]) for end in (low, high))
            else:
                conflict = empty if conflict is None else conflict | empty
            lows.append(low)
            highs.append(high)
        for limit, where in zip(self.limits, holds, strict=True):
            if not limit["bounds"]:
                forbidden = where if forbidden is None else forbidden | where
        masks = [mask for mask in (conflict, forbidden) if mask is not None]
        without = masks[0] if len(masks) == 1 else masks[0] | masks[1]
        instead = self._row(self.settings["limit_fallback"] or [float("nan")] * size)
        ends = [xp.where(without, instead, xp.concatenate(end, axis=1)) for end in (lows, highs)]
        return ends, conflict, forbidden

    def _ends(self, action: int, holds: Any, state: Any) -> tuple[Any, Any, Any]:
        """Return low and high end of one action, and where there is none between them."""
        xp, real = self.xp, self.dtype
        box, bounds, fixed, shared = self._bounds[action]
        inner, outer = list(box), list(box)
        if not bounds:
            return *inner, None
        owner, constant = [real(-1.0), real(-1.0)], [real(1.0), real(1.0)]
        for number, bound in bounds:
            side, where = int(bound["upper"]), holds[number]
            inward, outward = bound["ends"] or self._bound(bound, state)
            same = outward is inward
            if where is not None:
                free = real(np.inf if side else -np.inf)
                inward = xp.where(where, inward, free)
                outward = inward if same else xp.where(where, outward, free)
            if shared or not fixed[side]:
                nearer = inward < inner[side] if side else inward > inner[side]
                if shared:
                    owner[side] = xp.where(nearer, real(number), owner[side])
                if not fixed[side]:
                    one = real(bound["ends"] is not None)
                    constant[side] = xp.where(nearer, one, constant[side])
            nearest, same = xp.minimum if side else xp.maximum, same and outer[side] is inner[side]
            inner[side] = nearest(inner[side], inward)
            outer[side] = inner[side] if same else nearest(outer[side], outward)
        (low, high), (lowest, highest) = inner, outer
        crossed, empty = low > high, lowest > highest
        if not all(fixed):
            meet = constant[0] + constant[1] > real(1.5)
            meet = meet | (owner[0] == owner[1]) if shared else meet
            empty = empty | (crossed & ~meet)
        middle = self._clip(lowest + (highest - lowest) / real(2.0), *box)
        single, zero = crossed & ~empty, xp.zeros_like(state[0])
        if all(fixed) and all(holds[number] is None for number, _ in bounds):
            # The same in every state, for which there are rows here alone.
            empty, low, high = empty | (state[0] > real(np.inf)), low + zero, high + zero
        return xp.where(single, middle, low), xp.where(single, middle, high), empty

    def _bound(self, bound: Any, state: Any) -> tuple[Any, Any]:
        """Return an end that depends on the state, rounded into the interval, and out of it."""
        xp, real = self.xp, self.dtype
        sign = -1.0 if bound["upper"] else 1.0
        value, margin = self._evaluate(bound["end"], state)
        inward = outward = value
        if margin is not None:
            inward, outward = (value - margin, value + margin)[:: 1 if bound["upper"] else -1]
        if bound["strict"]:
            # At least one number further in, at most two.
            step = abs(inward) * real(self._info.eps) + real(self._info.tiny)
            inward = outward = inward + real(sign) * step
        # An end that overflowed is unknown: it allows nothing.
        known, same = inward == inward, outward is inward
        inward = xp.where(known, inward, real(sign * np.inf))
        return inward, inward if same else xp.where(known, outward, inward)

    def _holds(self, limit: Any, state: Any) -> Any:
        """Return where a limit applies; None if it always does."""
        holds = None if limit["condition"] is None else self._true(limit["condition"], state)
        for place in limit["last"]:
            known = state[place] == state[place]
            holds = known if holds is None else holds & known
        return holds

    def _true(self, condition: Any, state: Any) -> Any:
        """Return where a condition is true; where rounding of a sum leaves it open, it is true."""
        if "parts" in condition:
            found = [self._true(part, state) for part in condition["parts"]]
            whole = found[0]
            for part in found[1:]:
                whole = whole & part if condition["every"] else whole | part
            return whole
        difference, strict, zero = condition["difference"], condition["strict"], self.dtype(0.0)
        if condition["number"] is not None:
            ((place, factor),) = difference["terms"]
            column, number = state[place], condition["number"]
            if factor > 0.0:
                return column > number if strict else column >= number
            return column < number if strict else column <= number
        value, margin = self._evaluate(difference, state)
        value = value if margin is None else value + margin
        return value > zero if strict else value >= zero

    def _evaluate(self, linear: Any, state: Any) -> tuple[Any, Any]:
        """Return a sum in each state, and a bound of its rounding error; None if it is exact."""
        total, size, zero = linear["start"], abs(linear["start"]), None
        for place, factor in linear["factors"]:
            product = factor * state[place]
            total, size = total + product, size + abs(product)
            if linear["constant"] == 0.0:
                none = state[place] == self.dtype(0.0)
                zero = none if zero is None else zero & none
        if linear["exact"]:
            return total, None
        # A product too small for the type becomes 0; the sum of products with 0 is exact.
        tiny = (
            linear["tiny"] if zero is None else self.xp.where(zero, self.dtype(0.0), linear["tiny"])
        )
        return total, size * linear["share"] + tiny

    def _neighbours(self, number: float) -> tuple[Any, Any]:
        """Return the largest number of the type at or below a number, and the smallest above."""
        near, tiny = self._nearest(number), self.dtype(self._info.tiny)
        if 0.0 < abs(number) < tiny:  # programs round such numbers to 0
            return (self.dtype(0.0), tiny) if number > 0.0 else (-tiny, self.dtype(0.0))
        below = near if float(near) <= number else np.nextafter(near, self.dtype(-np.inf))
        above = near if float(near) >= number else np.nextafter(near, self.dtype(np.inf))
        return below, above

    def _nearest(self, number: float) -> Any:
        """Return a number in the type; what is too large becomes infinite."""
        with np.errstate(over="ignore"):
            return self.dtype(number)

    # Transforms of columns, and small helpers

    def _forward(self, values: Any, transforms: Any) -> tuple[Any, Any]:
        """Return transformed columns, and where they are allowed; None if all are."""
        if not transforms:
            return values, None
        xp, parts, allowed = self.xp, [], None
        for place, one in enumerate(transforms):
            column = values[:, place : place + 1]
            if one is not None and one["kind"] == "scale":
                column = column * self.dtype(one["number"])
                fine = abs(column) <= self._info.max
                allowed = fine if allowed is None else allowed & fine
            elif one is not None:
                shifted = column + self.dtype(one["number"])
                fine = (shifted >= self._info.tiny) & (shifted <= self._info.max)
                # Of a missing number, which stays missing, there is no logarithm to take.
                column = xp.log(xp.where(shifted >= self._info.tiny, shifted, self.dtype(1.0)))
                column = xp.where(shifted == shifted, column, shifted)
                allowed = fine if allowed is None else allowed & fine
            parts.append(column)
        return xp.concatenate(parts, axis=1), allowed

    def _forward_numbers(self, values: Any) -> Any:
        """Return transformed ends of the box."""
        found = np.array(values, np.float64)
        for place, one in enumerate(self.settings["action_transforms"]):
            if one is not None:
                scaled = found[place] * one["number"]
                found[place] = (
                    scaled if one["kind"] == "scale" else np.log(found[place] + one["number"])
                )
        return found

    def _inverse(self, values: Any) -> Any:
        """Return transformed actions in raw units."""
        parts = []
        for place, one in enumerate(self.settings["action_transforms"]):
            column = values[:, place : place + 1]
            if one is not None and one["kind"] == "scale":
                column = column / self.dtype(one["number"])
            elif one is not None:
                column = self.xp.exp(column) - self.dtype(one["number"])
            parts.append(column)
        return self.xp.concatenate(parts, axis=1)

    def _row(self, values: Any) -> Any:
        return np.asarray(values, self.dtype)[None]

    def _clip(self, x: Any, low: Any, high: Any) -> Any:
        return self.xp.minimum(self.xp.maximum(x, low), high)

    def _all(self, mask: Any) -> Any:
        return mask if mask.shape[1] == 1 else self.xp.all(mask, axis=1, keepdims=True)

    def _any(self, mask: Any) -> Any:
        return mask if mask.shape[1] == 1 else self.xp.any(mask, axis=1, keepdims=True)

    def _sum(self, x: Any) -> Any:
        return self.xp.sum(x, axis=1, keepdims=True)

    def _min(self, x: Any) -> Any:
        return self.xp.min(x, axis=1, keepdims=True)

    def _largest(self, parts: Any) -> Any:
        found = parts[0]
        for part in parts[1:]:
            found = self.xp.maximum(found, part)
        return found

    def _smallest(self, parts: Any) -> Any:
        found = parts[0]
        for part in parts[1:]:
            found = self.xp.minimum(found, part)
        return found

    def _median(self, parts: Any) -> Any:
        ordered = self.xp.sort(self.xp.stack(list(parts)), axis=0)
        one, other = ordered[(len(parts) - 1) // 2], ordered[len(parts) // 2]
        return (one + other) / self.dtype(2.0)


def load(path: Any, dtype: Any = np.float32) -> Policy:
    """Return the policy whose arrays and settings are in an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    settings = json.loads(bytes(arrays.pop("settings")).decode("utf-8"))
    return Policy(arrays, settings, dtype)


def reasons(code: int) -> list[str]:
    """Return the reasons that a code stands for."""
    return [name for bit, name in REASONS.items() if code & bit]


class States:
    """The rows of a CSV file with a header, for a policy.

    Names lose spaces around them, and empty lines are no rows. A row with too few or too many cells
    is kept, but none of its cells count. Raises a ValueError for a file that cannot be read so.
    """

    def __init__(self, path: Any) -> None:
        # Strictly: a quotation mark that is never closed would swallow rows.
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
        if not rows:
            raise ValueError("it is empty; its first line must name its columns")
        self.header, self.rows = [name.strip() for name in rows[0]], rows[1:]
        size = len(self.header)
        self.wrong = [place for place, row in enumerate(self.rows) if len(row) != size]
        self.rows = [row if len(row) == size else [""] * size for row in self.rows]

    def cells(self, name: str) -> list[str] | None:
        """Return the cells of a column, None without it; a ValueError if it is there twice."""
        if self.header.count(name) > 1:
            raise ValueError(f"the column {name!r} is there twice: rename one of them")
        if name not in self.header:
            return None
        place = self.header.index(name)
        return [row[place].strip() for row in self.rows]

    def numbers(self, names: Any) -> tuple[Any, list[str]]:
        """Return columns in this order, shape (rows, columns), and the names that are missing.

        A cell that is not a number is nan, and so are those of a missing column. Columns such as
        "sex=f" and "sex=m" may also be one column of texts, "sex".
        """
        found, missing = np.full((len(self.rows), len(names)), np.nan), []
        texts = {name: name.rpartition("=") for name in names}
        for place, name in enumerate(names):
            kind, equals, text = texts[name]
            cells = self.cells(name)
            if cells is not None:
                found[:, place] = [_number(cell) for cell in cells]
            elif equals and (cells := self.cells(kind)) is not None:
                known = {other[2] for other in texts.values() if other[:2] == (kind, equals)}
                found[:, place] = [
                    float(cell == text) if cell in known else np.nan for cell in cells
                ]
            else:
                missing.append(name)
        return found, missing

    def last_actions(self, names: Any) -> tuple[Any, list[str]]:
        """Return last actions and missing names: nan for an empty cell, inf for any other fault."""
        found, missing = self.numbers(names)
        for place, name in enumerate(names):
            cells = self.cells(name)
            for row in np.flatnonzero(np.isnan(found[:, place])):
                if cells is None or cells[row]:
                    found[row, place] = np.inf
        # What is not known of these rows is not that there was no action.
        found[self.wrong] = np.inf
        return found, missing


def _number(text: str) -> float:
    try:
        # Python reads 1_000 as a number; nothing else does.
        return float("nan") if "_" in text else float(text)
    except ValueError:
        return float("nan")


def main(arguments: Any = None) -> None:
    """Print the decisions on the rows of a CSV file, as CSV.

    An optional column "uniform_NAME" per action is the share at which the policy acts; without it
    the action is the centre.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1 or given[0] in ("-h", "--help"):
        sys.exit("usage: python policy.py states.csv > decisions.csv")
    policy = load(pathlib.Path(__file__).with_name("weights.npz"))
    before, last = [f"last_{name}" for name in policy.actions], None
    shares = [f"uniform_{name}" for name in policy.actions]
    try:
        table = States(given[0])
        states, missing = table.numbers(policy.observations)
        drawn, centred = table.numbers(shares)
        if policy.needs_last_action:
            last, more = table.last_actions(before)
            missing += more
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"{given[0]} cannot be read: {error}")
    if missing:
        print(f"missing columns: {', '.join(missing)}", file=sys.stderr)
    for place in table.wrong:
        fault = f"row {place + 1} has not as many cells as the header"
        print(f"{fault}: put texts with commas in quotation marks", file=sys.stderr)
    without = [name in centred for name in shares]
    drawn[:, without] = 0.5
    found = policy(states, drawn, last)
    # Without a share the action is the centre, which limits may take away from the median.
    at_centre = (found.refer == 0)[:, None] & without
    found = found._replace(action=np.where(at_centre, found.centre, found.action))
    inputs = [*policy.observations, *shares, *([] if last is None else before)]
    with np.errstate(over="ignore"):
        usable = [np.isfinite(states.astype(policy.dtype)), np.abs(drawn - 0.5) <= 0.5]
        usable += [] if last is None else [~np.isinf(last.astype(policy.dtype))]
    fine = np.concatenate(usable, axis=1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    out = csv.writer(sys.stdout, lineterminator="\n")
    parts = ("", "_centre", "_low", "_high")
    out.writerow(
        ["row", "refer", "reason", "reasons"]
        + [f"{name}{part}" for name in policy.actions for part in parts]
    )
    for row in range(len(states)):
        code = int(found.reason[row])
        why = "; ".join(reasons(code))
        wrong = [name for name, good in zip(inputs, fine[row], strict=True) if not good]
        why += f" ({', '.join(wrong)})" if code == INVALID and wrong else ""
        cells: list[Any] = [row + 1, int(found.refer[row]), code, why]
        for place in range(len(policy.actions)):
            numbers = (values[row, place] for values in found[:4])
            cells += ["" if np.isnan(one) else f"{one:.9g}" for one in numbers]
        out.writerow(cells)


if __name__ == "__main__":
    main()
