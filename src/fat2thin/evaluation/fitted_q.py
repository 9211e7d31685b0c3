"""Fitted Q evaluation: the value of a policy from a log, with a model too small to overfit much.

Q(s, a) = w · φ(s, a) with few features,

    φ = (1, s, s², a, aᵢaⱼ, sᵢaⱼ)        s standardised, a in half-ranges of the box,

and w solves the projected Bellman equation of the policy (LSTD-Q, Lagoudakis and Parr 2003) with a
ridge,

    [Φᵀ(Φ − γ c Φ') / n + λ D] w = Φᵀ r / n,        Φ' = E φ(s', a'),  a' ~ policy,

where D does not penalise the constant. A policy's value is the mean of w · E φ(s, a) over given
states.

With few rows such an estimate can lie outside the range that the rewards allow. The value is then
not estimable, and is returned as nan.

This is a signal that compares steps of one run. It is not `evaluation.value`, which says what a
finished policy is worth. It is computed inside the compiled training loop, so it has one small
system to solve, where `value` fits one for each step of a horizon, weights and densities, and takes
seconds. It must be a number at every step, where `value` may refuse. It has no interval, and no
page, warning or table reports it as the worth of a policy.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from fat2thin.algorithms.base import Batch
from fat2thin.data.predictability import quadratic_features

RIDGE = 10.0  # the ridge λ is this divided by the number of distinct rows
ACTIONS = 4  # sampled actions per state in an expectation
ROUNDING = 1e-4
"""Tolerance at the ends of the range of returns, as a share of the largest: systems are solved in
float32."""

Act = Callable[..., Float[Array, "rows action"]]
"""`act(observation, key)` returns a policy's actions, in half-ranges of the box. Where there are
limits it is `act(observation, key, allowed)`, with the lowest and the highest allowed actions."""


class Part(NamedTuple):
    """One part of a log."""

    rows: Batch
    different: float | Float[Array, ""]
    """Number of distinct rows."""


class Scale(NamedTuple):
    """Mean and standard deviation that observations are standardised with."""

    mean: Float[Array, " observation"]
    deviation: Float[Array, " observation"]


def scale_of(observation: Float[Array, "rows observation"]) -> Scale:
    """Return the mean and standard deviation of every column."""
    return Scale(jnp.mean(observation, axis=0), jnp.std(observation, axis=0) + 1e-3)


def features(
    observation: Float[Array, "rows observation"], action: Float[Array, "rows action"], scale: Scale
) -> Float[Array, "rows features"]:
    """Return φ(s, a) of each row."""
    return quadratic_features((observation - scale.mean[None]) / scale.deviation[None], action)


def expected_features(
    observation: Float[Array, "rows observation"], act: Act, key: Key[Array, ""], scale: Scale,
    allowed: tuple[Array, Array] | None = None,
) -> Float[Array, "rows features"]:  # fmt: skip
    """Return an estimate of E φ(s, a) for a ~ policy, from `ACTIONS` samples per state."""
    keys, limits = jax.random.split(key, ACTIONS), () if allowed is None else (allowed,)
    of_draws = jax.vmap(lambda one: features(observation, act(observation, one, *limits), scale))(
        keys
    )
    return jnp.mean(of_draws, axis=0)


def fit(
    part: Part, act: Act, key: Key[Array, ""], discount: float, scale: Scale
) -> Float[Array, " features"]:
    """Return the weights w of the policy's Q."""
    rows = part.rows
    here = features(rows.observation, rows.action, scale)
    following = expected_features(rows.next_observation, act, key, scale, rows.next_allowed)
    length, size = here.shape
    change = here - discount * rows.continuation[:, None] * following
    free = jnp.ones(size, here.dtype).at[0].set(0.0)
    # By default a GPU would round the products to about three digits.
    with jax.default_matmul_precision("highest"):
        system = here.T @ change / length + (RIDGE / part.different) * jnp.diag(free)
        return solve(system, here.T @ rows.reward / length)


