"""Safe reading of untrusted HDF5 files: only plain arrays of numbers and short text attributes.

An HDF5 file can refer to other files (links, external storage, virtual arrays), load code (filter
plug-ins) or declare more data than it has. Only plain arrays are read, chunk by chunk: the library
returns the raw bytes of a chunk, and they are decompressed here with a limit on the output.
"""

import contextlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from fat2thin.atomic_files import NoRoomError
from fat2thin.data import long_work
from fat2thin.data.formats.array_log import DAMAGED, ArrayFile
from fat2thin.data.safe_files import DataFileError, MemoryBudget, file_error, opened_path

_BLOCK = 2**22
_LONGEST_TEXT = 2**24
_NAMES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
_TYPES = tuple(np.dtype(order + name) for order in "<>" for name in _NAMES)
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE}
_LAYOUTS = {h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED}


@contextlib.contextmanager
def open_hdf5(path: str | Path, memory_limit: int | None = None) -> Iterator["Hdf5File"]:
    """Open an HDF5 file safely; its arrays may take `memory_limit` bytes in total."""
    path = Path(path)
    with opened_path(path) as opened:
        with _explained(path):
            file = h5py.File(opened, "r", locking="best-effort")
        try:
            yield Hdf5File(path, file, opened.stat().st_size, MemoryBudget(path, memory_limit))
        finally:
            with _explained(path):
                file.close()


