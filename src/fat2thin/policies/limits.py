"""Limits: the interval of allowed actions in a state, and the states without an action.

The allowed interval of an action is the action box, cut by every limit that holds in the state. A
policy is placed in it. Ends are rounded inward, so that no action breaks a limit by rounding. The
language is that of `limit_language`; names and units are those of the log.
"""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fat2thin.columns import Column
from fat2thin.distributions.base import expand_to_rank
from fat2thin.policies.limit_language import (
    Comparison,
    Condition,
    Limit,
    LimitError,
    Linear,
    Names,
    parse_limit,
)
from fat2thin.terminal_text import did_you_mean, printable

TABLE, FALLBACK = "limits", "fallback"
LARGEST_FILE = 1_000_000
_ROUNDING = 1e-6  # share of the action box by which an action may pass a rounded end
MOST_LIMITS = 100
"""Maximum number of limits: each is compiled into the policy."""


class LimitFileError(ValueError):
    """Limits that cannot be used; the message names the file, the line and the place."""


class Interval(NamedTuple):
    """The allowed actions of each state, and the limits that are the reason."""

    low: Float[Array, "*rows action"]
    """Lowest allowed action, rounded up."""
    high: Float[Array, "*rows action"]
    """Highest allowed action, rounded down."""
    binds: Bool[Array, "*rows limits"]
    """Limits that set an end of the interval, and those that forbid acting here."""
    conflict: Bool[Array, "*rows"]
    """States in which no action satisfies all limits: the interval of an action is empty."""
    forbidden: Bool[Array, "*rows"]
    """States in which the policy must not act."""
    conflicting: Bool[Array, "*rows limits"]
    """Limits that set an end of an empty interval."""

    @property
    def acts(self) -> Bool[Array, "*rows"]:
        """States in which there is an allowed action."""
        return ~(self.conflict | self.forbidden)


