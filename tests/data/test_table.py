"""CSV and Parquet logs: one log in all layouts, errors, random logs and damaged files."""

import contextlib
import csv
import dataclasses
import importlib
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fat2thin import data
from fat2thin.columns import Column, Transform
from fat2thin.data import DataFileError, Dataset
from fat2thin.data.dataset import transformed
from fat2thin.data.formats import table_files
from fat2thin.data.formats.table import read_table

EXAMPLES = Path(__file__).parents[2] / "examples"

HEADER = "who,time,obs_a,obs_b,act,reward,end"
LOG = """x,0,0.5,1,-1,1,no
x,1,1.5,2,0,2,no
x,2,2.5,3,1,3,yes
y,0,3.5,4,0.5,4,no
y,1,4.5,5,-0.5,5,no
z,0,5.5,6,0.25,6,no
z,1,6.5,7,0.75,7,yes""".splitlines()
WHOLE = "\n".join([HEADER, *LOG]) + "\n"

# The same log by hand, without row y,1, whose next observation is unknown.
BY_HAND = Dataset(
    name="by hand",
    observation=np.array([[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4], [5.5, 6], [6.5, 7]], "f4"),
    action=np.array([[-1], [0], [1], [0.5], [0.25], [0.75]], "f4"),
    reward=np.array([1, 2, 3, 4, 6, 7], "f4"),
    next_observation=np.array([[1.5, 2], [2.5, 3], [2.5, 3], [4.5, 5], [6.5, 7], [6.5, 7]], "f4"),
    continuation=np.array([1, 1, 0, 1, 1, 0], "f4"),
    episode_start=np.array([0, 3, 4]),
    action_low=(-1.0,),
    action_high=(1.0,),
    discount=0.9,
)

TOML = {
    "episode": '"who"',
    "time": '"time"',
    "observation": '["obs_*"]',
    "action": '["act"]',
    "reward": '"reward"',
    "end": '"end"',
    "action_low": "-1",
    "action_high": "1.0",
    "discount": "0.9",
}


def write_toml(folder: Path, name: str = "log.toml", **changes: str | None) -> Path:
    keys = {**TOML, **changes}
    lines = [f"{key} = {value}" for key, value in keys.items() if value is not None]
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def write_csv(folder: Path, text: str = WHOLE, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def columns(lines: list[str] = LOG) -> dict[str, list]:
    cells = list(zip(*(line.split(",") for line in lines), strict=True))
    kinds = [str, int, float, int, float, float, "yes".__eq__]
    return {
        name: [kind(cell) for cell in column]
        for name, kind, column in zip(HEADER.split(","), kinds, cells, strict=True)
    }


def write_parquet(folder: Path, table: dict, name: str = "log.parquet", **options) -> Path:
    parquet.write_table(pa.table(table), folder / name, **options)
    return folder / name


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(table_files, "_CSV_BLOCK_BYTES", 1)
    monkeypatch.setattr(table_files, "_LONGEST_CELL", 6)
    monkeypatch.setattr(table_files, "_PARQUET_BATCH_ROWS", 2)


def load(path: Path) -> Dataset:
    return data.load(str(path))


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        WHOLE.rstrip("\n"),
        WHOLE.replace("\n", "\r\n"),
        "\ufeff" + WHOLE,
        "\n" + WHOLE.replace("\n", "\n\n"),
        WHOLE.replace(",", " , "),
        WHOLE.replace("x,", '"x",').replace(",0.5,", ',"+0.5",'),
        WHOLE.replace("x,", '"x\n1",'),
        WHOLE.replace("no", "False").replace("yes", "TRUE"),
        WHOLE.replace("no", "0").replace("yes", "1"),
        WHOLE.replace("\n", ",\n"),
        WHOLE.replace("\n", ",not a number\n"),
    ],
)
def test_csv_files_are_read(tmp_path, text):
    write_csv(tmp_path, text)
    assert load(write_toml(tmp_path)).sha256 == BY_HAND.sha256
    assert load(tmp_path / "log.csv").sha256 == BY_HAND.sha256


def test_line_ends_in_cells_at_the_end_of_a_block(tmp_path, small_pieces):
    rows = [f'"a\nb",{row},{row},0,0,0,no' for row in range(100)]
    write_csv(tmp_path, "\n".join([HEADER, *rows]))
    dataset = load(write_toml(tmp_path))
    np.testing.assert_array_equal(dataset.observation[:, 0], np.arange(99))


def test_csv_files_are_read_in_small_blocks(tmp_path, small_pieces):
    write_csv(tmp_path)
    batches = list(table_files.open_table(tmp_path / "log.csv").batches(("who",)))
    assert len(batches) > 2
    assert load(write_toml(tmp_path)).sha256 == BY_HAND.sha256


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"obs_b": pa.float32(), "act": pa.float16(), "reward": pa.int8()},
        {"obs_b": pa.dictionary(pa.int8(), pa.int64()), "who": pa.dictionary(pa.int8(), "string")},
        {"who": pa.large_string(), "end": pa.int64(), "time": pa.float64()},
        {"end": pa.float64(), "time": pa.date32()},
        {"time": pa.timestamp("us", "UTC"), "obs_b": pa.uint64()},
    ],
)
def test_parquet_files_are_read(tmp_path, types, small_pieces):
    typed = {name: pa.array(values) for name, values in columns().items()}
    for name, type_ in types.items():
        if pa.types.is_dictionary(type_):
            typed[name] = typed[name].dictionary_encode()
        elif pa.types.is_date(type_):
            typed[name] = typed[name].cast("int32").cast(type_)
        else:
            typed[name] = typed[name].cast(type_)
    write_parquet(tmp_path, typed, row_group_size=3)
    assert load(write_toml(tmp_path)).sha256 == BY_HAND.sha256
    assert load(tmp_path / "log.parquet").sha256 == BY_HAND.sha256


