"""The policy gallery: figures of the distributions, computed from their implementation."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpyro.distributions import Distribution, Normal

from fat2thin.distributions import QGaussian
from fat2thin.distributions.published import PaperQGaussian
from fat2thin.report.style import BLUE, DARK, ORANGE, SHADE, save_figures, signed, styled

FAMILY = {
    -10.0: "almost uniform",
    -1.0: "semicircle",
    0.0: "Epanechnikov",
    0.5: "biweight",
    1.0: "Gaussian",
    1.5: "Student-t, ν = 3",
    2.0: "Cauchy",
    2.5: "Student-t, ν = ⅓",
}

# Scale of the q = 0 actor, in scales of a q = 2 proposal with the same centre, that minimises
# KL(actor || proposal); also the ratio of the half-width to the Cauchy scale.
BEST_RATIO = 3.2579

_Line = tuple[str, Distribution, str, str | tuple[int, tuple[float, ...]]]
"""Label, distribution, colour and dashes of a density to draw over samples."""


def _density(distribution: Distribution, points: np.ndarray) -> Float[np.ndarray, " points"]:
    return np.exp(np.asarray(jax.jit(distribution.log_prob)(points)))


def _samples(distribution: Distribution, count: int) -> Float[Array, " samples"]:
    return jax.jit(distribution.sample, static_argnums=1)(jax.random.key(0), (count,))


def _outside(distribution: QGaussian, distance: float) -> float:
    """Return the mass farther than `distance` from the centre, which is zero."""
    return 2.0 * float(jax.jit(distribution.cdf)(-distance))


def _draw_member(axes: Axes, index: float, name: str, limit: float) -> None:
    distribution = QGaussian(0.0, 1.0, index)
    half_width = min(float(distribution.half_width), limit)
    sparse = index < 1.0
    points = np.linspace(-half_width, half_width, 1001)
    density = _density(distribution, points)
    if sparse:
        points, density = np.pad(points, 1, mode="edge"), np.pad(density, 1)
    colour = BLUE if sparse else ORANGE if index > 1.0 else "black"
    axes.fill_between(points, density, color=colour, alpha=0.18, linewidth=0)
    axes.plot(points, density, color=colour)
    axes.set_title(f"$q$ = {signed(index)}\n{name}")
    # The support as a bar under the axis, with arrows if it is unbounded.
    arrow = {
        "arrowstyle": "|-|, widthA=0.25, widthB=0.25" if sparse else "<->", "color": colour,
        "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0,
    }  # fmt: skip
    axes.annotate(
        "", (half_width, -0.21), (-half_width, -0.21), xycoords=("data", "axes fraction"),
        arrowprops=arrow, annotation_clip=False,
    )  # fmt: skip
    note = f"zero beyond\n±{half_width:.2f}" if sparse else "zero\nnowhere"
    axes.set_xlabel(note, color=colour, labelpad=24)


def family() -> Figure:
    """Draw the densities of the family at scale 1, from almost uniform to heavier than Cauchy."""
    limit = 3.5
    figure = Figure(figsize=(13.0, 3.5))
    row = figure.subplots(1, len(FAMILY), sharex=True, sharey=True)
    for axes, (index, name) in zip(row, FAMILY.items(), strict=True):
        _draw_member(axes, index, name, limit)
        axes.set(xlim=(-limit, limit), ylim=(0.0, 1.3), xticks=[-2, 0, 2])
        axes.tick_params(left=axes is row[0])
        axes.spines["left"].set_visible(axes is row[0])
    row[0].set_ylabel("density at scale σ = 1")
    return figure


def fat_and_thin() -> Figure:
    """Draw a q = 2 proposal and the q = 0 actor that minimises KL(actor || proposal)."""
    proposal = QGaussian(0.0, 1.0, 2.0)
    actor = QGaussian(0.0, BEST_RATIO, 0.0)
    half_width = float(actor.half_width)
    limit = 12.0
    everywhere = np.linspace(-limit, limit, 1601)
    band = np.linspace(-half_width, half_width, 801)

    figure = Figure(figsize=(8.0, 3.9))
    axes = figure.subplots()
    for side in (-1, 1):
        axes.axvspan(side * half_width, side * limit, color=SHADE, linewidth=0)
        middle, text = side * (half_width + limit) / 2, "the actor's density\nis exactly zero"
        axes.text(middle, 0.1, text, ha="center", color=DARK)
    axes.fill_between(band, _density(actor, band), color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(band, _density(actor, band), color=BLUE)
    axes.plot(everywhere, _density(proposal, everywhere), color=ORANGE, linestyle=(0, (5, 1.5)))
    axes.text(0.75, 0.219, "fat proposal,\n$q$ = 2 (Cauchy)", color=ORANGE, va="center")
    axes.text(2.15, 0.146, "thin actor,\n$q$ = 0", color=BLUE, va="center")
    axes.text(
        0.0, 0.014,
        f"half-width $k^*γ$ = {half_width:.2f} σ\n"
        f"{1.0 - _outside(proposal, half_width):.0%} of the proposal is inside",
        ha="center", color="#123B56", fontsize=9,
    )  # fmt: skip
    axes.set(xlim=(-limit, limit), ylim=(0.0, 0.25), xlabel="action, in scales σ of the proposal")
    axes.set(ylabel="density", yticks=[0.0, 0.1, 0.2])
    return figure


def _compare(column: Sequence[Axes], samples: Array, colour: str, densities: list[_Line]) -> None:
    """Draw samples and densities: linear around the centre, and the tails on a log scale below."""
    for axes, limit, bins in zip(column, (6.0, 30.0), (96, 120), strict=True):
        edges = np.linspace(-limit, limit, bins + 1)
        points = np.linspace(-limit, limit, 1201)
        # Normalised by all samples, not only those in view.
        counts, _ = np.histogram(np.asarray(samples), edges)
        shares = counts / (samples.size * np.diff(edges))
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.4, label="samples")
        for label, distribution, line_colour, dashes in densities:
            density = _density(distribution, points)
            axes.plot(points, density, color=line_colour, linestyle=dashes, label=label)
        axes.set_xlim(-limit, limit)
    column[1].set(yscale="log", ylim=(1e-5, 1.0), xlabel="action, in scales σ")


def published_sampler(sample_count: int = 1_000_000) -> Figure:
    """Draw samples at q = 2 of the published sampler and of ours, with the density of q = 2."""
    published, exact = PaperQGaussian(0.0, 1.0, 2.0), QGaussian(0.0, 1.0, 2.0)
    published_samples = _samples(published, sample_count)
    claim = ("density claimed, $q$ = 2 (Cauchy)", exact, "black", "-")
    printed = ("as printed, mass √2", published, "black", (0, (1.0, 1.5)))
    gaussian = ("Gaussian, $q$ = 1", Normal(0.0, 1.0), ORANGE, (0, (4.0, 2.0)))

    figure = Figure(figsize=(10.0, 5.6))
    grid = figure.subplots(2, 2, sharex="row", sharey="row", height_ratios=(1.3, 1.0))
    _compare(list(grid[:, 0]), published_samples, ORANGE, [claim, printed, gaussian])
    _compare(list(grid[:, 1]), _samples(exact, sample_count), BLUE, [claim])
    grid[0, 0].set(title="published sampler: draws a Gaussian", ylabel="density")
    grid[0, 1].set_title("fat2thin's sampler: draws the density")
    grid[1, 0].set_ylabel("density, log scale")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    farthest = float(jnp.max(jnp.abs(published_samples)))
    text = (
        f"none of {sample_count:,} samples\nlies beyond {farthest:.1f} σ; "
        f"{_outside(exact, farthest):.0%} of\nthe density claimed does"
    )
    grid[1, 0].text(6.0, 2e-5, text, fontsize=9)
    return figure


GALLERY: dict[str, Callable[[], Figure]] = {
    "family": family,
    "fat_and_thin": fat_and_thin,
    "published_sampler": published_sampler,
}


@styled
def save_gallery(folder: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw every figure of the gallery into a folder and return the files."""
    return save_figures({name: draw() for name, draw in GALLERY.items()}, folder, formats)
