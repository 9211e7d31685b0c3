"""The paper's figures of policies: densities, the return of a first dose, and two sketches.

These figures show true densities; the paper draws squashed Gaussians before squashing and rescales
heights. The sketches use made-up data to show why a sparse policy is hard to learn from a log.
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
from matplotlib.patches import Patch, Rectangle

from fat2thin.algorithms.steps import REPLACEMENT_SAMPLES
from fat2thin.distributions import QGaussian
from fat2thin.envs import treatment
from fat2thin.envs.treatment import Patient, Treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.paper.marginals import Marginal, draw_policies
from fat2thin.policies.policy import Policy
from fat2thin.report.distribution_figures import BEST_RATIO
from fat2thin.report.style import BLUE, DARK, DASHED, DOTTED, GREY, ORANGE, SHADE, signed
from fat2thin.runs.result import Run

EARLIER_STEPS, EARLIER_DOSE = 7, -0.03
RETURN_STEPS, FIRST_DOSES, FUTURES = 50, 50, 400
PATIENT_SEED = 0
NAMES = "policy that acts", "its proposal (training only)"
_RESAMPLES = 2000
_CENTRAL = 0.9
_RED = "#C1272D"
_SEED = 0
_CENTRE, _SCALE = 0.25, 0.25  # sparse policy in the sketches, on a box from -1 to 1
_LOGGED = np.array([-0.86, -0.62, -0.3, -0.02, 0.1, 0.22, 0.3, 0.41, 0.52, 0.8, 0.93])
_LOGGED_PAIRS = np.array(
    [(-0.75, -0.55), (-0.6, 0.65), (-0.28, -0.8), (0.05, 0.12), (0.2, 0.42), (0.36, 0.22),
     (0.5, 0.05), (0.18, 0.9), (0.85, 0.75), (0.88, -0.35)]
)  # fmt: skip
_LOWEST = -5.0


def final_policies(
    runs: Mapping[str, Run], observation: ArrayLike, seed: int | None = None, *,
    dimension: int = 0, where: str = "in one state",
) -> Figure:  # fmt: skip
    """Draw the densities of the final acting policies, one row per method with its own height.

    Titles give the exact support of a sparse policy, or the central 90 % of another one; a single
    action is a stem. `where` describes the state.
    """
    heading = _data(runs.values(), seed)
    figure = Figure(figsize=(7.2, 1.5 + 1.25 * len(runs)))
    rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(rows, runs.items(), strict=True):
        (law,) = draw_policies(axes, run.policy(seed), None, observation, dimension, NAMES)
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
    """Draw the thin actor and its fat proposal around the actor's band; shaded where it is zero."""
    figure = Figure(figsize=(7.2, 4.2))
    axes = figure.subplots()
    thin, fat = draw_policies(axes, run.policy(seed), run.proposal(seed), observation, dimension)
    low, high = thin.support
    reach = 1.2 * (high - low)
    left, right = axes.get_xlim()
    axes.set_xlim(max(low - reach, left), min(high + reach, right))
    inside = (low <= fat.points) & (fat.points <= high)
    kept = np.trapezoid(fat.density[inside], fat.points[inside])
    axes.set_title(f"band {_range(thin.support)}: {100.0 * kept:.0f} % of the proposal is in it")
    axes.set(xlabel=_action_name([run], dimension), ylabel=f"density, per unit of {_unit([run])}")
    figure.suptitle(
        f"{run.spec.algorithm} on {_data([run], seed)}, after {run.step:,} updates, {where}"
    )
    _name_lines(figure, [axes])
    return figure


