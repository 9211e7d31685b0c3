"""Where runs go on from, and when it is time to write that down."""

import logging
import time
from collections.abc import Sequence
from types import TracebackType

from fat2thin.training import checkpoints
from fat2thin.training.checkpoints import Checkpoint
from fat2thin.training.folder import RUNNING, RunFolder
from fat2thin.training.pack import Log
from fat2thin.training.spec import RunSpec, difference

SHARE = 1 / 20
"""How much of the time writing checkpoints may take."""
_NEEDED = ("spec", "sha256", "versions", "device", "started", "seconds")
"""What a manifest must say so that a run can go on from it."""

_log = logging.getLogger(__name__)


class Timer:
    """Says when a checkpoint is due; entered while one is written. No clock of the day is asked."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._took = seconds, 0.0
        self._began = self._last = time.monotonic()

    def due(self, patient: bool) -> bool:
        """Whether it is time; with patience, whether it is high time. 0 seconds is always."""
        interval = max(self._seconds, self._took / SHARE) if self._seconds else 0.0
        return time.monotonic() - self._last >= (2 if patient else 1) * interval

    def __enter__(self) -> "Timer":
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Count from now on."""
        self._last = time.monotonic()
        self._took = self._last - self._began


def common_checkpoints(
    specs: Sequence[RunSpec],
    logs: Sequence[tuple[Log, ...]],
    folders: Sequence[RunFolder | None],
) -> list[Checkpoint]:
    """One of each run, all of the newest place that all of them have; none where there is none."""
    by_place = [
        {checkpoint.place: checkpoint for checkpoint in _of_run(spec, of_run, folder)}
        for spec, of_run, folder in zip(specs, logs, folders, strict=True)
    ]
    shared = set.intersection(*(set(found) for found in by_place))
    if not shared:
        return []
    place = max(shared)
    for found, folder in zip(by_place, folders, strict=True):
        if folder and max(found) > place:
            _log.warning(
                "%s goes back from %s to %s, where the runs beside it are",
                folder.path, max(found), place,
            )  # fmt: skip
    return [found[place] for found in by_place]


def _of_run(spec: RunSpec, logs: tuple[Log, ...], folder: RunFolder | None) -> list[Checkpoint]:
    hashes = [log.dataset.sha256 for log in logs]
    if folder is None or folder.status(spec, hashes) != RUNNING:
        return []
    found = []
    for checkpoint in checkpoints.whole(folder.path):
        if missing := [name for name in _NEEDED if name not in checkpoint.manifest]:
            told = ", ".join(missing)
            _log.warning("%s says nothing of %s and is not used", checkpoint.path, told)
        elif difference(checkpoint.manifest["spec"], spec.to_json()):
            _log.warning("%s is of another run and is not used", checkpoint.path)
        elif checkpoint.manifest["sha256"] != hashes:
            _log.warning("%s is of other data and is not used", checkpoint.path)
        else:
            found.append(checkpoint)
    return found
