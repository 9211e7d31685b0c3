"""Files of NumPy arrays (.npz) from anywhere, without pickle and without trust in their headers.

An .npz is a zip of .npy members. The header of a member must agree with the size that the zip
declares for it, and that with what deflate can do, before memory is taken.
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

from fat2thin.atomic_files import writing
from fat2thin.data.dataset import Dataset
from fat2thin.data.formats.array_log import DAMAGED, ArrayFile, Layout, read_dataset
from fat2thin.data.operations import Box
from fat2thin.data.readers import register_suffix
from fat2thin.data.safe_files import DataFileError, MemoryBudget, file_error, open_file

NEORL2 = Layout(
    observation="obs",
    terminal="done",
    cut="truncated",
    next_observation="next_obs",
    episode_start="index",
    propensity="",
)
"""The names of NeoRL and NeoRL-2 (repository polixir/NeoRL2); `index` holds episodes' starts."""
_NEORL2_FILES = re.compile(
    r"(Pipeline|Simglucose|RocketRecovery|RandomFrictionHopper|DMSD|Fusion|Salespromotion"
    r"|SafetyHalfCheetah)-(.+-)?(train|val)\.npz"
)
"""Files of the tasks of NeoRL-2, each of which has an action space of ±1 (neorl2/envs there)."""

_BLOCK = 2**20
_LONGEST_HEADER = 10_000
_HIGHEST_RATIO = 1032  # deflate's: 258 bytes from 2 bits (RFC 1951)
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
    """Return the data set in an .npz file, with the names of `Dataset` or with NeoRL-2's.

    Ours are observation, action, reward, terminal (0 or 1), cut (0 or 1, the episode is over after
    this row) or episode_start (row numbers); next_observation, propensity, action_low, action_high
    and discount may be left out. NeoRL-2's are obs, action, reward, done, truncated or index,
    next_obs. Without a discount, in the file or given, it is 0.99. Without a box it is ±1 for a
    file of NeoRL-2's (known by its name), else the range of the logged actions, with a warning.
    """
    with open_npz(path, memory_limit) as file:
        layout = NEORL2 if file.has("obs") and not file.has("observation") else Layout()
        unit_box = layout is NEORL2 and bool(_NEORL2_FILES.fullmatch(Path(path).name))
        return read_dataset(file, layout, str(path) if name is None else name, box, unit_box)


def save_npz(dataset: Dataset, path: str | Path) -> None:
    """Write a data set, all of it or nothing; `read_npz` gives it back with the same hash."""
    named, terminal = f"data set {dataset.name!r}", dataset.continuation == 0
    for field in dataset.row_arrays:
        dtype = getattr(dataset, field).dtype
        if dtype != np.float32:
            raise ValueError(f"{named}: {field} is {dtype}, and files keep float32: convert it")
    if not (terminal | (dataset.continuation == 1)).all():
        reason = "continuation lies between 0 and 1 in places, and files keep only true ends"
        raise ValueError(f"{named}: {reason}")
    if not np.isin(np.flatnonzero(terminal[:-1]) + 1, dataset.episode_start).all():
        raise ValueError(f"{named}: an episode goes on after a true end; start a new one there")
    arrays = {
        "observation": dataset.observation,
        "action": dataset.action,
        "reward": dataset.reward,
        "next_observation": dataset.next_observation,
        "terminal": terminal,
        "episode_start": dataset.episode_start,
        "action_low": np.array(dataset.action_low),
        "action_high": np.array(dataset.action_high),
        "discount": np.array(dataset.discount, np.float64),
    }
    if dataset.propensity is not None:
        arrays["propensity"] = dataset.propensity
    with writing(Path(path)) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


@contextlib.contextmanager
def open_npz(
    path: str | Path, memory_limit: int | None = None, *, follow_links: bool = True
) -> Iterator["NpzFile"]:
    """An .npz file, safe to read; its arrays together may take `memory_limit` bytes."""
    path = Path(path)
    with (
        open_file(path, follow_links=follow_links) as file,
        _ShortReads(file.fileno(), closefd=False) as short,
    ):
        with _explained(path):
            archive = zipfile.ZipFile(short)
        yield NpzFile(path, archive, MemoryBudget(path, memory_limit))


