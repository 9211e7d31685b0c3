"""The status of folders that are built by hand or by tiny runs."""

import io
import json
import math
import re
import shutil
import threading

import numpy as np
import pytest
from rich.console import Console

from fat2thin.cli.main import main
from fat2thin.evaluation.returns import Evaluation
from fat2thin.report import run_status
from fat2thin.runs import status
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.lock import locked
from fat2thin.runs.status import StatusReader, last_metrics, outline
from fat2thin.training import execute, load, make_spec
from fat2thin.training.progress import Silent

SPEC = {"algorithm": "stand_in", "dataset": "tiny/own", "config": {}, "seeds": [3, 5], "steps": 40}
ABOUT = {"format": 1, "status": "running", "spec": SPEC, "problem": {}, "sha256": []}


def row(step, seed, loss):
    return {"step": step, "seed": seed, "loss": loss}


@pytest.fixture
def folder(tmp_path):
    """A run of seeds 3 and 5 that has just started, without a training process."""
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    made.write_about(ABOUT)
    return made


def evaluate_by_hand(folder, steps, returns):
    """Write evaluations; returns have shape (steps, seeds, episodes)."""
    folder.write_evaluations(steps, {"actor_sampled": Evaluation(np.asarray(returns), {})})


def write_and_interrupt(path, after=4, steps=6, **options):
    """Interrupt a run after a step, with a checkpoint at every chunk before it."""

    class Interrupt(Silent):
        def advance(self, step):
            if step == after:
                raise KeyboardInterrupt

    spec = make_spec("stand_in", "tiny/own", steps=steps, evaluate_every=2, log_every=1, **options)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, path, Interrupt(), checkpoint_seconds=0.0)
    return spec


def test_a_run_without_metrics_is_at_step_0(folder):
    found_status = StatusReader(folder.path).read()
    assert (found_status.step, found_status.percent, found_status.score) == (0, 0, None)
    assert found_status.running and not found_status.in_use
    text = run_status.describe(found_status)
    assert "seeds 3, 5: step 0 of 40 (0 %)" in text
    assert "resume from the start" in text and "no metrics yet" in text


def test_the_lock_shows_whether_a_process_is_training(folder):
    watch = StatusReader(folder.path)
    with locked(folder.path):
        assert watch.read().in_use
        assert "training now" in run_status.describe(watch.read())
    assert not watch.read().in_use


def test_a_seed_without_a_value_has_not_stopped(folder):
    for seed, value in ((3, None), (5, 2.0)):
        folder.append_metrics([row(20, seed, 1.0) | {"held_out_value": value or math.nan}])
    found_status = StatusReader(folder.path).read()
    assert found_status.stopped == 0
    assert "held_out_value: not estimable: outside what the rewards allow, 1 of 2 seeds" in (
        run_status.describe(found_status)
    )


def test_means_leave_out_seeds_that_stopped(folder):
    folder.append_metrics([row(10, 3, 1.0), row(10, 5, 2.0)])
    folder.append_metrics([row(20, 3, math.nan), row(20, 5, 4.0)])
    evaluate_by_hand(folder, [0, 20], [[[1.0, 3.0], [5.0, 5.0]], [[np.nan] * 2, [6.0, 8.0]]])
    found_status = StatusReader(folder.path).read()
    assert (found_status.step, found_status.percent, found_status.stopped) == (20, 50, 1)
    assert found_status.score.step == 20 and found_status.score.mean == 7.0
    text = run_status.describe(found_status)
    assert "1 of 2 seeds stopped" in text
    assert re.search(r"^loss +4\.000 +4\.000 +4\.000$", text, re.MULTILINE)
    assert re.search(r"^actor_sampled +7\.000 ", text, re.MULTILINE)
    assert "evaluation after step 20" in text


