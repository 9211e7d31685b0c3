"""What regression does with logged actions that a sparse policy cannot take."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Key

from fat2thin.policies.policy import Policy

OUTSIDE_RULES = ("replace", "project")
REPLACEMENT_SAMPLES = 100
PROJECTED_SHARE = 0.9


def inside_support(
    policy: Policy, observation: Float[Array, "batch observation"], action: Array
) -> Bool[Array, " batch"]:
    """Which actions lie between the ends of the policy's support."""
    low, high = policy.support(observation)
    return jnp.all((low <= action) & (action <= high), axis=-1)


def regressed_action(
    policy: Policy,
    observation: Float[Array, "batch observation"],
    action: Float[Array, "batch action"],
    rule: str | None,
    key: Key[Array, ""],
) -> Float[Array, "batch action"]:
    """The actions whose likelihood is raised: the logged ones, but for those outside the support.

    "replace" takes the nearest of a hundred samples of the policy (random action replacement),
    "project" the nearest point of the middle 90 % of the band. Neither carries a gradient.
    """
    if rule is None:
        return action
    instead = _REPLACEMENTS[rule](policy, observation, action, key)
    # The density itself is asked: it knows an ellipsoid from its box, and its own rounding.
    inside = jnp.isfinite(policy(observation).log_prob(action))
    return lax.stop_gradient(jnp.where(inside[:, None], action, instead))


def _nearest_sample(policy: Policy, observation: Array, action: Array, key: Array) -> Array:
    samples = policy(observation).sample(key, (REPLACEMENT_SAMPLES,))
    nearest = jnp.argmin(jnp.sum((samples - action[None]) ** 2, axis=-1), axis=0)
    return jnp.take_along_axis(samples, nearest[None, :, None], axis=0)[0]


def _nearest_point(policy: Policy, observation: Array, action: Array, key: Array) -> Array:
    del key
    low, high = policy.support(observation)
    centre, reach = (low + high) / 2.0, PROJECTED_SHARE * (high - low) / 2.0
    return jnp.clip(action, centre - reach, centre + reach)


_REPLACEMENTS = {"replace": _nearest_sample, "project": _nearest_point}
