"""The run folder: what a run leaves behind.

    run.json               specification, status, versions, hashes of the data, device, times
    metrics.jsonl          a line a chunk and seed: the means of the metrics
    evaluations.npz        raw returns and measures of every evaluation
    references.json        what to compare with, and how it was measured
    state.safetensors      the state of all seeds after the last step
    snapshots/             the policies of all seeds after the steps asked for

Every file is written beside its place and renamed, so none is ever half there; lines of
metrics.jsonl are added one chunk at a time.
"""

import dataclasses
import io
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fat2thin.evaluation.returns import REFERENCE_SEED, Evaluation, Reference
from fat2thin.training import checkpoint
from fat2thin.training.spec import RunSpec, difference

FORMAT = 1
RUNNING, FINISHED, DIVERGED = "running", "finished", "diverged"
_RUN, _METRICS, _EVALUATIONS = "run.json", "metrics.jsonl", "evaluations.npz"
_REFERENCES, _STATE, _SNAPSHOTS = "references.json", "state.safetensors", "snapshots"

MetricsRow = dict[str, int | float]
"""A line of metrics.jsonl: step, seed and the metrics by name."""

_log = logging.getLogger(__name__)


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
        if not (self.path / _RUN).exists():
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
        if (self.path / _RUN).exists():
            _log.warning("%s holds an unfinished run: it is started anew", self.path)
        snapshots = self.path / _SNAPSHOTS
        old = [self.path / name for name in (_RUN, _METRICS, _EVALUATIONS, _STATE)]
        for file in [*old, *snapshots.glob("*.safetensors")]:
            file.unlink(missing_ok=True)
        self.write_about(about)

    def about(self) -> dict[str, Any]:
        """What run.json says."""
        file = self.path / _RUN
        if not file.exists():
            raise NoRunError(f"{self.path} holds no run: there is no {_RUN}")
        about = json.loads(file.read_text())
        if about.get("format") != FORMAT:
            raise NoRunError(
                f"{file} has format {about.get('format')}, this version reads {FORMAT}"
            )
        return about

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Write run.json."""
        self._write(_RUN, _json(about))

    def append_metrics(self, rows: list[MetricsRow]) -> None:
        """Add the rows of one chunk to metrics.jsonl."""
        with (self.path / _METRICS).open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def metrics(self) -> list[MetricsRow]:
        """The rows of metrics.jsonl; there is none where the first chunk diverged."""
        file = self.path / _METRICS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def write_evaluations(self, steps: list[int], evaluations: Mapping[str, Evaluation]) -> None:
        """Write evaluations.npz: arrays "actor_sampled/returns" and the like, steps first."""
        arrays: dict[str, Any] = {"steps": np.asarray(steps, np.int64)}
        for name, evaluation in evaluations.items():
            arrays[f"{name}/returns"] = np.asarray(evaluation.returns)
            for measure, values in evaluation.measures.items():
                arrays[f"{name}/{measure}"] = np.asarray(values)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        self._write(_EVALUATIONS, buffer.getvalue())

    def evaluations(self) -> tuple[list[int], dict[str, Evaluation]]:
        """Steps and evaluations, as they were written; none where there is only a log."""
        if not (self.path / _EVALUATIONS).exists():
            return [], {}
        with np.load(self.path / _EVALUATIONS, allow_pickle=False) as file:
            arrays = dict(file)
        steps = arrays.pop("steps").tolist()
        split: dict[str, dict[str, Any]] = {}
        for name, array in arrays.items():
            policy, quantity = name.split("/")
            split.setdefault(policy, {})[quantity] = array
        return steps, {
            policy: Evaluation(returns=quantities.pop("returns"), measures=quantities)
            for policy, quantities in split.items()
        }

    def write_references(self, references: Mapping[str, Reference]) -> None:
        """Write references.json, with the seed and, in a row, the episodes that it rests on."""
        rows = {name: dataclasses.asdict(row) for name, row in references.items()}
        self._write(_REFERENCES, _json({"seed": REFERENCE_SEED, "rows": rows}))

    def references(self) -> dict[str, Reference] | None:
        """What references.json says, or None where there is none."""
        file = self.path / _REFERENCES
        if not file.exists():
            return None
        rows = json.loads(file.read_text())["rows"]
        return {name: Reference(**row) for name, row in rows.items()}

    def write_state(self, states: Any) -> None:
        """Write state.safetensors."""
        self._write(_STATE, checkpoint.dump(states))

    def state(self, like: Any) -> Any:
        """The states of all seeds, put into the structure `like`."""
        return checkpoint.load(self.path / _STATE, like)

    def write_snapshot(self, step: int, policies: Any) -> None:
        """Keep the policies of all seeds after a step."""
        (self.path / _SNAPSHOTS).mkdir(exist_ok=True)
        self._write(_snapshot(step), checkpoint.dump(policies))

    def has_snapshot(self, step: int) -> bool:
        """Whether the policies after a step are here."""
        return (self.path / _snapshot(step)).exists()

    def snapshot(self, step: int, like: Any) -> Any:
        """The policies of all seeds after a step, put into the structure `like`."""
        return checkpoint.load(self.path / _snapshot(step), like)

    def _write(self, name: str, contents: bytes) -> None:
        place = self.path / name
        beside = place.with_name(f".{place.name}.partial")
        with beside.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(place)


def _snapshot(step: int) -> str:
    return f"{_SNAPSHOTS}/step_{step:09d}.safetensors"


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
