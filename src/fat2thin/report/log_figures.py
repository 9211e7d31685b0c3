"""Figures of logged actions together with the actions that a policy allows in the same states."""

import functools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpyro.distributions import Independent

from fat2thin.columns import Column, have_names, inverse_transform
from fat2thin.data import Dataset
from fat2thin.data.operations import episode_lengths, episode_returns
from fat2thin.distributions.base import expand_to_rank
from fat2thin.distributions.transformed import TransformedColumns
from fat2thin.evaluation.caution import decisions_on, share_of
from fat2thin.evaluation.held_out import steps_of
from fat2thin.evaluation.limited import LoggedStates, states_of
from fat2thin.evaluation.statistics import Profile
from fat2thin.policies.decision import DISAGREE
from fat2thin.policies.policy import Policy
from fat2thin.report.style import BLUE, DOTTED, GREY, ORANGE, panels, save_figures, signed, styled
from fat2thin.runs.result import Run

Values = Array | np.ndarray

MOST_COORDINATES = 6  # coordinates of the action that are drawn
MOST_STEPS = 200  # first steps of an episode that are drawn: more would hide each other
_LABEL_WIDTH = 26  # characters of an axis label before it breaks
_CENTRAL = 0.8  # central share of a distribution that is shaded
_PILED = 0.02
"""If half of the actions lie within this share of the box from one end, the distance from that end
is drawn on a logarithmic axis, since a linear axis would show only a line."""
_NEAREST = 1e-4  # smallest distance on a logarithmic axis, as a share of the box
_BINS = 40
_DRAW_SEED = 0
_ROWS_AT_ONCE = 4096


class _Scale(NamedTuple):
    """The axis of a coordinate of the action."""

    place: Callable[[np.ndarray], np.ndarray]
    limits: tuple[float, float]
    label: str
    logarithmic: bool


