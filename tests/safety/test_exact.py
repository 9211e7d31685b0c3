"""Certified bounds against the exact extremes of tiny networks, by all activation patterns.

With two inputs the activation patterns are polygons: the box is cut along every neuron's line,
layer by layer. In a polygon centre and log half-width are affine, with different gradients, so
that tanh(centre) ± exp(log half-width) has no extremum inside: the edges are searched.
"""

import jax
import numpy as np
import pytest

from fat2thin import safety
from fat2thin.policies.families import Sparse
from fat2thin.policies.policy import unit_policy
from random_policies import network_of

LOW, HIGH = -2.0, 3.0
SCALES = (0.05, 0.8)


def cut(polygon, normal, offset):
    """The parts of a convex polygon, an array of corners, where normal·z + offset < 0 and > 0."""
    values = polygon @ normal + offset
    parts = []
    for sign in (-1.0, 1.0):
        corners = []
        for here, there, one, two in zip(
            polygon, np.roll(polygon, -1, 0), sign * values, np.roll(sign * values, -1), strict=True
        ):
            if one >= 0.0:
                corners.append(here)
            if (one > 0.0) != (two > 0.0) and one != two:
                corners.append(here + (there - here) * one / (one - two))
        parts.append(np.array(corners))
    return parts


def regions(layers, polygon, map_weight, map_bias):
    """Yield every polygon of constant activation, with the affine map to the last layer."""
    if not layers:
        yield polygon, map_weight, map_bias
        return
    weight, bias = layers[0]
    weight, bias = weight @ map_weight, weight @ map_bias + bias
    pieces = [(polygon, ())]
    for normal, offset in zip(weight, bias, strict=True):
        pieces = [
            (part, (*pattern, active))
            for piece, pattern in pieces
            for active, part in zip((0.0, 1.0), cut(piece, normal, offset), strict=True)
            if len(part) > 2
        ]
    for piece, pattern in pieces:
        active = np.array(pattern)
        yield from regions(layers[1:], piece, active[:, None] * weight, active * bias)


def extremes(network, low, high):
    """The lowest and the highest end of the band over a box, in half-ranges."""
    layers = [(np.float64(one.weight), np.float64(one.bias)) for one in network.trunk.layers]
    head = np.concatenate([network.centre.weight, network.log_scale.weight]).astype(float)
    bias = np.concatenate([network.centre.bias, network.log_scale.bias]).astype(float)
    box = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    least, most, share = np.inf, -np.inf, np.linspace(0.0, 1.0, 2001)[:, None]
    count = 0
    for polygon, weight, offset in regions(layers, box, np.eye(2), np.zeros(2)):
        count += 1
        for here, there in zip(polygon, np.roll(polygon, -1, 0), strict=True):
            heads = (
                ((1.0 - share) * here + share * there) @ (head @ weight).T + head @ offset + bias
            )
            centre, width = np.tanh(heads[:, 0]), np.exp(np.clip(heads[:, 1], *np.log(SCALES)))
            centre = np.clip(centre, width - 1.0, 1.0 - width)
            least, most = min(least, (centre - width).min()), max(most, (centre + width).max())
    return least, most, count


MANY = [pytest.mark.slow, pytest.mark.long]
KEYS = [*range(3), pytest.param(range(3, 60), marks=MANY)]


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_bounds_agree_with_all_activation_patterns(keys):
    for key in keys if isinstance(keys, range) else (keys,):
        check(key)


def check(key):
    hidden = [(6,), (4, 4), (5, 4, 3)][key % 3]
    network = network_of(jax.random.key(key), hidden, 1.2, inputs=2, actions=1)
    policy = unit_policy(network, Sparse(), SCALES).in_box((LOW,), (HIGH,))
    rng = np.random.default_rng(key)
    middle, half = rng.normal(size=2), rng.uniform(0.1, 1.5, 2)
    low, high = (middle + sign * half for sign in (-1.0, 1.0))
    low, high = (end.astype(np.float32).astype(float) for end in (low, high))
    least, most, count = extremes(network, low, high)
    assert count > 1 or key > 2
    box = {f"observation_{place}": (low[place], high[place]) for place in range(2)}
    found = safety.certify(policy, box, gap=1e-3, seconds=20.0)
    exact = np.array([least, most]) * (HIGH - LOW) / 2.0 + (LOW + HIGH) / 2.0
    bounds = np.array([found.low[0], found.high[0]])
    closeness = 1e-3 * (exact[1] - exact[0]) + 5e-4 * (HIGH - LOW)
    assert bounds[0] <= exact[0] <= bounds[0] + closeness, key
    assert bounds[1] - closeness <= exact[1] <= bounds[1], key
