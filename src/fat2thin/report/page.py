"""A self-contained HTML page to explore runs, which needs no network."""

import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fat2thin import algorithms, data
from fat2thin.atomic_files import write
from fat2thin.data import Dataset
from fat2thin.envs import treatment
from fat2thin.evaluation.statistics import RESAMPLES, seed_interval
from fat2thin.report import page_policies
from fat2thin.report.html_page import filled
from fat2thin.report.page_policies import Plain, good_seed, rounded, spread
from fat2thin.runs.result import Run
from fat2thin.settings.options import DEFAULT, LAST
from fat2thin.settings.spec import RunSpec
from fat2thin.tables import listed

CLAIM_FIELDS = (
    "claim", "statement", "verdict", "effect", "low", "high", "meaning", "seeds", "command",
)  # fmt: skip
"""Fields of a claim."""
Claims = Sequence[Mapping[str, Any]]
Logs = Mapping[str, Dataset]  # by the name of the data set in the run
_SCRIPTS = (
    "laws.js",
    "limits.js",
    "plot.js",
    "curves.js",
    "policies.js",
    "explorer.js",
    "start.js",
)
_MOST_CURVE_POINTS = 6000
_POINTS_OF_A_CURVE = (30, 200)
_DRAWS = 30_000_000
_FEWEST_RESAMPLES = 500
_FEW_RUNS = 20
_MOST_POLICIES = 40
"""Seeds of all runs up to which the policies of every seed are shown, else of one per run."""


def make_page(runs: Sequence[Run], claims: Claims = (), logs: Logs | None = None) -> str:
    """Return the page. `claims` have `CLAIM_FIELDS`; logs of the treatment task are optional."""
    found = {**gather(runs, claims, logs), "view": page_policies.VIEW}
    datasets = list(datasets_of(runs).values())
    count = "one run" if len(runs) == 1 else f"{len(runs)} runs"
    where = datasets[0] if len(datasets) == 1 else f"{len(datasets)} data sets"
    title = html.escape(f"fat2thin: {count} on {where}")
    return filled("page.html", ("page.css",), _SCRIPTS, found, {"title": title})


def save_page(
    runs: Sequence[Run], path: str | Path, claims: Claims = (), logs: Logs | None = None
) -> Path:
    """Write the page to a file atomically and return its path."""
    place = Path(path)
    refuse_existing(place, overwrite=True)
    contents = make_page(runs, claims, logs).encode()
    place.parent.mkdir(parents=True, exist_ok=True)
    write(place, contents)
    return place


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise a ValueError if the page would replace a folder, or a file without `overwrite`."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give a file, such as {path / 'report.html'}")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists; --overwrite replaces it")


