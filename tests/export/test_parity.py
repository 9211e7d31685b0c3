"""Every format gives the answers of the policy, which JAX and SciPy compute (`cases.py`)."""

import functools

import numpy as np
import pytest

from export.cases import CASES, case_of, check, policy
from fat2thin import algorithms, data
from fat2thin.algorithms.published import AuthorsSparseFamily
from fat2thin.export.formats import FORMATS, compiled, run_compiled
from fat2thin.policies.plain import NotPlainError, plain_policy
from untrained import untrained_run

QUICK = [
    ("sparse", "limits"),
    ("sparse_half", "transforms"),
    ("squashed", "ensemble"),
    ("gaussian", "limits"),
    ("squashed", "transforms limits"),
]
MILLION = 1_000_000


def answers(name, case):
    """Return the answers of a format, from the files that it writes."""
    one = FORMATS[name]
    return one.run(case.contents, one.write(case.contents, {"policy": "test"}), case.states)


@functools.cache
def quick(family, variant):
    return case_of(policy(family, variant), 3000)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "stablehlo"])
@pytest.mark.parametrize("which", QUICK, ids=" ".join)
def test_a_format_gives_the_answers_of_the_policy(name, which):
    case = quick(*which)
    largest, near = check(case, answers(name, case))
    assert largest < 0.2  # bounds hold for the worst case of rounding, which is rare
    assert near < 0.15 * 3000 and 0.1 < case.expected.refer.mean() < 0.9


@pytest.mark.parametrize("family", ["sparse", "gaussian"])
def test_stablehlo_gives_the_answers_of_the_policy(family):
    case = quick(family, "limits")
    check(case, answers("stablehlo", case))


@pytest.mark.parametrize("family", ["sparse", "gaussian"])
def test_c_in_double_precision_is_as_close(family):
    case = quick(family, "limits")
    with compiled(FORMATS["c"].write(case.contents, {})["policy.h"]) as library:
        found = run_compiled(library, case.states, case.contents, np.float64)
    assert found.action.dtype == np.float64
    check(case, found)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("which", CASES, ids=" ".join)
def test_a_million_states_per_format(which):
    """All cases together have a million states; each format decides on all."""
    each = MILLION // len(CASES) + 1
    assert each * len(CASES) >= MILLION
    case = case_of(policy(*which), each, seed=2)
    for name in FORMATS:
        check(case, answers(name, case))
    assert case.near.mean() < 0.15


@pytest.fixture(scope="module")
def log_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.npz"
    data.save_npz(data.load("treatment/quadratic@100", seed=0), path)
    return path


def policies_of(name, path):
    run = untrained_run(name, path, seeds=[0, 1, 2], settings={"hidden": (8, 6)})
    return [run.policy(0), run.policy()]


def test_policies_of_fttpo_within_a_limit(log_file):
    limits = {"cap": "action_0 <= 0.4 * observation_0 + 0.5 when observation_1 > 0"}
    made = policies_of("fttpo", log_file)[1].with_limits(limits)
    case = case_of(made, 500)
    for name in ("numpy", "onnx", "c"):
        check(case, answers(name, case))


@pytest.mark.parametrize(
    "rules",
    [
        {"cap": "dose <= 0.8"},
        {"same": "0.3 <= dose <= 0.3", "flow": "flow >= 1.7 when severity > 0.5"},
        {"low": "dose >= 0.7", "high": "dose <= 0.5", "stop": "no action when rate > 1"},
        {"stop": "no action when rate > 0 or not weight < 2"},
        {"crossed": "0.1 * weight <= dose <= 0.1 * weight", "open": "flow < -0.9999999"},
        {"line": "dose <= 0.4 * severity", "floor": "dose >= 0.2", "rate": "flow == last_flow"},
    ],
    ids=lambda rules: next(iter(rules)),
)  # fmt: skip
def test_limits_of_all_kinds(rules):
    """Also those that are the same in every state, or forbid acting and bound nothing."""
    case = case_of(policy("beta").with_limits(rules), 300)
    for name in ("numpy", "onnx", "c"):
        check(case, answers(name, case))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", algorithms.names())
def test_policies_of_all_algorithms_in_all_formats(name, log_file):
    for one in policies_of(name, log_file):
        case = case_of(one, 5000)
        for format_name in FORMATS:
            check(case, answers(format_name, case))


def test_a_policy_without_a_plain_description_is_refused(log_file):
    settings = {"hidden": (4,), "published": True}
    run = untrained_run("fttpo", log_file, seeds=[0], settings=settings)
    assert isinstance(run.policy(0).family, AuthorsSparseFamily)
    with pytest.raises(NotPlainError, match="AuthorsSparseFamily"):
        plain_policy(run.policy(0))
