"""Minari's layouts of versions 0.4 and 0.5, written without Minari: two episodes by hand."""

import dataclasses
import json
import os

import gymnasium
import h5py
import numpy as np
import pytest

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data import Box, DataFileError, Dataset, read_minari
from fat2thin.data.formats import minari
from fat2thin.data.writers import save_minari

# Episode 0 stops at a time limit, episode 1 at a true end. Each has one more observation.
EPISODES = [
    {
        "observations": np.array([[0.0, 1], [10, 11], [20, 21]]),
        "actions": np.array([[-2.0], [0.5]], np.float32),
        "rewards": np.array([1.0, 2.0]),
        "terminations": np.array([False, False]),
        "truncations": np.array([False, True]),
    },
    {
        "observations": np.array([[30.0, 31], [40, 41]]),
        "actions": np.array([[3.0]], np.float32),
        "rewards": np.array([3.0]),
        "terminations": np.array([True]),
        "truncations": np.array([False]),
    },
]
INFINITY = float("inf")


def box_space(shape=(2,), low=-INFINITY, high=INFINITY, dtype="float64"):
    ends = {name: np.full(shape, end).tolist() for name, end in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": dtype, "shape": list(shape), **ends}


ACTION_SPACE = box_space((1,), -2, 3, "float32")


def write(folder, episodes=EPISODES, **changes):
    """Write a data set as Minari 0.5 does, with metadata replaced or (None) omitted."""
    about = {
        "total_episodes": len(episodes),
        "total_steps": sum(len(episode["rewards"]) for episode in episodes),
        "data_format": "hdf5",
        "observation_space": json.dumps(box_space()),
        "action_space": json.dumps(ACTION_SPACE),
        "dataset_id": folder.name,
        "minari_version": "0.5.4",
        **changes,
    }
    kept = {key: value for key, value in about.items() if value is not None}
    write_arrays(folder, episodes)
    (folder / "data" / "metadata.json").write_text(json.dumps(kept))
    return folder


def write_arrays(folder, episodes=EPISODES):
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": len(episode["rewards"])})
            for name, array in episode.items():
                shape = (None, *array.shape[1:])
                group.create_dataset(name, data=array, chunks=True, maxshape=shape)
            group["infos/far"] = h5py.ExternalLink("/nowhere", "/x")


def change(folder):
    return h5py.File(folder / "data" / "main_data.hdf5", "a")


def one(**arrays):
    """A data set of only episode 1, with some arrays replaced."""
    return [{**EPISODES[1], **arrays}]


def check_example(dataset):
    np.testing.assert_array_equal(dataset.observation, [[0, 1], [10, 11], [30, 31]])
    np.testing.assert_array_equal(dataset.next_observation, [[10, 11], [20, 21], [40, 41]])
    np.testing.assert_array_equal(dataset.action, [[-2], [0.5], [3]])
    np.testing.assert_array_equal(dataset.reward, [1, 2, 3])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 0])
    np.testing.assert_array_equal(dataset.episode_start, [0, 2])
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-2.0,), (3.0,), 0.99)
    assert dataset.observation.dtype == np.float32


def test_the_layout_with_a_metadata_file_is_read(tmp_path):
    dataset = read_minari(write(tmp_path / "log-v0"))
    check_example(dataset)
    assert dataset.name == str(tmp_path / "log-v0")


def test_the_older_layout_with_attributes_is_read(tmp_path):
    write_arrays(tmp_path / "log-v0")
    with change(tmp_path / "log-v0") as file:
        file.attrs["observation_space"] = json.dumps(box_space())
        file.attrs["action_space"] = json.dumps(ACTION_SPACE)
        file.attrs["total_episodes"] = 2
    check_example(read_minari(tmp_path / "log-v0"))


def test_an_episode_without_a_flag_at_its_end_is_cut(tmp_path):
    unflagged = {**EPISODES[0], "truncations": np.array([False, False])}
    check_example(read_minari(write(tmp_path / "log-v0", [unflagged, EPISODES[1]])))


