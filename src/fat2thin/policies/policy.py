"""Policies: a network, a family and an action box make a distribution over actions."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution

from fat2thin.distributions.base import expand_to_rank
from fat2thin.policies.families import Family, Head, clip_inward
from fat2thin.policies.networks import ActionRows, ObservationRows, PolicyNetwork


class BoundedNetwork(eqx.Module):
    """Observation to a head: the centre in the box, the scale within bounds.

    With `state_dependent_scale=False` the scale is one number a coordinate, the same everywhere.
    """

    network: PolicyNetwork
    scale_bounds: tuple[float, float] = eqx.field(static=True)
    squashed: bool = eqx.field(static=True)
    """Whether the family itself squashes the centre into the box."""
    state_dependent_scale: bool = eqx.field(static=True, default=True)

    def __call__(self, observation: ObservationRows) -> Head:
        """The head."""
        centre, log_scale = self.network(observation)
        if not self.state_dependent_scale:
            log_scale = jnp.broadcast_to(self.network.log_scale.bias, log_scale.shape)
        low, high = (jnp.asarray(np.log(bound), centre.dtype) for bound in self.scale_bounds)
        centre = centre if self.squashed else jnp.tanh(centre)
        return Head(centre, clip_inward(log_scale, low, high))

    def layers(self) -> dict[str, Any]:
        """What the page computes a policy from: modules, and what is done to the heads' outputs."""
        network, bounds = self.network, np.log(self.scale_bounds)
        fixed = None if self.state_dependent_scale else network.log_scale.bias
        heads = {"centre": network.centre, "log_scale": network.log_scale, "fixed": fixed}
        return {"trunk": network.trunk, **heads, "tanh": not self.squashed, "bounds": bounds}


class StandardisedNetwork(eqx.Module):
    """A network that learned from standardised observations, for raw ones."""

    network: Any
    mean: Float[Array, " observation"]
    scale: Float[Array, " observation"]

    def __call__(self, observation: ObservationRows) -> Head:
        """The head."""
        mean, scale = (expand_to_rank(part, observation.ndim) for part in (self.mean, self.scale))
        return self.network((observation - mean) / scale)


class Policy(eqx.Module):
    """A policy on raw observations, in the environment's units.

    `network(observation)` gives a `Head`; observations may carry any leading axes. One that is nan
    or infinite is refused with the number of its column, and of its row in a batch. Code that is
    being compiled (`jit`, `vmap`, `scan`) has no numbers to look at yet, and is not checked.
    """

    network: Any
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    family: Family = eqx.field(static=True)

    def __call__(self, observation: ObservationRows) -> Distribution:
        """The distribution over actions."""
        return self.family.distribution(*self._head_and_box(observation))

    def support(self, observation: ObservationRows) -> tuple[ActionRows, ActionRows]:
        """Lowest and highest action that can be given, per coordinate."""
        return self.family.support(*self._head_and_box(observation))

    def act(self, observation: ObservationRows, key: Key[Array, ""] | None = None) -> ActionRows:
        """An action in the box: a sample with a key, the centre without."""
        head, *box = self._head_and_box(observation)
        if key is None:
            action = self.family.centre(head, *box)
        else:
            action = self.family.distribution(head, *box).sample(key)
        # The support lies in the box; for one that does not, the box has the last word.
        return jnp.clip(jnp.clip(action, *self.family.support(head, *box)), *box)

    def in_box(self, low: tuple[float, ...], high: tuple[float, ...]) -> "Policy":
        """The same policy in the units of another box."""
        return Policy(self.network, jnp.asarray(low), jnp.asarray(high), self.family)

    def on_raw(
        self, mean: Float[Array, " observation"], scale: Float[Array, " observation"]
    ) -> "Policy":
        """The policy on raw observations, where this one's are (observation − mean) / scale."""
        network = StandardisedNetwork(self.network, mean, scale)
        return Policy(network, self.low, self.high, self.family)

    def _head_and_box(self, observation: Array) -> tuple[Head, Array, Array]:
        """The head, and the box at its rank."""
        observation = jnp.asarray(observation, self.low.dtype)
        if not isinstance(observation, Tracer):
            _refuse_not_finite(np.asarray(observation))
        rank, head = observation.ndim, self.network(observation)
        return head, expand_to_rank(self.low, rank), expand_to_rank(self.high, rank)


def _refuse_not_finite(observation: np.ndarray) -> None:
    """Raise where a number is nan or infinite, naming its column and its row."""
    wrong = ~np.isfinite(observation)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        *row, column = place
        of_row = f" of row {', '.join(map(str, row))}" if row else ""
        more = f" ({int(wrong.sum()):,} numbers are not finite)" if wrong.sum() > 1 else ""
        raise ValueError(
            f"observation {column}{of_row} is {observation[place]:g}{more}: a policy needs finite "
            "numbers. Fill in what is missing, or do not ask it for an action here"
        )


class Sampled(eqx.Module):
    """Act by sampling a policy."""

    policy: Policy

    def __call__(self, key: Key[Array, ""], observation: Array) -> Array:
        """The action."""
        return self.policy.act(observation, key)


class Centred(Sampled):
    """Act at the centre of a policy."""

    def __call__(self, key: Key[Array, ""], observation: Array) -> Array:
        """The action."""
        return self.policy.act(observation)


WAYS: dict[str, type[Sampled]] = {"sampled": Sampled, "centre": Centred}


def unit_policy(
    network: PolicyNetwork,
    family: Family,
    scale_bounds: tuple[float, float],
    state_dependent_scale: bool = True,
) -> Policy:
    """A policy in half-ranges of the box: what algorithms learn with."""
    size = network.centre.bias.shape[-1]
    bounded = BoundedNetwork(network, scale_bounds, family.squashes_centre, state_dependent_scale)
    return Policy(bounded, -jnp.ones(size), jnp.ones(size), family)


def in_half_ranges(action: Array, low: Array, high: Array) -> Array:
    """Actions of the box in its half-ranges: -1 at its low end, 1 at its high end.

    An action at an end is not carried beyond it by rounding, where some families have no density.
    """
    low, high = (expand_to_rank(end, action.ndim) for end in (low, high))
    placed = (action - (low + high) / 2.0) / ((high - low) / 2.0)
    return lax.stop_gradient(jnp.clip(placed, -1.0, 1.0))
