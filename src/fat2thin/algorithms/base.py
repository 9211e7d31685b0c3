"""The interface of an algorithm: a named bundle of pure functions, with its inputs and outputs."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.columns import Transforms
from fat2thin.policies.limits import Limits
from fat2thin.policies.networks import Critics, ScalarNetwork
from fat2thin.policies.policy import Policy

Observations = Float[Array, "batch observation"]
Actions = Float[Array, "batch action"]
Values = Float[Array, " batch"]


class RowLimits(NamedTuple):
    """What limits allow in logged steps. Actions are in half-ranges of the box.

    Where limits leave no action, both ends are the fallback.
    """

    low: Actions
    """Lowest allowed action in each state."""
    high: Actions
    """Highest allowed action in each state."""
    next_low: Actions
    """Lowest allowed action in the next state, after the logged action."""
    next_high: Actions
    """Highest allowed action in the next state, after the logged action."""
    allows_logged: Values
    """1 where the logged action is allowed, else 0."""


class Batch(NamedTuple):
    """Logged steps, one per row."""

    observation: Observations
    action: Actions
    """Actions in half-ranges of the box: -1 is its low end, 1 its high end."""
    reward: Values
    next_observation: Observations
    continuation: Values
    """0 where the episode truly ends, else 1, also at time limits."""
    next_action: Actions | None = None
    """The logged action of the next step, in half-ranges of the box, if the algorithm needs it
    (`Algorithm.next_action`)."""
    next_logged: Values | None = None
    """1 where `next_action` is known, 0 at the last row of an episode."""
    limits: RowLimits | None = None
    """What limits allow, if the policy learns within limits."""

    @property
    def allowed(self) -> tuple[Actions, Actions] | None:
        """Lowest and highest allowed action in each state, for `Policy.within`; None without."""
        return None if self.limits is None else (self.limits.low, self.limits.high)

    @property
    def next_allowed(self) -> tuple[Actions, Actions] | None:
        """Lowest and highest allowed action in each next state; None without limits."""
        return None if self.limits is None else (self.limits.next_low, self.limits.next_high)

    def where_allowed(self, values: Values, otherwise: float = 0.0) -> Values:
        """Return values of the rows; `otherwise` where the logged action breaks a limit."""
        if self.limits is None:
            return values
        return jnp.where(self.limits.allows_logged > 0.0, values, otherwise)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What an algorithm needs to know about its data: sizes, action box and discount factor."""

    observation_size: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    discount: float
    observation_transforms: Transforms = ()
    """Transforms of raw observations, one per column; empty if there are none."""
    action_transforms: Transforms = ()
    """Transforms of raw actions. Algorithms learn in half-ranges of the transformed box."""
    value_range: Any = None
    """The least and the largest value that the log's rewards allow, shape (2,), where
    `clip_targets` needs it. Each job has its own, so it is traced."""
    value_level: Any = None
    """The constant that Q and V of the algorithm are lower by than discounted returns, where values
    are centred. Each job has its own, so it is traced."""
    limits: Limits | None = None
    """Limits that policies learn and act within, in raw units. Updates find what they allow in
    `Batch.limits`."""

    @property
    def action_size(self) -> int:
        """Number of action coordinates."""
        return len(self.action_low)


Metrics = dict[str, Float[Array, ""] | Values]
"""Scalars, or one value per row of the batch, of which the mean is reported. Rows are cheap: the
means of many updates are computed together."""
VALUE_METRICS = ("q_mean", "v_mean")
"""Metrics that are values. Algorithms report them less the level of values, if there is one."""
State = Any
"""A pytree of arrays; its type depends on the algorithm."""
_SHAPES = "shapes the program"


def shaping(default: Any) -> Any:
    """Declare a config field whose value changes the compiled program, so it cannot be traced."""
    return dataclasses.field(default=default, metadata={_SHAPES: True})


def shapes_program(field: dataclasses.Field) -> bool:
    """Return whether runs must agree on this config field to share a compiled program."""
    return _SHAPES in field.metadata


def with_numbers(config: Any, numbers: Mapping[str, Any]) -> Any:
    """Return a copy of the config with other numbers, which may be traced.

    Types are not checked, because a traced number is not a float.
    """
    made = copy.copy(config)
    for name, number in numbers.items():
        object.__setattr__(made, name, number)
    return made


