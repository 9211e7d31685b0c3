"""Plans: many runs that share programs, are reused, and are shared between processes."""

import dataclasses
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.made_up_runs import scored_run
from fat2thin.experiments import plan
from fat2thin.experiments.plan import (
    PlanLines,
    PlannedRun,
    PlanProgress,
    carry_out,
    environment_steps,
    load_runs,
    programs,
)
from fat2thin.training import FolderInUseError, OtherRunError, load, make_spec
from fat2thin.training.resuming import Interrupted

TINY = {"steps": 4, "seeds": 2, "batch_size": 8, "evaluate_every": 4, "episodes": 3, "log_every": 4}


def tiny(name, algorithm="bc", dataset="treatment/cubic", **settings):
    return PlannedRun(
        name, make_spec(algorithm, dataset, settings={"hidden": (4,), **settings}, **TINY)
    )


@pytest.fixture(scope="module")
def three():
    return [
        tiny("a", learning_rate=1e-3),
        tiny("b", learning_rate=1e-2),
        tiny("deeper/c", dataset="treatment/quadratic"),
    ]


@pytest.fixture(scope="module")
def done(three, tmp_path_factory):
    root = tmp_path_factory.mktemp("plan")
    carry_out(three, root, PlanProgress())
    return root


def test_runs_that_differ_in_numbers_and_logs_share_a_program(three):
    assert programs(three) == [three]
    other = tiny("d", hidden=(5,))
    longer = PlannedRun("e", dataclasses.replace(three[0].spec, steps=5))
    assert programs([*three, other, longer]) == [three, [other], [longer]]


def test_all_runs_are_computed(three, done):
    runs = load_runs(three, done)
    assert [*runs] == ["a", "b", "deeper/c"]
    assert runs["b"].spec == three[1].spec


def test_finished_runs_are_reused(three, done, monkeypatch):
    monkeypatch.setattr(plan, "execute_together", None)
    progress = PlanProgress()
    carry_out(three, done, progress)
    assert progress.words == "0 programs to run, 3 runs reused"


def test_a_resumed_plan_computes_the_same_bits(three, done, tmp_path):
    """What is left of a program keeps the arguments of the whole; the last run is alone here."""
    for name in ("a", "b"):
        shutil.copytree(done / name, tmp_path / name)
    carry_out(three, tmp_path, PlanProgress())
    for name in ("metrics.jsonl", "evaluations.npz", "state.safetensors"):
        there = Path("deeper/c") / name
        assert (tmp_path / there).read_bytes() == (done / there).read_bytes(), name
    assert load(tmp_path / "deeper/c").about["traced"] == ["learning_rate"]


def test_another_run_in_a_folder_is_an_error_before_anything_is_computed(three, done, monkeypatch):
    monkeypatch.setattr(plan, "execute_together", None)
    with pytest.raises(OtherRunError, match="learning_rate"):
        carry_out([tiny("new"), tiny("a", learning_rate=5e-3)], done, PlanProgress())


def test_two_different_runs_for_one_folder_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="two different runs for the folder a"):
        carry_out([tiny("a"), tiny("a", learning_rate=0.5)], tmp_path)


def test_a_program_that_another_process_computes_is_left_to_it(tmp_path, monkeypatch):
    """The program in use is tried again once the others are done."""
    wanted, order = [tiny("mine"), tiny("theirs", hidden=(5,))], []

    def compute(specs, outs, progress, traced):
        order.append(outs[0].name)
        if outs[0].name == "theirs" and order.count("theirs") < 3:
            raise FolderInUseError("in use")
        outs[0].mkdir()

    there = lambda one, root: (root / one.name).exists()  # noqa: E731
    monkeypatch.setattr(plan, "execute_together", compute)
    monkeypatch.setattr(plan, "is_over", there)
    monkeypatch.setattr(plan, "_PATIENCE", 0.0)
    carry_out([wanted[1], wanted[0]], tmp_path, PlanProgress())
    assert order == ["theirs", "mine", "theirs", "theirs"]


def test_an_interruption_ends_the_plan(tmp_path, monkeypatch):
    def compute(specs, outs, progress, traced):
        raise Interrupted("stopped", 2)

    monkeypatch.setattr(plan, "execute_together", compute)
    with pytest.raises(Interrupted):
        carry_out([tiny("a")], tmp_path, PlanProgress())


def test_environment_steps_are_counted(done):
    """Two evaluations, two ways of acting, two seeds, three episodes of 24 steps."""
    assert environment_steps([load(done / "a")]) == 2 * 2 * 2 * 3 * 24


def test_episodes_of_stopped_seeds_cost_no_steps():
    """Two evaluations of three seeds, two episodes of 24 steps; one seed stops in between."""
    run = scored_run("treatment/quadratic", actor_sampled=[[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]])
    assert environment_steps([run]) == (3 + 2) * 2 * 24


def test_steps_of_a_task_without_episode_lengths_are_unknown():
    """A task that measures episode lengths is counted by them."""
    own = scored_run("own/task", actor_sampled=np.ones((2, 3)), proposal_sampled=np.ones((2, 3)))
    assert environment_steps([own]) is None and environment_steps([own], "actor_sampled") is None
    treated = scored_run("treatment/quadratic@7", actor_sampled=np.ones((2, 3)))
    assert environment_steps([treated, own]) is None
    measured = own.evaluations["actor_sampled"]._replace(measures={"length": np.full((2, 3), 7.0)})
    own.evaluations.policies["actor_sampled"] = measured
    assert environment_steps([own], "actor_sampled") == 2 * 3 * 2 * 7
    assert environment_steps([own]) is None


def test_progress_shows_the_program_the_speed_and_the_time_left(monkeypatch):
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(plan.time, "perf_counter", lambda: next(clock))
    progress = PlanProgress()
    progress.plan([400, 600], reused=1)  # at 0 s
    assert progress.words == "2 programs to run, 1 run reused"
    progress.next_program(0, "bc on two")
    assert progress.words == "program 1 of 2: bc on two, compiling"  # at 10 s
    progress.begin(100, 2, "preparation")
    progress.advance(100)
    progress.begin(100, 2)
    progress.advance(50)
    # 200 of the preparation and 100 after it in 20 s, 700 to go.
    assert progress.words == "program 1 of 2: bc on two, 15 updates/s, 0:47 left"
    progress.program_is_done(0)
    progress.next_program(1, "iql")
    progress.program_is_done(1)
    assert progress.words == "2 programs done, 1 run reused"


def test_a_line_is_printed_when_a_program_starts(capsys):
    progress = PlanLines()
    with progress:
        progress.plan([8, 8], reused=0)
        progress.next_program(0, "bc on treatment/cubic")
        progress.begin(4, 2)
        progress.advance(4)
        progress.program_is_done(0)
        progress.next_program(1, "iql on treatment/cubic")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("program 1 of 2: bc on treatment/cubic")