def test_only_rows_of_all_seeds_count(folder):
    """Lines are appended one at a time, and the last one in pieces."""
    file = folder.path / "metrics.jsonl"
    assert last_metrics(file, (3, 5)) is None
    lines = [json.dumps(row(*values)) for values in ((10, 3, 1.0), (10, 5, 2.0), (20, 3, 3.0))]
    pieces = ["\n".join(lines) + "\n", json.dumps(row(20, 5, 4.0))[:9]]
    pieces += [json.dumps(row(20, 5, 4.0))[9:], "\n"]
    seen = []
    for piece in pieces:
        with file.open("a") as appended:
            appended.write(piece)
        found = last_metrics(file, (3, 5))
        seen.append((found.step, found.metrics["loss"].tolist()))
    assert seen == [(10, [1.0, 2.0])] * 3 + [(20, [3.0, 4.0])]


@pytest.fixture
def parsed(monkeypatch):
    """Record the lines of metrics that are parsed."""
    lines, parse = [], status.metrics_row
    monkeypatch.setattr(status, "metrics_row", lambda line: lines.append(line) or parse(line))
    return lines


def test_only_the_end_of_a_long_file_is_read_and_only_if_it_changed(folder, parsed):
    rows = [row(step, seed, step / 7 + seed) for step in range(1, 4001) for seed in (3, 5)]
    folder.append_metrics(rows)
    assert (folder.path / "metrics.jsonl").stat().st_size > 2**17
    reader = StatusReader(folder.path)
    assert reader.read().step == 4000
    assert len(parsed) == 3
    assert reader.read().step == 4000
    assert len(parsed) == 3
    folder.append_metrics([row(4001, 3, 1.0), row(4001, 5, 2.0)])
    assert reader.read().row.metrics["loss"].tolist() == [1.0, 2.0]
    assert len(parsed) == 6


def test_rows_of_more_seeds_than_a_block_holds(folder, monkeypatch):
    monkeypatch.setattr(status, "_BLOCK", 2**12)
    seeds = tuple(range(200))
    for step in (1, 2):
        folder.append_metrics([row(step, seed, float(seed * step)) for seed in seeds])
    folder.append_metrics([row(3, seed, 0.0) for seed in seeds[:-1]])
    file = folder.path / "metrics.jsonl"
    assert file.stat().st_size > 5 * 2**12
    found = last_metrics(file, seeds)
    assert found.step == 2
    np.testing.assert_array_equal(found.metrics["loss"], 2.0 * np.arange(200))


def test_a_run_that_goes_back_to_a_checkpoint_is_read_again(folder):
    """A checkpoint's shorter file replaces the longer one, then grows differently."""
    file = folder.path / "metrics.jsonl"
    reader = StatusReader(folder.path)
    for step in (10, 20, 30):
        folder.append_metrics([row(step, 3, 1.0), row(step, 5, 1.0)])
    assert reader.read().step == 30
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    assert reader.read().step == 10
    file.unlink()
    long = [row(10, 3, 0.123456789), row(10, 5, 0.1), row(20, 3, 0.3), row(20, 5, 0.123)]
    folder.append_metrics(long)
    assert reader.read().step == 20
    file.unlink()
    assert reader.read().row is None


@pytest.mark.parametrize("line", ["[1, 2]", "{", '{"step": "a", "seed": 3}', '{"seed": 3}'])
def test_a_damaged_line_raises_an_error_with_its_file(folder, line):
    (folder.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DamagedError, match=r"metrics\.jsonl is damaged"):
        StatusReader(folder.path).read()


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": []},
        {"spec": {**SPEC, "seeds": []}},
        {"spec": {**SPEC, "steps": 0}},
        {"spec": {**SPEC, "dataset": None}},
        {"warnings": [1]},
        {"stopped": {"3": "loss"}},
        {"status": 1},
    ],
)
def test_a_run_json_with_wrong_types_is_refused(folder, wrong):
    StatusReader(folder.path).read()
    folder.write_about({**ABOUT, **wrong})
    with pytest.raises(DamagedError, match=r"run\.json is damaged"):
        StatusReader(folder.path).read()


