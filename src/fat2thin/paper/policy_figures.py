"""The paper's figures of policies: true densities of what is done, and what a first dose is worth.

The paper draws squashed Gaussians before squashing, and scales heights.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fat2thin.envs import treatment
from fat2thin.envs.treatment import State, Treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.paper.marginals import Marginal, draw_acting, draw_proposal, fit_height, marginal
from fat2thin.policies.policy import Policy
from fat2thin.report.figure_style import DARK, DOTTED, GREY, signed
from fat2thin.runs.result import Run

EARLIER_STEPS, EARLIER_DOSE = 7, -0.03
RETURN_STEPS, FIRST_DOSES, FUTURES = 50, 50, 400
PATIENT_SEED = 0
ACTS, LEARNS = "policy that acts", "its proposal, which only learns"
_RESAMPLES = 2000
_CENTRAL = 0.9
_RED = "#C1272D"


def final_policies(
    runs: Mapping[str, Run], observation: ArrayLike, seed: int | None = None, *,
    dimension: int = 0, where: str = "in one state",
) -> Figure:  # fmt: skip
    """Densities of the final policies that act, one row per method with its own height.

    Titles name the exact support of a sparse policy, or the central 90 % of another one; a single
    action is a stem. `where` names the state.
    """
    heading = _data(runs.values(), seed)
    figure = Figure(figsize=(7.2, 1.5 + 1.25 * len(runs)))
    rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(rows, runs.items(), strict=True):
        law = marginal(run.policy(seed), observation, dimension)
        draw_acting(axes, law, ACTS)
        fit_height(axes, [law])
        axes.set_title(f"{name}: {_in_words(law)}", loc="left", fontsize=10, pad=4)
    rows[-1].set_xlabel(_action_name(runs.values(), dimension))
    figure.supylabel(f"density, per unit of {_unit(runs.values())}", fontsize=10)
    figure.suptitle(f"final policies on {heading}\n{where}")
    _name_lines(figure, rows)
    return figure


def actor_and_proposal(
    run: Run, observation: ArrayLike, seed: int | None = None, *, dimension: int = 0,
    where: str = "in one state",
) -> Figure:  # fmt: skip
    """The thin actor against its fat proposal, around the actor's band; shaded where it is zero."""
    thin = marginal(run.policy(seed), observation, dimension)
    fat = marginal(run.proposal(seed), observation, dimension, clipped=False)
    low, high = thin.support
    figure = Figure(figsize=(7.2, 4.2))
    axes = figure.subplots()
    draw_acting(axes, thin, "thin actor")
    draw_proposal(axes, fat, "fat proposal")
    fit_height(axes, [thin, fat])
    reach = 1.2 * (high - low)
    left, right = axes.get_xlim()
    axes.set_xlim(max(low - reach, left), min(high + reach, right))
    inside = (low <= fat.points) & (fat.points <= high)
    kept = np.trapezoid(fat.density[inside], fat.points[inside])
    axes.set_title(f"band {_range(thin.support)}: {100.0 * kept:.0f} % of the proposal is in it")
    axes.set_xlabel(_action_name([run], dimension))
    axes.set_ylabel(f"density, per unit of {_unit([run])}")
    figure.suptitle(
        f"{run.spec.algorithm} on {_data([run], seed)}, after {run.step:,} updates, {where}"
    )
    _name_lines(figure, [axes])
    return figure


def evolution(
    runs: Mapping[str, Run], observation: ArrayLike, seed: int | None, steps: Sequence[int],
    dimensions: Sequence[int] = (0,), *, where: str = "in one state",
) -> Figure:  # fmt: skip
    """Densities after some updates: one column per step, one row per method and coordinate.

    True marginals of what is done, each panel with its own height. Where actions are clipped to the
    box, the atoms on its edges are stems with their probability.
    """
    heading = _data(runs.values(), seed)
    if not steps or not dimensions:
        raise ValueError("an evolution needs at least one step and one coordinate")
    rows = [(name, dimension) for name in runs for dimension in dimensions]
    figure = Figure(figsize=(max(7.2, 1.2 + 2.15 * len(steps)), 1.6 + 1.4 * len(rows)))
    grid = figure.subplots(len(rows), len(steps), sharex="row", squeeze=False)
    for row, (name, dimension) in zip(grid, rows, strict=True):
        for axes, step in zip(row, steps, strict=True):
            run, laws = runs[name], []
            laws.append(marginal(run.policy(seed, step), observation, dimension))
            draw_acting(axes, laws[0], ACTS)
            if run.program.algorithm.proposal:
                fat = run.proposal(seed, step)
                laws.append(marginal(fat, observation, dimension, clipped=False))
                draw_proposal(axes, laws[1], LEARNS)
            fit_height(axes, laws)
        of_coordinate = f"\ncoordinate {dimension}" if len(dimensions) > 1 else ""
        row[0].set_ylabel(f"{name}{of_coordinate}\ndensity")
    for axes, step in zip(grid[0], steps, strict=True):
        axes.set_title(
            "before training" if step == 0 else f"after {step:,} update{'s' * (step > 1)}"
        )
    for axes in grid[-1]:
        single = dimensions[0] if len(dimensions) == 1 else None
        axes.set_xlabel(_action_name(runs.values(), single))
    figure.suptitle(f"{heading}, {where}")
    _name_lines(figure, grid.flat)
    return figure


class FirstActions(NamedTuple):
    """Returns of futures that begin with each of some doses."""

    observation: Float[Array, " observation"]
    """What is seen of the patient."""
    doses: Float[np.ndarray, " doses"]
    returns: Float[np.ndarray, "doses futures"]


