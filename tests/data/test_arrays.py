"""Data sets from arrays in memory: the checks and the results of the readers of files."""

import gc
import html
import re
from types import SimpleNamespace

import numpy as np
import pytest

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data import DataFileError, Dataset, memory, save_npz
from fat2thin.data.formats.arrays import dataset_from_arrays
from fat2thin.data.writers import save_minari

# Two episodes; the first is cut, the second truly ends.
ARRAYS = {
    "observation": [[0.0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "action": [[0.5], [1.0], [0.0], [0.25], [0.75]],
    "reward": [1, 2, 3, 4, 5],
    "terminal": [False, False, False, False, True],
    "cut": [0, 0, 1, 0, 0],
    "action_low": 0,
    "action_high": [1.0],
}
D4RL = {
    "observation": "observations", "action": "actions", "reward": "rewards",
    "terminal": "terminals", "cut": "timeouts",
}  # fmt: skip
NEORL2 = {"observation": "obs", "terminal": "done", "cut": "truncated"}


def renamed(names):
    return {names.get(key, key): values for key, values in ARRAYS.items()}


def test_arrays_give_the_data_set_of_an_npz_with_them(tmp_path):
    np.savez(tmp_path / "log.npz", **ARRAYS)
    made = Dataset.from_arrays(**ARRAYS, name="log")
    assert made.sha256 == data.load(str(tmp_path / "log.npz")).sha256
    np.testing.assert_array_equal(made.reward, [1, 2, 4, 5])
    assert (made.name, made.discount, made.episode_start.tolist()) == ("log", 0.99, [0, 2])


@pytest.mark.parametrize("names", [{}, D4RL, NEORL2])
def test_a_mapping_may_have_the_names_of_d4rl_or_neorl2(names):
    expected = Dataset.from_arrays(**ARRAYS)
    arrays = renamed(names)
    if names is D4RL:
        arrays |= {"infos/qpos": np.zeros(3), "metadata/policy": "text", "infos": {}}
    assert dataset_from_arrays(arrays).sha256 == expected.sha256


def test_the_given_arrays_are_never_changed():
    arrays = {key: np.array(values, np.float32) for key, values in ARRAYS.items()}
    arrays["action"][1] = np.nextafter(np.float32(1), np.float32(2))  # clipped to the box
    before = {key: values.copy() for key, values in arrays.items()}
    assert Dataset.from_arrays(**arrays).action.max() == 1
    for key, values in arrays.items():
        np.testing.assert_array_equal(values, before[key])


def test_one_column_needs_no_second_axis():
    arrays = {**ARRAYS, "observation": [0.0, 1, 2, 3, 4], "action": [0.5, 1.0, 0.0, 0.25, 0.75]}
    made = Dataset.from_arrays(**arrays, next_observation=[1.0, 2, 3, 4, 5])
    assert (made.observation.shape, made.action.shape) == ((5, 1), (5, 1))
    np.testing.assert_array_equal(made.next_observation[:, 0], [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    "labels", [["a", "a", "a", "b", "b"], [7, 7, 7, 3, 3], [1.5] * 3 + [0] * 2]
)
def test_labels_mark_the_episodes(labels):
    arrays = {**ARRAYS, "cut": None, "episode": labels}
    assert Dataset.from_arrays(**arrays).sha256 == Dataset.from_arrays(**ARRAYS).sha256
    starts = {**ARRAYS, "cut": None, "episode_start": [0, 3]}
    assert Dataset.from_arrays(**starts).sha256 == Dataset.from_arrays(**ARRAYS).sha256


def test_without_true_ends_no_continuation_is_zero():
    made = Dataset.from_arrays(**{**ARRAYS, "terminal": None})
    np.testing.assert_array_equal(made.continuation, [1, 1, 1])


def test_columns_have_names_units_and_transforms():
    level = Column("level", "mmol/l", Transform("log", 1.0))
    made = Dataset.from_arrays(**ARRAYS, observation_names=["age", level], action_names="dose")
    assert made.observation_columns == (Column("age"), level)
    assert made.action_columns == (Column("dose"),)
    with pytest.raises(DataFileError, match="observation_columns must name 2 columns, not 1"):
        Dataset.from_arrays(**ARRAYS, observation_names=["age"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [1, 2]}, r"^log: 'reward' must have shape \(5,\), not \(2,\)"),
        ({"reward": None}, "'reward' is missing"),
        ({"reward": ["a"] * 5}, "'reward' must hold plain numbers, not <U1"),
        ({"reward": [object()] * 5}, "'reward' must hold plain numbers, not object"),
        ({"reward": [[1], [1, 2]]}, "'reward' cannot be made an array"),
        ({"reward": np.ma.masked_array([1.0] * 5, [0, 1, 0, 0, 0])}, "not masked cells"),
        ({"reward": [1, np.nan, 3, np.inf, 5]}, r"'reward' is NaN.* in 2 cells \(first in row 1"),
        ({"observation": np.zeros((5, 2, 1))}, r"'observation' must have shape \(rows, columns\)"),
        ({"terminal": [0, 0, 2, 0, 1]}, r"'terminal' must hold 0 or 1 .* \(first in row 2"),
        ({"action_high": 0.6}, r"'action' leaves the action box .* \(first in row 1"),
        ({"action_high": None}, "'action_low' is given without the other end"),
        ({"discount": 2}, "'discount' must be one number in"),
        ({"propensity": [0.5] * 4 + [0]}, r"'propensity' has 0 \(first in row 4"),
        ({"episode": [0] * 4}, r"'episode' must have shape \(5,\), not \(4,\)"),
        ({"episode": ["a", "b", "a", "b", "b"]}, r"'episode' has 'a' again .*\(first in row 2"),
        ({"episode": [1, 1, None, 2, 2]}, r"'episode' must hold numbers or texts, not None"),
        ({"episode": [1, 1, np.nan, 2, 2]}, r"'episode' must hold .* not nan \(first in row 2"),
        ({"episode": [0] * 5, "episode_start": [0]}, "'episode' and 'episode_start' are both"),
        ({"rewards": [1] * 5}, r"'rewards' is not the name of an array \(did you mean 'reward'"),
        ({3: [1] * 5}, r"'3' is not the name of an array"),
    ],
)
def test_bad_arrays_are_one_error_that_names_the_array_and_the_row(changes, message):
    with pytest.raises(DataFileError, match=message) as error:
        dataset_from_arrays({**ARRAYS, **changes}, "log")
    assert str(error.value).count("\n") == 0


def test_without_a_box_a_warning_says_what_to_pass():
    arrays = {**ARRAYS, "action_low": None, "action_high": None}
    with pytest.warns(UserWarning, match=r"\[0\] to \[1\]\. Pass the real limits as action_low"):
        Dataset.from_arrays(**arrays)


def test_a_data_set_in_memory_has_a_name_while_it_exists():
    dataset = Dataset.from_arrays(**ARRAYS, name="doses")
    name = data.remember(dataset)
    assert name == f"memory/doses-{dataset.sha256[:8]}"
    assert data.load(name) is dataset
    # Of equal ones the newest is loaded, and the name is valid while one of them exists.
    other = Dataset.from_arrays(**ARRAYS, name="doses", action_names=["dose"])
    assert data.remember(other) == name
    assert data.load(name) is other
    del other
    gc.collect()
    assert data.load(name) is dataset
    del dataset
    gc.collect()
    with pytest.raises(DataFileError, match="no longer exists: pass the same data again, or write"):
        data.load(name)


def minari_object(folder, episodes, of_file=False):
    """Return what fat2thin needs of a `minari.MinariDataset`."""
    path = folder / "data" / "main_data.hdf5" if of_file else folder / "data"
    storage = SimpleNamespace(data_path=path, total_episodes=2)
    return SimpleNamespace(storage=storage, episode_indices=np.asarray(episodes))


@pytest.mark.parametrize("of_file", [False, True])
def test_a_minari_object_is_read_from_its_folder(tmp_path, monkeypatch, of_file):
    whole = Dataset.from_arrays(**ARRAYS, next_observation=[[2, 3], [4, 5], [6, 7], [8, 9], [1, 1]])
    folder = save_minari(whole, tmp_path / "home", "own/log-v0")
    opened = memory.open_data(minari_object(folder, [0, 1], of_file))
    assert opened == str(folder)
    assert data.load(opened).rows == 5
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "home"))
    assert memory.open_data(minari_object(folder, [1, 0], of_file)) == "minari/own/log-v0"

    second = memory.open_data(minari_object(folder, [1], of_file))
    assert second.name == "minari/own/log-v0[1 episodes]"
    np.testing.assert_array_equal(second.reward, [4, 5])
    np.testing.assert_array_equal(second.continuation, [1, 0])
    with pytest.raises(DataFileError, match=r"has no episode_2\. There are 2 episodes"):
        memory.open_data(minari_object(folder, [0, 2], of_file))
    with pytest.raises(DataFileError, match="no episode was chosen"):
        memory.open_data(minari_object(folder, [], of_file))
    with pytest.raises(DataFileError, match=r"is not in a folder with data/main_data\.hdf5"):
        memory.open_data(minari_object(tmp_path, [0]))


