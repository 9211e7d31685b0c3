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
computes instead: see `fttpo_published`.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import fttpo_published
from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem
from fat2thin.algorithms.fttpo_config import FtTPOConfig, check
from fat2thin.algorithms.learner import Learner, descend, start
from fat2thin.distributions import sample_with_log_prob
from fat2thin.distributions.bands import band_nodes, half_width_for_mass, optimal_half_width
from fat2thin.losses import (
    half_squared_error,
    q_exponential_weight,
    temporal_difference_target,
    twin_critic_loss,
    weighted_regression,
)
from fat2thin.networks import Linear, PolicyNetwork, ScalarNetwork, TwinCritic, polyak
from fat2thin.policies import (
    Family,
    Head,
    HeavyStudent,
    HeavyTailed,
    Policy,
    Sparse,
    Squashed,
    clip_inward,
)


class State(NamedTuple):
    """Everything that changes during training."""

    proposal: Learner
    width: Learner
    value: Learner
    critic: Learner
    target_critic: TwinCritic


class ProposalNetwork(eqx.Module):
    """Observation to the proposal's head; scales stay within bounds."""

    network: PolicyNetwork
    log_bounds: tuple[float, float] = eqx.field(static=True)
    squashed: bool = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """The proposal's head."""
        centre, log_scale = self.network(observation)
        centre = centre if self.squashed else jnp.tanh(centre)
        return Head(centre, clip_inward(log_scale, *map(jnp.asarray, self.log_bounds)))


class ActorNetwork(eqx.Module):
    """The proposal's centre, and a width of its own on the proposal's features.

    No gradient reaches the proposal: only the width head learns from the actor's loss.
    """

    proposal: ProposalNetwork
    width: Linear
    log_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """The actor's head."""
        features = lax.stop_gradient(self.proposal.network.trunk(observation))
        log_width = clip_inward(self.width(features), *map(jnp.asarray, self.log_bounds))
        return Head(_shared_centre(self.proposal, observation), log_width)


class ProportionalActor(eqx.Module):
    """The proposal's centre, and a half-width that is a constant times the proposal's scale."""

    proposal: ProposalNetwork
    log_ratio: Float[Array, ""]
    log_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """The actor's head."""
        log_width = lax.stop_gradient(self.proposal(observation).log_scale) + self.log_ratio
        return Head(
            _shared_centre(self.proposal, observation), jnp.clip(log_width, *self.log_bounds)
        )


def _shared_centre(proposal: ProposalNetwork, observation: Array) -> Array:
    centre = lax.stop_gradient(proposal(observation).centre)
    return jnp.tanh(centre) if proposal.squashed else centre


def init(key: Key[Array, ""], problem: Problem, config: FtTPOConfig) -> Any:
    """Fresh networks and optimisers."""
    if config.published:
        return fttpo_published.init(key, problem, config)
    keys = jax.random.split(key, 4)
    sizes = (problem.observation_size, problem.action_size, config.hidden)
    critic = TwinCritic(keys[0], *sizes)
    return State(
        proposal=start(PolicyNetwork(keys[1], *sizes)),
        width=start(Linear(keys[2], config.hidden[-1], problem.action_size)),
        value=start(ScalarNetwork(keys[3], problem.observation_size, config.hidden)),
        critic=start(critic),
        target_critic=critic,
    )


