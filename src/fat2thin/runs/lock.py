"""A lock that allows one training process per folder; the system releases it on exit."""

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from fat2thin.atomic_files import NotRegularFileError, regular_descriptor
from fat2thin.runs.files import DamagedError

NAME = ".lock"
_TRIES, _PAUSE = 5, 0.05
_CANNOT = (errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.ENOTSUP)

_log = logging.getLogger(__name__)


class FolderInUseError(ValueError):
    """Another process is training into the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. The file stays: if removed, two processes could hold a lock."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _open(folder, os.O_RDWR | os.O_CREAT)
    try:
        try:
            _take(descriptor)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            raise FolderInUseError(
                f"{folder} is in use: process {holder or 'unknown'} trains into it. Wait for "
                "it, or choose another folder."
            ) from None
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            _log.warning(
                "%s is on a file system without locks: make sure that only one process trains "
                "into it", folder,
            )  # fmt: skip
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


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
    finally:
        os.close(descriptor)
    return False
