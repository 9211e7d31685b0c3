"""Plans on clusters: options, packs, the check of the shared folder, tasks and the driver."""

import dataclasses
import errno
import importlib.util
import itertools
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from experiments.test_plan import tiny
from fat2thin.experiments.clusters import driver, shared_folder, tasks, with_slurm
from fat2thin.experiments.clusters.cutting import cut
from fat2thin.experiments.clusters.options import ClusterOptions, check, parse_cluster
from fat2thin.experiments.clusters.tasks import (
    DONE,
    FAILED,
    IN_USE,
    INTERRUPTED,
    REFUSED,
    TaskResult,
    WorkerReport,
)
from fat2thin.experiments.plan import Pack, PlannedRun, PlanProgress, carry_out
from fat2thin.runs import checkpoints
from fat2thin.runs import folder as run_folder
from fat2thin.runs.lock import in_use
from fat2thin.runs.plan_file import read_plan
from fat2thin.training import make_spec

SAME = ("metrics.jsonl", "evaluations.npz", "state.safetensors")


@pytest.fixture(scope="module")
def planned():
    return [
        tiny(name, learning_rate=rate) for name, rate in [("a", 1e-3), ("b", 2e-3), ("c", 3e-3)]
    ]


@pytest.fixture(scope="module")
def plain(planned, tmp_path_factory):
    root = tmp_path_factory.mktemp("plain")
    carry_out(planned, root, PlanProgress())
    return root


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setattr(tasks.compilation_cache, "use", lambda: None)


def assert_same_bytes(planned, root, plain):
    for one, name in itertools.product(planned, SAME):
        assert (root / one.name / name).read_bytes() == (plain / one.name / name).read_bytes()


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("ray", "ray", "local"),
        ("ray:head-1.lab:6379", "ray", "head-1.lab:6379"),
        ("ray:[fe80::1]:6379", "ray", "[fe80::1]:6379"),
        ("slurm", "slurm", "local"),
    ],
)
def test_a_cluster_has_a_name(text, kind, address):
    assert parse_cluster(text) == (kind, address)


@pytest.mark.parametrize("text", ["", "Ray", "ray:", "ray:host", "ray:host:x", "slurm:host:1"])
def test_other_names_are_refused(text):
    with pytest.raises(ValueError, match="--cluster is ray, ray:HOST:PORT or slurm, got"):
        check(ClusterOptions(cluster=text))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "ray", "workers": 0}, "--workers must be at least 1, got 0"),
        ({"cluster": "ray", "checkpoint_seconds": float("nan")}, "--checkpoint-seconds must be"),
        ({"workers": 3}, "--workers needs --cluster"),
        ({"cluster": "ray", "slurm": ("mem=1GB",)}, "--slurm needs --cluster slurm"),
    ],
)
def test_options_that_no_cluster_can_have_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check(ClusterOptions(**options))


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 40])
def test_every_worker_has_a_pack_and_every_run_is_in_one(workers):
    short = [tiny(f"s{i}") for i in range(3)]
    long = [PlannedRun(f"l{i}", make_spec("bc", "treatment/cubic", steps=100)) for i in range(7)]
    packs = cut([Pack(tuple(short), ()), Pack(tuple(long), ("x",))], workers)
    assert len(packs) == max(2, min(workers, 10))
    runs = [one.name for pack in packs for one in pack.runs]
    assert sorted(runs) == sorted(one.name for one in [*short, *long])
    assert all(pack.traced == (("x",) if pack.runs[0].name[0] == "l" else ()) for pack in packs)
    updates = [pack.updates for pack in packs]
    assert updates == sorted(updates, reverse=True)
    if workers == 3:  # The longer program is cut first.
        assert [len(pack.runs) for pack in packs] == [4, 3, 3]


def test_packs_fit_into_the_memory_of_a_device(planned):
    pack = Pack(tuple(planned), ("learning_rate",))
    assert cut([pack], 1, memory=1e12) == [pack]
    assert [len(part.runs) for part in cut([pack], 1, memory=1.0)] == [1, 1, 1]


@pytest.fixture
def session(tmp_path):
    with shared_folder.open_session(tmp_path / "root") as made:
        yield made