def evolution(
    runs: Mapping[str, Run], observation: ArrayLike, seed: int | None, steps: Sequence[int],
    dimensions: Sequence[int] = (0,), *, where: str = "in one state",
) -> Figure:  # fmt: skip
    """Draw densities at several steps: one column per step, one row per method and coordinate.

    Marginals of the executed action, each panel with its own height. Where actions are clipped to
    the box, the atoms on its edges are stems labelled with their probability.
    """
    heading = _data(runs.values(), seed)
    if not steps or not dimensions:
        raise ValueError("an evolution needs at least one step and one coordinate")
    rows = [(name, dimension) for name in runs for dimension in dimensions]
    figure = Figure(figsize=(max(7.2, 1.2 + 2.15 * len(steps)), 1.6 + 1.4 * len(rows)))
    grid = figure.subplots(len(rows), len(steps), sharex="row", squeeze=False)
    for row, (name, dimension) in zip(grid, rows, strict=True):
        for axes, step in zip(row, steps, strict=True):
            run = runs[name]
            fat = run.proposal(seed, step) if run.program.algorithm.proposal else None
            draw_policies(axes, run.policy(seed, step), fat, observation, dimension, NAMES)
        of_coordinate = f"\ncoordinate {dimension}" if len(dimensions) > 1 else ""
        row[0].set_ylabel(f"{name}{of_coordinate}\ndensity")
    single = dimensions[0] if len(dimensions) == 1 else None
    for top, bottom, step in zip(grid[0], grid[-1], steps, strict=True):
        after = f"after {step:,} update{'s' * (step > 1)}"
        top.set_title(after if step else "before training")
        bottom.set_xlabel(_action_name(runs.values(), single))
    figure.suptitle(f"{heading}, {where}")
    _name_lines(figure, grid.flat)
    return figure


class FirstActions(NamedTuple):
    """Returns of simulated futures of a patient, by first dose."""

    observation: Float[Array, " observation"]
    """Observation of the patient."""
    doses: Float[np.ndarray, " doses"]
    """First doses."""
    returns: Float[np.ndarray, "doses futures"]
    """Undiscounted returns."""


def patient_after_doses(task: Treatment) -> tuple[Patient, Float[Array, " observation"]]:
    """Return the state and the observation of the patient after the earlier doses."""
    key = jax.random.key(PATIENT_SEED)
    state, observation = treatment.reset(key, task)
    dose = jnp.full(treatment.ACTION_SIZE, EARLIER_DOSE)
    for step in range(EARLIER_STEPS):
        state, observation, *_ = treatment.step(jax.random.fold_in(key, step), state, dose, task)
    return state, observation


def first_action_returns(actor: Policy, task: Treatment) -> FirstActions:
    """Return undiscounted returns over 50 steps by first dose, followed by the actor's centre.

    The patient has had 7 doses of -0.03. The futures use the same random numbers for every dose and
    actor, from no random stream of training or evaluation.
    """
    state, observation = patient_after_doses(task)
    doses = np.linspace(task.dose_low, task.dose_high, FIRST_DOSES)
    begin = jax.random.fold_in(jax.random.key(PATIENT_SEED), EARLIER_STEPS)

    def one(dose: Array, key: Array) -> Array:
        def step(carry: tuple[Patient, Array], time: Array) -> tuple[tuple[Patient, Array], Array]:
            now, action = carry
            now, seen, reward, _ = treatment.step(jax.random.fold_in(key, time), now, action, task)
            return (now, actor.act(seen)), reward

        return jnp.sum(jax.lax.scan(step, (state, dose[None]), jnp.arange(RETURN_STEPS))[1])

    every = jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    futures = jax.random.split(begin, FUTURES)
    returns = jax.jit(every)(jnp.asarray(doses, jnp.float32), futures)
    return FirstActions(observation, doses, np.asarray(returns))


