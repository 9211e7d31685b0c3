"""What run.json and the manifest of a checkpoint say, of the right kinds before it is used."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fat2thin.algorithms.base import Problem
from fat2thin.data.scaling import Scales
from fat2thin.runs.files import DamagedError
from fat2thin.settings.config import LARGEST_NUMBER, whole_number
from fat2thin.settings.spec import RunSpec

_LARGEST_COUNT = 2**63 - 1
_LONGEST_COMPLAINT = 500
_AS_THEY_ARE = Scales().to_json()

Check = Callable[[Any], bool]


class Said(NamedTuple):
    """What a run is made of."""

    spec: RunSpec
    problem: Problem
    scales: list[Scales]
    """Of its log, or of the log of each seed."""


def understand(file: Path, about: Mapping[str, Any]) -> Said:
    """The run that is told of; an error names the file and the field. Nothing is opened or made."""
    try:
        spec = RunSpec.from_json(about["spec"])
        problem = _problem(about["problem"])
        # Folders from before there were scales do not name them.
        scales = _scales(about.get("scales", [_AS_THEY_ARE]), len(spec.seeds), problem)
        if "step" in about:
            whole_number("step", about["step"], least=0, most=spec.steps)
    except ValueError as error:
        raise DamagedError(f"{file} cannot be used: {shown(error)}") from error
    return Said(spec, problem, scales)


def check(file: Path, values: Mapping[str, Any]) -> None:
    """Refuse fields of another kind than we write, by name; those that are not there are right."""
    for name, holds in _FIELDS.items():
        if name in values and not holds(values[name]):
            raise DamagedError(f"{file} is damaged: its {name!r} is {shown(repr(values[name]))}")


def shown(complaint: object) -> str:
    """The beginning of what may be very long."""
    text = str(complaint)
    return text if len(text) <= _LONGEST_COMPLAINT else f"{text[:_LONGEST_COMPLAINT]} ..."


def is_number(value: Any) -> bool:
    """Whether it is a finite real number that a float can hold."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_count(value: Any) -> bool:
    """Whether it is a whole number that 64 bits can hold, none below 0."""
    return type(value) is int and 0 <= value <= _LARGEST_COUNT


def is_text(value: Any) -> bool:
    """Whether it is a string."""
    return isinstance(value, str)


def is_object(value: Any) -> bool:
    """Whether it has fields."""
    return isinstance(value, dict)


def all_of(holds: Check) -> Check:
    """Whether it is a list, all of this kind."""
    return lambda value: isinstance(value, list) and all(map(holds, value))


def each(holds: Check) -> Check:
    """Whether it is an object whose fields, however they are called, are all of this kind."""
    return lambda value: is_object(value) and all(map(holds, value.values()))


def fields(**kinds: Check) -> Check:
    """Whether it is an object that has at least these fields, of these kinds."""

    def holds(value: Any) -> bool:
        return is_object(value) and all(
            name in value and of_kind(value[name]) for name, of_kind in kinds.items()
        )

    return holds


is_stamp = fields(bytes=is_count, sha256=is_text)
_is_stop = fields(step=is_count, last_good_step=is_count, metric=is_text, why=is_text)


def _are_stops(value: Any) -> bool:
    return each(_is_stop)(value) and all(seed.isascii() and seed.isdecimal() for seed in value)


_FIELDS: dict[str, Check] = {
    "status": is_text,
    "spec": fields(config=is_object),
    "problem": is_object,
    "sha256": all_of(is_text),
    "scales": all_of(is_object),
    "versions": each(is_text),
    "device": is_text,
    "started": is_text,
    "step": is_count,
    "seeds": all_of(is_count),
    "seconds": is_number,
    "diverged": is_text,
    "warnings": all_of(is_text),
    "selected": each(is_count),
    "resumed": all_of(is_text),
    "traced": all_of(is_text),
    "begun": fields(device=is_text, versions=each(is_text)),
    "stopped": _are_stops,
    "preparation": is_object,
    "rollouts": fields(steps=is_count, steps_a_second=is_number),
    "files": each(is_stamp),
    "beside": each(is_stamp),
}


def _problem(values: Mapping[str, Any]) -> Problem:
    names = [field.name for field in dataclasses.fields(Problem)]
    if sorted(values) != sorted(names):
        raise ValueError(f"problem must have {', '.join(names)}, got {', '.join(values)}")
    low, high = (_numbers(f"problem.{end}", values[end]) for end in ("action_low", "action_high"))
    if not low or len(low) != len(high) or not all(map(float.__lt__, low, high)):
        raise ValueError("problem.action_low must lie below problem.action_high, number by number")
    discount = values["discount"]
    if not is_number(discount) or not 0 <= discount <= 1:
        raise ValueError(f"problem.discount must lie in [0, 1], got {discount!r}")
    size = values["observation_size"]
    size = whole_number("problem.observation_size", size, least=1, most=LARGEST_NUMBER)
    return Problem(size, low, high, float(discount))


def _scales(values: Sequence[Mapping[str, Any]], seeds: int, problem: Problem) -> list[Scales]:
    if len(values) not in (1, seeds):
        raise ValueError(f"scales must be one, or one a seed, got {len(values)} for {seeds} seeds")
    made = [_scale(one, problem.observation_size) for one in values]
    if len({one.observation is None for one in made}) > 1:
        raise ValueError("scales must be of observations in all logs or in none")
    return made


def _scale(values: Mapping[str, Any], columns: int) -> Scales:
    if sorted(values) != sorted(_AS_THEY_ARE):
        raise ValueError(f"scales must have {', '.join(_AS_THEY_ARE)}, got {', '.join(values)}")
    observation, reward = values["observation"], values["reward"]
    if observation is not None:
        numbers = all_of(is_number)
        known = fields(mean=numbers, scale=numbers)(observation)
        if not known or {len(observation["mean"]), len(observation["scale"])} != {columns}:
            raise ValueError(f"scales.observation must have {columns} means and scales")
    if reward is not None and not fields(shift=is_number, factor=is_number)(reward):
        raise ValueError(f"scales.reward must have shift and factor, got {reward!r}")
    return Scales.from_json(values)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if not all_of(is_number)(values):
        raise ValueError(f"{name} must be a list of finite numbers, got {values!r}")
    return tuple(map(float, values))
