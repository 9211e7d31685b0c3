"""Fat-to-Thin Policy Optimization (Zhu, Wang and Nagai, ICLR 2025).

A heavy-tailed *proposal* learns from the log by weighted regression. A sparse *actor* shares the
proposal's centre and learns only its width; only the actor acts. With online critics Q, their slow
targets, a state value V and temperature tau, one update minimises

    V         (V(s) - min target Q(s, a))^2 / 2                             a ~ actor
    Q         (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2              a' ~ actor
    proposal  -exp_q((min Q(s, a) - V(s)) / tau) log proposal(a | s)        a from the log
    actor     KL(actor(. | s) || proposal(. | s))                           width only

The weight exp_q with q < 1 is exactly zero for actions with an advantage below -tau / (1 - q).
Lengths are in half-ranges of the action box. `published=True` computes what the authors' code
computes instead: see `fttpo_published`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import steps
from fat2thin.algorithms.base import (
    Actions,
    Algorithm,
    Automatic,
    Batch,
    Meaning,
    Metrics,
    Problem,
    Values,
    from_level,
)
from fat2thin.algorithms.fttpo_config import FtTPOConfig, check
from fat2thin.algorithms.losses import q_exponential_weight, weighted_regression
from fat2thin.distributions import sample_with_log_prob
from fat2thin.distributions.divergences import band_nodes, half_width_for_mass, optimal_half_width
from fat2thin.policies import networks
from fat2thin.policies.families import Head, Sparse, clip_inward, make_family
from fat2thin.policies.policy import BoundedNetwork, Policy, unit_policy

NARROW_BAND = {"temperature": 0.35, "actor_loss": "closed_form", "kept_mass": 0.3}
DEEP = {"hidden": (256, 256, 256), "layer_norm": True}
METRICS = {
    **steps.VALUE_METRICS,
    "proposal_loss": Meaning(
        "−weight · log proposal(a given s) on logged actions",
        "falls as the proposal narrows; negative once its density exceeds 1",
    ),
    "actor_loss": steps.POLICY_METRICS["actor_loss"]._replace(
        look_for="should settle; for indices 0 and 2 its minimum does not depend on the proposal's "
        "scale",
    ),
    **steps.WEIGHT_METRICS,
    "half_width": Meaning(
        "half-width of the actor's band, after fitting to the action box and limits",
        "shrinks; a constant value at one of its bounds means that the bound limits it",
    ),
    "proposal_scale": Meaning(
        "scale of the proposal",
        "shrinks as the good actions concentrate; the optimal half-width is a constant times it",
    ),
    "logged_inside_support": steps.POLICY_METRICS["logged_inside_support"],
    "actions_at_edge": Meaning(
        "share of the sampled actions at the edge of the box",
        "if high, the best actions may lie outside the box",
    ),
    "box_binds_share": Meaning(
        "share of states where the box, or a limit, moves or cuts the band",
        "in these states the width is not the unconstrained optimum",
    ),
}


class FtTPOState(NamedTuple):
    """Training state of FtTPO."""

    proposal: steps.Learner
    width: steps.Learner
    values: steps.Learner
    """The state value and the critics, as `ValueAndCritics`."""
    target_critic: networks.Critics


class ActorNetwork(eqx.Module):
    """The actor: the proposal's centre, and a learned half-width from the proposal's features.

    No gradient reaches the proposal: only the width head learns from the actor's loss.
    """

    proposal: BoundedNetwork
    width: networks.Linear
    width_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """Return the actor's head for each row."""
        features = lax.stop_gradient(self.proposal.network.trunk(observation))
        log_bounds = jnp.log(jnp.asarray(self.width_bounds, features.dtype))
        log_width = clip_inward(self.width(features), *log_bounds)
        return Head(_shared_centre(self.proposal, observation), log_width)

    def layers(self) -> dict[str, Any]:
        """Return the layers as `BoundedNetwork.layers` does."""
        bounds = np.log(self.width_bounds)
        own = {"log_scale": self.width, "fixed": None, "bounds": bounds, "tanh": True}
        return {**self.proposal.layers(), **own}


