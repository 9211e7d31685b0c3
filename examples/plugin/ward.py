"""A package that adds an algorithm, a policy family, a reader and a task to fat2thin.

    pip install ./examples/plugin
    fat2thin train reward_weighted ward:doses.txt --task ward --steps 1000 --set policy=laplace

fat2thin finds `register` through the entry point in pyproject.toml and calls it when it meets an
unknown name.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions

import fat2thin
from fat2thin.algorithms import Algorithm, steps
from fat2thin.algorithms.configs import ActorConfig, check_regression, positive
from fat2thin.data import Dataset, Reader
from fat2thin.evaluation.returns import Evaluation
from fat2thin.policies.families import Family


@dataclasses.dataclass(frozen=True)
class Laplace(Family):
    """A family: a Laplace distribution per coordinate, not bounded by the action box."""

    def distribution(self, head, low, high):
        """Return a product of Laplace distributions, in the environment's units."""
        scale = (high - low) / 2.0 * jnp.exp(head.log_scale)
        return numpyro.distributions.Laplace(self.centre(head, low, high), scale).to_event(1)


@dataclasses.dataclass(frozen=True)
class RewardWeightedConfig(ActorConfig):
    """Settings of the algorithm: those of every policy, and a temperature."""

    temperature: float = 1.0
    """A lower temperature gives more weight to actions with a high reward."""


class State(NamedTuple):
    """Everything that changes during training."""

    actor: steps.Learner


def check(config):
    """Raise an error for a setting out of range."""
    check_regression(config)
    positive(config, "temperature")


def init(key, problem, config):
    """Return a new network and optimiser."""
    return State(steps.start_policy(key, problem, config))


def update(state, batch, key, problem, config):
    """Do one step of regression on logged actions, weighted by e^(reward / temperature)."""
    weight = jnp.exp(jnp.minimum(batch.reward / config.temperature, 5.0))
    actor, metrics = steps.fit_policy(state.actor, batch, weight, key, config)
    return State(actor), metrics


ALGORITHM = Algorithm(
    name="reward_weighted",
    summary="Regression on logged actions, weighted by their reward",
    config=RewardWeightedConfig,
    check=check,
    init=init,
    update=update,
    policy=steps.acting_policy,
    metrics=steps.REGRESSION_METRICS,
    weighted_loss="actor_loss",
)


def read(name, seed):
    """Read a text file of lines "state dose reward", each an episode of one step."""
    rows = np.loadtxt(name.removeprefix("ward:"), dtype=np.float32, ndmin=2)
    return Dataset(
        name=name,
        observation=rows[:, :1],
        action=rows[:, 1:2],
        reward=rows[:, 2],
        next_observation=rows[:, :1],
        continuation=np.zeros(len(rows), np.float32),
        episode_start=np.arange(len(rows)),
        action_low=(-1.0,),
        action_high=(1.0,),
        discount=0.9,
    )


@dataclasses.dataclass(frozen=True)
class Ward:
    """A task in JAX: the best dose is half the state."""

    def evaluate(self, act, key, episodes):
        """Run episodes of one step."""
        state_key, act_key = jax.random.split(key)
        states = jax.random.uniform(state_key, (episodes, 1), minval=-1.0)
        doses = jax.vmap(act)(jax.random.split(act_key, episodes), states)
        distance = jnp.sum((doses - states / 2.0) ** 2, axis=-1)
        return Evaluation(returns=-distance, measures={"dose": jnp.mean(doses)})

    def references(self):
        """Return no reference policies."""
        return {}


def register():
    """Register everything; fat2thin calls this."""
    fat2thin.register_algorithm(ALGORITHM)
    fat2thin.register_family("laplace", Laplace)
    fat2thin.register_reader(Reader("ward:", read))
    fat2thin.register_task("ward", Ward)
