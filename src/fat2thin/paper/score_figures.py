"""Figures of scores: learning curves, ablation bars, training time and regret.

The paper's ribbons are one standard error, ours are 95 % intervals; its curves of FtTPO show the
proposal (here `curves(..., policy="proposal")`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import EngFormatter, MaxNLocator

from fat2thin.evaluation.held_out import PREFIX
from fat2thin.evaluation.statistics import Interval, seed_interval
from fat2thin.paper.studies import CHOSEN_AMONG, LAST, RANDOM, Scores, interval
from fat2thin.policies.policy import WAYS
from fat2thin.report import style
from fat2thin.runs.result import Run

Normalise = Callable[[str, np.ndarray], np.ndarray]  # from a data set's name and returns to scores
SCORE = "normalised score (0: random policy, 100: expert)"
MOST_PANELS = 9
_MARKERS = 7  # markers along a curve
_FRONT, _BEST, _BEHIND = 5, 4, 3
"""Drawing order: FtTPO in front, then the best baseline, then the others, which are paler."""
_PALE = 0.45
_THIN: dict[str, Any] = {"linestyle": (0, (3.0, 1.5)), "linewidth": 1.0}
_REFERENCES = ("best constant", "uniform")
"""Reference rows of a task that are drawn if they are known."""
_OTHERS = {"actor": "proposal", "proposal": "actor"}
_HOURS = 1e6 / 3600.0
_REGRET_COLOURS = (
    style.BLUE, style.SKY, style.ORANGE, style.GREEN, style.PINK, style.YELLOW, style.PURPLE,
)  # fmt: skip
_REGRET_MARKERS = "osD^vPX"
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--", "**")


def curves(
    panels: Mapping[str, Mapping[str, Run]], *, policy: str = "actor", way: str = "sampled",
    normalise: Normalise | None = None, smooth: int = 1,
) -> Figure:  # fmt: skip
    """Draw learning curves: one panel per data set, one line per method, 95 % intervals over seeds.

    For methods with two policies, `policy` ("actor" or "proposal") is drawn, and the other one as a
    thin dashed line. FtTPO, its variants and the best baseline of a panel are opaque.
    `normalise(data set, returns)` converts returns to scores, for example
    `fat2thin.data.normalised_score`. A point is the mean of the last `smooth` evaluations.
    """
    _refuse(panels, policy, way, smooth)
    looks = style.method_looks(name for runs in panels.values() for name in runs)
    alone, columns = len(panels) == 1, min(len(panels), 3)
    size = (7.2, 4.8) if alone else (3.3, 2.5) if columns > 2 else (4.2, 3.0)
    margin = (0.0, 0.0) if alone else (0.6, 1.5)
    figure, grid = style.panels(len(panels), size, margin)
    for axes, (title, runs) in zip(grid.flat, panels.items(), strict=False):
        lines = {name: _lines(run, policy, way, normalise, smooth) for name, run in runs.items()}
        best = _best_baseline(runs, lines)
        for name, drawn in lines.items():
            depth = _FRONT if is_fttpo(runs[name]) else _BEST if name == best else _BEHIND
            steps = runs[name].evaluations.steps
            _draw_method(axes, steps, drawn, looks[name], depth)
        _draw_references(axes, next(iter(runs.values())), normalise)
        last = max(run.evaluations.steps[-1] for run in runs.values())
        axes.set(title=title, xlim=(0, max(last, 1)))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.margins(y=0.08)
    for axes in grid.flat[len(panels) - columns :]:
        axes.set_xlabel("updates")
    unit = "return of an episode, undiscounted" if normalise is None else SCORE
    figure.supylabel(unit, fontsize=10)
    figure.suptitle(_heading(panels.values(), policy, way, smooth), fontsize=11)
    handles = [Line2D([], [], **look, label=name) for name, look in looks.items()]
    every = [run for runs in panels.values() for run in runs.values()]
    if any("proposal_sampled" in run.evaluations.policies for run in every):
        label = f"thin line: its {_OTHERS[policy]}"
        handles.append(Line2D([], [], **_THIN, color="black", label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def smoothed(scores: Float[np.ndarray, "evaluations seeds"], window: int) -> np.ndarray:
    """Return means over a trailing window of evaluations, which is shorter at the beginning."""
    ends = range(1, len(scores) + 1)
    return np.stack([np.mean(scores[max(0, end - window) : end], axis=0) for end in ends])


def is_fttpo(run: Run) -> bool:
    """Return whether the algorithm of a run is FtTPO or one of its variants."""
    return run.spec.algorithm.split("-")[0] == "fttpo"


def _lines(
    run: Run, policy: str, way: str, normalise: Normalise | None, smooth: int
) -> list[np.ndarray]:
    """Return value, low and high of a policy's curve, and of the other policy if there are two."""
    two = f"proposal_{way}" in run.evaluations.policies
    found = []
    for name in [policy, _OTHERS[policy]] if two else ["actor"]:
        returns = np.asarray(run.evaluations[f"{name}_{way}"].returns, np.float64)
        scores = np.mean(returns if normalise is None else normalise(run.spec.dataset, returns), -1)
        intervals = [seed_interval(row[:, None]) for row in smoothed(scores, smooth)]
        found.append(np.transpose(intervals))
    return found


