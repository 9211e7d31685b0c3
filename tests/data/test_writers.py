import csv
import dataclasses
import os
import tomllib

import h5py
import numpy as np
import pyarrow.parquet
import pytest

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data import Dataset, writers

ROW_ARRAYS = ("observation", "action", "reward", "next_observation", "continuation")


def small(**changes) -> Dataset:
    """Two episodes: one cut, one with a true end. Thirds have no short decimal expansion."""
    thirds = (np.arange(10, dtype=np.float32) / 3).reshape(5, 2)
    values = {
        "name": "small",
        "observation": thirds,
        "action": np.array([[-1, 0.1], [0.2, 0.3], [1, 3], [0, 1.5], [0.7, 0]], np.float32),
        "reward": np.array([1e-30, -2.5e20, 0.1, 0, 7], np.float32),
        "next_observation": thirds + 1,
        "continuation": np.array([1, 1, 1, 1, 0], np.float32),
        "episode_start": np.array([0, 3]),
        "action_low": (-1.0, 0.0),
        "action_high": (1.0, 3.0),
        "discount": 0.95,
    }
    return Dataset(**(values | changes))


@pytest.mark.parametrize("suffix", sorted(writers.FORMATS))
@pytest.mark.parametrize(
    "dataset",
    [
        small(),
        small(name="chances", propensity=np.array([1, 1e-30, 0.1, 1 / 3, 0.5], np.float32)),
        small(
            name="densities",
            propensity=np.array([1, 1e-30, 0.1, 7.0, 0.5], np.float32),
            propensity_is_density=True,
        ),
        data.load("treatment/cubic", 3),
    ],
    ids=lambda d: d.name,
)
def test_a_written_data_set_is_read_back(dataset, suffix, tmp_path):
    path = tmp_path / f"log{suffix}"
    written = writers.write(dataset, path)
    assert written == writers.places(path)
    assert sorted(tmp_path.iterdir()) == sorted(written)
    again = data.load(str(path))
    assert (again.propensity is None) == (dataset.propensity is None)
    for field in (*ROW_ARRAYS, "episode_start", "propensity"):
        np.testing.assert_array_equal(getattr(again, field), getattr(dataset, field))
    for field in ("action_low", "action_high", "discount", "propensity_is_density"):
        assert getattr(again, field) == getattr(dataset, field)


NAMED = {
    # Names that the writer uses itself, that TOML must quote, and that differ only by their kind.
    "observation_columns": (Column("reward", "mg/l"), Column('a.b "c" größe')),
    "action_columns": (Column("sex=f", "", Transform("scale", 0.01)),
                       Column("next_reward", "mg", Transform("log", 0.1))),
}  # fmt: skip


@pytest.mark.parametrize("suffix", sorted(writers.FORMATS))
def test_names_units_and_transforms_are_read_back(suffix, tmp_path):
    dataset = small(**NAMED)
    path, *_ = writers.write(dataset, tmp_path / f"log{suffix}")
    again = data.load(str(path))
    assert again.observation_columns == dataset.observation_columns
    assert again.action_columns == dataset.action_columns
    np.testing.assert_array_equal(again.reward, dataset.reward)
    np.testing.assert_array_equal(again.next_observation, dataset.next_observation)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_equal_names_of_an_observation_and_an_action_become_different(suffix, tmp_path):
    seen = (Column("dose"), Column(" "))
    path, *_ = writers.write(
        small(observation_columns=seen, action_columns=(Column("dose"), Column("x"))),
        tmp_path / f"log{suffix}",
    )
    again = data.load(str(path))
    names = [column.name for column in (*again.observation_columns, *again.action_columns)]
    assert names == ["dose", "_", "dose_", "x"]
    np.testing.assert_array_equal(again.action, small().action)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_written_in_parts_has_the_same_rows(suffix, tmp_path, monkeypatch):
    dataset = data.load("treatment/cubic", 3)
    monkeypatch.setattr(writers, "ROWS_AT_ONCE", 500)
    path, _ = writers.write(dataset, tmp_path / f"log{suffix}")
    assert data.load(str(path)).sha256 == dataset.sha256


