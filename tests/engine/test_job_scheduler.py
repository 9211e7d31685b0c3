"""More jobs than a device can hold take turns, with the same results."""

import logging
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fat2thin.engine.devices import LIMIT, JobScheduler, jobs_at_a_time
from fat2thin.engine.program import Program
from fat2thin.evaluation.batches import problem_of
from fat2thin.random_streams import Stream, stream_key
from fat2thin.training import execute_together, make_spec
from side_by_side import assert_same_bits, make_jobs

LOG = 40 * (3 + 2 + 1 + 3 + 1 + 1) * 4
"""Bytes of a tiny log: 40 rows of both observations, action, reward, continuation and a place."""
STATE = (3 * 2 + 1 + 1) * 4
"""Bytes of the stand-in's state: a matrix and two numbers."""
BATCH = 8
AHEAD = 2**21 // (BATCH * (3 + 2 + 1 + 3 + 1) * 4)
"""Updates whose rows are drawn ahead."""
DRAWN = AHEAD * BATCH * 4 * (10 + 20)
"""Bytes drawn ahead: ten numbers per row, and twenty metrics."""
JOB = 3 * STATE + BATCH * 3 * 4 + DRAWN
"""Bytes of a job: three states, three outputs per row of a batch, and rows drawn ahead."""
OPTIONS = {
    "steps": 6, "evaluate_every": 3, "log_every": 3, "episodes": 3, "snapshots": [3],
    "batch_size": BATCH,
}  # fmt: skip


@pytest.fixture
def room_for(monkeypatch):
    """Set the memory limit to what a number of logs and jobs needs."""

    def limit(*, logs, jobs):
        monkeypatch.setenv(LIMIT, repr((logs * LOG + jobs * JOB) / 2**30))

    return limit


def specs(*changes, **options):
    options = {"dataset": "tiny/own"} | OPTIONS | options
    return [make_spec("stand_in", **options | one) for one in changes]


def assert_same_run(one, other):
    assert (one.spec, one.step) == (other.spec, other.step)
    assert one.about["status"] == other.about["status"]
    assert_same_bits(one.states, other.states)
    assert_same_bits(one.metrics, other.metrics)
    assert one.evaluations.steps == other.evaluations.steps
    assert_same_bits(one.evaluations.policies, other.evaluations.policies)
    assert_same_bits(one.snapshots, other.snapshots)
    assert_same_bits(one.policy(one.spec.seeds[0]), other.policy(other.spec.seeds[0]))


def test_runs_in_turns_have_the_same_bits(room_for, caplog, tmp_path):
    several = specs(
        {"seeds": [3, 5], "settings": {"noise": 0.1}},
        {"seeds": [3], "settings": {"noise": 0.2}, "dataset": "bare/log"},
        {"seeds": [5, 4], "settings": {"noise": 0.3}},
    )
    at_once = execute_together(several)
    assert not caplog.text and "jobs_at_a_time" not in at_once[0].about
    room_for(logs=4, jobs=2)
    with caplog.at_level(logging.WARNING):
        in_turns = execute_together(several, [tmp_path / name for name in "abc"])
    assert "5 jobs do not fit into the memory of the device: they take turns, 2 at" in caplog.text
    for one, other in zip(at_once, in_turns, strict=True):
        assert other.about["jobs_at_a_time"] == 2
        assert_same_run(one, other)
    assert at_once[0].evaluate(4).rows == in_turns[0].evaluate(4).rows


def test_a_seed_that_diverges_in_one_turn_does_not_stop_others(room_for):
    identity = float(jax.random.uniform(stream_key(3, Stream.INITIAL_STATE), (3, 2))[0, 0])
    several = specs(
        {"seeds": [1]},
        {"seeds": [1, 2, 3], "settings": {"bad_identity": identity, "bad_update": 4.0}},
        dataset="bare/log",
        snapshots=[],
    )
    room_for(logs=1, jobs=2)
    in_turns = execute_together(several)
    assert [[*run.about.get("stopped", {})] for run in in_turns] == [[], ["3"]]
    np.testing.assert_array_equal(in_turns[1].states.updates, [6, 6, 3])
    np.testing.assert_array_equal(in_turns[0].states.updates, [6])
    room_for(logs=1, jobs=4)
    for one, other in zip(execute_together(several), in_turns, strict=True):
        assert_same_run(one, other)


@pytest.mark.parametrize("given", ["much", "0", "-1", "nan", "inf"])
def test_an_invalid_memory_limit_is_refused(monkeypatch, tmp_path, given):
    monkeypatch.setenv(LIMIT, given)
    with pytest.raises(
        ValueError, match=rf"{LIMIT} must be a positive number of GiB, got '{given}"
    ):
        execute_together(specs({}), [tmp_path / "run"])
    assert not list(tmp_path.iterdir())


@pytest.fixture
def program(tiny_world):
    problem = problem_of(tiny_world.dataset())
    return Program(tiny_world.algorithm, problem, tiny_world.config(), BATCH, sequential=True)


@pytest.mark.parametrize(
    ("logs", "jobs", "held"), [(1, 3, 3), (2, 2.99, 2), (1, 0.5, 1), (10_000, -0.5, 1)]
)
def test_the_number_of_jobs_that_fit_is_at_least_one(program, room_for, logs, jobs, held):
    room_for(logs=logs, jobs=jobs)
    assert jobs_at_a_time(program, make_jobs(range(4)), logs * LOG) == held


def test_the_memory_of_the_devices_is_the_default_limit(program, monkeypatch):
    jobs = make_jobs(range(4))
    monkeypatch.delenv(LIMIT, raising=False)
    assert jobs_at_a_time(program, jobs, LOG) is None
    offers = [{"bytes_limit": 10 * JOB}, {"bytes_limit": 4 * JOB}, None]
    devices = [SimpleNamespace(memory_stats=lambda offer=offer: offer) for offer in offers]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    assert jobs_at_a_time(program, jobs, 0) == 3
    assert jobs_at_a_time(program, jobs, JOB) == 2


@pytest.mark.parametrize(
    ("jobs", "held", "turns", "at_a_time"),
    [(10, 4, 3, 4), (10, 9, 2, 5), (10, 10, 1, 10), (10, 1, 10, 1), (7, 3, 3, 3)],
)
def test_turns_have_equal_numbers_of_jobs(program, room_for, jobs, held, turns, at_a_time):
    room_for(logs=0, jobs=held)
    made = JobScheduler(program, make_jobs(range(jobs)))
    assert (made.count, made.at_a_time) == (turns, at_a_time)
