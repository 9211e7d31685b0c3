"""Training: compute a run from its specification, or resume it."""

from fat2thin.engine.metrics import TrainingDiverged
from fat2thin.runs.checkpoints import NewerFormatError
from fat2thin.runs.files import DamagedError, NoRunError
from fat2thin.runs.folder import OtherRunError
from fat2thin.runs.lock import FolderInUseError
from fat2thin.runs.result import Evaluations, Run, load
from fat2thin.runs.verification import verify
from fat2thin.settings.spec import RunSpec, make_spec
from fat2thin.training.resuming import Interrupted
from fat2thin.training.runner import execute, execute_together, train

__all__ = [
    "DamagedError", "Evaluations", "FolderInUseError", "Interrupted", "NewerFormatError",
    "NoRunError", "OtherRunError", "Run", "RunSpec", "TrainingDiverged", "execute",
    "execute_together", "load", "make_spec", "train", "verify",
]  # fmt: skip
