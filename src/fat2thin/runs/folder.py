"""The run folder: what a run leaves behind.

    run.json               specification, status, versions, hashes of the data, device, times;
                           at the end a checksum a file
    metrics.jsonl          a line a chunk and seed: the means of the metrics
    evaluations.npz        raw returns and measures of every evaluation
    references.json        what to compare with, and how it was measured
    state.safetensors      the state of all seeds after the last step
    snapshots/             the policies of all seeds after the steps asked for
    checkpoints/           what an unfinished run goes on from, see `checkpoints`

Every file is written beside its place and renamed, so none is ever half there; lines of
metrics.jsonl are added one chunk at a time. Whatever is read may be a stranger's.
"""

import dataclasses
import io
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.atomic_files import regular_descriptor, remove_partial, sync, write
from fat2thin.data.formats.npz import open_npz
from fat2thin.data.safe_files import default_limit
from fat2thin.evaluation.returns import REFERENCE_SEED, Evaluation, Reference
from fat2thin.runs import checkpoints, files, trees
from fat2thin.runs import run_json as told
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import LARGEST_LOG, DamagedError
from fat2thin.settings.spec import RunSpec, difference

FORMAT = 1
RUNNING, FINISHED, DIVERGED = "running", "finished", "diverged"
RUN, METRICS, EVALUATIONS = "run.json", "metrics.jsonl", "evaluations.npz"
REFERENCES, STATE, SNAPSHOTS = "references.json", "state.safetensors", "snapshots"
LONGEST_LINE = 2**20
"""Bytes of a line of metrics."""

MetricsRow = dict[str, int | float]
"""A line of metrics.jsonl: step, seed and the metrics by name."""

_log = logging.getLogger(__name__)


_ALWAYS = ("status", "spec", "problem", "sha256")
"""What every run.json says; of a run that is over also its last step."""


class OtherRunError(ValueError):
    """The folder holds another run than the one asked for."""


class NoRunError(ValueError):
    """The folder holds no run that can be loaded."""


class TooLargeError(NoRunError):
    """A run asks for more memory than reading or checking it may take on this machine."""


