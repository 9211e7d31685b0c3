"""FtTPO as the authors' code computes it, for comparison only (`published=True`).

The same five steps as in `fttpo`, with what the specification lists as defects kept in place:
the proposal's density has the wrong mass and its samples are Gaussian, the actor's width is
implicit, V is evaluated under the actor and Q under the proposal, weights are floored at 1e-8,
the actor's loss is the biased estimator r - 1 - log r with the proposal's density detached, and
one Adam drives all of the actor's parameters although trunk and centre are overwritten at every
update. Not reproduced: coordinates dropped for a relatively small scale, and NaN by rounding.
"""

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution

from fat2thin.algorithms.base import Batch, Metrics, Problem
from fat2thin.algorithms.fttpo_config import FtTPOConfig
from fat2thin.algorithms.learner import Learner, descend, start
from fat2thin.distributions import MultivariateQGaussian
from fat2thin.distributions.published import AuthorsProposal, authors_actor
from fat2thin.losses import (
    half_squared_error,
    q_exponential_weight,
    temporal_difference_target,
    twin_critic_loss,
)
from fat2thin.networks import PolicyNetwork, ScalarNetwork, TwinCritic, polyak
from fat2thin.policies import Head, Policy

EDGE = 1.0 - 1e-6
ACTOR_LOG_BOUNDS = (-14.0, 0.0)
PROPOSAL_LOG_BOUNDS = (-6.907755, 6.907755)
WEIGHT_BOUNDS = (1e-8, 1e4)
RATIO_LIMIT = 1e4
WEIGHT_INDEX = 0.0


class State(NamedTuple):
    """Everything that changes during training."""

    proposal: Learner
    actor: Learner
    value: Learner
    critic: Learner
    target_critic: TwinCritic


class AuthorsNetwork(eqx.Module):
    """Observation to a head whose log scale is the log of the authors' s, clipped."""

    network: PolicyNetwork
    log_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """The head, in their meaning."""
        centre, log_spread = self.network(observation)
        return Head(EDGE * jnp.tanh(centre), jnp.clip(log_spread, *self.log_bounds))


@dataclasses.dataclass(frozen=True)
class AuthorsSparseFamily:
    """Their actor: a q = 0 ellipsoid of implicit width, clipped to the box when it acts."""

    def distribution(self, head: Head, low: Array, high: Array) -> MultivariateQGaussian:
        """The ellipsoid, in the environment's units."""
        half_range = (high - low) / 2.0
        unit = authors_actor(head.centre, jnp.exp(head.log_scale))
        scale = half_range * unit.half_width / math.sqrt(2.0)
        return MultivariateQGaussian(
            self.centre(head, low, high), 0.0, scale_diag=scale, validate_args=False
        )

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its middle."""
        return (low + high) / 2.0 + (high - low) / 2.0 * head.centre

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The box around the ellipsoid, cut at the action box."""
        ellipsoid = self.distribution(head, low, high)
        ends = ellipsoid.mean - ellipsoid.half_width, ellipsoid.mean + ellipsoid.half_width
        return jnp.clip(ends[0], low, high), jnp.clip(ends[1], low, high)


@dataclasses.dataclass(frozen=True)
class AuthorsHeavyFamily:
    """Their proposal: an improper density, and Gaussian samples."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """What they take for a heavy-tailed density, in the environment's units."""
        squared_scale = ((high - low) / 2.0) ** 2 * jnp.exp(head.log_scale)
        return AuthorsProposal(self.centre(head, low, high), squared_scale, validate_args=False)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its middle."""
        return (low + high) / 2.0 + (high - low) / 2.0 * head.centre

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The real line."""
        return jnp.full_like(head.centre, -jnp.inf), jnp.full_like(head.centre, jnp.inf)


def init(key: Key[Array, ""], problem: Problem, config: FtTPOConfig) -> State:
    """Fresh networks; proposal and actor start as copies of each other."""
    keys = jax.random.split(key, 3)
    sizes = (problem.observation_size, problem.action_size, config.hidden)
    critic = TwinCritic(keys[0], *sizes)
    network = PolicyNetwork(keys[1], *sizes)
    return State(
        proposal=start(network),
        actor=start(network),
        value=start(ScalarNetwork(keys[2], problem.observation_size, config.hidden)),
        critic=start(critic),
        target_critic=critic,
    )


