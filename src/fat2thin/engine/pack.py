"""Runs that share one compiled program: one run, or several that differ only in numbers.

Runs can share a program if they have the same algorithm, the same number of updates, and data sets
of the same widths, action box and discount. Their data sets, seeds and numeric settings may differ.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fat2thin import algorithms
from fat2thin.algorithms.base import Batch, Problem, State, shapes_program
from fat2thin.data import Dataset
from fat2thin.data.operations import Reachable, discounted_returns, reachable_returns
from fat2thin.data.predictability import is_noisy
from fat2thin.data.row_arrays import FollowingRows, Rows, blocks
from fat2thin.data.scaling import Scales, centred
from fat2thin.engine import loop
from fat2thin.engine.program import (
    Data,
    Jobs,
    LoggedRows,
    ObservationScale,
    Program,
    of_jobs,
    put,
    sequential_here,
)
from fat2thin.engine.window import StreamedLog, WholeLogs, Window, rows_there, window_that_fits
from fat2thin.evaluation.batches import (
    action_box,
    logged_rows,
    next_logged,
    problem_of,
    scaled_actions,
)
from fat2thin.evaluation.held_out import Watched
from fat2thin.evaluation.limited import bind_limits
from fat2thin.policies import in_half_ranges
from fat2thin.policies.policy import Policy
from fat2thin.settings.options import OFFLINE
from fat2thin.settings.spec import RunSpec

OWN = ("dataset", "config", "seeds", "task", "reward_scale", "settings_from")
"""Fields that may differ between the runs of a pack; of `config` only real numbers may."""
WATCHED = 1024
"""Rows of each part of a log that signals are computed from. The rows of a shorter part repeat
about equally often, so that a job does not depend on the logs of the other jobs."""


class LoadedLog(NamedTuple):
    """A log as it was read, and the scales it is learned on."""

    dataset: Dataset
    scales: Scales
    learned: Dataset
    """The part that updates see: the whole data set if nothing is held out."""
    held_out: Dataset | None = None


class Pack(NamedTuple):
    """The program of several runs, and its arguments."""

    program: Program
    jobs: Jobs
    """The jobs of all runs, one run after the other."""
    logs: tuple[LoadedLog, ...]
    """All different logs; `Jobs.log` is an index into them."""
    window: int = 0
    """Rows of each log that updates draw from at a time; 0 is all of them."""
    longest: int = 1
    """The most updates of a chunk."""

    @property
    def data_size(self) -> int:
        """Bytes that the logs take on a device; shorter ones are padded to the longest."""
        next_action, batch_size = self.program.algorithm.next_action, self.program.batch_size
        sizes = [
            data_size(
                log.dataset, next_action,
                rows_there(log.dataset.rows, self.window, batch_size, self.longest),
            )
            for log in self.logs
        ]  # fmt: skip
        return len(self.logs) * max(sizes)

    def data(self, place: Callable[[Any], Any]) -> WholeLogs | Window:
        """Return the scaled logs, to be put on the device by `place`: all rows, or a window."""
        learned = [log.scales.apply(log.learned) for log in self.logs]
        held_out = [log.scales.apply(log.held_out) for log in self.logs if log.held_out is not None]
        levels = [log.scales.level for log in self.logs]
        next_action = self.program.algorithm.next_action
        if not self.window:
            return WholeLogs(place(on_device(learned, held_out, levels, next_action)))
        watched = watched_rows(learned, held_out, levels, next_action) if held_out else None
        sizes = self.window, self.program.batch_size, self.longest
        streamed = [
            StreamedLog(centred(scaled, log.scales.level), log.dataset.sha256, *sizes)
            for scaled, log in zip(learned, self.logs, strict=True)
        ]
        return Window(streamed, watched, next_action, place)


class Shapes(NamedTuple):
    """Shapes and types of the arrays of a run, with a leading axis of seeds."""

    jobs: Jobs
    states: State
    policies: dict[str, Policy]


def make_program(spec: RunSpec, problem: Problem) -> Program:
    """Return the program of a run on this machine."""
    return Program(
        algorithm=algorithms.get(spec.algorithm),
        problem=problem,
        config=spec.config,
        batch_size=spec.batch_size,
        precision=spec.precision,
        select=spec.select == OFFLINE,
        sequential=sequential_here(),
    )


def shapes_of(spec: RunSpec, problem: Problem, scales: Sequence[Scales]) -> Shapes:
    """Return the shapes of a run, from those of one seed; no array of the run is made."""
    one = dataclasses.replace(spec, seeds=spec.seeds[:1])
    program, jobs = make_program(spec, problem), jobs_of(one, scales[:1])
    states = loop.init.eval_shape(jobs, program=program)
    policies = loop.policies.eval_shape(states, jobs, program=program)
    return Shapes(*of_jobs((jobs, states, policies), len(spec.seeds)))


def jobs_of(spec: RunSpec, scales: Sequence[Scales]) -> Jobs:
    """Return the jobs of one run, one per seed; `scales` are those of its log, or of its logs."""
    of_seeds = list(range(len(spec.seeds))) if len(scales) > 1 else [0] * len(spec.seeds)
    observed = [scales[log].observation for log in of_seeds]
    found = [scale for scale in observed if scale is not None]
    return Jobs(
        seed=put(spec.seeds, np.int32),
        run=put([0] * len(spec.seeds), np.int32),
        log=put(of_seeds, np.int32),
        settings={},
        observation_scale=ObservationScale(
            mean=put([scale.mean for scale in found], np.float32),
            scale=put([scale.scale for scale in found], np.float32),
        )
        if found
        else None,
        value_level=put([scales[log].level for log in of_seeds], np.float32)
        if spec.centre_values
        else None,
    )


def make_pack(
    specs: Sequence[RunSpec], logs: Sequence[tuple[LoadedLog, ...]], traced: Sequence[str] = ()
) -> Pack:
    """Put all runs into one program; a ValueError says why runs cannot share one.

    Settings that differ are arguments of the program, and so are those named in `traced`.
    """
    problems = [_problem(*run) for run in zip(specs, logs, strict=True)]
    _refuse_different(specs, problems)
    varying = sorted({*traced_settings(specs), *traced})
    different = {id(log): log for several in logs for log in several}
    place = {key: number for number, key in enumerate(different)}
    jobs = []
    for run, (spec, several) in enumerate(zip(specs, logs, strict=True)):
        one = jobs_of(spec, [log.scales for log in several])
        places = np.asarray([place[id(log)] for log in several], np.int32)
        settings = {
            name: put([getattr(spec.config, name)] * len(spec.seeds), np.float32)
            for name in varying
        }
        of_seeds, ranges = np.asarray(one.log), None
        if getattr(spec.config, "clip_targets", False):
            allowed = np.asarray([_value_range(log) for log in several], np.float32)
            ranges = put(allowed[of_seeds], np.float32)
        number, log = put([run] * len(spec.seeds), np.int32), put(places[of_seeds], np.int32)
        jobs.append(one._replace(run=number, log=log, settings=settings, value_range=ranges))
    return Pack(
        program=make_program(specs[0], problems[0]),
        jobs=jax.device_put(jax.tree.map(lambda *arrays: np.concatenate(arrays), *jobs)),
        logs=tuple(different.values()),
        window=specs[0].window or 0,
        longest=specs[0].log_every,
    )


def _problem(spec: RunSpec, logs: tuple[LoadedLog, ...]) -> Problem:
    """Return the problem of a run, with its limits, which must leave something to learn."""
    problem = problem_of(logs[0].dataset)
    if spec.limits is None:
        return problem
    limits = [bind_limits(spec.limits, log.dataset) for log in logs]
    return dataclasses.replace(problem, limits=limits[0])


def with_window(
    specs: Sequence[RunSpec], logs: Sequence[tuple[LoadedLog, ...]], share: float
) -> list[RunSpec]:
    """Give runs without a window one of `share` bytes if their logs together take more."""
    needing = [
        (log, algorithms.get(spec.algorithm).next_action)
        for spec, several in zip(specs, logs, strict=True)
        for log in several
        if spec.window is None
    ]
    sizes = {id(log): data_size(log.dataset, next_action) for log, next_action in needing}
    # Shorter logs are padded to the longest.
    size = len(sizes) * max(sizes.values(), default=0)
    if size <= share:
        return [*specs]
    rows = max(log.dataset.rows for log, _ in needing)
    window = window_that_fits(int(rows * share / size), specs[0].batch_size, specs[0].log_every)
    # Two digits, so that the number is the same on similar machines.
    window = int(float(f"{window:.1e}"))
    return [
        spec if spec.window is not None else dataclasses.replace(spec, window=window)
        for spec in specs
    ]


def _value_range(log: LoadedLog) -> Reachable:
    """Return the values that a log's rewards allow, in units of the rewards learned from."""
    parts = [log.learned] if log.held_out is None else [log.learned, log.held_out]
    low, high = reachable_returns(*map(log.scales.apply, parts))
    return Reachable(low - log.scales.level, high - log.scales.level)


