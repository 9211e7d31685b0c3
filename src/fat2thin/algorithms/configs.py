"""Settings that algorithms share, what a setting may be, and the sentence that refuses the rest."""

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
    """Refuse a number outside the interval; None passes where the field allows it."""
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
    """Refuse numbers that are not positive; with `zero`, zero passes too."""
    for name in names:
        between(config, name, 0.0, math.inf, closed_low=zero)


def choice(default: str | None, choices: tuple[str, ...] | Callable[..., tuple[str, ...]]) -> Any:
    """A field of a config that is one of several words, or None where its type allows it.

    Words of a registry are a function `words(load_plugins)`.
    """
    return dataclasses.field(default=default, metadata={_CHOICES: choices})


def choices_of(config: Any, load_plugins: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the words that each `choice` of a config, or of its class, may be."""
    found = {field.name: field.metadata.get(_CHOICES) for field in dataclasses.fields(config)}
    return {
        name: words(load_plugins) if callable(words) else words
        for name, words in found.items()
        if words
    }


def check_choices(config: Any) -> None:
    """Refuse a word that is no choice; None passes where the field allows it."""
    for name, known in choices_of(config, load_plugins=False).items():
        value = getattr(config, name)
        if not (value in known or _absent(config, name) or value in choices_of(config)[name]):
            listed = ", ".join(map(repr, choices_of(config)[name]))
            raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def whole(config: Any, name: str, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`; None passes as above."""
    value = getattr(config, name)
    if _absent(config, name):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def layer_widths(config: Any, name: str) -> None:
    """Refuse what is no list of positive layer widths."""
    value = getattr(config, name)
    listed = isinstance(value, tuple | list) and len(value) > 0
    if not listed or not all(type(width) is int and width > 0 for width in value):
        raise ValueError(f"{name} must be positive layer widths, got {value}")


def only_with(config: Any, names: tuple[str, ...], holds: bool, reason: str) -> None:
    """Refuse settings that were given although they have no effect; `reason` says why."""
    for name in names:
        if not holds and getattr(config, name) != getattr(type(config), name):
            raise ValueError(f"{name}={getattr(config, name)!r} has no effect: {reason}.")


def _absent(config: Any, name: str) -> bool:
    """Whether a setting is None and may be."""
    kind: Any = type(config)
    return getattr(config, name) is None and name in _optional(kind)


@functools.cache
def _optional(config: Any) -> set[str]:
    """The fields that may be None; to find them takes longer than all other checks together."""
    kinds = typing.get_type_hints(config)
    return {name for name, kind in kinds.items() if type(None) in typing.get_args(kind)}


@dataclasses.dataclass(frozen=True)
class LearningConfig:
    """How networks learn."""

    learning_rate: float = 3e-4
    """Adam's step for every network; usually 1e-3 to 3e-5."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of every network."""

    adam_beta_2: float = 0.999
    """Adam's second decay rate."""

    weight_decay: float = 0.0
    """Times the learning rate, the share of every parameter that an update takes away (AdamW's).
    Small logs want some: 3 at a learning rate of 3e-4."""


@dataclasses.dataclass(frozen=True)
class CriticConfig(LearningConfig):
    """How networks learn, slow target critics among them."""

    polyak_rate: float = 0.005
    """Share of the way that the target networks move at each update."""

    clip_targets: bool = False
    """Whether to clip the critics' targets to the returns that the log's rewards allow."""


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """What kind of policy is learned. Lengths are in half-ranges of the action box."""

    policy: str = choice("squashed_gaussian", families)
    """Family of the policy: "squashed_gaussian", "clipped_gaussian", "q_gaussian", "student_t",
    "beta", "sparse_q_gaussian" or, where the loss needs no density, "deterministic"."""

    entropic_index: float | None = shaping(None)
    """Index of a "q_gaussian" (1 to below 3; None is 2, the Cauchy) or of a "sparse_q_gaussian"
    (below 1; None is 0)."""

    degrees_of_freedom: float | None = shaping(None)
    """Of a "student_t" policy; None is 1."""

    box: str | None = choice(None, BOX_RULES)
    """How the band of a "sparse_q_gaussian" meets the action box: "inside" (None is this) or
    "clip"."""

    outside_support: str | None = choice(None, OUTSIDE_RULES)
    """What regression does with logged actions outside the band of a "sparse_q_gaussian", where
    their log density is -inf: "replace" each by the nearest of 100 samples of the policy (random
    action replacement), or "project" it to the nearest point of 90 % of the band. One of them has
    to be named."""

    scale_low: float = shaping(1e-3)
    """Smallest scale of the policy (half-width of a "sparse_q_gaussian")."""

    scale_high: float = shaping(10.0)
    """Largest scale of the policy; a sparse band is never wider than the box."""

    state_dependent_scale: bool = True
    """Whether the scale is a function of the state, or one number a coordinate."""

    actor_decay_steps: int | None = None
    """The policy's learning rate falls to zero along a cosine over so many updates; None keeps it
    constant."""


@dataclasses.dataclass(frozen=True)
class ActorConfig(PolicyConfig, LearningConfig):
    """How networks learn, and what kind of policy."""


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(ActorConfig, CriticConfig):
    """How networks learn, slow target critics among them, and what kind of policy."""


@dataclasses.dataclass(frozen=True)
class BehaviourConfig(ActorCriticConfig):
    """The same, with a model of the policy that made the log."""

    behaviour: str = choice("squashed_gaussian", covering_families)
    """Family of the model of the log's behaviour: any that has a density wherever a logged action
    can be, so neither "sparse_q_gaussian" nor "deterministic"."""


def check_learning(config: LearningConfig) -> None:
    """Refuse what no network can learn with, and words that are no choice of any setting."""
    check_choices(config)
    between(config, "learning_rate", 0.0, 1.0)
    between(config, "adam_beta_2", 0.0, 1.0)
    positive(config, "weight_decay", zero=True)
    layer_widths(config, "hidden")
    if isinstance(config, CriticConfig):
        between(config, "polyak_rate", 0.0, 1.0, closed_high=True)
        reason = "published=True has the authors' targets"
        only_with(config, ("clip_targets",), not getattr(config, "published", False), reason)


def check_policy(config: PolicyConfig, needs_density: str | None = None) -> None:
    """Refuse settings of another family, and a family without a density where one is needed.

    `needs_density` says what for.
    """
    family = known_family(config.policy)
    if needs_density and family.reach == "point":
        raise ValueError(f"policy={config.policy!r} has no meaning here: {needs_density}.")
    sparse = family.reach == "band"
    for name, reason in {
        "entropic_index": "only 'q_gaussian' and 'sparse_q_gaussian' policies have an index",
        "degrees_of_freedom": "only a 'student_t' policy has degrees of freedom",
        "box": "only a 'sparse_q_gaussian' policy has a band that ends",
    }.items():
        only_with(config, (name,), name in family.settings, reason)
    if config.outside_support is not None and not sparse:
        raise ValueError(
            f"outside_support={config.outside_support!r} has no effect: only a 'sparse_q_gaussian' "
            "policy has a band that logged actions can be outside of. Set it to None."
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
    """Refuse what no network can learn with, and families that cannot be regressed on the log."""
    check_learning(config)
    check_policy(
        config,
        "the loss asks for the log density of logged actions, and a deterministic policy has none; "
        "td3_bc and spot learn one",
    )  # fmt: skip
    if known_family(config.policy).reach == "band" and config.outside_support is None:
        raise ValueError(
            f"policy={config.policy!r} needs outside_support='replace' or 'project': logged "
            "actions outside the band have log density -inf. (Leaving them out would be no answer: "
            "the likelihood of what remains grows without bound as the band shrinks.)"
        )
