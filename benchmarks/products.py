"""Time only the matrix products of an FtTPO update, a lower bound on the time of the update.

    python benchmarks/products.py

Only the products of the hidden layers (256 × 256, batches of 256) are computed, stacked as in
`algorithms/fttpo.py` with the closed-form actor: no first layer, head, bias or optimiser. They are
timed in the default precision (TF32 on a GPU) and with inputs and outputs in bfloat16.
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
"""Products of size batch × width × width per seed: the stack of V and Q forward, backward twice and
forward again; both targets at two states; the policy at two states, and backward twice."""

Factors = tuple[Array, ...]


def factors(seeds: int, dtype: jnp.dtype) -> Factors:
    """Return features and weights of the stack, the targets and the policy."""

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
    """Compute the products of `LENGTH` updates."""

    def update(factors: Factors, _: None) -> tuple[Factors, None]:
        stack, stack_weight, targets, target_weight, policy, policy_weight = factors
        forward = stack @ stack_weight
        back = forward @ stack_weight.mT
        again = (back.mT @ stack) @ stack_weight
        target_values = targets @ target_weight
        acted = policy @ policy_weight
        half = acted[:, :WIDTH]
        gradient = (half @ policy_weight.mT).mT @ half
        # All factors are identity matrices, and so is every result.
        return (again, stack_weight, target_values, target_weight, acted, gradient), None

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
