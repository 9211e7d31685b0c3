"""How far a run is, from its files alone and at any moment of it: no network is loaded or traced.

While a run goes on, files may be missing yet, run.json and evaluations.npz may be replaced, and
the end of metrics.jsonl may be half written.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fat2thin.data.formats.npz import open_npz
from fat2thin.evaluation.returns import SCORE
from fat2thin.runs import checkpoints, files, lock
from fat2thin.runs import run_json as told
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import LARGEST_LOG, DamagedError
from fat2thin.runs.folder import (
    EVALUATIONS,
    METRICS,
    RUN,
    RUNNING,
    MetricsRow,
    RunFolder,
    metrics_row,
)

_BLOCK = 2**16
_Signature = tuple[int, int, int]


class Outline(NamedTuple):
    """What run.json says of a run that one needs to tell how far it is."""

    algorithm: str
    dataset: str
    seeds: tuple[int, ...]
    steps: int
    status: str
    warnings: tuple[str, ...]
    stopped: Mapping[str, Mapping[str, Any]]
    """By seed: "step", "metric", "last_good_step", "why"."""
    files: Mapping[str, Mapping[str, Any]]
    """What the files of a run that is over are known by."""

    def including(self, checkpoint: Checkpoint) -> "Outline":
        """With what a checkpoint knows of the way to it, where run.json does not say so."""
        then = outline({**checkpoint.manifest, "status": self.status})
        return self._replace(
            warnings=self.warnings or then.warnings, stopped={**then.stopped, **self.stopped}
        )


_is_known = told.fields(
    algorithm=told.is_text,
    dataset=told.is_text,
    seeds=told.all_of(told.is_count),
    steps=told.is_count,
)


def outline(about: Mapping[str, Any]) -> Outline:
    """The same of what was read from run.json, or from the manifest of a checkpoint."""
    spec = about["spec"]
    if not _is_known(spec) or not spec["seeds"] or not spec["steps"]:
        raise DamagedError(f"{RUN} is damaged: its spec does not say what run it is")
    return Outline(
        algorithm=spec["algorithm"],
        dataset=spec["dataset"],
        seeds=tuple(spec["seeds"]),
        steps=spec["steps"],
        status=about["status"],
        warnings=tuple(about.get("warnings", ())),
        stopped=about.get("stopped", {}),
        files=about.get("files", {}),
    )


class LastRow(NamedTuple):
    """The last metrics that are there for all seeds."""

    step: int
    metrics: dict[str, np.ndarray]
    """Of shape (seeds,); nan of seeds that have stopped."""


class LastScore(NamedTuple):
    """The last evaluation of the policy that acts, as it acts."""

    step: int
    returns: np.ndarray
    """The mean return of each seed; nan of seeds that have stopped."""

    @property
    def mean(self) -> float:
        """The mean over the seeds that go on; nan where none does."""
        going = self.returns[~np.isnan(self.returns)]
        return float(np.mean(going)) if len(going) else math.nan


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a run is."""

    folder: Path
    outline: Outline
    in_use: bool
    """Whether a process trains into the folder now."""
    row: LastRow | None
    score: LastScore | None

    @property
    def running(self) -> bool:
        """Whether the run is not over, whoever may be at it."""
        return self.outline.status == RUNNING

    @property
    def step(self) -> int:
        """Updates that metrics are known of."""
        return self.row.step if self.row else 0

    @property
    def percent(self) -> int:
        """Whole per cent that are done."""
        return 100 * self.step // self.outline.steps

    @property
    def stopped(self) -> int:
        """How many seeds go no further; their metrics say so before run.json does."""
        over = np.asarray([str(seed) in self.outline.stopped for seed in self.outline.seeds])
        if self.row and self.row.metrics:
            # One metric alone may be missing of a seed that goes on: a value is not estimable.
            over |= np.all([np.isnan(values) for values in self.row.metrics.values()], axis=0)
        return int(np.sum(over))


