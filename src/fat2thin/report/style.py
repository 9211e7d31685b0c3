"""The look of all figures, and how they are written."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.figure import Figure

from fat2thin.atomic_files import writing

STYLE = Path(__file__).with_name("style.mplstyle")
BLUE, ORANGE, GREY, SHADE = "#0072B2", "#D55E00", "#6E6E6E", "#ECECEC"
GREEN, PINK, YELLOW, SKY = "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
PURPLE, BROWN, DARK = "#7A4FA3", "#8C6D31", "#555555"
DOTTED, DASHED = (0, (1.0, 1.5)), (0, (5.0, 2.0))
LOOKS: tuple[dict[str, Any], ...] = tuple(
    {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 4.0}
    for colour, dashes, marker in (
        (BLUE, "-", "o"),
        (ORANGE, (0, (5.0, 1.5)), "s"),
        (GREEN, (0, (1.0, 1.2)), "^"),
        (PINK, (0, (5.0, 1.5, 1.0, 1.5)), "D"),
        (YELLOW, (0, (8.0, 2.0)), "v"),
        (SKY, (0, (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)), "P"),
        ("#000000", (0, (2.0, 2.0)), "X"),
        (PURPLE, (0, (10.0, 2.0, 2.0, 2.0)), "<"),
        (BROWN, (0, (1.0, 3.0)), ">"),
    )
)
"""Lines that can be distinguished in one figure, by colour, dashes and marker."""
_PREFERRED = {
    "fttpo": 0, "iql": 1, "xql": 2, "sql": 3, "spot": 4, "inac": 5, "tawac-ht": 3, "tawac": 7,
    "awac": 8, "fttpo-greedy": 2, "fttpo-spot": 4, "fttpo-sg": 5, "td3_bc": 5, "bc": 6,
    "sparse_reverse_kl": 7, "rar": 8, "rebrac": 6, "edac": 3, "sac_n": 2,
}  # fmt: skip
"""Which of `LOOKS` a method has; methods that are often compared differ."""
styled = matplotlib.style.context(STYLE)
"""Decorator of a function that draws or writes figures; they must be drawn in the style too."""


def method_looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return a look per method: the same in every figure, unless an earlier method has it.

    A published form ("xql-published") looks like its method. At most `len(LOOKS)` names.
    """
    names, free, found = dict.fromkeys(names), list(LOOKS), {}
    for name in names:
        place = _PREFERRED.get(name.lower().removesuffix("-published"))
        if place is not None and LOOKS[place] in free:
            free.remove(LOOKS[place])
            found[name] = LOOKS[place]
    return {name: found[name] if name in found else free.pop(0) for name in names}


def save_figure(figure: Figure, path: Path) -> None:
    """Write one picture whole or not at all; the same figure gives the same bytes."""
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
    kind = path.suffix.removeprefix(".")
    with writing(path) as file:
        figure.savefig(file, format=kind, metadata=undated.get(kind))


def save_figures(
    figures: Mapping[str, Figure], folder: Path, formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Write figures into a folder, each in every format; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.{kind}" for name in figures for kind in formats]
    for path in written:
        save_figure(figures[path.stem], path)
    return written


def signed(value: float, digits: int = 3) -> str:
    """A number for a figure, with a true minus sign."""
    return f"{value:.{digits}g}".replace("-", "−")


def view(box: tuple[float, float], reach: float) -> tuple[float, float]:
    """The actions shown around a box: those within `reach` half-ranges of its middle."""
    middle, half_range = (box[0] + box[1]) / 2.0, (box[1] - box[0]) / 2.0
    return middle - reach * half_range, middle + reach * half_range


def panels(
    count: int, size: tuple[float, float], margin: tuple[float, float], **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure with panels in rows of at most three, shape (rows, columns); the spare are off."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(margin[0] + size[0] * columns, margin[1] + size[1] * rows))
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    return figure, grid