def test_dictionary_encoded_text_is_read(tmp_path):
    flags = pa.array([" Yes" if end else "no" for end in columns()["end"]]).dictionary_encode()
    write_parquet(tmp_path, {**columns(), "end": flags})
    assert load(write_toml(tmp_path)).sha256 == BY_HAND.sha256


def other_order(lines: list[str]) -> str:
    """The same rows with the columns in reverse order."""
    return "\n".join(",".join(reversed(line.split(","))) for line in [HEADER, *lines])


@pytest.mark.parametrize(
    "files",
    ['["files/a.csv", "files/b.parquet", "files/c.csv"]', '"files/[abc].*"', '"files"', '"*/*"'],
)
@pytest.mark.parametrize("cuts", [(3, 5), (1, 4), (2, 6)], ids=str)
def test_an_episode_can_continue_in_the_next_file(tmp_path, files, cuts):
    """The next file starts with the label at the end of the previous one."""
    folder = tmp_path / "files"
    folder.mkdir()
    first, second = cuts
    write_csv(folder, "\n".join([HEADER, *LOG[:first]]), "a.csv")
    write_parquet(folder, columns(LOG[first:second]), "b.parquet")
    write_csv(folder, other_order(LOG[second:]), "c.csv")
    assert load(write_toml(tmp_path, files=files)).sha256 == BY_HAND.sha256


def test_files_may_use_the_same_episode_labels(tmp_path):
    """Two files that both number their episodes from 1 have four episodes, not two."""
    text = f"{HEADER}\n1,0,0,0,0,1,no\n1,1,1,1,0,2,yes\n2,0,2,2,0,3,no\n2,1,3,3,0,4,yes\n"
    write_csv(tmp_path, text, "a.csv")
    write_csv(tmp_path, text, "b.csv")
    dataset = load(write_toml(tmp_path, files='["a.csv", "b.csv"]'))
    np.testing.assert_array_equal(dataset.episode_start, [0, 2, 4, 6])


def test_an_ended_episode_does_not_continue_in_the_next_file(tmp_path):
    text = f"{HEADER}\n1,0,0,0,0,1,no\n1,1,1,1,0,2,yes\n"
    write_csv(tmp_path, text, "a.csv")
    write_csv(tmp_path, text, "b.csv")
    dataset = load(write_toml(tmp_path, files='["a.csv", "b.csv"]'))
    np.testing.assert_array_equal(dataset.episode_start, [0, 2])


def test_time_must_increase_where_an_episode_continues_in_the_next_file(tmp_path):
    text = f"{HEADER}\n1,0,0,0,0,1,no\n1,1,1,1,0,2,no\n"
    write_csv(tmp_path, text, "a.csv")
    write_csv(tmp_path, text, "b.csv")
    with pytest.raises(DataFileError, match=r"b.csv: 'time' does not incr.*: row 1 \(line 2\)"):
        load(write_toml(tmp_path, files='["a.csv", "b.csv"]'))


def test_without_an_episode_column_ends_and_files_separate_episodes(tmp_path, small_pieces):
    """Here episode y stops at the end of its file."""
    write_csv(tmp_path, "\n".join([HEADER, *LOG[:5]]), "a.csv")
    write_csv(tmp_path, "\n".join([HEADER, *LOG[5:]]), "b.csv")
    toml = write_toml(tmp_path, files='["a.csv", "b.csv"]', episode=None)
    assert load(toml).sha256 == BY_HAND.sha256


def test_a_cut_starts_a_new_episode(tmp_path):
    """After the time limit at row 2, the patient's last row is an episode and is dropped."""
    text = "obs_a,act,reward,over,limit\n1,0,0,no,no\n2,0,0,no,yes\n3,0,0,no,no\n4,0,0,yes,no\n"
    write_csv(tmp_path, text)
    toml = write_toml(tmp_path, episode=None, time=None, end='"over"', cut='"limit"')
    dataset = load(toml)
    np.testing.assert_array_equal(dataset.observation[:, 0], [1, 3, 4])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 0])
    np.testing.assert_array_equal(dataset.episode_start, [0, 1])


def test_next_observations_keep_every_row(tmp_path):
    text = "e,obs_a,obs_b,next_a,next_b,act,reward\n1,1,2,3,4,0,0\n1,3,4,5,6,0,0\n2,7,8,9,10,0,0\n"
    write_csv(tmp_path, text)
    toml = write_toml(tmp_path, episode='"e"', time=None, end=None, next_observation='"next_*"')
    dataset = load(toml)
    np.testing.assert_array_equal(dataset.next_observation, [[3, 4], [5, 6], [9, 10]])
    np.testing.assert_array_equal(dataset.episode_start, [0, 2])
    np.testing.assert_array_equal(dataset.continuation, [1, 1, 1])


def test_propensities_are_kept(tmp_path):
    lines = [f"{line},{(row + 1) / 8}" for row, line in enumerate(LOG)]
    write_csv(tmp_path, "\n".join([f"{HEADER},chance", *lines]))
    toml = write_toml(tmp_path, propensity='"chance"')
    np.testing.assert_array_equal(read_table(toml)[0].propensity, np.arange(1, 8) / 8)
    dataset = load(toml)
    # The fifth row, y,1, is dropped.
    np.testing.assert_array_equal(dataset.propensity, np.array([1, 2, 3, 4, 6, 7]) / 8)
    assert dataclasses.replace(dataset, propensity=None).sha256 == BY_HAND.sha256


