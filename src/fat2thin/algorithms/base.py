"""What an algorithm is: a named bundle of pure functions, and what goes in and out of them."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Key

from fat2thin.policies.policy import Policy


class Batch(NamedTuple):
    """Logged steps, one a row. Actions are in half-ranges of the box: -1 is low, 1 is high."""

    observation: Float[Array, "batch observation"]
    action: Float[Array, "batch action"]
    reward: Float[Array, " batch"]
    next_observation: Float[Array, "batch observation"]
    continuation: Float[Array, " batch"]
    """0 at a true end, 1 elsewhere, time limits included."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What an algorithm must know of its data: sizes, the action box, the discount factor."""

    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    discount: float

    @property
    def action_size(self) -> int:
        """Number of action coordinates."""
        return len(self.action_low)


Metrics = dict[str, Float[Array, ""] | Float[Array, " batch"]]
"""A number each, or one a row of the batch: then their mean is what is reported. Rows are cheap,
since the means of many updates are taken at once."""
State = Any
"""A pytree of arrays; each algorithm has its own."""


_SHAPES = "shapes the program"


def shaping(default: Any) -> Any:
    """A field of a config whose number shapes the program: it cannot be traced."""
    return dataclasses.field(default=default, metadata={_SHAPES: True})


def shapes_program(field: dataclasses.Field) -> bool:
    """Whether runs that share a program must agree on this field of a config."""
    return _SHAPES in field.metadata


def with_numbers(config: Any, numbers: Mapping[str, Any]) -> Any:
    """The config with other numbers, which may be traced ones: they are set without being checked.

    A field's type says what a user may give, and a traced number is no float.
    """
    made = copy.copy(config)
    for name, number in numbers.items():
        object.__setattr__(made, name, number)
    return made


class Preparation(NamedTuple):
    """Updates that come before the first, for algorithms that learn a model of the log first."""

    update: Callable[[State, Batch, Key[Array, ""], Problem, Any], tuple[State, Metrics]]
    steps: Callable[[Any], int]
    """How many, by the config."""


class Algorithm(NamedTuple):
    """Pure functions: all state goes in and comes out.

    `config` is a frozen dataclass with a sentence a field. Fields that are real numbers may hold
    traced ones, so that a sweep over them is one program; those that shape the program say so
    (`shaping`).
    """

    name: str
    summary: str
    config: type
    check: Callable[[Any], None]
    """Raises a ValueError that names the field for a config out of range."""
    init: Callable[[Key[Array, ""], Problem, Any], State]
    update: Callable[[State, Batch, Key[Array, ""], Problem, Any], tuple[State, Metrics]]
    policy: Callable[[State, Problem, Any], Policy]
    """The policy that acts."""
    proposal: Callable[[State, Problem, Any], Policy] | None = None
    """The policy that only learns, where there is one."""
    preparation: Preparation | None = None
    """What is learned first, where there is something."""
    variant_of: str | None = None
    """The algorithm that this is, with other defaults, where it is a variant."""


def with_published(corrected: Algorithm, published: Algorithm) -> Algorithm:
    """One algorithm whose setting `published` chooses between the two.

    They share name, settings and check, and have the same kinds of policy.
    """

    def choose(part: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            chosen = published if arguments[-1].published else corrected
            return getattr(chosen, part)(*arguments)

        return call

    return corrected._replace(
        init=choose("init"),
        update=choose("update"),
        policy=choose("policy"),
        proposal=choose("proposal") if corrected.proposal else None,
    )
