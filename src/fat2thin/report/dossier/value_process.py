"""The value of a policy in a process of its own, which is ended when its time is over.

A compiled program cannot be stopped from inside. The process writes one line of JSON per result:
first the policy beside practice, then also the best constant action and the other runs. What was
finished in time is kept. It ends with the process that started it.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fat2thin import data
from fat2thin.envs.rollouts import start_process
from fat2thin.evaluation.value import value
from fat2thin.report.dossier.subject import Subject, open_subject
from fat2thin.runs.result import load


class Valued(NamedTuple):
    """What was found in time."""

    found: dict[str, Any] | None
    """`PolicyValue.to_json()`, with as many rows as there was time for."""
    complete: bool
    """Whether the best constant action and the other runs are in it."""
    error: str | None
    """Why there is nothing more, unless that is the time."""


def value_within(
    subject: Subject, limits: Path | None, against: Sequence[Path], seconds: float
) -> Valued:
    """Return what the policy of a run in a folder is worth, as far as that is found in time."""
    order: dict[str, Any] = {
        "folder": str(subject.run.folder), "log": subject.given, "kept": None,
        "limits": None if limits is None else str(limits), "against": [*map(str, against)],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        if subject.run.data is not None:  # no file has this log
            order |= {"kept": str(Path(scratch) / "log.npz"), "name": subject.run.data.name}
            data.save_npz(subject.run.data, order["kept"])
        lines: list[bytes] = []
        with start_process(__name__, order, stderr=subprocess.DEVNULL) as process:
            reading = threading.Thread(target=_read, args=(process, lines), daemon=True)
            reading.start()
            try:
                reading.join(max(seconds, 0.0))
                in_time = not reading.is_alive()
            finally:
                process.kill()
                reading.join()
    answers = [json.loads(line) for line in lines if line.endswith(b"\n")]
    results = [one["found"] for one in answers if "found" in one]
    error = next((one["error"] for one in answers if "error" in one), None)
    complete = any(one.get("complete") for one in answers)
    if in_time and not complete and error is None:
        error = f"its process ended without a message (status {process.returncode})"
    return Valued(results[-1] if results else None, complete, error)


def _read(process: subprocess.Popen, lines: list[bytes]) -> None:
    assert process.stdout is not None
    lines.extend(iter(process.stdout.readline, b""))


def _results(order: dict[str, Any]) -> None:
    """Write the results of an order to stdout."""
    # Only answers go to stdout.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields).encode() + b"\n")

    try:
        run = load(order["folder"])
        if order["kept"] is not None:
            kept = dataclasses.replace(data.load(order["kept"]), name=order["name"])
            run = dataclasses.replace(run, data=kept)
        subject = open_subject(run, order["log"], order["limits"])
        if subject.given is None:  # its log is read already
            run = dataclasses.replace(subject.run, data=subject.log)
        else:
            run = subject.run
        others = {one: load(one) for one in order["against"]}
        if order["limits"] is not None:  # as `fat2thin value` does
            others = {name: one.with_limits(order["limits"]) for name, one in others.items()}
        first = value(run, subject.judged, constant=False)
        answer(found=first.to_json())
        answer(found=value(run, subject.judged, against=others).to_json(), complete=True)
    except Exception as error:  # any error must reach the page as a sentence
        answer(error=" ".join(str(error).split()) or type(error).__name__)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    first_line = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _results(first_line)