def test_a_column_can_have_two_roles(tmp_path):
    write_csv(tmp_path)
    write_parquet(tmp_path, columns())
    for files in ('"log.csv"', '"log.parquet"'):
        dataset = load(write_toml(tmp_path, files=files, observation='["time", "obs_b"]'))
        np.testing.assert_array_equal(dataset.observation[:, 0], [0, 1, 2, 0, 0, 1])


@pytest.mark.parametrize("bound", [0.1, 0.3, 1 / 3, 0.7, 1e-3, 123.456])
def test_an_action_at_the_end_of_the_box_is_inside(tmp_path, bound):
    """The float32 number nearest to 0.1 is above 0.1."""
    write_csv(tmp_path, f"{HEADER}\n1,0,0,0,{bound!r},0,no\n1,1,0,0,{-bound!r},0,yes\n")
    dataset = load(write_toml(tmp_path, action_low=repr(-bound), action_high=repr(bound)))
    np.testing.assert_allclose(dataset.action[:, 0], [bound, -bound], rtol=1.2e-7)


def test_times_can_be_dates_in_text(tmp_path):
    dates = ["2024-05-31 23:00", "2024-05-31 23:30", "2024-06-01 00:00"]
    rows = [f"1,{date},0,0,0,0,no" for date in dates]
    write_csv(tmp_path, "\n".join([HEADER, *rows]))
    assert load(write_toml(tmp_path)).rows == 2
    write_csv(tmp_path, "\n".join([HEADER, *reversed(rows)]))
    with pytest.raises(DataFileError, match=r"'time' does not increase .* row 2 \(line 3\), row 3"):
        load(write_toml(tmp_path))


def test_the_example_is_read(tmp_path):
    dataset = load(EXAMPLES / "own_log.toml")
    with (EXAMPLES / "own_log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    kept = [row for row in rows if row["patient"] != "B"] + [
        row for row in rows if row["patient"] == "B"
    ][:-1]
    assert dataset.rows == len(kept) == 59
    assert sorted(dataset.reward.tolist()) == sorted(
        float(np.float32(row["reward"])) for row in kept
    )
    np.testing.assert_array_equal(dataset.continuation == 0, np.isin(np.arange(59), [21, 58]))


def with_cell(row: int, column: str, cell: str) -> str:
    """The log with one cell replaced; the first row is 1."""
    lines = [line.split(",") for line in LOG]
    lines[row - 1][HEADER.split(",").index(column)] = cell
    return "\n".join([HEADER, *map(",".join, lines)]) + "\n"


