"""Streaming: a window of rows on the device, refilled with blocks of a log that does not fit.

A log is cut into blocks of equal size, in an order that depends on its hash and the number of the
block alone. The window holds `HELD` neighbours of that order, and all jobs draw from it. Its place
is a function of the step, so a resumed run sees the same rows. It moves between chunks of updates,
by so many blocks that a row is drawn once on average while it is there, or more often where a chunk
draws more rows than the window has. Over one cycle, all blocks are there for the same time. Rows of
one batch are from the same window, so they are less varied than those of the whole log where blocks
differ; `HELD` blocks from all over the log keep that small.
"""

import concurrent.futures
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from fat2thin.data import Dataset
from fat2thin.data.row_arrays import FollowingRows
from fat2thin.engine.program import Data, LoggedRows
from fat2thin.evaluation.held_out import Watched
from fat2thin.policies import in_half_ranges

HELD = 16
"""Blocks in a window: it is refilled by a sixteenth of it."""


class Blocks(NamedTuple):
    """The blocks of a log: `number` of them with `size` rows each, of which `held` are there.

    Blocks have equal sizes, so up to `number` - 1 rows belong to two neighbouring blocks.
    """

    rows: int
    size: int
    number: int
    held: int

    def start(self, place: int) -> int:
        """Return the first row of a block."""
        return 0 if self.number == 1 else place * (self.rows - self.size) // (self.number - 1)

    def first(self, step: int, longest: int, batch_size: int) -> int:
        """Return the place, in the order of blocks, of the window's first block at a step.

        A block stays for a multiple of `longest` updates, the most that a chunk may have.
        """
        if self.number == self.held:
            return 0
        chunks = max(1, round(self.held * self.size / (batch_size * longest)))
        return step * self.held // (chunks * longest)


