"""The window of rows on the device: its blocks, their order, and the rows in it."""

import dataclasses
import itertools
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.engine.pack import on_device
from fat2thin.engine.program import WindowPlace
from fat2thin.engine.window import HELD, Stay, StreamedLog, Window, block_order, blocks_of

ROWS, BATCH, LONGEST = 530, 8, 10


def batch_rows(data, log=0, number=0):
    """Return all rows that an update may draw as one table, as it sees them."""
    count = int(data.row_count[log])
    batch = data.batch(jnp.int32(log), jnp.arange(count), jnp.int32(number))
    columns = [np.asarray(column).reshape(count, -1) for column in batch if column is not None]
    return np.concatenate(columns, axis=1)


def log_of(tiny_world, rows=ROWS, seed=0, starts=None):
    """Return a log in which most next observations are the row below, in uneven episodes."""
    dataset = tiny_world.dataset(rows=rows, seed=seed)
    starts = np.unique([0, 7, 8, *range(31, rows, 37)]) if starts is None else np.asarray(starts)
    following = np.roll(dataset.observation, -1, axis=0)
    following[np.append(starts[1:], rows) - 1] += 1.0
    changes = {"next_observation": following, "episode_start": starts}
    return dataclasses.replace(dataset, **changes)


def window_on(*datasets, window, next_action=False):
    streamed = [StreamedLog(one, one.sha256, window, BATCH, LONGEST) for one in datasets]
    return Window(streamed, None, next_action, lambda data: data), streamed


def test_the_order_depends_on_the_hash_and_the_number_of_a_block_alone():
    order = block_order("a" * 64, 50)
    assert sorted(order) == [*range(50)] != order
    assert [number for number in order if number < 20] == block_order("a" * 64, 20)
    assert block_order("b" * 64, 50) != order


@pytest.mark.parametrize(("rows", "window"), [(530, 64), (530, 160), (17, 1), (1000, 999)])
def test_blocks_cover_the_log_and_a_window_has_at_most_its_rows(rows, window):
    blocks = blocks_of(rows, window)
    starts = [blocks.start(number) for number in range(blocks.number)]
    covered = np.concatenate([np.arange(start, start + blocks.size) for start in starts])
    assert set(covered.tolist()) == set(range(rows))
    assert covered.size - rows < blocks.number
    assert blocks.held * blocks.size <= max(window, HELD)


def test_a_log_that_fits_is_one_block_in_its_own_order(tiny_world):
    dataset = log_of(tiny_world)
    window, (log,) = window_on(dataset, window=ROWS)
    assert log.blocks == blocks_of(ROWS, ROWS) == (ROWS, ROWS, 1, 1)
    for step in (0, 500):
        np.testing.assert_array_equal(
            batch_rows(window.at(step, LONGEST)), batch_rows(on_device([dataset]))
        )
    window.close()


@pytest.mark.parametrize(("window", "next_action"), [(96, False), (96, True), (320, True)])
def test_every_update_draws_from_the_rows_of_its_window(window, next_action, tiny_world):
    """Two logs of different lengths; next actions are unknown at the ends of blocks only."""
    datasets = [log_of(tiny_world), log_of(tiny_world, rows=400, seed=1)]
    whole = on_device(datasets, next_action=next_action)
    there, logs = window_on(*datasets, window=window, next_action=next_action)
    for start in (0, 10, 20, 300, 20):
        data = there.at(start, LONGEST)
        for number, log in itertools.product(range(start, start + LONGEST, 3), (0, 1)):
            blocks, first = logs[log].blocks, logs[log].stay.first(number)
            order = [logs[log].order[one % blocks.number] for one in range(first, first + HELD)]
            starts = [blocks.start(one) for one in order]
            rows = np.concatenate([start + np.arange(blocks.size) for start in starts])
            expected = batch_rows(whole, log)[rows]
            found = batch_rows(data, log, number)
            if next_action:
                ends = np.arange(blocks.size - 1, rows.size, blocks.size)
                assert (found[ends, -1] == 0).all()
                expected, found = np.delete(expected, ends, 0), np.delete(found, ends, 0)
            np.testing.assert_array_equal(found, expected)
    there.close()


