"""FtTPO as the authors' code computes it, for comparison only (`published=True`).

The same five steps as in `fttpo`, with the defects of the authors' code:

* the proposal's density has the wrong mass, and its samples are Gaussian;
* the actor's width is implicit;
* V is evaluated under the actor and Q under the proposal;
* weights are at least 1e-8;
* the actor's loss is the biased estimator r - 1 - log r, with the proposal's density detached;
* one Adam optimiser updates all of the actor's parameters, although trunk and centre are
  overwritten at every update;
* in the SPOT variant Q is divided by V(s), so a negative V(s) flips the sign of the loss.

Not reproduced: coordinates that are dropped because of a relatively small scale, and NaN caused by
rounding.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import fttpo, published, steps
from fat2thin.algorithms.base import Batch, Metrics, Observations, Problem, Values
from fat2thin.algorithms.fttpo_config import FtTPOConfig
from fat2thin.algorithms.losses import Setting
from fat2thin.policies.networks import Critics, PolicyNetwork, polyak
from fat2thin.policies.policy import Policy

RATIO_LIMIT = 1e4


class PublishedFtTPOState(NamedTuple):
    """Training state of FtTPO with `published=True`."""

    proposal: steps.Learner
    actor: steps.Learner
    value: steps.Learner
    critic: steps.Learner
    target_critic: Critics


def init(key: Key[Array, ""], problem: Problem, config: FtTPOConfig) -> PublishedFtTPOState:
    """Return new networks; proposal and actor start as copies of each other."""
    critic_key, policy_key, value_key = jax.random.split(key, 3)
    critic = steps.start_critic(critic_key, problem, config)
    policy = steps.start_policy(policy_key, problem, config)
    value = steps.start_value(value_key, problem, config)
    return PublishedFtTPOState(policy, policy, value, critic, critic.network)


def update(
    state: PublishedFtTPOState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: FtTPOConfig,
) -> tuple[PublishedFtTPOState, Metrics]:
    """Update in the authors' order: value, critics, proposal, actor, targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)

    # Value: under the actor.
    thin = published.sparse_policy(state.actor.network)
    action = published.sample_within(thin, batch.observation, value_key)
    value_target = state.target_critic.minimum(batch.observation, action)
    value, value_metrics = steps.regress_value(state.value, batch, value_target, config)

    # Critics: under the proposal.
    proposal_policy = published.POLICIES[config.proposal_family]
    fat = proposal_policy(state.proposal.network)
    next_action = published.sample_within(fat, batch.next_observation, critic_key)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    critic, critic_metrics = steps.fit_critic(state.critic, batch, next_value, problem, config)

    # Proposal: regression with weights of at least 1e-8.
    advantage = critic.network.minimum(batch.observation, batch.action)
    advantage -= value.network(batch.observation)
    weight = published.floored_weight(advantage, config.temperature)

    def proposal_loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        density = proposal_policy(network)(batch.observation)
        errors = -weight * density.log_prob(jnp.clip(batch.action, -published.EDGE, published.EDGE))
        return jnp.mean(errors), {"proposal_loss": errors}

    proposal, proposal_metrics = steps.descend(state.proposal, proposal_loss, config)

    # Actor: copy the proposal's trunk and centre, then take a step of all parameters.
    copied = eqx.tree_at(
        lambda network: (network.trunk, network.centre),
        state.actor.network,
        (proposal.network.trunk, proposal.network.centre),
    )
    fat = proposal_policy(proposal.network)

    def loss(network: PolicyNetwork) -> tuple[Array, Metrics]:
        thin = published.sparse_policy(network)
        if config.actor_loss == "spot":
            baseline = value.network(batch.observation)
            inputs = (critic.network, baseline, config.temperature)
            error = spot_loss(thin, fat, *inputs, batch.observation, actor_key)
        else:
            error = actor_loss(thin, fat, batch.observation, actor_key)
        return error, {"actor_loss": error}

    actor, actor_metrics = steps.descend(state.actor._replace(network=copied), loss, config)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)

    thin = published.sparse_policy(actor.network)
    low, high = thin.support(batch.observation)
    inside = steps.inside_support(thin, batch.observation, batch.action)
    metrics = {
        **value_metrics,
        **critic_metrics,
        **proposal_metrics,
        **actor_metrics,
        "weight_mean": jnp.mean(weight),
        "zero_weight_share": jnp.mean(weight <= published.WEIGHT_BOUNDS[0]),
        "half_width": jnp.mean(thin(batch.observation).half_width),
        "proposal_scale": jnp.mean(jnp.exp(fat.network(batch.observation).log_scale / 2.0)),
        "logged_inside_support": jnp.mean(inside),
        "actions_at_edge": jnp.mean(jnp.abs(action) >= published.EDGE),
        "box_binds_share": jnp.mean((low <= -1.0) | (high >= 1.0)),
    }
    return PublishedFtTPOState(proposal, actor, value, critic, target_critic), metrics


def actor_loss(
    thin: Policy,
    fat: Policy,
    observation: Observations,
    key: Key[Array, ""],
    log_density_shift: float = 0.0,
) -> Float[Array, ""]:
    """Return the mean of min(r, 1e4) - 1 - log r at samples of the actor, log proposal detached.

    Here r = proposal / actor. `log_density_shift` is added to the proposal's log density:
    -log(2) / 2 corrects its mass in one dimension, and with only this correction the actor grows to
    its bound.
    """
    action = published.sample_within(thin, observation, key)
    reference = lax.stop_gradient(fat(observation).log_prob(action)) + log_density_shift
    log_ratio = reference - thin(observation).log_prob(action)
    return jnp.mean(jnp.minimum(jnp.exp(log_ratio), RATIO_LIMIT) - 1.0 - log_ratio)


def spot_loss(
    thin: Policy,
    fat: Policy,
    critic: Critics,
    baseline: Values,
    temperature: Setting,
    observation: Observations,
    key: Key[Array, ""],
) -> Float[Array, ""]:
    """Return the mean of -Q / V(s) - tau log proposal at samples of the actor.

    V and log proposal are detached. Where V(s) is negative, the actor minimises Q.
    """
    action = published.sample_within(thin, observation, key)
    reference = lax.stop_gradient(fat(observation).log_prob(action))
    return jnp.mean(-critic.minimum(observation, action) / baseline - temperature * reference)


def policy(state: PublishedFtTPOState, problem: Problem, config: FtTPOConfig) -> Policy:
    """Return the authors' sparse actor, after its own Adam step."""
    unit = published.sparse_policy(state.actor.network)
    return unit.in_box(problem.action_low, problem.action_high)


def proposal(state: PublishedFtTPOState, problem: Problem, config: FtTPOConfig) -> Policy:
    """Return the authors' proposal."""
    unit = published.POLICIES[config.proposal_family](state.proposal.network)
    return unit.in_box(problem.action_low, problem.action_high)


ALGORITHM = published.added_to(
    fttpo.ALGORITHM, init=init, update=update, policy=policy, proposal=proposal,
    critics=steps.learned_critics, value=steps.learned_value,
)  # fmt: skip