def update(
    state: Any, batch: Batch, key: Key[Array, ""], problem: Problem, config: FtTPOConfig
) -> tuple[Any, Metrics]:
    """One update of value, critics, proposal and actor, in this order, then of the targets."""
    if config.published:
        return fttpo_published.update(state, batch, key, problem, config)
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    rates = (config.learning_rate, config.adam_beta_2)

    # Value: what the evaluated policy gets here.
    action = _sample(config.value_under, state, batch.observation, value_key, config)
    value_target = state.target_critic.minimum(batch.observation, action)

    def value_loss(network: ScalarNetwork) -> tuple[Array, Array]:
        prediction = network(batch.observation)
        return jnp.mean(half_squared_error(prediction, value_target)), jnp.mean(prediction)

    value, value_error, v_mean = descend(state.value, value_loss, *rates)

    # Critics: one step of the log, then the evaluated policy.
    next_action = _sample(config.critic_under, state, batch.next_observation, critic_key, config)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    target = temporal_difference_target(
        batch.reward, batch.continuation, problem.discount, next_value
    )

    def critic_loss(network: TwinCritic) -> tuple[Array, Array]:
        values = network(batch.observation, batch.action)
        return jnp.mean(twin_critic_loss(values, target)), jnp.mean(values)

    critic, critic_error, q_mean = descend(state.critic, critic_loss, *rates)

    # Proposal: regression on logged actions, the bad ones at exactly zero weight.
    advantage = critic.network.minimum(batch.observation, batch.action) - value.network(
        batch.observation
    )
    weight = q_exponential_weight(
        advantage, config.temperature, config.weight_index, config.weight_limit
    )

    def proposal_loss(network: PolicyNetwork) -> tuple[Array, None]:
        log_density = _proposal(network, config)(batch.observation).log_prob(batch.action)
        return jnp.mean(weighted_regression(weight, log_density)), None

    proposal, proposal_error, _ = descend(state.proposal, proposal_loss, *rates)

    # Actor: the proposal's new centre, and the width that its own loss asks for.
    fat = _proposal(proposal.network, config)

    def actor_loss(width: Linear) -> tuple[Array, None]:
        thin = _actor(proposal.network, width, config)
        losses = ACTOR_LOSSES[config.actor_loss](
            thin, fat, critic.network, batch.observation, actor_key, config
        )
        return losses, None

    width, actor_error, _ = descend(state.width, actor_loss, *rates)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)

    metrics = {
        "value_loss": value_error,
        "critic_loss": critic_error,
        "proposal_loss": proposal_error,
        "actor_loss": actor_error,
        "q_mean": q_mean,
        "v_mean": v_mean,
        "weight_mean": jnp.mean(weight),
        "zero_weight_share": jnp.mean(weight == 0.0),
        **_watch(
            _actor(proposal.network, width.network, config), _band(config), fat, batch, action
        ),
    }
    return State(proposal, width, value, critic, target_critic), metrics


def exact_loss(
    thin: Policy,
    fat: Policy,
    critic: TwinCritic,
    observation: Array,
    key: Array,
    config: FtTPOConfig,
) -> Float[Array, ""]:
    """Mean over states of KL(actor || proposal): entropy exactly, the rest by Gauss quadrature."""
    del critic, key
    band = thin(observation)
    nodes, weights = band_nodes(config.actor_index)
    base = band.base_dist
    actions = base.loc + base.half_width * jnp.asarray(nodes, base.loc.dtype).reshape(-1, 1, 1)
    log_density = jax.vmap(fat(observation).base_dist.log_prob)(actions)
    cross = -jnp.tensordot(jnp.asarray(weights, base.loc.dtype), log_density, axes=1)
    return jnp.mean(jnp.sum(cross, axis=-1) - band.entropy())


def sampled_loss(
    thin: Policy,
    fat: Policy,
    critic: TwinCritic,
    observation: Array,
    key: Array,
    config: FtTPOConfig,
) -> Float[Array, ""]:
    """The same divergence from one sample a state, with gradients through both densities."""
    del critic, config
    action, log_density = sample_with_log_prob(thin(observation), key)
    return jnp.mean(log_density - fat(observation).log_prob(action))


def spot_loss(
    thin: Policy,
    fat: Policy,
    critic: TwinCritic,
    observation: Array,
    key: Array,
    config: FtTPOConfig,
) -> Float[Array, ""]:
    """-Q / mean |Q| - tau log proposal at samples of the actor, gradients through both."""
    action = thin(observation).sample(key)
    values = critic.minimum(observation, jnp.clip(action, -1.0, 1.0))
    scale = lax.stop_gradient(jnp.mean(jnp.abs(values)))
    log_density = fat(observation).log_prob(action)
    return jnp.mean(-values / scale - config.temperature * log_density)


def greedy_loss(
    thin: Policy,
    fat: Policy,
    critic: TwinCritic,
    observation: Array,
    key: Array,
    config: FtTPOConfig,
) -> Float[Array, ""]:
    """Likelihood of the best of the actor's own samples, and tau times the exact divergence.

    Of `greedy_samples` actions a state the share `greedy_share` with the largest Q is kept.
    Without the divergence the band would shrink for ever.
    """
    band = thin(observation)
    actions = lax.stop_gradient(band.sample(key, (config.greedy_samples,)))
    in_box = jnp.clip(actions, -1.0, 1.0)
    values = jax.vmap(lambda action: critic.minimum(observation, action))(in_box)
    count = max(1, round(config.greedy_share * config.greedy_samples))
    best = jnp.argsort(values, axis=0, descending=True)[:count]
    chosen = jnp.take_along_axis(actions, best[..., None], axis=0)
    divergence = exact_loss(thin, fat, critic, observation, key, config)
    return -jnp.mean(band.log_prob(chosen)) + config.temperature * divergence


