"""Reader and writer of .npz files; reading is safe for untrusted files and never uses pickle.

An .npz is a zip of .npy members. Before memory is allocated, the header of a member must match the
size declared in the zip, which must be possible for deflate.
"""

import contextlib
import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, cast

import numpy as np

from fat2thin.atomic_files import NoRoomError, writing
from fat2thin.data import long_work
from fat2thin.data.dataset import Dataset, not_a_flag
from fat2thin.data.formats.array_log import (
    COLUMNS,
    DAMAGED,
    DENSITY,
    ArrayFile,
    Layout,
    columns_bytes,
    read_dataset,
    write_npy,
)
from fat2thin.data.operations import Box
from fat2thin.data.readers import register_suffix
from fat2thin.data.row_arrays import MarkedRows, Rows, find_rows, row_numbers
from fat2thin.data.safe_files import DataFileError, MemoryBudget, file_error, open_file

NEORL2 = Layout(
    observation="obs",
    terminal="done",
    cut="truncated",
    next_observation="next_obs",
    episode_start="index",
    propensity="",
)
"""The names of NeoRL and NeoRL-2 (repository polixir/NeoRL2); `index` holds the episode starts."""
_NEORL2_FILES = re.compile(
    r"(Pipeline|Simglucose|RocketRecovery|RandomFrictionHopper|DMSD|Fusion|Salespromotion"
    r"|SafetyHalfCheetah)-(.+-)?(train|val)\.npz"
)
"""Files of the NeoRL-2 tasks, all of which have an action space of ±1 (neorl2/envs there)."""

_BLOCK = 2**20
_LONGEST_HEADER = 10_000
_HIGHEST_RATIO = 1032  # of deflate: 258 bytes from 2 bits (RFC 1951)
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_HEADER = re.compile(
    r"\{'descr': '(?P<type>[^']*)', 'fortran_order': (?P<fortran>True|False), "
    r"'shape': \((?P<shape>(?:\d{1,18}L?, ?)*(?:\d{1,18}L?)?)\),? ?\} *\n?"
)
_NUMBERS = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248])")


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool


def read_npz(
    path: str | Path,
    name: str | None = None,
    box: Box | None = None,
    memory_limit: int | None = None,
) -> Dataset:
    """Return the data set in an .npz file with the array names of fat2thin or of NeoRL-2.

    fat2thin: observation, action, reward, terminal (0 or 1), and cut (0 or 1, the episode stops
    after this row) or episode_start (row numbers); optional: next_observation, propensity,
    propensity_is_density (0 or 1), action_low, action_high and discount. NeoRL-2: obs, action,
    reward, done, truncated or index, next_obs. The discount is that of `box` or of the file, else
    0.99. Without a box in either place it is ±1 for a NeoRL-2 file (recognised by its name), else
    the range of the logged actions, with a warning.
    """
    with open_npz(path, memory_limit) as file:
        layout = NEORL2 if file.has("obs") and not file.has("observation") else Layout()
        unit_box = layout is NEORL2 and bool(_NEORL2_FILES.fullmatch(Path(path).name))
        return read_dataset(file, layout, str(path) if name is None else name, box, unit_box)


