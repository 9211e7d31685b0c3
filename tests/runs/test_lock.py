"""Locks of folders: with flock, and with a file where the file system has no flock."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from fat2thin.runs import lock
from fat2thin.runs.lock import FolderInUseError, in_use, locked


@pytest.fixture
def without_flock(monkeypatch):
    """A file system without flock, as Lustre is by default."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


def ended_process():
    """Return the number and the start of a process that has ended."""
    code = "from fat2thin.runs import lock; import os; print(lock._here().decode())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


def test_the_holder_is_named_with_its_machine(tmp_path):
    with locked(tmp_path), pytest.raises(FolderInUseError) as error, locked(tmp_path):
        pass
    assert f"process {os.getpid()} on {socket.gethostname()} trains into it" in str(error.value)


def test_a_lock_of_an_older_version_is_named_by_its_number(tmp_path):
    with locked(tmp_path):
        (tmp_path / ".lock").write_text("123\n")
        with pytest.raises(FolderInUseError, match="process 123 trains"), locked(tmp_path):
            pass


@pytest.mark.parametrize("text", ["", "no JSON", "[" * 100_000, '{"pid": "x"}'])
def test_a_damaged_text_does_not_open_a_lock(tmp_path, text):
    with locked(tmp_path):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(FolderInUseError, match="in use: process"), locked(tmp_path):
            pass


def test_without_flock_a_second_process_is_refused(tmp_path, without_flock):
    with locked(tmp_path):
        assert in_use(tmp_path)
        with pytest.raises(FolderInUseError, match=rf"process {os.getpid()} on .*, remove"):
            locked(tmp_path).__enter__()
        assert in_use(tmp_path)
    assert not in_use(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with locked(tmp_path):
        pass


def test_without_flock_the_lock_of_an_ended_process_is_taken(tmp_path, without_flock):
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock-owner").write_text(json.dumps(ended_process()))
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert in_use(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_number_that_another_process_has_now_is_of_an_ended_one(tmp_path, without_flock):
    reused = {**ended_process(), "pid": os.getpid()}
    (tmp_path / ".lock-owner").write_text(json.dumps(reused))
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"machine": "another boot"}, {"pid": 1}])
def test_without_flock_the_lock_of_another_machine_is_kept(tmp_path, without_flock, other):
    """Of another machine, nobody knows whether the process has ended; process 1 still runs."""
    started = {"started": lock._started(1)} if "pid" in other else {}
    (tmp_path / ".lock").touch()
    kept = json.dumps({**ended_process(), **other, **started})
    (tmp_path / ".lock-owner").write_text(kept)
    assert in_use(tmp_path)
    with pytest.raises(FolderInUseError, match=r"if that one has ended, remove .*\.lock-owner"):
        locked(tmp_path).__enter__()
    assert (tmp_path / ".lock-owner").read_text() == kept


def test_a_lock_taken_in_between_is_put_back(tmp_path):
    """Two processes find the same old lock: the slower one must not remove the new lock."""
    owner = tmp_path / ".lock-owner"
    owner.write_text("new")
    lock._remove(owner, b"old")
    assert owner.read_text() == "new"
    lock._remove(owner, b"new")
    assert not owner.exists()


def test_a_lock_that_was_replaced_is_given_up(tmp_path, without_flock, monkeypatch):
    monkeypatch.setattr(
        lock.time, "sleep", lambda _: (tmp_path / ".lock-owner").write_text('{"pid": 7}')
    )
    with pytest.raises(FolderInUseError, match="process 7 trains into it"):
        locked(tmp_path).__enter__()
    assert (tmp_path / ".lock-owner").read_text() == '{"pid": 7}'


def test_a_full_disk_leaves_no_lock(tmp_path, without_flock, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        locked(tmp_path).__enter__()
    assert not (tmp_path / ".lock-owner").exists()
