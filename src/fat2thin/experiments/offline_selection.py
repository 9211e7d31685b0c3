"""Choosing settings from a log alone: learn from four fifths of its episodes, score on the rest."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fat2thin import data
from fat2thin.data.npz_files import read_npz, save_npz
from fat2thin.data.operations import split
from fat2thin.evaluation.held_out import held_out
from fat2thin.experiments.plan import Planned
from fat2thin.training import OtherRunError, Run, RunSpec

CRITERIA = {
    "likelihood": "log-likelihood of held-out actions under the proposal, weighted as in training",
    "td_error": "minus the root mean square TD error on held-out steps",
}
"""Larger is better. The weights are the setting's own: another temperature, another question."""
_QUANTITIES = {"likelihood": "weighted_log_likelihood", "td_error": "td_error"}
_SIGNS = {"likelihood": 1.0, "td_error": -1.0}
HELD_OUT = 0.2
TRAINING, VALIDATION = "training.npz", "validation.npz"


def plan(specs: Mapping[str, RunSpec], root: Path, folder: str) -> list[Planned]:
    """Runs on a part of the log, by setting; where every seed has its own log, a run a seed.

    The parts are written below `root / folder`, and no policy is judged in any environment.
    """
    any_spec = next(iter(specs.values()))
    own = data.reader(any_spec.dataset).one_a_seed
    planned = []
    for log, seeds in _logs(any_spec, own).items():
        place = root / folder / "data" / log
        _write_parts(any_spec, seeds[0] if own else 0, place)
        for setting, spec in specs.items():
            part = dataclasses.replace(
                spec, dataset=str(place / TRAINING), task="none", seeds=seeds
            )
            planned.append(Planned(f"{folder}/{log}/{setting}", part))
    return planned


def _logs(spec: RunSpec, own: bool) -> dict[str, tuple[int, ...]]:
    return {f"seed_{seed}": (seed,) for seed in spec.seeds} if own else {"log": spec.seeds}


def _write_parts(spec: RunSpec, seed: int, place: Path) -> None:
    """Write both parts, or see that those which are there are of this very log."""
    validation, training = split(data.load(spec.dataset, seed), HELD_OUT, seed)
    place.mkdir(parents=True, exist_ok=True)
    for part, path in ((training, place / TRAINING), (validation, place / VALIDATION)):
        if not path.exists():
            save_npz(part, path)
        elif read_npz(path).sha256 != part.sha256:
            raise OtherRunError(
                f"{path} is a part of another log than {spec.dataset} is now: choose another "
                "folder, or remove this one"
            )


def scores(criterion: str, runs: Mapping[str, Run], root: Path) -> dict[str, np.ndarray]:
    """By setting: a score a seed, from runs by the names that `plan` gave them."""
    found: dict[str, list[np.ndarray]] = {}
    for name, run in runs.items():
        folder, log, setting = name.rsplit("/", 2)
        validation = read_npz(root / folder / "data" / log / VALIDATION)
        quantities = held_out(run, validation)
        quantity = _QUANTITIES[criterion]
        if quantity not in quantities:
            raise ValueError(
                f"{run.spec.algorithm} has no {quantity.replace('_', ' ')}: choose by another of "
                f"{', '.join(name for name in CRITERIA if name != criterion)}"
            )
        score = _SIGNS[criterion] * quantities[quantity]
        stopped = [str(seed) in run.about.get("stopped", {}) for seed in run.spec.seeds]
        found.setdefault(setting, []).append(np.where(stopped, np.nan, score))
    return {setting: np.concatenate(several) for setting, several in found.items()}
