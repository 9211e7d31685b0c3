"""A map of the state space: what a policy does over two columns, and where it refers.

The other columns have their typical values for these two: their mean in the summary of the log,
given the two. So the map needs the run alone, and shows no single row of the log.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy import ndarray

from fat2thin.data.coverage import Coverage
from fat2thin.policies.decision import Decision
from fat2thin.policies.limits import Limits
from fat2thin.policies.policy import Policy
from fat2thin.report import style
from fat2thin.report.style import save_figure, styled
from fat2thin.terminal_text import did_you_mean

GRID = 120  # points along each axis
MARGIN = 0.35  # the map extends beyond the logged range by this share of it
MOST_LIMITS = 8  # limits with a colour of their own
_SHADES = (style.ORANGE, style.PURPLE, style.PINK, style.BROWN)
"""Colours of referrals: outside the log, seeds disagree, limits, in this order."""
_LIMIT_SHADES = (
    style.BLUE, style.GREEN, style.YELLOW, style.SKY, style.PINK, style.PURPLE, style.BROWN,
    style.ORANGE,
)  # fmt: skip
_DEEPEST = 12.0  # densities below the largest by more than e^12 are white


@dataclasses.dataclass(frozen=True)
class StateMap:
    """A policy over a grid of two columns; arrays have the shape (y, x)."""

    columns: tuple[int, int]
    """The columns of x and y."""
    x: Float[ndarray, " x"]
    y: Float[ndarray, " y"]
    states: Float[ndarray, "y x observation"]
    log_density: Float[ndarray, "y x"]
    """Of the two columns in the log."""
    low: Float[ndarray, "y x action"]
    """Lowest possible action; nan where limits leave none."""
    high: Float[ndarray, "y x action"]
    decision: Decision


def map_states(
    policy: Policy, x: str, y: str, ranges: Sequence[tuple[float, float]],
    at: Mapping[str, float] | None = None, grid: int = GRID,
) -> StateMap:  # fmt: skip
    """Return what a policy of a run does over two columns.

    `ranges` are the logged ranges of all columns. `at` fixes other columns, by name. Limits on
    changes do not apply, because there is no last action.
    """
    coverage = policy.referral.coverage if policy.referral else None
    if not isinstance(coverage, Coverage):
        raise ValueError("a map needs a policy of a run with a summary of its log")
    names = [column.name for column in policy.observation_columns]
    places = _place(names, x), _place(names, y)
    if places[0] == places[1]:
        raise ValueError(f"a map needs two different columns, not {x!r} twice")
    along, up = (_axis(*ranges[place], policy.observation_columns[place], grid) for place in places)
    points = np.stack(np.meshgrid(along, up), axis=-1)
    mixture = coverage.mixture(places)
    states = mixture.typical(points)
    for name, value in (at or {}).items():
        place = _place(names, name)
        if place in places:
            raise ValueError(f"{name!r} is an axis of the map and cannot be fixed")
        states[..., place] = value
    decision = policy.decide(states, last=None)
    low, high = (np.asarray(end, np.float64) for end in policy.support(states, None))
    return StateMap(places, along, up, states, mixture.log_density(points), low, high, decision)


def _place(names: Sequence[str], name: str) -> int:
    if name not in names:
        raise ValueError(
            f"there is no column {name!r}{did_you_mean(name, names)}; the observations are "
            f"{', '.join(names[:20])}"
        )
    return names.index(name)


def _axis(low: float, high: float, column: Any, count: int) -> ndarray:
    reach = max(high - low, 1e-6 * max(abs(low), abs(high), 1.0))
    bottom, top = low - MARGIN * reach, high + MARGIN * reach
    if column.transform is not None and not column.transform.allows(bottom):
        bottom = low  # a logarithm needs larger numbers
    return np.linspace(bottom, top, count)


def draw_state_map(
    found: StateMap, policy: Policy, ranges: Sequence[tuple[float, float]], title: str,
    action: int = 0,
) -> Figure:  # fmt: skip
    """Draw density and referrals, centre, width of the band, and limits; one action is shown."""
    figure = Figure(figsize=(10.4, 8.6))
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    x, y = (policy.observation_columns[place] for place in found.columns)
    dose, acts = policy.action_columns[action], ~found.decision.referred
    density = found.log_density - found.log_density.max()
    mesh = grid[0, 0].pcolormesh(
        found.x, found.y, np.maximum(density, -_DEEPEST), cmap="Greys", vmin=-_DEEPEST, vmax=0,
        shading="nearest", rasterized=True,
    )  # fmt: skip
    figure.colorbar(mesh, ax=grid[0, 0], label="log density of logged states, less its maximum")
    _draw_referrals(grid[0, 0], found)
    centre = np.where(acts, (found.low + found.high)[..., action] / 2.0, np.nan)
    box = float(policy.low[action]), float(policy.high[action])
    _draw_values(figure, grid[0, 1], found, centre, "viridis", f"middle of the band: {dose.label}")
    width = (found.high - found.low)[..., action] / (box[1] - box[0])
    shares = 100.0 * np.where(acts, width, np.nan)
    _draw_values(figure, grid[1, 0], found, shares, "cividis", "width of the band, % of the box")
    _draw_limits(grid[1, 1], found, policy.limits)
    titles = (
        "log density and referrals",
        "what it does",
        "how wide its band is",
        "limits that bind",
    )
    for axes, words in zip(grid.flat, titles, strict=True):
        axes.set_title(words)
        logged = [ranges[place] for place in found.columns]
        corners = [logged[0][0], logged[0][1], logged[0][1], logged[0][0], logged[0][0]]
        sides = [logged[1][0], logged[1][0], logged[1][1], logged[1][1], logged[1][0]]
        axes.plot(corners, sides, color="black", linewidth=0.9, linestyle=style.DOTTED)
        axes.set(xlim=found.x[[0, -1]], ylim=found.y[[0, -1]])
    for axes in grid[1]:
        axes.set_xlabel(x.label)
    for axes in grid[:, 0]:
        axes.set_ylabel(y.label)
    figure.suptitle(f"{title}\ndotted: range of the log; white: referred")
    return figure


def _draw_values(
    figure: Figure, axes: Axes, found: StateMap, values: ndarray, colours: str, label: str
) -> None:
    mesh = axes.pcolormesh(
        found.x, found.y, values, cmap=colours, shading="nearest", rasterized=True
    )
    figure.colorbar(mesh, ax=axes, label=label)


def _draw_referrals(axes: Axes, found: StateMap) -> None:
    masks = {name: mask for name, mask in found.decision.because.items() if mask.any()}
    handles = []
    for (name, mask), colour, hatch in zip(
        masks.items(),
        itertools.cycle(_SHADES),
        itertools.cycle(("//", "\\\\", "xx", "..")),
        strict=False,
    ):
        axes.contourf(found.x, found.y, mask.astype(float), levels=[0.5, 1.5], colors="none",
                      hatches=[hatch])  # fmt: skip
        axes.contour(found.x, found.y, mask.astype(float), levels=[0.5], colors=colour)
        handles.append(Patch(fill=False, edgecolor=colour, hatch=hatch, label=f"referred: {name}"))
    if not handles:
        handles = [Patch(fill=False, label="nothing is referred")]
    axes.legend(handles=handles, loc="upper left", frameon=True, framealpha=1.0)


def _draw_limits(axes: Axes, found: StateMap, limits: Limits | None) -> None:
    """Colour each state by the limits that bind there, alone or together."""
    if limits is None:
        axes.text(0.5, 0.5, "no limits", transform=axes.transAxes, ha="center", va="center")
        return
    binding = found.decision.binding
    assert binding is not None
    names, first = limits.names, np.where(binding.any(axis=-1), binding.argmax(axis=-1) + 1, 0)
    shades = ["white", *itertools.islice(itertools.cycle(_LIMIT_SHADES), len(names))]
    axes.pcolormesh(
        found.x, found.y, first, cmap=ListedColormap(shades), shading="nearest", rasterized=True,
        norm=BoundaryNorm(np.arange(len(shades) + 1) - 0.5, len(shades)), alpha=0.75,
    )  # fmt: skip
    several, anywhere = binding.sum(axis=-1) > 1, binding.reshape(-1, len(names)).any(axis=0)
    handles = [
        Patch(facecolor=colour, alpha=0.75, label=name)
        for name, colour, binds in zip(names, shades[1:], [*np.atleast_1d(anywhere)], strict=True)
        if binds
    ][:MOST_LIMITS]
    if several.any():
        axes.contourf(found.x, found.y, several.astype(float), levels=[0.5, 1.5], colors="none",
                      hatches=["//"])  # fmt: skip
        handles.append(Patch(fill=False, hatch="//", label="several"))
    axes.legend(
        handles=handles or [Patch(fill=False, label="no limit binds")], loc="upper left",
        frameon=True, framealpha=1.0,
    )  # fmt: skip


@styled
def save_state_map(
    found: StateMap, policy: Policy, ranges: Sequence[tuple[float, float]], title: str, out: Path,
    action: int = 0,
) -> None:  # fmt: skip
    """Draw the map into a PNG or PDF file."""
    save_figure(draw_state_map(found, policy, ranges, title, action), out)
