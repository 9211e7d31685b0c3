"""The tabular problems with exact values, and a small study of coverage on one of them.

`benchmarks/value.py` measures all cases and sizes; docs/results/value.md has its results.
"""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.stats

ROOT = Path(__file__).parents[2]
LOGS, ROWS = 200, 400
FALSE_ALARM = 1e-3


@pytest.fixture(scope="module")
def on_path():
    """Make the modules in benchmarks/ importable."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def cases(on_path):
    return importlib.import_module("value_cases")


@pytest.fixture(scope="module", params=["ladder", "cliff", "delayed", "jackpot"])
def problem(request, cases):
    return getattr(cases, request.param)()


def test_the_probabilities_are_probabilities(problem):
    np.testing.assert_allclose(problem.chance.sum(axis=-1), 1.0)
    np.testing.assert_allclose(problem.practice.sum(axis=-1), 1.0)
    assert problem.chance.min() >= 0 and problem.start.sum() == pytest.approx(1.0)


def test_cells_of_a_band_have_the_probabilities_of_scipy(problem, cases):
    policy = cases.tabular_case(problem, "fix").policies()["shifted"]
    low, high = (
        np.asarray(end)[:, 0] for end in policy.support(np.arange(problem.levels)[:, None])
    )
    # Epanechnikov's density is Beta(2, 2) on the band.
    cdf = scipy.stats.beta(2, 2, low[:, None], (high - low)[:, None]).cdf(problem.ends[None])
    np.testing.assert_allclose(problem.cells(policy), np.diff(cdf, axis=1), atol=1e-4)


def test_the_value_of_practice_is_the_mean_of_simulated_returns(problem):
    log = jax.jit(problem.log, static_argnums=1)(jax.random.key(0), 20_000)
    returns = np.asarray(log.reward) @ problem.discount ** np.arange(problem.horizon)
    error = returns.std() / np.sqrt(returns.size)
    # The probability of a false alarm is 6e-5.
    assert abs(returns.mean() - problem.value(problem.practice)) < 4 * error


def test_a_log_follows_the_cells_of_practice(problem):
    log = jax.jit(problem.log, static_argnums=1)(jax.random.key(1), 2000)
    here = np.asarray(log.here) > 0
    level = np.asarray(log.observation)[here][:, 0].astype(int)
    cell = np.searchsorted(problem.ends, np.asarray(log.action)[here][:, 0], side="right") - 1
    width = np.diff(problem.ends)[cell]
    expected = np.log(problem.practice[level, cell] / width)
    np.testing.assert_allclose(np.asarray(log.log_density)[here], expected, rtol=1e-4)


def test_intervals_cover_the_exact_value(cases):
    """The probability of a false alarm is `FALSE_ALARM` if the coverage is exactly 95 %."""
    study = importlib.import_module("value_study")
    case = cases.tabular_case(cases.ladder(), "fix")
    policies = {"near": case.policies()["near"]}
    truths = case.truths(policies)
    raw = study.study(case, ROWS, range(LOGS), policies, at_once=LOGS, names=("marginal",))
    gain = truths["near"].value - truths["practice"].value
    least = scipy.stats.binom(LOGS, 0.95).ppf(FALSE_ALARM / 6)

    def covered(numbers, truth):
        inside = (numbers[:, 1] <= truth) & (truth <= numbers[:, 2])
        return inside.sum(), (numbers[:, 3] <= truth).sum()

    counts = [
        *covered(raw["practice"], truths["practice"].value),
        *covered(raw["value"][:, 0, 0], truths["near"].value),
        *covered(raw["difference"][:, 0, 0], gain),
    ]
    assert min(counts) >= least, counts
    # The test can fail: intervals a quarter as wide hold too rarely.
    narrow = raw["value"][:, 0, 0]
    narrow = narrow[:, :1] + 0.25 * (narrow - narrow[:, :1])
    assert covered(narrow, truths["near"].value)[0] < least


def row(covered, claims=0, kept=500):
    """Return a summary of 500 logs, for a policy that is worse than practice."""
    counts = dict.fromkeys(("covered", "bounded", "difference_covered"), kept)
    return counts | {
        "case": "a", "half": "test", "rows": 1000, "logs": 500, "policy": "near", "kept": kept,
        "estimator": "marginal", "gain": -1.0, "claims": claims, "false_claims": claims,
        "difference_bounded": covered,
    }  # fmt: skip


def test_the_verdict_is_that_of_binomial_tests_with_bonferroni(on_path):
    """Five tests, so that each has the level 0.01."""
    summary = importlib.import_module("value_summary")
    law = scipy.stats.binom(500, 0.95)
    limit = int(law.ppf(0.01))
    assert law.cdf(limit - 1) < 0.01 <= law.cdf(limit)
    said = [
        next(line for line in summary.verdicts([one]) if "test  marginal" in line)
        for one in (row(limit), row(limit - 1), row(500, claims=25), row(500, claims=60))
    ]
    assert ["passes" in line for line in said] == [True, False, True, False]
    assert "shows nothing" in summary.verdicts([row(0, kept=0)])[7]


def test_parts_are_ordered_joined_and_not_measured_twice(on_path, tmp_path):
    value = importlib.import_module("value")
    parts = value.parts_of(["tabular/cliff", "hospital/sepsis"], [200, 20_000], 1.0)
    assert [part.rows for part in parts[:2]] == [0, 0]
    assert parts[2] == ("hospital/sepsis", 20_000, 0, 4)
    logs = [part.last - part.first for part in parts if part[:2] == ("tabular/cliff", 20_000)]
    assert sum(logs) == value.LOGS[20_000]
    for part in parts[2:]:
        number = np.full(part.last - part.first, float(part.first))
        np.savez(tmp_path / part.file, practice=number, policies=np.array(["near"]))
        assert part.done(tmp_path) and not part._replace(last=part.last + 1).done(tmp_path)
    cases = importlib.import_module("value_cases")
    joined = value.raw_numbers(tmp_path, cases.tabular_case(cases.cliff(), "fix"), 20_000)
    assert np.unique(joined["practice"]).tolist() == list(range(0, 20, 4))


def test_ranks_are_those_of_scipy_and_numbers_that_lack_policies_choose_nothing(on_path, capsys):
    ranks = importlib.import_module("rank_policies")
    rng = np.random.default_rng(0)
    returns, noise = rng.normal(size=(2, 10))
    group = {
        str(place): {"return": returns[place], "good": returns[place] ** 3, "noise": noise[place]}
        | ({"td_error": -returns[place]} if place else {})
        for place in range(10)
    }
    found = ranks.correlations(group)
    assert found["good"] == (pytest.approx(1.0), 10) and found["td_error"][1] == 9
    assert found["noise"][0] == pytest.approx(scipy.stats.spearmanr(noise, returns).statistic)
    ranks.show({"a": group, "b": group}, ["a"])
    assert "chosen on a: good (1.00); on b: 1.00" in capsys.readouterr().out