def refuse_too_large(file: Path, fields: str, size: int) -> None:
    """Refuse what the fields of a file ask for, where it is over half of the machine's memory."""
    limit = default_limit()
    if size > limit:
        raise TooLargeError(
            f"{file}: {fields} ask for about {size:,} bytes of memory; the limit is {limit:,}, "
            "half of what this machine has"
        )


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Reads and writes the files of one run."""

    path: Path

    def status(self, spec: RunSpec, hashes: list[str]) -> str | None:
        """How far this very run is, None where it is not here; another one is refused."""
        if not self._has(RUN):
            return None
        about = self.about()
        lines = difference(about["spec"], spec.to_json())
        if not lines and about["sha256"] != hashes:
            lines = ["the contents of the data set are not what they were"]
        if lines:
            raise OtherRunError(
                f"{self.path} holds another run ({'; '.join(lines)}). "
                "Choose another folder, or remove this one."
            )
        return about["status"]

    def begin(self, about: Mapping[str, Any]) -> None:
        """Make the folder ready for a run; what an unfinished one left is removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._has(RUN):
            _log.warning(
                "%s holds a run that no checkpoint leads on from: it is started anew", self.path
            )
        for name in (RUN, METRICS, EVALUATIONS, STATE, REFERENCES):
            (self.path / name).unlink(missing_ok=True)
        self._remove_snapshots(later_than=-1)
        self._remove_partial()
        checkpoints.forget(self.path)
        self.write_about(about)

    def go_back_to(self, checkpoint: Checkpoint) -> None:
        """Make metrics, evaluations and snapshots those that there were at a checkpoint."""
        self._remove_partial()
        checkpoints.forget_later(self.path, checkpoint.place)
        for name in (METRICS, EVALUATIONS):
            contents = checkpoint.contents(name)
            if contents is None:
                (self.path / name).unlink(missing_ok=True)
            else:
                write(self.path / name, contents)
        (self.path / STATE).unlink(missing_ok=True)
        self._remove_snapshots(checkpoint.place.step if checkpoint.place.training else -1)

    def _remove_partial(self) -> None:
        """Remove what a killed process left half written; the caller holds the lock.

        Checkpoints see to their own.
        """
        for folder in (self.path, self._snapshots):
            remove_partial(folder)

    @property
    def _snapshots(self) -> Path:
        return files.own_folder(self.path / SNAPSHOTS)

    def _has(self, name: str) -> bool:
        """Whether there is anything of this name, a link that leads nowhere included."""
        return os.path.lexists(self.path / name)

    def _remove_snapshots(self, later_than: int) -> None:
        for file in self._snapshots.glob("step_*.safetensors"):
            number = file.stem.removeprefix("step_")
            if number.isdecimal() and int(number) > later_than:
                file.unlink()

    def about(self) -> dict[str, Any]:
        """What run.json says."""
        file = self.path / RUN
        try:
            about = files.read_json(file)
        except (FileNotFoundError, NotADirectoryError):
            raise NoRunError(f"{self.path} holds no run: there is no {RUN}") from None
        if about.get("format") != FORMAT:
            found = told.shown(about.get("format"))
            raise NoRunError(f"{file} has format {found}, this version reads {FORMAT}")
        over = about.get("status") in (FINISHED, DIVERGED)
        needed = (*_ALWAYS, "step") if over else _ALWAYS
        if missing := [name for name in needed if name not in about]:
            raise DamagedError(f"{file} is damaged: it says nothing of {', '.join(missing)}")
        told.check(file, about)
        if not over and about["status"] != RUNNING:
            raise DamagedError(f"{file} is damaged: its status is {told.shown(about['status'])!r}")
        return about

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Write run.json."""
        write(self.path / RUN, files.as_json(about))

    def stamps(self, limit: int | None = None) -> dict[str, files.Stamp]:
        """What the files of a run that is over are known by; one above `limit` bytes is refused."""
        names = [METRICS, EVALUATIONS, STATE, *self.snapshot_names()]
        return {name: files.stamp_of(self.path / name, limit) for name in names if self._has(name)}

    def snapshot_names(self) -> list[str]:
        """The files of all snapshots that are here."""
        names = [f"{SNAPSHOTS}/{file.name}" for file in self._snapshots.glob("step_*")]
        return sorted(filter(checkpoints.BESIDE.fullmatch, names))

    def append_metrics(self, rows: list[MetricsRow]) -> None:
        """Add the rows of one chunk to metrics.jsonl; not where somebody removed the run."""
        (self.path / RUN).stat()
        lines = "".join(json.dumps(_without_nan(row)) + "\n" for row in rows)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(
            regular_descriptor(self.path / METRICS, flags, follow_links=False), "ab"
        ) as file:
            file.write(lines.encode())

    def metrics_rows(self, seeds: Sequence[int] | None = None) -> Iterator[MetricsRow]:
        """The rows of metrics.jsonl, one at a time; there is none where the first chunk diverged.

        With `seeds`, every step must have a row of each.
        """
        return read_metrics(self.path / METRICS, seeds) if self._has(METRICS) else iter(())

    def metrics_contents(self) -> bytes:
        """metrics.jsonl as it is."""
        return files.read(self.path / METRICS, LARGEST_LOG) if self._has(METRICS) else b""

    def write_evaluations(self, steps: list[int], evaluations: Mapping[str, Evaluation]) -> None:
        """Write evaluations.npz: arrays "actor_sampled/returns" and the like, steps first."""
        write(self.path / EVALUATIONS, evaluations_contents(steps, evaluations))

    def evaluations(self, seeds: int | None = None) -> tuple[list[int], dict[str, Evaluation]]:
        """Steps and evaluations, as they were written; none where there is only a log."""
        file = self.path / EVALUATIONS
        return read_evaluations(file, seeds) if self._has(EVALUATIONS) else ([], {})

    def write_references(self, references: Mapping[str, Reference]) -> None:
        """Write references.json, with the seed and, in a row, the episodes that it rests on."""
        rows = {name: dataclasses.asdict(row) for name, row in references.items()}
        write(self.path / REFERENCES, files.as_json({"seed": REFERENCE_SEED, "rows": rows}))

    def references(self) -> dict[str, Reference] | None:
        """What references.json says, or None where there is none."""
        file = self.path / REFERENCES
        if not self._has(REFERENCES):
            return None
        rows: Any = files.read_json(file).get("rows")
        if not told.each(_is_reference)(rows):
            raise DamagedError(f"{file} is damaged: its rows are not those of references")
        return {name: Reference(**row) for name, row in rows.items()}

    def write_state(self, states: Any) -> None:
        """Write state.safetensors, the last file before run.json says that all is there."""
        if self._has(METRICS):
            # Its lines were added without waiting for the disk.
            sync(self.path / METRICS)
        write(self.path / STATE, trees.dump(states))

    def state(self, like: Any) -> Any:
        """The states of all seeds, put into the structure `like`."""
        return trees.load(self.path / STATE, like)

    def write_snapshot(self, step: int, policies: Any) -> None:
        """Keep the policies of all seeds after a step."""
        if not self._snapshots.exists():
            self._snapshots.mkdir()
            sync(self.path)
        write(self.path / _snapshot(step), trees.dump(policies))

    def kept_snapshots(self, steps: Iterable[int]) -> list[int]:
        """Those of the steps after which the policies are here."""
        here = set(self.snapshot_names())
        return [step for step in steps if _snapshot(step) in here]

    def snapshot(self, step: int, like: Any) -> Any:
        """The policies of all seeds after a step, put into the structure `like`."""
        return trees.load(self.path / _snapshot(step), like)


def read_metrics(file: Path, seeds: Sequence[int] | None = None) -> Iterator[MetricsRow]:
    """The rows of a metrics.jsonl, one at a time. A last line that is not ended yet is left out.

    With `seeds`, every step must have a row of each, in their order.
    """
    first: MetricsRow = {}
    step, number = -1, 0
    with files.opened(file, LARGEST_LOG) as lines:
        while (line := lines.readline(LONGEST_LINE)).endswith(b"\n"):
            place = number % len(seeds) if seeds else 0
            number += 1
            try:
                row = metrics_row(line)
                first = first or row
                if row.keys() != first.keys():
                    raise ValueError("its metrics are not those of the first line")
                if seeds and row["seed"] != seeds[place]:
                    raise ValueError(f"it is not of seed {seeds[place]}")
                if seeds and (row["step"] <= step if place == 0 else row["step"] != step):
                    raise ValueError(f"its step {row['step']} does not go with {step} before it")
            except (ValueError, RecursionError) as error:
                complaint = f"{file}, line {number}, is damaged: {told.shown(error)}"
                raise DamagedError(complaint) from error
            step = int(row["step"])
            # The names of the first row are those of all: they are kept once.
            yield {name: row[name] for name in first}
    if len(line) == LONGEST_LINE:
        raise DamagedError(f"{file}, line {number + 1}, is longer than {LONGEST_LINE:,} bytes")
    if seeds and number % len(seeds):
        raise DamagedError(f"{file} is cut off: its last step is not there for all seeds")


_has_place = told.fields(step=told.is_count, seed=told.is_count)


def metrics_row(line: bytes) -> MetricsRow:
    """One line of a metrics.jsonl; a ValueError where it is none."""
    row = json.loads(line)
    if not _has_place(row):
        raise ValueError("it is no object with a step and a seed")
    return {name: _number(name, value) for name, value in row.items()}


def _number(name: str, value: Any) -> int | float:
    if name in ("step", "seed"):
        return value
    if value is None:
        return math.nan
    if not told.is_number(value):
        raise ValueError(f"{name} is {value!r}")
    return float(value)


def _is_reference(row: Any) -> bool:
    def is_real(value: Any) -> bool:
        return type(value) is float or told.is_number(value)

    needed = told.fields(
        mean=is_real,
        standard_error=lambda value: value is None or is_real(value),
        measures=told.each(is_real),
        rule=told.is_text,
    )
    return (
        needed(row)
        and row.keys() <= {field.name for field in dataclasses.fields(Reference)}
        and (row.get("episodes") is None or told.is_count(row["episodes"]))
    )


def _without_nan(row: MetricsRow) -> dict[str, int | float | None]:
    """JSON has no number for what is not finite: it is null there."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}


