"""Interrupting and resuming: signals, when a checkpoint is due, and where runs resume."""

import collections
import logging
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from fat2thin.engine.pack import LoadedLog
from fat2thin.runs import checkpoints
from fat2thin.runs.checkpoints import START, Checkpoint, Place
from fat2thin.runs.folder import RUNNING, RunFolder
from fat2thin.settings.spec import RunSpec, difference

SHARE = 1 / 20  # maximum share of the time for writing checkpoints
_NEEDED = ("spec", "sha256", "versions", "device", "started", "seconds")
"""Fields that a manifest must have so that a run can resume from it."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop and did, after a checkpoint; the message says how to resume."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        # The exit status of a program that this signal ends, by the convention of shells.
        self.status = 128 + number


class Interruption:
    """A context that records the first signal; the second raises a KeyboardInterrupt.

    Only the main thread of a program can handle signals: other threads ignore this.
    """

    def __init__(self, listening: bool) -> None:
        self.asked = False  # whether a signal arrived
        self.number: int = signal.SIGINT  # which one it was
        self._listening = listening and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if self._listening:
            for number in _SIGNALS:
                # A process in the background may be set to ignore the signal.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.number = True, number
        _log.warning(
            "stopping after this chunk, with a checkpoint; interrupt again to stop at once, and "
            "lose the work since the last checkpoint"
        )


class Timer:
    """Decides when a checkpoint is due; entered while one is written. Its clock is monotonic."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._took = seconds, 0.0
        self._began = self._last = time.monotonic()

    def due(self, patient: bool) -> bool:
        """Whether a checkpoint is due; if `patient`, after twice the time. 0 seconds: always."""
        interval = max(self._seconds, self._took / SHARE) if self._seconds else 0.0
        return time.monotonic() - self._last >= (2 if patient else 1) * interval

    def __enter__(self) -> "Timer":
        self._began = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        """Restart the clock."""
        self._last = time.monotonic()
        self._took = self._last - self._began


def groups(
    runs: Sequence[tuple[RunSpec, tuple[LoadedLog, ...], RunFolder | None]],
) -> list[dict[int, Checkpoint | None]]:
    """Group runs by the place that they resume from: the one most of them share, then the newest.

    Each group has the numbers of its runs, and the checkpoint of each; None if it starts.
    """
    of_run: list[dict[Place, Checkpoint | None]] = []
    for run in runs:
        found = _of_run(*run)
        of_run.append({one.place: one for one in found} if found else {START: None})
    left, made = list(range(len(runs))), []
    while left:
        places = collections.Counter(place for number in left for place in of_run[number])
        place = max(places, key=lambda place: (places[place], place))
        together = [number for number in left if place in of_run[number]]
        for number in together:
            folder, newest = runs[number][2], max(of_run[number])
            if folder and newest > place:
                _log.warning(
                    "%s goes back from %s to %s, like the other runs of its program",
                    folder.path, newest, place,
                )  # fmt: skip
        made.append({number: of_run[number][place] for number in together})
        left = [number for number in left if number not in together]
    return made


def _of_run(
    spec: RunSpec, logs: tuple[LoadedLog, ...], folder: RunFolder | None
) -> list[Checkpoint]:
    hashes = [log.dataset.sha256 for log in logs]
    if folder is None or folder.status(spec, hashes) != RUNNING:
        return []
    found = []
    for checkpoint in checkpoints.intact(folder.path):
        if missing := [name for name in _NEEDED if name not in checkpoint.manifest]:
            wrong = f"has no {', '.join(missing)}"
        elif difference(checkpoint.manifest["spec"], spec.to_json()):
            wrong = "is of another run"
        elif checkpoint.manifest["sha256"] != hashes:
            wrong = "is of other data"
        else:
            found.append(checkpoint)
            continue
        _log.warning("%s %s and is not used", checkpoint.path, wrong)
    return found
