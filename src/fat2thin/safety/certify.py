"""Certificates: proven bounds on every action that a policy can take over a box of states."""

import dataclasses
import decimal
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fat2thin.policies.plain import NotPlainError, PlainPolicy, plain_policy
from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Run
from fat2thin.safety.arithmetic import ARITHMETICS, Arithmetic
from fat2thin.safety.box import Box, BoxError, read_box
from fat2thin.safety.ends import BANDS, BandEnd
from fat2thin.safety.propagation import NotCertified
from fat2thin.safety.search import Search
from fat2thin.tables import Table
from fat2thin.terminal_text import did_you_mean, printable

SIDES = {"low": -1, "high": 1}
LEAST_RANGE = 1e-3
_ROUNDS = 3  # ends that close early leave their time to the others
PROVEN, REFUTED, OPEN = "proven", "refuted", "not decided"


class Found(NamedTuple):
    """An action that the policy can take, and where."""

    value: float
    """The action, as the deployed policy computes it."""
    state: dict[str, float]
    """The state by column; `last_` columns are absent at the first step of an episode."""


@dataclasses.dataclass(frozen=True)
class EndProof:
    """What is known about one end of the actions."""

    action: str
    side: str
    """"low" or "high"."""
    bound: float
    """Proven: no action lies beyond. Infinite if no state of the box has an action."""
    found: Found | None
    """The most extreme action that was found; None if there is none."""
    boxes: int
    """Boxes that were bounded."""
    search: Search = dataclasses.field(repr=False, compare=False)


