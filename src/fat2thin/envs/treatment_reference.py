"""What a result on the treatment task is to be compared with, measured on the task itself.

Given the doses, the latent mean moves without chance: the chance of an episode lies in its start
and in the observations alone. Who sees the latent state (and the covariance) can therefore plan all
doses ahead, and as the noise of one step tells nothing about the next, no policy does better on
average than the best plan.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Rollout, State, Treatment

_GRID = 101
_PLAN_UPDATES = 100
_PLAN_RATE = 0.05


def expected_reward(
    latent: Float[Array, "8"],
    covariance: Float[Array, "8 8"],
    dose: Float[Array, ""],
    task: Treatment,
) -> Float[Array, ""]:
    """E[r] over s' ~ N(μ', Σ) for a dose that led to the latent mean μ', in closed form.

    Cubic: a sum of cubics in one component each, for which the mean of the values at μ ± σ is
    exact (E s³ = μ³ + 3μσ²). Quadratic: linear in all components but the two of the exponent z, and
    E eᶻ = exp(E z + ½ Var z).
    """
    if task.reward == "cubic":
        deviation = jnp.sqrt(jnp.diagonal(covariance))
        above = treatment.cubic_reward(latent + deviation, dose)
        below = treatment.cubic_reward(latent - deviation, dose)
        return (above + below) / 2
    exponent = jnp.array([0, 4])
    variance = jnp.sum(covariance[jnp.ix_(exponent, exponent)]) / 4
    return treatment.quadratic_reward(latent.at[exponent].add(variance / 2), dose)


def _covariance(state: State) -> Float[Array, "8 8"]:
    return jnp.matmul(state.noise_factor, state.noise_factor.T, precision="highest")


def expected_return(
    doses: Float[Array, " time"], start: State, task: Treatment
) -> Float[Array, ""]:
    """The mean return over the noise, for a patient who starts in `start` and gets these doses."""
    covariance = _covariance(start)

    def one_step(latent, dose):
        latent = treatment.next_latent(latent, dose)
        return latent, expected_reward(latent, covariance, dose, task)

    return jnp.sum(jax.lax.scan(one_step, start.latent, doses)[1])


def _constant(dose: Float[Array, ""], task: Treatment) -> Float[Array, " time"]:
    return jnp.full(task.horizon, dose)


def _best_dose(objective: Callable, task: Treatment) -> Float[Array, ""]:
    """The dose of the box at which the objective is largest: on a grid, then on a finer one."""

    def search(interval, _):
        low, high = interval
        doses = jnp.linspace(low, high, _GRID)
        best = doses[jnp.argmax(jax.vmap(objective)(doses))]
        cell = (high - low) / (_GRID - 1)
        return (jnp.maximum(best - cell, low), jnp.minimum(best + cell, high)), best

    box = (jnp.asarray(task.dose_low, float), jnp.asarray(task.dose_high, float))
    return jax.lax.scan(search, box, length=2)[1][-1]


@functools.partial(jax.jit, static_argnames=("task", "episodes"))
def best_constant_dose(key: PRNGKeyArray, task: Treatment, episodes: int) -> Float[Array, ""]:
    """The one dose that is best on average over `episodes` starts, the same ones for each dose."""
    starts, _ = jax.vmap(lambda key: treatment.reset(key, task))(jax.random.split(key, episodes))
    mean_over_starts = jax.vmap(expected_return, in_axes=(None, 0, None))
    return _best_dose(
        lambda dose: jnp.mean(mean_over_starts(_constant(dose, task), starts, task)), task
    )


def myopic_plan(start: State, task: Treatment) -> Float[Array, " time"]:
    """At every step the dose with the best expected reward of that step."""
    covariance = _covariance(start)

    def one_step(latent, _):
        def reward_of(dose):
            return expected_reward(treatment.next_latent(latent, dose), covariance, dose, task)

        dose = _best_dose(reward_of, task)
        return treatment.next_latent(latent, dose), dose

    return jax.lax.scan(one_step, start.latent, length=task.horizon)[1]


def best_plan(
    start: State, myopic: Float[Array, " time"], task: Treatment
) -> Float[Array, " time"]:
    """The doses with the best expected return found: never worse than the myopic plan.

    Projected gradient ascent from the myopic plan and from the patient's best constant dose, the
    better of the two. It finds a local optimum, so the true best can be a little higher.
    """
    objective = functools.partial(expected_return, start=start, task=task)
    # In half-ranges of the box, so that any box is searched as well as the default one.
    rate = _PLAN_RATE * (task.dose_high - task.dose_low) / 2
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, _PLAN_UPDATES))

    def ascend(doses):
        def update(carry, _):
            doses, optimiser_state = carry
            gradient = jax.grad(objective)(doses)
            change, optimiser_state = optimiser.update(-gradient, optimiser_state)
            doses = jnp.clip(doses + change, task.dose_low, task.dose_high)
            return (doses, optimiser_state), None

        (doses, _), _ = jax.lax.scan(update, (doses, optimiser.init(doses)), length=_PLAN_UPDATES)
        return doses

    constant = _constant(_best_dose(lambda dose: objective(_constant(dose, task)), task), task)
    origins = jnp.stack([myopic, constant])
    candidates = jnp.concatenate([jax.vmap(ascend)(origins), origins])
    return candidates[jnp.argmax(jax.vmap(objective)(candidates))]


class ReferenceRow(NamedTuple):
    """One line to compare with."""

    mean: float
    """Mean undiscounted return."""
    standard_error: float
    """Of that mean."""
    dose_mean: float
    """Mean dose over all steps."""
    dose_variance: float
    """Variance of the dose over all steps."""
    dose_limit_rate: float
    """Share of steps with |dose| above its limit."""
    cumulative_limit_rate: float
    """Share of episodes with Σ|dose| above its limit."""
    rule: str
    """How the dose is chosen, in words."""


def _row(rollout: Rollout, rule: str) -> ReferenceRow:
    returns = rollout.returns
    return ReferenceRow(
        mean=float(jnp.mean(returns)),
        standard_error=float(jnp.std(returns, ddof=1)) / math.sqrt(returns.size),
        dose_mean=float(rollout.dose_mean),
        dose_variance=float(rollout.dose_variance),
        dose_limit_rate=float(rollout.dose_limit_rate),
        cumulative_limit_rate=float(rollout.cumulative_limit_rate),
        rule=rule,
    )


@functools.partial(jax.jit, static_argnames=("task", "episodes"))
def _measure(key: PRNGKeyArray, task: Treatment, episodes: int) -> tuple[Float[Array, ""], Rollout]:
    """The best constant dose, and the rollouts of the four rules along a first axis."""
    search_key, key = jax.random.split(key)
    constant_dose = best_constant_dose(search_key, task, episodes)
    behaviour = treatment.uniform_behaviour(task)

    def begin(start, rule):
        myopic = myopic_plan(start, task)
        plans = jnp.stack([_constant(constant_dose, task), myopic, best_plan(start, myopic, task)])

        def act(key, observation, state):
            doses = jnp.concatenate([behaviour(key, observation), plans[:, state.time]])
            return doses[rule][None]

        return act

    def roll_out(rule):
        begin_rule = functools.partial(begin, rule=rule)
        return treatment.summarise(treatment.trajectories(key, begin_rule, task, episodes))

    return constant_dose, jax.vmap(roll_out)(jnp.arange(4))


def reference_rows(
    key: PRNGKeyArray, task: Treatment, episodes: int = 4096
) -> dict[str, ReferenceRow]:
    """Measure the rows that every table of results carries, all on the same `episodes` patients.

    "uniform": the behaviour of the log. "best constant": chosen on other patients than it is
    measured on, so that the choice flatters nothing. "myopic latent" and "best latent": for someone
    who sees the latent state; the second looks ahead to the horizon, and no policy does better but
    by what the search for the plan misses (see `best_plan`).
    """
    if episodes < 2:
        raise ValueError(f"episodes must be at least 2 for a standard error, got {episodes}")
    constant_dose, rollouts = _measure(key, task, episodes)
    rules = {
        "uniform": f"a dose from U({task.dose_low:g}, {task.dose_high:g}) at every step",
        "best constant": f"dose {float(constant_dose):.3f} at every step",
        "myopic latent": "latent state seen: the dose with the best expected reward of the step",
        "best latent": "latent state seen: the doses with the best expected return of the episode",
    }
    return {
        name: _row(jax.tree.map(operator.itemgetter(index), rollouts), rule)
        for index, (name, rule) in enumerate(rules.items())
    }
