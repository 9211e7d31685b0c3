"""Plain HDF5 arrays are read as by h5py; external references and false sizes are refused."""

import itertools
import tracemalloc
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from fat2thin.data import DataFileError
from fat2thin.data.formats.hdf5 import open_hdf5
from fat2thin.data.safe_files import opened_path

PACKED = {"chunks": (7, 2), "compression": "gzip", "shuffle": True}
STORAGE = {
    "contiguous": {},
    "chunked": {"chunks": (7, 2)},
    "chunks beyond the end": {"chunks": (64, 8), "maxshape": (None, None)},
    "shuffled": {"chunks": (7, 2), "shuffle": True},
    "gzip": {"chunks": (7, 2), "compression": "gzip"},
    "shuffled gzip": PACKED,
}
TYPES = ("f2", "<f4", ">f4", "f8", ">f8", "i1", "u1", "i2", ">u4", "i8", "u8", "?")


def written(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def read(path, field="field", **options):
    with open_hdf5(path, **options) as file:
        return file.read(field)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_every_type_and_storage_is_read_as_h5py_reads_it(tmp_path, libver):
    rng = np.random.default_rng(0)
    path = tmp_path / "all.hdf5"
    with h5py.File(path, "w", libver=libver) as file:
        for dtype, (name, storage) in itertools.product(TYPES, STORAGE.items()):
            data = rng.integers(0, 2 if dtype == "?" else 100, (25, 3)).astype(dtype)
            file.create_dataset(f"{dtype} {name}", data=data, **storage)
    with h5py.File(path) as plain, open_hdf5(path) as file:
        for field in plain:
            array = file.read(field)
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, plain[field][()].astype(np.float32), field)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_the_file_that_was_checked_is_the_one_that_is_read(tmp_path):
    path = written(tmp_path / "x.hdf5", field=np.arange(3.0))
    with opened_path(path) as checked:
        path.rename(tmp_path / "moved.hdf5")
        written(path, field=np.zeros(5))
        with h5py.File(checked) as file:
            np.testing.assert_array_equal(file["field"][()], [0, 1, 2])
        assert checked.stat().st_ino != path.stat().st_ino


def test_a_compact_array_is_read(tmp_path):
    path = tmp_path / "compact.hdf5"
    with h5py.File(path, "w") as file:
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        stored = h5py.h5d.create(file.id, b"field", h5py.h5t.IEEE_F64LE, space, how)
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(read(path), [1, 2, 3])


def test_arrays_larger_than_a_block_are_read(tmp_path):
    numbers = np.arange(2_000_001.0)
    path = written(tmp_path / "long.hdf5", field=numbers)
    np.testing.assert_array_equal(read(path), numbers.astype(np.float32))


@pytest.mark.parametrize("storage", [{}, {"chunks": (4096, 8), "compression": "gzip"}])
def test_an_array_is_never_in_memory_in_two_types(tmp_path, storage):
    path = tmp_path / "large.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("field", data=np.zeros((2**18, 16)), **storage)
    with open_hdf5(path) as file:
        tracemalloc.start()
        array = file.read("field")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert array.nbytes == 2**24
    assert peak < array.nbytes + 3 * 2**22


def external_link(file, folder):
    file["field"] = h5py.ExternalLink(str(written(folder / "other.hdf5", x=np.zeros(3))), "/x")


def soft_link(file, folder):
    file["out"] = h5py.ExternalLink(str(written(folder / "other.hdf5", x=np.zeros(3))), "/")
    file["field"] = h5py.SoftLink("/out/x")


def external_storage(file, folder):
    (folder / "secret").write_bytes(bytes(24))
    file.create_dataset("field", (3,), "f8", external=[(str(folder / "secret"), 0, 24)])


def virtual_array(file, folder):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(str(written(folder / "other.hdf5", x=np.zeros(3))), "x", (3,))
    file.create_virtual_dataset("field", layout)


def lists(file, folder):
    file.create_dataset("field", (3,), h5py.vlen_dtype(np.float64))


def references(file, folder):
    file.create_dataset("field", (3,), h5py.ref_dtype)


def text(file, folder):
    file.create_dataset("field", (3,), h5py.string_dtype())


def pairs(file, folder):
    file.create_dataset("field", (3,), [("a", "f4"), ("b", "f4")])


def complex_numbers(file, folder):
    file.create_dataset("field", (3,), "c8")


def group(file, folder):
    file.create_group("field")


def other_filter(file, folder):
    file.create_dataset("field", data=np.zeros(3), chunks=(3,), compression="lzf")


def checksum_filter(file, folder):
    file.create_dataset("field", data=np.zeros(3), chunks=(3,), fletcher32=True)


def nothing(file, folder):
    file["field"] = h5py.Empty("f4")


