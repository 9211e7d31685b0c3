"""Behaviour cloning: maximum likelihood of logged actions. Rewards are not used.

One update minimises

    policy  -log policy(a | s)                                              a from the log
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import Algorithm, Automatic, Batch, Metrics, Problem


@dataclasses.dataclass(frozen=True)
class BCConfig(configs.ActorConfig):
    """Settings of behaviour cloning."""


class BCState(NamedTuple):
    """Training state of behaviour cloning."""

    actor: steps.Learner


def init(key: Key[Array, ""], problem: Problem, config: BCConfig) -> BCState:
    """Return a new network and optimiser."""
    return BCState(steps.start_policy(key, problem, config))


def update(
    state: BCState, batch: Batch, key: Key[Array, ""], problem: Problem, config: BCConfig
) -> tuple[BCState, Metrics]:
    """Update the policy by regression with equal weights."""
    weight = jnp.ones_like(batch.reward)
    actor, metrics = steps.fit_policy(state.actor, batch, weight, key, config)
    return BCState(actor), metrics


ALGORITHM = Algorithm(
    name="bc",
    summary="Behaviour cloning: imitate logged actions, without regard to rewards",
    config=BCConfig,
    check=configs.check_regression,
    init=init,
    update=update,
    policy=steps.acting_policy,
    metrics=steps.REGRESSION_METRICS,
    weighted_loss="actor_loss",
    learns_limits=True,
    automatic=Automatic(noisy={}),
)
