import dataclasses
import functools
import hashlib

import jax
import numpy as np
import pytest

from fat2thin import data
from fat2thin.data import Dataset, Reader
from fat2thin.data import readers as readers_module
from fat2thin.envs import treatment

ARRAYS = {
    "observation": np.arange(12, dtype=np.float32).reshape(4, 3),
    "action": np.array([[-1.0], [0.0], [0.5], [1.0]], np.float32),
    "reward": np.array([1.0, 2.0, 3.0, 4.0], np.float32),
    "next_observation": np.arange(12, dtype=np.float32).reshape(4, 3) + 1,
    "continuation": np.array([1.0, 0.0, 1.0, 1.0], np.float32),
    "episode_start": np.array([0, 2]),
}


def make(**changes) -> Dataset:
    box = {"action_low": (-1.0,), "action_high": (1.0,)}
    return Dataset(**{"name": "test", "discount": 0.9, **box, **ARRAYS, **changes})


def test_sizes_of_a_data_set():
    dataset = make()
    assert (dataset.rows, dataset.observation_size, dataset.action_size) == (4, 3, 1)


def test_the_hash_changes_with_every_array():
    hashes = {make().sha256}
    for name, array in ARRAYS.items():
        changed = array.copy()
        changed.flat[-1] = 0.25 if array.dtype.kind == "f" else 3
        hashes.add(make(**{name: changed}).sha256)
    hashes.add(make(discount=0.8).sha256)
    hashes.add(make(action_high=(2.0,)).sha256)
    assert len(hashes) == len(ARRAYS) + 3


def test_the_hash_covers_the_documented_bytes():
    digest = hashlib.sha256()
    headers = {
        "observation": b'["observation", "<f4", [4, 3]]\n',
        "action": b'["action", "<f4", [4, 1]]\n',
        "reward": b'["reward", "<f4", [4]]\n',
        "next_observation": b'["next_observation", "<f4", [4, 3]]\n',
        "continuation": b'["continuation", "<f4", [4]]\n',
        "episode_start": b'["episode_start", "<i8", [2]]\n',
    }
    for name, header in headers.items():
        digest.update(header + ARRAYS[name].tobytes())
    digest.update(b"[[-1.0], [1.0], 0.9]")
    assert make().sha256 == digest.hexdigest()


def test_the_hash_covers_propensities():
    propensity = np.array([0.5, 0.25, 1, 0.125], np.float32)
    digest = hashlib.sha256()
    for name, array in {**ARRAYS, "propensity": propensity}.items():
        header = f'["{name}", "<{array.dtype.str[1:]}", {list(array.shape)}]\n'
        digest.update(header.encode() + array.tobytes())
    digest.update(b"[[-1.0], [1.0], 0.9]")
    assert make(propensity=propensity).sha256 == digest.hexdigest() != make().sha256
    assert make(propensity=propensity[::-1]).sha256 != digest.hexdigest()


