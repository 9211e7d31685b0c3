"""Means, deviations and quantiles of columns, of files that do not fit into memory as well.

Arrays in memory are passed to NumPy. The others (`data.row_arrays.is_lazy`) are read in blocks, and
the results agree with NumPy's: quantiles exactly, the others up to rounding in float64.
"""

from collections.abc import Sequence

import numpy as np

from fat2thin.data.row_arrays import Rows, blocks, is_lazy

_HALF = 16  # bits of a float32 that one pass over a column tells apart


def mean(array: Rows) -> np.ndarray:
    """Return the mean over the rows, shape () or (columns,), in float64."""
    if not is_lazy(array):
        return np.asarray(np.asarray(array).mean(axis=0, dtype=np.float64))
    return np.asarray(
        sum(array[rows].sum(axis=0, dtype=np.float64) for rows in blocks(array)) / len(array)
    )


def deviation(array: Rows) -> np.ndarray:
    """Return the standard deviation over the rows, shape () or (columns,), in float64."""
    centre = mean(array)
    # In blocks: all deviations in float64 would take twice the memory of the log.
    squares = sum(np.square(array[rows] - centre).sum(axis=0) for rows in blocks(array))
    return np.asarray(np.sqrt(squares / len(array)))


def quantiles(table: Rows, shares: Sequence[float]) -> np.ndarray:
    """Return quantiles of each column, shape (columns, shares), in float64, as `numpy.quantile`.

    A file in float32 is read twice: the first pass counts the upper halves of the cells' bits, the
    second one the lower halves of those cells that a quantile may lie among.
    """
    if not is_lazy(table) or table.dtype != np.float32:
        columns = np.asarray(table).reshape(len(table), -1).T
        return np.stack(
            [np.quantile(one.astype(np.float64), shares, overwrite_input=True) for one in columns]
        )
    place = np.asarray(shares) * (len(table) - 1)
    ranks = np.unique([np.floor(place), np.ceil(place)]).astype(np.int64)
    found = ranked(table, ranks)
    low, high = (
        found[:, np.searchsorted(ranks, end.astype(np.int64))].astype(np.float64)
        for end in (np.floor(place), np.ceil(place))
    )
    return low + (high - low) * (place - np.floor(place))


def ranked(table: Rows, ranks: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the cells of each column that have these ranks, shape (columns, ranks)."""
    if table.dtype != np.float32:
        return np.sort(np.asarray(table).reshape(len(table), -1), axis=0)[ranks].T
    ranks = np.asarray(ranks)
    width = table.size // len(table)
    upper = np.zeros((width, 2**_HALF), np.int64)
    for rows in blocks(table):
        for column, keys in enumerate(_keys(table[rows])):
            upper[column] += np.bincount(keys >> _HALF, minlength=2**_HALF)
    ends = np.cumsum(upper, axis=1)
    halves = np.stack([np.searchsorted(one, ranks, side="right") for one in ends])
    wanted = [np.unique(one) for one in halves]
    lower = [np.zeros((one.size, 2**_HALF), np.int64) for one in wanted]
    for rows in blocks(table):
        for column, keys in enumerate(_keys(table[rows])):
            for place, half in enumerate(wanted[column]):
                chosen = keys[keys >> _HALF == half] & (2**_HALF - 1)
                lower[column][place] += np.bincount(chosen, minlength=2**_HALF)
    found = np.empty((width, ranks.size), np.uint32)
    for column in range(width):
        for at, (rank, half) in enumerate(zip(ranks, halves[column], strict=True)):
            counts = lower[column][np.searchsorted(wanted[column], half)]
            before = ends[column, half] - upper[column, half]
            rest = np.searchsorted(np.cumsum(counts), rank - before, side="right")
            found[column, at] = (int(half) << _HALF) | int(rest)
    return _cells(found)


def _keys(rows: np.ndarray) -> np.ndarray:
    """Return the cells as integers in the same order, shape (columns, rows)."""
    # Adding 0 turns −0 into 0, so that equal numbers have equal keys.
    bits = np.ascontiguousarray(rows.reshape(len(rows), -1).T + np.float32(0)).view(np.uint32)
    negative = bits >> 31 == 1
    return np.where(negative, ~bits, bits | np.uint32(2**31)).astype(np.int64)


def _cells(keys: np.ndarray) -> np.ndarray:
    """Return the cells of keys."""
    negative = keys >> 31 == 0
    return np.where(negative, ~keys, keys & np.uint32(2**31 - 1)).astype(np.uint32).view(np.float32)
