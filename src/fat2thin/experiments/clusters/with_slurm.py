"""Tasks as an array of SLURM jobs, through submitit."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fat2thin.experiments.clusters import tasks
from fat2thin.experiments.clusters.options import SLURM, ClusterOptions, load_extra
from fat2thin.experiments.clusters.shared_folder import Session
from fat2thin.experiments.clusters.tasks import FAILED, INTERRUPTED, TaskResult, WorkerReport
from fat2thin.experiments.clusters.with_ray import last_line
from fat2thin.terminal_text import closest_first

WORKERS = 8  # packs at a time by default
_LOGS = "slurm"
_LOGGING = "SUBMITIT_LOG_LEVEL"  # read when submitit is imported
_PAUSE = 1.0


class Work:
    """Computes a task. submitit queues it again when its job reaches the time limit."""

    def __call__(self, text: str) -> str:
        """Compute a task; see `tasks.work`."""
        return tasks.work(text)

    def checkpoint(self, text: str) -> Any:
        """Return what the job does next time: the same, since its folders say how far it is."""
        return load_extra("submitit.helpers", SLURM).DelayedSubmission(self, text)


class SlurmWorkers:
    """Jobs of SLURM. Their machines are unknown until they start: each job checks its own."""

    def __init__(self, options: ClusterOptions, folder: Path) -> None:
        self._options = options
        self.count = options.workers or WORKERS
        self._executor = executor(options, folder / _LOGS, readable=False)
        self._jobs: dict[int, Any] = {}

    def reports(self, session: Session) -> list[WorkerReport]:
        """Return nothing: no job runs yet."""
        return []

    def submit(self, texts: Sequence[tuple[int, str]]) -> None:
        """Send tasks, given by number and text, as one array."""
        jobs = []
        with self._executor.batch():
            for _, text in texts:
                jobs.append(self._executor.submit(Work(), text))
        self._jobs |= {number: job for (number, _), job in zip(texts, jobs, strict=True)}

    def ended(self, wait: float) -> list[tuple[int, TaskResult]]:
        """Return the results of jobs that have ended, after at most `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            over = [number for number, job in self._jobs.items() if job.done()]
            if over or time.monotonic() >= until:
                return [(number, _result(self._jobs.pop(number))) for number in over]
            time.sleep(min(_PAUSE, wait))

    def stop(self) -> None:
        """Cancel all jobs; each writes a checkpoint first."""
        for job in self._jobs.values():
            job.cancel(check=False)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _result(job: Any) -> TaskResult:
    errors = load_extra("submitit.core.utils", SLURM)
    try:
        return TaskResult(*json.loads(job.result()))
    except errors.FailedJobError as error:
        return TaskResult(FAILED, f"SLURM job {job.job_id} failed: {last_line(error)}")
    except errors.UncompletedJobError:
        return TaskResult(INTERRUPTED, f"SLURM job {job.job_id} was lost ({job.state.lower()})")


def _submitit() -> Any:
    """Return submitit, imported without its logging setup, which closes the handlers of others."""
    before = os.environ.get(_LOGGING)
    os.environ[_LOGGING] = "NOCONFIG"
    try:
        return load_extra("submitit", SLURM)
    finally:
        # Jobs inherit the environment and keep their logs.
        if before is None:
            del os.environ[_LOGGING]
        else:
            os.environ[_LOGGING] = before


def executor(options: ClusterOptions, folder: Path, readable: bool) -> Any:
    """Return submitit's executor; a `readable` one only writes text and needs no SLURM."""
    kind = _submitit().SlurmExecutor
    if readable:
        kind = type("Readable", (kind,), {"affinity": classmethod(lambda cls: 1)})
    elif kind.affinity() < 0:
        raise ValueError(
            "--cluster slurm needs the commands of SLURM, and there is no srun here: use a machine "
            "from which jobs can be sent (--dry-run prints the text for sbatch anywhere)"
        )
    made = kind(folder, max_num_timeout=options.retries)
    wanted, known = parameters(options), sorted(kind._valid_parameters())
    for name in wanted:
        if name not in known:
            raise ValueError(f"--slurm has no {name!r}; there are {closest_first(name, known)}")
    made.update_parameters(**wanted)
    return made


def parameters(options: ClusterOptions) -> dict[str, Any]:
    """Return the parameters of the jobs, by submitit's names; those of `slurm` override."""
    found: dict[str, Any] = {
        "job_name": "fat2thin",
        "time": options.time_limit,
        "cpus_per_task": options.cpus_per_worker,
        "array_parallelism": options.workers or WORKERS,
    }
    if options.gpus_per_worker:
        found["gpus_per_node"] = options.gpus_per_worker
    for text in options.slurm:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--slurm takes NAME=VALUE, got {text!r}")
        found[name] = int(value) if value.isdecimal() else value
    return found


def sbatch_text(options: ClusterOptions, root: Path, count: int) -> str:
    """Return what would be sent to sbatch for this number of packs."""
    made = executor(options, root / ".cluster" / "SESSION" / _LOGS, readable=True)
    if count > 1:
        made.parameters["map_count"] = count
    return made._make_submission_file_text(made._submitit_command_str, "")