def test_episodes_are_in_numerical_order(tmp_path):
    episodes = [{**EPISODES[1], "rewards": np.array([float(number)])} for number in range(12)]
    dataset = read_minari(write(tmp_path / "log-v0", episodes))
    np.testing.assert_array_equal(dataset.reward, range(12))
    np.testing.assert_array_equal(dataset.episode_start, range(12))


def test_parts_of_an_observation_are_in_gymnasiums_order(tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"goal": (2,), "arm/angle": (), "state": (2, 2)}
    parts = {name: rng.normal(size=(2, *shape)) for name, shape in shapes.items()}
    inner = {"type": "Tuple", "subspaces": [box_space((2,)), box_space((2, 2))]}
    space = {"type": "Dict", "subspaces": {"arm/angle": box_space(()), "rest": inner}}
    episodes = one(observations=np.zeros(2))
    folder = write(tmp_path / "log-v0", episodes, observation_space=json.dumps(space))
    with change(folder) as file:
        episode = file["episode_0"]
        del episode["observations"]
        episode["observations/rest/_index_1"] = parts["state"]
        episode["observations/rest/_index_0"] = parts["goal"]
        episode["observations/arm/angle"] = parts["arm/angle"]
    spaces = gymnasium.spaces

    def numbers(shape):
        return spaces.Box(-np.inf, np.inf, shape)

    flat = spaces.Dict({"arm/angle": numbers(()), "rest": spaces.Tuple([
        numbers((2,)), numbers((2, 2)),
    ])})  # fmt: skip
    rows = [
        spaces.flatten(flat, {
            "arm/angle": parts["arm/angle"][row],
            "rest": (parts["goal"][row], parts["state"][row]),
        })
        for row in range(2)
    ]  # fmt: skip
    dataset = read_minari(folder)
    np.testing.assert_array_equal(dataset.observation, np.float32(rows[:1]))
    np.testing.assert_array_equal(dataset.next_observation, np.float32(rows[1:]))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"type": "Discrete", "n": 4, "start": 0}, "'observations' is a Discrete, not a Box"),
        ({"type": "Text", "max_length": 4}, "'observations' is a Text, not a Box"),
        (
            {"type": "Dict", "subspaces": {"a": box_space(), "b": {"type": "MultiBinary", "n": 2}}},
            "'observations/b' is a MultiBinary",
        ),
        (box_space((64, 64, 3), 0, 255, "uint8"), r"holds images of shape \(64, 64, 3\)"),
        (
            {"type": "Tuple", "subspaces": [box_space((8, 8, 1), 0, 255, "uint8")]},
            "'observations/_index_0' holds images",
        ),
        ({"type": "Dict", "subspaces": {}}, "'observation_space' is not a space.*it is empty"),
        ({"type": "Box", "dtype": "float32"}, "'observation_space' is not a space.*shape"),
        ({"type": "Box", "dtype": "f4", "shape": [-2]}, "'observation_space' is not a space.*-2"),
        ([], "'observation_space' is not a space"),
    ],
)
def test_an_observation_that_is_not_numbers_is_refused(tmp_path, space, message):
    with pytest.raises(DataFileError, match=f"metadata.json: .*{message}"):
        read_minari(write(tmp_path / "log-v0", observation_space=json.dumps(space)))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"type": "Discrete", "n": 4, "start": 0}, "is a Discrete: .*continuous actions"),
        (box_space((1,), 0, 5, "int64"), "is a Box of int64: .*continuous actions"),
        ({**ACTION_SPACE, "low": -2}, r"is not a space.*must have shape \(1,\)"),
        (
            box_space((1,), -1, INFINITY),
            r"has an infinite action_high: \[inf\]. Read it with .*box",
        ),
    ],
)
def test_actions_need_a_box(tmp_path, space, message):
    with pytest.raises(DataFileError, match=f"metadata.json: 'action_space' {message}"):
        read_minari(write(tmp_path / "log-v0", action_space=json.dumps(space)))


