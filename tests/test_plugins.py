"""Plug-ins of other packages are found by name and loaded once; broken ones are logged."""

import importlib.metadata
import os
import runpy
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import fat2thin
import rollout_tasks
from fat2thin import algorithms, data, plugins
from fat2thin.data import Reader
from fat2thin.evaluation.returns import TaskError, evaluator
from fat2thin.policies import families
from fat2thin.policies.families import Squashed, make_family, register_family

TREATMENT = data.reader("treatment/cubic")


@pytest.fixture
def installed(monkeypatch, own_registries):
    """Return a function that installs plug-ins; their registrations are undone after the test."""
    monkeypatch.setattr(plugins, "_loaded", False)

    def install(*functions):
        names = [function.__name__ for function in functions]
        entries = [EntryPoint(name, f"{__name__}:{name}", plugins.GROUP) for name in names]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)

    return install


def register_clinic():
    data.register_reader(Reader("clinic/", TREATMENT.read))


def register_suffix():
    data.register_suffix(".ward", TREATMENT.read)


def register_algorithm():
    algorithms.variant("iql-sharp", "iql", "IQL with another expectile", expectile=0.9)


def broken():
    raise RuntimeError("made for another version")


@pytest.mark.parametrize("name", ["clinic/doses", "doses.ward"])
def test_a_reader_of_another_package_is_found(installed, name):
    with pytest.raises(ValueError, match="no data set is called"):
        data.reader(name)
    installed(register_clinic, register_suffix)
    plugins._loaded = False
    assert data.reader(name).read is TREATMENT.read


@pytest.mark.parametrize("first", [lambda: algorithms.get("iql-sharp"), algorithms.names])
def test_an_algorithm_of_another_package_is_found(installed, first):
    installed(register_algorithm)
    first()
    assert algorithms.get("iql-sharp").config().expectile == 0.9


def leaving():
    sys.exit("made for another version")


@pytest.mark.parametrize("wrong", [broken, leaving])
def test_a_broken_plugin_is_logged_and_the_others_load(installed, caplog, wrong):
    installed(wrong, register_algorithm)
    assert "iql-sharp" in algorithms.names()
    name = wrong.__name__
    assert f"plug-in {name} ({__name__}:{name}) cannot be loaded: made for another" in caplog.text
    algorithms.names()
    assert caplog.text.count("cannot be loaded") == 1


PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"
TREATMENT_TASK = evaluator("treatment/quadratic")


def register_ward():
    runpy.run_path(str(PLUGIN / "ward.py"))["register"]()


def test_the_example_plugin_registers_one_of_each_kind(installed, tmp_path):
    config = algorithms.get("bc").config(policy="laplace")
    with pytest.raises(ValueError, match=r"policy must be one of 'squashed_gaussian'.*'laplace'"):
        algorithms.get("bc").check(config)
    installed(register_ward)
    plugins._loaded = False
    algorithms.get("bc").check(config)
    assert "laplace" in families.covering_families()
    assert algorithms.get("reward_weighted").config().temperature == 1.0
    assert evaluator("ward:doses", "ward").references() == {}
    (tmp_path / "doses.txt").write_text("0.5 0.25 1.0\n-0.5 0.0 0.0\n")
    log = data.load(f"ward:{tmp_path / 'doses.txt'}")
    assert log.rows == 2 and log.action.tolist() == [[0.25], [0.0]]


def test_registering_a_name_twice_is_an_error(installed):
    with pytest.raises(ValueError, match="'beta' is already registered"):
        fat2thin.register_family("beta", Squashed)
    with pytest.raises(ValueError, match=r"among entropic_index.*got width$"):
        fat2thin.register_family("wide", lambda width=1.0: Squashed())
    fat2thin.register_task("ward", lambda: TREATMENT_TASK, data="clinic/")
    assert evaluator("clinic/2024") is TREATMENT_TASK is evaluator("own.csv", "ward")
    for name in ("ward", "none"):
        with pytest.raises(ValueError, match=f"a task named '{name}' is already registered"):
            fat2thin.register_task(name, lambda: TREATMENT_TASK)
    with pytest.raises(ValueError, match="an algorithm called 'iql' is already registered"):
        fat2thin.register_algorithm(algorithms.get("iql"))


def test_families_receive_only_the_settings_they_have(installed):
    assert make_family("sparse_q_gaussian", box="clip", degrees_of_freedom=3.0).box == "clip"
    assert make_family("q_gaussian", entropic_index=None).entropic_index == 2.0
    register_family("squashed_too", Squashed)
    assert make_family("squashed_too", entropic_index=0.5) == Squashed()
    with pytest.raises(ValueError, match=r"no family is called 'betta' \(did you mean 'beta'\?\)"):
        make_family("betta")


def test_a_gymnasium_task_is_registered_by_id_or_by_environment(installed):
    fat2thin.register_task("by id", lambda: "rollout_tasks:Countdown-v0")
    assert evaluator("own.csv", "by id").task.name == "rollout_tasks:Countdown-v0"
    fat2thin.register_task("made", rollout_tasks.Countdown)
    made = evaluator("own.csv", "made")
    assert made.workers == 0 and made.task.action_low == evaluator("x.csv", "by id").task.action_low
    assert isinstance(made.references()["uniform"].mean, float)
    assert evaluator("own.csv", "made") == made
    fat2thin.register_task("wrong", lambda: 3)
    with pytest.raises(TaskError, match="'wrong' makes a int"):
        evaluator("own.csv", "wrong")


@pytest.mark.slow
def test_the_example_plugin_is_installed_and_used_for_training(tmp_path):
    """As a user does: pip, then the command line."""
    pytest.importorskip("hatchling")
    there = tmp_path / "installed"
    quiet = ("-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "install", *quiet, "--target", there, PLUGIN)
    states, doses = np.random.default_rng(0).uniform(-1.0, 1.0, (2, 300))
    log, out = tmp_path / "doses.txt", tmp_path / "run"
    np.savetxt(log, np.stack([states, doses, -((doses - states / 2.0) ** 2)], axis=1))
    path = os.pathsep.join(map(str, filter(None, (there, os.environ.get("PYTHONPATH")))))
    command = (sys.executable, "-m", "fat2thin")
    printed = run(
        *command, "train", "reward_weighted", f"ward:{log}", "--task", "ward", "--steps", "20",
        "--set", "policy=laplace", "hidden=8,8", "--out", out, PYTHONPATH=path,
    )  # fmt: skip
    assert "actor_sampled" in printed and "dose" in printed
    assert "reward_weighted" in run(*command, "show", out, PYTHONPATH=path)
    assert "reward_weighted" not in run(*command, "algorithms")


def run(*words, **environment):
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
