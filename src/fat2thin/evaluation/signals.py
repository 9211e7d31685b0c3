"""What logged steps that no update sees say of a policy while it is learned; in the graph.

The algorithm's own `update` is run on them with a learning rate of zero, so that no network moves,
and what it reports is their mean. To this come a fitted Q evaluation of the policy that acts, how
well Q agrees with what was observed, and how far the critics are apart. All are in units of the
rewards that were learned from, densities per half-range of the action box. A value outside what
those rewards allow is not estimable, and nan.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from fat2thin.algorithms.base import Algorithm, Batch, Problem, State, with_numbers
from fat2thin.evaluation.fitted_q import Part, part_values
from fat2thin.policies.policy import Policy

PREFIX = "held_out_"
VALUE, LIKELIHOOD = "held_out_value", "held_out_log_likelihood"
NOT_ESTIMABLE = "not estimable: outside what the rewards allow"
"""What is said of a value that is nan."""
MEANINGS = {
    "held_out_value": "value of the policy that acts, by fitted Q evaluation: a Q of few features, "
    "learned on each of the two parts of the log and asked in the states of the other; none where "
    f"it is {NOT_ESTIMABLE}",
    "held_out_value_unseen": "the same by the part alone that no update sees",
    "held_out_td_error": "root mean square of Q − (r + γ next value) on held-out steps",
    "held_out_log_likelihood": "mean log density of held-out actions, weighted as in training",
    "held_out_inside": "share of held-out actions that the policy could have taken",
    "held_out_inside_least": "the same in the coordinate where it is least",
    "learned_inside": "share of the actions learned from that the policy could have taken",
    "held_out_calibration": "correlation of Q with the observed discounted return; 0 where one of "
    "them is the same everywhere",
    "held_out_spread": "mean distance of the critics from their mean, at the policy's actions",
}


class Watched(NamedTuple):
    """Logged steps to look at: of the part that is held out, and of the part that is learned."""

    held_out: Batch
    observed_return: Float[Array, "*logs rows"]
    """The discounted sum of rewards from each held-out step to the end of its episode."""
    learned: Batch
    counts: Float[Array, "*logs 2"]
    """How many different rows there are of the part held out, and of the part learned."""
    noisy: Bool[Array, "*logs"]
    """Whether most of what comes next in the log is chance (`data.predictability`)."""
    reachable: Float[Array, "*logs 2"]
    """The least and the largest return that the log's rewards allow (`data.operations`)."""


def signals(
    algorithm: Algorithm, state: State, watched: Watched, key: Key[Array, ""], problem: Problem,
    config: Any,
) -> dict[str, Float[Array, ""]]:  # fmt: skip
    """Every signal of one job; those that the algorithm has nothing for are left out."""
    rows = watched.held_out
    # An update reports some of its losses after steps of its own, which must not move anything.
    still = with_numbers(config, {"learning_rate": 0.0})
    _, reported = algorithm.update(state, rows, key, problem, still)
    metrics = jax.tree.map(jnp.mean, reported)

    policy = algorithm.policy(state, in_half_ranges(problem), config)
    inside, inside_learned = _inside(policy, rows), _inside(policy, watched.learned)
    parts = Part(rows, watched.counts[0]), Part(watched.learned, watched.counts[1])
    seen, unseen = part_values(*parts, policy.act, key, problem.discount, watched.reachable)
    found = {
        "held_out_value": (seen + unseen) / 2.0,
        "held_out_value_unseen": unseen,
        "held_out_inside": jnp.mean(jnp.all(inside, axis=-1).astype(jnp.float32)),
        "held_out_inside_least": jnp.min(jnp.mean(inside.astype(jnp.float32), axis=0)),
        "learned_inside": jnp.mean(jnp.all(inside_learned, axis=-1).astype(jnp.float32)),
    }
    if "critic_loss" in metrics:
        found["held_out_td_error"] = jnp.sqrt(2.0 * metrics["critic_loss"])
    if algorithm.weighted_loss:
        # Both are means over the same rows: sum(weight · log density) / sum(weight).
        loss = metrics[algorithm.weighted_loss]
        found["held_out_log_likelihood"] = -loss / metrics["weight_mean"]
    if algorithm.critics:
        critics = algorithm.critics(state, problem, config)
        logged = critics.minimum(rows.observation, rows.action)
        agreement = jnp.corrcoef(logged, watched.observed_return)[0, 1]
        found["held_out_calibration"] = jnp.where(jnp.isfinite(agreement), agreement, 0.0)
        chosen = critics(rows.observation, policy.act(rows.observation, key))
        found["held_out_spread"] = jnp.mean(jnp.std(chosen, axis=0))
    return found


def _inside(policy: Policy, rows: Batch) -> Bool[Array, "rows action"]:
    """Which coordinates of logged actions the policy could have taken."""
    low, high = policy.support(rows.observation)
    return (low <= rows.action) & (rows.action <= high)


def preference(found: Mapping[str, Any], noisy: Bool[Array, ""] | bool) -> Float[Array, "..."]:
    """The signal that chooses best among policies learned from a log; larger is better.

    docs/selection.md says why: the value where the log is noisy and few features say it all, the
    likelihood elsewhere, where the algorithm has weights.
    """
    if LIKELIHOOD not in found:
        return found[VALUE]
    return jnp.where(noisy, found[VALUE], found[LIKELIHOOD])


def in_half_ranges(problem: Problem) -> Problem:
    """The problem in the units of a batch's actions."""
    size = problem.action_size
    return dataclasses.replace(problem, action_low=(-1.0,) * size, action_high=(1.0,) * size)