def no_loss(
    thin: Policy,
    fat: Policy,
    critic: TwinCritic,
    observation: Array,
    key: Array,
    config: FtTPOConfig,
) -> Float[Array, ""]:
    """The closed-form actor follows the proposal and has nothing to learn: its divergence."""
    return lax.stop_gradient(exact_loss(thin, fat, critic, observation, key, config))


ACTOR_LOSSES = {
    "exact": exact_loss,
    "sampled": sampled_loss,
    "closed_form": no_loss,
    "spot": spot_loss,
    "greedy": greedy_loss,
}


def policy(state: Any, problem: Problem, config: FtTPOConfig) -> Policy:
    """The sparse actor, in the environment's units: the policy that acts."""
    if config.published:
        return fttpo_published.policy(state, problem, config)
    return _in_box(_actor(state.proposal.network, state.width.network, config), problem)


def proposal(state: Any, problem: Problem, config: FtTPOConfig) -> Policy:
    """The heavy-tailed proposal, in the environment's units."""
    if config.published:
        return fttpo_published.proposal(state, problem, config)
    return _in_box(_proposal(state.proposal.network, config), problem)


def _in_box(unit: Policy, problem: Problem) -> Policy:
    return dataclasses.replace(
        unit, low=jnp.asarray(problem.action_low), high=jnp.asarray(problem.action_high)
    )


def _proposal_family(config: FtTPOConfig) -> Family:
    if config.proposal_family == "squashed_gaussian":
        return Squashed()
    if config.proposal_family == "student_t":
        return HeavyStudent(config.degrees_of_freedom)
    return HeavyTailed(config.proposal_index)


def _proposal_network(network: PolicyNetwork, config: FtTPOConfig) -> ProposalNetwork:
    bounds = (float(np.log(config.proposal_scale_low)), float(np.log(config.proposal_scale_high)))
    return ProposalNetwork(network, bounds, config.proposal_family == "squashed_gaussian")


def _proposal(network: PolicyNetwork, config: FtTPOConfig) -> Policy:
    size = network.centre.bias.shape[-1]
    return Policy(
        _proposal_network(network, config),
        -jnp.ones(size),
        jnp.ones(size),
        _proposal_family(config),
    )


def half_width_ratio(config: FtTPOConfig) -> float:
    """The closed-form actor's half-width in units of the proposal's scale."""
    index, scale = config.proposal_index, 1.0
    if config.proposal_family == "student_t":
        index = 1.0 + 2.0 / (config.degrees_of_freedom + 1.0)
        scale = ((3.0 - index) / 2.0) ** 0.5
    if config.kept_mass is None:
        return scale * optimal_half_width(config.actor_index, index)
    return scale * half_width_for_mass(config.kept_mass, index)


def _band(config: FtTPOConfig) -> Sparse:
    return Sparse(config.actor_index, config.box)


def _actor(network: PolicyNetwork, width: Linear, config: FtTPOConfig) -> Policy:
    size = network.centre.bias.shape[-1]
    base = _proposal_network(network, config)
    bounds = (float(np.log(config.half_width_low)), float(np.log(config.half_width_high)))
    actor: ActorNetwork | ProportionalActor
    if config.actor_loss == "closed_form":
        actor = ProportionalActor(base, jnp.log(half_width_ratio(config)), bounds)
    else:
        actor = ActorNetwork(base, width, bounds)
    return Policy(actor, -jnp.ones(size), jnp.ones(size), _band(config))


def _sample(
    under: str, state: State, observation: Array, key: Key[Array, ""], config: FtTPOConfig
) -> Float[Array, "batch action"]:
    """Actions of the policy that values are evaluated under, clipped to the box."""
    network = state.proposal.network
    if under == "actor":
        chosen = _actor(network, state.width.network, config)
    else:
        chosen = _proposal(network, config)
    return lax.stop_gradient(chosen.act(observation, key))


def _watch(thin: Policy, band: Sparse, fat: Policy, batch: Batch, action: Array) -> Metrics:
    """What one wants to see of the two policies while they learn."""
    head = thin.network(batch.observation)
    _, half_width = band.band(head)
    wanted = jnp.exp(head.log_scale)
    binds = (head.centre - wanted < -1.0) | (head.centre + wanted > 1.0)
    low, high = thin.support(batch.observation)
    inside = jnp.all((low <= batch.action) & (batch.action <= high), axis=-1)
    return {
        "half_width": jnp.mean(half_width),
        "proposal_scale": jnp.mean(jnp.exp(fat.network(batch.observation).log_scale)),
        "logged_inside_support": jnp.mean(inside),
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
