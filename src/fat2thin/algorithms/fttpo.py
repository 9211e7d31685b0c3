"""Fat-to-Thin Policy Optimization (Zhu, Wang and Nagai, ICLR 2025).

A heavy-tailed *proposal* learns from the log by weighted regression; a sparse *actor* takes over
the proposal's centre, learns its own width, and is the only one that acts. With online critics
Q, their slow targets, a state value V and temperature tau, one update is

    V         (V(s) - min target Q(s, a))^2 / 2                             a ~ actor
    Q         (Q(s, a) - r - gamma min target Q(s', a'))^2 / 2              a' ~ actor
    proposal  -exp_q((min Q(s, a) - V(s)) / tau) log proposal(a | s)        a from the log
    actor     KL(actor(. | s) || proposal(. | s))                           width alone

The weight exp_q with q < 1 is exactly zero for actions with an advantage below -tau / (1 - q).
All of it is in half-ranges of the action box. `published=True` runs what the authors' code
computes instead: see `published.fttpo`.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem
from fat2thin.algorithms.config import make_family
from fat2thin.algorithms.fttpo_config import FtTPOConfig, check
from fat2thin.algorithms.learner import Learner, descend, start
from fat2thin.algorithms.parts import (
    fit_critic,
    regress_value,
    sample_action,
    start_critic,
    start_policy,
    start_value,
    watch_weight,
)
from fat2thin.algorithms.support import inside_support
from fat2thin.clipping import clip_inward
from fat2thin.distributions import sample_with_log_prob
from fat2thin.distributions.bands import band_nodes, half_width_for_mass, optimal_half_width
from fat2thin.families import Head, Sparse
from fat2thin.losses import q_exponential_weight, weighted_regression
from fat2thin.networks import Linear, PolicyNetwork, TwinCritic, polyak
from fat2thin.policies import BoundedNetwork, Policy, unit_policy


class State(NamedTuple):
    """Everything that changes during training."""

    proposal: Learner
    width: Learner
    value: Learner
    critic: Learner
    target_critic: TwinCritic


class ActorNetwork(eqx.Module):
    """The proposal's centre, and a width of its own on the proposal's features.

    No gradient reaches the proposal: only the width head learns from the actor's loss.
    """

    proposal: BoundedNetwork
    width: Linear
    width_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """The actor's head."""
        features = lax.stop_gradient(self.proposal.network.trunk(observation))
        log_bounds = jnp.log(jnp.asarray(self.width_bounds, features.dtype))
        log_width = clip_inward(self.width(features), *log_bounds)
        return Head(_shared_centre(self.proposal, observation), log_width)


class ProportionalActor(eqx.Module):
    """The proposal's centre, and a half-width that is a constant times the proposal's scale."""

    proposal: BoundedNetwork
    log_ratio: Float[Array, ""]
    width_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """The actor's head."""
        log_width = lax.stop_gradient(self.proposal(observation).log_scale) + self.log_ratio
        log_bounds = jnp.log(jnp.asarray(self.width_bounds, log_width.dtype))
        return Head(_shared_centre(self.proposal, observation), jnp.clip(log_width, *log_bounds))


def _shared_centre(proposal: BoundedNetwork, observation: Array) -> Array:
    centre = lax.stop_gradient(proposal(observation).centre)
    return jnp.tanh(centre) if proposal.squashed else centre


def init(key: Key[Array, ""], problem: Problem, config: FtTPOConfig) -> State:
    """Fresh networks and optimisers."""
    critic_key, proposal_key, width_key, value_key = jax.random.split(key, 4)
    critic = start_critic(critic_key, problem, config)
    return State(
        proposal=start_policy(proposal_key, problem, config),
        width=start(Linear(width_key, config.hidden[-1], problem.action_size)),
        value=start_value(value_key, problem, config),
        critic=critic,
        target_critic=critic.network,
    )


