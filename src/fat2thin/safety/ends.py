"""Upper bounds of an end of the band over boxes of states, from the network to the action.

The low end is bounded as the high end of the mirrored action, so every bound here is an upper one:
`side` is 1 for the high end and -1 for the low end. With centre C and half-width r, in half-ranges
of the box and mirrored for the low end, the rule `inside` puts the end at

    min(max(C + r, b + 2 r), t)

where b and t are the ends of the allowed interval. C + r is bounded jointly: a line above tanh and
a line above exp make it one linear function of the network's last layer.

An ensemble's median is bounded by the median of bounds; its consensus by the least bound of all
members, or by the median where the bands may not overlap.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.columns import LOG, Transform
from fat2thin.policies.ensemble import LEAST_OVERLAP
from fat2thin.policies.plain import PlainMember, PlainPolicy
from fat2thin.safety.allowed import Allowed, AllowedActions, States
from fat2thin.safety.arithmetic import Arithmetic
from fat2thin.safety.lines import above_half_width, above_tanh, half_width
from fat2thin.safety.propagation import (
    Affine,
    Inputs,
    LinearBound,
    NotCertified,
    Rectifiers,
    Trunk,
)

BANDS = ("sparse", "deterministic")
"""Kinds of families whose actions the network bounds; others may take any allowed action."""
SLACK = 1e-9
"""Share of the action box by which bounds are widened, for a checker that rounds differently."""
_DIFFERENCE = 1e-4
"""Share of the action box below which ends of the allowed interval differ by rounding alone."""
SLOPE_STEPS = 255
"""Slopes of lines are whole multiples of 1/255, so that a certificate keeps a byte for each."""


@dataclasses.dataclass(frozen=True, eq=False)
class BandHead:
    """The last layer of one member for one action: centre and log half-width."""

    affine: Affine
    tanh: bool
    offset: float
    """Added to the network's log half-width."""
    least: float
    """Ends of the log half-width after the offset."""
    most: float
    point: bool
    """Whether there is no band, but one action."""

    @classmethod
    def of(
        cls, member: PlainMember, action: int, point: bool, inside: bool, kind: Any
    ) -> "BandHead":
        """Return the head of an action; `kind` is the type in which the policy acts."""
        weight, bias = member.log_scale.weight[action], member.log_scale.bias[action]
        if member.fixed is not None:
            weight, bias = np.zeros_like(weight), member.fixed[action]
        ends = [float(kind(end)) for end in member.bounds]
        offset = 0.0 if member.ratio is None else float(member.ratio)
        if member.ratio is not None:
            assert member.ratio_bounds is not None
            around = [float(kind(end)) for end in member.ratio_bounds]
            ends = [min(max(end + offset, around[0]), around[1]) for end in ends]
        if inside:
            ends = [min(end, 0.0) for end in ends]
        rows = np.stack([member.centre.weight[action], weight])
        biases = np.stack([member.centre.bias[action], bias])
        return cls(Affine.of(rows, biases), member.tanh, offset, ends[0], ends[1], point)


class Band(NamedTuple):
    """Separate bounds of centre and half-width, in half-ranges of the box; shape (boxes,)."""

    centre: tuple[ndarray, ndarray]
    width: tuple[ndarray, ndarray]

    def end(self, inside: bool) -> tuple[ndarray, ndarray]:
        """Return bounds of the high end of the band, after it was moved into the box."""
        ends = [centre + width for centre, width in zip(self.centre, self.width, strict=True)]
        if inside:
            firsts = (2.0 * width - 1.0 for width in self.width)
            ends = [
                np.minimum(np.maximum(end, first), 1.0)
                for end, first in zip(ends, firsts, strict=True)
            ]
        return ends[0], ends[1]

    def mirrored(self) -> "Band":
        """Return the bounds of the mirrored band."""
        return Band((-self.centre[1], -self.centre[0]), self.width)


class MemberBounds(NamedTuple):
    """Bounds of one member's band, mirrored for the low end."""

    end: ndarray
    """Upper bound of centre + half-width, in half-ranges of the box; shape (boxes,)."""
    band: Band
    others: tuple[Band, ...]
    """The bands of all actions, not mirrored, if the rule is consensus."""
    linear: LinearBound
    inputs: Inputs
    slopes: list[ndarray]
    """Slopes of the lower lines from the last layer to the first; empty for the usual ones."""
    looseness: ndarray
    """Share of each input in how far lines are from rectifiers; shape (boxes, inputs)."""


class EndBounds(NamedTuple):
    """Upper bounds of side · action, and what helps to find actions and to split boxes."""

    high: ndarray
    """Shape (boxes,); −inf where no state of a box has an action."""
    members: tuple[MemberBounds, ...]
    without: ndarray
    """Whether some state may have no allowed action."""
    limited: ndarray
    """Whether limits that differ between the states of a box set the bound."""


