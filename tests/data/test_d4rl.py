"""Files with D4RL's layout, compared with seven rows worked out by hand."""

import dataclasses

import h5py
import numpy as np
import pytest

from fat2thin import data
from fat2thin.data import Box, DataFileError, read_hdf5
from fat2thin.data.formats import d4rl

# Rows 0 to 2 stop at a time limit, rows 3 and 4 at a true end; the file stops in episode 3.
LOG = {
    "observations": np.array([[0.0], [10], [20], [30], [40], [50], [60]]),
    "actions": np.array([[-1.0], [0.5], [0], [1], [0], [0], [0]], np.float32),
    "rewards": np.arange(7.0),
    "terminals": np.array([0, 0, 0, 0, 1, 0, 0], bool),
    "timeouts": np.array([0, 0, 1, 0, 0, 0, 0], bool),
    "next_observations": np.array([[10.0], [20], [25], [40], [45], [60], [70]]),
}


UNIT = {"action_low": -1.0, "action_high": 1.0}


def write(path, without=(), attributes=UNIT, **changes):
    with h5py.File(path, "w") as file:
        for name, array in {**LOG, **changes}.items():
            if name not in without:
                file[name] = array
        file.attrs.update(attributes)
    return path


def test_without_next_observations_the_row_below_is_used(tmp_path):
    dataset = read_hdf5(write(tmp_path / "log.hdf5", without=["next_observations"]))
    np.testing.assert_array_equal(dataset.observation, [[0], [10], [30], [40], [50]])
    np.testing.assert_array_equal(dataset.next_observation, [[10], [20], [40], [40], [60]])
    np.testing.assert_array_equal(dataset.action, [[-1], [0.5], [1], [0], [0]])
    np.testing.assert_array_equal(dataset.reward, [0, 1, 3, 4, 5])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(dataset.episode_start, [0, 2, 4])
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-1.0,), (1.0,), 0.99)
    assert dataset.observation.dtype == np.float32


def test_next_observations_keep_every_row(tmp_path):
    dataset = read_hdf5(write(tmp_path / "log.hdf5"))
    np.testing.assert_array_equal(dataset.next_observation, LOG["next_observations"])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(dataset.episode_start, [0, 3, 5])


def test_without_timeouts_episodes_are_cut_where_observations_do_not_match(tmp_path):
    path = write(tmp_path / "log.hdf5", without=["timeouts"])
    assert read_hdf5(path).sha256 == read_hdf5(write(tmp_path / "whole.hdf5")).sha256


def test_without_timeouts_and_next_observations_only_true_ends_end_episodes(tmp_path):
    path = write(tmp_path / "log.hdf5", without=["timeouts", "next_observations"])
    with pytest.warns(UserWarning, match="log.hdf5 has neither 'timeouts' nor 'next_observations'"):
        dataset = read_hdf5(path)
    np.testing.assert_array_equal(dataset.observation, [[0], [10], [20], [30], [40], [50]])
    np.testing.assert_array_equal(dataset.next_observation, [[10], [20], [30], [40], [40], [60]])
    np.testing.assert_array_equal(dataset.episode_start, [0, 5])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(7,), (7, 1)])
def test_flags_of_other_types(tmp_path, dtype, shape):
    plain = read_hdf5(write(tmp_path / "log.hdf5"))
    changed = {name: LOG[name].astype(dtype).reshape(shape) for name in ("terminals", "timeouts")}
    assert read_hdf5(write(tmp_path / "other.hdf5", **changed)).sha256 == plain.sha256


def test_the_groups_of_version_2_are_ignored(tmp_path):
    plain = read_hdf5(write(tmp_path / "log.hdf5"))
    path = write(tmp_path / "v2.hdf5")
    with h5py.File(path, "a") as file:
        file["infos/action_log_probs"] = np.full(7, np.nan)
        file["metadata/algorithm"] = "SAC"
        file["metadata/policy/fc0/weight"] = h5py.ExternalLink("/nowhere", "/x")
    assert read_hdf5(path).sha256 == plain.sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": np.zeros(7)}, r"'observations' must have shape \(rows, columns\), not"),
        ({"observations": np.zeros((0, 1))}, "'observations' must have shape .* at least one"),
        ({"actions": np.zeros((6, 1))}, r"'actions' must have shape \(7, columns\), not \(6, 1\)"),
        ({"rewards": np.zeros((7, 2))}, r"'rewards' must have shape \(7,\), not \(7, 2\)"),
        (
            {"next_observations": np.zeros((7, 2))},
            r"'next_observations' must have shape \(7, 1\), not \(7, 2\)",
        ),
        (
            {"rewards": np.array([0, 1, 2, np.nan, 4, np.inf, 6])},
            r"'rewards' is NaN.* in 2 cells \(first in row 3",
        ),
        (
            {"observations": 1e300 * LOG["observations"]},
            r"beyond float32 in 6 .* row 1",
        ),
        (
            {"terminals": np.array([0, 0, 0.5, 0, 1, 0, 0])},
            r"'terminals' must hold 0 or 1 \(no or yes\), not 0.5 \(first in row 2",
        ),
        (
            {"actions": 3 * LOG["actions"]},
            r"'actions' leaves the action box \[-1.0\] to \[1.0\] in 3 rows, ranging from "
            r"\[-3.0\] to \[3.0\] \(first in row 0",
        ),
    ],
)
def test_a_wrong_array_is_named(tmp_path, changes, message):
    with pytest.raises(DataFileError, match=f"log.hdf5: .*{message}"):
        read_hdf5(write(tmp_path / "log.hdf5", **changes))


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_array_is_named(tmp_path, field):
    with pytest.raises(DataFileError, match=f"'{field}' is missing. A log needs"):
        read_hdf5(write(tmp_path / "log.hdf5", without=[field]))


