"""ReBRAC (Tarasov et al., NeurIPS 2023): TD3+BC with penalties in the policy and in the critics.

With slow targets of the policy and of Q, and mean |Q| over the batch as a constant, one update
minimises

    Q       (Q(s, a) - r - gamma (min target Q(s', a') - beta_2 |a' - c|^2))^2 / 2
    policy  -min Q(s, b) / mean |min Q| + beta_1 |b - a|^2        b = policy(s), a from the log

where a' = target policy(s') + noise and c is the logged action of the next step. At the last row of
an episode there is none, and the penalty of Q is left out. Critics have layer normalisation.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, steps, td3_bc
from fat2thin.algorithms.base import (
    Actions,
    Algorithm,
    Automatic,
    Batch,
    Meaning,
    Metrics,
    Problem,
    Values,
)
from fat2thin.policies.networks import Critics, PolicyNetwork


@dataclasses.dataclass(frozen=True)
class ReBRACConfig(td3_bc.SmoothedTargetConfig):
    """Settings of ReBRAC."""

    learning_rate: float = 1e-3
    """Adam's learning rate for every network; usually 3e-5 to 1e-3."""

    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of every network."""

    layer_norm: bool = True
    """Whether the critics normalise the output of each hidden layer."""

    actor_penalty: float = 0.01
    """beta_1: weight of the squared distance to logged actions in the policy's loss, against Q
    divided by its mean size. The paper uses 0.001 to 0.1, depending on the task."""

    critic_penalty: float = 0.01
    """beta_2: weight of the squared distance to the next logged action in the critics' targets, in
    units of the reward. The paper uses 0.001 to 0.5, depending on the task."""


def check(config: ReBRACConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    td3_bc.check_smoothed_target(config)
    configs.positive(config, "actor_penalty", "critic_penalty", zero=True)


def update(
    state: td3_bc.TD3BCState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: ReBRACConfig,
) -> tuple[td3_bc.TD3BCState, Metrics]:
    """Update the critics and, every `delay` updates, the policy and the targets."""
    next_action, next_logged = batch.next_action, batch.next_logged
    if next_action is None or next_logged is None:
        raise ValueError(
            "ReBRAC needs the next logged actions: make the rows with "
            "batch_of(dataset, next_action=True)"
        )
    critic_key, actor_key = jax.random.split(key)

    # Critics: next actions far from the logged ones are worth less.
    next_action = steps.nearest_allowed(next_action, batch.next_allowed)

    def penalty(action: Actions) -> Values:
        return config.critic_penalty * next_logged * squared_distance(action, next_action)

    # Policy: maximise the smallest critic, close to logged actions.
    def loss(network: PolicyNetwork, critic: Critics) -> tuple[Array, Metrics]:
        policy = steps.learned_policy(network, config).within(batch.allowed)
        action = policy.act(batch.observation, actor_key)
        logged = steps.nearest_allowed(batch.action, batch.allowed)
        distance = squared_distance(action, logged)
        value = td3_bc.scaled_value(critic.minimum(batch.observation, action), problem)
        error = config.actor_penalty * jnp.mean(distance) - value
        return error, {"actor_loss": error, "logged_distance": distance}

    return td3_bc.delayed_update(state, batch, critic_key, loss, problem, config, penalty)


def squared_distance(action: Actions, logged: Actions) -> Values:
    """Return the squared distance of two actions, summed over the coordinates."""
    return jnp.sum((action - logged) ** 2, axis=-1)


ALGORITHM = Algorithm(
    name="rebrac",
    summary="ReBRAC: TD3+BC with penalties in the policy and in the critics, and layer norm",
    config=ReBRACConfig,
    check=check,
    init=td3_bc.init,
    update=update,
    policy=steps.acting_policy,
    critics=steps.learned_critics,
    metrics={
        "logged_distance": Meaning(
            "squared distance of the policy's actions to the logged ones, sum over coordinates",
            "falls with a larger `actor_penalty`; far above the log's own variance means that the "
            "policy leaves the log",
        ),
        **steps.CRITIC_METRICS,
        **steps.POLICY_METRICS,
    },
    learns_limits=True,
    automatic=Automatic(noisy={}),
    next_action=True,
)
