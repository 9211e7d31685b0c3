"""Families of policies: what a network's head means, given an action box.

Networks speak in half-ranges of the box (-1 is its low end, 1 its high end), so that a box of
+-100 learns as a box of +-1 does. What comes out is in the environment's units.

A sparse support meets the box in one of two ways:

* `inside`: the half-width is at most half the range, and the centre is moved so far that the
  whole band lies in the box. Nothing is ever clipped and the density is exact.
* `clip` (as published): the band lies where it lies, and actions are clipped to the box, which
  puts an atom on its edge.

`register_family` adds one.
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

BOX_RULES = ("inside", "clip")


class Head(NamedTuple):
    """What a network says of a policy, in half-ranges of the box."""

    centre: Float[Array, "*rows action"]
    """In (-1, 1); before the squashing function for a squashed Gaussian."""
    log_scale: Float[Array, "*rows action"]
    """Logarithm of the scale, or of the half-width for a sparse policy."""


@jax.custom_vjp
def clip_inward(x: Float[Array, "..."], low: Array, high: Array) -> Float[Array, "..."]:
    """Clip to fixed bounds, but let a gradient through that pulls a value back inside.

    With a plain clip the gradient beyond a bound is zero, and what has once got there stays there.
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
    """The centre nearest to `centre` whose band of `half_width` lies within -1 and 1.

    A centre that was moved lets a gradient through that pulls it back inside; the half-width, which
    then decides where it stands, gets its own.
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


@dataclasses.dataclass(frozen=True)
class Family:
    """Turns a head into a distribution over actions in a box from `low` to `high`.

    A family is a frozen dataclass. Only `distribution` must be written.
    """

    reach: ClassVar[str] = "line"
    """Where it has a density: "line" (everywhere), "box", "band" (a part of it) or "point"."""
    squashes_centre: ClassVar[bool] = False
    """Whether it takes any centre, and squashes it into the box itself."""
    page_law: ClassVar[str | None] = None
    """The law of the page's scripts that draws this very class; None: a table of its density."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """The distribution over actions, event shape (action,)."""
        raise NotImplementedError

    def centre(self, head: Head, low: Array, high: Array) -> Float[Array, "*rows action"]:
        """The action at its centre."""
        return _place(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Lowest and highest action it can give, per coordinate."""
        ends = (low, high) if self.reach == "box" else (-jnp.inf, jnp.inf)
        low, high = (jnp.broadcast_to(end, head.centre.shape) for end in ends)
        return low.astype(head.centre.dtype), high.astype(head.centre.dtype)


def _place(head: Head, low: Array, high: Array) -> tuple[Array, Array]:
    """Centre and scale of a head in the environment's units."""
    half_range = (high - low) / 2.0
    return (low + high) / 2.0 + half_range * head.centre, half_range * jnp.exp(head.log_scale)


@dataclasses.dataclass(frozen=True)
class HeavyTailed(Family):
    """A q-Gaussian with index 1 or above in each coordinate, not bounded by the box."""

    page_law: ClassVar[str | None] = "heavy"
    entropic_index: float = 2.0

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of q-Gaussians."""
        centre, scale = _place(head, low, high)
        return QGaussian(centre, scale, self.entropic_index, validate_args=False).to_event(1)


class _StudentT(StudentT):
    """NumPyro's Student-t, whose own code promotes ranks to put a sample shape in front."""

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

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of Student-t distributions."""
        centre, scale = _place(head, low, high)
        return _StudentT(self.degrees_of_freedom, centre, scale, validate_args=False).to_event(1)


@dataclasses.dataclass(frozen=True)
class Squashed(Family):
    """A Gaussian squashed into the box by tanh, coordinate by coordinate."""

    reach: ClassVar[str] = "box"
    squashes_centre: ClassVar[bool] = True
    page_law: ClassVar[str | None] = "squashed"

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of squashed Gaussians."""
        scale = jnp.exp(head.log_scale)
        return SquashedGaussian(head.centre, scale, low, high, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its median."""
        return (low + high) / 2.0 + (high - low) / 2.0 * jnp.tanh(head.centre)


@dataclasses.dataclass(frozen=True)
class Sparse(Family):
    """A q-Gaussian with index below 1 in each coordinate; `log_scale` is the log half-width."""

    reach: ClassVar[str] = "band"
    page_law: ClassVar[str | None] = "sparse"
    entropic_index: float = 0.0
    box: str = "inside"

    def band(self, head: Head) -> tuple[Array, Array]:
        """Centre and half-width in half-ranges, after fitting to the action box."""
        half_width = jnp.exp(head.log_scale)
        if self.box == "clip":
            return head.centre, half_width
        half_width = jnp.minimum(half_width, 1.0)
        return slide_inside(head.centre, half_width), half_width

    def _placed_band(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        centre, half_width = self.band(head)
        return _place(Head(centre, jnp.log(half_width)), low, high)

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of sparse q-Gaussians."""
        centre, half_width = self._placed_band(head, low, high)
        scale = half_width * ((1.0 - self.entropic_index) / 2.0) ** 0.5
        return QGaussian(centre, scale, self.entropic_index, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """The middle of the band."""
        return self._placed_band(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The band, cut at the box."""
        centre, half_width = self._placed_band(head, low, high)
        return jnp.clip(centre - half_width, low, high), jnp.clip(centre + half_width, low, high)


@dataclasses.dataclass(frozen=True)
class Beta(Family):
    """A Beta distribution on the box in each coordinate, with one maximum.

    The head's centre is the maximum, and its scale close to the standard deviation where that is
    small and the maximum in the middle: with m in (0, 1) the maximum's place in the box and
    k = scale^-2, the concentrations are 1 + m k and 1 + (1 - m) k. A large scale is uniform.
    """

    reach: ClassVar[str] = "box"
    page_law: ClassVar[str | None] = "beta"

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of Beta distributions."""
        place, strength = (1.0 + head.centre) / 2.0, jnp.exp(-2.0 * head.log_scale)
        above, below = 1.0 + place * strength, 1.0 + (1.0 - place) * strength
        return BoxBeta(above, below, low, high, validate_args=False).to_event(1)


@dataclasses.dataclass(frozen=True)
class Deterministic(Family):
    """One action a state, and nothing else."""

    reach: ClassVar[str] = "point"
    page_law: ClassVar[str | None] = "deterministic"

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """All probability on one action."""
        return Delta(self.centre(head, low, high), event_dim=1)

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The action, twice."""
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


class KnownFamily(NamedTuple):
    """A family in the registry."""

    make: Callable[..., Family]
    settings: frozenset[str]  # those of `SETTINGS` that it has
    reach: str


SETTINGS = ("entropic_index", "degrees_of_freedom", "box")
_REGISTRY: dict[str, KnownFamily] = {}


def register_family(name: str, make: Callable[..., Family]) -> None:
    """Add a family under its name, which can be taken once.

    `make` is its class, or a function; its parameters are among `SETTINGS`, with defaults.
    """
    settings = frozenset(inspect.signature(make).parameters)
    if not settings <= {*SETTINGS}:
        raise ValueError(f"a family's settings are among {', '.join(SETTINGS)}, not {[*settings]}")
    if name in _REGISTRY:
        raise ValueError(f"a family called {name!r} is already registered")
    _REGISTRY[name] = KnownFamily(make, settings, make().reach)


def families(load_plugins: bool = True) -> tuple[str, ...]:
    """The names of all families."""
    if load_plugins:
        plugins.load()
    return tuple(_REGISTRY)


def covering_families(load_plugins: bool = True) -> tuple[str, ...]:
    """Names of the families with a density wherever an action can be."""
    known = families(load_plugins)
    return tuple(name for name in known if _REGISTRY[name].reach in ("line", "box"))


def known_family(name: str) -> KnownFamily:
    """The family of this name, or an error that lists the right ones."""
    return plugins.find(_REGISTRY, name, "family")


def make_family(name: str, **settings: float | str | None) -> Family:
    """The family of this name; settings that it does not have, or that are None, are ignored."""
    make, own, _ = known_family(name)
    return make(**{key: settings[key] for key in own if settings.get(key) is not None})


register_family("squashed_gaussian", Squashed)
register_family("clipped_gaussian", lambda: HeavyTailed(1.0))
register_family("q_gaussian", HeavyTailed)
register_family("student_t", HeavyStudent)
register_family("beta", Beta)
register_family("sparse_q_gaussian", Sparse)
register_family("deterministic", Deterministic)
