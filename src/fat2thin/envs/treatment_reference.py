"""Reference results for the treatment task, measured by simulation.

Given the doses, the latent mean is deterministic: only the start of an episode and its observations
are random. If the latent state and the covariance are known, all doses can be planned in advance.
The noise is independent between steps, so no policy beats the best plan on average.
"""

import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from fat2thin.envs import Reference, treatment
from fat2thin.envs.treatment import Patient, Rollout, Treatment

_GRID = 101
_PLAN_UPDATES = 100
_PLAN_RATE = 0.05


def expected_reward(
    latent: Float[Array, "8"],
    covariance: Float[Array, "8 8"],
    dose: Float[Array, ""],
    task: Treatment,
) -> Float[Array, ""]:
    """Return E[r] over s' ~ N(μ', Σ) for a dose that led to the latent mean μ', in closed form.

    The cubic reward is a sum of cubics of single components, for which the mean of the values at
    μ ± σ is exact (E s³ = μ³ + 3μσ²). The quadratic reward is linear in all components except the
    two of the exponent z, and E eᶻ = exp(E z + ½ Var z).
    """
    if task.reward == "cubic":
        deviation = jnp.sqrt(jnp.diagonal(covariance))
        above = treatment.cubic_reward(latent + deviation, dose)
        below = treatment.cubic_reward(latent - deviation, dose)
        return (above + below) / 2
    exponent = jnp.array([0, 4])
    variance = jnp.sum(covariance[jnp.ix_(exponent, exponent)]) / 4
    return treatment.quadratic_reward(latent.at[exponent].add(variance / 2), dose)


def _covariance(state: Patient) -> Float[Array, "8 8"]:
    return jnp.matmul(state.noise_factor, state.noise_factor.T, precision="highest")


def expected_return(
    doses: Float[Array, " time"], start: Patient, task: Treatment
) -> Float[Array, ""]:
    """Return the expected return over the noise for a patient with the initial state `start`."""
    covariance = _covariance(start)

    def one_step(latent, dose):
        latent = treatment.next_latent(latent, dose)
        return latent, expected_reward(latent, covariance, dose, task)

    return jnp.sum(jax.lax.scan(one_step, start.latent, doses)[1])


def _best_dose(objective: Callable, task: Treatment) -> Float[Array, ""]:
    """Return the dose that maximises the objective, by two successively finer grid searches."""

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
    """Return the constant dose with the best mean expected return over `episodes` patients."""
    starts, _ = jax.vmap(lambda key: treatment.reset(key, task))(jax.random.split(key, episodes))
    mean_over_starts = jax.vmap(expected_return, in_axes=(None, 0, None))
    return _best_dose(
        lambda dose: jnp.mean(mean_over_starts(jnp.full(task.horizon, dose), starts, task)), task
    )


def myopic_plan(start: Patient, task: Treatment) -> Float[Array, " time"]:
    """Return the dose of each step that maximises the expected reward of that step."""
    covariance = _covariance(start)

    def one_step(latent, _):
        def reward_of(dose):
            return expected_reward(treatment.next_latent(latent, dose), covariance, dose, task)

        dose = _best_dose(reward_of, task)
        return treatment.next_latent(latent, dose), dose

    return jax.lax.scan(one_step, start.latent, length=task.horizon)[1]


def best_plan(
    start: Patient, myopic: Float[Array, " time"], task: Treatment
) -> Float[Array, " time"]:
    """Return the doses with the best expected return found, never worse than the myopic plan.

    The better result of projected gradient ascent from the myopic plan and from the patient's best
    constant dose. It is a local optimum, so the true best can be slightly higher.
    """
    objective = functools.partial(expected_return, start=start, task=task)
    # Relative to the half-range of the box, so that the search works for any box.
    rate = _PLAN_RATE * (task.dose_high - task.dose_low) / 2
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, _PLAN_UPDATES))

    def ascend(doses):
        def update(carry, _):
            doses, optimiser_state = carry
            change, optimiser_state = optimiser.update(-jax.grad(objective)(doses), optimiser_state)
            doses = jnp.clip(doses + change, task.dose_low, task.dose_high)
            return (doses, optimiser_state), None

        (doses, _), _ = jax.lax.scan(update, (doses, optimiser.init(doses)), length=_PLAN_UPDATES)
        return doses

    dose = _best_dose(lambda dose: objective(jnp.full(task.horizon, dose)), task)
    origins = jnp.stack([myopic, jnp.full(task.horizon, dose)])
    candidates = jnp.concatenate([jax.vmap(ascend)(origins), origins])
    return candidates[jnp.argmax(jax.vmap(objective)(candidates))]


@functools.partial(jax.jit, static_argnames=("task", "episodes"))
def _measure(key: PRNGKeyArray, task: Treatment, episodes: int) -> tuple[Float[Array, ""], Rollout]:
    """Return the best constant dose, and the rollouts of the four rules, stacked."""
    search_key, key = jax.random.split(key)
    constant_dose = best_constant_dose(search_key, task, episodes)
    behaviour = treatment.uniform_behaviour(task)

    def begin(start, rule):
        myopic = myopic_plan(start, task)
        plans = jnp.stack(
            [jnp.full(task.horizon, constant_dose), myopic, best_plan(start, myopic, task)]
        )

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
) -> dict[str, Reference]:
    """Measure the reference results of all tables, by name, on the same `episodes` patients.

    "uniform" is the behaviour of the log. "best constant" is chosen and measured on different
    patients, to avoid selection bias. "myopic latent" and "best latent" see the latent state; the
    latter plans up to the horizon, and is an upper bound for any policy up to the error of the
    search (see `best_plan`).
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
    rows = {}
    for index, (name, rule) in enumerate(rules.items()):
        rollout = jax.tree.map(operator.itemgetter(index), rollouts)
        rows[name] = Reference(
            mean=float(jnp.mean(rollout.returns)),
            standard_error=float(jnp.std(rollout.returns, ddof=1)) / math.sqrt(episodes),
            measures={name: float(value) for name, value in rollout.measures.items()},
            rule=rule,
            episodes=episodes,
        )
    return rows
