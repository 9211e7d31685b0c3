"""Where a policy's gain over practice comes from, by the fitted Q.

By the performance difference lemma (Kakade and Langford 2002) under practice,

    value of the policy − practice = E_practice Σ_t γ^t (V_{H−t}(s_t) − Q_{H−t}(s_t, a_t)),

so each logged step has a share: how much better the policy's action is than the logged one.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fat2thin.evaluation.estimators.episodes import Actions, Episodes
from fat2thin.evaluation.estimators.features import Bases, features, mean_features
from fat2thin.evaluation.estimators.fitted_q import design, fit, in_folds


def gains(
    episodes: Episodes, actions: Actions, bases: Bases, bounds: Float[Array, "left 2"],
    discount: float,
) -> Float[Array, "episodes horizon"]:  # fmt: skip
    """Return the share of each logged step, by the Q of the other folds; 0 where there is none."""
    horizon = len(bounds) - 1
    found = fit(design(episodes, actions, bases.both), discount, bounds)

    def of_episode(given: tuple) -> Array:
        q_of, one, start, drawn = given
        left = q_of[1:][::-1]  # t steps in, horizon − t are left
        here = features(one.observation, one.action, bases.both)
        # The next state of a step is the state of the one below.
        states = jnp.concatenate([one.observation[:1], one.following[:-1]])
        of_policy = jnp.concatenate([start[None], drawn[:-1]])
        value = jnp.sum(mean_features(states, of_policy, bases.both) * left, axis=1)
        ends = bounds[1:][::-1]
        value = jnp.clip(value, ends[:, 0], ends[:, 1])
        powers = discount ** jnp.arange(horizon)
        return powers * one.here * (value - jnp.sum(here * left, axis=1))

    def of_fold(given: tuple) -> Array:
        q_of, ones, starts, drawn = given
        return lax.map(lambda one: of_episode((q_of, *one)), (ones, starts, drawn), batch_size=16)

    first = jax.tree.map(lambda array: array[:, :horizon], (episodes, actions.following))
    cut = jax.tree.map(in_folds, (first[0], actions.start, first[1]))
    with jax.default_matmul_precision("highest"):
        of_folds = lax.map(of_fold, (jnp.moveaxis(found.weights, 1, 0), *cut))
    return of_folds.reshape(-1, horizon)
