"""The density of logged actions, where the log has no propensities: a mixture of three kernels.

A regression gives the centre and the spread of the action in a state. Gaussian kernels stand on
three pools: the standardised residuals of all states, those of the nearest states, and the actions
of the log whatever the state. The weights of the pools maximise the likelihood of rows that no pool
has. Everything a fold is given is fitted on the other folds.

Kernels are half as wide as is best for the density itself (Silverman 1986): intervals know the
noise of the weights, not the bias of a smoothed density (Hall 1992).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp, ndtr
from jaxtyping import Array, Float, Int

from fat2thin.evaluation.estimators.episodes import FOLDS, Episodes
from fat2thin.evaluation.estimators.features import Basis, features
from fat2thin.evaluation.estimators.fitted_q import RIDGE, rows_in_folds, some_rows
from fat2thin.evaluation.fitted_q import solve

NEAREST = 2 / 3
"""The nearest of n states are n to this power. States at the same distance all count."""
EQUAL = 1e-3
"""Squared distance, in standard deviations, up to which states are equal."""
NARROWER = 0.5
"""Width of the kernels, as a share of Silverman's rule."""
LEAST_SHARE = 0.05
"""The least weight of a pool, so that no action of the log gets hardly any density."""
MOST_REFERENCES = 4000  # rows on which kernels stand; three quarters of them for each fold
_ROUNDS = 20  # of expectation and maximisation for the weight of the pools
_MEAN_LOG_SQUARE = -1.2704  # the mean of log x² for a standard normal x
WIDEST = 1.5
"""How far the logarithm of a fitted spread may be from that of all states."""
_SMOOTHER = 10.0  # ridge of the spread, relative to that of the centre
_NARROWEST = 0.05  # of the residual spread: below it a fitted spread does not go


class Behaviour(NamedTuple):
    """The density of the logged actions, per unit of the padded actions."""

    log_density: Float[Array, "episodes steps"]
    log_nearest: Float[Array, "episodes steps"]
    """The same without the pool of all states: noisier, but right where states differ in more than
    centre and spread. An interval holds the estimates with both."""
    level: Float[Array, "episodes steps action"]
    """The probability of a smaller action: uniform on (0, 1) if the density is right."""
    shares: Float[Array, " pools"]
    """The weights of the pools: all states, the nearest states, any state."""


class _Centred(NamedTuple):
    residual: Float[Array, "rows action"]
    log_spread: Float[Array, "rows action"]


def behaviour_density(episodes: Episodes, basis: Basis) -> Behaviour:
    """Return the density of each logged action; `basis` has units of states alone."""
    rows = jax.tree.map(rows_in_folds, episodes)
    parts, levels = lax.map(lambda fold: _of_fold(rows, basis, fold), jnp.arange(FOLDS))
    known = rows.here
    weights = _mixture_weights(parts, known)
    of_nearest = jnp.asarray([0.0, 1.0 - LEAST_SHARE, LEAST_SHARE])
    density, nearest = (
        logsumexp(parts + jnp.log(shares)[None, None], axis=-1) for shares in (weights, of_nearest)
    )
    level = jnp.einsum("krpd,p->krd", levels, weights)
    shape = episodes.here.shape
    found = density.reshape(shape), nearest.reshape(shape)
    return Behaviour(*found, level.reshape(*shape, -1), weights)


