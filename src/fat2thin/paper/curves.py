"""The paper's figures of scores and speed: learning curves, the ablation's bars, hours."""

from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import EngFormatter, MaxNLocator

from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.policies.policy import WAYS
from fat2thin.report.distribution_figures import BLUE, GREY, ORANGE
from fat2thin.report.run_figures import DOTTED
from fat2thin.runs.result import Run

MOST_PANELS, _COLUMNS = 9, 3
_MARKERS = 7
"""Markers along a curve."""
_FRONT, _BEST, _BEHIND = 5, 4, 3
"""FtTPO is drawn over the best baseline, and that over the others, which are paler."""
_PALE = 0.45
_THIN_DASHES = (0, (3.0, 1.5))
_REFERENCES = ("best constant", "uniform")
"""Rows of a task's references that are drawn, where they are known."""
_OTHERS = {"actor": "proposal", "proposal": "actor"}
_HOURS = 1e6 / 3600.0


class _Look(NamedTuple):
    colour: str
    dashes: Literal["-"] | tuple[float, tuple[float, ...]]
    marker: str


_LOOKS = (
    _Look(BLUE, "-", "o"),
    _Look(ORANGE, (0, (5.0, 1.5)), "s"),
    _Look("#009E73", (0, (1.0, 1.2)), "^"),
    _Look("#CC79A7", (0, (5.0, 1.5, 1.0, 1.5)), "D"),
    _Look("#E69F00", (0, (8.0, 2.0)), "v"),
    _Look("#56B4E9", (0, (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)), "P"),
    _Look("#000000", (0, (2.0, 2.0)), "X"),
    _Look("#7A4FA3", (0, (10.0, 2.0, 2.0, 2.0)), "<"),
    _Look("#8C6D31", (0, (1.0, 3.0)), ">"),
)
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--", "**")


def curves(
    panels: Mapping[str, Mapping[str, Run]],
    *,
    policy: str = "actor",
    way: str = "sampled",
    normalise: Callable[[str, np.ndarray], np.ndarray] | None = None,
    smooth: int = 1,
    ylabel: str | None = None,
) -> Figure:
    """Learning curves: a panel a data set, a line a method, with 95 % intervals over the seeds.

    `policy` is drawn of methods that have two ("actor", or "proposal" as the paper's own curves
    are), and the other of the two as a thin dashed line. FtTPO, its variants and the best baseline
    of a panel are opaque. `normalise(data set, returns)` makes scores of returns, for example
    `fat2thin.data.normalised_score`. Each point is the mean of the last `smooth`
    evaluations.
    """
    _refuse(panels, policy, way, smooth)
    methods = list(dict.fromkeys(name for runs in panels.values() for name in runs))
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    alone = len(panels) == 1
    figure = Figure(figsize=(7.2, 4.8) if alone else (0.6 + 3.3 * columns, 1.5 + 2.5 * rows))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, runs) in zip(grid.flat, panels.items(), strict=False):
        lines = {name: _lines(run, policy, way, normalise, smooth) for name, run in runs.items()}
        best = _best_baseline(runs, lines)
        for name, drawn in lines.items():
            depth = _FRONT if is_fttpo(runs[name]) else _BEST if name == best else _BEHIND
            _draw_method(axes, drawn, methods.index(name), depth)
        _draw_references(axes, next(iter(runs.values())), normalise)
        steps = [run.evaluations.steps[-1] for run in runs.values()]
        axes.set(title=title, xlim=(0, max(max(steps), 1)))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.margins(y=0.08)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for number, axes in enumerate(grid.flat):
        if number + columns >= len(panels):
            axes.set_xlabel("updates")
    plain = "return of an episode, undiscounted" if normalise is None else "normalised score"
    figure.supylabel(ylabel or plain, fontsize=10)
    figure.suptitle(_heading(panels.values(), policy, way, smooth), fontsize=11)
    figure.legend(
        handles=_legend(methods, panels.values(), policy), loc="outside lower center",
        ncols=4 if alone or columns > 2 else 2,
    )  # fmt: skip
    return figure


def smoothed(scores: Float[np.ndarray, "evaluations seeds"], window: int) -> np.ndarray:
    """Means over a trailing window of evaluations, a shorter one at the beginning."""
    ends = range(1, len(scores) + 1)
    return np.stack([np.mean(scores[max(0, end - window) : end], axis=0) for end in ends])


