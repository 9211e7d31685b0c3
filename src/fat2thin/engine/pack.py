"""Runs that share one compiled program: a run alone, or several that differ only in numbers.

Runs may share one where they have the same algorithm, the same number of updates, and data sets of
the same widths, action box and discount; their data sets, seeds and numeric settings may differ.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fat2thin import algorithms
from fat2thin.algorithms.base import Problem, State, shapes_program
from fat2thin.data import Dataset
from fat2thin.data.scaling import Scales
from fat2thin.engine import loop
from fat2thin.engine.jobs import Data, Jobs, ObservationScale, data_size, on_device
from fat2thin.engine.program import Program, sequential_here
from fat2thin.evaluation.batches import problem_of
from fat2thin.policies.policy import Policy
from fat2thin.settings.options import OFFLINE
from fat2thin.settings.spec import RunSpec

OWN = ("dataset", "config", "seeds", "task", "reward_scale", "settings_from")
"""What may differ between the runs of a pack; settings in their real numbers alone."""


class Log(NamedTuple):
    """A log as it was read, and the scales it is learned on."""

    dataset: Dataset
    scales: Scales
    learned: Dataset
    """The part that updates see: all of it, where none is held out."""
    held_out: Dataset | None = None


class Pack(NamedTuple):
    """What is compiled for several runs, and what it is called with."""

    program: Program
    jobs: Jobs
    """Of all runs, one after the other."""
    logs: tuple[Log, ...]
    """All different logs; `Jobs.log` counts them."""

    @property
    def data_size(self) -> int:
        """What the logs take of a device, in bytes; shorter ones are padded to the longest."""
        return len(self.logs) * max(data_size(log.dataset) for log in self.logs)

    def data(self) -> Data:
        """The logs on the device, on their scales."""
        return on_device(
            [log.scales.apply(log.learned) for log in self.logs],
            [log.scales.apply(log.held_out) for log in self.logs if log.held_out is not None],
        )


def make_program(spec: RunSpec, problem: Problem) -> Program:
    """What is compiled for a run on this machine."""
    return Program(
        algorithm=algorithms.get(spec.algorithm),
        problem=problem,
        config=spec.config,
        batch_size=spec.batch_size,
        select=spec.select == OFFLINE,
        sequential=sequential_here(),
    )


class Shapes(NamedTuple):
    """Shapes and types of what a run is made of, with a leading axis of seeds."""

    jobs: Jobs
    states: State
    policies: dict[str, Policy]


def shapes_of(spec: RunSpec, problem: Problem, scales: Sequence[Scales]) -> Shapes:
    """Shapes of a run. They are found for one seed and without making an array of them."""
    one = dataclasses.replace(spec, seeds=spec.seeds[:1])
    program, jobs = make_program(spec, problem), jobs_of(one, scales[:1])
    states = eqx.filter_eval_shape(functools.partial(loop.init, program=program), jobs)
    make = functools.partial(loop.policies, program=program)
    policies = eqx.filter_eval_shape(make, states, jobs)
    return Shapes(*of_jobs((jobs, states, policies), len(spec.seeds)))


def of_jobs(like: Any, count: int) -> Any:
    """The shapes of so many jobs, by those of any number."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), like
    )


def jobs_of(spec: RunSpec, scales: Sequence[Scales]) -> Jobs:
    """The jobs of one run, a seed each; `scales` are those of its log, or of its logs."""
    of_seeds = list(range(len(spec.seeds))) if len(scales) > 1 else [0] * len(spec.seeds)
    return Jobs(
        seed=jnp.asarray(spec.seeds, jnp.int32),
        run=jnp.zeros(len(spec.seeds), jnp.int32),
        log=jnp.asarray(of_seeds, jnp.int32),
        settings={},
        observation_scale=_observation_scale([scales[log] for log in of_seeds]),
    )


def make_pack(
    specs: Sequence[RunSpec], logs: Sequence[tuple[Log, ...]], traced: Sequence[str] = ()
) -> Pack:
    """All runs in one program; runs that cannot share one are an error that says why.

    Settings that differ are arguments of the program, and so are those named in `traced`.
    """
    problems = [problem_of(several[0].dataset) for several in logs]
    _refuse_strangers(specs, problems)
    _refuse_other_shapes(specs)
    varying = sorted({*traced_settings(specs), *traced})
    different = {id(log): log for several in logs for log in several}
    place = {key: number for number, key in enumerate(different)}
    jobs = []
    for run, (spec, several) in enumerate(zip(specs, logs, strict=True)):
        one = jobs_of(spec, [log.scales for log in several])
        places = np.asarray([place[id(log)] for log in several], np.int32)
        settings = {name: getattr(spec.config, name) for name in varying}
        jobs.append(
            one._replace(
                run=one.run + run,
                log=jnp.asarray(places[np.asarray(one.log)]),
                settings={
                    name: jnp.full(len(spec.seeds), value, jnp.float32)
                    for name, value in settings.items()
                },
            )
        )
    return Pack(
        program=make_program(specs[0], problems[0]),
        jobs=jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *jobs),
        logs=tuple(different.values()),
    )


def _observation_scale(scales: Sequence[Scales]) -> ObservationScale | None:
    found = [scale.observation for scale in scales if scale.observation is not None]
    if not found:
        return None
    return ObservationScale(
        mean=jnp.asarray([one.mean for one in found], jnp.float32),
        scale=jnp.asarray([one.scale for one in found], jnp.float32),
    )


def _refuse_strangers(specs: Sequence[RunSpec], problems: Sequence[Problem]) -> None:
    first = specs[0]
    for spec, problem in zip(specs[1:], problems[1:], strict=True):
        for field in dataclasses.fields(RunSpec):
            mine, other = getattr(first, field.name), getattr(spec, field.name)
            if field.name not in OWN and mine != other:
                raise ValueError(
                    f"runs with different {field.name} ({mine!r} and {other!r}) cannot share a "
                    "program: run them apart"
                )
        if problem != problems[0]:
            raise ValueError(
                f"{first.dataset} and {spec.dataset} cannot share a program, their widths, action "
                f"boxes or discounts differ ({problems[0]} and {problem}): run them apart"
            )


def traced_settings(specs: Sequence[RunSpec]) -> list[str]:
    """Settings that differ between runs of one algorithm and can be arguments of one program."""
    configs = [spec.config for spec in specs]
    if len({type(config) for config in configs}) > 1:
        return []
    return [
        field.name
        for field in dataclasses.fields(configs[0])
        if _differs(configs, field.name) and _traceable(configs, field)
    ]


def _differs(configs: Sequence[Any], name: str) -> bool:
    return any(getattr(config, name) != getattr(configs[0], name) for config in configs)


def _traceable(configs: Sequence[Any], field: dataclasses.Field) -> bool:
    values = [getattr(config, field.name) for config in configs]
    return not shapes_program(field) and all(isinstance(value, float) for value in values)


def _refuse_other_shapes(specs: Sequence[RunSpec]) -> None:
    configs = [spec.config for spec in specs]
    for field in dataclasses.fields(configs[0]):
        if _differs(configs, field.name) and not _traceable(configs, field):
            values = dict.fromkeys(getattr(config, field.name) for config in configs)
            raise ValueError(
                f"runs with different {field.name} ({', '.join(map(repr, values))}) cannot share a "
                "program: only settings that are real numbers and do not shape it may differ. Run "
                "them apart"
            )
