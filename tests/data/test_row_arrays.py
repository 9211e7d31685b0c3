"""Arrays that are read in parts: next observations, selections, functions, and their statistics."""

import dataclasses
import tempfile

import jax.numpy as jnp
import numpy as np
import pytest

from fat2thin.data import Dataset
from fat2thin.data.column_statistics import deviation, mean, quantiles
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.row_arrays import (
    FollowingRows,
    StoredRows,
    following_rows,
    is_lazy,
)
from fat2thin.data.scaling import find_scales
from fat2thin.engine.pack import data_size, on_device

RNG = np.random.default_rng(5)
STATES = RNG.normal(size=(40, 3)).astype(np.float32)
KEYS = (
    slice(None), slice(3, 17), slice(2, 30, 4), slice(30, 5, -3), slice(7, 3), 6, -1, [4, 0, 39, 0],
    np.array([[1, 2], [38, 39]]), STATES[:, 0] > 0, (slice(4, 9), 1), ([3, 8], slice(1, 3)),
    (slice(None), np.array([2, 0])), (np.array([1, 9]), np.array([0, 2])), Ellipsis,
)  # fmt: skip


def following(cuts=(9, 22)):
    """Return next observations: those of the row below, except at cuts and at the last row."""
    rows = np.roll(STATES, -1, axis=0)
    rows[[*cuts, 39]] = RNG.normal(size=(len(cuts) + 1, 3))
    return rows


@pytest.fixture(params=[2**19, 7])
def in_blocks(request, monkeypatch):
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", request.param)


def log(**changes):
    arrays = {
        "observation": STATES, "action": RNG.uniform(-1, 1, (40, 2)).astype(np.float32),
        "reward": RNG.normal(size=40).astype(np.float32), "next_observation": following(),
        "continuation": np.ones(40, np.float32), "episode_start": [0, 10, 23],
    }  # fmt: skip
    box = {"action_low": (-1.0, -1.0), "action_high": (1.0, 1.0), "discount": 0.9}
    return Dataset(name="log", **{**arrays, **box, **changes})


def stored_rows(array):
    """Return the rows of an array as those of a file."""
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    return StoredRows(mapped)


def lazy(dataset):
    """Return the data set as if its rows were read from a file."""
    arrays = {name: stored_rows(np.asarray(getattr(dataset, name))) for name in dataset.row_arrays}
    found = dataset.next_observation
    if isinstance(found, FollowingRows):
        rows = FollowingRows(arrays["observation"], found.apart, found.values)
        arrays["next_observation"] = rows
    return dataclasses.replace(dataset, **arrays)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_rows_are_indexed_like_an_array(key, in_blocks):
    whole = following()
    array = following_rows(STATES, whole)
    assert isinstance(array, FollowingRows)
    np.testing.assert_array_equal(array[key], whole[key])


def test_only_rows_that_are_not_the_row_below_are_kept(in_blocks):
    array = following_rows(STATES, following())
    np.testing.assert_array_equal(array.apart, [9, 22, 39])
    whole = np.asarray(array)
    np.testing.assert_array_equal(array - STATES, whole - STATES)
    np.testing.assert_array_equal(array.T, whole.T)
    np.testing.assert_array_equal(array.max(axis=0), whole.max(axis=0))
    assert array.min() == whole.min()
    with pytest.raises(IndexError, match="row 40 does not exist"):
        array[[40]]


def test_zero_and_minus_zero_are_different_bits(in_blocks):
    states = STATES.copy()
    states[4, 1] = 0.0
    rows = np.roll(states, -1, axis=0)
    rows[3, 1] = -0.0
    array = following_rows(states, rows)
    np.testing.assert_array_equal(array.apart, [3, 39] if (rows[39] != 0).all() else [3])
    assert np.asarray(array).tobytes() == rows.tobytes()


def test_a_log_whose_rows_do_not_follow_each_other_keeps_all():
    shuffled = STATES[RNG.permutation(40)]
    assert following_rows(STATES, shuffled) is shuffled
    assert log(next_observation=shuffled).next_observation is shuffled


def test_hash_and_device_do_not_depend_on_what_is_stored():
    whole = following()
    dataset = log(next_observation=whole)
    assert isinstance(dataset.next_observation, FollowingRows)
    other = log(next_observation=whole.astype(np.float64), action=dataset.action)
    assert not isinstance(other.next_observation, FollowingRows)
    data = on_device([dataset])
    batch = data.rows.batch(jnp.int32(0), jnp.arange(40), 40)
    assert np.asarray(batch.next_observation).tobytes() == whole.tobytes()
    # 3 observations, 2 actions, reward, continuation and a place; three rows are kept apart.
    assert data_size(dataset) == 4 * (40 * 8 + 3 * 3)
    assert sum(leaf.nbytes for leaf in data.rows if leaf is not None) == data_size(dataset)


def test_parts_and_scales_of_a_file_are_those_of_an_array(in_blocks):
    dataset = log()
    stored = lazy(dataset)
    assert stored.sha256 == dataset.sha256
    expected, found = (learned_and_held_out(one, 0.4, 0) for one in (dataset, stored))
    for one, other in zip(expected, found, strict=True):
        assert is_lazy(other.observation) and other.sha256 == one.sha256
        scales = find_scales(one, True, "deviation", True)
        again = find_scales(other, True, "deviation", True)
        np.testing.assert_allclose(again.observation.scale, scales.observation.scale, rtol=1e-12)
        np.testing.assert_allclose(again.level, scales.level, rtol=1e-12)
        assert scales.apply(other).sha256 == scales.apply(one).sha256


def test_statistics_of_a_file_are_those_of_numpy(in_blocks):
    table = np.concatenate([STATES, -STATES[:7], np.zeros((5, 3), np.float32)])
    shares = (0.0, 0.05, 0.5, 0.77, 1.0)
    stored = stored_rows(table)
    wanted = np.quantile(table.astype(np.float64), shares, axis=0).T
    np.testing.assert_allclose(quantiles(stored, shares), wanted, rtol=1e-15, atol=0)
    np.testing.assert_allclose(mean(stored), table.mean(axis=0, dtype=float), rtol=1e-12)
    np.testing.assert_allclose(deviation(stored), table.astype(float).std(axis=0), rtol=1e-12)
