"""Training: the compiled loop, runs and their folders."""

from fat2thin.training.folder import NoRunError, OtherRunError
from fat2thin.training.loop import TrainingDiverged
from fat2thin.training.result import Evaluations, Run, load
from fat2thin.training.run import execute, execute_together, train
from fat2thin.training.spec import RunSpec, make_spec

__all__ = [
    "Evaluations",
    "NoRunError",
    "OtherRunError",
    "Run",
    "RunSpec",
    "TrainingDiverged",
    "execute",
    "execute_together",
    "load",
    "make_spec",
    "train",
]