class Watch:
    """Looks at a folder again and again, and reads only what is new."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._outline: tuple[_Signature | None, Outline] | None = None
        self._score: tuple[_Signature | None, LastScore | None] | None = None
        self._metrics: MetricsTail | None = None

    def look(self) -> Standing:
        """How far the run is now."""
        # Asked first: a run that ends in between must not look as if it was broken off.
        in_use = lock.in_use(self._folder)
        outline = self._read_outline()
        running = outline.status == RUNNING
        row = self._read_metrics(outline) if running else None
        return Standing(self._folder, outline, in_use, row, self._read_score(outline))

    def _read_outline(self) -> Outline:
        signature = _signature(self._folder / RUN)
        if self._outline is None or self._outline[0] != signature:
            self._outline = signature, outline(RunFolder(self._folder).about())
        return self._outline[1]

    def _read_metrics(self, outline: Outline) -> LastRow | None:
        if self._metrics is None or self._metrics.seeds != outline.seeds:
            self._metrics = MetricsTail(self._folder / METRICS, outline.seeds)
        return self._metrics.read()

    def _read_score(self, outline: Outline) -> LastScore | None:
        file = self._folder / EVALUATIONS
        signature = _signature(file)
        if self._score is None or self._score[0] != signature:
            self._score = signature, _last_score(file, len(outline.seeds)) if signature else None
        return self._score[1]


class MetricsTail:
    """The end of a metrics.jsonl that grows."""

    def __init__(self, path: Path, seeds: tuple[int, ...]) -> None:
        self.seeds = seeds
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._end = 0
        self._begun: list[MetricsRow] = []
        """Rows of a step that not all seeds have one of yet."""
        self._last: LastRow | None = None

    def read(self) -> LastRow | None:
        """The last metrics that are whole; None where there are none yet."""
        try:
            file = files.opened(self._path)
        except FileNotFoundError:
            self._forget()
            return None
        with file:
            size = file.seek(0, 2)
            if not self._goes_on(file, size):
                self._forget()
            if self._end:
                self._take(file, self._end, size)
            else:
                self._take_last(file, size)
        return self._last

    def _goes_on(self, file: BinaryIO, size: int) -> bool:
        """Whether it is the file that it was; a run that goes on from a checkpoint replaces it."""
        if not self._end:
            return True
        file.seek(self._end - 1)
        return size >= self._end and file.read(1) == b"\n"

    def _take_last(self, file: BinaryIO, size: int) -> None:
        """Begin with the end of the file, as much of it as holds a row of every seed."""
        length = _BLOCK
        while self._last is None:
            start = max(0, size - length)
            if start:
                file.seek(start)
                start += len(file.readline())
            self._begun = []
            self._take(file, start, size)
            if size <= length or len(self._begun) >= self._enough:
                return
            length *= 4

    def _take(self, file: BinaryIO, start: int, size: int) -> None:
        if size - start > LARGEST_LOG:
            raise DamagedError(f"{self._path} has lines of more than {LARGEST_LOG:,} bytes")
        file.seek(start)
        lines, ended, _ = file.read(max(0, size - start)).rpartition(b"\n")
        if not ended:
            return
        self._end = start + len(lines) + 1
        recent = [self._parsed(line) for line in lines.rsplit(b"\n", self._enough)[-self._enough :]]
        self._begun = [*self._begun, *recent][-self._enough :]
        count = len(self.seeds)
        for end in range(len(self._begun), count - 1, -1):
            rows = self._begun[end - count : end]
            if rows[-1].get("seed") == self.seeds[-1] and self._are_of_one_step(rows):
                names = [name for name in rows[0] if name not in ("step", "seed")]
                metrics = {
                    name: np.asarray([row.get(name, math.nan) for row in rows]) for name in names
                }
                self._last = LastRow(int(rows[0]["step"]), metrics)
                self._begun = self._begun[end:]
                return

    @property
    def _enough(self) -> int:
        """So many last rows hold one step of all seeds, wherever the file ends."""
        return 2 * len(self.seeds) - 1

    def _are_of_one_step(self, rows: list[MetricsRow]) -> bool:
        seeds = tuple(row.get("seed") for row in rows)
        return seeds == self.seeds and len({row.get("step", -1) for row in rows}) == 1

    def _parsed(self, line: bytes) -> MetricsRow:
        try:
            return metrics_row(line)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{self._path} is damaged: {told.shown(error)}") from error


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """What the command that began a run would go on from."""
    found = checkpoints.whole(folder)
    return found[0] if found else None


def _last_score(file: Path, seeds: int) -> LastScore | None:
    name = f"{SCORE}/returns"
    with open_npz(file, LARGEST_LOG, follow_links=False) as arrays:
        if not arrays.has("steps") or not arrays.has(name):
            return None
        steps, returns = arrays.read("steps", None), arrays.read(name, None)
    if returns.ndim != 3 or returns.shape[:2] != (len(steps), seeds) or not returns.size:
        raise DamagedError(f"{file} is damaged: {name} has shape {returns.shape}")
    return LastScore(int(steps[-1]), returns[-1].mean(axis=-1, dtype=np.float64))


def _signature(path: Path) -> _Signature | None:
    """Another one where a file was replaced; None where there is none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
