"""The settings of FtTPO: every choice that the paper or its code leaves open."""

import dataclasses
import math

from fat2thin.algorithms import configs
from fat2thin.algorithms.base import shaping
from fat2thin.policies.families import BOX_RULES, covering_families, known_family

EVALUATED = ("actor", "proposal")
LOCATION_SCALE = ("q_gaussian", "clipped_gaussian", "student_t")
"""Families whose best band is a constant times their scale."""
THEIRS = (
    "weight_index", "weight_limit", "proposal_index", "actor_index", "kept_mass",
    "degrees_of_freedom", "value_under", "critic_under", "box", "proposal_scale_low",
    "proposal_scale_high", "half_width_low", "half_width_high", "greedy_samples", "greedy_share",
)  # fmt: skip
"""Settings that `published=True` has values of its own for."""


@dataclasses.dataclass(frozen=True)
class FtTPOConfig(configs.CriticConfig):
    """Settings of FtTPO. Lengths are in half-ranges of the action box."""

    temperature: float = 0.5
    """tau: actions with an advantage below -tau / (1 - weight_index) are dropped; the paper sweeps
    1, 0.5, 0.1 and 0.01."""

    weight_index: float = 0.0
    """Index of the q-exponential weight: below 1 it drops bad actions, 1 is the usual exponential,
    from there to 2 it overweights good ones up to weight_limit."""

    weight_limit: float = 1e4
    """Largest weight of a logged action, as in the authors' code."""

    proposal_index: float = shaping(2.0)
    """Index of a "q_gaussian" proposal, from 1 (Gaussian) to below 3; 2 is the Cauchy."""

    actor_index: float = shaping(0.0)
    """Index of the sparse actor, below 1; the lower, the flatter the band."""

    actor_loss: str = configs.choice("exact", ("exact", "sampled", "closed_form", "spot", "greedy"))
    """How the actor gets its width: "exact" (reverse KL by quadrature), "sampled" (reverse KL from
    samples), "closed_form" (no second network: a constant times the proposal's scale), "spot"
    (largest Q, held to the proposal) or "greedy" (likelihood of its best samples)."""

    kept_mass: float | None = shaping(None)
    """For "closed_form": share of the proposal's mass that the band keeps; None takes the one that
    minimises the reverse KL, 81 % for indices 0 and 2."""

    proposal_family: str = configs.choice("q_gaussian", covering_families)
    """Family of the proposal: "q_gaussian", "squashed_gaussian" (FtTPO-SG of the paper),
    "clipped_gaussian", "student_t" or "beta"."""

    degrees_of_freedom: float | None = shaping(None)
    """Of a "student_t" proposal; None is 1."""

    value_under: str = configs.choice("actor", EVALUATED)
    """Policy whose value V estimates: "actor" or "proposal"."""

    critic_under: str = configs.choice("actor", EVALUATED)
    """Policy whose value Q estimates; the authors use the proposal here and the actor for V."""

    box: str = configs.choice("inside", BOX_RULES)
    """How the band meets the action box: "inside" (it lies in the box) or "clip" (as published)."""

    proposal_scale_low: float = shaping(1e-3)
    """Smallest scale of the proposal."""

    proposal_scale_high: float = shaping(10.0)
    """Largest scale of the proposal."""

    half_width_low: float = shaping(1e-3)
    """Smallest half-width of the actor's band."""

    half_width_high: float = shaping(1.0)
    """Largest half-width of the actor's band; 1 is the whole box."""

    greedy_samples: int = 10
    """For "greedy": actions drawn a state."""

    greedy_share: float = shaping(0.2)
    """For "greedy": share of them that is kept."""

    published: bool = False
    """Run what the authors' code computes, wrong normaliser, sampler and stop-gradient included,
    for actor_loss "exact" (theirs is then the biased estimator) or "spot" and proposal_family
    "q_gaussian" or "squashed_gaussian"."""


def check(config: FtTPOConfig) -> None:
    """Refuse a setting out of range, naming the field and the range."""
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
            "actor_loss='closed_form' needs a proposal of the location-scale kind: the best band "
            f"of a {config.proposal_family!r} is not a constant times its scale. Use "
            "actor_loss='exact'."
        )
    if config.box == "clip" and known_family(config.proposal_family).reach == "box":
        raise ValueError(
            f"box='clip' lets the band leave the box, where a {config.proposal_family!r} has no "
            "density and the reverse KL is infinite. Use box='inside'."
        )
    losses = {"kept_mass": "closed_form", "greedy_samples": "greedy", "greedy_share": "greedy"}
    for name, loss in losses.items():
        reason = f"it is a setting of actor_loss={loss!r} alone"
        configs.only_with(config, (name,), config.actor_loss == loss, reason)
    configs.only_with(
        config, ("proposal_index",), config.proposal_family == "q_gaussian",
        "only a 'q_gaussian' proposal has an index",
    )  # fmt: skip
    configs.only_with(
        config, ("degrees_of_freedom",), config.proposal_family == "student_t",
        "only a 'student_t' proposal has degrees of freedom",
    )  # fmt: skip
    configs.only_with(config, THEIRS, not config.published, "published=True has the authors' own")
    families = ("q_gaussian", "squashed_gaussian")
    for name, known in {"actor_loss": ("exact", "spot"), "proposal_family": families}.items():
        if config.published and getattr(config, name) not in known:
            listed = " and ".join(map(repr, known))
            raise ValueError(f"published=True knows {name}={listed} alone.")
