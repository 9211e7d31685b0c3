"""Support for `published=True`: the policies and weights of the FtTPO authors' code."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution

from fat2thin.algorithms.base import Algorithm, Problem, Values
from fat2thin.algorithms.configs import PolicyConfig
from fat2thin.algorithms.losses import Setting, q_exponential_weight
from fat2thin.distributions import MultivariateQGaussian
from fat2thin.distributions.published import AuthorsProposal, authors_actor
from fat2thin.policies.families import Family, Head, Squashed
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import Policy, unit_policy

EDGE = 1.0 - 1e-6
SPARSE_LOG_BOUNDS = (-14.0, 0.0)
HEAVY_LOG_BOUNDS = (-6.907755, 6.907755)
SQUASHED_BOUNDS = (math.exp(-20.0), math.exp(2.0))
WEIGHT_BOUNDS = (1e-8, 1e4)
WEIGHT_INDEX = 0.0
LOG_DENSITY_FLOOR = -30.0
NO_LIMITS = "published=True computes what the authors' code does, which has no limits; leave it out"


def added_to(corrected: Algorithm, **published: Callable[..., Any]) -> Algorithm:
    """Return `corrected` with functions that are replaced if the setting `published` is True."""

    def choose(part: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            chosen = published if arguments[-1].published else corrected._asdict()
            return chosen[part](*arguments)

        return call

    parts: dict[str, Any] = {part: choose(part) for part in published}
    return corrected._replace(**parts)


class AuthorsNetwork(eqx.Module):
    """A policy network whose log scale is the clipped logarithm of the authors' s."""

    network: PolicyNetwork
    log_bounds: tuple[float, float] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Head:
        """Return the head for each row, with the authors' meaning of the scale."""
        centre, log_spread = self.network(observation)
        return Head(EDGE * jnp.tanh(centre), jnp.clip(log_spread, *self.log_bounds))


@dataclasses.dataclass(frozen=True)
class AuthorsSparseFamily(Family):
    """The authors' actor: an ellipsoid of index 0 with implicit width, clipped to the box."""

    reach: ClassVar[str] = "band"

    def distribution(self, head: Head, low: Array, high: Array) -> MultivariateQGaussian:
        """Return the density on the ellipsoid, in the environment's units."""
        half_range = (high - low) / 2.0
        unit = authors_actor(head.centre, jnp.exp(head.log_scale))
        scale = half_range * unit.half_width / math.sqrt(2.0)
        return MultivariateQGaussian(
            self.centre(head, low, high), 0.0, scale_diag=scale, validate_args=False
        )

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the bounding box of the ellipsoid, clipped to the action box."""
        ellipsoid = self.distribution(head, low, high)
        centre, half_width = ellipsoid.mean, ellipsoid.half_width
        return jnp.clip(centre - half_width, low, high), jnp.clip(centre + half_width, low, high)

    def check_limits(self) -> None:
        """Raise a ValueError: the ellipsoid is clipped, not placed."""
        raise ValueError(NO_LIMITS)


@dataclasses.dataclass(frozen=True)
class AuthorsHeavyFamily(Family):
    """The authors' proposal: an improper density, and Gaussian samples."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return the authors' version of a heavy-tailed density, in the environment's units."""
        squared_scale = ((high - low) / 2.0) ** 2 * jnp.exp(head.log_scale)
        return AuthorsProposal(self.centre(head, low, high), squared_scale, validate_args=False)

    def check_limits(self) -> None:
        """Raise a ValueError: the density is improper."""
        raise ValueError(NO_LIMITS)


def sparse_policy(network: PolicyNetwork) -> Policy:
    """Return the authors' sparse policy, in half-ranges of the box."""
    return _unit(AuthorsNetwork(network, SPARSE_LOG_BOUNDS), AuthorsSparseFamily())


def heavy_policy(network: PolicyNetwork) -> Policy:
    """Return the authors' heavy-tailed policy, in half-ranges of the box."""
    return _unit(AuthorsNetwork(network, HEAVY_LOG_BOUNDS), AuthorsHeavyFamily())


def squashed_policy(network: PolicyNetwork) -> Policy:
    """Return the authors' squashed Gaussian, which is correct, in half-ranges of the box."""
    return unit_policy(network, Squashed(), SQUASHED_BOUNDS)


POLICIES = {
    "sparse_q_gaussian": sparse_policy,
    "q_gaussian": heavy_policy,
    "squashed_gaussian": squashed_policy,
}


def _unit(network: AuthorsNetwork, family: AuthorsSparseFamily | AuthorsHeavyFamily) -> Policy:
    size = network.network.centre.bias.shape[-1]
    return Policy(network, -jnp.ones(size), jnp.ones(size), family)


def acting_policy(state: Any, problem: Problem, config: PolicyConfig) -> Policy:
    """Return the authors' policy of the config's family, in the environment's units."""
    unit = POLICIES[config.policy](state.actor.network)
    return unit.in_box(problem.action_low, problem.action_high)


def sample_within(policy: Policy, observation: Array, key: Key[Array, ""]) -> Array:
    """Return a sample of the policy, kept slightly inside the ends of the box."""
    return jnp.clip(policy(observation).sample(key), -EDGE, EDGE)


def floored_log_density(policy: Policy, observation: Array, action: Array) -> Values:
    """Return the log density, or -30 (without a gradient) where it is -inf."""
    found = policy(observation).log_prob(action)
    return jnp.where(jnp.isfinite(found), found, LOG_DENSITY_FLOOR)


def floored_weight(advantage: Values, temperature: Setting) -> Values:
    """Return 1 + advantage / temperature, clipped to between 1e-8 and 1e4."""
    low, high = WEIGHT_BOUNDS
    return jnp.maximum(q_exponential_weight(advantage, temperature, WEIGHT_INDEX, high), low)
