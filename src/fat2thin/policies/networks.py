"""Neural networks for policies, state values and critics.

All leaves of the modules are arrays. Inputs may have any number of leading axes (rows).

Weights are float32. With `with_precision(network, "bfloat16")`, the factors of every product and
the stored outputs of hidden layers are bfloat16; sums, biases and normalisation stay float32.
"""

from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from fat2thin.distributions.base import expand_to_rank

Networks = TypeVar("Networks")
ObservationRows = Float[Array, "*rows observation"]
ActionRows = Float[Array, "*rows action"]
PRECISIONS = ("float32", "bfloat16")
"""Types of the factors of products; policies act in the first."""
LAYER_NORM_EPSILON = 1e-6  # added to the variance, as in Flax
_glorot = jax.nn.initializers.glorot_uniform()


@jax.custom_vjp
def rectify(x: Float[Array, "*any"]) -> Float[Array, "*any"]:
    """Return max(x, 0). The VJP saves only the output."""
    return jnp.maximum(x, 0.0)


def _rectify_forward(x: Array) -> tuple[Array, Array]:
    result = rectify(x)
    return result, result


def _rectify_backward(result: Array, slope: Array) -> tuple[Array]:
    return (jnp.where(result > 0.0, slope, 0.0),)


rectify.defvjp(_rectify_forward, _rectify_backward)


@jax.custom_vjp
def _half_product(
    x: Float[Array, "*rows inputs"], weight: Float[Array, "outputs inputs"]
) -> Float[Array, "*rows outputs"]:
    """Return x @ weight.T of a bfloat16 x and rounded weights, summed in float32.

    The products of the VJP round the slope in the same way.
    """
    return _half_forward(x, weight)[0]


def _half_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    weight = weight.astype(x.dtype)
    return jnp.matmul(x, weight.mT, preferred_element_type=jnp.float32), (x, weight)


def _half_backward(saved: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, weight = saved
    slope = slope.astype(x.dtype)
    rows = tuple(range(slope.ndim - 1))
    of_weight = lax.dot_general(
        slope, x, ((rows, rows), ((), ())), preferred_element_type=jnp.float32
    )
    return slope @ weight, of_weight


_half_product.defvjp(_half_forward, _half_backward)


class Linear(eqx.Module):
    """A layer W x + b, with Xavier-uniform weights and zero biases.

    W has shape (outputs, inputs), so neither pass needs a transpose.
    """

    weight: Float[Array, "*stack outputs inputs"]
    bias: Float[Array, "*stack outputs"]
    precision: str = eqx.field(static=True, default=PRECISIONS[0])
    """Type of the factors of the product, one of `PRECISIONS`."""

    def __init__(self, key: Key[Array, ""], inputs: int, outputs: int) -> None:
        self.weight = _glorot(key, (inputs, outputs)).T
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        """Return the outputs for each row."""
        if self.precision == PRECISIONS[0]:
            products = x @ self.weight.mT
        else:
            products = _half_product(x.astype(self.precision), self.weight)
        return products + expand_to_rank(self.bias, products.ndim)


def with_precision(tree: Any, precision: str) -> Any:
    """Return the tree with this `Linear.precision` in all its layers."""

    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, Linear):
            return leaf
        copied = jax.tree.map(lambda array: array, leaf)
        object.__setattr__(copied, "precision", precision)
        return copied

    return jax.tree.map(changed, tree, is_leaf=lambda leaf: isinstance(leaf, Linear))


class LayerNorm(eqx.Module):
    """Layer normalisation (Ba et al. 2016): rows to mean 0 and variance 1, then scale and shift."""

    scale: Float[Array, "*stack features"]
    shift: Float[Array, "*stack features"]

    def __init__(self, features: int) -> None:
        self.scale = jnp.ones(features)
        self.shift = jnp.zeros(features)

    def __call__(self, x: Float[Array, "*rows features"]) -> Float[Array, "*rows features"]:
        """Return the normalised rows."""
        x = x.astype(self.scale.dtype)
        normal = jax.nn.standardize(x, epsilon=LAYER_NORM_EPSILON)
        scale, shift = (expand_to_rank(part, x.ndim) for part in (self.scale, self.shift))
        return normal * scale + shift


class Trunk(eqx.Module):
    """Hidden layers with rectifiers, shared by the heads of a network.

    With `layer_norm`, the output of each rectifier is normalised.
    """

    layers: tuple[Linear, ...]
    norms: tuple[LayerNorm, ...]

    def __init__(
        self, key: Key[Array, ""], inputs: int, hidden: tuple[int, ...], layer_norm: bool = False
    ) -> None:
        keys = jax.random.split(key, len(hidden))
        self.layers = tuple(map(Linear, keys, (inputs, *hidden), hidden))
        self.norms = tuple(map(LayerNorm, hidden)) if layer_norm else ()

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows features"]:
        """Return the features of each row."""
        for number, layer in enumerate(self.layers):
            x = rectify(layer(x).astype(layer.precision))
            x = self.norms[number](x).astype(layer.precision) if self.norms else x
        return x