def from_level(values: Any, problem: Problem) -> Any:
    """Return values of Q or V as discounted returns: the level of centred values is added."""
    return values if problem.value_level is None else values + problem.value_level


def with_level(metrics: Metrics, problem: Problem) -> Metrics:
    """Return the metrics of an update, with `VALUE_METRICS` as discounted returns."""
    values = {name: from_level(metrics[name], problem) for name in VALUE_METRICS if name in metrics}
    return {**metrics, **values}


class Preparation(NamedTuple):
    """Updates before the first policy update, for algorithms that fit a model of the log first."""

    update: Callable[[State, Batch, Key[Array, ""], Problem, Any], tuple[State, Metrics]]
    """One update, with the arguments and results of `Algorithm.update`."""
    steps: Callable[[Any], int]
    """Returns the number of updates for a config."""


class Meaning(NamedTuple):
    """The description of a metric. Lengths are in half-ranges of the action box."""

    what: str
    """What the metric measures."""
    look_for: str
    """How to read it: the expected trend and warning signs."""


class Automatic(NamedTuple):
    """Settings that `settings_from="auto"` takes, by the kind of log (`settings.automatic`).

    They were tested with one set of defaults, so variants do not inherit them.
    """

    noisy: Mapping[str, Any] | None = None
    """For small logs whose next observation is hard to predict. None means that nothing was tested:
    the algorithm then keeps its defaults on every log."""
    predictable: Mapping[str, Any] = {}
    """For small logs whose next observation can be predicted well."""
    large: Mapping[str, Any] = {}
    """For large logs."""
    centre_values: bool = False
    """Whether critics start at the level of the log's values."""


class Algorithm(NamedTuple):
    """An offline RL algorithm: pure functions that take the state and return the new one."""

    name: str
    """Name used on the command line and in the registry."""
    summary: str
    """One line for lists of algorithms."""
    config: type
    """Frozen dataclass of settings, with one sentence per field. Real-valued fields may be traced,
    so that a sweep over them is one program, unless declared with `shaping`."""
    check: Callable[[Any], None]
    """Raises a ValueError that names the field if a setting of the config is out of range."""
    init: Callable[[Key[Array, ""], Problem, Any], State]
    """Returns the initial state."""
    update: Callable[[State, Batch, Key[Array, ""], Problem, Any], tuple[State, Metrics]]
    """Returns the state after one update, and its metrics. With a `learning_rate` of zero it must
    not change any network."""
    policy: Callable[[State, Problem, Any], Policy]
    """Returns the policy that acts, in the environment's units."""
    proposal: Callable[[State, Problem, Any], Policy] | None = None
    """Returns the policy that is trained but does not act, where there is one."""
    critics: Callable[[State, Problem, Any], Critics] | None = None
    """Returns the online critics, which take actions in half-ranges of the box."""
    value: Callable[[State, Problem, Any], ScalarNetwork] | None = None
    """Returns the online state value; the advantage is the smaller Q minus this value."""
    preparation: Preparation | None = None
    """Updates that run before the first call of `update`."""
    metrics: Mapping[str, Meaning] = {}
    """Descriptions of all metrics that `update` and the preparation can report. A name means the
    same in all algorithms: "critic_loss" is half the squared error of Q (XQL: its Huber loss)."""
    weighted_loss: str | None = None
    """The metric that is -weight * log density of logged actions; "weight_mean" is its weight."""
    automatic: Automatic = Automatic()
    """Tested settings by the kind of log."""
    next_action: bool = False
    """Whether updates need the logged action of the next step (`Batch.next_action`)."""
    learns_limits: bool = False
    """Whether updates obey `Batch.limits`: values are those of the limited policy, and no logged
    action that breaks a limit is imitated. Without it, training with limits is refused."""
    variant_of: str | None = None
    """Name of the algorithm that this one copies with other defaults."""

    def __hash__(self) -> int:
        """Leave out the descriptions, which are dictionaries and have no hash."""
        return hash((self.name, self.config, self.init, self.update, self.policy))
