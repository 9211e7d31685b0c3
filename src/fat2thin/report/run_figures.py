"""Pictures of a run, drawn from what its folder holds. Nothing is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.style
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpyro.distributions import Distribution

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies import Policy
from fat2thin.report.figures import BLUE, GREY, ORANGE, SHADE, STYLE, save_figure
from fat2thin.training.result import Run

PATIENTS = 200
PATIENT_SEED = 0
"""The patients of `dose_band` are those of the keys that `jax.random.key(PATIENT_SEED)` splits to.
They are of no stream of training or evaluation."""

_VIEW = 1.6
"""Farthest dose shown, in half-ranges of the box from its middle."""
_COLUMNS = 3
_DOTTED, _DASHED = (0, (1.0, 1.5)), (0, (5.0, 2.0))


class _Way(NamedTuple):
    label: str
    colours: dict[str, str]
    dashes: str | tuple[int, tuple[float, ...]]


_POLICIES = {"actor": "thin actor", "proposal": "fat proposal"}
_WAYS = {
    "sampled": _Way("sampled", {"actor": BLUE, "proposal": ORANGE}, "-"),
    "centre": _Way("at its centre", {"actor": "#56B4E9", "proposal": "#E69F00"}, (0, (4.0, 1.5))),
}
_REFERENCES = ("best latent", "best constant", "uniform")


def learning_curves(run: Run) -> Figure:
    """Mean return over the seeds after each evaluation, with its 95 % bootstrap interval.

    Actor and proposal side by side, each sampled and at its centre, and horizontal lines for the
    reference rows.
    """
    figure = Figure(figsize=(10.4, 5.0))
    row = figure.subplots(1, len(_POLICIES), sharex=True, sharey=True)
    for axes, (policy, title) in zip(row, _POLICIES.items(), strict=True):
        for way, style in _WAYS.items():
            label, colour = f"{policy}, {style.label}", style.colours[policy]
            intervals = map(seed_interval, run.evaluations[f"{policy}_{way}"].returns)
            value, low, high = np.transpose(list(intervals))
            axes.fill_between(
                run.evaluations.steps, low, high, color=colour, alpha=0.2, linewidth=0
            )
            axes.plot(
                run.evaluations.steps, value,
                color=colour, linestyle=style.dashes, linewidth=1.6, label=label,
            )  # fmt: skip
        for name in _REFERENCES:
            mean = run.references[name].mean
            axes.axhline(mean, color=GREY, linewidth=1.2, linestyle=_DOTTED)
        axes.set(title=title, xlabel="updates", xlim=(0, run.step))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.margins(y=0.08)
    row[0].set_ylabel("return of an episode, undiscounted")
    for name in _REFERENCES:
        _name_line(row[-1], run.references[name].mean, name)
    seeds = "one seed" if len(run.spec.seeds) == 1 else f"mean of {len(run.spec.seeds)} seeds"
    figure.suptitle(f"{_name(run)}: {seeds}, with 95 % bootstrap intervals")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _name_line(axes: Axes, value: float, name: str) -> None:
    axes.annotate(
        f"{name}  {value:.1f}".replace("-", "−"),
        (1.0, value),
        (6, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=9,
        annotation_clip=False,
    )


def policy_evolution(run: Run, seed: int) -> Figure:
    """Densities of proposal and actor for one patient, after each step that policies are kept of.

    The patient is the one whose measurements are all 0, the mean of all patients. Each density is
    divided by its own maximum: the two differ in height by far more than a page can show.
    """
    steps = sorted({*run.snapshots, run.step})
    columns = min(len(steps), _COLUMNS)
    rows = -(-len(steps) // columns)
    figure = Figure(figsize=(1.2 + 3.1 * columns, 1.4 + 2.1 * rows))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes, step in zip(panels, steps, strict=False):
        _draw_policies(axes, run.policy(seed, step), run.proposal(seed, step))
        axes.set_title("before training" if step == 0 else f"after {step:,} updates")
    for axes in panels[len(steps) :]:
        axes.set_axis_off()
    for axes in grid[-1]:
        axes.set_xlabel("dose")
    for axes in grid[:, 0]:
        axes.set_ylabel("density / its maximum")
    figure.suptitle(f"{_name(run, seed)}: a patient whose measurements are all 0")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _draw_policies(axes: Axes, actor: Policy, proposal: Policy) -> None:
    low, high = _box(actor)
    middle, half_range = (low + high) / 2.0, (high - low) / 2.0
    left, right = middle - _VIEW * half_range, middle + _VIEW * half_range
    patient = jnp.zeros(treatment.OBSERVATION_SIZE)
    band_low, band_high = (float(end[0]) for end in actor.support(patient))
    for ends, label in (((left, band_low), "actor: exactly zero"), ((band_high, right), None)):
        axes.axvspan(*ends, color=SHADE, linewidth=0, label=label)
    everywhere = np.linspace(left, right, 1201)
    band = np.linspace(band_low, band_high, 401)
    axes.plot(
        everywhere, _relative_density(proposal(patient), everywhere),
        color=ORANGE, linestyle=_DASHED, linewidth=1.6, label="fat proposal",
    )  # fmt: skip
    density = _relative_density(actor(patient), band)
    axes.fill_between(band, density, color=BLUE, alpha=0.25, linewidth=0)
    # Down to zero at both ends, whatever the density does there.
    outline = np.pad(band, 1, mode="edge"), np.pad(density, 1)
    axes.plot(*outline, color=BLUE, linewidth=1.6, label="thin actor")
    for edge, label in ((low, "end of the dose box"), (high, None)):
        axes.axvline(edge, color="black", linewidth=1.0, linestyle=_DOTTED, label=label)
    axes.set(xlim=(left, right), ylim=(0.0, 1.08), yticks=[0.0, 0.5, 1.0])


def _relative_density(
    distribution: Distribution, doses: Float[np.ndarray, " doses"]
) -> Float[np.ndarray, " doses"]:
    """Densities of an action of one coordinate, divided by the largest of them."""
    log_density = np.asarray(distribution.log_prob(jnp.asarray(doses)[:, None]))
    return np.exp(log_density - log_density.max())


def dose_band(run: Run, seed: int) -> Figure:
    """Doses for each of `PATIENTS` new patients, sorted by the centre of the actor's band.

    On the left every dose that the actor can give, on the right the central half and nine tenths of
    the proposal, cut at the dose box.
    """
    task = treatment.by_name(run.spec.dataset)
    actor, proposal = run.policy(seed), run.proposal(seed)
    observations = patients(task)
    observations = observations[jnp.argsort(actor.act(observations)[:, 0])]
    rank = np.arange(1, PATIENTS + 1)

    figure = Figure(figsize=(10.4, 5.2))
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    low, high = (np.asarray(end)[:, 0] for end in actor.support(observations))
    label = "actor: every dose it can give"
    left.fill_between(rank, low, high, color=BLUE, alpha=0.4, linewidth=0, step="mid", label=label)
    for share, alpha in ((0.9, 0.25), (0.5, 0.45)):
        low, high = _central_range(proposal, observations, share)
        label = f"proposal: central {100 * share:.0f} %"
        right.fill_between(
            rank, low, high, color=ORANGE, alpha=alpha, linewidth=0, step="mid", label=label
        )
    for axes, policy, title in zip(
        (left, right), (actor, proposal), _POLICIES.values(), strict=True
    ):
        centre = np.asarray(policy.act(observations))[:, 0]
        # One name for each line: the legend is that of the whole figure.
        prefix = "" if axes is left else "_"
        axes.plot(rank, centre, color="black", linewidth=1.4, label=f"{prefix}centre")
        _mark_doses(axes, task, run.references["best constant"].measures["dose_mean"], prefix)
        axes.set(title=title, xlabel="patient, in the order of the actor's centres")
    left.set(xlim=(0.5, PATIENTS + 0.5), ylabel="dose")
    figure.suptitle(f"{_name(run, seed)}, after {run.step:,} updates: {PATIENTS} new patients")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _mark_doses(axes: Axes, task: Treatment, constant_dose: float, prefix: str) -> None:
    """Lines at the ends of the box, at the limits and at the best constant dose."""
    box = (task.dose_low, task.dose_high)
    limits = [dose for dose in (-task.dose_limit, task.dose_limit) if box[0] < dose < box[1]]
    lines = (
        (box, "black", _DOTTED, "ends of the dose box"),
        (limits, "#CC79A7", _DASHED, "dose limit"),
        ([constant_dose], "#009E73", _DASHED, "best constant dose"),
    )
    for doses, colour, dashes, label in lines:
        for index, dose in enumerate(doses):
            name = f"{prefix if index == 0 else '_'}{label}"
            axes.axhline(dose, color=colour, linewidth=1.3, linestyle=dashes, label=name)
    margin = 0.04 * (box[1] - box[0])
    axes.set_ylim(box[0] - margin, box[1] + margin)


def _name(run: Run, seed: int | None = None) -> str:
    of_seed = "" if seed is None else f", seed {seed}"
    return f"{run.spec.algorithm} on {run.spec.dataset}{of_seed}"


def patients(task: Treatment) -> Float[Array, "patients 8"]:
    """First observations of the patients that `dose_band` shows."""
    keys = jax.random.split(jax.random.key(PATIENT_SEED), PATIENTS)
    return jax.vmap(lambda key: treatment.reset(key, task)[1])(keys)


def _central_range(
    policy: Policy, observations: Float[Array, "rows observation"], share: float
) -> list[Float[np.ndarray, " rows"]]:
    """Ends of the central share of the mass of a policy of one coordinate, cut at its box."""
    of_coordinate = policy(observations).base_dist
    tails = (1.0 - share) / 2.0, (1.0 + share) / 2.0
    return [np.clip(np.asarray(of_coordinate.icdf(tail))[:, 0], *_box(policy)) for tail in tails]


def _box(policy: Policy) -> tuple[float, float]:
    if policy.low.size != 1:
        raise ValueError(f"a picture of doses needs one coordinate, got {policy.low.size}")
    return float(policy.low[0]), float(policy.high[0])


def save_run_figures(run: Run, folder: Path, seed: int | None = None) -> list[Path]:
    """Draw every picture of a run into a folder, and return the files written.

    Those of single policies show one seed, the first by default.
    """
    seed = run.spec.seeds[0] if seed is None else seed
    figures: dict[str, Callable[[], Figure]] = {
        "learning_curves": lambda: learning_curves(run),
        "policy_evolution": lambda: policy_evolution(run, seed),
        "dose_band": lambda: dose_band(run, seed),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.style.context(STYLE):
        for name, draw in figures.items():
            written.append(folder / f"{name}.png")
            save_figure(draw(), written[-1])
    return written
