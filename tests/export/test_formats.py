"""What is particular to a format: warnings and sanitizers, the ONNX checker, NumPy alone."""

import ast
import csv
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from export.cases import policy
from fat2thin.export import portable
from fat2thin.export.contents import answers_of, contents_of, synthetic_states
from fat2thin.export.formats import FORMATS, Unavailable, given
from fat2thin.policies.plain import plain_policy

MAIN = """#include <stdio.h>
#include "policy.h"

int main(void) {
  REAL observation[POLICY_OBSERVATIONS], uniform[POLICY_ACTIONS], last[POLICY_ACTIONS];
  ANSWER answer;
  while (fread(observation, sizeof observation, 1, stdin) == 1 &&
         fread(uniform, sizeof uniform, 1, stdin) == 1 &&
         fread(last, sizeof last, 1, stdin) == 1) {
    DECIDE(observation, uniform, POLICY_NEEDS_LAST ? last : NULL, &answer);
    double codes[2] = {answer.refer, answer.reason};
    fwrite(answer.action, sizeof answer.action, 1, stdout);
    fwrite(codes, sizeof codes, 1, stdout);
  }
  return 0;
}
"""
FLAGS = "-std=c99 -O0 -Wall -Wextra -Werror -pedantic -fsanitize=address,undefined"
FLAGS += ",float-cast-overflow -fno-sanitize-recover=all"


def contents(family="sparse", variant="limits"):
    return contents_of(plain_policy(policy(family, variant)))


@pytest.mark.parametrize(
    ("which", "real"),
    [(("sparse", "limits"), "float"), (("student", "ensemble"), "double"),
     (("gaussian", "transforms limits"), "float")], ids=str,
)  # fmt: skip
def test_c_has_no_warnings_and_no_undefined_behaviour(tmp_path, which, real):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    made, dtype = contents(*which), {"float": np.float32, "double": np.float64}[real]
    (tmp_path / "policy.h").write_bytes(FORMATS["c"].write(made, {})["policy.h"])
    names = {"REAL": real, "ANSWER": f"policy_answer_{real}", "DECIDE": f"policy_decide_{real}"}
    defines = "".join(f"#define {name} {value}\n" for name, value in names.items())
    (tmp_path / "main.c").write_text(defines + MAIN)
    command = [compiler, *FLAGS.split(), "-o", "run", "main.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    states = synthetic_states(made, 300)
    # Also numbers that no policy accepts as shares.
    states.uniform[-4:] = np.array([np.nan, np.inf, -1.0, 2.0])[:, None]
    last = np.zeros_like(states.uniform) if states.last is None else states.last
    table = np.concatenate([states.observation, states.uniform, last], axis=1).astype(dtype)
    found = subprocess.run([tmp_path / "run"], input=table.tobytes(), capture_output=True)
    assert found.returncode == 0, found.stderr.decode()
    size = np.dtype(dtype).itemsize * 2 + 16
    assert len(found.stdout) == 300 * size
    rows = np.frombuffer(found.stdout, np.uint8).reshape(300, size)
    codes = np.ascontiguousarray(rows[:, -16:]).view(np.float64)
    assert (codes[-4:, 1] == portable.INVALID).all()
    answers = answers_of(made, states, dtype)
    assert (codes[:, 1] == answers.reason).mean() > 0.98  # some are close to a threshold


def test_the_c_header_names_its_columns_and_does_not_allocate():
    text = FORMATS["c"].write(contents(), {"policy": "abc */ int x;"})["policy.h"].decode()
    assert "observation[1]: weight (kg)" in text and "policy abc * / int x;" in text
    assert not any(word in text for word in ("malloc", "calloc", "alloca", "#include <std"))
    assert text.count("#include") == 1


def test_onnx_passes_the_full_check_and_takes_any_number_of_rows():
    onnx = pytest.importorskip("onnx")
    made = contents("sparse", "ensemble limits")
    files = FORMATS["onnx"].write(made, {"policy": "abc"})
    model = onnx.load_from_string(files["policy.onnx"])
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 18)]
    assert {one.domain for one in model.graph.node} == {""}
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "rows"
    assert [one.name for one in model.graph.input] == ["observation", "uniform", "last"]
    assert {one.key: one.value for one in model.metadata_props} == {"policy": "abc"}
    states = synthetic_states(made, 100)
    whole = FORMATS["onnx"].run(made, files, states)
    for rows in (slice(0, 1), slice(0, 0), slice(10, 17)):
        part = type(states)(*(one[rows] for one in states))
        for one, other in zip(FORMATS["onnx"].run(made, files, part), whole, strict=True):
            np.testing.assert_allclose(one, other[rows], rtol=1e-5, atol=1e-6)


