"""The language of limits: comparisons, sums and products with constants, read without `eval`.

    limit      = comparison [ "when" condition ] | "no action when" condition
    condition  = comparison, joined by "and", "or", "not" and brackets
    comparison = sum ("<=" | "<" | ">=" | ">" | "==") sum [ comparator sum ]
    sum        = products with constants, added and subtracted; abs(sum) stands alone on its side

A name is a column of the log; one with a space is written between backticks. `last_dose` is the
last action called dose, unless an observation column has this name. A limit bounds one action; its
condition depends on the state alone.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from fat2thin.terminal_text import did_you_mean

LONGEST_LIMIT = 2000
"""Maximum number of characters of a limit."""
MOST_BRACKETS = 50
"""Maximum depth of brackets: the parser calls itself for each."""
LARGEST = 1e38
"""Largest number of a limit: policies compute in float32."""
LAST = "last_"
"""Before the name of an action: its value at the previous step."""
NO_ACTION = "no action"

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|`(?P<quoted>[^`]+)`"
    r"|(?P<word>[^\W\d]\w*)|(?P<sign><=|>=|==|<|>|[-+*/()]))"
)
_COMPARATORS = ("<=", "<", ">=", ">", "==")
_KEYWORDS = ("when", "and", "or", "not", "abs")


class LimitError(ValueError):
    """A limit that cannot be read; `place` is the number of the character, from 0."""

    def __init__(self, complaint: str, place: int) -> None:
        super().__init__(complaint)
        self.place = place


class Names(NamedTuple):
    """What a limit can name."""

    observation: tuple[str, ...]
    action: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Linear:
    """constant + Σ coefficient · variable; the variables are observations, then last actions."""

    constant: float
    terms: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`difference` ≥ 0, or > 0 if it is strict."""

    difference: Linear
    strict: bool


@dataclasses.dataclass(frozen=True)
class Condition:
    """Several conditions of which all, or any, must hold."""

    every: bool
    parts: tuple["Comparison | Condition", ...]