class Claim(NamedTuple):
    """A statement about every action, such as "dose is at most 0.8"."""

    action: str
    side: str
    """"high" for "at most", "low" for "at least"."""
    value: float
    result: str
    """`PROVEN`, `REFUTED` or `OPEN`."""
    counterexample: Found | None
    """An action beyond the value, if there is one."""

    def __str__(self) -> str:
        words = "at most" if self.side == "high" else "at least"
        return f"every {self.action} is {words} {self.value:g}: {self.result}"


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Proven bounds on every action that a policy can take over a box of states."""

    actions: tuple[str, ...]
    """Names of the actions."""
    low: ndarray
    """By action: no action is lower, shape (actions,)."""
    high: ndarray
    """By action: no action is higher."""
    worst: dict[str, tuple[Found | None, Found | None]]
    """By action: the lowest and the highest action found, with their states."""
    claims: tuple[Claim, ...]
    box: Box
    arithmetic: str
    """The arithmetic of the deployed policy for which this holds: "float32" or "float64"."""
    seconds: float
    """Time that the proof took."""
    may_not_act: bool
    """Whether limits may leave no action in some state of the box. There the policy takes none, or
    the fallback, which is then within the bounds."""
    plain: PlainPolicy = dataclasses.field(repr=False, compare=False)
    ends: tuple[EndProof, ...] = dataclasses.field(repr=False, compare=False)

    @property
    def gaps(self) -> dict[str, float]:
        """By action: the largest distance from a bound to the worst action found, as a share of the
        range of actions found, which counts as at least `LEAST_RANGE` of the action box; nan if no
        action was found."""
        return {name: self._gap(place) for place, name in enumerate(self.actions)}

    @property
    def gap(self) -> float:
        """The largest of `gaps`."""
        return max(self.gaps.values())

    def _gap(self, place: int) -> float:
        low, high = self.worst[self.actions[place]]
        if low is None or high is None:
            return math.nan
        distance = max(self.high[place] - high.value, low.value - self.low[place])
        box = float(self.plain.high[place]) - float(self.plain.low[place])
        return float(distance / max(high.value - low.value, LEAST_RANGE * box))

    def table(self) -> Table:
        """Return one row per action: bounds, worst actions found, and the gap."""
        rows = []
        for name in self.actions:
            rows.append(
                {
                    "action": name, "never_below": self.shown(name, "low"),
                    "lowest_found": self.shown_worst(name, "low"),
                    "highest_found": self.shown_worst(name, "high"),
                    "never_above": self.shown(name, "high"),
                    "gap_percent": 100.0 * self.gaps[name],
                }
            )  # fmt: skip
        return Table("bounds on every action over the box", tuple(rows), self._notes())

    def shown(self, action: str, side: str) -> str:
        """Return a bound as text, rounded outward."""
        place = self.actions.index(action)
        return self._rounded(place, (self.low if side == "low" else self.high)[place], side)

    def shown_worst(self, action: str, side: str) -> str:
        """Return the worst action found as text."""
        found = self.worst[action][side == "high"]
        value = math.nan if found is None else found.value
        return self._rounded(self.actions.index(action), value)

    def _rounded(self, place: int, value: float, side: str = "") -> str:
        """Return a number as text, with three or more digits of the action box."""
        width = float(self.plain.high[place]) - float(self.plain.low[place])
        digits = max(3 - math.floor(math.log10(width)), 0)
        if not math.isfinite(value):
            return "-"
        rounding = {"low": decimal.ROUND_FLOOR, "high": decimal.ROUND_CEILING}
        last = decimal.Decimal(1).scaleb(-digits)
        exact = decimal.Decimal(repr(float(value)))
        return f"{exact.quantize(last, rounding.get(side, decimal.ROUND_HALF_EVEN)):f}"

    def _notes(self) -> tuple[str, ...]:
        kind = self.plain.family.kind
        notes = [f"for {self.arithmetic} arithmetic, rounding included; {self.seconds:.1f} s"]
        if kind not in BANDS:
            notes.append(
                f"a {kind} policy has no band: every allowed action is possible, so the bounds are "
                "those of the box and the limits"
            )
        if self.may_not_act:
            instead = "takes the fallback" if self.plain.fallback else "does not act"
            notes.append(f"limits may leave states without an action; there the policy {instead}")
        return tuple(notes)

    def __str__(self) -> str:
        return "\n".join([str(self.table()), *map(str, self.claims)])


def certify(
    policy: Policy | Run,
    box: Any,
    *,
    below: float | int | Mapping[str, Any] | None = None,
    above: float | int | Mapping[str, Any] | None = None,
    gap: float | int = 0.05,
    seconds: float | int = 60.0,
    ranges: Sequence[tuple[float, float]] | None = None,
    arithmetic: str = "float32",
    progress: Callable[[str, float], None] | None = None,
) -> Certificate:
    """Return proven bounds on every action that a policy can take over a box of states.

    `box` is the path of a TOML file, a mapping from columns to a number or a pair, or a `Box`.
    Other columns are free within `ranges`, which a run knows. The search stops when the gap is
    reached or after `seconds`; the bounds hold in both cases. `below` and `above` are claims, that
    no action is above or below a number: a number for a policy of one action, else a mapping.
    `progress` gets a text and the share of the time that has passed.
    """
    began = time.monotonic()
    for name, number in (("gap", gap), ("seconds", seconds)):
        if not 0.0 <= number < math.inf:
            raise ValueError(f"{name} must be a number of at least 0, not {number!r}")
    if isinstance(policy, Run):
        ranges = policy.columns.ranges.get("observation") if ranges is None else ranges
        policy = policy.policy()
    plain, of = checked_plain(policy), _arithmetic(arithmetic)
    states = read_box(box, plain, ranges)
    claims = _claims(plain, below, above)
    searches = _searches(plain, states, of)
    deployed = _Deployed(policy, states)
    close = _Gap(searches, gap)

    def shown(key: tuple[str, str]) -> None:
        if progress is not None:
            boxes = f"{searches[key].count:,} boxes"
            progress(f"{key[0]}, {key[1]} end: {boxes}", (time.monotonic() - began) / seconds)

    pending = [*searches]
    for _ in range(_ROUNDS):
        for number, key in enumerate(pending):
            left = max(began + seconds - time.monotonic(), 0.0)
            deadline = time.monotonic() + left / (len(pending) - number)
            searches[key].run(close.of(key), deadline, functools.partial(shown, key))
        pending = [key for key in pending if not close.reached(key)]
    results = {
        claim: _decide(
            claim, searches[claim[:2]], deployed, began + seconds,
            functools.partial(shown, claim[:2]),
        )
        for claim in claims
    }  # fmt: skip
    ends = [_end(*key, search, deployed) for key, search in searches.items()]
    made = {(end.action, end.side): end for end in ends}
    names = tuple(column.name for column in plain.actions)
    low, high = (np.asarray([made[name, side].bound for name in names]) for side in SIDES)
    worst = {name: (made[name, "low"].found, made[name, "high"].found) for name in names}
    return Certificate(
        names, low, high, worst, tuple(results[claim] for claim in claims), states, arithmetic,
        time.monotonic() - began, any(search.may_not_act for search in searches.values()), plain,
        tuple(ends),
    )  # fmt: skip


def checked_plain(policy: Policy) -> PlainPolicy:
    """Return the plain description of a policy; refuse what nothing can be proven about."""
    try:
        plain = plain_policy(policy)
    except NotPlainError as error:
        raise NotCertified(f"not certified: {error}") from error
    if plain.family.kind in BANDS:
        for place, member in enumerate(plain.members):
            for name, array in member.arrays().items():
                if not np.isfinite(array).all():
                    raise NotCertified(f"not certified: {name} of member {place} is not finite")
            if any(layer.norm is not None for layer in member.trunk):
                raise NotCertified("not certified: a policy network with layer norm has no bounds")
            if member.scale is not None and not (np.asarray(member.scale) > 1e-30).all():
                raise NotCertified("not certified: a standard deviation of an observation is 0")
    return plain


def _arithmetic(name: str) -> Arithmetic:
    if name not in ARITHMETICS:
        raise ValueError(
            f"certificates hold for {' or '.join(ARITHMETICS)}, not for {name!r}"
            f"{did_you_mean(name, ARITHMETICS)}"
        )
    return ARITHMETICS[name]


def _searches(plain: PlainPolicy, states: Box, of: Arithmetic) -> dict[tuple[str, str], Search]:
    low, high = of.cast(np.asarray(states.low), np.asarray(states.high))
    for name, *ends in zip(states.names, low, high, strict=True):
        if not np.isfinite(ends).all():
            raise BoxError(f"column {printable(name)!r} reaches beyond the numbers of {of.name}")
    return {
        (column.name, side): Search(BandEnd(plain, place, sign, of), low, high, states.steps)
        for place, column in enumerate(plain.actions)
        for side, sign in SIDES.items()
    }


def _claims(plain: PlainPolicy, below: Any, above: Any) -> list[tuple[str, str, float]]:
    names = [column.name for column in plain.actions]
    found = []
    for side, given in (("high", below), ("low", above)):
        if given is None:
            continue
        if not isinstance(given, Mapping):
            if len(names) > 1:
                raise ValueError(
                    f"this policy has {len(names)} actions: name one in the claim, such as "
                    f"{names[0]}=0.8"
                )
            given = {names[0]: given}
        for name, value in given.items():
            if name not in names:
                hint = did_you_mean(name, names)
                raise ValueError(f"no action {name!r}{hint}; there are {', '.join(names)}")
            if not math.isfinite(value):
                raise ValueError(f"a claim needs a finite number, not {value!r}")
            found.append((name, side, float(value)))
    return found


class _Gap:
    """When a bound is close enough to the worst action found."""

    def __init__(self, searches: Mapping[tuple[str, str], Search], gap: float) -> None:
        self.searches, self.gap = searches, gap

    def of(self, key: tuple[str, str]) -> Callable[[float, float], bool]:
        """Return the condition of one end, on its bound and its worst value."""
        other = self.searches[key[0], "low" if key[1] == "high" else "high"]
        low, high = other.end.box

        def close(bound: float, worst: float) -> bool:
            least = LEAST_RANGE * (high - low)
            return bound - worst <= self.gap * max(worst + other.worst.value, least)

        return close

    def reached(self, key: tuple[str, str]) -> bool:
        """Whether an end is close enough."""
        search = self.searches[key]
        return self.of(key)(search.bound, search.worst.value)


class _Deployed:
    """What the policy itself does, in float32 on this machine."""

    def __init__(self, policy: Policy, states: Box) -> None:
        self.policy, self.states = policy, states
        self.count = len(states.names)
        self.actions = [column.name for column in plain_policy(policy).actions]
        if policy.needs_last_action:
            self.count -= len(self.actions)

    def found(self, action: str, side: str, search: Search) -> Found | None:
        """Return the worst action found, at its state."""
        state, missing = search.worst.state, search.worst.missing
        if state is None:
            return None
        inside = np.clip(state, self.states.low, self.states.high)
        values = dict(zip(self.states.names, inside.tolist(), strict=True))
        given = {}
        if self.policy.needs_last_action:
            given["last"] = None if missing else inside[self.count :]
            values = dict([*values.items()][: self.count]) if missing else values
        ends = self.policy.support(inside[: self.count], **given)
        place = self.actions.index(action)
        box = float(self.policy.low[place]), float(self.policy.high[place])
        value = float(np.clip(float(ends[side == "high"][place]), *box))
        if search.end.arithmetic.name != "float32":
            # Policies act in float32; in other arithmetic the search's own float64 is the value.
            value = SIDES[side] * search.worst.value
        return None if math.isnan(value) else Found(value, values)


def _end(action: str, side: str, search: Search, deployed: _Deployed) -> EndProof:
    sign, bound = SIDES[side], search.bound
    found = deployed.found(action, side, search)
    if found is not None and not sign * found.value <= bound:
        raise NotCertified(
            f"not certified: {action} is {found.value!r} at {found.state}, beyond the bound "
            f"{sign * bound!r}. This is an error of fat2thin: please report it"
        )
    return EndProof(action, side, sign * bound, found, search.count, search)


def _decide(
    claim: tuple[str, str, float], search: Search, deployed: _Deployed, deadline: float,
    shown: Callable[[], None],
) -> Claim:  # fmt: skip
    """Return whether a claim holds, after as much splitting as time allows."""
    action, side, value = claim
    sign, cast = SIDES[side], float(search.end.arithmetic.kind(value))
    # The number as the policy's arithmetic rounds it, where that is the weaker claim.
    limit = max(sign * value, sign * cast)
    search.run(lambda bound, worst: bound <= limit or worst > limit, deadline, shown)
    found = deployed.found(action, side, search)
    if found is not None and sign * found.value > limit:
        return Claim(action, side, value, REFUTED, found)
    return Claim(action, side, value, PROVEN if search.bound <= limit else OPEN, None)
