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
from numpyro.distributions import Distribution, Independent

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies.policy import Policy
from fat2thin.report.distribution_figures import BLUE, GREY, ORANGE, SHADE, STYLE, save_figure
from fat2thin.runs.result import Run

PATIENTS = 200
PATIENT_SEED = 0
"""The patients of `dose_band` are those of the keys that `jax.random.key(PATIENT_SEED)` splits to.
They are of no stream of training or evaluation."""

_VIEW = 1.6
"""Farthest dose shown, in half-ranges of the box from its middle."""
_COLUMNS = 3
DOTTED, DASHED = (0, (1.0, 1.5)), (0, (5.0, 2.0))


class _Way(NamedTuple):
    label: str
    colours: dict[str, str]
    dashes: str | tuple[int, tuple[float, ...]]


_DRAWS = 1000
"""Samples of a policy that its central ranges are taken from, where it has no quantiles."""
_WAYS = {
    "sampled": _Way("sampled", {"actor": BLUE, "proposal": ORANGE}, "-"),
    "centre": _Way("at its centre", {"actor": "#56B4E9", "proposal": "#E69F00"}, (0, (4.0, 1.5))),
}
_REFERENCES = ("best latent", "best constant", "uniform", "d4rl expert")
"""Rows of a task's references that are drawn, where it has them."""


def learning_curves(run: Run) -> Figure:
    """Mean return over the seeds after each evaluation, with its 95 % bootstrap interval.

    The policy that acts and (where there is one) its proposal side by side, each sampled and at its
    centre, and horizontal lines for the reference rows.
    """
    titles = _titles(run)
    known = run.known_references()
    references = {name: known[name] for name in _REFERENCES if name in known}
    figure = Figure(figsize=(2.8 + 3.8 * len(titles), 5.0))
    row = list(figure.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0])
    for axes, (policy, title) in zip(row, titles.items(), strict=True):
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
        for reference in references.values():
            axes.axhline(reference.mean, color=GREY, linewidth=1.2, linestyle=DOTTED)
        axes.set(title=title, xlabel="updates", xlim=(0, run.step))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.margins(y=0.08)
    row[0].set_ylabel("return of an episode, undiscounted")
    for name, reference in references.items():
        _name_line(row[-1], reference.mean, name)
    seeds = "one seed" if len(run.spec.seeds) == 1 else f"mean of {len(run.spec.seeds)} seeds"
    figure.suptitle(f"{_name(run)}: {seeds}, with 95 % bootstrap intervals")
    figure.legend(loc="outside lower center", ncols=2 * len(titles))
    return figure


