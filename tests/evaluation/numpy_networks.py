"""The package's networks, computed with NumPy in float64."""

import jax
import numpy as np


def take(stacked, index):
    """Return one member of a stacked pytree."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def network(layers, head, x, norms=()):
    """Apply hidden layers with rectifiers and, if there are any, norms, and a head."""
    for number, layer in enumerate(layers):
        x = np.maximum(x @ np.float64(layer.weight).T + np.float64(layer.bias), 0.0)
        if norms:
            shifted = x - np.mean(x, axis=1, keepdims=True)
            normal = shifted / np.sqrt(np.var(x, axis=1, keepdims=True) + 1e-6)
            x = normal * np.float64(norms[number].scale) + np.float64(norms[number].shift)
    return x @ np.float64(head.weight).T + np.float64(head.bias)


def scalar(net, x):
    """Return one number per row."""
    return network(net.trunk.layers, net.head, x, net.trunk.norms)[:, 0]


def twins(critic, observation, action):
    """Return the values of all critics, usually two."""
    inputs = np.concatenate([observation, action], axis=1)
    count = critic.members.head.bias.shape[0]
    return np.stack([scalar(take(critic.members, place), inputs) for place in range(count)])