@pytest.mark.parametrize("space", [json.dumps(box_space((1,))), None])
def test_the_box_of_the_caller_replaces_a_missing_one(tmp_path, space):
    folder = write(tmp_path / "log-v0", action_space=space, observation_space=None)
    with pytest.raises(DataFileError, match=r"'action_space' .*Read it with .*read_minari"):
        read_minari(folder)
    dataset = read_minari(folder, box=Box((-4.0,), (5.0,), 0.5))
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-4.0,), (5.0,), 0.5)
    np.testing.assert_array_equal(dataset.action, [[-2], [0.5], [3]])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"observations": np.zeros((1, 2))}, r"'episode_0/observations' must have shape \(2, 2\)"),
        ({"observations": np.zeros((2, 3))}, r"must have shape \(2, 2\), not \(2, 3\)"),
        ({"actions": np.zeros((2, 1))}, r"'episode_0/actions' must have shape \(1, 1\)"),
        ({"actions": np.array([[9.0]])}, r"'actions' leaves the action box \[-2.0\] to \[3.0\]"),
        ({"rewards": np.zeros((1, 1))}, r"'episode_0/rewards' must have shape \(steps,\)"),
        ({"rewards": np.zeros(0)}, "at least one step"),
        ({"rewards": np.array([np.nan])}, "'rewards' is NaN"),
        ({"terminations": np.array([2])}, "'terminations' must hold 0 or 1"),
        ({"truncations": np.array([0, 1])}, r"'episode_0/truncations' must have shape \(1,\)"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, arrays, message):
    with pytest.raises(DataFileError, match=f"main_data.hdf5: .*{message}"):
        read_minari(write(tmp_path / "log-v0", one(**arrays)))


@pytest.mark.parametrize("field", sorted(EPISODES[0]))
def test_a_missing_array_is_named(tmp_path, field):
    with change(write(tmp_path / "log-v0")) as file:
        del file[f"episode_1/{field}"]
    with pytest.raises(DataFileError, match=f"'episode_1/{field}' is missing"):
        read_minari(tmp_path / "log-v0")


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (h5py.SoftLink("/episode_0"), "'episode_1' is a link"),
        (h5py.ExternalLink("other.hdf5", "/episode_0"), "'episode_1' is a link"),
        (np.zeros(3), "'episode_1' is an array or a type, not a group"),
    ],
)
def test_an_episode_must_be_a_group_of_the_same_file(tmp_path, put, message):
    with change(write(tmp_path / "log-v0")) as file:
        del file["episode_1"]
        file["episode_1"] = put
    with pytest.raises(DataFileError, match=message):
        read_minari(tmp_path / "log-v0")


def test_an_array_that_is_a_link_is_refused(tmp_path):
    with change(write(tmp_path / "log-v0")) as file:
        del file["episode_1/actions"]
        file["episode_1/actions"] = h5py.ExternalLink("other.hdf5", "/x")
    with pytest.raises(DataFileError, match="'episode_1/actions' is a link"):
        read_minari(tmp_path / "log-v0")


def test_the_memory_limit_covers_all_episodes_together(tmp_path):
    folder = write(tmp_path / "log-v0", EPISODES[:1] * 20)
    # Observations of 20 episodes, twice, as float64: 20 * 2 * 3 * 2 * 8 bytes.
    with pytest.raises(DataFileError, match="the limit is 1,900"):
        read_minari(folder, memory_limit=1900)
    assert read_minari(folder, memory_limit=3000).rows == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_episodes": 3}, "has 2 episodes up to episode_1, but must have 3"),
        ({"total_episodes": "2"}, "'total_episodes' must be a number, not str"),
        ({"discount": 1.5}, r"'discount' must be one number in \[0, 1\]"),
        ({"discount": [0.9]}, "'discount' must be a number, not list"),
        ({"action_space": ACTION_SPACE}, "'action_space' must be a text of JSON, not dict"),
        ({"action_space": "Box(-1, 1)"}, "'action_space' is not a space"),
        ({"fat2thin_columns": {"action": []}}, "'fat2thin_columns' does not describe columns: it"),
        ({"data_format": "arrow"}, "'data_format' is 'arrow', but only 'hdf5' is supported"),
    ],
)
def test_errors_name_the_wrong_metadata(tmp_path, changes, message):
    with pytest.raises(DataFileError, match=message):
        read_minari(write(tmp_path / "log-v0", **changes))


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_metadata_must_be_a_json_object(tmp_path, text):
    folder = write(tmp_path / "log-v0")
    (folder / "data" / "metadata.json").write_bytes(text)
    with pytest.raises(DataFileError, match=r"metadata\.json: is not (a )?JSON"):
        read_minari(folder)