def test_a_machine_that_shares_the_folder_can_work(session):
    report = WorkerReport(*json.loads(tasks.examine(json.dumps(session._asdict()))))
    assert (report.host, report.problem) == (socket.gethostname(), "")
    assert (session.folder / shared_folder.mark(report.host)).exists()


def another_folder(session):
    return session._replace(root=session.root + "-elsewhere")


def another_file(session):
    (session.folder / "driver").write_text("of another machine")
    return session


def unseen_lock(session):
    (session.folder / ".lock").unlink()
    (session.folder / ".lock").touch()
    return session


def other_version(session):
    return session._replace(versions=session.versions | {"jax": "0.1"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_folder, "is not shared by all machines: .* cannot read what .* wrote there"),
        (another_file, "is not shared by all machines: .* reads another file there"),
        (unseen_lock, "is not shared by all machines: .* does not see the lock"),
        (other_version, r"has other versions: jax 0\.1 on .* \(the driver\), .* on"),
    ],
)
def test_a_machine_that_cannot_work_says_why(session, change, message, planned):
    pack = Pack(tuple(planned), ())
    status, why = json.loads(tasks.work(tasks.task_text(pack, change(session), 60.0)))
    assert status == REFUSED
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(why)
    assert not (Path(session.root) / "a").exists()


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_folder_is_named_before_and_during_the_work(session, planned, monkeypatch):
    text = tasks.task_text(Pack(tuple(planned), ()), session, 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(shared_folder, "write", full)
        status, why = json.loads(tasks.work(text))
    assert status == REFUSED and "is full" in why
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write", full)
        status, why = json.loads(tasks.work(text))
    assert status == FAILED
    assert why.startswith(f"the shared folder {session.root} is full") and "it resumes" in why


def test_a_driver_that_has_ended_leaves_nothing(tmp_path):
    left = tmp_path / shared_folder.SESSIONS / "of-a-killed-driver"
    left.mkdir(parents=True)
    with shared_folder.open_session(tmp_path) as first, shared_folder.open_session(tmp_path) as two:
        assert first.folder.exists() and two.folder.exists() and not left.exists()
    assert not (tmp_path / shared_folder.SESSIONS).exists()


class Here:
    """Workers in this process; `lose` lists the results of tasks that are lost instead."""

    def __init__(self, count=2, lose=()):
        self.count, self.lose, self.submitted, self.stopped = count, [*lose], [], False
        self._results = []

    def reports(self, session):
        return [WorkerReport(*json.loads(tasks.examine(json.dumps(session._asdict()))))]

    def submit(self, texts):
        for number, text in texts:
            self.submitted.append(text)
            json.loads(text)  # nothing but text travels
            result = self.lose.pop(0) if self.lose else TaskResult(*json.loads(tasks.work(text)))
            self._results.append((number, result))

    def ended(self, wait):
        over, self._results = self._results, []
        return over

    def stop(self):
        self.stopped = True

    def close(self):
        pass


def compute(monkeypatch, planned, root, workers, **options):
    monkeypatch.setattr(driver, "open_workers", lambda *_: workers)
    driver.carry_out(planned, root, options=ClusterOptions(cluster="ray", **options))


def test_a_cluster_computes_the_bits_of_this_process(planned, plain, tmp_path, monkeypatch, capfd):
    workers = Here(count=2)
    compute(monkeypatch, planned, tmp_path, workers)
    assert len(workers.submitted) == 2
    assert_same_bytes(planned, tmp_path, plain)
    assert "3 of 3 runs done, 0 running, 0 failed, 0 waiting" in capfd.readouterr().out
    compute(monkeypatch, planned, tmp_path, None)  # finished runs need no worker


def test_lost_packs_are_tried_again_and_folders_in_use_cost_no_try(planned, tmp_path, monkeypatch):
    lost, busy = TaskResult(INTERRUPTED, "lost"), TaskResult(IN_USE, "in use")
    workers = Here(count=1, lose=[busy, lost, busy, busy])
    compute(monkeypatch, planned[:1], tmp_path, workers, retries=1)
    assert len(workers.submitted) == 5


def test_runs_that_cannot_be_computed_are_named_and_the_others_are(planned, tmp_path, monkeypatch):
    workers = Here(count=3, lose=[TaskResult(INTERRUPTED, "lost")])
    with pytest.raises(driver.ClusterError, match=r"1 run could not be computed. a: lost"):
        compute(monkeypatch, planned, tmp_path, workers, retries=0)
    assert read_plan(tmp_path).failed == {"a": "lost"}
    assert [(tmp_path / one.name / "state.safetensors").exists() for one in planned] == [0, 1, 1]


def test_a_machine_that_refuses_stops_the_plan(planned, tmp_path, monkeypatch):
    workers = Here(count=1, lose=[TaskResult(REFUSED, "has other versions")])
    with pytest.raises(driver.ClusterError, match="has other versions"):
        compute(monkeypatch, planned[:1], tmp_path, workers)
    assert workers.stopped and not (tmp_path / shared_folder.SESSIONS).exists()


def test_a_missing_package_is_named(planned, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'fat2thin\[ray\]'"):
        driver.carry_out(planned, tmp_path, options=ClusterOptions(cluster="ray"))


def test_a_dry_run_prints_the_text_for_sbatch_and_writes_nothing(planned, tmp_path, capsys):
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("needs the extra slurm")
    slurm = {"workers": 2, "time_limit": 90, "slurm": ("partition=gpu", "mem=4GB")}
    options = ClusterOptions(cluster="slurm", dry_run=True, **slurm)
    with pytest.raises(driver.NothingComputed):
        driver.carry_out(planned, tmp_path / "out", options=options)
    shown = capsys.readouterr().out
    assert "3 runs in 2 packs on slurm, 0 reused" in shown
    for line in ("array=0-1%2", "time=90", "partition=gpu", "mem=4GB", "job-name=fat2thin"):
        assert f"#SBATCH --{line}" in shown
    assert not logging.getLogger("submitit").handlers
    with pytest.raises(ValueError, match=r"^--slurm has no 'partitions'; there are partition, "):
        wrong = dataclasses.replace(options, slurm=("partitions=gpu",))
        driver.carry_out(planned, tmp_path / "out", options=wrong)
    assert [*tmp_path.iterdir()] == []


def test_an_address_at_which_nothing_listens_is_refused_at_once(planned, tmp_path):
    pytest.importorskip("ray")
    options = ClusterOptions(cluster="ray:127.0.0.1:1")
    with pytest.raises(
        ValueError, match=r"no Ray cluster could be used at 127\.0\.0\.1:1: .* head"
    ):
        driver.carry_out(planned, tmp_path / "new", options=options)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.long
def test_submitit_computes_a_plan_and_a_killed_job_resumes(tmp_path, monkeypatch):
    """With submitit's local executor, which starts the same jobs without SLURM."""
    longer = {"steps": 1600, "evaluate_every": 1600, "log_every": 20}
    planned, plain = (
        [one._replace(spec=dataclasses.replace(one.spec, **longer)) for one in map(tiny, "abc")],
        tmp_path / "plain",
    )
    carry_out(planned, plain, PlanProgress())
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("needs the extra slurm")
    submitit = with_slurm._submitit()
    monkeypatch.setattr(
        with_slurm, "executor", lambda options, folder, readable: submitit.LocalExecutor(folder)
    )
    root, killed = tmp_path / "root", []
    take = driver._Driver._take

    def noted(self, number, result):
        killed.append(result.status)
        take(self, number, result)

    monkeypatch.setattr(driver._Driver, "_take", noted)
    ended = with_slurm.SlurmWorkers.ended

    def kill_one(self, wait):
        if not killed and in_use(root / "a") and checkpoints.intact(root / "a"):
            os.kill(holder(root / "a"), signal.SIGKILL)
        return ended(self, 0.05)

    monkeypatch.setattr(with_slurm.SlurmWorkers, "ended", kill_one)
    options = ClusterOptions(cluster="slurm", workers=2, retries=3, checkpoint_seconds=0.0)
    driver.carry_out(planned, root, options=options)
    assert sorted(set(killed)) == [DONE, INTERRUPTED]
    assert_same_bytes(planned, root, plain)


def holder(folder):
    """Return the process that holds the lock of a folder."""
    return json.loads((folder / ".lock").read_text())["pid"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_ray_on_this_machine_computes_the_same_bits(planned, plain, tmp_path):
    pytest.importorskip("ray")
    options = ClusterOptions(cluster="ray", workers=2)
    driver.carry_out(planned, tmp_path, options=options)
    assert_same_bytes(planned, tmp_path, plain)
