"""A tiny algorithm, tiny data and a tiny task, so that a run compiles in a second."""

import dataclasses
from types import SimpleNamespace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from fat2thin import algorithms
from fat2thin.algorithms import Algorithm
from fat2thin.data import Dataset, Reader, readers
from fat2thin.evaluation import returns
from fat2thin.evaluation.returns import Evaluation, Reference
from fat2thin.policies.families import Head, Squashed
from fat2thin.policies.policy import Policy

TRACES: list[str] = []
"""One entry per trace of an update."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the stand-in."""

    learning_rate: float = 0.1
    """Step of the descent; the usual
    range is wide."""
    noise: float = 0.01
    """Noise of the targets, drawn at every update."""
    bad_identity: float = -1.0
    """A job with this identity breaks ..."""
    bad_update: float = 0.0
    """... at this update, counted from 0 ..."""
    bad_place: float = 0.0
    """... in the loss (0), the reward (1) or the state (2)."""
    widths: tuple[int, ...] = (8,)
    """Not used."""
    limit: float | None = None
    rounds: int = 1
    loud: bool = False
    name: str = "plain"


class State(NamedTuple):
    weight: Array
    updates: Array
    identity: Array


def check(config):
    if not config.learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {config.learning_rate}")


def init(key, problem, config):
    weight = jax.random.uniform(key, (problem.observation_size, problem.action_size))
    return State(weight, jnp.int32(0), weight[0, 0])


def update(state, batch, key, problem, config):
    TRACES.append("update")
    target = batch.action + config.noise * jax.random.uniform(key, batch.action.shape)

    def loss_of(weight):
        return jnp.mean((batch.observation @ weight - target) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state.weight)
    breaks = (state.identity == config.bad_identity) & (state.updates == config.bad_update)
    poison = jnp.where(breaks & (config.bad_place == jnp.arange(3.0)), jnp.nan, 0.0)
    weight = state.weight - config.learning_rate * gradient + poison[2]
    metrics = {"reward": jnp.mean(batch.reward) + poison[1], "loss": loss + poison[0]}
    return State(weight, state.updates + 1, state.identity), metrics


class LinearNetwork(eqx.Module):
    weight: Array
    log_scale: float = eqx.field(static=True)

    def __call__(self, observation):
        centre = observation @ self.weight
        return Head(centre, jnp.full_like(centre, self.log_scale))


def _policy(log_scale):
    def make(state, problem, config):
        low, high = jnp.asarray(problem.action_low), jnp.asarray(problem.action_high)
        return Policy(LinearNetwork(state.weight, log_scale), low, high, Squashed())

    return make


STAND_IN = Algorithm(
    name="stand_in",
    summary="Regression on logged actions",
    config=Config,
    check=check,
    init=init,
    update=update,
    policy=_policy(-3.0),
    proposal=_policy(0.0),
)


def make_dataset(name="tiny/shared", seed=0, rows=40):
    generator = np.random.default_rng(seed)
    observation = generator.normal(size=(rows, 3)).astype(np.float32)
    return Dataset(
        name=name,
        observation=observation,
        action=generator.uniform(-2.0, 4.0, size=(rows, 2)).astype(np.float32),
        reward=generator.normal(size=rows).astype(np.float32),
        next_observation=observation[::-1],
        continuation=np.ones(rows, np.float32),
        episode_start=np.arange(0, rows, 10),
        action_low=(-2.0, -2.0),
        action_high=(4.0, 4.0),
        discount=0.9,
    )


@dataclasses.dataclass(frozen=True)
class TinyTask:
    """One step per episode; the reward is minus the squared length of the action."""

    def evaluate(self, act, key, episodes):
        keys = jax.random.split(key, episodes)
        observations = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
        actions = jax.vmap(act)(keys, observations)
        lengths = jnp.sum(actions**2, axis=-1)
        return Evaluation(returns=-lengths, measures={"first": jnp.mean(observations[:, 0])})

    def references(self):
        return {"nothing": Reference(0.0, 0.5, {"first": 0.0}, "no action at all")}


@pytest.fixture(autouse=True)
def tiny_world(monkeypatch):
    """Register the stand-in, tiny/shared, tiny/own (one log per seed) and bare/ (no task)."""
    monkeypatch.setitem(algorithms._REGISTRY, "stand_in", STAND_IN)

    def shared(name, seed):
        return make_dataset(name, 0)

    monkeypatch.setitem(readers._READERS, "tiny/shared", Reader("tiny/shared", shared))
    own = Reader("tiny/own", make_dataset, lambda: ("tiny/own",), one_a_seed=True)
    monkeypatch.setitem(readers._READERS, "tiny/own", own)
    monkeypatch.setitem(readers._READERS, "bare/", Reader("bare/", shared))
    monkeypatch.setitem(returns._EVALUATORS, "tiny/", lambda name: TinyTask())
    return SimpleNamespace(algorithm=STAND_IN, config=Config, dataset=make_dataset, traces=TRACES)


@pytest.fixture
def without_type_checks(monkeypatch):
    """Turn off the type checks of the tests, which would reject some arguments before our code."""
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