def test_the_status_of_an_interrupted_run_says_where_it_resumes(tmp_path, capsys):
    """The run is interrupted while step 4 is reported: the newest checkpoint is that of step 3."""
    path = tmp_path / "run"
    spec = write_and_interrupt(path, seeds=2)
    main(["show", str(path)])
    text = capsys.readouterr().out
    assert "stand_in on tiny/own, seeds 0, 1: step 4 of 6 (66 %)" in text
    assert "interrupted: run the same command again to resume from step 3" in text
    assert "evaluation after step 2" in text
    written = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    low, high = sorted(line["loss"] for line in written if line["step"] == 4)
    assert re.search(rf"^loss +{(low + high) / 2:.3f} +{low:.3f} +{high:.3f}$", text, re.MULTILINE)
    for checkpoint in (path / "checkpoints").iterdir():
        (checkpoint / "state.safetensors").write_bytes(b"")
    assert "from the start" in run_status.describe(StatusReader(path).read())
    execute(spec, path)
    assert not StatusReader(path).read().running


def test_stopped_seeds_and_warnings_are_listed(folder):
    stop = {"step": 7, "metric": "loss", "last_good_step": 5, "why": "x"}
    remarks = [
        *run_status.remarks(outline({**ABOUT, "stopped": {"3": stop}, "warnings": ["a\n\x1bb"]}))
    ]
    assert remarks == [
        "seed 3 stopped at step 7: loss was not finite. Its state after step 5 is kept.",
        "warning: a\\n\\u001bb",
    ]


def test_stopped_seeds_of_a_checkpoint_are_listed(tmp_path):
    """Seed 1 diverges at update 1 and stops; run.json is written again only at the end."""
    first = execute(make_spec("stand_in", "tiny/own", steps=1, seeds=2), None)
    settings = {"bad_identity": float(first.states.identity[1]), "bad_update": 1.0}
    path = tmp_path / "run"
    write_and_interrupt(path, seeds=2, settings=settings)
    found_status = StatusReader(path).read()
    assert found_status.stopped == 1
    text = run_status.describe(found_status)
    assert "1 of 2 seeds stopped" in text
    assert (
        "\nseed 1 stopped at step 2: loss was not finite. Its state after step 1 is kept." in text
    )


def test_several_folders_are_shown_in_a_table(folder, tmp_path, capsys):
    finished = tmp_path / "finished"
    execute(make_spec("stand_in", "tiny/own", steps=2, seeds=2, evaluate_every=2), finished)
    score = float(np.mean(load(finished).evaluations["actor_sampled"].returns[-1]))
    cut = tmp_path / "cut"
    shutil.copytree(finished, cut)
    (cut / "state.safetensors").write_bytes(b"")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    folder.append_metrics([row(10, 3, 1.0), row(10, 5, math.nan)])
    held = RunFolder(tmp_path / "held")
    shutil.copytree(folder.path, held.path)
    paths = [cut, finished, folder.path, held.path, broken, tmp_path / "nowhere"]
    with locked(held.path):
        main(["show", *map(str, paths)])
    lines = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [["6 run folders"], [""]]
    lines = lines[2:]
    assert lines[0] == ["folder", "algorithm", "dataset", "seeds", "actor sampled", "status"]
    assert [line[0] for line in lines[2:]] == [*map(str, paths)]
    assert lines[2][-1] == "damaged: state.safetensors is truncated or was changed"
    assert lines[3][1:] == ["stand_in", "tiny/own", "0, 1", f"{score:.3f}", "finished"]
    stopped = "1 of 2 seeds stopped"
    assert lines[4][-2:] == ["-", f"interrupted at step 10, {stopped}"]
    assert lines[5][-1] == f"running 25 %, {stopped}"
    assert lines[6][-1].startswith("damaged: run.json is not a JSON file")
    assert lines[7][-1] == "holds no run: there is no such folder"


def test_pace_is_measured_on_new_rows():
    """The age of the first row is unknown; then 100 steps take 10 s, and 800 are left."""
    pace = run_status.Pace()
    for step, now in ((100, 0.0), (200, 3.0), (200, 8.0), (300, 13.0)):
        assert pace.words(800) == ""
        pace.see(step, now)
    assert pace.words(800) == "10 steps/s, 1:20 left"
    pace.see(100, 20.0)
    assert pace.words(1000) == ""


class Gate(Silent):
    """Lets a run continue after step 2 only when that step was shown."""

    def __init__(self):
        self.reached, self.seen = threading.Event(), threading.Event()

    def advance(self, step):
        if step == 2:
            self.reached.set()
            assert self.seen.wait(60.0)