def _refuse_different(specs: Sequence[RunSpec], problems: Sequence[Problem]) -> None:
    """Refuse runs that cannot share a program, with the first reason."""
    first = specs[0]
    for spec, problem in zip(specs[1:], problems[1:], strict=True):
        for field in dataclasses.fields(RunSpec):
            mine, other = getattr(first, field.name), getattr(spec, field.name)
            if field.name not in OWN and mine != other:
                raise ValueError(
                    f"runs with different {field.name} ({mine!r} and {other!r}) cannot share a "
                    "program: run them separately"
                )
        if problem != problems[0]:
            raise ValueError(
                f"{first.dataset} and {spec.dataset} cannot share a program, their widths, action "
                f"boxes or discounts differ ({problems[0]} and {problem}): run them separately"
            )
    for name, values, traceable in _different_settings(specs):
        if not traceable:
            raise ValueError(
                f"runs with different {name} ({', '.join(map(repr, dict.fromkeys(values)))}) "
                "cannot share a program: only settings that are real numbers and do not shape it "
                "may differ. Run them separately"
            )


def _different_settings(specs: Sequence[RunSpec]) -> Iterator[tuple[str, list[Any], bool]]:
    """Yield settings that differ, their values, and whether they can be arguments."""
    configs = [spec.config for spec in specs]
    for field in dataclasses.fields(configs[0]):
        values = [getattr(config, field.name) for config in configs]
        if any(value != values[0] for value in values):
            real = all(isinstance(value, float) for value in values)
            yield field.name, values, real and not shapes_program(field)


