"""The value within a dossier's time: what was finished is kept, and the process is ended."""

import json
import subprocess
import sys
import time

import pytest

import fat2thin
from fat2thin import data
from fat2thin.envs.rollouts import start_process
from fat2thin.evaluation.value import value
from fat2thin.report.dossier import value_process, worth
from fat2thin.report.dossier.subject import open_subject
from fat2thin.report.dossier.value_process import value_within
from report.dossier_runs import short_run, write_log

SENT = {"rows": [], "log": "doses"}
ONE = f"print({json.dumps(json.dumps({'found': SENT}))}, flush=True)"
BOTH = f"{ONE}; print({json.dumps(json.dumps({'found': {**SENT, 'all': 1}, 'complete': True}))})"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return short_run(tmp_path_factory.mktemp("value"))


@pytest.fixture(scope="module")
def subject(run):
    return open_subject(run)


@pytest.fixture
def process(monkeypatch):
    """Return a function that lets the process run some Python instead; it lists the processes."""
    started = []

    def run_instead(code):
        def start(module, order, **options):
            command = [sys.executable, "-c", f"import time; {code}"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
            started.append(subprocess.Popen(command, **pipes, **options))
            return started[-1]

        monkeypatch.setattr(value_process, "start_process", start)
        return started

    return run_instead


@pytest.mark.parametrize(
    ("code", "found", "complete", "error"),
    [
        (f"{ONE}; time.sleep(600)", SENT, False, None),
        ("time.sleep(600)", None, False, None),
        (f"{ONE}; print('{{', end='', flush=True); time.sleep(600)", SENT, False, None),
        (BOTH, {**SENT, "all": 1}, True, None),
        (f"{ONE}; import os; os._exit(3)", SENT, False, "ended without a message (status 3)"),
        ('print(\'{"error": "no such run"}\')', None, False, "no such run"),
    ],
)
def test_what_was_found_in_time_is_kept(subject, process, code, found, complete, error):
    started, began = process(code), time.perf_counter()
    valued = value_within(subject, None, (), 2.0)
    assert time.perf_counter() - began < 30  # of 600
    assert started[0].poll() is not None  # it is not left behind
    assert (valued.found, valued.complete) == (found, complete)
    assert valued.error is None if error is None else error in valued.error


def test_an_interrupt_ends_the_process(subject, process, monkeypatch):
    started = process("time.sleep(600)")

    class Interrupted(value_process.threading.Thread):
        def join(self, timeout=None):
            if timeout is not None:
                raise KeyboardInterrupt
            super().join()

    monkeypatch.setattr(value_process.threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        value_within(subject, None, (), 500.0)
    assert started[0].poll() is not None


def test_the_process_ends_with_the_one_that_started_it(run):
    order = {"folder": str(run.folder), "log": None, "kept": None, "limits": None, "against": []}
    worker = start_process("fat2thin.report.dossier.value_process", order)
    with worker:
        worker.stdin.close()
        assert worker.wait(timeout=120) == 1


def test_a_value_that_was_cut_short_says_what_is_missing(subject, process, monkeypatch):
    monkeypatch.setattr(worth, "SECONDS", 0.1)
    monkeypatch.setattr(worth, "value_facts", lambda subject: {})
    kept = json.loads(json.dumps(FOUND))
    process(f"print({json.dumps(json.dumps({'found': kept}))}, flush=True); time.sleep(600)")
    answer = worth.worth(subject, None, (), 2.0, "fat2thin value RUN")
    assert answer.facts["gain_low"] == 0.2 and "a gain of 0.5 reward" in answer.sentence
    (missing,) = answer.not_run
    assert missing.what == "the best constant action"
    assert missing.why == "it was stopped after 2 s, which was all the time that was left"
    assert missing.command == "fat2thin value RUN"


def test_no_value_is_begun_without_time(subject, process, monkeypatch):
    def slow(subject):
        time.sleep(2.0)
        return {}

    monkeypatch.setattr(worth, "value_facts", slow)
    started = process(BOTH)
    answer = worth.worth(subject, None, (), 16.0, "again")
    assert not started and answer.facts["gain_low"] is None
    assert "it takes at least 15 s, and 14 s were left" in answer.facts["why_unknown"]


@pytest.mark.slow
def test_a_run_that_cannot_be_valued_is_one_sentence(subject, tmp_path):
    valued = value_within(subject, None, (tmp_path / "none",), 300.0)
    assert valued.found is None and not valued.complete
    assert str(tmp_path / "none") in valued.error and "\n" not in valued.error


@pytest.mark.slow
def test_the_process_finds_what_the_function_finds(tmp_path):
    log = data.load(str(write_log(tmp_path, episodes=150)))
    options = {"steps": 2, "settings_from": "default", "hidden": (4,), "seeds": 2}
    trained = fat2thin.train("fttpo", log, out=tmp_path / "run", holdout=0.4, **options)
    assert trained.data is log  # no file has it
    valued = value_within(open_subject(trained), None, (), 600.0)
    assert valued.error is None and valued.complete
    assert valued.found == value(trained).to_json()


ROW = {
    "name": "policy", "kind": "policy", "estimator": "marginal", "estimate": 1.5, "low": 1.0,
    "high": 2.0, "difference": 0.5, "difference_low": 0.1, "difference_high": 0.9,
    "difference_bound": 0.2, "refused": None, "action": None,
}  # fmt: skip
PRACTICE = {**ROW, "name": "practice", "kind": "practice", "estimate": 1.0, "low": 0.8, "high": 1.2}
FOUND = {
    "rows": [ROW, PRACTICE], "estimates": [ROW], "reward_unit": "", "confidence": 0.95,
    "horizon": 8, "discount": 0.9, "episodes": 60, "steps": 480, "assumption": "all is seen",
    "interval": "approximate", "allowed": [0.0, 5.0], "notes": ["a note"],
}  # fmt: skip