def solve(
    matrix: Float[Array, "size size"], right: Float[Array, "size *columns"]
) -> Float[Array, "size *columns"]:
    """Return the x of matrix @ x = right, by Gauss-Jordan elimination with partial pivoting.

    `jnp.linalg.solve` is not used: batched LU factorisations that run in parallel on two CPU
    threads deadlock (jaxlib 0.10.2).
    """
    rows = jnp.arange(len(right))

    def eliminate(place: Int[Array, ""], system: Array) -> Array:
        largest = jnp.argmax(jnp.where(rows >= place, jnp.abs(system[:, place]), -1.0))
        pivot = system[largest] / system[largest, place]
        system = system.at[largest].set(system[place])
        return (system - system[:, place, None] * pivot[None]).at[place].set(pivot)

    whole = jnp.concatenate([matrix, right.reshape(len(right), -1)], axis=1)
    solved = lax.fori_loop(0, len(right), eliminate, whole)
    return solved[:, len(right) :].reshape(right.shape)


def part_values(
    one: Part, other: Part, act: Act, key: Key[Array, ""], discount: float,
    reachable: Float[Array, "2"],
) -> Float[Array, "2"]:  # fmt: skip
    """Return the policy's mean value in the states of each part, by the Q fitted on the other.

    A value outside the `reachable` returns (`data.operations`) is not estimable, and nan.
    """
    scale = scale_of(jnp.concatenate([one.rows.observation, other.rows.observation]))
    fit_key, value_key = jax.random.split(key)

    def value(fitted: Part, asked: Part) -> Array:
        weights = fit(fitted, act, fit_key, discount, scale)
        rows = asked.rows
        found = expected_features(rows.observation, act, value_key, scale, rows.allowed)
        return jnp.mean(found @ weights)

    values = jnp.stack([value(other, one), value(one, other)])
    low, high = reachable
    # Rounding alone must not put a value out of range.
    margin = ROUNDING * jnp.max(jnp.where(jnp.isfinite(reachable), jnp.abs(reachable), 0.0))
    allowed = (low - margin <= values) & (values <= high + margin)
    return jnp.where(allowed, jnp.clip(values, low, high), jnp.nan)


def constant(action: Float[Array, " action"]) -> Act:
    """Return the policy that always takes this action, or the nearest one that is allowed."""

    def act(
        observation: Array, key: Array, allowed: tuple[Array, Array] | None = None
    ) -> Float[Array, "rows action"]:
        actions = jnp.broadcast_to(action, (len(observation), len(action)))
        return actions if allowed is None else jnp.clip(actions, *allowed)

    return act


class BestConstant(NamedTuple):
    """The constant action with the largest estimated value."""

    action: Float[Array, " action"]
    value: Float[Array, ""]
    """nan if no candidate has an estimable value; the action is then meaningless."""


def best_constant(
    one: Part, other: Part, candidates: Float[Array, "candidates action"], discount: float,
    reachable: Float[Array, "2"],
) -> BestConstant:  # fmt: skip
    """Return the best of constant actions, chosen by one part's Q, valued by the other's."""
    key = jax.random.key(0)  # not used: a constant action needs no random numbers
    # One after the other: for wide logs, solving all systems together would need gigabytes.
    values = lax.map(
        lambda action: part_values(one, other, constant(action), key, discount, reachable),
        candidates,
    )
    estimable = jnp.all(jnp.isfinite(values), axis=1, keepdims=True)
    by_other, by_one = jnp.where(estimable, values, -jnp.inf).T
    chosen = jnp.argmax(by_one + by_other)
    value = (by_other[jnp.argmax(by_one)] + by_one[jnp.argmax(by_other)]) / 2.0
    return BestConstant(candidates[chosen], jnp.where(jnp.any(estimable), value, jnp.nan))