def update(
    state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: FtTPOConfig
) -> tuple[State, Metrics]:
    """One update in the authors' order: value, critics, proposal, actor, targets."""
    value_key, critic_key, actor_key = jax.random.split(key, 3)
    rates = (config.learning_rate, config.adam_beta_2)

    action = jnp.clip(_actor(state.actor.network)(batch.observation).sample(value_key), -EDGE, EDGE)
    value_target = state.target_critic.minimum(batch.observation, action)

    def value_loss(network: ScalarNetwork) -> tuple[Array, Array]:
        prediction = network(batch.observation)
        return jnp.mean(half_squared_error(prediction, value_target)), jnp.mean(prediction)

    value, value_error, v_mean = descend(state.value, value_loss, *rates)

    fat = _proposal(state.proposal.network)
    next_action = jnp.clip(fat(batch.next_observation).sample(critic_key), -EDGE, EDGE)
    next_value = state.target_critic.minimum(batch.next_observation, next_action)
    target = temporal_difference_target(
        batch.reward, batch.continuation, problem.discount, next_value
    )

    def critic_loss(network: TwinCritic) -> tuple[Array, Array]:
        values = network(batch.observation, batch.action)
        return jnp.mean(twin_critic_loss(values, target)), jnp.mean(values)

    critic, critic_error, q_mean = descend(state.critic, critic_loss, *rates)

    advantage = critic.network.minimum(batch.observation, batch.action) - value.network(
        batch.observation
    )
    weight = jnp.maximum(
        q_exponential_weight(advantage, config.temperature, WEIGHT_INDEX, WEIGHT_BOUNDS[1]),
        WEIGHT_BOUNDS[0],
    )

    def proposal_loss(network: PolicyNetwork) -> tuple[Array, None]:
        logged = jnp.clip(batch.action, -EDGE, EDGE)
        return -jnp.mean(weight * _proposal(network)(batch.observation).log_prob(logged)), None

    proposal, proposal_error, _ = descend(state.proposal, proposal_loss, *rates)

    copied = eqx.tree_at(
        lambda network: (network.trunk, network.centre),
        state.actor.network,
        (proposal.network.trunk, proposal.network.centre),
    )

    def loss(network: PolicyNetwork) -> tuple[Array, None]:
        thin, fat = _actor(network), _proposal(proposal.network)
        return actor_loss(thin, fat, batch.observation, actor_key), None

    actor, actor_error, _ = descend(state.actor._replace(network=copied), loss, *rates)
    target_critic = polyak(state.target_critic, critic.network, config.polyak_rate)

    low, high = _actor(actor.network).support(batch.observation)
    metrics = {
        "value_loss": value_error,
        "critic_loss": critic_error,
        "proposal_loss": proposal_error,
        "actor_loss": actor_error,
        "q_mean": q_mean,
        "v_mean": v_mean,
        "weight_mean": jnp.mean(weight),
        "zero_weight_share": jnp.mean(weight <= WEIGHT_BOUNDS[0]),
        "half_width": jnp.mean(_actor(actor.network)(batch.observation).half_width),
        "proposal_scale": jnp.mean(
            jnp.exp(_proposal(proposal.network).network(batch.observation).log_scale / 2.0)
        ),
        "logged_inside_support": jnp.mean(
            jnp.all((low <= batch.action) & (batch.action <= high), axis=-1)
        ),
        "actions_at_edge": jnp.mean(jnp.abs(action) >= EDGE),
        "box_binds_share": jnp.mean((low <= -1.0) | (high >= 1.0)),
    }
    return State(proposal, actor, value, critic, target_critic), metrics


def actor_loss(
    thin: Policy,
    fat: Policy,
    observation: Float[Array, "batch observation"],
    key: Key[Array, ""],
    log_density_shift: float = 0.0,
) -> Float[Array, ""]:
    """Mean of min(r, 1e4) - 1 - log r at samples of the actor, log proposal detached.

    `log_density_shift` is added to the proposal's log density: -log(2) / 2 repairs its mass in
    one dimension, and with that alone the actor grows to its bound.
    """
    action = jnp.clip(thin(observation).sample(key), -EDGE, EDGE)
    reference = lax.stop_gradient(fat(observation).log_prob(action)) + log_density_shift
    log_ratio = reference - thin(observation).log_prob(action)
    return jnp.mean(jnp.minimum(jnp.exp(log_ratio), RATIO_LIMIT) - 1.0 - log_ratio)


def policy(state: State, problem: Problem, config: FtTPOConfig) -> Policy:
    """Their sparse actor, as it stands after its own Adam step."""
    return _actor(state.actor.network, problem)


def proposal(state: State, problem: Problem, config: FtTPOConfig) -> Policy:
    """Their proposal."""
    return _proposal(state.proposal.network, problem)


def _box(network: PolicyNetwork, problem: Problem | None) -> tuple[Array, Array]:
    if problem is None:
        size = network.centre.bias.shape[-1]
        return -jnp.ones(size), jnp.ones(size)
    return jnp.asarray(problem.action_low), jnp.asarray(problem.action_high)


def _actor(network: PolicyNetwork, problem: Problem | None = None) -> Policy:
    wrapped = AuthorsNetwork(network, ACTOR_LOG_BOUNDS)
    return Policy(wrapped, *_box(network, problem), AuthorsSparseFamily())


def _proposal(network: PolicyNetwork, problem: Problem | None = None) -> Policy:
    wrapped = AuthorsNetwork(network, PROPOSAL_LOG_BOUNDS)
    return Policy(wrapped, *_box(network, problem), AuthorsHeavyFamily())
