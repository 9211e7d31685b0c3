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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.data.npz_files import open_npz
from fat2thin.evaluation.returns import REFERENCE_SEED, Evaluation, Reference
from fat2thin.training import checkpoints, files, trees
from fat2thin.training.checkpoints import Checkpoint
from fat2thin.training.files import DamagedError
from fat2thin.training.spec import RunSpec, difference

FORMAT = 1
RUNNING, FINISHED, DIVERGED = "running", "finished", "diverged"
RUN, METRICS, EVALUATIONS = "run.json", "metrics.jsonl", "evaluations.npz"
REFERENCES, STATE, SNAPSHOTS = "references.json", "state.safetensors", "snapshots"
LARGEST_LOG = 2**30
"""Bytes of metrics, and of evaluations, that are read at most."""

MetricsRow = dict[str, int | float]
"""A line of metrics.jsonl: step, seed and the metrics by name."""

_log = logging.getLogger(__name__)


_ALWAYS = ("status", "spec", "problem", "sha256")
"""What every run.json says."""


class OtherRunError(ValueError):
    """The folder holds another run than the one asked for."""


class NoRunError(ValueError):
    """The folder holds no run that can be loaded."""


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Reads and writes the files of one run."""

    path: Path

    def status(self, spec: RunSpec, hashes: list[str]) -> str | None:
        """How far this very run is, None where it is not here; another one is refused."""
        if not (self.path / RUN).exists():
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
        if (self.path / RUN).exists():
            _log.warning(
                "%s holds an unfinished run without a checkpoint: it is started anew", self.path
            )
        for name in (RUN, METRICS, EVALUATIONS, STATE):
            (self.path / name).unlink(missing_ok=True)
        self._remove_snapshots(later_than=-1)
        checkpoints.forget(self.path)
        self.write_about(about)

    def go_back_to(self, checkpoint: Checkpoint) -> None:
        """Make metrics, evaluations and snapshots those that there were at a checkpoint."""
        for name in (METRICS, EVALUATIONS):
            contents = checkpoint.contents(name)
            if contents is None:
                (self.path / name).unlink(missing_ok=True)
            else:
                files.write(self.path / name, contents)
        (self.path / STATE).unlink(missing_ok=True)
        self._remove_snapshots(checkpoint.place.step if checkpoint.place.training else -1)

    def _remove_snapshots(self, later_than: int) -> None:
        for file in (self.path / SNAPSHOTS).glob("step_*.safetensors"):
            number = file.stem.removeprefix("step_")
            if number.isdigit() and int(number) > later_than:
                file.unlink()

    def about(self) -> dict[str, Any]:
        """What run.json says."""
        file = self.path / RUN
        if not file.exists():
            raise NoRunError(f"{self.path} holds no run: there is no {RUN}")
        about = files.read_json(file)
        if about.get("format") != FORMAT:
            raise NoRunError(
                f"{file} has format {about.get('format')}, this version reads {FORMAT}"
            )
        if missing := [name for name in _ALWAYS if name not in about]:
            raise DamagedError(f"{file} is damaged: it says nothing of {', '.join(missing)}")
        return about

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Write run.json."""
        files.write(self.path / RUN, files.as_json(about))

    def stamps(self) -> dict[str, files.Stamp]:
        """What the files of a run that is over are known by."""
        names = [METRICS, EVALUATIONS, STATE, *self.snapshot_names()]
        return {
            name: files.stamp_of(self.path / name) for name in names if (self.path / name).exists()
        }

    def snapshot_names(self) -> list[str]:
        """The files of all snapshots that are here."""
        return sorted(f"{SNAPSHOTS}/{file.name}" for file in (self.path / SNAPSHOTS).glob("step_*"))

    def append_metrics(self, rows: list[MetricsRow]) -> None:
        """Add the rows of one chunk to metrics.jsonl."""
        with (self.path / METRICS).open("a") as file:
            file.write("".join(json.dumps(_without_nan(row)) + "\n" for row in rows))

    def metrics(self) -> list[MetricsRow]:
        """The rows of metrics.jsonl; there is none where the first chunk diverged."""
        file = self.path / METRICS
        return read_metrics(file) if file.exists() else []

    def metrics_contents(self) -> bytes:
        """metrics.jsonl as it is."""
        file = self.path / METRICS
        return file.read_bytes() if file.exists() else b""

    def write_evaluations(self, steps: list[int], evaluations: Mapping[str, Evaluation]) -> None:
        """Write evaluations.npz: arrays "actor_sampled/returns" and the like, steps first."""
        files.write(self.path / EVALUATIONS, evaluations_contents(steps, evaluations))

    def evaluations(self) -> tuple[list[int], dict[str, Evaluation]]:
        """Steps and evaluations, as they were written; none where there is only a log."""
        file = self.path / EVALUATIONS
        return read_evaluations(file) if file.exists() else ([], {})

    def write_references(self, references: Mapping[str, Reference]) -> None:
        """Write references.json, with the seed and, in a row, the episodes that it rests on."""
        rows = {name: dataclasses.asdict(row) for name, row in references.items()}
        files.write(self.path / REFERENCES, files.as_json({"seed": REFERENCE_SEED, "rows": rows}))

    def references(self) -> dict[str, Reference] | None:
        """What references.json says, or None where there is none."""
        file = self.path / REFERENCES
        if not file.exists():
            return None
        try:
            rows = files.read_json(file)["rows"]
            return {str(name): Reference(**row) for name, row in rows.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{file} is damaged: {error!r}") from error

    def write_state(self, states: Any) -> None:
        """Write state.safetensors."""
        files.write(self.path / STATE, trees.dump(states))

    def state(self, like: Any) -> Any:
        """The states of all seeds, put into the structure `like`."""
        return trees.load(self.path / STATE, like)

    def write_snapshot(self, step: int, policies: Any) -> None:
        """Keep the policies of all seeds after a step."""
        (self.path / SNAPSHOTS).mkdir(exist_ok=True)
        files.write(self.path / _snapshot(step), trees.dump(policies))

    def has_snapshot(self, step: int) -> bool:
        """Whether the policies after a step are here."""
        return (self.path / _snapshot(step)).exists()

    def snapshot(self, step: int, like: Any) -> Any:
        """The policies of all seeds after a step, put into the structure `like`."""
        return trees.load(self.path / _snapshot(step), like)


def read_metrics(file: Path) -> list[MetricsRow]:
    """The rows of a metrics.jsonl. A last line that is not ended yet is left out."""
    size = file.stat().st_size
    if size > LARGEST_LOG:
        raise DamagedError(f"{file} has {size:,} bytes; {LARGEST_LOG:,} are read at most")
    lines = file.read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            rows.append({str(name): _number(name, value) for name, value in row.items()})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{file}, line {number}, is damaged: {error}") from error
    return rows


def _number(name: str, value: Any) -> int | float:
    if name in ("step", "seed"):
        if type(value) is not int:
            raise TypeError(f"{name} is {value!r}")
        return value
    return math.nan if value is None else float(value)


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


def read_evaluations(path: Path) -> tuple[list[int], dict[str, Evaluation]]:
    """Steps and evaluations of an evaluations.npz."""
    with open_npz(path, LARGEST_LOG) as file:
        arrays = {name: file.read(name, None) for name in file.fields}
    steps = arrays.pop("steps", None)
    if steps is None or steps.ndim != 1 or steps.dtype != np.int64:
        raise DamagedError(f"{path} is damaged: its steps are no row of whole numbers")
    split: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        policy, slash, quantity = name.partition("/")
        if not slash or array.shape[:1] != steps.shape:
            raise DamagedError(f"{path} is damaged: {name} does not belong to its steps")
        split.setdefault(policy, {})[quantity] = array
    if lost := [policy for policy, quantities in split.items() if "returns" not in quantities]:
        raise DamagedError(f"{path} is damaged: it has no returns of {', '.join(lost)}")
    return steps.tolist(), {
        policy: Evaluation(returns=quantities.pop("returns"), measures=quantities)
        for policy, quantities in split.items()
    }


def _snapshot(step: int) -> str:
    return f"{SNAPSHOTS}/step_{step:09d}.safetensors"
