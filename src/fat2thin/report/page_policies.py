"""What the page knows of a run's policies: their heads in a few states, and where they lead."""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy import stats

from fat2thin.data import Dataset
from fat2thin.envs import treatment
from fat2thin.envs.treatment import Treatment
from fat2thin.policies.families import Family
from fat2thin.policies.policy import Policy
from fat2thin.runs.result import Run

Plain = dict[str, Any]
"""What JSON can hold."""

LOGGED_PAIRS = 300
"""Logged steps that the page has of a log."""
PATIENTS = 3
"""Trajectories of the treatment task that the page has of a run."""
VIEW = 1.3
"""Farthest action shown, in half-ranges of the box from its middle; the page's scripts agree."""
GRID = 61
"""Actions of a curve that is not computed in the page."""
CENTRAL = 0.9
"""Share of a policy that is shown as its middle."""
_PATIENT_SEED = 0


class Limits(NamedTuple):
    """How much of each run a page of several runs has room for."""

    states: int
    snapshots: int


def rounded(values: Any, digits: int = 5) -> Any:
    """Nested lists of numbers with so many significant digits; None where one is not finite."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [rounded(row, digits) for row in array]
    return float(f"{array:.{digits}g}") if np.isfinite(array) else None


def good_seed(run: Run) -> int:
    """The first seed that did not stop, or the first of all."""
    stopped = {int(seed) for seed in run.about.get("stopped", {})}
    return next((seed for seed in run.spec.seeds if seed not in stopped), run.spec.seeds[0])


def look_at(run: Run, log: Dataset | None, limits: Limits) -> Plain:
    """Everything the page shows of single policies of a run, but for the weights."""
    seed, problem = good_seed(run), run.program.problem
    names, states = _picked_states(run, log, limits.states)
    steps = _spread(sorted({*run.snapshots, run.step}), limits.snapshots)
    actors = [run.policy(seed, step) for step in steps]
    fats = [run.proposal(seed, step) for step in steps] if run.program.algorithm.proposal else []
    return {
        "seed": seed,
        "low": rounded(problem.action_low, 7),
        "high": rounded(problem.action_high, 7),
        "names": names,
        "states": rounded(states),
        "steps": steps,
        "actor": _answers(actors, states),
        "proposal": _answers(fats, states) if fats else None,
        "trajectory": _trajectory(run, actors[-1], fats[-1] if fats else None),
    }


def _picked_states(
    run: Run, log: Dataset | None, count: int
) -> tuple[list[str], Float[np.ndarray, "states observation"]]:
    """Names and values of states to look at: the middle of all, and some logged ones."""
    scale = run.jobs.observation_scale
    size = run.program.problem.observation_size
    # A policy that standardises what it sees tells where the middle of its log is.
    index = run.spec.seeds.index(good_seed(run))
    middle = np.zeros(size) if scale is None else np.asarray(scale.mean[index], np.float64)
    names = ["all zeros" if scale is None else "mean of the log"]
    states = [middle]
    if log is not None:
        for row in np.linspace(0, log.rows - 1, count).astype(int)[: count - 1]:
            names.append(f"logged step {row}")
            states.append(np.asarray(log.observation[row], np.float64))
    # What the page says must hold for the numbers that the page shows.
    shown = [[float(f"{value:.5g}") for value in state] for state in states]
    return names, np.asarray(shown)


def _spread(steps: list[int], most: int) -> list[int]:
    """The first and the last of some steps, and others at equal distances between them."""
    places = np.linspace(0, len(steps) - 1, min(most, len(steps)))
    return [steps[round(place)] for place in places]


def law_of(family: Family) -> Plain | None:
    """The family as the page's scripts know it; None for one that they have no law for."""
    # Its own and not a parent's: what is made from a family may have another density.
    law = vars(type(family)).get("page_law")
    if law is None:
        return None
    names = {"entropic_index": "index", "degrees_of_freedom": "freedom", "box": "box"}
    settings = {names[field]: value for field, value in dataclasses.asdict(family).items()}
    return {"kind": law, **settings}


class _Answer(NamedTuple):
    """What a policy says of states, shape (states, action)."""

    centre: Array
    log_scale: Array
    act: Array
    low: Array
    high: Array


@eqx.filter_jit
def _ask(policy: Policy, seen: Float[Array, "states observation"]) -> _Answer:
    head, ends = policy.network(seen), policy.support(seen)
    return _Answer(head.centre, head.log_scale, policy.act(seen), *ends)


@eqx.filter_jit
def _log_density(policy: Policy, seen: Array, actions: Array) -> Array:
    return policy(seen).log_prob(actions)


def _answers(policies: list[Policy], states: Float[np.ndarray, "states observation"]) -> Plain:
    """What a policy says of the picked states after each step that is kept.

    For a family that the page knows that is the head; for another one its ends, its centre and,
    with one coordinate, its density on a grid.
    """
    family, seen = law_of(policies[-1].family), jnp.asarray(states, jnp.float32)
    if family is not None:
        answers = [_ask(policy, seen) for policy in policies]
        heads = [np.stack([answer.centre, answer.log_scale], axis=1) for answer in answers]
        return {"family": family, "heads": rounded(heads, 7)}
    return {"family": None, "drawn": [_drawn(policy, seen) for policy in policies]}


