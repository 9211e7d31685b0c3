"""Copies the metrics and evaluations of a run to TensorBoard, Weights & Biases or trackio.

The files of the run folder stay the source: they are read during or after the run, and
nothing is written there. A state file in the tracking folder has the steps that were sent.
"""

import dataclasses
import hashlib
import importlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fat2thin.atomic_files import write
from fat2thin.report.run_status import wait_for_status
from fat2thin.runs import files
from fat2thin.runs.files import LARGEST_LOG, DamagedError
from fat2thin.runs.folder import (
    EVALUATIONS,
    LONGEST_LINE,
    METRICS,
    MetricsRow,
    RunFolder,
    metrics_row,
)
from fat2thin.runs.status import StatusReader, outline

Service = Literal["tensorboard", "wandb", "trackio"]

STATE = "fat2thin.json"
_INSTALL = {
    "tensorboardX": "fat2thin[tensorboard]", "wandb": "fat2thin[tracking]", "trackio": "trackio",
}  # fmt: skip
_MEAN = "mean"


class MissingPackageError(ValueError):
    """The package of a tracking service is not installed."""


class StepValues(NamedTuple):
    """Values of all seeds after a step."""

    step: int
    seeds: Mapping[int, Mapping[str, float]]
    """Finite values by seed and name; empty for a seed that has stopped."""


class NewValues:
    """Reads the metrics and evaluations that appeared in a run folder since the last read."""

    def __init__(self, folder: RunFolder, seeds: Sequence[int]) -> None:
        self._folder, self._seeds = folder, tuple(seeds)
        self._inode, self._offset, self._line = -1, 0, 0
        self._evaluations: tuple[int, ...] | None = None

    def metrics(self, start: int) -> Iterator[StepValues]:
        """Yield new metrics from step `start` on, of steps that all seeds have."""
        path = self._folder.path / METRICS
        try:
            file = files.opened(path, LARGEST_LOG)
        except FileNotFoundError:
            return
        with file:
            # A run that resumes replaces the file by a shorter one.
            if os.fstat(file.fileno()).st_ino != self._inode or files.size_of(file) < self._offset:
                self._inode, self._offset, self._line = os.fstat(file.fileno()).st_ino, 0, 0
            file.seek(self._offset)
            rows: list[MetricsRow] = []
            while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                try:
                    rows.append(metrics_row(line))
                    if rows[-1]["seed"] != self._seeds[len(rows) - 1]:
                        raise ValueError(f"it is not of seed {self._seeds[len(rows) - 1]}")
                    if rows[-1]["step"] != rows[0]["step"]:
                        raise ValueError(f"it is not of step {rows[0]['step']}")
                except (ValueError, RecursionError) as error:
                    number = self._line + len(rows)
                    complaint = f"{path}, line {number}, is damaged: {files.shortened(error)}"
                    raise DamagedError(complaint) from error
                if len(rows) < len(self._seeds):
                    continue
                self._offset, self._line = file.tell(), self._line + len(rows)
                step = int(rows[0]["step"])
                if step >= start:
                    yield _values(step, self._seeds, map(_metrics, rows))
                rows = []
            if len(line) == LONGEST_LINE:
                number = self._line + len(rows) + 1
                raise DamagedError(f"{path}, line {number}, is longer than {LONGEST_LINE:,} bytes")

    def evaluations(self, start: int) -> Iterator[StepValues]:
        """Yield new evaluations from step `start` on: means of returns, and measures."""
        try:
            status = (self._folder.path / EVALUATIONS).lstat()
        except FileNotFoundError:
            return
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        if signature == self._evaluations:
            return
        steps, policies = self._folder.evaluations(len(self._seeds))
        self._evaluations = signature
        arrays = {}
        for policy, evaluation in policies.items():
            returns = np.asarray(evaluation.returns)
            arrays[f"evaluation/{policy}/return"] = returns.mean(axis=-1, dtype=np.float64)
            for measure, values in evaluation.measures.items():
                arrays[f"evaluation/{policy}/{measure}"] = np.asarray(values)
        for place, step in enumerate(steps):
            if step >= start:
                rows = [
                    {name: float(array[place, seed]) for name, array in arrays.items()}
                    for seed in range(len(self._seeds))
                ]
                yield _values(step, self._seeds, rows)