class NpzFile(ArrayFile):
    """The arrays of an .npz file, one member read at a time."""

    resave = "Save plain arrays of numbers with numpy.savez."

    def __init__(self, path: Path, archive: zipfile.ZipFile, budget: MemoryBudget) -> None:
        self.path, self._archive, self._budget = path, archive, budget
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            self._check_member(member)
            self._members[member.filename.removesuffix(".npy")] = member

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all arrays."""
        return tuple(self._members)

    def has(self, field: str) -> bool:
        """Whether there is an array of this name."""
        return field in self._members

    def read(self, field: str, dtype: type[np.floating] | None = np.float32) -> np.ndarray:
        """An array in this type, whatever type the file keeps it in; None is the file's own."""
        with self._member(field) as (stream, header):
            wanted = header.dtype if dtype is None else np.dtype(dtype)
            self._budget.take(field, header.shape, max(header.dtype.itemsize, wanted.itemsize))
            return self._numbers(field, stream, header, wanted)

    def setting(self, name: str) -> np.ndarray | None:
        """A small array, as float64; None where there is none."""
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
            raise self.refused(name, "is there twice")
        if member.flag_bits & 1:
            raise self.refused(name, "is encrypted")
        if member.compress_type not in _METHODS:
            raise self.refused(name, f"is packed by method {member.compress_type}, not by deflate")
        if member.file_size > _HIGHEST_RATIO * member.compress_size:
            there = f"more than deflate can make of the {member.compress_size:,} there"
            raise self.refused(name, f"declares {member.file_size:,} bytes, {there}")

    def _header(self, field: str, stream: zipfile.ZipExtFile, size: int) -> _Header:
        """Read the header of a member of this size, which must be what the header declares."""
        start = stream.read(8)
        if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
            raise self.refused(field, "is no array of NumPy (.npy, version 1 to 3)")
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
            state = "is truncated" if there < declared else "is longer than it says"
            complaint = f"{state}: its shape needs {declared:,} bytes, and {there:,} are there"
            raise self.wrong(field, complaint, DAMAGED)
        return _Header(shape, dtype, found["fortran"] == "True")

    def _numbers(
        self, field: str, stream: zipfile.ZipExtFile, header: _Header, dtype: np.dtype
    ) -> np.ndarray:
        """Read the numbers after a header in blocks: the whole is never there in two types."""
        order: Literal["F", "C"] = "F" if header.fortran_order else "C"
        array = np.empty(header.shape, dtype, order)
        flat = array.reshape(-1, order=order)
        per_block = _BLOCK // header.dtype.itemsize
        for first in range(0, flat.size, per_block):
            part = flat[first : first + per_block]
            data = stream.read(part.size * header.dtype.itemsize)
            if len(data) != part.size * header.dtype.itemsize:
                raise EOFError
            # What is too large for the type becomes infinite, and is refused as such later.
            with np.errstate(over="ignore", invalid="ignore"):
                part[:] = np.frombuffer(data, header.dtype)
        if stream.read(1):
            raise self.wrong(field, "is longer than it says", DAMAGED)
        return array


class _ShortReads(io.FileIO):
    """A file that refuses to be read in one large piece: a directory of millions of members."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = max(0, os.fstat(self.fileno()).st_size - self.tell())
        if size > _BLOCK:
            raise zipfile.BadZipFile(f"the directory of the archive takes more than {_BLOCK} bytes")
        return super().read(size)


@contextlib.contextmanager
def _explained(path: Path, field: str = "") -> Iterator[None]:
    """Turn what the standard library says about a damaged archive into one kind of error."""
    try:
        yield
    except DataFileError:
        raise
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError) as error:
        complaint = f"is damaged: {error or type(error).__name__}"
        if not field and "not a zip" in str(error):
            complaint = "is truncated, or no .npz file (a zip) at all"
        elif isinstance(error, EOFError):
            complaint = "is truncated"
        raise file_error(path, complaint, DAMAGED, field) from error
    except (NotImplementedError, RuntimeError, OverflowError) as error:
        raise file_error(path, f"cannot be unpacked: {error}", NpzFile.resave, field) from error


register_suffix(".npz", lambda path, _: read_npz(path))