def test_an_object_of_the_minari_package_is_read(tmp_path):
    minari = pytest.importorskip("minari")
    whole = Dataset.from_arrays(**ARRAYS, next_observation=[[2, 3], [4, 5], [6, 7], [8, 9], [1, 1]])
    folder = save_minari(whole, tmp_path, "own/log-v0")
    opened = minari.MinariDataset(folder / "data")
    assert memory.open_data(opened) == str(folder)
    filtered = opened.filter_episodes(lambda episode: bool(episode.terminations[-1]))
    np.testing.assert_array_equal(memory.open_data(filtered).reward, [4, 5])


def test_data_sets_are_shown_in_one_line_and_as_html(tmp_path):
    evil = "<script>alert(1)</script>"
    column = Column(evil, "<b>mg</b>")
    made = Dataset.from_arrays(
        **ARRAYS, name=evil, observation_names=["age", "level"], action_names=[column]
    )
    sizes = "4 rows in 2 episodes, 2 observation columns, 1 action column"
    assert repr(made) == f"Dataset {evil!r}: {sizes}"
    shown = made._repr_html_()
    assert "<script" not in shown and "<b>" not in shown
    assert shown.count(html.escape(evil)) == 2
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown)
    assert cells[:5] == ["age", "", "observation", "0", "8"]
    assert cells[-4:] == ["&lt;b&gt;mg&lt;/b&gt;", "action", "0.25", "1"]
    assert "action box [0.0] to [1.0]; discount 0.99" in shown


def test_many_columns_are_not_all_shown():
    arrays = {**ARRAYS, "observation": np.arange(5 * 80.0).reshape(5, 80)}
    shown = Dataset.from_arrays(**arrays)._repr_html_()
    assert shown.count("<tr>") == 1 + 50 + 1
    assert "30 more columns are not shown" in shown


def test_the_arrays_of_a_saved_data_set_give_it_back(tmp_path):
    made = Dataset.from_arrays(**ARRAYS, action_names=[Column("dose", "mg")])
    save_npz(made, tmp_path / "log.npz")
    again = dataset_from_arrays(np.load(tmp_path / "log.npz"))
    assert (again.sha256, again.action_columns) == (made.sha256, made.action_columns)
