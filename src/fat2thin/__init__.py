"""Offline reinforcement learning with sparse policies.

Importing this package starts nothing and reads nothing: its parts are loaded when they are used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PARTS = (
    "algorithms", "data", "distributions", "engine", "envs", "evaluation", "experiments", "paper",
    "policies", "runs", "settings", "testing", "training",
)  # fmt: skip
_NAMES = {
    "Run": "training",
    "RunSpec": "training",
    "TrainingDiverged": "training",
    "load": "training",
    "train": "training",
}

__all__ = ["__version__", *_PARTS, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS, *_NAMES})
