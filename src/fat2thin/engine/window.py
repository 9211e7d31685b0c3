"""Streaming: a window of rows on the device, refilled with blocks of a log that does not fit.

A log is cut into blocks of equal size, in an order that depends on its hash and the number of the
block alone. The window is `HELD` neighbours of that order, and all jobs draw from it. Its place is
a function of the update alone: it moves with every update, so that a row is drawn once on average
while it is there, and a resumed run sees the same rows. The device holds the blocks of all updates
of a chunk, and those of the next chunk are read while this one is computed. Over one cycle, all
blocks are there for the same time. Rows of one batch are from the same window, so they are less
varied than those of the whole log where blocks differ; `HELD` blocks from all over the log keep
that small.
"""

import concurrent.futures
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from fat2thin.data import Dataset
from fat2thin.data.row_arrays import FollowingRows
from fat2thin.engine.program import Data, LoggedRows, WindowPlace
from fat2thin.evaluation.batches import action_box
from fat2thin.evaluation.held_out import Watched
from fat2thin.policies import in_half_ranges
from fat2thin.settings.spec import WINDOW_BATCHES

HELD = 16
"""Blocks in a window."""


class Blocks(NamedTuple):
    """The blocks of a log: `number` of them with `size` rows each, of which a window has `held`.

    Blocks have equal sizes, so up to `number` - 1 rows belong to two neighbouring blocks.
    """

    rows: int
    size: int
    number: int
    held: int

    def start(self, place: int) -> int:
        """Return the first row of a block."""
        return 0 if self.number == 1 else place * (self.rows - self.size) // (self.number - 1)


class Stay(NamedTuple):
    """Where the window of a log is at an update, and the slots of the device that blocks take."""

    blocks: Blocks
    updates: int
    """Number of updates that a block stays in the window."""
    moved: int
    """The most blocks by which the window moves during a chunk."""

    @classmethod
    def of(cls, blocks: Blocks, batch_size: int, longest: int) -> "Stay":
        """Return the stay of blocks whose rows are drawn once; a chunk has at most `longest`."""
        updates = max(1, round(blocks.held * blocks.size / batch_size))
        return cls(blocks, updates, math.ceil(longest * blocks.held / updates))

    @property
    def slots(self) -> int:
        """Blocks on the device: those of all windows of a chunk."""
        return min(self.blocks.number, self.blocks.held + self.moved)

    def first(self, number: int) -> int:
        """Return the place, in the order of blocks, of the window's first block at an update."""
        return 0 if self.blocks.number == 1 else number * self.blocks.held // self.updates

    def places(self, start: int, length: int) -> range:
        """Return the places, in the order of blocks, that a chunk of updates draws from."""
        return range(self.first(start), self.first(start + length - 1) + self.blocks.held)