@pytest.mark.parametrize("value", [5, np.array(["{}"], object), np.bytes_(b"x" * 9)])
def test_metadata_of_the_older_layout_must_be_text(tmp_path, value):
    write_arrays(tmp_path / "log-v0")
    with change(tmp_path / "log-v0") as file:
        file.attrs["observation_space"] = value
    with pytest.raises(DataFileError, match=r"'observation_space' is not a (text|space)"):
        read_minari(tmp_path / "log-v0")


def test_a_file_without_episodes_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="has no episodes"):
        read_minari(write(tmp_path / "log-v0", []))


@pytest.mark.parametrize("identifier", ["mujoco/hopper/medium-v0", "hopper-medium-v0"])
def test_names_are_found_in_minaris_folder(tmp_path, monkeypatch, identifier):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write(tmp_path / identifier)
    dataset = data.load(f"minari/{identifier}")
    check_example(dataset)
    assert dataset.name == f"minari/{identifier}"
    by_path = data.load(str(tmp_path / identifier))
    assert (by_path.name, by_path.sha256) == (str(tmp_path / identifier), dataset.sha256)


def test_the_default_folder_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".minari" / "datasets" / "hopper-medium-v0")
    assert minari.find("minari/hopper-medium-v0").parent == tmp_path / ".minari" / "datasets"


def test_the_error_about_a_missing_data_set_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    message = (
        f"{tmp_path}/a/b-v0: .*'minari/a/b-v0'.*`minari download a/b-v0`.*MINARI_DATASETS_PATH"
    )
    with pytest.raises(DataFileError, match=message):
        data.load("minari/a/b-v0")


@pytest.mark.parametrize("name", ["minari/", "minari/../x-v0", "minari/a//b-v0", "minari/.x-v0"])
def test_a_name_must_be_words_separated_by_slashes(name):
    with pytest.raises(ValueError, match="no data set is called"):
        data.load(name)


def test_a_kind_of_folder_has_one_reader():
    with pytest.raises(ValueError, match=r"contain data/main_data\.hdf5 already have a reader"):
        data.register_folder("data/main_data.hdf5", lambda path, seed: None)


def test_the_keys_of_a_dict_space_name_the_columns(tmp_path):
    inner = {"type": "Tuple", "subspaces": [box_space(()), box_space((2,))]}
    space = {"type": "Dict", "subspaces": {"level": box_space((1,)), "rest": inner}}
    folder = write(
        tmp_path / "log-v0", one(observations=np.zeros(2)), observation_space=json.dumps(space)
    )
    with change(folder) as file:
        del file["episode_0/observations"]
        for field, shape in (("level", (2, 1)), ("rest/_index_0", (2,)), ("rest/_index_1", (2, 2))):
            file[f"episode_0/observations/{field}"] = np.zeros(shape)
    names = [column.name for column in read_minari(folder).observation_columns]
    assert names == ["level", "rest/0", "rest/1_0", "rest/1_1"]


def example(**changes) -> Dataset:
    values = {
        "name": "example",
        "observation": np.array([[0, 1], [10, 11], [30, 31]], np.float32) / 3,
        "action": np.array([[-2], [0.5], [3]], np.float32),
        "reward": np.array([0.1, 2, 3], np.float32),
        "next_observation": np.array([[10, 11], [20, 21], [40, 41]], np.float32) / 3,
        "continuation": np.array([1, 1, 0], np.float32),
        "episode_start": np.array([0, 2]),
        "action_low": (-2.1,),
        "action_high": (3.1,),
        "discount": 0.9,
    }
    return Dataset(**(values | changes))


@pytest.mark.parametrize(
    "dataset", [example(), data.load("treatment/cubic", 3)], ids=lambda d: d.name
)
def test_a_written_data_set_is_read_back(tmp_path, monkeypatch, dataset):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    folder = save_minari(dataset, tmp_path, "own/doses/log-v0")
    assert folder == tmp_path / "own" / "doses" / "log-v0"
    assert sorted(file.name for file in folder.rglob("*")) == [
        "data", "main_data.hdf5", "metadata.json",
    ]  # fmt: skip
    assert data.load("minari/own/doses/log-v0").sha256 == dataset.sha256