def traced_settings(specs: Sequence[RunSpec]) -> list[str]:
    """Return the settings that differ between runs of one algorithm and can be arguments."""
    if len({type(spec.config) for spec in specs}) > 1:
        return []
    return [name for name, _, traceable in _different_settings(specs) if traceable]


def data_size(dataset: Dataset, next_action: bool = False, rows: int | None = None) -> int:
    """Return the number of bytes that a log, or some rows of it, take on a device."""
    columns = dataset.observation_size + dataset.action_size + 3 + next_action
    columns += 0 if dataset.allowed is None else dataset.allowed.shape[1]
    apart = dataset.observation_size * len(_apart(dataset))
    size = (columns * dataset.rows + apart) * np.dtype(np.float32).itemsize
    return size if rows is None else math.ceil(size * rows / dataset.rows)


def _apart(dataset: Dataset) -> np.ndarray:
    """Return the rows whose next observation is kept apart."""
    following = dataset.next_observation
    return following.apart if isinstance(following, FollowingRows) else np.arange(dataset.rows)


def on_device(
    datasets: Sequence[Dataset], held_out: Sequence[Dataset] = (),
    levels: Sequence[float] | None = None, next_action: bool = False,
) -> Data:  # fmt: skip
    """Put logs on the device, shorter ones padded, with rows for signals if any are held out.

    Rewards are centred at the `levels` of the logs' values; None is zero for all.
    """
    levels = levels or [0.0] * len(datasets)
    return Data(
        rows=_logged_rows([*map(centred, datasets, levels)], next_action),
        row_count=put([dataset.rows for dataset in datasets], np.int32),
        watched=watched_rows(datasets, held_out, levels, next_action) if held_out else None,
    )