def _titles(run: Run) -> dict[str, str]:
    """The policies that a run has, and what they are called in its pictures."""
    if "proposal_sampled" in run.evaluations.policies:
        return {"actor": "thin actor", "proposal": "fat proposal"}
    return {"actor": "policy"}


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
    """Densities of all policies for one patient, after each step that policies are kept of.

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
        titles = _titles(run)
        if "proposal" in titles:
            _draw_proposal(axes, run.proposal(seed, step), titles["proposal"])
        _draw_actor(axes, run.policy(seed, step), titles["actor"])
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


def _draw_proposal(axes: Axes, proposal: Policy, title: str) -> None:
    doses = np.linspace(*_view(proposal), 1201)
    density = _relative_density(proposal(_mean_patient()), doses)
    axes.plot(doses, density, color=ORANGE, linestyle=DASHED, linewidth=1.6, label=title)


def _draw_actor(axes: Axes, actor: Policy, title: str) -> None:
    """The density, from zero to zero where the support ends; an arrow up for a single dose."""
    left, right = _view(actor)
    low, high = (float(end[0]) for end in actor.support(_mean_patient()))
    if left < low:
        zero = f"{title.split()[-1]}: exactly zero"
        for ends, label in (((left, low), zero), ((high, right), None)):
            axes.axvspan(*ends, color=SHADE, linewidth=0, label=label)
    if low == high:
        axes.plot([low, low], [0.0, 1.0], color=BLUE, linewidth=2.4, label=title)
    else:
        doses = np.linspace(max(low, left), min(high, right), 401)
        density = _relative_density(actor(_mean_patient()), doses)
        axes.fill_between(doses, density, color=BLUE, alpha=0.25, linewidth=0)
        # Down to zero at both ends, whatever the density does there.
        outline = np.pad(doses, 1, mode="edge"), np.pad(density, 1)
        axes.plot(*outline, color=BLUE, linewidth=1.6, label=title)
    for edge, label in zip(_box(actor), ("end of the dose box", None), strict=True):
        axes.axvline(edge, color="black", linewidth=1.0, linestyle=DOTTED, label=label)
    axes.set(xlim=(left, right), ylim=(0.0, 1.08), yticks=[0.0, 0.5, 1.0])


def _mean_patient() -> Float[Array, " observation"]:
    return jnp.zeros(treatment.OBSERVATION_SIZE)


def _view(policy: Policy) -> tuple[float, float]:
    """The doses shown: somewhat more than the box."""
    low, high = _box(policy)
    middle, half_range = (low + high) / 2.0, (high - low) / 2.0
    return middle - _VIEW * half_range, middle + _VIEW * half_range


def _relative_density(
    distribution: Distribution, doses: Float[np.ndarray, " doses"]
) -> Float[np.ndarray, " doses"]:
    """Densities of an action of one coordinate, divided by the largest of them."""
    log_density = np.asarray(distribution.log_prob(jnp.asarray(doses)[:, None]))
    return np.exp(log_density - log_density.max())


def dose_band(run: Run, seed: int) -> Figure:
    """Doses for each of `PATIENTS` new patients, sorted by the centre of the policy that acts.

    For a sparse policy every dose that it can give, for the others the central half and nine tenths
    of them, cut at the dose box.
    """
    task = treatment.by_name(run.spec.dataset)
    titles = _titles(run)
    policies = [run.policy(seed), *([run.proposal(seed)] if "proposal" in titles else [])]
    observations = patients(task)
    observations = observations[jnp.argsort(policies[0].act(observations)[:, 0])]
    rank = np.arange(1, PATIENTS + 1)

    figure = Figure(figsize=(2.8 + 3.8 * len(titles), 5.2))
    row = list(figure.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0])
    panels = zip(row, policies, titles.values(), (BLUE, ORANGE), strict=False)
    for axes, policy, title, colour in panels:
        _fill_doses(axes, policy, observations, rank, title.split()[-1], colour)
        centre = np.asarray(policy.act(observations))[:, 0]
        # One name for each line: the legend is that of the whole figure.
        prefix = "" if axes is row[0] else "_"
        axes.plot(rank, centre, color="black", linewidth=1.4, label=f"{prefix}centre")
        _mark_doses(axes, task, run.references["best constant"].measures["dose_mean"], prefix)
        axes.set(title=title, xlabel="patient, in the order of the centres")
    row[0].set(xlim=(0.5, PATIENTS + 0.5), ylabel="dose")
    figure.suptitle(f"{_name(run, seed)}, after {run.step:,} updates: {PATIENTS} new patients")
    figure.legend(loc="outside lower center", ncols=2 * len(titles))
    return figure


def _fill_doses(
    axes: Axes, policy: Policy, observations: Array, rank: np.ndarray, title: str, colour: str
) -> None:
    """The band of a sparse policy, or the central ranges of another."""
    low, high = (np.asarray(end)[:, 0] for end in policy.support(observations))
    ends = _box(policy)
    if np.any((low > ends[0]) | (high < ends[1])):
        shades = [(low, high, 0.4, f"{title}: every dose it can give")]
    else:
        shades = [
            (*_central_range(policy, observations, share), alpha,
             f"{title}: central {100 * share:.0f} %")
            for share, alpha in ((0.9, 0.25), (0.5, 0.45))
        ]  # fmt: skip
    for low, high, alpha, label in shades:
        axes.fill_between(
            rank, low, high, color=colour, alpha=alpha, linewidth=0, step="mid", label=label
        )


def _mark_doses(axes: Axes, task: Treatment, constant_dose: float, prefix: str) -> None:
    """Lines at the ends of the box, at the limits and at the best constant dose."""
    box = (task.dose_low, task.dose_high)
    limits = [dose for dose in (-task.dose_limit, task.dose_limit) if box[0] < dose < box[1]]
    lines = (
        (box, "black", DOTTED, "ends of the dose box"),
        (limits, "#CC79A7", DASHED, "dose limit"),
        ([constant_dose], "#009E73", DASHED, "best constant dose"),
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
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """Ends of the central share of what a policy of one coordinate does, cut at its box."""
    law, shares = policy(observations), ((1.0 - share) / 2.0, (1.0 + share) / 2.0)
    if isinstance(law, Independent):
        ends = [np.asarray(law.base_dist.icdf(tail))[:, 0] for tail in shares]
    else:
        # The published proposal has no quantile function: its samples are not of its density.
        doses = law.sample(jax.random.key(PATIENT_SEED), (_DRAWS,))
        ends = list(np.quantile(np.asarray(doses)[..., 0], shares, axis=0))
    low, high = (np.clip(end, *_box(policy)) for end in ends)
    return low, high


def _box(policy: Policy) -> tuple[float, float]:
    if policy.low.size != 1:
        raise ValueError(f"a picture of doses needs one coordinate, got {policy.low.size}")
    return float(policy.low[0]), float(policy.high[0])


def save_run_figures(run: Run, folder: Path, seed: int | None = None) -> list[Path]:
    """Draw every picture of a run into a folder, and return the files written.

    Of a run on another task than the treatment, that is the learning curves. Pictures of single
    policies show one seed, the first by default.
    """
    if not run.evaluations.policies:
        raise ValueError(
            f"{run.spec.dataset!r} is a log without a task, so there are no learning curves; "
            "`fat2thin validate` draws its policies against a log"
        )
    seed = run.spec.seeds[0] if seed is None else seed
    figures: dict[str, Callable[[], Figure]] = {"learning_curves": lambda: learning_curves(run)}
    if treatment.is_name(run.spec.dataset) and run.spec.task is None:
        figures |= {
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
