"""Policy families: distributions over actions, made from a network's outputs and an action box.

Networks work in half-ranges of the box (-1 is its low end, 1 its high end), so that learning does
not depend on the size of the box. Distributions are in the environment's units.

Two rules fit the support of a sparse policy to the box:

* `inside`: the half-width is at most half the range, and the centre is shifted until the whole
  band lies in the box. Nothing is clipped and the density is exact.
* `clip` (as published): the band may leave the box, and actions are clipped to the box, which puts
  an atom on its edge.

Limits narrow the box of a state to an interval (`Family.limited`). A band slides into it, then
shrinks; every other law is truncated to it and renormalised; an interval of width zero is a point.

`register_family` adds a family.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import Delta, Distribution, StudentT

from fat2thin import plugins
from fat2thin.columns import Transforms, inverse_transform, transform
from fat2thin.distributions import BoxBeta, QGaussian, SquashedGaussian
from fat2thin.distributions.transformed import TransformedColumns
from fat2thin.distributions.truncated import (
    BetaKernel,
    Bounded,
    DensityKernel,
    Kernel,
    SquashedKernel,
    TailKernel,
    Truncated,
)

BOX_RULES = ("inside", "clip")


class Head(NamedTuple):
    """The outputs of a policy network, in half-ranges of the box."""

    centre: Float[Array, "*rows action"]
    """Centre in (-1, 1); for a squashed Gaussian, the value before squashing."""
    log_scale: Float[Array, "*rows action"]
    """Logarithm of the scale, or of the half-width for a sparse policy."""


@jax.custom_vjp
def clip_inward(x: Float[Array, "..."], low: Array, high: Array) -> Float[Array, "..."]:
    """Clip to fixed bounds, but pass gradients that pull a value back inside.

    With a plain clip the gradient beyond a bound is zero, so a value that crosses it never returns.
    """
    return jnp.clip(x, low, high)


def _clip_forward(x: Array, low: Array, high: Array) -> tuple[Array, tuple[Array, Array]]:
    return clip_inward(x, low, high), (x > high, x < low)


def _clip_backward(residual: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    above, below = residual
    blocked = (above & (gradient < 0.0)) | (below & (gradient > 0.0))
    return jnp.where(blocked, 0.0, gradient), None, None


clip_inward.defvjp(_clip_forward, _clip_backward)


@jax.custom_vjp
def slide_inside(centre: Float[Array, "..."], half_width: Array) -> Float[Array, "..."]:
    """Return the value nearest to `centre` whose band of `half_width` lies within -1 and 1.

    Where the centre is moved, it gets only gradients that pull it back inside, and the half-width,
    which then determines the result, gets a gradient too.
    """
    return jnp.clip(centre, half_width - 1.0, 1.0 - half_width)


def _slide_forward(centre: Array, half_width: Array) -> tuple[Array, tuple[Array, Array]]:
    sides = (centre > 1.0 - half_width, centre < half_width - 1.0)
    return slide_inside(centre, half_width), sides


def _slide_backward(sides: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    above, below = sides
    of_width = jnp.where(above, -gradient, jnp.where(below, gradient, 0.0))
    return _clip_backward(sides, gradient)[0], of_width


slide_inside.defvjp(_slide_forward, _slide_backward)


@jax.custom_vjp
def slide_between(
    centre: Float[Array, "..."], half_width: Array, low: Array, high: Array
) -> Float[Array, "..."]:
    """Return `slide_inside` for fixed ends `low` and `high`, with the same gradients."""
    return jnp.clip(centre, low + half_width, high - half_width)


def _between_forward(
    centre: Array, half_width: Array, low: Array, high: Array
) -> tuple[Array, tuple[Array, Array]]:
    sides = (centre > high - half_width, centre < low + half_width)
    return slide_between(centre, half_width, low, high), sides


def _between_backward(
    sides: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array, None, None]:
    return (*_slide_backward(sides, gradient), None, None)


slide_between.defvjp(_between_forward, _between_backward)


class Placed(NamedTuple):
    """A law in the allowed interval of each state."""

    law: Distribution
    """The distribution over actions, with event shape (action,)."""
    centre: Float[Array, "*rows action"]
    low: Float[Array, "*rows action"]
    """Lowest possible action."""
    high: Float[Array, "*rows action"]
    """Highest possible action."""


@dataclasses.dataclass(frozen=True)
class Family:
    """A rule that turns a head into a distribution over actions in a box from `low` to `high`.

    Subclasses are frozen dataclasses and must define `distribution`. Results have the shape
    (*rows, action) and are in the environment's units.
    """

    reach: ClassVar[str] = "line"
    """Where the density is positive: "line" (everywhere), "box", "band" (part of it) or "point"."""
    squashes_centre: ClassVar[bool] = False
    """Whether the family accepts any centre and squashes it into the box itself."""
    page_law: ClassVar[str | None] = None
    """Name of the report page's script function for this density; None uses a table instead."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return the distribution over actions, with event shape (action,)."""
        raise NotImplementedError

    def centre(self, head: Head, low: Array, high: Array) -> Float[Array, "*rows action"]:
        """Return the action at the centre of the distribution."""
        return _place(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the lowest and the highest possible action, per coordinate."""
        ends = (low, high) if self.reach == "box" else (-jnp.inf, jnp.inf)
        low, high = (jnp.broadcast_to(end, head.centre.shape) for end in ends)
        return low.astype(head.centre.dtype), high.astype(head.centre.dtype)

    def limited(self, head: Head, low: Array, high: Array, bottom: Array, top: Array) -> Placed:
        """Return the law in the intervals from `bottom` to `top`, which lie in the box.

        Where the ends are nan, no action has a density, and samples are nan.
        """
        self.check_limits()
        bottom, top = (jnp.broadcast_to(end, head.centre.shape) for end in (bottom, top))
        centre = clip_inward(self.centre(head, low, high), bottom, top)
        if self.reach == "point":
            return Placed(Delta(centre, event_dim=1), centre, centre, centre)
        law = Truncated(self.kernel(head, low, high), bottom, top).to_event(1)
        return Placed(law, centre, bottom, jnp.maximum(bottom, top))

    def kernel(self, head: Head, low: Array, high: Array) -> Kernel:
        """Return the density of each coordinate, up to a constant, for `limited`."""
        law = self.distribution(head, low, high)
        return DensityKernel(law.base_dist, self.centre(head, low, high))

    def check_limits(self) -> None:
        """Raise a ValueError that says why, if limits cannot be put around this family."""
        if self.reach not in ("line", "box", "point"):
            raise ValueError(
                f"the family {type(self).__name__} has a band and cannot be limited: define its "
                "`limited` and `check_limits`"
            )


def _place(head: Head, low: Array, high: Array) -> tuple[Array, Array]:
    """Return centre and scale of a head in the environment's units."""
    half_range = (high - low) / 2.0
    return (low + high) / 2.0 + half_range * head.centre, half_range * jnp.exp(head.log_scale)


@dataclasses.dataclass(frozen=True)
class HeavyTailed(Family):
    """A q-Gaussian with index 1 or above in each coordinate, not bounded by the box."""

    page_law: ClassVar[str | None] = "heavy"
    entropic_index: float = 2.0
    """Index q, from 1 (Gaussian) to below 3; 2 is the Cauchy distribution."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return a product of q-Gaussians."""
        centre, scale = _place(head, low, high)
        return QGaussian(centre, scale, self.entropic_index, validate_args=False).to_event(1)

    def kernel(self, head: Head, low: Array, high: Array) -> Kernel:
        """Return the kernel of a q-Gaussian."""
        return TailKernel(*_place(head, low, high), self.entropic_index)


class _StudentT(StudentT):
    """NumPyro's Student-t with rank promotion allowed, which its own code needs."""

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        with jax.numpy_rank_promotion("allow"):
            return super().sample(key, sample_shape)

    def log_prob(self, value: Array) -> Array:
        with jax.numpy_rank_promotion("allow"):
            return super().log_prob(value)


@dataclasses.dataclass(frozen=True)
class HeavyStudent(Family):
    """A Student-t in each coordinate, not bounded by the box."""

    page_law: ClassVar[str | None] = "student"
    degrees_of_freedom: float = 1.0
    """Degrees of freedom; 1 is the Cauchy distribution."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return a product of Student-t distributions."""
        centre, scale = _place(head, low, high)
        return _StudentT(self.degrees_of_freedom, centre, scale, validate_args=False).to_event(1)

    def kernel(self, head: Head, low: Array, high: Array) -> Kernel:
        """Return the q-Gaussian that is this Student-t: q = (n + 3) / (n + 1)."""
        centre, scale = _place(head, low, high)
        freedom = self.degrees_of_freedom
        factor = (freedom / (freedom + 1.0)) ** 0.5
        return TailKernel(centre, scale * factor, (freedom + 3.0) / (freedom + 1.0))


@dataclasses.dataclass(frozen=True)
class Squashed(Family):
    """A Gaussian squashed into the box by tanh, per coordinate."""

    reach: ClassVar[str] = "box"
    squashes_centre: ClassVar[bool] = True
    page_law: ClassVar[str | None] = "squashed"

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return a product of squashed Gaussians."""
        scale = jnp.exp(head.log_scale)
        return SquashedGaussian(head.centre, scale, low, high, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Return the median."""
        return (low + high) / 2.0 + (high - low) / 2.0 * jnp.tanh(head.centre)

    def kernel(self, head: Head, low: Array, high: Array) -> Kernel:
        """Return the Gaussian before squashing."""
        return SquashedKernel(head.centre, jnp.exp(head.log_scale), 1.0, low, high)


@dataclasses.dataclass(frozen=True)
class Sparse(Family):
    """A q-Gaussian with index below 1 in each coordinate; `log_scale` is the log half-width."""

    reach: ClassVar[str] = "band"
    page_law: ClassVar[str | None] = "sparse"
    entropic_index: float = 0.0
    """Index q, below 1; the density is flatter for lower values."""
    box: str = "inside"
    """How the band is fitted to the action box: "inside" or "clip"."""

    def band(self, head: Head) -> tuple[Array, Array]:
        """Return centre and half-width in half-ranges, after fitting to the action box."""
        half_width = jnp.exp(head.log_scale)
        if self.box == "clip":
            return head.centre, half_width
        half_width = jnp.minimum(half_width, 1.0)
        return slide_inside(head.centre, half_width), half_width

    def _placed_band(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        centre, half_width = self.band(head)
        return _place(Head(centre, jnp.log(half_width)), low, high)

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return a product of sparse q-Gaussians."""
        centre, half_width = self._placed_band(head, low, high)
        scale = half_width * ((1.0 - self.entropic_index) / 2.0) ** 0.5
        return QGaussian(centre, scale, self.entropic_index, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Return the middle of the band."""
        return self._placed_band(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the ends of the band, clipped to the box."""
        centre, half_width = self._placed_band(head, low, high)
        return jnp.clip(centre - half_width, low, high), jnp.clip(centre + half_width, low, high)

    def limited(self, head: Head, low: Array, high: Array, bottom: Array, top: Array) -> Placed:
        """Return the band, moved into the intervals and, where they are too short, shortened."""
        self.check_limits()
        bottom, top = (jnp.broadcast_to(end, head.centre.shape) for end in (bottom, top))
        centre, half_width = self._placed_band(head, low, high)
        half_width = jnp.minimum(half_width, (top - bottom) / 2.0)
        centre = slide_between(centre, half_width, bottom, top)
        centre = clip_inward(centre, bottom, jnp.maximum(bottom, top))
        ends = (jnp.clip(centre + side * half_width, bottom, top) for side in (-1.0, 1.0))
        least, most = map(jax.lax.stop_gradient, ends)
        # A point has no density: the law beneath it gets any width, and is not used.
        width = jnp.where(most > least, half_width, 1.0)
        scale = width * ((1.0 - self.entropic_index) / 2.0) ** 0.5
        band = QGaussian(centre, scale, self.entropic_index, validate_args=False)
        return Placed(Bounded(band, least, most).to_event(1), centre, least, most)

    def check_limits(self) -> None:
        """Raise a ValueError if the band may leave the box."""
        if self.box == "clip":
            raise ValueError(
                "box='clip' lets the band leave the box, so limits cannot hold; use box='inside'"
            )


@dataclasses.dataclass(frozen=True)
class Beta(Family):
    """A Beta distribution on the box in each coordinate, with one mode.

    The mode is the head's centre. With m in (0, 1) the position of the mode in the box and
    k = scale^-2, the concentrations are 1 + m k and 1 + (1 - m) k. The scale is close to the
    standard deviation if it is small and the mode is in the middle; a large scale gives a uniform
    distribution.
    """

    reach: ClassVar[str] = "box"
    page_law: ClassVar[str | None] = "beta"

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return a product of Beta distributions."""
        place, strength = (1.0 + head.centre) / 2.0, jnp.exp(-2.0 * head.log_scale)
        above, below = 1.0 + place * strength, 1.0 + (1.0 - place) * strength
        return BoxBeta(above, below, low, high, validate_args=False).to_event(1)

    def kernel(self, head: Head, low: Array, high: Array) -> Kernel:
        """Return the Beta's kernel."""
        law = self.distribution(head, low, high).base_dist
        return BetaKernel(law.concentration1, law.concentration0, low, high)


@dataclasses.dataclass(frozen=True)
class Deterministic(Family):
    """Exactly one action per state."""

    reach: ClassVar[str] = "point"
    page_law: ClassVar[str | None] = "deterministic"

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """Return a point mass on the action."""
        return Delta(self.centre(head, low, high), event_dim=1)

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the action as both ends."""
        return self.centre(head, low, high), self.centre(head, low, high)


@dataclasses.dataclass(frozen=True)
class Transformed(Family):
    """A family on transformed actions: the box is transformed, and what comes out is raw again.

    The centre is the raw action at the centre of the transformed law (for a band its median).
    """

    family: Family
    transforms: Transforms

    def __post_init__(self) -> None:
        object.__setattr__(self, "reach", self.family.reach)

    def _ends(self, head: Head, low: Array, high: Array) -> tuple[Array, Array, Array, Array]:
        """The transformed box, and the ends of the law in it."""
        box = [transform(end, self.transforms, jnp) for end in (low, high)]
        return (*box, *self.family.support(head, *box))

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """The law of raw actions; its density includes the slope of the transforms."""
        if self.reach == "point":
            return Delta(self.centre(head, low, high), event_dim=1)
        *box, bottom, top = self._ends(head, low, high)
        base, raw = self.family.distribution(head, *box), self.support(head, low, high)
        return TransformedColumns(base, self.transforms, (bottom, top), raw)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """The raw action at the centre."""
        box = [transform(end, self.transforms, jnp) for end in (low, high)]
        return inverse_transform(self.family.centre(head, *box), self.transforms, jnp)

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Lowest and highest raw action; an end at the box's is the box's own, unrounded."""
        bottom, top, least, most = self._ends(head, low, high)
        ends = [inverse_transform(end, self.transforms, jnp) for end in (least, most)]
        if self.reach != "line":
            ends = [jnp.clip(end, low, high) for end in ends]
        return jnp.where(least == bottom, low, ends[0]), jnp.where(most == top, high, ends[1])

    def limited(self, head: Head, low: Array, high: Array, bottom: Array, top: Array) -> Placed:
        """Return the limited law of transformed actions, in raw units."""
        bottom, top = (jnp.broadcast_to(end, head.centre.shape) for end in (bottom, top))
        ends = [transform(end, self.transforms, jnp) for end in (low, high, bottom, top)]
        law, centre, least, most = self.family.limited(head, *ends)
        raw = [inverse_transform(part, self.transforms, jnp) for part in (centre, least, most)]
        # An end of the interval is kept unrounded, and rounding carries nothing over it.
        below = jnp.where(least == ends[2], bottom, jnp.clip(raw[1], bottom, top))
        above = jnp.where(most == ends[3], top, jnp.clip(raw[2], bottom, top))
        centre = clip_inward(raw[0], below, jnp.maximum(below, above))
        if self.reach == "point":
            return Placed(Delta(centre, event_dim=1), centre, centre, centre)
        made = TransformedColumns(law, self.transforms, (least, most), (below, above))
        return Placed(made, centre, below, above)

    def check_limits(self) -> None:
        """Raise a ValueError if the transformed law cannot be limited."""
        self.family.check_limits()


class KnownFamily(NamedTuple):
    """An entry of the registry of families."""

    make: Callable[..., Family]
    """The class, or a function that returns an instance."""
    settings: frozenset[str]
    """Which of `SETTINGS` `make` accepts."""
    reach: str
    """As `Family.reach`."""


SETTINGS = ("entropic_index", "degrees_of_freedom", "box")
_REGISTRY: dict[str, KnownFamily] = {}


def register_family(name: str, make: Callable[..., Family]) -> None:
    """Add a family under a new name, which algorithms then accept as a policy.

    `make` is a subclass of `Family`, or a function that returns an instance. Its parameters have
    defaults and are named `entropic_index`, `degrees_of_freedom` or `box`: they become settings.

    Examples:
        >>> import functools
        >>> from fat2thin.policies.families import Sparse, families, register_family
        >>> register_family("loose_band", functools.partial(Sparse, box="clip"))
        >>> "loose_band" in families()
        True
        >>> _ = _REGISTRY.pop("loose_band")  # only to undo this example
    """
    settings = frozenset(inspect.signature(make).parameters)
    if not settings <= {*SETTINGS}:
        raise ValueError(
            f"the parameters of family {name!r} must be among {', '.join(SETTINGS)}, "
            f"got {', '.join(sorted(settings))}"
        )
    if name in _REGISTRY:
        raise ValueError(f"a family called {name!r} is already registered")
    _REGISTRY[name] = KnownFamily(make, settings, make().reach)


def families(load_plugins: bool = True) -> tuple[str, ...]:
    """Return the names of all families."""
    if load_plugins:
        plugins.load()
    return tuple(_REGISTRY)


def covering_families(load_plugins: bool = True) -> tuple[str, ...]:
    """Return the names of the families whose density is positive everywhere in the box."""
    known = families(load_plugins)
    return tuple(name for name in known if _REGISTRY[name].reach in ("line", "box"))


def known_family(name: str) -> KnownFamily:
    """Return the family of this name; raise a ValueError that lists the known names."""
    return plugins.find(_REGISTRY, name, "family")


def make_family(name: str, **settings: float | str | None) -> Family:
    """Return an instance of the named family; settings it lacks, or that are None, are ignored."""
    make, own, _ = known_family(name)
    return make(**{key: settings[key] for key in own if settings.get(key) is not None})


register_family("squashed_gaussian", Squashed)
register_family("clipped_gaussian", lambda: HeavyTailed(1.0))
register_family("q_gaussian", HeavyTailed)
register_family("student_t", HeavyStudent)
register_family("beta", Beta)
register_family("sparse_q_gaussian", Sparse)
register_family("deterministic", Deterministic)
