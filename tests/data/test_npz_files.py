"""Plain arrays are read as by NumPy; objects, false sizes and zip bombs are refused early."""

import dataclasses
import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from fat2thin import data
from fat2thin.data import Box, DataFileError, Dataset, read_hdf5, read_npz, save_npz
from fat2thin.data.checks import check
from fat2thin.data.formats.npz import open_npz

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "neorl2"
TYPES = ("f2", "<f4", ">f4", "f8", ">f8", "i1", "u1", "i2", ">u4", "i8", "u8", "?")
# Rows 0 to 2 stop at a time limit, rows 3 and 4 at a true end; the file stops in episode 3.
LOG = {
    "observation": np.array([[0.0], [10], [20], [30], [40], [50], [60]]),
    "action": np.array([[-1.0], [0.5], [0], [1], [0], [0], [0]], np.float32),
    "action_low": np.array([-1.0]),
    "action_high": np.array([1.0]),
    "reward": np.arange(7.0),
    "terminal": np.array([0, 0, 0, 0, 1, 0, 0], bool),
    "cut": np.array([0, 0, 1, 0, 0, 0, 0], bool),
    "next_observation": np.array([[10.0], [20], [25], [40], [45], [60], [70]]),
}
NEORL2 = {
    "observation": "obs",
    "next_observation": "next_obs",
    "terminal": "done",
    "cut": "truncated",
    "episode_start": "index",
}


def write(path, without=(), **changes):
    arrays = {**LOG, **changes}
    np.savez_compressed(path, **{name: arrays[name] for name in arrays if name not in without})
    return path


def member(array=None, header=None) -> bytes:
    """Return an .npy of an array, or of a header without numbers."""
    if header is not None:
        text = header.encode() + b"\n"
        return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(path, members: dict[str, bytes], **options):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as file:
        for name, contents in members.items():
            file.writestr(name, contents)
    return path


def read_field(path, **options):
    with open_npz(path, **options) as file:
        return file.read("field")


def peak_memory(path, message, **options) -> int:
    """Return the peak memory in bytes while a file is refused."""
    tracemalloc.start()
    with pytest.raises(DataFileError, match=message):
        read_field(path, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(25, 3), (75,), (5, 5, 3), ()])
def test_every_type_and_order_is_read_as_numpy_reads_it(tmp_path, order, shape):
    rng = np.random.default_rng(0)
    arrays = {
        dtype: np.asarray(rng.integers(0, 2 if dtype == "?" else 100, shape), dtype, order=order)
        for dtype in TYPES
    }
    np.savez(tmp_path / "all.npz", **arrays)
    with open_npz(tmp_path / "all.npz") as file:
        for dtype, array in arrays.items():
            found = file.read(dtype)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, array.astype(np.float32))
            single = file.read(dtype, None)
            assert single.dtype == array.dtype
            np.testing.assert_array_equal(single, array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_header_are_read(tmp_path, version):
    contents = io.BytesIO()
    np.lib.format.write_array(contents, np.arange(3.0), version)
    with open_npz(archive(tmp_path / "x.npz", {"x.npy": contents.getvalue()})) as file:
        np.testing.assert_array_equal(file.read("x"), [0, 1, 2])


def test_an_array_is_never_in_memory_in_two_types(tmp_path):
    np.savez_compressed(tmp_path / "large.npz", field=np.zeros((2**18, 16)))
    with open_npz(tmp_path / "large.npz") as file:
        tracemalloc.start()
        array = file.read("field")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert array.nbytes == 2**24
    assert peak < array.nbytes + 2**23


def test_a_file_with_fat2thin_names_is_read(tmp_path):
    dataset = read_npz(write(tmp_path / "log.npz"))
    np.testing.assert_array_equal(dataset.observation, LOG["observation"])
    np.testing.assert_array_equal(dataset.next_observation, LOG["next_observation"])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(dataset.episode_start, [0, 3, 5])
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-1.0,), (1.0,), 0.99)


def test_without_next_observations_the_last_row_of_a_cut_episode_is_dropped(tmp_path):
    dataset = read_npz(write(tmp_path / "log.npz", without=["next_observation"]))
    np.testing.assert_array_equal(dataset.observation, [[0], [10], [30], [40], [50]])
    np.testing.assert_array_equal(dataset.next_observation, [[10], [20], [40], [40], [60]])
    np.testing.assert_array_equal(dataset.episode_start, [0, 2, 4])


