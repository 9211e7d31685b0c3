"""The compiled part of a run: programs, jobs, devices. It reads and writes no files of a run."""

from typing import Any

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    # Imported on demand: the command line must set up JAX's cache before JAX is loaded.
    if name == "train":
        from fat2thin.engine.loop import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
