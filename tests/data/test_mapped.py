"""Folders of .npy files that are read in parts: round trips, bounded memory, damaged files."""

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest

from fat2thin.data import DataFileError, Dataset, load, read_mapped, save_mapped
from fat2thin.data.row_arrays import FollowingRows, MappedRows, RowArray, is_lazy
from fat2thin.data.summary import summarise

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
    seen, log = [], generated()
    whole = ROWS * (2 * WIDTH + 8) * 4
    tracemalloc.start()
    save_mapped(log, tmp_path / "log.npy", seen.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 2**20 < whole
    assert seen == sorted(seen) and seen[-1] == 2 * ROWS


def test_a_summary_of_a_folder_is_that_of_the_log_and_needs_little_memory(folder, tmp_path):
    log = load("treatment/cubic@20")
    assert summarise(dataclasses.replace(read_mapped(folder), name=log.name)) == summarise(log)
    peaks = []
    for rows in (ROWS // 2, ROWS):
        save_mapped(generated(rows), tmp_path / f"{rows}.npy")
        large = read_mapped(tmp_path / f"{rows}.npy")
        tracemalloc.start()
        summarise(large)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0]


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
    ],
    ids=range(13),
)  # fmt: skip
def test_a_damaged_folder_is_refused_by_the_name_of_the_file(damage, message, folder, tmp_path):
    place = copied(folder, tmp_path)
    damage(place)
    with pytest.raises(DataFileError, match=message):
        read_mapped(place)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    np.save(tmp_path / "log.npy", np.zeros(3))
    with pytest.raises(DataFileError, match="is not a folder"):
        load(str(tmp_path / "log.npy"))
