"""An independent checker of certificates: NumPy alone, and no code of the prover.

For every leaf of the tree of boxes it bounds the end of the band again, with the slopes that the
prover chose, and compares with the certified bound. A rectifier with input from l to u is at least
s·x for any s from 0 to 1, and at most the chord. `_End.error` bounds what float arithmetic adds.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ndarray

from fat2thin.policies.limit_language import Names, parse_limit
from fat2thin.safety.checker_limits import interval

TRUSTED = {
    "float32": {"unit": 2.0**-24, "tiny": 2.0**-126, "elementary": 16.0},
    "float64": {"unit": 2.0**-53, "tiny": 2.0**-1022, "elementary": 16.0},
}
BATCH, OVERLAP, EPSILON = 32, 1e-6, 2.0**-53
Ends = tuple[ndarray, ndarray]


class NotProven(ValueError):
    """The certificate does not prove what it claims; the message says what is wrong."""


def check(certificate: Mapping[str, Any], proof: Mapping[str, ndarray]) -> int:
    """Prove all bounds of a certificate again and return how many boxes that took.

    `certificate` is its JSON, `proof` the arrays of the file beside it.
    """
    names = [column["name"] for column in certificate["policy"]["actions"]]
    claimed = [(bound["action"], bound["side"]) for bound in certificate["bounds"]]
    if sorted(claimed) != sorted((name, side) for name in names for side in ("low", "high")):
        raise NotProven("there must be one bound for each end of each action")
    if certificate["arithmetic"] not in TRUSTED:
        raise NotProven(f"arithmetic {certificate['arithmetic']!r} is not covered")
    with np.errstate(all="ignore"):
        return sum(_End(certificate, proof, bound).check() for bound in certificate["bounds"])


class _End:
    """One end of an action: `sign` · action is bounded from above."""

    def __init__(
        self, certificate: Mapping[str, Any], proof: Mapping[str, ndarray], claim: Mapping[str, Any]
    ) -> None:
        policy = self.policy = certificate["policy"]
        actions, columns = ([column["name"] for column in policy[kind]] for kind in _KINDS)
        self.proof, self.claim, self.box = proof, claim, certificate["box"]
        self.action, self.sign = actions.index(claim["action"]), _SIGNS[claim["side"]]
        self.name, self.kind = f"tree.{self.action}.{claim['side']}", certificate["arithmetic"]
        self.limit = -np.inf if claim["bound"] is None else self.sign * claim["bound"]
        self.unit, self.tiny, elementary = TRUSTED[self.kind].values()
        self.function = elementary * self.unit
        self.largest = float(np.finfo(self.kind).max) / 16.0  # sums of sizes below do not overflow
        self.low, self.high = (float(proof[end][self.action]) for end in ("low", "high"))
        self.family, self.observations = policy["family"], len(columns)
        names, limits = Names(tuple(columns), tuple(actions)), certificate["limits"]
        self.limits = [parse_limit(name, text, names) for name, text in limits["rules"].items()]
        self.fallback = limits["fallback"].get(claim["action"])
        self.inside = self.family.get("box") != "clip"
        self.transform = (policy["action_transforms"] or [None] * len(actions))[self.action]
        self.members = [
            {
                name.partition(".")[2]: np.asarray(array, np.float64)
                for name, array in proof.items()
                if name.startswith(f"member{place}.")
            }
            for place in range(len(policy["members"]))
        ]

    def check(self) -> int:
        """Check every leaf of the tree and return their number."""
        low, high, missing = self.leaves()
        for start in range(0, len(low), BATCH):
            part = np.arange(start, min(start + BATCH, len(low)))
            found = self.bounds(low[part], high[part], missing[part], part)
            if not (found <= self.limit).all():  # nan is not below
                end, claimed = f"{self.claim['action']} {self.claim['side']}", self.claim["bound"]
                raise NotProven(f"{end} = {claimed!r} may be {self.sign * float(found.max())!r}")
        return len(low)

    def leaves(self) -> tuple[ndarray, ndarray, ndarray]:
        """Return the boxes of the leaves, which together are the whole box."""
        tree = [self.proof[f"{self.name}.{one}"] for one in ("column", "value", "first")]
        kind = np.dtype(self.kind).type
        low, high = (np.asarray(self.box[end]).astype(kind).astype(float) for end in _SIGNS)
        low, high = (np.where(np.abs(end) < self.tiny, 0.0, end) for end in (low, high))
        queue = [(place, low, high, step) for place, step in enumerate(self.box["steps"])]
        found: list[Any] = []
        for node, low, high, missing in queue:
            if len(queue) > 2 * len(tree[0]) or not 0 <= node < len(tree[0]):
                raise NotProven(f"the tree of {self.name} is not complete")
            column, value, first = (part[node] for part in tree)
            if column < 0:
                found.append((node, low, high, missing))
                continue
            # The second child starts at the next number, so that no state is between them.
            cut = kind(value if abs(value) >= self.tiny else 0.0)
            after = float(np.nextafter(cut, kind(np.inf)))
            after = after if abs(after) >= self.tiny else self.tiny if after > 0.0 else 0.0
            top, bottom = high.copy(), low.copy()
            top[column], bottom[column] = float(cut), after
            queue += [(int(first), low, top, missing), (int(first) + 1, bottom, high, missing)]
        found.sort(key=lambda leaf: leaf[0])
        _, lows, highs, steps = zip(*found, strict=True)
        return np.stack(lows), np.stack(highs), np.asarray(steps)

    def bounds(self, low: ndarray, high: ndarray, missing: ndarray, numbers: ndarray) -> ndarray:
        """Return upper bounds of sign · action over boxes."""
        some, every = np.full(len(low), False), np.full(len(low), False)
        for action, box in enumerate(zip(self.proof["low"], self.proof["high"], strict=True)):
            *ends, without, never = interval(
                self.limits, action, (float(box[0]), float(box[1])), self.observations, self.unit,
                self.tiny, low, high, missing,
            )  # fmt: skip
            # A state in which one action has no allowed value has no action at all.
            some, every = some | without, every | never
            if action == self.action:
                (b0, b1), (t0, t1) = ends
        top, base = (t1, b1) if self.sign > 0 else (-b0, -t0)
        found = top
        if self.family["kind"] in ("sparse", "deterministic"):
            found = np.minimum(self.placed(*self.band(low, high, numbers), base), top)
        if self.fallback is None:
            return np.where(every, -np.inf, found)
        share = 2.0 * self.unit if abs(self.fallback) >= self.tiny else 1.0  # it may become 0
        instead = self.sign * self.fallback + share * abs(self.fallback)
        found = np.where(every, instead, np.where(some, np.maximum(found, instead), found))
        return np.minimum(found, self.high if self.sign > 0 else -self.low)

    def band(self, low: ndarray, high: ndarray, numbers: ndarray) -> Ends:
        """Return upper bounds of centre + half-width and of the half-width, in half-ranges."""
        each = [self.member(one, low, high, numbers) for one in range(len(self.members))]
        ends, bands, error = [one[0] for one in each], [one[1] for one in each], each[0][2]
        c0, c1, w0, w1 = np.stack([band[self.action] for band in bands], axis=1)
        if len(each) == 1:
            return ends[0], w1[0]
        starts = self.moved(-c0, w1) if self.sign > 0 else self.moved(c1, w1)
        if self.sign < 0:
            c0, c1 = -c1, -c0
        end = np.stack(ends)
        if self.inside:
            c1 = np.minimum(np.maximum(c1, w1 - 1.0), 1.0 - w0)
            end = np.minimum(np.maximum(end, 2.0 * w1 - 1.0), 1.0)
        width = np.exp(np.median(np.log(w1), axis=0)) + error  # the policy's is of logarithms
        middle = np.minimum(np.median(c1, axis=0) + width, end.max(axis=0)) + error
        if self.policy["rule"] == "median":
            return middle, width
        common = end.min(axis=0) + error
        half = np.clip((common + starts.min(axis=0)) / 2.0, 0.0, w1.min(axis=0)) + error
        least, most = np.inf, np.inf
        for action in bands[0]:  # the overlap of all members' bands, in every action
            c0, c1, w0, w1 = np.stack([band[action] for band in bands], axis=1)
            least = np.minimum(least, self.moved(c0, w0).min(0) + self.moved(-c1, w0).min(0))
            most = np.minimum(most, self.moved(c1, w1).min(0) + self.moved(-c0, w1).min(0))
        surely, never = least > OVERLAP + 2.0 * error, most < OVERLAP - 2.0 * error
        reached = np.where(surely, common, np.maximum(common, middle))
        half = np.where(surely, half, np.maximum(half, width))
        return np.where(never, middle, reached), np.where(never, width, half)

    def moved(self, centre: ndarray, width: ndarray) -> ndarray:
        """Return the high end of a band after it was moved into the box."""
        end = centre + width
        return np.minimum(np.maximum(end, 2.0 * width - 1.0), 1.0) if self.inside else end

    def member(self, place: int, low: ndarray, high: ndarray, numbers: ndarray) -> tuple[Any, ...]:
        """Return a member's upper end, bounds of its bands by action, and their rounding error."""
        get, settings = self.members[place], self.policy["members"][place]
        layers: list[Any] = []
        low, high = self.inputs(get, low, high)
        middle = low + (high - low) / 2.0
        radius = np.maximum(high - middle, middle - low) * (1.0 + 8.0 * EPSILON) + 1e-300
        size = np.abs(middle) + radius
        while f"trunk{len(layers)}.weight" in get:
            weight, bias = (get[f"trunk{len(layers)}.{one}"] for one in ("weight", "bias"))
            least, most, error = self.sums(layers, middle, radius, weight, bias, size)
            if layers:  # interval arithmetic may be closer
                a, b = (np.maximum(end, 0.0) for end in layers[-1][2:4])
                up, down = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
                least = np.maximum(least, a @ up.T + b @ down.T + bias - error)
                most = np.minimum(most, b @ up.T + a @ down.T + bias + error)
            layers.append((weight, bias, least, most, error))
            size = np.maximum(most, 0.0)
        first, last, offset = self.width_ends(settings)
        scale = 1.0 + max(abs(first), abs(last), abs(offset))
        slack = (10.0 * self.function * scale + 64.0 * self.unit) * max(1.0, math.exp(last)) + 1e-12
        bands, point = {}, self.family["kind"] == "deterministic"
        every = range(len(self.proof["low"])) if self.policy["rule"] == "consensus" else ()
        for action in (*(one for one in every if one != self.action), self.action):
            rows = np.stack([get["centre.weight"][action], get["log_scale.weight"][action]])
            biases = np.array([get["centre.bias"][action], get["log_scale.bias"][action]])
            if "fixed" in get:
                rows[1], biases[1] = 0.0, get["fixed"][action]
            least, most, error = self.sums(layers, middle, radius, rows, biases, size)
            c = [np.tanh(end[:, 0]) if settings["tanh"] else end[:, 0] for end in (least, most)]
            w = [np.exp(np.clip(end[:, 1] + offset, first, last)) for end in (least, most)]
            w = [0.0 * w[0]] * 2 if point else [w[0] - slack, w[1] + slack]
            bands[action] = np.stack([c[0] - slack, c[1] + slack, *w])
        x = (least[:, 0], most[:, 0]) if self.sign > 0 else (-most[:, 0], -least[:, 0])
        steep, height = tanh_line(*x) if settings["tanh"] else (0.0 * x[0] + 1.0, 0.0 * x[0])
        rise, more = width_line(least[:, 1] + offset, most[:, 1] + offset, first, last)
        if point:
            rise, more = 0.0 * rise, 0.0 * more
        height = height + more + rise * offset
        factors = np.stack([self.sign * steep, rise], axis=1)
        slopes = self.slopes(place, len(layers), numbers)
        joint = back(layers, middle, radius, (factors @ rows)[:, None], slopes)[:, 0]
        joint += height + factors @ biases + (np.abs(factors) * error).sum(axis=1) + slack
        joint += 1e-14 * (np.abs(height) + np.abs(factors) @ np.abs(biases))
        centre = bands[self.action][1] if self.sign > 0 else -bands[self.action][0]
        return np.minimum(joint, centre + bands[self.action][3]), bands, slack

    def sums(
        self, layers: Any, middle: ndarray, radius: ndarray, weight: ndarray, bias: ndarray,
        size: ndarray,
    ) -> tuple[ndarray, ndarray, ndarray]:  # fmt: skip
        """Return bounds of what the policy computes as W x + b, and the rounding error in them."""
        terms = weight.shape[1]
        relative = (terms + 3) * self.unit / (1.0 - (terms + 3) * self.unit)
        relative += EPSILON * (8.0 * max(weight.shape) + 100.0)  # of the sums here
        flushed = 2.0 * terms + 2.0 + size.sum(axis=-1, keepdims=True) + np.abs(weight).sum(axis=1)
        sizes = size @ np.abs(weight).T + np.abs(bias)
        if not (sizes < self.largest).all():
            raise NotProven(f"{self.kind} may overflow in the network")
        error = relative * sizes + self.tiny * flushed
        most, least = (back(layers, middle, radius, side * weight) for side in (1.0, -1.0))
        return bias - least - error, bias + most + error, error

    def slopes(self, place: int, layers: int, numbers: ndarray) -> list[ndarray] | None:
        """Return the slopes of leaves' lower lines, nan for leaves without slopes of their own."""
        own = self.proof[f"{self.name}.own"]
        if not np.isin(numbers, own).any():
            return None
        rows = np.minimum(np.searchsorted(own, numbers), len(own) - 1)
        here = (own[rows] == numbers)[:, None]
        found = [self.proof[f"{self.name}.slopes.{place}.{layer}"] for layer in range(layers)]
        return [np.where(here, np.clip(one[rows] / 255.0, 0.0, 1.0), np.nan) for one in found]

    def inputs(self, get: Mapping[str, ndarray], low: ndarray, high: ndarray) -> Ends:
        """Return bounds of transformed and standardised observations."""
        low, high = (end[:, : self.observations] for end in (low - self.tiny, high + self.tiny))
        for column, one in enumerate(self.policy["observation_transforms"]):
            (a, below), (b, above) = (self.law(end[:, column], one) for end in (low, high))
            low[:, column], high[:, column] = a - below, b + above
        if "mean" in get:
            low, high = self.wider(low - get["mean"], high - get["mean"], 2.0)
            low, high = self.wider(low / get["scale"], high / get["scale"], 4.0)
        return low - self.tiny, high + self.tiny

    def wider(self, low: ndarray, high: ndarray, count: float) -> Ends:
        """Return an interval widened by a number of roundings."""
        if not ((low <= high) & (np.maximum(-low, high) < self.largest)).all():
            raise NotProven(f"{self.kind} may overflow")
        least, most = (count * (self.unit * np.abs(end) + self.tiny) for end in (low, high))
        return low - least, high + most

    def width_ends(self, settings: Mapping[str, Any]) -> tuple[float, float, float]:
        """Return the ends of the log half-width, and what is added to the network's."""
        offset, kind = float(settings["ratio"] or 0.0), np.dtype(self.kind).type
        first, last = (float(kind(end)) for end in settings["bounds"])
        if settings["ratio"] is not None:
            least, most = (float(kind(end)) for end in settings["ratio_bounds"])
            first, last = (min(max(end + offset, least), most) for end in (first, last))
        return (min(first, 0.0), min(last, 0.0), offset) if self.inside else (first, last, offset)

    def placed(self, end: ndarray, width: ndarray, base: ndarray) -> ndarray:
        """Return sign · action of an end in half-ranges; the allowed interval starts at `base`."""
        one, bottom = self.transform, np.clip(self.sign * base, self.low, self.high)
        number, log = (0.0, False) if one is None else (one["number"], one["kind"] == "log")
        ends = [self.law(np.asarray(x), one) for x in (self.low, self.high, bottom)]
        (low, high, start), errors = zip(*ends, strict=True)
        error = 64.0 * (self.unit * (abs(low) + abs(high)) + self.tiny) + sum(errors)
        error = error * np.maximum(1.0, np.abs(end))
        reached = self.sign * (low + high) / 2.0 + (high - low) / 2.0 * end
        first = self.sign * start + (high - low) * width * self.inside
        reached = np.maximum(reached, first) + error
        if one is None:
            return reached
        value = self.sign * reached
        size = np.exp(value) if log else np.abs(value / number)
        raw = size - number if log else value / number
        rounding = size * (self.function + 8.0 * self.unit) + 8.0 * self.unit * abs(number)
        return self.sign * raw + rounding + self.tiny

    def law(self, x: Any, one: Any) -> tuple[Any, Any]:
        """Return transformed numbers, and the error of what the policy computes."""
        number, log = (1.0, False) if one is None else (one["number"], one["kind"] == "log")
        found, error = x * number, 4.0 * (self.unit * np.abs(x * number) + self.tiny) * bool(one)
        defined = np.asarray(number >= self.tiny)
        if log:
            error = 2.0 * self.unit * (abs(number) + np.abs(x)) + self.tiny
            found, defined = np.log(x + number), x + number > 2.0 * error
            moved = error / (x + number - error)
            error = moved + (self.function + 4.0 * self.unit) * (np.abs(found) + moved)
        if not (defined & (np.abs(found) < self.largest)).all():
            raise NotProven(f"{self.kind} may not represent a transformed number")
        return found, error


