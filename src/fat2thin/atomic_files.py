"""Atomic file writing, and reading of regular files only.

Every writer of the package uses `writing`, `write` or `writing_folder`: the contents go to a new
file with a random name next to the target, are synced to disk, and are then renamed to the target.
A symbolic link with that name is never followed. Every reader starts with `open_regular`, which
raises an error for a pipe or a device instead of blocking. A disk that is full is named.
"""

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial", re.DOTALL)
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without room, or of a limit on the size of files."""


class NoRoomError(OSError):
    """Raised when there is no room for a file; the message names it and the way out."""

    def __init__(self, number: int, what: str) -> None:
        reason = os.strerror(number)
        super().__init__(number, f"{what}: {reason}. Free some space, or use another disk")

    def __str__(self) -> str:
        return str(self.strerror)


class NotRegularFileError(OSError):
    """Raised when a path is a pipe, a device, a folder or a link instead of a regular file."""


def open_regular(path: Path, *, follow_links: bool = True) -> io.BufferedReader:
    """Open a regular file for reading, without blocking; raise an error for anything else."""
    return os.fdopen(regular_descriptor(path, follow_links=follow_links), "rb")


def regular_descriptor(path: Path, flags: int = os.O_RDONLY, *, follow_links: bool = True) -> int:
    """Open a regular file and return its descriptor; `flags` are those of `os.open`."""
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        # A link that is not followed, a pipe or socket, a folder.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_regular(path, path.lstat().st_mode) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular(path, mode)
    return descriptor


def path_of_open(file: IO[bytes], path: Path) -> Path:
    """Return a path that refers to an open file even if `path` is replaced by another file.

    For libraries that open files by name. Returns `path` on systems without /dev/fd.
    """
    descriptor = Path(f"/dev/fd/{file.fileno()}")
    return descriptor if descriptor.exists() else path


def _not_regular(path: Path, mode: int) -> NotRegularFileError:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return NotRegularFileError(f"{path} is {kind}, not a regular file")


@contextlib.contextmanager
def _room_for(place: Path) -> Iterator[None]:
    """Name the file, or the folder, for which a disk has no room."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, NoRoomError):
            raise
        raise NoRoomError(error.errno, f"there is no room for {place}") from error


@contextlib.contextmanager
def creating(path: Path) -> Iterator[IO[bytes]]:
    """Create a file and sync it to disk; raise an error if the file exists."""
    with _new_file(path) as file:
        yield file
        _sync_file(file)


@contextlib.contextmanager
def writing(place: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces `place` once it is synced; keep the old file after an error."""
    temporary = _temporary(place)
    with _room_for(place):
        file = _new_file(temporary)
        try:
            with file:
                yield file
                _sync_file(file)
            os.replace(temporary, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    sync(place.parent)


def write(place: Path, contents: bytes) -> None:
    """Write a file atomically: a crash leaves either the new or the old contents."""
    with writing(place) as file:
        file.write(contents)


@contextlib.contextmanager
def writing_folder(place: Path) -> Iterator[Path]:
    """Write a folder atomically: it appears with all of its files or not at all.

    Create the files with `creating`. An existing folder with that name is replaced.
    """
    temporary, old = _temporary(place), None
    with _room_for(place):
        os.mkdir(temporary)
        try:
            yield temporary
            sync(temporary)
            if place.exists():
                old = place.rename(_temporary(place))
            os.rename(temporary, place)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            if old is not None:
                os.rename(old, place)
            raise
    sync(place.parent)
    if old is not None and old.is_symlink():
        old.unlink()
    elif old is not None:
        shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk if the file system supports it."""
    # O_NONBLOCK: opening a pipe must not block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_partial(folder: Path) -> None:
    """Remove partly written files that killed processes left behind.

    Call it only while holding the folder's lock: another process may be writing.
    """
    for path in folder.glob(".*.partial"):
        if not _PARTIAL.fullmatch(path.name) or path.is_symlink():
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)


def _new_file(path: Path) -> IO[bytes]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "w+b")


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _temporary(place: Path) -> Path:
    """Return an unguessable temporary name, so that no link can be planted there."""
    # Shortened: file names are limited to 255 bytes, and a character has up to four.
    return place.with_name(f".{place.name[:50]}.{secrets.token_hex(8)}.partial")
