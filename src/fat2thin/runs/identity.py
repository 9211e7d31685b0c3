"""The identity of a run: specification, problem, scales, logs, versions and device.

run.json and the manifests of checkpoints record all of this. Their fields are checked before use.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fat2thin import __version__, data
from fat2thin.algorithms.base import Problem
from fat2thin.columns import Column, Transforms, default_columns, transform_from_json
from fat2thin.data.dataset import extremes
from fat2thin.data.operations import learned_and_held_out
from fat2thin.data.scaling import Scales, find_scales
from fat2thin.engine.pack import LoadedLog
from fat2thin.evaluation.limited import with_limits
from fat2thin.runs import files
from fat2thin.runs.files import DamagedError
from fat2thin.settings.automatic import Load
from fat2thin.settings.config import LARGEST_NUMBER, whole_number
from fat2thin.settings.spec import RunSpec, plain

_PACKAGES = ("jax", "jaxlib", "numpy", "numpyro", "equinox", "optax", "safetensors")
_PROCESSORS = Path("/proc/cpuinfo")
_UNSCALED = Scales().to_json()


class RunIdentity(NamedTuple):
    """The identity of a run, from its run.json."""

    spec: RunSpec
    problem: Problem
    scales: list[Scales]
    """Scales of its log, or of the log of each seed."""


def identity_of(file: Path, about: Mapping[str, Any]) -> RunIdentity:
    """Return the identity of a run; errors name the file and the field. No file is opened."""
    try:
        spec = RunSpec.from_json(about["spec"])
        problem = _problem(about["problem"])
        # Folders older than scales do not have them.
        scales = _scales(about.get("scales", [_UNSCALED]), len(spec.seeds), problem)
        if "step" in about:
            whole_number("step", about["step"], least=0, most=spec.steps)
    except ValueError as error:
        raise DamagedError(f"{file} cannot be used: {files.shortened(error)}") from error
    return RunIdentity(spec, problem, scales)


def check_fields(file: Path, values: Mapping[str, Any], needed: Sequence[str]) -> None:
    """Refuse a JSON object without the needed fields, or with known fields of a wrong type."""
    if missing := [name for name in needed if name not in values]:
        raise DamagedError(f"{file} is damaged: it has no {', '.join(missing)}")
    for name, kind in _FIELDS.items():
        if name in values and not files.is_kind(kind, values[name]):
            found = files.shortened(repr(values[name]))
            raise DamagedError(f"{file} is damaged: its {name!r} is {found}")


_is_stamp = files.fields(bytes=files.is_count, sha256=str)
_is_stop = files.fields(step=files.is_count, last_good_step=files.is_count, metric=str, why=str)


def _are_stops(value: Any) -> bool:
    are_stops = files.each(_is_stop)(value)
    return are_stops and all(seed.isascii() and seed.isdecimal() for seed in value)


def _is_share(value: Any) -> bool:
    return files.is_number(value) and 0 <= value <= 1


_is_limit_use = files.fields(
    name=str, text=str, applies=_is_share, excluded=_is_share,
    binds=lambda value: value is None or _is_share(value),
)  # fmt: skip
_is_limit_report = files.fields(
    rows=lambda value: files.is_count(value) and value > 0, excluded=files.is_count,
    without_action=files.is_count, limits=files.all_of(_is_limit_use),
)  # fmt: skip
_FIELDS: dict[str, files.Kind] = {
    "status": str,
    "spec": files.fields(config=dict),
    "problem": dict,
    "sha256": files.all_of(str),
    "scales": files.all_of(dict),
    "columns": files.each(
        files.all_of(files.fields(name=str, unit=str, low=files.is_number, high=files.is_number))
    ),
    "versions": files.each(str),
    "device": str,
    "started": str,
    "step": files.is_count,
    "seeds": files.all_of(files.is_count),
    "seconds": files.is_number,
    "diverged": str,
    "warnings": files.all_of(str),
    "selected": files.each(files.is_count),
    "resumed": files.all_of(str),
    "traced": files.all_of(str),
    "begun": files.fields(device=str, versions=files.each(str)),
    "stopped": _are_stops,
    "preparation": dict,
    "limits": _is_limit_report,
    "rollouts": files.fields(steps=files.is_count, steps_a_second=files.is_number),
    "files": files.each(_is_stamp),
    "beside": files.each(_is_stamp),
}


_TRANSFORMS = ("observation_transforms", "action_transforms")
_OPTIONAL = (*_TRANSFORMS, "value_range", "value_level", "limits")


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Return the problem as run.json keeps it: transforms only where there are some.

    Limits are in the specification.
    """
    values = plain(dataclasses.asdict(dataclasses.replace(problem, limits=None)))
    return {name: value for name, value in values.items() if value or name not in _OPTIONAL}


def columns_to_json(dataset: data.Dataset) -> dict[str, list[dict[str, Any]]]:
    """Return names, units, transforms and observed ranges of a log's columns."""
    return {
        kind: [
            {**column.to_json(), "low": float(low), "high": float(high)}
            for column, low, high in zip(
                getattr(dataset, f"{kind}_columns"), *extremes(getattr(dataset, kind)), strict=True
            )
        ]
        for kind in ("observation", "action")
    }


class RunColumns(NamedTuple):
    """The columns of a run's log, and the range of each column in it."""

    observation: tuple[Column, ...]
    action: tuple[Column, ...]
    ranges: dict[str, tuple[tuple[float, float], ...]]
    """Of "observation" and "action"; empty for a folder from before they were kept."""


