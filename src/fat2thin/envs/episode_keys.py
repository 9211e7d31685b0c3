"""Random numbers of episodes that are played on the host: from a key, an episode and a step.

Whoever plays beside it, and how many processes there are, does not matter to an episode.
"""

import jax
from jaxtyping import Array, Int, Key

from fat2thin.random_streams import LARGEST_SEED


def reset_seed(key: Key[Array, ""], episode: Int[Array, ""]) -> Int[Array, ""]:
    """What the environment of an episode is reset with."""
    reset, _ = jax.random.split(key)
    return jax.random.randint(jax.random.fold_in(reset, episode), (), 0, LARGEST_SEED)


def action_key(
    key: Key[Array, ""], episode: Int[Array, ""], step: Int[Array, ""]
) -> Key[Array, ""]:
    """The key of what is drawn for the action of a step."""
    _, acting = jax.random.split(key)
    return jax.random.fold_in(jax.random.fold_in(acting, episode), step)


def processor() -> jax.Device:
    """Where policies are asked on the host; the default device where JAX may use no other."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return jax.devices()[0]
