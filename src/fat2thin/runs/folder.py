"""The run folder, which holds all files of a run.

    run.json               specification, status, versions, hashes of the data, device, times;
                           at the end a checksum per file
    metrics.jsonl          a line per chunk and seed: the means of the metrics
    evaluations.npz        raw returns and measures of every evaluation
    references.json        results of reference policies, and how they were measured
    state.safetensors      the state of all seeds after the last step
    snapshots/             the policies of all seeds after the requested steps
    checkpoints/           from which an unfinished run resumes, see `checkpoints`

Every file is written under another name and renamed, so none is ever incomplete; lines are added
to metrics.jsonl one chunk at a time. Files that are read may be hostile.
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
import safetensors.numpy

from fat2thin.algorithms.base import Problem
from fat2thin.atomic_files import regular_descriptor, remove_partial, sync, write
from fat2thin.data.coverage import Coverage, coverage_from_arrays
from fat2thin.data.formats.npz import open_npz
from fat2thin.evaluation.returns import REFERENCE_SEED, Evaluation, Reference
from fat2thin.runs import checkpoints, files
from fat2thin.runs.checkpoints import Checkpoint
from fat2thin.runs.files import LARGEST_LOG, DamagedError, NoRunError
from fat2thin.runs.identity import check_fields
from fat2thin.settings.spec import RunSpec, difference

FORMAT = 1
RUNNING, FINISHED, DIVERGED = "running", "finished", "diverged"
RUN, METRICS, EVALUATIONS = "run.json", "metrics.jsonl", "evaluations.npz"
REFERENCES, STATE, SNAPSHOTS = "references.json", "state.safetensors", "snapshots"
LOG_SUMMARY = "log_summary.safetensors"  # centroids of the log's states, for referrals
LARGEST_SUMMARY = 64 * 2**20  # bytes; 512 centroids of 1,000 columns need 6 MB
LONGEST_LINE = 2**20  # maximum length of a line of metrics, in bytes

MetricsRow = dict[str, int | float]  # a line of metrics.jsonl: step, seed and the metrics by name

_log = logging.getLogger(__name__)
_ALWAYS = ("status", "spec", "problem", "sha256")
"""Fields of every run.json; a run that is over also has "step", its last step."""
_has_place = files.fields(step=files.is_count, seed=files.is_count)


class OtherRunError(ValueError):
    """The folder holds a different run."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Reads and writes the files of one run."""

    path: Path

    def status(self, spec: RunSpec, hashes: list[str]) -> str | None:
        """Return the status of this run, None if it has not started; another run is refused."""
        if not self._has(RUN):
            self._refuse_other_files()
            return None
        about = self.about()
        lines = difference(about["spec"], spec.to_json())
        if not lines and about["sha256"] != hashes:
            lines = ["the contents of the data set have changed"]
        if lines:
            raise OtherRunError(
                f"{self.path} holds another run ({'; '.join(lines)}). "
                "Choose another folder, or remove this one."
            )
        return about["status"]

    def _refuse_other_files(self) -> None:
        """Raise an error if a folder without a run holds files of others.

        Hidden files, and those of a run whose start was interrupted, are not in the way.
        """
        own = {
            METRICS, EVALUATIONS, REFERENCES, STATE, SNAPSHOTS, LOG_SUMMARY, checkpoints.FOLDER,
        }  # fmt: skip
        try:
            names = sorted(os.listdir(self.path))
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise OtherRunError(f"{self.path} is a file: choose a folder for the run") from None
        others = [name for name in names if name not in own and not name.startswith(".")]
        if others:
            raise OtherRunError(
                f"{self.path} holds other files ({others[0]}{', ...' * (len(others) > 1)}) and no "
                f"run: choose an empty or a new folder, such as {self.path / 'run'}"
            )

    def begin(self, about: Mapping[str, Any]) -> None:
        """Prepare the folder for a new run; the files of an unfinished one are removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._has(RUN):
            _log.warning(
                "%s holds an unfinished run without a usable checkpoint: it starts again", self.path
            )
        for name in (RUN, METRICS, EVALUATIONS, STATE, REFERENCES, LOG_SUMMARY):
            (self.path / name).unlink(missing_ok=True)
        self._remove_snapshots(later_than=-1)
        self._remove_partial()
        checkpoints.forget(self.path)
        self.write_about(about)

    def go_back_to(self, checkpoint: Checkpoint) -> None:
        """Reset metrics, evaluations and snapshots to a checkpoint."""
        self._remove_partial()
        checkpoints.forget_later(self.path, checkpoint.place)
        for name in (METRICS, EVALUATIONS):
            if (contents := checkpoint.contents(name)) is not None:
                write(self.path / name, contents)
            else:
                (self.path / name).unlink(missing_ok=True)
        (self.path / STATE).unlink(missing_ok=True)
        self._remove_snapshots(checkpoint.place.step if checkpoint.place.training else -1)

    def _remove_partial(self) -> None:
        """Remove half-written files but those of checkpoints; the caller holds the lock."""
        for folder in (self.path, self._snapshots):
            remove_partial(folder)

    @property
    def _snapshots(self) -> Path:
        return files.own_folder(self.path / SNAPSHOTS)

    def _has(self, name: str) -> bool:
        """Whether there is anything of this name, even a broken link."""
        return os.path.lexists(self.path / name)

    def _remove_snapshots(self, later_than: int) -> None:
        for file in self._snapshots.glob("step_*.safetensors"):
            number = file.stem.removeprefix("step_")
            if number.isdecimal() and int(number) > later_than:
                file.unlink()

    def about(self) -> dict[str, Any]:
        """Return the contents of run.json, checked."""
        file = self.path / RUN
        try:
            about = files.read_json(file)
        except (FileNotFoundError, NotADirectoryError):
            if self.path.is_dir():
                why = f"there is no {RUN}"
            else:
                why = "it is a file" if self.path.exists() else "there is no such folder"
            raise NoRunError(f"{self.path} holds no run: {why}") from None
        if about.get("format") != FORMAT:
            found = files.shortened(about.get("format"))
            raise NoRunError(f"{file} has format {found}, this version reads {FORMAT}")
        over = about.get("status") in (FINISHED, DIVERGED)
        check_fields(file, about, (*_ALWAYS, "step") if over else _ALWAYS)
        if not over and about["status"] != RUNNING:
            status = files.shortened(about["status"])
            raise DamagedError(f"{file} is damaged: its status is {status!r}")
        return about

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Write run.json."""
        write(self.path / RUN, files.as_json(about))

    def stamps(self, limit: int | None = None) -> dict[str, files.Stamp]:
        """Return the stamps of a finished run's files; one above `limit` bytes is refused."""
        names = [METRICS, EVALUATIONS, STATE, LOG_SUMMARY, *self.snapshot_names()]
        return {name: files.stamp_of(self.path / name, limit) for name in names if self._has(name)}

    def snapshot_names(self) -> list[str]:
        """Return the files of all snapshots in the folder."""
        names = [f"{SNAPSHOTS}/{file.name}" for file in self._snapshots.glob("step_*")]
        return sorted(filter(checkpoints.BESIDE.fullmatch, names))

    def append_metrics(self, rows: list[MetricsRow]) -> None:
        """Add the rows of one chunk to metrics.jsonl; raise an error if the run was removed."""
        (self.path / RUN).stat()
        # JSON has no numbers that are not finite.
        known = (
            {name: value if math.isfinite(value) else None for name, value in row.items()}
            for row in rows
        )
        lines = "".join(json.dumps(row) + "\n" for row in known)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = regular_descriptor(self.path / METRICS, flags, follow_links=False)
        with os.fdopen(descriptor, "ab") as file:
            file.write(lines.encode())

    def metrics_rows(self, seeds: Sequence[int] | None = None) -> Iterator[MetricsRow]:
        """Yield the rows of metrics.jsonl; none if the first chunk diverged.

        A last line that is not complete yet is left out. With `seeds`, every step must have a row
        of each, in their order.
        """
        file = self.path / METRICS
        if not self._has(METRICS):
            return
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
                        found = row["step"]
                        raise ValueError(f"its step {found} does not follow step {step}")
                except (ValueError, RecursionError) as error:
                    complaint = f"{file}, line {number}, is damaged: {files.shortened(error)}"
                    raise DamagedError(complaint) from error
                step = int(row["step"])
                # With the names of the first row, so that each name is in memory once.
                yield {name: row[name] for name in first}
        if len(line) == LONGEST_LINE:
            raise DamagedError(f"{file}, line {number + 1}, is longer than {LONGEST_LINE:,} bytes")
        if seeds and number % len(seeds):
            raise DamagedError(f"{file} is cut off: its last step is missing for some seeds")

    def metrics_contents(self) -> bytes:
        """Return the contents of metrics.jsonl."""
        return files.read(self.path / METRICS, LARGEST_LOG) if self._has(METRICS) else b""

    def write_evaluations(self, steps: list[int], evaluations: Mapping[str, Evaluation]) -> None:
        """Write evaluations.npz: arrays "actor_sampled/returns" and the like, steps first."""
        write(self.path / EVALUATIONS, evaluations_contents(steps, evaluations))

    def evaluations(self, seeds: int) -> tuple[list[int], dict[str, Evaluation]]:
        """Return steps and evaluations of all seeds; empty if there is no task to evaluate on."""
        path = self.path / EVALUATIONS
        if not self._has(EVALUATIONS):
            return [], {}
        with open_npz(path, LARGEST_LOG, follow_links=False) as file:
            arrays = {name: file.read(name, None) for name in file.fields}
        steps = arrays.pop("steps", None)
        if steps is None or steps.ndim != 1 or steps.dtype != np.int64:
            raise DamagedError(f"{path} is damaged: its steps are not a list of whole numbers")
        if (steps < 0).any() or (steps[1:] <= steps[:-1]).any():
            raise DamagedError(f"{path} is damaged: its steps do not increase")
        split: dict[str, dict[str, Any]] = {}
        for name, array in arrays.items():
            policy, slash, quantity = name.partition("/")
            if not slash or array.shape[:1] != steps.shape:
                raise DamagedError(f"{path} is damaged: {name} does not belong to its steps")
            axes = 3 if quantity == "returns" else 2
            if array.ndim != axes or array.shape[1] != seeds:
                raise DamagedError(f"{path} is damaged: {name} is not of {seeds} seeds")
            split.setdefault(policy, {})[quantity] = array
        if lost := [policy for policy, quantities in split.items() if "returns" not in quantities]:
            raise DamagedError(f"{path} is damaged: it has no returns of {', '.join(lost)}")
        return steps.tolist(), {
            policy: Evaluation(returns=quantities.pop("returns"), measures=quantities)
            for policy, quantities in split.items()
        }

    def write_references(self, references: Mapping[str, Reference]) -> None:
        """Write references.json: the seed, and one row per reference."""
        rows = {name: dataclasses.asdict(row) for name, row in references.items()}
        write(self.path / REFERENCES, files.as_json({"seed": REFERENCE_SEED, "rows": rows}))

    def references(self) -> dict[str, Reference] | None:
        """Return the rows of references.json, or None if there is no such file."""
        file = self.path / REFERENCES
        if not self._has(REFERENCES):
            return None
        rows: Any = files.read_json(file).get("rows")
        if not files.each(_is_reference)(rows):
            raise DamagedError(f"{file} is damaged: its rows are not those of references")
        return {name: Reference(**row) for name, row in rows.items()}

    def write_state(self, states: Any) -> None:
        """Write state.safetensors, the last file before run.json is marked as over."""
        if self._has(METRICS):
            # Its lines were added without a sync.
            sync(self.path / METRICS)
        write(self.path / STATE, files.dump_tree(states))

    def write_log_summary(self, coverage: Coverage) -> None:
        """Write log_summary.safetensors."""
        arrays = {**coverage.arrays(), "episodes": np.asarray(coverage.episodes)}
        write(self.path / LOG_SUMMARY, safetensors.numpy.save(arrays))

    def log_summary(self, problem: Problem) -> Coverage | None:
        """Return the summary of the log's states, checked; None if there is no such file."""
        file = self.path / LOG_SUMMARY
        if not self._has(LOG_SUMMARY):
            return None
        try:
            arrays = safetensors.numpy.load(files.read(file, LARGEST_SUMMARY))
            episodes = arrays.pop("episodes", np.zeros(1))
            if episodes.shape or episodes.dtype.kind != "i":
                raise ValueError("its number of episodes is not a whole number")
            found = coverage_from_arrays(arrays, int(episodes), problem.observation_transforms)
            sizes = found.mean.size, found.action.shape[-1]
            if sizes != (problem.observation_size, problem.action_size):
                raise ValueError(f"it is of {sizes[0]} observation and {sizes[1]} action columns")
        except (ValueError, KeyError, safetensors.SafetensorError) as error:
            raise DamagedError(f"{file} is damaged: {files.shortened(error)}") from error
        return found

    def state(self, like: Any) -> Any:
        """Return the states of all seeds, in the structure `like`."""
        return files.load_tree(self.path / STATE, like)

    def write_snapshot(self, step: int, policies: Any) -> None:
        """Write the policies of all seeds after a step."""
        files.own_folder(self.path / SNAPSHOTS, create=True)
        write(self.path / _snapshot(step), files.dump_tree(policies))

    def kept_snapshots(self, steps: Iterable[int]) -> list[int]:
        """Return those of the steps that have a snapshot."""
        here = set(self.snapshot_names())
        return [step for step in steps if _snapshot(step) in here]

    def snapshot(self, step: int, like: Any) -> Any:
        """Return the policies of all seeds after a step, in the structure `like`."""
        return files.load_tree(self.path / _snapshot(step), like)