@pytest.mark.parametrize("names", [{}, NEORL2], ids=["ours", "NeoRL-2"])
@pytest.mark.parametrize(
    ("without", "extra"),
    [
        ([], {}),
        (["cut"], {"episode_start": np.array([0, 3, 5])}),
        (["cut"], {"episode_start": np.array([0.0, 3.0, 5.0])}),
        ([], {"episode_start": np.array([0, 3, 5], np.uint8)}),
        (["cut"], {}),
    ],
)
def test_equivalent_marks_of_episodes_give_the_same_data_set(tmp_path, names, without, extra):
    plain = read_npz(write(tmp_path / "log.npz"))
    arrays = {name: array for name, array in {**LOG, **extra}.items() if name not in without}
    renamed = {names.get(name, name): array for name, array in arrays.items()}
    np.savez(tmp_path / "other.npz", **renamed)
    other = read_npz(tmp_path / "other.npz")
    whole = dataclasses.replace(other, episode_start=other.episode_start.astype(np.int64))
    assert whole.sha256 == plain.sha256


def test_neither_cuts_nor_next_observations_is_a_warning(tmp_path):
    path = write(tmp_path / "log.npz", without=["cut", "next_observation"])
    with pytest.warns(UserWarning, match="has neither 'cut' nor 'next_observation'"):
        assert read_npz(path).rows == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"episode_start": np.array([0, 5, 3])},
            "'episode_start' must hold increasing row",
        ),
        ({"episode_start": np.array([1, 3])}, "'episode_start' must hold increasing"),
        ({"episode_start": np.array([0, 7])}, "'episode_start' must hold .* stay below 7"),
        ({"episode_start": np.array([0, 2.5])}, "'episode_start' must hold"),
        ({"episode_start": np.array([0, np.nan])}, r"'episode_start' is NaN.*first in row 1"),
        ({"episode_start": np.zeros((1, 1))}, r"'episode_start' must have shape \(episodes,\)"),
        ({"episode_start": np.arange(0)}, r"'episode_start' must have shape \(episodes,\)"),
        ({"action": np.zeros((6, 1))}, r"'action' must have shape \(7, columns\), not \(6, 1\)"),
        ({"reward": np.array([0, 0, 0, np.nan, 0, 0, 0])}, "'reward' is NaN.*first in row 3"),
        ({"discount": np.zeros(5000)}, r"'discount' has shape \(5000,\)"),
        ({"fat2thin_columns": np.array([300.0])}, "'fat2thin_columns' is not a text of bytes"),
        ({"fat2thin_columns": np.zeros((1, 1))}, "'fat2thin_columns' is not a text of bytes"),
        ({"fat2thin_columns": np.array(["a"])}, "'fat2thin_columns' does not hold plain numbers"),
        *(
            ({"fat2thin_columns": np.frombuffer(text, np.uint8)}, "'fat2thin_columns' does not des")
            for text in (
                b"{",
                b"[" * 100_000,
                b"[]",
                b'{"observation": 1, "action": []}',
                b'{"observation": [1], "action": []}',
                b'{"observation": [{"name": "a"}], "action": []}',
                b'{"observation": [{"name": "a", "unit": "", "transform": {"kind": "log", '
                b'"number": []}}], "action": []}',
            )
        ),
        (
            {
                "fat2thin_columns": np.frombuffer(
                    b'{"observation": [], "action": [{"name": "a", "unit": ""}, {"name": "b", '
                    b'"unit": ""}]}',
                    np.uint8,
                )
            },
            "has no usable log: .*action_columns must name 1 columns, not 2",
        ),
        ({"discount": np.array("high")}, "'discount' does not hold plain numbers: '<U4'"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, changes, message):
    with pytest.raises(DataFileError, match=f"log.npz: {message}"):
        read_npz(write(tmp_path / "log.npz", **changes))


@pytest.mark.parametrize("field", ["observation", "action", "reward", "terminal"])
def test_a_missing_array_is_named(tmp_path, field):
    with pytest.raises(DataFileError, match=f"'{field}' is missing"):
        read_npz(write(tmp_path / "log.npz", without=[field]))