REFUSED_TEXTS = {
    "decimal comma": (
        with_cell(2, "obs_a", '"1,5"'),
        r"log.csv: 'obs_a' has '1,5', which is not a number: row 2 \(line 3\)\. .*decimal point",
    ),
    "bare decimal comma": (
        with_cell(2, "obs_a", "1,5"),
        r"row 2 \(line 3\) has 8 cells, the header has 7\. A comma in a number",
    ),
    "too few cells": (WHOLE + "z,3", r"row 8 \(line 9\) has 2 cells, the header has 7"),
    "blank": (with_cell(4, "reward", ""), r"'reward' has no value: row 4 \(line 5\)\. Fill in"),
    "spaces": (with_cell(4, "reward", "  "), r"'reward' has no value: row 4 \(line 5\)"),
    "text": (with_cell(7, "act", "2 mg"), r"'act' has '2 mg', which is not a number: row 7 "),
    "missing": (with_cell(1, "act", "NA"), r"'act' has 'NA', which is not a number: row 1 "),
    "thousands separator": (
        with_cell(2, "obs_a", '"10,443"'),
        r"'obs_a' has '10,443', .* looks like a thousands separator: row 2 .* Write numbers w",
    ),
    "thousands and decimals": (with_cell(2, "obs_a", '"-1,234.5"'), "looks like a thousands sep"),
    "underscore": (with_cell(1, "act", "1_0"), r"'act' has '1_0', which is not a number"),
    "not a number": (with_cell(3, "obs_b", "nan"), r"'obs_b' has nan, which is not .* row 3 "),
    "beyond float64": (with_cell(3, "obs_b", "1e400"), r"'obs_b' has 1e400, which is .* row 3 "),
    "infinite": (with_cell(3, "obs_b", "-inf"), r"'obs_b' has -inf, which is not a finite"),
    "too large": (with_cell(3, "obs_b", "1e39"), r"'obs_b' has 1e39, which is not .* float32"),
    "no flag": (with_cell(3, "end", "maybe"), r"'end' has 'maybe', which is neither .* row 3 "),
    "blank label": (with_cell(3, "who", ""), r"'who' has no value: row 3 \(line 4\)"),
    "resumed episode": (
        "\n".join([HEADER, *LOG[:3], *LOG[5:], *LOG[1:2]]),
        r"'who' returns to episode 'x', which stopped at row 3 \(line 4\): row 6 \(line 7\)\. Sort",
    ),
    "after the end": (
        with_cell(1, "end", "yes"),
        r"'who' continues episode 'x' below the row that ended it: row 2 \(line 3\)",
    ),
    "decreasing time": (
        with_cell(3, "time", "0.5"),
        r"'time' does not increase .*: row 3 \(line 4\)\. Sort",
    ),
    "repeated time": (
        with_cell(3, "time", "1"),
        r"'time' 1 row repeats the time of the row above, .*: row 3 \(line 4\)\. Drop the dup",
    ),
    "no time": (with_cell(3, "time", "soon"), r"'time' has 'soon', which is not a number or date"),
    "two kinds of time": (
        with_cell(3, "time", "2024-05-31"),
        r"'time' has '2024-05-31', .* in the format of .*: row 3 \(line 4\)",
    ),
    "outside the box": (
        with_cell(2, "act", "1.5"),
        r"'act' has 1.5, outside the action box from -1 to 1: row 2 \(line 3\)\. Correct",
    ),
    "many": (
        WHOLE.replace(",no", ",often"),
        r"'end' has 'often'.*: row 1 \(line 2\), row 2 \(line 3\), row 4 \(line 5\) and more\.",
    ),
    "lines of a quoted cell": (
        with_cell(5, "act", "?").replace("x,0", '"v\n\nw",0'),
        r"'act' has '\?', which is not a number: row 5 \(line 8\)",
    ),
    "semicolons": (WHOLE.replace(",", ";"), "columns are separated by ';'. Separate columns by"),
    "tabs": (WHOLE.replace(",", "\t"), r"its columns are separated by '\\t'"),
    "no header": ("1,0,0.5,1,0,1,0\n", "its first line holds numbers. The first line"),
    "empty": ("", "log.csv: is empty. The first line of a CSV file must name its columns"),
    "only a header": (HEADER, "log.toml: its files have no rows"),
    "no transition": (f"{HEADER}\n1,0,0,0,0,0,no\n", "no row has a next observation"),
    "two columns of a name": (
        WHOLE.replace("\n", ",0\n").replace("end,0", "end,act"),
        "'act' is the name of 2 columns. Give every column"
    ),
    "unknown column": (
        WHOLE.replace("reward", "Rewards"),
        r"no column 'reward', which log.toml gives as reward \(did you mean 'Rewards'\?\)\. "
        "Its columns are who, time, obs_a, obs_b, act, Rewards, end",
    ),
    "no such prefix": (WHOLE.replace("obs_", "s_"), r"no column 'obs_\*', which log.toml gives"),
    "open quote": (with_cell(2, "who", '"x'), "log.csv: "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TEXTS)
def test_invalid_csv_files_are_refused(tmp_path, case):
    text, message = REFUSED_TEXTS[case]
    write_csv(tmp_path, text)
    with pytest.raises(DataFileError, match=message):
        load(write_toml(tmp_path))


@pytest.mark.parametrize(
    "case", ["text", "blank", "resumed episode", "after the end", "decreasing time"]
)
def test_the_reported_place_does_not_depend_on_block_size(tmp_path, case, small_pieces):
    test_invalid_csv_files_are_refused(tmp_path, case)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (WHOLE.encode("utf-16"), "is UTF-16 text. Save it as CSV in UTF-8"),
        (WHOLE.replace("reward", "würde").encode("latin-1"), "names of its columns are not UTF-8"),
        (WHOLE.replace("y", "ü").encode("latin-1"), "is not UTF-8 text"),
    ],
)
def test_other_encodings_are_refused(tmp_path, content, message):
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        load(write_toml(tmp_path))


def test_damage_in_an_unused_column_is_ignored(tmp_path):
    content = WHOLE.replace("\n", ",ü\n").replace("end,ü", "end,note").encode("latin-1")
    (tmp_path / "log.csv").write_bytes(content)
    assert load(write_toml(tmp_path)).sha256 == BY_HAND.sha256


def replaced(**changes) -> dict:
    return {**columns(), **changes}