_KINDS, _SIGNS = ("actions", "observations"), {"low": -1.0, "high": 1.0}


def back(
    layers: Any, middle: ndarray, radius: ndarray, rows: ndarray, slopes: Any = None
) -> ndarray:
    """Return upper bounds of rows · outputs of the last layer, over boxes of inputs."""
    total: Any = 0.0
    for step, (weight, bias, low, high, error) in enumerate(reversed(layers)):
        unstable, active = (low < 0.0) & (high > 0.0), (low >= 0.0) * 1.0
        span = np.where(unstable, high - low, 1.0)
        chord = np.where(unstable, np.minimum(high / span, 1.0), active)
        lift = np.maximum(-low * chord, (1.0 - chord) * high) + 8.0 * EPSILON * span
        steep = (high > -low * (1.0 - 1e-6)) * 1.0
        if slopes is not None:
            steep = np.where(np.isnan(slopes[step]), steep, slopes[step])
        lines = (chord, np.where(unstable, steep, active))
        parts = (np.maximum(rows, 0.0), np.minimum(rows, 0.0))
        total = total + (parts[0] @ np.where(unstable, lift, 0.0)[..., None])[..., 0]
        rows = np.zeros(())
        for part, line in zip(parts, lines, strict=True):
            total = total + (part @ (line * bias)[..., None])[..., 0]
            total = total + (np.abs(part) @ (line * error)[..., None])[..., 0]
            rows = rows + part @ (line[..., None] * weight)
    total = total + (rows @ middle[..., None])[..., 0]
    total = total + (np.abs(rows) @ radius[..., None])[..., 0]
    sizes = (np.abs(rows) @ (np.abs(middle) + radius)[..., None])[..., 0] + np.abs(total)
    return total + EPSILON * (4.0 * rows.shape[-1] + 16.0) * sizes