@pytest.mark.parametrize("terminal", [False, True])
def test_following_ends_with_the_run(tmp_path, monkeypatch, capsys, terminal):
    """A thread trains; it waits at step 2 until that step was shown, and then finishes."""
    path, gate = tmp_path / "run", Gate()
    spec = make_spec("stand_in", "tiny/own", steps=4, evaluate_every=2, log_every=1)
    thread = threading.Thread(target=execute, args=(spec, path, gate))
    shown = []
    kind = run_status._Screen if terminal else run_status._Lines
    show = kind.show

    def show_and_record(self, found_status, pace):
        show(self, found_status, pace)
        shown.append(found_status.step)
        if found_status.step == 2:
            gate.seen.set()

    monkeypatch.setattr(kind, "show", show_and_record)
    thread.start()
    assert gate.reached.wait(60.0)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=120)
    try:
        assert run_status.follow(path, console, refresh=0.01, line_every=0.0)
    finally:
        gate.seen.set()
        thread.join()
    assert 2 in shown
    text = screen.getvalue() if terminal else capsys.readouterr().out
    assert "step 2 of 4 (50 %)" in text
    assert "loss" in text and "actor_sampled" in text
    assert ("━" in text) == terminal


def test_a_run_can_be_read_at_any_time(tmp_path):
    """A thread writes at every step without pausing; it waits for the reader at every tenth."""
    path, begun, over = tmp_path / "run", threading.Event(), threading.Event()
    steps = []

    class Waits(Silent):
        def begin(self, steps, seeds, part=""):
            begun.set()

        def advance(self, step):
            while step % 10 == 0 and step not in steps and not over.wait(0.001):
                """The reader is behind."""

    spec = make_spec("stand_in", "tiny/own", steps=40, seeds=2, evaluate_every=1, log_every=1)
    thread = threading.Thread(target=execute, args=(spec, path, Waits(), 0.0))
    thread.start()
    watch = StatusReader(path)
    try:
        assert begun.wait(60.0)
        while (found_status := watch.read()).running:
            assert found_status.in_use
            assert f"step {found_status.step} of 40" in run_status.describe(found_status)
            steps.append(found_status.step)
    finally:
        over.set()
        thread.join()
    assert steps == sorted(steps) and {10, 20, 30, 40} <= set(steps)
    assert found_status.outline.status == "finished"


def test_a_line_is_printed_only_if_something_changed(folder, capsys):
    lines = run_status._Lines(every=0.0)
    folder.append_metrics([row(10, 3, 1.0), row(10, 5, 2.0)])
    watch = StatusReader(folder.path)
    for _ in range(3):
        lines.show(watch.read(), "")
    assert capsys.readouterr().out == "step 10 of 40 (25 %); loss 1.5\n"
    evaluate_by_hand(folder, [0], [[[1.0], [2.0]]])
    lines.show(watch.read(), "9 steps/s, 0:03 left")
    assert capsys.readouterr().out == (
        "step 10 of 40 (25 %); loss 1.5; actor_sampled 1.500 at step 0; 9 steps/s, 0:03 left\n"
    )


def test_following_an_interrupted_run_ends_with_a_message(folder, capsys):
    assert not run_status.follow(folder.path, refresh=0.01, patience=0.02)
    message = "interrupted: run the same command again to resume from the start"
    assert message in capsys.readouterr().out


def test_ctrl_c_ends_following_without_an_error(folder, monkeypatch, capsys):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_status.time, "sleep", interrupt)
    main(["show", str(folder.path), "--follow"])
    assert capsys.readouterr().out.splitlines() == ["step 0 of 40 (0 %)"]


def test_following_waits_for_a_run_that_is_just_starting(tmp_path, monkeypatch, capsys):
    """The lock exists before run.json: the first pause writes it, the second finishes the run."""
    path = tmp_path / "run"
    made, states = RunFolder(path), iter(["running", "finished"])
    monkeypatch.setattr(
        run_status.time,
        "sleep",
        lambda _: made.write_about({**ABOUT, "step": 40, "status": next(states)}),
    )
    with locked(path):
        assert run_status.follow(path)
    with pytest.raises(ValueError, match="holds no run"):
        run_status.follow(tmp_path / "nowhere")
