import numpy as np
import pytest

from fat2thin.data.dataset import extremes, not_finite
from fat2thin.data.row_arrays import FIRST_ROWS, MarkedRows, blocks, find_rows, row_numbers


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
    array = np.zeros((9, 3))
    array[1, 2], array[1, 1], array[4:, 1] = np.nan, np.nan, np.inf
    found = find_rows(array, not_finite)
    assert (found.number, found.cells, found.columns.tolist()) == (6, 7, [1, 2])
    assert found.first.tolist() == [1, 4, 5, 6, 7] and FIRST_ROWS == 5
    assert row_numbers(array, not_finite).tolist() == [1, 4, 5, 6, 7, 8]
    nowhere = find_rows(array[:, 0], not_finite)
    assert (nowhere.number, nowhere.columns.size, nowhere.first.size) == (0, 0, 0)


def test_marked_rows_are_read_by_slices_and_numbers():
    mask = np.array([False, True, False, True, True])
    marked = MarkedRows(5, np.flatnonzero(mask))
    assert [marked[place].tolist() for place in (slice(None), slice(2, 4), slice(5, 9))] == [
        mask.tolist(), [False, True], []
    ]  # fmt: skip
    assert marked[np.array([4, 0, 1, 2])].tolist() == [True, False, True, False]
    assert not MarkedRows(3, np.zeros(0, int))[np.arange(3)].any()


def test_extremes_of_small_integers_do_not_overflow():
    found = extremes(np.array([[-128, 1], [127, 2]], np.int8))
    assert (found.high - found.low).tolist() == [255, 1]
    assert [part.tolist() for part in extremes(np.array([3.0, -1.0]))] == [[-1], [3]]