def tanh_line(low: ndarray, high: ndarray) -> Ends:
    """Return slope and height of a line above tanh between two ends."""

    def reaches(at: ndarray) -> ndarray:  # the tangent at a point is above tanh at the low end
        return np.tanh(at) + (low - at) * (1.0 - np.tanh(at) ** 2) >= np.tanh(low)

    a, b = np.zeros_like(low), np.maximum(high, 0.0)
    chord = (high <= 0.0) | ((low < 0.0) & ~reaches(b))
    for _ in range(60):
        good = reaches((a + b) / 2.0)
        a, b = np.where(good, a, (a + b) / 2.0), np.where(good, (a + b) / 2.0, b)
    touch = np.maximum(np.where(low >= 0.0, 0.0, b), (low + high) / 2.0)
    chord, short = chord | (touch >= high), high - low <= 1e-9
    slope = (np.tanh(high) - np.tanh(low)) / np.where(short, 1.0, high - low)
    slope = np.where(short, 0.0, np.where(chord, slope, 1.0 - np.tanh(touch) ** 2))
    height = np.maximum(np.tanh(low) - slope * low, np.tanh(high) - slope * high)
    tangent = np.maximum(height, np.tanh(touch) - slope * touch)
    height = np.where(short, np.tanh(high), np.where(chord, height, tangent))
    return slope, height + 1e-13 * (1.0 + slope * np.maximum(np.abs(low), np.abs(high)))


def width_line(low: ndarray, high: ndarray, first: float, last: float) -> Ends:
    """Return slope and height of a line above exp(clip(x, first, last)) between two ends."""
    bend = np.clip(last, low, high)
    bottom, top = np.exp(np.clip(low, first, last)), np.exp(np.clip(high, first, last))
    flat = (high - bend > bend - low) | (bend - low <= 1e-9)
    slope = np.where(flat, 0.0, top - bottom) / np.where(flat, 1.0, bend - low)
    # Convex, then constant: a line above the two ends and the bend is above all of it.
    height = np.maximum(np.maximum(bottom - slope * low, top - slope * bend), top - slope * high)
    return slope, height + 1e-13 * (1.0 + top + slope * np.maximum(np.abs(low), np.abs(high)))