class ProportionalActor(eqx.Module):
    """The closed-form actor: the proposal's centre, and a constant times the proposal's scale."""

    proposal: BoundedNetwork
    log_ratio: Float[Array, ""]
    width_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """Return the actor's head for each row."""
        log_width = lax.stop_gradient(self.proposal(observation).log_scale) + self.log_ratio
        log_bounds = jnp.log(jnp.asarray(self.width_bounds, log_width.dtype))
        return Head(_shared_centre(self.proposal, observation), jnp.clip(log_width, *log_bounds))

    def layers(self) -> dict[str, Any]:
        """Return the layers as `BoundedNetwork.layers` does, with the log ratio of the widths."""
        own = {"ratio": self.log_ratio, "ratio_bounds": np.log(self.width_bounds), "tanh": True}
        return {**self.proposal.layers(), **own}


def _shared_centre(proposal: BoundedNetwork, observation: Array) -> Array:
    centre = lax.stop_gradient(proposal(observation).centre)
    return jnp.tanh(centre) if proposal.squashed else centre


def init(key: Key[Array, ""], problem: Problem, config: FtTPOConfig) -> FtTPOState:
    """Return new networks and optimisers."""
    critic_key, proposal_key, width_key, value_key = jax.random.split(key, 4)
    value = steps.start_value(value_key, problem, config).network
    critic = steps.start_critic(critic_key, problem, config).network
    return FtTPOState(
        proposal=steps.start_policy(proposal_key, problem, config),
        width=steps.start(networks.Linear(width_key, config.hidden[-1], problem.action_size)),
        values=steps.start(networks.ValueAndCritics(value, critic)),
        target_critic=critic,
    )


def update(
    state: FtTPOState, batch: Batch, key: Key[Array, ""], problem: Problem, config: FtTPOConfig
) -> tuple[FtTPOState, Metrics]:
    """Update value, critics, proposal and actor, in this order, then the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    fat = proposal_policy(state.proposal.network, config)
    thin = actor_policy(state.proposal.network, state.width.network, config)

    def choose(
        name: str, observation: Array, key: Array, allowed: tuple[Actions, Actions] | None
    ) -> Actions:
        """Return actions of the evaluated policy, without a gradient."""
        policy = (fat if name == "proposal" else thin).within(allowed)
        if name == "centre":
            return lax.stop_gradient(policy.act(observation))
        return steps.sample_action(policy, observation, key)

    # Value and critics: slow Q of the evaluated policies, in this state and the next.
    action = choose(config.value_under, batch.observation, value_key, batch.allowed)
    next_action = choose(
        config.critic_under, batch.next_observation, critic_key, batch.next_allowed
    )
    value_target, next_value = steps.values_of_both(state.target_critic, batch, action, next_action)
    values, values_metrics = steps.fit_value_and_critics(
        state.values, batch, value_target, next_value, problem, config
    )
    critic = values.network.critic(like=state.target_critic)

    # Proposal: regression on logged actions; bad ones have a weight of exactly zero.
    advantage = values.network.advantage(batch.observation, batch.action)
    weight = q_exponential_weight(
        advantage, config.temperature, config.weight_index, config.weight_limit
    )
    weight = batch.where_allowed(weight)

    def proposal_loss(network: networks.PolicyNetwork) -> tuple[Array, Metrics]:
        log_density = proposal_policy(network, config)(batch.observation).log_prob(batch.action)
        errors = weighted_regression(weight, log_density)
        return jnp.mean(errors), {"proposal_loss": errors}

    proposal, proposal_metrics = steps.descend(state.proposal, proposal_loss, config)

    # Actor: the proposal's new centre, and a step of the width.
    inputs = critic, batch.observation, actor_key, problem, batch.allowed
    moved = proposal_policy(proposal.network, config)

    def actor_loss(width: networks.Linear) -> tuple[Array, Metrics]:
        scene = Scene(actor_policy(proposal.network, width, config), moved, *inputs)
        errors = ACTOR_LOSSES[config.actor_loss](scene, config)
        return jnp.mean(errors), {"actor_loss": errors}

    if config.actor_loss == "closed_form":
        actor_metrics = {"actor_loss": exact_loss(Scene(thin, fat, *inputs), config)}
        width = state.width
    else:
        width, actor_metrics = steps.descend(state.width, actor_loss, config)

    target_critic = networks.polyak(state.target_critic, critic, config.polyak_rate)
    metrics = {**proposal_metrics, **actor_metrics, **values_metrics, **steps.watch_weight(weight)}
    metrics |= _watch(thin, fat, batch, action, config)
    return FtTPOState(proposal, width, values, target_critic), metrics


class Scene(NamedTuple):
    """The inputs of the actor's loss."""

    thin: Policy
    """The actor, which depends on the width that is learned."""
    fat: Policy
    """The proposal."""
    critic: networks.Critics
    observation: Float[Array, "batch observation"]
    key: Key[Array, ""]
    problem: Problem
    allowed: tuple[Actions, Actions] | None = None
    """Ends of the allowed actions, if there are limits. Actions whose Q counts are inside them; the
    divergence is that of the whole band, which keeps its gradient where limits cut it."""