@dataclasses.dataclass(frozen=True)
class Bound:
    """One end of the interval of one action."""

    action: int
    upper: bool
    end: Linear
    strict: bool


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit as it was read. Without bounds the policy must not act where the condition holds."""

    name: str
    text: str
    bounds: tuple[Bound, ...]
    condition: Comparison | Condition | None

    @property
    def forbids_acting(self) -> bool:
        """Whether the policy must not act at all where the condition holds."""
        return not self.bounds


def parse_limit(name: str, text: str, names: Names) -> Limit:
    """Return the limit that a text says; raise a `LimitError` with the place of the first fault.

    Examples:
        >>> names = Names(("severity",), ("dose",))
        >>> parse_limit("cap", "dose <= 0.8 when severity > 2", names).bounds[0].end.constant
        0.8
    """
    if len(text) > LONGEST_LIMIT:
        raise LimitError(f"a limit has at most {LONGEST_LIMIT} characters", 0)
    return _Parser(text, names).limit(name)


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


class _Sum(NamedTuple):
    """A sum while it is read: also of actions, and perhaps inside abs()."""

    constant: float
    terms: dict[int, float]
    actions: dict[int, float]
    absolute: bool
    place: int

    def times(self, factor: float) -> "_Sum":
        return self._replace(
            constant=self.constant * factor,
            terms={key: value * factor for key, value in self.terms.items()},
            actions={key: value * factor for key, value in self.actions.items()},
        )

    def plus(self, other: "_Sum") -> "_Sum":
        def added(one: dict[int, float], two: dict[int, float]) -> dict[int, float]:
            found = {key: one.get(key, 0.0) + two.get(key, 0.0) for key in [*one, *two]}
            return {key: value for key, value in found.items() if value}

        return self._replace(
            constant=self.constant + other.constant,
            terms=added(self.terms, other.terms),
            actions=added(self.actions, other.actions),
        )

    @property
    def is_constant(self) -> bool:
        return not self.terms and not self.actions

    def linear(self) -> Linear:
        return Linear(self.constant, tuple(sorted(self.terms.items())))


def _tokens(text: str) -> list[_Token]:
    found, place = [], 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            raise LimitError(f"{text[start]!r} is not part of the language of limits", start)
        kind = match.lastgroup
        found.append(_Token(kind, match[kind], match.start(kind)))
        place = match.end()
    return [*found, _Token("end", "", len(text))]


class _Parser:
    def __init__(self, text: str, names: Names) -> None:
        self.text, self.names = text, names
        self.tokens, self.position, self.depth = _tokens(text), 0, 0
        last = [LAST + name for name in names.action]
        self.variables = {name: place for place, name in enumerate([*names.observation, *last])}
        # An observation column of this name comes first: it is what the table has.
        self.variables |= {name: place for place, name in enumerate(names.observation)}
        self.actions = {name: place for place, name in enumerate(names.action)}

    @property
    def next(self) -> _Token:
        return self.tokens[self.position]

    def take(self, *texts: str) -> _Token | None:
        """Return the next token if it is one of these signs or keywords, and move past it."""
        token = self.next
        if token.kind in ("sign", "word") and token.text in texts:
            self.position += 1
            return token
        return None

    def expect(self, *texts: str) -> _Token:
        found = self.take(*texts)
        if found is None:
            got = f"{self.next.text!r}" if self.next.text else "the end"
            raise LimitError(
                f"expected {' or '.join(map(repr, texts))}, found {got}", self.next.place
            )
        return found

    def limit(self, name: str) -> Limit:
        words = [token.text for token in self.tokens[:2]]
        if words == NO_ACTION.split() and "no" not in {*self.variables, *self.actions}:
            self.position = 2
            self.expect("when")
            bounds: tuple[Bound, ...] = ()
            condition: Comparison | Condition | None = self.condition()
        else:
            bounds = self.bounds()
            condition = self.condition() if self.take("when") else None
        if self.next.kind != "end":
            raise LimitError(f"nothing is expected here, found {self.next.text!r}", self.next.place)
        return Limit(name, self.text, bounds, condition)

    # Comparisons

    def chain(self) -> list[tuple[_Sum, _Token, _Sum]]:
        left = self.sum()
        found: list[tuple[_Sum, _Token, _Sum]] = []
        while not found or self.next.text in _COMPARATORS:
            sign = self.expect(*_COMPARATORS)
            right = self.sum()
            found.append((left, sign, right))
            left = right
        return found

    def bounds(self) -> tuple[Bound, ...]:
        start = self.next.place
        found = [bound for pair in self.chain() for bound in self._bounds(*pair)]
        if len({bound.action for bound in found}) > 1:
            raise self._coupled(start)
        return tuple(found)

    def _bounds(self, left: _Sum, sign: _Token, right: _Sum) -> list[Bound]:
        if right.absolute or (right.actions and not left.actions):
            left, right = right, left
            sign = sign._replace(text=_MIRRORED[sign.text])
        if right.absolute:
            raise LimitError("only one side of a comparison can have abs()", right.place)
        if left.absolute:
            if sign.text not in ("<=", "<") or right.actions:
                raise LimitError(
                    "a limit with abs() must have the form abs(...) <= ..., since the allowed "
                    "actions would not be one interval otherwise",
                    sign.place,
                )
            inner = left._replace(absolute=False)
            return [
                *self._bounds(inner, sign, right),
                *self._bounds(inner.times(-1.0), sign, right),
            ]
        both = left.plus(right.times(-1.0))
        if len({*left.actions, *right.actions}) > 1:
            raise self._coupled(left.place)
        if not both.actions:
            listed = ", ".join(self.names.action)
            raise LimitError(
                f"a limit must bound an action ({listed}); a condition comes after 'when', and "
                f"'{NO_ACTION} when ...' names states without an action",
                left.place,
            )
        ((action, factor),) = both.actions.items()
        end = both._replace(actions={}).times(-1.0 / factor).linear()
        _check_size(end, left.place)
        # factor · action + rest ≤ 0 is action ≤ −rest / factor for a positive factor.
        sides = {"<=": [True], "<": [True], ">=": [False], ">": [False], "==": [True, False]}
        strict = sign.text in ("<", ">")
        return [Bound(action, up == (factor > 0), end, strict) for up in sides[sign.text]]

    def _coupled(self, place: int) -> LimitError:
        return LimitError(
            "a limit that couples several actions is refused: every action needs an interval of "
            "its own, so that the density stays exact. Give each action a limit of its own",
            place,
        )

    # Conditions

    def condition(self) -> Comparison | Condition:
        parts = [self.conjunction()]
        while self.take("or"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Condition(False, tuple(parts))

    def conjunction(self) -> Comparison | Condition:
        parts = [self.negation()]
        while self.take("and"):
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else Condition(True, tuple(parts))

    def negation(self) -> Comparison | Condition:
        if token := self.take("not"):
            self._deeper(token)
            found = _negated(self.negation())
            self.depth -= 1
            return found
        if self.next.text == "(" and self._brackets_hold_condition():
            self._deeper(self.expect("("))
            found = self.condition()
            self.expect(")")
            self.depth -= 1
            return found
        parts = [part for pair in self.chain() for part in self._compared(*pair)]
        return parts[0] if len(parts) == 1 else Condition(True, tuple(parts))

    def _brackets_hold_condition(self) -> bool:
        """Whether the bracket that opens here holds a comparison, and not a part of a sum."""
        depth = 0
        for token in self.tokens[self.position :]:
            depth += (token.text == "(") - (token.text == ")")
            if token.text in _COMPARATORS and depth:
                return True
            if not depth:
                return False
        return False

    def _compared(self, left: _Sum, sign: _Token, right: _Sum) -> list[Comparison | Condition]:
        for side in (left, right):
            if side.actions:
                raise LimitError(
                    "a condition depends on the state alone, not on the action that is chosen",
                    side.place,
                )
        if right.absolute:
            left, right = right, left
            sign = sign._replace(text=_MIRRORED[sign.text])
        if right.absolute:
            raise LimitError("only one side of a comparison can have abs()", right.place)
        inner = left._replace(absolute=False)
        both = inner.plus(right.times(-1.0))
        if both.is_constant and not left.absolute:
            raise LimitError("a condition must name a column", left.place)
        strict = sign.text in ("<", ">")
        if sign.text in (">", ">="):
            found = [_comparison(both, strict)]
            if not left.absolute:
                return [*found]
            other = inner.times(-1.0).plus(right.times(-1.0))
            return [Condition(False, (*found, _comparison(other, strict)))]
        found = [_comparison(both.times(-1.0), strict)]
        if left.absolute:
            found.append(_comparison(inner.plus(right), strict))
        if sign.text == "==":
            found.append(_comparison(both, False))
            if left.absolute:
                raise LimitError("write a condition on abs() with < or >", sign.place)
        return [*found]

    # Sums

    def sum(self) -> _Sum:
        found = self.product()
        while sign := self.take("+", "-"):
            other = self.product()
            if found.absolute or other.absolute:
                raise LimitError(
                    "abs(...) must stand alone on its side of a comparison", sign.place
                )
            found = found.plus(other.times(-1.0 if sign.text == "-" else 1.0))
        return found

    def product(self) -> _Sum:
        found = self.factor()
        while sign := self.take("*", "/"):
            other = self.factor()
            if sign.text == "/" and not other.is_constant:
                raise LimitError("only a constant can be divided by", other.place)
            if sign.text == "/" and other.constant == 0.0:
                raise LimitError("the divisor is 0", other.place)
            # A product has the same value in both orders, a quotient has not.
            if sign.text == "*" and found.is_constant and not found.absolute:
                found, other = other, found._replace(place=other.place)
            if not other.is_constant or other.absolute:
                raise LimitError(
                    "two columns cannot be multiplied, only a column and a constant", sign.place
                )
            if found.absolute and (other.constant <= 0.0):
                raise LimitError(
                    "abs(...) can only be multiplied by a positive constant", sign.place
                )
            found = found.times(1.0 / other.constant if sign.text == "/" else other.constant)
        return found

    def factor(self) -> _Sum:
        token = self.next
        if token.text in ("-", "+") and token.kind == "sign":
            self.position += 1
            self._deeper(token)
            found = self.factor()
            self.depth -= 1
            if found.absolute:
                raise LimitError(
                    "abs(...) must stand alone on its side of a comparison", token.place
                )
            return found.times(-1.0 if token.text == "-" else 1.0)
        if self.take("("):
            self._deeper(token)
            found = self.sum()
            self.expect(")")
            self.depth -= 1
            return found
        if (
            token.kind == "word"
            and token.text == "abs"
            and self.tokens[self.position + 1].text == "("
        ):
            self.position += 1
            self._deeper(self.expect("("))
            found = self.sum()
            self.expect(")")
            self.depth -= 1
            return found._replace(absolute=True, place=token.place)
        self.position += 1
        empty = _Sum(0.0, {}, {}, False, token.place)
        if token.kind == "number":
            number = float(token.text)
            if number > LARGEST:
                raise LimitError(f"{token.text} is too large", token.place)
            return empty._replace(constant=number)
        if token.kind == "quoted" or (token.kind == "word" and token.text not in _KEYWORDS):
            return self._name(token, empty)
        got = f"{token.text!r}" if token.text else "the end"
        raise LimitError(f"expected a number or a column, found {got}", token.place)

    def _name(self, token: _Token, empty: _Sum) -> _Sum:
        if token.text in self.actions and token.text in self.names.observation:
            raise LimitError(
                f"{token.text!r} is both an observation and an action: rename one of them",
                token.place,
            )
        if token.text in self.actions:
            return empty._replace(actions={self.actions[token.text]: 1.0})
        if token.text in self.variables:
            return empty._replace(terms={self.variables[token.text]: 1.0})
        known = [*self.actions, *self.variables]
        raise LimitError(
            f"no column is called {token.text!r}{did_you_mean(token.text, known)}; "
            f"{_listed(self.names)}",
            token.place,
        )

    def _deeper(self, token: _Token) -> None:
        self.depth += 1
        if self.depth > MOST_BRACKETS:
            raise LimitError(f"more than {MOST_BRACKETS} brackets inside each other", token.place)


_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "=="}
_SHOWN = 8


def _listed(names: Names) -> str:
    def some(kind: Sequence[str]) -> str:
        more = f" and {len(kind) - _SHOWN} more" if len(kind) > _SHOWN else ""
        return ", ".join(itertools.islice(kind, _SHOWN)) + more

    return f"actions are {some(names.action)}, observations {some(names.observation)}"


def _comparison(both: _Sum, strict: bool) -> Comparison:
    difference = both.linear()
    _check_size(difference, both.place)
    return Comparison(difference, strict)


def _check_size(found: Linear, place: int) -> None:
    numbers = [found.constant, *(factor for _, factor in found.terms)]
    if not all(abs(number) <= LARGEST for number in numbers):
        raise LimitError("a number is too large here", place)


def _negated(condition: Comparison | Condition) -> Comparison | Condition:
    """Return the opposite. A comparison with a missing last action, and its opposite, are false."""
    if isinstance(condition, Condition):
        return Condition(not condition.every, tuple(map(_negated, condition.parts)))
    difference = condition.difference
    mirrored = Linear(-difference.constant, tuple((key, -one) for key, one in difference.terms))
    return Comparison(mirrored, not condition.strict)
