"""Offline reinforcement learning with sparse policies.

Importing this package starts nothing and reads nothing: its parts are loaded when they are used.
"""

import importlib
from types import ModuleType

__version__ = "0.1.0"

_PARTS = ("distributions", "testing")

__all__ = ["__version__", "distributions", "testing"]


def __getattr__(name: str) -> ModuleType:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
