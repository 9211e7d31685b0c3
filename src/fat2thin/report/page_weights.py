"""The networks of a run as the page computes with them, or Q in a few states where they are large.

Weights are 16-bit whole numbers, each row of a matrix with a scale of its own: half the size of
float32, and some ten times as exact as float16.
"""

import base64
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int16

from fat2thin.algorithms.critics import critics_of_job
from fat2thin.algorithms.fttpo import ActorNetwork, ProportionalActor
from fat2thin.policies.networks import Linear, ScalarNetwork, Trunk, TwinCritic
from fat2thin.policies.policy import BoundedNetwork, StandardisedNetwork
from fat2thin.report.page_policies import GRID, Plain, family_of, good_seed, rounded
from fat2thin.runs.result import Run

_LARGEST_LEVEL = 32767


def critic_of(run: Run) -> TwinCritic | None:
    """The critics of the seed that is shown; None for a method that has none of our kind."""
    return critics_of_job(run.states, run.spec.seeds.index(good_seed(run)))


def values_at(run: Run, looked_at: Plain, critic: TwinCritic) -> Plain:
    """The smaller Q over each coordinate in the picked states, the others at the actor's centre.

    For runs whose weights the page has no room for.
    """
    policy, scale = run.policy(looked_at["seed"]), run.jobs.observation_scale
    states = jnp.asarray(looked_at["states"], jnp.float32)
    low, high = policy.low[None], policy.high[None]
    centre = (policy.act(states) - low) / (high - low) * 2.0 - 1.0
    if scale is not None:
        index = run.spec.seeds.index(looked_at["seed"])
        states = (states - scale.mean[index][None]) / scale.scale[index][None]
    grid = np.linspace(-1.0, 1.0, GRID, dtype=np.float32)
    along = np.broadcast_to(centre[:, None, None], (*centre.shape, GRID, centre.shape[-1])).copy()
    for coordinate in range(centre.shape[-1]):
        along[:, coordinate, :, coordinate] = grid
    rows = jnp.broadcast_to(states[:, None, None], (*along.shape[:-1], states.shape[-1]))
    return {"values": rounded(_smaller(critic, rows, jnp.asarray(along)))}


@eqx.filter_jit
def _smaller(critic: TwinCritic, states: Array, actions: Array) -> Array:
    return jax.tree.map(jnp.asarray, critic).minimum(states, actions)


class _Arrays:
    """Matrices in the form that the page reads, each of them once."""

    def __init__(self) -> None:
        self.encoded: list[Plain] = []
        self._places: dict[bytes, int] = {}

    def layer(self, layer: Linear) -> Plain:
        weight = np.asarray(layer.weight, np.float32)
        known = weight.tobytes()
        if known not in self._places:
            self._places[known] = len(self.encoded)
            self.encoded.append(_encoded(weight))
        return {"weight": self._places[known], "bias": rounded(layer.bias, 7)}

    def trunk(self, trunk: Trunk) -> list[Plain]:
        return [self.layer(layer) for layer in trunk.layers]

    def scalar(self, network: ScalarNetwork) -> Plain:
        return {"trunk": self.trunk(network.trunk), "head": self.layer(network.head)}


def _encoded(weight: Float[np.ndarray, "outputs inputs"]) -> Plain:
    largest = np.max(np.abs(weight), axis=1)
    step = np.where(largest > 0, largest / _LARGEST_LEVEL, 1.0).astype("<f4")
    levels: Int16[np.ndarray, "outputs inputs"] = np.rint(weight / step[:, None]).astype("<i2")
    return {
        "inputs": weight.shape[1],
        "steps": base64.b64encode(step.tobytes()).decode(),
        "levels": base64.b64encode(levels.tobytes()).decode(),
    }


def weights(run: Run, critic: TwinCritic | None) -> Plain | None:
    """The networks of actor, proposal and critics; None where the page could not compute them."""
    seed, arrays = good_seed(run), _Arrays()
    policies = {"actor": run.policy(seed)}
    if run.program.algorithm.proposal:
        policies["proposal"] = run.proposal(seed)
    if any(family_of(policy) is None for policy in policies.values()):
        return None
    networks: Plain = {name: _network(policy.network, arrays) for name, policy in policies.items()}
    if any(network is None for network in networks.values()):
        return None
    if critic is not None:
        twins = (
            jax.tree.map(lambda leaf, twin=twin: leaf[twin], critic.members) for twin in (0, 1)
        )
        networks["critics"] = [arrays.scalar(member) for member in twins]
    scale = run.jobs.observation_scale
    if scale is not None:
        index = run.spec.seeds.index(seed)
        networks["mean"] = rounded(scale.mean[index], 8)
        networks["scale"] = rounded(scale.scale[index], 8)
    return {**networks, "arrays": arrays.encoded}


def _network(network: Any, arrays: _Arrays) -> Plain | None:
    """A policy's network: trunk, both heads, and what is done to their outputs."""
    if isinstance(network, StandardisedNetwork):
        return _network(network.network, arrays)
    if isinstance(network, BoundedNetwork):
        fixed = None if network.state_dependent_scale else network.network.log_scale.bias
        return {
            "trunk": arrays.trunk(network.network.trunk),
            "centre": arrays.layer(network.network.centre),
            "log_scale": arrays.layer(network.network.log_scale),
            "fixed": None if fixed is None else rounded(fixed, 7),
            "tanh": not network.squashed,
            "bounds": rounded(np.log(network.scale_bounds), 8),
        }
    if isinstance(network, ActorNetwork | ProportionalActor):
        base = _network(network.proposal, arrays)
        bounds = rounded(np.log(network.width_bounds), 8)
        if isinstance(network, ActorNetwork):
            own = {"log_scale": arrays.layer(network.width), "fixed": None, "bounds": bounds}
        else:
            own = {"ratio": rounded(network.log_ratio, 8), "ratio_bounds": bounds}
        return {**(base or {}), **own, "tanh": True}
    return None
