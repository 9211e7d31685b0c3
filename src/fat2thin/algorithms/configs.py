"""Settings shared by several algorithms, and checks of their values with clear error messages."""

import dataclasses
import functools
import math
import numbers
import typing
from collections.abc import Callable
from typing import Any

from fat2thin.algorithms.base import shaping
from fat2thin.policies.families import BOX_RULES, covering_families, families, known_family

_CHOICES = "choices"
OUTSIDE_RULES = ("replace", "project")


def between(
    config: Any,
    name: str,
    low: float,
    high: float,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> None:
    """Check that a number lies in the interval; None passes if the type of the field allows it."""
    value = getattr(config, name)
    if _absent(config, name):
        return
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    above = number and (value >= low if closed_low else value > low)
    below = number and (value <= high if closed_high else value < high)
    if not (above and below):
        brackets = f"{'[' if closed_low else '('}{low}, {high}{']' if closed_high else ')'}"
        raise ValueError(f"{name} must lie in {brackets}, got {value!r}")


def positive(config: Any, *names: str, zero: bool = False) -> None:
    """Check that numbers are positive; with `zero`, zero passes too."""
    for name in names:
        between(config, name, 0.0, math.inf, closed_low=zero)


def choice(default: str | None, choices: tuple[str, ...] | Callable[..., tuple[str, ...]]) -> Any:
    """Declare a config field that is one of several words, or None if its type allows it.

    For the names of a registry, `choices` is a function `names(load_plugins)`.
    """
    return dataclasses.field(default=default, metadata={_CHOICES: choices})


def choices_of(config: Any, load_plugins: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the allowed words of each `choice` field of a config or its class."""
    found = {field.name: field.metadata.get(_CHOICES) for field in dataclasses.fields(config)}
    return {
        name: words(load_plugins) if callable(words) else words
        for name, words in found.items()
        if words
    }


def check_choices(config: Any) -> None:
    """Check that each `choice` field holds an allowed word, or None if its type allows it."""
    for name, known in choices_of(config, load_plugins=False).items():
        value = getattr(config, name)
        if not (value in known or _absent(config, name) or value in choices_of(config)[name]):
            listed = ", ".join(map(repr, choices_of(config)[name]))
            raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def whole(config: Any, name: str, least: int = 1) -> None:
    """Check for an integer of at least `least`; None passes if the type of the field allows it."""
    value = getattr(config, name)
    if _absent(config, name):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def layer_widths(config: Any, name: str) -> None:
    """Check for a non-empty list of positive layer widths."""
    value = getattr(config, name)
    listed = isinstance(value, tuple | list) and len(value) > 0
    if not listed or not all(type(width) is int and width > 0 for width in value):
        raise ValueError(f"{name} must list at least one positive layer width, got {value}")


def only_with(config: Any, names: tuple[str, ...], holds: bool, reason: str) -> None:
    """Check that settings without effect (`holds` is False) are at their defaults.

    `reason` completes the error message: why the setting has no effect.
    """
    for name in names:
        if not holds and getattr(config, name) != getattr(type(config), name):
            raise ValueError(f"{name}={getattr(config, name)!r} has no effect: {reason}.")


def _absent(config: Any, name: str) -> bool:
    """Return whether a setting is None and its type allows it."""
    kind: Any = type(config)
    return getattr(config, name) is None and name in _optional(kind)


@functools.cache
def _optional(config: Any) -> set[str]:
    """Return the fields that may be None; cached, as it takes longer than all other checks."""
    kinds = typing.get_type_hints(config)
    return {name for name, kind in kinds.items() if type(None) in typing.get_args(kind)}


@dataclasses.dataclass(frozen=True)
class LearningConfig:
    """Settings of networks and their optimiser."""

    learning_rate: float = 3e-4
    """Adam's learning rate for every network; usually 3e-5 to 1e-3."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of every network."""

    adam_beta_2: float = 0.999
    """Adam's decay rate of the squared gradients, between 0 and 1."""

    weight_decay: float = 0.0
    """AdamW's weight decay: each update shrinks every parameter by the fraction weight_decay *
    learning_rate. Small logs need some: 3 at a learning rate of 3e-4."""


@dataclasses.dataclass(frozen=True)
class CriticConfig(LearningConfig):
    """Settings of networks, including slow target critics."""

    polyak_rate: float = 0.005
    """Fraction of the way that target networks move towards the online ones at each update."""

    clip_targets: bool = False
    """Whether to clip the critics' targets to the returns that the log's rewards allow."""

    critic_count: int = 2
    """Number of critics; the smallest of their values counts."""

    layer_norm: bool = False
    """Whether the critics and the state value normalise the output of each hidden layer."""


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Settings of the policy. Lengths are in half-ranges of the action box."""

    policy: str = choice("squashed_gaussian", families)
    """Family of the policy: "squashed_gaussian", "clipped_gaussian", "q_gaussian", "student_t",
    "beta", "sparse_q_gaussian" or, if the loss needs no density, "deterministic"."""

    entropic_index: float | None = shaping(None)
    """Index of a "q_gaussian" (1 to below 3; None is 2, the Cauchy distribution) or of a
    "sparse_q_gaussian" (below 1; None is 0)."""

    degrees_of_freedom: float | None = shaping(None)
    """Degrees of freedom of a "student_t" policy; None is 1."""

    box: str | None = choice(None, BOX_RULES)
    """How the band of a "sparse_q_gaussian" is fitted to the action box: "inside" (shifted until it
    lies in the box) or "clip" (actions are clipped); None is "inside"."""

    outside_support: str | None = choice(None, OUTSIDE_RULES)
    """How regression treats logged actions outside the band of a "sparse_q_gaussian", where their
    log density is -inf: "replace" each by the nearest of 100 samples of the policy (random action
    replacement), or "project" it to the nearest point of the middle 90 % of the band. Required for
    regression with a "sparse_q_gaussian"."""

    scale_low: float = shaping(1e-3)
    """Smallest scale of the policy (half-width of a "sparse_q_gaussian"), in half-ranges of the
    action box (1 is half its width)."""

    scale_high: float = shaping(10.0)
    """Largest scale of the policy, in half-ranges of the action box; a sparse band is never wider
    than the box."""

    state_dependent_scale: bool = True
    """Whether the scale depends on the state; False learns one number per action coordinate."""

    actor_decay_steps: int | None = None
    """Number of updates over which the policy's learning rate falls to zero along a cosine; None
    keeps it constant."""


@dataclasses.dataclass(frozen=True)
class ActorConfig(PolicyConfig, LearningConfig):
    """Settings of networks and policy."""


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(ActorConfig, CriticConfig):
    """Settings of networks, including slow target critics, and policy."""


@dataclasses.dataclass(frozen=True)
class BehaviourConfig(ActorCriticConfig):
    """Settings of networks, policy and a model of the behaviour that produced the log."""

    behaviour: str = choice("squashed_gaussian", covering_families)
    """Family of the model of the logged behaviour. It must have a density everywhere in the action
    box, so neither "sparse_q_gaussian" nor "deterministic"."""


def check_learning(config: LearningConfig) -> None:
    """Check the settings of networks, and the words of all `choice` fields."""
    check_choices(config)
    between(config, "learning_rate", 0.0, 1.0)
    between(config, "adam_beta_2", 0.0, 1.0)
    positive(config, "weight_decay", zero=True)
    layer_widths(config, "hidden")
    if isinstance(config, CriticConfig):
        between(config, "polyak_rate", 0.0, 1.0, closed_high=True)
        whole(config, "critic_count")
        reason = "published=True has the authors' critics"
        names = ("clip_targets", "critic_count", "layer_norm")
        only_with(config, names, not getattr(config, "published", False), reason)


def check_policy(config: PolicyConfig, needs_density: str | None = None) -> None:
    """Check the settings of the policy's family.

    `needs_density` explains why the algorithm needs a density; None allows "deterministic".
    """
    family = known_family(config.policy)
    if needs_density and family.reach == "point":
        raise ValueError(f"policy={config.policy!r} cannot be used here: {needs_density}.")
    sparse = family.reach == "band"
    for name, reason in {
        "entropic_index": "only 'q_gaussian' and 'sparse_q_gaussian' policies have an index",
        "degrees_of_freedom": "only a 'student_t' policy has degrees of freedom",
        "box": "only a 'sparse_q_gaussian' policy has a band",
    }.items():
        only_with(config, (name,), name in family.settings, reason)
    if config.outside_support is not None and not sparse:
        raise ValueError(
            f"outside_support={config.outside_support!r} has no effect: only a 'sparse_q_gaussian' "
            "policy has a band. Set it to None."
        )
    only_with(
        config, ("scale_low", "scale_high", "state_dependent_scale"),
        family.reach != "point", "a deterministic policy has no scale",
    )  # fmt: skip
    bounds = (-math.inf, 1.0) if sparse else (1.0, 3.0)
    between(config, "entropic_index", *bounds, closed_low=not sparse)
    between(config, "scale_low", 0.0, min(config.scale_high, 1.0) if sparse else config.scale_high)
    positive(config, "degrees_of_freedom", "scale_high")
    whole(config, "actor_decay_steps")


def check_regression(config: ActorConfig) -> None:
    """Check the settings of an algorithm whose policy learns by regression on logged actions."""
    check_learning(config)
    check_policy(
        config,
        "the loss needs the log density of logged actions, and a deterministic policy has none; "
        "use the algorithm td3_bc, rebrac or spot instead",
    )  # fmt: skip
    if known_family(config.policy).reach == "band" and config.outside_support is None:
        raise ValueError(
            f"policy={config.policy!r} needs outside_support='replace' or 'project': logged "
            "actions outside the band have log density -inf. (Dropping them does not work: the "
            "likelihood of the others grows without bound as the band shrinks.)"
        )