def save_npz(dataset: Dataset, path: str | Path) -> None:
    """Write a data set atomically to an .npz file; `read_npz` returns it with the same hash."""
    what, continuation = f"data set {dataset.name!r}", dataset.continuation
    for field in dataset.row_arrays:
        dtype = getattr(dataset, field).dtype
        if dtype != np.float32:
            raise ValueError(f"{what}: {field} is {dtype}, but files store float32: convert it")
    if find_rows(continuation, not_a_flag).number:
        reason = "some continuations lie between 0 and 1, but files store only true ends"
        raise ValueError(f"{what}: {reason}")
    ends = row_numbers(continuation, lambda part: part == 0)
    if not np.isin(ends + 1, np.append(dataset.episode_start, dataset.rows)).all():
        raise ValueError(f"{what}: an episode continues after a true end; start a new one there")
    arrays: dict[str, Rows] = {
        "observation": dataset.observation,
        "action": dataset.action,
        "reward": dataset.reward,
        "next_observation": dataset.next_observation,
        "terminal": MarkedRows(dataset.rows, ends),
        "episode_start": dataset.episode_start,
        "action_low": np.array(dataset.action_low),
        "action_high": np.array(dataset.action_high),
        "discount": np.array(dataset.discount, np.float64),
    }
    if dataset.propensity is not None:
        arrays["propensity"] = dataset.propensity
    if dataset.propensity_is_density:
        arrays[DENSITY] = np.array(1)
    if (named := columns_bytes(dataset)) is not None:
        arrays[COLUMNS] = named
    long_work.expect(sum(array.size for array in arrays.values()))
    with (
        writing(Path(path)) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                write_npy(stream, array)


@contextlib.contextmanager
def open_npz(
    path: str | Path, memory_limit: int | None = None, *, follow_links: bool = True
) -> Iterator["NpzFile"]:
    """Open an .npz file safely; its arrays may take `memory_limit` bytes in total."""
    path = Path(path)
    with (
        open_file(path, follow_links=follow_links) as file,
        _ShortReads(file.fileno(), closefd=False) as short,
    ):
        with _explained(path):
            archive = zipfile.ZipFile(short)
        yield NpzFile(path, archive, MemoryBudget(path, memory_limit))


class NpzFile(ArrayFile):
    """The arrays of an .npz file, read one at a time."""

    resave = "Save plain arrays of numbers with numpy.savez."

    def __init__(self, path: Path, archive: zipfile.ZipFile, budget: MemoryBudget) -> None:
        self.path, self._archive, self._budget = path, archive, budget
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            self._check_member(member)
            self._members[member.filename.removesuffix(".npy")] = member

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(self._members)

    def has(self, field: str) -> bool:
        """Return whether the file has an array of this name."""
        return field in self._members

    def read(self, field: str, dtype: type[np.floating] | None = np.float32) -> np.ndarray:
        """Return an array, converted to this type; None keeps the type of the file."""
        with self._member(field) as (stream, header):
            wanted = header.dtype if dtype is None else np.dtype(dtype)
            self._budget.take(field, header.shape, max(header.dtype.itemsize, wanted.itemsize))
            return self._numbers(field, stream, header, wanted)

    def shape(self, field: str) -> tuple[int, ...]:
        """Return the shape that an array declares."""
        with self._member(field) as (_, header):
            return header.shape

    def setting(self, name: str) -> np.ndarray | None:
        """Return a small array in float64, or None if the file has none."""
        if name not in self._members:
            return None
        with self._member(name) as (_, header):
            self.check_setting(name, header.shape)
        return self.read(name, np.float64)

    @contextlib.contextmanager
    def _member(self, field: str) -> Iterator[tuple[zipfile.ZipExtFile, _Header]]:
        member = self._members[field]
        with _explained(self.path, field), self._archive.open(member) as opened:
            stream = cast(zipfile.ZipExtFile, opened)
            yield stream, self._header(field, stream, member.file_size)

    def _check_member(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        place = PurePosixPath(name.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts or re.match("[A-Za-z]:", name):
            raise self.refused(name, "leads out of the archive")
        if name.removesuffix(".npy") in self._members:
            raise self.refused(name, "occurs twice")
        if member.flag_bits & 1:
            raise self.refused(name, "is encrypted")
        if member.compress_type not in _METHODS:
            raise self.refused(name, f"is compressed by method {member.compress_type}, not deflate")
        if member.file_size > _HIGHEST_RATIO * member.compress_size:
            limit = f"more than deflate can make of {member.compress_size:,}"
            raise self.refused(name, f"declares {member.file_size:,} bytes, {limit}")

    def _header(self, field: str, stream: zipfile.ZipExtFile, size: int) -> _Header:
        """Read the header of a member and check that it declares `size` bytes in total."""
        start = stream.read(8)
        if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
            raise self.refused(field, "is not a NumPy array (.npy, version 1 to 3)")
        length = int.from_bytes(stream.read(2 if start[6] == 1 else 4), "little")
        if length > _LONGEST_HEADER:
            raise self.refused(field, f"has a header of {length:,} bytes")
        text = stream.read(length).decode("latin-1")
        found = _HEADER.fullmatch(text)
        kind = found["type"] if found else text.strip()[:80]
        if "O" in kind:
            raise self.refused(field, "holds Python objects, which could run code")
        if not found or not _NUMBERS.fullmatch(kind):
            raise self.refused(field, f"does not hold plain numbers: {kind!r}")
        shape = tuple(int(number) for number in re.findall(r"\d+", found["shape"]))
        dtype = np.dtype(kind)
        there, declared = size - stream.tell(), math.prod(shape) * dtype.itemsize
        if there != declared:
            state = "is truncated" if there < declared else "is longer than it declares"
            complaint = f"{state}: its shape needs {declared:,} bytes, the file has {there:,}"
            raise self.wrong(field, complaint, DAMAGED)
        return _Header(shape, dtype, found["fortran"] == "True")

    def _numbers(
        self, field: str, stream: zipfile.ZipExtFile, header: _Header, dtype: np.dtype
    ) -> np.ndarray:
        """Read and convert the numbers in blocks, so that the array is never in memory twice."""
        order: Literal["F", "C"] = "F" if header.fortran_order else "C"
        array = long_work.empty(header.shape, dtype, order)
        flat = array.reshape(-1, order=order)
        per_block = _BLOCK // header.dtype.itemsize
        for first in range(0, flat.size, per_block):
            part = flat[first : first + per_block]
            data = stream.read(part.size * header.dtype.itemsize)
            if len(data) != part.size * header.dtype.itemsize:
                raise EOFError
            # Numbers too large for the type become infinite and are refused later.
            with np.errstate(over="ignore", invalid="ignore"):
                part[:] = np.frombuffer(data, header.dtype)
            long_work.did(part.size)
        if stream.read(1):
            raise self.wrong(field, "is longer than it declares", DAMAGED)
        return array


class _ShortReads(io.FileIO):
    """A file that refuses large single reads, such as a zip directory of millions of members."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(0, os.fstat(self.fileno()).st_size - self.tell())
        if size > _BLOCK:
            raise zipfile.BadZipFile(f"the directory of the archive has more than {_BLOCK} bytes")
        return super().read(size)


@contextlib.contextmanager
def _explained(path: Path, field: str = "") -> Iterator[None]:
    """Convert errors of the standard library about a damaged archive to `DataFileError`."""
    try:
        yield
    except (DataFileError, NoRoomError):
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError) as error:
        complaint = f"is damaged: {error or type(error).__name__}"
        if not field and "not a zip" in str(error):
            complaint = "is truncated, or not an .npz file"
        elif isinstance(error, EOFError):
            complaint = "is truncated"
        raise file_error(path, complaint, DAMAGED, field) from error
    except (NotImplementedError, RuntimeError, OverflowError) as error:
        raise file_error(path, f"cannot be decompressed: {error}", NpzFile.resave, field) from error


register_suffix(".npz", lambda path, _: read_npz(path))