def _drawn(policy: Policy, seen: Float[Array, "states observation"]) -> Plain:
    answer = _ask(policy, seen)
    low, high = np.asarray(answer.low), np.asarray(answer.high)
    drawn = {"low": rounded(low), "high": rounded(high), "centre": rounded(answer.act)}
    if policy.low.size > 1:
        return drawn
    middle, reach = (policy.low + policy.high) / 2.0, VIEW * (policy.high - policy.low) / 2.0
    ends = np.clip(low, middle - reach, None), np.clip(high, None, middle + reach)
    actions = jnp.asarray(np.linspace(*ends, GRID), jnp.float32)
    density = np.exp(np.asarray(_log_density(policy, seen, actions)))
    return {**drawn, "actions": rounded(actions[..., 0].T), "density": rounded(density.T)}


def _trajectory(run: Run, policy: Policy, fat: Policy | None) -> Plain | None:
    """Doses along the course of a few patients who are given the centre, (patients, time)."""
    if not treatment.is_name(run.spec.dataset) or run.spec.task is not None:
        return None
    task = treatment.by_name(run.spec.dataset)
    patients, seen = _first_patients(task)
    steps: list[tuple[_Answer, _Answer]] = []
    for time in range(task.horizon):
        answer = _ask(policy, seen)
        steps.append((answer, answer if fat is None else _ask(fat, seen)))
        patients, seen = _next_patients(patients, answer.act, jnp.int32(time), task)
    thin, wide = jax.tree.map(lambda *of_steps: np.stack(of_steps, axis=1), *steps)
    course = {
        "low": np.clip(thin.low, policy.low, policy.high),
        "high": np.clip(thin.high, policy.low, policy.high),
        "centre": thin.act,
        **_central(policy if fat is None else fat, wide),
    }
    return {name: rounded(doses[..., 0]) for name, doses in course.items()}


def _patient_keys() -> Key[Array, " patients"]:
    return jax.random.split(jax.random.key(_PATIENT_SEED), PATIENTS)


@functools.partial(jax.jit, static_argnames="task")
def _first_patients(task: Treatment) -> tuple[treatment.State, Float[Array, "patients 8"]]:
    return jax.vmap(lambda key: treatment.reset(key, task))(_patient_keys())


@functools.partial(jax.jit, static_argnames="task")
def _next_patients(
    patients: treatment.State, doses: Float[Array, "patients 1"], time: Array, task: Treatment
) -> tuple[treatment.State, Float[Array, "patients 8"]]:
    def one(key: Array, state: treatment.State, dose: Array) -> tuple[treatment.State, Array]:
        return treatment.step(jax.random.fold_in(key, time + 1), state, dose, task)[:2]

    return jax.vmap(one)(_patient_keys(), patients, doses)


def _central(policy: Policy, answer: _Answer) -> dict[str, np.ndarray]:
    """Ends of the central part of what a policy does, cut at its box; none where unknown."""
    law = law_of(policy.family)
    if law is None:
        return {}
    low, high = np.asarray(policy.low, np.float64), np.asarray(policy.high, np.float64)
    head = np.asarray(answer.centre, np.float64), np.asarray(answer.log_scale, np.float64)
    middle, reach = (low + high) / 2.0, (high - low) / 2.0
    tail = (1.0 - CENTRAL) / 2.0
    ends = {"fat_low": tail, "fat_high": 1.0 - tail}
    return {
        name: np.clip(middle + reach * quantile(law, *head, share), low, high)
        for name, share in ends.items()
    }


def quantile(
    law: Plain, centre: np.ndarray, log_scale: np.ndarray, share: float
) -> Float[np.ndarray, "*rows action"]:
    """The action below which a share of the mass lies, in half-ranges."""
    scale = np.exp(log_scale)
    match law:
        case {"kind": "sparse", "index": index, "box": box}:
            # On its band the law is a Beta distribution with two equal concentrations.
            concentration = 1.0 / (1.0 - index) + 1.0
            unit = 2.0 * stats.beta.ppf(share, concentration, concentration) - 1.0
            width = scale if box == "clip" else np.minimum(scale, 1.0)
            at = centre if box == "clip" else np.clip(centre, width - 1.0, 1.0 - width)
            return at + width * unit
        case {"kind": "heavy", "index": 1.0}:
            return stats.norm.ppf(share, centre, scale)
        case {"kind": "heavy", "index": index}:
            freedom = (3.0 - index) / (index - 1.0)
            return stats.t.ppf(share, freedom, centre, scale * np.sqrt(2.0 / (3.0 - index)))
        case {"kind": "student", "freedom": freedom}:
            return stats.t.ppf(share, freedom, centre, scale)
        case {"kind": "squashed"}:
            return np.tanh(stats.norm.ppf(share, centre, scale))
        case {"kind": "beta"}:
            place, strength = (1.0 + centre) / 2.0, scale**-2.0
            above, below = 1.0 + place * strength, 1.0 + (1.0 - place) * strength
            return 2.0 * stats.beta.ppf(share, above, below) - 1.0
        case {"kind": "deterministic"}:
            return centre
    raise ValueError(f"no quantiles of {law!r} are known")


def logged_pairs(log: Dataset) -> Plain:
    """Some logged states and actions, at equal distances through the log."""
    rows = np.unique(np.linspace(0, log.rows - 1, min(LOGGED_PAIRS, log.rows)).astype(int))
    spread = np.std(log.observation, axis=0)
    return {
        "rows": log.rows,
        "states": rounded(log.observation[rows], 4),
        "actions": rounded(log.action[rows], 5),
        "spread": rounded(np.where(spread > 0, spread, 1.0), 5),
    }
