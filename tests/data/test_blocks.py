import numpy as np
import pytest

from fat2thin.data.dataset import extremes, not_finite, rows_where
from fat2thin.data.row_arrays import blocks


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((10,), [4, 4, 2]), ((5, 2), [2, 2, 1]), ((3, 9), [1, 1, 1]), ((2, 0), [2]), ((0, 3), [])],
)
def test_a_block_has_a_fixed_number_of_cells_and_at_least_one_row(shape, lengths, monkeypatch):
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", 4)
    found = list(blocks(np.zeros(shape)))
    assert [part.stop - part.start for part in found] == lengths
    assert np.concatenate([[], *(np.arange(shape[0])[part] for part in found)]).tolist() == list(
        range(shape[0])
    )


@pytest.mark.parametrize("cells", [1, 5, 1000])
def test_matching_rows_are_found_in_all_blocks(cells, monkeypatch):
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", cells)
    array = np.zeros((6, 3))
    array[1, 2], array[4, 0] = np.nan, np.inf
    assert rows_where(not_finite, array).tolist() == [False, True, False, False, True, False]
    assert rows_where(not_finite, array[:, 2]).tolist() == [False, True, *[False] * 4]
    other = np.zeros((6, 3))
    other[3, 1] = 1
    assert rows_where(np.less, array, other).tolist() == [False, False, False, True, False, False]


def test_extremes_of_small_integers_do_not_overflow():
    found = extremes(np.array([[-128, 1], [127, 2]], np.int8))
    assert (found.high - found.low).tolist() == [255, 1]
    assert [part.tolist() for part in extremes(np.array([3.0, -1.0]))] == [[-1], [3]]
