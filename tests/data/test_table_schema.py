"""The TOML of a table: keys, errors, and the draft for a table without one."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from fat2thin.columns import Transform
from fat2thin.data import DataFileError
from fat2thin.data.formats.table_columns import ColumnDetails
from fat2thin.data.formats.table_schema import (
    KEYS,
    TableSchema,
    read_schema,
    starter,
)
from fat2thin.data.operations import Box

ROOT = Path(__file__).parents[2]
FULL = """
files = ["a.csv", "more"]
episode = "patient"
time = "hour"
observation = ["age", "obs_*"]
action = "dose"
reward = "benefit"
end = "died"
cut = "left"
next_observation = ["age", "next_*"]
propensity = "chance"
propensity_is = "density"
action_low = 0
action_high = [2.5]
discount = 1
[columns]
age = { unit = "years" }
dose = { unit = "mg", log = 0.5 }
sex = { categories = ["f", "m"], encode = "one-hot" }
"""
SHORT = """
episode = "patient"
observation = ["age"]
action = ["dose"]
reward = "benefit"
action_low = -1
action_high = 1
discount = 0.5
"""


def read(folder: Path, text: str) -> TableSchema:
    path = folder / "log.toml"
    path.write_text(text)
    return read_schema(path)


def test_every_key_is_read(tmp_path):
    assert read(tmp_path, FULL) == TableSchema(
        path=tmp_path / "log.toml",
        files=("a.csv", "more"),
        episode="patient",
        time="hour",
        observation=("age", "obs_*"),
        action=("dose",),
        reward="benefit",
        end="died",
        cut="left",
        next_observation=("age", "next_*"),
        propensity="chance",
        propensity_is="density",
        action_low=0.0,
        action_high=(2.5,),
        discount=1.0,
        columns={
            "age": ColumnDetails("years"),
            "dose": ColumnDetails("mg", Transform("log", 0.5)),
            "sex": ColumnDetails(categories=("f", "m"), one_hot=True),
        },
    )
    assert set(tomllib.loads(FULL)) == set(KEYS)
    assert {field.name for field in dataclasses.fields(TableSchema)} == {"path", *KEYS}


def test_the_documentation_explains_every_key():
    page = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert explained == list(KEYS)


def test_columns_are_in_the_order_of_the_toml_then_of_the_file(tmp_path):
    schema = read(tmp_path, FULL.replace("sex =", "obs_a ="))
    present = ["obs_b", "next_b", "obs_a", "next_a", "age", "patient", "hour", "dose", "benefit",
               "died", "left", "chance", "obsolete"]  # fmt: skip
    columns = schema.find_columns(present, Path("a.csv"))
    assert columns["observation"] == ("age", "obs_b", "obs_a")
    assert columns["next_observation"] == ("age", "next_b", "next_a")
    assert columns["reward"] == ("benefit",)


@pytest.mark.parametrize(
    ("low", "high", "box"),
    [
        ("-1", "2", Box((-1.0, -1.0), (2.0, 2.0), 0.5)),
        ("[-1, 0]", "2", Box((-1.0, 0.0), (2.0, 2.0), 0.5)),
        ("[-1, 0]", "[1, 0.5]", Box((-1.0, 0.0), (1.0, 0.5), 0.5)),
    ],
)
def test_one_bound_applies_to_all_actions(tmp_path, low, high, box):
    text = SHORT.replace("action_low = -1", f"action_low = {low}")
    schema = read(tmp_path, text.replace("action_high = 1", f"action_high = {high}"))
    assert schema.box(("a", "b")) == box


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ("1", "1", r"action_low of 'a' is 1, not below action_high 1\. Write the lowest"),
        ("[-1, 3]", "2", "action_low of 'b' is 3, not below action_high 2"),
        ("[-1, -1, -1]", "1", "action_low has 3 numbers for 2 actions"),
    ],
)
def test_invalid_boxes_are_refused(tmp_path, low, high, message):
    text = SHORT.replace("action_low = -1", f"action_low = {low}")
    schema = read(tmp_path, text.replace("action_high = 1", f"action_high = {high}"))
    with pytest.raises(DataFileError, match=f"log.toml: {message}"):
        schema.box(("a", "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SHORT.replace('"age"', '"age", ""'),
            "observation has an empty name. Give every column that is used a name in the header",
        ),
        (
            SHORT + 'rewrad = "r"',
            r"unknown key 'rewrad' \(did you mean 'reward'\?\)\. The keys are files",
        ),
        (SHORT + 'done = "r"', r"unknown key 'done' \(did you mean 'end'\?\)"),
        (SHORT + 'time_limit = "r"', r"unknown key 'time_limit' \(did you mean 'cut'\?\)"),
        (SHORT + 'xyz = "r"', r"unknown key 'xyz'\. The keys are files, episode, .*, columns\."),
        (SHORT.replace("reward", "# "), r"lacks reward\. reward: the column of the reward"),
        (SHORT.replace("discount", "# "), r"lacks discount\. discount: the discount factor"),
        (SHORT.replace("episode", "# "), r"lacks episode\. episode: the column .* end or cut"),
        ("", "lacks episode, observation, action, reward, action_low, action_high, discount"),
        (SHORT + "time = 3", r"time must be a column name, not 3\. time: a column of"),
        (SHORT + 'time = ""', "time must be a column name, not ''"),
        (SHORT + 'time = ["a", "b"]', "time must be a column name"),
        (SHORT + "files = []", r"files must be a name or a list of names, not \[\]"),
        (SHORT.replace('["age"]', '["age", 3]'), "observation must be a list of column names"),
        (SHORT.replace("0.5", "1.5"), r"discount must be a number from 0 to 1, not 1\.5"),
        (SHORT.replace("0.5", "nan"), "discount must be a number from 0 to 1, not nan"),
        (SHORT.replace("0.5", "true"), "discount must be a number from 0 to 1, not True"),
        (SHORT.replace("= -1", "= -inf"), "action_low must be a finite number or a list"),
        (SHORT.replace("= -1", '= [0, "a"]'), "action_low must be a finite number or a list"),
        (SHORT.replace("= -1", f"= -1{'0' * 400}"), "action_low must be a finite number"),
        ("reward = oops", r"cannot be read as TOML: .*line 1.*\. Write lines such as key = "),
        (SHORT + SHORT, "cannot be read as TOML: "),
    ],
)
def test_invalid_tomls_are_refused(tmp_path, text, message):
    with pytest.raises(DataFileError, match=f"log.toml: {message}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("columns = 3", r"columns must be a table with one line per column\. Write lines such as"),
        ("[columns]\ndose = 3", r"'dose' in columns must be a table .* The keys .* unit, log, sc"),
        ("[columns]\ndose = {}", r"'dose' in columns must be a table with at least one key"),
        ("[columns]\ndose = { uint = 'mg' }", r"the unknown key 'uint' \(did you mean 'unit'\?\)"),
        (
            "[columns]\ndose = { unit = '' }",
            r"'dose' in columns has an invalid unit\. unit: a text",
        ),
        (f"[columns]\ndose = {{ unit = '{'m' * 101}' }}", "has an invalid unit"),
        ("[columns]\ndose = { scale = 1e39 }", "has an invalid scale"),
        ("[columns]\ndose = { log = nan }", r"has an invalid log\. log: a number: .* log\(value"),
        ("[columns]\ndose = { log = true }", "has an invalid log"),
        ("[columns]\ndose = { scale = 0 }", r"has an invalid scale\. scale: a number above 0"),
        ("[columns]\ndose = { log = 1, scale = 2 }", "has both log and scale. Keep one"),
        ("[columns]\nage = { encode = 'ordinal' }", "has encode without categories. categories: a"),
        ("[columns]\nage = { categories = ['a'] }", "has categories without encode. encode: one-h"),
        ("[columns]\nage = { categories = ['a', 'a'], encode = 'ordinal' }", "invalid categories"),
        ("[columns]\nage = { categories = [' a'], encode = 'ordinal' }", "invalid categories"),
        ("[columns]\nage = { categories = ['a'], encode = 'hot' }", "invalid encode"),
        (
            "[columns]\nage = { categories = ['a'], encode = 'ordinal', unit = 'x' }",
            "has categories and unit. A category has no unit",
        ),
    ],
)
def test_invalid_lines_of_columns_are_refused(tmp_path, line, message):
    with pytest.raises(DataFileError, match=f"log.toml: .*{message}"):
        read(tmp_path, SHORT + line)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "does",
            r"names 'does', which is no observation or action \(did you mean 'dose'\?\)\. Obs",
        ),
        ("note", r"names 'note', which is no observation or action\. .* columns are age, dose\."),
        ("benefit", "names 'benefit', which is the reward. .* reward_scale scales rewards"),
        ("patient", "names 'patient', which is the episode"),
        (
            "then",
            "names 'then', which is the next_observation. Remove it: the line of 'age' counts",
        ),
    ],
)
def test_only_observations_and_actions_have_a_line_in_columns(tmp_path, name, message):
    text = f'{SHORT}next_observation = "then"\n[columns]\n{name} = {{ unit = "mg" }}'
    with pytest.raises(DataFileError, match=f"log.toml: columns {message}"):
        read(tmp_path, text).find_columns((*PRESENT, "then", "note"), Path("a.csv"))


def test_actions_cannot_be_categories(tmp_path):
    text = f"{SHORT}[columns]\ndose = {{ categories = ['low'], encode = 'ordinal' }}"
    with pytest.raises(
        DataFileError, match=r"categories for 'dose', which is an action\. An action"
    ):
        read(tmp_path, text).find_columns(PRESENT, Path("a.csv"))


def test_a_box_end_that_the_logarithm_does_not_allow_is_refused(tmp_path):
    schema = read(tmp_path, f"{SHORT}[columns]\ndose = {{ log = 1 }}")
    message = (
        r"log.toml: action_low of 'dose' is -1, but log\(value \+ 1\) needs more than -1\. Take"
    )
    with pytest.raises(DataFileError, match=message):
        schema.box(("dose",))
    assert schema.box(("other",)).low == (-1.0,)


def test_a_toml_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "log.toml").write_bytes(SHORT.replace("age", "âge").encode("latin-1"))
    with pytest.raises(DataFileError, match="cannot be read as TOML"):
        read_schema(tmp_path / "log.toml")


PRESENT = ("patient", "age", "dose", "benefit")


@pytest.mark.parametrize(
    ("text", "present", "message"),
    [
        (SHORT.replace('"age"', '"Age"'), PRESENT, r"no column 'Age', .* \(did you mean 'age'\?\)"),
        (SHORT.replace('"age"', '"age", "a*"'), PRESENT, "observation names the column 'age' 2"),
        (SHORT, (*PRESENT, "age"), "a.csv: 'age' is the name of 2 columns"),
        (SHORT, [f"c{number}" for number in range(40)], "Its columns are c0, .*, c11 and 28 more"),
        (
            SHORT.replace('"age"', '"s*"') + 'next_observation = "next_*"',
            (*PRESENT, "s1", "s2", "next_s1"),
            r"observation \(s1, s2\) and next_observation \(next_s1\) have 2 and 1 columns",
        ),
        (
            SHORT.replace('"age"', '"s*"') + 'next_observation = "next_*"',
            (*PRESENT, "s1", "s2", "next_s2", "next_s1"),
            "have different orders. List the names in log.toml",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, text, present, message):
    schema = read(tmp_path, text)
    with pytest.raises(DataFileError, match=message):
        schema.find_columns(present, Path("a.csv"))


def test_listed_names_may_have_any_order(tmp_path):
    schema = read(
        tmp_path, SHORT.replace('"age"', '"s1", "s2"') + 'next_observation = ["n2", "n1"]'
    )
    columns = schema.find_columns((*PRESENT, "s1", "s2", "n1", "n2"), Path("a.csv"))
    assert columns["next_observation"] == ("n2", "n1")


def test_unused_columns_may_have_duplicate_names(tmp_path):
    schema = read(tmp_path, SHORT)
    assert schema.find_columns((*PRESENT, "note", "note", "", ""), Path("a.csv"))["action"] == (
        "dose",
    )


@pytest.fixture
def folder(tmp_path):
    for name in ("b.csv", "a.csv", "c.parquet", "read me.txt", "log.csv", "x[1].csv"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep").mkdir()
    for name in ("2.csv", "1.PARQUET", "note.txt"):
        (tmp_path / "deep" / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ("", ["log.csv"]),
        ('files = "b.csv"', ["b.csv"]),
        ('files = ["b.csv", "a.csv"]', ["b.csv", "a.csv"]),
        ('files = "[a-c].*"', ["a.csv", "b.csv", "c.parquet"]),
        ('files = ["deep", "a.csv"]', ["deep/1.PARQUET", "deep/2.csv", "a.csv"]),
        ('files = "deep/*.csv"', ["deep/2.csv"]),
        ('files = "x[1].csv"', ["x[1].csv"]),
    ],
)
def test_files_are_found(folder, files, found):
    paths = read(folder, SHORT + files).find_files()
    assert paths == tuple(folder / name for name in found)


def test_files_can_be_absolute_paths(folder):
    files = f'files = "{(folder / "a.csv").as_posix()}"'
    (folder / "elsewhere").mkdir()
    assert read(folder / "elsewhere", SHORT + files).find_files() == (folder / "a.csv",)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            'files = "aa.csv"',
            r"files names aa.csv, which does not exist \(did you mean 'a.csv'",
        ),
        ('files = "*.json"', r"files names \*.json, which does not exist"),
        ('files = "empty"', r"files names empty, which contains no tables\. Tables are .csv or"),
        ('files = ["a.csv", "[a-c].*"]', "files names .*a.csv 2 times"),
        ('files = "read me.txt"', "files names .*read me.txt. Tables are .csv or .parquet files"),
    ],
)
def test_invalid_files_are_refused(folder, files, message):
    with pytest.raises(DataFileError, match=f"log.toml: {message}"):
        read(folder, SHORT + files).find_files()


def test_without_files_there_must_be_one_table_of_the_same_name(folder):
    (folder / "log.parquet").touch()
    with pytest.raises(
        DataFileError, match=r"has log.csv and log.parquet next to it\. List the tables"
    ):
        read(folder, SHORT).find_files()
    for name in ("log.csv", "log.parquet"):
        (folder / name).unlink()
    with pytest.raises(DataFileError, match="has no table of the same name next to it"):
        read(folder, SHORT).find_files()


@pytest.mark.parametrize(
    ("columns", "guessed"),
    [
        (
            ["Episode", "step", "obs_a", "obs_b", "action", "reward", "done", "timeout"],
            {"episode": "Episode", "time": "step", "observation": ["obs_a", "obs_b"],
             "action": ["action"], "reward": "reward", "end": "done", "cut": "timeout"},
        ),
        (
            [*(f"obs_{i}" for i in range(20)), *(f"next_obs_{i}" for i in range(20)), "act_1"],
            {"observation": ["obs_*"], "next_observation": ["next_obs_*"], "action": ["act_1"],
             "reward": "?"},
        ),
        (
            [*(f"obs{i}" for i in range(10, 20)), "observer"],
            {"observation": ["obs*"], "action": ["?"], "reward": "?"},
        ),
        (
            [*(f"state_{i}" for i in range(9)), "stature"],
            {"observation": ["state_*"], "action": ["?"], "reward": "?"},
        ),
        (["a", 'b"\\', "c\x7f"], {"observation": ["?"], "action": ["?"], "reward": "?"}),
    ],
)  # fmt: skip
def test_the_draft_of_a_toml(columns, guessed):
    asked = []
    text = starter(Path("somewhere/log.csv"), columns, asked.append)
    box = {"action_low": "?", "action_high": "?", "discount": 0.99}
    guessed = {"episode": "?", **guessed}
    assert tomllib.loads(text) == {"files": ["log.csv"], **guessed, **box}
    # Only columns guessed to be actions are read.
    assert asked == ([] if guessed["action"] == ["?"] else [guessed["action"]])
    observed = starter(Path("somewhere/log.csv"), columns, lambda names: ([0.0], [1.5]))
    if asked:
        box |= {"action_low": [0.0], "action_high": [1.5]}
        assert "action_high = [1.5]  # observed in the log: replace by the real limit" in observed
    assert tomllib.loads(observed) == {"files": ["log.csv"], **guessed, **box}


def test_columns_without_a_guess_are_listed():
    text = starter(Path("log.csv"), ["age", "reward"], lambda names: None)
    assert text.endswith('# not used yet: ["age"]\n')


@pytest.mark.parametrize("part", ["a", '"a b"', "'a'", "a "])
@pytest.mark.parametrize("line", ["{} = 1", "[{}]", "[[{}]]", "x = {{{} = 1}}"])
def test_a_key_with_very_many_parts_is_refused_before_parsing(tmp_path, monkeypatch, part, line):
    """tomllib took 112 seconds for 200,000 parts."""
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(DataFileError, match=r"log\.toml: .* more than 200 dots"):
        read(tmp_path, SHORT + line.format(".".join([part] * 100_000)))


def test_dots_in_values_are_not_keys(tmp_path):
    names = [f"{number}.{number}.csv" for number in range(100)]
    text = f"files = {names}\naction_low = [{', '.join(['-1.5'] * 100)}]\n"
    text += (
        "# a. b. c. d. e. f. g. h. i. j. k. l. m. n. o. and so on ............................\n"
    )
    rest = "\n".join(line for line in SHORT.splitlines() if "action_low" not in line)
    assert read(tmp_path, text + rest).files == tuple(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# " + "x" * 2**20, "has more than 1,048,576 bytes"),
        ("x = " + "[" * 100_000, "cannot be read as TOML: maximum recursion depth"),
        ("x = " + "{a=" * 100_000, "cannot be read as TOML: maximum recursion depth"),
        ("action_low = " + "9" * 10_000, "cannot be read as TOML"),
        (
            "action_low = 0x" + "f" * 10_000 + SHORT.replace("action_low = -1", ""),
            "thousands of digits",
        ),
        ("k" * 100_000 + " = 1", "unknown key 'kkk"),
    ],
)
def test_an_absurdly_large_toml_gives_a_short_error(tmp_path, text, message):
    with pytest.raises(DataFileError, match=message) as refused:
        read(tmp_path, text)
    assert str(tmp_path / "log.toml") in str(refused.value) and len(str(refused.value)) < 1000


def test_the_draft_escapes_terminal_control_characters():
    names = ["reward", "a\x1b[2J\nb", "\u202ex", "größe"]
    text = starter(Path("x\x9b.csv"), names, lambda names: None)
    assert text.replace("\n", "").isprintable() and "größe" in text
    assert tomllib.loads(text)["files"] == ["x\x9b.csv"]