class Hdf5File(ArrayFile):
    """The arrays of an HDF5 file, by path ("group/array")."""

    resave = "Save it again as a plain array (compression 'gzip' or none), without links."

    def __init__(self, path: Path, file: h5py.File, size: int, budget: MemoryBudget) -> None:
        self.path, self._file, self._size, self._budget = path, file, size, budget
        with _explained(path):
            self._top = h5py.h5g.open(file.id, b"/")
        # Arrays of one group are read one after the other, and opening the group is slow.
        self._last_group = ("", self._top)

    def has(self, field: str) -> bool:
        """Return whether the file has an object at this path."""
        group, _, name = field.rpartition("/")
        if group not in ("", self._last_group[0]) and not self.has(group):
            return False
        with _explained(self.path, field):
            # Links do not keep their group open; this variable does.
            above = self._group(group)
            return above.links.exists(name.encode())

    def names(self) -> tuple[str, ...]:
        """Return the names of the arrays, groups and other objects at the top level."""
        with _explained(self.path):
            return tuple(name.decode() for name in self._top)

    def shape(self, field: str) -> tuple[int, ...]:
        """Return the shape that an array declares."""
        with _explained(self.path, field):
            return self._shape(field, self._open(field).get_space())

    def read(self, field: str, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Return an array, converted to this type."""
        with _explained(self.path, field):
            stored = self._open(field)
            kept_as = self._number_type(field, stored.get_type())
            shape = self._shape(field, stored.get_space())
            if not shape:
                raise self.refused(field, "is a single number, not an array")
            self._budget.take(field, shape, max(kept_as.itemsize, np.dtype(dtype).itemsize))
            array = long_work.empty(shape, dtype)
            for place, block in self._blocks(field, stored, shape, kept_as):
                # Numbers too large for the type become infinite and are refused later.
                with np.errstate(over="ignore", invalid="ignore"):
                    array[place] = block
                long_work.did(block.size)
            return array

    def setting(self, name: str) -> np.ndarray | None:
        """Return a small attribute of the file in float64, or None if it has none."""
        with _explained(self.path, name):
            attribute = self._attribute(name)
            if attribute is None:
                return None
            kept_as = self._number_type(name, attribute.get_type())
            shape = self._shape(name, attribute.get_space())
            self.check_setting(name, shape)
            value = np.empty(shape, kept_as)
            attribute.read(value)
            return value.astype(np.float64)

    def text(self, name: str) -> str | None:
        """Return a text attribute of the file, or None if it has none."""
        with _explained(self.path, name):
            attribute = self._attribute(name)
            if attribute is None:
                return None
            kind, size = attribute.get_type(), attribute.get_storage_size()
            single = not self._shape(name, attribute.get_space())
            if not isinstance(kind, h5py.h5t.TypeStringID) or not single or size > _LONGEST_TEXT:
                raise self.wrong(name, "is not a text", "Write it as a string.")
            value = self._file.attrs[name]
            return value if isinstance(value, str) else value.decode()

    def _attribute(self, name: str) -> h5py.h5a.AttrID | None:
        known = h5py.h5a.exists(self._file.id, name.encode())
        return h5py.h5a.open(self._file.id, name.encode()) if known else None

    def _open(self, field: str) -> h5py.h5d.DatasetID:
        """Open an array after checking its links, storage and filters."""
        group, _, name = field.rpartition("/")
        stored = self._linked(self._group(group), field, name)
        if not isinstance(stored, h5py.h5d.DatasetID):
            raise self.refused(field, "is a group or a type, not an array")
        how = stored.get_create_plist()
        if how.get_layout() not in _LAYOUTS:
            raise self.refused(field, "is a virtual array, stored in other files")
        if how.get_external_count():
            raise self.refused(field, "stores its numbers in other files")
        for number in range(how.get_nfilters()):
            code, _, _, name = how.get_filter(number)
            if code not in _FILTERS:
                called = name.decode("ascii", "replace") or "unnamed"
                raise self.refused(field, f"is compressed by filter {code} ({called}), not by gzip")
        return stored

    def _group(self, field: str) -> h5py.h5g.GroupID:
        """Open the group at a path; an empty path is the top level."""
        if not field:
            return self._top
        known, group = self._last_group
        if field != known:
            above, _, name = field.rpartition("/")
            group = self._linked(self._group(above), field, name)
            if not isinstance(group, h5py.h5g.GroupID):
                raise self.refused(field, "is an array or a type, not a group")
            self._last_group = field, group
        return group

    def _linked(
        self, group: h5py.h5g.GroupID, field: str, name: str
    ) -> h5py.h5g.GroupID | h5py.h5d.DatasetID | h5py.h5t.TypeID:
        if group.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
            raise self.refused(field, "is a link, which may point outside the file")
        return h5py.h5o.open(group, name.encode())

    def _number_type(self, field: str, stored_as: h5py.h5t.TypeID) -> np.dtype:
        # h5py stores a bool as an enumeration of bytes.
        number = stored_as.get_super() if isinstance(stored_as, h5py.h5t.TypeEnumID) else stored_as
        for dtype in _TYPES:
            if number.equal(h5py.h5t.py_create(dtype)):
                return dtype
        raise self.refused(field, "holds objects, references or text, not plain numbers")

    def _shape(self, field: str, space: h5py.h5s.SpaceID) -> tuple[int, ...]:
        if space.get_simple_extent_type() == h5py.h5s.NULL:
            raise self.refused(field, "is empty")
        return tuple(space.get_simple_extent_dims())

    def _blocks(
        self, field: str, stored: h5py.h5d.DatasetID, shape: tuple[int, ...], dtype: np.dtype
    ) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """Yield the parts of an array, each with its place."""
        if 0 in shape:
            return
        layout = stored.get_create_plist().get_layout()
        if layout == h5py.h5d.CHUNKED:
            yield from self._chunks(field, stored, shape, dtype)
            return
        declared = math.prod(shape) * dtype.itemsize
        if stored.get_storage_size() != declared:
            raise self._cut_short(field, stored.get_storage_size(), declared)
        if layout == h5py.h5d.CONTIGUOUS:
            end = (stored.get_offset() or 0) + declared
            if stored.get_offset() is None or end > self._size:
                raise self._cut_short(field, self._size, end)
        rows, space = shape[0], stored.get_space()
        step = max(1, _BLOCK * rows // declared)
        for first in range(0, rows, step):
            block = np.empty((min(step, rows - first), *shape[1:]), dtype)
            space.select_hyperslab((first,) + (0,) * (len(shape) - 1), block.shape)
            stored.read(h5py.h5s.create_simple(block.shape), space, block)
            yield (slice(first, first + len(block)),), block

    def _chunks(
        self, field: str, stored: h5py.h5d.DatasetID, shape: tuple[int, ...], dtype: np.dtype
    ) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        how = stored.get_create_plist()
        chunk = tuple(how.get_chunk())
        size = math.prod(chunk) * dtype.itemsize
        self._budget.check(field, 3 * size, f"in chunks of shape {chunk}")
        filters = [how.get_filter(number)[0] for number in range(how.get_nfilters())]
        # Corners are computed one by one: a tiny file may declare more chunks than fit in memory.
        counts = [-(-end // step) for end, step in zip(shape, chunk, strict=True)]
        for number in range(math.prod(counts)):
            index = np.unravel_index(number, counts)
            corner = tuple(int(i) * step for i, step in zip(index, chunk, strict=True))
            about = stored.get_chunk_info_by_coord(corner)
            if about.byte_offset is None:
                raise self._cut_short(field, 0, size)
            # Incompressible bytes grow by less than this in gzip.
            if about.size > size + size // 1000 + 64:
                raise self.refused(field, f"has a chunk of {about.size} bytes instead of {size}")
            _, packed = stored.read_direct_chunk(corner)
            for number in reversed(range(len(filters))):
                if not about.filter_mask >> number & 1:
                    packed = self._unpacked(field, filters[number], packed, size, dtype)
            if len(packed) != size:
                raise self._cut_short(field, len(packed), size)
            place = tuple(
                slice(first, min(first + step, end))
                for first, step, end in zip(corner, chunk, shape, strict=True)
            )
            inside = tuple(slice(part.stop - part.start) for part in place)
            yield place, np.frombuffer(packed, dtype).reshape(chunk)[inside]

    def _unpacked(self, field: str, code: int, packed: bytes, size: int, dtype: np.dtype) -> bytes:
        if code == h5py.h5z.FILTER_SHUFFLE:
            if len(packed) != size:
                raise self._cut_short(field, len(packed), size)
            return np.frombuffer(packed, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
        stream = zlib.decompressobj()
        plain = stream.decompress(packed, size)
        if stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:
            raise self.refused(field, f"has a chunk that does not decompress to {size} bytes")
        return plain

    def _cut_short(self, field: str, found: int, declared: int) -> DataFileError:
        there = f"{found:,} of {declared:,} bytes found"
        return self.wrong(field, f"is truncated or was never written: {there}", DAMAGED)


@contextlib.contextmanager
def _explained(path: Path, field: str = "") -> Iterator[None]:
    """Convert errors of the HDF5 library about a damaged file to `DataFileError`."""
    try:
        yield
    except (DataFileError, NoRoomError):
        raise
    # For damaged files the library raises almost any kind of error.
    except Exception as error:
        text = " ".join(str(error).split())
        complaint = f"is damaged: {text or type(error).__name__}"
        if "truncated file" in text:
            complaint = f"is truncated: {text}"
        elif "file signature not found" in text:
            complaint = "is not an HDF5 file, or its beginning is damaged"
        raise file_error(path, complaint, DAMAGED, field) from error
