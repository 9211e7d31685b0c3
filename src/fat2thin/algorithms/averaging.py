"""A policy that acts as the average of what was learned lately."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Key

from fat2thin.algorithms.base import Algorithm, Batch, Metrics, Problem, State
from fat2thin.networks import polyak
import jax, jax.numpy as jnp


class Averaged(NamedTuple):
    """What learns, and its moving average."""

    learning: State
    average: State


def with_average(algorithm: Algorithm) -> Algorithm:
    """The algorithm, with the setting `average_rate`."""

    def init(key: Key[Array, ""], problem: Problem, config: Any) -> State:
        state = algorithm.init(key, problem, config)
        return state if config.average_rate is None else Averaged(state, state)

    def averaging(update: Callable) -> Callable:
        def call(
            state: State, batch: Batch, key: Key[Array, ""], problem: Problem, config: Any
        ) -> tuple[State, Metrics]:
            if config.average_rate is None:
                return update(state, batch, key, problem, config)
            learning, metrics = update(state.learning, batch, key, problem, config)
            average = jax.tree.map(
                lambda old, new: (
                    old + config.average_rate * (new - old)
                    if jnp.issubdtype(new.dtype, jnp.inexact)
                    else new
                ),
                state.average,
                learning,
            )
            return Averaged(learning, average), metrics

        return call

    def of_average(policy: Callable) -> Callable:
        def call(state: State, problem: Problem, config: Any) -> Any:
            state = state if config.average_rate is None else state.average
            return policy(state, problem, config)

        return call

    preparation = algorithm.preparation
    if preparation is not None:
        preparation = preparation._replace(update=averaging(preparation.update))
    return algorithm._replace(
        init=init,
        update=averaging(algorithm.update),
        policy=of_average(algorithm.policy),
        proposal=of_average(algorithm.proposal) if algorithm.proposal else None,
        preparation=preparation,
    )
