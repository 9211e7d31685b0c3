"""The numbers of every log of a case, for `benchmarks/value.py`.

Fresh logs are drawn in one compiled program, and every estimator values every policy on each.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fat2thin.evaluation.estimators.assumptions import discounted_steps, step_before
from fat2thin.evaluation.estimators.behaviour import behaviour_density
from fat2thin.evaluation.estimators.episodes import Actions, Episodes, value_bounds
from fat2thin.evaluation.estimators.estimates import estimates
from fat2thin.evaluation.estimators.features import draw_bases
from fat2thin.evaluation.estimators.fitted_q import design, fit
from fat2thin.evaluation.estimators.intervals import unseen_weight, with_one_more
from fat2thin.evaluation.estimators.marginal import marginal_scores
from fat2thin.evaluation.estimators.practice import practice_scores
from fat2thin.evaluation.estimators.sensitivity import GAMMAS, worst_values
from fat2thin.evaluation.padding import DRAWS
from fat2thin.evaluation.value_rows import MOST_UNITS, ROWS_PER_UNIT
from fat2thin.policies.policy import Policy
from value_cases import Case
from value_log import Log

ESTIMATORS = ("marginal", "doubly_robust", "importance", "estimated")
"""`estimated` is the marginal one without propensities: with the estimated density of behaviour."""
AT_ONCE = 50  # logs per call
CONFIDENCE = 0.95
EVIDENCE = ("least_effective", "surviving", "clipped", "cut", "correction", "low", "high")
ASSUMPTIONS = ("logged_steps", "steps_by_states", "before")
"""What a log says about the assumptions, whichever the policy."""


def standardised(values: Array, here: Array) -> tuple[Array, Array, Array]:
    """Return columns with mean 0 and deviation 1 over the logged steps, and both."""
    weight = (here / jnp.sum(here))[..., None]
    mean = jnp.sum(values * weight, axis=(0, 1))
    deviation = jnp.sqrt(jnp.sum(weight * (values - mean[None, None]) ** 2, axis=(0, 1)))
    scale = jnp.where(deviation > 1e-6 * jnp.maximum(jnp.abs(mean), 1.0), deviation, 1.0)
    return (values - mean[None, None]) / scale[None, None], mean, scale


def prepared(log: Log, policies: dict[str, Policy], key: Array) -> tuple:
    """Return what estimators take, as `evaluation.padding` makes it from a log and a policy."""
    seen, mean, scale = standardised(log.observation, log.here)
    done, action_mean, action_scale = standardised(log.action, log.here)
    following = (log.following - mean[None, None]) / scale[None, None]
    known = log.here[..., None]
    episodes = Episodes(
        seen * known, done * known, log.reward, following * known, log.continuation * log.here,
        log.here,
    )  # fmt: skip

    def drawn(policy: Policy, states: Array, key: Array) -> Array:
        keys = jax.random.split(key, DRAWS)
        actions = jnp.stack([policy.act(states, one) for one in keys], axis=-2)
        expand = (1,) * (actions.ndim - 1) + (-1,)
        return (actions - action_mean.reshape(expand)) / action_scale.reshape(expand)

    every = []
    for number, policy in enumerate(policies.values()):
        keys = jax.random.split(jax.random.fold_in(key, number))
        density = jnp.where(log.here > 0, policy(log.observation).log_prob(log.action), 0.0)
        every.append(
            Actions(
                drawn(policy, log.observation[:, 0], keys[0]),
                drawn(policy, log.following, keys[1]) * known[..., None],
                density,
            )
        )
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *every)
    # The estimated density is one of standardised actions.
    per_unit = jnp.sum(jnp.log(action_scale))
    return episodes, stacked, jnp.where(log.here > 0, log.log_density, 0.0), per_unit


def estimated(
    given: tuple, case: Case, rows: int, key: Array, names: tuple[str, ...]
) -> dict[str, Array]:
    """Return the numbers of every policy and estimator on one log."""
    episodes, policies, behaviour, per_unit = given
    names = (*names, "nearest") if "estimated" in names else names
    units = int(np.clip(rows // ROWS_PER_UNIT, 16, MOST_UNITS))
    columns = episodes.observation.shape[-1], episodes.action.shape[-1]
    bases = draw_bases(jax.random.key(0), *columns, units)
    logged = episodes.here > 0
    least = jnp.min(jnp.where(logged, episodes.reward, jnp.inf))
    most = jnp.max(jnp.where(logged, episodes.reward, -jnp.inf))
    bounds = value_bounds(least, most, case.discount, case.horizon, case.ends_early)
    practice = practice_scores(episodes, bases.states, bounds, case.discount)
    length = jnp.sum(episodes.here, axis=1).astype(int)
    last = jnp.take_along_axis(episodes.continuation, length[:, None] - 1, axis=1)[:, 0]
    cut = jnp.mean((length < case.horizon) & (last > 0))

    powers = case.discount ** jnp.arange(case.horizon)
    usual = episodes.here * powers[None]
    guessed = behaviour_density(episodes, bases.states)

    def of_policy(actions: Actions) -> tuple[Array, Array, Array]:
        found = estimates(episodes, actions, behaviour, bases, bounds, case.discount)
        density = actions.log_density
        assert density is not None
        inside = episodes.here * jnp.isfinite(density)
        # What no name asks for is not compiled.
        features = design(episodes, actions, bases.both)
        fitted = fit(features, case.discount, bounds)

        ratios = [
            jnp.where(inside > 0, jnp.exp(density - one + per_unit), 0.0)
            for one in (guessed.log_density, guessed.log_nearest)
        ]
        both_guesses = marginal_scores(
            episodes, actions, bases, features, fitted, ratios, case.discount, bounds
        )
        guesses = dict(zip(("estimated", "nearest"), both_guesses, strict=True))
        every: dict[str, Any] = found._asdict() | guesses
        scores = jnp.stack([every[name].scores for name in names])
        weights = [every[name].weight for name in names]
        unseen = [[unseen_weight(one), unseen_weight(one - usual)] for one in weights]
        facts = []
        for name in names:
            one = every[name]
            histories = name in ("importance", "doubly_robust")
            facts.append(jnp.stack([
                jnp.min(one.effective),
                one.surviving[-1] if histories else jnp.sum(inside),
                found.fitted_q.clipped, cut,
                jnp.zeros(()) if histories else one.correction,
                bounds[-1, 0], bounds[-1, 1],
            ]))  # fmt: skip
        return scores, jnp.stack(facts), jnp.asarray(unseen).T

    scores, facts, unseen = lax.map(of_policy, policies)
    count, kinds, episodes_ = scores.shape
    flat = scores.reshape(count * kinds, episodes_)
    both = jnp.concatenate([flat, flat - practice[None], practice[None]])
    of_values, of_differences = jnp.moveaxis(unseen, 1, 0).reshape(2, -1)
    reach = jnp.concatenate([of_values, of_differences, unseen_weight(usual)[None]])
    found = with_one_more(both, reach * (most - least), key, CONFIDENCE)
    numbers = jnp.stack(found, axis=-1)
    split = numbers[: 2 * count * kinds].reshape(2, count, kinds, 4)
    if names[-1] == "nearest":  # the interval with an estimated density holds those of both
        split, facts = held(split), jnp.concatenate([facts[:, :-2], fewer(facts)], axis=1)
    of_ends = discounted_steps(episodes, bases.states, case.horizon, case.discount)
    assumptions = jnp.stack([*of_ends, step_before(episodes, bases.both)])
    result = {
        "value": split[0], "difference": split[1], "practice": numbers[-1], "facts": facts,
        "assumptions": assumptions,
    }  # fmt: skip
    if case.gamma is None:
        return result

    def lost(actions: Actions) -> Array:
        worst = worst_values(episodes, actions, bases.both, bounds, case.discount).value
        return jnp.max(worst[0] - worst[: GAMMAS.index(case.gamma) + 1])

    return result | {"lost": lax.map(lost, policies)}


def held(numbers: Array) -> Array:
    """Return numbers whose last two estimators are one: the interval that holds both."""
    first, second = numbers[..., -2, :], numbers[..., -1, :]
    low, high = jnp.minimum(first, second), jnp.maximum(first, second)
    joined = jnp.stack([first[..., 0], low[..., 1], high[..., 2], low[..., 3]], axis=-1)
    return jnp.concatenate([numbers[..., :-2, :], joined[..., None, :]], axis=-2)


def fewer(facts: Array) -> Array:
    """Return the facts of the last two estimators as one: the smaller effective sample size."""
    least = jnp.minimum(facts[:, -2, :1], facts[:, -1, :1])
    return jnp.concatenate([least, facts[:, -2, 1:]], axis=1)[:, None]


def study(
    case: Case,
    rows: int,
    logs: range,
    policies: dict[str, Policy],
    at_once: int = AT_ONCE,
    names: tuple[str, ...] = ESTIMATORS,
) -> dict[str, np.ndarray]:
    """Return the numbers of some logs, stacked; a log is the same among whichever others."""
    episodes = case.episodes(rows)

    @jax.jit
    def draw(keys: Array) -> tuple:
        def one(key: Array) -> tuple:
            of_log, of_policy = jax.random.split(key)
            return prepared(case.draw(of_log, episodes), policies, of_policy)

        return lax.map(one, keys)

    @jax.jit
    def judge(given: tuple, keys: Array) -> dict[str, Array]:
        def one(given: tuple) -> dict[str, Array]:
            of_log, key = given
            return estimated(of_log, case, rows, key, names)

        return lax.map(one, (given, keys))

    found = []
    of_log, of_interval = (
        jax.vmap(lambda number, seed=seed: jax.random.fold_in(jax.random.key(seed), number))
        for seed in (rows, rows + 1)
    )
    for first in range(logs.start, logs.stop, at_once):
        numbers = jnp.arange(first, min(first + at_once, logs.stop))
        given = jax.device_get(draw(of_log(numbers)))
        with jax.enable_x64(True):
            doubled = jax.tree.map(lambda array: jnp.asarray(array, jnp.float64), given)
            found.append(jax.device_get(judge(doubled, of_interval(numbers))))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)
