"""Control characters are escaped in terminal output; the oracle is Unicode's categories."""

import logging
import tomllib
import unicodedata

import pytest

from fat2thin.terminal_text import (
    _Formatter,
    closest_first,
    counted,
    plain_errors,
    printable,
    printable_lines,
)

SHOWN = {"L", "M", "N", "P", "S"}
"""Letters, marks, numbers, punctuation, symbols."""


def test_every_character_is_shown_or_escaped():
    ends = [(0, 0x2100), (0xD7F0, 0xD810), (0xFE00, 0x10010), (0xE0000, 0xE0100)]
    for letter in (chr(number) for first, end in ends for number in range(first, end)):
        if unicodedata.category(letter)[0] in SHOWN or letter == " ":
            assert printable(letter) == letter
        else:
            assert printable(letter).isascii() and printable(letter).startswith("\\")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dose in µg/kg, größer", "dose in µg/kg, größer"),
        ("\x1b[31mred\x1b[0m", r"\u001b[31mred\u001b[0m"),
        ("\x1b]0;title\x07", r"\u001b]0;title\u0007"),
        ("\x9b31m", r"\u009b31m"),
        ("a\nb\r\tc\x85\u2028d", r"a\nb\r\tc\u0085\u2028d"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x7f\U000e0041", r"\u007f\U000e0041"),
        ("\udc80", r"\udc80"),
    ],
)
def test_escapes_of_examples_by_hand(text, shown):
    assert printable(text) == shown


def test_the_escapes_are_those_of_toml():
    text = "\x1b\x7f\x9b\n\t\u202e\U000e0041"
    assert tomllib.loads(f'text = "{printable(text)}"')["text"] == text


def test_line_breaks_are_kept_in_text_of_several_lines():
    assert printable_lines("a\x1b\nb\x85c") == "a\\u001b\nb\\u0085c"


def test_the_closest_names_come_first_and_of_many_the_first_five():
    assert closest_first("Bta", ["alpha", "gamma", "beta"]) == "beta, alpha, gamma"
    names = [f"name_{number}" for number in range(9)]
    assert closest_first("name_7", names) == "name_7, name_0, name_1, name_2, name_3 and 4 more"
    assert closest_first("name_7", names, "x y").endswith(" and 4 more (`x y` lists all)")


def test_a_count_of_one_is_singular():
    assert [counted(count, "run") for count in (0, 1, 2, 1200)] == [
        "0 runs", "1 run", "2 runs", "1,200 runs",
    ]  # fmt: skip


def test_errors_of_the_system_name_the_file_and_no_number(tmp_path):
    place = tmp_path / "x"
    with pytest.raises(SystemExit) as end, plain_errors(OSError):
        place.open()
    assert end.value.code == f"fat2thin: {place}: No such file or directory"


def test_errors_and_logs_are_printable():
    with pytest.raises(SystemExit) as end, plain_errors(ValueError):
        raise ValueError("the file \x1b[2J\nis wrong")
    assert end.value.code == "fat2thin: the file \\u001b[2J\nis wrong"
    record = logging.LogRecord("x", logging.WARNING, "", 1, "%s is bad", ("a\x1b",), None)
    assert _Formatter().format(record) == "a\\u001b is bad"