def metrics_row(line: bytes) -> MetricsRow:
    """Parse one line of metrics.jsonl; a ValueError if it is not one."""
    row = json.loads(line)
    if not _has_place(row):
        raise ValueError("it is not an object with a step and a seed")
    metrics = {name: value for name, value in row.items() if name not in ("step", "seed")}
    for name, value in metrics.items():
        if value is not None and not files.is_number(value):
            raise ValueError(f"{name} is {value!r}")
        row[name] = math.nan if value is None else float(value)
    return row


def _is_reference(row: Any) -> bool:
    def is_real(value: Any) -> bool:
        return type(value) is float or files.is_number(value)

    needed = files.fields(mean=is_real, measures=files.each(is_real), rule=str)
    return (
        needed(row)
        and {"standard_error"} <= row.keys() <= {one.name for one in dataclasses.fields(Reference)}
        and (row["standard_error"] is None or is_real(row["standard_error"]))
        and (row.get("episodes") is None or files.is_count(row["episodes"]))
    )


def evaluations_contents(steps: Iterable[int], evaluations: Mapping[str, Evaluation]) -> bytes:
    """Return the contents of evaluations.npz."""
    arrays: dict[str, Any] = {"steps": np.asarray([*steps], np.int64)}
    for name, evaluation in evaluations.items():
        arrays[f"{name}/returns"] = np.asarray(evaluation.returns)
        for measure, values in evaluation.measures.items():
            arrays[f"{name}/{measure}"] = np.asarray(values)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _snapshot(step: int) -> str:
    return f"{SNAPSHOTS}/step_{step:09d}.safetensors"
