"""The order of a table's rows: where episodes begin, and that their rows stand together."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fat2thin.data.errors import DataFileError, file_error
from fat2thin.data.formats.table_files import Batch, TableFile, damaged
from fat2thin.data.formats.table_values import BadCellsError, labels, times

Values = TypeVar("Values")

_SHOWN = 3
_SORT = "Sort the rows by episode, and by time within an episode."


class Piece(NamedTuple):
    """A few rows of a file."""

    file: TableFile
    batch: Batch
    first_row: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.batch.values())))

    def read(self, convert: Callable[[pa.Array], Values], column: str) -> Values:
        """The values of a column; cells that do not hold them are an error with their place."""
        try:
            return convert(self.batch[column])
        except BadCellsError as error:
            raise self.wrong(column, error.what, error.way_out, error.offsets) from None
        except pa.ArrowException as error:
            raise damaged(self.file.path, str(error)) from None

    def wrong(self, column: str, what: str, way_out: str, offsets: np.ndarray) -> DataFileError:
        """The error that says so of a column, at the first of these rows of the piece."""
        rows = [self.first_row + int(offset) for offset in offsets[:_SHOWN]]
        more = " and more" if len(offsets) > _SHOWN else ""
        place = self.file.places(rows) + more
        return file_error(self.file.path, f"{what}: {place}", way_out, column)


class Order:
    """Follows the rows from top to bottom, over batches and files.

    Without a column of episodes, an episode begins with every file and below every row that ends
    one. Where a file begins with the label that the file before ended with, the episode goes on,
    unless its last row ended it. Otherwise labels count within a file.
    """

    def __init__(self, episode: str | None, time: str | None) -> None:
        self._episode = episode
        self._time = time
        self._label: str | None = None
        self._last_time = np.nan
        self._over = True
        self._last_row: dict[str, int] = {}

    def begins(self, piece: Piece, over: np.ndarray) -> np.ndarray:
        """Shape (rows,), bool: an episode begins here. `over` is true in rows that end one."""
        above_is_over = np.concatenate([[self._over], over[:-1]])
        if self._episode is None:
            begins = above_is_over
            begins[0] |= piece.first_row == 0
        else:
            begins = self._changes(piece, self._episode, above_is_over)
        if self._time is not None:
            self._check_time(piece, self._time, begins)
        self._over = bool(over[-1])
        return begins

    def _changes(self, piece: Piece, column: str, above_is_over: np.ndarray) -> np.ndarray:
        names = piece.read(labels, column)
        below = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
        begins = np.concatenate([[names[0].as_py() != self._label], below])
        if piece.first_row == 0:
            # Files of one episode each may all call it 1: only a time that rises joins two files.
            begins[0] |= above_is_over[0] or self._time is None
            self._last_row = {}
        goes_on = np.flatnonzero(above_is_over & ~begins)
        if goes_on.size:
            raise piece.wrong(
                column,
                f"goes on with episode {names[int(goes_on[0])].as_py()!r} below the row that "
                "ended it",
                "Give what follows a name of its own, or correct the end.",
                goes_on,
            )
        for offset in np.flatnonzero(begins):
            self._begin(piece, column, names[int(offset)].as_py(), int(offset))
        return begins

    def _begin(self, piece: Piece, column: str, label: str, offset: int) -> None:
        row = piece.first_row + offset
        if row and self._label is not None:
            self._last_row[self._label] = row - 1
        if label in self._last_row:
            ended = piece.file.places([self._last_row[label]])
            raise piece.wrong(
                column, f"comes back to episode {label!r}, left after {ended}", _SORT,
                np.array([offset]),
            )  # fmt: skip
        self._label = label

    def _check_time(self, piece: Piece, column: str, begins: np.ndarray) -> None:
        time = piece.read(times, column)
        above = np.concatenate([[self._last_time], time[:-1]])
        falls = np.flatnonzero(~begins & ~(time > above))
        if falls.size:
            raise piece.wrong(column, "does not rise within an episode", _SORT, falls)
        self._last_time = time[-1]
