"""Compute a plan on a cluster: cut it, hand out packs, show the progress and name what failed."""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from fat2thin.data.memory import PREFIX as IN_MEMORY
from fat2thin.engine.devices import memory_limit
from fat2thin.experiments import plan
from fat2thin.experiments.clusters import with_slurm
from fat2thin.experiments.clusters.cutting import cut
from fat2thin.experiments.clusters.options import (
    RAY,
    SLURM,
    ClusterOptions,
    check,
    parse_cluster,
)
from fat2thin.experiments.clusters.shared_folder import Session, mark, open_session
from fat2thin.experiments.clusters.tasks import (
    DONE,
    IN_USE,
    INTERRUPTED,
    REFUSED,
    TaskResult,
    WorkerReport,
    task_text,
)
from fat2thin.experiments.clusters.with_ray import RayWorkers
from fat2thin.experiments.clusters.with_slurm import SlurmWorkers
from fat2thin.experiments.plan import Pack, PlannedRun, PlanProgress
from fat2thin.report.plan_status import PlanDisplay
from fat2thin.runs.plan_file import PlanFile, read_plan
from fat2thin.terminal_text import counted

_WAIT = 1.0  # seconds between looks at the tasks
_SEEN_SECONDS = 30.0  # for the file of a worker to be seen here: network file systems may be late

_log = logging.getLogger(__name__)


class ClusterError(ValueError):
    """Runs of a plan could not be computed on a cluster; the message says why."""


class NothingComputed(Exception):
    """A dry run has printed what would be done."""


@runtime_checkable
class Workers(Protocol):
    """What computes tasks."""

    @property
    def count(self) -> int:
        """Number of packs that can be computed at the same time."""

    def reports(self, session: Session) -> list[WorkerReport]:
        """Return what the workers say about themselves, as far as they can be asked."""

    def submit(self, texts: Sequence[tuple[int, str]]) -> None:
        """Start tasks, given by number and text."""

    def ended(self, wait: float) -> list[tuple[int, TaskResult]]:
        """Return the results of tasks that have ended, after at most `wait` seconds."""

    def stop(self) -> None:
        """Ask all tasks to write a checkpoint and end."""

    def close(self) -> None:
        """Disconnect from the cluster."""


def carry_out(
    planned: Sequence[PlannedRun], root: str | Path, progress: PlanProgress | None = None,
    *, options: ClusterOptions,
) -> None:  # fmt: skip
    """Compute the runs that do not exist below `root` yet, where the options say.

    Without a cluster this is `plan.carry_out`, which alone uses `progress`. The folder must be
    shared by all machines of a cluster; that is checked first. A killed plan resumes.

    Raises:
        ClusterError: A machine cannot work, or runs failed; the others are computed.
        NothingComputed: The options ask for a dry run.
    """
    check(options)
    root = Path(root)
    if options.dry_run:
        print(describe(planned, root, options))
        raise NothingComputed
    if options.cluster is None:
        plan.carry_out(planned, root, progress)
        return
    packs, reused = plan.missing_packs(planned, root)
    for pack in packs:
        _refuse_memory(pack)
    if not packs:
        plan.write_file(planned, root)
        return
    with open_session(root) as session:
        workers = open_workers(options, session)
        try:
            driver = _Driver(workers, session, options, packs)
            plan.write_file(planned, root)
            driver.run(reused)
        finally:
            workers.close()


def on(options: ClusterOptions) -> Callable[..., None]:
    """Return `carry_out` with these options, for `run_sweeps` and `reproduce`."""
    check(options)
    return functools.partial(carry_out, options=options)


def open_workers(options: ClusterOptions, session: Session) -> Workers:
    """Connect to the cluster that the options name."""
    cluster = parse_cluster(options.cluster or "")
    if cluster.kind == RAY:
        return RayWorkers(options, cluster.address)
    return SlurmWorkers(options, session.folder)


def _refuse_memory(pack: Pack) -> None:
    for one in pack.runs:
        if one.spec.dataset.startswith(IN_MEMORY):
            raise ValueError(
                f"{one.spec.dataset} is in the memory of this process, which workers cannot read: "
                "write it with fat2thin.data.save_npz, and use the file"
            )


