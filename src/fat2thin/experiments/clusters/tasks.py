"""Tasks: a pack of runs as JSON text, and what a worker does with it.

A task holds specifications and folder paths, and nothing else travels to a worker. Its result is
JSON text as well: the run folders hold everything that was computed.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fat2thin.data.formats.d4rl import FOLDER_VARIABLE
from fat2thin.engine import compilation_cache
from fat2thin.engine.devices import free_memory
from fat2thin.envs import TaskFailed
from fat2thin.experiments.clusters.shared_folder import Session, explain, find_problem
from fat2thin.experiments.plan import Pack, PlannedRun
from fat2thin.training import FolderInUseError, Interrupted, RunSpec, TrainingDiverged
from fat2thin.training.progress import Silent
from fat2thin.training.runner import execute_together

DONE, REFUSED, FAILED, IN_USE, INTERRUPTED = "done", "refused", "failed", "in use", "interrupted"
_LOCK_SECONDS = 120.0  # a killed worker may hold its locks for a moment
_PAUSE = 1.0


class TaskResult(NamedTuple):
    """What became of a task."""

    status: str
    why: str = ""
    """The reason for any status but done, and a note about runs that diverged."""


class WorkerReport(NamedTuple):
    """What a worker says about itself before it gets tasks."""

    host: str
    problem: str
    """Why it cannot work; "" if it can."""
    memory: float | None
    """Free memory of its devices in bytes, None on a CPU."""


def task_text(pack: Pack, session: Session, checkpoint_seconds: float) -> str:
    """Return a pack as the text of a task."""
    return json.dumps(
        {
            "session": session._asdict(),
            "runs": [{"name": one.name, "spec": one.spec.to_json()} for one in pack.runs],
            "traced": list(pack.traced),
            "checkpoint_seconds": checkpoint_seconds,
        }
    )


def examine(text: str) -> str:
    """Return the report of this worker about a session, both as text."""
    session = Session(**json.loads(text))
    problem = find_problem(session)
    memory = None if problem else free_memory()
    return json.dumps(WorkerReport(socket.gethostname(), problem, memory))


def work(text: str) -> str:
    """Compute the runs of a task, or resume them, and return a `TaskResult` as text."""
    task = json.loads(text)
    session = Session(**task["session"])
    if problem := find_problem(session):
        return json.dumps(TaskResult(REFUSED, problem))
    compilation_cache.use()
    try:
        runs = [PlannedRun(one["name"], RunSpec.from_json(one["spec"])) for one in task["runs"]]
        pack = Pack(tuple(runs), tuple(task["traced"]))
        with _where_the_driver_is(session):
            result = _compute(pack, session, task["checkpoint_seconds"])
    except OSError as error:
        result = TaskResult(FAILED, explain(error, session))
    except (ValueError, MemoryError, TaskFailed) as error:
        result = TaskResult(FAILED, f"{socket.gethostname()}: {error}")
    return json.dumps(result)


def _compute(pack: Pack, session: Session, checkpoint_seconds: float) -> TaskResult:
    specs = [one.spec for one in pack.runs]
    folders = [Path(session.root) / one.name for one in pack.runs]
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            execute_together(specs, folders, Silent(), checkpoint_seconds, traced=pack.traced)
        except FolderInUseError as error:
            if time.monotonic() > until:
                return TaskResult(IN_USE, str(error))
            time.sleep(_PAUSE)
        except Interrupted as stopped:
            return TaskResult(INTERRUPTED, str(stopped))
        except TrainingDiverged as diverged:
            # The run is over, and tables will show how it ended.
            return TaskResult(DONE, f"{pack.title}: {diverged}")
        else:
            return TaskResult(DONE)


@contextlib.contextmanager
def _where_the_driver_is(session: Session) -> Iterator[None]:
    """Let relative paths and names of data sets mean what they mean to the driver."""
    before, folder = os.getcwd(), Path(session.working_folder)
    known = os.environ.get(FOLDER_VARIABLE)
    if session.data_folder is not None and known is None:
        os.environ[FOLDER_VARIABLE] = session.data_folder
    try:
        # A data set that is missing then is an error that names it.
        if folder.is_dir():
            os.chdir(folder)
        yield
    finally:
        os.chdir(before)
        if known is None:
            os.environ.pop(FOLDER_VARIABLE, None)
