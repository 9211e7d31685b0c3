"""Families of policies: what a network's head means, given an action box.

Networks speak in half-ranges of the box (-1 is its low end, 1 its high end), so that a box of
+-100 learns as a box of +-1 does. What comes out is in the environment's units.

A sparse support meets the box in one of two ways:

* `inside`: the half-width is at most half the range, and the centre is moved so far that the
  whole band lies in the box. Nothing is ever clipped and the density is exact.
* `clip` (as published): the band lies where it lies, and actions are clipped to the box, which
  puts an atom on its edge.
"""

import dataclasses
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import Delta, Distribution, StudentT

from fat2thin.distributions import BoxBeta, QGaussian, SquashedGaussian
from fat2thin.policies.clipping import slide_inside

BOX_RULES = ("inside", "clip")


class Head(NamedTuple):
    """What a network says of a policy, in half-ranges of the box."""

    centre: Float[Array, "*rows action"]
    """In (-1, 1); before the squashing function for a squashed Gaussian."""
    log_scale: Float[Array, "*rows action"]
    """Logarithm of the scale, or of the half-width for a sparse policy."""


@runtime_checkable
class Family(Protocol):
    """Turns a head into a distribution over actions in a box from `low` to `high`."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """The distribution over actions, event shape (action,)."""
        ...

    def centre(self, head: Head, low: Array, high: Array) -> Float[Array, "*rows action"]:
        """The action at its centre."""
        ...

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """Lowest and highest action it can give, per coordinate."""
        ...


def _place(head: Head, low: Array, high: Array) -> tuple[Array, Array]:
    """Centre and scale of a head in the environment's units."""
    half_range = (high - low) / 2.0
    return (low + high) / 2.0 + half_range * head.centre, half_range * jnp.exp(head.log_scale)


@dataclasses.dataclass(frozen=True)
class HeavyTailed:
    """A q-Gaussian with index 1 or above in each coordinate, not bounded by the box."""

    entropic_index: float = 2.0

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of q-Gaussians."""
        centre, scale = _place(head, low, high)
        return QGaussian(centre, scale, self.entropic_index, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its median and mode."""
        return _place(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The real line."""
        return _real_line(head)


class _StudentT(StudentT):
    """NumPyro's Student-t, whose own code promotes ranks to put a sample shape in front."""

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        with jax.numpy_rank_promotion("allow"):
            return super().sample(key, sample_shape)

    def log_prob(self, value: Array) -> Array:
        with jax.numpy_rank_promotion("allow"):
            return super().log_prob(value)


@dataclasses.dataclass(frozen=True)
class HeavyStudent:
    """A Student-t in each coordinate, not bounded by the box."""

    degrees_of_freedom: float = 1.0

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of Student-t distributions."""
        centre, scale = _place(head, low, high)
        return _StudentT(self.degrees_of_freedom, centre, scale, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its median and mode."""
        return _place(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The real line."""
        return _real_line(head)


@dataclasses.dataclass(frozen=True)
class Squashed:
    """A Gaussian squashed into the box by tanh, coordinate by coordinate."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of squashed Gaussians."""
        scale = jnp.exp(head.log_scale)
        return SquashedGaussian(head.centre, scale, low, high, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its median."""
        return (low + high) / 2.0 + (high - low) / 2.0 * jnp.tanh(head.centre)

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The box."""
        return _whole_box(head, low, high)


@dataclasses.dataclass(frozen=True)
class Sparse:
    """A q-Gaussian with index below 1 in each coordinate; `log_scale` is the log half-width."""

    entropic_index: float = 0.0
    box: str = "inside"

    def band(self, head: Head) -> tuple[Array, Array]:
        """Centre and half-width in half-ranges, after the box has had its say."""
        half_width = jnp.exp(head.log_scale)
        if self.box == "clip":
            return head.centre, half_width
        half_width = jnp.minimum(half_width, 1.0)
        return slide_inside(head.centre, half_width), half_width

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of sparse q-Gaussians."""
        centre, half_width = self.band(head)
        centre, half_width = _place(Head(centre, jnp.log(half_width)), low, high)
        scale = half_width * ((1.0 - self.entropic_index) / 2.0) ** 0.5
        return QGaussian(centre, scale, self.entropic_index, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """The middle of the band."""
        centre, half_width = self.band(head)
        return _place(Head(centre, jnp.log(half_width)), low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The band, cut at the box."""
        centre, half_width = self.band(head)
        centre, half_width = _place(Head(centre, jnp.log(half_width)), low, high)
        return jnp.clip(centre - half_width, low, high), jnp.clip(centre + half_width, low, high)


@dataclasses.dataclass(frozen=True)
class Beta:
    """A Beta distribution on the box in each coordinate, with one maximum.

    The head's centre is the maximum, and its scale close to the standard deviation where that is
    small and the maximum in the middle: with m in (0, 1) the maximum's place in the box and
    k = scale^-2, the concentrations are 1 + m k and 1 + (1 - m) k. A large scale is uniform.
    """

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of Beta distributions."""
        place, strength = (1.0 + head.centre) / 2.0, jnp.exp(-2.0 * head.log_scale)
        above, below = 1.0 + place * strength, 1.0 + (1.0 - place) * strength
        return BoxBeta(above, below, low, high, validate_args=False).to_event(1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """Its mode."""
        return _place(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The box."""
        return _whole_box(head, low, high)


@dataclasses.dataclass(frozen=True)
class Deterministic:
    """One action a state, and nothing else."""

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """All probability on one action."""
        return Delta(self.centre(head, low, high), event_dim=1)

    def centre(self, head: Head, low: Array, high: Array) -> Array:
        """The action."""
        return _place(head, low, high)[0]

    def support(self, head: Head, low: Array, high: Array) -> tuple[Array, Array]:
        """The action, twice."""
        return self.centre(head, low, high), self.centre(head, low, high)


def _whole_box(head: Head, low: Array, high: Array) -> tuple[Array, Array]:
    return jnp.broadcast_to(low, head.centre.shape), jnp.broadcast_to(high, head.centre.shape)


def _real_line(head: Head) -> tuple[Array, Array]:
    return jnp.full_like(head.centre, -jnp.inf), jnp.full_like(head.centre, jnp.inf)
