"""Arguments of `fat2thin certify`."""

import pytest

from fat2thin.cli.certificates import _claim, _values


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
    for text, words in (("severity", "is written COLUMN="), ("a=1:2:3", "is written LOW:HIGH")):
        with pytest.raises(ValueError, match=words):
            _values(text)