@pytest.mark.parametrize(
    "reordered",
    [
        {"observation": np.asfortranarray(ARRAYS["observation"])},
        {"reward": ARRAYS["reward"].astype(">f4")},
        {"name": "another"},
    ],
)
def test_the_hash_does_not_depend_on_layout_or_name(reordered):
    assert make(**reordered).sha256 == make().sha256


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_the_hash_depends_on_the_type(dtype):
    assert make(reward=ARRAYS["reward"].astype(dtype)).sha256 != make().sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propensity": np.ones((4, 1))}, r"propensity must have shape \(rows,\) = \(4,\), not"),
        ({"propensity": [0.5, np.nan, 1, 1]}, "propensity is not finite in 1 cell, first in row 1"),
        ({"propensity": [0.5, 0, 1, 1]}, "propensity must be above 0 and at most 1"),
        ({"propensity": [0.5, 0.5, 1.5, 1]}, "propensity must be above 0 and at most 1"),
        ({"propensity": ["a"] * 4}, "propensity must hold numbers"),
        ({"reward": np.ones((4, 1))}, r"reward must have shape \(rows,\), not \(4, 1\)"),
        ({"reward": np.ones(0)}, "reward must have shape"),
        ({"action": np.zeros(4)}, r"observation and action must have shapes"),
        ({"action": np.zeros((3, 1))}, r"action must have shape \(rows, action\) = \(4, 1\)"),
        ({"next_observation": np.zeros((4, 2))}, "next_observation must have shape"),
        ({"reward": np.array([1, np.nan, np.inf, 0])}, "reward is not finite in 2 cells.* row 1"),
        ({"observation": np.full((4, 3), np.inf)}, "observation is not finite in 12 cells"),
        ({"reward": np.array(["a"] * 4)}, "reward must hold numbers"),
        ({"continuation": np.array([1.0, 2, 1, 1])}, "continuation must lie between 0 and 1"),
        ({"discount": 1.5}, r"discount must lie in \[0, 1\]"),
        ({"action": np.array([[0.0], [0], [2], [0]])}, "action leaves the box in 1 row,.* row 2"),
        ({"action_low": (-1.0, -1.0)}, "each of 1 action dimensions, got 2 and 1"),
        ({"action_low": (1.0,)}, "low below high"),
        ({"action_high": (np.inf,)}, "must be finite"),
        ({"episode_start": np.array([1, 2])}, "episode_start must be increasing"),
        ({"episode_start": np.array([0, 2, 2])}, "episode_start must be increasing"),
        ({"episode_start": np.array([0, 4])}, "episode_start must be increasing"),
        ({"episode_start": np.array([0.0, 2.0])}, "episode_start must be increasing"),
    ],
)
def test_invalid_arrays_and_boxes_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"data set 'test': .*{message}"):
        make(**changes)


def test_the_treatment_log_is_the_log_of_the_task():
    dataset = data.load("treatment/quadratic", seed=5)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 0), 0)
    log = treatment.log(key, treatment.by_name("treatment/quadratic"))
    assert dataset.rows == 1200
    np.testing.assert_array_equal(dataset.reward, log["reward"])
    np.testing.assert_array_equal(dataset.episode_start, 24 * np.arange(50))
    assert (dataset.action_low, dataset.action_high, dataset.discount) == ((-1.0,), (1.0,), 0.9)


def test_each_seed_has_its_own_log():
    hashes = [data.load("treatment/cubic", seed).sha256 for seed in (0, 1, 0)]
    assert hashes[0] == hashes[2] != hashes[1]
    assert data.reader("treatment/cubic").one_a_seed


@pytest.mark.parametrize("name", ["treatment/cubc", "hospital/x", "clinic/x", ""])
def test_the_error_about_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(
        ValueError,
        match=r"no data set is called .*(treatment|hospital)/.* \(`fat2thin data info`",
    ):
        data.load(name)


def test_names_of_data_in_memory_are_not_listed():
    assert not [name for name in data.names() if name.startswith("memory/")]


def test_the_error_about_an_unknown_name_suggests_the_closest():
    with pytest.raises(ValueError, match=r"did you mean 'treatment/cubic'\?"):
        data.load("treatment/cubc")


def test_a_registered_reader_is_used(monkeypatch):
    monkeypatch.setattr(readers_module, "_READERS", dict(readers_module._READERS))
    data.register_reader(
        Reader("clinic/", lambda name, seed: dataclasses.replace(make(), name=name))
    )
    assert data.load("clinic/2024").name == "clinic/2024"
    assert "clinic/..." in data.names()
    with pytest.raises(ValueError, match="already have a reader"):
        data.register_reader(Reader("clinic/", lambda name, seed: make()))


def test_propensities_may_be_densities_above_one():
    arrays = {"observation": [0.0, 1.0], "action": [0.1, 0.2], "reward": [1.0, 0.0]}
    box = {"episode": [0, 0], "terminal": [0, 1], "action_low": 0.0, "action_high": 1.0}
    made = functools.partial(Dataset.from_arrays, **arrays, **box, propensity=[0.5, 7.0])
    with pytest.raises(ValueError, match="propensity_is_density"):
        made()
    dense = made(propensity_is_density=True)
    assert dense.propensity.tolist() == [0.5, 7.0]
    halved = dataclasses.replace(dense, propensity=dense.propensity / 7.0)
    as_probability = dataclasses.replace(halved, propensity_is_density=False)
    assert halved.sha256 != as_probability.sha256
    with pytest.raises(ValueError, match="propensity"):
        Dataset.from_arrays(**arrays, **box, propensity=[0.5, 0.0], propensity_is_density=True)
