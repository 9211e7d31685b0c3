"""Training: the compiled loop, runs and their folders."""

from fat2thin.training.checkpoints import NewerFormatError
from fat2thin.training.files import DamagedError
from fat2thin.training.folder import NoRunError, OtherRunError
from fat2thin.training.interruption import Interrupted
from fat2thin.training.lock import FolderInUseError
from fat2thin.training.loop import TrainingDiverged
from fat2thin.training.result import Evaluations, Run, load
from fat2thin.training.run import execute, execute_together, train
from fat2thin.training.spec import RunSpec, make_spec
from fat2thin.training.verification import verify

__all__ = [
    "DamagedError",
    "Evaluations",
    "FolderInUseError",
    "Interrupted",
    "NewerFormatError",
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
    "verify",
]
