"""A policy as StableHLO: the bytes of `jax.export`, with any number of rows."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from fat2thin.export.contents import Contents
from fat2thin.export.portable import Answer, Policy
from fat2thin.export.recorder import INPUTS

PLATFORMS = ("cpu", "cuda", "tpu")
READER = '''"""Run a policy from policy.stablehlo with JAX alone: the ten lines that it takes."""

import pathlib

import jax.export

data = pathlib.Path(__file__).with_name("policy.stablehlo").read_bytes()
decide = jax.export.deserialize(bytearray(data)).call


def policy(observation, uniform, last=None):
    """Return a dict of action, centre, low, high, refer and reason; all inputs are float32."""
    return decide(*(given for given in (observation, uniform, last) if given is not None))
'''


def stablehlo_file(contents: Contents) -> bytes:
    """Return the bytes of policy.stablehlo."""
    policy = _Settled(contents.arrays, contents.settings, np.float32, jnp)
    sizes = len(policy.observations), len(policy.actions), len(policy.actions)
    wanted = INPUTS if policy.needs_last_action else INPUTS[:2]
    (rows,) = jax.export.symbolic_shape("rows")
    shapes = [jax.ShapeDtypeStruct((rows, size), jnp.float32) for size in sizes[: len(wanted)]]
    decide = jax.jit(lambda *given: _decide(policy, *given))
    # Ranks are equal everywhere; only constants of one row are extended.
    exported = jax.export.export(decide, platforms=PLATFORMS)(*shapes)
    return bytes(exported.serialize())


class _Settled(Policy):
    """Clips the action to the very ends that it returns.

    XLA may compute a number twice, rounded differently, but not across the bounds of a conditional.
    """

    def _clipped(self, sample: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        def clip(sample: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
            return self._clip(sample, low, high), low, high

        def nothing(*parts: Any) -> Any:
            return tuple(jnp.full_like(part, jnp.nan) for part in parts)

        parts = jnp.broadcast_arrays(sample, low, high)
        # Never true, which the compiler cannot know.
        impossible = jnp.any(jnp.isinf(parts[1]) & (parts[1] > 0.0))
        return jax.lax.cond(impossible, nothing, clip, *parts)


def _decide(policy: Policy, observation: Any, uniform: Any, last: Any = None) -> dict[str, Any]:
    # By default an accelerator would round products to about three digits.
    with jax.default_matmul_precision("highest"):
        found = policy.decide(observation, uniform, last)
    rows = observation.shape[0]
    named = dict(zip(Answer._fields, found, strict=True))
    numbers = {
        name: jnp.broadcast_to(part, (rows, len(policy.actions))) for name, part in named.items()
        if name not in ("refer", "reason")
    }  # fmt: skip
    codes = {
        name: jnp.broadcast_to(named[name], (rows, 1))[:, 0].astype(jnp.int32)
        for name in ("refer", "reason")
    }
    return numbers | codes