def test_a_log_without_a_usable_row_is_an_error_about_the_file(tmp_path):
    path = write(
        tmp_path / "log.hdf5",
        without=["next_observations"],
        terminals=np.zeros(7),
        timeouts=np.ones(7),
    )
    with pytest.raises(DataFileError, match=r"log.hdf5: has no usable log: .*two rows"):
        read_hdf5(path)


def test_the_box_of_the_caller_overrides_that_of_the_file(tmp_path):
    attributes = {"action_low": [-4.0], "action_high": 5.0, "discount": 0.5}
    path = write(tmp_path / "log.hdf5", attributes=attributes, actions=4 * LOG["actions"])
    dataset = read_hdf5(path)
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-4.0,), (5.0,), 0.5)
    dataset = read_hdf5(path, box=Box((-6.0,), (7.0,), 0.9))
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-6.0,), (7.0,), 0.9)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"action_low": -1.0}, "'action_low' is given without the other end"),
        ({"action_low": [-1, -1], "action_high": 1}, "'action_low' must be one finite number or 1"),
        ({"action_low": -1, "action_high": np.inf}, "'action_high' must be one finite number"),
        ({"action_low": 2.0, "action_high": 1.0}, r"'action_low' \[2.0\] must lie below"),
        ({**UNIT, "discount": 1.5}, r"'discount' must be one number in \[0, 1\], not 1.5"),
        ({**UNIT, "discount": np.nan}, "'discount' must be one number"),
    ],
)
def test_a_wrong_box_is_named(tmp_path, attributes, message):
    with pytest.raises(DataFileError, match=message):
        read_hdf5(write(tmp_path / "log.hdf5", attributes=attributes))


def test_a_box_of_another_size_is_refused(tmp_path):
    path = write(tmp_path / "log.hdf5")
    with pytest.raises(DataFileError, match="'actions' has 1 dimensions and the action box 2"):
        read_hdf5(path, box=Box((-1.0, -1.0), (1.0, 1.0), 0.9))


def test_rounding_to_float32_does_not_leave_the_box(tmp_path):
    # In float32, 0.1 and -0.7 are above their float64 values: only the upper end needs clipping.
    actions = np.array([[0.1], [0.05], [-0.7], [0], [0], [0], [0]])
    attributes = {"action_low": -0.7, "action_high": 0.1}
    dataset = read_hdf5(write(tmp_path / "log.hdf5", attributes=attributes, actions=actions))
    assert dataset.action.max() == np.nextafter(np.float32(0.1), np.float32(0))
    np.testing.assert_allclose(dataset.action, actions, rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("d4rl/hopper-medium-expert-v2", "hopper_medium_expert-v2.hdf5"),
        ("d4rl/hopper-medium-expert-v2", "hopper-medium-expert-v2.hdf5"),
        ("d4rl/walker2d-random-v0", "walker2d_random.hdf5"),
        ("d4rl/hopper-medium-v2", "hopper-medium-v2.h5"),
        ("regenerated/hopper-medium", "hopper-medium.hdf5"),
        ("regenerated/hopper-medium@30", "hopper-medium@30.hdf5"),
    ],
)
def test_names_are_found_in_the_chosen_folder(tmp_path, monkeypatch, name, file):
    monkeypatch.setenv("FAT2THIN_DATA", str(tmp_path))
    expected = read_hdf5(write(tmp_path / file))
    dataset = data.load(name)
    assert (dataset.name, dataset.sha256) == (name, expected.sha256)
    assert not data.reader(name).one_a_seed


@pytest.mark.parametrize(
    ("name", "file", "by_path"),
    [
        ("d4rl/hopper-medium-v2", "hopper_medium-v2.hdf5", True),
        ("d4rl/walker2d-random-v0", "walker2d_random.hdf5", True),
        ("regenerated/halfcheetah-medium-replay", "halfcheetah-medium-replay.hdf5", True),
        ("d4rl/pen-human-v1", "pen-human-v1.hdf5", False),
    ],
)
def test_d4rl_data_sets_have_a_unit_box(tmp_path, monkeypatch, name, file, by_path):
    """D4RL files do not contain the box, and the logged actions may not reach its ends."""
    monkeypatch.setenv("FAT2THIN_DATA", str(tmp_path))
    path = write(tmp_path / file, attributes={}, actions=LOG["actions"] / 4)
    assert (data.load(name).action_low, data.load(name).action_high) == ((-1.0,), (1.0,))
    if by_path:
        assert data.load(str(path)).action_low == (-1.0,)
    else:
        with pytest.warns(UserWarning, match=r"has no action box: .* \[-0.25\] to \[0.25\]"):
            assert data.load(str(path)).action_low == (-0.25,)