def patient_after_doses(task: Treatment) -> tuple[State, Float[Array, " observation"]]:
    """The patient: what the task knows of it, and what is seen."""
    key = jax.random.key(PATIENT_SEED)
    state, observation = treatment.reset(key, task)
    dose = jnp.full(treatment.ACTION_SIZE, EARLIER_DOSE)
    for step in range(EARLIER_STEPS):
        state, observation, *_ = treatment.step(jax.random.fold_in(key, step), state, dose, task)
    return state, observation


def first_action_returns(actor: Policy, task: Treatment) -> FirstActions:
    """Undiscounted returns of 50 steps by first dose, the actor's centre afterwards.

    The patient has had 7 doses of -0.03. The futures are the same for every dose and every actor;
    they use no random stream of training or evaluation.
    """
    state, observation = patient_after_doses(task)
    doses = np.linspace(task.dose_low, task.dose_high, FIRST_DOSES)
    begin = jax.random.fold_in(jax.random.key(PATIENT_SEED), EARLIER_STEPS)

    def one(dose: Array, key: Array) -> Array:
        def step(carry: tuple[State, Array], time: Array) -> tuple[tuple[State, Array], Array]:
            now, action = carry
            now, seen, reward, _ = treatment.step(jax.random.fold_in(key, time), now, action, task)
            return (now, actor.act(seen)), reward

        return jnp.sum(jax.lax.scan(step, (state, dose[None]), jnp.arange(RETURN_STEPS))[1])

    every = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    futures = jax.random.split(begin, FUTURES)
    returns = jax.jit(every)(jnp.asarray(doses, jnp.float32), futures)
    return FirstActions(observation, doses, np.asarray(returns))


def first_action_return(run: Run, seed: int | None = None) -> Figure:
    """Where the actor and its proposal may dose a patient, and what the first dose is worth.

    The patient has had 7 doses of -0.03. Grey: the undiscounted return of 50 steps as a function of
    the first dose, the actor's centre afterwards; mean of 400 futures from that one state, with its
    95 % interval. Red: doses that the proposal would give and the actor cannot.
    """
    if not treatment.is_name(run.spec.dataset):
        raise ValueError(
            f"the return of a first dose is for treatment tasks, not {run.spec.dataset!r}"
        )
    task, actor = treatment.by_name(run.spec.dataset), run.policy(seed)
    observation, doses, returns = first_action_returns(actor, task)
    thin = marginal(actor, observation)
    fat = marginal(run.proposal(seed), observation, clipped=False)
    intervals = [seed_interval(row[:, None], resamples=_RESAMPLES) for row in returns]
    value, low, high = np.transpose(intervals)

    figure = Figure(figsize=(7.6, 4.6))
    axes = figure.subplots()
    draw_acting(axes, thin, "thin actor")
    draw_proposal(axes, fat, "fat proposal")
    beyond = {"": fat.points <= thin.support[0], "_": fat.points >= thin.support[1]}
    for prefix, places in beyond.items():
        axes.fill_between(
            fat.points[places], fat.density[places], color=_RED, alpha=0.35, linewidth=0,
            hatch="///", label=f"{prefix}proposal above zero, actor exactly zero",
        )  # fmt: skip
    fit_height(axes, [thin, fat])
    beside = axes.twinx()
    beside.spines["right"].set_visible(True)
    beside.fill_between(doses, low, high, color=GREY, alpha=0.18, linewidth=0)
    beside.plot(doses, value, color=GREY, linestyle=DOTTED, label="return after that first dose")
    beside.set_ylim(min(0.0, 1.05 * low.min()), max(0.0, 1.15 * high.max()))
    beside.set_ylabel(f"return of {RETURN_STEPS} steps, undiscounted", color=DARK)
    axes.set(xlabel="first dose", ylabel="density, per unit of dose")
    figure.suptitle(
        f"{run.spec.algorithm} on {_data([run], seed)}: a patient after {EARLIER_STEPS} doses of "
        f"−{-EARLIER_DOSE:g}\ngrey: mean of {FUTURES} futures, with its 95 % interval; the actor's "
        "centre doses after the first",
        fontsize=10,
    )
    (handles, labels), (more, names) = (one.get_legend_handles_labels() for one in (axes, beside))
    figure.legend(handles + more, labels + names, loc="outside lower center", ncols=2)
    return figure


def _in_words(law: Marginal) -> str:
    if law.support[0] == law.support[1]:
        return f"always {signed(law.support[0])}"
    if law.sparse:
        return f"nothing outside {_range(law.support)}"
    return f"central {100.0 * _CENTRAL:.0f} % {_range(law.central(_CENTRAL))}"


def _range(ends: tuple[float, float]) -> str:
    return f"{signed(ends[0])} to {signed(ends[1])}"


def _unit(runs: Iterable[Run]) -> str:
    return "dose" if all(treatment.is_name(run.spec.dataset) for run in runs) else "action"


def _action_name(runs: Collection[Run], dimension: int | None) -> str:
    single = all(run.program.problem.action_size == 1 for run in runs)
    return _unit(runs) if single or dimension is None else f"action, coordinate {dimension}"


def _data(runs: Collection[Run], seed: int | None) -> str:
    """The names of the data, of files without their folders, and the seed."""
    if not runs:
        raise ValueError("there is no run to draw the policies of")
    datasets = dict.fromkeys(run.spec.dataset for run in runs)
    names = dict.fromkeys(Path(name).name if Path(name).suffix else name for name in datasets)
    first = next(iter(runs)).spec.seeds[0]
    return f"{', '.join(names)}, seed {first if seed is None else seed}"


def _name_lines(figure: Figure, panels: Iterable[Axes]) -> None:
    """One legend for all panels, each name once."""
    named: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            named.setdefault(label, handle)
    named = dict(sorted(named.items(), key=lambda one: isinstance(one[1], Patch)))
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", ncols=min(3, len(named))
    )
