"""Measure time and memory of an update against seeds, network width, log size and batch size.

    python benchmarks/scale.py --out scale.json --figure scale.png
    python benchmarks/scale.py --curves seeds width --largest 2 --algorithm "fttpo, closed form"
    python benchmarks/scale.py --from scale.json --figure scale.png

Each size is varied alone around a middle point: 10 seeds (1 on a CPU, where seeds run one after
another), networks of 256 × 256, 100,000 rows, batches of 256. An update is timed as in update.py,
inside the compiled loop. The state is that of all seeds. Temporaries are what XLA allocates while
the loop runs, in addition to its arguments (the state and the log). The device's peak is reported
by its allocator, if it counts and the point needed more than all points before it.

A slope is that of a least-squares line through the logarithms: 1 is proportional, 0 is constant.
The slope of the last half of the points shows the trend for large sizes.
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

import fat2thin
import timing
import update
from fat2thin.engine import loop
from fat2thin.engine.pack import on_device
from fat2thin.engine.program import sequential_here
from fat2thin.evaluation.batches import problem_of
from fat2thin.report.style import BLUE, GREEN, GREY, ORANGE, STYLE, save_figure

CURVES = {
    "seeds": (1, 10, 50, 200),
    "batch": (64, 256, 1024, 4096),
    "width": (64, 256, 512, 1024),
    "rows": (10_000, 100_000, 1_000_000, 10_000_000),
}
AXES = {
    "seeds": "seeds",
    "batch": "batch size",
    "width": "network width",
    "rows": "rows of the log",
}
QUANTITIES = {
    "microseconds": ("µs", 1.0),
    "state": ("state, MB", 1e6),
    "temporaries": ("temporaries, MB", 1e6),
    "data": ("log, MB", 1e6),
    "device_peak": ("device's peak, MB", 1e6),
}
"""Heading and unit of each measured quantity."""
REPETITION_SECONDS = 0.3
CALL_SECONDS = 0.25
"""Approximate time limit of one call of the loop."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a point."""

    seeds: int
    width: int = 256
    rows: int = 100_000
    batch: int = 256

    @property
    def work(self) -> int:
        """A number proportional to the time of an update for large sizes."""
        return self.seeds * self.batch * self.width**2


@dataclasses.dataclass(frozen=True)
class Point:
    """The measurements of a point: the time of an update of all seeds, and bytes."""

    sizes: Sizes
    microseconds: float
    spread: float
    """Ratio of the longest to the shortest repetition."""
    updates: int
    """Updates per call of the loop."""
    state: int
    data: int
    temporaries: int | None
    device_peak: int | None


Curves = dict[str, list[Point]]


def middle() -> Sizes:
    return Sizes(seeds=1 if sequential_here() else 10)


def updates_a_call(sizes: Sizes, smaller: Point | None) -> int:
    """Return the updates per call: those of one metrics row, or fewer if updates are slow."""
    most = 50 if sequential_here() else 250
    if smaller is None:
        return most
    guess = smaller.microseconds * sizes.work / smaller.sizes.work
    return max(5, min(most, int(1e6 * CALL_SECONDS / guess)))


made_log = functools.lru_cache(maxsize=1)(update.log)


