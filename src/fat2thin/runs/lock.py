"""A lock that allows one training process per folder, on all machines that share the folder.

It is `flock` on the file `.lock`: the system releases it when the process ends, and network file
systems pass it on to other machines. Where a file system has no `flock`, the file `.lock-owner`
takes its place. A killed process leaves that file behind. It is removed by a later process only if
it names a process of the same machine that has ended; nobody can tell for another machine.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fat2thin.atomic_files import NotRegularFileError, creating, open_regular, regular_descriptor
from fat2thin.runs.files import DamagedError, shortened

NAME, OWNER = ".lock", ".lock-owner"
_TRIES, _PAUSE = 5, 0.05
_CANNOT = (errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.ENOTSUP)
_LONGEST = 1024  # bytes of the text of a lock
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


class FolderInUseError(ValueError):
    """Another process is training into the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. The file stays: if removed, two processes could hold a lock."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _open(folder, os.O_RDWR | os.O_CREAT)
    with contextlib.ExitStack() as held:
        held.callback(os.close, descriptor)
        try:
            _take(descriptor)
        except BlockingIOError:
            holder = _holder(os.read(descriptor, _LONGEST))
            raise FolderInUseError(
                f"{folder} is in use: {_name(holder)} trains into it. Wait for it, or choose "
                "another folder."
            ) from None
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            held.enter_context(_owned(folder / OWNER))
        os.ftruncate(descriptor, 0)
        os.write(descriptor, _here())
        yield


def in_use(folder: Path) -> bool:
    """Whether a process is training into a folder. Nothing is written."""
    try:
        descriptor = _open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        text = _text(folder / OWNER)
        return text is not None and not _has_ended(_holder(text))
    finally:
        os.close(descriptor)
    return False


def _open(folder: Path, flags: int) -> int:
    """Open the lock of a folder, which may be hostile; a link or a pipe is refused."""
    try:
        return regular_descriptor(folder / NAME, flags, follow_links=False)
    except NotRegularFileError as error:
        raise DamagedError(f"{error}: remove it, or choose another folder") from error


def _take(descriptor: int) -> None:
    """Try several times: `in_use` holds the lock for an instant."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_PAUSE)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def _owned(path: Path) -> Iterator[None]:
    """Hold a lock that is the existence of a file."""
    mine = _here()
    while not _create(path, mine):
        text = _text(path)
        if text is None:
            continue
        if not _has_ended(holder := _holder(text)):
            raise FolderInUseError(
                f"{path.parent} is in use: {_name(holder)} trains into it. Its file system has no "
                f"locks that end with a process: if that one has ended, remove {path}"
            )
        _remove(path, text)
    # Another process that found the same old file may have removed the new one by mistake.
    time.sleep(_PAUSE)
    if (text := _text(path)) != mine:
        holder = _holder(text or b"")
        raise FolderInUseError(f"{path.parent} is in use: {_name(holder)} trains into it")
    try:
        yield
    finally:
        if _text(path) == mine:
            path.unlink(missing_ok=True)


def _create(path: Path, text: bytes) -> bool:
    """Create the file; return False if there is one."""
    try:
        with creating(path) as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _remove(path: Path, text: bytes) -> None:
    """Remove the file if it still has this text."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        if _text(aside) != text:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        os.unlink(aside)


def _text(path: Path) -> bytes | None:
    """Return the text of a lock, None if there is no such file."""
    try:
        with open_regular(path, follow_links=False) as file:
            return file.read(_LONGEST)
    except FileNotFoundError:
        return None
    except NotRegularFileError as error:
        raise DamagedError(f"{error}: remove it, or choose another folder") from error


def _here() -> bytes:
    """Return the text of a lock of this process."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "machine": _machine()}
    holder |= {"started": _started(os.getpid()), "lock": secrets.token_hex(8)}
    return json.dumps(holder).encode() + b"\n"


def _holder(text: bytes) -> dict[str, Any]:
    """Return the process that a lock names; older versions wrote only its number."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {"pid": found}


def _name(holder: dict[str, Any]) -> str:
    host = f" on {shortened(holder['host'])}" if "host" in holder else ""
    return f"process {shortened(holder.get('pid', 'unknown'))}{host}"


def _has_ended(holder: dict[str, Any]) -> bool:
    """Whether the process is known to have ended: only one of this machine can be known to."""
    here = holder.get("host") == socket.gethostname() and holder.get("machine") == _machine()
    if not here or not _machine() or not isinstance(holder.get("pid"), int):
        return False
    return _started(holder["pid"]) != holder.get("started")


def _machine() -> str:
    """Return what tells machines, their restarts and containers apart; "" if nothing does."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_PROCESSES)}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the time at which a process started, in clock ticks; "" if it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # After the name, which is in brackets and may have spaces: state, then 18 others, then ticks.
    state, *others = status.rpartition(")")[2].split()
    return "" if state in "ZX" else others[18]
