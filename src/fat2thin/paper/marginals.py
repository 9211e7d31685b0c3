"""Marginal distributions of a policy's action in one state, and how they are drawn.

They describe the executed action: after squashing, in the environment's units, and with the point
masses (atoms) that clipping leaves on the edges of the action box. Nothing is rescaled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpyro.distributions import Distribution, Independent, Normal

from fat2thin.distributions import MultivariateQGaussian, QGaussian
from fat2thin.distributions.published import AuthorsProposal
from fat2thin.policies.policy import Policy
from fat2thin.report.style import BLUE, DASHED, DOTTED, ORANGE, SHADE, view

VIEW = 1.4  # farthest action shown, in half-ranges of the box from its middle
_EVEN, _CLUSTER, _NEAREST = 801, 120, 1e-6
_ROUNDING = 1e-6  # mass beyond the box that counts as rounding of the cdf
_STEM = 0.86  # height of an atom with probability 1, as a share of the panel
_LEAST_NAMED = 0.005
_SPIKE, _HIGHEST = 0.005, 2.0
"""A spike lies within `_SPIKE` of the box from an end, and is cut at `_HIGHEST` times the height of
the rest."""


class Atom(NamedTuple):
    """A single action with positive probability."""

    place: float
    """The action."""
    mass: float
    """Its probability."""


class Marginal(NamedTuple):
    """The distribution of one coordinate: a density and atoms."""

    points: Float[np.ndarray, " points"]
    """Sorted actions, denser where a density can be steep; empty for a single action."""
    density: Float[np.ndarray, " points"]
    """Densities at `points`."""
    atoms: tuple[Atom, ...]
    """Point masses."""
    support: tuple[float, float]
    """Lowest and highest possible action."""
    box: tuple[float, float]
    """Ends of the action box."""

    @property
    def sparse(self) -> bool:
        """Whether some actions in the box have probability zero."""
        return self.support[0] > self.box[0] or self.support[1] < self.box[1]

    @property
    def height(self) -> float:
        """Largest density that a panel should show: the peak, except spikes at the ends of the box.

        There a wide squashed Gaussian has little mass but a density of thousands.
        """
        margin = _SPIKE * (self.box[1] - self.box[0])
        inner = (self.points > self.box[0] + margin) & (self.points < self.box[1] - margin)
        within = self.density[inner]
        if np.trapezoid(within, self.points[inner]) < 0.5:
            return float(self.density.max())
        return float(min(self.density.max(), _HIGHEST * within.max()))

    def central(self, share: float) -> tuple[float, float]:
        """Return the ends of the central share of the mass, including atoms."""
        places = np.concatenate([self.points, [atom.place for atom in self.atoms]])
        steps = np.diff(self.points) * (self.density[1:] + self.density[:-1]) / 2.0
        masses = [[0.0] if self.points.size else [], steps, [atom.mass for atom in self.atoms]]
        order = np.argsort(places, kind="stable")
        below = np.cumsum(np.concatenate(masses)[order])
        tail = (1.0 - share) / 2.0
        ends = np.searchsorted(below, [tail, 1.0 - tail]).clip(max=places.size - 1)
        return float(places[order][ends[0]]), float(places[order][ends[1]])


def marginal(
    policy: Policy, observation: ArrayLike, dimension: int = 0, *, clipped: bool = True
) -> Marginal:
    """Return the distribution of one coordinate of the action, counted from 0, for one observation.

    With `clipped=False` the density continues beyond the box, as a proposal is learned.
    """
    observation = jnp.asarray(observation)
    if observation.ndim != 1:
        raise ValueError(f"observation must be one row of numbers, got shape {observation.shape}")
    size = policy.low.size
    if not 0 <= dimension < size:
        raise ValueError(f"the action has coordinates 0 to {size - 1}, not {dimension}")
    box = float(policy.low[dimension]), float(policy.high[dimension])
    low, high = (float(end[dimension]) for end in policy.support(observation))
    if low == high:
        return Marginal(np.zeros(0), np.zeros(0), (Atom(low, 1.0),), (low, high), box)
    seen = box if clipped else view(box, VIEW)
    points = _grid(max(low, seen[0]), min(high, seen[1]), float(policy.act(observation)[dimension]))
    log_density, below, above = (
        np.asarray(values)[..., dimension]
        for values in _ask(policy, observation, jnp.asarray(points))
    )
    masses = zip(box, (below, above), strict=True)
    atoms = [Atom(place, float(mass)) for place, mass in masses if mass > _ROUNDING]
    support = (max(low, box[0]), min(high, box[1])) if clipped else (low, high)
    return Marginal(points, np.exp(log_density), tuple(atoms) if clipped else (), support, box)


@eqx.filter_jit
def _ask(
    policy: Policy, observation: Array, points: Float[Array, " points"]
) -> tuple[Float[Array, "points action"], Float[Array, " action"], Float[Array, " action"]]:
    """Return the log densities of all coordinates, and their mass below and above the box."""
    laws = _coordinates(policy(observation))
    above = 1.0 - laws.cdf(policy.high)
    return jax.vmap(laws.log_prob)(points), laws.cdf(policy.low), above


def _coordinates(law: Distribution) -> Distribution:
    """Return the marginal distributions of all coordinates, batch shape (action,)."""
    if isinstance(law, MultivariateQGaussian):
        sparsity, size = 1.0 - jnp.asarray(law.entropic_index), law.event_shape[0]
        sparsity = sparsity / (1.0 + sparsity * (size - 1) / 2.0)
        scale = law.half_width * jnp.sqrt(sparsity / 2.0)
        return QGaussian(law.mean, scale, 1.0 - sparsity, validate_args=False)
    if isinstance(law, AuthorsProposal):
        # Its density is not normalised; its sampler draws a Gaussian at the authors' index 2.
        return Normal(law.loc, jnp.sqrt(law.squared_scale))
    if not isinstance(law, Independent):
        raise ValueError(f"the marginals of a {type(law).__name__} are not known")
    return law.base_dist


def _grid(low: float, high: float, centre: float) -> Float[np.ndarray, " points"]:
    """Return a fixed number of points between the ends, denser at the centre and the ends."""
    steps = (high - low) * np.geomspace(_NEAREST, 1.0, _CLUSTER)
    clusters = [place + side * steps for place in (low, centre, high) for side in (-1.0, 1.0)]
    points = np.clip([*np.linspace(low, high, _EVEN), centre, *np.ravel(clusters)], low, high)
    # Densities are computed in float32, so the points must be exact in float32.
    return np.sort(points.astype(np.float32)).astype(np.float64)


def draw_policies(
    axes: Axes, acting: Policy, proposal: Policy | None, observation: ArrayLike,
    dimension: int = 0, names: tuple[str, str] = ("thin actor", "fat proposal"),
) -> list[Marginal]:  # fmt: skip
    """Draw the acting policy and, dashed, its proposal in one state; return both marginals."""
    laws = [marginal(acting, observation, dimension)]
    draw_acting(axes, laws[0], names[0])
    if proposal is not None:
        fat = marginal(proposal, observation, dimension, clipped=False)
        axes.plot(
            fat.points, fat.density, color=ORANGE, linestyle=DASHED, linewidth=1.5, label=names[1]
        )
        laws.append(fat)
    fit_height(axes, laws)
    return laws


def draw_acting(axes: Axes, law: Marginal, label: str) -> None:
    """Draw the acting policy: density, atoms as stems, and shading where it is exactly zero."""
    left, right = view(law.box, VIEW)
    if law.sparse:
        for low, high, prefix in ((left, law.support[0], ""), (law.support[1], right, "_")):
            zero = f"{prefix}{label}: exactly zero"
            axes.axvspan(low, high, color=SHADE, linewidth=0, label=zero)
    if law.points.size:
        axes.fill_between(law.points, law.density, color=BLUE, alpha=0.25, linewidth=0)
        # Draw the outline down to zero at both ends.
        outline = np.pad(law.points, 1, mode="edge"), np.pad(law.density, 1)
        axes.plot(*outline, color=BLUE, linewidth=1.5, label=label)
    for index, atom in enumerate(law.atoms):
        _draw_atom(axes, atom, law.box, "_" * (index > 0))
    for edge, label in zip(law.box, ("end of the box", "_end of the box"), strict=True):
        axes.axvline(edge, color="black", linewidth=0.9, linestyle=DOTTED, label=label)
    axes.set_xlim(left, right)


def fit_height(axes: Axes, laws: Sequence[Marginal]) -> None:
    """Fit the height of a panel to its contents, and mark spikes that are cut."""
    drawn = [law for law in laws if law.points.size]
    if not drawn:
        axes.set(ylim=(0.0, 1.0), yticks=[])
        return
    top = 1.12 * max(law.height for law in drawn)
    axes.set_ylim(0.0, top)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    for law in drawn:
        for edge, side, align in zip(law.box, (1, -1), ("left", "right"), strict=True):
            near_edge = np.abs(law.points - edge) < _SPIKE * (law.box[1] - law.box[0])
            if np.max(law.density, where=near_edge, initial=0.0) > top:
                axes.annotate(
                    "↑ cut", (edge, 1.0), (4 * side, -2), xycoords=axes.get_xaxis_transform(),
                    textcoords="offset points", ha=align, va="top", fontsize=8,
                )  # fmt: skip


def _draw_atom(axes: Axes, atom: Atom, box: tuple[float, float], prefix: str) -> None:
    """Draw an atom as a stem with a height proportional to its mass."""
    transform = axes.get_xaxis_transform()
    axes.plot(
        [atom.place, atom.place], [0.0, _STEM * atom.mass], color="black", linewidth=2.4,
        marker="o", markevery=[1], markersize=4.5, transform=transform,
        label=f"{prefix}single action, with its probability",
    )  # fmt: skip
    if atom.mass < _LEAST_NAMED:
        return
    side = 1 if atom.place < (box[0] + box[1]) / 2.0 else -1
    axes.annotate(
        f"{100.0 * atom.mass:.0f} %", (atom.place, _STEM * atom.mass), (6 * side, 1),
        xycoords=transform, textcoords="offset points", ha="left" if side > 0 else "right",
        va="bottom", fontsize=8,
    )  # fmt: skip