def is_fttpo(run: Run) -> bool:
    """Whether a run is of FtTPO or one of its variants."""
    return run.spec.algorithm.split("-")[0] == "fttpo"


class _Curve(NamedTuple):
    steps: tuple[int, ...]
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class _Lines(NamedTuple):
    shown: _Curve
    beside: _Curve | None
    """The other policy of a method that has two."""


def _lines(run: Run, policy: str, way: str, normalise: Callable | None, smooth: int) -> _Lines:
    two = f"proposal_{way}" in run.evaluations.policies
    names = [policy, _OTHERS[policy]] if two else ["actor"]
    return _Lines(
        *(_curve(run, f"{name}_{way}", normalise, smooth) for name in names),
        *([] if two else [None]),
    )


def _curve(run: Run, name: str, normalise: Callable | None, smooth: int) -> _Curve:
    returns = np.asarray(run.evaluations[name].returns, np.float64)
    scores = np.mean(returns if normalise is None else normalise(run.spec.dataset, returns), -1)
    intervals = [seed_interval(row[:, None]) for row in smoothed(scores, smooth)]
    return _Curve(run.evaluations.steps, *np.transpose(intervals))


def _best_baseline(runs: Mapping[str, Run], lines: Mapping[str, _Lines]) -> str | None:
    final = {
        name: drawn.shown.value[-1] for name, drawn in lines.items() if not is_fttpo(runs[name])
    }
    known = [name for name, value in final.items() if np.isfinite(value)]
    return max(known, key=final.__getitem__, default=None)