def test_names_units_and_transforms_are_read_back(tmp_path):
    columns = {
        "observation_columns": (Column("level", "mmol/l"), Column("weight")),
        "action_columns": (Column("dose", "mg", Transform("log", 2.5)),),
    }
    again = read_minari(save_minari(example(**columns), tmp_path, "log-v0"))
    for field, written in columns.items():
        assert getattr(again, field) == written


def test_the_written_files(tmp_path):
    folder = save_minari(example(), tmp_path, "log-v0")
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        assert set(file) == {"episode_0", "episode_1"}
        first = file["episode_0"]
        assert dict(first.attrs) == {"id": 0, "total_steps": 2}
        expected = np.array([[0, 1], [10, 11], [20, 21]], np.float32) / 3
        np.testing.assert_array_equal(first["observations"], expected)
        assert first["truncations"][:].tolist() == [False, True]
        assert file["episode_1/terminations"][:].tolist() == [True]
    about = json.loads((folder / "data" / "metadata.json").read_text())
    assert (about["total_episodes"], about["total_steps"]) == (2, 3)
    assert json.loads(about["action_space"]) == {
        "type": "Box", "dtype": "float32", "shape": [1], "low": [-2.1], "high": [3.1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"next_observation": example().observation},
            "next_observation of row 0 is not the",
        ),
        ({"continuation": np.array([0, 1, 0], np.float32)}, "a true end inside an episode"),
        ({"continuation": np.array([1, 0.5, 0], np.float32)}, "between 0 and 1"),
    ],
)
def test_data_that_minari_cannot_store_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=f"'example'.*{message}"):
        save_minari(example(**changes), tmp_path, "log-v0")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("identifier", ["log", "../log-v0", "/log-v0", "a/.b/log-v0", "log-v0/"])
def test_a_wrong_id_is_refused(tmp_path, identifier):
    with pytest.raises(ValueError, match="is not a Minari id"):
        save_minari(example(), tmp_path, identifier)


def test_an_existing_data_set_is_kept(tmp_path):
    save_minari(example(), tmp_path, "log-v0")
    with pytest.raises(FileExistsError, match="log-v0 exists"):
        save_minari(example(discount=0.5), tmp_path, "log-v0")
    assert read_minari(tmp_path / "log-v0").discount == 0.9


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save_minari(example(), tmp_path, "log-v0")
    assert not list(tmp_path.iterdir())


def test_the_minari_package_opens_a_written_data_set(tmp_path, monkeypatch):
    package = pytest.importorskip("minari", reason="the extra minari is not installed")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    specification = gymnasium.spec("Pendulum-v1")
    save_minari(example(), tmp_path, "own/doses/log-v0", specification)
    opened = package.load_dataset("own/doses/log-v0")
    assert (opened.id, opened.total_episodes, opened.total_steps) == ("own/doses/log-v0", 2, 3)
    assert opened.env_spec.id == "Pendulum-v1"
    assert list(package.list_local_datasets()) == ["own/doses/log-v0"]
    np.testing.assert_array_equal(opened.action_space.low, np.float32([-2.1]))
    for episode, rows in zip(opened.iterate_episodes(), (slice(2), slice(2, 3)), strict=True):
        np.testing.assert_array_equal(episode.observations[:-1], example().observation[rows])
        np.testing.assert_array_equal(episode.observations[1:], example().next_observation[rows])
        np.testing.assert_array_equal(episode.actions, example().action[rows])
        np.testing.assert_array_equal(episode.rewards, example().reward[rows])
        np.testing.assert_array_equal(~episode.terminations, example().continuation[rows] == 1)
    assert [episode.truncations.tolist() for episode in opened] == [[False, True], [False]]


def test_propensities_are_refused_not_dropped(tmp_path):
    log = data.load("treatment/cubic")
    known = dataclasses.replace(log, propensity=np.ones(log.rows, np.float32))
    with pytest.raises(ValueError, match="Minari cannot store propensities"):
        save_minari(known, tmp_path, "own/doses/log-v0")
    assert not list(tmp_path.iterdir())
