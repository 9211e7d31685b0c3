"""The sample of slow tests in `make test`: its contents, and that samples cover all cases."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


class Item:
    """A collected test, with the methods that the hook uses."""

    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, {*marks}

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, name):
        self.marks.add(name)


@pytest.fixture
def sampled(request, monkeypatch):
    """Return a function that gives the names of the tests in a sample."""
    hooks = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))

    def of_turn(turn):
        monkeypatch.setattr(request.config.option, "slow_sample", turn)
        items = [
            *(Item(f"a.py::many[{case}-x]", "slow") for case in range(12)),
            Item("a.py::many[quick]"),
            *(Item(f"b.py::few[{case}]", "slow") for case in range(3)),
            *(Item(f"b.py::alone_{name}", "slow") for name in "abcd"),
            Item("b.py::grid", "slow", "long"),
            Item("b.py::quick"),
        ]
        hooks.pytest_collection_modifyitems(request.config, items)
        return [item.nodeid for item in items if "sampled" in item.marks]

    return of_turn


def test_a_function_with_many_cases_is_in_every_sample(sampled):
    for turn in range(30):
        assert sum("many" in name for name in sampled(turn)) == 1
        assert sampled(turn) == sampled(turn)


def test_samples_cover_every_slow_case_but_no_long_or_quick_ones(sampled):
    taken = [name for turn in range(12) for name in sampled(turn)]
    assert {name for name in taken if "many" in name} == {f"a.py::many[{n}-x]" for n in range(12)}
    few = {f"b.py::few[{n}]" for n in range(3)} | {f"b.py::alone_{name}" for name in "abcd"}
    assert {name for name in taken if "many" not in name} == few


def test_the_makefile_runs_the_sample_with_the_quick_tests_and_all_slow_ones():
    text = (ROOT / "Makefile").read_text()
    runs = dict(re.findall(r"^(test|test-slow):.*\n\t@\$\(PYTEST\) -m (.*)$", text, re.MULTILINE))
    assert runs == {"test": '"not slow or sampled"', "test-slow": "slow"}