class BandEnd:
    """One end of the band of one action of a policy, bounded over boxes of states."""

    def __init__(self, plain: PlainPolicy, action: int, side: int, arithmetic: Arithmetic) -> None:
        self.plain, self.action, self.side, self.arithmetic = plain, action, side, arithmetic
        self.inside = plain.family.box != "clip"
        self.has_band = plain.family.kind in BANDS
        self.box = float(plain.low[action]), float(plain.high[action])
        boxes = zip(plain.low.tolist(), plain.high.tolist(), strict=True)
        every = [
            AllowedActions(plain.limits, place, *ends, len(plain.observations), arithmetic)
            for place, ends in enumerate(boxes)
        ]
        self.allowed = every[action]
        # A state in which one action has no allowed value has no action at all.
        self.other_allowed = [one for one in every if one.bounded and one.action != action]
        self.transform: Transform | None = (
            plain.action_transforms[action] if plain.action_transforms else None
        )
        self.named = f"the action box of {plain.actions[action].name!r}"
        self._law_box = [
            _transformed(np.asarray(end), self.transform, arithmetic, self.named)
            for end in self.box
        ]
        self.trunks = [
            Trunk([Affine.of(layer.weight, layer.bias) for layer in member.trunk], arithmetic)
            for member in plain.members
        ]
        self.point = plain.family.kind == "deterministic"
        self.consensus = plain.rule == "consensus"
        actions = range(len(plain.low)) if self.consensus else (action,)
        self.heads = [
            {
                one: BandHead.of(member, one, self.point, self.inside, arithmetic.kind)
                for one in actions
            }
            for member in plain.members
        ]

    def over(
        self, states: States, steps: int = 0, slopes: Sequence[Sequence[ndarray]] | None = None
    ) -> EndBounds:
        """Return the bounds over boxes, with `steps` steps that improve slopes, or given slopes."""
        allowed = self.allowed_over(states)
        above = self._mirrored(allowed.low_least, allowed.high_most)
        below = self._mirrored(allowed.low_most, allowed.high_least)
        top, base = above[1], below[0]
        members: tuple[MemberBounds, ...] = ()
        high = top
        if self.has_band:
            members = tuple(
                self._member(place, states, steps, None if slopes is None else slopes[place])
                for place in range(len(self.heads))
            )
            end, width = self._combined(members)
            slack = SLACK * (self.box[1] - self.box[0])
            high = np.minimum(self._placed(end, width, base) + slack, top)
        high = np.where(np.isnan(high), top, high)
        limited = high >= top
        if self.plain.fallback is not None:
            instead = self.side * self.plain.fallback[self.action]
            # A subnormal number may become 0.
            normal = abs(instead) >= self.arithmetic.tiny
            error = (2.0 * self.arithmetic.unit if normal else 1.0) * abs(instead)
            limited = limited | (allowed.without & (high < instead))
            high = np.where(allowed.without, np.maximum(high, instead + error), high)
            high = np.where(allowed.never, instead + error, high)
        else:
            high = np.where(allowed.never, -np.inf, high)
        return EndBounds(high, members, allowed.without, limited & self._differ(allowed))

    def _differ(self, allowed: Allowed) -> ndarray:
        """Return whether the allowed interval differs between the states of a box."""
        least = _DIFFERENCE * (self.box[1] - self.box[0])
        ends = (allowed.low_least, allowed.low_most), (allowed.high_least, allowed.high_most)
        same = [high - low <= least for low, high in ends]
        return ~(same[0] & same[1]) | (allowed.without & ~allowed.never)

    def allowed_over(self, states: States) -> Allowed:
        """Return bounds of the allowed interval, and whether states have an action at all."""
        found = self.allowed.over(states)
        others = [one.over(states) for one in self.other_allowed]
        return found._replace(
            without=np.logical_or.reduce([found.without, *(one.without for one in others)]),
            never=np.logical_or.reduce([found.never, *(one.never for one in others)]),
        )

    def network_inputs(self, place: int, states: States) -> tuple[ndarray, ndarray]:
        """Return the ends of a member's inputs: transformed and standardised observations."""
        member, of = self.plain.members[place], self.arithmetic
        count = len(self.plain.observations)
        # What is subnormal may count as zero.
        low, high = states.low[:, :count] - of.tiny, states.high[:, :count] + of.tiny
        for column, one in enumerate(self.plain.observation_transforms):
            name = f"column {self.plain.observations[column].name!r}"
            ends = [_transformed(end[:, column], one, of, name) for end in (low, high)]
            low[:, column], high[:, column] = ends[0][0] - ends[0][1], ends[1][0] + ends[1][1]
        if member.mean is not None:
            scale = np.asarray(member.scale, np.float64)
            low, high = of.round_outward(low - member.mean, high - member.mean, 2.0)
            _check_size(np.maximum(-low, high), "a standardised observation", of)
            low, high = of.round_outward(low / scale, high / scale, 4.0)
        # What is subnormal may count as zero, on both sides.
        return low - of.tiny, high + of.tiny

    def _member(
        self, place: int, states: States, steps: int, slopes: Sequence[ndarray] | None
    ) -> MemberBounds:
        trunk, head = self.trunks[place], self.heads[place][self.action]
        inputs = Inputs.between(*self.network_inputs(place, states))
        found = trunk.rectifiers(inputs)
        others = tuple(
            self._band(place, one, inputs, found)[0] for one in self.heads[place]
        ) if self.consensus else ()  # fmt: skip
        band, centre, log_width, margin = self._band(place, self.action, inputs, found)
        if self.side < 0:
            band, centre = band.mirrored(), (-centre[1], -centre[0])
        end, linear, kept = self._joint(
            place, inputs, found, margin, centre, log_width, steps, slopes
        )
        # The sum of separate bounds may be closer.
        end = np.minimum(end + self._head_error(head), band.centre[1] + band.width[1])
        loose = inputs.radius * trunk.looseness(found, linear)
        return MemberBounds(end, band, others, linear, inputs, kept, loose)

    def _band(
        self, place: int, action: int, inputs: Inputs, found: Sequence[Rectifiers]
    ) -> tuple[Band, tuple[ndarray, ndarray], tuple[ndarray, ndarray], ndarray]:
        """Return separate bounds of a band, of what tanh and exp are applied to, and margins."""
        trunk, head = self.trunks[place], self.heads[place][action]
        margin = head.affine.margins(np.maximum(found[-1].high, 0.0), self.arithmetic)
        both = np.concatenate([head.affine.weight, -head.affine.weight])
        rows = np.broadcast_to(both, (len(inputs.centre), *both.shape))
        ends, bias = trunk.bound(inputs, found, rows).high, head.affine.bias
        low, high = bias - ends[:, 2:] - margin, bias + ends[:, :2] + margin
        centre = low[:, 0], high[:, 0]
        log_width = low[:, 1] + head.offset, high[:, 1] + head.offset
        error = self._head_error(head)
        if self.point:
            width = (np.zeros(len(low)),) * 2
        else:
            least, most = (half_width(end, head.least, head.most) for end in log_width)
            width = least - error, most + error
        middle = tuple(map(np.tanh, centre)) if head.tanh else centre
        band = Band((middle[0] - error, middle[1] + error), width)
        return band, centre, log_width, margin

    def _joint(
        self, place: int, inputs: Inputs, found: list[Rectifiers], margin: ndarray,
        centre: tuple[ndarray, ndarray], log_width: tuple[ndarray, ndarray], steps: int,
        slopes: Sequence[ndarray] | None,
    ) -> tuple[ndarray, LinearBound, list[ndarray]]:  # fmt: skip
        """Return the upper bound of centre + half-width by one linear function of both heads."""
        trunk, head = self.trunks[place], self.heads[place][self.action]
        boxes = len(inputs.centre)
        of_centre, height = np.ones(boxes), np.zeros(boxes)
        if head.tanh:
            of_centre, height = above_tanh(*centre)
        of_width = np.zeros(boxes)
        if not head.point:
            of_width, more = above_half_width(*log_width, head.least, head.most)
            height = height + more + of_width * head.offset
        weight, bias = head.affine.weight, head.affine.bias
        factors = np.stack([self.side * of_centre, of_width], axis=1)
        rows = (factors @ weight)[:, None]
        fixed = height + factors @ bias + (np.abs(factors) * margin).sum(axis=1)
        fixed = fixed + 1e-14 * (np.abs(height) + np.abs(factors) @ np.abs(bias))
        if slopes is None and steps:
            _, better = trunk.optimised(inputs, found, rows, steps)
            slopes = [np.rint(one * SLOPE_STEPS) / SLOPE_STEPS for one in better]
        linear = trunk.bound(inputs, found, rows, slopes)
        return linear.high[:, 0] + fixed, linear, list(slopes or ())

    def _combined(self, members: Sequence[MemberBounds]) -> tuple[ndarray, ndarray]:
        """Return upper bounds of centre + half-width and of the half-width of the policy."""
        if len(members) == 1:
            return members[0].end, members[0].band.width[1]
        least, widths = (np.stack([one.band.width[end] for one in members]) for end in (0, 1))
        centres = np.stack([one.band.centre[1] for one in members])
        ends = np.stack([one.end for one in members])
        if self.inside:
            # Each member's band is moved into the box before bands are combined.
            centres = np.minimum(np.maximum(centres, widths - 1.0), 1.0 - least)
            ends = np.minimum(np.maximum(ends, 2.0 * widths - 1.0), 1.0)
        error = max(self._head_error(head[self.action]) for head in self.heads)
        # The policy takes the median of the logarithms: of an even number, the geometric mean.
        with np.errstate(divide="ignore"):
            width = np.exp(np.median(np.log(widths), axis=0)) + error
        # Some member has both a centre and a half-width at or above the medians.
        middle = np.minimum(np.median(centres, axis=0) + width, ends.max(axis=0)) + error
        if not self.consensus:
            return middle, width
        starts = np.stack([-one.band.mirrored().end(self.inside)[1] for one in members])
        common = ends.min(axis=0) + error
        half = np.clip((common - starts.max(axis=0)) / 2.0, 0.0, widths.min(axis=0)) + error
        surely, never = self._overlap([one.others for one in members], error)
        end = np.where(never, middle, np.where(surely, common, np.maximum(common, middle)))
        return end, np.where(never, width, np.where(surely, half, np.maximum(half, width)))

    def _overlap(self, bands: Sequence[Sequence[Band]], error: float) -> tuple[ndarray, ndarray]:
        """Return where the members' bands overlap, in every action, in all and in no states."""
        surely, never = True, False
        for of_action in zip(*bands, strict=True):
            ends = np.stack([band.end(self.inside) for band in of_action])
            starts = np.stack([band.mirrored().end(self.inside) for band in of_action])
            # Mirrored starts: their bounds are negative.
            least, most = (ends[:, side].min(0) + starts[:, side].min(0) for side in (0, 1))
            surely = surely & (least > LEAST_OVERLAP + 2.0 * error)
            never = never | (most < LEAST_OVERLAP - 2.0 * error)
        return np.asarray(surely), np.asarray(never)

    def _head_error(self, head: BandHead) -> float:
        """Return a bound on the rounding after the last layer, in half-ranges of the box.

        At most three times a half-width is turned into its logarithm and back; medians, means and
        shifts add a few roundings.
        """
        function, unit = self.arithmetic.function_error(), self.arithmetic.unit
        size = 1.0 + max(abs(head.least), abs(head.most), abs(head.offset))
        largest = max(1.0, float(np.exp(head.most)))
        return (10.0 * function * size + 64.0 * unit) * largest + 1e-12

    def _mirrored(self, low: ndarray, high: ndarray) -> tuple[ndarray, ndarray]:
        return (low, high) if self.side > 0 else (-high, -low)

    def _placed(self, end: ndarray, width: ndarray, base: ndarray) -> ndarray:
        """Return side · action of an end in half-ranges; `base` is the allowed interval's start."""
        of, one = self.arithmetic, self.transform
        (low, of_low), (high, of_high) = self._law_box
        start, of_start = _transformed(np.clip(self.side * base, *self.box), one, of, self.named)
        error = 64.0 * (of.unit * (abs(low) + abs(high)) + of.tiny) + of_low + of_high + of_start
        error = error * np.maximum(1.0, np.abs(end))
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        reached = self.side * middle + half * end
        first = self.side * start
        if self.inside:
            first = first + 2.0 * half * width
        reached = np.maximum(reached, first) + error
        if one is None:
            return reached
        values = self.side * reached
        size = np.exp(values) if one.kind == LOG else np.abs(values / one.number)
        raw = size - one.number if one.kind == LOG else values / one.number
        widened = size * (of.function_error() + 8.0 * of.unit) + 8.0 * of.unit * abs(one.number)
        return self.side * raw + widened + of.tiny


