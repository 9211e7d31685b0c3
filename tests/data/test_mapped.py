"""Folders of .npy files that are read in parts: round trips, bounded memory, damaged files."""

import dataclasses
import errno
import json
import os
import resource
import shutil
import tracemalloc

import numpy as np
import pytest

from fat2thin.atomic_files import NoRoomError
from fat2thin.data import (
    DataFileError,
    Dataset,
    load,
    long_work,
    read_mapped,
    safe_files,
    save_mapped,
)
from fat2thin.data.checks import check
from fat2thin.data.formats import hdf5, npz, table
from fat2thin.data.operations import Box, RawLog
from fat2thin.data.row_arrays import FollowingRows, MappedRows, RowArray, is_lazy
from fat2thin.data.summary import summarise
from fat2thin.data.writers import FORMATS, write

ROWS, WIDTH, EPISODE = 100_000, 17, 1000


class Numbers(RowArray):
    """Row numbers; they take no memory."""

    def __init__(self, rows, width):
        self.shape, self.dtype = (rows, width), np.dtype(np.float32)

    def read(self, rows):
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return (numbers[:, None] + np.arange(self.shape[1])).astype(np.float32)


def generated(rows=ROWS):
    """Return a log that is computed when it is read."""
    observation = MappedRows(np.sin, Numbers(rows, WIDTH))
    starts = np.arange(0, rows, EPISODE)
    last = np.append(starts[1:], rows) - 1
    following = FollowingRows(
        observation, last, np.sin(last[:, None] + 1.0 + np.arange(WIDTH)).astype(np.float32)
    )
    single = Numbers(rows, 1)
    reward = Column(MappedRows(np.cos, single))
    return Dataset(
        name="generated", observation=observation, action=MappedRows(np.cos, Numbers(rows, 6)),
        reward=reward, next_observation=following,
        continuation=Column(MappedRows(np.ones_like, single)), episode_start=starts,
        action_low=(-1.0,) * 6, action_high=(1.0,) * 6, discount=0.99,
    )  # fmt: skip