REFUSED_TABLES = {
    "null": (
        lambda: replaced(reward=[1.0, None, 3.0, None, None, None, 7.0]),
        r"log.parquet: 'reward' has no value: row 2, row 4, row 5 and more\. Fill in",
    ),
    "only nulls": (lambda: replaced(reward=pa.nulls(7)), "'reward' has no value: row 1, row 2"),
    "no flag": (lambda: replaced(end=[0, 0, 1, 0, 2, 0, 1]), "'end' has 2, which.*row 5"),
    "decimal": (
        lambda: replaced(reward=pa.array(columns()["reward"]).cast(pa.decimal128(9, 2))),
        r"'reward' holds decimals \(decimal128\(9, 2\)\)\. Write it as float64",
    ),
    "list": (
        lambda: replaced(obs_a=[[1.0, 2.0]] * 7),
        r"'obs_a' holds several values per row \(list<.*\. Give each value its own column",
    ),
    "struct": (lambda: replaced(act=[{"a": 1}] * 7), "'act' holds several values per row"),
    "text": (lambda: replaced(act=["0"] * 7), r"'act' holds text \(string\)\. Write it as numbers"),
    "object": (lambda: replaced(act=[b"\x80"] * 7), "'act' holds binary, which cannot be"),
    "date": (
        lambda: replaced(act=pa.array([0] * 7, pa.timestamp("us"))),
        r"'act' holds timestamp\[us\], which cannot be read as a number",
    ),
    "decreasing time": (
        lambda: replaced(time=[2, 1, 0, 0, 1, 0, 1]), "'time' does not increase.*row 2, "
    ),
    "no rows": (
        lambda: {name: pa.array(cells)[:0] for name, cells in columns().items()},
        "log.toml: its files have no rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TABLES)
def test_invalid_parquet_files_are_refused(tmp_path, case):
    table, message = REFUSED_TABLES[case]
    write_parquet(tmp_path, table())
    with pytest.raises(DataFileError, match=message):
        load(write_toml(tmp_path))


@pytest.mark.parametrize("declared", [3, 8])
def test_a_parquet_file_with_a_wrong_number_of_rows_is_refused(tmp_path, declared):
    file = table_files.open_table(write_parquet(tmp_path, columns()))
    assert file.row_bound == 7
    file.row_bound = declared
    with pytest.raises(DataFileError, match=f"does not have the {declared} rows that it declares"):
        list(file.batches(("act",)))


@pytest.mark.parametrize("value", ["0", "-0.5", "1.5", "1e-60"])
def test_a_propensity_is_a_probability(tmp_path, value):
    write_csv(tmp_path, WHOLE.replace("\n", f",{value}\n").replace(f"end,{value}", "end,chance"))
    with pytest.raises(DataFileError, match=r"'chance' has .*: row 1 .*above 0 and at most 1"):
        load(write_toml(tmp_path, propensity='"chance"'))
    as_density = write_toml(tmp_path, propensity='"chance"', propensity_is='"density"')
    if value == "1.5":
        assert load(as_density).propensity_is_density
    else:
        with pytest.raises(DataFileError, match=r"'chance' has .*: row 1"):
            load(as_density)


def test_files_with_different_columns_are_refused(tmp_path):
    write_csv(tmp_path, WHOLE, "a.csv")
    write_csv(tmp_path, WHOLE.replace("\n", ",1\n").replace("end,1", "end,obs_c"), "b.csv")
    with pytest.raises(
        DataFileError, match=r"b.csv: its observation columns differ .*a.csv: .* has obs_c"
    ):
        load(write_toml(tmp_path, files='["a.csv", "b.csv"]'))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_error_about_a_missing_toml_contains_a_draft(tmp_path, suffix):
    usual = {"who": "episode", "act": "action", "end": "done"}
    if suffix == "csv":
        header = ",".join(usual.get(name, name) for name in HEADER.split(","))
        path = write_csv(tmp_path, WHOLE.replace(HEADER, header))
    else:
        path = write_parquet(
            tmp_path, {usual.get(name, name): cells for name, cells in columns().items()}
        )
    with pytest.raises(DataFileError, match=r"log\.toml next to it must describe") as error:
        load(path)
    assert f"`fat2thin data template {path}` writes this draft" in str(error.value)
    starter = str(error.value).partition("\n\n")[2].replace("0.99", "0.9")
    (tmp_path / "log.toml").write_text(starter)
    assert load(path).sha256 == BY_HAND.sha256


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_box_of_the_draft_is_the_range_of_the_logged_doses(tmp_path, suffix):
    """Regression: the draft had a box of ±1, which allows negative doses."""
    cells = {
        "patient": ["A", "A", "B", "B"], "obs_level": [7.5, 6.5, 9.0, 9.5],
        "dose_a": [0.1, 0.7, 0.3, 1.0], "dose_b": [250, 40, 40, 90], "reward": [-1, -2, -3, -4],
    }  # fmt: skip
    if suffix == "csv":
        lines = [",".join(map(str, row)) for row in (cells, *zip(*cells.values(), strict=True))]
        path = write_csv(tmp_path, "\n".join(lines), "doses.csv")
    else:
        path = write_parquet(tmp_path, cells, "doses.parquet")
    with pytest.raises(DataFileError) as error:
        load(path)
    (tmp_path / "doses.toml").write_text(str(error.value).partition("\n\n")[2])
    dataset = load(path)
    assert (dataset.action_low, dataset.action_high) == ((0.1, 40.0), (1.0, 250.0))


@pytest.mark.parametrize("doses", [["much", "little"], ["", "1"], []])
def test_an_unknown_box_in_the_draft_must_be_filled_in(tmp_path, doses):
    rows = "".join(f"A,1.0,{dose},-1\n" for dose in doses)
    path = tmp_path / "doses.csv"
    path.write_text(f"patient,obs_level,dose,reward\n{rows}")
    with pytest.raises(DataFileError) as error:
        load(path)
    (tmp_path / "doses.toml").write_text(str(error.value).partition("\n\n")[2])
    with pytest.raises(
        DataFileError, match=r"action_low must be a finite number .*, not '\?'\. act"
    ):
        load(path)


def test_a_toml_of_the_same_name_that_describes_other_files_is_refused(tmp_path):
    write_csv(tmp_path)
    write_csv(tmp_path, name="other.csv")
    write_toml(tmp_path, files='["log.csv", "other.csv"]')
    with pytest.raises(DataFileError, match=r"log.toml next to it describes other files\. Load "):
        load(tmp_path / "log.csv")


@pytest.mark.parametrize("name", ["no.csv", "no.parquet", "no.toml"])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(DataFileError, match=f"{name}: there is no such file"):
        load(tmp_path / name)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
STEPS = st.tuples(FLOATS, FLOATS, st.floats(-1, 1, width=32), FLOATS)
EPISODES = st.lists(
    st.tuples(st.lists(STEPS, min_size=2, max_size=6), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=40)
@given(episodes=EPISODES, dialect=st.sampled_from(["unix", "excel"]))
def test_random_logs_are_read_as_by_a_plain_loop(tmp_path_factory, episodes, dialect):
    """The oracle pairs each step with the next observation, row by row."""
    folder = tmp_path_factory.mktemp("random")
    rows, expected, starts = [], [], []
    for label, (steps, ended) in enumerate(episodes):
        starts.append(len(expected))
        for step, (a, b, action, reward) in enumerate(steps):
            last = step == len(steps) - 1
            rows.append([f"e {label}", step, a, b, action, reward, last and ended])
            if not last:
                expected.append([a, b, action, reward, *steps[step + 1][:2], 1.0])
            elif ended:
                expected.append([a, b, action, reward, a, b, 0.0])
    names = HEADER.split(",")
    with (folder / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file, dialect=dialect)
        writer.writerows([names, *rows])
    table = {name: list(cells) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}
    write_parquet(folder, table, row_group_size=3)
    for file in ("log.csv", "log.parquet"):
        dataset = load(write_toml(folder, files=f'"{file}"'))
        found = np.column_stack(
            [
                dataset.observation,
                dataset.action,
                dataset.reward,
                dataset.next_observation,
                dataset.continuation,
            ]
        )
        np.testing.assert_array_equal(found, np.array(expected, np.float32))
        np.testing.assert_array_equal(dataset.episode_start, starts)


def mutated(content: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(len(damaged))
        match chance.randrange(4):
            case 0:
                damaged[place] ^= 1 << chance.randrange(8)
            case 1:
                del damaged[place : place + chance.randrange(1, 9)]
            case 2:
                damaged[place:place] = bytes(chance.choices(b'",;\n\r\x00\xff0e-', k=3))
            case 3:
                damaged[place:] = damaged[place : len(damaged) - 1]
    return bytes(damaged)


@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_damage_is_detected_or_harmless(tmp_path, name):
    write_csv(tmp_path)
    write_parquet(tmp_path, columns())
    content = (tmp_path / name).read_bytes()
    toml = write_toml(tmp_path, files=f'"{name}"')
    chance = random.Random(0)
    refused = 0
    for _ in range(300):
        (tmp_path / name).write_bytes(mutated(content, chance))
        try:
            assert isinstance(load(toml), Dataset)
        except DataFileError as error:
            assert str(tmp_path) in str(error)
            refused += 1
    assert refused > 150


MEASURE = """
import resource, sys
from pathlib import Path
from fat2thin.data.formats.table import read_table

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

few, many = map(Path, sys.argv[1:])
read_table(few)
before = peak()
raw, _ = read_table(many)
print(peak() - before, sum(getattr(part, "nbytes", 0) for part in raw))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of the peak differs elsewhere")
def test_reading_takes_little_more_memory_than_the_arrays(tmp_path):
    """At most 1.3 times the arrays, plus a constant for Arrow."""
    rng = np.random.default_rng(0)
    for name, rows in (("few", 1_000), ("many", 200_000)):
        table = {f"obs_{number}": rng.normal(size=rows) for number in range(17)}
        table |= {"act": rng.uniform(-1, 1, rows), "reward": rng.normal(size=rows)}
        table |= {"who": np.arange(rows) // 100, "not read": rng.normal(size=rows)}
        write_parquet(tmp_path, table, f"{name}.parquet")
        write_toml(tmp_path, f"{name}.toml", time=None, end=None)
    tomls = [str(tmp_path / f"{name}.toml") for name in ("few", "many")]
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, *tomls], capture_output=True, check=True, text=True
    )
    rise, arrays = map(int, result.stdout.split())
    assert arrays > 200_000 * 19 * 4
    assert rise < 1.3 * arrays + 16e6


def test_single_episode_files_with_the_same_label_are_separate_episodes(tmp_path):
    for number in (1, 2):
        rows = [f"1,{number}.{row},0,0,0.5,1,no" for row in range(3)]
        (tmp_path / f"{number}.csv").write_text(
            "\n".join(["who,obs_a,obs_b,time,act,reward,end", *rows])
        )
    path = write_toml(tmp_path, files='"*.csv"', time=None, end=None)
    dataset = data.load(str(path))
    assert dataset.episode_start.tolist() == [0, 2]
    np.testing.assert_allclose(dataset.next_observation[:, 0], [1.1, 1.2, 2.1, 2.2])


def test_a_nan_label_is_a_missing_value(tmp_path):
    columns = {"who": [1.0, 1.0, float("nan"), float("nan")], "obs_a": [1.0] * 4, "act": [0.0] * 4,
               "obs_b": [1.0] * 4, "reward": [0.0] * 4}  # fmt: skip
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    path = write_toml(tmp_path, time=None, end=None)
    with pytest.raises(DataFileError, match="'who' has no value"):
        data.load(str(path))


def test_more_rows_than_fit_in_memory_are_refused_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("fat2thin.data.formats.table.default_limit", lambda: 100)
    columns = {"who": [1] * 9, "obs_a": [1.0] * 9, "obs_b": [1.0] * 9, "act": [0.0] * 9,
               "reward": [0.0] * 9}  # fmt: skip
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    path = write_toml(tmp_path, time=None, end=None)
    with pytest.raises(DataFileError, match="9 rows, which would take 162 bytes; the limit is 100"):
        data.load(str(path))


def test_one_error_names_every_invalid_column(tmp_path):
    lines = ["x,0,,1,-1,1,no", "x,1,1.5,nan,0,2,no", "x,2,2.5,3,7,3,yes"]
    write_csv(tmp_path, "\n".join([HEADER, *lines]))
    with pytest.raises(DataFileError) as caught:
        load(write_toml(tmp_path))
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for line, column, row in zip(lines, ("obs_a", "obs_b", "act"), (1, 2, 3), strict=True):
        assert f"'{column}'" in line and f"row {row} (line {row + 1})" in line


def test_of_many_invalid_columns_only_the_first_are_named(tmp_path):
    names = [f"obs_{number}" for number in range(20)]
    header = ",".join(["who", "act", "reward", *names])
    write_csv(tmp_path, f"{header}\nx,0,0{',?' * 20}\n")
    with pytest.raises(DataFileError) as caught:
        load(write_toml(tmp_path, time=None, end=None))
    assert str(caught.value).splitlines()[8:] == ["And 12 more."]


def test_too_many_columns_are_refused_before_arrow_reads_them(tmp_path, monkeypatch):
    """Regression: a CSV file of a million columns crashed the process (std::bad_alloc)."""
    monkeypatch.setattr(table_files.arrow_csv, "open_csv", lambda *_: pytest.fail("it was read"))
    for count, message in [(2**15 + 1, "has 32,769 columns; the limit is 32,768"),
                           (10**6, "longer than 4,194,304 characters")]:  # fmt: skip
        names = ",".join(f"o{number}" for number in range(count))
        path = write_csv(tmp_path, f"{names}\n{','.join(['0'] * count)}\n")
        with pytest.raises(DataFileError, match=message):
            data.load(str(path))


@pytest.mark.parametrize("line", ["x" * 2**23, '"' + "x" * 2**23, '"\n",' * 2**22])
def test_a_very_long_header_is_not_read_to_its_end(tmp_path, line):
    path = write_csv(tmp_path, line)
    with pytest.raises(DataFileError, match=r"log\.csv: .*(longer|larger) than"):
        data.load(str(path))


def test_a_wide_parquet_file_is_opened_only_a_few_times(tmp_path, monkeypatch):
    """Opening takes longer the more columns there are; it used to be opened once per column."""
    names = [f"obs_{number}" for number in range(300)]
    columns = {"who": [0, 0], "act": [0.0, 0.0], "reward": [0.0, 0.0], "end": [False, True]}
    columns |= {name: [1.0, 2.0] for name in names}
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    toml = write_toml(tmp_path, time=None)
    opened = []
    real = table_files.arrow_parquet.ParquetFile
    monkeypatch.setattr(
        table_files.arrow_parquet,
        "ParquetFile",
        lambda *arguments, **options: opened.append(arguments) or real(*arguments, **options),
    )
    assert data.load(str(toml)).observation.shape == (2, 300)
    assert len(opened) < 10


def test_a_parquet_file_with_too_many_columns_in_its_footer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "_LONGEST_PARQUET_LIST", 100)
    columns = {f"o{number}": [1.0] for number in range(200)}
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    with pytest.raises(DataFileError, match="has more than 100 columns or row groups"):
        data.load(str(tmp_path / "log.parquet"))


PATIENTS = """who,sex,weight,next_sex,next_weight,dose,reward
A,f,60,f,61,0,1
A, f,61,f,62,2,2
B,m,80,m,81,0.5,3
"""
PATIENT_KEYS = {
    "time": None, "end": None, "reward": '"reward"', "action": '["dose"]', "action_low": "0",
    "action_high": "2", "observation": '["sex", "weight"]',
    "next_observation": '["next_sex", "next_weight"]',
}  # fmt: skip
ENCODED = 'sex = { categories = ["f", "m"], encode = "one-hot" }'


def patients(folder: Path, *lines: str, text: str = PATIENTS) -> Path:
    """Write the log of patients, and a TOML with these lines under [columns]."""
    write_csv(folder, text)
    toml = write_toml(folder, **PATIENT_KEYS)
    toml.write_text("\n".join([toml.read_text(), "[columns]", *lines]))
    return toml


def test_names_units_and_transforms_are_those_of_the_toml(tmp_path):
    lines = 'weight = { unit = "kg", scale = 0.01 }', 'dose = { unit = "mg", log = 0.1 }'
    dataset = load(patients(tmp_path, ENCODED, *lines))
    assert dataset.observation_columns == (
        Column("sex=f"), Column("sex=m"), Column("weight", "kg", Transform("scale", 0.01)),
    )  # fmt: skip
    assert dataset.action_columns == (Column("dose", "mg", Transform("log", 0.1)),)
    # Values stay in raw units.
    np.testing.assert_array_equal(dataset.observation, [[1, 0, 60], [1, 0, 61], [0, 1, 80]])
    np.testing.assert_array_equal(dataset.next_observation, [[1, 0, 61], [1, 0, 62], [0, 1, 81]])
    np.testing.assert_array_equal(dataset.action[:, 0], [0, 2, 0.5])
    seen = transformed(dataset)
    np.testing.assert_allclose(seen.action[:, 0], np.log([0.1, 2.1, 0.6]), rtol=1e-6)
    np.testing.assert_allclose(seen.observation[:, 2], [0.6, 0.61, 0.8], rtol=1e-6)


def test_ordinal_categories_are_numbered_in_their_order(tmp_path):
    dataset = load(patients(tmp_path, 'sex = { categories = ["m", "f"], encode = "ordinal" }'))
    np.testing.assert_array_equal(dataset.observation, [[1, 60], [1, 61], [0, 80]])
    assert [column.name for column in dataset.observation_columns] == ["sex", "weight"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_error_about_a_text_column_shows_the_line_that_encodes_it(tmp_path, suffix):
    toml = patients(tmp_path)
    if suffix == "parquet":
        text = PATIENTS.encode()
        table = arrow_csv.read_csv(pa.BufferReader(text.replace(b" f", b"f")))
        parquet.write_table(table, tmp_path / "log.parquet")
        (tmp_path / "log.csv").unlink()
    with pytest.raises(DataFileError, match=r"'sex' .* holds text such as 'f', 'm'\. To") as error:
        load(toml)
    line = str(error.value).partition("\n")[0].partition("under [columns]: ")[2]
    assert line == ENCODED
    toml.write_text(f"{toml.read_text()}\n{line}")
    assert load(toml).observation_size == 3


def test_text_where_only_numbers_are_allowed(tmp_path):
    toml = patients(tmp_path, ENCODED, text=PATIENTS.replace(",0.5,", ",low,"))
    with pytest.raises(DataFileError, match=r"'dose' has 'low', .* row 3 \(line 4\)\. Fill in"):
        load(toml)
    all_text = PATIENTS.replace(",1\n", ",a\n").replace(",2\n", ",b\n").replace(",3\n", ",b\n")
    toml = patients(tmp_path, ENCODED, text=all_text)
    with pytest.raises(DataFileError, match=r"'a', 'b'\. Write the reward as numbers\."):
        load(toml)


@pytest.mark.parametrize(
    ("lines", "old", "new", "message"),
    [
        (
            [ENCODED], "B,m", "B,d",
            r"log.csv: 'sex' has 'd', which is not in categories: row 3 \(line 4\)\. Add it to",
        ),
        ([ENCODED], ",m,81", ",d,81", r"'next_sex' has 'd', which is not in categories: row 3"),
        ([ENCODED], "B,m", "B,", r"'sex' has no value: row 3 \(line 4\)"),
        (
            [ENCODED, "weight = { log = -60 }"], ",62", ",62",
            r"log.csv: 'weight' has 60, but log.* needs more than 60: row 1 .* larger offset for",
        ),
        (
            [ENCODED, "weight = { log = -50 }"], ",81", ",40",
            r"'next_weight' has 40, but .* row 3 \(line 4\)\. Take a larger offset for 'weight' in",
        ),
        ([ENCODED, "dose = { log = 0 }"], "", "", "log.toml: action_low of 'dose' is 0, but log"),
    ],
)  # fmt: skip
def test_cells_that_do_not_fit_their_line_in_columns_are_refused(
    tmp_path, lines, old, new, message
):
    toml = patients(tmp_path, *lines, text=PATIENTS.replace(old, new))
    with pytest.raises(DataFileError, match=message):
        load(toml)


def frame_keys(**changes) -> dict:
    keys = {key: tomllib.loads(f"x = {value}")["x"] for key, value in TOML.items()}
    return {**keys, **changes}


def frames() -> list:
    """The log as a table of every kind that is installed."""
    made = [pa.table(columns())]
    for package in ("pandas", "polars"):
        with contextlib.suppress(ImportError):
            made.append(importlib.import_module(package).DataFrame(columns()))
    return made


@pytest.mark.parametrize("frame", frames(), ids=lambda frame: type(frame).__module__)
def test_frames_are_read_like_files(frame):
    dataset = Dataset.from_frame(frame, **frame_keys(columns={"act": {"unit": "mg"}}))
    assert dataset.sha256 == BY_HAND.sha256
    assert [column.label for column in dataset.observation_columns] == ["obs_a", "obs_b"]
    assert [column.label for column in dataset.action_columns] == ["act (mg)"]
    with pytest.raises(DataFileError, match=r"mine: 'act' has 1, outside .*: row 2 \(counted fr"):
        Dataset.from_frame(frame, name="mine", **frame_keys(action_high=np.float32(0.9)))
    text = r"'who' does not hold numbers\. It holds text such as 'x', 'y', 'z'\. To encode it, pass"
    with pytest.raises(DataFileError, match=text + r" columns=\{'who': \{'categories': \['x', "):
        Dataset.from_frame(frame, **frame_keys(observation=["who"]))


def test_dictionary_columns_of_a_frame_are_encoded():
    """Polars stores its categories like this."""
    codes = pa.array([0, 0, 1, 1, 0, 0, 1], pa.uint32())
    words = pa.DictionaryArray.from_arrays(codes, pa.array(["f", "m"], pa.string_view()))
    details = {"obs_a": {"categories": ("f", "m"), "encode": "ordinal"}}
    frame = pa.table({**columns(), "obs_a": words})
    dataset = Dataset.from_frame(frame, **frame_keys(columns=details))
    np.testing.assert_array_equal(dataset.observation[:, 0], [0, 0, 1, 1, 0, 1])
    with pytest.raises(DataFileError, match="'obs_a' does not hold numbers"):
        Dataset.from_frame(frame, **frame_keys())


@pytest.mark.parametrize(
    ("frame", "changes", "message"),
    [
        ([1, 2], {}, "frame: is a list, not a table. Pass a frame of pandas or polars"),
        (pa.table(columns()), {"files": "a.csv"}, "frame: files has no meaning for a frame"),
        (pa.table(columns()), {"rewards": "r"}, r"unknown key 'rewards' \(did you mean 'reward'"),
        (pa.table(columns()), {"reward": "r"}, "no column 'r', which the call gives as reward"),
        (pa.table(columns()), {"reward": None}, "frame: lacks reward"),
    ],
)
def test_invalid_frames_are_refused(frame, changes, message):
    with pytest.raises(DataFileError, match=message):
        Dataset.from_frame(frame, **frame_keys(**changes))