def test_the_box_of_the_caller_overrides_that_of_the_file(tmp_path):
    path = write(tmp_path / "log.npz", action_low=[-2.0], action_high=[3.0], discount=0.5)
    dataset = data.load(str(path))
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-2.0,), (3.0,), 0.5)
    dataset = read_npz(path, box=Box((-4.0,), (5.0,), 0.9))
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-4.0,), (5.0,), 0.9)


def test_a_box_with_one_end_is_refused(tmp_path):
    path = write(tmp_path / "log.npz", without=["action_high"])
    with pytest.raises(DataFileError, match="'action_low' is given without the other end"):
        read_npz(path)


NO_BOX = ("action_low", "action_high")
DOSES = np.array([[0.25, 30], [0.75, 10], [0.5, 20], [0.5, 20], [1, 20], [0, 20], [0.1, 20]])


@pytest.mark.parametrize("names", [{}, NEORL2], ids=["ours", "NeoRL-2"])
@pytest.mark.parametrize("suffix", [".npz", ".hdf5"])
def test_a_missing_box_is_the_range_of_the_logged_actions(tmp_path, names, suffix):
    """Regression: doses from 0 to 1 got a box of ±1, which allows negative doses."""
    path = tmp_path / f"doses{suffix}"
    if suffix == ".npz":
        arrays = {name: array for name, array in LOG.items() if name not in NO_BOX}
        renamed = {names.get(name, name): array for name, array in arrays.items()}
        np.savez(path, **{**renamed, "action": DOSES})
    else:
        with h5py.File(path, "w") as file:
            for name in ("observation", "reward", "terminal", "next_observation"):
                file[f"{name}s"] = LOG[name]
            file["actions"] = DOSES
    with pytest.warns(
        UserWarning, match=r"has no action box: .* \[0, 10\] to \[1, 30\]\."
    ) as caught:
        dataset = data.load(str(path))
    assert (dataset.action_low, dataset.action_high) == ((0.0, 10.0), (1.0, 30.0))
    (warning,) = caught
    assert str(warning.message).endswith("in the file as action_low and action_high")
    assert check(dataset).codes == ("at_edge", "at_edge")
    # With a box from the caller there is no warning.
    read = read_npz if suffix == ".npz" else read_hdf5
    assert read(path, box=Box((0.0, 0.0), (2.0, 40.0), 0.9)).action_high == (2.0, 40.0)


def test_constant_actions_give_no_box(tmp_path):
    action = np.stack([np.linspace(0, 1, 7), np.full(7, 2.0)], axis=1)
    path = write(tmp_path / "log.npz", without=NO_BOX, action=action)
    with pytest.raises(
        DataFileError, match=r"'action' never changes in dimension 1, .* no action box"
    ):
        read_npz(path)


@pytest.mark.parametrize("name", ["Simglucose-high-100000-train", "Pipeline-val", "DMSD-train"])
def test_neorl2_files_have_a_unit_box(tmp_path, name):
    arrays = {NEORL2.get(name, name): array for name, array in LOG.items() if name not in NO_BOX}
    np.savez(tmp_path / f"{name}.npz", **{**arrays, "action": DOSES[:, :1]})
    dataset = read_npz(tmp_path / f"{name}.npz")
    assert (dataset.action_low, dataset.action_high) == ((-1.0,), (1.0,))
    # Other files may use the same array names.
    (tmp_path / f"{name}.npz").rename(tmp_path / "my-train.npz")
    with pytest.warns(UserWarning, match="has no action box"):
        assert read_npz(tmp_path / "my-train.npz").action_low == (0.0,)


@pytest.mark.parametrize("start", [np.int32, np.int64])
def test_a_saved_data_set_is_read_back_with_the_same_hash(tmp_path, start):
    plain = read_npz(write(tmp_path / "log.npz"))
    dataset = dataclasses.replace(
        plain,
        episode_start=plain.episode_start.astype(start),
        action_low=(-1.1,),
        action_high=(1 / 3 + 1,),
        discount=0.97,
        propensity=np.linspace(0.1, 1, plain.rows, dtype=np.float32),
    )
    save_npz(dataset, tmp_path / "saved.npz")
    again = data.load(str(tmp_path / "saved.npz"))
    assert again.sha256 == dataset.sha256
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propensity": np.full(7, 0.5)}, "propensity is float64, but files store float32"),
        ({"reward": np.arange(7.0)}, "reward is float64, but files store float32"),
        ({"continuation": np.full(7, 0.5, np.float32)}, "continuations lie between 0 and 1"),
        ({"episode_start": np.array([0, 3])}, "an episode continues after a true end"),
    ],
)
def test_data_that_cannot_be_read_back_is_not_saved(tmp_path, changes, message):
    dataset = dataclasses.replace(read_npz(write(tmp_path / "log.npz")), **changes)
    with pytest.raises(ValueError, match=message):
        save_npz(dataset, tmp_path / "saved.npz")
    assert not (tmp_path / "saved.npz").exists()


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    dataset = read_npz(write(tmp_path / "log.npz"))
    save_npz(dataset, tmp_path / "saved.npz")
    before = (tmp_path / "saved.npz").read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_npz(dataclasses.replace(dataset, discount=0.5), tmp_path / "saved.npz")
    assert (tmp_path / "saved.npz").read_bytes() == before
    assert {file.name for file in tmp_path.iterdir()} == {"log.npz", "saved.npz"}


