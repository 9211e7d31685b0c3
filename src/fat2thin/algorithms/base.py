"""What an algorithm is: a named bundle of pure functions, and what goes in and out of them."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Key

from fat2thin.columns import Transforms
from fat2thin.policies.networks import ScalarNetwork, TwinCritic
from fat2thin.policies.policy import Policy

Observations = Float[Array, "batch observation"]
Actions = Float[Array, "batch action"]
Values = Float[Array, " batch"]


class Batch(NamedTuple):
    """Logged steps, one a row. Actions are in half-ranges of the box: -1 is low, 1 is high."""

    observation: Observations
    action: Actions
    reward: Values
    next_observation: Observations
    continuation: Values  # 0 at a true end, 1 elsewhere, time limits included


@dataclasses.dataclass(frozen=True)
class Problem:
    """What an algorithm must know of its data: sizes, the action box, the discount factor."""

    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    discount: float
    observation_transforms: Transforms = ()
    """Transforms of raw observations, one per column; empty if there are none."""
    action_transforms: Transforms = ()
    """Transforms of raw actions. Algorithms learn in half-ranges of the transformed box."""
    value_range: Any = None
    """The least and the largest discounted return that the log's rewards allow, shape (2,), where
    `clip_targets` needs it. Each job has its own, so it is traced."""

    @property
    def action_size(self) -> int:
        """Number of action coordinates."""
        return len(self.action_low)


Metrics = dict[str, Float[Array, ""] | Values]
"""A number each, or one a row of the batch: then their mean is what is reported. Rows are cheap,
since the means of many updates are taken at once."""
State = Any  # a pytree of arrays; each algorithm has its own
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
    steps: Callable[[Any], int]  # how many, by the config


class Meaning(NamedTuple):
    """A metric in words. Lengths are in half-ranges of the action box."""

    what: str
    look_for: str


class SmallLogs(NamedTuple):
    """Settings for small logs, by how well the next observation can be predicted; None: not tried.

    They belong to one set of defaults, so a variant does not inherit them.
    """

    noisy: Mapping[str, Any] | None = None
    predictable: Mapping[str, Any] | None = None


class Algorithm(NamedTuple):
    """Pure functions: all state goes in and comes out.

    `config` is a frozen dataclass with one sentence per field. Fields that are real numbers may
    hold traced ones, so that a sweep over them is one program; those that shape the program say so
    (`shaping`). `learning_rate` is one of them: at zero, `update` must move no network.
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
    """The policy that only learns."""
    critics: Callable[[State, Problem, Any], TwinCritic] | None = None
    """The critics that learn, of actions in half-ranges of the box."""
    value: Callable[[State, Problem, Any], ScalarNetwork] | None = None
    """The state value that learns; its advantage is the smaller Q minus this value."""
    preparation: Preparation | None = None
    """What is learned before the first update."""
    metrics: Mapping[str, Meaning] = {}
    """What `update` and the preparation report under any settings. A name has one meaning in all
    algorithms: "critic_loss" is half the squared error of Q."""
    weighted_loss: str | None = None
    """The metric that is -weight * log density of logged actions; "weight_mean" is its weight."""
    small_logs: SmallLogs = SmallLogs()
    variant_of: str | None = None
    """The algorithm that this is with other defaults."""

    def __hash__(self) -> int:
        """Hash what computes; descriptions are dictionaries."""
        return hash((self.name, self.config, self.init, self.update, self.policy))