def _logged_rows(datasets: Sequence[Dataset], next_action: bool) -> LoggedRows:
    """Return all rows of all logs, shorter ones padded; actions in half-ranges of the box."""
    rows = max(dataset.rows for dataset in datasets)
    states = max(dataset.rows + len(_apart(dataset)) for dataset in datasets)
    widths = {"observation": (datasets[0].observation_size,), "action": (datasets[0].action_size,)}
    if (limited := datasets[0].allowed) is not None:
        widths["allowed"] = (limited.shape[1],)

    def padded(field: str) -> np.ndarray:
        length = states if field == "observation" else rows
        together = np.zeros((len(datasets), length, *widths.get(field, ())), np.float32)
        for place, dataset in zip(together, datasets, strict=True):
            array = getattr(dataset, field)
            for block in blocks(array):
                place[block] = array[block]
        return together

    observation, following = padded("observation"), np.zeros((len(datasets), rows), np.int32)
    for log, dataset in enumerate(datasets):
        apart = _apart(dataset)
        kept = slice(dataset.rows, dataset.rows + len(apart))
        observation[log, kept] = dataset.next_observation[apart]
        following[log, : dataset.rows] = np.arange(1, dataset.rows + 1)
        following[log, apart] = np.arange(kept.start, kept.stop)
    known = np.zeros((len(datasets), rows), np.float32)
    for of_log, dataset in zip(known, datasets, strict=True):
        of_log[: dataset.rows] = next_logged(dataset)
    return LoggedRows(
        observation=put(observation, np.float32),
        action=put(in_half_ranges(padded("action"), *action_box(datasets[0])), np.float32),
        reward=put(padded("reward"), np.float32),
        continuation=put(padded("continuation"), np.float32),
        following=put(following, np.int32),
        next_logged=put(known, np.float32) if next_action else None,
        allowed=None if limited is None else put(padded("allowed"), np.float32),
    )


def watched_rows(
    datasets: Sequence[Dataset], held_out: Sequence[Dataset],
    levels: Sequence[float] | None = None, next_action: bool = False,
) -> Watched:  # fmt: skip
    """Return `WATCHED` rows of both parts of each log, spread evenly; rewards are centred."""
    levels = levels or [0.0] * len(datasets)

    def places(rows: int) -> np.ndarray:
        return np.arange(WATCHED) * rows // WATCHED

    def spread(arrays: list[Rows]) -> np.ndarray:
        return np.stack([array[places(len(array))] for array in arrays]).astype(np.float32)

    pairs = list(zip(held_out, datasets, strict=True))
    counts = [[min(one.rows, WATCHED) for one in pair] for pair in pairs]
    return Watched(
        held_out=_stacked([*map(centred, held_out, levels)], spread, next_action),
        observed_return=put(
            [discounted_returns(part, places(part.rows)) for part in held_out], np.float32
        ),
        learned=_stacked([*map(centred, datasets, levels)], spread, next_action),
        counts=put(counts, np.float32),
        noisy=put([is_noisy(dataset) for dataset in datasets], bool),
        reachable=put([reachable_returns(*pair) for pair in pairs], np.float32),
        level=put(levels, np.float32),
    )


def _stacked(
    datasets: Sequence[Dataset], stack: Callable[[list[Rows]], np.ndarray], next_action: bool
) -> Batch:
    """Return the rows of all logs, stacked field by field; actions in half-ranges of the box."""
    logged = [logged_rows(dataset, next_action) for dataset in datasets]
    rows = jax.tree.map(lambda *arrays: stack([*arrays]), *logged)
    return jax.device_put(scaled_actions(rows, datasets[0]))