@dataclasses.dataclass(frozen=True)
class LimitRules:
    """Limits as they are written: texts by name, not yet bound to the columns of a log."""

    rules: tuple[tuple[str, str], ...]
    """Name and text of each limit."""
    fallback: tuple[tuple[str, float], ...] = ()
    """The action in states without an allowed one, by the names of the actions; may be empty."""
    places: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """Where each limit was read, for messages."""
    columns: tuple[int, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """The column of the file at which each text starts; 0 where it is not known."""
    fallback_place: str = dataclasses.field(default="limits", compare=False, repr=False)
    """Where the fallback was read."""

    @classmethod
    def read(cls, given: Any) -> "LimitRules":
        """Return the limits of a TOML file, or of a mapping like its table `[limits]`."""
        if isinstance(given, LimitRules):
            return given
        if isinstance(given, Limits):
            return given.rules
        if isinstance(given, str | Path):
            return cls.from_toml(given)
        if isinstance(given, Mapping):
            return cls._of_table(given, "limits")
        raise LimitFileError(
            "limits must be the path of a TOML file or a mapping from names to texts, "
            f"not a {type(given).__name__}"
        )

    @classmethod
    def from_toml(cls, path: str | Path) -> "LimitRules":
        """Return the limits of a TOML file with a table `[limits]`."""
        shown = printable(path)
        try:
            if not Path(path).is_file():
                raise LimitFileError(f"{shown}: no such file with limits")
            raw = Path(path).read_bytes()[: LARGEST_FILE + 1]
            if len(raw) > LARGEST_FILE:
                raise LimitFileError(
                    f"{shown}: a file with limits has at most {LARGEST_FILE} bytes"
                )
            text = raw.decode("utf-8-sig")
            table = tomllib.loads(text)
        except OSError as error:
            raise LimitFileError(f"{shown} cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise LimitFileError(f"{shown} is not a TOML file: {printable(error)}") from error
        if not isinstance(table.get(TABLE), Mapping):
            hint = f"{did_you_mean(TABLE, table)}; add a table [{TABLE}] with lines such as "
            raise LimitFileError(f'{shown} has no table [{TABLE}]{hint}cap = "dose <= 0.8"')
        return cls._of_table(table[TABLE], shown, text.splitlines())

    @classmethod
    def from_json(cls, values: Any) -> "LimitRules":
        """Return the limits that `to_json` described; raise a ValueError for anything else."""
        fields = {"rules", FALLBACK}
        if not isinstance(values, Mapping) or not {*values} <= fields or "rules" not in values:
            raise ValueError("limits must have rules and fallback")
        return cls._of_table({**values["rules"], FALLBACK: values.get(FALLBACK, {})}, "limits")

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {"rules": dict(self.rules), FALLBACK: dict(self.fallback)}

    @classmethod
    def _of_table(
        cls, table: Mapping[str, Any], shown: str, lines: Sequence[str] = ()
    ) -> "LimitRules":
        rules: list[tuple[str, str]] = []
        places, columns, fallback_place = [], [], shown
        for name, text in table.items():
            line, column = _find(lines, name, text)
            place = f"{shown}, line {line}" if line else shown
            if name == FALLBACK:
                fallback, fallback_place = _fallback(text, place), place
                continue
            if not isinstance(text, str):
                found = type(text).__name__
                raise LimitFileError(
                    f"{place}: limit {printable(name)!r} must be a text such as "
                    f'"dose <= 0.8 when severity > 2", not a {found}'
                )
            rules.append((str(name), text))
            places.append(place)
            columns.append(column)
        if not 0 < len(rules) <= MOST_LIMITS:
            raise LimitFileError(
                f"{shown}: there must be 1 to {MOST_LIMITS} limits, found {len(rules)}"
            )
        made = fallback if FALLBACK in table else ()
        return cls(tuple(rules), made, tuple(places), tuple(columns), fallback_place)

    def bind(
        self, observation: Iterable[Column | str], action: Iterable[Column | str],
        low: Sequence[float], high: Sequence[float],
    ) -> "Limits":  # fmt: skip
        """Return the limits on these columns and this action box; errors name file and place."""
        names = Names(_names(observation), _names(action))
        parsed = []
        for number, (name, text) in enumerate(self.rules):
            try:
                parsed.append(parse_limit(name, text, names))
            except LimitError as error:
                place = self.places[number] if self.places else "limits"
                column = self.columns[number] if self.columns else 0
                where = (
                    f"column {column + error.place}" if column else f"character {error.place + 1}"
                )
                raise LimitFileError(
                    f"{place}, {where}: limit {printable(name)!r} ({printable(text)!r:.200}): "
                    f"{printable(error)}"
                ) from None
        box = tuple(map(float, low)), tuple(map(float, high))
        return Limits(self, tuple(parsed), names, *box, self._fallback_of(names, *box))

    def on(self, dataset: Any) -> "Limits":
        """Return the limits on the columns and the action box of a data set."""
        return self.bind(
            dataset.observation_columns, dataset.action_columns,
            dataset.action_low, dataset.action_high,
        )  # fmt: skip

    def _fallback_of(
        self, names: Names, low: tuple[float, ...], high: tuple[float, ...]
    ) -> tuple[float, ...] | None:
        if not self.fallback:
            return None
        given = dict(self.fallback)
        for name in given:
            if name not in names.action:
                hint = did_you_mean(name, names.action)
                listed = ", ".join(names.action)
                raise LimitFileError(
                    f"{self.fallback_place}: the fallback names {printable(name)!r}{hint}; the "
                    f"actions are {listed}"
                )
        if missing := [name for name in names.action if name not in given]:
            raise LimitFileError(
                f"{self.fallback_place}: the fallback must name every action: {missing[0]!r} is "
                "missing"
            )
        made = tuple(given[name] for name in names.action)
        for name, value, least, most in zip(names.action, made, low, high, strict=True):
            if not least <= value <= most:
                raise LimitFileError(
                    f"{self.fallback_place}: the fallback {name} = {value:g} leaves the action box "
                    f"{least:g} to {most:g}"
                )
        return made


def _find(lines: Sequence[str], name: str, text: Any) -> tuple[int, int]:
    """Return line and column (from 1) of a value in a TOML file; 0 where they are not found."""
    inside = False
    for number, line in enumerate(lines, start=1):
        bare = line.strip()
        if bare.startswith("["):
            inside = bare.replace(" ", "").startswith((f"[{TABLE}]", f"[{TABLE}.{name}]"))
        key = bare.partition("=")[0].strip().strip("\"'")
        if inside and (key == name or bare.startswith(f"[{TABLE}.{name}]")):
            column = line.find(text, line.find("=")) if isinstance(text, str) else -1
            return number, column + 1
    return 0, 0


def _fallback(given: Any, place: str) -> tuple[tuple[str, float], ...]:
    if not isinstance(given, Mapping):
        raise LimitFileError(f"{place}: {FALLBACK} must be a table such as {{ dose = 0.0 }}")
    for name, value in given.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise LimitFileError(f"{place}: {FALLBACK}.{printable(name)} must be a number")
    return tuple((str(name), float(value)) for name, value in given.items())


def _names(columns: Iterable[Column | str]) -> tuple[str, ...]:
    return tuple(one if isinstance(one, str) else one.name for one in columns)


class Limits(eqx.Module):
    """Limits bound to the columns and the action box of a log. All of it is static.

    Examples:
        >>> rules = {"cap": "dose <= 0.8 when severity > 2", "rate": "abs(dose - last_dose) <= 0.1"}
        >>> limits = Limits.parse(rules, ["severity"], ["dose"], [0.0], [1.0])
        >>> found = limits.interval(jnp.array([3.0]), last_action=jnp.array([0.5]))
        >>> print(f"{found.low[0]:.2f} {found.high[0]:.2f}", found.binds.tolist())
        0.40 0.60 [False, True]
    """

    rules: LimitRules = eqx.field(static=True)
    """The limits as they are written."""
    parsed: tuple[Limit, ...] = eqx.field(static=True)
    """The limits as they were read."""
    columns: Names = eqx.field(static=True)
    """Names of the observation's and the action's columns."""
    box_low: tuple[float, ...] = eqx.field(static=True)
    box_high: tuple[float, ...] = eqx.field(static=True)
    fallback: tuple[float, ...] | None = eqx.field(static=True)
    """The action in states without an allowed one, or None."""

    @classmethod
    def parse(
        cls, rules: Any, observation: Iterable[Column | str], action: Iterable[Column | str],
        low: Sequence[float], high: Sequence[float],
    ) -> "Limits":  # fmt: skip
        """Return the limits of a mapping from names to texts, or of a TOML file.

        `observation` and `action` are the columns, `low` and `high` the action box.
        """
        return LimitRules.read(rules).bind(observation, action, low, high)

    @classmethod
    def from_toml(cls, path: str | Path, dataset: Any) -> "Limits":
        """Return the limits of a TOML file, on the columns and the action box of a data set."""
        return LimitRules.from_toml(path).on(dataset)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the limits, in the order of `Interval.binds`."""
        return tuple(limit.name for limit in self.parsed)

    @property
    def needs_last_action(self) -> bool:
        """Whether a limit depends on a last action that is not an observation column."""
        size = len(self.columns.observation)
        return any(place >= size for limit in self.parsed for place in _variables(limit))

    @property
    def always_act(self) -> bool:
        """Whether every state provably has an allowed action: all ends are constants that agree."""
        if any(limit.forbids_acting for limit in self.parsed):
            return False
        low, high = [*self.box_low], [*self.box_high]
        for bound in (bound for limit in self.parsed for bound in limit.bounds):
            if bound.end.terms:
                return False
            ends, worse = (high, min) if bound.upper else (low, max)
            ends[bound.action] = worse(ends[bound.action], bound.end.constant)
        return all(map(float.__lt__, low, high))

    def interval(
        self, observation: Float[Array, "*rows observation"],
        last_action: Float[Array, "*rows action"] | None = None,
    ) -> Interval:  # fmt: skip
        """Return the allowed actions of raw observations, in raw units; pure JAX.

        `last_action` is nan where there is none, as at the first step of an episode; None is nan
        everywhere. A limit that depends on it does not hold there.
        """
        state, holds = self._state_and_holds(observation, last_action)
        size = len(self.columns.action)
        ends = [self._ends(action, holds, state) for action in range(size)]
        low, high, empty, sets = (jnp.stack(part, axis=-1) for part in zip(*ends, strict=True))
        # `sets` has the shape (limits, *rows, action).
        none = jnp.zeros(state.shape[1:], bool)
        each = [
            one if limit.forbids_acting else none
            for one, limit in zip(holds, self.parsed, strict=True)
        ]
        forbidden = jnp.stack(each, axis=-1)
        # Not a reduction of the stack: XLA would take seconds to fold it for many states.
        anywhere = functools.reduce(jnp.logical_or, each)
        set_end = jnp.moveaxis(jnp.any(sets, axis=-1), 0, -1)
        in_conflict = jnp.moveaxis(jnp.any(sets & empty[None], axis=-1), 0, -1)
        return Interval(
            low, high, set_end | forbidden, jnp.any(empty, axis=-1), anywhere, in_conflict,
        )  # fmt: skip

    def excludes(
        self, low: Float[Array, "*rows action"], high: Float[Array, "*rows action"],
        observation: Float[Array, "*rows observation"],
        last_action: Float[Array, "*rows action"] | None = None,
    ) -> Bool[Array, "*rows"]:  # fmt: skip
        """Return in which states some action from `low` to `high` is not allowed.

        Ends of intervals are rounded inward, so an action at the limit itself counts as allowed.
        """
        found, rank = self.interval(observation, last_action), jnp.ndim(observation)
        size = np.subtract(self.box_high, self.box_low)
        margin = expand_to_rank(jnp.asarray(_ROUNDING * size, found.low.dtype), rank)
        outside = (low < found.low - margin) | (high > found.high + margin)
        return jnp.any(outside, axis=-1) | ~found.acts

    def ends(
        self, observation: Float[Array, "*rows observation"],
        last_action: Float[Array, "*rows action"] | None = None,
    ) -> tuple[Float[Array, "*rows action"], Float[Array, "*rows action"]]:  # fmt: skip
        """Return the ends that a law is placed between, in raw units.

        In a state without an allowed action both are the fallback, or nan if there is none.
        """
        found = self.interval(observation, last_action)
        shape = found.low.shape
        instead = self.fallback or (float("nan"),) * shape[-1]
        only = jnp.broadcast_to(
            expand_to_rank(jnp.asarray(instead, found.low.dtype), len(shape)), shape
        )
        acts = found.acts[..., None]
        return jnp.where(acts, found.low, only), jnp.where(acts, found.high, only)

    @property
    def single(self) -> tuple["Limits", ...]:
        """Each limit by itself."""
        return tuple(dataclasses.replace(self, parsed=(limit,)) for limit in self.parsed)

    def applies(
        self, observation: Float[Array, "*rows observation"],
        last_action: Float[Array, "*rows action"] | None = None,
    ) -> Bool[Array, "*rows limits"]:  # fmt: skip
        """Return where each limit applies: its condition holds, and no last action is missing."""
        return jnp.stack(self._state_and_holds(observation, last_action)[1], axis=-1)

    def _state_and_holds(
        self, observation: Array, last_action: Array | None
    ) -> tuple[Array, list[Array]]:
        """Return all variables of limits, the leading axis, and where each limit applies."""
        observation = jnp.asarray(observation)
        rows, size = observation.shape[:-1], len(self.columns.action)
        if last_action is None:
            last_action = jnp.full((*rows, size), jnp.nan, observation.dtype)
        last = jnp.asarray(last_action, observation.dtype)
        last = jnp.broadcast_to(expand_to_rank(last, observation.ndim), (*rows, size))
        state = jnp.moveaxis(jnp.concatenate([observation, last], axis=-1), -1, 0)
        count = len(self.columns.observation)
        return state, [_holds(limit, state, count) for limit in self.parsed]

    def _ends(
        self, action: int, holds: Sequence[Array], state: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Return low and high end of one action, where it has none, and the limits that set one."""
        dtype, shape = state.dtype, state.shape[1:]
        inner: dict[bool, list[Array]] = {}
        outer: dict[bool, list[Array]] = {}
        for upper, ends in ((False, self.box_low), (True, self.box_high)):
            box = jnp.full(shape, jnp.asarray(ends[action], dtype))
            inner[upper], outer[upper] = [box], [box]
        owners: dict[bool, list[int]] = {False: [-1], True: [-1]}
        fixed: dict[bool, list[bool]] = {False: [True], True: [True]}
        for number, limit in enumerate(self.parsed):
            for bound in limit.bounds:
                if bound.action != action:
                    continue
                value, margin = _evaluate(bound.end, state)
                inward, outward = _rounded(bound.end, value, margin, bound.upper)
                if bound.strict:
                    inward = outward = _beyond(inward, bound.upper)
                # An end that overflowed is unknown: it allows nothing.
                unknown = jnp.isnan(inward)
                inward = jnp.where(unknown, _infinity(not bound.upper, dtype), inward)
                outward = jnp.where(unknown, inward, outward)
                free = _infinity(bound.upper, dtype)
                inner[bound.upper].append(jnp.where(holds[number], inward, free))
                outer[bound.upper].append(jnp.where(holds[number], outward, free))
                owners[bound.upper].append(number)
                fixed[bound.upper].append(not bound.end.terms)
        low, high = jnp.stack(inner[False]).max(axis=0), jnp.stack(inner[True]).min(axis=0)
        lowest, highest = jnp.stack(outer[False]).max(axis=0), jnp.stack(outer[True]).min(axis=0)
        # Which limit sets each end, and whether the end is a number: in rounded ends that cross,
        # only an equation and two numbers still mean one action. All else could break a limit.
        setters = [
            (jnp.asarray(owners[upper])[place], jnp.asarray(fixed[upper])[place])
            for upper, place in (
                (False, jnp.stack(inner[False]).argmax(axis=0)),
                (True, jnp.stack(inner[True]).argmin(axis=0)),
            )
        ]
        (of_low, low_fixed), (of_high, high_fixed) = setters
        meet = (of_low == of_high) | (low_fixed & high_fixed)
        empty = (lowest > highest) | ((low > high) & ~meet)
        # Ends that agree up to rounding leave one action, even if no number lies between them.
        middle = lowest + (highest - lowest) / 2.0
        point = jnp.clip(middle, inner[False][0], inner[True][0])
        single = (low > high) & ~empty
        sets = [jnp.zeros(shape, bool)] * len(self.parsed)
        for upper, end in ((False, low), (True, high)):
            for owner, one in zip(owners[upper][1:], inner[upper][1:], strict=True):
                inside = one < inner[True][0] if upper else one > inner[False][0]
                sets[owner] = sets[owner] | ((one == end) & inside)
        low, high = jnp.where(single, point, low), jnp.where(single, point, high)
        return low, high, empty, jnp.stack(sets)

    def reasons(self, found: Interval) -> tuple[str, ...]:
        """Return why a single state has no allowed action: the names and texts of the limits."""
        which = np.asarray(found.conflicting) | (
            np.asarray(found.binds) & np.array([limit.forbids_acting for limit in self.parsed])
        )
        return tuple(
            f"{limit.name}: {limit.text}"
            for limit, counts in zip(self.parsed, which, strict=True)
            if counts
        )


def _infinity(positive: bool, dtype: Any) -> Array:
    return jnp.asarray(jnp.inf if positive else -jnp.inf, dtype)


def _beyond(end: Array, upper: bool) -> Array:
    """Return the next number inside an end; at 0 a normal one, because others are rounded to 0."""
    tiny = jnp.asarray(-jnp.finfo(end.dtype).tiny if upper else jnp.finfo(end.dtype).tiny)
    return jnp.where(end == 0.0, tiny, jnp.nextafter(end, _infinity(not upper, end.dtype)))


def _variables(limit: Limit) -> set[int]:
    """Return the places of all variables that a limit depends on."""
    found = {place for bound in limit.bounds for place, _ in bound.end.terms}
    left = [limit.condition]
    while left:
        part = left.pop()
        if isinstance(part, Condition):
            left.extend(part.parts)
        elif part is not None:
            found |= {place for place, _ in part.difference.terms}
    return found


def _evaluate(linear: Linear, state: Array) -> tuple[Array, Array]:
    """Return a sum in each state, and a bound of its rounding error."""
    dtype = state.dtype
    total = jnp.full(state.shape[1:], jnp.asarray(linear.constant, dtype))
    size, zero = jnp.abs(total), total == 0.0
    for place, factor in linear.terms:
        product = jnp.asarray(factor, dtype) * state[place]
        total, size = total + product, size + jnp.abs(product)
        zero = zero & (state[place] == 0.0)
    exact = not linear.constant and [abs(factor) for _, factor in linear.terms] == [1.0]
    # Each of n terms is rounded three times (factor, column, product), and each of n sums once. A
    # product too small for the type becomes 0; the sum of products with 0 is exact.
    share = 0.0 if exact else (len(linear.terms) + 3) * float(jnp.finfo(dtype).eps)
    tiny = 0.0 if exact else len(linear.terms) * float(jnp.finfo(dtype).tiny)
    return total, size * share + jnp.where(zero, 0.0, tiny).astype(dtype)


def _rounded(linear: Linear, value: Array, margin: Array, upper: bool) -> tuple[Array, Array]:
    """Return an end rounded into the interval, and out of it."""
    if linear.terms:
        sign = -1.0 if upper else 1.0
        return value + sign * margin, value - sign * margin
    below, above = _neighbours(linear.constant, value.dtype)
    ends = (below, above) if upper else (above, below)
    inward, outward = (jnp.full_like(value, end) for end in ends)
    return inward, outward


def _neighbours(number: float, dtype: Any) -> tuple[Any, Any]:
    """Return the largest number of a type at or below a float64, and the smallest at or above."""
    near, tiny = _nearest(number, dtype), np.finfo(dtype).tiny
    kind = type(near)
    if 0.0 < abs(number) < tiny:  # programs round such numbers to 0
        return (kind(0.0), tiny) if number > 0.0 else (-tiny, kind(0.0))
    below = near if float(near) <= number else np.nextafter(near, kind(-np.inf))
    above = near if float(near) >= number else np.nextafter(near, kind(np.inf))
    return below, above


def _nearest(number: float, dtype: Any) -> Any:
    """Return a float64 in a type; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.dtype(dtype).type(number)


def _holds(limit: Limit, state: Array, observations: int) -> Array:
    """Return where a limit holds: its condition is true, and no last action it needs is missing."""
    shape = state.shape[1:]
    holds = jnp.ones(shape, bool) if limit.condition is None else _true(limit.condition, state)
    ends = (place for bound in limit.bounds for place, _ in bound.end.terms)
    for place in {place for place in ends if place >= observations}:
        holds = holds & ~jnp.isnan(state[place])
    return holds


def _true(condition: Comparison | Condition, state: Array) -> Array:
    """Return where a condition is true; where rounding of a sum leaves it open, it is true."""
    if isinstance(condition, Condition):
        parts = jnp.stack([_true(part, state) for part in condition.parts])
        return jnp.all(parts, axis=0) if condition.every else jnp.any(parts, axis=0)
    difference, strict = condition.difference, condition.strict
    if len(difference.terms) == 1:
        # One column against a number, which is rounded as the column is: a column that is given as
        # 0.7 is at least 0.7, and not below it.
        ((place, factor),) = difference.terms
        number = jnp.asarray(_nearest(-difference.constant / factor, state.dtype))
        low, high = (number, state[place]) if factor > 0.0 else (state[place], number)
        return high > low if strict else high >= low
    value, margin = _evaluate(difference, state)
    return value + margin > 0.0 if strict else value + margin >= 0.0
