"""Quasi-optimal learning (Li, Zhou and Zhu, ICLR 2023): a sparse policy in closed form from Q.

The value of a state is the best regularised mean of Q over all densities,

    V(s) = max over pi of  E[Q(s, a)] + mu (1 - integral of pi(a | s)^2 da)        a ~ pi

Setting the derivative to zero where pi > 0 gives pi = [Q - c]_+ / (2 mu): actions whose Q is below
the threshold c have zero density. For Q(s, a) = peak - k (a - m)^2 this is a parabola on the band
m - w to m + w, which is the sparse q-Gaussian with index 0. Its integral 2 k w^3 / (3 mu) is 1 and
its squared density has the integral 3 / (5 w), so that

    w^3 = 3 mu / (2 k)        E[Q] = peak - k w^2 / 5        V = peak + mu (1 - 0.9 / w)

A network for m and log k and a network for V thus define the policy and, with w from log k,

    Q(s, a) = V(s) + mu ((0.9 - 1.5 z^2) / w - 1)                                  z = (a - m) / w

With several action coordinates the policy is a product, and the terms of the coordinates are added.
One update minimises, with gradients through V(s'), the U-statistic

    Q and policy  mean over i != j of  d_i d_j K_ij        d = r + gamma V(s') - Q(s, a)
    kernel        K_ij = exp(-|s_i - s_j|^2 / observation_bandwidth^2
                             - |a_i - a_j|^2 / action_bandwidth^2)

It estimates the squared norm of E[d | s, a] in the kernel's function space: noise of different rows
is independent, so it adds nothing to the mean, unlike in the mean of d^2.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fat2thin.algorithms import configs, steps
from fat2thin.algorithms.base import (
    Actions,
    Algorithm,
    Automatic,
    Batch,
    Meaning,
    Metrics,
    Observations,
    Problem,
    Values,
)
from fat2thin.algorithms.losses import Setting, half_squared_error
from fat2thin.policies.families import Sparse
from fat2thin.policies.networks import PolicyNetwork, ScalarNetwork
from fat2thin.policies.policy import BoundedNetwork, Policy, unit_policy

PEAK, SLOPE = 0.9, 1.5
"""Numbers of the closed form: V = peak + mu (1 - 0.9 / w) and k = 1.5 mu / w^3."""
HALF_WIDTHS = (1e-2, 10.0)
"""Bounds of w in half-ranges of the box. Above 1 Q becomes flatter; the band is the whole box."""


@dataclasses.dataclass(frozen=True)
class QuasiOptimalConfig(configs.LearningConfig):
    """Settings of quasi-optimal learning. Lengths are in half-ranges of the action box."""

    temperature: float = 0.1
    """mu: the lower, the narrower the band. Its half-width is the cube root of 1.5 mu / k for a Q
    that falls by k at a distance of 1 from its largest value."""

    observation_bandwidth: float = 3.0
    """Width of the kernel in observations, in the units that the networks get: standard deviations
    with `--standardise`."""

    action_bandwidth: float = 1.0
    """Width of the kernel in actions, in half-ranges of the action box."""


class QuadraticCritic(eqx.Module):
    """The networks that define Q: its maximiser m and log curvature log k, and V."""

    parabola: PolicyNetwork
    """Its head for the logarithm of a scale is log k: then weight decay does not depend on mu."""
    value: ScalarNetwork


class QuasiOptimalState(NamedTuple):
    """Training state of quasi-optimal learning."""

    critic: steps.Learner


def check(config: QuasiOptimalConfig) -> None:
    """Raise a ValueError that names the field if a setting is out of range."""
    configs.check_learning(config)
    configs.positive(config, "temperature", "observation_bandwidth", "action_bandwidth")


def init(key: Key[Array, ""], problem: Problem, config: QuasiOptimalConfig) -> QuasiOptimalState:
    """Return new networks and an optimiser."""
    parabola_key, value_key = jax.random.split(key)
    parabola = steps.start_policy(parabola_key, problem, config).network
    value = ScalarNetwork(value_key, problem.observation_size, config.hidden)
    return QuasiOptimalState(steps.start(QuadraticCritic(parabola, value)))


def update(
    state: QuasiOptimalState,
    batch: Batch,
    key: Key[Array, ""],
    problem: Problem,
    config: QuasiOptimalConfig,
) -> tuple[QuasiOptimalState, Metrics]:
    """Update Q, which defines the policy."""
    nearness = kernel(batch.observation, batch.action, config)

    def loss(network: QuadraticCritic) -> tuple[Array, Metrics]:
        # The gradient flows through the target, too: pairs of rows make its estimate unbiased.
        target = steps.critic_target(batch, next_value(network, batch, config), problem, config)
        value = network.value(batch.observation)
        band = band_network(network.parabola, config.temperature)
        centre, log_width = BoundedNetwork(band, HALF_WIDTHS, False)(batch.observation)
        gain = advantage(batch.action, centre, jnp.exp(log_width), config.temperature)
        error = kernel_loss(target - value - gain, nearness)
        squared = half_squared_error(value + gain, target)
        return error, {"kernel_loss": error, "critic_loss": squared, "v_mean": value}

    before = band_policy(state.critic.network.parabola, config.temperature)
    critic, metrics = steps.descend(state.critic, loss, config)
    return QuasiOptimalState(critic), {**metrics, **steps.watch_policy(before, batch)}


def next_value(network: QuadraticCritic, batch: Batch, config: QuasiOptimalConfig) -> Values:
    """Return V(s'). With limits, it changes as the mean of Q does where they move the policy.

    A band with centre c and half-width u has the mean Q = peak - k ((c - m)^2 + u^2 / 5), with
    k = 1.5 mu / w^3. The term of V that regularises stays that of the best density: it has no
    finite value for a single action.
    """
    value = network.value(batch.next_observation)
    if batch.next_allowed is None:
        return value
    band = band_network(network.parabola, config.temperature)
    centre, log_width = BoundedNetwork(band, HALF_WIDTHS, False)(batch.next_observation)
    policy = band_policy(network.parabola, config.temperature).within(batch.next_allowed)
    low, high = policy.support(batch.next_observation)
    width, moved = jnp.exp(log_width), (low + high) / 2.0 - centre
    spread = (((high - low) / 2.0) ** 2 - width**2) / 5.0
    return value - SLOPE * config.temperature * jnp.sum((moved**2 + spread) / width**3, axis=-1)


def advantage(
    action: Actions, centre: Actions, half_width: Actions, temperature: Setting
) -> Values:
    """Return Q(s, a) - V(s) for the Q whose optimal policy has this centre and half-width.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fat2thin.algorithms.quasi_optimal import advantage
        >>> action, centre, half_width = (jnp.full((1, 1), number) for number in (0.5, 0.0, 1.0))
        >>> round(float(advantage(action, centre, half_width, 2.0)[0]), 4)  # 2 (0.9 - 0.375 - 1)
        -0.95
    """
    squared = ((action - centre) / half_width) ** 2
    return temperature * jnp.sum((PEAK - SLOPE * squared) / half_width - 1.0, axis=-1)


def kernel(
    observation: Observations, action: Actions, config: QuasiOptimalConfig
) -> Float[Array, "batch batch"]:
    """Return the Gaussian kernel of all pairs of rows."""
    scaled = [observation / config.observation_bandwidth, action / config.action_bandwidth]
    rows = jnp.concatenate(scaled, axis=-1)
    squares = jnp.sum(rows**2, axis=-1)
    # By default a GPU would round the products, which nearly cancel for rows that are close.
    products = jnp.matmul(rows, rows.T, precision="highest")
    return jnp.exp(-jnp.maximum(squares[:, None] + squares[None] - 2.0 * products, 0.0))


def kernel_loss(residual: Values, kernel: Float[Array, "batch batch"]) -> Float[Array, ""]:
    """Return the mean of residual_i residual_j kernel_ij over all pairs of different rows."""
    rows = residual.shape[0]
    others = jnp.where(jnp.eye(rows, dtype=bool), 0.0, kernel)
    return residual @ others @ residual / max(rows * (rows - 1), 1)


def band_network(parabola: PolicyNetwork, temperature: Setting) -> PolicyNetwork:
    """Return the network of the best density: log w = (log(1.5 mu) - log k) / 3."""
    head = parabola.log_scale
    numbers = -head.weight / 3.0, (jnp.log(SLOPE * temperature) - head.bias) / 3.0
    return eqx.tree_at(lambda made: (made.log_scale.weight, made.log_scale.bias), parabola, numbers)


def band_policy(parabola: PolicyNetwork, temperature: Setting) -> Policy:
    """Return the policy that Q defines, in half-ranges of the box, shifted to lie in the box."""
    return unit_policy(band_network(parabola, temperature), Sparse(), (HALF_WIDTHS[0], 1.0))


def policy(state: QuasiOptimalState, problem: Problem, config: QuasiOptimalConfig) -> Policy:
    """Return the policy that Q defines, in the environment's units."""
    unit = band_policy(state.critic.network.parabola, config.temperature)
    return unit.in_box(problem.action_low, problem.action_high)


ALGORITHM = Algorithm(
    name="quasi_optimal",
    summary="Quasi-optimal learning: Q is a parabola in the action, whose best density is a band",
    config=QuasiOptimalConfig,
    check=check,
    init=init,
    update=update,
    policy=policy,
    metrics={
        "critic_loss": Meaning(
            "half the squared error of Q against its target",
            "falls towards the noise of the rewards; far below it means overfitting to the log",
        ),
        "v_mean": Meaning("mean V of logged states", steps.CRITIC_METRICS["q_mean"].look_for),
        "kernel_loss": Meaning(
            "product of the errors of two rows, weighted by their nearness, mean over all pairs",
            "falls to about zero; single batches may be below it",
        ),
        "policy_scale": steps.POLICY_METRICS["policy_scale"],
        "logged_inside_support": steps.POLICY_METRICS["logged_inside_support"],
    },
    learns_limits=True,
    automatic=Automatic(noisy={"temperature": 0.001}),
)