def _metrics(row: MetricsRow) -> dict[str, float]:
    return {f"metrics/{name}": row[name] for name in row if name not in ("step", "seed")}


def _values(step: int, seeds: Sequence[int], rows: Iterable[Mapping[str, float]]) -> StepValues:
    finite = ({name: value for name, value in row.items() if math.isfinite(value)} for row in rows)
    return StepValues(step, dict(zip(seeds, finite, strict=True)))


class TensorBoard:
    """Event files: a folder per seed, and one for the mean over the seeds that have a value."""

    def __init__(self, out: Path) -> None:
        self._module = _imported("tensorboardX")
        self._out = out
        self._writers: dict[str, Any] = {}

    def log(self, values: StepValues) -> None:
        """Send the values of one step."""
        together: dict[str, list[float]] = {}
        for seed, row in values.seeds.items():
            for name, value in row.items():
                together.setdefault(name, []).append(value)
                self._writer(f"seed_{seed}").add_scalar(name, value, values.step)
        for name, found in together.items():
            self._writer(_MEAN).add_scalar(name, float(np.mean(found)), values.step)

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = self._module.SummaryWriter(str(self._out / name))
        return self._writers[name]

    def flush(self) -> None:
        """Write what was sent to disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()


class RunTracker:
    """Weights & Biases or trackio: a run per seed, in a group with the name of the run folder."""

    def __init__(
        self, service: Literal["wandb", "trackio"], out: Path, project: str, group: str, key: str,
        config: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._module, self._service = _imported(service), service
        self._out, self._project, self._group, self._key = out, project, group, key
        self._config = config
        self._runs: dict[int, Any] = {}
        self._waiting: dict[int, list[tuple[int, Mapping[str, float]]]] = {}

    def log(self, values: StepValues) -> None:
        """Collect the values of one step until `flush`."""
        for seed, row in values.seeds.items():
            if row:
                self._waiting.setdefault(seed, []).append((values.step, row))

    def flush(self) -> None:
        """Send the values, seed by seed."""
        for seed, rows in self._waiting.items():
            run = self._run(seed)
            for step, row in rows:
                if self._service == "wandb":
                    # As a value: wandb drops what is logged with a step before the last one, such
                    # as evaluations, which arrive late.
                    run.log({"step": step, **row})
                else:
                    run.log(dict(row), step=step)
            if self._service == "trackio":
                # A process has one open run at trackio; `resume` opens it again.
                self._runs.pop(seed).finish()
        self._waiting.clear()

    def _run(self, seed: int) -> Any:
        if seed not in self._runs:
            if self._service == "wandb":
                options: dict[str, Any] = {
                    "id": f"{self._key}-{seed}", "dir": str(self._out), "reinit": "create_new",
                    "mode": "offline" if wandb_is_offline() else None,
                    "settings": {"silent": True, "console": "off", "x_disable_stats": True},
                }  # fmt: skip
            else:
                options = {"auto_log_cpu": False, "auto_log_gpu": False}
            self._runs[seed] = self._module.init(
                project=self._project, name=f"{self._group}-seed_{seed}", group=self._group,
                config={**self._config, "seed": seed}, resume="allow", **options,
            )  # fmt: skip
            if self._service == "wandb":
                self._runs[seed].define_metric("*", step_metric="step")
        return self._runs[seed]

    def close(self) -> None:
        """Send what is left, and finish the runs; this waits until everything is written."""
        self.flush()
        for run in self._runs.values():
            run.finish()


def wandb_is_offline() -> bool:
    """Whether wandb only writes to disk: if neither WANDB_API_KEY nor WANDB_MODE is set."""
    return not (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE"))


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingPackageError(
            f"{name} is not installed: pip install '{_INSTALL[name]}'"
        ) from None


@dataclasses.dataclass
class Sent:
    """What was sent so far; stored in the tracking folder."""

    run: str
    """Digest of the specification and the data of the run."""
    key: str
    """Start of the names of the runs at wandb."""
    metrics: int = 0
    """Metrics before this step were sent."""
    evaluations: int = 0
    """Evaluations before this step were sent."""


_is_state = files.fields(run=str, key=str, metrics=files.is_count, evaluations=files.is_count)


def _sent(out: Path, run: str) -> Sent:
    """Return the state of a tracking folder; that of another run is refused."""
    path = out / STATE
    if not os.path.lexists(path):
        return Sent(run, secrets.token_hex(4))
    known = files.read_json(path)
    if not _is_state(known):
        raise DamagedError(f"{path} is damaged: remove {out} to send everything again")
    if known["run"] != run:
        raise ValueError(f"{out} has the values of another run: choose another folder with --out")
    return Sent(**{field.name: known[field.name] for field in dataclasses.fields(Sent)})


def _keep(sent: Sent, out: Path) -> None:
    write(out / STATE, files.as_json(dataclasses.asdict(sent)))


def track(
    folder: Path, to: Service, out: Path | None = None, *, project: str = "fat2thin",
    follow: bool = False, show: Callable[[str], None] = print, refresh: float = 2.0,
    patience: float = 5.0,
) -> int:  # fmt: skip
    """Send the values of a run that were not sent yet, and return the number of rows sent.

    With `follow`, continue until the run ends, or until no process has trained it for `patience`
    seconds; the folder is read every `refresh` seconds. A row has the metrics, or the evaluation,
    of one seed at one step.
    """
    name = folder.resolve().name
    out = out or Path("tracking") / to / name
    watch = StatusReader(folder)
    status = wait_for_status(watch, folder, refresh, patience) if follow else watch.read()
    if out.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{out} is inside the run folder: choose another folder with --out")
    about = RunFolder(folder).about()
    identity = json.dumps([about["spec"], about["sha256"]], sort_keys=True)
    sent = _sent(out, hashlib.sha256(identity.encode()).hexdigest())
    tracker: TensorBoard | RunTracker
    if to == "tensorboard":
        tracker = TensorBoard(out)
    else:
        tracker = RunTracker(to, out, project, name, sent.key, about["spec"])
    out.mkdir(parents=True, exist_ok=True)
    new = NewValues(RunFolder(folder), outline(about).seeds)
    rows, last_held = 0, time.monotonic()
    try:
        while True:
            # The status was read first: the last values of a run that has ended are there.
            added = _send(new, sent, tracker)
            if added:
                rows += added
                _keep(sent, out)
                last = max(sent.metrics, sent.evaluations) - 1
                show(f"sent {rows:,} rows to {out}, up to step {last:,}")
            now = time.monotonic()
            if status.in_use:
                last_held = now
            if not (follow and status.running) or now - last_held > patience:
                break
            time.sleep(refresh)
            status = wait_for_status(watch, folder, refresh, patience)
    except KeyboardInterrupt:
        pass
    finally:
        tracker.close()
        _keep(sent, out)
    if not rows:
        show(f"sent 0 rows to {out}: nothing new")
    if follow and status.running:
        show("the run has not finished: run the same command again to continue")
    return rows


def _send(new: NewValues, sent: Sent, tracker: TensorBoard | RunTracker) -> int:
    """Send what is new and return its number of rows."""
    rows = 0
    for values in new.metrics(sent.metrics):
        tracker.log(values)
        sent.metrics, rows = values.step + 1, rows + len(values.seeds)
    for values in new.evaluations(sent.evaluations):
        tracker.log(values)
        sent.evaluations, rows = values.step + 1, rows + len(values.seeds)
    if rows:
        tracker.flush()
    return rows
