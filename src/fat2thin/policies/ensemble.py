"""One policy from several seeds that learned from the same log, with equal weights.

Two rules combine the heads of the members, in half-ranges of the action box:

* `median`: the median of the centres and of the logarithms of the scales, per coordinate.
* `consensus`: for sparse policies, the band in which all members' bands overlap. Where they do not
  overlap in some coordinate there is no common action: `decide` refers such a state, and `act` uses
  the median there.

The result is a `Policy` whose network holds the stacked arrays of all members.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from fat2thin.policies.families import Family, Head, Sparse, Transformed
from fat2thin.policies.networks import ObservationRows
from fat2thin.policies.policy import Agreement, Policy

RULES = ("median", "consensus")
LEAST_OVERLAP = 1e-6
"""Bands that overlap by less, in half-ranges of the box, count as disjoint: it is rounding."""


class EnsembleNetwork(eqx.Module):
    """The networks of all members, and the rule that combines their heads."""

    members: Any
    """The network of a policy, with a leading axis of members."""
    family: Family = eqx.field(static=True)
    rule: str = eqx.field(static=True)

    def __call__(self, observation: ObservationRows) -> Head:
        """Return the combined head for each row."""
        centre, log_scale = self._bands(observation)
        middle = Head(jnp.median(centre, axis=0), jnp.median(log_scale, axis=0))
        if self.rule == "median":
            return middle
        low, high = self._intersection(centre, log_scale)
        common = jnp.all(high - low > LEAST_OVERLAP, axis=-1, keepdims=True)
        width = jnp.where(common, (high - low) / 2.0, 1.0)
        return Head(
            jnp.where(common, (low + high) / 2.0, middle.centre),
            jnp.where(common, jnp.log(width), middle.log_scale),
        )

    def agreement(self, observation: ObservationRows) -> Agreement:
        """Return how far the members agree in each row."""
        centre, log_scale = self._bands(observation)
        family = _plain(self.family)
        placed = jnp.tanh(centre) if family.squashes_centre else centre
        spread = (jnp.max(placed, axis=0) - jnp.min(placed, axis=0)) / 2.0
        overlap = jnp.ones(spread.shape[:-1], bool)
        if isinstance(family, Sparse):
            low, high = self._intersection(centre, log_scale)
            overlap = jnp.all(high - low > LEAST_OVERLAP, axis=-1)
        return Agreement(jnp.max(spread, axis=-1), overlap)

    def _bands(self, observation: ObservationRows) -> tuple[Array, Array]:
        """Return centres and log scales, with a leading axis of members, fitted to the box."""
        heads = eqx.filter_vmap(lambda network: network(observation))(self.members)
        family = _plain(self.family)
        if isinstance(family, Sparse):
            centre, half_width = family.band(heads)
            return centre, jnp.log(half_width)
        return heads.centre, heads.log_scale

    @staticmethod
    def _intersection(centre: Array, log_scale: Array) -> tuple[Array, Array]:
        width = jnp.exp(log_scale)
        return jnp.max(centre - width, axis=0), jnp.min(centre + width, axis=0)


def ensemble_of(policies: Policy, rule: str | None = None) -> Policy:
    """Return one policy of several, given as one `Policy` with a leading axis of members.

    The default is `consensus` for policies with a band and `median` for others. On logs of 1,200
    rows of the treatment task, consensus had the higher return. On robots, whose seeds hardly ever
    have a common action, the median was as good or better (`benchmarks/ensembles.py`).
    """
    if rule is None:
        rule = "consensus" if isinstance(_plain(policies.family), Sparse) else "median"
    if rule not in RULES:
        raise ValueError(f"an ensemble is one of {', '.join(RULES)}, not {rule!r}")
    if rule == "consensus" and not isinstance(_plain(policies.family), Sparse):
        raise ValueError(
            "consensus needs policies with a band (sparse_q_gaussian); use median, which works for "
            "every family"
        )
    network = EnsembleNetwork(policies.network, policies.family, rule)
    return dataclasses.replace(
        policies, network=network, low=policies.low[0], high=policies.high[0]
    )


def _plain(family: Family) -> Family:
    return family.family if isinstance(family, Transformed) else family
