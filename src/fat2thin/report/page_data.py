"""What the page shows, taken from runs: plain values that JSON can hold."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fat2thin import algorithms, data
from fat2thin.data import Dataset
from fat2thin.envs import treatment
from fat2thin.evaluation.statistics import RESAMPLES, seed_interval
from fat2thin.report.page_policies import Limits, Plain, good_seed, logged_pairs, look_at, rounded
from fat2thin.report.page_weights import critic_of, values_at, weights
from fat2thin.runs.folder import RunFolder
from fat2thin.runs.result import Run
from fat2thin.settings.options import DEFAULT, LAST
from fat2thin.tables import listed

WEIGHT_BYTES = 3_000_000
"""Characters of the page that weights may take; what is left of 5 MB is for all else."""
CLAIM_FIELDS = (
    "claim", "statement", "verdict", "effect", "low", "high", "meaning", "seeds", "command",
)  # fmt: skip
"""What is said of a claim."""
_MOST_CURVE_POINTS = 6000
_POINTS_OF_A_CURVE = (30, 200)
_DRAWS = 30_000_000
_FEWEST_RESAMPLES = 500
_FEW_RUNS = 20


def gather(
    runs: Sequence[Run],
    claims: Sequence[Mapping[str, Any]] = (),
    logs: Mapping[str, Dataset] | None = None,
) -> Plain:
    """Everything that the page shows. `logs` are data sets by the names that the runs have them by.

    Nothing that a run's folder names is opened: a log is in the page where it can be drawn anew
    (the treatment task) or was handed over.
    """
    if not runs:
        raise ValueError("a page needs at least one run; none was given")
    limits = Limits(6, 12) if len(runs) <= _FEW_RUNS else Limits(3, 5)
    few, many = _POINTS_OF_A_CURVE
    points = int(np.clip(_MOST_CURVE_POINTS // len(runs), few, many))
    resamples = int(np.clip(_DRAWS // (4 * points * len(runs)), _FEWEST_RESAMPLES, RESAMPLES))
    shelf, shown = _Shelf(logs or {}), datasets_of(runs)
    described = []
    for run, name in zip(runs, names_of(runs), strict=True):
        place = shelf.place(run)
        looked_at = look_at(run, None if place is None else shelf.logs[place], limits)
        described.append(
            {
                "name": name,
                **_about(run),
                "dataset": shown[run.spec.dataset],
                "curves": _curves(run, points, resamples),
                "metrics": _metrics(run, points, resamples),
                "references": _references(run),
                "policies": {**looked_at, "log": place},
            }
        )
    _add_weights(runs, described)
    return {
        "runs": described,
        "logs": [logged_pairs(log) for log in shelf.logs],
        "claims": [_claim(claim) for claim in claims],
        "resamples": resamples,
    }


class _Shelf:
    """The logs of runs, each of them once."""

    def __init__(self, given: Mapping[str, Dataset]) -> None:
        self.logs: list[Dataset] = []
        self._given = given
        self._places: dict[tuple[str, int | None], int] = {}

    def place(self, run: Run) -> int | None:
        """Which of `logs` is the log of the seed that is shown; None where it is not at hand."""
        name = run.spec.dataset
        drawn = name not in self._given and treatment.is_name(name)
        if not drawn and name not in self._given:
            return None
        seed = good_seed(run)
        key = (name, seed if drawn else None)
        if key not in self._places:
            log = data.load(name, seed) if drawn else self._given[name]
            sizes = (log.observation_size, log.action_size)
            problem = run.program.problem
            if sizes != (problem.observation_size, problem.action_size):
                raise ValueError(
                    f"the log given for {name!r} has observations and actions of sizes {sizes}; "
                    f"the run learned from {problem.observation_size} and {problem.action_size}"
                )
            self._places[key] = len(self.logs)
            self.logs.append(log)
        return self._places[key]


def datasets_of(runs: Sequence[Run]) -> dict[str, str]:
    """What each data set is called: of a path its last part, unless two would be called the same.

    Whoever gets the page need not learn how folders are called elsewhere.
    """
    names = dict.fromkeys(run.spec.dataset for run in runs)
    short = {name: Path(name).name if Path(name).is_absolute() else name for name in names}
    taken = list(short.values())
    return {name: said if taken.count(said) == 1 else name for name, said in short.items()}


def names_of(runs: Sequence[Run]) -> list[str]:
    """What each run is called: its algorithm, and what tells it from the others on its data set.

    Of the settings in which they differ those are said that are not the algorithm's own.
    """
    specs = [_flat(run) for run in runs]
    names = []
    for run, spec in zip(runs, specs, strict=True):
        rivals = [other for other in specs if _kind(other) == _kind(spec)]
        differing = [name for name in spec if any(rival[name] != spec[name] for rival in rivals)]
        usual = _flat(run, algorithms.get(run.spec.algorithm).config())
        usual |= {"standardise": False, "reward_scale": 1.0, "settings_from": DEFAULT, "task": None}
        usual |= {"holdout": 0.0, "select": LAST}
        said = [
            name
            for name in differing
            if name in ("steps", "seeds") or json.dumps(spec[name]) != json.dumps(usual[name])
        ]
        told = ", ".join(_told(name, spec[name]) for name in said)
        names.append(f"{spec['algorithm']} ({told})" if told else spec["algorithm"])
    return _told_apart(names, runs)


def _kind(spec: Plain) -> tuple[str, str]:
    return spec["algorithm"], spec["dataset"]


def _flat(run: Run, config: Any = None) -> Plain:
    spec = run.spec if config is None else dataclasses.replace(run.spec, config=config)
    values = spec.to_json()
    return {**{name: values[name] for name in values if name != "config"}, **values["config"]}


def _told(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    return words if value is True else f"{words} {_plainly(value)}"


def _plainly(value: Any) -> str:
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return listed(value)
    return value if isinstance(value, str) else json.dumps(value)


def _told_apart(names: list[str], runs: Sequence[Run]) -> list[str]:
    """The same, with the folder or a number behind those that are alike on one data set."""
    keys = [(name, run.spec.dataset) for name, run in zip(names, runs, strict=True)]
    folders = [run.folder.name if run.folder else "" for run in runs]
    told = []
    for place, key in enumerate(keys):
        alike = [folder for folder, other in zip(folders, keys, strict=True) if other == key]
        if len(alike) == 1:
            told.append(names[place])
        elif "" not in alike and len(set(alike)) == len(alike):
            told.append(f"{names[place]}, {folders[place]}")
        else:
            told.append(f"{names[place]}, no. {keys[:place].count(key) + 1}")
    return told


def _about(run: Run) -> Plain:
    spec = run.spec
    return {
        "algorithm": spec.algorithm,
        "seeds": listed(spec.seeds),
        "seed_count": len(spec.seeds),
        "step": run.step,
        "folder": run.folder.name if run.folder else None,
        "stopped": listed(sorted(map(int, run.about.get("stopped", {})))),
        "warnings": run.about.get("warnings", []),
        "reward_scaled": spec.reward_scale != 1.0,
        "settings": {name: _plainly(value) for name, value in spec.to_json()["config"].items()},
    }


def _curves(run: Run, points: int, resamples: int) -> Plain:
    """Mean returns with intervals, by policy and way of acting."""
    steps = run.evaluations.steps
    places = _thinned(len(steps), points)
    return {
        name: _curve(np.asarray(steps)[places], np.asarray(evaluation.returns)[places], resamples)
        for name, evaluation in run.evaluations.policies.items()
    }


def _metrics(run: Run, points: int, resamples: int) -> Plain:
    """The same of the metrics, for a run that was not judged on any task."""
    if run.evaluations.policies or not run.metrics:
        return {}
    steps = run.metrics["step"]
    places = _thinned(len(steps), points)
    return {
        name: _curve(steps[places], values[places][..., None], resamples)
        for name, values in run.metrics.items()
        if name != "step"
    }


def _curve(
    steps: np.ndarray, values: Float[np.ndarray, "steps seeds episodes"], resamples: int
) -> Plain:
    intervals = [seed_interval(of_step, resamples=resamples) for of_step in values]
    mean, low, high = zip(*intervals, strict=True) if intervals else ((), (), ())
    return {
        "steps": [int(step) for step in steps],
        "mean": rounded(mean), "low": rounded(low), "high": rounded(high),
    }  # fmt: skip


def _thinned(count: int, most: int) -> np.ndarray:
    """Places of at most so many rows, the first and the last among them."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(int))


