"""Arrays whose rows are computed or read when they are indexed, in place of arrays in memory.

A `RowArray` has the shape and type of a NumPy array and is indexed like one. `FollowingRows` are
next observations that are stored only where they are not the observation of the row below,
`StoredRows` those of a file, `SelectedRows` some rows of another array, `MappedRows` a function of
them, and `MarkedRows` are true at given rows. NumPy functions work too; they take the whole array
into memory, and so do methods other than `min` and `max`.
"""

import abc
import mmap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from fat2thin.data import long_work

BLOCK_CELLS = 2**19
"""Array cells per block of rows: 4 MiB in float64, about the size of a CPU cache."""
MOST_APART = 0.5
"""Share of next observations that differ from the row below above which all of them are kept."""


class RowArray(NDArrayOperatorsMixin, abc.ABC):
    """An array that is read in parts; its methods are those of a NumPy array."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @abc.abstractmethod
    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the rows of a slice with step 1, or of row numbers, as a new or read-only array.

        The numbers are not negative and lie inside the array.
        """

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of cells."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __getitem__(self, key: Any) -> Any:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if rows is None or rows is Ellipsis or any(not _simple(one) for one in rest):
            return np.asarray(self)[key]
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                found = self.read(np.arange(start, stop, step))
            else:
                found = self.read(slice(start, max(start, stop)))
            return found[(slice(None), *rest)] if rest else found
        numbers = np.asarray(rows)
        if numbers.dtype == bool:
            if numbers.shape != (len(self),):
                return np.asarray(self)[key]
            numbers = np.flatnonzero(numbers)
        if numbers.size and (numbers.min() < -len(self) or numbers.max() >= len(self)):
            raise IndexError(f"row {numbers.max()} does not exist, there are {len(self)}")
        numbers = np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)
        found = self.read(numbers.reshape(-1)).reshape(*numbers.shape, *self.shape[1:])
        return found[(*(slice(None),) * numbers.ndim, *rest)] if rest else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("these rows are not in memory as one array: a copy is needed")
        whole = np.empty(self.shape, self.dtype if dtype is None else dtype)
        for rows in blocks(self):
            whole[rows] = self.read(rows)
        return whole

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(one) if isinstance(one, RowArray) else one for one in inputs)
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        # Libraries ask for special methods to find out what an object can do.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def min(self, axis: int | None = None) -> Any:
        """Return the smallest cell, or with axis 0 the smallest of each column."""
        return self._reduced(np.min, axis)

    def max(self, axis: int | None = None) -> Any:
        """Return the largest cell, or with axis 0 the largest of each column."""
        return self._reduced(np.max, axis)

    def _reduced(self, function: Callable[..., Any], axis: int | None) -> Any:
        if axis not in (None, 0):
            return function(np.asarray(self), axis=axis)
        return function(
            np.stack([function(self.read(rows), axis=axis) for rows in blocks(self)]), axis=axis
        )


Rows: TypeAlias = np.ndarray | RowArray
"""An array in memory, or one that is read in parts."""


def _simple(key: Any) -> bool:
    """Return whether a key of the columns means the same for every selection of rows."""
    return isinstance(key, slice | int | np.integer)


