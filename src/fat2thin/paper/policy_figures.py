"""The paper's figures of policies: true densities of what is done, and when a dose pays."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import ArrayLike
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fat2thin.envs import treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.paper.first_actions import (
    EARLIER_DOSE,
    EARLIER_STEPS,
    FUTURES,
    RETURN_STEPS,
    first_action_returns,
)
from fat2thin.paper.marginals import (
    Marginal,
    draw_acting,
    draw_proposal,
    fit_height,
    marginal,
    view,
)
from fat2thin.report.distribution_figures import GREY
from fat2thin.report.run_figures import DOTTED
from fat2thin.runs.result import Run

ACTS, LEARNS = "policy that acts", "its proposal, which only learns"
_RESAMPLES = 2000
_CENTRAL = 0.9
_RED = "#C1272D"


def final_policies(
    runs: Mapping[str, Run],
    observation: ArrayLike,
    seed: int | None = None,
    *,
    dimension: int = 0,
    where: str = "in one state",
) -> Figure:
    """Densities of the policies that act, a row each with its own height, after the last update.

    A coordinate of the action over its box. The support of a sparse policy is shown and named
    exactly, a single action is a stem, and for others the central 90 % is named. `where` says in
    words which state it is.
    """
    _refuse_none(runs)
    figure = Figure(figsize=(7.2, 1.5 + 1.25 * len(runs)))
    rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(rows, runs.items(), strict=True):
        law = marginal(run.policy(seed), observation, dimension)
        draw_acting(axes, law, ACTS)
        fit_height(axes, [law])
        axes.set_title(f"{name}: {_in_words(law)}", loc="left", fontsize=10, pad=4)
    rows[-1].set_xlabel(_action_name(runs, dimension))
    figure.supylabel(f"density, per unit of {_unit(runs)}", fontsize=10)
    figure.suptitle(f"final policies on {_data(runs)}, {_of_seed(runs, seed)}\n{where}")
    _name_lines(figure, rows)
    return figure


def actor_and_proposal(
    run: Run,
    observation: ArrayLike,
    seed: int | None = None,
    *,
    dimension: int = 0,
    where: str = "in one state",
) -> Figure:
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
    left, right = view(thin.box)
    axes.set_xlim(max(low - reach, left), min(high + reach, right))
    inside = (low <= fat.points) & (fat.points <= high)
    kept = np.trapezoid(fat.density[inside], fat.points[inside])
    axes.set_title(f"band {_range(thin.support)}: {_per_cent(kept)} of the proposal is in it")
    axes.set_xlabel(_action_name({"": run}, dimension))
    axes.set_ylabel(f"density, per unit of {_unit({'': run})}")
    figure.suptitle(
        f"{run.spec.algorithm} on {_data_of(run)}, {_of_seed({'': run}, seed)}, after "
        f"{run.step:,} updates, {where}"
    )
    _name_lines(figure, [axes])
    return figure


def evolution(
    runs: Mapping[str, Run],
    observation: ArrayLike,
    seed: int | None,
    steps: Sequence[int],
    dimensions: Sequence[int] = (0,),
    *,
    where: str = "in one state",
) -> Figure:
    """Densities after some updates: a column a step, a row a method and coordinate.

    True marginals of what is done, each panel with its own height. Where actions are clipped to the
    box, the atoms on its edges are stems with their probability.
    """
    _refuse_none(runs)
    if not steps or not dimensions:
        raise ValueError("an evolution needs at least one step and one coordinate")
    rows = [(name, dimension) for name in runs for dimension in dimensions]
    figure = Figure(figsize=(max(7.2, 1.2 + 2.15 * len(steps)), 1.6 + 1.4 * len(rows)))
    grid = figure.subplots(len(rows), len(steps), sharex="row", squeeze=False)
    for row, (name, dimension) in zip(grid, rows, strict=True):
        for axes, step in zip(row, steps, strict=True):
            _draw_step(axes, runs[name], observation, seed, step, dimension)
        of_coordinate = f"\ncoordinate {dimension}" if len(dimensions) > 1 else ""
        row[0].set_ylabel(f"{name}{of_coordinate}\ndensity")
    for axes, step in zip(grid[0], steps, strict=True):
        axes.set_title(
            "before training" if step == 0 else f"after {step:,} update{'s' * (step > 1)}"
        )
    for axes in grid[-1]:
        axes.set_xlabel(_action_name(runs, dimensions[0] if len(dimensions) == 1 else None))
    figure.suptitle(f"{_data(runs)}, {_of_seed(runs, seed)}, {where}")
    _name_lines(figure, grid.flat)
    return figure


def _draw_step(
    axes: Axes, run: Run, observation: ArrayLike, seed: int | None, step: int, dimension: int
) -> None:
    laws = [marginal(run.policy(seed, step), observation, dimension)]
    draw_acting(axes, laws[0], ACTS)
    if run.program.algorithm.proposal:
        laws.append(marginal(run.proposal(seed, step), observation, dimension, clipped=False))
        draw_proposal(axes, laws[1], LEARNS)
    fit_height(axes, laws)


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
    for beyond, prefix in (
        (fat.points <= thin.support[0], ""),
        (fat.points >= thin.support[1], "_"),
    ):
        label = f"{prefix}proposal above zero, actor exactly zero"
        axes.fill_between(
            fat.points[beyond], fat.density[beyond], color=_RED, alpha=0.35, linewidth=0,
            hatch="///", label=label,
        )  # fmt: skip
    fit_height(axes, [thin, fat])
    beside = axes.twinx()
    beside.spines["right"].set_visible(True)
    beside.fill_between(doses, low, high, color=GREY, alpha=0.18, linewidth=0)
    beside.plot(doses, value, color=GREY, linestyle=DOTTED, label="return after that first dose")
    beside.set_ylim(min(0.0, 1.05 * low.min()), max(0.0, 1.15 * high.max()))
    beside.set_ylabel(f"return of {RETURN_STEPS} steps, undiscounted", color="#555555")
    axes.set(xlabel="first dose", ylabel="density, per unit of dose")
    figure.suptitle(
        f"{run.spec.algorithm} on {_data_of(run)}, {_of_seed({'': run}, seed)}: a patient after "
        f"{EARLIER_STEPS} doses of −{-EARLIER_DOSE:g}\ngrey: mean of {FUTURES} futures, with its "
        "95 % interval; the actor's centre doses after the first",
        fontsize=10,
    )
    handles, labels = (
        one + other
        for one, other in zip(
            axes.get_legend_handles_labels(), beside.get_legend_handles_labels(), strict=True
        )
    )
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _in_words(law: Marginal) -> str:
    if law.support[0] == law.support[1]:
        return f"always {_number(law.support[0])}"
    if law.sparse:
        return f"nothing outside {_range(law.support)}"
    return f"central {_per_cent(_CENTRAL)} {_range(law.central(_CENTRAL))}"


def _range(ends: tuple[float, float]) -> str:
    return f"{_number(ends[0])} to {_number(ends[1])}"


def _per_cent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _refuse_none(runs: Mapping[str, Run]) -> None:
    if not runs:
        raise ValueError("there is no run to draw the policies of")


def _unit(runs: Mapping[str, Run]) -> str:
    return "dose" if all(treatment.is_name(run.spec.dataset) for run in runs.values()) else "action"


def _action_name(runs: Mapping[str, Run], dimension: int | None) -> str:
    single = all(run.program.problem.action_size == 1 for run in runs.values())
    return _unit(runs) if single or dimension is None else f"action, coordinate {dimension}"


def _data(runs: Mapping[str, Run]) -> str:
    return ", ".join(dict.fromkeys(map(_data_of, runs.values())))


def _data_of(run: Run) -> str:
    """The name of the data; of a file without its folder."""
    path = Path(run.spec.dataset)
    return path.name if path.suffix else run.spec.dataset


def _of_seed(runs: Mapping[str, Run], seed: int | None) -> str:
    first = next(iter(runs.values())).spec.seeds[0]
    return f"seed {first if seed is None else seed}"


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
