"""The settings of FtTPO."""

import dataclasses
import math

from fat2thin.algorithms import configs
from fat2thin.algorithms.base import shaping
from fat2thin.policies.families import BOX_RULES, covering_families, known_family

EVALUATED = ("actor", "proposal", "centre")
LOCATION_SCALE = ("q_gaussian", "clipped_gaussian", "student_t")
"""Families whose optimal half-width is a constant times their scale."""
FIXED_BY_PUBLISHED = (
    "weight_index", "weight_limit", "proposal_index", "actor_index", "kept_mass",
    "degrees_of_freedom", "value_under", "critic_under", "box", "proposal_scale_low",
    "proposal_scale_high", "half_width_low", "half_width_high", "greedy_samples", "greedy_share",
)  # fmt: skip
"""Settings for which `published=True` uses the authors' values."""


@dataclasses.dataclass(frozen=True)
class FtTPOConfig(configs.CriticConfig):
    """Settings of FtTPO. Lengths are in half-ranges of the action box."""

    temperature: float = 0.5
    """tau: the lower, the more the proposal prefers the best logged actions. With weight_index
    below 1, actions with an advantage below -tau / (1 - weight_index) are dropped. The paper sweeps
    1, 0.5, 0.1 and 0.01."""

    weight_index: float = 0.0
    """Index of the q-exponential weight, below 2: below 1 it drops bad actions, 1 is the usual
    exponential, above 1 good actions get larger weights, up to weight_limit."""

    weight_limit: float = 1e4
    """Largest weight of a logged action; the default is that of the authors' code."""

    proposal_index: float = shaping(2.0)
    """Index of a "q_gaussian" proposal, from 1 (Gaussian) to below 3; the higher, the heavier the
    tails. 2 is the Cauchy distribution."""

    actor_index: float = shaping(0.0)
    """Index of the sparse actor, below 1; the lower, the flatter the density in its band."""

    actor_loss: str = configs.choice("exact", ("exact", "sampled", "closed_form", "spot", "greedy"))
    """How the actor's half-width is set: "exact" (reverse KL to the proposal by quadrature),
    "sampled" (reverse KL from samples), "closed_form" (a constant times the proposal's scale,
    without a second network), "spot" (maximise Q, kept close to the proposal) or "greedy"
    (likelihood of the actor's best samples)."""

    kept_mass: float | None = shaping(None)
    """For "closed_form": share of the proposal's probability that the band covers, between 0 and 1;
    the lower, the narrower the band. None takes the share that minimises the reverse KL, 81 % for
    indices 0 and 2."""

    proposal_family: str = configs.choice("q_gaussian", covering_families)
    """Family of the proposal: "q_gaussian", "squashed_gaussian" (FtTPO-SG of the paper),
    "clipped_gaussian", "student_t" or "beta"."""

    degrees_of_freedom: float | None = shaping(None)
    """Degrees of freedom of a "student_t" proposal; None is 1."""

    value_under: str = configs.choice("actor", EVALUATED)
    """Policy that V evaluates: "actor", "proposal" or "centre" (the middle of the actor's band)."""

    critic_under: str = configs.choice("actor", EVALUATED)
    """Policy that Q evaluates: "actor", "proposal" or "centre"; the authors use the proposal here
    and the actor for V."""

    box: str = configs.choice("inside", BOX_RULES)
    """How the band is fitted to the action box: "inside" (shifted until it lies in the box) or
    "clip" (actions are clipped, as published)."""

    proposal_scale_low: float = shaping(1e-3)
    """Smallest scale of the proposal, in half-ranges of the action box (1 is half its width)."""

    proposal_scale_high: float = shaping(10.0)
    """Largest scale of the proposal, in half-ranges of the action box."""

    half_width_low: float = shaping(1e-3)
    """Smallest half-width of the actor's band, in half-ranges of the action box."""

    half_width_high: float = shaping(1.0)
    """Largest half-width of the actor's band, in half-ranges of the action box; 1 is the whole
    box."""

    greedy_samples: int = 10
    """For "greedy": number of actions sampled per state."""

    greedy_share: float = shaping(0.2)
    """For "greedy": share of the sampled actions, those with the largest Q, that is kept."""

    published: bool = False
    """Compute what the authors' code computes, including its wrong normaliser, sampler and
    stop-gradient. For actor_loss "exact" (then their biased estimator) or "spot", and
    proposal_family "q_gaussian" or "squashed_gaussian"."""


def check(config: FtTPOConfig) -> None:
    """Raise a ValueError that names the field and its range if a setting is out of range."""
    configs.check_learning(config)
    configs.positive(config, "temperature", "weight_limit", "degrees_of_freedom")
    configs.positive(config, "proposal_scale_high")
    configs.between(config, "weight_index", -math.inf, 2.0)
    configs.between(config, "proposal_index", 1.0, 3.0, closed_low=True)
    configs.between(config, "actor_index", -math.inf, 1.0)
    configs.between(config, "greedy_share", 0.0, 1.0, closed_high=True)
    configs.between(config, "proposal_scale_low", 0.0, config.proposal_scale_high)
    configs.between(config, "half_width_low", 0.0, config.half_width_high)
    configs.between(config, "half_width_high", 0.0, 1.0, closed_high=True)
    configs.between(config, "kept_mass", 0.0, 1.0)
    configs.whole(config, "greedy_samples")
    if config.proposal_family not in LOCATION_SCALE and config.actor_loss == "closed_form":
        raise ValueError(
            "actor_loss='closed_form' needs a location-scale proposal: the optimal half-width for "
            f"a {config.proposal_family!r} is not a constant times its scale. Use "
            "actor_loss='exact'."
        )
    if config.box == "clip" and known_family(config.proposal_family).reach == "box":
        raise ValueError(
            f"box='clip' lets the band leave the box, where a {config.proposal_family!r} has no "
            "density and the reverse KL is infinite. Use box='inside'."
        )
    losses = {"kept_mass": "closed_form", "greedy_samples": "greedy", "greedy_share": "greedy"}
    for name, loss in losses.items():
        reason = f"it is a setting of actor_loss={loss!r} only"
        configs.only_with(config, (name,), config.actor_loss == loss, reason)
    configs.only_with(
        config, ("proposal_index",), config.proposal_family == "q_gaussian",
        "only a 'q_gaussian' proposal has an index",
    )  # fmt: skip
    configs.only_with(
        config, ("degrees_of_freedom",), config.proposal_family == "student_t",
        "only a 'student_t' proposal has degrees of freedom",
    )  # fmt: skip
    configs.only_with(
        config, FIXED_BY_PUBLISHED, not config.published, "published=True uses the authors' value"
    )
    families = ("q_gaussian", "squashed_gaussian")
    for name, known in {"actor_loss": ("exact", "spot"), "proposal_family": families}.items():
        if config.published and getattr(config, name) not in known:
            listed = " and ".join(map(repr, known))
            raise ValueError(f"published=True supports only {name}={listed}.")