def action_band(
    run: Run, dataset: Dataset, seed: int, episodes: Sequence[int] | None = None
) -> Figure:
    """Draw logged actions along a few episodes, and the band of the policy at each step.

    One column per episode, with its first `MOST_STEPS` steps, and one row per coordinate.
    `episodes` are numbers counted from 0; by default the episodes with the median and the lowest
    return.
    """
    if episodes is None:
        order = np.argsort(episode_returns(dataset), stable=True)
        episodes = list(dict.fromkeys([int(order[len(order) // 2]), int(order[0])]))
    shown = min(dataset.action_size, MOST_COORDINATES)
    figure = Figure(figsize=(2.2 + 4.4 * len(episodes), 2.2 + 2.4 * shown))
    grid = figure.subplots(shown, len(episodes), sharey="row", sharex="col", squeeze=False)
    log, fat = _look(run, dataset, seed), bool(run.program.algorithm.proposal)
    for column, episode in zip(grid.T, episodes, strict=True):
        if not 0 <= episode < dataset.episode_start.size:
            last = dataset.episode_start.size - 1
            raise ValueError(f"data set {dataset.name!r} has episodes 0 to {last}, not {episode}")
        rows = dataset.episode_start[episode] + np.arange(episode_lengths(dataset)[episode])
        seen = jax.tree.map(lambda array, rows=rows: array[rows], log)
        drawn = jax.tree.map(lambda array: array[:MOST_STEPS], seen)
        for coordinate, axes in enumerate(column):
            _draw_band(axes, drawn, coordinate, _scale(run, dataset, coordinate), fat)
        share, value = np.mean(seen.inside.all(axis=1)), float(np.sum(dataset.reward[rows]))
        first = f"\nthe first {MOST_STEPS} are shown" if len(rows) > MOST_STEPS else ""
        column[0].set_title(
            f"episode {episode}, return {signed(value, 4)}: {share:.0%} of {len(rows):,} steps "
            f"inside{first}"
        )
        column[-1].set_xlabel("step of the episode")
    for coordinate, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(textwrap.fill(_scale(run, dataset, coordinate).label, _LABEL_WIDTH))
    _name(figure, run, dataset, seed, 3)
    return figure


def action_histogram(run: Run, dataset: Dataset, seed: int) -> Figure:
    """Draw histograms of logged actions, inside and outside the band, and of one policy sample."""
    shown = min(dataset.action_size, MOST_COORDINATES)
    figure, grid = panels(shown, (4.0, 2.9), (3.0, 1.9))
    seen = _look(run, dataset, seed)
    for coordinate, axes in enumerate(grid.flat[:shown]):
        _draw_shares(axes, seen, coordinate, _scale(run, dataset, coordinate))
    for axes in grid[:, 0]:
        axes.set_ylabel("share of logged steps (log scale)")
    _name(figure, run, dataset, seed, min(shown, 2) + 1)
    return figure


def referral_thresholds(run: Run, dataset: Dataset) -> Figure | None:
    """Draw the shares of states that are referred, by threshold; None without a summary of a log.

    The policy is that of all seeds, bands are 95 % bootstrap intervals over episodes.
    """
    try:
        policy = run.policy()
        found = decisions_on(policy, dataset)
    except ValueError:
        return None
    coverage, thresholds = policy.referral.coverage, policy.referral.thresholds
    figure = Figure(figsize=(9.4, 4.4))
    left, right = figure.subplots(1, 2)
    scale = np.asarray(coverage.thresholds) / float(coverage.threshold)
    nominal = 1.0 - np.asarray(coverage.levels)
    outside = share_of(found.distance > scale[:, None], dataset)
    left.plot(nominal, nominal, color=GREY, linewidth=1.0, label="nominal")
    usual = 1.0 - float(np.interp(coverage.threshold, coverage.thresholds, coverage.levels))
    _draw_threshold(left, nominal, outside, usual)
    left.set(
        xlabel="nominal share of the distance threshold", title="outside the log",
        ylabel=f"share of {dataset.rows:,} states that are referred",
    )  # fmt: skip
    places = np.linspace(0.0, 0.5, 51)
    apart = share_of(np.nan_to_num(found.disagreement) > places[:, None], dataset)
    _draw_threshold(right, places, apart, thresholds.disagreement)
    if getattr(policy.network, "rule", None) == "consensus":
        always = share_of(found.because[DISAGREE], dataset)
        right.axhline(
            float(always.share), color=BLUE, linestyle=DOTTED, label="or no common action"
        )
    right.set(xlabel="threshold of disagreement, share of the box", title="seeds disagree")
    for axes in (left, right):
        axes.legend()
    figure.suptitle(f"{run.spec.algorithm} on {Path(dataset.name).name}: referrals by threshold")
    return figure


def _draw_threshold(axes: Axes, places: np.ndarray, found: Profile, usual: float) -> None:
    axes.fill_between(places, found.low, found.high, color=ORANGE, alpha=0.2, linewidth=0)
    axes.plot(places, found.share, color=ORANGE, label="measured")
    axes.axvline(usual, color="black", linestyle=DOTTED, linewidth=1.0, label="default")
    axes.set_ylim(bottom=-0.01)


class _Seen(NamedTuple):
    """Logged actions, and the policies of a seed in their states, shape (rows, action)."""

    action: Values
    inside: Values
    low: Values
    high: Values
    centre: Values
    sample: Values
    middle: tuple[Values, Values] | None
    """Ends of the central part of the proposal, or of the policy if there is no proposal; None
    without quantiles."""


def _look(run: Run, dataset: Dataset, seed: int) -> _Seen:
    fat = run.proposal(seed) if run.program.algorithm.proposal else None
    return jax.tree.map(np.asarray, _ask(run.policy(seed), fat, states_of(dataset)))


@jax.jit
def _ask(policy: Policy, fat: Policy | None, log: LoggedStates) -> _Seen:
    def one(row: tuple[LoggedStates, Array]) -> _Seen:
        (state, last, logged), key = row
        low, high = (jnp.clip(end, policy.low, policy.high) for end in policy.support(state, last))
        middle = central_range(policy if fat is None else fat, state, _CENTRAL, last)
        inside, drawn = (low <= logged) & (logged <= high), policy.act(state, key, last)
        return _Seen(logged, inside, low, high, policy.act(state, None, last), drawn, middle)

    keys = jax.random.split(jax.random.key(_DRAW_SEED), len(log.observation))
    return lax.map(one, (log, keys), batch_size=_ROWS_AT_ONCE)


def central_range(
    policy: Policy, observation: Array, share: float, last: Array | None = None
) -> tuple[Array, Array] | None:
    """Return the ends of the central share per coordinate, clipped to the box; None if unknown."""
    law, tails = policy(observation, last), ((1.0 - share) / 2.0, (1.0 + share) / 2.0)
    law, transforms = (
        (law.base, law.transforms) if isinstance(law, TransformedColumns) else (law, ())
    )
    if not isinstance(law, Independent):
        return None
    try:
        # Transforms are increasing, so that a quantile's raw value is the raw values' quantile.
        low, high = (inverse_transform(law.base_dist.icdf(tail), transforms, jnp) for tail in tails)
    except ImportError:
        # NumPyro's Student-t needs another package for its quantiles.
        return None
    box = [expand_to_rank(end, low.ndim) for end in (policy.low, policy.high)]
    return jnp.clip(low, *box), jnp.clip(high, *box)


def _draw_band(axes: Axes, seen: _Seen, coordinate: int, scale: _Scale, fat: bool) -> None:
    time = np.arange(len(seen.action))

    def of(values: Values) -> np.ndarray:
        return scale.place(np.asarray(values[:, coordinate]))

    if seen.middle is not None:
        whose = "proposal" if fat else "policy"
        axes.fill_between(
            time, of(seen.middle[0]), of(seen.middle[1]), color=GREY, alpha=0.22, linewidth=0,
            step="mid", label=f"{whose}: central {_CENTRAL:.0%}",
        )  # fmt: skip
    axes.fill_between(
        time, of(seen.low), of(seen.high), color=BLUE, alpha=0.3, linewidth=0, step="mid",
        label="band: every action the policy can take",
    )  # fmt: skip
    axes.plot(time, of(seen.centre), color=BLUE, linewidth=1.2, label="centre of the band")
    inside = seen.inside[:, coordinate]
    for mask, marker, colour, label in (
        (inside, "o", "black", "logged, inside the band"),
        (~inside, "x", ORANGE, "logged, outside: impossible for the policy here"),
    ):
        axes.plot(
            time[mask], of(seen.action)[mask], linestyle="none", marker=marker, color=colour,
            markersize=2.4 if marker == "o" else 3.6, markeredgewidth=0.9, label=label,
        )  # fmt: skip
    if scale.logarithmic:
        axes.set_yscale("log")
    axes.set(ylim=scale.limits, xlim=(-1, len(time)))


def _draw_shares(axes: Axes, seen: _Seen, coordinate: int, scale: _Scale) -> None:
    edges = (np.geomspace if scale.logarithmic else np.linspace)(*scale.limits, _BINS + 1)

    def shares(values: Values) -> np.ndarray:
        # Values beyond the axis are counted in its last bin.
        placed = np.clip(scale.place(np.asarray(values)), *scale.limits)
        return np.histogram(placed, edges)[0] / len(seen.action)

    logged, inside = seen.action[:, coordinate], seen.inside[:, coordinate]
    axes.stairs(
        shares(logged), edges, fill=True, color=ORANGE, alpha=0.75,
        label="logged, outside the band: impossible for the policy there",
    )  # fmt: skip
    axes.stairs(
        shares(logged[inside]), edges, fill=True, color="#7FB2D6", label="logged, inside the band"
    )
    axes.stairs(
        shares(seen.sample[:, coordinate]), edges, color="black", linewidth=1.4,
        label="policy, one sample per step",
    )  # fmt: skip
    axes.set(yscale="log", ylim=(0.5 / len(seen.action), 1.5), xlim=scale.limits)
    if scale.logarithmic:
        axes.set_xscale("log")
    axes.set(xlabel=scale.label, title=f"{np.mean(inside):.0%} of logged actions inside the band")


def _scale(run: Run, dataset: Dataset, coordinate: int) -> _Scale:
    """Return a linear axis, or a logarithmic one from the end where most actions lie."""
    low, high = dataset.action_low[coordinate], dataset.action_high[coordinate]
    reach, name = high - low, _label(run.columns.action, coordinate)
    for end, side, what in ((low, 1.0, "above its lowest"), (high, -1.0, "below its highest")):
        place = functools.partial(_distance, end, side, _NEAREST * reach)
        if np.median(place(dataset.action[:, coordinate])) < _PILED * reach:
            label = f"{name} {what} value {signed(end, 4)} (log scale)"
            return _Scale(place, (_NEAREST * reach, 1.2 * reach), label, True)
    limits = (low - 0.03 * reach, high + 0.03 * reach)
    return _Scale(lambda action: action.astype(np.float64), limits, name, False)


def _label(columns: Sequence[Column], coordinate: int) -> str:
    """Return the name of an action with its unit; its number if the log has no names."""
    if have_names("action", columns):
        return columns[coordinate].label
    return "action" if len(columns) == 1 else f"action {coordinate}"


def _distance(end: float, side: float, least: float, action: np.ndarray) -> np.ndarray:
    return np.maximum(side * (action.astype(np.float64) - end), least)


def _name(figure: Figure, run: Run, dataset: Dataset, seed: int, columns: int) -> None:
    """Add the title and the legend of the first panel to a figure."""
    left_out = max(0, dataset.action_size - MOST_COORDINATES)
    more = f"; {left_out} more action{'s' * (left_out > 1)} not shown" if left_out else ""
    when = f", {steps_of(run, seed)}" if "selected" in run.about else ""
    figure.suptitle(f"{run.spec.algorithm}, seed {seed}{when}, on {Path(dataset.name).name}{more}")
    named = figure.axes[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=columns)


@styled
def save_log_figures(
    run: Run, dataset: Dataset, folder: Path, seed: int | None = None
) -> list[Path]:
    """Draw the figures of a seed (the first by default) into a folder and return the files."""
    seed = run.spec.seeds[0] if seed is None else seed
    drawn = {
        "action_band": action_band(run, dataset, seed),
        "action_histogram": action_histogram(run, dataset, seed),
    }
    if (thresholds := referral_thresholds(run, dataset)) is not None:
        drawn["referral_thresholds"] = thresholds
    return save_figures(drawn, folder)
