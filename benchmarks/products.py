"""The products of an FtTPO update alone: what no other arrangement of the rest can go below.

    python benchmarks/products.py

Only those of the hidden layers (256 × 256, batches of 256) are there, in the stacks of
`algorithms/fttpo.py` with the closed-form actor: no first layer, no head, no bias, no optimiser. In
the default precision of products (TF32 on a GPU), and with factors and results in bfloat16.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from timing import repeated

WIDTH = 256
LENGTH = 1000 if jax.default_backend() == "gpu" else 10
PRODUCTS = 4 * 3 + 2 * 2 + 2 + 2
"""Of batch × width × width each, a seed: the stack of V and Q forward, back twice and forward
again; both targets at two states; the policy at two states, and back twice."""

Factors = tuple[Array, ...]


def factors(seeds: int, dtype: jnp.dtype) -> Factors:
    """Features and weights of the stack, of the targets and of the policy."""

    def features(networks: int, batches: int) -> Array:
        return jnp.broadcast_to(
            jnp.concatenate([jnp.eye(WIDTH, dtype=dtype)] * batches),
            (networks, batches * WIDTH, WIDTH),
        )

    stack, targets, policy = 3 * seeds, 2 * seeds, seeds
    return (
        features(stack, 1), features(stack, 1), features(targets, 2), features(targets, 1),
        features(policy, 2), features(policy, 1),
    )  # fmt: skip


@functools.partial(jax.jit, donate_argnums=0)
def chain(factors: Factors) -> Factors:
    """As many updates as a call has."""

    def update(factors: Factors, _: None) -> tuple[Factors, None]:
        stack, stack_weight, targets, target_weight, policy, policy_weight = factors
        forward = stack @ stack_weight
        back = forward @ stack_weight.mT
        again = (back.mT @ stack) @ stack_weight
        judged = targets @ target_weight
        acted = policy @ policy_weight
        half = acted[:, :WIDTH]
        gradient = (half @ policy_weight.mT).mT @ half
        # All factors are unit matrices, and so is every result.
        return (again, stack_weight, judged, target_weight, acted, gradient), None

    return lax.scan(update, factors, None, length=LENGTH)[0]


def make_step(seeds: int, dtype: jnp.dtype) -> Callable[[int], None]:
    state = factors(seeds, dtype)

    def step(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = chain(state)
        jax.block_until_ready(state)

    step(1)
    return step


def main() -> None:
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}\n")
    print("| precision | seeds | µs | spread | TFLOP/s |\n|---|---|---|---|---|")
    for dtype in map(jnp.dtype, (jnp.float32, jnp.bfloat16)):
        for seeds in (1, 10, 50):
            seconds, spread = repeated(make_step(seeds, dtype), 0.3)
            rate = seeds * PRODUCTS * 2 * WIDTH**3 * LENGTH / seconds
            print(
                f"| {dtype.name} | {seeds} | {1e6 * seconds / LENGTH:,.0f} "
                f"| {spread:.2f} | {rate / 1e12:.2f} |"
            )


if __name__ == "__main__":
    main()