def test_a_csv_is_readable_by_the_standard_library(tmp_path):
    path, toml = writers.write(small(), tmp_path / "log.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    about = tomllib.loads(toml.read_text())
    assert about == {
        "files": ["log.csv"],
        "episode": "episode",
        "time": "time",
        "reward": "reward",
        "end": "end",
        "cut": "cut",
        "observation": ["observation_0", "observation_1"],
        "action": ["action_0", "action_1"],
        "next_observation": ["next_observation_0", "next_observation_1"],
        "action_low": [-1.0, 0.0],
        "action_high": [1.0, 3.0],
        "discount": 0.95,
    }
    assert [(row["episode"], row["time"]) for row in rows] == [
        ("0", "0"), ("0", "1"), ("0", "2"), ("1", "0"), ("1", "1"),
    ]  # fmt: skip
    assert [(row["end"], row["cut"]) for row in rows] == [
        ("false", "false"), ("false", "false"), ("false", "true"), ("false", "false"),
        ("true", "false"),
    ]  # fmt: skip
    assert [np.float32(row["reward"]) for row in rows] == small().reward.tolist()
    read = [[np.float32(row[name]) for name in about["observation"]] for row in rows]
    np.testing.assert_array_equal(read, small().observation)


def test_parquet_keeps_the_types(tmp_path):
    path, toml = writers.write(small(), tmp_path / "log.parquet")
    table = pyarrow.parquet.read_table(path)
    assert tomllib.loads(toml.read_text())["files"] == ["log.parquet"]
    assert [str(table.schema.field(name).type) for name in ("action_1", "end", "time")] == [
        "float", "bool", "int64",
    ]  # fmt: skip
    assert table["next_observation_1"].to_numpy().tolist() == (
        small().next_observation[:, 1].tolist()
    )


def test_hdf5_files_use_the_names_of_d4rl(tmp_path):
    (path,) = writers.write(small(), tmp_path / "log.hdf5")
    with h5py.File(path) as file:
        assert set(file) == {
            "observations", "actions", "rewards", "next_observations", "terminals", "timeouts",
        }  # fmt: skip
        assert file["terminals"][:].tolist() == [False, False, False, False, True]
        assert file["timeouts"][:].tolist() == [False, False, True, False, False]
        np.testing.assert_array_equal(file["actions"], small().action)
        assert file.attrs["action_high"].tolist() == [1.0, 3.0]
        assert file.attrs["discount"] == 0.95


@pytest.mark.parametrize("suffix", sorted(writers.FORMATS))
def test_a_failed_write_keeps_the_old_file(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"log{suffix}"
    writers.write(small(), path)

    def contents():
        return {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    before = contents()

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        writers.write(dataclasses.replace(small(), discount=0.5), path)
    assert contents() == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".hdf5"])
@pytest.mark.parametrize(
    ("continuation", "message"),
    [
        ([1, 0.5, 1, 1, 0], "a continuation between 0 and 1, in row 1"),
        ([1, 0, 1, 1, 0], "a true end inside an episode, in row 1"),
    ],
)
def test_data_that_a_format_cannot_store_is_refused(suffix, continuation, message, tmp_path):
    dataset = small(continuation=np.array(continuation, np.float32))
    with pytest.raises(ValueError, match=f"'small' has {message}"):
        writers.write(dataset, tmp_path / f"log{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["log", "log.xlsx", "log.csv.gz"])
def test_the_error_about_a_wrong_suffix_lists_the_right_ones(name, tmp_path):
    with pytest.raises(ValueError, match=r"must be one of \.npz, \.npy, \.csv, \.parquet, \.hdf5"):
        writers.write(small(), tmp_path / name)
