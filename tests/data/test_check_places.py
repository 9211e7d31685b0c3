"""Checks and load errors name the same places of a file; repeated rows are found."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from fat2thin import data
from fat2thin.data import DataFileError
from fat2thin.data.checks import check
from fat2thin.data.operations import subsample

HEADER = ["who", "time", "obs", "dose", "reward", "end", "note"]
TOML = """
episode = "who"
observation = ["obs"]
action = ["dose"]
reward = "reward"
end = "end"
action_low = 0
action_high = 5
discount = 0.9
"""
LENGTHS = (30, 26, 40, 24)
ROWS = sum(LENGTHS)


def rows_of(seed: int = 0) -> list[list]:
    """Four patients; only the last one truly ends, so the last row of the others is dropped."""
    draw = np.random.default_rng(seed)
    return [
        [f"p{who}", step, *draw.uniform(0.2, 4.8, 2).round(4), round(draw.normal(), 4),
         "yes" if who == 3 and step == length - 1 else "no", "fine"]
        for who, length in enumerate(LENGTHS) for step in range(length)
    ]  # fmt: skip


def write_csv(path, rows, *, blank=(), broken=()):
    """Write a table; a blank line above the rows in `blank`, a line break inside those of `broken`.

    Return the line on which each row ends.
    """
    text, lines = ",".join(HEADER) + "\n", []
    for number, row in enumerate(rows):
        cells = [*row[:-1], '"two\nlines"' if number in broken else row[-1]]
        text += "\n" * (number in blank) + ",".join(map(str, cells)) + "\n"
        lines.append(text.count("\n"))
    path.write_text(text)
    return lines


def source(tmp_path, rows, toml=TOML, **layout):
    lines = write_csv(tmp_path / "log.csv", rows, **layout)
    (tmp_path / "log.toml").write_text(toml)
    return str(tmp_path / "log.csv"), lines


def places(found) -> list[str]:
    return re.findall(r"row \d+ \(line \d+\)", str(found))


def doubled(rows: list[list], *numbers: int) -> tuple[list[list], list[int]]:
    """Return the table with copies below these rows, and the numbers of the copies."""
    out, copies = [], []
    for number, row in enumerate(rows):
        out.append(row)
        if number in numbers:
            copies.append(len(out))
            out.append([*row])
    return out, copies


def test_a_clean_table_has_no_findings(tmp_path):
    path, _ = source(tmp_path, rows_of())
    assert check(data.load(path)).codes == ()


def test_checks_and_load_errors_name_the_same_lines(tmp_path):
    """Blank lines, cells of two lines, and dropped rows above the rows in question."""
    layout = {"blank": (3, 40, 90), "broken": (5, 33, 70, 100)}
    rows, odd = rows_of(), (31, 58, 97, 110)
    for number in odd:
        rows[number][4] = 1e6
    path, lines = source(tmp_path, rows, **layout)
    (finding,) = check(data.load(path)).warnings
    assert (finding.code, finding.rows) == ("reward_scale", odd)
    assert lines[31] != 33 and lines[110] != 112
    assert places(finding) == [f"row {number + 1} (line {lines[number]})" for number in odd]
    for number in odd:
        wrong = [[*row] for row in rows]
        wrong[number][4] = "much"
        with pytest.raises(DataFileError) as error:
            data.load(source(tmp_path, wrong, **layout)[0])
        assert places(error.value) == [f"row {number + 1} (line {lines[number]})"]


def test_parquet_rows_count_from_1_as_in_load_errors(tmp_path):
    rows = rows_of()
    rows[57][4] = rows[100][4] = 1e6
    columns = dict(zip(HEADER, zip(*rows, strict=True), strict=True))
    table = pa.table({name: list(cells) for name, cells in columns.items()})
    parquet.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.toml").write_text(TOML)
    (finding,) = check(data.load(str(tmp_path / "log.parquet"))).warnings
    assert finding.places == ("row 58", "row 101")


def test_several_files_are_named(tmp_path):
    first, second = rows_of(), rows_of(1)
    first[57][4] = second[3][4] = second[119][4] = 1e6
    write_csv(tmp_path / "a.csv", first)
    lines = write_csv(tmp_path / "b.csv", second, blank=(2,))
    (tmp_path / "log.toml").write_text(f'files = ["a.csv", "b.csv"]\n{TOML}')
    dataset = data.load(str(tmp_path / "log.toml"))
    expected = ("a.csv row 58 (line 59)", f"b.csv row 4 (line {lines[3]})",
                f"b.csv row 120 (line {lines[119]})")  # fmt: skip
    assert check(dataset).warnings[0].places == expected
    (tmp_path / "b.csv").unlink()
    assert check(dataset).warnings[0].places[1] == "b.csv row 4"


def test_rows_of_arrays_count_from_0_as_in_load_errors(tmp_path):
    """The last row of a cut episode is dropped, and rows below it keep their numbers."""
    rows = rows_of()
    arrays = {
        "observation": np.array([row[2:3] for row in rows]),
        "action": np.array([row[3:4] for row in rows]),
        "reward": np.array([row[4] for row in rows]),
        "terminal": np.arange(ROWS) == ROWS - 1,
        "cut": np.isin(np.arange(ROWS), np.cumsum(LENGTHS) - 1),
    }
    box = {"action_low": np.array([0.0]), "action_high": np.array([5.0])}
    path = tmp_path / "log.npz"
    arrays["reward"][97] = 1e6
    np.savez(path, **arrays, **box)
    report = check(data.load(str(path)))
    assert [(one.code, one.rows) for one in report] == [("reward_scale", (97,))]
    assert "(row 97; counted from 0)" in str(report)
    arrays["reward"][97] = np.nan
    np.savez(path, **arrays, **box)
    with pytest.raises(DataFileError, match="row 97, counted from 0"):
        data.load(str(path))


def test_a_part_of_a_table_keeps_its_lines(tmp_path):
    rows = rows_of()
    for number in range(ROWS):
        rows[number][4] = 1e6 if number % 24 == 3 else rows[number][4]
    path, lines = source(tmp_path, rows)
    part = subsample(data.load(path), episodes=2, seed=1)
    finding = next(one for one in check(part) if one.code == "reward_scale")
    assert [part.reward[part.reward > 1e5].size] == [finding.count]
    kept = {f"row {number + 1} (line {lines[number]})" for number in range(3, ROWS, 24)}
    assert finding.places and {*finding.places} < kept


def test_adjacent_copies_are_counted_below_the_threshold(tmp_path):
    """Copies inside episodes, of a first row, of a dropped last row, and of a true end."""
    rows, copies = doubled(rows_of(), 4, 30, 29, 70)
    path, lines = source(tmp_path, rows, blank=(2,))
    dataset = data.load(path)
    (finding,) = check(dataset).warnings
    assert (finding.code, finding.count, finding.rows) == ("repeats_above", 4, tuple(copies))
    assert places(finding) == [f"row {number + 1} (line {lines[number]})" for number in copies]
    assert "repeat those of the row above in 4 of " in str(finding)


def test_45_copies_in_2833_rows_are_found(tmp_path):
    draw = np.random.default_rng(1)
    rows = [[f"p{step // 41}", step % 41, *draw.uniform(0.2, 4.8, 2), draw.normal(), "no", ""]
            for step in range(2788)]  # fmt: skip
    rows, copies = doubled(rows, *draw.choice(2788, 45, replace=False).tolist())
    assert len(rows) == 2833
    path, _ = source(tmp_path, rows)
    (finding,) = [one for one in check(data.load(path)) if one.code == "repeats_above"]
    assert (finding.count, finding.rows) == (45, tuple(copies[:5]))


def test_equal_first_rows_of_two_episodes_are_not_copies(tmp_path):
    rows = rows_of()
    rows[30][2:5] = rows[29][2:5]
    assert check(data.load(source(tmp_path, rows)[0])).codes == ()


def test_logged_steps_on_which_nothing_changes_are_not_copies(tmp_path):
    """With logged next observations, an unchanged state explains equal rows."""
    dataset = data.load("treatment/cubic@10")
    arrays = {name: getattr(dataset, name).copy() for name in dataset.row_arrays}
    for name in ("observation", "action", "reward"):
        arrays[name][5] = arrays[name][4]
    arrays["next_observation"][4] = arrays["observation"][5]
    box = {"action_low": np.array(dataset.action_low), "action_high": np.array(dataset.action_high)}
    marks = {"terminal": np.zeros(dataset.rows), "episode_start": dataset.episode_start}
    arrays.pop("continuation")
    path = tmp_path / "log.npz"
    np.savez(path, **arrays, **marks, **box)
    assert "repeats_above" not in check(data.load(str(path))).codes
    arrays["next_observation"][4] = arrays["next_observation"][5]
    np.savez(path, **arrays, **marks, **box)
    assert "repeats_above" in check(data.load(str(path))).codes


WITH_TIME = f'time = "time"\n{TOML}'


def test_repeated_times_are_duplicates_and_not_unsorted(tmp_path):
    rows, copies = doubled(rows_of(), 4, 50, 70, 71, 110)
    path, lines = source(tmp_path, rows, WITH_TIME, blank=(40,))
    with pytest.raises(DataFileError) as error:
        data.load(path)
    text = str(error.value)
    assert "'time' 5 rows repeat the time of the row above" in text and "Sort" not in text
    assert "Drop the duplicates" in text and " and more." in text
    assert places(text) == [f"row {number + 1} (line {lines[number]})" for number in copies[:3]]


def test_a_time_that_falls_keeps_the_sorting_advice(tmp_path):
    rows, _ = doubled(rows_of(), 4)
    rows[60], rows[61] = rows[61], rows[60]
    with pytest.raises(DataFileError, match=r"does not increase .*row 62 \(line 63\).*Sort the"):
        data.load(source(tmp_path, rows, WITH_TIME)[0])


def test_repeats_are_counted_over_batches_and_per_file(tmp_path, monkeypatch):
    monkeypatch.setattr("fat2thin.data.formats.table_files._CSV_BLOCK_BYTES", 400)
    monkeypatch.setattr("fat2thin.data.formats.table_files._LONGEST_CELL", 1)
    write_csv(tmp_path / "a.csv", rows_of())
    rows, copies = doubled(rows_of(1), *range(10, 110, 20))
    write_csv(tmp_path / "b.csv", rows)
    (tmp_path / "log.toml").write_text(f'files = ["a.csv", "b.csv"]\n{WITH_TIME}')
    with pytest.raises(DataFileError, match=r"b\.csv: 'time' 5 rows repeat") as error:
        data.load(str(tmp_path / "log.toml"))
    assert places(error.value)[0] == f"row {copies[0] + 1} (line {copies[0] + 2})"
