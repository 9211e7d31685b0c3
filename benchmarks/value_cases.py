"""Tasks where the value of a policy is known, for `benchmarks/value.py`.

Each case draws logs whose density of actions is known, and has policies that were fixed before any
log was drawn. Their values are exact on the tabular problems, and simulated elsewhere.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fat2thin.envs import hospital, treatment
from fat2thin.envs.hospital_wards import INSULIN, SEPSIS, SEPSIS_HIDDEN, Ward
from fat2thin.policies.families import Head, Sparse
from fat2thin.policies.policy import Policy
from value_log import Log, Truth
from value_tabular import Tabular, cliff, delayed, jackpot, ladder

TRUTH_EPISODES = 131_072
_AT_ONCE = 16_384
TRAINED = Path("runs/value")
"""Where runs of trained policies are kept."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A task, its logs and its policies."""

    name: str
    horizon: int
    discount: float
    reward_range: tuple[float, float]
    ends_early: bool
    steps: float
    """Mean number of logged steps per episode."""
    draw: Callable[[Array, int], Log]
    policies: Callable[[], dict[str, Policy]]
    truths: Callable[[dict[str, Policy]], dict[str, Truth]]
    """The value of each policy, and of "practice"."""
    half: str = "fix"
    """Whether rules of refusal are fixed on this case ("fix") or tested on it ("test")."""
    gamma: float | None = None
    """The true Γ, where something that is not observed affects both the action and the outcome."""

    def episodes(self, rows: int) -> int:
        """Return how many episodes have about this number of rows; folds have equal sizes."""
        return max(4, 4 * round(rows / self.steps / 4))


class Band(eqx.Module):
    """A band whose centre is a function of one raw observation, in raw units of the action."""

    rule: Callable[[Array], Array] = eqx.field(static=True)
    half_width: tuple[float, ...] = eqx.field(static=True)
    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, observation: Array) -> Head:
        rows = jnp.reshape(observation, (-1, observation.shape[-1]))
        centre = jax.vmap(self.rule)(rows).reshape(*observation.shape[:-1], len(self.low))
        half_range = (np.asarray(self.high) - np.asarray(self.low)) / 2
        middle = (np.asarray(self.high) + np.asarray(self.low)) / 2
        expand = (1,) * (centre.ndim - 1) + (-1,)
        centre = (centre - middle.reshape(expand)) / half_range.reshape(expand)
        width = np.log(np.asarray(self.half_width) / half_range).reshape(expand)
        return Head(jnp.clip(centre, -1.0, 1.0), jnp.broadcast_to(width, centre.shape))


def band(
    rule: Callable[[Array], Array], half_width: tuple[float, ...], low: tuple[float, ...],
    high: tuple[float, ...],
) -> Policy:  # fmt: skip
    """Return a sparse policy with q = 0 (Epanechnikov) around a rule, inside the box."""
    network = Band(rule, half_width, low, high)
    ends = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
    return Policy(network, *ends, Sparse())


def trained(data: str, seed: int, steps: int = 3000) -> Policy:
    """Return FtTPO's policy from a log of its own, which no estimate sees; trained once."""
    import fat2thin

    folder = TRAINED / data.replace("/", "-")
    if (folder / "run.json").exists():
        run = fat2thin.load(folder)
    else:
        run = fat2thin.train(
            "fttpo", data, steps=steps, seeds=[seed], task="none", hidden=(64, 64), out=folder,
        )  # fmt: skip
    return dataclasses.replace(run.policy(seed), referral=None)


def _mean_of(blocks: list[np.ndarray]) -> Truth:
    values = np.concatenate(blocks).astype(np.float64)
    return Truth(float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)))


# Treatment


def _treatment_log(task: treatment.Treatment, key: Array, episodes: int) -> Log:
    begin = treatment.from_observations(treatment.uniform_behaviour(task))
    found = treatment.trajectories(key, begin, task, episodes)
    ones = jnp.ones((episodes, task.horizon))
    density = ones * -np.log(task.dose_high - task.dose_low)
    return Log(
        found.observation, found.info.dose[..., None], found.reward, found.next_observation,
        ones, ones, density,
    )  # fmt: skip


def _treatment_truths(task: treatment.Treatment, policies: dict[str, Policy]) -> dict[str, Truth]:
    factors = task.discount ** np.arange(task.horizon)

    @eqx.filter_jit
    def returns(key: Array, act: Any) -> Array:
        begin = treatment.from_observations(act)
        found = treatment.trajectories(key, begin, task, _AT_ONCE)
        return jnp.sum(found.reward * factors[None], axis=1)

    acts: dict[str, Any] = {"practice": treatment.uniform_behaviour(task)}
    acts |= {name: _acting(policy) for name, policy in policies.items()}
    return {name: _simulate(functools.partial(returns, act=act)) for name, act in acts.items()}


def _acting(policy: Policy) -> Callable[[Array, Array], Array]:
    return lambda key, observation: policy.act(observation, key)


