"""Limits on a log: intervals per row, counts, and refusals, against plain loops over rows."""

import dataclasses

import numpy as np
import pytest

from fat2thin.columns import Column, Transform
from fat2thin.data import Dataset
from fat2thin.data.row_arrays import MappedRows
from fat2thin.evaluation.batches import batch_of
from fat2thin.evaluation.limited import bind_limits, joined, limit_report, with_limits
from fat2thin.policies.limits import LimitFileError, LimitRules

RULES = {
    "cap": "dose <= 0.6 when severity > 1",
    "rate": "abs(dose - last_dose) <= 0.35",
    "stop": "no action when severity > 2.5",
    "fallback": {"dose": 0.1, "rest": 0.0},
}


def make_log(rows=60, transform=None, seed=0):
    draw = np.random.default_rng(seed)
    observation = draw.uniform(0, 3, (rows, 2)).astype(np.float32)
    dose = np.round(draw.uniform(0.05, 1.0, rows), 1).clip(0.05)
    return Dataset(
        name="doses", observation=observation,
        action=np.stack([dose, draw.uniform(-1, 1, rows)], axis=1).astype(np.float32),
        reward=draw.normal(size=rows), next_observation=np.roll(observation, -1, axis=0),
        continuation=np.ones(rows), episode_start=np.arange(0, rows, 10),
        action_low=(0.05, -1.0), action_high=(1.0, 1.0), discount=0.9,
        observation_columns=(Column("severity"), Column("weight")),
        action_columns=(Column("dose", transform=transform), Column("rest")),
    )  # fmt: skip


def expected(severity, last):
    """The allowed doses of a state by the rules, in float64; the fallback where there are none."""
    low, high = 0.05, 1.0
    if severity > 1:
        high = min(high, 0.6)
    if np.isfinite(last):
        low, high = max(low, last - 0.35), min(high, last + 0.35)
    return (low, high) if low <= high and severity <= 2.5 else None


@pytest.mark.parametrize("transform", [None, Transform("log", 0.01)])
def test_rows_have_the_intervals_of_a_loop(transform):
    log = make_log(transform=transform)
    rows = batch_of(with_limits(log, LimitRules.read(RULES).on(log))).limits

    def in_half_ranges(dose):
        ends = np.array([0.05, 1.0, dose])
        low, high, dose = np.log(ends + 0.01) if transform else ends
        return 2 * (dose - low) / (high - low) - 1

    seen, dose = np.float64(log.observation[:, 0]), np.float64(log.action[:, 0])
    following = np.float64(np.asarray(log.next_observation)[:, 0])
    without = 0
    for row in range(log.rows):
        first = row in log.episode_start
        here = expected(seen[row], np.nan if first else dose[row - 1])
        after = expected(following[row], dose[row])
        for ends, interval in (
            ((rows.low, rows.high), here),
            ((rows.next_low, rows.next_high), after),
        ):
            places = [in_half_ranges(end) for end in interval or (0.1, 0.1)]
            np.testing.assert_allclose([end[row, 0] for end in ends], places, atol=2e-5)
        allowed = here is not None and here[0] - 1e-6 <= dose[row] <= here[1] + 1e-6
        assert rows.allows_logged[row] == allowed
        without += here is None
    assert without and (rows.low[:, 1] == -1).sum() + without == log.rows


def test_reports_count_what_each_limit_excludes():
    log = make_log(600)
    limits = LimitRules.read(RULES).on(log)
    found = limit_report(log, limits)
    severity, dose = np.float64(log.observation[:, 0]), np.float64(log.action[:, 0])
    last = np.roll(dose, 1)
    last[log.episode_start] = np.nan
    rate = np.abs(dose - last) > 0.35 + 1e-6
    excluded = {
        "cap": (severity > 1) & (dose > 0.6 + 1e-6), "rate": rate, "stop": severity > 2.5
    }  # fmt: skip
    applies = {"cap": severity > 1, "rate": np.isfinite(last), "stop": severity > 2.5}
    for one in found.limits:
        assert one.excluded == pytest.approx(excluded[one.name].mean())
        assert one.applies == pytest.approx(applies[one.name].mean())
        assert one.binds is None
    without = [expected(s, before) is None for s, before in zip(severity, last, strict=True)]
    assert found.without_action == sum(without)
    assert found.excluded == np.any([*excluded.values(), without], axis=0).sum()
    assert type(found).from_json(found.to_json()) == found
    both = joined([found, limit_report(make_log(300, seed=1), limits)])
    assert both.rows == 900 and both.limits[0].excluded != found.limits[0].excluded


def test_a_log_that_is_read_in_parts_has_the_same_intervals():
    log = make_log(500)
    limits = LimitRules.read(RULES).on(log)
    lazy = dataclasses.replace(
        log, observation=MappedRows(np.copy, log.observation), next_observation=log.next_observation
    )
    whole, parts = with_limits(log, limits).allowed, with_limits(lazy, limits).allowed
    assert isinstance(whole, np.ndarray) and not isinstance(parts, np.ndarray)
    np.testing.assert_array_equal(parts[np.array([3, 10, 499])], whole[[3, 10, 499]])
    np.testing.assert_array_equal(parts[100:150], whole[100:150])


def test_limits_that_cannot_be_learned_within_are_refused():
    log = make_log()
    del (bare := dict(RULES))["fallback"]
    with pytest.raises(LimitFileError, match=r"no action in row \d+ \(cap: .*rate: .*fallback"):
        bind_limits(LimitRules.read(bare), log)
    with pytest.raises(LimitFileError, match="exclude every logged action of doses"):
        bind_limits(LimitRules.read({"none": "dose == 0.111"}), log)
    assert bind_limits(LimitRules.read(RULES), log).fallback == (0.1, 0.0)
