"""Policies: network heads, a family and an action box make a distribution over actions.

Networks speak in half-ranges of the box (-1 is its low end, 1 its high end), so that a box of
+-100 learns as a box of +-1 does. What comes out is in the environment's units.

A sparse support meets the box in one of two ways:

* `inside`: the half-width is at most half the range, and the centre is moved so far that the
  whole band lies in the box. Nothing is ever clipped and the density is exact.
* `clip` (as published): the band lies where it lies, and actions are clipped to the box, which
  puts an atom on its edge.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution, StudentT

from fat2thin.distributions import QGaussian, SquashedGaussian

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


@jax.custom_vjp
def clip_inward(x: Float[Array, "..."], low: Array, high: Array) -> Float[Array, "..."]:
    """Clip, but let a gradient through that pulls a value beyond a bound back inside.

    With a plain clip a head that has once overstepped a bound would stay there for ever.
    """
    return jnp.clip(x, low, high)


def _clip_forward(x: Array, low: Array, high: Array) -> tuple[Array, tuple[Array, Array]]:
    return clip_inward(x, low, high), (x > high, x < low)


def _clip_backward(residual: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    above, below = residual
    blocked = (above & (gradient < 0.0)) | (below & (gradient > 0.0))
    return jnp.where(blocked, 0.0, gradient), None, None


clip_inward.defvjp(_clip_forward, _clip_backward)


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


@dataclasses.dataclass(frozen=True)
class HeavyStudent:
    """A Student-t in each coordinate, not bounded by the box."""

    degrees_of_freedom: float = 1.0

    def distribution(self, head: Head, low: Array, high: Array) -> Distribution:
        """A product of Student-t distributions."""
        centre, scale = _place(head, low, high)
        return StudentT(self.degrees_of_freedom, centre, scale, validate_args=False).to_event(1)

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
        shape = head.centre.shape
        return jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)


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
        return jnp.clip(head.centre, half_width - 1.0, 1.0 - half_width), half_width

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


def _real_line(head: Head) -> tuple[Array, Array]:
    return jnp.full_like(head.centre, -jnp.inf), jnp.full_like(head.centre, jnp.inf)


class Policy(eqx.Module):
    """A policy on raw observations, in the environment's units.

    `network(observation)` gives a `Head`; observations may carry any leading axes.
    """

    network: Callable[[Array], Head]
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    family: Family = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*rows observation"]) -> Distribution:
        """The distribution over actions."""
        return self.family.distribution(self._head(observation), self.low, self.high)

    def support(
        self, observation: Float[Array, "*rows observation"]
    ) -> tuple[Float[Array, "*rows action"], Float[Array, "*rows action"]]:
        """Lowest and highest action that can be given, per coordinate."""
        return self.family.support(self._head(observation), self.low, self.high)

    def act(
        self, observation: Float[Array, "*rows observation"], key: Key[Array, ""] | None = None
    ) -> Float[Array, "*rows action"]:
        """An action in the box: a sample with a key, the centre without."""
        head = self._head(observation)
        if key is None:
            action = self.family.centre(head, self.low, self.high)
        else:
            action = self.family.distribution(head, self.low, self.high).sample(key)
        # The support lies in the box; for one that does not, the box has the last word.
        low, high = self.family.support(head, self.low, self.high)
        return jnp.clip(jnp.clip(action, low, high), self.low, self.high)

    def _head(self, observation: Array) -> Head:
        return self.network(jnp.asarray(observation, self.low.dtype))


def in_half_ranges(action: Array, low: Array, high: Array) -> Array:
    """Actions in half-ranges of the box: -1 at its low end, 1 at its high end."""
    return lax.stop_gradient((action - (low + high) / 2.0) / ((high - low) / 2.0))
