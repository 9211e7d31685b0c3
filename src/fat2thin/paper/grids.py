"""The sweeps of the paper: its grids, and which methods they are for.

Source: the FtTPO authors' code, commit 811d59d. Temperatures divide: the inverse ones of XQL are
converted.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fat2thin.experiments.sweep import Sweep
from fat2thin.paper.presets import FTTPO, REWARDS, ROBOTS, SETS, Method, Reproduction, method
from fat2thin.settings.spec import RunSpec, expand_seeds

Grid = Mapping[str, tuple[Any, ...]]
_RATES = (1e-3, 3e-4, 1e-4, 3e-3)
_FTTPO_GRID = {"learning_rate": (1e-3, 3e-4), "temperature": (1.0, 0.5, 0.01)}
ON_TREATMENT: tuple[tuple[Method, Grid], ...] = (
    (FTTPO, {"learning_rate": (3e-4, 1e-4, 3e-5), "temperature": (1.0, 0.5, 0.1, 0.01)}),
    (method("iql"), {"learning_rate": _RATES, "temperature": (1 / 3, 0.7),
                     "expectile": (0.7, 0.8, 0.9)}),
    (method("sql"), {"learning_rate": _RATES, "temperature": (2.0, 5.0)}),
    (method("xql"), {"learning_rate": _RATES, "temperature": (0.5, 0.2)}),
)  # fmt: skip
ON_ROBOTS: tuple[tuple[Method, Grid], ...] = (
    (FTTPO, _FTTPO_GRID),
    (method("fttpo-sg"), _FTTPO_GRID),
    (method("fttpo-spot"), _FTTPO_GRID),
    (method("iql"), {"learning_rate": _RATES}),
    (method("inac"), {"learning_rate": _RATES}),
    (method("tawac"), {"learning_rate": _RATES, "temperature": (1.0, 0.5, 0.01)}),
    (method("awac"), {"learning_rate": _RATES}),
    (method("sql"), {"learning_rate": (2e-4,), "temperature": (2.0, 5.0)}),
)
ON_EXAMPLES = ((method("rar"), _FTTPO_GRID), (method("sparse_reverse_kl"), _FTTPO_GRID))
"""Tuned on two sets of one robot alone."""
EXAMPLES = ("halfcheetah-medium-expert", "halfcheetah-medium")


def sweeps(asked: Reproduction, robots: bool = True) -> dict[str, Sweep]:
    """Every sweep of the paper, or those on the treatment task, by the folder that holds it."""
    names = [f"{robot}-{level}" for robot in ROBOTS for level in SETS]
    wanted = [
        (asked.treatment(reward, one).spec, grid)
        for one, grid in ON_TREATMENT for reward in REWARDS
    ]  # fmt: skip
    if robots:
        wanted += [(asked.robot(name, one).spec, grid) for one, grid in ON_ROBOTS for name in names]
        wanted += [
            (asked.robot(name, one).spec, grid) for one, grid in ON_EXAMPLES for name in EXAMPLES
        ]
    return {
        f"sweeps/{spec.dataset.replace('/', '-')}/{spec.algorithm}": _sweep(asked, spec, grid)
        for spec, grid in wanted
    }


def _sweep(asked: Reproduction, spec: RunSpec, grid: Grid) -> Sweep:
    chooses = expand_seeds(asked.scale.selection_seeds)
    first = len(chooses)
    reports = tuple(range(first, first + len(spec.seeds)))
    return Sweep(dataclasses.replace(spec, seeds=chooses), grid, reports)
