"""Steps of a kept run computed again, and compared bit for bit with what its folder says."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fat2thin.algorithms.base import State
from fat2thin.engine.devices import JobScheduler, chunk_size
from fat2thin.engine.pack import LoadedLog, data_size, jobs_of, make_pack, make_program
from fat2thin.runs import machine
from fat2thin.runs.checkpoints import Place
from fat2thin.runs.evidence import NotPossible, Record
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import RUN, STATE, MetricsRow, refuse_too_large


def replay(record: Record, logs: tuple[LoadedLog, ...], most: int | None) -> str:
    """Compute at least `most` steps again (or one chunk) from the start; says what was found.

    Where the newest checkpoint is within so many steps of the end, those after it as well.
    """
    if most == 0:
        raise NotPossible("none was asked for")
    try:
        collections.deque(record.rows(), maxlen=0)
    except DamagedError as error:
        raise NotPossible(f"there is nothing to compare with: {error}") from error
    if not record.chunks:
        raise NotPossible("no chunk of updates was completed")
    most = record.chunks[0][1] if most is None else most
    _refuse_too_large(record, logs)
    again = _Again(record, logs)
    told, done = [], 0
    if again.pack.program.algorithm.preparation is None:
        chunks = [(start, length) for start, length in record.chunks if start < most]
        again.compute(again.turns.init(), np.ones(len(record.spec.seeds), bool), chunks)
        done = sum(chunks[-1])
        told.append(f"{done:,} steps from the start")
    else:
        told.append("nothing from the start: it begins with a preparation")
    newest = record.checkpoints[0] if record.checkpoints else None
    if record.over and done < record.reached and newest and newest.place.training:
        step = newest.place.step
        left = record.reached - step
        if 0 < left <= most:
            stopped = newest.manifest.get("stopped", {})
            active = np.asarray([str(seed) not in stopped for seed in record.spec.seeds])
            chunks = [(start, length) for start, length in record.chunks if start >= step]
            again.compute(again.turns.spread(record.kept_state(newest)), active, chunks)
            told.append(f"{left:,} steps from the checkpoint of step {step:,} to the end")
        elif left > most:
            told.append(f"nothing at the end: a replay of {left:,} steps would reach it")
    if not again.compared:
        raise NotPossible("; ".join(told))
    again.judge("; ".join(told))
    return f"{'; '.join(told)}. Equal to the bit: {', '.join(again.compared)}"


def _refuse_too_large(record: Record, logs: tuple[LoadedLog, ...]) -> None:
    """Refuse to compute what files cannot hold, or what needs more memory than it may take."""
    try:
        _ = record.shapes
    except DamagedError as error:
        raise NotPossible(f"its states do not fit: {error}") from error
    spec, said = record.spec, record.said
    program = make_program(spec, said.problem)
    one = jobs_of(dataclasses.replace(spec, seeds=spec.seeds[:1]), said.scales[:1])
    # The logs are there; their scaled copies and those on the device are not.
    copies = 2 * sum(data_size(log.dataset) for log in logs)
    refuse_too_large(
        record.folder.path / RUN,
        "spec.config, spec.batch_size and spec.seeds",
        chunk_size(program, one, len(spec.seeds)) + copies,
    )


class _Again:
    """The run being computed again, and where it is not what it was."""

    def __init__(self, record: Record, logs: tuple[LoadedLog, ...]) -> None:
        self.record = record
        known = vars(record.spec.config)
        traced = [
            name for name in record.about.get("traced", ()) if isinstance(known.get(name), float)
        ]
        self.pack = make_pack([record.spec], [logs], traced)
        self.turns = JobScheduler(self.pack.program, self.pack.jobs, self.pack.data_size)
        self.compared: list[str] = []
        self._data = self.turns.replicated(self.pack.data())
        self._first: str | None = None
        self._largest = 0.0

    def compute(self, states: State, active: np.ndarray, chunks: Sequence[tuple[int, int]]) -> None:
        """Chunks one after the other, each compared with its rows and with the weights kept."""
        if chunks[0][0] == 0:
            self._compare_weights(0, states)
        ends = {start + length for start, length in chunks}
        rows = {
            (int(row["step"]), int(row["seed"])): row
            for row in self.record.rows()
            if row["step"] in ends
        }
        for start, length in chunks:
            states, report = self.turns.chunk(states, self._data, start, length, active=active)
            active = active & ~(np.asarray(report.bad_update) >= 0)
            metrics = jax.device_get(report.row)
            self._compare_rows(rows, start + length, metrics, active)
            self._compare_weights(start + length, states)
        first, last = chunks[0][0] + 1, sum(chunks[-1])
        self.compared.append(f"metrics of steps {first:,} to {last:,}")

    def judge(self, told: str) -> None:
        """Refuse what differs; elsewhere than where the run was computed it proves nothing."""
        if self._first is None:
            return
        sentence = (
            f"{told}. First difference: {self._first}; the largest relative difference of all is "
            f"{self._largest:.1e}"
        )
        if changed := self._elsewhere():
            raise NotPossible(f"the run was computed elsewhere ({changed}). {sentence}")
        raise DamagedError(sentence)

    def _elsewhere(self) -> str:
        said = ("device", "devices", "jobs_at_a_time")
        about = self.record.about
        now = {"device": machine.device(), **self.turns.about} | machine.versions()
        told = []
        # A run that went on elsewhere was begun somewhere, too.
        for place in (about, {**about, **about.get("begun", {})}):
            then = {name: place[name] for name in said if name in place} | place["versions"]
            told.append(machine.difference(then, now))
        return next(filter(None, told), "")

    def _compare_rows(
        self,
        rows: Mapping[tuple[int, int], MetricsRow],
        step: int,
        metrics: dict[str, np.ndarray],
        active: np.ndarray,
    ) -> None:
        for place, seed in enumerate(self.record.spec.seeds):
            row = rows.get((step, seed), {})
            for name in sorted({*metrics, *row} - {"step", "seed"}):
                kept = float(row.get(name, np.nan))
                here = name in metrics and active[place]
                found = float(metrics[name][place]) if here else np.nan
                where = f"{name} of seed {seed} at step {step:,}, {kept!r} there and {found!r} here"
                self._note(np.asarray(kept), np.asarray(found), where)

    def _compare_weights(self, step: int, states: State) -> None:
        record, gathered = self.record, self.turns.gathered(states)
        if step in record.folder.kept_snapshots(record.spec.snapshots):
            kept, found = record.kept_policies(step), self.turns.policies(states)
            self._compare_trees(f"the snapshot of step {step:,}", kept, found)
        for checkpoint in record.checkpoints:
            if checkpoint.place == Place(training=True, step=step):
                kept = record.kept_state(checkpoint)
                self._compare_trees(f"the checkpoint of step {step:,}", kept, gathered)
        if record.over and step == record.reached:
            self._compare_trees(STATE, record.kept_state(), gathered)

    def _compare_trees(self, name: str, kept: Any, found: Any) -> None:
        self.compared.append(name)
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(kept))
        for (path, one), other in zip(leaves, jax.tree.leaves(jax.device_get(found)), strict=True):
            for place, seed in enumerate(self.record.spec.seeds):
                where = f"{jax.tree_util.keystr(path)} of seed {seed} in {name}"
                self._note(np.asarray(one[place]), np.asarray(other[place]), where)

    def _note(self, kept: np.ndarray, found: np.ndarray, where: str) -> None:
        """Remember where two arrays differ first, and by how much at most."""
        if kept.tobytes() == found.tobytes() or (np.isnan(kept) & np.isnan(found)).all():
            return
        self._first = self._first or where
        one, other = np.asarray(kept, np.float64), np.asarray(found, np.float64)
        with np.errstate(invalid="ignore"):
            scale = np.maximum(np.maximum(np.abs(one), np.abs(other)), np.finfo(np.float64).tiny)
            relative = np.abs(one - other) / scale
        # A number where there should be none is as far away as can be.
        largest = np.where(np.isnan(relative), np.inf, relative).max()
        self._largest = max(self._largest, float(largest))
