"""Random-number streams: one stream per purpose, one key per seed, stream and number.

The draws of a seed depend on nothing else, in particular not on which other seeds run with it.
"""

import enum

import jax
from jaxtyping import Array, Int, Key

LARGEST_SEED = 2**31 - 1


class Stream(enum.IntEnum):
    """Purposes of random draws. The numbers never change: they are part of what a seed means."""

    LOG = 0  # the log of a task that generates its own
    INITIAL_STATE = 1  # initial networks
    BATCH = 2  # rows of the log in the batch of an update
    UPDATE = 3  # draws inside an update
    EVALUATION = 4  # episodes of evaluations during training; the number is the step
    FRESH_EVALUATION = 5  # episodes of evaluations after training
    REFERENCE = 6  # episodes of the reference rows
    PREPARATION_BATCH = 7  # rows of the log in the batch of a preparation update
    PREPARATION = 8  # draws inside a preparation update
    SIGNALS = 9  # draws for signals on held-out rows; the number is the step


def stream_keys(seeds: Int[Array, " seeds"], stream: Stream, number: int) -> Key[Array, " seeds"]:
    """Return `stream_key` for several seeds."""
    return jax.vmap(lambda seed: stream_key(seed, stream, number))(seeds)


def stream_key(
    seed: int | Int[Array, ""], stream: Stream, number: int | Int[Array, ""] = 0
) -> Key[Array, ""]:
    """Return the key of a seed (0 to 2³¹ − 1) for the `number`-th draw of a stream."""
    return fold(seed_key(seed), stream, number)


def seed_key(seed: int | Int[Array, ""]) -> Key[Array, ""]:
    """Return the key from which all streams of a seed are derived."""
    # Explicit, so that a seed does not depend on JAX's default generator.
    return jax.random.key(seed, impl="threefry2x32")


def fold(key: Key[Array, ""], stream: Stream, number: int | Int[Array, ""] = 0) -> Key[Array, ""]:
    """Return the key for the `number`-th draw of a stream."""
    return jax.random.fold_in(jax.random.fold_in(key, int(stream)), number)