def blocks(array: Rows) -> Iterator[slice]:
    """Yield slices that cover the rows of an array in order, `BLOCK_CELLS` cells at a time."""
    rows, width = len(array), array.size // max(1, len(array))
    step = max(1, BLOCK_CELLS // max(1, width))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield slice(start, stop)
        long_work.did((stop - start) * width)


class FoundRows(NamedTuple):
    """The rows of an array in which something holds."""

    number: int
    """How many they are."""
    cells: int
    """How many cells it holds in."""
    columns: np.ndarray
    """Numbers of the columns in which it holds in any row."""
    first: np.ndarray
    """Numbers of the first `FIRST_ROWS` rows."""


FIRST_ROWS = 5


def find_rows(array: Rows, holds: Callable[[np.ndarray], np.ndarray]) -> FoundRows:
    """Return the rows with a cell for which `holds` is true; it is called with blocks of rows."""
    return find_places(array, lambda rows: holds(array[rows]))


def find_places(array: Rows, holds: Callable[[slice], np.ndarray]) -> FoundRows:
    """Return the rows of an array for which `holds` has a true cell; it is called with slices."""
    number, cells, columns, first = 0, 0, None, np.zeros(0, np.int64)
    for rows in blocks(array):
        mask = holds(rows)
        # Usually false everywhere, and one `any` over all cells is much faster than one per row.
        if not mask.any():
            continue
        table = mask.reshape(len(mask), -1)
        found = np.flatnonzero(table.any(axis=1))
        number, cells = number + found.size, cells + int(table.sum())
        columns = table.any(axis=0) if columns is None else columns | table.any(axis=0)
        first = np.append(first, found[: FIRST_ROWS - first.size] + rows.start)
    where = np.zeros(0, np.int64) if columns is None else np.flatnonzero(columns)
    return FoundRows(number, cells, where, first)


def row_numbers(array: Rows, holds: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the numbers of all rows with a cell for which `holds` is true; see `find_rows`."""
    found = [np.zeros(0, np.int64)]
    for rows in blocks(array):
        mask = holds(array[rows])
        if mask.any():
            found.append(np.flatnonzero(mask.reshape(len(mask), -1).any(axis=1)) + rows.start)
    return np.concatenate(found)


class FollowingRows(RowArray):
    """The rows below those of an array, except where other ones are given."""

    def __init__(self, array: Rows, apart: np.ndarray, values: Rows) -> None:
        """`apart` are increasing row numbers, the last row among them; `values` their rows."""
        self.array, self.apart, self.values = array, apart, values
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows; see `RowArray`."""
        if isinstance(rows, slice):
            found = np.empty((rows.stop - rows.start, *self.shape[1:]), self.dtype)
            below = self.array[rows.start + 1 : rows.stop + 1]
            found[: len(below)] = below
            first, last = np.searchsorted(self.apart, (rows.start, rows.stop))
            found[self.apart[first:last] - rows.start] = self.values[first:last]
            return found
        found = np.array(self.array[np.minimum(rows + 1, len(self) - 1)])
        place = np.searchsorted(self.apart, rows)
        given = self.apart[np.minimum(place, len(self.apart) - 1)] == rows
        found[given] = self.values[place[given]]
        return found

    def mapped(self, array: Rows, function: Callable[[np.ndarray], np.ndarray]) -> "FollowingRows":
        """Return a function of these rows, given that of the array that they follow in."""
        return FollowingRows(
            array, self.apart, mapped(function, self.values, lazy=is_lazy(self.array))
        )


def following_rows(array: Rows, following: Rows) -> Rows:
    """Return `following`, without the rows that are bit by bit those below in `array`.

    If more than `MOST_APART` of them are not, `following` is returned as it is.
    """
    if isinstance(following, FollowingRows) and following.array is array:
        return following
    # A file was compared when it was written.
    if is_lazy(following) or array.dtype != following.dtype:
        return following
    apart, count = [], 0
    for rows in blocks(array):
        part = following[rows]
        below = array[rows.start + 1 : rows.stop + 1]
        other = np.ones(len(part), bool)
        other[: len(below)] = (_bits(part[: len(below)]) != _bits(below)).any(axis=1)
        apart.append(np.flatnonzero(other) + rows.start)
        count += apart[-1].size
        if count > max(1, MOST_APART * len(array)):
            return following
    numbers = np.concatenate(apart)
    values = long_work.empty((numbers.size, *array.shape[1:]), array.dtype)
    for rows in blocks(values):
        values[rows] = following[numbers[rows]]
    return FollowingRows(array, numbers, values)


def _bits(array: np.ndarray) -> np.ndarray:
    """Return the cells as integers, so that 0 and −0 differ."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


class StoredRows(RowArray):
    """The rows of a memory-mapped file."""

    def __init__(self, array: np.memmap) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self._file: mmap.mmap = array.base  # type: ignore[assignment]
        self._end = array.offset + array.nbytes

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows; see `RowArray`. An `OSError` says that the file was cut meanwhile."""
        # The system would end the process. A file that is removed or replaced is still there.
        if self._file.size() < self._end:
            raise OSError(f"{self._array.filename} was cut while it was in use: write it again")
        return np.array(self._array[rows])


class MarkedRows(RowArray):
    """True at some row numbers, False elsewhere."""

    def __init__(self, rows: int, marked: np.ndarray) -> None:
        """`marked` are increasing row numbers."""
        self.shape, self.dtype, self._marked = (rows,), np.dtype(bool), marked

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows; see `RowArray`."""
        if isinstance(rows, slice):
            found = np.zeros(rows.stop - rows.start, bool)
            first, last = np.searchsorted(self._marked, (rows.start, rows.stop))
            found[self._marked[first:last] - rows.start] = True
            return found
        place = np.searchsorted(self._marked, rows)
        found = np.append(self._marked, -1)[place] == rows
        return found


class SelectedRows(RowArray):
    """Some stretches of the rows of another array, one after the other."""

    def __init__(self, array: Rows, starts: np.ndarray, lengths: np.ndarray) -> None:
        """`starts` and `lengths` are the increasing first rows and the lengths of the stretches."""
        self._array, self._starts = array, starts
        self._ends = np.cumsum(lengths)
        self._before = self._ends - lengths
        self.shape, self.dtype = (int(np.sum(lengths)), *array.shape[1:]), array.dtype

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the row numbers in the other array."""
        stretch = np.searchsorted(self._ends, rows, side="right")
        return self._starts[stretch] + rows - self._before[stretch]

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows; see `RowArray`."""
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return self._array[self.numbers(wanted)]


class MappedRows(RowArray):
    """A function of the rows of other arrays, each row by itself."""

    def __init__(
        self, function: Callable[..., np.ndarray], *arrays: Rows, dtype: np.dtype | None = None
    ) -> None:
        self._function, self._arrays = function, arrays
        self.shape, self.dtype = arrays[0].shape, arrays[0].dtype if dtype is None else dtype

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return rows; see `RowArray`."""
        return self._function(*(array[rows] for array in self._arrays)).astype(self.dtype)


def is_lazy(*arrays: Any) -> bool:
    """Return whether any array is read in parts from a file, directly or through others."""
    return any(
        is_lazy(one.array) if isinstance(one, FollowingRows) else isinstance(one, RowArray)
        for one in arrays
    )


def mapped(
    function: Callable[..., np.ndarray], *arrays: Rows, dtype: np.dtype | None = None,
    lazy: bool = False,
) -> Rows:  # fmt: skip
    """Return a function of rows: in blocks now, or when they are read if an array is lazy."""
    rows = MappedRows(function, *arrays, dtype=dtype)
    return rows if lazy or is_lazy(*arrays) else np.asarray(rows)
