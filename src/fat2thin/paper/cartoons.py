"""The paper's two sketches of why a sparse policy is hard to learn from a log, and what helps.

The data are made up; densities, samples and log likelihoods are those of our own distributions.
"""

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fat2thin.algorithms.steps import REPLACEMENT_SAMPLES
from fat2thin.distributions import QGaussian
from fat2thin.report.distribution_figures import BEST_RATIO, BLUE, GREY, ORANGE, SHADE
from fat2thin.report.run_figures import DASHED

_SEED = 0
_CENTRE, _SCALE = 0.25, 0.25
"""Of the sparse policy in the sketches, on a box from -1 to 1."""
_LOGGED = np.array([-0.86, -0.62, -0.3, -0.02, 0.1, 0.22, 0.3, 0.41, 0.52, 0.8, 0.93])
_LOGGED_PAIRS = np.array(
    [(-0.75, -0.55), (-0.6, 0.65), (-0.28, -0.8), (0.05, 0.12), (0.2, 0.42), (0.36, 0.22),
     (0.5, 0.05), (0.18, 0.9), (0.85, 0.75), (0.88, -0.35)]
)  # fmt: skip
_LOWEST = -5.0


def outside_actions() -> Figure:
    """Logged actions outside the support of a sparse policy have a log likelihood of −∞."""
    policy = QGaussian(_CENTRE, _SCALE, 0.0)
    low, high = (_CENTRE + side * float(policy.half_width) for side in (-1.0, 1.0))
    # A heavy-tailed one with the same centre, to which the sparse one is the nearest band.
    proposal = QGaussian(_CENTRE, _SCALE / BEST_RATIO, 2.0)
    points = np.linspace(-1.05, 1.05, 1001)
    band = np.linspace(low, high, 801)
    inside = np.asarray(policy.support_mask(_LOGGED))
    figure = Figure(figsize=(7.2, 5.4))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, 1.35))
    for axes in (upper, lower):
        for ends in ((-1.05, low), (high, 1.05)):
            axes.axvspan(*ends, color=SHADE, linewidth=0)
    thin, fat = _log_density(policy, band), _log_density(proposal, points)
    upper.fill_between(band, np.exp(thin), color=BLUE, alpha=0.25, linewidth=0)
    upper.plot(band, np.exp(thin), color=BLUE)
    upper.plot(points, np.exp(fat), color=ORANGE, linestyle=DASHED)
    upper.text(low - 0.03, 1.1, "thin policy,\nzero out here", ha="right", color=BLUE)
    upper.set(ylabel="density", ylim=(0.0, None), title="what the policies can do")

    lower.plot(band, np.maximum(thin, 2.0 * _LOWEST), color=BLUE, label="thin policy, $q$ = 0")
    lower.plot(
        points, fat, color=ORANGE, linestyle=DASHED, label="fat policy, $q$ = 2: finite everywhere"
    )
    lower.plot(
        _LOGGED[inside], _log_density(policy, _LOGGED)[inside], "o", color="black",
        markersize=5, label="logged action, inside the thin policy's support",
    )  # fmt: skip
    lower.plot(
        _LOGGED[~inside], np.full(np.sum(~inside), _LOWEST + 0.9), "x", color="black", markersize=7,
        markeredgewidth=1.8, label="logged action, outside: log likelihood −∞",
    )  # fmt: skip
    for action in _LOGGED[~inside]:
        lower.annotate(
            "",
            (action, _LOWEST),
            (action, _LOWEST + 0.75),
            arrowprops={"arrowstyle": "-|>", "color": "black"},
        )
        lower.text(action + 0.025, _LOWEST + 0.2, "−∞", fontsize=9)
    total = np.sum(_log_density(proposal, _LOGGED))
    lower.set(
        xlabel="action, in half-ranges of the box", ylabel="log likelihood", xlim=(-1.05, 1.05),
        ylim=(_LOWEST, 1.6),
        title=f"the sum over the log: thin −∞, whatever its other terms; fat {total:.1f}"
        .replace("-", "−"),
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def replaced_actions() -> Figure:
    """Random action replacement: the nearest of the policy's own samples stands in for an action.

    Two coordinates, a sparse policy in each, so that its support is a rectangle.
    """
    policy = QGaussian(_CENTRE, _SCALE, 0.0)
    low, high = (_CENTRE + side * float(policy.half_width) for side in (-1.0, 1.0))
    samples = np.asarray(policy.sample(jax.random.key(_SEED), (REPLACEMENT_SAMPLES, 2)))
    inside = np.all(policy.support_mask(_LOGGED_PAIRS), axis=1)
    outside = _LOGGED_PAIRS[~inside]
    distances = np.sum((outside[:, None] - samples) ** 2, axis=-1)
    nearest = samples[np.argmin(distances, axis=1)]

    figure = Figure(figsize=(6.2, 6.6))
    axes = figure.subplots()
    axes.set_facecolor(SHADE)
    axes.add_patch(
        Rectangle(
            (low, low), high - low, high - low, facecolor="#DCEAF5", edgecolor=BLUE, linewidth=1.5,
            label="support of the policy",
        )
    )  # fmt: skip
    axes.plot(
        *samples.T, ".", color=BLUE, markersize=3.5, alpha=0.6,
        label=f"{REPLACEMENT_SAMPLES} samples of the policy",
    )  # fmt: skip
    axes.plot(
        *_LOGGED_PAIRS[inside].T, "o", color="black", markersize=6, label="logged, inside: kept"
    )
    axes.plot(
        *outside.T, "x", color="black", markersize=8, markeredgewidth=1.8,
        label="logged, outside: likelihood 0",
    )  # fmt: skip
    axes.plot(
        *nearest.T, "D", color=ORANGE, markerfacecolor="none", markersize=8, markeredgewidth=1.8,
        label="nearest sample: learned from instead",
    )  # fmt: skip
    for action, instead in zip(outside, nearest, strict=True):
        arrow = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 9, "shrinkB": 6}
        axes.annotate("", instead, action, arrowprops=arrow)
    axes.set(
        xlim=(-1.0, 1.0), ylim=(-1.0, 1.0), aspect="equal",
        xlabel="first coordinate of the action, in half-ranges of the box",
        ylabel="second coordinate of the action",
        title="random action replacement: an action outside is learned from\n"
        "as if the policy's nearest sample had been logged",
    )  # fmt: skip
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _log_density(law: QGaussian, points: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(law.log_prob)(points))
