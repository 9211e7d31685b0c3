"""Export folders: metadata, refusals, and what verification finds."""

import hashlib
import importlib.util
import json

import numpy as np
import pytest

from export.cases import coverage, policy
from fat2thin.export import folder as folders
from fat2thin.export.contents import from_npz
from fat2thin.export.deployed import DeployedPolicy
from fat2thin.export.folder import export_policy, refuse_disagreement
from fat2thin.export.verification import verify_export
from fat2thin.policies.plain import plain_policy
from fat2thin.safety import certify, save_certificate


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return an export in three formats that are quick to write."""
    place = tmp_path_factory.mktemp("exports") / "made"
    export_policy(policy("sparse", "limits"), place, ("numpy", "onnx", "c"))
    return place


@pytest.fixture
def exported(original, tmp_path):
    """Return a copy that a test may change."""
    import shutil

    return shutil.copytree(original, tmp_path / "made")


def results(found):
    return {check.name: check.result for check in found.checks}


def restamp(exported, name=None, **changed):
    """Write the hash of a changed file into the metadata, as someone who hides a change would."""
    path = exported / "metadata.json"
    values = {**json.loads(path.read_text()), **changed}
    if name is not None:
        data = (exported / name).read_bytes()
        values["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    values["sha256"] = folders.hash_of_metadata(values)
    path.write_text(json.dumps(values))


def test_the_metadata_names_everything(original):
    found, plain = (
        json.loads((original / "metadata.json").read_text()),
        plain_policy(policy("sparse", "limits")),
    )
    assert found["weight_sha256"] == plain.weight_hash
    assert found["policy_sha256"] == plain.policy_hash
    assert [one["name"] for one in found["observations"]] == ["severity", "weight", "rate"]
    assert found["observations"][1]["unit"] == "kg"
    assert (found["actions"][1]["low"], found["actions"][1]["high"]) == (-1.0, 5.0)
    assert found["limits"]["cap"] == "dose <= 1.2 when severity > 1"
    assert found["fallback"] == [0.5, 0.0] and found["needs_last_action"]
    centroids = len(coverage(False).centroids)
    assert found["referral"] == {"distance": 1.0, "disagreement": 0.1, "centroids": centroids}
    assert found["reasons"]["16"] == "invalid input" and found["certificate"] is None
    assert {*found["formats"]} == {"numpy", "onnx", "c"}
    names = {path.name for path in original.iterdir()}
    assert names == {*found["files"], "metadata.json"}


def test_no_file_has_a_row_of_the_log(original):
    from export.cases import log

    contents = from_npz((original / "weights.npz").read_bytes())
    states = np.load(original / "states.npz")["observation"]
    rows = log().observation
    for array in (*contents.arrays.values(), states):
        if array.ndim == 2 and array.shape[1] == rows.shape[1]:
            assert not (array[:, None] == rows[None]).all(axis=2).any()


def test_a_good_export_passes(original):
    found = verify_export(original)
    assert found.passed and {*results(found).values()} == {"ok"}
    assert "1,000 states" in found["onnx"].what


NAMES = ["policy.onnx", "policy.h", "policy.py", "weights.npz", "states.npz", "metadata.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_byte_fails_wherever_it_is(exported, name):
    original = (exported / name).read_bytes()
    # In text of metadata, so that it stays JSON: also what nothing else of the folder repeats.
    marks = (b'"dose"', b'"fat2thin"', b'"kg"', b"exact", b'"command"')
    places = [original.find(one) + 1 for one in marks] if name == "metadata.json" else [
        *range(0, len(original), len(original) // 5)
    ]  # fmt: skip
    for place in places:
        data = bytearray(original)
        data[place] ^= 1
        (exported / name).write_bytes(data)
        found = verify_export(exported)
        assert not found.passed, place
        (check,) = [one for one in found.checks if one.result == "FAILED"]
        assert "changed after it was written" in check.what and name in (check.name + check.what)


@pytest.mark.parametrize(
    "changed", [{"limits": {}}, {"fallback": None}, {"members": 2}, {"reasons": {}}], ids=str
)
def test_metadata_that_does_not_describe_the_weights_fails_even_with_a_new_stamp(exported, changed):
    restamp(exported, **changed)
    found = verify_export(exported)
    assert results(found)["weights"] == "FAILED" and next(iter(changed)) in found["weights"].what


def test_changed_weights_fail_even_with_a_new_stamp(exported):
    contents = from_npz((exported / "weights.npz").read_bytes())
    contents.arrays["member0.centre.bias"][0] += 0.25
    (exported / "weights.npz").write_bytes(contents.to_npz())
    restamp(exported, "weights.npz")
    found = verify_export(exported)
    assert not found.passed and "weight_sha256" in found["weights"].what


def test_other_answers_fail_even_with_a_new_stamp(exported):
    from fat2thin.export.formats import FORMATS

    contents = from_npz((exported / "weights.npz").read_bytes())
    contents.arrays["member0.centre.bias"][0] += 0.25
    other = FORMATS["onnx"].write(contents, {})["policy.onnx"]
    (exported / "policy.onnx").write_bytes(other)
    restamp(exported, "policy.onnx")
    found = verify_export(exported)
    assert results(found)["onnx"] == "FAILED" and "by more than rounding" in found["onnx"].what
    assert results(found)["numpy"] == "ok"


def test_a_strangers_program_is_not_run(exported, tmp_path):
    for name, code in (("policy.py", "open('ran', 'w')\n"), ("policy.h", "#error no\n")):
        (exported / name).write_text(code)
        restamp(exported, name)
    found = verify_export(exported)
    assert results(found)["numpy"] == results(found)["c"] == "not possible" and found.passed
    assert "is not run" in found["numpy"].what and not (tmp_path / "ran").exists()


def test_a_missing_runtime_is_named(original, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "onnxruntime" else find(name, *rest),
    )
    found = verify_export(original)
    assert (
        found["onnx"].result == "not possible"
        and "onnxruntime is not installed" in found["onnx"].what
    )


def test_a_certificate_and_a_dossier_are_named_by_hash(tmp_path):
    made, box = policy("sparse", "plain"), {"severity": [1, 1.1], "weight": 1, "rate": 0}
    certificate, other = tmp_path / "certificate.json", tmp_path / "other.json"
    save_certificate(certify(made, box, seconds=0.2), certificate)
    save_certificate(certify(policy("sparse", "ensemble"), box, seconds=0.2), other)
    place = tmp_path / "made"
    about = {"run": None, "data_sha256": [], "command": ""}
    (tmp_path / "text.json").write_text("{}")
    with pytest.raises(ValueError, match=r"text.json is not a certificate"):
        folders._write(
            made, place, ("numpy",), about, None, {"certificate": tmp_path / "text.json"}
        )
    with pytest.raises(ValueError, match="certificate of other weights"):
        folders._write(made, place, ("numpy",), about, None, {"certificate": other})
    for changed, what in (
        (policy("sparse_half"), "another family"),
        (policy("sparse", "transforms"), "other columns"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            folders._write(changed, place, ("numpy",), about, None, {"certificate": certificate})
    limited = made.with_limits({"cap": "dose <= 1"})
    with pytest.raises(ValueError, match="certificate of a policy with other limits"):
        folders._write(limited, place, ("numpy",), about, None, {"certificate": certificate})
    folders._write(made, place, ("numpy",), about, None, {"certificate": certificate})
    known = json.loads((place / "metadata.json").read_text())["certificate"]
    expected = hashlib.sha256(certificate.read_bytes()).hexdigest()
    assert known == {"sha256": expected, "arithmetic": "float32"}
    assert verify_export(place, certificate).passed
    found = verify_export(place, other, certificate)
    assert results(found)["certificate"] == results(found)["dossier"] == "FAILED"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": ("nump",)}, r"no format 'nump' \(did you mean 'numpy'\?\)"),
        ({"to": ()}, "name a format"),
        ({"fallback": (9.0, 0.0)}, "one number in the action box per action"),
        ({"fallback": "practice"}, "one number per action"),
    ],
)
def test_bad_input_writes_nothing(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        export_policy(
            policy("sparse", "plain"), tmp_path / "made", **{"to": ("numpy",), **arguments}
        )
    assert not [*tmp_path.iterdir()]


def test_an_existing_folder_and_a_missing_parent_are_refused(tmp_path):
    made = policy("sparse", "plain")
    (tmp_path / "made").mkdir()
    with pytest.raises(ValueError, match="made exists: name a new folder"):
        export_policy(made, tmp_path / "made")
    with pytest.raises(ValueError, match="is not a folder"):
        export_policy(made, tmp_path / "none" / "made")
    assert not [*(tmp_path / "made").iterdir()]


def test_a_missing_extra_is_named_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    for name, extra in (("onnx", "onnx"), ("stablehlo", "stablehlo")):
        with pytest.raises(ValueError, match=rf"pip install 'fat2thin\[{extra}\]'"):
            export_policy(policy("sparse", "plain"), tmp_path / "made", ("numpy", name))
    assert not [*tmp_path.iterdir()]


def test_nothing_stays_after_an_error(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("late")

    monkeypatch.setattr(folders, "refuse_disagreement", fails)
    with pytest.raises(RuntimeError, match="late"):
        export_policy(policy("sparse", "plain"), tmp_path / "made")
    assert not [*tmp_path.iterdir()]


def test_an_arithmetic_that_differs_from_the_policy_is_refused():
    from fat2thin.export.contents import answers_of, contents_of, synthetic_states

    made = policy("sparse", "plain")
    contents = contents_of(plain_policy(made))
    states = synthetic_states(contents)
    contents.arrays["member0.centre.bias"] = contents.arrays["member0.centre.bias"] + 0.1
    with pytest.raises(RuntimeError, match="end differs from that of the policy"):
        refuse_disagreement(made, contents, states, answers_of(contents, states))


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": "other"}', b"\xff"])
def test_damaged_metadata_fails_with_one_line(exported, damage):
    (exported / "metadata.json").write_bytes(damage)
    found = verify_export(exported)
    assert not found.passed and len(found.checks) == 1 and "\n" not in found.checks[0].what


def test_an_object_in_the_weights_is_refused(exported):
    import pickle

    np.savez(exported / "weights.npz", settings=np.array([{"a": 1}], object))
    restamp(exported, "weights.npz")
    assert pickle.dumps  # the file above has a pickle inside
    found = verify_export(exported)
    assert results(found)["weights"] == "FAILED"


@pytest.mark.parametrize(
    "which",
    [("sparse", "limits"), ("squashed", "ensemble limits"), ("sparse", "transforms")],
    ids=" ".join,
)
def test_a_deployed_policy_decides_as_the_policy_does(original, tmp_path, which):
    made, place = policy(*which), original
    if which != ("sparse", "limits"):
        export_policy(made, tmp_path / "other")
        place = tmp_path / "other"
    deployed, draw = DeployedPolicy(place), np.random.default_rng(2)
    states, last = draw.normal(1.0, 1.0, (200, 3)), draw.uniform(0.0, 2.0, (200, 2))
    states[3, 1], last[5], last[7] = np.nan, np.nan, np.inf
    last = last if made.needs_last_action else None
    one, other = deployed.decide(states, last=last), made.decide(states, last=last)
    np.testing.assert_array_equal(one.referred, other.referred)
    for name in ("action", "distance", "disagreement"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=2e-5, atol=1e-5)
    for texts in (type(one).reasons, type(one).blocked_by, type(one).bound_by):
        assert [texts(one, row) for row in range(200)] == [texts(other, row) for row in range(200)]
    assert one.limits == other.limits and one.action.dtype == np.float64
    low, high = deployed.support(states, last)
    acts = ~one.referred
    assert ((low <= one.action) & (one.action <= high))[acts].all() and 0.1 < acts.mean() < 0.9
