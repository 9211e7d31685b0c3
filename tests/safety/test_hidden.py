"""A counterexample hidden in a tiny corner is never certified away."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin import safety
from fat2thin.policies.families import Sparse
from fat2thin.policies.networks import PolicyNetwork
from fat2thin.policies.policy import unit_policy

INPUTS, HIDDEN = 4, (8, 8)


def hidden_spike(rng):
    """A policy, and the state in which alone its action is high; elsewhere it is at most 0.4.

    A tent of the first layer's neurons around the state, with slopes up to 1,000, passes through
    one neuron of the second layer.
    """
    network = PolicyNetwork(jax.random.key(0), INPUTS, 1, HIDDEN)
    at = np.where(
        rng.random(INPUTS) < 0.5, rng.choice([-1.0, 1.0], INPUTS), rng.uniform(-1, 1, INPUTS)
    )
    at, width = at.astype(np.float32), 10.0 ** rng.uniform(-3.0, -1.0)
    first, bias = np.zeros((8, INPUTS)), np.zeros(8)
    for place in range(INPUTS):
        # |z - at| / width, as two neurons.
        first[2 * place, place], first[2 * place + 1, place] = 1.0 / width, -1.0 / width
        bias[2 * place : 2 * place + 2] = -at[place] / width, at[place] / width
    second, offset = rng.normal(0.0, 0.3, (8, 8)) * width, rng.normal(0.0, 0.1, 8)
    second[0], offset[0] = -1.0, 1.0
    centre = rng.normal(0.0, 0.02, (1, 8))
    centre[0, 0] = 1.0
    given = (first, bias, second, offset, centre, np.zeros(1), np.zeros((1, 8)), np.full(1, -3.0))

    def arrays(tree):
        layers = (*tree.trunk.layers, tree.centre, tree.log_scale)
        return [array for layer in layers for array in (layer.weight, layer.bias)]

    network = eqx.tree_at(arrays, network, [jnp.asarray(one, jnp.float32) for one in given])
    return unit_policy(network, Sparse(), (0.01, 0.5)), at


def check(count, seed):
    rng, box = np.random.default_rng(seed), {f"observation_{n}": (-1.0, 1.0) for n in range(INPUTS)}
    refuted = 0
    for _ in range(count):
        policy, at = hidden_spike(rng)
        top = float(policy.support(at)[1][0])
        claim = top - 10.0 ** rng.uniform(-6.0, -1.0)
        found = safety.certify(policy, box, below=claim, seconds=rng.choice([0.01, 0.05, 0.2]))
        assert found.high[0] >= top
        assert found.claims[0].result != safety.PROVEN
        refuted += found.claims[0].result == safety.REFUTED
    return refuted


def test_a_hidden_action_is_never_certified_away():
    assert check(15, 0) < 15  # a search that finds all of them would not need the proof


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_hidden_actions_are_never_certified_away():
    check(1000, 1)