def update(
    state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: FtTPOConfig
) -> tuple[State, Metrics]:
    """One update of value, critics, proposal and actor, in this order, then of the targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    rates = (config.learning_rate, config.adam_beta_2)

    # Value: what the evaluated policy gets here.
    evaluated = _policy_under(config.value_under, state, config)
    action = sample_action(evaluated, batch.observation, value_key)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = regress_value(state.value, batch, value_target, config)

    # Critics: one step of the log, then the evaluated policy.
    evaluated = _policy_under(config.critic_under, state, config)
    next_action = sample_action(evaluated, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = fit_critic(state.critic, batch, next_value, problem, config)

    # Proposal: regression on logged actions, the bad ones at exactly zero weight.
    advantage = critic.network.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = q_exponential_weight(
        advantage, config.temperature, config.weight_index, config.weight_limit
    )

    def proposal_loss(network: PolicyNetwork) -> tuple[Array, None]:
        log_density = proposal_policy(network, config)(batch.observation).log_prob(batch.action)
        return jnp.mean(weighted_regression(weight, log_density)), None

    proposal, proposal_error, _ = descend(state.proposal, proposal_loss, *rates)

    # Actor: the proposal's new centre, and the width that its own loss asks for.
    fat = proposal_policy(proposal.network, config)

    def loss(width: Linear) -> tuple[Array, None]:
        thin = actor_policy(proposal.network, width, config)
        scene = Scene(thin, fat, critic.network, batch.observation, actor_key)
        return ACTOR_LOSSES[config.actor_loss](scene, config), None

    width, actor_error, _ = descend(state.width, loss, *rates)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)

    thin = actor_policy(proposal.network, width.network, config)
    metrics = {
        "proposal_loss": proposal_error,
        "actor_loss": actor_error,
        **value_metrics,
        **critic_metrics,
        **watch_weight(weight),
        **_watch(thin, fat, batch, action, config),
    }
    return State(proposal, width, value, critic, target_critic), metrics


class Scene(NamedTuple):
    """What an actor's loss is computed from."""

    thin: Policy
    """The actor, a function of the width that learns."""
    fat: Policy
    """The proposal."""
    critic: TwinCritic
    observation: Float[Array, "batch observation"]
    key: Key[Array, ""]


def exact_loss(scene: Scene, config: FtTPOConfig) -> Float[Array, ""]:
    """Mean over states of KL(actor || proposal): entropy exactly, the rest by Gauss quadrature."""
    band = scene.thin(scene.observation)
    nodes, weights = band_nodes(config.actor_index)
    base = band.base_dist
    actions = base.loc + base.half_width * jnp.asarray(nodes, base.loc.dtype).reshape(-1, 1, 1)
    log_density = jax.vmap(scene.fat(scene.observation).base_dist.log_prob)(actions)
    cross = -jnp.tensordot(jnp.asarray(weights, base.loc.dtype), log_density, axes=1)
    return jnp.mean(jnp.sum(cross, axis=-1) - band.entropy())


def sampled_loss(scene: Scene, config: FtTPOConfig) -> Float[Array, ""]:
    """The same divergence from one sample a state, with gradients through both densities."""
    action, log_density = sample_with_log_prob(scene.thin(scene.observation), scene.key)
    return jnp.mean(log_density - scene.fat(scene.observation).log_prob(action))


def spot_loss(scene: Scene, config: FtTPOConfig) -> Float[Array, ""]:
    """-Q / mean |Q| - tau log proposal at samples of the actor, gradients through both."""
    action = scene.thin(scene.observation).sample(scene.key)
    values = scene.critic.minimum(scene.observation, jnp.clip(action, -1.0, 1.0))
    scale = lax.stop_gradient(jnp.mean(jnp.abs(values)))
    log_density = scene.fat(scene.observation).log_prob(action)
    return jnp.mean(-values / scale - config.temperature * log_density)


def greedy_loss(scene: Scene, config: FtTPOConfig) -> Float[Array, ""]:
    """Likelihood of the best of the actor's own samples, and tau times the exact divergence.

    Of `greedy_samples` actions a state the share `greedy_share` with the largest Q is kept.
    Without the divergence the band would shrink for ever.
    """
    band = scene.thin(scene.observation)
    actions = lax.stop_gradient(band.sample(scene.key, (config.greedy_samples,)))
    in_box = jnp.clip(actions, -1.0, 1.0)
    values = jax.vmap(lambda action: scene.critic.minimum(scene.observation, action))(in_box)
    count = max(1, round(config.greedy_share * config.greedy_samples))
    best = jnp.argsort(values, axis=0, descending=True)[:count]
    chosen = jnp.take_along_axis(actions, best[..., None], axis=0)
    divergence = exact_loss(scene, config)
    return -jnp.mean(band.log_prob(chosen)) + config.temperature * divergence


