"""What work on large logs needs: files in place of memory, and a display of how far it is.

`arrays_on_disk` makes `empty` return arrays in files, so that readers fill arrays that are larger
than the memory. `watched` lets a display count the cells that will be read, and those that were.
Both hold within a `with` statement, for all code that it calls.
"""

import contextlib
import contextvars
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fat2thin.atomic_files import FULL, NoRoomError

LEAST_ON_DISK = 2**24
"""Bytes of an array below which it stays in memory."""


class Display:
    """How far work on logs is: cells of arrays that will be read, and those that were."""

    def __init__(self) -> None:
        self.expected = self.done = 0

    def expect(self, cells: int) -> None:
        """Add cells that will be read."""
        self.expected += cells

    def did(self, cells: int) -> None:
        """Count cells that were read."""
        self.done += cells


_folder: contextvars.ContextVar[Path | None] = contextvars.ContextVar("folder", default=None)
_display: contextvars.ContextVar[Display | None] = contextvars.ContextVar("display", default=None)


@contextlib.contextmanager
def arrays_on_disk(folder: Path) -> Iterator[None]:
    """Let `empty` return large arrays in files without a name, on the disk of a folder."""
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def free_on_disk() -> int | None:
    """Return the free bytes of the disk for arrays; None if they are in memory."""
    folder = _folder.get()
    return None if folder is None else shutil.disk_usage(folder).free


def empty(shape: tuple[int, ...], dtype: Any, order: Literal["C", "F"] = "C") -> np.ndarray:
    """Return a new array, in a file if it is large and `arrays_on_disk` asks for that."""
    folder, size = _folder.get(), math.prod(shape) * np.dtype(dtype).itemsize
    if folder is None or size < LEAST_ON_DISK:
        return np.empty(shape, dtype, order)
    # The file has no name: it ends with the array, even if the process is killed.
    with tempfile.TemporaryFile(dir=folder) as file:
        _reserve(file.fileno(), size, folder)
        return np.memmap(file, dtype, "r+", shape=shape, order=order).view(np.ndarray)


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return a new array of zeros; see `empty`."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # A new file has zeros only.
    on_disk = _folder.get() is not None and size >= LEAST_ON_DISK
    return empty(shape, dtype) if on_disk else np.zeros(shape, dtype)


def _reserve(descriptor: int, size: int, folder: Path) -> None:
    """Reserve space on the disk: a write to a mapped file that finds none ends the process."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        what = f"there is no room for {size:,} bytes of scratch files in {folder}"
        raise NoRoomError(error.errno, what) from error


@contextlib.contextmanager
def watched(display: Display) -> Iterator[None]:
    """Let a display count the cells that are read."""
    before = _display.set(display)
    try:
        yield
    finally:
        _display.reset(before)


def expect(cells: int) -> None:
    """Add cells that will be read to the display."""
    if (display := _display.get()) is not None:
        display.expect(cells)


def did(cells: int) -> None:
    """Add cells that were read to the display."""
    if (display := _display.get()) is not None:
        display.did(cells)
