"""The window of rows on the device: its blocks, their order, and the rows in it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.engine.pack import on_device
from fat2thin.engine.window import HELD, StreamedLog, Window, block_order, blocks_of

ROWS, BATCH, LONGEST = 530, 8, 10


def batch_rows(data, log=0):
    """Return all rows of a log as one table, as updates see them."""
    count = int(data.row_count[log])
    batch = data.rows.batch(jnp.int32(log), jnp.arange(count), count)
    columns = [np.asarray(column).reshape(count, -1) for column in batch if column is not None]
    return np.concatenate(columns, axis=1)


def log_of(tiny_world, rows=ROWS, seed=0):
    """Return a log in which most next observations are the row below, in uneven episodes."""
    dataset = tiny_world.dataset(rows=rows, seed=seed)
    starts = np.unique([0, 7, 8, *range(31, rows, 37)])
    following = np.roll(dataset.observation, -1, axis=0)
    following[np.append(starts[1:], rows) - 1] += 1.0
    changes = {"next_observation": following, "episode_start": starts}
    return dataclasses.replace(dataset, **changes)


def window_on(*datasets, window, next_action=False):
    streamed = [StreamedLog(one, one.sha256, window) for one in datasets]
    return Window(streamed, BATCH, LONGEST, None, next_action, lambda data: data), streamed


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


@pytest.mark.parametrize("next_action", [False, True])
def test_rows_of_the_window_are_rows_of_the_log(next_action, tiny_world):
    """Two logs of different lengths; next actions are unknown at the ends of blocks only."""
    datasets = [log_of(tiny_world), log_of(tiny_world, rows=400, seed=1)]
    whole = on_device(datasets, next_action=next_action)
    window, logs = window_on(*datasets, window=96, next_action=next_action)
    for step in (0, 10, 20, 300, 20):
        data = window.at(step, LONGEST)
        for number, log in enumerate(logs):
            first = log.blocks.first(step, LONGEST, BATCH)
            there, size = log.numbers(first), log.blocks.size
            rows = np.concatenate(
                [log.blocks.start(there[slot]) + np.arange(size) for slot in sorted(there)]
            )
            expected, found = batch_rows(whole, number)[rows], batch_rows(data, number)
            if next_action:
                ends = np.arange(size - 1, rows.size, size)
                assert (found[ends, -1] == 0).all()
                expected, found = np.delete(expected, ends, 0), np.delete(found, ends, 0)
            np.testing.assert_array_equal(found, expected)
    window.close()


def test_every_block_is_there_equally_long_and_rows_are_drawn_once_a_stay():
    blocks = blocks_of(10_000, 1600)
    seen = np.zeros(blocks.number, int)
    firsts = [blocks.first(step, LONGEST, BATCH) for step in range(0, 200_000, LONGEST)]
    for first in firsts[: firsts.index(10 * blocks.number)]:
        seen[np.arange(first, first + HELD) % blocks.number] += 1
    assert seen.max() - seen.min() <= 0.05 * seen.mean()
    stay = next(step for step, first in enumerate(firsts) if first == HELD) * LONGEST
    assert stay * BATCH == pytest.approx(blocks.held * blocks.size, rel=0.1)


def test_the_place_of_the_window_is_a_function_of_the_step(tiny_world):
    dataset = log_of(tiny_world)
    window, _ = window_on(dataset, window=64)
    moved = [batch_rows(window.at(step, LONGEST)) for step in range(0, 100, LONGEST)]
    assert any(not np.array_equal(moved[0], other) for other in moved[1:])
    for number in (9, 3):
        fresh, _ = window_on(dataset, window=64)
        np.testing.assert_array_equal(batch_rows(fresh.at(10 * number, 5)), moved[number])
        fresh.close()
    window.close()