ODD = {
    "one_episode": [0],
    "single_rows": range(400),
    "pairs": range(0, 400, 2),
    "cut_ends_last": [0, 200, 396, 397, 398, 399],
    "ends_of_blocks": range(0, 400, 6),
}


@pytest.mark.parametrize("starts", ODD.values(), ids=ODD)
def test_odd_episodes_come_into_the_window_as_they_are(starts, tiny_world):
    dataset = log_of(tiny_world, rows=400, starts=starts)
    whole = batch_rows(on_device([dataset]))
    there, (log,) = window_on(dataset, window=96)
    for start in (0, 200):
        data = there.at(start, LONGEST)
        for number in (start, start + LONGEST - 1):
            first = log.stay.first(number)
            order = [log.order[one % log.blocks.number] for one in range(first, first + HELD)]
            rows = [log.blocks.start(one) + np.arange(log.blocks.size) for one in order]
            expected = whole[np.concatenate(rows)]
            np.testing.assert_array_equal(batch_rows(data, 0, number), expected)
    there.close()


def test_blocks_are_read_by_another_thread_as_soon_as_the_one_before_has_come(
    tiny_world, monkeypatch
):
    """A block takes longer to read than a chunk to compute, where a window is large."""
    readers, read = [], StreamedLog.read

    def noted(log, number):
        readers.append(threading.current_thread())
        return read(log, number)

    monkeypatch.setattr(StreamedLog, "read", noted)
    window, (log,) = window_on(log_of(tiny_world), window=320)
    assert log.stay.updates / HELD > 2  # a block comes in less often than a chunk ends
    for start in range(0, 400, 2):
        window.at(start, 2)
        next_block = log.order[(log.stay.first(start + 1) + HELD) % log.blocks.number]
        assert (0, next_block) in window._coming or next_block in window._there[0].values()
    window.close()
    # Only the first window is read by the thread that computes.
    assert readers.count(threading.main_thread()) == HELD
    assert len(readers) > HELD + log.blocks.number


@pytest.mark.parametrize(("rows", "window"), [(10_000, 1600), (530, 53)])
def test_every_block_is_there_equally_long_and_rows_are_drawn_once_a_stay(rows, window):
    blocks = blocks_of(rows, window)
    stay = Stay.of(blocks, BATCH, LONGEST)
    seen = np.zeros(blocks.number, int)
    updates = 11 * blocks.number * stay.updates // HELD
    firsts = np.asarray([stay.first(number) for number in range(updates)])
    for first in firsts[: np.searchsorted(firsts, 10 * blocks.number)]:
        seen[np.arange(first, first + HELD) % blocks.number] += 1
    assert seen.max() - seen.min() <= 0.05 * seen.mean()
    of_block = np.searchsorted(firsts, HELD) * BATCH
    assert of_block == pytest.approx(HELD * blocks.size, rel=0.15)


def test_the_place_of_the_window_is_exact_beyond_32_bits():
    stay = Stay.of(blocks_of(10**9, 10**8), 256, 250)
    place = WindowPlace(*(jnp.asarray([one]) for one in (stay.blocks.size, HELD, stay.updates,
                                                         stay.slots)))  # fmt: skip
    for number in (0, 3, 10**6, 2**31 - 1):
        rows, count = place.rows(jnp.int32(0), jnp.arange(2), jnp.int32(number))
        first = number * HELD // stay.updates % stay.slots * stay.blocks.size
        assert rows.tolist() == [first, first + 1] and int(count) == stay.slots * stay.blocks.size


def test_the_place_of_the_window_is_a_function_of_the_step(tiny_world):
    dataset = log_of(tiny_world)
    window, _ = window_on(dataset, window=64)
    moved = [batch_rows(window.at(step, LONGEST), 0, step) for step in range(0, 100, LONGEST)]
    assert any(not np.array_equal(moved[0], other) for other in moved[1:])
    for number in (9, 3):
        fresh, _ = window_on(dataset, window=64)
        place = 10 * number
        np.testing.assert_array_equal(batch_rows(fresh.at(place, 5), 0, place), moved[number])
        fresh.close()
    window.close()
