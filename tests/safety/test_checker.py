"""The independent checker accepts what the prover proves, and nothing that was changed."""

import ast
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import random_policies as made
from fat2thin import safety
from fat2thin.cli.main import main
from fat2thin.safety import checker


def certificate(tmp_path, case=None, size=0.5):
    policy = made.policy_of(3, **(case or {"rules": "linear", "sharpness": 1.0}))
    box = made.box_of(np.random.default_rng(1), policy, size)
    path = tmp_path / "certificate.json"
    safety.save_certificate(safety.certify(policy, box, seconds=3.0, gap=0.005), path)
    return path


def results(path):
    found = safety.verify_certificate(path)
    return {check.name: check.result for check in found.checks}, found


def changed(path, change):
    """Change the JSON and the proof, with hashes of the files that fit."""
    values, proof = json.loads(path.read_text()), path.with_name(path.name + ".proof")
    arrays = safetensors.numpy.load(proof.read_bytes())
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(values, arrays)
    proof.write_bytes(safetensors.numpy.save(arrays))
    values["proof"] |= {"bytes": proof.stat().st_size, "sha256": _sha256(proof)}
    path.write_text(json.dumps(values))


def _sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in made.CASES if one not in made.QUICK]


@pytest.mark.parametrize("case", [*made.QUICK, *SLOW], ids=made.named)
def test_the_checker_agrees_with_the_prover(tmp_path, case):
    found, text = results(certificate(tmp_path, case))
    assert found["run"] == "not possible"
    assert {*found.values()} == {"ok", "not possible"}, str(text)


def weight(values, arrays):
    arrays["member0.trunk0.weight"][0, 0] += 1e-3


def wider_box(values, arrays):
    values["box"]["high"][0] += 1e-3


def other_limit(values, arrays):
    values["limits"]["rules"]["linear"] += " + 0.1"


@pytest.mark.parametrize("change", [weight, wider_box, other_limit])
def test_a_change_fails_by_its_hash(tmp_path, change):
    path = certificate(tmp_path)
    changed(path, change)
    found, text = results(path)
    assert found["hashes"] == "FAILED", str(text)


def tighter(values, arrays):
    for bound in values["bounds"]:
        if bound["side"] == "high":
            bound["bound"] -= 0.02


def slightly_tighter_where_boxes_were_split(values, arrays):
    for bound in values["bounds"]:
        place = [column["name"] for column in values["policy"]["actions"]].index(bound["action"])
        if (arrays[f"tree.{place}.{bound['side']}.column"] >= 0).any():
            bound["bound"] += 1e-6 if bound["side"] == "low" else -1e-6


def much_wider_box(values, arrays):
    values["box"]["low"][0], values["box"]["high"][2] = 0.0, values["box"]["high"][2] + 2.0


def heavier(values, arrays):
    arrays["member0.centre.weight"] *= 1.5


def not_a_number(values, arrays):
    arrays["member0.centre.weight"][0, 0] = np.nan


def fewer_leaves(values, arrays):
    trees = [name.removesuffix(".column") for name in arrays if name.endswith(".column")]
    split = [name for name in trees if (arrays[f"{name}.column"] >= 0).any()]
    for name in split:
        arrays[f"{name}.first"][arrays[f"{name}.column"] >= 0] = len(arrays[f"{name}.column"])
    assert split


def missing_bound(values, arrays):
    values["bounds"].pop()


def bfloat16(values, arrays):
    values["arithmetic"] = "bfloat16"


@pytest.mark.parametrize(
    "change",
    [
        tighter,
        slightly_tighter_where_boxes_were_split,
        much_wider_box,
        heavier,
        not_a_number,
        fewer_leaves,
        missing_bound,
        bfloat16,
    ],
)
def test_the_proof_itself_fails_where_hashes_are_not_compared(tmp_path, change):
    path = certificate(tmp_path)
    values = json.loads(path.read_text())
    arrays = safetensors.numpy.load(path.with_name(path.name + ".proof").read_bytes())
    arrays = {name: array.copy() for name, array in arrays.items()}
    assert checker.check(values, arrays) > 1
    change(values, arrays)
    with pytest.raises((checker.NotProven, LookupError)):
        checker.check(values, arrays)


def test_any_slopes_are_sound(tmp_path):
    path = certificate(tmp_path)
    values = json.loads(path.read_text())
    arrays = safetensors.numpy.load(path.with_name(path.name + ".proof").read_bytes())
    rng = np.random.default_rng(0)
    for name, array in arrays.items():
        if ".slopes." in name:
            arrays[name] = rng.integers(0, 256, array.shape, np.uint8)
    for bound in values["bounds"]:
        bound["bound"] += 0.5 if bound["side"] == "high" else -0.5
    checker.check(values, arrays)


def test_verify_on_the_command_line(tmp_path, capsys):
    path = certificate(tmp_path)
    main(["verify", str(path)])
    assert "proven again" in capsys.readouterr().out
    path.with_name(path.name + ".proof").write_bytes(b"broken")
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(path)])
    assert stopped.value.code == 1
    assert "is not as it was written" in capsys.readouterr().out


def test_the_checker_shares_no_code_with_the_prover():
    allowed = {"fat2thin.policies.limit_language", "fat2thin.safety.checker_limits"}
    for name, most in (("checker.py", 300), ("checker_limits.py", 100)):
        text = (Path(checker.__file__).parent / name).read_text()
        tree = ast.parse(text)
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {one for one in imported if one.startswith("fat2thin")} <= allowed
        kinds = ast.FunctionDef | ast.ClassDef | ast.Module
        nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
        documented = [node.body[0] for node in nodes if ast.get_docstring(node)]
        lines = {n for one in documented for n in range(one.lineno, one.end_lineno + 1)}
        code = [
            line for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in lines
        ]  # fmt: skip
        assert len(code) < most
