"""Plug-ins of other packages: found by name, loaded once, and named where they are broken."""

import importlib.metadata
from importlib.metadata import EntryPoint

import pytest

from fat2thin import algorithms, data, plugins
from fat2thin.data import Reader, readers

TREATMENT = data.reader("treatment/cubic")


@pytest.fixture
def installed(monkeypatch):
    """Have other packages installed; what they register is gone after the test."""
    monkeypatch.setattr(readers, "_READERS", dict(readers._READERS))
    monkeypatch.setattr(readers, "_SUFFIXES", dict(readers._SUFFIXES))
    monkeypatch.setattr(algorithms, "_REGISTRY", dict(algorithms._REGISTRY))
    monkeypatch.setattr(plugins, "_loaded", False)

    def install(*functions):
        names = [function.__name__ for function in functions]
        entries = [EntryPoint(name, f"{__name__}:{name}", plugins.GROUP) for name in names]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)

    return install


def register_hospital():
    data.register_reader(Reader("hospital/", TREATMENT.read))


def register_suffix():
    data.register_suffix(".ward", TREATMENT.read)


def register_algorithm():
    algorithms.variant("iql-sharp", "iql", "IQL with another expectile", expectile=0.9)


def broken():
    raise RuntimeError("made for another version")


@pytest.mark.parametrize("name", ["hospital/doses", "doses.ward"])
def test_a_reader_of_another_package_is_found(installed, name):
    with pytest.raises(ValueError, match="no data set is called"):
        data.reader(name)
    installed(register_hospital, register_suffix)
    plugins._loaded = False
    assert data.reader(name).read is TREATMENT.read


@pytest.mark.parametrize("first", [lambda: algorithms.get("iql-sharp"), algorithms.names])
def test_an_algorithm_of_another_package_is_found(installed, first):
    installed(register_algorithm)
    first()
    assert algorithms.get("iql-sharp").config().expectile == 0.9


def test_a_broken_one_is_named_and_the_others_load(installed, caplog):
    installed(broken, register_algorithm)
    assert "iql-sharp" in algorithms.names()
    assert f"plug-in broken ({__name__}:broken) cannot be loaded: made for another" in caplog.text
    algorithms.names()
    assert caplog.text.count("cannot be loaded") == 1
