"""Policies: distributions over actions, from a network, a family and an action box."""

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
    """A policy network with the centre squashed into the box and the scale within bounds."""

    network: PolicyNetwork
    scale_bounds: tuple[float, float] = eqx.field(static=True)
    """Smallest and largest scale, in half-ranges of the box."""
    squashed: bool = eqx.field(static=True)
    """Whether the family squashes the centre, so that this network must not."""
    state_dependent_scale: bool = eqx.field(static=True, default=True)
    """If False, the scale is one number per action coordinate, the same for all observations."""

    def __call__(self, observation: ObservationRows) -> Head:
        """Return the head for each row."""
        centre, log_scale = self.network(observation)
        if not self.state_dependent_scale:
            log_scale = jnp.broadcast_to(self.network.log_scale.bias, log_scale.shape)
        low, high = (jnp.asarray(np.log(bound), centre.dtype) for bound in self.scale_bounds)
        centre = centre if self.squashed else jnp.tanh(centre)
        return Head(centre, clip_inward(log_scale, low, high))

    def layers(self) -> dict[str, Any]:
        """Return the layers, and how their outputs are transformed, for the report page."""
        network, bounds = self.network, np.log(self.scale_bounds)
        fixed = None if self.state_dependent_scale else network.log_scale.bias
        heads = {"centre": network.centre, "log_scale": network.log_scale, "fixed": fixed}
        return {"trunk": network.trunk, **heads, "tanh": not self.squashed, "bounds": bounds}


class StandardisedNetwork(eqx.Module):
    """A network that takes raw observations and standardises them for the network it wraps."""

    network: Any
    mean: Float[Array, " observation"]
    scale: Float[Array, " observation"]

    def __call__(self, observation: ObservationRows) -> Head:
        """Return the head for each row."""
        mean, scale = (expand_to_rank(part, observation.ndim) for part in (self.mean, self.scale))
        return self.network((observation - mean) / scale)


class Policy(eqx.Module):
    """A policy: raw observations in, actions in the environment's units out.

    `policy(observation)` returns the distribution over actions as a NumPyro `Distribution`.
    Observations have shape (*rows, observation), with any number of leading axes. A nan or infinite
    observation raises a `ValueError` that names its column and row, except inside `jit`, `vmap` or
    `scan`, where values are not known.

    Example:
        >>> import jax
        >>> from fat2thin.policies.families import Sparse
        >>> from fat2thin.policies.networks import PolicyNetwork
        >>> from fat2thin.policies.policy import unit_policy
        >>> network = PolicyNetwork(jax.random.key(0), 2, action_size=1, hidden=(4,))
        >>> policy = unit_policy(network, Sparse(), (0.1, 0.1)).in_box((0.0,), (10.0,))
        >>> observation = jax.numpy.array([0.5, -0.5])
        >>> low, high = policy.support(observation)
        >>> print(f"a band of width {(high - low)[0]:.2f}")
        a band of width 1.00
        >>> action = policy.act(observation, jax.random.key(1))
        >>> bool(((low <= action) & (action <= high)).all())
        True
    """

    network: Any
    """A callable module that returns a `Head` for observations."""
    low: Float[Array, " action"]
    """Low end of the action box."""
    high: Float[Array, " action"]
    """High end of the action box."""
    family: Family = eqx.field(static=True)
    """The family that turns the head into a distribution."""

    def __call__(self, observation: ObservationRows) -> Distribution:
        """Return the distribution over actions, with event shape (action,)."""
        return self.family.distribution(*self._head_and_box(observation))

    def support(self, observation: ObservationRows) -> tuple[ActionRows, ActionRows]:
        """Return the lowest and the highest possible action, per coordinate."""
        return self.family.support(*self._head_and_box(observation))

    def act(self, observation: ObservationRows, key: Key[Array, ""] | None = None) -> ActionRows:
        """Return an action in the box: a sample if a key is given, else the centre."""
        head, *box = self._head_and_box(observation)
        if key is None:
            action = self.family.centre(head, *box)
        else:
            action = self.family.distribution(head, *box).sample(key)
        # The box comes last, because the support of some families is wider than the box.
        return jnp.clip(jnp.clip(action, *self.family.support(head, *box)), *box)

    def in_box(self, low: tuple[float, ...], high: tuple[float, ...]) -> "Policy":
        """Return the same policy for another action box, in that box's units."""
        return Policy(self.network, jnp.asarray(low), jnp.asarray(high), self.family)

    def on_raw(
        self, mean: Float[Array, " observation"], scale: Float[Array, " observation"]
    ) -> "Policy":
        """Return a policy on raw observations, if this one takes (observation - mean) / scale."""
        network = StandardisedNetwork(self.network, mean, scale)
        return Policy(network, self.low, self.high, self.family)

    def _head_and_box(self, observation: Array) -> tuple[Head, Array, Array]:
        """Return the head, and the box expanded to the rank of the observation."""
        observation = jnp.asarray(observation, self.low.dtype)
        if not isinstance(observation, Tracer):
            _refuse_not_finite(np.asarray(observation))
        rank, head = observation.ndim, self.network(observation)
        return head, expand_to_rank(self.low, rank), expand_to_rank(self.high, rank)


def _refuse_not_finite(observation: np.ndarray) -> None:
    """Raise a ValueError that names column and row of the first nan or infinite number."""
    wrong = ~np.isfinite(observation)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        *row, column = place
        of_row = f" of row {', '.join(map(str, row))}" if row else ""
        more = f" ({int(wrong.sum()):,} numbers are not finite)" if wrong.sum() > 1 else ""
        raise ValueError(
            f"observation {column}{of_row} is {observation[place]:g}{more}: observations must be "
            "finite. Fill in missing values, or skip this row"
        )


class Sampled(eqx.Module):
    """Acts by sampling a policy."""

    policy: Policy

    def __call__(self, key: Key[Array, ""], observation: Array) -> Array:
        """Return a sampled action."""
        return self.policy.act(observation, key)


class Centred(Sampled):
    """Acts at the centre of a policy."""

    def __call__(self, key: Key[Array, ""], observation: Array) -> Array:
        """Return the action at the centre; the key is not used."""
        return self.policy.act(observation)


WAYS: dict[str, type[Sampled]] = {"sampled": Sampled, "centre": Centred}
"""The ways in which a policy is evaluated, by name."""


def unit_policy(
    network: PolicyNetwork,
    family: Family,
    scale_bounds: tuple[float, float],
    state_dependent_scale: bool = True,
) -> Policy:
    """Return a policy in half-ranges of the box, as algorithms use it during training."""
    size = network.centre.bias.shape[-1]
    bounded = BoundedNetwork(network, scale_bounds, family.squashes_centre, state_dependent_scale)
    return Policy(bounded, -jnp.ones(size), jnp.ones(size), family)


def in_half_ranges(action: Array, low: Array, high: Array) -> Array:
    """Convert actions to half-ranges of the box: -1 is its low end, 1 its high end.

    The result is clipped, because rounding may put an action at an end of the box beyond it, where
    some families have no density. It carries no gradient.
    """
    low, high = (expand_to_rank(end, action.ndim) for end in (low, high))
    placed = (action - (low + high) / 2.0) / ((high - low) / 2.0)
    return lax.stop_gradient(jnp.clip(placed, -1.0, 1.0))