def no_loss(scene: Scene, config: FtTPOConfig) -> Float[Array, ""]:
    """The closed-form actor follows the proposal and has nothing to learn: its divergence."""
    return lax.stop_gradient(exact_loss(scene, config))


ACTOR_LOSSES = {
    "exact": exact_loss,
    "sampled": sampled_loss,
    "closed_form": no_loss,
    "spot": spot_loss,
    "greedy": greedy_loss,
}


def policy(state: State, problem: Problem, config: FtTPOConfig) -> Policy:
    """The sparse actor, in the environment's units: the policy that acts."""
    unit = actor_policy(state.proposal.network, state.width.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


def proposal(state: State, problem: Problem, config: FtTPOConfig) -> Policy:
    """The heavy-tailed proposal, in the environment's units."""
    unit = proposal_policy(state.proposal.network, config)
    return unit.in_box(problem.action_low, problem.action_high)


def proposal_policy(network: PolicyNetwork, config: FtTPOConfig) -> Policy:
    """The proposal of a network, in half-ranges of the box."""
    family = make_family(config.proposal_family, config.proposal_index, config.degrees_of_freedom)
    return unit_policy(network, family, (config.proposal_scale_low, config.proposal_scale_high))


def actor_policy(network: PolicyNetwork, width: Linear, config: FtTPOConfig) -> Policy:
    """The actor of the proposal's network and its own width, in half-ranges of the box."""
    fat = proposal_policy(network, config)
    bounds = (config.half_width_low, config.half_width_high)
    actor: ActorNetwork | ProportionalActor
    if config.actor_loss == "closed_form":
        actor = ProportionalActor(fat.network, jnp.log(half_width_ratio(config)), bounds)
    else:
        actor = ActorNetwork(fat.network, width, bounds)
    return Policy(actor, fat.low, fat.high, Sparse(config.actor_index, config.box))


def half_width_ratio(config: FtTPOConfig) -> float:
    """The closed-form actor's half-width in units of the proposal's scale."""
    index, scale = config.proposal_index, 1.0
    if config.proposal_family == "clipped_gaussian":
        index = 1.0
    if config.proposal_family == "student_t":
        index = 1.0 + 2.0 / ((config.degrees_of_freedom or 1.0) + 1.0)
        scale = ((3.0 - index) / 2.0) ** 0.5
    if config.kept_mass is None:
        return scale * optimal_half_width(config.actor_index, index)
    return scale * half_width_for_mass(config.kept_mass, index)


def _policy_under(name: str, state: State, config: FtTPOConfig) -> Policy:
    """The policy that values are evaluated under."""
    network = state.proposal.network
    if name == "actor":
        return actor_policy(network, state.width.network, config)
    return proposal_policy(network, config)


def _watch(thin: Policy, fat: Policy, batch: Batch, action: Array, config: FtTPOConfig) -> Metrics:
    """What one wants to see of the two policies while they learn."""
    head = thin.network(batch.observation)
    _, half_width = Sparse(config.actor_index, config.box).band(head)
    wanted = jnp.exp(head.log_scale)
    binds = (head.centre - wanted < -1.0) | (head.centre + wanted > 1.0)
    return {
        "half_width": jnp.mean(half_width),
        "proposal_scale": jnp.mean(jnp.exp(fat.network(batch.observation).log_scale)),
        "logged_inside_support": jnp.mean(inside_support(thin, batch.observation, batch.action)),
        "actions_at_edge": jnp.mean(jnp.abs(action) >= 1.0),
        "box_binds_share": jnp.mean(binds),
    }


ALGORITHM = Algorithm(
    name="fttpo",
    summary="Fat-to-Thin Policy Optimization: a sparse actor behind a heavy-tailed proposal",
    config=FtTPOConfig,
    check=check,
    init=init,
    update=update,
    policy=policy,
    proposal=proposal,
)
