"""Arguments of `fat2thin certify`."""

import types

import pytest

import random_policies as made
from fat2thin import safety
from fat2thin.cli.certificates import _claim, _values
from fat2thin.cli.main import main


def test_claims_are_numbers_or_numbers_by_action():
    assert _claim(()) is None
    assert _claim(("-0.5",)) == -0.5
    assert _claim(("dose=0.8", "rest=1e2")) == {"dose": 0.8, "rest": 100.0}
    with pytest.raises(ValueError, match="several claims name their actions"):
        _claim(("0.8", "0.9"))
    with pytest.raises(ValueError, match="expected a number, got 'high'"):
        _claim(("dose=high",))


def test_values_of_a_table_are_numbers_or_ranges():
    assert _values("severity=0,1,2:4") == ("severity", [0.0, 1.0, (2.0, 4.0)])
    assert _values("sex=f=0,1") == ("sex=f", [0.0, 1.0])
    for text, words in (("severity", "is written COLUMN="), ("a=1:2:3", "is written LOW:HIGH")):
        with pytest.raises(ValueError, match=words):
            _values(text)


@pytest.mark.parametrize("given", [{"gap": -1}, {"gap": float("nan")}, {"seconds": -1.0}])
def test_a_gap_or_time_below_0_is_refused(given):
    name = next(iter(given))
    with pytest.raises(ValueError, match=f"{name} must be a number of at least 0"):
        safety.certify(made.policy_of(0), {}, **given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "missing/c.json"], "it must be a file in an existing folder"),
        (["--table", "x=1", "--table", "age=2:1"], "no column 'x'"),
        (["--table", "age=2:1"], "column 'age' must have finite ends, the low one first"),
    ],
)
def test_bad_options_are_refused_before_any_work(options, words, tmp_path, monkeypatch):
    policy = made.policy_of(0)
    run = types.SimpleNamespace(
        policy=lambda *_, **__: policy, columns=types.SimpleNamespace(ranges={})
    )
    monkeypatch.setattr("fat2thin.training.load", lambda folder: run)
    monkeypatch.setattr(safety, "certify", lambda *_, **__: pytest.fail("work has started"))
    box = tmp_path / "box.toml"
    box.write_text("[box]\nseverity = 1\nweight = 60\nage = 0\n")
    with pytest.raises(SystemExit, match=words):
        main(["certify", "run", str(box), *options])
