"""Features of states and actions: quadratic ones, and a hidden layer of fixed random units.

    φ = (1, s, s², a, aᵢaⱼ, sᵢaⱼ, cos(U (s, a) + b)),        U and b are drawn once

A linear function of φ is a network with one hidden layer whose weights are not trained (random
features, Rahimi and Recht 2007), so its output layer is found by solving one linear system.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from fat2thin.data.predictability import quadratic_features

FARTHEST = 5.0
"""Standard deviations beyond which a column counts no farther."""


class Basis(NamedTuple):
    """The random units."""

    weights: Float[Array, "columns units"]
    phase: Float[Array, " units"]


def random_basis(key: Key[Array, ""], columns: int, units: int) -> Basis:
    """Draw units whose argument has about the same spread for any number of columns."""
    of_weights, of_phase = jax.random.split(key)
    weights = jax.random.normal(of_weights, (columns, units)) / np.sqrt(max(columns, 1))
    return Basis(weights, jax.random.uniform(of_phase, (units,), maxval=2.0 * np.pi))


def features(
    observation: Float[Array, "rows observation"], action: Float[Array, "rows action"], basis: Basis
) -> Float[Array, "rows features"]:
    """Return φ of each row, standardised columns in."""
    observation, action = (
        jnp.clip(columns, -FARTHEST, FARTHEST) for columns in (observation, action)
    )
    both = jnp.concatenate([observation, action], axis=1)
    units = jnp.cos(both @ basis.weights + basis.phase[None])
    return jnp.concatenate([quadratic_features(observation, action), units], axis=1)


def mean_features(
    observation: Float[Array, "rows observation"], actions: Float[Array, "rows draws action"],
    basis: Basis,
) -> Float[Array, "rows features"]:  # fmt: skip
    """Return the mean of φ over the draws of the action in each row."""

    def add(total: Array, action: Array) -> tuple[Array, None]:
        return total + features(observation, action, basis), None

    draws = jnp.moveaxis(actions, 1, 0)
    first = features(observation, draws[0], basis)
    return jax.lax.scan(add, first, draws[1:])[0] / len(draws)


class Bases(NamedTuple):
    """The random units of features of states with actions, and of states alone."""

    both: Basis
    states: Basis


def draw_bases(key: Key[Array, ""], observation: int, action: int, units: int) -> Bases:
    """Draw the random units for logs with these numbers of columns."""
    keys = jax.random.split(key)
    both = random_basis(keys[0], observation + action, units)
    return Bases(both, random_basis(keys[1], observation, units))
