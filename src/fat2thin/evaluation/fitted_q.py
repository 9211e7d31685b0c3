"""Fitted Q evaluation: what a policy is worth by a log alone, with a model that can hardly overfit.

Q(s, a) = w · φ(s, a) with few features,

    φ = (1, s, s², a, aᵢaⱼ, sᵢaⱼ)        s standardised, a in half-ranges of the box,

and w solves the projected Bellman equation of the policy (LSTD-Q, Lagoudakis and Parr 2003) with a
ridge,

    [Φᵀ(Φ − γ c Φ') / n + λ D] w = Φᵀ r / n,        Φ' = E φ(s', a'),  a' ~ policy,

where D leaves the constant alone. A policy's value is the mean of w · E φ(s, a) over given states.

Nothing keeps such an estimate within what rewards allow: where rows are few, it can be anything.
One that is outside is not estimable, and nan.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from fat2thin.algorithms.base import Batch
from fat2thin.data.predictability import quadratic_features

RIDGE = 10.0  # the ridge λ is this over the number of different rows
ACTIONS = 4  # actions a state that expectations are taken over
ROUNDING = 1e-4
"""Part of the largest return by which an estimate at an end of the range may miss it: systems are
solved in float32."""

Act = Callable[[Float[Array, "rows observation"], Key[Array, ""]], Float[Array, "rows action"]]
"""Actions of a policy, in half-ranges of the box."""


class Part(NamedTuple):
    """Rows of a log."""

    rows: Batch
    different: float | Float[Array, ""]  # how many of them there are, each counted once


class Scale(NamedTuple):
    """What observations are standardised with."""

    mean: Float[Array, " observation"]
    deviation: Float[Array, " observation"]


def scale_of(observation: Float[Array, "rows observation"]) -> Scale:
    """Mean and standard deviation of every column."""
    return Scale(jnp.mean(observation, axis=0), jnp.std(observation, axis=0) + 1e-3)


def features(
    observation: Float[Array, "rows observation"], action: Float[Array, "rows action"], scale: Scale
) -> Float[Array, "rows features"]:
    """Return φ(s, a) of each row."""
    return quadratic_features((observation - scale.mean[None]) / scale.deviation[None], action)


def expected_features(
    observation: Float[Array, "rows observation"], act: Act, key: Key[Array, ""], scale: Scale
) -> Float[Array, "rows features"]:
    """E φ(s, a) for a ~ policy, from a few actions a state."""
    keys = jax.random.split(key, ACTIONS)
    of_draws = jax.vmap(lambda one: features(observation, act(observation, one), scale))(keys)
    return jnp.mean(of_draws, axis=0)


def fit(
    part: Part, act: Act, key: Key[Array, ""], discount: float, scale: Scale
) -> Float[Array, " features"]:
    """The weights w of the policy's Q."""
    rows = part.rows
    here = features(rows.observation, rows.action, scale)
    following = expected_features(rows.next_observation, act, key, scale)
    length, size = here.shape
    change = here - discount * rows.continuation[:, None] * following
    free = jnp.ones(size, here.dtype).at[0].set(0.0)
    # Without it a GPU would round the products to about three digits.
    with jax.default_matmul_precision("highest"):
        system = here.T @ change / length + (RIDGE / part.different) * jnp.diag(free)
        return solve(system, here.T @ rows.reward / length)


def solve(matrix: Float[Array, "size size"], right: Float[Array, " size"]) -> Float[Array, " size"]:
    """The x of matrix @ x = right, by Gauss-Jordan elimination with partial pivoting.

    `jnp.linalg.solve` would do, but for this: batches of LU factorisations that run side by side on
    two CPU threads wait for each other for ever (jaxlib 0.10.2).
    """
    rows = jnp.arange(len(right))

    def eliminate(place: Int[Array, ""], system: Array) -> Array:
        largest = jnp.argmax(jnp.where(rows >= place, jnp.abs(system[:, place]), -1.0))
        pivot = system[largest] / system[largest, place]
        system = system.at[largest].set(system[place])
        return (system - system[:, place, None] * pivot[None]).at[place].set(pivot)

    whole = jnp.concatenate([matrix, right[:, None]], axis=1)
    return lax.fori_loop(0, len(right), eliminate, whole)[:, -1]


def part_values(
    one: Part, other: Part, act: Act, key: Key[Array, ""], discount: float,
    reachable: Float[Array, "2"],
) -> Float[Array, "2"]:  # fmt: skip
    """The policy's mean value in the states of the first part by the second's Q, and vice versa.

    nan where it is not estimable: outside the `reachable` returns (`data.operations`).
    """
    scale = scale_of(jnp.concatenate([one.rows.observation, other.rows.observation]))
    fit_key, judge_key = jax.random.split(key)

    def value(fitted: Part, judged: Part) -> Array:
        weights = fit(fitted, act, fit_key, discount, scale)
        return jnp.mean(expected_features(judged.rows.observation, act, judge_key, scale) @ weights)

    values = jnp.stack([value(other, one), value(one, other)])
    low, high = reachable
    # Rounding alone puts no value out of range.
    margin = ROUNDING * jnp.max(jnp.where(jnp.isfinite(reachable), jnp.abs(reachable), 0.0))
    allowed = (low - margin <= values) & (values <= high + margin)
    return jnp.where(allowed, jnp.clip(values, low, high), jnp.nan)


def constant(action: Float[Array, " action"]) -> Act:
    """The policy that always does the same."""
    return lambda observation, key: jnp.broadcast_to(action, (len(observation), len(action)))


class BestConstant(NamedTuple):
    """The constant action with the largest estimated value."""

    action: Float[Array, " action"]
    value: Float[Array, ""]
    """nan where the value of none is estimable; then the action means nothing."""


def best_constant(
    one: Part, other: Part, candidates: Float[Array, "candidates action"], discount: float,
    reachable: Float[Array, "2"],
) -> BestConstant:  # fmt: skip
    """The best of some constant actions: chosen by one part's Q, its value told by the other's."""
    key = jax.random.key(0)  # a constant action draws nothing
    # One after the other: the systems of many at once would want gigabytes for wide logs.
    values = lax.map(
        lambda action: part_values(one, other, constant(action), key, discount, reachable),
        candidates,
    )
    estimable = jnp.all(jnp.isfinite(values), axis=1, keepdims=True)
    by_other, by_one = jnp.where(estimable, values, -jnp.inf).T
    chosen = jnp.argmax(by_one + by_other)
    told = (by_other[jnp.argmax(by_one)] + by_one[jnp.argmax(by_other)]) / 2.0
    return BestConstant(candidates[chosen], jnp.where(jnp.any(estimable), told, jnp.nan))
