"""Ctrl-C, or a polite kill: training stops where it can go on from."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop, and did after a checkpoint; says how to go on."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.status = 128 + number
        """What a program that this signal ends returns, by the custom of shells."""


class Interruption:
    """While it is entered, the first signal is remembered; the second is a KeyboardInterrupt.

    Only the main thread of a program can listen: elsewhere signals are left alone.
    """

    def __init__(self, listening: bool = True) -> None:
        self.asked = False
        """Whether somebody wants it to stop."""
        self.number: int = signal.SIGINT
        """Which signal it was."""
        self._listening = listening and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if self._listening:
            for number in _SIGNALS:
                # Whoever started this in the background may want it to be deaf.
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
            "stopping after this chunk, with a checkpoint; once more stops at once, and what came "
            "after the last checkpoint is computed again"
        )
