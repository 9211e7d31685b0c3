"""Figures of the value of a policy from a log: `fat2thin value --out` writes them."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fat2thin.evaluation.refusal import LEAST_EFFECTIVE
from fat2thin.evaluation.value import PolicyValue
from fat2thin.report.style import BLUE, DASHED, GREY, ORANGE, SHADE, panels, save_figures, styled

_NAME_WIDTH = 22  # characters of a name before it breaks


@styled
def save_value_figures(found: PolicyValue, folder: Path) -> list[Path]:
    """Write all figures that there is something to show in."""
    figures = {"value": estimates_figure(found), "sample_size": sample_size_figure(found)}
    if found.calibration:
        figures["behaviour"] = calibration_figure(found)
    if found.gain:
        figures["gain"] = gain_figure(found)
    return save_figures({name: one for name, one in figures.items() if one}, folder)


def estimates_figure(found: PolicyValue) -> Figure:
    """Draw the rows of the table with their intervals, and the differences to practice."""
    rows = found.rows[::-1]
    figure = Figure(figsize=(8.4, 1.5 + 0.5 * len(rows)))
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        colour = GREY if row.kind == "practice" else BLUE
        if row.refused is not None:
            left.text(
                0.5, place, "refused", color=ORANGE, ha="center", va="center",
                transform=left.get_yaxis_transform(),
            )  # fmt: skip
            continue
        left.plot([row.low, row.high], [place, place], color=colour)
        left.plot(row.estimate, place, "o", color=colour)
        if row.difference is not None:
            ends = row.difference_low, row.difference_high
            right.plot(ends, [place, place], color=colour)
            right.plot(row.difference, place, "o", color=colour)
            right.plot(row.difference_bound, place, "|", color=colour, markersize=12.0)
    left.set_yticks(range(len(rows)), [_wrapped(row.name) for row in rows])
    left.set_ylim(-0.6, len(rows) - 0.4)
    unit = f" ({found.reward_unit})" if found.reward_unit else ""
    left.set_xlabel(f"value over {found.horizon} steps{unit}")
    right.set_xlabel(f"minus practice{unit}")
    right.axvline(0.0, color=GREY, linestyle=DASHED)
    sure = f"{100 * found.confidence:g} %"
    right.set_title(f"bars: {sure} intervals; tick: one-sided bound", fontsize="small")
    left.set_title(f"{found.episodes:,} episodes", fontsize="small")
    return figure


def sample_size_figure(found: PolicyValue) -> Figure | None:
    """Draw how many episodes the weights are worth at each step, and how many survive."""
    lines: list[tuple[str, Sequence[float], str, float | None]] = [
        ("marginal weights", found.marginal_sample_size, BLUE, LEAST_EFFECTIVE["marginal"]),
        ("products of weights", found.effective_sample_size, ORANGE, None),
        ("episodes with all actions inside", found.surviving_episodes, GREY, None),
    ]
    if not any(values for _, values, _, _ in lines):
        return None
    figure = Figure(figsize=(6.4, 3.6))
    axes = figure.subplots()
    for name, values, colour, needed in lines:
        if values:
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, label=name)
            if needed is not None:
                axes.axhline(needed, color=colour, linestyle=DASHED, label=f"needed: {needed:g}")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(-0.1, max(2.0, 1.3 * found.episodes))
    axes.set_xlabel("step of the episode")
    axes.set_ylabel(f"episodes, of {found.episodes:,}")
    axes.legend(fontsize="small")
    return figure


def calibration_figure(found: PolicyValue) -> Figure:
    """Draw how uniform the levels of the logged actions are under the estimated density."""
    figure, grid = panels(len(found.calibration), (2.6, 2.4), (0.8, 0.6), sharey=True)
    for axes, one in zip(grid.flat, found.calibration, strict=False):
        count = len(one.shares)
        axes.bar((np.arange(count) + 0.5) / count, one.shares, 0.9 / count, color=SHADE, ec=GREY)
        axes.axhline(1.0 / count, color=BLUE, linestyle=DASHED)
        axes.set_xlabel(f"level of {_wrapped(one.action)}")
        axes.set_title(f"largest error {one.error:.2g}", fontsize="small")
    grid.flat[0].set_ylabel("share of logged steps")
    return figure


def gain_figure(found: PolicyValue) -> Figure:
    """Draw the gain over practice, by the fitted Q, in fifths of the logged steps."""
    figure, grid = panels(len(found.gain), (2.7, 2.4), (0.8, 0.6), sharey=True)
    for axes, one in zip(grid.flat, found.gain, strict=False):
        places = np.arange(len(one.gain))
        axes.bar(places, one.gain, 0.8, color=[BLUE if x > 0 else ORANGE for x in one.gain])
        axes.axhline(0.0, color=GREY)
        ends = [f"{end:.3g}" for end in one.ends]
        axes.set_xticks(np.arange(len(ends)) - 0.5, ends, fontsize="small")
        axes.set_xlabel(_wrapped(one.column))
    for row in grid:
        row[0].set_ylabel("gain per episode, by Q")
    return figure


def _wrapped(name: str) -> str:
    return textwrap.fill(name, _NAME_WIDTH)