def _of_fold(rows: Episodes, basis: Basis, fold: Int[Array, ""]) -> tuple[Array, Array]:
    """Return log densities (rows, pools) and levels (rows, pools, action) of a fold's rows."""
    of_others = rows.here * (jnp.arange(FOLDS) != fold)[:, None]
    references = some_rows((rows.observation, rows.action, of_others), MOST_REFERENCES)
    seen, done, known = (array.reshape(-1, *array.shape[2:]) for array in references)
    mean, spread, usual = _regression(seen, done, known, basis)

    def centred(observation: Array, action: Array) -> _Centred:
        of_state = _states(observation, basis)
        log_spread = usual[None] + jnp.clip(of_state @ spread, -WIDEST, WIDEST)
        return _Centred((action - of_state @ mean) / jnp.exp(log_spread), log_spread)

    pool = centred(seen, done).residual
    here = rows.observation[fold], rows.action[fold]
    own = centred(*here)
    wanted = jnp.sum(known) ** NEAREST
    # Sums over thousands of kernels per row: float32 is exact enough, and several times faster.
    short, shorter = (
        jax.tree.map(lambda array: array.astype(jnp.float32), arrays)
        for arrays in ((*here, *own), (seen, done, pool, known, wanted))
    )
    seen, done, pool, known, wanted = shorter
    lengths = jnp.sum(seen**2, axis=1)

    def of_rows(given: tuple) -> tuple[Array, Array]:
        state, action, residual, log_spread = given
        distance = lengths - 2.0 * (seen @ state) + jnp.sum(state**2)
        # States that are equal must count alike, whatever the rounding of their distances.
        near = known * (distance <= _radius(distance, known, wanted) + EQUAL)
        found = [
            _kernel(residual, pool, known), _kernel(residual, pool, near),
            _kernel(action, done, known),
        ]  # fmt: skip
        slope = jnp.sum(log_spread) * jnp.asarray([1.0, 1.0, 0.0], jnp.float32)
        density = jnp.stack([one[0] for one in found]) - slope
        return density, jnp.stack([one[1] for one in found])

    with jax.default_matmul_precision("highest"):
        found = lax.map(of_rows, short, batch_size=64)
    return jax.tree.map(lambda array: array.astype(rows.reward.dtype), found)


def _radius(distance: Array, known: Array, wanted: Array) -> Array:
    """Return a distance within which at least the wanted number of rows are, by bisection."""

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2.0
        enough = jnp.sum(known * (distance <= middle)) >= wanted
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    ends = -jnp.ones_like(distance[0]), jnp.max(distance)
    return lax.fori_loop(0, 24, halve, ends)[1]


def _states(observation: Float[Array, "rows observation"], basis: Basis) -> Array:
    return features(observation, jnp.zeros((len(observation), 0)), basis)


def _regression(seen: Array, done: Array, known: Array, basis: Basis) -> tuple[Array, ...]:
    """Return the weights of the centre and of the log spread, and the log of the usual spread."""
    of_state = _states(seen, basis)
    size = of_state.shape[1]
    weighted = of_state * known[:, None]
    free = jnp.diag(jnp.ones(size).at[0].set(0.0)) * RIDGE
    gram = weighted.T @ of_state + free
    mean = solve(gram, weighted.T @ done)
    residual = done - of_state @ mean
    overall = jnp.sqrt(jnp.sum(known[:, None] * residual**2, axis=0) / jnp.sum(known))
    least = _NARROWEST * overall[None]
    logs = jnp.log(jnp.maximum(jnp.abs(residual), least) / overall[None]) - _MEAN_LOG_SQUARE / 2.0
    smooth = gram + (_SMOOTHER - 1.0) * free
    return mean, solve(smooth, weighted.T @ logs), jnp.log(overall)


def _kernel(point: Array, pool: Array, weight: Array) -> tuple[Array, Array]:
    """Return the log density of a point by a pool whose weights are 0 or 1, and its levels."""
    width = pool.shape[-1]
    count = jnp.maximum(jnp.sum(weight), 1.0)
    mean = weight @ pool / count
    spread = jnp.sqrt(weight @ (pool - mean[None]) ** 2 / count)
    silverman = (4.0 / (width + 2.0) / count) ** (1.0 / (width + 4.0))
    bandwidth = NARROWER * silverman * jnp.maximum(spread, 0.1)
    apart = (point[None] - pool) / bandwidth[None]
    logs = -0.5 * jnp.sum(apart**2, axis=1) - jnp.sum(jnp.log(bandwidth * np.sqrt(2.0 * np.pi)))
    logs = jnp.where(weight > 0, logs, -jnp.inf)
    return logsumexp(logs) - jnp.log(count), weight @ ndtr(apart) / count


def _mixture_weights(parts: Float[Array, "folds rows pools"], known: Array) -> Array:
    """Return the weights of the pools with the largest likelihood, none below `LEAST_SHARE`."""

    def step(_: Any, shares: Array) -> Array:
        both = parts + jnp.log(shares)[None, None]
        each = jnp.exp(both - logsumexp(both, axis=-1, keepdims=True))
        found = jnp.einsum("krp,kr->p", each, known) / jnp.sum(known)
        found = jnp.maximum(found, LEAST_SHARE)
        return found / jnp.sum(found)

    pools = parts.shape[-1]
    return lax.fori_loop(0, _ROUNDS, step, jnp.full(pools, 1.0 / pools, parts.dtype))
