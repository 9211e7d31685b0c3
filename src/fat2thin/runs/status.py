"""The status of a run, read from its files at any time; no network is loaded or traced.

While a run is in progress, files may be missing, run.json and evaluations.npz may be replaced, and
the end of metrics.jsonl may be incomplete.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fat2thin.evaluation.returns import SCORE
from fat2thin.runs import files, lock
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import LARGEST_LOG, DamagedError
from fat2thin.runs.folder import EVALUATIONS, METRICS, RUN, RUNNING, RunFolder, metrics_row

_BLOCK = 2**16


class RunOutline(NamedTuple):
    """The fields of run.json that describe a run and its status."""

    algorithm: str
    dataset: str
    seeds: tuple[int, ...]
    steps: int
    status: str
    warnings: tuple[str, ...]
    stopped: Mapping[str, Mapping[str, Any]]
    """By seed: "step", "metric", "last_good_step", "why"."""
    files: Mapping[str, Mapping[str, Any]]
    """Sizes and checksums of the files of a run that is over."""

    def including(self, checkpoint: Checkpoint) -> "RunOutline":
        """Add the warnings and stopped seeds that only a checkpoint has."""
        then = outline({**checkpoint.manifest, "status": self.status})
        warnings, stopped = self.warnings or then.warnings, {**then.stopped, **self.stopped}
        return self._replace(warnings=warnings, stopped=stopped)


_is_known = files.fields(
    algorithm=str, dataset=str, seeds=files.all_of(files.is_count), steps=files.is_count
)


def outline(about: Mapping[str, Any]) -> RunOutline:
    """Return the outline of a run.json, or of the manifest of a checkpoint."""
    spec = about["spec"]
    if not _is_known(spec) or not spec["seeds"] or not spec["steps"]:
        raise DamagedError(f"{RUN} is damaged: its spec is incomplete")
    return RunOutline(
        algorithm=spec["algorithm"],
        dataset=spec["dataset"],
        seeds=tuple(spec["seeds"]),
        steps=spec["steps"],
        status=about["status"],
        warnings=tuple(about.get("warnings", ())),
        stopped=about.get("stopped", {}),
        files=about.get("files", {}),
    )


class LastMetrics(NamedTuple):
    """The last metrics that all seeds have."""

    step: int
    metrics: dict[str, np.ndarray]
    """Shape (seeds,); nan for seeds that have stopped."""


class LastScore(NamedTuple):
    """The last evaluation of the policy that acts, with sampled actions."""

    step: int
    returns: np.ndarray
    """The mean return of each seed; nan for seeds that have stopped."""

    @property
    def mean(self) -> float:
        """The mean over the seeds that have not stopped; nan if all have."""
        going = self.returns[~np.isnan(self.returns)]
        return float(np.mean(going)) if len(going) else math.nan


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """The status of a run."""

    folder: Path
    outline: RunOutline
    in_use: bool
    """Whether a process is training into the folder."""
    row: LastMetrics | None
    score: LastScore | None

    @property
    def running(self) -> bool:
        """Whether the run is not over, even if no process is training it."""
        return self.outline.status == RUNNING

    @property
    def step(self) -> int:
        """The number of updates with metrics."""
        return self.row.step if self.row else 0

    @property
    def percent(self) -> int:
        """The share of updates that are done, in whole per cent."""
        return 100 * self.step // self.outline.steps

    @property
    def stopped(self) -> int:
        """The number of seeds that stopped; their metrics say so before run.json does."""
        over = np.asarray([str(seed) in self.outline.stopped for seed in self.outline.seeds])
        if self.row and self.row.metrics:
            # A seed that still trains may lack a single metric: a value that is not estimable.
            over |= np.all([np.isnan(values) for values in self.row.metrics.values()], axis=0)
        return int(np.sum(over))


class StatusReader:
    """Reads the status of a run repeatedly, and each file only if it changed."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = RunFolder(Path(folder))
        self._read: dict[str, tuple[Any, Any]] = {}

    def read(self) -> RunStatus:
        """Return the current status."""
        # Checked first: a run that ends in between must not look interrupted.
        in_use = lock.in_use(self._folder.path)
        outlined = self._if_changed(RUN, lambda: outline(self._folder.about()))
        seeds, row = outlined.seeds, None
        if outlined.status == RUNNING:
            file = self._folder.path / METRICS
            row = self._if_changed(METRICS, lambda: last_metrics(file, seeds), seeds)
        score = self._if_changed(EVALUATIONS, lambda: _last_score(self._folder, len(seeds)), seeds)
        return RunStatus(self._folder.path, outlined, in_use, row, score)

    def _if_changed(self, name: str, read: Callable[[], Any], seeds: tuple[int, ...] = ()) -> Any:
        """Return what `read` returned last time if the file was not changed or replaced since."""
        try:
            status = (self._folder.path / name).lstat()
            signature = (status.st_ino, status.st_mtime_ns, status.st_size, seeds)
        except FileNotFoundError:
            signature = None
        if name not in self._read or self._read[name][0] != signature:
            self._read[name] = signature, read()
        return self._read[name][1]


def last_metrics(path: Path, seeds: tuple[int, ...]) -> LastMetrics | None:
    """Return the last metrics that all seeds have in a metrics.jsonl; None if there are none yet.

    Only as much of the end of the file is read as needed.
    """
    try:
        file = files.opened(path)
    except FileNotFoundError:
        return None
    lines: list[bytes] = []
    count = len(seeds)
    # This many rows contain one step of all seeds, wherever the file ends.
    enough = 2 * count - 1
    with file:
        start = size = files.size_of(file)
        length = _BLOCK
        while start and len(lines) < enough:
            start = max(0, size - length)
            if size - start > LARGEST_LOG:
                raise DamagedError(f"{path} has lines of more than {LARGEST_LOG:,} bytes")
            file.seek(start)
            *lines, _ = file.read(size - start).split(b"\n")
            lines = lines[1:] if start else lines
            length *= 4
    try:
        rows = [metrics_row(line) for line in lines[-enough:]]
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {files.shortened(error)}") from error
    for end in range(len(rows), count - 1, -1):
        last = rows[end - count : end]
        # The last seed is compared first: comparing all of them at every place is slow.
        if last[-1]["seed"] != seeds[-1] or tuple(row["seed"] for row in last) != seeds:
            continue
        if len({row["step"] for row in last}) == 1:
            names = [name for name in last[0] if name not in ("step", "seed")]
            return LastMetrics(
                int(last[0]["step"]),
                {name: np.asarray([row.get(name, math.nan) for row in last]) for name in names},
            )
    return None


def _last_score(folder: RunFolder, seeds: int) -> LastScore | None:
    steps, policies = folder.evaluations(seeds)
    if SCORE not in policies:
        return None
    returns = np.asarray(policies[SCORE].returns)
    if not returns.size:
        path = folder.path / EVALUATIONS
        raise DamagedError(f"{path} is damaged: {SCORE}/returns has shape {returns.shape}")
    return LastScore(steps[-1], returns[-1].mean(axis=-1, dtype=np.float64))