def exact_loss(scene: Scene, config: FtTPOConfig) -> Values:
    """Return KL(actor || proposal) in each state: exact entropy, cross entropy by Gauss quadrature.

    For an actor index of 0, the optimal width is right to 1e-3 for proposal indices up to 2.5. It
    is 2 % too narrow at 2.7 and 26 % at 2.9, where actor_loss="closed_form" is right.
    """
    band = scene.thin(scene.observation)
    base, dtype = band.base_dist, band.base_dist.loc.dtype
    nodes, weights = (jnp.asarray(part, dtype) for part in band_nodes(config.actor_index))
    # The nodes are the last axis, so that the summed numbers are adjacent in memory.
    actions = base.loc[..., None] + base.half_width[..., None] * nodes[None, None]
    head = jax.tree.map(lambda part: part[..., None], scene.fat.network(scene.observation))
    ends = scene.fat.low[None, :, None], scene.fat.high[None, :, None]
    cross = -scene.fat.family.distribution(head, *ends).base_dist.log_prob(actions) @ weights
    return jnp.sum(cross, axis=-1) - band.entropy()


def sampled_loss(scene: Scene, config: FtTPOConfig) -> Values:
    """Return KL(actor || proposal) from one sample per state, with gradients of both densities."""
    action, log_density = sample_with_log_prob(scene.thin(scene.observation), scene.key)
    return log_density - scene.fat(scene.observation).log_prob(action)


def spot_loss(scene: Scene, config: FtTPOConfig) -> Values:
    """Return -Q / mean |Q| - tau log proposal at samples of the actor, with both gradients."""
    action = scene.thin.within(scene.allowed)(scene.observation).sample(scene.key)
    values = scene.critic.minimum(scene.observation, jnp.clip(action, -1.0, 1.0))
    scale = lax.stop_gradient(jnp.mean(jnp.abs(from_level(values, scene.problem))))
    log_density = scene.fat(scene.observation).log_prob(action)
    return -values / scale - config.temperature * log_density


def greedy_loss(scene: Scene, config: FtTPOConfig) -> Values:
    """Return -log likelihood of the actor's best samples, plus tau times the exact divergence.

    Of `greedy_samples` actions per state, the share `greedy_share` with the largest Q is kept.
    Without the divergence the band would shrink without end.
    """
    band = scene.thin.within(scene.allowed)(scene.observation)
    actions = lax.stop_gradient(band.sample(scene.key, (config.greedy_samples,)))
    in_box = jnp.clip(actions, -1.0, 1.0)
    values = jax.vmap(lambda action: scene.critic.minimum(scene.observation, action))(in_box)
    count = max(1, round(config.greedy_share * config.greedy_samples))
    best = jnp.argsort(values, axis=0, descending=True)[:count]
    chosen = jnp.take_along_axis(actions, best[..., None], axis=0)
    divergence = exact_loss(scene, config)
    return -jnp.mean(band.log_prob(chosen), axis=0) + config.temperature * divergence


ACTOR_LOSSES = {
    "exact": exact_loss,
    "sampled": sampled_loss,
    "spot": spot_loss,
    "greedy": greedy_loss,
}


