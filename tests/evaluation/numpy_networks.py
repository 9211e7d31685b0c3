"""The package's networks, computed with NumPy in float64."""

import jax
import numpy as np


def take(stacked, index):
    """Return one member of a stacked pytree."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def network(layers, head, x):
    """Apply hidden layers with rectifiers, and a head."""
    for layer in layers:
        x = np.maximum(x @ np.float64(layer.weight).T + np.float64(layer.bias), 0.0)
    return x @ np.float64(head.weight).T + np.float64(head.bias)


def scalar(net, x):
    """Return one number per row."""
    return network(net.trunk.layers, net.head, x)[:, 0]


def twins(critic, observation, action):
    """Return the values of both critics."""
    inputs = np.concatenate([observation, action], axis=1)
    return np.stack([scalar(take(critic.members, twin), inputs) for twin in (0, 1)])
