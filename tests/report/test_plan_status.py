"""The progress of a plan, from folders that are built by hand."""

import io
import json

import pytest
from rich.console import Console

from fat2thin.cli.main import main
from fat2thin.report import plan_status
from fat2thin.report.plan_status import PlanReader, follow_plan, has_many_runs
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.lock import locked
from fat2thin.runs.plan_file import SESSIONS, PlanFile, read_plan

SPEC = {"algorithm": "stand_in", "dataset": "tiny/own", "config": {}, "seeds": [0], "steps": 40}
ABOUT = {"format": 1, "status": "running", "spec": SPEC, "problem": {}, "sha256": []}


def add_run(root, name, status="running", step=0):
    made = RunFolder(root / name)
    made.path.mkdir(parents=True)
    made.write_about({**ABOUT, "status": status, "step": step})
    row = json.dumps({"step": step, "seed": 0, "loss": 0.0})
    (made.path / "metrics.jsonl").write_text(f"{row}\n")
    return made.path


@pytest.fixture
def root(tmp_path):
    """Five runs of 40 updates: finished, diverged, half done, failed, not started."""
    add_run(tmp_path, "a", "finished")
    add_run(tmp_path, "b/c", "diverged")
    add_run(tmp_path, "half", step=20)
    names = ["a", "b/c", "half", "lost", "next"]
    PlanFile(dict.fromkeys(names, 40), {"lost": "no memory"}).write(tmp_path)
    return tmp_path


def test_runs_are_counted(root):
    with locked(root / "half"):
        status = PlanReader(root).read()
    assert status.words == "2 of 5 runs done (1 diverged), 1 running, 1 failed, 1 waiting"
    assert status.updates_done == 100 and status.updates == 200 and not status.over


def test_a_failed_run_that_is_computed_later_has_not_failed(root):
    add_run(root, "lost", "finished")
    status = PlanReader(root).read()
    assert status.failed == () and status.done == 3


def test_runs_below_a_folder_without_a_plan_are_counted(root):
    (root / "plan.json").unlink()
    assert has_many_runs(root) and not has_many_runs(root / "a")
    assert (
        PlanReader(root).read().words
        == "2 of 3 runs done (1 diverged), 0 running, 0 failed, 1 waiting"
    )


@pytest.mark.parametrize(
    ("folder", "running"), [("half", [1, 1, 1, 0]), (f"{SESSIONS}/a", [0, 0, 0])]
)
def test_following_ends_with_the_processes(root, folder, running):
    """While a run trains or a driver waits for workers; the lock is released in reading three."""
    held = locked(root / folder)
    held.__enter__()
    readings = []

    class Reader(PlanReader):
        def read(self):
            readings.append(super().read())
            if len(readings) == 3:
                held.__exit__(None, None, None)
            return readings[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_status, "PlanReader", Reader)
        console = Console(file=io.StringIO(), force_terminal=True, width=150)
        status = follow_plan(root, console, refresh=0.01, patience=0.0)
    assert [one.running for one in readings] == running
    assert status.running == 0
    assert "2 of 5 runs done" in console.file.getvalue()


def test_show_names_failed_runs(root, capsys):
    main(["show", str(root)])
    assert capsys.readouterr().out.splitlines() == [
        "2 of 5 runs done (1 diverged), 0 running, 1 failed, 2 waiting", "lost: no memory"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 9, "runs": {}, "failed": {}}',
        '{"format": 1, "runs": {"../outside": 1}, "failed": {}}',
        '{"format": 1, "runs": {"/etc": 1}, "failed": {}}',
        '{"format": 1, "runs": {"a": "many"}, "failed": {}}',
    ],
)
def test_a_damaged_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(DamagedError, match=r"plan\.json"):
        read_plan(tmp_path)
