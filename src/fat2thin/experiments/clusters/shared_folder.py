"""The folder that all machines share, and the check that they do.

The driver writes a file into a hidden folder below the plan and holds its lock while it runs. A
worker must read that file, see that the lock is held, and be able to write there itself. It must
also have the driver's versions. Otherwise it computes nothing, and says why.
"""

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fat2thin
from fat2thin.atomic_files import FULL, open_regular, write
from fat2thin.data.formats.d4rl import FOLDER_VARIABLE
from fat2thin.runs.identity import machine_difference, versions
from fat2thin.runs.lock import in_use, locked
from fat2thin.runs.plan_file import SESSIONS

_DRIVER = "driver"


class Session(NamedTuple):
    """One driver's work in a shared folder: what every worker gets to know of it."""

    root: str
    """Folder of the plan, absolute."""
    token: str
    """Name of this session's folder and contents of its file."""
    host: str
    """Machine of the driver."""
    working_folder: str
    """Folder that relative paths of data sets start from."""
    data_folder: str | None
    """Value of the environment variable that names the folder of data sets."""
    versions: dict[str, str]
    """Versions of the driver's packages."""

    @property
    def folder(self) -> Path:
        """Folder of the session."""
        return Path(self.root) / SESSIONS / self.token


@contextlib.contextmanager
def open_session(root: Path) -> Iterator[Session]:
    """Hold the lock that workers look for; remove what drivers that have ended left behind."""
    new = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    sessions = root.resolve() / SESSIONS
    sessions.mkdir(mode=0o700, exist_ok=True)
    for old in sessions.iterdir():
        if not in_use(old):
            shutil.rmtree(old, ignore_errors=True)
    session = Session(
        root=str(root.resolve()),
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        working_folder=os.getcwd(),
        data_folder=os.environ.get(FOLDER_VARIABLE),
        versions=versions_here(),
    )
    # submitit reads pickled results from it: nobody else may write there.
    session.folder.mkdir(mode=0o700)
    try:
        with locked(session.folder):
            write(session.folder / _DRIVER, session.token.encode())
            yield session
    finally:
        shutil.rmtree(session.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            sessions.rmdir()
            if new:  # and nothing was computed
                root.rmdir()


def versions_here() -> dict[str, str]:
    """Return the versions of all packages, and a checksum of this one's source."""
    source, package = hashlib.sha256(), Path(fat2thin.__file__).parent
    for path in sorted(package.rglob("*.py")):
        source.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return {**versions(), "source of fat2thin": source.hexdigest()[:12]}


def find_problem(session: Session) -> str:
    """Return why this machine cannot work for the driver of a session; "" if it can."""
    here = socket.gethostname()
    if wrong := machine_difference(session.versions, versions_here()):
        wrong = wrong.replace(" then,", f" on {session.host} (the driver),")
        return (
            f"{here} has other versions: {wrong.replace(' now', f' on {here}')}. Install the same "
            "versions on all machines"
        )
    try:
        with open_regular(session.folder / _DRIVER) as file:
            seen = file.read(100).decode(errors="replace")
    except OSError as error:
        return _not_shared(session, f"{here} cannot read what {session.host} wrote there ({error})")
    if seen != session.token:
        return _not_shared(session, f"{here} reads another file there than {session.host} wrote")
    try:
        lock_is_seen = in_use(session.folder)
    except OSError as error:
        return _not_shared(session, f"{here} cannot use locks there ({error})")
    if not lock_is_seen:
        return _not_shared(
            session,
            f"{here} does not see the lock that {session.host} holds there, so two machines could "
            "train one run. Mount it with locks or, if the driver has ended, run its command again",
        )
    try:
        write(session.folder / mark(here), session.token.encode())
    except OSError as error:
        return explain(error, session)
    return ""


def mark(host: str) -> str:
    """Return the name of the file by which a worker shows that it can write."""
    return f"worker-{hashlib.sha256(host.encode()).hexdigest()[:16]}"


def explain(error: OSError, session: Session) -> str:
    """Return a failed read or write as one sentence; a full disk is named."""
    here = socket.gethostname()
    if error.errno in FULL:
        return (
            f"the shared folder {session.root} is full, {here} could not write to it "
            f"({os.strerror(error.errno or 0)}). "
            "Free some space and run the same command again: it resumes"
        )
    return f"{here} could not read or write a file ({error})"


def _not_shared(session: Session, why: str) -> str:
    return f"{session.root} is not shared by all machines: {why}"