def blocks_of(rows: int, window: int) -> Blocks:
    """Cut a log into blocks so that a window has at most `window` rows, `HELD` at least."""
    if rows <= max(window, HELD):
        return Blocks(rows, rows, 1, 1)
    count = math.ceil(rows / max(1, window // HELD))
    return Blocks(rows, math.ceil(rows / count), count, HELD)


def block_order(sha256: str, count: int) -> list[int]:
    """Return the numbers of the blocks in the order in which they come into the window."""

    def key(number: int) -> bytes:
        return hashlib.sha256(f"{sha256} {number}".encode()).digest()

    return sorted(range(count), key=key)


class _Block(NamedTuple):
    """The rows of a block in host memory; `following` and `values` as if it were in slot 0."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    continuation: np.ndarray
    following: np.ndarray
    values: np.ndarray
    next_logged: np.ndarray


class StreamedLog:
    """One log: its blocks, their order, and how to read them."""

    def __init__(self, dataset: Dataset, sha256: str, window: int) -> None:
        """`dataset` has the rows to learn from, scaled; `sha256` is the hash of the whole log."""
        self.dataset, self.blocks = dataset, blocks_of(dataset.rows, window)
        self.order = block_order(sha256, self.blocks.number)
        following, size = dataset.next_observation, self.blocks.size
        self._apart = following.apart if isinstance(following, FollowingRows) else None
        self.apart = size
        if self._apart is not None:
            starts = np.asarray([self.blocks.start(one) for one in range(self.blocks.number)])
            ends = (np.searchsorted(self._apart, place) for place in (starts, starts + size))
            self.apart = min(size, int(np.max(-np.subtract(*ends))) + 1)

    def numbers(self, first: int) -> dict[int, int]:
        """Return the blocks of the window that starts at a place of the order, by slot."""
        held, count = self.blocks.held, self.blocks.number
        return {place % held: self.order[place % count] for place in range(first, first + held)}

    def read(self, number: int) -> _Block:
        """Read a block into host memory."""
        dataset, size = self.dataset, self.blocks.size
        start = self.blocks.start(number)
        rows = slice(start, start + size)
        apart = np.arange(size)
        if self._apart is not None:
            first, last = np.searchsorted(self._apart, (rows.start, rows.stop))
            # The row below the last one belongs to another block.
            apart = np.union1d(self._apart[first:last] - start, size - 1)
        values = np.zeros((self.apart, dataset.observation_size), np.float32)
        values[: apart.size] = dataset.next_observation[start + apart]
        following = np.arange(1, size + 1, dtype=np.int32)
        following[apart] = self.blocks.held * size + np.arange(apart.size)
        # 1 where the row below has the next logged action, and is in the block.
        known = np.ones(size, np.float32)
        first, last = np.searchsorted(dataset.episode_start, (start + 1, start + size))
        known[dataset.episode_start[first:last] - 1 - start] = 0.0
        known[-1] = 0.0
        columns = (dataset.observation, dataset.action, dataset.reward, dataset.continuation)
        observation, action, reward, continuation = (
            np.asarray(one[rows], np.float32) for one in columns
        )
        return _Block(observation, action, reward, continuation, following, values, known)


class WholeLogs(NamedTuple):
    """Logs that are on the device with all of their rows."""

    data: Data

    def at(self, step: int, length: int) -> Data:
        """Return the rows for a chunk: those of every other one."""
        return self.data

    def close(self) -> None:
        """Do nothing: no file is read."""


class Window:
    """The rows of all logs that are on the device at a step; `at` moves it there."""

    def __init__(
        self, logs: Sequence[StreamedLog], batch_size: int, longest: int,
        watched: Watched | None, next_action: bool, place: Callable[[Data], Data],
    ) -> None:  # fmt: skip
        """`longest` is the most updates of a chunk; `place` puts the data on all devices."""
        self._logs, self._batch_size, self._longest = logs, batch_size, longest
        self._there: list[dict[int, int]] = [{} for _ in logs]
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "fat2thin-reader")
        self._coming: dict[tuple[int, int], concurrent.futures.Future[_Block]] = {}
        first = logs[0].dataset
        self._box = jnp.asarray(first.action_low), jnp.asarray(first.action_high)
        every = [log.blocks for log in logs]
        rows = (len(logs), max(one.held * one.size for one in every))
        states = max(log.blocks.held * (log.blocks.size + log.apart) for log in logs)
        self._data = place(
            Data(
                rows=LoggedRows(
                    observation=jnp.zeros((len(logs), states, first.observation_size)),
                    action=jnp.zeros((*rows, first.action_size)),
                    reward=jnp.zeros(rows),
                    continuation=jnp.zeros(rows),
                    following=jnp.zeros(rows, jnp.int32),
                    next_logged=jnp.zeros(rows) if next_action else None,
                ),
                row_count=jnp.asarray([one.held * one.size for one in every], jnp.int32),
                watched=watched,
            )
        )

    def at(self, step: int, length: int) -> Data:
        """Return the rows for the chunk of `length` updates that begins with a step."""
        for number, log in enumerate(self._logs):
            wanted = self._wanted(log, step)
            for slot, block in wanted.items():
                if self._there[number].get(slot) != block:
                    coming = self._coming.pop((number, block), None)
                    self._put(number, slot, log.read(block) if coming is None else coming.result())
                    self._there[number][slot] = block
        self._read_ahead(step + length)
        return self._data

    def _wanted(self, log: StreamedLog, step: int) -> dict[int, int]:
        return log.numbers(log.blocks.first(step, self._longest, self._batch_size))

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._reader.shutdown(cancel_futures=True)

    def _put(self, number: int, slot: int, block: _Block) -> None:
        log = self._logs[number]
        size, apart, held = log.blocks.size, log.apart, log.blocks.held
        # Rows below are in the same slot, and next observations kept apart in that of their own.
        kept = block.following >= held * size
        following = block.following + np.where(kept, slot * apart, slot * size).astype(np.int32)
        action = in_half_ranges(jnp.asarray(block.action), *self._box)
        new = (block.observation, action, block.reward, block.continuation, following,
               block.next_logged)  # fmt: skip
        rows = _filled(
            self._data.rows, *map(jnp.asarray, new), jnp.asarray(block.values), jnp.int32(number),
            jnp.int32(slot * size), jnp.int32(held * size + slot * apart),
        )  # fmt: skip
        self._data = self._data._replace(rows=rows)

    def _read_ahead(self, step: int) -> None:
        """Start to read the blocks of the next chunk, while this one is computed."""
        wanted = {
            (number, block)
            for number, log in enumerate(self._logs)
            for block in self._wanted(log, step).values()
            if block not in self._there[number].values()
        }
        self._coming = {key: one for key, one in self._coming.items() if key in wanted}
        for number, block in sorted(wanted - self._coming.keys()):
            self._coming[number, block] = self._reader.submit(self._logs[number].read, block)


@functools.partial(jax.jit, donate_argnames="rows")
def _filled(
    rows: LoggedRows, observation: Float[Array, "size observation"],
    action: Float[Array, "size action"], reward: Float[Array, " size"],
    continuation: Float[Array, " size"], following: Int[Array, " size"],
    known: Float[Array, " size"], values: Float[Array, "apart observation"],
    log: Int[Array, ""], row: Int[Array, ""], apart: Int[Array, ""],
) -> LoggedRows:  # fmt: skip
    """Return the window with a block in it, from `row` on."""

    def put(array: Array, part: Array, place: Array) -> Array:
        rest = (jnp.int32(0),) * (array.ndim - 2)
        return lax.dynamic_update_slice(array, part[None], (log, place, *rest))

    known_rows = rows.next_logged
    return LoggedRows(
        observation=put(put(rows.observation, observation, row), values, apart),
        action=put(rows.action, action, row),
        reward=put(rows.reward, reward, row),
        continuation=put(rows.continuation, continuation, row),
        following=put(rows.following, following, row),
        next_logged=None if known_rows is None else put(known_rows, known, row),
    )