def first_action_return(run: Run, seed: int | None = None) -> Figure:
    """Draw the actor and its proposal for a patient, and the return by first dose.

    The patient has had 7 doses of -0.03. Grey: the undiscounted return over 50 steps by first dose,
    with the actor's centre afterwards; mean of 400 futures from that one state, with its 95 %
    interval. Red: doses that the proposal would give and the actor cannot.
    """
    if not treatment.is_name(run.spec.dataset):
        raise ValueError(
            f"the return of a first dose is only available for treatment tasks, not "
            f"{run.spec.dataset!r}"
        )
    task, actor = treatment.by_name(run.spec.dataset), run.policy(seed)
    observation, doses, returns = first_action_returns(actor, task)
    intervals = [seed_interval(row[:, None], resamples=_RESAMPLES) for row in returns]
    value, low, high = np.transpose(intervals)

    figure = Figure(figsize=(7.6, 4.6))
    axes = figure.subplots()
    thin, fat = draw_policies(axes, actor, run.proposal(seed), observation)
    beyond = {"": fat.points <= thin.support[0], "_": fat.points >= thin.support[1]}
    for prefix, places in beyond.items():
        axes.fill_between(
            fat.points[places], fat.density[places], color=_RED, alpha=0.35, linewidth=0,
            hatch="///", label=f"{prefix}proposal above zero, actor exactly zero",
        )  # fmt: skip
    second = axes.twinx()
    second.spines["right"].set_visible(True)
    second.fill_between(doses, low, high, color=GREY, alpha=0.18, linewidth=0)
    second.plot(doses, value, color=GREY, linestyle=DOTTED, label="return after that first dose")
    second.set_ylim(min(0.0, 1.05 * low.min()), max(0.0, 1.15 * high.max()))
    second.set_ylabel(f"return of {RETURN_STEPS} steps, undiscounted", color=DARK)
    axes.set(xlabel="first dose", ylabel="density, per unit of dose")
    figure.suptitle(
        f"{run.spec.algorithm} on {_data([run], seed)}: a patient after {EARLIER_STEPS} doses of "
        f"−{-EARLIER_DOSE:g}\ngrey: mean of {FUTURES} futures, with its 95 % interval; the actor's "
        "centre doses after the first",
        fontsize=10,
    )
    (handles, labels), (more, names) = (one.get_legend_handles_labels() for one in (axes, second))
    figure.legend(handles + more, labels + names, loc="outside lower center", ncols=2)
    return figure


def _in_words(law: Marginal) -> str:
    if law.support[0] == law.support[1]:
        return f"always {signed(law.support[0])}"
    if law.sparse:
        return f"zero outside {_range(law.support)}"
    return f"central {100.0 * _CENTRAL:.0f} % {_range(law.central(_CENTRAL))}"


def _range(ends: tuple[float, float]) -> str:
    return f"{signed(ends[0])} to {signed(ends[1])}"


def _unit(runs: Iterable[Run]) -> str:
    return "dose" if all(treatment.is_name(run.spec.dataset) for run in runs) else "action"


def _action_name(runs: Collection[Run], dimension: int | None) -> str:
    single = all(run.program.problem.action_size == 1 for run in runs)
    return _unit(runs) if single or dimension is None else f"action, coordinate {dimension}"


def _data(runs: Collection[Run], seed: int | None) -> str:
    """Return the names of the data sets (files without their folders) and the seed."""
    if not runs:
        raise ValueError("no run was given whose policies to draw")
    datasets = dict.fromkeys(run.spec.dataset for run in runs)
    names = dict.fromkeys(Path(name).name if Path(name).suffix else name for name in datasets)
    first = next(iter(runs)).spec.seeds[0]
    return f"{', '.join(names)}, seed {first if seed is None else seed}"


def _name_lines(figure: Figure, panels: Iterable[Axes]) -> None:
    """Add one legend for all panels, with each label once."""
    named: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        for label, handle in zip(labels, handles, strict=True):
            named.setdefault(label, handle)
    named = dict(sorted(named.items(), key=lambda one: isinstance(one[1], Patch)))
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", ncols=min(3, len(named))
    )