def _best_baseline(runs: Mapping[str, Run], lines: Mapping[str, list[np.ndarray]]) -> str | None:
    final = {name: of[0][0, -1] for name, of in lines.items() if not is_fttpo(runs[name])}
    known = [name for name, value in final.items() if np.isfinite(value)]
    return max(known, key=final.__getitem__, default=None)


def _draw_method(
    axes: Axes, steps: Sequence[int], lines: list[np.ndarray], look: dict[str, Any], depth: int
) -> None:
    (value, low, high), pale = lines[0], depth == _BEHIND
    colour = look["color"]
    shade = 0.08 if pale else 0.2
    axes.fill_between(steps, low, high, color=colour, alpha=shade, linewidth=0, zorder=2)
    every = max(1, len(steps) // _MARKERS)
    axes.plot(
        steps, value, **look, linewidth=1.3 if pale else 2.0, alpha=_PALE if pale else 1.0,
        markevery=(style.LOOKS.index(look) % every, every), zorder=depth, label="shown",
    )  # fmt: skip
    for other in lines[1:]:
        axes.plot(steps, other[0], **_THIN, color=colour, zorder=depth, label="other")


def _draw_references(axes: Axes, run: Run, normalise: Normalise | None) -> None:
    known = run.known_references()
    for name in (name for name in _REFERENCES if name in known):
        value = known[name].mean
        if normalise is not None:
            value = float(normalise(run.spec.dataset, np.asarray(value)))
        axes.axhline(value, color=style.GREY, linewidth=1.1, linestyle=style.DOTTED, zorder=1)
        axes.annotate(
            f"{name} {value:z.1f}".replace("-", "−"), (1.0, value), (-2, 2),
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            fontsize=8, color=style.DARK, zorder=6,
            path_effects=[Stroke(linewidth=2.5, foreground="white"), Normal()],
        )  # fmt: skip


def _heading(panels: Collection[Mapping[str, Run]], policy: str, way: str, smooth: int) -> str:
    runs = [run for of_panel in panels for run in of_panel.values()]
    counts = sorted({len(run.spec.seeds) for run in runs})
    seeds = "one seed" if counts == [1] else f"mean of {' to '.join(map(str, counts))} seeds"
    acting = {"sampled": "sampled", "centre": "at its centre"}[way]
    window = f", over the last {smooth} evaluations" if smooth > 1 else ""
    stopped = sum(len(run.about.get("stopped", {})) for run in runs)
    without = f"\nwithout {stopped} stopped seed{'s' * (stopped > 1)}" if stopped else ""
    whose = "policy that acts" if policy == "actor" else "proposal, if there is one"
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
        raise ValueError(f"smooth must be at least 1 evaluation, got {smooth}")
    if not 1 <= len(panels) <= MOST_PANELS:
        raise ValueError(f"a figure has 1 to {MOST_PANELS} panels, got {len(panels)}")
    names = {name for runs in panels.values() for name in runs}
    if len(names) > len(style.LOOKS):
        raise ValueError(f"at most {len(style.LOOKS)} methods can be drawn, got {len(names)}")
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
    """Draw bars of variants in per cent of FtTPO's score, by data set; bars start at 100."""
    if not scores or not all(scores.values()):
        raise ValueError("an ablation needs at least one variant on each data set")
    variants = list(dict.fromkeys(name for of_set in scores.values() for name in of_set))
    if len(variants) > len(style.LOOKS):
        raise ValueError(f"at most {len(style.LOOKS)} variants can be drawn, got {len(variants)}")
    width = 0.8 / len(variants)
    figure = Figure(figsize=(min(10.0, 2.6 + 0.3 * len(scores) * (1 + len(variants))), 4.6))
    axes = figure.subplots()
    for rank, (name, look) in enumerate(style.method_looks(variants).items()):
        present = [index for index, of_set in enumerate(scores.values()) if name in of_set]
        value, low, high = np.transpose([list(scores.values())[index][name] for index in present])
        places = np.asarray(present) + (rank - (len(variants) - 1) / 2.0) * width
        axes.bar(
            places, value - 100.0, width, bottom=100.0, color=look["color"], alpha=0.75,
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
    """Draw bars of hours per million updates, from the updates per second of each method."""
    if not rates or min(rates.values()) <= 0.0:
        raise ValueError(
            "training_time needs at least one method, with more than 0 updates per second"
        )
    hours = {name: _HOURS / rate for name, rate in sorted(rates.items(), key=lambda one: one[1])}
    least = min(hours.values())
    figure = Figure(figsize=(6.6, 1.3 + 0.38 * len(hours)))
    axes = figure.subplots()
    bars = axes.barh(list(hours), list(hours.values()), color=style.BLUE, alpha=0.75, height=0.66)
    words = [f"{value:.2g} h  ({value / least:.1f} ×)" for value in hours.values()]
    axes.bar_label(bars, words, padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.set(xlabel="hours per million updates", xlim=(0.0, 1.25 * max(hours.values())))
    axes.set_title("training time (×: relative to the fastest)")
    return figure


def draw_regret(scored: Scores) -> Figure:
    """Draw the regret of selection by each signal: lines by size of the log, bars for robots."""
    # "treatment-quadratic-50" belongs to "quadratic"; robot data sets have no reward name.
    rewards: dict[str, list[str]] = {}
    for name in next(iter(scored.values())):
        reward = name.split("-")[1] if name.startswith("treatment-") else ""
        rewards.setdefault(reward, []).append(name)
    robots = rewards.pop("", [])
    columns = len(rewards) + bool(robots)
    figure = Figure(figsize=(1.0 + 3.7 * columns, 6.8))
    grid = figure.subplots(len(CHOSEN_AMONG), columns, squeeze=False)
    for row, way in zip(grid, CHOSEN_AMONG, strict=True):
        for axes, (reward, names) in zip(row, rewards.items(), strict=False):
            _over_sizes(axes, scored, way, names)
            axes.set_title(f"{reward}, selection among {way}")
        if robots:
            _bars(row[-1], scored, way, robots)
            row[-1].set_title(f"robots, selection among {way}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
    figure.suptitle("regret: best return minus the return of the choice; 95 % bootstrap intervals")
    return figure


def _label(signal: str) -> str:
    compared = {RANDOM: "random choice", LAST: "last checkpoint", f"{PREFIX}td_error": "TD error"}
    return compared.get(signal, signal.removeprefix(PREFIX).replace("_", " "))


def _over_sizes(axes: Axes, scored: Scores, way: str, datasets: Sequence[str]) -> None:
    sizes = [int(name.rsplit("-", 1)[1]) for name in datasets]
    found = {
        signal: [interval(scored, way, [name], signal, "regret") for name in datasets]
        for signal in scored[way][datasets[0]]
    }
    compared = {name: found.pop(name) for name in (RANDOM, LAST) if name in found}
    for place, (signal, regrets) in enumerate(found.items()):
        shift = 1.0 + 0.05 * (place - len(found) / 2)
        axes.errorbar(
            np.asarray(sizes) * shift, [one.value for one in regrets], _errors(regrets),
            color=_REGRET_COLOURS[place], marker=_REGRET_MARKERS[place], markersize=4,
            linewidth=1.2, elinewidth=0.8, label=_label(signal), zorder=len(found) - place + 2,
        )  # fmt: skip
    for name, regrets in compared.items():
        values, dashes = [one.value for one in regrets], ":" if name == RANDOM else "--"
        axes.plot(sizes, values, color=style.GREY, linestyle=dashes, label=_label(name))
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)
    axes.set(xlabel="trajectories in the log", ylabel="regret, in units of return")


def _errors(found: Sequence[Interval]) -> np.ndarray:
    """Return the lengths of error bars; at least 0, since a mean may be rounded."""
    values, low, high = np.asarray(found).T
    return np.maximum([values - low, high - values], 0.0)


def _bars(axes: Axes, scored: Scores, way: str, robots: Sequence[str]) -> None:
    names = [*scored[way][robots[0]]]
    found = [interval(scored, way, robots, name, "regret") for name in names]
    signals = len(names) - sum(name in (LAST, RANDOM) for name in names)
    axes.barh(
        np.arange(len(names)), [one.value for one in found], xerr=_errors(found), height=0.7,
        color=[*_REGRET_COLOURS[:signals], *[style.GREY] * (len(names) - signals)],
        error_kw={"linewidth": 0.8},
    )  # fmt: skip
    axes.set_yticks(np.arange(len(names)), [_label(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("regret, in points of normalised score")