def test_a_small_set_is_not_taken_for_a_large_one(tmp_path, monkeypatch):
    monkeypatch.setenv("FAT2THIN_DATA", str(tmp_path))
    write(tmp_path / "hopper-medium@30.hdf5")
    with pytest.raises(DataFileError, match="was not found"):
        data.load("regenerated/hopper-medium")
    write(tmp_path / "hopper-medium.hdf5")
    assert d4rl.find("regenerated/hopper-medium").stem == "hopper-medium"


def test_by_default_the_cache_of_d4rl_comes_first(tmp_path, monkeypatch):
    monkeypatch.delenv("FAT2THIN_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "hopper-medium-v2.hdf5")
    assert d4rl.find("d4rl/hopper-medium-v2").parent.name == "data"
    (tmp_path / ".d4rl" / "datasets").mkdir(parents=True)
    write(tmp_path / ".d4rl" / "datasets" / "hopper_medium-v2.hdf5")
    assert d4rl.find("d4rl/hopper-medium-v2").parent.name == "datasets"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "d4rl/hopper-medium-v2",
            r"`curl --create-dirs -o \S+/hopper_medium-v2\.hdf5 "
            r"http://rail\S+/gym_mujoco_v2/hopper_medium-v2\.hdf5`",
        ),
        ("d4rl/pen-human-v1", "Download it from http://rail.*D4RL has the address of every file"),
        (
            "regenerated/hopper-medium",
            "Make it with `fat2thin data make regenerated/hopper-me",
        ),
        ("regenerated/hopper-medium@30", "with `fat2thin data make regenerated/hopper-medium@30`"),
        ("regenerated/hoper-medium", "cannot make it .did you mean 'regenerated/hopper-medium'"),
    ],
)
def test_the_error_about_a_missing_file_says_how_to_get_it(tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("FAT2THIN_DATA", str(tmp_path))
    with pytest.raises(DataFileError, match=f"{tmp_path}.*{name}.*{message}.*FAT2THIN_DATA"):
        data.load(name)


@pytest.mark.parametrize("name", ["d4rl/", "d4rl/../x", "regenerated/a/b", "d4rl/.x"])
def test_a_name_is_one_word(name):
    with pytest.raises(ValueError, match="no data set is called"):
        data.load(name)


@pytest.mark.parametrize("suffix", [".hdf5", ".h5", ".HDF5"])
def test_paths_of_both_suffixes_are_loaded(tmp_path, suffix):
    path = write(tmp_path / f"log{suffix}")
    dataset = data.load(str(path))
    assert (dataset.name, dataset.rows) == (str(path), 7)


def test_a_suffix_has_one_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(data.readers, "_SUFFIXES", dict(data.readers._SUFFIXES))
    dataset = read_hdf5(write(tmp_path / "log.hdf5"))
    data.register_suffix(".log", lambda path, seed: dataclasses.replace(dataset, name=path))
    assert data.load("folder/x.LOG").name == "folder/x.LOG"
    with pytest.raises(ValueError, match=r"paths that end in \.log already have a reader"):
        data.register_suffix(".log", lambda path, seed: dataset)
    with pytest.raises(ValueError, match="start with a dot and be lower case"):
        data.register_suffix("Log", lambda path, seed: dataset)
    with pytest.raises(ValueError, match=r"no data set is called 'x.lug'.*\.npz.*\.log"):
        data.load("x.lug")


def test_propensities_are_read_and_stay_with_their_rows(tmp_path):
    chance = np.arange(1, 8) / 8
    path = write(tmp_path / "log.hdf5", without=["next_observations"], propensities=chance)
    np.testing.assert_array_equal(read_hdf5(path).propensity, np.array([1, 2, 4, 5, 6]) / 8)


@pytest.mark.parametrize("value", [0.0, -0.5, 1.5])
def test_a_propensity_is_a_probability(tmp_path, value):
    chance = np.where(np.arange(7) < 2, 0.5, value)
    path = write(tmp_path / "log.hdf5", propensities=chance)
    with pytest.raises(DataFileError, match=rf"'propensities' has {value:g} \(first in row 2"):
        read_hdf5(path)


def test_one_error_names_every_array_that_is_not_finite(tmp_path):
    reward = np.where(np.arange(7) == 4, np.nan, 0.0)
    chance = np.where(np.arange(7) > 1, np.inf, 0.5)
    path = write(tmp_path / "log.hdf5", rewards=reward, propensities=chance)
    with pytest.raises(DataFileError) as caught:
        read_hdf5(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert "'rewards' is NaN, infinite or beyond float32 in 1 cell (first in row 4" in lines[0]
    assert (
        "'propensities' is NaN, infinite or beyond float32 in 5 cells (first in row 2" in lines[1]
    )