def outside_actions() -> Figure:
    """Draw logged actions outside the support of a sparse policy: their log likelihood is −∞."""
    policy = QGaussian(_CENTRE, _SCALE, 0.0)
    low, high = (_CENTRE + side * float(policy.half_width) for side in (-1.0, 1.0))
    # The heavy-tailed policy with the same centre for which this band minimises the KL.
    proposal = QGaussian(_CENTRE, _SCALE / BEST_RATIO, 2.0)
    points = np.linspace(-1.05, 1.05, 1001)
    band = np.linspace(low, high, 801)
    inside = np.asarray(policy.support_mask(_LOGGED))
    figure = Figure(figsize=(7.2, 5.4))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, 1.35))
    for axes in (upper, lower):
        for ends in ((-1.05, low), (high, 1.05)):
            axes.axvspan(*ends, color=SHADE, linewidth=0)
    thin, fat = _log_density(policy, band), _log_density(proposal, points)
    upper.fill_between(band, np.exp(thin), color=BLUE, alpha=0.25, linewidth=0)
    upper.plot(band, np.exp(thin), color=BLUE)
    upper.plot(points, np.exp(fat), color=ORANGE, linestyle=DASHED)
    upper.text(low - 0.03, 1.1, "thin policy,\nzero here", ha="right", color=BLUE)
    upper.set(ylabel="density", ylim=(0.0, None), title="densities of two policies")

    lower.plot(band, np.maximum(thin, 2.0 * _LOWEST), color=BLUE, label="thin policy, $q$ = 0")
    lower.plot(
        points, fat, color=ORANGE, linestyle=DASHED, label="fat policy, $q$ = 2: finite everywhere"
    )
    lower.plot(
        _LOGGED[inside], _log_density(policy, _LOGGED)[inside], "o", color="black",
        markersize=5, label="logged action, inside the thin policy's support",
    )  # fmt: skip
    lower.plot(
        _LOGGED[~inside], np.full(np.sum(~inside), _LOWEST + 0.9), "x", color="black", markersize=7,
        markeredgewidth=1.8, label="logged action, outside: log likelihood −∞",
    )  # fmt: skip
    arrow = {"arrowstyle": "-|>", "color": "black"}
    for action in _LOGGED[~inside]:
        lower.annotate("", (action, _LOWEST), (action, _LOWEST + 0.75), arrowprops=arrow)
        lower.text(action + 0.025, _LOWEST + 0.2, "−∞", fontsize=9)
    total = np.sum(_log_density(proposal, _LOGGED))
    lower.set(
        xlabel="action, in half-ranges of the box", ylabel="log likelihood", xlim=(-1.05, 1.05),
        ylim=(_LOWEST, 1.6),
        title=f"sum over the log: thin −∞, fat {total:.1f}"
        .replace("-", "−"),
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def replaced_actions() -> Figure:
    """Draw random action replacement in two dimensions: outliers become the nearest sample."""
    policy = QGaussian(_CENTRE, _SCALE, 0.0)
    low, high = (_CENTRE + side * float(policy.half_width) for side in (-1.0, 1.0))
    samples = np.asarray(policy.sample(jax.random.key(_SEED), (REPLACEMENT_SAMPLES, 2)))
    inside = np.all(policy.support_mask(_LOGGED_PAIRS), axis=1)
    outside = _LOGGED_PAIRS[~inside]
    distances = np.sum((outside[:, None] - samples) ** 2, axis=-1)
    nearest = samples[np.argmin(distances, axis=1)]

    figure = Figure(figsize=(6.2, 6.6))
    axes = figure.subplots()
    axes.set_facecolor(SHADE)
    axes.add_patch(
        Rectangle(
            (low, low), high - low, high - low, facecolor="#DCEAF5", edgecolor=BLUE, linewidth=1.5,
            label="support of the policy",
        )
    )  # fmt: skip
    axes.plot(
        *samples.T, ".", color=BLUE, markersize=3.5, alpha=0.6,
        label=f"{REPLACEMENT_SAMPLES} samples of the policy",
    )  # fmt: skip
    axes.plot(
        *_LOGGED_PAIRS[inside].T, "o", color="black", markersize=6, label="logged, inside: kept"
    )
    axes.plot(
        *outside.T, "x", color="black", markersize=8, markeredgewidth=1.8,
        label="logged, outside: likelihood 0",
    )  # fmt: skip
    axes.plot(
        *nearest.T, "D", color=ORANGE, markerfacecolor="none", markersize=8, markeredgewidth=1.8,
        label="nearest sample: used instead",
    )  # fmt: skip
    arrow = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 9, "shrinkB": 6}
    for action, instead in zip(outside, nearest, strict=True):
        axes.annotate("", instead, action, arrowprops=arrow)
    axes.set(
        xlim=(-1.0, 1.0), ylim=(-1.0, 1.0), aspect="equal",
        xlabel="first coordinate of the action, in half-ranges of the box",
        ylabel="second coordinate of the action",
        title="random action replacement: an action outside the support is\n"
        "replaced by the policy's nearest sample",
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _log_density(law: QGaussian, points: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(law.log_prob)(points))