class Column(RowArray):
    """The only column of an array."""

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape[:1], array.dtype

    def read(self, rows):
        return self._array[rows][:, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "log.npy"
    save_mapped(load("treatment/cubic@20"), path)
    return path


def copied(folder, tmp_path):
    place = tmp_path / "log.npy"
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return place


def test_a_folder_has_the_hash_and_the_rows_of_the_log(folder):
    log, again = load("treatment/cubic@20"), load(str(folder))
    assert is_lazy(again.observation, again.next_observation)
    assert again.sha256 == log.sha256
    for name in log.arrays:
        np.testing.assert_array_equal(getattr(again, name), getattr(log, name))
    # The hash in log.json is that of the rows.
    arrays = {name: np.asarray(getattr(again, name)) for name in again.arrays}
    assert again.recorded is not None
    computed = dataclasses.replace(again, recorded=None, **arrays)
    assert computed.sha256 == log.sha256


def test_next_observations_are_stored_only_where_they_are_not_the_row_below(tmp_path):
    save_mapped(generated(5000), tmp_path / "log.npy")
    files = {file.name: file.stat().st_size for file in (tmp_path / "log.npy").iterdir()}
    assert "next_observation.npy" not in files
    numbers = 5000 * (WIDTH + 6 + 1 + 1) * 4 + 5 * WIDTH * 4
    assert sum(files.values()) < numbers + 5 * 16 + 8 * 128 + 2000


def test_writing_needs_little_memory_and_shows_progress(tmp_path):
    display, log = long_work.Display(), generated()
    whole = ROWS * (2 * WIDTH + 8) * 4
    tracemalloc.start()
    with long_work.watched(display):
        save_mapped(log, tmp_path / "log.npy")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 2**20 < whole
    assert 0.95 < display.done / display.expected < 1.05


def noisy(rows=ROWS):
    """Return a log in which the checks find nothing."""
    draw = np.random.default_rng(0)
    observation, action, reward = (
        draw.uniform(-1, 1, (rows, *width)).astype(np.float32) for width in ((WIDTH,), (6,), ())
    )
    return dataclasses.replace(
        generated(rows), observation=observation, action=action, reward=reward,
        next_observation=np.roll(observation, -1, axis=0), continuation=np.ones(rows, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("work", [summarise, check])
def test_work_on_a_folder_gives_the_result_of_the_log_in_little_memory(work, tmp_path):
    peaks, display = [], long_work.Display()
    for rows in (ROWS // 2, ROWS):
        log = noisy(rows)
        save_mapped(log, tmp_path / f"{rows}.npy")
        folder = read_mapped(tmp_path / f"{rows}.npy")
        assert work(dataclasses.replace(folder, name=log.name)) == work(log)
        tracemalloc.start()
        with long_work.watched(display):
            work(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Of a row, the check for repeated rows needs three integers.
    allowed = 26 * ROWS / 2 if work is check else 0.05 * peaks[0]
    assert peaks[1] < peaks[0] + allowed
    assert 0.95 < display.done / display.expected < 1.05


BROKEN = {
    "not_finite": ("observation", 70, np.nan),
    "outside_box": ("action", slice(3, 60), 1.5),
    "reward_scale": ("reward", 77, 1e6),
    "duplicates": ("*", slice(1000, 1100), slice(100, 200)),
    "at_edge": ("action", slice(0, 900), 1.0),
    "leak": ("observation", slice(None), "action"),
    "broken_chain": ("next_observation", 700, 0.9),
}


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_folder_has_the_findings_of_the_log_in_memory(code, tmp_path, monkeypatch):
    """In small blocks, so that every finding crosses several."""
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", 500)
    save_mapped(noisy(2000), tmp_path / "log.npy")
    field, rows, value = BROKEN[code]
    for name in ("observation", "action", "reward") if field == "*" else (field,):
        if name == "next_observation":
            apart = np.load(tmp_path / "log.npy" / "apart_values.npy", mmap_mode="r+")
            apart[0] = value  # stored for the last row of an episode only
            np.save(tmp_path / "log.npy" / "apart.npy", [500, 999, 1999])
            np.save(tmp_path / "log.npy" / "apart_values.npy", np.repeat(apart[:1], 3, axis=0))
            continue
        array = np.load(tmp_path / "log.npy" / f"{name}.npy", mmap_mode="r+")
        if value == "action":
            array[:, 3] = np.load(tmp_path / "log.npy" / "action.npy")[:, 0]
        else:
            array[rows] = array[value] if field == "*" else value
        array.flush()
    folder = read_mapped(tmp_path / "log.npy")
    report = check(folder)
    assert code in report.codes
    raw = RawLog(
        *(np.asarray(getattr(folder, name)) for name in ("observation", "action", "reward")),
        terminal=np.asarray(folder.continuation) == 0,
        cut=np.isin(np.arange(2000), np.append(folder.episode_start[1:], 2000) - 1),
        next_observation=np.asarray(folder.next_observation),
    )
    box = Box(folder.action_low, folder.action_high, folder.discount)
    expected = check(raw, box)
    assert report.errors[0].code == "other_hash"
    report = dataclasses.replace(report, errors=report.errors[1:], note="")
    assert report == dataclasses.replace(expected, note="")


def test_a_log_larger_than_the_memory_limit_is_converted_on_disk(tmp_path, monkeypatch):
    """All arrays of the readers and of the data set are files; nothing is left of them."""
    log = noisy(40_000)
    tables = ["hdf5", "npz", "csv", "parquet"]
    for kind in tables:
        folder = tmp_path / kind
        folder.mkdir()
        write(log, folder / f"log.{kind}")
    monkeypatch.setattr(long_work, "LEAST_ON_DISK", 2**15)
    monkeypatch.setattr("fat2thin.data.row_arrays.BLOCK_CELLS", 2**14)
    for reader in (hdf5, npz):
        monkeypatch.setattr(reader, "_BLOCK", 2**15)
    monkeypatch.setattr(safe_files, "default_limit", lambda: 2**20)
    monkeypatch.setattr(table, "default_limit", lambda: 2**20)
    (tmp_path / "out").mkdir()
    for kind in tables:
        source, display = str(tmp_path / kind / f"log.{kind}"), long_work.Display()
        if kind != "csv":  # text is not limited by what a header declares
            with pytest.raises(DataFileError, match="fat2thin data convert"):
                load(source)
        tracemalloc.start()
        with long_work.arrays_on_disk(tmp_path / "out"):
            with long_work.watched(display):
                read = load(source)
            assert 0.8 < display.done / display.expected < 1.25, kind
            save_mapped(read, tmp_path / "out" / f"{kind}.npy")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40_000 * (2 * WIDTH + 8) * 4 / 2, (kind, peak)
        assert read_mapped(tmp_path / "out" / f"{kind}.npy").sha256 == log.sha256
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(
        f"{kind}.npy" for kind in tables
    )


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    write(noisy(2000), tmp_path / "log.hdf5")
    monkeypatch.setattr(long_work, "LEAST_ON_DISK", 2**12)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        long_work.arrays_on_disk(tmp_path),
        pytest.raises(NoRoomError, match=r"^there is no room for .* bytes of scratch files in .*/"),
    ):
        load(str(tmp_path / "log.hdf5"))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_disk_that_is_full_while_a_log_is_written_is_named(suffix, tmp_path):
    """With a real limit: the system refuses to let a file grow."""
    out, before = tmp_path / f"log{suffix}", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(NoRoomError, match=rf"^there is no room for .*log\{suffix}: File too"):
            write(noisy(2000), out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def test_an_action_outside_the_box_is_not_written(tmp_path):
    log = dataclasses.replace(generated(2000), action_high=(0.5,) * 6)
    with pytest.raises(ValueError, match="action leaves the box"):
        save_mapped(log, tmp_path / "log.npy")
    assert not [*tmp_path.iterdir()]


def damaged(name, contents):
    def damage(folder):
        (folder / name).write_bytes(contents)

    return damage


def truncated(folder):
    file = folder / "reward.npy"
    file.write_bytes(file.read_bytes()[:-4])


def double(folder):
    np.save(folder / "reward.npy", np.load(folder / "reward.npy").astype(np.float64))


def objects(folder):
    np.save(folder / "reward.npy", np.array([{}], dtype=object), allow_pickle=True)


def unsorted(folder):
    apart = np.load(folder / "apart.npy")
    np.save(folder / "apart.npy", apart[::-1].copy())


def outdated(folder):
    about = json.loads((folder / "log.json").read_text())
    (folder / "log.json").write_text(json.dumps(about | {"format": 99}))


def starts(folder):
    np.save(folder / "episode_start.npy", np.array([0, 10**6]))


def no_action(folder):
    np.save(folder / "action.npy", np.load(folder / "action.npy")[:, :0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "log.json").unlink(), "log.json: there is no such file"),
        (lambda folder: (folder / "action.npy").unlink(), "action.npy: there is no such file"),
        (lambda folder: (folder / "apart.npy").unlink(), "apart.npy: is missing"),
        (damaged("log.json", b"["), "log.json: is not JSON"),
        (damaged("log.json", b"[" * 10**5), "log.json: is not JSON"),
        (damaged("log.json", b"{}"), "log.json: must have action_high"),
        (damaged("reward.npy", b"not an array"), "reward.npy: is damaged"),
        (truncated, "reward.npy: is damaged"),
        (double, "reward.npy: must hold float32"),
        (objects, "reward.npy: is damaged"),
        (unsorted, "apart.npy: must be increasing row numbers"),
        (outdated, "has format 99, this version reads 1"),
        (starts, "has no usable log: .*episode_start"),
        (no_action, "action must have at least one column"),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_damaged_folder_is_refused_by_the_name_of_the_file(damage, message, folder, tmp_path):
    place = copied(folder, tmp_path)
    damage(place)
    with pytest.raises(DataFileError, match=message):
        read_mapped(place)


def test_a_file_that_is_cut_while_it_is_in_use_is_an_error(folder, tmp_path):
    """Without the check, the system ends the process. A folder that is removed stays readable."""
    place = copied(folder, tmp_path)
    log = read_mapped(place)
    shutil.rmtree(place)
    np.testing.assert_array_equal(log.reward[:10], read_mapped(folder).reward[:10])
    log = read_mapped(copied(folder, tmp_path))
    os.truncate(place / "reward.npy", 200)
    with pytest.raises(OSError, match=r"reward\.npy was cut while it was in use"):
        log.reward[:10]


def no_rewards(folder):
    np.save(folder / "reward.npy", np.load(folder / "reward.npy") * np.nan)


def other_ends(folder):
    np.save(folder / "continuation.npy", np.load(folder / "continuation.npy") * 2)


def other_box(folder):
    about = json.loads((folder / "log.json").read_text())
    (folder / "log.json").write_text(json.dumps(about | {"action_high": [2.0]}))


@pytest.mark.parametrize("change", [no_rewards, other_ends, other_box])
def test_the_check_finds_rows_that_were_changed_after_the_conversion(change, folder, tmp_path):
    place = copied(folder, tmp_path)
    assert check(read_mapped(place)).errors == ()
    change(place)
    assert check(read_mapped(place)).codes[0] == "other_hash"


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    np.save(tmp_path / "log.npy", np.zeros(3))
    with pytest.raises(DataFileError, match="is not a folder"):
        load(str(tmp_path / "log.npy"))
