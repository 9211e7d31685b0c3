"""How far behind the best each signal's choice is, over the size of the log."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fat2thin.evaluation.held_out import PREFIX
from fat2thin.evaluation.statistics import Interval
from fat2thin.paper.signal_quality import LAST, RANDOM, WAYS, Scores, interval
from fat2thin.report.distribution_figures import BLUE, GREY, ORANGE

_COLOURS = (BLUE, "#56B4E9", ORANGE, "#009E73", "#CC79A7", "#E69F00", "#7A4FA3")
_MARKERS = "osD^vPX"
_UNITS = {"treatment": "regret (return)", "robots": "regret (score)"}


def draw_regret(scored: Scores) -> Figure:
    """A row each way of choosing; a panel a reward, and one of robots; a line or bar a signal."""
    datasets = [*next(iter(scored.values()))]
    rewards = list(dict.fromkeys(_reward(name) for name in datasets if _reward(name)))
    robots = [name for name in datasets if not _reward(name)]
    columns = len(rewards) + bool(robots)
    figure = Figure(figsize=(1.0 + 3.4 * columns, 6.4))
    grid = figure.subplots(len(WAYS), columns, squeeze=False)
    for row, way in zip(grid, WAYS, strict=True):
        for axes, reward in zip(row, rewards, strict=False):
            of = [name for name in datasets if _reward(name) == reward]
            _over_sizes(axes, scored, way, of)
            axes.set_title(f"{reward}, choosing among {way}")
        if robots:
            _bars(row[-1], scored, way, robots)
            row[-1].set_title(f"robots, choosing among {way}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure


def _reward(dataset: str) -> str:
    """ "quadratic" of "treatment-quadratic-50"; nothing of a robot."""
    parts = dataset.split("-")
    return parts[1] if parts[0] == "treatment" else ""


def _label(signal: str) -> str:
    return signal.removeprefix(PREFIX).replace("_", " ")


def _over_sizes(axes: Axes, scored: Scores, way: str, datasets: Sequence[str]) -> None:
    sizes = [int(name.rsplit("-", 1)[1]) for name in datasets]
    signals = [name for name in scored[way][datasets[0]] if name not in (LAST, RANDOM)]
    for place, signal in enumerate(signals):
        found = [interval(scored, way, [name], signal, "regret") for name in datasets]
        shift = 1.0 + 0.05 * (place - len(signals) / 2)
        axes.errorbar(
            np.asarray(sizes) * shift, [one.value for one in found], _errors(found),
            color=_COLOURS[place], marker=_MARKERS[place], markersize=4, linewidth=1.2,
            elinewidth=0.8, label=_label(signal), zorder=len(signals) - place + 2,
        )  # fmt: skip
    for name, dashes in ((RANDOM, ":"), (LAST, "--")):
        if name in scored[way][datasets[0]]:
            known = [interval(scored, way, [one], name, "regret").value for one in datasets]
            axes.plot(sizes, known, color=GREY, linestyle=dashes, label=name)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("trajectories in the log")
    axes.set_ylabel(_UNITS["treatment"])


def _errors(found: Sequence[Interval]) -> np.ndarray:
    """How far off the ends are: at least 0, though the mean of equal numbers may be rounded."""
    values, low, high = np.asarray(found).T
    return np.maximum([values - low, high - values], 0.0)


def _bars(axes: Axes, scored: Scores, way: str, robots: Sequence[str]) -> None:
    names = [*scored[way][robots[0]]]
    found = [interval(scored, way, robots, name, "regret") for name in names]
    values = [one.value for one in found]
    colours = [*_COLOURS[: len(names) - sum(name in (LAST, RANDOM) for name in names)]]
    colours += [GREY] * (len(names) - len(colours))
    places = np.arange(len(names))
    axes.barh(
        places, values, xerr=_errors(found), color=colours, height=0.7, error_kw={"linewidth": 0.8}
    )
    axes.set_yticks(places, [_label(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel(_UNITS["robots"])