def gather(runs: Sequence[Run], claims: Claims = (), logs: Logs | None = None) -> Plain:
    """Return everything that the page shows, as values for JSON.

    Files named in a run folder are not opened: the page contains a log only if it can be generated
    again (the treatment task) or is given in `logs`.
    """
    if not runs:
        raise ValueError("a page needs at least one run")
    room = (6, 12) if len(runs) <= _FEW_RUNS else (3, 5)
    points = int(np.clip(_MOST_CURVE_POINTS // len(runs), *_POINTS_OF_A_CURVE))
    resamples = int(np.clip(_DRAWS // (4 * points * len(runs)), _FEWEST_RESAMPLES, RESAMPLES))
    shown_seeds = _seeds_of(runs)
    (shelf, places), shown = _logs_of(runs, shown_seeds, logs or {}), datasets_of(runs)
    described, every = [], []
    for run, name, seeds in zip(runs, names_of(runs), shown_seeds, strict=True):
        spec = run.spec
        policies = []
        for seed in seeds:
            place = places.pop(0)
            log = None if place is None else shelf[place]
            policies.append({**page_policies.look_at(run, seed, log, *room), "log": place})
        every += [(run, one) for one in policies]
        kept = run.kept_references() or {}  # missing references are not measured here
        described.append(
            {
                "name": name,
                "algorithm": spec.algorithm,
                "seeds": listed(spec.seeds),
                "seed_count": len(spec.seeds),
                "step": run.step,
                "folder": run.folder.name if run.folder else None,
                "stopped": listed(sorted(map(int, run.about.get("stopped", {})))),
                "warnings": run.about.get("warnings", []),
                "limits": None if run.limit_report is None else run.limit_report.to_json(),
                "one_log": len({*run.about.get("sha256", ())}) == 1,
                "reward_scaled": spec.reward_scale != 1.0,
                "settings": {key: _plainly(of) for key, of in spec.to_json()["config"].items()},
                "dataset": shown[spec.dataset],
                **_curves(run, points, resamples),
                "references": {key: rounded(row.mean) for key, row in kept.items()},
                "policies": policies,
            }
        )
    page_policies.add_weights(every)
    return {
        "runs": described,
        "logs": [page_policies.logged_pairs(log) for log in shelf],
        "claims": [_claim(claim) for claim in claims],
        "resamples": resamples,
    }


def _seeds_of(runs: Sequence[Run]) -> list[list[int]]:
    """Return the seeds of each run whose policies are shown: a good one first, then the others."""
    first = [good_seed(run) for run in runs]
    if sum(len(run.spec.seeds) for run in runs) > _MOST_POLICIES:
        return [[seed] for seed in first]
    return [
        [seed, *(other for other in run.spec.seeds if other != seed)]
        for run, seed in zip(runs, first, strict=True)
    ]


def _logs_of(
    runs: Sequence[Run], seeds: Sequence[Sequence[int]], given: Logs
) -> tuple[list[Dataset], list[int | None]]:
    """Return the logs of the shown seeds, each once, and the index of each seed's log or None."""
    logs: dict[tuple[str, int | None], Dataset] = {}
    places: list[int | None] = []
    for run, of_run in (
        (run, one) for run, shown in zip(runs, seeds, strict=True) for one in shown
    ):
        name, problem = run.spec.dataset, run.program.problem
        seed = None if name in given else of_run
        if seed is not None and not treatment.is_name(name):
            places.append(None)
            continue
        if (name, seed) not in logs:
            log = given[name] if seed is None else data.load(name, seed)
            sizes = (log.observation_size, log.action_size)
            if sizes != (problem.observation_size, problem.action_size):
                raise ValueError(
                    f"the log given for {name!r} has observations and actions of sizes {sizes}; "
                    f"the run learned from {problem.observation_size} and {problem.action_size}"
                )
            logs[name, seed] = log
        places.append([*logs].index((name, seed)))
    return [*logs.values()], places


def datasets_of(runs: Sequence[Run]) -> dict[str, str]:
    """Return the displayed name of each data set: a path without its folder, unless ambiguous."""
    names = dict.fromkeys(run.spec.dataset for run in runs)
    short = {name: Path(name).name if Path(name).is_absolute() else name for name in names}
    taken = list(short.values())
    return {name: said if taken.count(said) == 1 else name for name, said in short.items()}


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its algorithm, and how it differs from others on its data set.

    The name lists settings that differ between these runs and are not the algorithm's default, and
    the folder or a number if names are still equal.
    """
    specs = [_flat(run.spec) for run in runs]
    names = []
    for run, spec in zip(runs, specs, strict=True):
        kind = (spec["algorithm"], spec["dataset"])
        rivals = [other for other in specs if (other["algorithm"], other["dataset"]) == kind]
        default = algorithms.get(run.spec.algorithm).config()
        usual = _flat(dataclasses.replace(run.spec, config=default))
        usual |= {"standardise": False, "reward_scale": 1.0, "settings_from": DEFAULT, "task": None}
        usual |= {"holdout": 0.0, "select": LAST, "limits": None}
        differences = ", ".join(
            name.replace("_", " ") + ("" if value is True else f" {_plainly(value)}")
            for name, value in spec.items()
            if any(rival[name] != value for rival in rivals)
            and (name in ("steps", "seeds") or json.dumps(value) != json.dumps(usual[name]))
        )
        names.append(f"{spec['algorithm']} ({differences})" if differences else spec["algorithm"])
    keys = [(name, run.spec.dataset) for name, run in zip(names, runs, strict=True)]
    folders = [run.folder.name if run.folder else "" for run in runs]
    for place, key in enumerate(keys):
        alike = [folder for folder, other in zip(folders, keys, strict=True) if other == key]
        if len(alike) > 1:
            by_folder = "" not in alike and len(set(alike)) == len(alike)
            number = f"no. {keys[:place].count(key) + 1}"
            names[place] += f", {folders[place] if by_folder else number}"
    return names


def _flat(spec: RunSpec) -> Plain:
    values = spec.to_json()
    if spec.limits is not None:
        values["limits"] = ", ".join(name for name, _ in spec.limits.rules)
    return {**{name: values[name] for name in values if name != "config"}, **values["config"]}


def _plainly(value: Any) -> str:
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return listed(value)
    return value if isinstance(value, str) else json.dumps(value)


def _curves(run: Run, points: int, resamples: int) -> Plain:
    """Return mean returns with intervals by policy; for a run without evaluations, its metrics."""

    def curve(steps: Any, values: Float[np.ndarray, "steps seeds episodes"]) -> Plain:
        places = spread(len(steps), points)
        intervals = [seed_interval(of_step, resamples=resamples) for of_step in values[places]]
        ends = dict(zip(("mean", "low", "high"), np.reshape(intervals, (-1, 3)).T, strict=True))
        shown = {name: rounded(of_steps) for name, of_steps in ends.items()}
        return {"steps": [int(steps[place]) for place in places], **shown}

    evaluated, steps = run.evaluations.policies, run.evaluations.steps
    metrics = {} if evaluated else {**run.metrics}
    rows = metrics.pop("step", ())
    return {
        "curves": {name: curve(steps, np.asarray(of.returns)) for name, of in evaluated.items()},
        "metrics": {name: curve(rows, of[..., None]) for name, of in metrics.items()},
    }


def _claim(claim: Mapping[str, Any]) -> Plain:
    missing = [field for field in CLAIM_FIELDS if field not in claim]
    if missing:
        raise ValueError(
            f"a claim must have {', '.join(CLAIM_FIELDS)}; {', '.join(missing)} is missing from "
            f"{dict(claim)!r}"
        )
    numbers = {field: claim[field] for field in ("effect", "low", "high")}
    known = {field: rounded(value) for field, value in numbers.items() if value is not None}
    return {field: claim[field] for field in CLAIM_FIELDS} | known