def blocks_of(rows: int, window: int) -> Blocks:
    """Cut a log into blocks so that a window has at most `window` rows, `HELD` at least."""
    if rows <= max(window, HELD):
        return Blocks(rows, rows, 1, 1)
    count = math.ceil(rows / max(1, window // HELD))
    return Blocks(rows, math.ceil(rows / count), count, HELD)


def rows_there(rows: int, window: int, batch_size: int, longest: int) -> int:
    """Return how many rows of a log a device holds at most for a window; 0 is the whole log."""
    if not window or window >= rows:
        return rows
    stay = Stay.of(blocks_of(rows, window), batch_size, longest)
    # The blocks that the next chunk needs are there too, next to the slots.
    return min(rows, (stay.slots + stay.moved) * stay.blocks.size)


def window_that_fits(rows: int, batch_size: int, longest: int) -> int:
    """Return the largest window for which a device holds at most this number of rows, about."""
    fit = int((rows - 2 * batch_size * longest) / (1 + 2 / HELD))
    return max(WINDOW_BATCHES * batch_size, fit)


def block_order(sha256: str, count: int) -> list[int]:
    """Return the numbers of the blocks in the order in which they come into the window."""

    def key(number: int) -> bytes:
        return hashlib.sha256(f"{sha256} {number}".encode()).digest()

    return sorted(range(count), key=key)


class _Block(NamedTuple):
    """The rows of a block, on the host or the device; places in it as if it were in slot 0."""

    observation: Any
    action: Any
    reward: Any
    continuation: Any
    following: Any
    """The place of each next observation."""
    values: Any
    """Next observations that are not the row below in this block."""
    next_logged: Any
    allowed: Any
    """`Dataset.allowed`, or None."""


class StreamedLog:
    """One log: its blocks, their order, and how to read them."""

    def __init__(
        self, dataset: Dataset, sha256: str, window: int, batch_size: int, longest: int
    ) -> None:
        """`dataset` has the rows to learn from, scaled; `sha256` is the hash of the whole log.

        `longest` is the most updates of a chunk.
        """
        self.dataset, self.blocks = dataset, blocks_of(dataset.rows, window)
        self.stay = Stay.of(self.blocks, batch_size, longest)
        self.order = block_order(sha256, self.blocks.number)
        following, size = dataset.next_observation, self.blocks.size
        self._apart = following.apart if isinstance(following, FollowingRows) else None
        self.apart = size
        if self._apart is not None:
            starts = np.asarray([self.blocks.start(one) for one in range(self.blocks.number)])
            ends = (np.searchsorted(self._apart, place) for place in (starts, starts + size))
            self.apart = min(size, int(np.max(-np.subtract(*ends))) + 1)

    def by_slot(self, places: range) -> dict[int, int]:
        """Return the blocks at some places of the order, by slot of the device."""
        slots, count = self.stay.slots, self.blocks.number
        return {place % slots: self.order[place % count] for place in places}

    def read(self, number: int) -> _Block:
        """Read a block into host memory, with actions in half-ranges of the box."""
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
        following[apart] = self.stay.slots * size + np.arange(apart.size)
        # 1 where the row below has the next logged action, and is in the block.
        known = np.ones(size, np.float32)
        first, last = np.searchsorted(dataset.episode_start, (start + 1, start + size))
        known[dataset.episode_start[first:last] - 1 - start] = 0.0
        known[-1] = 0.0
        columns = (dataset.observation, dataset.action, dataset.reward, dataset.continuation)
        observation, action, reward, continuation = (
            np.asarray(one[rows], np.float32) for one in columns
        )
        # On the host, as for a whole log: a device may round the last bit in another way.
        action = in_half_ranges(action, *action_box(dataset))
        allowed = None if dataset.allowed is None else np.asarray(dataset.allowed[rows], np.float32)
        return _Block(observation, action, reward, continuation, following, values, known, allowed)


class WholeLogs(NamedTuple):
    """Logs that are on the device with all of their rows."""

    data: Data

    def at(self, step: int, length: int) -> Data:
        """Return the rows for a chunk: those of every other one."""
        return self.data

    def close(self) -> None:
        """Do nothing: no file is read."""


class Window:
    """The rows of all logs that are on the device for a chunk of updates; `at` puts them there.

    A thread reads the next blocks and copies them to the device while a chunk is computed. Between
    chunks, they only have to be copied to their slots there.
    """

    def __init__(
        self, logs: Sequence[StreamedLog], watched: Watched | None, next_action: bool,
        place: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        """`place` puts arrays on all devices."""
        self._logs, self._place = logs, place
        self._there: list[dict[int, int]] = [{} for _ in logs]
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "fat2thin-reader")
        self._coming: dict[tuple[int, int], concurrent.futures.Future[_Block]] = {}
        first, stays = logs[0].dataset, [log.stay for log in logs]
        rows = (len(logs), max(stay.slots * stay.blocks.size for stay in stays))
        states = max(log.stay.slots * (log.blocks.size + log.apart) for log in logs)
        numbers = ([getattr(stay.blocks, name) for stay in stays] for name in ("size", "held"))
        moves = ([getattr(stay, name) for stay in stays] for name in ("updates", "slots"))
        self._data = place(
            Data(
                rows=LoggedRows(
                    observation=jnp.zeros((len(logs), states, first.observation_size)),
                    action=jnp.zeros((*rows, first.action_size)),
                    reward=jnp.zeros(rows),
                    continuation=jnp.zeros(rows),
                    following=jnp.zeros(rows, jnp.int32),
                    next_logged=jnp.zeros(rows) if next_action else None,
                    allowed=None
                    if first.allowed is None
                    else jnp.zeros((*rows, first.allowed.shape[1])),
                ),
                row_count=jnp.asarray([log.blocks.held * log.blocks.size for log in logs]),
                window=WindowPlace(*(jnp.asarray(one) for one in (*numbers, *moves))),
                watched=watched,
            )
        )

    def at(self, step: int, length: int) -> Data:
        """Return the rows for the chunk of `length` updates that begins with a step."""
        for number, log in enumerate(self._logs):
            places = log.stay.places(step, length)
            for slot, block in log.by_slot(places).items():
                if self._there[number].get(slot) != block:
                    coming = self._coming.pop((number, block), None)
                    self._put(number, slot, coming.result() if coming else self._read(log, block))
                    self._there[number][slot] = block
        self._read_ahead(step + length)
        return self._data

    def close(self) -> None:
        """End the thread that reads ahead."""
        self._reader.shutdown(cancel_futures=True)

    def _read(self, log: StreamedLog, number: int) -> _Block:
        """Return a block on the device."""
        return self._place(jax.device_put(log.read(number)))

    def _put(self, number: int, slot: int, block: _Block) -> None:
        log, slots = self._logs[number], self._logs[number].stay.slots
        self._data = self._data._replace(
            rows=_filled(
                self._data.rows,
                block,
                jnp.int32(number),
                jnp.int32(slot),
                log.blocks.size,
                log.apart,
                slots,
            )
        )

    def _read_ahead(self, step: int) -> None:
        """Start to read the blocks that the next chunk may need, while this one is computed."""
        wanted: dict[tuple[int, int], StreamedLog] = {}
        for number, log in enumerate(self._logs):
            last = log.stay.first(step - 1) + log.blocks.held
            next_blocks = log.by_slot(range(last, last + log.stay.moved))
            there = self._there[number].values()
            wanted |= {(number, one): log for one in next_blocks.values() if one not in there}
        self._coming = {key: one for key, one in self._coming.items() if key in wanted}
        for (number, block), log in wanted.items():
            if (number, block) not in self._coming:
                self._coming[number, block] = self._reader.submit(self._read, log, block)


@functools.partial(jax.jit, donate_argnames="rows", static_argnames=("size", "apart", "slots"))
def _filled(
    rows: LoggedRows, block: Any, log: Int[Array, ""], slot: Int[Array, ""],
    size: int, apart: int, slots: int,
) -> LoggedRows:  # fmt: skip
    """Return the rows of the device with a block in a slot."""
    row, kept = slot * size, slots * size + slot * apart

    def put(array: Array, part: Array, place: Array = row) -> Array:
        rest = (jnp.int32(0),) * (array.ndim - 2)
        return lax.dynamic_update_slice(array, part[None], (log, place, *rest))

    # Rows below are in the same slot, and next observations kept apart in that of their own.
    below = block.following < slots * size
    following = block.following + jnp.where(below, row, slot * apart)
    known = rows.next_logged
    return LoggedRows(
        observation=put(put(rows.observation, block.observation), block.values, kept),
        action=put(rows.action, block.action),
        reward=put(rows.reward, block.reward),
        continuation=put(rows.continuation, block.continuation),
        following=put(rows.following, following),
        next_logged=None if known is None else put(known, block.next_logged),
        allowed=None if rows.allowed is None else put(rows.allowed, block.allowed),
    )