def policy(state: FtTPOState, problem: Problem, config: FtTPOConfig) -> Policy:
    """Return the sparse actor, the policy that acts, in the environment's units."""
    unit = actor_policy(state.proposal.network, state.width.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


def proposal(state: FtTPOState, problem: Problem, config: FtTPOConfig) -> Policy:
    """Return the heavy-tailed proposal, in the environment's units."""
    unit = proposal_policy(state.proposal.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


def critics(state: FtTPOState, problem: Problem, config: FtTPOConfig) -> networks.Critics:
    """Return the online critics."""
    return state.values.network.critic(like=state.target_critic)


def value(state: FtTPOState, problem: Problem, config: FtTPOConfig) -> networks.ScalarNetwork:
    """Return the online state value."""
    return state.values.network.value(problem.observation_size)


def proposal_policy(network: networks.PolicyNetwork, config: FtTPOConfig) -> Policy:
    """Return the proposal of a network, in half-ranges of the box."""
    family = make_family(
        config.proposal_family,
        entropic_index=config.proposal_index,
        degrees_of_freedom=config.degrees_of_freedom,
    )
    return unit_policy(network, family, (config.proposal_scale_low, config.proposal_scale_high))


def actor_policy(
    network: networks.PolicyNetwork, width: networks.Linear, config: FtTPOConfig
) -> Policy:
    """Return the actor of the proposal's network and a width head, in half-ranges of the box."""
    fat = proposal_policy(network, config)
    bounds = (config.half_width_low, config.half_width_high)
    actor: ActorNetwork | ProportionalActor
    if config.actor_loss == "closed_form":
        actor = ProportionalActor(fat.network, jnp.log(half_width_ratio(config)), bounds)
    else:
        actor = ActorNetwork(fat.network, width, bounds)
    return Policy(actor, fat.low, fat.high, Sparse(config.actor_index, config.box))


def half_width_ratio(config: FtTPOConfig) -> float:
    """Return the closed-form actor's half-width divided by the proposal's scale."""
    index, scale = config.proposal_index, 1.0
    if config.proposal_family == "clipped_gaussian":
        index = 1.0
    if config.proposal_family == "student_t":
        index = 1.0 + 2.0 / ((config.degrees_of_freedom or 1.0) + 1.0)
        scale = ((3.0 - index) / 2.0) ** 0.5
    if config.kept_mass is None:
        return scale * optimal_half_width(config.actor_index, index)
    return scale * half_width_for_mass(config.kept_mass, index)


def _watch(thin: Policy, fat: Policy, batch: Batch, action: Array, config: FtTPOConfig) -> Metrics:
    """Return metrics of both policies as they were before the update."""
    head = thin.network(batch.observation)
    _, half_width = Sparse(config.actor_index, config.box).band(head)
    unfitted = jnp.exp(head.log_scale)
    low, high = batch.allowed or (-1.0, 1.0)
    binds = (head.centre - unfitted < low) | (head.centre + unfitted > high)
    if batch.allowed is not None:
        half_width = jnp.minimum(half_width, (high - low) / 2.0)
    inside = steps.inside_support(thin.within(batch.allowed), batch.observation, batch.action)
    return {
        "half_width": jnp.mean(half_width, axis=-1),
        "proposal_scale": jnp.mean(jnp.exp(fat.network(batch.observation).log_scale), axis=-1),
        "logged_inside_support": inside.astype(half_width.dtype),
        "actions_at_edge": jnp.mean(jnp.abs(action) >= 1.0, axis=-1),
        "box_binds_share": jnp.mean(binds, axis=-1),
    }


ALGORITHM = Algorithm(
    name="fttpo",
    summary="Fat-to-Thin Policy Optimization: a sparse actor guided by a heavy-tailed proposal",
    config=FtTPOConfig,
    check=check,
    init=init,
    update=update,
    policy=policy,
    proposal=proposal,
    critics=critics,
    value=value,
    metrics=METRICS,
    weighted_loss="proposal_loss",
    learns_limits=True,
    automatic=Automatic(
        noisy=NARROW_BAND,
        predictable=NARROW_BAND,
        large={**NARROW_BAND, **DEEP},
        centre_values=True,
    ),
)