def test_stablehlo_is_read_by_its_ten_lines(tmp_path):
    made = contents("sparse", "plain")
    for name, data in FORMATS["stablehlo"].write(made, {}).items():
        (tmp_path / name).write_bytes(data)
    code = (tmp_path / "read_stablehlo.py").read_text()
    assert len([line for line in code.splitlines() if line and '"""' not in line]) <= 10
    states, namespace = (
        synthetic_states(made, 20),
        {"__file__": str(tmp_path / "read_stablehlo.py")},
    )
    exec(compile(code, "read_stablehlo.py", "exec"), namespace)
    found = namespace["policy"](*given(states).values())
    np.testing.assert_array_equal(found["reason"] > 0, answers_of(made, states).refer)


def test_the_numpy_file_imports_numpy_and_the_standard_library_alone():
    tree = ast.parse(Path(portable.__file__).read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported - {*sys.stdlib_module_names} == {"numpy"}


@pytest.fixture
def deployed(tmp_path):
    """A folder with policy.py and weights.npz alone."""
    made = contents()
    (tmp_path / "weights.npz").write_bytes(made.to_npz())
    (tmp_path / "policy.py").write_bytes(FORMATS["numpy"].write(made, {})["policy.py"])
    return tmp_path


def run_file(folder, table, *flags):
    (folder / "states.csv").write_text(table)
    command = [sys.executable, "-I", *flags, str(folder / "policy.py"), str(folder / "states.csv")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_numpy_command_decides_on_a_table(deployed):
    table = (
        "rate,severity,weight,last_dose,last_flow,uniform_dose,note\n"
        "0.1,1.5,1,0.5,0,0.5,a\n0.1,1.5,1,,,0.9,b\n0.1,,1,0.5,0,0.5,c\n0.1,x,1,0.5,0,0.5,d\n"
        "9,1.5,1,0.5,0,0.5,e\n0.1,1.5,1,inf,0,0.5,f\n"
    )
    found = run_file(deployed, table)
    assert found.returncode == 0 and not found.stderr
    head, *rows = [line.split(",") for line in found.stdout.splitlines()]
    names = "row refer reason reasons dose dose_centre dose_low dose_high"
    assert head[:8] == names.split()
    assert [row[1:4] for row in rows][2:4] == [["1", "16", "invalid input (severity)"]] * 2
    assert rows[5][2] == "16" and "limits forbid acting" in rows[4][3]
    made = contents().policy()
    states = np.array([[1.5, 1.0, 0.1]] * 2)
    expected = made(states, np.array([[0.5, 0.5], [0.9, 0.5]]), [[0.5, 0.0], [np.nan, np.nan]])
    for row, action, refer in zip(rows, expected.action, expected.refer, strict=False):
        assert row[1] == str(refer) and float(row[4]) == pytest.approx(action[0], rel=1e-6)
    # The fallback of the limits is the action of a referred state.
    assert rows[2][4] == "0.5" and rows[2][5] == ""


def test_a_missing_column_refers_every_row(deployed):
    found = run_file(deployed, "severity,weight,last_dose,last_flow\n1,1,0.5,0\n2,1,0.5,0\n")
    assert found.stderr == "missing columns: rate\n"
    assert [line.split(",")[1:3] for line in found.stdout.splitlines()[1:]] == [["1", "16"]] * 2
    found = run_file(deployed, "severity,weight,rate,last_dose\n1,1,0.1,0.5\n")
    assert found.stderr == "missing columns: last_flow\n"
    assert found.stdout.splitlines()[1].split(",")[1:3] == ["1", "16"]


HEADER = "severity,weight,rate,last_dose,last_flow\n"


@pytest.mark.parametrize("cell", ["abc", "nan", "NA", "inf", "1_0", "1e39", "0x1"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_cell_that_is_not_a_number_is_never_an_action(deployed, cell, place):
    """Only an empty cell is the first step of an episode, which has no limit on changes."""
    row = ["1.5", "1", "0.1", "0.5", "0"]
    row[place] = cell
    found = run_file(deployed, HEADER + ",".join(row) + "\n1.5,1,0.1,,\n")
    first, then = (line.split(",")[1:4] for line in found.stdout.splitlines()[1:])
    assert first == ["1", "16", f"invalid input ({HEADER.split(',')[place]})"]
    assert then[1] != "16"


def test_rows_keep_their_place_whatever_they_hold(deployed):
    """A comma too many would shift the numbers of a row into other columns."""
    good, wrong = "1.5,1,0.1,0.5,0\n", ["1,5,1,0.1,0.5,0\n", "1.5,1\n"]
    found = run_file(deployed, HEADER + good + wrong[0] + "\n" + wrong[1] + good)
    codes = [line[:3] for line in csv.reader(found.stdout.splitlines()[1:])]
    assert [row[0] for row in codes] == ["1", "2", "3", "4"]
    assert [row[2] == "16" for row in codes] == [False, True, True, False]
    assert [line.split(" has ")[0] for line in found.stderr.splitlines()] == ["row 2", "row 3"]


@pytest.mark.parametrize(
    "table",
    [
        "\ufeff" + HEADER + "1.5,1,0.1,0.5,0\n",
        "\n" + HEADER.replace("\n", "\r\n") + "1.5,1,0.1,0.5,0\r\n\r\n",
        '" severity",weight , "rate",last_dose,last_flow\n"1.5", 1 ,+.1,5e-1,0\n'.replace(
            ', "', ',"'
        ),
        'note,last_flow,rate,weight,severity,last_dose\n"a, b\nc",0,0.1,1,1.5,0.5\n',
    ],
    ids=["bom", "crlf", "spaces", "order"],
)
def test_tables_of_all_writers_are_read(deployed, table):
    found = run_file(deployed, table)
    expected = contents().policy()([[1.5, 1.0, 0.1]], last=[[0.5, 0.0]])
    (row,) = csv.DictReader(found.stdout.splitlines())
    assert not found.stderr and int(row["reason"]) == expected.reason[0]
    assert float(row["dose_low"]) == pytest.approx(expected.low[0, 0], rel=1e-6)


def test_a_table_without_rows_gives_none(deployed):
    assert run_file(deployed, HEADER).stdout.count("\n") == 1


def test_categories_may_be_one_column_of_texts(tmp_path):
    made = contents("sparse", "plain")
    for column, name in zip(made.settings["observations"], ("a=x", "a=y", "rate"), strict=True):
        column["name"] = name
    (tmp_path / "weights.npz").write_bytes(made.to_npz())
    (tmp_path / "policy.py").write_bytes(FORMATS["numpy"].write(made, {})["policy.py"])
    found = run_file(tmp_path, "rate,a\n0.1,x\n0.2, y\n0.1,z\n0.1,\n")
    reasons = [row["reason"] for row in csv.DictReader(found.stdout.splitlines())]
    expected = made.policy()([[1.0, 0.0, 0.1], [0.0, 1.0, 0.2]]).reason
    assert reasons == [*map(str, expected), "16", "16"] and not found.stderr


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (None, "No such file"),
        ("", "it is empty"),
        (HEADER.replace("weight", "rate"), "'rate' is there twice: rename one of them"),
        (HEADER + '"1.5,1,0.1,0.5,0\n1.5,1,0.1,0.5,0\n', "unexpected end of data"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(deployed, table, why):
    if table is None:
        command = [sys.executable, str(deployed / "policy.py"), str(deployed / "none.csv")]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        found = run_file(deployed, table)
    assert found.returncode == 1 and len(found.stderr.splitlines()) == 1 and not found.stdout
    assert ".csv cannot be read" in found.stderr and why in found.stderr


def test_without_a_share_the_action_is_the_centre_also_of_a_truncated_law():
    made = contents("squashed", "limits").policy()
    states = synthetic_states(contents("squashed", "limits"), 200)
    found = made(states.observation, last=states.last)
    acts = found.refer == 0
    np.testing.assert_array_equal(found.action[acts], found.centre[acts])
    median = made(states.observation, 0.5, states.last)
    assert (np.abs(median.action - median.centre)[acts] > 0.01).any()
    assert (found.action[~acts] == np.float32([0.5, 0.0])).all()  # the fallback of the limits


def test_a_wrong_shape_and_a_missing_last_action_are_named():
    made = contents().policy()
    with pytest.raises(
        ValueError, match=r"one column each for severity, weight, rate; got \(1, 2\)"
    ):
        made([[1.0, 2.0]])
    with pytest.raises(ValueError, match="limits depend on the last action"):
        made([[1.0, 2.0, 3.0]])


def test_a_program_that_this_version_did_not_write_is_not_run():
    made = contents("sparse", "plain")
    states = synthetic_states(made, 10)
    for name in ("numpy", "c"):
        files = FORMATS[name].write(made, {"policy": "x"})
        (file,) = files
        changed = {file: files[file] + b"\n#error\n"}
        with pytest.raises(Unavailable, match="is not the one of this version"):
            FORMATS[name].run(made, changed, states)
