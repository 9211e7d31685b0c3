"""The compiled part of a run: programs, jobs, devices. It reads and writes no files."""

from fat2thin.engine.train import train

__all__ = ["train"]
