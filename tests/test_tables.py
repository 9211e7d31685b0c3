"""Tables are aligned in a file and at any width of a terminal."""

import math
import os
import re
import sys

import pytest
from rich.cells import cell_len

from fat2thin import tables
from fat2thin.tables import Table

ROWS = (
    {"policy": "actor [red]x[/red] :smile:", "mean": -1.25, "dose_variance": math.nan,
     "note": "one\x1b\ntwo"},
    {"policy": "greedy", "mean": 100.0, "dose_variance": 2.0, "note": "a note of many words " * 5},
)  # fmt: skip
WIDTHS = (5, 12, 25, 40, 60, 80, 200)


def test_numbers_are_right_aligned_and_words_left_aligned():
    """Expected text by hand; markup and control characters are shown as text."""
    rows = (ROWS[0], {**ROWS[1], "note": ""})
    assert Table("a title", rows, ("a note\n",)).text().split("\n") == [
        "a title",
        "",
        "policy                         mean  dose variance  note",
        "--------------------------  -------  -------------  --------------",
        r"actor [red]x[/red] :smile:   -1.250              -  one\u001b\ntwo",
        "greedy                      100.000          2.000",
        "",
        r"a note\n",
    ]


def test_title_and_headings_are_optional():
    rows = ({"name": "a", "what": "first"}, {"name": "long", "what": "second"})
    assert Table("", rows, headings=False).text() == "a     first\nlong  second"
    assert Table("nothing", ()).text() == "nothing\n\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_the_terminal_and_no_cell_is_lost(width):
    lines = Table("", ROWS).text(width).split("\n")
    assert max(map(cell_len, lines)) <= width
    shown = re.sub(r"[\s-]", "", "".join(lines))
    for cell in ("1.250", "100.000", "2.000"):
        assert cell in shown or width < 10
    words = "".join(lines).split()
    assert width < 60 or words.count("many") == 5


@pytest.mark.parametrize("width", WIDTHS[2:])
def test_columns_that_do_not_fit_form_another_block_with_the_row_names(width):
    columns = {f"column_{number}": float(number) for number in range(9)}
    table = Table("", tuple({"name": name, **columns} for name in ("first", "second")))
    blocks = [block.split("\n") for block in table.text(width).split("\n\n")]
    headings = [re.findall(r"name|column \d", block[0]) for block in blocks]
    assert [names[0] for names in headings] == ["name"] * len(blocks)
    assert [one for names in headings for one in names[1:]] == [f"column {n}" for n in range(9)]
    for block in blocks:
        # Every number ends where its heading does.
        assert len({len(line) for line in block}) == 1
        assert [line.split()[0] for line in block[2:]] == ["first", "second"]


def test_wide_characters_count_as_two_columns():
    text = Table("", ({"name": "薬", "what": "x"}, {"name": "abc", "what": "y"})).text()
    assert [cell_len(line) for line in text.split("\n")[2:]] == [7, 7]


@pytest.mark.parametrize(("terminal", "longest"), [(True, 50), (False, 160)])
def test_output_fits_a_terminal_but_a_file_gets_one_line_per_row(monkeypatch, terminal, longest):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    size = os.terminal_size((50, 24))
    monkeypatch.setattr(tables.shutil, "get_terminal_size", lambda: size)
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = str(Table("", ROWS))
    assert (max(map(len, text.split("\n"))) > 50) is not terminal
    assert "\x1b" not in text and max(map(len, text.split("\n"))) <= longest


def test_html_has_every_cell_and_escapes_all_text():
    evil = "<script>alert('1')</script>"
    rows = ({"policy": evil, "mean_<b>": -1.25}, {"policy": "a & b", "mean_<b>": math.nan})
    shown = Table(f"title {evil}", rows, (f"note {evil}",))._repr_html_()
    assert "<script" not in shown and "<b>" not in shown
    assert shown.count("&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;") == 3
    assert re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", shown)[1:] == [
        "mean &lt;b&gt;", "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;", "-1.250",
        "a &amp; b", "-",
    ]  # fmt: skip
    assert "<th" not in Table("", rows, headings=False)._repr_html_()
    assert Table("nothing", ())._repr_html_() == "<p>nothing</p><table></table>"