class ScalarNetwork(eqx.Module):
    """A trunk with one output: a state value or a single critic."""

    trunk: Trunk
    head: Linear

    def __init__(
        self, key: Key[Array, ""], inputs: int, hidden: tuple[int, ...], layer_norm: bool = False
    ) -> None:
        trunk_key, head_key = jax.random.split(key)
        self.trunk = Trunk(trunk_key, inputs, hidden, layer_norm)
        self.head = Linear(head_key, hidden[-1], 1)

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows"]:
        """Return one number per row."""
        return jnp.squeeze(self.head(self.trunk(x)), axis=-1)


class Critics(eqx.Module):
    """Several critics Q(observation, action), stacked so that all are one batched product."""

    members: ScalarNetwork

    def __init__(
        self,
        key: Key[Array, ""],
        observation_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        count: int = 2,
        layer_norm: bool = False,
    ) -> None:
        inputs = observation_size + action_size
        make = eqx.filter_vmap(lambda one: ScalarNetwork(one, inputs, hidden, layer_norm))
        self.members = make(jax.random.split(key, count))

    def __call__(
        self, observation: ObservationRows, action: ActionRows
    ) -> Float[Array, "critics *rows"]:
        """Return the values of all critics, with the critics along the first axis."""
        inputs = jnp.concatenate([observation, action], axis=-1)
        return eqx.filter_vmap(lambda member: member(inputs))(self.members)

    def minimum(self, observation: ObservationRows, action: ActionRows) -> Float[Array, "*rows"]:
        """Return the smallest value of all critics."""
        return jnp.min(self(observation, action), axis=0)


class ValueAndCritics(eqx.Module):
    """A state value and critics, stacked so that all are one batched product.

    The value has inputs as wide as the critics', with zeros in place of the action.
    """

    members: ScalarNetwork

    def __init__(self, value: ScalarNetwork, critic: Critics) -> None:
        first = value.trunk.layers[0].weight
        actions = critic.members.trunk.layers[0].weight.shape[-1] - first.shape[-1]
        wider = jnp.pad(first, ((0, 0), (0, actions)))
        value = eqx.tree_at(lambda network: network.trunk.layers[0].weight, value, wider)
        self.members = jax.tree.map(
            lambda one, two: jnp.concatenate([one[None], two]), value, critic.members
        )

    def __call__(
        self, observation: ObservationRows, action: ActionRows
    ) -> tuple[Float[Array, "*rows"], Float[Array, "critics *rows"]]:
        """Return the state value and the values of all critics."""
        seen = jnp.concatenate([observation, action], axis=-1)
        blind = jnp.concatenate([observation, jnp.zeros_like(action)], axis=-1)
        inputs = jnp.stack([blind, *[seen] * (self.members.head.bias.shape[0] - 1)])
        values = eqx.filter_vmap(lambda member, rows: member(rows))(self.members, inputs)
        return values[0], values[1:]

    def advantage(self, observation: ObservationRows, action: ActionRows) -> Float[Array, "*rows"]:
        """Return the smallest critic value minus the state value."""
        value, critics = self(observation, action)
        return jnp.min(critics, axis=0) - value

    def value(self, observation_size: int) -> ScalarNetwork:
        """Return the value network alone, without the inputs that are always zero."""
        value = jax.tree.map(lambda leaf: leaf[0], self.members)
        first = value.trunk.layers[0].weight[:, :observation_size]
        return eqx.tree_at(lambda network: network.trunk.layers[0].weight, value, first)

    def critic(self, like: Critics) -> Critics:
        """Return the critics alone; `like` is `Critics` of the same shape."""
        members = jax.tree.map(lambda leaf: leaf[1:], self.members)
        return eqx.tree_at(lambda critics: critics.members, like, members)


class PolicyNetwork(eqx.Module):
    """A trunk with a head for the centre and a head for the logarithm of the scale."""

    trunk: Trunk
    centre: Linear
    log_scale: Linear

    def __init__(
        self, key: Key[Array, ""], observation_size: int, action_size: int, hidden: tuple[int, ...]
    ) -> None:
        trunk_key, centre_key, scale_key = jax.random.split(key, 3)
        self.trunk = Trunk(trunk_key, observation_size, hidden)
        self.centre = Linear(centre_key, hidden[-1], action_size)
        self.log_scale = Linear(scale_key, hidden[-1], action_size)

    def __call__(self, observation: ObservationRows) -> tuple[ActionRows, ActionRows]:
        """Return the outputs of both heads, (centre, log scale)."""
        features = self.trunk(observation)
        return self.centre(features), self.log_scale(features)


def polyak(target: Networks, online: Networks, rate: float | Float[Array, ""]) -> Networks:
    """Return the target networks moved by the fraction `rate` towards the online ones.

    `optax.incremental_update` is a weighted sum instead, which rounds differently.
    """
    return jax.tree.map(lambda old, new: old + rate * (new - old), target, online)
