"""Figures of a run: learning curves, evolution of the policies, and doses."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fat2thin.envs import treatment
from fat2thin.envs.treatment import Treatment
from fat2thin.evaluation.statistics import seed_interval
from fat2thin.policies.policy import Policy
from fat2thin.report import style
from fat2thin.report.log_figures import central_range
from fat2thin.report.style import save_figures, styled, view
from fat2thin.runs.result import Run
from fat2thin.terminal_text import counted

PATIENTS = 200
PATIENT_SEED = 0
"""Seed of the patients in `dose_band`; no stream of training or evaluation uses its key."""
_VIEW = 1.6  # range of doses shown, in half-ranges of the box from its middle
_DRAWS = 1000  # samples for the central range of a policy without quantiles
_REFERENCES = ("best latent", "best constant", "uniform", "d4rl expert")
"""Reference rows of a task that are drawn if it has them."""
_WAYS: dict[str, tuple[str, dict[str, str], Any]] = {
    "sampled": ("sampled", {"actor": style.BLUE, "proposal": style.ORANGE}, "-"),
    "centre": ("at its centre", {"actor": style.SKY, "proposal": style.YELLOW}, (0, (4.0, 1.5))),
}
"""Ways of acting: label, colours by policy, dashes."""


def learning_curves(run: Run) -> Figure:
    """Draw the mean return over seeds at each evaluation, with its 95 % bootstrap interval.

    One panel for the acting policy and one for its proposal if there is one, each sampled and at
    its centre, with horizontal lines for the reference rows.
    """
    titles = _titles(run)
    known = run.known_references()
    references = {name: known[name] for name in _REFERENCES if name in known}
    figure, (row,) = style.panels(len(titles), (3.8, 5.0), (2.8, 0.0), sharex=True, sharey=True)
    for axes, (policy, title) in zip(row, titles.items(), strict=True):
        for way, (label, colours, dashes) in _WAYS.items():
            returns = np.asarray(run.evaluations[f"{policy}_{way}"].returns)
            value, low, high = np.transpose([seed_interval(of_step) for of_step in returns])
            steps, colour = run.evaluations.steps, colours[policy]
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
            look = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
            axes.plot(steps, value, **look, label=f"{policy}, {label}")
        for reference in references.values():
            axes.axhline(reference.mean, color=style.GREY, linewidth=1.2, linestyle=style.DOTTED)
        axes.set(title=title, xlabel="updates", xlim=(0, run.step))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.margins(y=0.08)
    row[0].set_ylabel("return of an episode, undiscounted")
    for name, reference in references.items():
        row[-1].annotate(
            f"{name}  {reference.mean:.1f}".replace("-", "−"), (1.0, reference.mean), (6, 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center", fontsize=9,
            annotation_clip=False,
        )  # fmt: skip
    seeds = "one seed" if len(run.spec.seeds) == 1 else f"mean of {len(run.spec.seeds)} seeds"
    figure.suptitle(f"{_name(run)}: {seeds}, with 95 % bootstrap intervals")
    figure.legend(loc="outside lower center", ncols=2 * len(titles))
    return figure


def _titles(run: Run) -> dict[str, str]:
    """Return the policies of a run and their titles in figures."""
    both = {"actor": "thin actor", "proposal": "fat proposal"}
    return both if "proposal_sampled" in run.evaluations.policies else {"actor": "policy"}


def policy_evolution(run: Run, seed: int) -> Figure:
    """Draw the densities of all policies for the mean patient (all measurements 0) per snapshot.

    Each is divided by its own maximum, since the heights of the two differ too much.
    """
    steps = sorted({*run.snapshots, run.step})
    figure, grid = style.panels(len(steps), (3.1, 2.1), (1.2, 1.4), sharex=True, sharey=True)
    titles = _titles(run)
    for axes, step in zip(grid.flat, steps, strict=False):
        if "proposal" in titles:
            fat = run.proposal(seed, step)
            doses = np.linspace(*view(_box(fat), _VIEW), 1201)
            axes.plot(
                doses, _relative_density(fat, doses), color=style.ORANGE, linestyle=style.DASHED,
                linewidth=1.6, label=titles["proposal"],
            )  # fmt: skip
        _draw_actor(axes, run.policy(seed, step), titles["actor"])
        axes.set_title("before training" if step == 0 else f"after {counted(step, 'update')}")
    for axes in grid[-1]:
        axes.set_xlabel("dose")
    for axes in grid[:, 0]:
        axes.set_ylabel("density / its maximum")
    figure.suptitle(f"{_name(run, seed)}: a patient whose measurements are all 0")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _draw_actor(axes: Axes, actor: Policy, title: str) -> None:
    """Draw the density of the actor, or a vertical line for a single dose."""
    left, right = view(_box(actor), _VIEW)
    low, high = (
        float(end[0]) for end in actor.support(jnp.zeros(treatment.OBSERVATION_SIZE), None)
    )
    if left < low:
        zero = f"{title.split()[-1]}: exactly zero"
        for ends, label in (((left, low), zero), ((high, right), None)):
            axes.axvspan(*ends, color=style.SHADE, linewidth=0, label=label)
    if low == high:
        axes.plot([low, low], [0.0, 1.0], color=style.BLUE, linewidth=2.4, label=title)
    else:
        doses = np.linspace(max(low, left), min(high, right), 401)
        density = _relative_density(actor, doses)
        axes.fill_between(doses, density, color=style.BLUE, alpha=0.25, linewidth=0)
        # Draw the outline down to zero at both ends.
        outline = np.pad(doses, 1, mode="edge"), np.pad(density, 1)
        axes.plot(*outline, color=style.BLUE, linewidth=1.6, label=title)
    for edge, label in zip(_box(actor), ("end of the dose box", None), strict=True):
        axes.axvline(edge, color="black", linewidth=1.0, linestyle=style.DOTTED, label=label)
    axes.set(xlim=(left, right), ylim=(0.0, 1.08), yticks=[0.0, 0.5, 1.0])


def _relative_density(policy: Policy, doses: np.ndarray) -> Float[np.ndarray, " doses"]:
    """Return the densities of doses for the mean patient, divided by their maximum."""
    law = policy(jnp.zeros(treatment.OBSERVATION_SIZE), None)
    log_density = np.asarray(law.log_prob(jnp.asarray(doses)[:, None]))
    return np.exp(log_density - log_density.max())


def dose_band(run: Run, seed: int) -> Figure:
    """Draw doses for `PATIENTS` new patients, sorted by the centre of the acting policy.

    For a sparse policy every possible dose; for others the central 50 % and 90 %, clipped to the
    dose box.
    """
    task = treatment.by_name(run.spec.dataset)
    titles = _titles(run)
    policies = [run.policy(seed), *([run.proposal(seed)] if "proposal" in titles else [])]
    observations = patients(task)
    observations = observations[jnp.argsort(policies[0].act(observations, None, None)[:, 0])]
    rank = np.arange(1, PATIENTS + 1)

    figure, (row,) = style.panels(len(titles), (3.8, 5.2), (2.8, 0.0), sharex=True, sharey=True)
    panels = zip(row, policies, titles.values(), (style.BLUE, style.ORANGE), strict=False)
    for axes, policy, title, colour in panels:
        _fill_doses(axes, policy, observations, rank, title.split()[-1], colour)
        centre = np.asarray(policy.act(observations, None, None))[:, 0]
        # A prefix of "_" hides repeated labels from the legend of the figure.
        prefix = "" if axes is row[0] else "_"
        axes.plot(rank, centre, color="black", linewidth=1.4, label=f"{prefix}centre")
        _mark_doses(axes, task, run.references["best constant"].measures["dose_mean"], prefix)
        axes.set(title=title, xlabel="patient, in the order of the centres")
    row[0].set(xlim=(0.5, PATIENTS + 0.5), ylabel="dose")
    figure.suptitle(
        f"{_name(run, seed)}, after {counted(run.step, 'update')}: {PATIENTS} new patients"
    )
    figure.legend(loc="outside lower center", ncols=2 * len(titles))
    return figure


def _fill_doses(
    axes: Axes, policy: Policy, observations: Array, rank: np.ndarray, title: str, colour: str
) -> None:
    """Draw the band of a sparse policy, or the central ranges of another."""
    low, high = (np.asarray(end)[:, 0] for end in policy.support(observations, None))
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
    """Draw lines at the ends of the box, at the limits and at the best constant dose."""
    box = (task.dose_low, task.dose_high)
    limits = [dose for dose in (-task.dose_limit, task.dose_limit) if box[0] < dose < box[1]]
    lines = (
        (box, "black", style.DOTTED, "ends of the dose box"),
        (limits, style.PINK, style.DASHED, "dose limit"),
        ([constant_dose], style.GREEN, style.DASHED, "best constant dose"),
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
    """Return the first observations of the patients in `dose_band`."""
    keys = jax.random.split(jax.random.key(PATIENT_SEED), PATIENTS)
    return jax.vmap(lambda key: treatment.reset(key, task)[1])(keys)


def _central_range(policy: Policy, observations: Array, share: float) -> np.ndarray:
    """Return the ends of the central share of a policy with one coordinate, shape (2, rows)."""
    if (ends := central_range(policy, observations, share)) is not None:
        return np.asarray(ends)[..., 0]
    # The published proposal has no quantile function: its samples do not follow its density.
    doses = policy(observations).sample(jax.random.key(PATIENT_SEED), (_DRAWS,))
    tails = (1.0 - share) / 2.0, (1.0 + share) / 2.0
    return np.clip(np.quantile(np.asarray(doses)[..., 0], tails, axis=0), *_box(policy))


def _box(policy: Policy) -> tuple[float, float]:
    if policy.low.size != 1:
        raise ValueError(f"a figure of doses needs one action coordinate, got {policy.low.size}")
    return float(policy.low[0]), float(policy.high[0])


@styled
def save_run_figures(run: Run, folder: Path, seed: int | None = None) -> list[Path]:
    """Draw learning curves and, on the treatment task, one seed's policies; return the files."""
    if not run.evaluations.policies:
        raise ValueError(
            f"{run.spec.dataset!r} is a log without a task, so there are no learning curves; "
            "`fat2thin validate` draws its policies and a log"
        )
    seed = run.spec.seeds[0] if seed is None else seed
    figures = {"learning_curves": learning_curves(run)}
    if treatment.is_name(run.spec.dataset) and run.spec.task is None:
        figures["policy_evolution"] = policy_evolution(run, seed)
        figures["dose_band"] = dose_band(run, seed)
    return save_figures(figures, folder)