def columns_of(about: Mapping[str, Any], problem: Problem) -> RunColumns:
    """Return the columns that run.json describes; by number in a folder that does not."""
    sizes = {"observation": problem.observation_size, "action": problem.action_size}
    found: dict[str, tuple[Column, ...]] = {}
    ranges: dict[str, tuple[tuple[float, float], ...]] = {}
    for kind, entries in about.get("columns", {}).items():
        if len(entries) != sizes.get(kind):
            raise ValueError(f"columns must describe {sizes} columns, got {len(entries)} {kind}")
        found[kind] = tuple(map(Column.from_json, entries))
        ranges[kind] = tuple((entry["low"], entry["high"]) for entry in entries)
    for kind in sizes.keys() - found.keys():
        found[kind] = default_columns(kind, sizes[kind])
    return RunColumns(found["observation"], found["action"], ranges)


def _problem(values: Mapping[str, Any]) -> Problem:
    names = [field.name for field in dataclasses.fields(Problem) if field.name not in _OPTIONAL]
    if sorted(name for name in values if name not in _TRANSFORMS) != sorted(names):
        raise ValueError(f"problem must have {', '.join(names)}, got {', '.join(values)}")
    for end in ("action_low", "action_high"):
        if not files.all_of(files.is_number)(values[end]):
            raise ValueError(f"problem.{end} must be a list of finite numbers, got {values[end]!r}")
    low, high = (tuple(map(float, values[end])) for end in ("action_low", "action_high"))
    if not low or len(low) != len(high) or not all(map(float.__lt__, low, high)):
        raise ValueError("problem.action_low must be below problem.action_high in every dimension")
    discount, size = values["discount"], values["observation_size"]
    if not files.is_number(discount) or not 0 <= discount <= 1:
        raise ValueError(f"problem.discount must lie in [0, 1], got {discount!r}")
    size = whole_number("problem.observation_size", size, least=1, most=LARGEST_NUMBER)
    seen, done = (
        _transforms(name, values.get(name, ()), count)
        for name, count in zip(_TRANSFORMS, (size, len(low)), strict=True)
    )
    return Problem(size, low, high, float(discount), seen, done)


def _transforms(name: str, values: Any, count: int) -> Transforms:
    if not isinstance(values, list | tuple) or len(values) not in (0, count):
        raise ValueError(f"problem.{name} must have one entry per column, {count} of them")
    return tuple(None if one is None else transform_from_json(one) for one in values)


def _scales(values: Sequence[Mapping[str, Any]], seeds: int, problem: Problem) -> list[Scales]:
    if len(values) not in (1, seeds):
        raise ValueError(f"scales must be one, or one per seed ({seeds}), got {len(values)}")
    made = [_scale(one, problem.observation_size) for one in values]
    if len({one.observation is None for one in made}) > 1:
        raise ValueError("scales must have observations in all logs or in none")
    return made


def _scale(values: Mapping[str, Any], columns: int) -> Scales:
    if sorted({*values} - {"level"}) != sorted(_UNSCALED):
        raise ValueError(f"scales must have {', '.join(_UNSCALED)}, got {', '.join(values)}")
    level = values.get("level", 0.0)
    if not files.is_number(level) or abs(level) > float(np.finfo(np.float32).max):
        raise ValueError(f"scales.level must be a number of 32 bits, got {level!r}")
    observation, reward = values["observation"], values["reward"]
    row = files.all_of(files.is_number, columns)
    if observation is not None and not files.fields(mean=row, scale=row)(observation):
        raise ValueError(f"scales.observation must have {columns} means and scales")
    known = files.fields(shift=files.is_number, factor=files.is_number)
    if reward is not None and not known(reward):
        raise ValueError(f"scales.reward must have shift and factor, got {reward!r}")
    return Scales.from_json(values)


def read_logs(specs: Sequence[RunSpec], load: Load = data.load) -> list[tuple[LoadedLog, ...]]:
    """Load the logs of each run: one, or one per seed. A log that several runs use is read once."""
    load = functools.cache(load)
    read: dict[tuple, LoadedLog] = {}

    def log(spec: RunSpec, seed: int) -> LoadedLog:
        scaling = (spec.standardise, spec.reward_scale, spec.centre_values)
        key = (spec.dataset, seed, scaling, spec.holdout, spec.limits)
        if key not in read:
            dataset = load(spec.dataset, seed)
            learned, held_out = learned_and_held_out(dataset, spec.holdout, seed)
            scales = find_scales(learned, *scaling)
            if spec.limits is not None:
                limits = spec.limits.on(dataset)
                learned = with_limits(learned, limits)
                held_out = None if held_out is None else with_limits(held_out, limits)
            read[key] = LoadedLog(dataset, scales, learned, held_out)
        return read[key]

    def seeds(spec: RunSpec) -> tuple[int, ...]:
        return spec.seeds if data.reader(spec.dataset).one_a_seed else (0,)

    return [tuple(log(spec, seed) for seed in seeds(spec)) for spec in specs]


def versions() -> dict[str, str]:
    """Return the versions of Python, fat2thin and the packages that numbers may depend on."""
    return {
        "python": platform.python_version(),
        "fat2thin": __version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def device() -> str:
    """Return the default device, a CPU by its model: another model may round differently."""
    first = jax.devices()[0]
    kind = _processor() if first.platform == "cpu" else first.device_kind
    return f"{first.platform}: {kind}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in _PROCESSORS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine_difference(then: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return the differences between two machines as text; "" if there are none."""
    return "; ".join(
        f"{name} {then.get(name)} then, {now.get(name)} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    )
