"""The settings of FtTPO: every choice that the paper or its code leaves open."""

import dataclasses
import math
import numbers

from fat2thin.policies import BOX_RULES

ACTOR_LOSSES = ("exact", "sampled", "closed_form", "spot", "greedy")
PROPOSAL_FAMILIES = ("q_gaussian", "squashed_gaussian", "student_t")
EVALUATED = ("actor", "proposal")


@dataclasses.dataclass(frozen=True)
class FtTPOConfig:
    """Settings of FtTPO. Lengths are in half-ranges of the action box."""

    learning_rate: float = 3e-4
    """Adam's step for every network; the paper sweeps 1e-3 to 3e-5."""

    temperature: float = 0.5
    """tau: actions with an advantage below -tau / (1 - weight_index) are dropped; the paper sweeps
    1, 0.5, 0.1 and 0.01."""

    weight_index: float = 0.0
    """Index of the q-exponential weight: below 1 it drops bad actions, 1 is the usual exponential,
    from there to 2 it overweights good ones up to weight_limit."""

    weight_limit: float = 1e4
    """Largest weight of a logged action, as in the authors' code."""

    proposal_index: float = 2.0
    """Index of the heavy-tailed proposal, from 1 (Gaussian) to below 3; 2 is the Cauchy."""

    actor_index: float = 0.0
    """Index of the sparse actor, below 1; the lower, the flatter the band."""

    actor_loss: str = "exact"
    """How the actor gets its width: "exact" (reverse KL by quadrature), "sampled" (reverse KL from
    samples), "closed_form" (no second network: a constant times the proposal's scale), "spot"
    (largest Q, held to the proposal) or "greedy" (likelihood of its best samples)."""

    kept_mass: float | None = None
    """For "closed_form": share of the proposal's mass that the band keeps; None takes the one that
    minimises the reverse KL, 81 % for indices 0 and 2."""

    proposal_family: str = "q_gaussian"
    """"q_gaussian", "squashed_gaussian" (FtTPO-SG of the paper) or "student_t"."""

    degrees_of_freedom: float = 1.0
    """Of the "student_t" proposal."""

    value_under: str = "actor"
    """Policy whose value V estimates: "actor" or "proposal"."""

    critic_under: str = "actor"
    """Policy whose value Q estimates; the authors use the proposal here and the actor for V."""

    box: str = "inside"
    """How the band meets the action box: "inside" (it lies in the box) or "clip" (as published)."""

    proposal_scale_low: float = 1e-3
    """Smallest scale of the proposal."""

    proposal_scale_high: float = 10.0
    """Largest scale of the proposal."""

    half_width_low: float = 1e-3
    """Smallest half-width of the actor's band."""

    half_width_high: float = 1.0
    """Largest half-width of the actor's band; 1 is the whole box."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of every network."""

    adam_beta_2: float = 0.999
    """Adam's second decay rate; the paper says .99, its code uses .999."""

    polyak_rate: float = 0.005
    """Share of the way that the target critics move at each update."""

    greedy_samples: int = 10
    """For "greedy": actions drawn a state."""

    greedy_share: float = 0.2
    """For "greedy": share of them that is kept."""

    published: bool = False
    """Run what the authors' code computes, wrong normaliser, sampler and stop-gradient included.
    Only learning_rate, temperature, hidden, adam_beta_2 and polyak_rate count then; all else is
    theirs."""


def check(config: FtTPOConfig) -> None:
    """Refuse a setting out of range, naming the field and the range."""
    _between(config, "learning_rate", 0.0, 1.0)
    _between(config, "temperature", 0.0, math.inf)
    _between(config, "weight_index", -math.inf, 2.0)
    _between(config, "weight_limit", 0.0, math.inf)
    _between(config, "proposal_index", 1.0, 3.0, closed_low=True)
    _between(config, "actor_index", -math.inf, 1.0)
    _between(config, "degrees_of_freedom", 0.0, math.inf)
    _between(config, "adam_beta_2", 0.0, 1.0)
    _between(config, "polyak_rate", 0.0, 1.0, closed_high=True)
    _between(config, "greedy_share", 0.0, 1.0, closed_high=True)
    _between(config, "proposal_scale_low", 0.0, config.proposal_scale_high)
    _between(config, "proposal_scale_high", 0.0, math.inf)
    _between(config, "half_width_low", 0.0, config.half_width_high)
    _between(config, "half_width_high", 0.0, 1.0, closed_high=True)
    if config.kept_mass is not None:
        _between(config, "kept_mass", 0.0, 1.0)
    _one_of(config, "actor_loss", ACTOR_LOSSES)
    _one_of(config, "proposal_family", PROPOSAL_FAMILIES)
    _one_of(config, "value_under", EVALUATED)
    _one_of(config, "critic_under", EVALUATED)
    _one_of(config, "box", BOX_RULES)
    if not config.hidden or not all(isinstance(n, int) and n > 0 for n in config.hidden):
        raise ValueError(f"hidden must be positive layer widths, got {config.hidden}")
    if not isinstance(config.greedy_samples, int) or config.greedy_samples < 1:
        raise ValueError(f"greedy_samples must be a positive integer, got {config.greedy_samples}")
    _combinations(config)


def _combinations(config: FtTPOConfig) -> None:
    squashed = config.proposal_family == "squashed_gaussian"
    if squashed and config.actor_loss == "closed_form":
        raise ValueError(
            "actor_loss='closed_form' needs a proposal of the location-scale kind: the best band "
            "of a squashed Gaussian is not a constant times its scale. Use actor_loss='exact'."
        )
    if squashed and config.box == "clip":
        raise ValueError(
            "box='clip' lets the band leave the box, where a squashed Gaussian has no density and "
            "the reverse KL is infinite. Use box='inside'."
        )
    if config.kept_mass is not None and config.actor_loss != "closed_form":
        raise ValueError("kept_mass is a setting of actor_loss='closed_form' alone.")


def _between(
    config: FtTPOConfig,
    name: str,
    low: float,
    high: float,
    *,
    closed_low: bool = False,
    closed_high: bool = False,
) -> None:
    value = getattr(config, name)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    above = number and (value >= low if closed_low else value > low)
    below = number and (value <= high if closed_high else value < high)
    if not (above and below):
        brackets = f"{'[' if closed_low else '('}{low}, {high}{']' if closed_high else ')'}"
        raise ValueError(f"{name} must lie in {brackets}, got {value!r}")


def _one_of(config: FtTPOConfig, name: str, choices: tuple[str, ...]) -> None:
    if getattr(config, name) not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {getattr(config, name)!r}")