def _references(run: Run) -> Plain:
    """What is kept of the task's reference rows; none is measured for the page."""
    kept = run.measured
    if kept is None and run.folder is not None:
        kept = RunFolder(run.folder).references()
    return {name: rounded(reference.mean) for name, reference in (kept or {}).items()}


def _add_weights(runs: Sequence[Run], described: Iterable[Plain]) -> None:
    """Give weights to as many runs as fit, first those with few action coordinates and weights.

    The others get their Q in the picked states.
    """
    pairs = list(zip(runs, described, strict=True))
    pairs.sort(key=lambda pair: (pair[0].program.problem.action_size, _weight_count(pair[0])))
    left = WEIGHT_BYTES
    for run, plain in pairs:
        policies, critic = plain["policies"], critic_of(run)
        # Two characters and two thirds a weight: where that does not fit, nothing need be encoded.
        fits = _weight_count(run) * 8 // 3 <= left
        encoded = weights(run, critic) if fits else None
        size = len(json.dumps(encoded))
        if encoded is not None and size <= left:
            policies["weights"] = encoded
            left -= size
            continue
        policies["weights"] = None
        policies["unknown_family"] = fits and encoded is None
        if critic is not None:
            policies |= values_at(run, policies, critic)


def _weight_count(run: Run) -> int:
    """About how many weights the page would need: a policy's, and two critics'."""
    hidden, problem = getattr(run.spec.config, "hidden", ()), run.program.problem
    sizes = (problem.observation_size, *hidden, 1)
    return 3 * sum(inputs * outputs for inputs, outputs in zip(sizes, hidden, strict=False))


def _claim(claim: Mapping[str, Any]) -> Plain:
    missing = [field for field in CLAIM_FIELDS if field not in claim]
    if missing:
        raise ValueError(
            f"a claim must have {', '.join(CLAIM_FIELDS)}; {', '.join(missing)} is missing from "
            f"{dict(claim)!r}"
        )
    plain = {field: claim[field] for field in CLAIM_FIELDS}
    for field in ("effect", "low", "high"):
        if plain[field] is not None:
            plain[field] = rounded(plain[field])
    return plain