def evaluations_contents(steps: Iterable[int], evaluations: Mapping[str, Evaluation]) -> bytes:
    """What evaluations.npz holds of these."""
    arrays: dict[str, Any] = {"steps": np.asarray([*steps], np.int64)}
    for name, evaluation in evaluations.items():
        arrays[f"{name}/returns"] = np.asarray(evaluation.returns)
        for measure, values in evaluation.measures.items():
            arrays[f"{name}/{measure}"] = np.asarray(values)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def read_evaluations(
    path: Path, seeds: int | None = None
) -> tuple[list[int], dict[str, Evaluation]]:
    """Steps and evaluations of an evaluations.npz; with `seeds`, it must be of so many."""
    with open_npz(path, LARGEST_LOG, follow_links=False) as file:
        arrays = {name: file.read(name, None) for name in file.fields}
    steps = arrays.pop("steps", None)
    if steps is None or steps.ndim != 1 or steps.dtype != np.int64:
        raise DamagedError(f"{path} is damaged: its steps are no row of whole numbers")
    if (steps < 0).any() or (steps[1:] <= steps[:-1]).any():
        raise DamagedError(f"{path} is damaged: its steps do not grow")
    split: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        policy, slash, quantity = name.partition("/")
        if not slash or array.shape[:1] != steps.shape:
            raise DamagedError(f"{path} is damaged: {name} does not belong to its steps")
        axes = 3 if quantity == "returns" else 2
        if seeds is not None and (array.ndim != axes or array.shape[1] != seeds):
            raise DamagedError(f"{path} is damaged: {name} is not of {seeds} seeds")
        split.setdefault(policy, {})[quantity] = array
    if lost := [policy for policy, quantities in split.items() if "returns" not in quantities]:
        raise DamagedError(f"{path} is damaged: it has no returns of {', '.join(lost)}")
    return steps.tolist(), {
        policy: Evaluation(returns=quantities.pop("returns"), measures=quantities)
        for policy, quantities in split.items()
    }


def _snapshot(step: int) -> str:
    return f"{SNAPSHOTS}/step_{step:09d}.safetensors"
