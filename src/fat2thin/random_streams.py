"""Where random numbers come from: one stream a purpose, one key a seed, a stream and a number.

What a seed draws depends on nothing else, so it does not matter which seeds run beside it.
"""

import enum

import jax
from jaxtyping import Array, Int, Key

LARGEST_SEED = 2**31 - 1


class Stream(enum.IntEnum):
    """What random numbers are drawn for. A number keeps its meaning for ever."""

    LOG = 0  # the log of a task that makes its own
    INITIAL_STATE = 1  # the networks an algorithm starts with
    BATCH = 2  # which rows of the log an update sees
    UPDATE = 3  # what an update draws itself
    EVALUATION = 4  # episodes of the evaluation after so many updates
    FRESH_EVALUATION = 5  # episodes of an evaluation that was asked for later
    REFERENCE = 6  # episodes of the reference rows
    PREPARATION_BATCH = 7  # which rows of the log an update of the preparation sees
    PREPARATION = 8  # what an update of the preparation draws itself
    SIGNALS = 9  # what is drawn to look at held-out rows after so many updates


def stream_keys(seeds: Int[Array, " seeds"], stream: Stream, number: int) -> Key[Array, " seeds"]:
    """The keys of several seeds, each as `stream_key` gives it."""
    return jax.vmap(lambda seed: stream_key(seed, stream, number))(seeds)


def stream_key(
    seed: int | Int[Array, ""], stream: Stream, number: int | Int[Array, ""] = 0
) -> Key[Array, ""]:
    """Return the key of a seed (0 to 2³¹ − 1) for the `number`-th draw of a stream."""
    return fold(seed_key(seed), stream, number)


def seed_key(seed: int | Int[Array, ""]) -> Key[Array, ""]:
    """Return the key that all streams of a seed are folded into."""
    # Named, so that a seed means the same whatever generator JAX is set to.
    return jax.random.key(seed, impl="threefry2x32")


def fold(key: Key[Array, ""], stream: Stream, number: int | Int[Array, ""] = 0) -> Key[Array, ""]:
    """Return the key for the `number`-th draw of a stream."""
    return jax.random.fold_in(jax.random.fold_in(key, int(stream)), number)