def one_number(file, folder):
    file["field"] = 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (external_link, "is a link, which may point outside the file"),
        (soft_link, "is a link"),
        (external_storage, "stores its numbers in other files"),
        (virtual_array, "is a virtual array"),
        (lists, "holds objects, .*not plain numbers"),
        (references, "holds objects, .*not plain numbers"),
        (text, "holds objects, .*not plain numbers"),
        (pairs, "holds objects, .*not plain numbers"),
        (complex_numbers, "holds objects, .*not plain numbers"),
        (group, "is a group or a type, not an array"),
        (other_filter, r"is compressed by filter 32000 \(lzf\), not by gzip"),
        (checksum_filter, "is compressed by filter 3"),
        (nothing, "is empty"),
        (one_number, "is a single number"),
    ],
)
def test_anything_but_a_plain_array_is_refused(tmp_path, make, message):
    path = tmp_path / "hostile.hdf5"
    with h5py.File(path, "w") as file:
        make(file, tmp_path)
    with pytest.raises(DataFileError, match=f"hostile.hdf5: 'field' {message}.*Save it again"):
        read(path)


def test_declared_memory_is_refused_before_it_is_allocated(tmp_path):
    path = tmp_path / "sparse.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("chunked", (2**33,), "f4", chunks=(2**10,))
        file.create_dataset("contiguous", (2**33,), "f4")
        file.create_dataset("large chunk", (8,), "f4", chunks=(2**26,), maxshape=(None,))
    assert path.stat().st_size < 2**16
    tracemalloc.start()
    for field in ("chunked", "contiguous", "large chunk"):
        with pytest.raises(DataFileError, match=f"'{field}'.* the limit is 1,048,576.*memory_lim"):
            read(path, field, memory_limit=2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_the_memory_limit_covers_all_arrays_together(tmp_path):
    path = written(tmp_path / "two.hdf5", a=np.zeros(100), b=np.zeros(100))
    with open_hdf5(path, memory_limit=1599) as file:
        file.read("a")
        with pytest.raises(DataFileError, match=r"'b' with shape .* 1,600 bytes"):
            file.read("b")


@pytest.mark.parametrize("storage", [{}, {"chunks": (16,)}])
def test_an_array_that_was_never_written_is_refused(tmp_path, storage):
    path = tmp_path / "unwritten.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("field", (64,), "f4", **storage)
    with pytest.raises(DataFileError, match="truncated or was never written: 0 of"):
        read(path)


@pytest.mark.parametrize("size", [2**24, 60])
def test_a_chunk_must_decompress_to_its_declared_size(tmp_path, size):
    path = tmp_path / "bomb.hdf5"
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("field", (2**14,), "f4", chunks=(2**14,), compression="gzip")
        stored.id.write_direct_chunk((0,), zlib.compress(bytes(size)))
    tracemalloc.start()
    with pytest.raises(DataFileError, match=r"does not decompress to 65536 bytes|60 of 65,536"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_chunk_larger_than_its_declared_size_is_refused(tmp_path):
    path = tmp_path / "large.hdf5"
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("field", (4,), "f4", chunks=(4,), compression="gzip")
        stored.id.write_direct_chunk((0,), bytes(1000))
    with pytest.raises(DataFileError, match="a chunk of 1000 bytes instead of 16"):
        read(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = written(tmp_path / "short.hdf5", field=np.zeros(1000))
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataFileError, match=r"short.hdf5: is truncated.*write the file again"):
        read(path)


def test_a_file_that_is_not_hdf5_is_refused(tmp_path):
    path = tmp_path / "text.hdf5"
    path.write_text("observations")
    with pytest.raises(DataFileError, match="is not an HDF5 file"):
        read(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.hdf5"):
        with pytest.raises(DataFileError, match=r"there is no such file|is a folder"):
            read(path)


def test_settings_are_small_numeric_attributes(tmp_path):
    path = written(tmp_path / "settings.hdf5")
    with h5py.File(path, "a") as file:
        file.attrs.update(low=[-2, -3], one=0.5, text="high", large=np.zeros(5000))
    with open_hdf5(path) as file:
        np.testing.assert_array_equal(file.setting("low"), [-2, -3])
        assert file.setting("one").item() == 0.5
        assert file.setting("absent") is None
        with pytest.raises(DataFileError, match=r"'text' .*not plain numbers"):
            file.setting("text")
        with pytest.raises(DataFileError, match=r"'large' has shape \(5000,\)"):
            file.setting("large")


def test_a_small_file_with_very_many_chunks_is_refused_quickly(tmp_path):
    """The corners of the chunks alone would not fit into memory."""
    path = tmp_path / "many.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("field", shape=(2_500_000_000, 1), chunks=(1, 1), dtype="f4")
    with pytest.raises(DataFileError, match="field"):
        read(path, memory_limit=2**40)
