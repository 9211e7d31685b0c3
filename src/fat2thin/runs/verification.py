"""Is a run folder what it says: checks that read everything and write nothing."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fat2thin import data
from fat2thin.engine.jobs import data_size
from fat2thin.engine.pack import Log
from fat2thin.evaluation.batches import problem_of
from fat2thin.runs import checkpoints, lock
from fat2thin.runs.checkpoints import Checkpoint, NewerFormatError
from fat2thin.runs.evidence import NotPossible, Record
from fat2thin.runs.evidence_checks import evaluations, files, metrics, refuse, snapshots, weights
from fat2thin.runs.files import DamagedError
from fat2thin.runs.folder import FINISHED, RUN, RUNNING, RunFolder, TooLargeError, refuse_too_large
from fat2thin.runs.logs import read_logs
from fat2thin.runs.replay import replay
from fat2thin.runs.run_json import understand
from fat2thin.settings.config import whole_number
from fat2thin.settings.spec import MOST_ROWS, plain
from fat2thin.tables import Table, listed

OK, FAILED, NOT_POSSIBLE = "ok", "FAILED", "not possible"
_SAID = ("versions", "device", "started")
_SAID_AT_THE_END = ("step", "seconds", "files")
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OSError)
"""What reading something that is not what it says can end with."""


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    result: str
    """`OK`, `FAILED` or `NOT_POSSIBLE`."""
    what: str
    """What was seen, or what is wrong, or why it cannot be said."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """All that was looked at; `str` of it is a table."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong, as far as could be seen."""
        return all(check.result != FAILED for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        """The check of this name."""
        return next(check for check in self.checks if check.name == name)

    def __str__(self) -> str:
        rows = ({"check": one.name, "result": one.result, "what": one.what} for one in self.checks)
        return str(Table("", tuple(rows)))


def verify(folder: str | Path, replayed: int | None = None) -> Verification:
    """Check that a run folder holds what its run.json says, and write nothing.

    At least `replayed` steps are computed again from the start, one chunk of updates by default.
    """
    most = None if replayed is None else whole_number("replay", replayed, least=0)
    return _Verifier(Path(folder), most).verification()


class _Verifier:
    """The checks in their order; the later ones rest on what the earlier ones read."""

    def __init__(self, folder: Path, most: int | None) -> None:
        self._folder, self._most = RunFolder(folder), most
        self._in_use = False
        self._record: Record | None = None
        self._logs: tuple[Log, ...] | None = None
        self._damaged: list[str] = []

    def verification(self) -> Verification:
        """All of them."""
        checks: dict[str, Callable[[Record], str]] = {
            "files": files,
            "checkpoints": self._checkpoints,
            "data": self._data,
            "metrics": metrics,
            "evaluations": evaluations,
            "snapshots": snapshots,
            "weights": weights,
            "replay": self._replay,
        }
        found = [self._checked(RUN, self._read)]
        for name, check in checks.items():
            found.append(self._checked(name, functools.partial(self._of_record, check)))
        return Verification(tuple(found))

    def _checked(self, name: str, check: Callable[[], str]) -> Check:
        try:
            return Check(name, OK, check())
        except (NotPossible, TooLargeError) as error:
            return Check(name, NOT_POSSIBLE, str(error))
        except _WRONG as error:
            if self._in_use and isinstance(error, FileNotFoundError):
                return Check(name, NOT_POSSIBLE, f"the run went on meanwhile: {error}")
            told = str(error) if isinstance(error, ValueError | OSError) else repr(error)
            return Check(name, FAILED, " ".join(told.split()))

    def _of_record(self, check: Callable[[Record], str]) -> str:
        if self._record is None:
            raise NotPossible(f"{RUN} does not say what to expect")
        return check(self._record)

    def _read(self) -> str:
        self._in_use = lock.in_use(self._folder.path)
        about = self._folder.about()
        needed = _SAID if about["status"] == RUNNING else (*_SAID, *_SAID_AT_THE_END)
        refuse(f"it says nothing of {name}" for name in needed if name not in about)
        said = understand(self._folder.path / RUN, about)
        spec = said.spec
        if spec.steps / min(spec.log_every, spec.evaluate_every) > MOST_ROWS:
            raise NotPossible(f"{spec.steps:,} steps would be cut into too many chunks")
        record = Record(self._folder, about, said, self._whole_checkpoints(about))
        if about["status"] == FINISHED and about["step"] != spec.steps:
            raise DamagedError(f"it finished after step {about['step']} of {spec.steps}")
        unknown = {*about.get("stopped", {})} - {str(seed) for seed in spec.seeds}
        refuse(f"seed {seed} stopped and is not one of the run" for seed in sorted(unknown))
        self._record = record
        stopped = f", {len(about['stopped'])} of them stopped" if "stopped" in about else ""
        now = ", and a process trains into the folder now" if self._in_use else ""
        return f"{about['status']}, {spec.steps:,} steps, seeds {listed(spec.seeds)}{stopped}{now}"

    def _whole_checkpoints(self, about: dict[str, Any]) -> list[Checkpoint]:
        """The newest first; of the others it is remembered what is wrong with them."""
        whole = []
        for place, path in checkpoints.listed(self._folder.path):
            try:
                found = checkpoints.read(path, place)
                for name in ("spec", "problem", "sha256", "scales"):
                    if found.manifest.get(name) != about.get(name):
                        raise DamagedError(f"{path} and {RUN} do not agree on {name}")
                whole.append(found)
            except (DamagedError, NewerFormatError, FileNotFoundError) as error:
                # Older ones are removed while a run goes on.
                if path.exists() or not self._in_use:
                    self._damaged.append(str(error))
        return whole

    def _checkpoints(self, record: Record) -> str:
        refuse(self._damaged)
        return ", ".join(str(found.place) for found in record.checkpoints) or "there is none"

    def _data(self, record: Record) -> str:
        name = record.spec.dataset
        try:
            _refuse_too_many_logs(record)
            (logs,) = read_logs([record.spec])
        except TooLargeError:
            raise
        except (OSError, ValueError) as error:
            if Path(name).exists():
                raise
            raise NotPossible(f"{name} cannot be read here: {error}") from error
        hashes = [log.dataset.sha256 for log in logs]
        if hashes != record.about["sha256"]:
            raise DamagedError(f"the contents of {name} are not what they were")
        problem = plain(dataclasses.asdict(problem_of(logs[0].dataset)))
        if problem != record.about["problem"]:
            raise DamagedError(f"{RUN} says {record.about['problem']} of it, it is {problem}")
        # Sums of many numbers may differ in the last digit between machines.
        scales = jax.tree.leaves([log.scales.to_json() for log in logs])
        if not np.allclose(scales, jax.tree.leaves(record.about.get("scales", [])), rtol=1e-6):
            raise DamagedError(f"{RUN} says other scales of it than it has")
        self._logs = logs
        return f"{name}: {len(logs)} log{'s' * (len(logs) > 1)}, as they were"

    def _replay(self, record: Record) -> str:
        if self._logs is None:
            raise NotPossible("it needs the data as they were")
        return replay(record, self._logs, self._most)


def _refuse_too_many_logs(record: Record) -> None:
    """Refuse more logs than memory may hold, where each seed has its own; one of them is made."""
    spec = record.spec
    if data.reader(spec.dataset).one_a_seed:
        size = data_size(data.load(spec.dataset, spec.seeds[0]))
        copies = 2 if spec.holdout else 1
        refuse_too_large(
            record.folder.path / RUN,
            f"spec.dataset and the {len(spec.seeds):,} spec.seeds",
            copies * len(spec.seeds) * size,
        )