def describe(planned: Sequence[PlannedRun], root: Path, options: ClusterOptions) -> str:
    """Return the packs of a plan as text and, for SLURM, the text for sbatch."""
    packs, reused = plan.missing_packs(planned, root)
    kind = parse_cluster(options.cluster).kind if options.cluster else None
    if kind == SLURM:
        packs = cut(packs, options.workers or with_slurm.WORKERS, memory_limit())
    elif kind == RAY and options.workers:
        packs = cut(packs, options.workers)
    runs = sum(len(pack.runs) for pack in packs)
    cluster = f" on {options.cluster}" if options.cluster else ""
    lines = [f"{counted(runs, 'run')} in {counted(len(packs), 'pack')}{cluster}, {reused} reused"]
    if kind == RAY and not options.workers:
        lines[0] += " (before they are cut: a dry run does not connect to Ray)"
    for number, pack in enumerate(packs, 1):
        lines.append(f"pack {number}: {pack.title}, {pack.updates:,} updates")
        lines += [f"    {root / one.name}" for one in pack.runs]
    if kind == SLURM and packs:
        lines += ["", with_slurm.sbatch_text(options, root.resolve(), len(packs))]
    return "\n".join(lines)


class _Driver:
    """Hands out the packs of a plan and waits for them."""

    def __init__(
        self, workers: Workers, session: Session, options: ClusterOptions, packs: Sequence[Pack]
    ) -> None:
        self._workers, self._session, self._options = workers, session, options
        self._root = Path(session.root)
        memory = self._checked()
        self._packs = dict(enumerate(cut(packs, workers.count, memory)))
        self._tries = dict.fromkeys(self._packs, 0)
        self._failed: dict[str, str] = {}

    def _checked(self) -> float | None:
        """Check all workers that can be asked; return the memory of the smallest device."""
        reports = self._workers.reports(self._session)
        problems = [report.problem or self._unseen(report) for report in reports]
        if found := list(dict.fromkeys(filter(None, problems))):
            raise ClusterError("\n".join(found))
        known = [report.memory for report in reports if report.memory is not None]
        return min(known) if known else None if reports else memory_limit()

    def _unseen(self, report: WorkerReport) -> str:
        """Return "" once the file that a worker wrote is seen here, else what is wrong."""
        until = time.monotonic() + _SEEN_SECONDS
        while not (self._session.folder / mark(report.host)).exists():
            if time.monotonic() > until:
                return (
                    f"{self._session.root} is not shared by all machines: {self._session.host} "
                    f"does not see what {report.host} wrote there"
                )
            time.sleep(_WAIT)
        return ""

    def run(self, reused: int) -> None:
        """Compute all packs; raise an error at the end if some failed."""
        count = counted(len(self._packs), "pack")
        _log.info("%s for %s, %d runs reused", count, self._options.cluster, reused)
        display = PlanDisplay(self._root)
        try:
            with display.shown():
                self._submit([*self._packs])
                while self._packs:
                    display.update()
                    for number, result in self._workers.ended(_WAIT):
                        self._take(number, result)
                display.update(last=True)
        except BaseException:
            self._workers.stop()
            raise
        if self._failed:
            why: dict[str, list[str]] = {}
            for name, reason in self._failed.items():
                why.setdefault(reason, []).append(name.removeprefix("./"))
            lines = [
                f"{', '.join(names[:3])}{_more(names[3:])}: {one}" for one, names in why.items()
            ]
            failed = counted(len(self._failed), "run")
            raise ClusterError(f"{failed} could not be computed. " + "\n".join(lines))

    def _submit(self, numbers: Sequence[int]) -> None:
        seconds = self._options.checkpoint_seconds
        texts = [task_text(self._packs[i], self._session, seconds) for i in numbers]
        self._workers.submit([*zip(numbers, texts, strict=True)])

    def _take(self, number: int, result: TaskResult) -> None:
        """Drop a pack that is done, submit a lost one again, and note one that failed."""
        pack = self._packs[number]
        # A folder that another process uses costs no try: that process computes the run.
        if result.status == IN_USE or (
            result.status == INTERRUPTED and self._tries[number] < self._options.retries
        ):
            self._tries[number] += result.status == INTERRUPTED
            _log.warning("%s: %s. It is tried again.", pack.title, result.why)
            self._submit([number])
            return
        del self._packs[number]
        if result.status == DONE:
            if result.why:
                _log.warning(result.why)
            return
        left = [one for one in pack.runs if not plan.is_over(one, self._root)]
        self._failed |= {one.name: result.why for one in left}
        known = read_plan(self._root) or PlanFile({})
        known._replace(failed=self._failed).write(self._root)
        if result.status == REFUSED:
            # Other machines may be fine, but results that depend on luck are worth nothing.
            raise ClusterError(result.why)


def _more(names: Sequence[str]) -> str:
    return f" and {len(names)} more" if names else ""