def _simulate(returns: Callable[[Array], Array]) -> Truth:
    keys = jax.random.split(jax.random.key(2**30), TRUTH_EPISODES // _AT_ONCE)
    return _mean_of([np.asarray(returns(key)) for key in keys])


def treatment_case(name: str, half: str) -> Case:
    """Return the treatment task: uniform doses, 24 steps, noisy observations of the state."""
    task = treatment.by_name(name)
    box = (-1.0,), (1.0,)

    def policies() -> dict[str, Policy]:
        return {
            "near": band(lambda seen: 0.1 * jnp.ones(1), (0.9,), *box),
            "shifted": band(lambda seen: 0.35 * jnp.ones(1), (0.5,), *box),
            "state": band(lambda seen: (0.3 - 0.2 * jnp.tanh(seen[0] + seen[4]))[None],
                          (0.3,), *box),
            "far": band(lambda seen: jnp.ones(1), (0.02,), *box),
            "trained": trained(f"{name}@50", seed=0),
        }  # fmt: skip

    return Case(
        name, task.horizon, task.discount, (-np.inf, np.inf), False, task.horizon,
        lambda key, episodes: _treatment_log(task, key, episodes), policies,
        lambda known: _treatment_truths(task, known), half,
    )  # fmt: skip


# Wards


def _ward_log(ward: Ward, key: Array, episodes: int) -> Log:
    found = hospital.log(key, ward, episodes)
    density = found.log_propensity
    if ward.hidden:  # what a user would take for the density: that without the impression
        none = jnp.zeros(())
        density = jax.vmap(jax.vmap(
            lambda seen, done: hospital.log_density(done, ward.practice(seen, none), ward)
        ))(found.observation, found.action)  # fmt: skip
    here = found.present.astype(jnp.float32)
    return Log(
        found.observation, found.action, found.reward, found.next_observation,
        found.continuation, here, density,
    )  # fmt: skip


def _ward_truths(ward: Ward, policies: dict[str, Policy]) -> dict[str, Truth]:
    @eqx.filter_jit
    def returns(key: Array, act: Any) -> Array:
        found = hospital.episodes(key, act, ward, _AT_ONCE)
        return hospital.summarise(found, ward).discounted

    acts: dict[str, Any] = {"practice": hospital.practice(ward)}
    for name, policy in policies.items():
        acts[name] = hospital.from_observations(_acting(policy))
    return {name: _simulate(functools.partial(returns, act=act)) for name, act in acts.items()}


def ward_case(ward: Ward, widths: Mapping[str, tuple[float, ...]], steps: float, half: str) -> Case:
    """Return a ward; the bands lie around practice, around the guideline, or between them."""
    box = ward.action_low, ward.action_high

    def usual(seen: Array) -> Array:
        law = ward.practice(seen, jnp.zeros(()))
        return jnp.sum(law.weight[:, None] * law.centre, axis=0)

    def better(seen: Array) -> Array:
        return ward.guideline(seen).centre[0]

    def policies() -> dict[str, Policy]:
        def between(share: float) -> Callable[[Array], Array]:
            return lambda seen: (1 - share) * usual(seen) + share * better(seen)

        extreme = jnp.asarray(ward.action_high) * 0.9
        return {
            "near": band(usual, widths["near"], *box),
            "shifted": band(between(0.5), widths["shifted"], *box),
            "guideline": band(better, widths["guideline"], *box),
            "far": band(lambda seen: extreme, widths["guideline"], *box),
        }

    return Case(
        ward.name, ward.horizon, ward.discount, ward.reward_range, True, steps,
        lambda key, episodes: _ward_log(ward, key, episodes), policies,
        lambda known: _ward_truths(ward, known), half, 1.5 if ward.hidden else None,
    )  # fmt: skip


def tabular_case(problem: Tabular, half: str) -> Case:
    """Return a tabular problem with bands whose cells have exact probabilities."""
    (low,), (high,) = problem.box
    middle, reach = (low + high) / 2, (high - low) / 2

    def at(centre: float, slope: float, half_width: float) -> Policy:
        def rule(seen: Array) -> Array:
            share = seen / (problem.levels - 1) * 2 - 1
            return middle + reach * (centre + slope * share)

        return band(rule, (half_width * reach,), *problem.box)

    def policies() -> dict[str, Policy]:
        return {
            "near": at(-0.1, 0.2, 0.95),
            "shifted": at(0.0, 0.5, 0.6),
            "narrow": at(0.0, 0.6, 0.25),
            "far": at(1.0, 0.0, 0.02),
        }

    ends_early = bool(problem.chance[..., problem.levels :].any())
    extra = np.array([0.0, problem.harm, problem.of_death])
    low_reward = problem.reward.min() - problem.noise + extra.min()
    reward_range = float(low_reward), float(problem.reward.max() + problem.noise + extra.max())
    # The mean number of steps, from the same induction with a reward of 1 per step.
    ones = dataclasses.replace(
        problem, reward=np.ones_like(problem.reward), rare=0 * problem.rare, of_death=0.0,
        discount=1.0,
    )  # fmt: skip
    return Case(
        problem.name, problem.horizon, problem.discount, reward_range, ends_early,
        ones.value(problem.practice), problem.log, policies, problem.truths, half,
    )  # fmt: skip


_INSULIN_WIDTHS = {"near": (2.5,), "shifted": (2.5,), "guideline": (1.5,)}
_SEPSIS_WIDTHS = {"near": (0.12, 350.0), "shifted": (0.1, 250.0), "guideline": (0.06, 120.0)}


def cases() -> dict[str, Case]:
    """Return all cases by name; the last has an unobserved confounder and is no part of the proof.

    Rules of refusal are fixed on one half and tested on the other. `tabular/cliff` was first in the
    second half; an earlier interval failed on it, so it now belongs to the first. The last two
    tabular ones were written after that, before anything was measured on them.
    """
    found = (
        treatment_case("treatment/quadratic", "fix"), treatment_case("treatment/cubic", "test"),
        tabular_case(ladder(), "fix"), tabular_case(cliff(), "fix"),
        tabular_case(delayed(), "test"), tabular_case(jackpot(), "test"),
        ward_case(INSULIN, _INSULIN_WIDTHS, 9.0, "fix"),
        ward_case(SEPSIS, _SEPSIS_WIDTHS, 8.0, "test"),
        ward_case(SEPSIS_HIDDEN, _SEPSIS_WIDTHS, 7.9, "hidden"),
    )  # fmt: skip
    return {case.name: case for case in found}