def bytes_of(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def device_peak() -> int | None:
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def measure(name: str, config: Any, sizes: Sizes, length: int) -> Point:
    """Measure one point with calls of `length` updates."""
    dataset, before = made_log(sizes.rows), device_peak()
    program = dataclasses.replace(
        update.make_program(
            name,
            dataclasses.replace(config, hidden=(sizes.width, sizes.width)),
            problem_of(dataset),
        ),
        batch_size=sizes.batch,
    )
    jobs, data = update.make_jobs(sizes.seeds), on_device([dataset])
    states, start = loop.init(jobs, program=program), jnp.int32(0)
    lowered = loop.chunk.lower(states, data, jobs, start, program=program, length=length)
    compiled = lowered.compile()

    def step(calls: int) -> None:
        nonlocal states
        for _ in range(calls):
            states, report = compiled(states, data, jobs, start)
        jax.block_until_ready(report)

    step(1)
    seconds, spread = timing.repeated(step, REPETITION_SECONDS)
    after, memory = device_peak(), compiled.memory_analysis()
    return Point(
        sizes, 1e6 * seconds / length, spread, length, bytes_of(states), bytes_of(data),
        memory and memory.temp_size_in_bytes, None if after == before else after,
    )  # fmt: skip


def measure_curves(
    name: str, config: Any, asked: Sequence[str], largest: float, save: Callable[[Curves], None]
) -> Curves:
    """Measure the given curves, up to `largest` times the middle point's size."""
    at, curves, known = middle(), {}, {}
    for curve in asked:
        points: list[Point] = []
        curves[curve] = points
        for value in CURVES[curve]:
            if value > largest * getattr(at, curve):
                break
            sizes = dataclasses.replace(at, **{curve: value})
            if sizes not in known:
                length = updates_a_call(sizes, points[-1] if points else None)
                known[sizes] = measure(name, config, sizes, length)
            points.append(known[sizes])
            print(f"{curve} {value:,}: {points[-1].microseconds:,.0f} µs", flush=True)
            save(curves)
    return curves


def slope(sizes: Sequence[float], values: Sequence[float | None]) -> float | None:
    """Return the slope of the line through the logarithms, or None if values are missing."""
    known = [value for value in values if value]
    if len(known) < max(2, len(values)):
        return None
    return float(np.polyfit(np.log(sizes), np.log(known), 1)[0])


def slopes(curve: str, points: Sequence[Point], quantity: str) -> tuple[float | None, float | None]:
    """Return the slopes over all points and over the last half of them."""
    sizes = [getattr(point.sizes, curve) for point in points]
    values = [getattr(point, quantity) for point in points]
    half = len(points) // 2
    return slope(sizes, values), slope(sizes[half:], values[half:])


def table(curve: str, points: Sequence[Point]) -> str:
    def row(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(value: float | None, pattern: str = "{:z.2f}") -> str:
        return "–" if value is None else pattern.format(value)

    headings = [heading for heading, _ in QUANTITIES.values()]
    lines = [
        row(curve, *headings, "spread", "updates per call"),
        "|---" * (len(headings) + 3) + "|",
    ]
    for point in points:
        cells = []
        for quantity, (_, unit) in QUANTITIES.items():
            value = getattr(point, quantity)
            pattern = "{:,.3g}" if (value or 0.0) < 100 * unit else "{:,.0f}"
            cells.append(shown(None if value is None else value / unit, pattern))
        size = f"{getattr(point.sizes, curve):,}"
        lines.append(row(size, *cells, f"{point.spread:.2f}", str(point.updates)))
    found = [slopes(curve, points, quantity) for quantity in QUANTITIES]
    for number, name in enumerate(("slope", "slope of the last half")):
        lines.append(row(name, *(shown(both[number]) for both in found), "", ""))
    return "\n".join(lines)


def draw_time(axes: Axes, curve: str, points: Sequence[Point]) -> None:
    """Draw the time, and a line of proportional growth through the last point."""
    sizes = np.asarray([getattr(point.sizes, curve) for point in points])
    values = [point.microseconds for point in points]
    axes.plot(sizes, values, "D-", color=GREEN, label="time per update")
    axes.plot(sizes, values[-1] * sizes / sizes[-1], ":", color=GREY, label="proportional to size")
    _, last = slopes(curve, points, "microseconds")
    slope_line = "" if last is None else f"\nslope, upper half: {last:z.2f}".replace("-", "−")
    axes.set(xscale="log", yscale="log", title=f"{AXES[curve]}{slope_line}")


def draw_memory(axes: Axes, curve: str, points: Sequence[Point]) -> None:
    sizes = [getattr(point.sizes, curve) for point in points]
    for quantity, style in (("state", "o-"), ("temporaries", "s--"), ("data", "^:")):
        colour = {"state": BLUE, "temporaries": ORANGE, "data": GREY}[quantity]
        # Missing values become NaN and are not drawn.
        values = np.asarray([getattr(point, quantity) for point in points], float) / 1e6
        label = f"memory: {QUANTITIES[quantity][0].partition(',')[0]}"
        axes.plot(sizes, values, style, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel=AXES[curve])
    labelled = sizes[:: 1 + len(sizes) // 6]
    axes.set_xticks(
        labelled,
        [f"{size:,}" if size < 10_000 else EngFormatter(sep="")(size) for size in labelled],
    )
    axes.minorticks_off()


def picture(curves: Curves, title: str) -> Figure:
    """Return a figure with one column per curve: time above, memory below."""
    figure = Figure(figsize=(2.6 * len(curves) + 0.8, 6.2))
    figure.suptitle(title.partition(", about")[0])
    axes = figure.subplots(2, len(curves), sharex="col", sharey="row", squeeze=False)
    for (above, below), (curve, points) in zip(axes.T, curves.items(), strict=True):
        draw_time(above, curve, points)
        draw_memory(below, curve, points)
    times = [point.microseconds for points in curves.values() for point in points]
    axes[0, 0].set_ylim(0.6 * min(times), 1.6 * max(times))
    axes[0, 0].set_ylabel("time per update of all seeds (µs)")
    axes[1, 0].set_ylabel("memory (MB)")
    handles = [one for row in axes[:, 0] for one in row.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def read(path: Path) -> tuple[Curves, str]:
    """Return stored curves and their title."""
    content = json.loads(path.read_text())
    curves = {
        curve: [Point(**{**point, "sizes": Sizes(**point["sizes"])}) for point in points]
        for curve, points in content["curves"].items()
    }
    return curves, content["title"]


def write(path: Path | None, title: str, curves: Curves) -> None:
    """Write the points measured so far as JSON."""
    if path is None:
        return
    content = {
        "title": title,
        "versions": {"fat2thin": fat2thin.__version__, "jax": jax.__version__},
        "curves": {
            curve: [dataclasses.asdict(point) for point in points]
            for curve, points in curves.items()
        },
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", default="fttpo", help="a name in the table of update.py")
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=list(CURVES))
    parser.add_argument("--largest", type=float, default=np.inf, help="times the middle point")
    parser.add_argument("--out", type=Path, help="JSON file, written after each point")
    parser.add_argument("--figure", type=Path, help="picture, png or pdf")
    parser.add_argument("--from", dest="source", type=Path, help="show this JSON file instead")
    options = parser.parse_args()
    if options.source:
        curves, title = read(options.source)
    else:
        config = update.methods([options.algorithm])[options.algorithm]
        device = jax.devices()[0]
        title = f"{options.algorithm} on {device.platform}: {device.device_kind}, about {middle()}"
        curves = measure_curves(
            options.algorithm, config, options.curves, options.largest,
            save=functools.partial(write, options.out, title),
        )  # fmt: skip
    print(f"\n{title}")
    for curve, points in curves.items():
        print(f"\n{table(curve, points)}")
    if options.figure:
        with matplotlib.style.context(STYLE):
            save_figure(picture(curves, title), options.figure)


if __name__ == "__main__":
    main()
