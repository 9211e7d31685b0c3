"""What TD3+BC and SPOT share: TD3's smoothed targets, its delay, and its way uphill on Q."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.algorithms.checks import between, choice, only_with, whole
from fat2thin.algorithms.config import POLICIES, ActorCriticConfig, check_policy
from fat2thin.policies.networks import TwinCritic
from fat2thin.policies.policy import Policy


@dataclasses.dataclass(frozen=True)
class SmoothedTargetConfig(ActorCriticConfig):
    """Settings of an algorithm that goes uphill on Q as TD3 does."""

    policy: str = choice("deterministic", POLICIES)
    """Family of the policy: "deterministic", or one that is sampled with a gradient through the
    sample: "squashed_gaussian", "clipped_gaussian", "q_gaussian", "student_t", "beta" or
    "sparse_q_gaussian"."""

    delay: int = 2
    """The policy and the targets move once in so many updates."""

    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, in half-ranges of the box."""

    noise_clip: float = 0.5
    """Largest noise on the target policy's actions."""


def check_smoothed_target(config: SmoothedTargetConfig) -> None:
    """Refuse a setting out of range."""
    check_policy(config, POLICIES, "every family can be sampled")
    only_with(
        config, ("outside_support",), False,
        "the loss asks for no density of logged actions, so none can be outside",
    )  # fmt: skip
    whole(config, "delay")
    between(config, "target_noise", 0.0, math.inf, closed_low=True)
    between(config, "noise_clip", 0.0, math.inf, closed_low=True)


def smoothed_next_value(
    policy: Policy,
    critic: TwinCritic,
    observation: Float[Array, "batch observation"],
    key: Key[Array, ""],
    config: SmoothedTargetConfig,
) -> Float[Array, " batch"]:
    """min Q(s', a') at an action of the target policy with clipped noise, in the box."""
    action_key, noise_key = jax.random.split(key)
    action = policy.act(observation, action_key)
    noise = config.target_noise * jax.random.normal(noise_key, action.shape)
    noise = jnp.clip(noise, -config.noise_clip, config.noise_clip)
    return critic.minimum(observation, jnp.clip(action + noise, -1.0, 1.0))


def scaled_value(
    critic: TwinCritic, observation: Float[Array, "batch observation"], action: Array
) -> Float[Array, ""]:
    """Mean of the first critic over its mean size, which carries no gradient."""
    values = critic(observation, action)[0]
    return jnp.mean(values) / lax.stop_gradient(jnp.mean(jnp.abs(values)))
