"""Every planted bug in the list still applies, exactly once."""

import ast

import pytest

from mutants.run import Mutant, locate, near_tests, read_mutants, read_sources, table

MUTANTS = read_mutants()
SOURCES = read_sources()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_once_and_is_still_python(mutant):
    assert mutant.old != mutant.new
    ast.parse(SOURCES[locate(mutant, SOURCES)].replace(mutant.old, mutant.new))


def test_names_are_unique_and_descriptions_are_sentences():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 73
    assert all(mutant.breaks[0].isupper() and mutant.breaks.endswith(".") for mutant in MUTANTS)


def test_a_missing_or_ambiguous_text_is_an_error(tmp_path):
    sources = {tmp_path / "a.py": "x = 1\ny = 2\n", tmp_path / "b.py": "y = 2\n"}
    assert locate(Mutant("one", "", "x = 1", "x = 2"), sources) == tmp_path / "a.py"
    with pytest.raises(ValueError, match="'gone': its old text is not in src any more"):
        locate(Mutant("gone", "", "z = 3", "z = 4"), sources)
    with pytest.raises(ValueError, match=r"'twice'.*must be unique.*1 in a\.py, 1 in b\.py"):
        locate(Mutant("twice", "", "y = 2", "y = 3"), sources)


def test_tests_are_ordered_by_import_distance(tmp_path):
    files = {
        "src/p/__init__.py": "",
        "src/p/room/low.py": "",
        "src/p/room/high.py": "from p.room import low",
        "tests/helper.py": "from p.room.low import x",
        "tests/room/test_low.py": "import p.room.low",
        "tests/room/test_another.py": "def test():\n    from p.room.low import x",
        "tests/test_elsewhere.py": "from p.room.low import x",
        "tests/test_through_helper.py": "from helper import x",
        "tests/test_through_high.py": "from p.room.high import x",
        "tests/test_far.py": "from room.test_middle import x",
        "tests/room/test_middle.py": "from helper import y",
        "tests/test_none.py": "import json",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    near = near_tests(tmp_path / "src/p/room/low.py", tmp_path)
    assert {path.name: steps for path, steps in near.items()} == {
        "test_low.py": 1, "test_another.py": 1, "test_elsewhere.py": 1, "test_middle.py": 2,
        "test_through_helper.py": 2, "test_through_high.py": 2, "test_far.py": 3,
    }  # fmt: skip
    assert [path.name for path in near][:4] == [
        "test_low.py", "test_another.py", "test_elsewhere.py", "test_middle.py",
    ]  # fmt: skip


def test_every_mutant_has_near_tests():
    for mutant in MUTANTS:
        near = near_tests(locate(mutant, SOURCES))
        assert min(near.values(), default=9) <= 2, mutant.name


def test_the_table_shows_the_share_that_was_killed():
    row = {"mutant": "m", "file": "f.py", "result": "killed", "test": "t", "seconds": 1.5}
    rows = [row, {**row, "result": "timeout"}, {**row, "result": "survived", "test": ""}]
    assert table(rows).endswith(
        "2 of 3 killed (66.7 %), 1 of them by a test that took too long; 1 survived"
    )