def _check_size(values: Any, what: str, of: Arithmetic) -> None:
    if not (np.abs(values) < of.largest).all():
        raise NotCertified(f"not certified: {of.name} may overflow: {what} is too large")


def _transformed(values: Any, one: Transform | None, of: Arithmetic, what: str) -> tuple[Any, Any]:
    """Return transformed numbers, and by how much what the policy computes may miss them.

    `what` names the numbers in messages.
    """
    if one is None:
        found, error = values, np.zeros_like(values)
    elif one.kind != LOG:
        if not one.number >= of.tiny:
            raise NotCertified(f"not certified: {of.name} may round {one} of {what} to 0")
        found = values * one.number
        error = 4.0 * (of.unit * np.abs(found) + of.tiny)
    else:
        # The offset is rounded to the type, which counts where it nearly cancels the value.
        error = 2.0 * of.unit * (abs(one.number) + np.abs(values)) + of.tiny
        shifted = values + one.number
        if not (shifted > 2.0 * error).all():
            raise NotCertified(
                f"not certified: {what} reaches to {np.min(values):g}, too close to or beyond "
                f"{one.lowest:g}, where {one} begins"
            )
        moved, found = error / (shifted - error), np.log(shifted)
        error = moved + (of.function_error() + 4.0 * of.unit) * (np.abs(found) + moved)
    _check_size(found, what, of)
    return found, error
