"""Repeated rows, compared with a slow loop over Python tuples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fat2thin.data.checks import rows as checks
from fat2thin.data.checks.rows import repeated_rows


def slowly(arrays: list[np.ndarray]) -> list[bool]:
    seen: set[tuple] = set()
    found = []
    for row in range(len(arrays[0])):
        contents = tuple(np.float32(array[row]).tolist() for array in arrays)
        contents = tuple(tuple(part) if isinstance(part, list) else part for part in contents)
        found.append(contents in seen)
        seen.add(contents)
    return found


def repeats(arrays: list[np.ndarray]) -> list[bool]:
    found, compared = repeated_rows(arrays)
    assert compared == len(arrays[0])
    return np.isin(np.arange(compared), found).tolist()


tables = st.lists(
    st.tuples(*[st.sampled_from([0.0, -0.0, 1.0, 1e-45, 0.1, 3.0])] * 3), min_size=1, max_size=30
)


@given(rows=tables, dtype=st.sampled_from([np.float32, np.float64]))
def test_repeated_rows_agree_with_a_slow_loop(rows, dtype):
    table = np.array(rows, dtype)
    arrays = [table[:, :2], table[:, 2]]
    assert repeats(arrays) == slowly(arrays)


@pytest.mark.parametrize("cells", [1, 7, 10**6])
@pytest.mark.parametrize("different", [1, 2, 5])
def test_different_rows_with_one_hash_are_distinguished(cells, different, monkeypatch):
    numbers = np.arange(200)
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", cells)
    monkeypatch.setattr(
        checks, "_hashes", lambda tables, _: (numbers, numbers.astype(np.uint64) % different)
    )
    table = np.random.default_rng(0).integers(4, size=(200, 2)).astype(np.float64)
    # Equal rows have equal hashes, but not the other way round.
    table[:, 0] = np.arange(200) % different
    for arrays in ([table], [table[:, 1], table[:, :1]]):
        assert repeats(arrays) == slowly(arrays)


def test_a_file_joined_to_itself_is_all_repeats():
    half = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32)
    assert repeats([np.concatenate([half, half])]) == [False] * 500 + [True] * 500


def test_a_sample_has_all_rows_of_its_hashes():
    """The share of repeated rows in it is that of the log, within five standard errors."""
    draw = np.random.default_rng(1)
    table = draw.normal(size=(20_000, 3)).astype(np.float32)
    table = np.concatenate([table, table[draw.choice(20_000, 5_000, replace=False)]])
    found, compared = repeated_rows([table], 8)
    assert np.isin(found, np.flatnonzero(repeats([table]))).all()
    assert abs(compared - 25_000 / 8) < 5 * np.sqrt(25_000 / 8 * 1.4)
    share = found.size / compared
    assert abs(share - 0.2) < 5 * np.sqrt(0.2 * 0.8 / compared)


def test_numbers_are_compared_in_float32():
    # 1 + 1e-9 is 1 in float32; 1 + 1e-6 is not.
    assert repeats([np.array([1.0, 1 + 1e-9, 1 + 1e-6])]) == [False, True, False]
