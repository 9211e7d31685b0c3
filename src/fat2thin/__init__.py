"""Offline reinforcement learning with sparse policies.

Importing the package loads no other module; submodules and names are imported on first use.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

_PARTS = (
    "algorithms", "data", "distributions", "engine", "envs", "evaluation", "experiments", "paper",
    "policies", "runs", "settings", "testing", "training",
)  # fmt: skip
_NAMES = {
    "Run": "training.Run",
    "RunSpec": "training.RunSpec",
    "TrainingDiverged": "training.TrainingDiverged",
    "load": "training.load",
    "register_algorithm": "algorithms.register",
    "register_family": "policies.families.register_family",
    "register_reader": "data.register_reader",
    "register_task": "evaluation.returns.register_task",
    "train": "training.train",
}

__all__ = ["__version__", *_PARTS, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        module, _, attribute = _NAMES[name].rpartition(".")
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS, *_NAMES})
