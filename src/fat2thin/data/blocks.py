"""Arrays of many rows, looked at a block of rows at a time, so that nothing else is as large."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

BLOCK_CELLS = 2**19
"""Numbers in a block: 4 MiB in double precision, about what a processor's cache holds."""


class Extremes(NamedTuple):
    """The smallest and the largest number of each column, shape (columns,), in float64."""

    low: np.ndarray
    high: np.ndarray


def blocks(array: np.ndarray) -> Iterator[slice]:
    """The rows of an array from top to bottom, a few at a time."""
    rows = len(array)
    step = max(1, BLOCK_CELLS * rows // max(1, array.size))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def rows_where(holds: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Shape (rows,), bool: whether it holds in any cell of the row, asked of blocks of arrays."""
    found = np.zeros(len(arrays[0]), bool)
    for rows in blocks(arrays[0]):
        cells = holds(*(array[rows] for array in arrays))
        # It mostly holds nowhere, and one answer for all cells takes a fraction of one a row.
        if cells.any():
            found[rows] = cells.reshape(len(cells), -1).any(axis=1)
    return found


def extremes(array: np.ndarray) -> Extremes:
    """The range of each column of an array with shape (rows, columns) or (rows,)."""
    table = array.reshape(len(array), -1)
    return Extremes(table.min(axis=0).astype(np.float64), table.max(axis=0).astype(np.float64))


def not_finite(array: np.ndarray) -> np.ndarray:
    """Where an array is NaN or infinite, in the array's shape."""
    return ~np.isfinite(array)