class Trap:
    """An object that creates a file when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was loaded')",))


def test_objects_are_refused_and_never_loaded(tmp_path):
    np.savez(tmp_path / "trap.npz", field=np.array([Trap()], object))
    with pytest.raises(DataFileError, match=r"trap.npz: 'field' holds Python objects.*run code"):
        read_field(tmp_path / "trap.npz")
    with pytest.raises(DataFileError, match="'observation' holds Python objects"):
        read_npz(write(tmp_path / "log.npz", observation=np.array([Trap()], object)))


@pytest.mark.parametrize(
    "array",
    [np.zeros(3, "c8"), np.zeros(3, "U2"), np.zeros(3, "M8[s]"), np.zeros(3, [("a", "f4")])],
)
def test_arrays_without_numbers_are_refused(tmp_path, array):
    np.savez(tmp_path / "other.npz", field=array)
    with pytest.raises(DataFileError, match="'field' does not hold plain numbers"):
        read_field(tmp_path / "other.npz")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,), }",
        "{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (3,), }",
        "(" * 5000,
        "",
    ],
)
def test_a_header_that_numpy_does_not_write_is_refused(tmp_path, header):
    path = archive(tmp_path / "header.npz", {"field.npy": member(header=header)})
    with pytest.raises(DataFileError, match="'field' does not hold plain numbers"):
        read_field(path)


def test_a_small_file_that_declares_32_gigabytes_is_refused(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (8589934592,), }"
    path = archive(tmp_path / "lie.npz", {"field.npy": member(header=header)})
    assert path.stat().st_size < 300
    message = r"is truncated: its shape needs 34,359,738,368 bytes, the file has 0"
    assert peak_memory(path, message) < 2**20


def test_a_false_size_in_header_and_zip_is_refused(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,), }"
    contents = member(header=header)
    path = archive(tmp_path / "lie.npz", {"field.npy": contents})
    raw = path.read_bytes()
    true, false = (struct.pack("<I", len(contents) + extra) for extra in (0, 4_000_000_000))
    assert raw.count(true) >= 2
    path.write_bytes(raw.replace(true, false))
    assert peak_memory(path, "more than deflate can make") < 2**20


def test_a_zip_bomb_is_stopped_by_the_memory_limit(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", field=np.zeros(2**23, np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 2**16
    message = r"'field' with shape .* 33,554,432 bytes; the limit is 1,048,576.*memory_limit"
    assert peak_memory(tmp_path / "bomb.npz", message, memory_limit=2**20) < 2**20


def test_the_memory_limit_covers_all_arrays_together(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.zeros(100), b=np.zeros(100))
    with open_npz(tmp_path / "two.npz", memory_limit=1599) as file:
        file.read("a")
        with pytest.raises(DataFileError, match=r"'b' with shape .* 1,600 bytes"):
            file.read("b")


def test_a_very_long_directory_is_refused(tmp_path):
    path = archive(tmp_path / "long.npz", {f"{number:060000}": b"" for number in range(20)})
    with pytest.raises(DataFileError, match="directory of the archive has more than"):
        read_field(path)


@pytest.mark.parametrize("name", ["/etc/x.npy", "../x.npy", "a/../../x.npy", "..\\x.npy", "C:x"])
def test_member_names_outside_the_archive_are_refused(tmp_path, name):
    path = archive(tmp_path / "names.npz", {name: member(np.zeros(3))})
    with pytest.raises(DataFileError, match="leads out of the archive"):
        read_field(path)


def test_a_duplicate_member_is_refused(tmp_path):
    duplicate = pytest.warns(UserWarning, match="Duplicate name")
    with duplicate, zipfile.ZipFile(tmp_path / "twice.npz", "w") as file:
        for _ in range(2):
            file.writestr("field.npy", member(np.zeros(3)))
    with pytest.raises(DataFileError, match=r"'field.npy' occurs twice"):
        read_field(tmp_path / "twice.npz")


def test_other_compression_methods_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bz2.npz", "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("field.npy", member(np.zeros(3)))
    with pytest.raises(DataFileError, match="is compressed by method 12, not deflate"):
        read_field(tmp_path / "bz2.npz")


def test_an_encrypted_member_is_refused(tmp_path):
    np.savez(tmp_path / "secret.npz", field=np.zeros(3))
    raw = bytearray((tmp_path / "secret.npz").read_bytes())
    raw[raw.rindex(b"PK\1\2") + 8] |= 1
    (tmp_path / "secret.npz").write_bytes(raw)
    with pytest.raises(DataFileError, match="is encrypted"):
        read_field(tmp_path / "secret.npz")


def test_the_checksum_reveals_damage(tmp_path):
    np.savez(tmp_path / "x.npz", field=np.arange(1000.0))
    raw = bytearray((tmp_path / "x.npz").read_bytes())
    raw[5000] ^= 1
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(DataFileError, match="'field' is damaged: Bad CRC-32"):
        read_field(tmp_path / "x.npz")


@pytest.mark.parametrize("keep", [0, 10, 500, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = write(tmp_path / "log.npz")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataFileError, match=r"log.npz: is truncated, or not an .npz file"):
        read_npz(path)


def test_a_truncated_array_is_refused(tmp_path):
    path = archive(tmp_path / "x.npz", {"field.npy": member(np.arange(10.0))[:-8]})
    with pytest.raises(DataFileError, match="truncated: its shape needs 80 bytes, the file has 72"):
        read_field(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.npz"):
        with pytest.raises(DataFileError, match=r"there is no such file|is a folder"):
            read_npz(path)


@pytest.fixture(scope="module")
def insulin() -> Path:
    path = REAL / "Simglucose-high-20000-val.npz"
    if not path.exists():
        pytest.skip("needs NeoRL-2's insulin log in shared/data/neorl2 next to the repository")
    return path


def test_a_real_log_is_read(insulin):
    dataset = read_npz(insulin)
    with np.load(insulin, allow_pickle=False) as plain:
        np.testing.assert_array_equal(dataset.observation, plain["obs"])
        np.testing.assert_array_equal(dataset.next_observation, plain["next_obs"])
        np.testing.assert_array_equal(dataset.action, plain["action"])
        np.testing.assert_array_equal(dataset.reward, plain["reward"])
        np.testing.assert_array_equal(dataset.continuation, 1 - plain["done"])
        ends = np.flatnonzero(plain["done"] + plain["truncated"])
    np.testing.assert_array_equal(dataset.episode_start, [0, *(ends[:-1] + 1)])
    # According to its publisher: 20,018 steps in 62 episodes of at most 480 steps.
    assert (dataset.rows, len(dataset.episode_start)) == (20_018, 62)
    assert np.diff(dataset.episode_start).max() == 480


def test_the_cuts_of_a_real_log_follow_from_its_next_observations(insulin, tmp_path):
    with np.load(insulin, allow_pickle=False) as plain:
        kept = {name: plain[name] for name in plain if name != "truncated"}
    np.savez(tmp_path / insulin.name, **kept)  # its name implies the action box
    assert read_npz(tmp_path / insulin.name).sha256 == read_npz(insulin).sha256


def test_a_real_log_is_saved_and_read_back(insulin, tmp_path):
    dataset: Dataset = read_npz(insulin)
    save_npz(dataset, tmp_path / "saved.npz")
    assert read_npz(tmp_path / "saved.npz").sha256 == dataset.sha256


def test_the_check_of_a_real_log_reports_only_what_is_true(insulin):
    """Constant history columns, and an insulin pump that is off half of the time."""
    constant, off = check(read_npz(insulin)).warnings
    assert (constant.code, off.code) == ("constant", "at_edge")
    assert "low edge of the box in 50.7 %" in off.sentence and 'Transform("log"' in off.way_out