def _draw_method(axes: Axes, lines: _Lines, rank: int, depth: int) -> None:
    (steps, value, low, high), look = lines.shown, _LOOKS[rank]
    pale = depth == _BEHIND
    axes.fill_between(
        steps, low, high, color=look.colour, alpha=0.08 if pale else 0.2, linewidth=0, zorder=2,
    )  # fmt: skip
    every = max(1, len(steps) // _MARKERS)
    axes.plot(
        steps, value, color=look.colour, linestyle=look.dashes, marker=look.marker,
        linewidth=1.3 if pale else 2.0, alpha=_PALE if pale else 1.0, markersize=4.0,
        markevery=(rank % every, every), zorder=depth, label="shown",
    )  # fmt: skip
    if lines.beside is not None:
        axes.plot(
            steps, lines.beside.value, color=look.colour, linestyle=_THIN_DASHES, linewidth=1.0,
            zorder=depth, label="beside",
        )  # fmt: skip


def _draw_references(axes: Axes, run: Run, normalise: Callable | None) -> None:
    known = run.known_references()
    for name in (name for name in _REFERENCES if name in known):
        value = known[name].mean
        if normalise is not None:
            value = float(normalise(run.spec.dataset, np.asarray(value)))
        axes.axhline(value, color=GREY, linewidth=1.1, linestyle=DOTTED, zorder=1)
        axes.annotate(
            f"{name} {value:.1f}".replace("-", "−"), (1.0, value), (-2, 2),
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            fontsize=8, color="#555555", zorder=6,
            path_effects=[Stroke(linewidth=2.5, foreground="white"), Normal()],
        )  # fmt: skip


def _legend(methods: list[str], panels: Collection[Mapping[str, Run]], policy: str) -> list[Line2D]:
    every = [run for runs in panels for run in runs.values()]
    handles = [
        Line2D(
            [], [], color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=4.0,
            label=name,
        )
        for name, look in zip(methods, _LOOKS, strict=False)
    ]  # fmt: skip
    if any("proposal_sampled" in run.evaluations.policies for run in every):
        beside = f"thin: its {_OTHERS[policy]}"
        handles.append(
            Line2D([], [], color="black", linestyle=_THIN_DASHES, linewidth=1.0, label=beside)
        )
    return handles


def _heading(panels: Collection[Mapping[str, Run]], policy: str, way: str, smooth: int) -> str:
    runs = [run for of_panel in panels for run in of_panel.values()]
    counts = sorted({len(run.spec.seeds) for run in runs})
    seeds = "one seed" if counts == [1] else f"mean of {' to '.join(map(str, counts))} seeds"
    acting = {"sampled": "sampled", "centre": "at its centre"}[way]
    window = f", over the last {smooth} evaluations" if smooth > 1 else ""
    stopped = sum(len(run.about.get("stopped", {})) for run in runs)
    without = f"\n{stopped} seed{'s' * (stopped > 1)} that stopped left out" if stopped else ""
    whose = "policy that acts" if policy == "actor" else "proposal, where there is one"
    several = any(sum(not is_fttpo(run) for run in of.values()) > 1 for of in panels)
    pale = "; of the baselines, the best is opaque" if several else ""
    ribbon = "no interval" if counts == [1] else "ribbon: 95 % bootstrap interval"
    return f"{whose}, {acting}: {seeds}{window}\n{ribbon}{pale}{without}"


def _refuse(panels: Mapping[str, Mapping[str, Run]], policy: str, way: str, smooth: int) -> None:
    if policy not in _OTHERS or way not in WAYS:
        raise ValueError(
            f"policy must be 'actor' or 'proposal' and way one of {', '.join(WAYS)}, "
            f"got {policy!r} and {way!r}"
        )
    if smooth < 1:
        raise ValueError(f"smooth is a number of evaluations, at least 1; got {smooth}")
    if not 1 <= len(panels) <= MOST_PANELS:
        raise ValueError(f"there is room for 1 to {MOST_PANELS} panels, got {len(panels)}")
    names = {name for runs in panels.values() for name in runs}
    if len(names) > len(_LOOKS):
        raise ValueError(f"at most {len(_LOOKS)} methods can be told apart, got {len(names)}")
    for title, runs in panels.items():
        if not runs:
            raise ValueError(f"panel {title!r} has no runs")
        for name, run in runs.items():
            if not run.evaluations.policies:
                raise ValueError(
                    f"{name!r} in panel {title!r} was never evaluated: {run.spec.dataset!r} is a "
                    "log without a task"
                )


def ablation(scores: Mapping[str, Mapping[str, Interval]]) -> Figure:
    """Bars of variants, in per cent of FtTPO's score, with their intervals: by data set, variant.

    Bars begin at 100 %, where a variant is as good as FtTPO, and not at an arbitrary one.
    """
    if not scores or not all(scores.values()):
        raise ValueError("an ablation needs at least one variant on each data set")
    variants = list(dict.fromkeys(name for of_set in scores.values() for name in of_set))
    if len(variants) > len(_LOOKS):
        raise ValueError(f"at most {len(_LOOKS)} variants can be told apart, got {len(variants)}")
    width = 0.8 / len(variants)
    figure = Figure(figsize=(min(10.0, 2.6 + 0.3 * len(scores) * (1 + len(variants))), 4.6))
    axes = figure.subplots()
    for rank, (name, look) in enumerate(zip(variants, _LOOKS[1:] + _LOOKS[:1], strict=False)):
        present = [index for index, of_set in enumerate(scores.values()) if name in of_set]
        value, low, high = np.transpose([list(scores.values())[index][name] for index in present])
        places = np.asarray(present) + (rank - (len(variants) - 1) / 2.0) * width
        axes.bar(
            places, value - 100.0, width, bottom=100.0, color=look.colour, alpha=0.75,
            hatch=_HATCHES[rank], edgecolor="white", linewidth=0.5, label=name,
        )  # fmt: skip
        axes.errorbar(
            places, (low + high) / 2.0, (high - low) / 2.0, fmt="none", ecolor="black",
            elinewidth=1.1, capsize=2.5,
        )  # fmt: skip
    axes.axhline(100.0, color="black", linewidth=1.0)
    axes.set_xticks(range(len(scores)), list(scores), rotation=30, ha="right")
    axes.set_ylabel("final score, % of FtTPO's")
    axes.set_title("above 100 %: better than FtTPO; whiskers: 95 % intervals")
    axes.yaxis.grid(visible=True, linewidth=0.5, color="#DDDDDD")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def training_time(rates: Mapping[str, float]) -> Figure:
    """Bars of hours per million updates, from updates a second of each method."""
    if not rates or min(rates.values()) <= 0.0:
        raise ValueError("training_time needs updates a second above 0 of at least one method")
    hours = {name: _HOURS / rate for name, rate in sorted(rates.items(), key=lambda one: one[1])}
    least = min(hours.values())
    figure = Figure(figsize=(6.6, 1.3 + 0.38 * len(hours)))
    axes = figure.subplots()
    bars = axes.barh(list(hours), list(hours.values()), color=BLUE, alpha=0.75, height=0.66)
    words = [f"{value:.2g} h  ({value / least:.1f} ×)" for value in hours.values()]
    axes.bar_label(bars, words, padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel="hours per million updates", xlim=(0.0, 1.25 * max(hours.values())))
    axes.set_title("training time (×: as many times the fastest)")
    return figure
